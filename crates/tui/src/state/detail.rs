//! The lines of the side panel: all details of one row.

use goblin_admin::api::{EventInfo, ServerStatus, SessionInfo, SubscriptionInfo};
use goblin_admin::routes::List;
use goblin_client::units::bytes;
use goblin_telemetry::clean;
use goblin_wire::json;

use crate::state::data::{CatalogItem, DashboardData};
use crate::state::format::span;
use crate::state::json::pretty;
use crate::state::table::{RowItem, milliseconds};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    Heading(String),
    Field(&'static str, String),
    Text(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    pub title: String,
    pub lines: Vec<Line>,
}

impl Detail {
    pub fn of(what: RowItem, data: &DashboardData) -> Option<Detail> {
        Some(match what {
            RowItem::Server(at) => of_server(data.servers().get(at)?),
            RowItem::Item(kind, at) => of_item(kind, data.items(kind).get(at)?),
            RowItem::Subscription(at) => of_subscription(data.subscriptions.subscriptions.get(at)?),
            RowItem::Session(at) => of_session(data.sessions.sessions.get(at)?),
            RowItem::Event(at) => of_event(data.events.get(at)?),
        })
    }

    fn new(title: &str) -> Detail {
        Detail { title: clean(title), lines: Vec::new() }
    }

    /// Adds a field, unless its value is empty.
    fn field(&mut self, label: &'static str, value: impl Into<String>) {
        let value = clean(&value.into());
        if !value.is_empty() {
            self.lines.push(Line::Field(label, value));
        }
    }

    fn count(&mut self, label: &'static str, count: u64) {
        self.lines.push(Line::Field(label, count.to_string()));
    }

    fn text(&mut self, heading: &str, lines: impl IntoIterator<Item = String>) {
        self.lines.push(Line::Heading(heading.to_owned()));
        self.lines.extend(lines.into_iter().map(|line| Line::Text(clean(&line))));
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
    detail.field("size", item.size.map(|size| format!("{} ({size} bytes)", bytes(size))).unwrap_or_default());
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

fn of_server(server: &ServerStatus) -> Detail {
    let mut detail = Detail::new(&server.id);
    detail.field("server", &server.id);
    detail.field("state", &server.state);
    detail.field("reason", server.reason.as_deref().unwrap_or_default());
    detail.field("transport", server.transport.as_deref().unwrap_or_default());
    detail.field("protocol", server.protocol.as_deref().unwrap_or_default());
    detail.field("era", server.era.as_deref().unwrap_or_default());
    detail.field("software", &server.software);
    detail.field("session", &server.session);
    detail.field("own links", server.client_links.map(|links| links.to_string()).unwrap_or_default());
    detail.count("restarts", server.restarts);
    detail.count("in flight", server.in_flight as u64);
    let entries = server.entries;
    detail.text(
        "Offers",
        [
            format!("{} tools, {} prompts", entries.tools, entries.prompts),
            format!("{} resources, {} templates", entries.resources, entries.templates),
            format!("{} subscriptions", server.subscriptions),
        ],
    );
    if !server.lacking.is_empty() {
        detail.text("Lacking", server.lacking.clone());
    }
    let calls = server.calls;
    let ends = [
        ("ok", calls.ok),
        ("error", calls.error),
        ("timeout", calls.timeout),
        ("cancelled", calls.cancelled),
        ("unavailable", calls.unavailable),
        ("overloaded", calls.overloaded),
        ("protocol", calls.protocol),
    ];
    detail.lines.push(Line::Heading("Calls".to_owned()));
    for (label, count) in ends {
        detail.count(label, count);
    }
    let latency = server.latency;
    detail.lines.push(Line::Heading("Latency".to_owned()));
    for (label, value) in
        [("mean", latency.mean_ms), ("p50", latency.p50_ms), ("p95", latency.p95_ms), ("p99", latency.p99_ms)]
    {
        detail.field(label, value.map(milliseconds).unwrap_or_else(|| "no answer yet".to_owned()));
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
    let mut detail = Detail::new(&format!("…{}", info.id));
    detail.field("session", format!("…{}", info.id));
    detail.field("client", &info.client);
    detail.field("version", &info.client_version);
    detail.field("protocol", &info.protocol);
    detail.field("profile", info.profile.as_deref().unwrap_or_default());
    detail.field("started", &info.started);
    detail.field("idle", span(info.idle_seconds));
    detail.count("streams", info.streams as u64);
    detail.count("in flight", info.in_flight as u64);
    detail.count("subscribed", info.subscriptions as u64);
    detail
}

fn of_event(event: &EventInfo) -> Detail {
    let mut detail = Detail::new(&event.kind);
    detail.field("time", &event.time);
    detail.field("level", &event.level);
    detail.field("kind", &event.kind);
    detail.field("server", event.server.as_deref().unwrap_or_default());
    detail.field("session", event.session.as_deref().unwrap_or_default());
    detail.text("Message", [event.message.clone()]);
    if !event.fields.is_empty() {
        detail.text("Fields", event.fields.iter().map(|(key, value)| format!("{key} = {value}")));
    }
    detail
}
