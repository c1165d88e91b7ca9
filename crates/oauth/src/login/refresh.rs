//! Replaces tokens: when they are due, and when the server rejects them.
//!
//! One refresh runs at a time for all tasks of this process, and the vault's lock excludes other processes. The refresh
//! runs in a task of its own, so a cancelled call does not end it between the response and the write. The process that
//! gets the lock reads the vault first: another one may have refreshed the tokens meanwhile.
//!
//! A failure is handled by its cause. If the authorization server has ended the login, a person must log in again. Any
//! other failure leaves the tokens as they are, and a later request tries again.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use goblin_config::secret::Secret;
use goblin_telemetry::{Event, worker};
use http::HeaderValue;

use crate::error::LoginError;
use crate::login::{Credential, LoginNeed, LoginState, LogoutOutcome, ServerLogin};
use crate::protocol::client::{ClientIdentity, StoredClient};
use crate::protocol::token::{TokenError, TokenGrant, request_tokens, revoke};

/// The pause after a failed refresh doubles from the first to the second value.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The longest wait of a request for a refresh. The task goes on after that.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(75);

/// The failures to get tokens.
#[derive(Default)]
pub(super) struct Failures {
    /// The last failure since the last success.
    last: Option<Failure>,
    /// When the server rejected a new token.
    pub rejected: Option<Instant>,
}

/// The cause of a refresh.
#[derive(Clone, Copy)]
enum Cause {
    /// The tokens expire soon.
    Due,
    /// The server rejected them.
    Rejected,
}

struct Failure {
    reason: String,
    pause: Duration,
    ends: Instant,
}

impl Failures {
    /// Returns the reason of the last failure, as long as no further attempt is allowed.
    pub(super) fn in_force(&self) -> Option<String> {
        let failure = self.last.as_ref()?;
        (Instant::now() < failure.ends).then(|| failure.reason.clone())
    }

    /// Records a failure. Returns whether the failure before had the same reason.
    pub(super) fn record(&mut self, reason: &str) -> bool {
        let (pause, is_repeated) = match &self.last {
            Some(last) => ((last.pause * 2).min(MAX_PAUSE), last.reason == reason),
            None => (MIN_PAUSE, false),
        };
        self.last = Some(Failure { reason: reason.to_owned(), pause, ends: Instant::now() + pause });
        is_repeated
    }

    pub(super) fn clear(&mut self) {
        *self = Failures::default();
    }
}

impl ServerLogin {
    /// Reports whether the tokens in force can be replaced now.
    pub(super) fn can_refresh(&self, credential: &Credential) -> bool {
        let is_in_use = matches!(*self.state.borrow(), LoginState::LoggedIn { .. });
        let has_means = self.is_automatic() || credential.stored.refresh.is_some();
        is_in_use && has_means && self.failures.lock().in_force().is_none()
    }

    /// Refreshes the tokens in force because they are due. A failure leaves them as they are.
    pub(super) async fn refresh_due(&self) {
        let sent = self.current_header();
        let outcome = match self.is_automatic() {
            true => self.log_in_by_itself(sent).await,
            false => self.one_at_a_time(sent, |this| async move { this.refresh_now(Cause::Due).await }).await,
        };
        // The failure is recorded and reported.
        drop(outcome);
    }

    /// Refreshes expired tokens before a request carries them.
    pub(super) async fn renew_expired(&self) -> Result<(), String> {
        let sent = self.current_header();
        match self.is_automatic() {
            true => self.log_in_by_itself(sent).await,
            false => self.refresh_rejected(sent).await,
        }
        .map(drop)
    }

    pub(super) fn current_header(&self) -> Option<HeaderValue> {
        self.credential.load().as_ref().and_then(|credential| credential.header.clone())
    }

    /// Replaces the tokens with the header `sent`. Returns the header of the new ones, or `None` if a login is needed.
    pub(super) async fn refresh_rejected(&self, sent: Option<HeaderValue>) -> Result<Option<HeaderValue>, String> {
        self.one_at_a_time(sent, |this| async move { this.refresh_now(Cause::Rejected).await }).await
    }

