//! Formats times, durations and sparklines in a few characters.

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

/// Formats seconds as `4s`, `3m 2s`, `2h 5m` or `3d 4h`.
pub(crate) fn span(seconds: u64) -> String {
    units::span(seconds, ["s", "m", "h", "d"])
}

/// Returns the time of day of an ISO 8601 time.
pub(crate) fn clock(time: &str) -> &str {
    time.split_once('T').and_then(|(_, rest)| rest.get(..8)).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_as_high_as_its_highest() {
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
    fn spans_and_times_are_short() {
        for (seconds, expected) in
            [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h 0m"), (90_061, "1d 1h"), (864_000, "10d 0h")]
        {
            assert_eq!(span(seconds), expected);
        }
        for (time, expected) in [("2026-01-02T03:04:05.678Z", "03:04:05"), ("soon", "soon"), ("T1", "T1")] {
            assert_eq!(clock(time), expected);
        }
    }
}
