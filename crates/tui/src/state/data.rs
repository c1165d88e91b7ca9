//! The latest data of the gateway.

use std::collections::{BTreeMap, VecDeque};

use goblin_admin::api::{CallList, Entry, EventInfo, LogList, ServerStatus, SessionList, Status, SubscriptionList};
use goblin_admin::login::LoginStatus;
use goblin_admin::routes::List;
use goblin_telemetry::clean;
use serde_json::Value;

use crate::state::message::Feed;

/// The maximum number of events. The oldest debug events are dropped first, then the oldest others.
pub(crate) const MAX_EVENTS: usize = 1000;
/// The maximum number of ended calls.
pub(crate) const MAX_CALLS: usize = 2000;
/// The maximum number of events in the log of one server.
const MAX_LOG: usize = 2000;

/// A tool, prompt, resource or template, parsed once when it arrives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CatalogItem {
    pub server: String,
    /// The name or URI that clients use.
    pub exposed: String,
    pub native: String,
    pub name: String,
    pub description: String,
    pub mime: String,
    pub size: Option<u64>,
    /// The names of a prompt's arguments. A required one ends in `*`.
    pub arguments: String,
    /// The definition that clients receive, as unchanged JSON text.
    pub definition: String,
}

impl CatalogItem {
    pub fn read(entry: &Entry) -> CatalogItem {
        let definition: Value = serde_json::from_str(entry.definition.get()).unwrap_or_default();
        let text = |key: &str| definition[key].as_str().unwrap_or_default();
        let title = [text("title"), text("name")].into_iter().find(|text| !text.is_empty());
        let argument = |argument: &Value| {
            let mark = if argument["required"] == true { "*" } else { "" };
            format!("{}{mark}", argument["name"].as_str().unwrap_or_default())
        };
        let arguments: Vec<_> = definition["arguments"].as_array().into_iter().flatten().map(argument).collect();
        CatalogItem {
            server: clean(&entry.server),
            exposed: entry.exposed.clone(),
            native: entry.native.clone(),
            name: clean(title.unwrap_or_default()),
            description: text("description").to_owned(),
            mime: clean(text("mimeType")),
            size: definition["size"].as_u64(),
            arguments: clean(&arguments.join(" ")),
            definition: entry.definition.get().to_owned(),
        }
    }

    /// Returns the id of the row of this item.
    pub(crate) fn row_id(&self, kind: List) -> String {
        format!("{}s {}", kind.noun(), self.exposed)
    }
}

#[derive(Clone, Debug, Default)]
pub struct DashboardData {
    /// The last status. `None` before the first response.
    pub status: Option<Status>,
    /// The entries of the catalog, in the order of [`List::ALL`].
    items: [Vec<CatalogItem>; List::ALL.len()],
    pub subscriptions: SubscriptionList,
    pub sessions: SessionList,
    /// The ended calls, newest first.
    pub calls: CallList,
    /// The events, newest first.
    pub events: VecDeque<EventInfo>,
    /// The log of one server, oldest event first.
    logs: Option<(String, Vec<EventInfo>)>,
    /// The login at one server. `None` inside if the server has none.
    login: Option<(String, Option<LoginStatus>)>,
    /// The feeds that the last read failed for, with the reason.
    pub unreadable: BTreeMap<Feed, String>,
}

impl DashboardData {
    pub fn servers(&self) -> &[ServerStatus] {
        self.status.as_ref().map_or(&[], |status| &status.servers)
    }

    pub fn server(&self, id: &str) -> Option<&ServerStatus> {
        self.servers().iter().find(|server| server.id == id)
    }

    pub fn items(&self, kind: List) -> &[CatalogItem] {
        &self.items[kind as usize]
    }

    pub(crate) fn set_items(&mut self, kind: List, items: Vec<CatalogItem>) {
        self.items[kind as usize] = items;
    }

    pub(crate) fn set_subscriptions(&mut self, list: SubscriptionList) {
        self.unreadable.remove(&Feed::Subscriptions);
        self.subscriptions = list;
    }

    pub(crate) fn set_sessions(&mut self, list: SessionList) {
        self.unreadable.remove(&Feed::Sessions);
        self.sessions = list;
    }

    pub(crate) fn set_calls(&mut self, mut list: CallList) {
        self.unreadable.remove(&Feed::Calls);
        list.calls.truncate(MAX_CALLS);
        self.calls = list;
    }

    pub(crate) fn set_logs(&mut self, server: String, list: LogList) {
        self.unreadable.remove(&Feed::Logs);
        let mut events = list.events;
        events.drain(..events.len().saturating_sub(MAX_LOG));
        self.logs = Some((server, events));
    }

    pub(crate) fn set_login(&mut self, server: String, status: Option<LoginStatus>) {
        self.login = Some((server, status));
    }

    /// Returns the login at the server, if it has one and it was read.
    pub fn login_of(&self, server: &str) -> Option<&LoginStatus> {
        self.login.as_ref().filter(|(known, _)| known == server)?.1.as_ref()
    }

    /// Returns the log of the server, oldest event first. `None` if the log was not read yet.
    pub fn logs_of(&self, server: &str) -> Option<&[EventInfo]> {
        self.logs.as_ref().filter(|(known, _)| known == server).map(|(_, events)| events.as_slice())
    }

    pub(crate) fn add_event(&mut self, event: EventInfo) {
        self.events.push_front(event);
        if self.events.len() > MAX_EVENTS {
            let oldest_debug = self.events.iter().rposition(|event| event.level == "debug");
            self.events.remove(oldest_debug.unwrap_or(MAX_EVENTS));
        }
    }
}
