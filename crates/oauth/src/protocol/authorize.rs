//! The authorization request, which a browser performs, and the callback that ends it.
use crate::error::LoginError;
use crate::protocol::client::ClientIdentity;
use crate::protocol::discovery::Discovery;

/// An authorization request with its state and its PKCE verifier.
pub(crate) struct AuthorizationRequest {
    url: String,
}

/// The code that a callback delivers.
pub(crate) struct AuthorizationCode {
    pub code: String,
    pub verifier: String,
    pub redirect_uri: String,
}

impl AuthorizationRequest {
    pub(crate) fn new(
        _discovery: &Discovery,
        _client: &ClientIdentity,
        _redirect_uri: &str,
        _scopes: &[String],
    ) -> Result<AuthorizationRequest, LoginError> {
        todo!()
    }
    /// The URL for the browser. It has no control, space or shell character.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
    /// Reads the address to which the browser returned, whole or from its path on. Checks `state` first, then `iss`, then `error`.
    pub(crate) fn read_callback(&self, _callback: &str) -> Result<AuthorizationCode, LoginError> {
        todo!()
    }
}
