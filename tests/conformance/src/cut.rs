//! A response with a stream that the server can cut, so that the client resumes it.
//!
//! `rmcp` keeps the missed events of a cut stream only until the call has its response. The response must therefore
//! wait for the client.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use tokio::sync::Notify;
use tokio::time::timeout;

/// The time that a cut stream waits for its client.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The sessions with a client that should resume.
#[derive(Default)]
pub struct Awaited {
    sessions: Mutex<HashMap<String, Arc<Notify>>>,
}

impl Awaited {
    /// Returns a signal that fires when the client of the session resumes.
    fn expect(&self, session: &str) -> Arc<Notify> {
        let back = Arc::new(Notify::new());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(session.to_owned(), Arc::clone(&back));
        back
    }

    /// Records that the client of a session resumes a stream.
    pub fn is_back(&self, session: &str) {
        let back = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(session);
        if let Some(back) = back {
            back.notify_one();
        }
    }
}

pub fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get("mcp-session-id")?.to_str().ok()
}

/// A handle that cuts the stream of one response. It is in the extensions of the HTTP request.
#[derive(Clone)]
pub struct Scissors {
    requested: Arc<Notify>,
    closed: Arc<Notify>,
    awaited: Arc<Awaited>,
}

impl Scissors {
    pub fn new(awaited: Arc<Awaited>) -> Scissors {
        Scissors { requested: Arc::default(), closed: Arc::default(), awaited }
    }

    /// Ends the stream after the events sent so far, and waits until the client of the session resumes.
    pub async fn cut(&self, session: &str) {
        let back = self.awaited.expect(session);
        self.requested.notify_one();
        self.closed.notified().await;
        // A client that does not resume gets no response in any case.
        let _ = timeout(TIMEOUT, back.notified()).await;
    }
}

pub struct CuttableBody {
    inner: BoxBody<Bytes, Infallible>,
    requested: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    closed: Arc<Notify>,
}

impl CuttableBody {
    pub fn new(inner: BoxBody<Bytes, Infallible>, scissors: Scissors) -> CuttableBody {
        let Scissors { requested, closed, .. } = scissors;
        CuttableBody { inner, requested: Box::pin(async move { requested.notified().await }), closed }
    }
}

impl Body for CuttableBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Pending frames are sent first. A client needs the first event to resume the stream.
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            return Poll::Ready(frame);
        }
        self.requested.as_mut().poll(context).map(|()| None)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for CuttableBody {
    fn drop(&mut self) {
        self.closed.notify_one();
    }
}
