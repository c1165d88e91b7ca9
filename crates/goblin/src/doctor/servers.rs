//! Examines the servers of a configuration: whether their commands exist, and the results of a check.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use goblin_catalog::search::nearest;
use goblin_config::Config;
use goblin_config::problem::Problem;
use goblin_config::visible::shell_word;
use goblin_engine::upstream::child::{self, ChildCommand, SpawnError};
use goblin_telemetry::clean;
use goblin_telemetry::feed::FeedBatch;
use goblin_wire::units::milliseconds;

use crate::check::report::{CheckReport, CheckState, ServerReport};
use crate::doctor::finding::Findings;
use crate::style::plural;

const MAX_SUGGESTIONS: usize = 3;
/// Common commands of servers, with instructions for installing them.
const RUNNERS: [(&str, &str); 7] = [
    ("npx", "install Node.js, which includes it: https://nodejs.org"),
    ("npm", "install Node.js, which includes it: https://nodejs.org"),
    ("node", "install Node.js: https://nodejs.org"),
    ("uvx", "install uv, which includes it: https://docs.astral.sh/uv"),
    ("uv", "install uv: https://docs.astral.sh/uv"),
    ("docker", "install Docker: https://docs.docker.com/get-docker"),
    ("bunx", "install Bun, which includes it: https://bun.sh"),
];

/// Reports the commands that cannot be started. Returns the ids of their servers.
pub(crate) fn commands(config: &Config, findings: &mut Findings) -> BTreeSet<String> {
    let mut unstartable = BTreeSet::new();
    for (id, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let Some(command) = ChildCommand::of(&server.transport) else { continue };
        if let Err(error) = child::check(&command) {
            let (what, cure_text) = split(&error.to_string());
            let cure = match &error {
                SpawnError::NotFound { command, path } => missing(command, path),
                SpawnError::NotExecutable { command } => format!("chmod +x {}", shell_word(command)),
                SpawnError::WorkingDirectory { path, .. } => {
                    let path = shell_word(&path.display().to_string());
                    format!("create it (mkdir -p {path}), or change mcpServers.{id}.cwd")
                }
                SpawnError::Guard { .. } | SpawnError::Setup(_) => cure_text.unwrap_or_default(),
            };
            findings.problem(&about(id.as_str()), what, cure);
            unstartable.insert(id.to_string());
        }
    }
    unstartable
}

fn about(id: &str) -> String {
    format!("server {id}")
}

/// Returns the cure for a missing command: installation instructions, or similar names in the search path.
fn missing(command: &str, path: &OsStr) -> String {
    if let Some((_, cure)) = RUNNERS.iter().find(|(runner, _)| *runner == command) {
        return (*cure).to_owned();
    }
    let elsewhere = "install it, or write its absolute path";
    let files = std::env::split_paths(path).filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let names: BTreeSet<String> = files.flatten().filter_map(|file| file.file_name().into_string().ok()).collect();
    match &nearest(command, names.iter().map(String::as_str), MAX_SUGGESTIONS)[..] {
        [] => elsewhere.to_owned(),
        near => format!("did you mean {}? otherwise {elsewhere}", near.join(" or ")),
    }
}

