//! One line per call that ended, for those who must know who did what. Never what it said, nor what it was answered.

use std::time::Duration;

/// The target of these lines, by which they are told from the rest of the log.
pub const TARGET: &str = "audit";

/// A call that ended. Texts of others have been made harmless.
#[derive(Clone, Debug)]
pub struct Audited<'a> {
    /// The end of its id.
    pub session: Option<&'a str>,
    pub principal: &'a str,
    pub client: Option<&'a str>,
    pub profile: Option<&'a str>,
    pub method: &'a str,
    /// The tool, prompt or task, as the client knows it.
    pub name: Option<&'a str>,
    pub uri: Option<&'a str>,
    pub server: Option<&'a str>,
    pub outcome: &'a str,
    /// Of an error.
    pub code: Option<&'a str>,
    /// As the client knows it.
    pub request: &'a str,
    pub took: Duration,
}

impl Audited<'_> {
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
