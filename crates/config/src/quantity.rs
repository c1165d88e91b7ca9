//! Parses durations and sizes such as `"60s"` and `"4MiB"`.
//!
//! Both are bounded, so later arithmetic cannot overflow and a typing error is reported early.

use std::time::Duration;

use crate::problem::Fault;

/// The longest duration. It can safely be added to an instant.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The smallest size. A handshake does not fit into less.
pub(crate) const MIN_SIZE: u64 = 1 << 10;
pub(crate) const MAX_SIZE: u64 = 1 << 30;
const MAX_MEMORY: u64 = 1 << 40;

/// Parses a whole number with a unit. `"0"` needs no unit.
pub fn duration(text: &str) -> Result<Duration, Fault> {
    let (number, unit) = split(text).ok_or_else(not_a_duration)?;
    let milliseconds_each: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        "" if number == 0 => 1,
        "" => {
            return Err(Fault::new("a duration needs a unit").cure(format!("write \"{number}s\" or \"{number}ms\"")));
        }
        _ => return Err(not_a_duration()),
    };
    milliseconds(number.checked_mul(milliseconds_each))
}

/// Returns a duration from a number of milliseconds, as other clients write timeouts.
pub(crate) fn milliseconds(count: Option<u64>) -> Result<Duration, Fault> {
    count
        .map(Duration::from_millis)
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| Fault::new("is too long").cure("use at most \"365d\", or \"0\" for no limit"))
}

pub(crate) fn not_a_duration() -> Fault {
    Fault::new("must be a duration").cure("write it like \"60s\", \"5m\", \"1h\" or \"200ms\"")
}

/// Parses a whole number with a unit, such as `"4MiB"` or `"1MB"`. Ignores case.
pub(crate) fn size(text: &str) -> Result<usize, Fault> {
    bytes(count(text)?)
}

/// Parses a size like [`size`], with a higher limit than that of messages.
pub(crate) fn memory(text: &str) -> Result<usize, Fault> {
    let count = count(text)?.filter(|count| (MIN_SIZE..=MAX_MEMORY).contains(count));
    let bytes = count.and_then(|count| usize::try_from(count).ok());
    bytes.ok_or_else(|| Fault::new("must be between 1KiB and 1024GiB"))
}

fn count(text: &str) -> Result<Option<u64>, Fault> {
    let (number, unit) = split(text).ok_or_else(not_a_size)?;
    let bytes_each: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "kib" => 1 << 10,
        "mb" => 1_000_000,
        "mib" => 1 << 20,
        "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return Err(not_a_size()),
    };
    Ok(number.checked_mul(bytes_each))
}

pub(crate) fn bytes(count: Option<u64>) -> Result<usize, Fault> {
    count
        .filter(|count| (MIN_SIZE..=MAX_SIZE).contains(count))
        .and_then(|count| usize::try_from(count).ok())
        .ok_or_else(|| Fault::new("must be between 1KiB and 1GiB"))
}

pub(crate) fn not_a_size() -> Fault {
    Fault::new("must be a size").cure("write it like \"4MiB\", \"512KiB\" or as a number of bytes")
}

/// Splits the text into digits and unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{duration, size};

    #[test]
    fn durations() {
        for (text, expected) in [
            ("60s", Ok(60_000)),
            ("1h", Ok(3_600_000)),
            ("5m", Ok(300_000)),
            ("2d", Ok(172_800_000)),
            ("200ms", Ok(200)),
            ("5 m", Ok(300_000)),
            ("0", Ok(0)),
            ("0s", Ok(0)),
            ("365d", Ok(31_536_000_000)),
            ("60", Err("a duration needs a unit, write \"60s\" or \"60ms\"")),
            ("366d", Err("is too long, use at most \"365d\", or \"0\" for no limit")),
            ("18446744073709551615h", Err("is too long, use at most \"365d\", or \"0\" for no limit")),
        ] {
            let found = duration(text).map_err(|fault| fault.to_string());
            assert_eq!(found, expected.map(Duration::from_millis).map_err(str::to_owned), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "1S", "1h30m", "1 fortnight", "99999999999999999999s"] {
            let found = duration(text).map_err(|fault| fault.to_string());
            let expected = "must be a duration, write it like \"60s\", \"5m\", \"1h\" or \"200ms\"";
            assert_eq!(found, Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes() {
        let wrong = "must be a size, write it like \"4MiB\", \"512KiB\" or as a number of bytes";
        let outside = "must be between 1KiB and 1GiB";
        for (text, expected) in [
            ("4MiB", Ok(4 << 20)),
            ("16KiB", Ok(16 << 10)),
            ("1MB", Ok(1_000_000)),
            ("2kb", Ok(2000)),
            ("1GiB", Ok(1 << 30)),
            ("1 gb", Ok(1_000_000_000)),
            ("4096", Ok(4096)),
            ("4096B", Ok(4096)),
            ("2GiB", Err(outside)),
            ("1B", Err(outside)),
            ("18446744073709551615GiB", Err(outside)),
            ("4M", Err(wrong)),
            ("", Err(wrong)),
            ("-4MiB", Err(wrong)),
        ] {
            let found = size(text).map_err(|fault| fault.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        }
    }
}
