//! The latest data of the gateway.

use std::collections::VecDeque;

use goblin_admin::api::{Entry, EventInfo, ServerStatus, SessionList, Status, SubscriptionList};
use goblin_admin::routes::List;
use goblin_telemetry::clean;
use serde_json::Value;

/// The maximum number of events. The oldest are dropped.
pub(crate) const MAX_EVENTS: usize = 1000;

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
}

#[derive(Clone, Debug, Default)]
pub struct DashboardData {
    /// The last status. `None` before the first response.
    pub status: Option<Status>,
    /// The entries of the catalog, in the order of [`List::ALL`].
    items: [Vec<CatalogItem>; List::ALL.len()],
    pub subscriptions: SubscriptionList,
    pub sessions: SessionList,
    /// The events, newest first.
    pub events: VecDeque<EventInfo>,
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

    pub(crate) fn add_event(&mut self, event: EventInfo) {
        self.events.push_front(event);
        self.events.truncate(MAX_EVENTS);
    }
}
