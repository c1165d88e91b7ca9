//! Asks a server whether it needs a login.
//!
//! Most servers reject each request without a token. Some accept a session without one and reject the first request in
//! it, and servers with HTTP+SSE know no POST at their URL. The probe therefore opens a session, and then sends one
//! more request.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use goblin_client::connect::{HttpClient, RequestError, ResponseBody};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use tokio::time::timeout;

use crate::LoginTarget;
use crate::error::{FetchError, LoginError};
use crate::protocol::challenge::Challenge;
use crate::protocol::discovery::Probe;
use crate::protocol::fetch::FETCH_TIMEOUT;
use crate::protocol::url::{shown, shown_url};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The time to end the session that the probe opened.
const END_TIMEOUT: Duration = Duration::from_secs(2);
const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
    r#""clientInfo":{"name":"goblin","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}}"#
);
const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

/// Sends requests without a token to the server. A session that it opens ends before it returns.
pub(crate) async fn probe(target: &LoginTarget) -> Result<Probe, LoginError> {
    let fault = |reason: String, is_sent| FetchError { url: shown_url(&target.url.to_string()), reason, is_sent };
    let client = HttpClient::new(&target.url, target.ca.as_deref(), &target.proxies);
    let client = client.map_err(|error| fault(error.to_string(), false))?;
    let mut session = None;
    let asked = timeout(FETCH_TIMEOUT, ask(&client, &target.url, &mut session)).await;
    if let Some(session) = session {
        let end = request(&target.url, Method::DELETE, None, Some(session));
        let _ = timeout(END_TIMEOUT, client.request(end)).await;
    }
    let peer: Option<IpAddr> = client.last_peer();
    match asked {
        Ok(Ok(Outcome::Challenged(challenge))) => Ok(Probe { challenge: Some(challenge), peer }),
        Ok(Ok(Outcome::Answered)) => Ok(Probe { challenge: None, peer }),
        Ok(Ok(Outcome::Broken(status))) => {
            Err(fault(format!("it answered with HTTP status {}", status.as_u16()), true).into())
        }
        Ok(Err(error)) => Err(fault(shown(&error.to_string()), !error.is_safe_to_retry()).into()),
        Err(_) => Err(fault(format!("it did not answer within {} s", FETCH_TIMEOUT.as_secs()), true).into()),
    }
}

/// The meaning of the responses of a server.
enum Outcome {
    Challenged(Challenge),
    Answered,
    /// The status reports a problem of the server itself.
    Broken(StatusCode),
}

async fn ask(client: &HttpClient, url: &Uri, session: &mut Option<HeaderValue>) -> Result<Outcome, RequestError> {
    let opened = client.request(request(url, Method::POST, Some(INITIALIZE), None)).await?;
    if let Some(challenge) = challenge(&opened) {
        return Ok(Outcome::Challenged(challenge));
    }
    *session = opened.headers().get(SESSION).cloned();
    let next = match opened.status() {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => request(url, Method::GET, None, None),
        _ => request(url, Method::POST, Some(LIST), session.clone()),
    };
    let status = opened.status();
    drop(opened);
    let second = client.request(next).await?;
    match challenge(&second) {
        Some(challenge) => Ok(Outcome::Challenged(challenge)),
        None if status.is_server_error() || status.is_redirection() => Ok(Outcome::Broken(status)),
        None => Ok(Outcome::Answered),
    }
}

/// Returns the challenge of a response that asks for a login.
fn challenge(response: &Response<ResponseBody>) -> Option<Challenge> {
    let headers: &HeaderMap = response.headers();
    match response.status() {
        StatusCode::UNAUTHORIZED => Some(Challenge::read(headers)),
        StatusCode::FORBIDDEN => Challenge::find(headers),
        _ => None,
    }
}

fn request(
    url: &Uri,
    method: Method,
    body: Option<&'static str>,
    session: Option<HeaderValue>,
) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::from_static(body.unwrap_or_default().as_bytes())));
    let accept = if method == Method::GET { "text/event-stream" } else { "application/json, text/event-stream" };
    *request.method_mut() = method;
    *request.uri_mut() = url.clone();
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    headers.insert(VERSION, HeaderValue::from_static("2025-11-25"));
    body.map(|_| headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json")));
    session.map(|session| headers.insert(SESSION, session));
    request
}
