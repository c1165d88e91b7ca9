//! An MCP server on axum with one resource that changes on request. It is the backend of the fan-out and, accessed
//! directly, its baseline.
//!
//! The baseline is a typical handwritten server: a bounded channel and an axum event stream with keep-alive for each
//! client. A slow client misses updates. The server stores no sessions and replays nothing. Each event id has the
//! length of Goblin's, so that both write the same number of bytes.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::envelope::{self, Method};
use crate::serve::{self, SESSION_ID};

/// The notification that changes the resource. Its parameters are a [`Touch`].
pub const TOUCH: &str = "notifications/bench/touch";
/// The text before the number of an update.
pub const NUMBER: &str = r#""number":"#;
/// The number of updates that may wait for a client. Further updates are dropped for it.
const MAX_WAITING: usize = 16;

/// Serves the resource `uri`. Returns only on an error.
pub async fn run(listener: TcpListener, uri: String) -> io::Result<()> {
    let feed = Arc::new(Feed { uri, streams: Mutex::default(), count: AtomicU64::new(0) });
    let routes = Router::new().route("/mcp", get(open).post(answer).delete(StatusCode::OK)).with_state(feed);
    let listener = listener.tap_io(|stream| {
        // If this fails, events are late and the measured times show it.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, routes).await
}

struct Feed {
    uri: String,
    streams: Mutex<Vec<mpsc::Sender<Arc<str>>>>,
    /// The number of streams ever opened.
    count: AtomicU64,
}

#[derive(Deserialize)]
struct Touch {
    number: u64,
}

async fn open(State(feed): State<Arc<Feed>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let number = feed.count.fetch_add(1, Ordering::Relaxed);
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    feed.streams.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    let id = move |seq: u64| Event::default().id(format!("0-{number:07x}-{seq}"));
    let first = id(1).retry(Duration::from_secs(1)).data("");
    let updates = stream::unfold((receiver, 1), move |(mut receiver, seq)| async move {
        let message: Arc<str> = receiver.recv().await?;
        Some((Ok(id(seq + 1).event("message").data(message)), (receiver, seq + 1)))
    });
    let events = futures_util::StreamExt::chain(stream::iter([Ok(first)]), updates);
    Sse::new(events).keep_alive(KeepAlive::default())
}

async fn answer(State(feed): State<Arc<Feed>>, body: Bytes) -> Response {
    let Some(call) = envelope::call(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    let Some(id) = call.id else {
        if call.is(TOUCH) {
            let touch = call.params.and_then(|params| serde_json::from_str::<Touch>(params.get()).ok());
            let Some(touch) = touch else { return StatusCode::BAD_REQUEST.into_response() };
            feed.touch(touch.number);
        }
        return StatusCode::ACCEPTED.into_response();
    };
    let result = match call.method() {
        Method::Initialize => {
            let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#;
            format!(
                r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"serverInfo":{{"name":"feed","version":"1"}}}}"#
            )
        }
        Method::ToolsList => r#"{"tools":[{"name":"tool","inputSchema":{"type":"object"}}]}"#.to_owned(),
        _ if call.is("resources/list") => format!(r#"{{"resources":[{{"uri":"{}","name":"news"}}]}}"#, feed.uri),
        _ if call.is("resources/templates/list") => r#"{"resourceTemplates":[]}"#.to_owned(),
        _ => "{}".to_owned(),
    };
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get());
    let mut response = answer.into_response();
    response.headers_mut().insert(CONTENT_TYPE, serve::JSON);
    if call.method() == Method::Initialize {
        response.headers_mut().insert(SESSION_ID, HeaderValue::from_static("feed"));
    }
    response
}

impl Feed {
    fn touch(&self, number: u64) {
        let message: Arc<str> = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{}","_meta":{{{NUMBER}{number}}}}}}}"#,
            self.uri
        )
        .into();
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| {
            !matches!(stream.try_send(Arc::clone(&message)), Err(mpsc::error::TrySendError::Closed(_)))
        });
    }
}
