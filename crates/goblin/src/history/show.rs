//! The columns of ended calls and of log entries.

use goblin_admin::api::{CallInfo, EventInfo};
use goblin_client::units;
use goblin_telemetry::clean;

use crate::table::Column;

/// An entry as a row of a table.
pub(super) trait Row {
    const COLUMNS: &'static [Column];

    fn cells(&self) -> Vec<String>;
}

impl Row for CallInfo {
    const COLUMNS: &'static [Column] = &[
        Column::text("TIME"),
        Column::state("OUTCOME"),
        Column::number("TOOK"),
        Column::number("SIZE"),
        Column::text("CLIENT"),
        Column::text("NAME"),
        Column::text("ERROR"),
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
        &[Column::text("TIME"), Column::state("LEVEL"), Column::text("SERVER"), Column::text("MESSAGE")];

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
}
