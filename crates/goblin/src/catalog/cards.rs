//! Lists, searches and describes the entries of the catalog. A card is the short form of an entry.
//!
//! If the gateway serves meta tools, they return the cards. Otherwise the lists of the protocol are read to their end.

use goblin_catalog::listing::List;
use goblin_catalog::meta::MetaTool;
use goblin_catalog::search::nearest;
use goblin_client::content::ToolOutput;
use goblin_telemetry::clean;
use goblin_wire::json::{self, quote};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::ListFilter;
use crate::catalog::client::CatalogClient;
use crate::cli::CliError;

/// The number of cards per page, which is also the gateway's maximum.
const PAGE: usize = 1000;
/// The maximum number of pages to read from a list of the protocol.
const MAX_PAGES: usize = 1000;
/// How often a list is started again because it changed between two pages.
const MAX_RESTARTS: usize = 3;

const SERVER: &str = "dev.goblin/server";

/// Returns the meta tool that lists entries of this kind.
fn catalog_tool(kind: List) -> MetaTool {
    match kind {
        List::Tools => MetaTool::CatalogTools,
        List::Prompts => MetaTool::CatalogPrompts,
        List::Resources => MetaTool::CatalogResources,
        List::Templates => MetaTool::CatalogTemplates,
    }
}

/// Returns the member that holds the cards in the result of a meta tool.
fn member(kind: List) -> String {
    format!("{}s", kind.noun())
}

/// An entry in short form.
pub(crate) struct Card {
    raw: String,
    value: Value,
}

impl Card {
    fn new(raw: String) -> Card {
        let value = serde_json::from_str(&raw).unwrap_or_default();
        Card { raw, value }
    }

    /// Builds the card of a definition.
    fn of(definition: &Value) -> Card {
        let keys = ["name", "uri", "uriTemplate", "description", "mimeType", "size"];
        let members = keys.iter().filter_map(|key| Some(((*key).to_owned(), definition.get(key)?.clone())));
        let server = definition["_meta"].get(SERVER).map(|server| ("serverId".to_owned(), server.clone()));
        let value = Value::Object(members.chain(server).collect());
        Card { raw: value.to_string(), value }
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.value[key].as_str().unwrap_or_default()
    }

    pub(crate) fn size(&self) -> Option<u64> {
        self.value["size"].as_u64()
    }
}

pub(crate) struct Cards {
    pub kind: List,
    pub cards: Vec<Card>,
    /// The number of entries that match, including those that are not listed here.
    pub total: usize,
    pub note: Option<String>,
}

impl Cards {
    /// Reads the cards of one kind from the structured content of a list or a search.
    pub(crate) fn read(kind: List, structure: &str) -> Cards {
        let whole = json::whole(structure);
        let elements = json::member(structure, whole, &member(kind)).map(|list| json::elements(structure, list));
        let cards = elements.into_iter().flatten().map(|card| Card::new(card.get(structure).to_owned()));
        let total = json::member(structure, whole, "total").and_then(|total| total.get(structure).parse().ok());
        let note = json::member(structure, whole, "note").and_then(|note| json::string(structure, note));
        let cards: Vec<_> = cards.collect();
        Cards { kind, total: total.unwrap_or(cards.len()), cards, note: note.map(|note| note.into_owned()) }
    }

