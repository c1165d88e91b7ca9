//! The level filter of events.

use goblin_admin::api::EventInfo;

/// The lowest level of the events that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

impl Level {
    /// Reads a level. An unknown one counts as `info`.
    fn read(text: &str) -> Level {
        match text {
            "error" => Level::Error,
            "warn" => Level::Warn,
            "debug" | "trace" => Level::Debug,
            _ => Level::Info,
        }
    }

    pub fn shows(self, event: &EventInfo) -> bool {
        Level::read(&event.level) >= self
    }

    /// Returns the next filter: fewer events each time, then all of them again.
    pub fn next(self) -> Level {
        match self {
            Level::Debug => Level::Info,
            Level::Info => Level::Warn,
            Level::Warn => Level::Error,
            Level::Error => Level::Debug,
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Level::Debug => "all levels",
            Level::Info => "info and above",
            Level::Warn => "warn and above",
            Level::Error => "errors only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use14_each_level_shows_itself_and_the_levels_above() {
        let mut level = Level::default();
        let mut shown = Vec::new();
        for _ in 0..4 {
            let levels = ["debug", "info", "warn", "error", "odd"];
            let event = |level: &&str| EventInfo { level: (*level).to_owned(), ..EventInfo::default() };
            let count = levels.iter().filter(|name| level.shows(&event(name))).count();
            shown.push((level.describe(), count));
            level = level.next();
        }
        let expected = [("info and above", 4), ("warn and above", 2), ("errors only", 1), ("all levels", 5)];
        assert_eq!(shown, expected);
        assert_eq!(level, Level::Info);
    }
}
