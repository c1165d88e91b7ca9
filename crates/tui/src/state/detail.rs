//! The lines of the side panel: all details of one row.

mod server;

use goblin_admin::api::{CallInfo, EventInfo, SessionInfo, SubscriptionInfo};
use goblin_admin::routes::List;
use goblin_client::units;
use goblin_telemetry::clean;
use goblin_wire::json;

use crate::state::data::{CatalogItem, DashboardData};
use crate::state::format::{exact_size, span};
use crate::state::json::pretty;
use crate::state::table::{RowItem, Tone, is_failed_call, level_tone};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Heading(String),
    Field(&'static str, String, Tone),
    Text(String, Tone),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    pub title: String,
    pub lines: Vec<Line>,
}

impl Detail {
    pub fn of(what: RowItem, data: &DashboardData) -> Option<Detail> {
        Some(match what {
            RowItem::Server(at) => server::detail(data.servers().get(at)?, data),
            RowItem::Item(kind, at) => of_item(kind, data.items(kind).get(at)?),
            RowItem::Subscription(at) => of_subscription(data.subscriptions.subscriptions.get(at)?),
            RowItem::Session(at) => of_session(data.sessions.sessions.get(at)?),
            RowItem::Call(at) => of_call(data.calls.calls.get(at)?),
            RowItem::Event(at) => of_event(data.events.get(at)?),
        })
    }

    fn new(title: &str) -> Detail {
        Detail { title: clean(title), lines: Vec::new() }
    }

    /// Adds a field, unless its value is empty.
    fn field(&mut self, label: &'static str, value: impl Into<String>) {
        self.toned(label, value, Tone::Plain);
    }

    fn toned(&mut self, label: &'static str, value: impl Into<String>, tone: Tone) {
        let value = clean(&value.into());
        if !value.is_empty() {
            self.lines.push(Line::Field(label, value, tone));
        }
    }

    fn count(&mut self, label: &'static str, count: u64) {
        self.lines.push(Line::Field(label, count.to_string(), Tone::Plain));
    }

    fn text(&mut self, heading: &str, lines: impl IntoIterator<Item = String>) {
        self.toned_text(heading, lines, Tone::Plain);
    }

    fn toned_text(&mut self, heading: &str, lines: impl IntoIterator<Item = String>, tone: Tone) {
        self.lines.push(Line::Heading(heading.to_owned()));
        self.lines.extend(lines.into_iter().map(|line| Line::Text(clean(&line), tone)));
    }
}

fn of_item(kind: List, item: &CatalogItem) -> Detail {
    let label = match kind {
        List::Tools | List::Prompts => "name",
        List::Resources => "URI",
        List::Templates => "pattern",
    };
    let mut detail = Detail::new(if item.name.is_empty() { &item.exposed } else { &item.name });
    detail.field(label, &item.exposed);
    detail.field("server", &item.server);
    detail.field("native", &item.native);
    if item.name != item.exposed {
        detail.field(if label == "name" { "title" } else { "name" }, &item.name);
    }
    detail.field("MIME type", &item.mime);
    detail.field("size", item.size.map(exact_size).unwrap_or_default());
    detail.field("arguments", &item.arguments);
    if !item.description.trim().is_empty() {
        detail.text("Description", item.description.trim().lines().map(str::to_owned));
    }
    let text = item.definition.as_str();
    for (key, heading) in [
        ("inputSchema", "Input schema"),
        ("outputSchema", "Output schema"),
        ("arguments", "Arguments"),
        ("annotations", "Annotations"),
        ("_meta", "Metadata"),
    ] {
        if let Some(value) = json::member(text, json::whole(text), key) {
            detail.text(heading, pretty(value.get(text)));
        }
    }
    detail
}

fn of_subscription(info: &SubscriptionInfo) -> Detail {
    let mut detail = Detail::new(&info.uri);
    detail.field("URI", &info.uri);
    detail.field("id", &info.id);
    detail.field("server", &info.server);
    detail.field("state", info.state.as_ref());
    detail.field("created", &info.created);
    detail.field("session", &info.client.id);
    detail.field("client", format!("{} {}", info.client.name, info.client.version));
    detail.count("delivered", info.delivered.into());
    detail.count("coalesced", info.coalesced.into());
    let options = serde_json::to_string(&info.options).unwrap_or_default();
    detail.text("Options", pretty(&options));
    detail
}

fn of_session(info: &SessionInfo) -> Detail {
    let session = match info.stateless {
        true => "stateless: the client sends requests without a session".to_owned(),
        false => format!("…{}", info.id),
    };
    let mut detail = Detail::new(if info.client.is_empty() { &session } else { &info.client });
    detail.field("session", session);
    detail.field("client", &info.client);
    detail.field("version", &info.client_version);
    detail.field("protocol", &info.protocol);
    detail.field("profile", info.profile.as_deref().unwrap_or_default());
    detail.field("started", &info.started);
    detail.field("idle", span(info.idle_seconds));
    detail.count("requests", info.requests);
    detail.count("streams", info.streams as u64);
    detail.count("in flight", info.in_flight as u64);
    detail.count("subscribed", info.subscriptions as u64);
    detail
}

fn of_call(call: &CallInfo) -> Detail {
    let mut detail = Detail::new(if call.name.is_empty() { &call.method } else { &call.name });
    let tone = if is_failed_call(call) { Tone::Bad } else { Tone::Good };
    detail.toned("outcome", call.outcome.replace('_', " "), tone);
    detail.field("code", call.code.as_deref().unwrap_or_default());
    detail.field("time", &call.time);
    detail.field("method", &call.method);
    detail.field("name", &call.name);
    detail.field("server", call.server.as_deref().unwrap_or_default());
    detail.field("client", &call.client);
    detail.field("session", call.session.as_ref().map(|session| format!("…{session}")).unwrap_or_default());
    detail.field("took", units::milliseconds(call.duration_ms));
    detail.field("request", exact_size(call.request_bytes));
    detail.field("answer", exact_size(call.response_bytes));
    detail.count("number", call.seq);
    if let Some(error) = &call.error {
        detail.toned_text("Error", error.lines().map(str::to_owned), Tone::Bad);
    }
    detail
}

fn of_event(event: &EventInfo) -> Detail {
    let mut detail = Detail::new(&event.kind);
    detail.field("time", &event.time);
    detail.toned("level", &event.level, level_tone(&event.level));
    detail.field("kind", &event.kind);
    detail.field("server", event.server.as_deref().unwrap_or_default());
    detail.field("session", event.session.as_deref().unwrap_or_default());
    detail.text("Message", [event.message.clone()]);
    if !event.fields.is_empty() {
        detail.text("Fields", event.fields.iter().map(|(key, value)| format!("{key} = {value}")));
    }
    detail
}
