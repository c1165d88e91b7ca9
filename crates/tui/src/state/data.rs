//! The latest data of the gateway.

use std::collections::VecDeque;

use goblin_admin::api::{Entry, EventInfo, ServerStatus, SessionList, Status, SubscriptionList};
use goblin_telemetry::clean;
use serde_json::Value;

/// The maximum number of events. The oldest are dropped.
pub(crate) const MAX_EVENTS: usize = 1000;

/// A list of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl ListKind {
    pub const ALL: [ListKind; 4] = [ListKind::Tools, ListKind::Prompts, ListKind::Resources, ListKind::Templates];

    /// Returns the name in the paths of the admin API.
    pub fn word(self) -> &'static str {
        match self {
            ListKind::Tools => "tools",
            ListKind::Prompts => "prompts",
            ListKind::Resources => "resources",
            ListKind::Templates => "templates",
        }
    }
}

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
        let word = |key: &str| definition[key].as_str().unwrap_or_default();
        let title = [word("title"), word("name")].into_iter().find(|word| !word.is_empty());
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
            description: word("description").to_owned(),
            mime: clean(word("mimeType")),
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
    pub tools: Vec<CatalogItem>,
    pub prompts: Vec<CatalogItem>,
    pub resources: Vec<CatalogItem>,
    pub templates: Vec<CatalogItem>,
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

    pub fn items(&self, kind: ListKind) -> &[CatalogItem] {
        match kind {
            ListKind::Tools => &self.tools,
            ListKind::Prompts => &self.prompts,
            ListKind::Resources => &self.resources,
            ListKind::Templates => &self.templates,
        }
    }

    pub(crate) fn set_items(&mut self, kind: ListKind, items: Vec<CatalogItem>) {
        match kind {
            ListKind::Tools => self.tools = items,
            ListKind::Prompts => self.prompts = items,
            ListKind::Resources => self.resources = items,
            ListKind::Templates => self.templates = items,
        }
    }

    pub(crate) fn add_event(&mut self, event: EventInfo) {
        self.events.push_front(event);
        self.events.truncate(MAX_EVENTS);
    }
}
