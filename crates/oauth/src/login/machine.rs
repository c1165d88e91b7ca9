//! The login without a person: the gateway presents its own credential and gets a token.
//!
//! These tokens are not stored. Each gateway gets its own, again and again.

use std::time::SystemTime;

use http::HeaderValue;

use crate::error::{LoginError, Refusal};
use crate::login::prepare::scopes;
use crate::login::storage::{StoredLogin, url};
use crate::login::{Credential, ServerLogin};
use crate::protocol::client::client_for;
use crate::protocol::discovery::discover;
use crate::protocol::token::{TokenGrant, request_tokens};

impl ServerLogin {
    /// Gets a token instead of the rejected one. Returns its header.
    pub(super) async fn log_in_by_itself(&self, sent: Option<HeaderValue>) -> Result<Option<HeaderValue>, String> {
        let work = |this: std::sync::Arc<ServerLogin>| async move {
            this.log_in_now().await.map_err(|error| error.to_string())
        };
        self.one_at_a_time(sent, work).await
    }

    async fn log_in_now(&self) -> Result<(), LoginError> {
        let (challenge, missing) = self.demand.lock().demanded();
        let fetcher = self.fetcher(None);
        let discovery = discover(&fetcher, &self.target, &challenge.unwrap_or_default()).await?;
        let issuer = &discovery.server.issuer;
        // The server could otherwise obtain the secret of the client with another authorization server.
        if let Some(known) = self.machine_issuer.get().filter(|known| *known != issuer) {
            return Err(Refusal::IssuerChanged { known: known.clone(), named: issuer.clone() }.into());
        }
        let requested = scopes(&self.target.options, &discovery, &[], &missing);
        let client = client_for(&fetcher, &self.target, &discovery, None, &requested).await?;
        let grant = TokenGrant::ClientCredentials(&requested);
        let resource = discovery.resource.as_deref();
        let tokens = request_tokens(&fetcher, &discovery.server, &client, resource, grant).await?;
        self.machine_issuer.get_or_init(|| issuer.clone());
        let login = StoredLogin::new(url(&self.target), &discovery, &client, requested);
        let stored = StoredLogin { id: client.id, ..login }.with_tokens(&tokens, SystemTime::now());
        let state = stored.state();
        self.failures.lock().clear();
        self.replace(Some(Credential::saved(stored)), state);
        Ok(())
    }
}
