//! The metadata of an authorization server.
use serde::{Deserialize, Serialize};

/// The metadata of an authorization server, as far as the gateway uses it. Part of the stored login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorizationServer {
    pub issuer: String,
    pub token_endpoint: String,
    pub authorization_endpoint: Option<String>,
    pub registration_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub device_authorization_endpoint: Option<String>,
    pub scopes_supported: Vec<String>,
    pub auth_methods: Vec<String>,
    pub accepts_client_documents: bool,
    pub sends_issuer: bool,
}

impl AuthorizationServer {
    /// The host of the issuer, for messages.
    pub(crate) fn host(&self) -> &str {
        todo!()
    }
}
