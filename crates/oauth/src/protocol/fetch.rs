//! Requests to URLs that a server names.
//!
//! Three origins are trusted as the configuration names them: the server's own, that of `issuer` and that of
//! `authServerMetadataUrl`. Each other URL must lead to an address that is not more private than the server's own.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use goblin_client::connect::{self, HttpClient, ProxyEnvironment, Reach, RequestError, ResponseBody, WholeBodyError};
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use serde_json::{Map, Value};

use crate::LoginTarget;
use crate::error::{FetchError, LoginError, Refusal, UrlFault};
use crate::protocol::metadata::Document;
use crate::protocol::url::{CheckedUrl, PlainHttp, is_loopback, shown, shown_url};

/// The size limit of a response.
const MAX_BODY: usize = 1 << 20;
/// The number of redirects that a request for metadata follows.
const MAX_REDIRECTS: usize = 3;
/// The time for a request, from the name lookup to the end of the response.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a request for tokens. A lost answer may lose the login, so it is longer.
pub(crate) const TOKEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Fetches the URLs that one server names: at most 1 MiB, within 10 s (60 s for tokens), to addresses that are not more
/// private than the server's own.
pub(crate) struct Fetcher {
    reach: Reach,
    plain_http: PlainHttp,
    /// The origins that the configuration names.
    configured: Vec<String>,
    ca: Option<PathBuf>,
    proxies: ProxyEnvironment,
}

/// The body of a POST request.
pub(crate) enum Payload {
    /// Form data, and the value of `Authorization`.
    Form(String, Option<HeaderValue>),
    Json(Value),
}

/// A response that was read as a whole.
pub(crate) struct Answer {
    pub status: StatusCode,
    url: String,
    content_type: Option<String>,
    location: Option<String>,
    body: Bytes,
}

impl Fetcher {
    /// `peer` is the address of a connection to the server, if there was one without a proxy.
    pub(crate) fn new(target: &LoginTarget, peer: Option<IpAddr>) -> Fetcher {
        let is_local = is_loopback(target.url.host().unwrap_or_default());
        let peer = peer.or(is_local.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let options = &target.options;
        let named = [&options.issuer, &options.metadata_url].into_iter().flatten();
        let named = named.filter_map(|url| connect::origin(&url.parse().ok()?));
        let plain_http = match target.url.scheme_str() {
            Some("http") if is_local => PlainHttp::OnLoopback,
            _ => PlainHttp::Refused,
        };
        Fetcher {
            reach: Reach::of_server(&target.url, peer),
            plain_http,
            configured: connect::origin(&target.url).into_iter().chain(named).collect(),
            ca: target.ca.clone(),
            proxies: target.proxies.clone(),
        }
    }

    /// Replaces the addresses that the server may name. The servers of a test are on this machine.
    #[cfg(test)]
    pub(crate) fn with_reach(self, reach: Reach) -> Fetcher {
        Fetcher { reach, ..self }
    }

    /// Checks a URL that a server names. `name` describes the URL.
    pub(crate) fn check(&self, name: &'static str, url: &str) -> Result<CheckedUrl, Refusal> {
        let refused = |fault| Refusal::Url { name, url: shown_url(url), fault };
        let checked = CheckedUrl::parse(url, self.plain_http).map_err(refused)?;
        match checked.literal() {
            Some(address) if !self.is_configured(checked.uri()) && !self.reach.allows(address) => {
                Err(refused(UrlFault::Private))
            }
            _ => Ok(checked),
        }
    }

    /// Fetches a JSON object. Returns `None` if there is no such page: the status is 4xx.
    pub(crate) async fn document(&self, url: &CheckedUrl) -> Result<Option<Document>, LoginError> {
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, self.get(url)).await;
        let answer = fetched.map_err(|_| timed_out(url, FETCH_TIMEOUT))??;
        match answer.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(answer.status_fault().into()),
            status if status.is_client_error() => Ok(None),
            status if !status.is_success() => Err(answer.status_fault().into()),
            _ => Ok(Some(Document::new(url.as_str(), answer.object()?))),
        }
    }

    /// Sends a POST request. Follows no redirect.
    pub(crate) async fn post(
        &self,
        url: &CheckedUrl,
        payload: Payload,
        timeout: Duration,
    ) -> Result<Answer, FetchError> {
        let sent = tokio::time::timeout(timeout, self.send(url, Some(payload))).await;
        let answer = sent.map_err(|_| timed_out(url, timeout))??;
        match answer.status {
            status if status.is_redirection() => Err(answer.fault("it redirects a POST request".to_owned(), true)),
            _ => Ok(answer),
        }
    }

    /// Sends a GET request. Follows redirects within the origin.
    async fn get(&self, url: &CheckedUrl) -> Result<Answer, LoginError> {
        let mut current = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send(&current, None).await?;
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            let Some(location) = &answer.location else { return Err(answer.status_fault().into()) };
            let refused = || Refusal::Redirect { url: shown_url(url.as_str()), to: shown_url(location) };
            let next = self.check("redirect", &resolved(&current, location))?;
            if connect::origin(next.uri()) != connect::origin(url.uri()) {
                return Err(refused().into());
            }
            current = next;
        }
        Err(Refusal::Redirect { url: shown_url(url.as_str()), to: shown_url(current.as_str()) }.into())
    }

    async fn send(&self, url: &CheckedUrl, payload: Option<Payload>) -> Result<Answer, FetchError> {
        let fault = |reason: String, is_sent| FetchError { url: shown_url(url.as_str()), reason, is_sent };
        let ca = self.ca.as_deref();
        let client = match self.is_configured(url.uri()) {
            true => HttpClient::new(url.uri(), ca, &self.proxies),
            false => HttpClient::within(self.reach, url.uri(), ca, &self.proxies),
        };
        let client = client.map_err(|error| fault(error.to_string(), false))?;
        let response = client.request(request(url.uri(), payload)).await.map_err(|error| match error {
            RequestError::NotSent { cause, .. } => fault(format!("cannot connect: {}", shown(&cause)), false),
            RequestError::MaybeSent { cause, .. } | RequestError::Unauthorized { cause, .. } => {
                fault(format!("the connection broke: {}", shown(&cause)), true)
            }
        })?;
        Answer::read(url, response).await
    }

    fn is_configured(&self, url: &Uri) -> bool {
        connect::origin(url).is_some_and(|origin| self.configured.contains(&origin))
    }
}

