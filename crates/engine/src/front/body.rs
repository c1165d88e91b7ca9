//! The bodies of HTTP responses: ready pieces, or a stream of events.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use goblin_wire::json::Pieces;
use goblin_wire::{Error, Id};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Frame, SizeHint};

/// The size up to which the pieces of a body are copied into one slice.
const COPIED: usize = 16 * 1024;

pub enum Body {
    Pieces(smallvec::IntoIter<[Bytes; 5]>, usize),
    Events(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    /// The response of an axum route, such as the admin API.
    Routed(axum::body::Body),
}

impl Body {
    pub fn empty() -> Body {
        Body::Pieces(Pieces::new().into_iter(), 0)
    }
}

impl From<Pieces> for Body {
    fn from(pieces: Pieces) -> Body {
        let length = pieces.len();
        // Copying a small body costs less than a system call with several slices.
        let pieces = if length <= COPIED { Pieces::from(pieces.concat()) } else { pieces };
        Body::Pieces(pieces.into_iter(), length)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut *self {
            Body::Pieces(pieces, left) => {
                let piece = pieces.next();
                *left -= piece.as_ref().map_or(0, Bytes::len);
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Body::Events(events) => {
                events.as_mut().poll_next(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
            Body::Routed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Pieces(_, left) => *left == 0,
            Body::Events(_) => false,
            Body::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Pieces(_, left) => SizeHint::with_exact(*left as u64),
            Body::Events(_) => SizeHint::default(),
            Body::Routed(body) => body.size_hint(),
        }
    }
}

/// Returns a response with a JSON body.
pub fn json(status: StatusCode, pieces: Pieces) -> Response<Body> {
    let mut response = Response::new(Body::from(pieces));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a response with a JSON-RPC error as its body.
pub(crate) fn json_error(status: StatusCode, id: Option<&Id>, error: &Error) -> Response<Body> {
    json(status, goblin_wire::error_reply(id, &error.to_json()))
}

/// Returns a response with a stream of server-sent events.
pub fn events(stream: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let mut response = Response::new(Body::Events(Box::pin(stream)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Formats one message as a server-sent event without an id.
pub fn event(message: Pieces) -> Bytes {
    let mut event = bytes::BytesMut::with_capacity(message.len() + 24);
    event.extend_from_slice(b"event: message\ndata: ");
    for piece in message.into_line() {
        event.extend_from_slice(&piece);
    }
    event.extend_from_slice(b"\n\n");
    event.freeze()
}

/// A comment line that shows the peer that the stream is alive. No empty line follows it, because some parsers take one
/// for the end of an event if they have seen an id.
pub(crate) const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n");
