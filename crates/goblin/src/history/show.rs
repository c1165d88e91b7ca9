//! The columns of ended calls and of log entries.

use goblin_admin::api::{CallInfo, EventInfo};
use goblin_client::units;
use goblin_telemetry::clean;

use crate::table::Column;

/// An entry as a row of a table.
pub(super) trait Row {
    const COLUMNS: &'static [Column];

    /// Returns the cells. The first one is the time.
    fn cells(&self) -> Vec<String>;

    /// Returns the cells for a terminal, with a shorter time. `now` is the present time as in an entry.
    fn short_cells(&self, now: &str) -> Vec<String> {
        let mut cells = self.cells();
        if let Some(time) = cells.first_mut() {
            *time = short_time(time, now);
        }
        cells
    }
}

/// Returns the time in UTC without its fraction, and without the date if that is today.
fn short_time(time: &str, now: &str) -> String {
    let Some((date, clock)) = time.split_once('T') else { return time.to_owned() };
    let clock = clock.get(..8).unwrap_or(clock);
    if now.starts_with(date) { clock.to_owned() } else { format!("{date} {clock}") }
}

impl Row for CallInfo {
    const COLUMNS: &'static [Column] = &[
        Column::text("TIME"),
        Column::state("OUTCOME"),
        Column::number("TOOK"),
        Column::number("SIZE"),
        Column::text("CLIENT"),
        Column::text("NAME"),
        Column::message("ERROR"),
    ];

    fn cells(&self) -> Vec<String> {
        let name = if self.name.is_empty() { &self.method } else { &self.name };
        let error = [self.code.as_deref(), self.error.as_deref()];
        let error: Vec<_> = error.into_iter().flatten().map(clean).collect();
        vec![
            clean(&self.time),
            clean(&self.outcome),
            units::milliseconds(self.duration_ms),
            units::bytes(self.response_bytes),
            clean(&self.client),
            clean(name),
            error.join(": "),
        ]
    }
}

impl Row for EventInfo {
    const COLUMNS: &'static [Column] =
        &[Column::text("TIME"), Column::state("LEVEL"), Column::text("SERVER"), Column::message("MESSAGE")];

    fn cells(&self) -> Vec<String> {
        let level = if self.kind == "backend_stderr" { "stderr" } else { &self.level };
        let fields = self.fields.iter().map(|(key, value)| format!("  {}={}", clean(key), clean(value)));
        vec![
            clean(&self.time),
            clean(level),
            self.server.as_deref().map(clean).unwrap_or_default(),
            clean(&self.message) + &fields.collect::<String>(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use6_a_row_shows_durations_and_sizes_for_people() {
        let call = CallInfo {
            time: "t".to_owned(),
            outcome: "error".to_owned(),
            duration_ms: 27_950.0,
            response_bytes: 1234,
            method: "tools/call".to_owned(),
            code: Some("TIMEOUT".to_owned()),
            error: Some("no\u{1b}[2J answer".to_owned()),
            ..CallInfo::default()
        };
        let expected = ["t", "error", "28 s", "1.2 KiB", "", "tools/call", "TIMEOUT: no[2J answer"];
        assert_eq!(call.cells(), expected);
        assert_eq!(CallInfo::COLUMNS.len(), expected.len());
    }

    #[test]
    fn use6_a_terminal_shows_the_time_of_today_without_the_date() {
        let now = "2026-11-19T03:00:00Z";
        assert_eq!(short_time("2026-11-19T02:15:04.125Z", now), "02:15:04");
        assert_eq!(short_time("2026-11-18T23:59:59.001Z", now), "2026-11-18 23:59:59");
        assert_eq!(short_time("never", now), "never");
    }
}
