//! The latest data of the gateway.

use std::collections::VecDeque;

use goblin_admin::api::{Entry, EventInfo, ServerStatus, SessionList, Status, SubscriptionList};
use goblin_telemetry::clean;
use serde_json::Value;

/// The maximum number of events. The oldest are dropped.
pub(crate) const MOST_EVENTS: usize = 1000;

/// A list of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Tools, Kind::Prompts, Kind::Resources, Kind::Templates];

    /// Returns the name in the paths of the admin API.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Tools => "tools",
            Kind::Prompts => "prompts",
            Kind::Resources => "resources",
            Kind::Templates => "templates",
        }
    }
}

/// A tool, prompt, resource or template, parsed once when it arrives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
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

impl Item {
    pub fn read(entry: &Entry) -> Item {
        let definition: Value = serde_json::from_str(entry.definition.get()).unwrap_or_default();
        let word = |key: &str| definition[key].as_str().unwrap_or_default();
        let title = [word("title"), word("name")].into_iter().find(|word| !word.is_empty());
        let argument = |argument: &Value| {
            let mark = if argument["required"] == true { "*" } else { "" };
            format!("{}{mark}", argument["name"].as_str().unwrap_or_default())
        };
        let arguments: Vec<_> = definition["arguments"].as_array().into_iter().flatten().map(argument).collect();
        Item {
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
pub struct Data {
    /// The last status. `None` before the first response.
    pub status: Option<Status>,
    pub tools: Vec<Item>,
    pub prompts: Vec<Item>,
    pub resources: Vec<Item>,
    pub templates: Vec<Item>,
    pub subscriptions: SubscriptionList,
    pub sessions: SessionList,
    /// The events, newest first.
    pub events: VecDeque<EventInfo>,
}

impl Data {
    pub fn servers(&self) -> &[ServerStatus] {
        self.status.as_ref().map_or(&[], |status| &status.servers)
    }

    pub fn server(&self, id: &str) -> Option<&ServerStatus> {
        self.servers().iter().find(|server| server.id == id)
    }

    pub fn items(&self, kind: Kind) -> &[Item] {
        match kind {
            Kind::Tools => &self.tools,
            Kind::Prompts => &self.prompts,
            Kind::Resources => &self.resources,
            Kind::Templates => &self.templates,
        }
    }

    pub(crate) fn set_items(&mut self, kind: Kind, items: Vec<Item>) {
        match kind {
            Kind::Tools => self.tools = items,
            Kind::Prompts => self.prompts = items,
            Kind::Resources => self.resources = items,
            Kind::Templates => self.templates = items,
        }
    }

    pub(crate) fn add_event(&mut self, event: EventInfo) {
        self.events.push_front(event);
        self.events.truncate(MOST_EVENTS);
    }
}
