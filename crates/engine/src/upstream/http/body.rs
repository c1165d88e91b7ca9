//! Reads the bodies of HTTP responses within limits and interprets them.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use goblin_client::connect::ResponseBody;
use goblin_wire::{Message, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap};
use http_body_util::{BodyExt, Limited};

use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::LinkError;
use crate::upstream::open_requests::beyond_limit;
use crate::upstream::problem::BackendProblem;

/// The timeout of messages that no caller waits for: notifications and the end of a session.
pub(crate) const ASIDE: Duration = Duration::from_secs(5);
/// The number of bytes of an error response that are read.
pub(crate) const MAX_ERROR_BODY: usize = 64 * 1024;
/// The number of bytes after the response on its stream up to which the connection is reused.
const MAX_TRAILING_BYTES: usize = 64 * 1024;

/// Reads a body of at most `limit` bytes. Returns an error if it is longer.
pub(crate) async fn whole_body(mut body: ResponseBody, limit: usize) -> Result<Bytes, LinkError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| LinkError::Closed { reason: format!("its answer broke off: {error}"), sent: true })?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(LinkError::Protocol("its answer is larger than maxMessageSize".to_owned()));
        }
        // Most responses arrive in one piece, which is not copied.
        if first.is_empty() && rest.is_empty() {
            let expected = hyper::body::Body::size_hint(&body).lower().min(limit as u64) as usize;
            if expected == 0 {
                first = data;
            } else {
                rest.reserve(data.len() + expected);
                rest.extend_from_slice(&data);
            }
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Parses the response to the request `id`.
pub(crate) fn parse_answer(id: u64, body: Bytes, inbound: &InboundHandler) -> Result<Response, LinkError> {
    if body.trim_ascii_start().first() == Some(&b'<') {
        return Err(LinkError::Protocol(BackendProblem::WebPage.to_string()));
    }
    match Message::parse(inbound.hold(body)) {
        Ok(Message::Response(answer)) if answer.id.as_ref().is_none_or(|answered| answered.as_u64() == Some(id)) => {
            Ok(answer)
        }
        Ok(_) => Err(LinkError::Protocol("its answer belongs to another request".to_owned())),
        Err(malformed) => Err(beyond_limit(&malformed).map_or_else(
            || LinkError::Protocol(format!("its answer is no message: {}", malformed.error)),
            |error| {
                inbound.report_malformed(&malformed, &malformed.error.to_string());
                error
            },
        )),
    }
}

pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.get(..17).is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"))
}

/// Reports whether an error response means an unknown session. The protocol defines 404; servers built on the examples
/// of the TypeScript SDK return 400 and mention the session.
pub(crate) fn is_session_unknown(status: StatusCode, body: &[u8]) -> bool {
    let names_session = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => true,
        StatusCode::BAD_REQUEST => names_session(),
        _ => false,
    }
}

/// Reads the rest of a body after the response, so that the connection can be reused.
pub(crate) async fn finish(body: ResponseBody) {
    let rest = Limited::new(body, MAX_TRAILING_BYTES).collect();
    let _ = tokio::time::timeout(ASIDE, rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_session_is_told_apart_from_a_bad_request() {
        assert!(is_session_unknown(StatusCode::NOT_FOUND, b""));
        assert!(is_session_unknown(StatusCode::GONE, b""));
        assert!(is_session_unknown(StatusCode::BAD_REQUEST, b"Bad Request: No valid Session ID provided"));
        assert!(!is_session_unknown(StatusCode::BAD_REQUEST, b"bad arguments"));
        assert!(!is_session_unknown(StatusCode::INTERNAL_SERVER_ERROR, b"session store down"));
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        let parse = |body| parse_answer(1, body, &InboundHandler::example());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#)).is_ok());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#)).is_ok());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#)).is_err());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)).is_err());
    }
}
