//! The parts that the two transports over HTTP share: the peer of a link, messages in the background, error responses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use goblin_client::authorization::AuthorizedClient;
use goblin_client::connect::{RequestError, ResponseBody};
use goblin_telemetry::{Event, worker};
use goblin_wire::{Message, Response};
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::open_requests::LinkRequests;
use crate::upstream::problem::BackendProblem;

/// The timeout of messages that no caller waits for: notifications and the end of a session.
pub(crate) const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of background messages in progress. Further ones are dropped.
pub(crate) const MAX_BACKGROUND_MESSAGES: usize = 64;
/// The number of bytes of an error response that are read.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// The number of bytes after the response on its stream up to which the connection is reused.
const MAX_TRAILING_BYTES: usize = 64 * 1024;

/// A backend with a URL, and the open requests of one link to it.
pub(crate) struct HttpPeer {
    pub client: AuthorizedClient,
    pub url: Uri,
    pub headers: HeaderMap,
    /// Names this gateway in the requests of [`names_sender`](goblin_wire::via::names_sender).
    pub via: HeaderValue,
    pub inbound: Arc<InboundHandler>,
    pub open: LinkRequests,
    /// The largest size of a message.
    pub limit: usize,
    background: Arc<Semaphore>,
}

impl HttpPeer {
    pub(crate) fn new(
        client: AuthorizedClient,
        url: Uri,
        headers: HeaderMap,
        via: HeaderValue,
        limit: usize,
        inbound: Arc<InboundHandler>,
    ) -> HttpPeer {
        let open = LinkRequests::new(Arc::clone(&inbound));
        HttpPeer {
            client,
            url,
            headers,
            via,
            inbound,
            open,
            limit,
            background: Arc::new(Semaphore::new(MAX_BACKGROUND_MESSAGES)),
        }
    }

    /// Creates the peer at an address, for tests.
    #[cfg(test)]
    pub(crate) fn example(address: &str) -> HttpPeer {
        let url: Uri = format!("http://{address}/mcp").parse().expect("a url");
        let proxies = goblin_client::connect::ProxyEnvironment::default();
        let client = goblin_client::connect::HttpClient::new(&url, None, &proxies).expect("a client");
        let client = AuthorizedClient::new(client, None);
        let via = HeaderValue::from_static("");
        HttpPeer::new(client, url, HeaderMap::new(), via, 1024, Arc::new(InboundHandler::example()))
    }

    /// Runs `post` in the background. Drops and reports it if too many run already.
    pub(crate) fn send_in_background<T: Send>(&self, post: impl Future<Output = T> + Send + 'static) {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else { return self.report_dropped() };
        worker::spawn(async move {
            let _ = timeout(BACKGROUND_TIMEOUT, post).await;
            drop(permit);
        });
    }

    /// Runs `post`, which sends a response. Reports it if the backend does not take it in time.
    pub(crate) async fn answer<T>(&self, post: impl Future<Output = T>) {
        if timeout(BACKGROUND_TIMEOUT, post).await.is_err() {
            self.report_dropped();
        }
    }

    fn report_dropped(&self) {
        self.inbound.emit(&Event::ReplyDropped { server: self.inbound.server() });
    }

    /// Returns the error for a response that rejects the token, or the lack of one.
    pub(crate) fn login_error(&self, response: &HttpResponse<ResponseBody>) -> Option<LinkError> {
        if self.client.needs_login(response) {
            return Some(LinkError::LoginNeeded);
        }
        self.client.lacks_scope(response).then_some(LinkError::ScopeMissing)
    }

    /// Returns the error for a failed request. Closes the link if not even a connection could be opened.
    pub(crate) fn unreachable(&self, error: &RequestError) -> LinkError {
        if error.is_safe_to_retry() {
            return self.fail(error.to_string());
        }
        LinkError::Closed { reason: error.to_string(), sent: true }
    }

    /// Closes the link for a failure before a request was sent.
    pub(crate) fn fail(&self, reason: String) -> LinkError {
        self.open.close(LinkEnd::Lost(reason.clone()));
        LinkError::Closed { reason, sent: false }
    }
}

pub(crate) fn request(verb: Verb, url: &Uri, headers: HeaderMap, body: Bytes) -> HttpRequest<Full<Bytes>> {
    let mut request = HttpRequest::new(Full::new(body));
    *request.method_mut() = verb;
    *request.uri_mut() = url.clone();
    *request.headers_mut() = headers;
    request
}

/// Reads the body of an error response. Returns an empty one if it breaks off or is too long.
pub(crate) async fn error_body(response: HttpResponse<ResponseBody>) -> Bytes {
    response.into_body().whole(MAX_ERROR_BODY).await.unwrap_or_default()
}

/// Returns the error for an HTTP status without a JSON-RPC error.
pub(crate) fn status_error(status: StatusCode, retry_after: Option<Duration>) -> LinkError {
    let reason = BackendProblem::HttpStatus(status).to_string();
    match retry_after {
        Some(retry_after) => LinkError::Busy { reason, retry_after },
        None => LinkError::Protocol(reason),
    }
}

/// Returns the time after which the server accepts requests again, from `Retry-After`: seconds or a date.
pub(crate) fn retry_after<B>(response: &HttpResponse<B>) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim();
    let until = |date: SystemTime| date.duration_since(SystemTime::now()).unwrap_or_default();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok().map(until),
    }
}

/// Returns the JSON-RPC response in a body.
pub(crate) fn response_in(body: Bytes) -> Option<Response> {
    match Message::parse(body) {
        Ok(Message::Response(response)) => Some(response),
        _ => None,
    }
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
    let _ = timeout(BACKGROUND_TIMEOUT, rest).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d20_retry_after_is_a_number_of_seconds_or_a_date() {
        let read = |value: &str| {
            retry_after(&HttpResponse::builder().header(RETRY_AFTER, value).body(()).expect("a response"))
        };
        let hour = Duration::from_secs(3600);
        let later = httpdate::fmt_http_date(SystemTime::now() + hour);
        assert!(read(&later).is_some_and(|pause| pause <= hour && pause > hour / 2));
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn an_unknown_session_is_distinguished_from_a_bad_request() {
        assert!(is_session_unknown(StatusCode::NOT_FOUND, b""));
        assert!(is_session_unknown(StatusCode::GONE, b""));
        assert!(is_session_unknown(StatusCode::BAD_REQUEST, b"Bad Request: No valid Session ID provided"));
        assert!(!is_session_unknown(StatusCode::BAD_REQUEST, b"bad arguments"));
        assert!(!is_session_unknown(StatusCode::INTERNAL_SERVER_ERROR, b"session store down"));
    }
}
