//! The login at one backend: its tokens, and the attempts of persons to log in.
//!
//! An attempt begins on behalf of an operator or of a client. The browser returns to the program that began the attempt,
//! which passes the callback on, or to a listener of the gateway. At most [`MAX_ATTEMPTS`] attempts are open; a further
//! one replaces the oldest.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_admin::login::{LoginAttempt, LoginRequest, LoginStatus, LogoutStatus};
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_config::oauth::{CallbackHost, Grant, OAuthOptions};
use goblin_config::{Server, Transport};
use goblin_oauth::{
    BrowserLogin, CallbackFault, CallbackListener, DeviceLogin, LoginError, LoginState, LoginTarget, ServerLogin,
};
use goblin_telemetry::{Observe, worker};
use goblin_vault::Vault;
use goblin_wire::Method;
use http::Uri;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::client::Client;

const MAX_ATTEMPTS: usize = 4;
/// The pause after a failed attempt for clients.
const CLIENT_RETRY_PAUSE: Duration = Duration::from_secs(30);
/// The limit of clients that are notified of the end of an attempt.
const MAX_WAITING_CLIENTS: usize = 64;

/// The login at one backend.
pub struct BackendLogin {
    pub login: Arc<ServerLogin>,
    options: OAuthOptions,
    attempts: Mutex<VecDeque<Arc<Attempt>>>,
    /// Held while an attempt for clients begins.
    beginning: Semaphore,
    /// The last failure to begin one.
    failed: Mutex<Option<(Instant, LoginError)>>,
    /// The clients that got the URL of an attempt, each with the id of its elicitation.
    waiting_clients: Mutex<VecDeque<(String, Weak<Client>)>>,
}

/// One attempt of a person to log in.
struct Attempt {
    kind: AttemptKind,
    outcome: Mutex<Option<Result<(), String>>>,
    /// The task that waits for the browser or for the other device.
    waiting: Mutex<Option<AbortHandle>>,
}

enum AttemptKind {
    /// The browser returns to the program that began the attempt.
    Remote(BrowserLogin),
    /// The browser returns to the gateway.
    Own(Arc<BrowserLogin>),
    Device(Arc<DeviceLogin>),
}

impl BackendLogin {
    /// Returns the login at a server. Returns `None` if the server needs none, or must get none.
    pub fn of(
        server: &str,
        config: &Server,
        vault: &Arc<Vault>,
        proxies: &ProxyEnvironment,
        observe: &Arc<Observe>,
    ) -> Option<Arc<BackendLogin>> {
        let Transport::Http { url, ca, oauth: Some(options), .. } = &config.transport else { return None };
        let target = LoginTarget {
            name: server.to_owned(),
            url: url.value().parse().ok()?,
            ca: ca.clone(),
            proxies: proxies.clone(),
            options: options.clone(),
        };
        Some(BackendLogin::new(target, vault, observe))
    }

    /// Returns the login at a URL that is no server of a configuration. Returns `None` for the address of a socket, or
    /// if this user has no directory for logins.
    pub fn at_url(url: &str, proxies: &ProxyEnvironment) -> Option<Arc<BackendLogin>> {
        let url: Uri = url.parse().ok()?;
        url.scheme_str().filter(|scheme| ["http", "https"].contains(scheme))?;
        let vault = Arc::new(Vault::new(Vault::default_directory(&environment)?, &environment));
        let (name, options) = (String::new(), OAuthOptions::default());
        let target = LoginTarget { name, url, ca: None, proxies: proxies.clone(), options };
        Some(BackendLogin::new(target, &vault, &Arc::default()))
    }

    fn new(target: LoginTarget, vault: &Arc<Vault>, observe: &Arc<Observe>) -> Arc<BackendLogin> {
        let options = target.options.clone();
        Arc::new(BackendLogin {
            login: ServerLogin::new(target, Arc::clone(vault), Arc::clone(observe)),
            options,
            attempts: Mutex::default(),
            beginning: Semaphore::new(1),
            failed: Mutex::default(),
            waiting_clients: Mutex::default(),
        })
    }

    /// Reports whether the gateway logs in by itself, without a person.
    pub(crate) fn is_automatic(&self) -> bool {
        matches!(self.options.grant, Grant::ClientCredentials(_))
    }

