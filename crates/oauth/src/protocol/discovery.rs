//! Finds the authorization server of a server, and checks what both say.
use std::net::IpAddr;

use crate::LoginTarget;
use crate::error::LoginError;
use crate::protocol::challenge::Challenge;
use crate::protocol::fetch::Fetcher;
use crate::protocol::metadata::AuthorizationServer;

/// The authorization server of a server. Its URLs are checked.
#[derive(Clone)]
pub(crate) struct Discovery {
    pub server: AuthorizationServer,
    /// The resource indicator for each authorization and token request. `None` if the options omit it.
    pub resource: Option<String>,
    /// The scopes that the challenge names, else those of the resource metadata.
    pub scopes: Vec<String>,
}

pub(crate) async fn discover(
    _fetcher: &Fetcher,
    _target: &LoginTarget,
    _challenge: &Challenge,
) -> Result<Discovery, LoginError> {
    todo!()
}

/// The answer of a server to a request without a token.
pub(crate) struct Probe {
    /// `None` if the server answers without a login.
    pub challenge: Option<Challenge>,
    /// The address of the connection, if there is no proxy.
    pub peer: Option<IpAddr>,
}

/// Sends one request without a token to the server.
pub(crate) async fn probe(_target: &LoginTarget) -> Result<Probe, LoginError> {
    todo!()
}
