//! HTTP with one connection per request, and an iterator over the messages of a response.
//!
//! A response may be one JSON text or an event stream. The iterator remembers the last event id, so that the peer can
//! resume a cut stream.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

pub type Header = (String, String);

pub async fn send(url: &str, method: Method, headers: &[Header], body: String) -> Result<Response<Incoming>> {
    let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
    let authority = uri.authority().with_context(|| format!("{url} names no host"))?.as_str();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let stream = TcpStream::connect(authority).await.with_context(|| format!("no server listens at {url}"))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection ends with the response.
    tokio::spawn(async move { drop(connection.await) });
    let mut request = Request::builder().method(method).uri(path).header("host", authority);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(body))).context("a header has an invalid value")?;
    sender.send_request(request).await.with_context(|| format!("no answer from {url}"))
}

/// The messages of a response, which is one JSON text or an event stream.
pub struct Messages {
    body: Incoming,
    text: String,
    is_stream: bool,
    /// The id of the last event, to resume a cut stream.
    pub last_event: Option<String>,
    /// The delay before the stream is resumed.
    pub retry: Duration,
}

impl Messages {
    pub fn of(response: Response<Incoming>) -> Messages {
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_stream = kind.starts_with("text/event-stream");
        let body = response.into_body();
        Messages { body, text: String::new(), is_stream, last_event: None, retry: Duration::ZERO }
    }

    /// Returns the next message, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n").filter(|_| self.is_stream) {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(message) = self.event(&event)? {
                    return Ok(Some(message));
                }
            }
            let Some(frame) = self.body.frame().await else {
                let text = std::mem::take(&mut self.text);
                let is_message = !self.is_stream && !text.is_empty();
                return is_message.then(|| serde_json::from_str(&text).context("an answer is no JSON")).transpose();
            };
            if let Ok(data) = frame.context("an answer was cut")?.into_data() {
                self.text.push_str(std::str::from_utf8(&data).context("an answer is no UTF-8")?);
            }
        }
    }

    /// Parses an event. Returns `None` for an event without a message, such as a comment or the first event of a
    /// stream.
    fn event(&mut self, event: &str) -> Result<Option<Value>> {
        let mut message = None;
        for line in event.lines() {
            match line.split_once(':').map(|(field, value)| (field, value.trim())) {
                Some(("id", id)) => self.last_event = Some(id.to_owned()),
                Some(("retry", time)) => self.retry = Duration::from_millis(time.parse().unwrap_or_default()),
                Some(("data", data)) if !data.is_empty() => {
                    message = Some(serde_json::from_str(data).context("an event is no JSON")?);
                }
                _ => {}
            }
        }
        Ok(message)
    }
}
