//! The result of a check. These types define the JSON document; docs/reference/cli.md describes its keys.

use std::path::PathBuf;
use std::time::Duration;

use goblin_admin::api::Conflict;
use goblin_config::expand::ExpandedText;
use goblin_config::misconfigured::Misconfiguration;
use goblin_config::pin::{self, UnpinnedPackage};
use goblin_config::problem::Problem;
use goblin_config::{Server, ServerId, Transport, mask};
use serde::Serialize;

use crate::check::profile::ProfileReport;
use crate::style::LOGIN_NEEDED;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport {
    pub ok: bool,
    pub config: Option<PathBuf>,
    pub directory: Option<PathBuf>,
    /// Set if the servers were connected.
    pub connected: bool,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    pub servers: Vec<ServerReport>,
    pub profiles: Vec<ProfileReport>,
    /// The names that several entries want, with the names that they got.
    pub conflicts: Vec<Conflict>,
    pub cut: Vec<ShortenedName>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerReport {
    pub id: String,
    pub state: CheckState,
    pub transport: &'static str,
    /// The command, URL or directory of the server, without secrets.
    pub target: String,
    /// A package without a version, so the newest one is fetched at each start.
    pub unpinned: Option<UnpinnedPackage>,
    pub error: Option<String>,
    /// The problems of a misconfigured server.
    pub problems: Vec<Problem>,
    /// The results of the connection. `None` unless the server is ready.
    pub seen: Option<ConnectionReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CheckState {
    Disabled,
    /// The entry of the server needs a variable or a file that is missing.
    Misconfigured,
    /// The check did not connect to the server.
    Unchecked,
    Ready,
    Failed,
    /// The server rejects connections without a login.
    LoginNeeded,
}

/// The results of a connection.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConnectionReport {
    pub software: String,
    pub protocol: &'static str,
    pub era: &'static str,
    /// The time from the start of all servers to the end of this handshake.
    pub handshake_ms: f64,
    pub ping_ms: Option<f64>,
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub templates: usize,
}

/// A name that exceeds the maximum length, and its replacement.
#[derive(Debug, Serialize)]
pub(crate) struct ShortenedName {
    pub kind: &'static str,
    pub server: String,
    pub native: String,
    pub exposed: String,
}

impl CheckReport {
    pub(crate) fn has_failed_servers(&self) -> bool {
        let is_failed =
            |state| matches!(state, CheckState::Failed | CheckState::LoginNeeded | CheckState::Misconfigured);
        self.servers.iter().any(|server| is_failed(server.state))
    }

    /// Reports whether there are warnings for `--strict`. A cut name is no warning, because it works like any other.
    pub(crate) fn has_warnings(&self) -> bool {
        let unpinned = self.servers.iter().any(|server| server.unpinned.is_some());
        unpinned || !self.warnings.is_empty() || !self.conflicts.is_empty()
    }

    /// Returns one sentence about all packages without a fixed version, each with the spelling that fixes one.
    pub(crate) fn unpinned(&self) -> Option<String> {
        let found = self.servers.iter().filter_map(|server| Some((&server.id, server.unpinned.as_ref()?)));
        let named: Vec<_> = found.map(|(id, unpinned)| format!("{id}: write {}", unpinned.cure)).collect();
        let servers = match named.len() {
            0 => return None,
            1 => "1 server fetches its newest package".to_owned(),
            count => format!("{count} servers fetch their newest packages"),
        };
        Some(format!("{servers} at each start, without a fixed version ({})", named.join("; ")))
    }
}

impl ServerReport {
    pub(crate) fn new(id: &ServerId, server: &Server, target: String) -> ServerReport {
        let unpinned = match &server.transport {
            Transport::Stdio { command, args, .. } => unpinned(command, args),
            Transport::Http { .. } | Transport::Files(_) | Transport::Misconfigured(_) => None,
        };
        let misconfiguration = server.misconfiguration().filter(|_| server.enabled);
        let state = match misconfiguration {
            Some(_) => CheckState::Misconfigured,
            None if server.enabled => CheckState::Unchecked,
            None => CheckState::Disabled,
        };
        ServerReport {
            id: id.to_string(),
            state,
            transport: server.transport.kind_name(),
            target,
            unpinned: unpinned.filter(|_| server.enabled),
            error: misconfiguration.map(Misconfiguration::reason),
            problems: misconfiguration.map(|found| found.problems.clone()).unwrap_or_default(),
            seen: None,
        }
    }
}

/// Looks for an unpinned package in the expanded command, but returns it as written in the file. Hides the package if
/// it is only visible after expansion.
fn unpinned(command: &ExpandedText, args: &[ExpandedText]) -> Option<UnpinnedPackage> {
    let values: Vec<&str> = args.iter().map(ExpandedText::value).collect();
    let found = pin::unpinned(command.value(), &values)?;
    let written: Vec<&str> = args.iter().map(ExpandedText::written).collect();
    let hidden = || mask::HIDDEN.to_owned();
    Some(pin::unpinned(command.written(), &written).unwrap_or(UnpinnedPackage {
        runner: found.runner,
        package: hidden(),
        cure: hidden(),
    }))
}

impl CheckState {
    /// Returns the state in words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CheckState::Disabled => "disabled",
            CheckState::Misconfigured => "misconfigured",
            CheckState::Unchecked => "unchecked",
            CheckState::Ready => "ready",
            CheckState::Failed => "failed",
            CheckState::LoginNeeded => LOGIN_NEEDED,
        }
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
