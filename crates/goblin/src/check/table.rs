//! Renders a check report as text. Other commands use its table layout ([`lay_out`]).

use std::fmt::Write as _;

use goblin_telemetry::clean;

use crate::check::report::{CheckReport, CheckState, ServerReport};
use crate::style::{paint_if, plural};

/// Right-aligned columns of the server table. [`LISTED`] is the additional one of the profile table.
const NUMBERS: [&str; 6] = ["HANDSHAKE", "PING", "TOOLS", "PROMPTS", "RESOURCES", "TEMPLATES"];
const LISTED: &str = "LISTED";
/// The right-aligned column of resource tables.
pub(crate) const SIZE: &str = "SIZE";
/// The right-aligned columns of the status tables.
pub(crate) const COUNTS: [&str; 7] = ["P50", "P95", "CALLS", "ERRORS", "OPEN", "RESTARTS", "SUBS"];
const STATE: &str = "STATE";
const GAP: usize = 2;
/// The maximum number of cut names in the text.
const MAX_SHORTENED_NAMES: usize = 5;

/// Renders a report. Cuts lines to `width`; `None` means a pipe.
pub(crate) fn render(report: &CheckReport, width: Option<usize>, colourful: bool) -> String {
    let mut text = headline(report) + "\n";
    for problem in &report.problems {
        let _ = writeln!(text, "{problem}");
    }
    if !report.problems.is_empty() {
        return text;
    }
    if !report.servers.is_empty() {
        text.push('\n');
        text.push_str(&lay_out(&rows(report), width, colourful));
    }
    if !report.profiles.is_empty() {
        text.push('\n');
        text.push_str(&lay_out(&profiles(report), width, colourful));
    }
    let notes = notes(report, colourful);
    if !notes.is_empty() {
        text.push('\n');
        text.push_str(&notes);
    }
    text
}

fn headline(report: &CheckReport) -> String {
    let place = match (&report.config, &report.directory) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(path)) => format!("no configuration, the files of {}", path.display()),
        (None, None) => "no configuration".to_owned(),
    };
    let enabled = report.servers.len() - count(report, CheckState::Disabled);
    match (report.problems.len(), report.connected, report.profiles.len()) {
        (0, false, 0) => format!("{place}: no problem, {}", plural(report.servers.len(), "server")),
        (0, false, profiles) => {
            let servers = plural(report.servers.len(), "server");
            format!("{place}: no problem, {servers}, {}", plural(profiles, "profile"))
        }
        (0, true, _) => format!("{place}: {} of {} ready", count(report, CheckState::Ready), plural(enabled, "server")),
        (problems, _, _) => format!("{place}: {}", plural(problems, "problem")),
    }
}

fn count(report: &CheckReport, state: CheckState) -> usize {
    report.servers.iter().filter(|server| server.state == state).count()
}

fn profiles(report: &CheckReport) -> Vec<Vec<String>> {
    let enabled = report.servers.len() - count(report, CheckState::Disabled);
    let counts: &[&str] = match report.connected {
        true => &["TOOLS", LISTED, "PROMPTS", "RESOURCES", "TEMPLATES"],
        false => &["OF TOOLS", "OF PROMPTS", "OF RESOURCES"],
    };
    let head = [&["PROFILE", "ENDPOINT", "SERVERS"], counts, &["EXPOSURE"]].concat();
    let head = head.iter().map(|title| (*title).to_owned()).collect();
    [head].into_iter().chain(report.profiles.iter().map(|profile| profile.row(enabled))).collect()
}

fn rows(report: &CheckReport) -> Vec<Vec<String>> {
    let strings = |strings: &[&str]| strings.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>();
    if !report.connected {
        let row = |server: &ServerReport| {
            let state = if server.state == CheckState::Disabled { "disabled" } else { "enabled" };
            strings(&[&server.id, state, server.transport, &server.target])
        };
        let head = strings(&["SERVER", STATE, "TYPE", "TARGET"]);
        return [head].into_iter().chain(report.servers.iter().map(row)).collect();
    }
    let row = |server: &ServerReport| {
        let mut row = strings(&[&server.id, server.state.as_str()]);
        if let Some(seen) = &server.seen {
            let ping = seen.ping_ms.map_or_else(|| "none".to_owned(), |ping| format!("{ping:.1} ms"));
            row.extend([format!("{:.0} ms", seen.handshake_ms), ping]);
            row.extend([seen.tools, seen.prompts, seen.resources, seen.templates].map(|count| count.to_string()));
            let over = if server.transport == "sse" { " over sse" } else { "" };
            row.extend([format!("{} {}{over}", seen.protocol, seen.era), seen.software.clone()]);
        }
        row
    };
    let head = [&["SERVER", STATE][..], &NUMBERS, &["PROTOCOL", "SOFTWARE"]].concat();
    [strings(&head)].into_iter().chain(report.servers.iter().map(row)).collect()
}