/// Splits a server's error into the problem and the cure. The cure is in parentheses at the end.
pub(crate) fn split(reason: &str) -> (String, Option<String>) {
    let mut depth = 0;
    let opening = reason.char_indices().rev().find(|(_, character)| {
        depth += match character {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        depth == 0
    });
    match opening.and_then(|(at, _)| Some((reason[..at].strip_suffix(' ')?, reason[at..].strip_prefix('(')?))) {
        Some((what, cure)) => (what.to_owned(), cure.strip_suffix(')').map(str::to_owned)),
        None => (reason.to_owned(), None),
    }
}

/// Adds the results of a check. The second argument is the result of [`commands`]: errors of those servers are already
/// reported.
pub(crate) fn report_servers(report: &CheckReport, reported: &BTreeSet<String>, findings: &mut Findings) {
    for server in &report.servers {
        report_state(server, reported, findings);
    }
    let unpinned = report.servers.iter().filter_map(|server| Some((server, server.unpinned.as_ref()?)));
    let (packages, cures): (Vec<_>, Vec<_>) = unpinned
        .map(|(server, unpinned)| (unpinned.package.clone(), format!("{} of {}", unpinned.cure, server.id)))
        .unzip();
    if !packages.is_empty() {
        let what = format!("{} without a fixed version: {}", plural(packages.len(), "package"), packages.join(", "));
        findings.warning("packages", what, format!("write {}", cures.join(", ")));
    }
    for warning in report.warnings.iter().filter(|warning| warning.file.is_none()) {
        let id = warning.path.strip_prefix("mcpServers.").unwrap_or(&warning.path);
        findings.warning(&about(id), &warning.message, "fix the server, or contact its vendor");
    }
    for conflict in &report.conflicts {
        // Without namespacing a name may have any characters. Exposed names with a suffix are safe.
        let (kind, name, exposed) = (&conflict.kind, clean(&conflict.name), conflict.exposed.join(", "));
        let what = format!("several {kind}s have the name {name} and are exposed as {exposed}");
        findings.warning("names", what, format!("rename one of them: {kind}s.rename of its server"));
    }
}

fn report_state(server: &ServerReport, reported: &BTreeSet<String>, findings: &mut Findings) {
    match (server.state, &server.error, &server.seen) {
        (CheckState::Ready, _, Some(seen)) => {
            let (tools, time) = (plural(seen.tools, "tool"), milliseconds(seen.handshake_ms));
            findings.ok(&about(&server.id), format!("ready in {time}, {tools}"));
        }
        (CheckState::Failed, Some(reason), _) if !reported.contains(&server.id) => {
            let (what, cure) = split(reason);
            let cure = cure.unwrap_or_else(|| manual_check(server));
            findings.problem(&about(&server.id), what, cure);
        }
        (CheckState::LoginNeeded, Some(reason), _) => {
            let (what, cure) = split(reason);
            let cure = cure.unwrap_or_else(|| format!("correct mcpServers.{}.oauth", server.id));
            findings.problem(&about(&server.id), what, cure);
        }
        (CheckState::Misconfigured, ..) => {
            for problem in &server.problems {
                let cure = problem.cure.clone().unwrap_or_else(|| "correct the entry of the server".to_owned());
                findings.problem(&about(&server.id), Problem { cure: None, ..problem.clone() }.to_string(), cure);
            }
        }
        _ => {}
    }
}

fn manual_check(server: &ServerReport) -> String {
    match server.transport {
        "stdio" => format!("run its command by hand to see more: {}", server.target),
        "files" => format!("is {} a directory that you can read?", server.target),
        _ => format!("is the server up, and is its url correct? try: curl -i {}", shell_word(&server.target)),
    }
}

/// Warns about servers that write invalid messages to stdout. Quotes the first one of each server.
pub(crate) fn stdout_noise(batch: &FeedBatch, findings: &mut Findings) {
    let mut reported = BTreeSet::new();
    for record in batch.records.iter().filter(|record| record.kind == "invalid_output") {
        let Some(server) = record.server.as_deref().filter(|server| reported.insert(server.to_owned())) else {
            continue;
        };
        let reason = record.fields.get("reason").map(String::as_str).unwrap_or_default();
        let what = format!("the server writes to stdout lines that are not messages, the first is {reason}");
        findings.warning(&about(server), what, "make the server log to stderr; stdout belongs to the protocol");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_split_from_its_cure() {
        for (reason, what, cure) in [
            ("it is gone", "it is gone", None),
            ("it is gone (mend it)", "it is gone", Some("mend it")),
            ("it is (was) gone", "it is (was) gone", None),
            ("it said (so) (is it? (really))", "it said (so)", Some("is it? (really)")),
            ("it said (", "it said (", None),
            ("", "", None),
        ] {
            assert_eq!(split(reason), (what.to_owned(), cure.map(str::to_owned)));
        }
    }

    #[test]
    fn a_missing_command_has_a_cure() {
        assert!(missing("npx", OsStr::new("/bin")).contains("https://nodejs.org"));
        assert!(missing("lss", OsStr::new("/bin:/usr/bin")).starts_with("did you mean ls"));
        assert_eq!(missing("no-such-program", OsStr::new("/no/such")), "install it, or write its absolute path");
    }
}
