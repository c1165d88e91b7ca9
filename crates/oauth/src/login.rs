//! The login at one server.

pub(crate) mod attempt;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use goblin_client::authorization::Authorization;
use goblin_telemetry::Observe;
use goblin_vault::Vault;
use http::{HeaderMap, HeaderValue};
use tokio::sync::watch;

use crate::LoginTarget;
use crate::error::LoginError;
use crate::login::attempt::{BrowserLogin, DeviceLogin};

/// The login at one server.
pub struct ServerLogin;

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
    #[error("{0}")]
    Placeholder(String),
}

/// What a logout did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutOutcome {
    pub was_logged_in: bool,
    pub revoked: bool,
    pub reason: Option<String>,
}

/// Excludes other processes from a prompt for the same login, until it is dropped.
pub struct LoginTurn;

impl ServerLogin {
    pub fn new(_target: LoginTarget, _vault: Arc<Vault>, _observe: Arc<Observe>) -> Arc<ServerLogin> {
        todo!()
    }
    pub fn state(&self) -> LoginState {
        todo!()
    }
    pub fn changes(&self) -> watch::Receiver<LoginState> {
        todo!()
    }
    /// Identifies the account in force: changes when another login replaces it, stays when tokens are refreshed or rejected. `None` without a credential.
    pub fn identity(&self) -> Option<String> {
        todo!()
    }
    /// Reads the stored login.
    pub async fn load(&self) {
        todo!()
    }
    /// Refreshes the tokens when they are due, and reads what other processes store. Never returns.
    pub async fn keep(&self) -> Infallible {
        todo!()
    }
    /// Waits for the refresh that is under way.
    pub async fn finish(&self) {
        todo!()
    }
    pub async fn begin_in_browser(self: &Arc<Self>, _redirect_uri: String) -> Result<BrowserLogin, LoginError> {
        todo!()
    }
    pub async fn begin_on_device(self: &Arc<Self>) -> Result<DeviceLogin, LoginError> {
        todo!()
    }
    pub async fn logout(&self) -> Result<LogoutOutcome, LoginError> {
        todo!()
    }
    pub async fn turn(&self) -> Option<LoginTurn> {
        todo!()
    }
}

impl Authorization for ServerLogin {
    fn header(&self) -> Option<HeaderValue> {
        todo!()
    }
    fn rejected(
        &self,
        _sent: Option<HeaderValue>,
        _response: &HeaderMap,
        _peer: Option<IpAddr>,
    ) -> BoxFuture<'_, Result<Option<HeaderValue>, String>> {
        todo!()
    }
    fn rejected_again(&self, _sent: &HeaderValue, _response: &HeaderMap) {
        todo!()
    }
    fn scope_missing(&self, _response: &HeaderMap) -> bool {
        todo!()
    }
}
