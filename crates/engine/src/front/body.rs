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

use crate::front::activity::BusyGuard;

/// The size up to which the pieces of a body are copied into one slice.
const COPIED: usize = 16 * 1024;

pub struct Body {
    content: BodyContent,
    /// Keeps the connection busy until the body is written.
    pub(crate) busy: Option<BusyGuard>,
}

enum BodyContent {
    /// The remaining pieces and their length.
    Pieces(smallvec::IntoIter<[Bytes; 5]>, usize),
    Events(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    /// The response of an axum route, such as the admin API.
    Routed(axum::body::Body),
}

impl From<BodyContent> for Body {
    fn from(content: BodyContent) -> Body {
        Body { content, busy: None }
    }
}

impl From<axum::body::Body> for Body {
    fn from(body: axum::body::Body) -> Body {
        BodyContent::Routed(body).into()
    }
}

impl From<Pieces> for Body {
    fn from(pieces: Pieces) -> Body {
        let length = pieces.len();
        // Copying a small body costs less than a system call with several slices.
        let pieces = if length <= COPIED { Pieces::from(pieces.concat()) } else { pieces };
        BodyContent::Pieces(pieces.into_iter(), length).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.content {
            BodyContent::Pieces(pieces, left) => {
                let piece = pieces.next();
                *left -= piece.as_ref().map_or(0, Bytes::len);
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            BodyContent::Events(events) => {
                events.as_mut().poll_next(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
            BodyContent::Routed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BodyContent::Pieces(_, left) => *left == 0,
            BodyContent::Events(_) => false,
            BodyContent::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Pieces(_, left) => SizeHint::with_exact(*left as u64),
            BodyContent::Events(_) => SizeHint::default(),
            BodyContent::Routed(body) => body.size_hint(),
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
    let mut response = Response::new(Body::from(BodyContent::Events(Box::pin(stream))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::from(Pieces::new()));
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
