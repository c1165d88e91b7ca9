//! What both HTTP transports ask of a request before it can be handled.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

use crate::front::body::{Body, empty, json_error};
use crate::protocol::error::Error;
use crate::protocol::{Id, Malformed, Request};

/// How long the body of a request may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

pub type HttpRequest = http::Request<Incoming>;

/// What kinds of answer a client takes; one that says nothing takes both.
#[derive(Clone, Copy)]
pub struct Accepted {
    pub json: bool,
    pub stream: bool,
}

impl Accepted {
    pub fn read(headers: &HeaderMap) -> Accepted {
        let mut values = headers.get_all(ACCEPT).iter().peekable();
        let mut accepted = Accepted { json: values.peek().is_none(), stream: values.peek().is_none() };
        for value in values.filter_map(|value| value.to_str().ok()) {
            // As nearly all clients write it.
            if value == "application/json, text/event-stream" {
                return Accepted { json: true, stream: true };
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

/// For a GET: its answer can only be a stream.
pub fn check_takes_stream(headers: &HeaderMap) -> Result<(), Refusal> {
    if Accepted::read(headers).stream {
        return Ok(());
    }
    Err(Refusal::status(StatusCode::NOT_ACCEPTABLE, "Accept must allow text/event-stream"))
}

/// For a POST: its body can only be JSON.
pub fn check_is_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    Err(Refusal::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json"))
}

/// The body of a request, at most `largest` bytes.
pub async fn whole_body(mut body: Incoming, largest: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        let reason = format!("the body is larger than gateway.maxBodySize, {largest} bytes");
        Refusal::status(StatusCode::PAYLOAD_TOO_LARGE, &reason)
    };
    if body.size_hint().lower() > largest as u64 {
        return Err(too_large());
    }
    let gathered = async {
        let mut gathered = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::status(StatusCode::BAD_REQUEST, "the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            // A body in one piece, as most are, is not copied.
            if gathered.is_empty() && body.is_end_stream() && data.len() <= largest {
                return Ok(data);
            }
            if gathered.len() + data.len() > largest {
                return Err(too_large());
            }
            gathered.extend_from_slice(&data);
        }
        Ok(gathered.freeze())
    };
    tokio::pin!(gathered);
    // Most are there with their heads. Only who waits needs a clock, and room for it.
    if let Poll::Ready(gathered) = poll_fn(|context| Poll::Ready(gathered.as_mut().poll(context))).await {
        return gathered;
    }
    match Box::pin(tokio::time::timeout(BODY_PATIENCE, gathered)).await {
        Ok(gathered) => gathered,
        Err(_) => Err(Refusal::status(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

/// The answer to a verb that a path does not have.
pub fn other_verb(allowed: &'static str) -> Response<Body> {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// An error before a request could be handled.
pub struct Refusal {
    pub status: StatusCode,
    pub error: Error,
    pub id: Option<Id>,
}

impl Refusal {
    pub fn status(status: StatusCode, reason: &str) -> Refusal {
        Refusal { status, error: Error::InvalidRequest(reason.to_owned()), id: None }
    }

    pub fn about(self, request: &Request) -> Refusal {
        Refusal { id: Some(request.id.clone()), ..self }
    }

    pub fn into_response(self) -> Response<Body> {
        let mut response = json_error(self.status, self.id.as_ref(), &self.error);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let status = StatusCode::from_u16(error.class().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Refusal { status, error, id: None }
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Refusal {
        Refusal { id: malformed.id, ..malformed.error.into() }
    }
}