/// Renders rows as aligned lines. The first row is the header. A row may have fewer cells than the header.
pub(crate) fn lay_out(rows: &[Vec<String>], width: Option<usize>, colourful: bool) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let length = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let lengths: Vec<usize> = (0..columns).map(|column| length(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let mut room = width.unwrap_or(usize::MAX);
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let is_last = column + 1 == row.len();
            let wide = lengths[column];
            let title = rows[0][column].as_str();
            let is_number = [LISTED, SIZE].contains(&title) || NUMBERS.contains(&title) || COUNTS.contains(&title);
            let padded = match is_number {
                true => format!("{cell:>wide$}"),
                false if is_last => cell.clone(),
                false => format!("{cell:wide$}"),
            };
            let shown = fit(&padded, room);
            room = room.saturating_sub(shown.chars().count() + GAP);
            line.push_str(&paint_if(colourful && title == STATE, &shown, colour(cell)));
            line.push_str(&" ".repeat(if is_last { 0 } else { GAP }));
            if room == 0 {
                break;
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn colour(state: &str) -> &'static str {
    match state {
        "ready" => "32",
        "failed" => "1;31",
        "starting" => "33",
        _ => "2",
    }
}

fn fit(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut fitting: String = text.chars().take(room.saturating_sub(1)).collect();
    fitting.extend((room > 0).then_some('…'));
    fitting
}

/// Renders the messages below the tables. They are never cut.
fn notes(report: &CheckReport, colourful: bool) -> String {
    let mut text = String::new();
    let mut note = |kind: &str, code: &str, message: String| {
        let _ = writeln!(text, "{}: {message}", paint_if(colourful, kind, code));
    };
    for server in &report.servers {
        if let Some(error) = &server.error {
            note("failed", "1;31", format!("{}: {error}", server.id));
        }
    }
    for warning in &report.warnings {
        note("warning", "1;33", warning.to_string());
    }
    for server in &report.servers {
        if let Some(unpinned) = &server.unpinned {
            note("warning", "1;33", format!("{}: {unpinned}", server.id));
        }
    }
    for conflict in &report.conflicts {
        // Without namespacing a name may have any characters. Exposed names with a suffix are safe.
        let (kind, name, exposed) = (&conflict.kind, clean(&conflict.name), conflict.exposed.join(", "));
        note("warning", "1;33", format!("several {kind}s have the name {name} and are exposed as {exposed}"));
    }
    for cut in report.cut.iter().take(MAX_SHORTENED_NAMES) {
        let (kind, server, native, exposed) = (cut.kind, &cut.server, &cut.native, &cut.exposed);
        note(
            "note",
            "1",
            format!("the name of {kind} {native} of {server} is too long, so it is exposed as {exposed}"),
        );
    }
    if report.cut.len() > MAX_SHORTENED_NAMES {
        note(
            "note",
            "1",
            format!("and {} more names that are too long (--json lists all)", report.cut.len() - MAX_SHORTENED_NAMES),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_aligned_and_numbers_are_right_aligned() {
        let table = rows(&[&["SERVER", "STATE", "TOOLS", "SOFTWARE"], &["a", "ready", "7", "x 1"], &["b", "failed"]]);
        let expected = "\
SERVER  STATE   TOOLS  SOFTWARE
a       ready       7  x 1
b       failed
";
        assert_eq!(lay_out(&table, None, false), expected);
        let coloured = lay_out(&table, None, true);
        assert!(coloured.contains("\x1b[32mready \x1b[0m      7"), "{coloured:?}");
    }

    #[test]
    fn lines_fit_the_terminal() {
        let table = rows(&[&["SERVER", "TARGET"], &["a", "a very long command line"]]);
        for width in 1..40 {
            for line in lay_out(&table, Some(width), false).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        assert_eq!(lay_out(&table, Some(14), false).lines().last(), Some("a       a ver…"));
    }
}
