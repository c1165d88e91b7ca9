//! The result of a check. These types define the JSON document; docs/reference/cli.md describes its keys.

use std::path::PathBuf;
use std::time::Duration;

use goblin_config::expand::ExpandedText;
use goblin_config::problem::Problem;
use goblin_config::{HttpKind, Server, ServerId, Transport, mask, pin};
use serde::Serialize;

use crate::check::profile::ProfileReport;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport {
    pub ok: bool,
    pub config: Option<PathBuf>,
    pub directory: Option<PathBuf>,
    /// Set if the servers were connected.
    pub connected: bool,
    pub problems: Vec<CheckFinding>,
    pub warnings: Vec<CheckFinding>,
    pub servers: Vec<ServerReport>,
    pub profiles: Vec<ProfileReport>,
    pub conflicts: Vec<NameConflict>,
    pub cut: Vec<ShortenedName>,
}

/// A problem or warning, with its position if it has one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckFinding {
    pub file: Option<String>,
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub path: Option<String>,
    pub message: String,
    pub cure: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerReport {
    pub id: String,
    pub state: CheckState,
    pub transport: &'static str,
    /// The command, URL or directory of the server, without secrets.
    pub target: String,
    pub unpinned: Option<UnpinnedReport>,
    pub error: Option<String>,
    /// The results of the connection. `None` unless the server is ready.
    pub seen: Option<ConnectionReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckState {
    Disabled,
    /// The check did not connect to the server.
    Unchecked,
    Ready,
    Failed,
}

/// A package without a version, so the newest one is fetched at each start.
#[derive(Debug, Serialize)]
pub(crate) struct UnpinnedReport {
    pub runner: String,
    pub package: String,
    pub cure: String,
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

/// A name that several entries want, and the names that they got.
#[derive(Debug, Serialize)]
pub(crate) struct NameConflict {
    pub kind: &'static str,
    pub name: String,
    pub exposed: Vec<String>,
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
    pub(crate) fn new((config, directory): (Option<PathBuf>, Option<PathBuf>)) -> CheckReport {
        CheckReport {
            ok: false,
            config,
            directory,
            connected: false,
            problems: Vec::new(),
            warnings: Vec::new(),
            servers: Vec::new(),
            profiles: Vec::new(),
            conflicts: Vec::new(),
            cut: Vec::new(),
        }
    }

    pub(crate) fn has_failed_servers(&self) -> bool {
        self.servers.iter().any(|server| server.state == CheckState::Failed)
    }

    /// Reports whether there are warnings for `--strict`. A cut name is no warning, because it works like any other.
    pub(crate) fn has_warnings(&self) -> bool {
        let unpinned = self.servers.iter().any(|server| server.unpinned.is_some());
        unpinned || !self.warnings.is_empty() || !self.conflicts.is_empty()
    }
}

impl CheckFinding {
    /// Creates a finding without a position.
    pub(crate) fn bare(message: String) -> CheckFinding {
        CheckFinding { file: None, line: None, column: None, path: None, message, cure: None }
    }
}

impl From<&Problem> for CheckFinding {
    fn from(problem: &Problem) -> CheckFinding {
        CheckFinding {
            file: Some(problem.file.to_string()),
            line: Some(problem.line),
            column: Some(problem.column),
            path: Some(problem.path.clone()).filter(|path| !path.is_empty()),
            message: problem.message.clone(),
            cure: problem.cure.clone(),
        }
    }
}

impl std::fmt::Display for CheckFinding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let (Some(file), Some(line), Some(column)) = (&self.file, self.line, self.column) {
            write!(formatter, "{file}:{line}:{column}: ")?;
        }
        if let Some(path) = &self.path {
            write!(formatter, "{path}: ")?;
        }
        formatter.write_str(&self.message)?;
        self.cure.iter().try_for_each(|cure| write!(formatter, ", {cure}"))
    }
}

impl ServerReport {
    pub(crate) fn new(id: &ServerId, server: &Server, target: String) -> ServerReport {
        let (transport, unpinned) = match &server.transport {
            Transport::Stdio { command, args, .. } => ("stdio", unpinned(command, args)),
            Transport::Http { kind: HttpKind::Sse, .. } => ("sse", None),
            Transport::Http { .. } => ("http", None),
            Transport::Files(_) => ("files", None),
        };
        let unpinned = unpinned.filter(|_| server.enabled);
        ServerReport {
            id: id.to_string(),
            state: if server.enabled { CheckState::Unchecked } else { CheckState::Disabled },
            transport,
            target,
            unpinned: unpinned.map(|found| UnpinnedReport {
                runner: found.runner,
                package: found.package,
                cure: found.cure,
            }),
            error: None,
            seen: None,
        }
    }
}

/// Looks for an unpinned package in the expanded command, but returns it as written in the file. Hides the package if
/// it is only visible after expansion.
fn unpinned(command: &ExpandedText, args: &[ExpandedText]) -> Option<pin::UnpinnedPackage> {
    let values: Vec<&str> = args.iter().map(ExpandedText::value).collect();
    let found = pin::unpinned(command.value(), &values)?;
    let written: Vec<&str> = args.iter().map(ExpandedText::written).collect();
    let hidden = || mask::HIDDEN.to_owned();
    Some(pin::unpinned(command.written(), &written).unwrap_or(pin::UnpinnedPackage {
        runner: found.runner,
        package: hidden(),
        cure: hidden(),
    }))
}

impl CheckState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            CheckState::Disabled => "disabled",
            CheckState::Unchecked => "unchecked",
            CheckState::Ready => "ready",
            CheckState::Failed => "failed",
        }
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
