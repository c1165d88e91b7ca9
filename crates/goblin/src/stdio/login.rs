//! The login of a bridge to a remote endpoint: it begins with the first rejected request, which waits for it.
//!
//! The client that started the bridge shows neither a terminal nor a browser, so the bridge opens the browser itself.
//! Several bridges to one endpoint begin one login: the others wait for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use goblin_admin::login::LoginRequest;
use goblin_client::authorization::Authorization;
use goblin_client::connect::ProxyEnvironment;
use goblin_config::visible::is_hidden;
use goblin_engine::upstream::login::BackendLogin;
use goblin_oauth::{LoginState, open_browser};
use goblin_telemetry::worker;
use http::{HeaderMap, HeaderValue};
use tokio::sync::Semaphore;

use crate::style::{note, warn};

/// The longest wait of a request for the login.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the login at an endpoint. Returns `None` for a socket, or if there is no place for the login.
pub(super) async fn of_url(url: &str) -> Option<Arc<dyn Authorization>> {
    let login = BackendLogin::at_url(url, &ProxyEnvironment::from_process())?;
    Some(Arc::new(PromptedLogin::start(login).await))
}

/// A login that begins when the endpoint demands it.
pub(super) struct PromptedLogin {
    login: Arc<BackendLogin>,
    /// Held by the request that prompts for the login.
    prompting: Semaphore,
}

impl PromptedLogin {
    /// Loads the stored login and keeps it valid in the background.
    pub(super) async fn start(login: Arc<BackendLogin>) -> PromptedLogin {
        login.login.load().await;
        let kept = Arc::clone(&login.login);
        worker::spawn(async move { kept.keep().await });
        PromptedLogin { login, prompting: Semaphore::new(1) }
    }

    /// Prompts for a login and waits for it. Returns the header to repeat the request with.
    async fn prompt(&self) -> Option<HeaderValue> {
        let _prompting = self.prompting.acquire().await.ok()?;
        if !matches!(self.login.login.state(), LoginState::Needed(_)) {
            // Another request prompted for it.
            return self.login.login.header();
        }
        let _turn = self.login.login.turn().await;
        self.login.login.load().await;
        if !matches!(self.login.login.state(), LoginState::Needed(_)) {
            // Another process prompted for it.
            return self.login.login.header();
        }
        if let Err(error) = Arc::clone(&self.login).begin(LoginRequest::default()).await {
            warn(&error.to_string());
            return None;
        }
        let url = self.login.status().attempt.map(|attempt| attempt.url).unwrap_or_default();
        note(&format!("log in at {}", url.replace(is_hidden, "")));
        if let Err(error) = open_browser(&url) {
            note(&format!("the browser did not open: {error}; open the page yourself"));
        }
        let mut changes = self.login.login.changes();
        let done = changes.wait_for(|state| matches!(state, LoginState::LoggedIn { .. }));
        let is_done = matches!(tokio::time::timeout(LOGIN_TIMEOUT, done).await, Ok(Ok(_)));
        if !is_done {
            warn("nobody logged in within 5 min; the next request prompts again");
        }
        self.login.login.header().filter(|_| is_done)
    }
}

impl Authorization for PromptedLogin {
    fn header(&self) -> Option<HeaderValue> {
        self.login.login.header()
    }

    fn is_stale(&self) -> bool {
        self.login.login.is_stale()
    }

    fn renew(&self) -> BoxFuture<'_, Result<(), String>> {
        self.login.login.renew()
    }

    fn rejected(
        &self,
        sent: Option<HeaderValue>,
        response: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>> {
        let rejected = self.login.login.rejected(sent, response, peer);
        async move {
            match rejected.await? {
                Some(header) => Ok(Some(header)),
                None => Ok(self.prompt().await),
            }
        }
        .boxed()
    }

    fn rejected_again(&self, sent: &HeaderValue, response: &HeaderMap) {
        self.login.login.rejected_again(sent, response);
    }

    fn scope_missing(&self, response: &HeaderMap) -> bool {
        self.login.login.scope_missing(response)
    }
}
