//! The audit log: one line for each finished call, with client, method and outcome. It never contains arguments or
//! results.

use std::time::Duration;

/// The tracing target that separates these lines from the rest of the log.
pub const TARGET: &str = "audit";

/// A finished call. Texts from clients and servers have been cleaned.
#[derive(Clone, Debug)]
pub struct AuditEntry<'a> {
    /// The end of the session's id.
    pub session: Option<&'a str>,
    pub principal: &'a str,
    pub client: Option<&'a str>,
    pub profile: Option<&'a str>,
    pub method: &'a str,
    /// The exposed name of the tool, prompt or task.
    pub name: Option<&'a str>,
    pub uri: Option<&'a str>,
    pub server: Option<&'a str>,
    pub outcome: &'a str,
    /// The error code, if the call failed.
    pub code: Option<&'a str>,
    /// The request id that the client chose.
    pub request: &'a str,
    pub took: Duration,
}

impl AuditEntry<'_> {
    pub fn write(&self) {
        tracing::info!(
            target: TARGET,
            session = self.session,
            principal = self.principal,
            client = self.client,
            profile = self.profile,
            method = self.method,
            name = self.name,
            uri = self.uri,
            server = self.server,
            outcome = self.outcome,
            code = self.code,
            request = self.request,
            took = self.took.as_secs_f64(),
            "audit"
        );
    }
}
