//! Formats times, durations and sparklines in a few characters.

use std::borrow::Cow;

use goblin_client::units;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a sparkline, newest value last. The highest value has a full bar, and a missing value is a dot.
pub(crate) fn sparkline(values: impl Iterator<Item = Option<f64>> + Clone) -> String {
    let highest = values.clone().flatten().fold(0.0, f64::max);
    let bar = |value: Option<f64>| match value {
        None => '·',
        Some(_) if highest <= 0.0 => BARS[0],
        // The index is between 0 and 7 for any input, including NaN.
        Some(value) => BARS[((value / highest * 7.0).round().clamp(0.0, 7.0)) as usize],
    };
    values.map(bar).collect()
}

/// Formats a size with its exact number of bytes: `4.2 KiB (4321 bytes)`, or `11 bytes` below 1 KiB.
pub(crate) fn exact_size(count: u64) -> String {
    let exact = plural(count, "byte");
    if count < 1024 { exact } else { format!("{} ({exact})", units::bytes(count)) }
}

/// Formats a number of things, such as `1 prompt` or `2 prompts`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats seconds as `4s`, `3m 2s`, `2h 5m` or `3d 4h`.
pub(crate) fn span(seconds: u64) -> String {
    units::span(seconds, ["s", "m", "h", "d"])
}

/// Rounds a duration such as `62.835708ms` to `63ms`. Returns other texts unchanged.
pub(crate) fn rounded(text: &str) -> Cow<'_, str> {
    let units = ["ns", "µs", "ms", "s"];
    let split = |unit: &&'static str| Some((text.strip_suffix(*unit)?.parse::<f64>().ok()?, *unit));
    match units.iter().find_map(split) {
        Some((value, unit)) if text.contains('.') && value >= 10.0 => format!("{value:.0}{unit}").into(),
        Some((value, unit)) if text.contains('.') => format!("{value:.1}{unit}").into(),
        _ => text.into(),
    }
}

/// Returns the time of day of an ISO 8601 time.
pub(crate) fn clock(time: &str) -> &str {
    time.split_once('T').and_then(|(_, rest)| rest.get(..8)).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_scaled_to_its_highest_value() {
        for (values, expected) in [
            (vec![], ""),
            (vec![Some(0.0), Some(0.0)], "▁▁"),
            (vec![Some(7.0), None, Some(0.0), Some(3.0)], "█·▁▄"),
            (vec![Some(f64::NAN), Some(1.0)], "▁█"),
        ] {
            assert_eq!(sparkline(values.into_iter()), expected);
        }
    }

    #[test]
    fn precise_durations_are_rounded() {
        for (text, expected) in [
            ("62.835708ms", "63ms"),
            ("1.25s", "1.2s"),
            ("481.778µs", "482µs"),
            ("30s", "30s"),
            ("v1.2ms", "v1.2ms"),
            ("", ""),
            ("s", "s"),
        ] {
            assert_eq!(rounded(text), expected);
        }
    }

    #[test]
    fn use15_counts_and_small_sizes_are_written_for_people() {
        for (count, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (11, "11 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB (1024 bytes)"),
            (4321, "4.2 KiB (4321 bytes)"),
        ] {
            assert_eq!(exact_size(count), expected);
        }
        assert_eq!([plural(1, "prompt"), plural(2, "prompt")], ["1 prompt", "2 prompts"]);
    }

    #[test]
    fn durations_and_times_are_shortened() {
        for (seconds, expected) in
            [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90_061, "1d 1h"), (864_000, "10d")]
        {
            assert_eq!(span(seconds), expected);
        }
        for (time, expected) in [("2026-01-02T03:04:05.678Z", "03:04:05"), ("soon", "soon"), ("T1", "T1")] {
            assert_eq!(clock(time), expected);
        }
    }
}