impl Answer {
    async fn read(url: &CheckedUrl, response: Response<ResponseBody>) -> Result<Answer, FetchError> {
        let (head, mut body) = response.into_parts();
        let text = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
        let mut answer = Answer {
            status: head.status,
            url: shown_url(url.as_str()),
            content_type: text(CONTENT_TYPE),
            location: text(LOCATION),
            body: Bytes::new(),
        };
        if answer.status.is_redirection() {
            return Ok(answer);
        }
        answer.body = body.whole(MAX_BODY).await.map_err(|error| match error {
            WholeBodyError::Broken(_) => answer.fault("the connection broke during the answer".to_owned(), true),
            WholeBodyError::TooLong => answer.fault("it sent more than 1 MiB".to_owned(), true),
        })?;
        Ok(answer)
    }

    /// Returns the JSON object of the body.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, FetchError> {
        let unusable = |what: &str| self.fault(format!("it sent {what} instead of a JSON object"), true);
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(members)) => Ok(members),
            Ok(Value::Array(_)) => Err(unusable("a JSON list")),
            Ok(_) => Err(unusable("a JSON value")),
            Err(_) if self.body.iter().all(u8::is_ascii_whitespace) => Err(unusable("an empty body")),
            Err(_) if self.is_html() => Err(unusable("HTML")),
            Err(_) => Err(unusable("text")),
        }
    }

    /// Returns the error for a status that no request expects.
    pub(crate) fn status_fault(&self) -> FetchError {
        let status = self.status;
        let reason = status.canonical_reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        self.fault(
            format!("it answered with HTTP status {}{reason}", status.as_u16()),
            status != StatusCode::TOO_MANY_REQUESTS,
        )
    }

    fn fault(&self, reason: String, is_sent: bool) -> FetchError {
        FetchError { url: self.url.clone(), reason, is_sent }
    }

    fn is_html(&self) -> bool {
        let is_type = self.content_type.as_deref().is_some_and(|kind| kind.to_ascii_lowercase().contains("html"));
        is_type || self.body.trim_ascii_start().starts_with(b"<")
    }
}

fn request(uri: &Uri, payload: Option<Payload>) -> Request<Full<Bytes>> {
    let (method, kind, body, authorization) = match payload {
        None => (Method::GET, None, String::new(), None),
        Some(Payload::Form(form, header)) => (Method::POST, Some("application/x-www-form-urlencoded"), form, header),
        Some(Payload::Json(value)) => (Method::POST, Some("application/json"), value.to_string(), None),
    };
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = uri.clone();
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    kind.map(|kind| headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind)));
    authorization.map(|header| headers.insert(AUTHORIZATION, header));
    request
}

/// Returns the URL of a redirect. A location is an absolute URL, or a path on the same host. Other forms become a URL
/// that the check refuses.
fn resolved(base: &CheckedUrl, location: &str) -> String {
    let (scheme, authority) = (base.uri().scheme_str(), base.uri().authority());
    if let (Some(scheme), Some(authority), true) = (scheme, authority, is_path(location)) {
        return format!("{scheme}://{authority}{location}");
    }
    location.to_owned()
}

fn is_path(location: &str) -> bool {
    location.starts_with('/') && !location.starts_with("//")
}

fn timed_out(url: &CheckedUrl, timeout: Duration) -> FetchError {
    let reason = format!("it did not answer within {} s", timeout.as_secs());
    FetchError { url: shown_url(url.as_str()), reason, is_sent: true }
}
