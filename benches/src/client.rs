//! A client on one keep-alive connection, with at most one request in flight and one session at a time.
//!
//! All measurements use it. Under load it compares each response with the learned bytes instead of parsing it, so that
//! its own cost stays small.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::expected::{Expected, FIRST_ID};
use crate::serve::{JSON, PROTOCOL_VERSION, SESSION_ID};

const ACCEPTED_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const VERSION: HeaderValue = HeaderValue::from_static("2025-11-25");
const MODERN_VERSION: HeaderValue = HeaderValue::from_static("2026-07-28");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const INITIALIZE: Template = Template {
    before: r#"{"jsonrpc":"2.0","id":"#,
    after: r#","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"goblin-bench","version":"0.1.0"}}}"#,
    repeated: None,
};
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A request body, split at the position of its id.
pub struct Template<Text = &'static str> {
    pub before: Text,
    pub after: Text,
    /// The method and name that a request without a session repeats in its headers.
    pub repeated: Option<(HeaderValue, HeaderValue)>,
}

impl<Text: AsRef<str>> Template<Text> {
    fn fill(&self, id: u64) -> Bytes {
        format!("{}{id}{}", self.before.as_ref(), self.after.as_ref()).into()
    }
}

pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    session: Option<HeaderValue>,
    /// Sessions of earlier set-ups, deleted at the end.
    past: Vec<HeaderValue>,
    next_id: u64,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Errors of the connection also reach the request that uses it.
        tokio::spawn(connection);
        let host = HeaderValue::try_from(address.to_string())?;
        Ok(Self { sender, host, session: None, past: Vec::new(), next_id: FIRST_ID })
    }

    /// Sets up a session and returns the id and body of the `initialize` response.
    pub async fn learn_setup(&mut self) -> Result<(u64, Bytes)> {
        let (id, response) = self.initialize().await?;
        let body = response.into_body().collect().await?.to_bytes();
        self.initialized().await?;
        Ok((id, body))
    }

    /// Sets up a session and compares the `initialize` response.
    pub async fn setup(&mut self, expected: &Expected) -> Result<()> {
        let (id, response) = self.initialize().await?;
        compare(response, expected, id).await?;
        self.initialized().await
    }

    /// Sends a request and returns its id and the body of its response.
    pub async fn learn<Text: AsRef<str>>(&mut self, request: &Template<Text>) -> Result<(u64, Bytes)> {
        let id = self.take_id();
        let response = self.send(Method::POST, request.fill(id), request.repeated.as_ref()).await?;
        ensure_status(&response, StatusCode::OK)?;
        Ok((id, response.into_body().collect().await?.to_bytes()))
    }

    /// Sends a request and compares its response.
    pub async fn call<Text: AsRef<str>>(&mut self, request: &Template<Text>, expected: &Expected) -> Result<()> {
        let id = self.take_id();
        let response = self.send(Method::POST, request.fill(id), request.repeated.as_ref()).await?;
        ensure_status(&response, StatusCode::OK)?;
        compare(response, expected, id).await
    }

    /// Opens the session's event stream, which occupies the connection.
    pub async fn into_stream(mut self) -> Result<EventStream> {
        let response = self.send(Method::GET, Bytes::new(), None).await?;
        ensure_status(&response, StatusCode::OK)?;
        Ok(EventStream { _client: self, body: response.into_body() })
    }

    /// Deletes every session that this client has set up.
    pub async fn close(mut self) -> Result<()> {
        self.past.extend(self.session.take());
        for session in std::mem::take(&mut self.past) {
            self.session = Some(session);
            let response = self.send(Method::DELETE, Bytes::new(), None).await?;
            ensure!(response.status().is_success(), "the answer to DELETE is {}", response.status());
            response.into_body().collect().await?;
        }
        Ok(())
    }

    async fn initialize(&mut self) -> Result<(u64, Response<Incoming>)> {
        self.past.extend(self.session.take());
        let id = self.take_id();
        let response = self.post(INITIALIZE.fill(id)).await?;
        ensure_status(&response, StatusCode::OK)?;
        let session = response.headers().get(SESSION_ID).context("the answer to initialize has no session id")?;
        self.session = Some(session.clone());
        Ok((id, response))
    }

    async fn initialized(&mut self) -> Result<()> {
        self.notify(Bytes::from_static(INITIALIZED)).await
    }

    pub async fn notify(&mut self, notification: Bytes) -> Result<()> {
        let response = self.post(notification).await?;
        ensure_status(&response, StatusCode::ACCEPTED)?;
        response.into_body().collect().await?;
        Ok(())
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn post(&mut self, body: Bytes) -> Result<Response<Incoming>> {
        self.send(Method::POST, body, None).await
    }

    async fn send(
        &mut self,
        method: Method,
        body: Bytes,
        repeated: Option<&(HeaderValue, HeaderValue)>,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::from_static("/mcp");
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, ACCEPTED_TYPES);
        if let Some((method, name)) = repeated {
            headers.insert(PROTOCOL_VERSION, MODERN_VERSION);
            headers.insert(METHOD, method.clone());
            headers.insert(NAME, name.clone());
        } else if let Some(session) = &self.session {
            headers.insert(SESSION_ID, session.clone());
            headers.insert(PROTOCOL_VERSION, VERSION);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }
}

/// An event stream. Dropping it closes the connection.
pub struct EventStream {
    _client: Client,
    body: Incoming,
}

impl EventStream {
    /// Returns the next bytes, which need not end at an event boundary. Returns `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

fn ensure_status(response: &Response<Incoming>, status: StatusCode) -> Result<()> {
    ensure!(response.status() == status, "status {} where {status} was expected", response.status());
    Ok(())
}

async fn compare(response: Response<Incoming>, expected: &Expected, id: u64) -> Result<()> {
    let mut body = response.into_body();
    let mut check = expected.check(id);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if !check.accepts(&data) {
            bail!("the answer to request {id} differs from the one first seen");
        }
    }
    ensure!(check.is_complete(), "the answer to request {id} was cut short");
    Ok(())
}
