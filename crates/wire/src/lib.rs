//! The JSON-RPC envelope. One parse finds the few members that a gateway needs and leaves everything else raw.
//!
//! A [`Message`] owns the bytes it arrived in and knows the spans of `id`, `params` and the members of `params`. The
//! gateway never serializes a message again. It splices the few values that change on the way: the id, a name, a URI, a
//! progress token. This keeps the gateway lossless: member order, number spelling, escapes and unknown members pass
//! unchanged.
//!
//! The parser accepts one complete JSON value in UTF-8. It rejects duplicate keys in the envelope and in `params`,
//! because two readers could resolve a duplicate differently and see two different messages.
//!
//! There is no typed model of tools, content or capabilities, and no SDK. A typed model drops unknown members and
//! rewrites numbers. The tests use the official SDKs as independent peers.

pub mod canonical;
pub mod date;
mod depth;
mod dialect;
mod error;
pub mod extensions;
pub mod framing;
pub mod headers;
mod hello;
pub mod json;
mod keyword;
pub mod labels;
mod limits;
pub mod listen;
pub mod memory;
mod method;
mod mime;
pub mod mirror;
pub mod mirrored;
pub mod modern;
pub mod params;
pub mod template;
pub mod trace;
pub mod units;
pub mod via;

pub use dialect::{Dialect, Era};
pub use error::Error;
pub use hello::{Capabilities, Hello, UnknownCapabilities};
pub use keyword::Keyword;
pub use limits::{Limit, LimitCounts, MAX_LIST_ENTRIES};
pub use method::Method;
pub use mime::Mime;

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use bytestring::ByteString;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::depth::{MAX_DEPTH, is_too_deep};
use crate::json::{Pieces, Span, Splice};
use crate::params::Params;

/// A request id as a JSON token. The number `1` and the string `"1"` are different ids, and a response keeps the type.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// Reads the id at `span`. Returns `None` if the value is neither a string nor an integer.
    pub fn parse(raw: &Bytes, span: Span) -> Option<Id> {
        let token = span.slice(raw);
        match token.first()? {
            b'"' if memchr::memchr(b'\\', &token).is_none() => Some(Id(token)),
            // Peers may escape the same string differently, so ids are compared in one normal spelling.
            b'"' => {
                let decoded: String = serde_json::from_slice(&token).ok()?;
                Some(Id(json::quote(&decoded).into()))
            }
            b'-' | b'0'..=b'9' => {
                let digits = token.strip_prefix(b"-").unwrap_or(&token);
                digits.iter().all(u8::is_ascii_digit).then_some(Id(token))
            }
            _ => None,
        }
    }

    /// Returns the id as a JSON token.
    pub fn token(&self) -> Bytes {
        self.0.clone()
    }

    /// Returns a copy with its own memory. An id that outlives its message would otherwise keep the whole message
    /// alive.
    pub fn detached(&self) -> Id {
        Id(Bytes::copy_from_slice(&self.0))
    }

    /// Returns the id as a number. All ids that the gateway creates are numbers.
    pub fn as_u64(&self) -> Option<u64> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Id {
        Id(number.to_string().into())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[derive(Clone, Debug)]
pub enum Message {
    Request(Request),
    Notification(Notification),
    Response(Response),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub raw: Text,
    pub id: Id,
    pub id_at: Span,
    pub method: Method,
    pub params: Params,
}

#[derive(Clone, Debug)]
pub struct Notification {
    pub raw: Text,
    pub method: Method,
    pub params: Params,
}

#[derive(Clone, Debug)]
pub struct Response {
    pub raw: Text,
    /// `None` if the peer could not read the id of the request that it answers.
    pub id: Option<Id>,
    id_at: Option<Span>,
    pub outcome: Outcome,
}

/// The span of a response's payload.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Result(Span),
    Error(Span),
}

/// Bytes that are known to be valid UTF-8.
#[derive(Clone)]
pub struct Text(ByteString);

