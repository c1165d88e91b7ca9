//! Raw HTTP: requests with exact headers, whole responses and open event streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::client::inbox::Way;
use crate::client::{Client, Link};
use crate::harness::{TIMEOUT, eventually};

/// The connections of one client.
#[derive(Clone)]
pub struct Connections(Pool<HttpConnector, Full<Bytes>>);

impl Connections {
    pub fn new() -> Connections {
        // The gateway also closes idle connections, and a request on a closing connection would be lost.
        let idle = Duration::from_secs(3);
        Connections(Pool::builder(TokioExecutor::new()).pool_idle_timeout(idle).build(HttpConnector::new()))
    }

    /// Sends a request with exactly these headers and `Host`. Returns as soon as the head of the response arrives.
    pub async fn open(
        &self,
        method: Method,
        (address, path): (SocketAddr, &str),
        headers: impl IntoIterator<Item = (&str, &str)>,
        body: Bytes,
    ) -> Result<(Parts, Listener), HttpError> {
        let mut request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).expect("a valid request");
        let response = tokio::time::timeout(TIMEOUT, self.0.request(request)).await.expect("an answer in time")?;
        let (parts, body) = response.into_parts();
        Ok((parts, Listener { body, buffer: String::new() }))
    }
}

/// Raw HTTP.
impl Client {
    fn connections(&self) -> &Connections {
        match &self.link {
            Link::Http(connections) | Link::Sse(connections) => connections,
            Link::Stdio(_) => panic!("a client over stdio sends no HTTP"),
        }
    }

    /// Sends a request with exactly these headers and `Host`.
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let headers = headers.iter().copied();
        let opened = self.connections().open(method, (self.address, path), headers, body.into()).await;
        let (parts, body) = opened.expect("an answer");
        Answer { status: parts.status, headers: parts.headers, body: body.rest().await }
    }

    /// Returns the headers of a POST in this session.
    pub fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("content-type", "application/json")];
        if let Link::Http(_) = self.link {
            headers.push(("accept", "application/json, text/event-stream"));
            headers.extend(self.session.as_deref().map(|session| ("mcp-session-id", session)));
            headers.extend(self.version.as_deref().map(|version| ("mcp-protocol-version", version)));
        }
        headers
    }

    /// POSTs these bytes to the endpoint in this session.
    pub async fn post(&self, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, &self.endpoint, &self.headers(), body).await
    }

    /// POSTs these bytes and returns as soon as the head of the response arrives.
    pub async fn open(&self, body: impl Into<Bytes>) -> (Parts, Listener) {
        self.open_with(&self.headers(), body).await
    }

    /// POSTs with exactly these headers and `Host`.
    pub async fn open_with(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> (Parts, Listener) {
        let to = (self.address, self.endpoint.as_str());
        self.connections().open(Method::POST, to, headers.iter().copied(), body.into()).await.expect("an answer")
    }

    /// Opens the GET stream.
    pub async fn listen(&self) -> Listener {
        let (parts, listener) = self.get(&self.endpoint, &[]).await;
        assert_eq!(parts.status, StatusCode::OK);
        listener
    }

    /// Sends a GET in this session with these additional headers, and returns as soon as the head of the response
    /// arrives.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (Parts, Listener) {
        self.try_get(path, headers).await.expect("an answer")
    }

    /// Sends a GET over a connection that may be cut.
    pub async fn try_get(&self, path: &str, headers: &[(&str, &str)]) -> Result<(Parts, Listener), HttpError> {
        let own = self.headers().into_iter().filter(|(name, _)| *name != "content-type");
        let headers = own.chain(headers.iter().copied());
        self.connections().open(Method::GET, (self.address, path), headers, Bytes::new()).await
    }
}

/// The session's stream.
impl Client {
    /// Opens the session's stream of Streamable HTTP again, without an event id.
    pub async fn listen_again(&self) {
        self.open_stream(&[]).await;
    }

    /// Resumes the session's stream after the last received event.
    pub async fn resume(&self) {
        self.hang_up().await;
        let last = self.readers.last_event.lock().expect("no test panics here").clone();
        let headers: Vec<_> = last.iter().map(|last| ("last-event-id", last.as_str())).collect();
        self.open_stream(&headers).await;
    }

