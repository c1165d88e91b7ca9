//! Servers that cannot run because of something outside of the file (D16).
//!
//! An unset variable, an unreadable file or a program that cannot exist disables the server that uses it. The other
//! servers of the file run.

use crate::expand::{CANNOT_READ, CANNOT_READ_SECRET};
use crate::problem::Problem;
use crate::target::Target;
use crate::{Server, Transport};

/// The problems that prevent one server from running.
#[derive(Clone, Debug, PartialEq)]
pub struct Misconfiguration {
    /// The type of the server: `stdio`, `http`, `sse` or `files`.
    pub kind: &'static str,
    /// The way to reach the server, as written in the file.
    pub target: Target,
    /// The problems in the order of the file. At least one.
    pub problems: Vec<Problem>,
}

impl Misconfiguration {
    /// Returns all problems, followed by their positions and cures in parentheses, for operators. The problem is first,
    /// because a narrow column shows only the beginning.
    pub fn reason(&self) -> String {
        let messages = join(self.problems.iter().map(|problem| problem.message.clone()));
        let hints: Vec<String> = self.problems.iter().filter_map(hint).collect();
        if hints.is_empty() { messages } else { format!("{messages} ({})", hints.join("; ")) }
    }

    /// Returns all problems without positions, cures and paths of files, for agents.
    pub fn summary(&self) -> String {
        let summary = |problem: &Problem| match &problem.message {
            message if message.starts_with(CANNOT_READ_SECRET) => "a secret of its entry cannot be read".to_owned(),
            message if message.starts_with(CANNOT_READ) => "a file that its entry names cannot be read".to_owned(),
            message => message.clone(),
        };
        join(self.problems.iter().map(summary))
    }
}

/// Returns the position and the cure of a problem.
fn hint(problem: &Problem) -> Option<String> {
    let parts = [problem.place(), problem.cure.clone()];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Some(parts.join(": ")).filter(|hint| !hint.is_empty())
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("; ")
}

impl Server {
    /// Returns the problems that prevent the server from running. Returns `None` if there are none.
    pub fn misconfiguration(&self) -> Option<&Misconfiguration> {
        match &self.transport {
            Transport::Misconfigured(misconfiguration) => Some(misconfiguration),
            Transport::Stdio { .. } | Transport::Http { .. } | Transport::Files(_) => None,
        }
    }

    /// Reports whether the gateway runs the server: it is enabled and has no problem.
    pub fn is_runnable(&self) -> bool {
        self.enabled && self.misconfiguration().is_none()
    }

    /// Adds a problem. The server cannot run any more.
    pub(crate) fn misconfigure(&mut self, problem: Problem) {
        if let Transport::Misconfigured(misconfiguration) = &mut self.transport {
            misconfiguration.problems.push(problem);
            return;
        }
        let (kind, target) = (self.transport.kind_name(), Target::of(&self.transport));
        let misconfiguration = Misconfiguration { kind, target, problems: vec![problem] };
        self.transport = Transport::Misconfigured(misconfiguration);
    }
}

impl Transport {
    /// Returns the type of the server, as in the file.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Transport::Stdio { .. } => "stdio",
            Transport::Http { kind: crate::HttpKind::Sse, .. } => "sse",
            Transport::Http { .. } => "http",
            Transport::Files(_) => "files",
            Transport::Misconfigured(misconfiguration) => misconfiguration.kind,
        }
    }
}
