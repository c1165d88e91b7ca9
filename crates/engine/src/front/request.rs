//! The checks of a request's headers and the reading of its body, for both HTTP transports.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use goblin_telemetry::Observe;
use goblin_wire::memory::{BufferKind, Memory, Reservation, ReservationError, SMALL};
use goblin_wire::{Error, Id, MalformedMessage, Request};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

use crate::front::body::{Body, empty, json_error};

/// The longest time that the body of a request may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) type HttpRequest = http::Request<Incoming>;

/// The content types that a client accepts. A request without an `Accept` header accepts both.
#[derive(Clone, Copy)]
pub(crate) struct AcceptedTypes {
    pub json: bool,
    pub stream: bool,
}

impl AcceptedTypes {
    pub(crate) fn read(headers: &HeaderMap) -> AcceptedTypes {
        let mut values = headers.get_all(ACCEPT).iter().peekable();
        let mut accepted = AcceptedTypes { json: values.peek().is_none(), stream: values.peek().is_none() };
        for value in values.filter_map(|value| value.to_str().ok()) {
            // This is the value that nearly all clients send.
            if value == "application/json, text/event-stream" {
                return AcceptedTypes { json: true, stream: true };
            }
            for range in value.split(',') {
                let range = range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                accepted.json |= matches!(range.as_str(), "*/*" | "application/*" | "application/json");
                accepted.stream |= matches!(range.as_str(), "*/*" | "text/*" | "text/event-stream");
            }
        }
        accepted
    }
}

/// Returns an error unless the client accepts an event stream, the only response to a GET.
pub(crate) fn check_accepts_stream(headers: &HeaderMap) -> Result<(), Rejection> {
    if AcceptedTypes::read(headers).stream {
        return Ok(());
    }
    Err(Rejection::status(StatusCode::NOT_ACCEPTABLE, "Accept must allow text/event-stream"))
}

/// Returns an error unless the body of a POST is JSON.
pub(crate) fn check_is_json(headers: &HeaderMap) -> Result<(), Rejection> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(Rejection::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json"))
}

/// Reads the body of a request. Returns an error if it is larger than `max_size` bytes, too slow, or the memory limit
/// is reached. A large body counts towards that limit until its last slice is dropped, which is after the answer.
pub(crate) async fn read_body(mut body: Incoming, max_size: usize, observe: &Observe) -> Result<Bytes, Rejection> {
    if body.size_hint().lower() > max_size as u64 {
        return Err(too_large(max_size));
    }
    let gathered = async {
        match gather(&mut body, max_size, &observe.memory).await? {
            Ok(gathered) => Ok(gathered),
            Err(full) => {
                observe.limit_hit(full.limit);
                // The connection can only be reused after the whole body was read.
                drain(body, max_size).await;
                Err(Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error: full.into(), id: None })
            }
        }
    };
    tokio::pin!(gathered);
    // Most bodies arrive with their head. Only a body that arrives later needs a timer, and the memory for it.
    if let Poll::Ready(gathered) = poll_fn(|context| Poll::Ready(gathered.as_mut().poll(context))).await {
        return gathered;
    }
    match Box::pin(tokio::time::timeout(BODY_TIMEOUT, gathered)).await {
        Ok(gathered) => gathered,
        Err(_) => Err(Rejection::status(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

fn too_large(max_size: usize) -> Rejection {
    let reason = format!("the body is larger than gateway.maxBodySize, {}", goblin_wire::units::bytes(max_size as u64));
    Rejection::status(StatusCode::PAYLOAD_TOO_LARGE, &reason)
}

/// Reads the body and reserves memory for the bytes received. An announced length alone reserves none.
async fn gather(
    body: &mut Incoming,
    max_size: usize,
    memory: &Arc<Memory>,
) -> Result<Result<Bytes, ReservationError>, Rejection> {
    let mut gathered = BytesMut::new();
    // A small body needs no reservation.
    let mut reservation: Option<Reservation> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Rejection::status(StatusCode::BAD_REQUEST, "the body ended too early"))?;
        let Ok(data) = frame.into_data() else { continue };
        let (before, length) = (gathered.len(), gathered.len() + data.len());
        if length > max_size {
            return Err(too_large(max_size));
        }
        if length >= SMALL {
            let counted = match &mut reservation {
                None => memory.reserve(BufferKind::Bodies, length).map(|reserved| reservation = Some(reserved)),
                Some(reservation) => reservation.grow(data.len()),
            };
            if let Err(full) = counted {
                return Ok(Err(full));
            }
        }
        // Most bodies arrive in one piece, which is not copied.
        if before == 0 && body.is_end_stream() {
            return Ok(Ok(with_reservation(data, reservation)));
        }
        gathered.extend_from_slice(&data);
    }
    Ok(Ok(with_reservation(gathered.freeze(), reservation)))
}

fn with_reservation(body: Bytes, reservation: Option<Reservation>) -> Bytes {
    match reservation {
        Some(reservation) => reservation.keep(body),
        None => body,
    }
}

/// Reads and discards the rest of a body, up to `max_size` bytes.
async fn drain(mut body: Incoming, max_size: usize) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, Bytes::len);
        if drained > max_size {
            return;
        }
    }
}

/// Returns the response to an HTTP method that the path does not support.
pub(crate) fn method_not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The error response to a request that was not handled.
pub(crate) struct Rejection {
    pub status: StatusCode,
    pub error: Error,
    pub id: Option<Id>,
}

impl Rejection {
    pub(crate) fn status(status: StatusCode, reason: &str) -> Rejection {
        Rejection { status, error: Error::InvalidRequest(reason.to_owned()), id: None }
    }

    pub(crate) fn for_request(self, request: &Request) -> Rejection {
        Rejection { id: Some(request.id.clone()), ..self }
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = json_error(self.status, self.id.as_ref(), &self.error);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Rejection {
        let status = StatusCode::from_u16(error.class().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Rejection { status, error, id: None }
    }
}

impl From<MalformedMessage> for Rejection {
    fn from(malformed: MalformedMessage) -> Rejection {
        Rejection { id: malformed.id, ..malformed.error.into() }
    }
}
