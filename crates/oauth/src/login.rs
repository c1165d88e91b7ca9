//! The login at one server: the tokens in force, and the state that the rest of the gateway sees.
//!
//! A [`ServerLogin`] owns the credential of one server. Requests read its header without a lock. Persons replace the
//! credential through [`attempt`], the gateway through [`refresh`], and other processes through the vault, which
//! [`ServerLogin::keep`] watches.
//!
//! Invariant: a token is in the vault before a request carries it, unless the vault cannot be written. A login without
//! a person is not stored, because the gateway can repeat it.

pub(crate) mod attempt;
mod machine;
mod prepare;
mod refresh;
mod storage;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use goblin_client::authorization::Authorization;
use goblin_client::connect;
use goblin_config::mask;
use goblin_config::oauth::Grant;
use goblin_telemetry::{Event, Observe, clean};
use goblin_vault::{EntryLock, EntryName, Vault, Version};
use http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::LoginTarget;
use crate::error::LoginError;
use crate::login::attempt::{BrowserLogin, DeviceLogin};
use crate::login::prepare::Demand;
use crate::login::refresh::Failures;
use crate::login::storage::StoredLogin;
use crate::protocol::challenge::Challenge;
use crate::protocol::fetch::Fetcher;

/// The interval at which the entry of the vault is compared with the login in force.
const WATCH_INTERVAL: Duration = Duration::from_millis(400);
/// The longest wait of a stopping gateway for a refresh. It exceeds the timeout of a token request.
const FINISH_TIMEOUT: Duration = Duration::from_secs(65);
/// The pause after which a rejected login is tried again, because a server may reject tokens for some time.
const REJECTED_PAUSE: Duration = Duration::from_secs(300);
/// The same pause for a login without a person. Nobody else can help there.
const MACHINE_PAUSE: Duration = Duration::from_secs(30);

/// The login at one server.
pub struct ServerLogin {
    this: Weak<ServerLogin>,
    target: LoginTarget,
    /// Names the server in events.
    label: String,
    vault: Arc<Vault>,
    observe: Arc<Observe>,
    /// The name of the login in the vault. `None` if the name of the server is too long for one.
    entry: Option<EntryName>,
    credential: ArcSwapOption<Credential>,
    /// The version of the vault's entry that was read or written last.
    seen: Mutex<Version>,
    state: watch::Sender<LoginState>,
    /// The last demand of the server.
    demand: Mutex<Demand>,
    failures: Mutex<Failures>,
    /// The authorization server that accepted the gateway's own client, if the gateway logs in by itself.
    machine_issuer: OnceLock<String>,
    /// The reason for which the stored login could not be read last.
    unreadable: Mutex<Option<String>>,
    reported: Mutex<Option<NeedReport>>,
    /// Held while tokens are requested or removed.
    refreshing: Arc<Semaphore>,
    /// Whether the next request wakes [`ServerLogin::keep`], because the tokens are due.
    is_due: AtomicBool,
    wake: Notify,
}

/// The need for a login that was reported last.
struct NeedReport {
    identity: Option<String>,
    need: LoginNeed,
    at: Instant,
}

/// The tokens in force.
pub(crate) struct Credential {
    pub stored: StoredLogin,
    /// `None` if the authorization server has ended the login.
    pub header: Option<HeaderValue>,
    /// Whether the vault lacks these tokens, because it could not be written.
    pub is_unsaved: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginState {
    /// The server has not asked for a login.
    NoLogin,
    LoggedIn {
        scopes: Vec<String>,
    },
    Needed(LoginNeed),
}

/// The reason why a login is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginNeed {
    #[error("nobody has logged in")]
    Never,
    #[error("the server rejects the token of the login")]
    Rejected,
    /// The token has expired, and the authorization server issued none to refresh it with.
    #[error("the login has expired")]
    Expired,
    #[error("the login has ended: {0}")]
    Ended(String),
    #[error("the tokens cannot be refreshed: {0}")]
    Client(String),
    #[error("the stored login cannot be read: {0}")]
    Unreadable(String),
}

