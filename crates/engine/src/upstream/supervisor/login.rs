//! Waits for the login that a server needs, and connects again when it changes.
//!
//! A server that rejects the connection is not dialled again before the login changes, in this process or in another.
//! The published lists remain meanwhile.

use std::convert::Infallible;
use std::time::Duration;

use goblin_config::oauth::login_command;
use goblin_oauth::{LoginState, ServerLogin};

use crate::upstream::BackendState;
use crate::upstream::login::BackendLogin;
use crate::upstream::supervisor::{LinkPolicy, Supervisor};

/// The longest wait for another login. A server may give the login in force the permission that it lacks.
const OTHER_LOGIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Refreshes the tokens of the login, and reads those that other processes store.
pub(super) async fn keep(login: Option<&ServerLogin>) -> Infallible {
    match login {
        Some(login) => login.keep().await,
        None => std::future::pending().await,
    }
}

/// The login at one moment.
#[derive(Default)]
pub(super) struct LoginMark {
    identity: Option<String>,
    /// Whether the server rejected the login.
    is_needed: bool,
}

impl LoginMark {
    fn of(login: &ServerLogin) -> LoginMark {
        LoginMark { identity: login.identity(), is_needed: matches!(login.state(), LoginState::Needed(_)) }
    }
}

/// Waits until the login of a connection is no longer in force: another one is, or the server rejected it.
pub(super) async fn login_changed(login: Option<&ServerLogin>, connected: &LoginMark) {
    let Some(login) = login else { return std::future::pending().await };
    let is_changed = |_: &LoginState| {
        let now = LoginMark::of(login);
        let is_rejected = now.identity.is_some() && now.is_needed && !connected.is_needed;
        now.identity != connected.identity || is_rejected
    };
    // The sender lives as long as the login.
    let _ = login.changes().wait_for(is_changed).await;
}

/// The login that a rejected connection waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AwaitedLogin {
    /// Any login that the server may accept.
    Usable,
    /// Another login than this one, which lacks a permission.
    Other(Option<String>),
}

impl AwaitedLogin {
    /// Returns the login to wait for after a connection with the login `used` was rejected.
    fn after(used: Option<String>, now: &LoginMark) -> AwaitedLogin {
        match now.is_needed {
            true => AwaitedLogin::Usable,
            // Somebody may have logged in while the server rejected the connection.
            false => AwaitedLogin::Other(used),
        }
    }

    async fn reached(&self, login: &ServerLogin) {
        let is_done = |state: &LoginState| match self {
            AwaitedLogin::Usable => !matches!(state, LoginState::Needed(_)),
            AwaitedLogin::Other(rejected) => login.identity() != *rejected,
        };
        let mut changes = login.changes();
        // The sender lives as long as the login.
        let done = changes.wait_for(is_done);
        match self {
            AwaitedLogin::Usable => drop(done.await),
            AwaitedLogin::Other(_) => drop(tokio::time::timeout(OTHER_LOGIN_TIMEOUT, done).await),
        }
    }
}

impl Supervisor {
    fn login(&self) -> Option<&ServerLogin> {
        self.table.dialer.server_login()
    }

    /// Records and returns the login with which an attempt begins.
    pub(super) fn begin_with_login(&mut self) -> LoginMark {
        let mark = self.login_mark();
        self.used_login.clone_from(&mark.identity);
        mark
    }

    /// Returns the login in force.
    fn login_mark(&self) -> LoginMark {
        self.login().map(LoginMark::of).unwrap_or_default()
    }

    /// Waits until the server may accept a connection again.
    pub(super) async fn login_done(&self, awaited: AwaitedLogin) {
        if let Some(login) = self.login() {
            awaited.reached(login).await;
        }
        // Calls wait for the attempt from here on. The server is ready when its lists are.
        if self.owns_lists() {
            self.slot.lists().set_unsettled();
        }
        self.slot.publish(BackendState::Starting);
    }

