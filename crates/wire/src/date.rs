//! Formats points in time as ISO 8601 in UTC. The admin API, the feed of events and the built-in file server use it.
//! The conversion is short, so the gateway needs no date library.

const DAY: i64 = 24 * 60 * 60;

/// Formats `seconds` since 1970, for example as `2026-11-15T08:30:00Z`. The conversion to civil dates follows H.
/// Hinnant: years begin in March, which makes the leap day the last day of a year, and all eras of 400 years are alike.
pub fn iso(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(DAY) + 719_468, seconds.rem_euclid(DAY));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_calendar_dates_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_794_787_393, "2026-11-16T00:03:13Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso(seconds), expected);
        }
    }
}
