//! Commands of operators. The admin API sends them to the application and returns their outcome.
//!
//! Invariant: no command carries a program to run. Programs come from the configuration file alone.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::response::Response;
use goblin_admin::api::Reloaded;
use goblin_admin::routes::ServerAction;
use goblin_config::ServerId;
use http::StatusCode;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::admin::{Admin, AdminError, ok};

/// The capacity of the command queue. A command is rejected while the queue is full.
pub(crate) const MAX_QUEUED_COMMANDS: usize = 16;
/// The size limit of a command's body. The largest meaningful body is `{}`.
const MAX_BODY: usize = 1024;
/// The time limit for receiving the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A command with the sender of its outcome. A rejected command has changed nothing.
#[derive(Debug)]
pub(crate) enum AdminCommand {
    /// Reads the configuration file again.
    Reload(oneshot::Sender<Result<Reloaded, AdminError>>),
    Server {
        id: ServerId,
        action: ServerAction,
        done: oneshot::Sender<Result<(), AdminError>>,
    },
}

/// Rejects a body with content. Commands take no parameters, so the content would have no effect.
pub(super) async fn check_empty(body: Body) -> Result<(), AdminError> {
    let whole = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await;
    let text = whole.ok().and_then(Result::ok);
    let is_empty = |text: &[u8]| {
        let mut visible = text.iter().filter(|byte| !byte.is_ascii_whitespace());
        matches!((visible.next(), visible.next(), visible.next()), (None, ..) | (Some(b'{'), Some(b'}'), None))
    };
    match text {
        Some(text) if is_empty(&text) => Ok(()),
        _ => Err(AdminError::new(StatusCode::BAD_REQUEST, "the body must be empty or {}")),
    }
}

impl Admin {
    pub(super) async fn reload(&self) -> Result<Response, AdminError> {
        Ok(ok(&self.command(AdminCommand::Reload).await?))
    }

    /// Sends a command about a server. Returns the server's status after the command.
    pub(super) async fn control_server(&self, action: ServerAction, id: &str) -> Result<Response, AdminError> {
        let server = ServerId::new(id).map_err(|_| self.unknown(id))?;
        self.command(|done| AdminCommand::Server { id: server, action, done }).await?;
        Ok(ok(&self.server(id)?))
    }

    async fn command<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, AdminError>>) -> AdminCommand,
    ) -> Result<T, AdminError> {
        let unavailable = |message| AdminError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        let (done, outcome) = oneshot::channel();
        self.commands.try_send(command(done)).map_err(|error| match error {
            TrySendError::Full(_) => unavailable("too many commands are queued; try again later"),
            TrySendError::Closed(_) => unavailable("the gateway is shutting down"),
        })?;
        // The command continues even if the client disconnects here.
        outcome.await.unwrap_or_else(|_| Err(unavailable("the gateway is shutting down")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_body_of_a_command_must_be_empty() {
        for (text, is_fine) in [
            ("", true),
            ("{}", true),
            (" {\n} ", true),
            ("{}{}", false),
            ("null", false),
            ("{", false),
            (r#"{"command":"rm"}"#, false),
        ] {
            assert_eq!(check_empty(Body::from(text)).await.is_ok(), is_fine, "{text}");
        }
        assert!(check_empty(Body::from(" ".repeat(MAX_BODY))).await.is_ok());
        assert!(check_empty(Body::from(" ".repeat(MAX_BODY + 1))).await.is_err());
    }
}
