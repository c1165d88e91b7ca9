//! The log dialog: the events of one server or of the gateway, oldest first, with the newest in view.

use goblin_admin::api::EventInfo;
use goblin_telemetry::clean;

use crate::state::data::DashboardData;
use crate::state::format::clock;
use crate::state::level::Level;
use crate::state::table::{Tone, event_text, level_tone};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogView {
    /// The server. `None` shows the events of the gateway and all servers.
    pub server: Option<String>,
    pub scroll: usize,
    /// Set if the view moves to each new line.
    pub follows: bool,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub time: String,
    /// The level, or `stderr` for a line that the server wrote.
    pub source: String,
    pub text: String,
    pub tone: Tone,
}

impl LogView {
    pub fn new(server: Option<String>) -> LogView {
        LogView { server, scroll: 0, follows: true }
    }

    /// Scrolls the view. The view follows new lines while its end is visible.
    pub fn scroll(&mut self, by: isize, max: usize) {
        let from = if self.follows { max } else { self.scroll };
        self.scroll = from.saturating_add_signed(by).min(max);
        self.follows = self.scroll == max;
    }

    /// Returns the lines at this level, oldest first.
    pub fn lines(&self, data: &DashboardData, level: Level) -> Vec<LogLine> {
        match &self.server {
            Some(server) => lines_of_server(data, server, level),
            None => {
                let shown = data.events.iter().rev().filter(|event| level.shows(event));
                shown.map(|event| LogLine { text: with_server(event), ..line(event) }).collect()
            }
        }
    }
}

/// Returns the lines of one server. Uses the events that the dashboard has seen until the gateway sent the whole log.
pub(crate) fn lines_of_server(data: &DashboardData, server: &str, level: Level) -> Vec<LogLine> {
    match data.logs_of(server) {
        Some(events) => events.iter().filter(|event| level.shows(event)).map(line).collect(),
        None => {
            let own = data.events.iter().rev().filter(|event| event.server.as_deref() == Some(server));
            own.filter(|event| level.shows(event)).map(line).collect()
        }
    }
}

pub(crate) fn is_stderr(event: &EventInfo) -> bool {
    event.kind == "backend_stderr"
}

fn with_server(event: &EventInfo) -> String {
    let server = event.server.as_ref().map(|server| format!("{server}: ")).unwrap_or_default();
    clean(&format!("{server}{}", event_text(event)))
}

fn line(event: &EventInfo) -> LogLine {
    let (source, tone) = match is_stderr(event) {
        true => ("stderr", Tone::Plain),
        false => (event.level.as_str(), level_tone(&event.level)),
    };
    LogLine { time: clean(clock(&event.time)), source: clean(source), text: event_text(event), tone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use14_a_log_follows_new_lines_until_the_user_scrolls_up() {
        let mut view = LogView::new(None);
        for (by, max, expected) in [
            (0, 10, (10, true)),
            (0, 20, (20, true)),
            (-3, 20, (17, false)),
            (0, 25, (17, false)),
            (isize::MIN, 25, (0, false)),
            (isize::MAX, 25, (25, true)),
            (0, 30, (30, true)),
        ] {
            view.scroll(by, max);
            assert_eq!((view.scroll, view.follows), expected, "{by} of {max}");
        }
    }
}