    /// Returns the state of the login, and the attempt that began last.
    pub fn status(&self) -> LoginStatus {
        let (login, reason) = match self.login.state() {
            LoginState::NoLogin => ("none", None),
            LoginState::LoggedIn { .. } => ("logged_in", None),
            LoginState::Needed(cause) => ("needed", Some(cause.to_string())),
        };
        LoginStatus {
            login: login.to_owned(),
            reason,
            automatic: self.is_automatic(),
            callback_host: match self.options.callback.host {
                CallbackHost::Address => "127.0.0.1",
                CallbackHost::Localhost => "localhost",
            }
            .to_owned(),
            callback_port: self.options.callback.port,
            attempt: self.attempts.lock().back().map(|attempt| attempt.status()),
        }
    }

    /// Begins an attempt.
    pub async fn begin(self: Arc<Self>, request: LoginRequest) -> Result<(), LoginError> {
        match request {
            LoginRequest { device: true, .. } => self.begin_on_device().await,
            LoginRequest { redirect_uri: Some(redirect_uri), .. } => {
                let begun = self.login.begin_in_browser(redirect_uri).await?;
                self.add(Attempt::new(AttemptKind::Remote(begun)));
                Ok(())
            }
            LoginRequest { .. } => self.begin_own().await.map(drop),
        }
    }

    /// Finishes the attempt to which a callback belongs.
    pub async fn finish(self: &Arc<Self>, callback: &str) -> Result<(), LoginError> {
        let attempts: Vec<_> = self.attempts.lock().iter().rev().cloned().collect();
        let open = attempts.into_iter().filter(|attempt| attempt.outcome.lock().is_none());
        let mut failure = LoginError::Ended;
        for attempt in open {
            let login: &BrowserLogin = match &attempt.kind {
                AttemptKind::Remote(login) => login,
                AttemptKind::Own(login) => login,
                AttemptKind::Device(_) => continue,
            };
            match login.complete(callback).await {
                Err(error @ LoginError::Callback(CallbackFault::NotACallback | CallbackFault::State)) => {
                    failure = error
                }
                outcome => {
                    self.end(&attempt, &outcome);
                    return outcome;
                }
            }
        }
        Err(failure)
    }

    pub async fn log_out(&self) -> Result<LogoutStatus, LoginError> {
        let outcome = self.login.logout().await?;
        Ok(LogoutStatus { was_logged_in: outcome.was_logged_in, revoked: outcome.revoked, reason: outcome.reason })
    }

    /// Returns the URL of an attempt with the gateway's own listener. All clients share one attempt.
    pub(crate) async fn url_for_clients(self: Arc<Self>) -> Result<String, LoginError> {
        let _beginning = self.beginning.acquire().await;
        let attempt = match self.open_own_attempt() {
            Some(attempt) => attempt,
            None => self.begin_for_clients().await?,
        };
        Ok(attempt.url().to_owned())
    }

    /// Begins an attempt with the gateway's own listener. After a failure, clients get the same error for some time.
    async fn begin_for_clients(self: &Arc<Self>) -> Result<Arc<Attempt>, LoginError> {
        let failed = self.failed.lock().clone();
        if let Some((_, error)) = failed.filter(|(at, _)| at.elapsed() < CLIENT_RETRY_PAUSE) {
            return Err(error);
        }
        let begun = self.begin_own().await;
        *self.failed.lock() = begun.as_ref().err().map(|error| (Instant::now(), error.clone()));
        begun
    }

    /// Notifies the client when a login is done. `id` is the id of its elicitation.
    pub(crate) fn notify_when_done(&self, id: String, client: &Arc<Client>) {
        let mut waiting = self.waiting_clients.lock();
        waiting.retain(|(_, client)| client.strong_count() > 0);
        if waiting.len() == MAX_WAITING_CLIENTS {
            waiting.pop_front();
        }
        waiting.push_back((id, Arc::downgrade(client)));
    }

    fn open_own_attempt(&self) -> Option<Arc<Attempt>> {
        let attempts = self.attempts.lock();
        attempts.iter().rev().find(|attempt| matches!(attempt.kind, AttemptKind::Own(_)) && attempt.is_open()).cloned()
    }

    async fn begin_own(self: &Arc<Self>) -> Result<Arc<Attempt>, LoginError> {
        let listener = CallbackListener::bind(self.options.callback).await?;
        let begun = Arc::new(self.login.begin_in_browser(listener.redirect_uri().to_owned()).await?);
        let attempt = self.add(Attempt::new(AttemptKind::Own(Arc::clone(&begun))));
        self.wait(&attempt, async move {
            let expired = tokio::time::sleep_until(begun.expires().into());
            tokio::select! {
                outcome = returned(&listener, &begun) => outcome,
                () = expired => Err(LoginError::Expired),
            }
        });
        Ok(attempt)
    }