/// The outcome of a logout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutOutcome {
    pub was_logged_in: bool,
    pub revoked: bool,
    /// The reason why the tokens are not revoked.
    pub reason: Option<String>,
}

/// Excludes other processes from a prompt for the same login, until it is dropped.
pub struct LoginTurn {
    _lock: EntryLock,
}

impl ServerLogin {
    pub fn new(target: LoginTarget, vault: Arc<Vault>, observe: Arc<Observe>) -> Arc<ServerLogin> {
        Arc::new_cyclic(|this| ServerLogin {
            this: Weak::clone(this),
            entry: storage::entry_name(&target),
            label: match target.name.is_empty() {
                true => connect::origin(&target.url).unwrap_or_default(),
                false => target.name.clone(),
            },
            target,
            vault,
            observe,
            credential: ArcSwapOption::empty(),
            seen: Mutex::default(),
            state: watch::Sender::new(LoginState::NoLogin),
            demand: Mutex::default(),
            failures: Mutex::default(),
            machine_issuer: OnceLock::new(),
            unreadable: Mutex::default(),
            reported: Mutex::default(),
            refreshing: Arc::new(Semaphore::new(1)),
            is_due: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    pub fn state(&self) -> LoginState {
        self.state.borrow().clone()
    }

    /// Returns a receiver that is notified of each change of the state or the account.
    pub fn changes(&self) -> watch::Receiver<LoginState> {
        self.state.subscribe()
    }

    /// Identifies the account in force. It changes when another login replaces this one, and stays when tokens are
    /// refreshed or rejected. Returns `None` without a login.
    pub fn identity(&self) -> Option<String> {
        self.credential.load().as_ref().map(|credential| credential.stored.id.clone())
    }

    /// Reads the stored login. Reports once why it cannot be read.
    pub async fn load(&self) {
        if self.is_automatic() {
            return;
        }
        let reason = self.read_entry().await.err();
        let before = std::mem::replace(&mut *self.unreadable.lock(), reason.clone());
        if let Some(reason) = reason.filter(|reason| before.as_ref() != Some(reason)) {
            self.observe.emit(&Event::LoginVaultFailed { server: &self.label, reason: &reason });
        }
    }

    /// Refreshes the tokens when they are due, and reads what other processes store. Never returns.
    pub async fn keep(&self) -> Infallible {
        let mut changes = self.state.subscribe();
        loop {
            if matches!(*changes.borrow_and_update(), LoginState::NoLogin) {
                // The sender lives as long as this login.
                let _ = changes.wait_for(|state| !matches!(state, LoginState::NoLogin)).await;
            }
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = self.wake.notified() => self.refresh_due().await,
            }
            self.check().await;
        }
    }

    /// Does what is due: reads a changed entry, repeats a failed write, and refreshes tokens that nobody uses.
    async fn check(&self) {
        self.retry_rejected();
        if !self.is_automatic() && self.is_entry_changed().await {
            self.load().await;
        }
        let Some(credential) = self.credential.load_full() else { return };
        if credential.is_unsaved {
            self.save_again(&credential).await;
        }
        let now = SystemTime::now();
        if !self.can_refresh(&credential) {
            return;
        }
        if credential.stored.is_idle(now) && !self.is_automatic() {
            self.refresh_due().await;
        } else if credential.stored.is_due(now) {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Tries a rejected login again, after a pause.
    fn retry_rejected(&self) {
        let pause = if self.is_automatic() { MACHINE_PAUSE } else { REJECTED_PAUSE };
        let is_over = self.failures.lock().rejected.take_if(|at| at.elapsed() >= pause).is_some();
        let Some(credential) = self.credential.load_full().filter(|_| is_over) else { return };
        match self.is_automatic() {
            true => self.replace(None, LoginState::NoLogin),
            false => self.publish(credential.stored.state()),
        }
    }

    /// Waits for the refresh that is under way.
    pub async fn finish(&self) {
        let _ = tokio::time::timeout(FINISH_TIMEOUT, self.refreshing.acquire()).await;
    }

    /// Begins a login in a browser that returns to `redirect_uri`.
    pub async fn begin_in_browser(self: &Arc<Self>, redirect_uri: String) -> Result<BrowserLogin, LoginError> {
        if !is_on_this_machine(&redirect_uri) {
            return Err(LoginError::RedirectUri { uri: clean(&mask::url(&redirect_uri)) });
        }
        let prepared = self.prepare(Some(&redirect_uri)).await?;
        BrowserLogin::new(Arc::clone(self), prepared, &redirect_uri)
    }

    /// Begins a login with a code that a person enters on another device.
    pub async fn begin_on_device(self: &Arc<Self>) -> Result<DeviceLogin, LoginError> {
        let prepared = self.prepare(None).await?;
        DeviceLogin::new(Arc::clone(self), prepared).await
    }

    /// Waits until no other process prompts for this login. Returns `None` if the vault cannot be used.
    pub async fn turn(&self) -> Option<LoginTurn> {
        let turn = EntryName::new(&format!("{} turn", self.entry.as_ref()?.as_str())).ok()?;
        let _lock = self.lock(&turn).await.ok()?;
        Some(LoginTurn { _lock })
    }

    pub(crate) fn target(&self) -> &LoginTarget {
        &self.target
    }

    fn is_automatic(&self) -> bool {
        matches!(self.target.options.grant, Grant::ClientCredentials(_))
    }

    /// Returns a client for the URLs that the server names. `peer` is the address of a connection to the server.
    fn fetcher(&self, peer: Option<IpAddr>) -> Fetcher {
        Fetcher::new(&self.target, peer.or(self.demand.lock().peer))
    }

    /// Puts another credential in force and notifies the waiting tasks.
    fn replace(&self, credential: Option<Arc<Credential>>, state: LoginState) {
        self.is_due.store(false, Ordering::Relaxed);
        self.credential.store(credential);
        self.publish(state);
    }

    fn publish(&self, state: LoginState) {
        let before = self.state.send_replace(state.clone());
        if before == state {
            return;
        }
        let (server, identity) = (&self.label, self.identity());
        match (before, state) {
            (_, LoginState::Needed(need)) if self.is_news(&identity, &need) => {
                self.observe.emit(&Event::LoginNeeded { server, reason: &need.to_string() });
            }
            // With the same account, the gateway only tries the rejected tokens again.
            (LoginState::Needed(_), LoginState::LoggedIn { .. }) if self.reported_identity() != identity => {
                *self.reported.lock() = None;
                self.observe.emit(&Event::LoginDone { server });
            }
            _ => {}
        }
    }

    /// Records that an account needs a login. Returns `false` if the same was recorded at the last attempt.
    fn is_news(&self, identity: &Option<String>, need: &LoginNeed) -> bool {
        let report = NeedReport { identity: identity.clone(), need: need.clone(), at: Instant::now() };
        let before = self.reported.lock().replace(report);
        let is_recent = |report: &NeedReport| report.at.elapsed() < 2 * REJECTED_PAUSE;
        before.filter(is_recent).is_none_or(|report| report.identity != *identity || report.need != *need)
    }

    fn reported_identity(&self) -> Option<String> {
        self.reported.lock().as_ref().and_then(|report| report.identity.clone())
    }

    /// Handles a rejected request. See [`Authorization::rejected`].
    async fn replace_rejected(
        &self,
        sent: Option<HeaderValue>,
        challenge: Challenge,
        peer: Option<IpAddr>,
    ) -> Result<Option<HeaderValue>, String> {
        self.demand.lock().record(challenge, peer);
        if let Some(header) = self.current_header().filter(|header| Some(header) != sent.as_ref()) {
            return Ok(Some(header));
        }
        if sent.is_some() && matches!(self.state(), LoginState::Needed(_)) {
            // The same token was rejected before, and a refresh did not help.
            return Ok(None);
        }
        if self.is_automatic() {
            let next = self.log_in_by_itself(sent.clone()).await?;
            return Ok(self.unless_equal(next, sent));
        }
        if self.credential.load().is_none() {
            // Another process may have logged in since.
            if let Err(reason) = self.read_entry().await {
                self.publish(LoginState::Needed(LoginNeed::Unreadable(reason)));
                return Ok(None);
            }
        }
        match self.credential.load_full() {
            None => self.publish(LoginState::Needed(LoginNeed::Never)),
            // The vault had another login, or the authorization server has ended this one.
            Some(credential) if credential.header.is_none() || credential.header != sent => {}
            Some(_) => {
                let next = self.refresh_rejected(sent.clone()).await?;
                return Ok(self.unless_equal(next, sent));
            }
        }
        Ok(self.current_header())
    }

    /// Returns the header of the new tokens. Without one, the authorization server may have issued the rejected token
    /// again. The next request must not ask for another one then.
    fn unless_equal(&self, next: Option<HeaderValue>, sent: Option<HeaderValue>) -> Option<HeaderValue> {
        if let (None, Some(sent), LoginState::LoggedIn { .. }) = (&next, &sent, self.state()) {
            self.reject(sent);
        }
        next
    }

    /// Records that the server rejects the tokens with this header, if they are in force. They are tried again after a
    /// pause, unless they have expired.
    fn reject(&self, sent: &HeaderValue) {
        let Some(credential) = self.credential.load_full().filter(|it| it.header.as_ref() == Some(sent)) else {
            return;
        };
        let stored = &credential.stored;
        let is_over = stored.refresh.is_none() && !self.is_automatic() && stored.has_expired(SystemTime::now());
        self.failures.lock().rejected = (!is_over).then(Instant::now);
        self.publish(LoginState::Needed(if is_over { LoginNeed::Expired } else { LoginNeed::Rejected }));
    }
}

impl Authorization for ServerLogin {
    fn header(&self) -> Option<HeaderValue> {
        if self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Relaxed) {
            self.wake.notify_one();
        }
        self.credential.load().as_ref().and_then(|credential| credential.header.clone())
    }

    fn is_stale(&self) -> bool {
        let credential = self.credential.load();
        let Some(Credential { stored, .. }) = credential.as_deref() else { return false };
        let can_refresh = self.is_automatic() || stored.refresh.is_some();
        can_refresh
            && stored.has_expired(SystemTime::now())
            && matches!(*self.state.borrow(), LoginState::LoggedIn { .. })
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), String>> {
        self.renew_expired().boxed()
    }

    fn rejected(
        &self,
        sent: Option<HeaderValue>,
        response: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>> {
        let challenge = Challenge::read(response);
        self.replace_rejected(sent, challenge, peer).boxed()
    }

    fn rejected_again(&self, sent: &HeaderValue, response: &HeaderMap) {
        self.demand.lock().record(Challenge::read(response), None);
        self.reject(sent);
    }

    fn scope_missing(&self, response: &HeaderMap) -> bool {
        let challenge = Challenge::read(response);
        let is_missing = challenge.lacks_scope();
        if is_missing {
            self.demand.lock().record_missing(challenge);
        }
        is_missing
    }
}

/// Reports whether a browser that returns to this address stays on its machine. Any other address would get the code of
/// the login.
fn is_on_this_machine(redirect_uri: &str) -> bool {
    let Ok(uri) = redirect_uri.parse::<Uri>() else { return false };
    let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    let is_own = matches!(uri.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
    is_plain && is_own && uri.scheme_str() == Some("http") && uri.port_u16().is_some()
}

impl std::fmt::Debug for ServerLogin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ServerLogin").field("name", &self.target.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
