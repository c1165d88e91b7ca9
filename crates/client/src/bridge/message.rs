//! Classifies the messages that a bridge forwards. The bridge needs to know whether a message expects a response, and
//! how it affects the session; the rest stays unparsed.

use bytes::Bytes;
use goblin_telemetry::clean;
use goblin_wire::extensions::{SUBSCRIPTIONS, declares};
use goblin_wire::json::{self, Splice};
use goblin_wire::modern::is_stateless;
use goblin_wire::{Id, MalformedMessage, Message, Method, Notification, Outcome, Request, Response};

/// A message of the client.
pub struct ClientMessage {
    pub body: Bytes,
    pub kind: ClientMessageKind,
}

#[derive(Debug)]
pub enum ClientMessageKind {
    Request(Id, Method),
    /// A request that carries its protocol version, so it needs no session.
    Stateless(Box<Request>),
    /// A batch, with the ids of its requests.
    Batch(Vec<Id>),
    Initialized,
    Notification {
        cancels: Option<Id>,
    },
    /// A response to a request of the gateway, with its id if that can be read.
    Answer(Option<Id>),
    /// An invalid message. The gateway answers it with an error.
    Broken,
}

impl ClientMessage {
    /// Splits a line into messages. A batch stays whole, except for its responses: each belongs to the session that
    /// asked.
    pub fn unpack(line: Bytes) -> Vec<ClientMessage> {
        let Some(Ok(parts)) = Message::split_batch(&line) else { return vec![ClientMessage::read(line)] };
        let (answers, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| response(part).is_some());
        if answers.is_empty() {
            return vec![ClientMessage::read(line)];
        }
        let rest = (!rest.is_empty()).then(|| [b"[", &*rest.join(&b","[..]), b"]"].concat().into());
        answers.into_iter().chain(rest).map(ClientMessage::read).collect()
    }

    fn read(body: Bytes) -> ClientMessage {
        let kind = match Message::split_batch(&body) {
            Some(Ok(messages)) => ClientMessageKind::Batch(messages.into_iter().filter_map(request_id).collect()),
            Some(Err(_)) => ClientMessageKind::Broken,
            None => match Message::parse(body.clone()) {
                Ok(Message::Request(request)) if is_stateless(&request) => {
                    ClientMessageKind::Stateless(Box::new(request))
                }
                Ok(Message::Request(request)) => ClientMessageKind::Request(request.id, request.method),
                Ok(Message::Notification(notification)) => notification_kind(&notification),
                Ok(Message::Response(answer)) => ClientMessageKind::Answer(answer.id),
                Err(_) => ClientMessageKind::Broken,
            },
        };
        ClientMessage { body, kind }
    }

    /// Returns the ids of the requests that the client waits for.
    pub fn waiting(&self) -> Vec<Id> {
        match &self.kind {
            ClientMessageKind::Request(id, _) => vec![id.clone()],
            ClientMessageKind::Stateless(request) => vec![request.id.clone()],
            ClientMessageKind::Batch(ids) => ids.clone(),
            ClientMessageKind::Initialized
            | ClientMessageKind::Notification { .. }
            | ClientMessageKind::Answer(_)
            | ClientMessageKind::Broken => Vec::new(),
        }
    }
}

fn request_id(body: Bytes) -> Option<Id> {
    match Message::parse(body) {
        Ok(Message::Request(request)) => Some(request.id),
        _ => None,
    }
}

fn notification_kind(notification: &Notification) -> ClientMessageKind {
    match notification.method {
        Method::Initialized => ClientMessageKind::Initialized,
        Method::Cancelled => ClientMessageKind::Notification { cancels: cancelled_id(notification) },
        _ => ClientMessageKind::Notification { cancels: None },
    }
}

/// Returns the id of the request that a notification cancels.
pub(crate) fn cancelled_id(notification: &Notification) -> Option<Id> {
    notification.params.request_id.and_then(|at| Id::parse(notification.raw.bytes(), at))
}

/// A message of the gateway.
#[derive(Debug)]
pub enum GatewayMessage {
    /// A request that waits for a response of the client.
    Request(Request),
    /// The cancellation of such a request.
    Cancel(Notification, Id),
    Answer(Response),
    /// The notification that the resource list changed.
    ResourcesChanged(Bytes),
    /// Any other message. It is forwarded unchanged.
    Plain(Bytes),
}

