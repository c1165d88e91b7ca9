//! Formats times and sizes for people. Structured fields keep their numbers.

use std::time::Duration;

/// The units of [`span`] in sentences.
pub const WORDS: [&str; 4] = [" s", " min", " h", " d"];

/// Formats a number of bytes with a binary unit, such as `1.2 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (count as f64, 0);
    while amount >= 1023.5 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let is_short = unit > 0 && amount < 9.95 && (amount - amount.round()).abs() >= 0.05;
    let digits = usize::from(is_short);
    format!("{amount:.digits$} {}", UNITS[unit])
}

/// Formats a number of milliseconds as a [`duration`].
pub fn milliseconds(count: f64) -> String {
    duration(Duration::try_from_secs_f64(count / 1000.0).unwrap_or_default())
}

/// Formats a duration with the digits that matter: `0.4 ms`, `250 ms`, `1.5 s`, `28 s`, `2 min 5 s`.
pub fn duration(duration: Duration) -> String {
    let (seconds, milliseconds) = (duration.as_secs_f64(), duration.as_secs_f64() * 1000.0);
    match seconds {
        _ if duration.is_zero() => "0 s".to_owned(),
        _ if milliseconds < 9.95 => format!("{} ms", short(milliseconds)),
        _ if milliseconds < 999.5 => format!("{milliseconds:.0} ms"),
        _ if seconds < 9.95 => format!("{} s", short(seconds)),
        _ => span(seconds.round() as u64, WORDS),
    }
}

/// Formats a number with one decimal, unless that is zero.
fn short(amount: f64) -> String {
    let text = format!("{amount:.1}");
    text.strip_suffix(".0").filter(|whole| *whole != "0").map(str::to_owned).unwrap_or(text)
}

/// Formats seconds with their two largest units. `units` are the texts after seconds, minutes, hours and days.
pub fn span(seconds: u64, units: [&str; 4]) -> String {
    let [second, minute, hour, day] = units;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit} {small}{small_unit}"),
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}{second}"),
        (0, 0, _) => two(minutes, minute, seconds % 60, second),
        (0, _, _) => two(hours, hour, minutes % 60, minute),
        _ => two(days, day, hours % 24, hour),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use15_sizes_have_binary_units() {
        for (count, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1024, "1 KiB"),
            (1234, "1.2 KiB"),
            (12_345, "12 KiB"),
            (4 << 20, "4 MiB"),
            (1_258_291, "1.2 MiB"),
            (1 << 30, "1 GiB"),
            (5 << 40, "5 TiB"),
        ] {
            assert_eq!(bytes(count), expected, "{count}");
        }
    }

    #[test]
    fn use15_durations_have_the_digits_that_matter() {
        for (count, expected) in [
            (0.0, "0 s"),
            (0.04, "0.0 ms"),
            (0.4, "0.4 ms"),
            (5.0, "5 ms"),
            (12.34, "12 ms"),
            (250.0, "250 ms"),
            (1000.0, "1 s"),
            (1500.0, "1.5 s"),
            (27_950.0, "28 s"),
            (60_000.0, "1 min"),
            (125_000.0, "2 min 5 s"),
            (3_600_000.0, "1 h"),
            (90_000_000.0, "1 d 1 h"),
            (f64::NAN, "0 s"),
        ] {
            assert_eq!(milliseconds(count), expected, "{count}");
        }
    }
}