    /// Publishes that the server needs a login. The next attempt waits for it.
    pub(super) fn on_login_needed(&mut self) {
        let login = self.table.dialer.login.as_deref();
        let server = self.table.context.events.server();
        let is_automatic = login.is_some_and(BackendLogin::is_automatic);
        let reason = login_reason(server, self.login().map(ServerLogin::state), is_automatic);
        self.awaited_login = Some(AwaitedLogin::after(self.used_login.take(), &self.login_mark()));
        self.table.meter.record_failure(&reason);
        self.drop_notifications();
        self.slot.publish_login_needed(reason.clone());
        self.last_failure = Some(reason);
        // The attempt after a login is no restart of the server.
        self.has_dialled = false;
        if self.owns_lists() {
            self.settle_lists();
        }
    }

    /// Reports whether this link fetches its lists. A second link has those of the shared link.
    fn owns_lists(&self) -> bool {
        !matches!(self.policy, LinkPolicy::CallsOnly)
    }
}

/// Returns the reason why a server needs a login, with the command. No command helps if the gateway logs in by itself:
/// the cause then has the cure.
fn login_reason(server: &str, state: Option<LoginState>, is_automatic: bool) -> String {
    let command = login_command(server);
    match state {
        Some(LoginState::Needed(cause)) if is_automatic => format!("the gateway cannot log in: {cause}"),
        _ if is_automatic => "the gateway cannot log in: the server rejects its login".to_owned(),
        Some(LoginState::Needed(cause)) => format!("it needs a login: {cause} (run: {command})"),
        Some(LoginState::LoggedIn { .. }) => format!("its login lacks a permission (run: {command})"),
        _ => format!("it needs a login (run: {command})"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use goblin_client::connect::ProxyEnvironment;
    use goblin_oauth::{LoginNeed, LoginTarget};
    use goblin_vault::Vault;

    use super::*;

    #[test]
    fn oauth2_a_login_during_a_rejected_connection_is_not_missed() {
        let mark = |identity: Option<&str>, is_needed| LoginMark { identity: identity.map(str::to_owned), is_needed };
        assert_eq!(AwaitedLogin::after(None, &mark(None, true)), AwaitedLogin::Usable);
        let lacks_permission = AwaitedLogin::after(Some("a".to_owned()), &mark(Some("a"), false));
        assert_eq!(lacks_permission, AwaitedLogin::Other(Some("a".to_owned())));
        // The server rejected the connection without a login, and the login came before the rejection was handled.
        assert_eq!(AwaitedLogin::after(None, &mark(Some("a"), false)), AwaitedLogin::Other(None));
    }

    #[tokio::test(start_paused = true)]
    async fn oauth2_a_login_that_lacks_a_permission_is_tried_again_later() {
        let target = LoginTarget {
            name: "p".to_owned(),
            url: "https://mcp.example/mcp".parse().expect("a URL"),
            ca: None,
            proxies: ProxyEnvironment::default(),
            options: Default::default(),
        };
        let vault = Arc::new(Vault::new("/nonexistent".into(), &|_| None));
        let login = ServerLogin::new(target, vault, Arc::default());
        let begun = tokio::time::Instant::now();
        AwaitedLogin::Other(Some("another".to_owned())).reached(&login).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "another login is in force");
        AwaitedLogin::Other(None).reached(&login).await;
        assert_eq!(begun.elapsed(), OTHER_LOGIN_TIMEOUT);
    }

    #[test]
    fn oauth2_the_reason_of_a_needed_login_has_the_command_unless_the_gateway_logs_in_by_itself() {
        let needed = || Some(LoginState::Needed(LoginNeed::Never));
        let logged_in = || Some(LoginState::LoggedIn { scopes: Vec::new() });
        for (state, is_automatic, expected) in [
            (needed(), false, "it needs a login: nobody has logged in (run: goblin login 'my notes')"),
            (logged_in(), false, "its login lacks a permission (run: goblin login 'my notes')"),
            (None, false, "it needs a login (run: goblin login 'my notes')"),
            (needed(), true, "the gateway cannot log in: nobody has logged in"),
            (logged_in(), true, "the gateway cannot log in: the server rejects its login"),
        ] {
            assert_eq!(login_reason("my notes", state, is_automatic), expected);
        }
    }
}