impl GatewayMessage {
    /// Reads the messages in `message`. A batch that contains requests is split into its messages; any other batch
    /// stays whole. Removes the answered ids from `waiting`; a batch without requests removes all of them.
    pub fn read(message: Bytes, waiting: &mut Vec<Id>) -> Result<Vec<GatewayMessage>, MalformedMessage> {
        let Some(parts) = Message::split_batch(&message) else {
            return Ok(vec![GatewayMessage::one(message, waiting)?]);
        };
        let parts = parts?;
        if parts.iter().any(|part| matches!(Message::parse(part.clone()), Ok(Message::Request(_)))) {
            return parts.into_iter().map(|part| GatewayMessage::one(part, waiting)).collect();
        }
        waiting.clear();
        Ok(vec![GatewayMessage::Plain(message)])
    }

    fn one(message: Bytes, waiting: &mut Vec<Id>) -> Result<GatewayMessage, MalformedMessage> {
        match Message::parse(message.clone())? {
            Message::Request(server_request) => return Ok(GatewayMessage::Request(server_request)),
            Message::Notification(notification) if notification.method == Method::Cancelled => {
                if let Some(id) = cancelled_id(&notification) {
                    return Ok(GatewayMessage::Cancel(notification, id));
                }
            }
            Message::Response(answer) => {
                waiting.retain(|id| Some(id) != answer.id.as_ref());
                return Ok(GatewayMessage::Answer(answer));
            }
            Message::Notification(notification) if notification.method == Method::ResourcesChanged => {
                return Ok(GatewayMessage::ResourcesChanged(message));
            }
            Message::Notification(_) => {}
        }
        Ok(GatewayMessage::Plain(message))
    }
}

/// Returns the response with this id.
pub(crate) fn rekeyed(answer: Bytes, id: &Id) -> Bytes {
    match response(&answer) {
        Some(parsed) if parsed.id.as_ref() != Some(id) => parsed.rekeyed(id, Splice::new()).concat(),
        _ => answer,
    }
}

/// Returns the response in `body`.
pub(crate) fn response(body: &Bytes) -> Option<Response> {
    match Message::parse(body.clone()) {
        Ok(Message::Response(answer)) => Some(answer),
        _ => None,
    }
}

/// Returns the JSON-RPC error in `body` with the id of the waiting request. Returns `None` if the body is no response,
/// or belongs to another request.
pub(crate) fn rejection(body: Bytes, waiting: &[Id]) -> Option<Bytes> {
    let answer = response(&body)?;
    match (waiting, &answer.id) {
        ([], _) => Some(body),
        ([id], None) => Some(answer.rekeyed(id, Splice::new()).concat()),
        ([id], Some(named)) if id == named => Some(body),
        _ => None,
    }
}

/// Returns the message of a JSON-RPC error, without control characters.
pub fn error_message(answer: &Response) -> Option<String> {
    let Outcome::Error(error) = answer.outcome else { return None };
    let text = answer.raw.as_str();
    json::string(text, json::member(text, error, "message")?).map(|message| clean(&message))
}

/// Reports whether the capabilities in an `initialize` request declare the extension of subscriptions.
pub(crate) fn declares_subscriptions(initialize_request: &Bytes) -> bool {
    let Ok(Message::Request(request)) = Message::parse(initialize_request.clone()) else { return false };
    let text = request.raw.as_str();
    request.params.capabilities.is_some_and(|capabilities| declares(text, capabilities, SUBSCRIPTIONS))
}