    async fn begin_on_device(self: &Arc<Self>) -> Result<(), LoginError> {
        let begun = Arc::new(self.login.begin_on_device().await?);
        let attempt = self.add(Attempt::new(AttemptKind::Device(Arc::clone(&begun))));
        self.wait(&attempt, async move { begun.wait().await });
        Ok(())
    }

    /// Waits for the end of an attempt in a task, which ends with the attempt.
    fn wait(
        self: &Arc<Self>,
        attempt: &Arc<Attempt>,
        outcome: impl Future<Output = Result<(), LoginError>> + Send + 'static,
    ) {
        // The task must not keep the attempt, or a forgotten one would listen for ever.
        let (this, waiting) = (Arc::downgrade(self), Arc::downgrade(attempt));
        let task = worker::spawn(async move {
            let outcome = outcome.await;
            if let (Some(this), Some(attempt)) = (this.upgrade(), waiting.upgrade()) {
                this.end(&attempt, &outcome);
            }
        });
        *attempt.waiting.lock() = Some(task.abort_handle());
    }

    fn add(&self, attempt: Attempt) -> Arc<Attempt> {
        let attempt = Arc::new(attempt);
        let mut attempts = self.attempts.lock();
        if attempts.len() == MAX_ATTEMPTS {
            attempts.pop_front();
        }
        attempts.push_back(Arc::clone(&attempt));
        attempt
    }

    /// Records the end of an attempt. Notifies the waiting clients if the login is done.
    fn end(&self, attempt: &Attempt, outcome: &Result<(), LoginError>) {
        *attempt.outcome.lock() = Some(outcome.as_ref().map(drop).map_err(ToString::to_string));
        attempt.stop_waiting();
        if outcome.is_err() {
            return;
        }
        for (id, client) in std::mem::take(&mut *self.waiting_clients.lock()) {
            let params = format!(r#"{{"elicitationId":{}}}"#, goblin_wire::json::quote(&id));
            let message: Bytes = goblin_wire::notification(&Method::ElicitationComplete, Some(&params));
            if let Some(client) = client.upgrade() {
                // A client that is gone, or reads nothing, retries its call by itself.
                client.post(message);
            }
        }
    }
}

/// Waits for the browser and finishes the login. Another page than the one that the login waits for changes nothing.
async fn returned(listener: &CallbackListener, login: &BrowserLogin) -> Result<(), LoginError> {
    loop {
        match login.complete(&listener.next().await).await {
            Err(LoginError::Callback(CallbackFault::NotACallback | CallbackFault::State)) => {}
            outcome => return outcome,
        }
    }
}

impl Attempt {
    fn new(kind: AttemptKind) -> Attempt {
        Attempt { kind, outcome: Mutex::default(), waiting: Mutex::default() }
    }

    fn url(&self) -> &str {
        match &self.kind {
            AttemptKind::Remote(login) => login.url(),
            AttemptKind::Own(login) => login.url(),
            AttemptKind::Device(login) => login.url(),
        }
    }

    fn expires(&self) -> Instant {
        match &self.kind {
            AttemptKind::Remote(login) => login.expires(),
            AttemptKind::Own(login) => login.expires(),
            AttemptKind::Device(login) => login.expires(),
        }
    }

    /// Ends the task that waits for the browser or for the other device.
    fn stop_waiting(&self) {
        if let Some(task) = self.waiting.lock().take() {
            task.abort();
        }
    }

    fn is_open(&self) -> bool {
        self.outcome.lock().is_none() && Instant::now() < self.expires()
    }

    fn status(&self) -> LoginAttempt {
        let outcome = self.outcome.lock().clone();
        let left = self.expires().saturating_duration_since(Instant::now()).as_secs();
        let (state, reason) = match outcome {
            Some(Ok(())) => ("done", None),
            Some(Err(reason)) => ("failed", Some(reason)),
            None if left == 0 => ("failed", Some("the attempt has expired; begin again".to_owned())),
            None => ("waiting", None),
        };
        LoginAttempt {
            state: state.to_owned(),
            reason,
            url: self.url().to_owned(),
            user_code: match &self.kind {
                AttemptKind::Device(login) => Some(login.user_code().to_owned()),
                AttemptKind::Remote(_) | AttemptKind::Own(_) => None,
            },
            expires_in: left,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}
