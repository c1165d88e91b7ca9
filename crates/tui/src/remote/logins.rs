//! The login at a server, over the admin API.

use goblin_admin::login::{LoginCallback, LoginRequest, LoginStatus, LogoutStatus};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::remote::api::Api;
use crate::state::message::{StatusMessage, UiEvent};

/// Returns the path of a server. Its id may contain any character.
pub(super) fn path(server: &str) -> String {
    format!("/api/servers/{}", utf8_percent_encode(server, NON_ALPHANUMERIC))
}

/// Returns the login at a server. `None` if the server has none, or if the gateway is older than this dashboard.
pub(super) async fn read(api: &Api, server: String) -> UiEvent {
    let status: Result<LoginStatus, String> = api.get(&format!("{}/login", path(&server))).await;
    UiEvent::Login { server, status: status.ok() }
}

/// Begins a login. The browser returns to the gateway.
pub(super) async fn begin(api: &Api, server: String) -> UiEvent {
    let begun = api.post_json(&format!("{}/login", path(&server)), &LoginRequest::default()).await;
    UiEvent::LoginBegun { server, begun }
}

/// Finishes a login with the address at which a browser ended.
pub(super) async fn finish(api: &Api, server: String, callback: String) -> UiEvent {
    let finished = api.post_json(&format!("{}/login/callback", path(&server)), &LoginCallback { callback }).await;
    UiEvent::LoginFinished { server, finished }
}

pub(super) async fn log_out(api: &Api, server: String) -> UiEvent {
    let done: Result<LogoutStatus, String> = api.post(&format!("{}/logout", path(&server))).await;
    UiEvent::Notice(match done {
        Ok(status) => logged_out(&server, &status),
        Err(reason) => StatusMessage::bad(reason),
    })
}

fn logged_out(server: &str, status: &LogoutStatus) -> StatusMessage {
    match status {
        LogoutStatus { was_logged_in: false, .. } => StatusMessage::good(format!("there is no login at {server}")),
        LogoutStatus { reason: Some(reason), .. } => {
            StatusMessage::bad(format!("logged out of {server}, but the tokens are not revoked: {reason}"))
        }
        LogoutStatus { revoked: true, .. } => {
            StatusMessage::good(format!("logged out of {server}; its tokens are revoked"))
        }
        LogoutStatus { revoked: false, .. } => StatusMessage::good(format!("logged out of {server}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oauth2_a_logout_states_whether_the_tokens_are_revoked() {
        let status = |was_logged_in, revoked, reason: Option<&str>| LogoutStatus {
            was_logged_in,
            revoked,
            reason: reason.map(str::to_owned),
        };
        for (status, expected, is_error) in [
            (status(false, false, None), "there is no login at linear", false),
            (status(true, true, None), "logged out of linear; its tokens are revoked", false),
            (status(true, false, None), "logged out of linear", false),
            (
                status(true, false, Some("it is late")),
                "logged out of linear, but the tokens are not revoked: it is late",
                true,
            ),
        ] {
            let message = logged_out("linear", &status);
            assert_eq!((message.text.as_str(), message.is_error), (expected, is_error));
        }
        assert_eq!(path("a/b ü"), "/api/servers/a%2Fb%20%C3%BC");
    }
}
