//! The little that a bridge must know of a message: whether it is answered, and what it means for the session.

use bytes::Bytes;

use crate::observe::clean;
use crate::protocol::json::{self, Splice};
use crate::protocol::method::Method;
use crate::protocol::{Id, Message, Notification, Outcome};

/// A line of the client.
pub struct Outgoing {
    pub body: Bytes,
    pub kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    Request(Id, Method),
    /// Several at once: the ids of its requests.
    Batch(Vec<Id>),
    Initialized,
    Notification {
        cancels: Option<Id>,
    },
    /// To something that the gateway asked.
    Answer,
    /// The gateway will say what is wrong with it.
    Broken,
}

impl Outgoing {
    pub fn read(body: Bytes) -> Outgoing {
        let kind = match Message::split_batch(&body) {
            Some(Ok(messages)) => Kind::Batch(messages.into_iter().filter_map(request_id).collect()),
            Some(Err(_)) => Kind::Broken,
            None => match Message::parse(body.clone()) {
                Ok(Message::Request(request)) => Kind::Request(request.id, request.method),
                Ok(Message::Notification(notification)) => notification_kind(&notification),
                Ok(Message::Response(_)) => Kind::Answer,
                Err(_) => Kind::Broken,
            },
        };
        Outgoing { body, kind }
    }

    /// The ids that the client waits for.
    pub fn waiting(&self) -> Vec<Id> {
        match &self.kind {
            Kind::Request(id, _) => vec![id.clone()],
            Kind::Batch(ids) => ids.clone(),
            Kind::Initialized | Kind::Notification { .. } | Kind::Answer | Kind::Broken => Vec::new(),
        }
    }
}

fn request_id(body: Bytes) -> Option<Id> {
    match Message::parse(body) {
        Ok(Message::Request(request)) => Some(request.id),
        _ => None,
    }
}

fn notification_kind(notification: &Notification) -> Kind {
    let id = || notification.params.request_id.and_then(|at| Id::parse(notification.raw.bytes(), at));
    match notification.method {
        Method::Initialized => Kind::Initialized,
        Method::Cancelled => Kind::Notification { cancels: id() },
        _ => Kind::Notification { cancels: None },
    }
}

/// Takes the id that `message` answers out of `waiting`; a batch answers all of them. Tells whether it is a message at all.
pub fn strike(message: &Bytes, waiting: &mut Vec<Id>) -> bool {
    match Message::split_batch(message) {
        Some(Ok(_)) => {
            waiting.clear();
            return true;
        }
        Some(Err(_)) => return false,
        None => {}
    }
    match Message::parse(message.clone()) {
        Ok(Message::Response(answer)) => waiting.retain(|id| Some(id) != answer.id.as_ref()),
        Ok(Message::Request(_) | Message::Notification(_)) => {}
        Err(_) => return false,
    }
    true
}

pub fn is_answer(message: &Bytes) -> bool {
    matches!(Message::parse(message.clone()), Ok(Message::Response(_)))
}

/// A JSON-RPC error as the body of a refusal, for the one request that waits for it.
pub fn refusal(body: Bytes, waiting: &[Id]) -> Option<Bytes> {
    let Ok(Message::Response(answer)) = Message::parse(body.clone()) else { return None };
    match (waiting, &answer.id) {
        ([], _) => Some(body),
        ([id], None) => Some(answer.rekeyed(id, Splice::new()).concat()),
        ([id], Some(named)) if id == named => Some(body),
        _ => None,
    }
}

/// What an error says to people.
pub fn complaint(answer: &Bytes) -> Option<String> {
    let Ok(Message::Response(answer)) = Message::parse(answer.clone()) else { return None };
    let Outcome::Error(error) = answer.outcome else { return None };
    let text = answer.raw.as_str();
    json::string(text, json::member(text, error, "message")?).map(|message| clean(&message))
}

/// The version that an answer to `initialize` settled; nothing where it is an error.
pub fn version(answer: &Bytes) -> Option<String> {
    let Ok(Message::Response(answer)) = Message::parse(answer.clone()) else { return None };
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
    fn lines_are_told_apart() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Kind::Request(id("1"), Method::Ping)),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Kind::Initialized),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#,
                Kind::Notification { cancels: Some(id("\"a\"")) },
            ),
            (r#"{"jsonrpc":"2.0","method":"x"}"#, Kind::Notification { cancels: None }),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Kind::Answer),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},7]"#,
                Kind::Batch(vec![id("1")]),
            ),
            ("{", Kind::Broken),
            ("[", Kind::Broken),
            (r#"{"id":1}"#, Kind::Broken),
        ] {
            assert_eq!(Outgoing::read(Bytes::from_static(line.as_bytes())).kind, expected, "{line}");
        }
    }

    #[test]
    fn only_the_answered_id_is_struck() {
        let mut waiting = vec![id("1"), id("\"1\"")];
        for (message, left) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#, 2),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, 2),
            (r#"{"jsonrpc":"2.0","id":2,"result":{}}"#, 2),
            (r#"{"jsonrpc":"2.0","id":"1","result":{}}"#, 1),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, 0),
        ] {
            assert!(strike(&Bytes::from_static(message.as_bytes()), &mut waiting), "{message}");
            assert_eq!(waiting.len(), left, "{message}");
        }
    }

    #[test]
    fn a_batch_answers_all_and_a_web_page_nobody() {
        for (message, is_message, left) in [
            (r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#, true, 0),
            ("<html>", false, 2),
            ("[", false, 2),
            (r#"{"id":1}"#, false, 2),
        ] {
            let mut waiting = vec![id("1"), id("2")];
            assert_eq!(strike(&Bytes::from_static(message.as_bytes()), &mut waiting), is_message, "{message}");
            assert_eq!(waiting.len(), left, "{message}");
        }
    }

    #[test]
    fn a_refusal_gets_the_id_that_the_client_waits_for() {
        let check = |body: &'static str, waiting: &[Id], expected: Option<&str>| {
            let found = refusal(Bytes::from_static(body.as_bytes()), waiting);
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
