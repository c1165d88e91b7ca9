//! The client with which the gateway appears at an authorization server.
use crate::LoginTarget;
use crate::error::LoginError;
use crate::protocol::discovery::Discovery;
use crate::protocol::fetch::Fetcher;
use goblin_config::secret::Secret;
use serde::{Deserialize, Serialize};

/// A client at one authorization server. Part of the stored login.
#[derive(Clone)]
pub(crate) struct ClientIdentity {
    pub id: String,
    pub credential: ClientCredential,
}

/// How the client proves itself at the token endpoint.
#[derive(Clone)]
pub(crate) enum ClientCredential {
    None,
    Basic(Secret),
    Post(Secret),
    PrivateKey(std::sync::Arc<SigningKey>),
}

/// A private key that signs assertions.
pub(crate) struct SigningKey;

/// The stored form of an identity. A private key comes from the configuration and is not stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredClient {
    pub id: String,
    pub secret: Option<String>,
    pub method: String,
}

impl ClientIdentity {
    pub(crate) fn to_stored(&self) -> StoredClient {
        todo!()
    }
    pub(crate) fn from_stored(_stored: StoredClient) -> Option<ClientIdentity> {
        todo!()
    }
}

/// Finds the client: a configured one (bound to its issuer), a client metadata document, or a new registration.
pub(crate) async fn client_for(
    _fetcher: &Fetcher,
    _target: &LoginTarget,
    _discovery: &Discovery,
    _redirect_uri: Option<&str>,
) -> Result<ClientIdentity, LoginError> {
    todo!()
}