    /// Runs `work` in a task of its own, after any that runs already. If the header `sent` is no longer in force by
    /// then, no work is left.
    pub(super) async fn one_at_a_time<F>(
        &self,
        sent: Option<HeaderValue>,
        work: impl FnOnce(Arc<ServerLogin>) -> F,
    ) -> Result<Option<HeaderValue>, String>
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let stopping = || "the gateway stops".to_owned();
        let late = |_| "the authorization server takes too long".to_owned();
        let permit = Arc::clone(&self.refreshing).acquire_owned();
        let permit = tokio::time::timeout(REFRESH_TIMEOUT, permit).await.map_err(late)?;
        let permit = permit.map_err(|_| stopping())?;
        if self.current_header() != sent {
            return Ok(self.current_header());
        }
        if let Some(reason) = self.failures.lock().in_force() {
            return Err(reason);
        }
        let this = self.this.upgrade().ok_or_else(stopping)?;
        let done = work(Arc::clone(&this));
        let task = worker::spawn(async move {
            let _permit = permit;
            let done = done.await;
            if let Err(reason) = &done {
                let repeated = this.failures.lock().record(reason);
                let server = &this.label;
                this.observe.emit(&Event::TokenRefreshFailed { server, reason, ended: false, repeated });
            }
            done
        });
        let done = tokio::time::timeout(REFRESH_TIMEOUT, task).await.map_err(late)?;
        done.map_err(|_| stopping())??;
        Ok(self.current_header().filter(|header| Some(header) != sent.as_ref()))
    }

    /// Refreshes the tokens. Returns an error if a later attempt may succeed.
    async fn refresh_now(&self, cause: Cause) -> Result<(), String> {
        let Some(before) = self.credential.load_full() else { return Ok(()) };
        let lock = self.lock(&self.entry()?).await?;
        // A person may have logged in during the wait. That login needs no refresh.
        let is_same = |now: &Arc<Credential>| now.stored.access == before.stored.access;
        let Some(old) = self.credential.load_full().filter(is_same) else { return Ok(()) };
        let (version, stored) = self.stored().await?;
        let is_changed = stored.as_ref().is_none_or(|it| it.access != old.stored.access || it.ended.is_some());
        if is_changed && !old.is_unsaved {
            self.adopt(version, stored);
            return Ok(());
        }
        let stored = old.stored.clone();
        let Some(refresh) = stored.refresh.clone() else {
            // A server may reject a token for a moment, so the token stays and is tried again.
            if let Some(header) = &old.header {
                self.reject(header);
            }
            return Ok(());
        };
        let client = self.client_of(&old).map_err(|error| error.to_string())?;
        let fetcher = self.fetcher(stored.peer);
        let grant = TokenGrant::Refresh(&Secret::new(refresh));
        match request_tokens(&fetcher, &stored.server, &client, stored.resource.as_deref(), grant).await {
            Ok(tokens) => {
                self.store(stored.with_tokens(&tokens, SystemTime::now()), &lock).await;
                self.failures.lock().clear();
                self.observe.emit(&Event::TokenRefreshed { server: &self.label });
                Ok(())
            }
            Err(TokenError::Rejected { code, error }) => match (code.as_str(), cause) {
                ("invalid_grant", _) => {
                    // The vault keeps the reason, so no other process sends the same token again.
                    let (server, reason) = (&self.label, &*error.to_string());
                    self.store(stored.ended(reason.to_owned()), &lock).await;
                    let ended = Event::TokenRefreshFailed { server, reason, ended: true, repeated: false };
                    self.observe.emit(&ended);
                    Ok(())
                }
                ("invalid_client" | "unauthorized_client", Cause::Rejected) => {
                    self.publish(LoginState::Needed(LoginNeed::Client(error.to_string())));
                    Ok(())
                }
                _ => Err(error.to_string()),
            },
            Err(error) => Err(LoginError::from(error).to_string()),
        }
    }

    /// Returns the client that got the tokens. A configured secret wins over the stored one, which may be old.
    fn client_of(&self, credential: &Credential) -> Result<ClientIdentity, LoginError> {
        let (options, stored) = (&self.target.options, credential.stored.client.clone());
        let is_configured = options.client_id.as_deref() == Some(&stored.id);
        let client = match &options.client_secret {
            Some(secret) if is_configured => StoredClient { secret: Some(secret.expose().to_owned()), ..stored },
            _ => stored,
        };
        let unusable = || LoginError::Vault("the stored client is not usable (log in again)".to_owned());
        ClientIdentity::from_stored(client).ok_or_else(unusable)
    }

    /// Puts new tokens in force.
    pub(super) async fn store_login(&self, stored: super::StoredLogin) -> Result<(), LoginError> {
        let scopes = stored.scopes.clone();
        let entry = self.entry().map_err(LoginError::Vault)?;
        let lock = self.lock(&entry).await.map_err(LoginError::Vault)?;
        self.store(stored, &lock).await;
        self.failures.lock().clear();
        self.record_granted(&scopes);
        let is_unsaved = self.credential.load().as_ref().is_some_and(|credential| credential.is_unsaved);
        match is_unsaved {
            true => Err(LoginError::Vault(self.unsaved_reason().await)),
            false => Ok(()),
        }
    }

    /// Revokes and forgets the login.
    pub async fn logout(&self) -> Result<LogoutOutcome, LoginError> {
        if self.is_automatic() {
            return Err(LoginError::Automatic);
        }
        let this = self.this.upgrade().ok_or(LoginError::Ended)?;
        // A cancelled caller must not leave revoked tokens in the vault.
        let task = worker::spawn(async move { this.log_out_now().await });
        task.await.unwrap_or(Err(LoginError::Ended))
    }

    async fn log_out_now(&self) -> Result<LogoutOutcome, LoginError> {
        let _permit = self.refreshing.acquire().await;
        let entry = self.entry().map_err(LoginError::Vault)?;
        let lock = self.lock(&entry).await.map_err(LoginError::Vault)?;
        // A login that cannot be read can still be removed.
        let stored = match self.stored().await {
            Ok((version, stored)) => {
                self.adopt(version, stored.clone());
                stored.map(|stored| Credential { header: stored.header(), stored, is_unsaved: false })
            }
            Err(_) => None,
        };
        let revocation = match &stored {
            Some(credential) => self.revoke(credential).await,
            None => Ok(false),
        };
        let was_logged_in = self.remove(&lock).await.map_err(LoginError::Vault)?;
        *self.demand.lock() = Default::default();
        self.replace(None, LoginState::NoLogin);
        if was_logged_in {
            self.observe.emit(&Event::LoggedOut { server: &self.label });
        }
        let (revoked, reason) = match revocation {
            Ok(revoked) => (revoked, None),
            Err(error) => (false, Some(error.to_string())),
        };
        Ok(LogoutOutcome { was_logged_in, revoked, reason })
    }

    /// Revokes the tokens. Returns `false` if the authorization server cannot do that.
    async fn revoke(&self, credential: &Credential) -> Result<bool, LoginError> {
        let stored = &credential.stored;
        if stored.server.revocation_endpoint.is_none() || stored.ended.is_some() {
            return Ok(false);
        }
        let (client, fetcher) = (self.client_of(credential)?, self.fetcher(stored.peer));
        let access = Secret::new(stored.access.clone());
        if let Some(refresh) = &stored.refresh {
            // Many servers end the whole login with its refresh token. The second request is for the others.
            revoke(&fetcher, &stored.server, &client, &Secret::new(refresh.clone()), "refresh_token").await?;
        }
        revoke(&fetcher, &stored.server, &client, &access, "access_token").await?;
        Ok(true)
    }

    async fn unsaved_reason(&self) -> String {
        match self.stored().await {
            Err(reason) => reason,
            Ok(_) => "the vault could not be written; the gateway keeps the login until it stops".to_owned(),
        }
    }
}
