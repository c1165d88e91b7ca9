//! Renders a check report as text.

use std::fmt::Write as _;

use goblin_telemetry::clean;
use goblin_wire::units::milliseconds;

use crate::check::report::{CheckReport, CheckState};
use crate::style::{paint_if, plural};
use crate::table::{Column, Table};

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
    let servers = if report.connected { connected_table(report) } else { plain_table(report) };
    for table in [servers, profile_table(report)].iter().filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.render(width, colourful));
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
    let misconfigured = count(report, CheckState::Misconfigured);
    match (report.problems.len(), report.connected, report.profiles.len()) {
        (0, false, _) if misconfigured > 0 => {
            format!("{place}: {misconfigured} of {} misconfigured", plural(report.servers.len(), "server"))
        }
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

fn profile_table(report: &CheckReport) -> Table {
    let enabled = report.servers.len() - count(report, CheckState::Disabled);
    let counts: &[Column] = match report.connected {
        true => &[
            Column::number("TOOLS"),
            Column::number("LISTED"),
            Column::number("PROMPTS"),
            Column::number("RESOURCES"),
            Column::number("TEMPLATES"),
        ],
        false => &[Column::text("OF TOOLS"), Column::text("OF PROMPTS"), Column::text("OF RESOURCES")],
    };
    let first = [Column::text("PROFILE"), Column::text("ENDPOINT"), Column::text("SERVERS")];
    let mut table = Table::new(&[&first[..], counts, &[Column::text("EXPOSURE")]].concat());
    report.profiles.iter().for_each(|profile| table.push(profile.row(enabled)));
    table
}

/// Returns the table of servers that were not connected.
fn plain_table(report: &CheckReport) -> Table {
    let columns = [Column::text("SERVER"), Column::state("STATE"), Column::text("TYPE"), Column::text("TARGET")];
    let mut table = Table::new(&columns);
    for server in &report.servers {
        let state = match server.state {
            CheckState::Disabled | CheckState::Misconfigured => server.state.as_str(),
            CheckState::Unchecked | CheckState::Ready | CheckState::Failed | CheckState::LoginNeeded => "enabled",
        };
        table.push([server.id.clone(), state.to_owned(), server.transport.to_owned(), server.target.clone()]);
    }
    table
}

fn connected_table(report: &CheckReport) -> Table {
    let mut table = Table::new(&[
        Column::text("SERVER"),
        Column::state("STATE"),
        Column::number("HANDSHAKE"),
        Column::number("PING"),
        Column::number("TOOLS"),
        Column::number("PROMPTS"),
        Column::number("RESOURCES"),
        Column::number("TEMPLATES"),
        Column::text("PROTOCOL"),
        Column::text("SOFTWARE"),
    ]);
    for server in &report.servers {
        let mut row = vec![server.id.clone(), server.state.as_str().to_owned()];
        if let Some(seen) = &server.seen {
            row.extend([milliseconds(seen.handshake_ms), seen.ping_ms.map_or_else(|| "none".to_owned(), milliseconds)]);
            row.extend([seen.tools, seen.prompts, seen.resources, seen.templates].map(|count| count.to_string()));
            let over = if server.transport == "sse" { " over sse" } else { "" };
            row.extend([format!("{} {}{over}", seen.protocol, seen.era), seen.software.clone()]);
        }
        table.push(row);
    }
    table
}

/// Renders the messages below the tables. They are never cut.
fn notes(report: &CheckReport, colourful: bool) -> String {
    let mut text = String::new();
    let mut note = |kind: &str, code: &str, message: String| {
        let _ = writeln!(text, "{}: {message}", paint_if(colourful, kind, code));
    };
    for server in &report.servers {
        if let Some(error) = &server.error {
            note(server.state.as_str(), "1;31", format!("{}: {error}", server.id));
        }
    }
    for warning in &report.warnings {
        note("warning", "1;33", warning.to_string());
    }
    if let Some(unpinned) = report.unpinned() {
        note("warning", "1;33", unpinned);
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
    use goblin_config::ServerId;
    use goblin_config::file::ConfigOrigin;

    use super::*;
    use crate::check::report::ServerReport;

    #[test]
    fn oauth2_a_needed_login_is_a_state_and_a_failure_with_its_command() {
        let id = ServerId::new("linear").expect("a name");
        let text = r#"{"mcpServers":{"linear":{"url":"https://127.0.0.1/mcp"}}}"#;
        let loaded = goblin_config::parse(text, &ConfigOrigin::new("", "/"), &|_| None).expect("a configuration");
        let server = &loaded.config.servers[&id];
        let mut linear = ServerReport::new(&id, server, "https://127.0.0.1/mcp".to_owned());
        linear.state = CheckState::LoginNeeded;
        linear.error = Some("it needs a login: nobody has logged in (run: goblin login linear)".to_owned());
        let report = CheckReport { connected: true, servers: vec![linear], ..CheckReport::default() };
        assert!(report.has_failed_servers());
        let text = render(&report, None, false);
        assert!(text.contains("0 of 1 server ready") && text.contains("linear  login needed"), "{text}");
        assert!(
            text.ends_with("login needed: linear: it needs a login: nobody has logged in (run: goblin login linear)\n"),
            "{text}"
        );
        let json = serde_json::to_string(&report).expect("a report");
        assert!(json.contains(r#""state":"login_needed""#), "{json}");
    }
}
