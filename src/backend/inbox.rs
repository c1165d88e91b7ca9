//! What a backend says of its own accord: the ear of its links.
//!
//! Links call it from their reading tasks, so nothing here waits. "This list changed" is a bit in a set, however often it is
//! said (level beats edge); the actor takes the set when it has time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::caller::Level;
use crate::config::ServerId;
use crate::lane::Call;
use crate::observe::{Event, Observe};
use crate::protocol::error::Error;
use crate::protocol::json::{self, Splice};
use crate::protocol::method::Method;
use crate::protocol::{self, Notification, Request};

/// The lists a backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl List {
    pub const ALL: [List; 4] = [List::Tools, List::Prompts, List::Resources, List::Templates];

    pub fn method(self) -> Method {
        match self {
            List::Tools => Method::ToolsList,
            List::Prompts => Method::PromptsList,
            List::Resources => Method::ResourcesList,
            List::Templates => Method::TemplatesList,
        }
    }

    fn bit(self) -> u8 {
        match self {
            List::Tools => 1,
            List::Prompts => 2,
            List::Resources => 4,
            List::Templates => 8,
        }
    }
}

pub struct Inbox {
    server: ServerId,
    observe: Arc<Observe>,
    changed: AtomicU8,
    bell: Notify,
}

impl Inbox {
    pub fn new(server: ServerId, observe: Arc<Observe>) -> Inbox {
        Inbox { server, observe, changed: AtomicU8::new(0), bell: Notify::new() }
    }

    pub fn server(&self) -> &str {
        self.server.as_str()
    }

    pub fn emit(&self, event: &Event<'_>) {
        self.observe.emit(event);
    }

    /// A notification. `call` is the call it belongs to, where that is known for certain.
    pub fn hear(&self, notification: &Notification, call: Option<&Arc<Call>>) {
        match &notification.method {
            Method::ToolsChanged => self.mark(&[List::Tools]),
            Method::PromptsChanged => self.mark(&[List::Prompts]),
            Method::ResourcesChanged => self.mark(&[List::Resources, List::Templates]),
            Method::LogMessage => self.hear_log(notification, call),
            method => {
                let event = Event::BackendNotification { server: self.server(), method: method.as_str() };
                self.observe.emit(&event);
            }
        }
    }

    /// Progress of `call`: a sign of life, and news for the client where it asked for it.
    pub fn hear_progress(&self, notification: &Notification, call: &Call) {
        call.show_life();
        let (Some(at), Some(token)) = (notification.params.progress_token, &call.progress_token) else { return };
        let mut edits = Splice::new();
        edits.replace(at, token.clone());
        let message = json::single_line(edits.apply(notification.raw.bytes()));
        if !call.lane.offer(message) {
            self.observe.emit(&Event::ProgressDropped { server: self.server() });
        }
    }

    fn hear_log(&self, notification: &Notification, call: Option<&Arc<Call>>) {
        let level = notification.params.level.and_then(|span| json::string(notification.raw.as_str(), span));
        let level = level.and_then(|name| Level::parse(&name)).unwrap_or(Level::Emergency);
        let Some(call) = call else {
            // Nobody's for certain: never guess a recipient.
            return self.observe.emit(&Event::BackendLog { server: self.server(), line: notification.raw.as_str() });
        };
        if level >= call.caller.level && !call.lane.offer(json::single_line(notification.raw.bytes().clone())) {
            self.observe.emit(&Event::LogDropped { server: self.server() });
        }
    }

    /// The answer to a request of the backend. Only `ping` needs no client.
    pub fn answer(&self, ask: &Request) -> Bytes {
        if ask.method == Method::Ping {
            return protocol::reply(&ask.id, "{}").concat();
        }
        self.observe.emit(&Event::BackendAskRefused { server: self.server(), method: ask.method.as_str() });
        let error = Error::MethodNotFound(format!("{} (this gateway declares no such capability)", ask.method));
        protocol::error_reply(Some(&ask.id), &error.to_json()).concat()
    }

    /// Marks lists as changed.
    pub fn mark(&self, lists: &[List]) {
        let bits = lists.iter().fold(0, |bits, list| bits | list.bit());
        self.changed.fetch_or(bits, Ordering::AcqRel);
        self.bell.notify_one();
    }

    pub fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) != 0
    }

    /// Waits until some list is marked; the marks stay.
    pub async fn changes(&self) {
        while !self.has_changes() {
            self.bell.notified().await;
        }
    }

    /// The marked lists; their marks are gone.
    pub fn take_changes(&self) -> Vec<List> {
        let bits = self.changed.swap(0, Ordering::AcqRel);
        List::ALL.into_iter().filter(|list| bits & list.bit() != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;

    fn inbox() -> Inbox {
        Inbox::new(ServerId::new("a").expect("a valid id"), Arc::default())
    }

    fn notification(method: &str) -> Notification {
        match Message::parse(format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#).into()) {
            Ok(Message::Notification(notification)) => notification,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn reg3_a_burst_is_one_change() {
        let inbox = inbox();
        for _ in 0..10_000 {
            inbox.hear(&notification("notifications/tools/list_changed"), None);
        }
        inbox.hear(&notification("notifications/resources/list_changed"), None);
        inbox.changes().await;
        assert_eq!(inbox.take_changes(), [List::Tools, List::Resources, List::Templates]);
        assert!(inbox.take_changes().is_empty());
    }

    #[test]
    fn asks_are_refused_by_name_and_pings_answered() {
        let ask = |method: &str| match Message::parse(
            format!(r#"{{"jsonrpc":"2.0","id":"q","method":"{method}"}}"#).into(),
        ) {
            Ok(Message::Request(request)) => inbox().answer(&request),
            other => panic!("{other:?}"),
        };
        assert_eq!(ask("ping"), r#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
        let refused = String::from_utf8(ask("roots/list").to_vec()).expect("text");
        assert!(refused.contains("-32601") && refused.contains("roots/list"), "{refused}");
    }
}
