//! Waits for the login that a server needs, and connects again when it changes.
//!
//! A server that rejects the connection is not dialled again before the login changes, in this process or in another.
//! The published lists remain meanwhile.

use std::convert::Infallible;

use goblin_config::oauth::login_command;
use goblin_oauth::{LoginState, ServerLogin};

use crate::upstream::BackendState;
use crate::upstream::login::BackendLogin;
use crate::upstream::supervisor::Supervisor;

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
pub(super) enum AwaitedLogin {
    /// Any login that the server may accept.
    Usable,
    /// Another login than this one, which lacks a permission.
    Other(Option<String>),
}

impl Supervisor {
    fn login(&self) -> Option<&ServerLogin> {
        self.table.dialer.server_login()
    }

    /// Returns the login in force.
    pub(super) fn login_mark(&self) -> LoginMark {
        self.login().map(LoginMark::of).unwrap_or_default()
    }

    /// Waits until the server may accept a connection again.
    pub(super) async fn login_done(&self, awaited: AwaitedLogin) {
        if let Some(login) = self.login() {
            let is_done = |state: &LoginState| match &awaited {
                AwaitedLogin::Usable => !matches!(state, LoginState::Needed(_)),
                AwaitedLogin::Other(rejected) => login.identity() != *rejected,
            };
            let _ = login.changes().wait_for(is_done).await;
        }
        // Calls wait for the attempt from here on. The server is ready when its lists are.
        self.slot.lists().set_unsettled();
        self.slot.publish(BackendState::Starting);
    }

    /// Publishes that the server needs a login. The next attempt waits for it.
    pub(super) fn on_login_needed(&mut self) {
        let login = self.table.dialer.login.as_deref();
        let server = self.table.context.events.server();
        let is_automatic = login.is_some_and(BackendLogin::is_automatic);
        let reason = login_reason(server, self.login().map(ServerLogin::state), is_automatic);
        let LoginMark { identity, is_needed } = self.login_mark();
        self.awaited_login = Some(if is_needed { AwaitedLogin::Usable } else { AwaitedLogin::Other(identity) });
        self.table.meter.record_failure(&reason);
        self.drop_notifications();
        self.slot.publish_login_needed(reason.clone());
        self.last_failure = Some(reason);
        self.settle_lists();
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
    use goblin_oauth::LoginNeed;

    use super::*;

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