impl Text {
    pub fn new(raw: Bytes) -> Result<Text, std::str::Utf8Error> {
        ByteString::try_from(raw).map(Text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn bytes(&self) -> &Bytes {
        self.0.as_bytes()
    }

    pub fn get(&self, span: Span) -> &str {
        span.get(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The maximum number of messages in one batch.
pub(crate) const MAX_BATCH: usize = 100;

/// The reason why bytes are not a valid message. The id is present if it was readable, for use in the error response.
#[derive(Clone, Debug)]
pub struct MalformedMessage {
    pub error: Error,
    pub id: Option<Id>,
    /// True if the message is a complete response that exceeds a limit.
    pub is_response: bool,
}

impl MalformedMessage {
    pub fn new(error: Error, id: Option<Id>) -> MalformedMessage {
        MalformedMessage { error, id, is_response: false }
    }
}

impl Message {
    /// Parses one message. Returns an error if the bytes are not a JSON-RPC message or nest deeper than [`MAX_DEPTH`].
    pub fn parse(raw: Bytes) -> Result<Message, MalformedMessage> {
        let text = Text::new(raw).map_err(|error| unreadable(format!("not UTF-8: {error}")))?;
        let envelope = Envelope::read(text.as_str())?;
        if is_too_deep(text.bytes()) {
            return Err(envelope.too_deep(&text));
        }
        envelope.classify(&text)
    }

    /// Splits an array of at most [`MAX_BATCH`] messages. Returns `None` if the text is not an array.
    pub fn split_batch(raw: &Bytes) -> Option<Result<Vec<Bytes>, MalformedMessage>> {
        if raw.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
            return None;
        }
        let mut deserializer = serde_json::Deserializer::from_slice(raw);
        let batch = deserializer.deserialize_seq(BatchVisitor).and_then(|batch| deserializer.end().map(|()| batch));
        Some(match batch {
            Ok(messages) => Ok(messages.iter().map(|message| raw.slice_ref(message.get().as_bytes())).collect()),
            // A batch that is too long is the only data error that the visitor reports.
            Err(error) if error.is_data() => {
                let limit = Limit::BatchMessages.as_str();
                Err(MalformedMessage::new(Error::LimitExceeded { limit, value: MAX_BATCH }, None))
            }
            Err(error) => Err(unreadable(error.to_string())),
        })
    }
}

/// Reads the messages of a batch. Fails at the first message beyond [`MAX_BATCH`], without reading the rest.
struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<&'de RawValue>, A::Error> {
        let mut messages = Vec::new();
        while let Some(message) = sequence.next_element()? {
            if messages.len() == MAX_BATCH {
                return Err(A::Error::custom("the batch is too long"));
            }
            messages.push(message);
        }
        Ok(messages)
    }
}

fn unreadable(reason: String) -> MalformedMessage {
    MalformedMessage::new(Error::Parse(reason), None)
}

/// The raw members of the envelope.
#[derive(Default)]
struct Envelope<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    duplicate: Option<String>,
}

impl<'a> Envelope<'a> {
    fn read(text: &'a str) -> Result<Envelope<'a>, MalformedMessage> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let envelope = deserializer.deserialize_any(EnvelopeVisitor).and_then(|read| deserializer.end().map(|()| read));
        envelope.map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                MalformedMessage::new(Error::InvalidRequest("a message must be one JSON object".to_owned()), None)
            }
            _ => unreadable(error.to_string()),
        })
    }

    #[cold]
    fn too_deep(&self, text: &Text) -> MalformedMessage {
        let id = self.id.and_then(|id| Id::parse(text.bytes(), Span::of(text.as_str(), id.get())));
        let error = Error::LimitExceeded { limit: Limit::JsonDepth.as_str(), value: MAX_DEPTH };
        // The caller keeps the id for longer than the text.
        MalformedMessage { error, id: id.map(|id| id.detached()), is_response: self.method.is_none() }
    }

    fn classify(self, text: &Text) -> Result<Message, MalformedMessage> {
        let span = |part: &RawValue| Span::of(text.as_str(), part.get());
        let id = self.id.and_then(|id| Id::parse(text.bytes(), span(id)));
        let invalid = |reason: &str| MalformedMessage::new(Error::InvalidRequest(reason.to_owned()), id.clone());
        if let Some(key) = self.duplicate {
            return Err(invalid(&format!("the member {} occurs twice", json::quote(&key))));
        }
        if self.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        match (self.method, self.result, self.error) {
            (Some(method), None, None) => {
                let name =
                    json::string(text.as_str(), span(method)).ok_or_else(|| invalid("method must be a string"))?;
                let method = Method::parse(&name);
                let params = Params::read(text.as_str(), self.params.map(span)).map_err(|reason| invalid(&reason))?;
                match self.id {
                    None => Ok(Message::Notification(Notification { raw: text.clone(), method, params })),
                    Some(token) => {
                        let id = id.clone().ok_or_else(|| invalid("id must be a string or an integer"))?;
                        Ok(Message::Request(Request { raw: text.clone(), id, id_at: span(token), method, params }))
                    }
                }
            }
            (None, Some(result), None) => Ok(self.response(text, id, Outcome::Result(span(result)))),
            (None, None, Some(error)) => Ok(self.response(text, id, Outcome::Error(span(error)))),
            _ => Err(invalid("a message must have exactly one of method, result and error")),
        }
    }

    fn response(&self, text: &Text, id: Option<Id>, outcome: Outcome) -> Message {
        let id_at = self.id.map(|id| Span::of(text.as_str(), id.get()));
        Message::Response(Response { raw: text.clone(), id, id_at, outcome })
    }
}