    /// Stops the reader. Messages that have arrived are kept, and later ones are lost.
    async fn hang_up(&self) {
        let reader = self.readers.session.lock().expect("no test panics here").take();
        if let Some(reader) = reader {
            reader.abort();
            // The task was aborted, or had ended before.
            let _ = reader.await;
        }
    }

    async fn open_stream(&self, headers: &[(&str, &str)]) {
        self.hang_up().await;
        // A new connection is used, because an earlier one may have been cut.
        let mut listening = Client::new(self.stream_address.unwrap_or(self.address));
        (listening.session, listening.version) = (self.session.clone(), self.version.clone());
        // A bad line may need several attempts.
        let (parts, stream) =
            eventually("there is a stream", || async { listening.try_get(&self.endpoint, headers).await.ok() }).await;
        assert_eq!(parts.status, StatusCode::OK, "{headers:?}");
        *self.readers.session.lock().expect("no test panics here") = Some(self.read_session(stream));
    }

    /// Reads the session's stream in a task. The stream of HTTP+SSE cannot be opened again.
    pub fn read_session(&self, mut stream: Listener) -> JoinHandle<()> {
        let (inbox, last_event) = (Arc::clone(&self.inbox), Arc::clone(&self.readers.last_event));
        let is_only = matches!(self.link, Link::Sse(_));
        tokio::spawn(async move {
            while let Some(event) = stream.read_event().await {
                if let Some(text) = field(&event, "data").filter(|data| !data.is_empty()) {
                    inbox.push(Way::Session, text.to_owned());
                }
                if let Some(id) = field(&event, "id") {
                    *last_event.lock().expect("no test panics here") = Some(id.to_owned());
                }
            }
            if is_only {
                inbox.close();
            }
        })
    }
}

/// A raw HTTP response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// Returns the messages of the body, which is JSON or an event stream.
    pub fn messages(&self) -> Vec<String> {
        if is_event_stream(&self.headers) {
            let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
            // An event without data only carries an id.
            return data.filter(|data| !data.is_empty()).map(str::to_owned).collect();
        }
        if self.body.is_empty() { Vec::new() } else { vec![self.body.clone()] }
    }

    /// Returns the last message, parsed.
    pub fn json(&self) -> Value {
        let last = self.messages().pop().unwrap_or_else(|| panic!("no message in {self:?}"));
        serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"))
    }
}

pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// An open event stream.
pub struct Listener {
    body: hyper::body::Incoming,
    buffer: String,
}

impl Listener {
    /// Returns the next message, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        self.next_text().await.map(|message| serde_json::from_str(&message).expect("a message"))
    }

    /// Returns the original text of the next message. Keep-alives do not extend the timeout.
    pub async fn next_text(&mut self) -> Option<String> {
        tokio::time::timeout(TIMEOUT, self.read_message()).await.expect("a message in time")
    }

    /// Returns the next message without a timeout.
    pub async fn read_message(&mut self) -> Option<String> {
        loop {
            let event = self.read_event().await?;
            // An event without data only carries an id.
            if let Some(data) = field(&event, "data").filter(|data| !data.is_empty()) {
                return Some(data.to_owned());
            }
        }
    }

    /// Returns the original text of the next event, or `None` at the end of the stream.
    pub async fn next_event(&mut self) -> Option<String> {
        tokio::time::timeout(TIMEOUT, self.read_event()).await.expect("an event in time")
    }

    /// Returns the next event without a timeout.
    pub async fn read_event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let event = event.to_owned();
                self.buffer = rest.to_owned();
                return Some(event);
            }
            let data = self.body.frame().await?.ok()?.into_data().ok()?;
            self.buffer.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// Returns the whole body.
    pub async fn rest(self) -> String {
        let body = tokio::time::timeout(TIMEOUT, self.body.collect()).await.expect("a body in time");
        String::from_utf8(body.expect("a whole body").to_bytes().to_vec()).expect("text")
    }

    /// Reads until a notification of this method arrives.
    pub async fn await_method(&mut self, method: &str) -> Value {
        loop {
            let message = self.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
            if message["method"] == method {
                return message;
            }
        }
    }
}

/// Returns a field of an event.
pub fn field<'event>(event: &'event str, name: &str) -> Option<&'event str> {
    event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
