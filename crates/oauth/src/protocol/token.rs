//! Requests to the token endpoint and the revocation endpoint.
use crate::error::{FetchError, LoginError};
use crate::protocol::authorize::AuthorizationCode;
use crate::protocol::client::ClientIdentity;
use crate::protocol::fetch::Fetcher;
use crate::protocol::metadata::AuthorizationServer;
use goblin_config::secret::Secret;
use std::time::Duration;

/// The reason for which an authorization server issues tokens.
pub(crate) enum TokenGrant<'a> {
    Code(&'a AuthorizationCode),
    Refresh(&'a Secret),
    /// With the scopes to ask for.
    ClientCredentials(&'a [String]),
    DeviceCode(&'a Secret),
}

#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub access: Secret,
    pub refresh: Option<Secret>,
    pub lifetime: Option<Duration>,
    /// `None` if the answer names none: then they are the requested ones.
    pub scopes: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// No usable answer. A retry may help.
    Fetch(FetchError),
    /// An OAuth error: `invalid_grant`, `authorization_pending`, `slow_down`, ….
    Rejected { code: String, error: LoginError },
    /// The answer or the key is not usable.
    Unusable(LoginError),
}

impl From<TokenError> for LoginError {
    fn from(error: TokenError) -> LoginError {
        match error {
            TokenError::Fetch(error) => error.into(),
            TokenError::Rejected { error, .. } | TokenError::Unusable(error) => error,
        }
    }
}

pub(crate) async fn request_tokens(
    _fetcher: &Fetcher,
    _server: &AuthorizationServer,
    _client: &ClientIdentity,
    _resource: Option<&str>,
    _grant: TokenGrant<'_>,
) -> Result<Tokens, TokenError> {
    todo!()
}

/// Revokes a token (RFC 7009). `hint` is `refresh_token` or `access_token`.
pub(crate) async fn revoke(
    _fetcher: &Fetcher,
    _server: &AuthorizationServer,
    _client: &ClientIdentity,
    _token: &Secret,
    _hint: &str,
) -> Result<(), TokenError> {
    todo!()
}
