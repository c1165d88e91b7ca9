//! Tools that say something before they answer: progress, log messages, a cut stream.

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

/// Between two messages, so that they are not one write.
const PAUSE: Duration = Duration::from_millis(20);

pub async fn progress(context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    if let Some(token) = context.meta.get_progress_token() {
        for done in [0.0, 50.0, 100.0] {
            let progress = ProgressNotificationParam::new(token.clone(), done).with_total(100.0);
            // The call goes on whether or not somebody still wants to know how far it is.
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

/// Answers after its stream is gone, so that the client must ask for the rest of it. 2026-07-28 has no such thing: there
/// the end of the stream is the end of the call.
pub async fn reconnection(context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    let parts = context.extensions.get::<Parts>().filter(|_| !is_modern(context));
    let scissors = parts.and_then(|parts| parts.extensions.get::<Scissors>());
    let session = parts.and_then(|parts| session_of(&parts.headers));
    if let (Some(scissors), Some(session)) = (scissors, session) {
        scissors.cut(session).await;
    }
    Ok(text("answered after the stream was cut"))
}
