//! Tools that send messages before their result: progress, log messages, a cut stream.
//!
//! A failed message does not end the call, because the client may have disconnected.

use std::time::Duration;

use http::request::Parts;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ProgressNotificationParam};
use rmcp::service::{RequestContext, RoleServer};
use tokio::time::sleep;

use crate::ask::is_modern;
use crate::cut::{Scissors, session_of};
use crate::server::Server;
use crate::tools::content::text;

/// The pause between two messages, so that they are separate writes.
const PAUSE: Duration = Duration::from_millis(20);

pub async fn progress(context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    if let Some(token) = context.meta.get_progress_token() {
        for done in [0.0, 50.0, 100.0] {
            let progress = ProgressNotificationParam::new(token.clone(), done).with_total(100.0);
            // The call continues even if the client has disconnected.
            let _ = context.peer.notify_progress(progress).await;
            sleep(PAUSE).await;
        }
    }
    Ok(text("three steps"))
}

pub async fn logging(server: &Server, context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    for message in ["started", "working", "finished"] {
        server.log(context, message).await;
        sleep(PAUSE).await;
    }
    Ok(text("three messages"))
}

/// Returns a result after its stream is cut, so that the client must resume it. In 2026-07-28 the end of the stream
/// ends the call, so nothing is cut there.
pub async fn reconnection(context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    let parts = context.extensions.get::<Parts>().filter(|_| !is_modern(context));
    let scissors = parts.and_then(|parts| parts.extensions.get::<Scissors>());
    let session = parts.and_then(|parts| session_of(&parts.headers));
    if let (Some(scissors), Some(session)) = (scissors, session) {
        scissors.cut(session).await;
    }
    Ok(text("answered after the stream was cut"))
}