/// Returns the version that a response to `initialize` negotiated. Returns `None` if the response is an error.
pub(crate) fn version(answer: &Response) -> Option<String> {
    let Outcome::Result(result) = answer.outcome else { return None };
    let text = answer.raw.as_str();
    let version = json::member(text, result, "protocolVersion")?;
    json::string(text, version).map(|version| version.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(token: &'static str) -> Id {
        let raw = Bytes::from_static(token.as_bytes());
        Id::parse(&raw, json::Span::new(0, raw.len())).expect("an id")
    }

    #[test]
    fn client_messages_are_classified() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, ClientMessageKind::Request(id("1"), Method::Ping)),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, ClientMessageKind::Initialized),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#,
                ClientMessageKind::Notification { cancels: Some(id("\"a\"")) },
            ),
            (r#"{"jsonrpc":"2.0","method":"x"}"#, ClientMessageKind::Notification { cancels: None }),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, ClientMessageKind::Answer(Some(id("1")))),
            (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, ClientMessageKind::Answer(None)),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},7]"#,
                ClientMessageKind::Batch(vec![id("1")]),
            ),
            ("{", ClientMessageKind::Broken),
            ("[", ClientMessageKind::Broken),
            (r#"{"id":1}"#, ClientMessageKind::Broken),
        ] {
            let kind = ClientMessage::read(Bytes::from_static(line.as_bytes())).kind;
            assert_eq!(format!("{kind:?}"), format!("{expected:?}"), "{line}");
        }
    }

    #[test]
    fn a_message_with_a_protocol_version_needs_no_session() {
        for (meta, is_stateless) in [
            (r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#, true),
            (r#"{"io.modelcontextprotocol/protocolVersion":null}"#, true),
            (r#"{"progressToken":1}"#, false),
            ("7", false),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"_meta":{meta}}}}}"#);
            assert_eq!(
                matches!(ClientMessage::read(line.into()).kind, ClientMessageKind::Stateless(_)),
                is_stateless,
                "{meta}"
            );
        }
    }

    #[test]
    fn an_answer_removes_only_its_own_id() {
        let mut waiting = vec![id("1"), id("\"1\"")];
        for (message, left) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#, 2),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, 2),
            (r#"{"jsonrpc":"2.0","id":2,"result":{}}"#, 2),
            (r#"{"jsonrpc":"2.0","id":"1","result":{}}"#, 1),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, 0),
        ] {
            assert!(GatewayMessage::read(Bytes::from_static(message.as_bytes()), &mut waiting).is_ok(), "{message}");
            assert_eq!(waiting.len(), left, "{message}");
        }
    }

    #[test]
    fn a_batch_answers_all_waiting_ids_and_other_text_answers_none() {
        for (message, is_message, left) in [
            (r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#, true, 0),
            ("<html>", false, 2),
            ("[", false, 2),
            (r#"{"id":1}"#, false, 2),
        ] {
            let mut waiting = vec![id("1"), id("2")];
            let parsed = GatewayMessage::read(Bytes::from_static(message.as_bytes()), &mut waiting);
            assert_eq!(parsed.is_ok(), is_message, "{message}");
            assert_eq!(waiting.len(), left, "{message}");
        }
    }

    #[test]
    fn a_batch_of_the_gateway_is_split_into_its_messages() {
        let mut waiting = vec![id("1"), id("2")];
        let batch = r#"[{"jsonrpc":"2.0","id":9,"method":"ping"},{"jsonrpc":"2.0","id":1,"result":{}}]"#;
        let messages = GatewayMessage::read(Bytes::from_static(batch.as_bytes()), &mut waiting).expect("messages");
        assert!(
            matches!(&messages[..], [GatewayMessage::Request(server_request), GatewayMessage::Answer(_)] if server_request.id == id("9")),
            "{messages:?}"
        );
        assert_eq!(waiting, [id("2")]);
    }

    #[test]
    fn answers_are_split_from_their_batch() {
        let check = |line: &'static str, expected: &[&str]| {
            let unpacked = ClientMessage::unpack(Bytes::from_static(line.as_bytes()));
            let bodies: Vec<_> = unpacked.iter().map(|outgoing| String::from_utf8_lossy(&outgoing.body)).collect();
            assert_eq!(bodies, expected, "{line}");
        };
        let plain = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}, 7]"#;
        check(plain, &[plain]);
        check(
            r#"[{"jsonrpc":"2.0","method":"x"}, {"jsonrpc":"2.0","id":1,"result":{}}, 7]"#,
            &[r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, r#"[{"jsonrpc":"2.0","method":"x"},7]"#],
        );
        check(r#"[{"jsonrpc":"2.0","id":1,"error":{}}]"#, &[r#"{"jsonrpc":"2.0","id":1,"error":{}}"#]);
    }

    #[test]
    fn a_rejection_gets_the_id_of_the_only_waiting_request() {
        let check = |body: &'static str, waiting: &[Id], expected: Option<&str>| {
            let found = rejection(Bytes::from_static(body.as_bytes()), waiting);
            assert_eq!(found.as_deref().map(String::from_utf8_lossy).as_deref(), expected, "{body}");
        };
        let bare = r#"{"jsonrpc":"2.0","error":{}}"#;
        check(bare, &[id("7")], Some(r#"{"id":7,"jsonrpc":"2.0","error":{}}"#));
        check(bare, &[], Some(bare));
        check(bare, &[id("1"), id("2")], None);
        let named = r#"{"jsonrpc":"2.0","id":7,"error":{}}"#;
        check(named, &[id("7")], Some(named));
        check(named, &[id("8")], None);
        check("<html>", &[id("8")], None);
    }
}