    /// Returns the same JSON as the meta tool would, on one page.
    pub(crate) fn to_json(&self) -> String {
        let cards: Vec<_> = self.cards.iter().map(|card| card.raw.as_str()).collect();
        let note = self.note.as_ref().map(|note| format!(r#","note":{}"#, quote(note))).unwrap_or_default();
        format!(r#"{{"{}":[{}],"total":{}{note}}}"#, member(self.kind), cards.join(","), self.total)
    }
}

/// Lists the entries of one kind, up to the limit of `filter`.
pub(crate) async fn list(client: &mut CatalogClient, kind: List, filter: &ListFilter) -> Result<Cards, CliError> {
    if !client.has_meta_tools() {
        return of_protocol(client, kind, filter).await;
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        match of_catalog(client, kind, filter).await {
            Err(ListError::Stale(_)) if attempts < MAX_RESTARTS => {}
            Err(ListError::Stale(failure) | ListError::Other(failure)) => return Err(failure),
            Ok(cards) => return Ok(cards),
        }
    }
}

/// The reason why a list was not read to its end.
enum ListError {
    /// The list changed after the first page, so its cursor is invalid.
    Stale(CliError),
    Other(CliError),
}

async fn of_catalog(client: &mut CatalogClient, kind: List, filter: &ListFilter) -> Result<Cards, ListError> {
    let max = filter.limit.map_or(usize::MAX, |limit| limit as usize);
    let mut all = Cards { kind, cards: Vec::new(), total: 0, note: None };
    let mut cursor: Option<String> = None;
    loop {
        let mut arguments = json!({ "limit": (max - all.cards.len()).min(PAGE) });
        if let Some(server) = &filter.server {
            arguments["serverId"] = server.as_str().into();
        }
        if let Some(cursor) = &cursor {
            arguments["cursor"] = cursor.as_str().into();
        }
        let outcomes =
            client.call_meta_tool(catalog_tool(kind).as_str(), &arguments).await.map_err(|failure| match failure {
                CliError::Usage(_) if cursor.is_some() => ListError::Stale(failure),
                other => ListError::Other(other),
            })?;
        let structure = structure(&outcomes).map_err(ListError::Other)?;
        let page = Cards::read(kind, structure);
        let next = json::member(structure, json::whole(structure), "nextCursor");
        cursor = next.and_then(|next| json::string(structure, next)).map(|next| next.into_owned());
        (all.total, all.note) = (page.total, page.note);
        all.cards.extend(page.cards);
        if cursor.is_none() || all.cards.len() >= max {
            return Ok(all);
        }
    }
}

/// Returns the structured content of a meta tool's result.
fn structure(outcomes: &ToolOutput) -> Result<&str, CliError> {
    let structure = outcomes.structure();
    structure.ok_or_else(|| CliError::Unavailable("the gateway answered without structuredContent".to_owned()))
}

async fn of_protocol(client: &mut CatalogClient, kind: List, filter: &ListFilter) -> Result<Cards, CliError> {
    let mut cards: Vec<_> = definitions(client, kind).await?.iter().map(|(_, value)| Card::of(value)).collect();
    if let Some(server) = &filter.server {
        let known = cards.iter().map(|card| card.text("serverId").to_owned()).collect::<Vec<_>>();
        cards.retain(|card| card.text("serverId") == server);
        if cards.is_empty() && !known.contains(server) {
            let near = did_you_mean(server, known.iter().map(String::as_str));
            return Err(CliError::Usage(format!(
                "there is no {} of a server {}{near}",
                kind.noun(),
                quote(&clean(server))
            )));
        }
    }
    let total = cards.len();
    cards.truncate(filter.limit.map_or(usize::MAX, |limit| limit as usize));
    Ok(Cards { kind, cards, total, note: None })
}

/// Returns all definitions from the protocol's list: the JSON text, and the parsed value.
async fn definitions(client: &mut CatalogClient, kind: List) -> Result<Vec<(String, Value)>, CliError> {
    let (mut definitions, mut params) = (Vec::new(), "{}".to_owned());
    for _ in 0..MAX_PAGES {
        let result: Box<RawValue> = client.request(&kind.method(), &params).await?;
        let (text, whole) = (result.get(), json::whole(result.get()));
        let elements = json::member(text, whole, kind.member()).map(|list| json::elements(text, list));
        definitions.extend(elements.into_iter().flatten().map(|at| {
            let raw = at.get(text).to_owned();
            let value = serde_json::from_str(&raw).unwrap_or_default();
            (raw, value)
        }));
        let next = json::member(text, whole, "nextCursor").filter(|next| next.get(text).starts_with('"'));
        let Some(next) = next else { break };
        params = format!(r#"{{"cursor":{}}}"#, next.get(text));
    }
    Ok(definitions)
}

/// Searches with the meta tool `tool`. Returns its structured content, with the best match first.
pub(crate) async fn search(
    client: &mut CatalogClient,
    tool: &str,
    filter: &ListFilter,
    mut arguments: Value,
) -> Result<String, CliError> {
    if !client.has_meta_tools() {
        return Err(CliError::Usage(format!(
            "the gateway at {} cannot search, because it is another program or version; use list instead",
            client.place
        )));
    }
    if let Some(server) = &filter.server {
        arguments["serverId"] = server.as_str().into();
    }
    if let Some(limit) = filter.limit {
        arguments["limit"] = limit.into();
    }
    let outcomes = client.call_meta_tool(tool, &arguments).await?;
    structure(&outcomes).map(str::to_owned)
}

/// An entry in full.
pub(crate) struct EntryDefinition {
    pub server: String,
    /// The result of the meta tool, unchanged.
    pub json: String,
    pub value: Value,
}

/// Returns the tool or prompt with this name. Returns an error with a suggestion if there is none.
pub(crate) async fn describe(client: &mut CatalogClient, kind: List, name: &str) -> Result<EntryDefinition, CliError> {
    let noun = kind.noun();
    if client.has_meta_tools() {
        let outcomes = client.call_meta_tool(&format!("describe_{noun}"), &json!({ "name": name })).await?;
        let json = structure(&outcomes)?.to_owned();
        let mut value: Value = serde_json::from_str(&json).unwrap_or_default();
        let server = value["serverId"].as_str().unwrap_or_default().to_owned();
        return Ok(EntryDefinition { server, json, value: value[noun].take() });
    }
    let definitions = definitions(client, kind).await?;
    let Some((raw, value)) = definitions.iter().find(|(_, value)| value["name"] == name) else {
        let near = did_you_mean(name, definitions.iter().filter_map(|(_, value)| value["name"].as_str()));
        return Err(CliError::Usage(format!("there is no {noun} {}{near}", quote(&clean(name)))));
    };
    let server = value["_meta"][SERVER].as_str().unwrap_or_default().to_owned();
    let json = format!(r#"{{"serverId":{},"{noun}":{raw}}}"#, quote(&server));
    Ok(EntryDefinition { server, json, value: value.clone() })
}

fn did_you_mean<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = nearest(wrong, known, 1).into_iter().map(|near| quote(&clean(near)));
    near.map(|near| format!("; did you mean {near}?")).collect()
}