struct EnvelopeVisitor;

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = Envelope<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<'de>, A::Error> {
        let mut envelope = Envelope::default();
        let mut unknown = params::SeenKeys::default();
        while let Some(JsonKey(key)) = map.next_key::<JsonKey<'de>>()? {
            let value = map.next_value::<&RawValue>()?;
            let is_duplicate = match &*key {
                "jsonrpc" => envelope.jsonrpc.replace(value).is_some(),
                "id" => envelope.id.replace(value).is_some(),
                "method" => envelope.method.replace(value).is_some(),
                "params" => envelope.params.replace(value).is_some(),
                "result" => envelope.result.replace(value).is_some(),
                "error" => envelope.error.replace(value).is_some(),
                _ => !unknown.insert(key.clone()),
            };
            if is_duplicate {
                envelope.duplicate = Some(key.into_owned());
            }
        }
        Ok(envelope)
    }
}

/// A key that borrows from the text if it has no escapes. A plain `Cow` always copies.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct JsonKey<'a>(#[serde(borrow)] Cow<'a, str>);

impl Request {
    /// Returns the id exactly as the sender spelled it. A sender may compare only the text of ids.
    pub fn id_as_written(&self) -> Id {
        Id(self.id_at.slice(self.raw.bytes()))
    }

    /// Adds the edit that gives `params` to a request without any.
    pub fn set_params(&self, params: &str, edits: &mut Splice) {
        let text = self.raw.as_str();
        let whole = json::whole(text);
        // Some clients write `null` for absent params.
        match json::member(text, whole, "params") {
            Some(null) => edits.replace(null, params.to_owned()),
            None => edits.insert(whole.start + 1, format!("\"params\":{params},")),
        }
    }

    /// Returns the request under the id `id`, with `edits` applied.
    pub fn rekeyed(&self, id: &Id, mut edits: Splice) -> Bytes {
        edits.replace(self.id_at, id.token());
        edits.apply(self.raw.bytes())
    }
}

impl Response {
    /// Returns the response under the id `id`, with `edits` applied.
    pub fn rekeyed(&self, id: &Id, mut edits: Splice) -> Pieces {
        match self.id_at {
            Some(at) => edits.replace(at, id.token()),
            None => {
                let begin = json::whole(self.raw.as_str()).start + 1;
                edits.insert(begin, "\"id\":");
                edits.insert(begin, id.token());
                edits.insert(begin, ",");
            }
        }
        edits.pieces(self.raw.bytes()).mark_id(id)
    }

    /// Reports whether the response means that a resource does not exist. Backends use the protocol's own code, or
    /// invalid params together with the URI or a "not found" message.
    pub fn is_not_found(&self) -> bool {
        let text = self.raw.as_str();
        let Outcome::Error(error) = self.outcome else { return false };
        let has_message = || {
            let message = json::member(text, error, "message").and_then(|at| json::string(text, at));
            message.is_some_and(|message| message.to_ascii_lowercase().contains("not found"))
        };
        let names_uri = || json::member(text, error, "data").and_then(|data| json::member(text, data, "uri")).is_some();
        match json::member(text, error, "code").map(|code| code.get(text)) {
            Some("-32002") => true,
            Some("-32602") => names_uri() || has_message(),
            _ => false,
        }
    }
}

impl Outcome {
    pub fn span(self) -> Span {
        match self {
            Outcome::Result(span) | Outcome::Error(span) => span,
        }
    }
}

/// Returns a response with `result`, which must be JSON.
pub fn reply(id: &Id, result: impl Into<Bytes>) -> Pieces {
    let mut pieces = Pieces::new();
    pieces.push(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":"));
    pieces.push_id(id);
    pieces.push(Bytes::from_static(b",\"result\":"));
    pieces.push(result);
    pieces.push(Bytes::from_static(b"}"));
    pieces
}

/// Returns an error response. It has no id if the id of the request could not be read.
pub fn error_reply(id: Option<&Id>, error_object: &str) -> Pieces {
    let Some(id) = id else { return format!("{{\"jsonrpc\":\"2.0\",\"error\":{error_object}}}").into() };
    let mut pieces = Pieces::new();
    pieces.push(Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":"));
    pieces.push_id(id);
    pieces.push(format!(",\"error\":{error_object}}}"));
    pieces
}

/// Returns a notification that the gateway itself sends.
pub fn notification(method: &Method, params: Option<&str>) -> Bytes {
    match params {
        Some(params) => format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#).into(),
        None => format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into(),
    }
}

/// Returns a request that the gateway itself sends.
pub fn request(id: &Id, method: &Method, params: &str) -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#).into()
}

#[cfg(test)]
mod tests;
