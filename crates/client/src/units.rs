//! Formats numbers for people.

/// Formats a number of bytes with a decimal unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["B", "kB", "MB", "GB"];
    let (mut amount, mut unit) = (count as f64, 0);
    while amount >= 999.5 && unit + 1 < UNITS.len() {
        amount /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && amount < 9.95);
    format!("{amount:.digits$} {}", UNITS[unit])
}

/// Formats seconds with their two largest units. `units` are the words for seconds, minutes, hours and days.
pub fn span(seconds: u64, units: [&str; 4]) -> String {
    let [second, minute, hour, day] = units;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}{second}"),
        (0, 0, _) => format!("{minutes}{minute} {}{second}", seconds % 60),
        (0, _, _) => format!("{hours}{hour} {}{minute}", minutes % 60),
        _ => format!("{days}{day} {}{hour}", hours % 24),
    }
}
