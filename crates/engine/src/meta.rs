//! The gateway's own tools. They search and describe the catalog for clients that do not see all of it in their lists.
//!
//! A tool sees exactly what its caller sees. Problems are tool errors, which an agent can read and correct. All work
//! runs outside the runtime threads, so a search among many entries delays no other call. A call of `call_tool` reaches
//! this module only to be rejected: `unwrap_call` has replaced a valid one with the call that it names.

mod arguments;
mod cards;
mod describe;
mod list;
mod schema_text;
pub(crate) mod words;

use std::sync::Arc;

use goblin_catalog::instructions::{self, MAX_INSTRUCTIONS};
use goblin_catalog::listing::List;
use goblin_catalog::meta::{MetaEntry, MetaTool};
use goblin_telemetry::{clean, worker};
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Message, Method, Request};

use crate::catalog_store::{Catalog, Source, View};
use crate::client::call::Call;
use crate::client::caller::Caller;
use crate::meta::arguments::MetaArguments;
use crate::meta::cards::ObjectBuilder;
use crate::router::{Router, find_resource};
use crate::upstream::availability::{Availability, MisconfiguredServer};

/// The result of a tool, in two forms: for programs and for readers.
struct MetaResult {
    /// An object that conforms to the tool's output schema.
    structured: String,
    text: String,
}

/// One call of one of the gateway's own tools.
struct MetaCall<'a> {
    view: View<'a>,
    catalog: &'a Catalog,
    call: &'a Call,
    entry: &'a MetaEntry,
    /// The servers that do not run because of their configuration.
    misconfigured: &'a [MisconfiguredServer],
}

impl Router {
    /// Returns the result of a call of one of the gateway's own tools. Returns `None` if `name` is not one of them.
    pub(crate) async fn meta_result(&self, call: &Arc<Call>, name: &str) -> Option<String> {
        let tool = self.catalogs.catalog_of(&call.caller).meta.find(name)?.tool;
        self.prepare_for(tool, call).await;
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        let (call, name) = (Arc::clone(call), name.to_owned());
        let misconfigured = self.catalogs.misconfigured_of(&call.caller);
        let result = worker::compute(move || {
            let entry = catalog.meta.find(&name)?;
            let view = catalog.view_for(call.caller.viewer());
            let meta_call = MetaCall { view, catalog: &catalog, call: &call, entry, misconfigured: &misconfigured };
            Some(meta_call.answer().map_or_else(|message| tool_error(&message), |answer| tool_result(&answer)))
        });
        result.await.unwrap_or_else(|| Some(tool_error("the gateway is shutting down: try again later")))
    }

    /// Brings the lists up to date that a meta tool reads: those that may have the entry it names, or all.
    async fn prepare_for(&self, tool: MetaTool, call: &Arc<Call>) {
        let text = call.request.raw.as_str();
        let key = match tool {
            MetaTool::DescribeResource => "uri",
            MetaTool::DescribeTool | MetaTool::DescribePrompt | MetaTool::CallTool => "name",
            _ => return self.prepare_lists(call).await,
        };
        let named = call.request.params.arguments.and_then(|arguments| json::member(text, arguments, key));
        let Some(named) = named.and_then(|at| json::string(text, at)) else { return };
        let find = |view: View<'_>| match tool {
            MetaTool::DescribeResource => find_resource(view, &named).map(drop),
            MetaTool::DescribePrompt => view.prompt(&named).map(drop),
            _ => view.tool(&named).map(drop),
        };
        // The tool looks the entry up again, so the result of this lookup does not matter.
        let _ = self.look_up(find, call).await;
    }

    /// Returns the call that a call of `call_tool` names. The gateway then handles that call in its place. Returns
    /// `None` if the request is not a valid call of `call_tool`.
    pub(crate) fn unwrap_call(&self, caller: &Caller, request: &Request) -> Option<Request> {
        let name_at = request.params.name.filter(|_| request.method == Method::ToolsCall)?;
        let name = json::string(request.raw.as_str(), name_at)?;
        let catalog = self.catalogs.catalog_of(caller);
        if catalog.meta.is_call(&name) { unwrap(catalog.view(caller.dialect), request, name_at) } else { None }
    }
}

/// Returns the tool name and the arguments in the arguments of `call_tool`. Returns `None` if they do not fit the
/// schema or have a duplicate key.
fn inner_call(text: &str, arguments: Span) -> Option<(Span, Option<Span>)> {
    let (mut name, mut inner) = (None, None);
    for member in json::members(text, arguments) {
        let slot = match &*member.key(text) {
            "name" => &mut name,
            "arguments" => &mut inner,
            _ => return None,
        };
        if slot.replace(member.value).is_some() {
            return None;
        }
    }
    let is_object = inner.is_none_or(|at: Span| at.get(text).starts_with('{'));
    is_object.then_some((name?, inner))
}

fn unwrap(view: View<'_>, request: &Request, name_at: Span) -> Option<Request> {
    let text = request.raw.as_str();
    let arguments_at = request.params.arguments?;
    let (inner_name, inner_arguments) = inner_call(text, arguments_at)?;
    // A continued call was admitted before. If its tool is gone by now, a later step reports that.
    let is_continued = request.params.request_state.is_some();
    if !is_continued && view.tool(&json::string(text, inner_name)?).is_err() {
        return None;
    }
    let slice = |at: Span| at.slice(request.raw.bytes());
    let mut edits = Splice::new();
    edits.replace(name_at, slice(inner_name));
    edits.replace(arguments_at, inner_arguments.map_or_else(|| "{}".into(), slice));
    match Message::parse(edits.apply(request.raw.bytes())) {
        Ok(Message::Request(request)) => Some(request),
        _ => None,
    }
}

impl MetaCall<'_> {
    fn answer(&self) -> Result<MetaResult, String> {
        let arguments = MetaArguments::read(self)?;
        match self.entry.tool {
            MetaTool::ListServers => Ok(self.list_servers(arguments.server_id.as_deref())),
            MetaTool::CatalogTools => self.list_all(List::Tools, &arguments),
            MetaTool::CatalogPrompts => self.list_all(List::Prompts, &arguments),
            MetaTool::CatalogResources => self.list_all(List::Resources, &arguments),
            MetaTool::CatalogTemplates => self.list_all(List::Templates, &arguments),
            MetaTool::SearchTools => Ok(self.search(&[List::Tools], &arguments)),
            MetaTool::SearchPrompts => Ok(self.search(&[List::Prompts], &arguments)),
            MetaTool::SearchResources => Ok(self.search(&[List::Resources, List::Templates], &arguments)),
            MetaTool::DescribeTool => self.describe_tool(&arguments.name),
            MetaTool::DescribePrompt => self.describe_prompt(&arguments.name),
            MetaTool::DescribeResource => self.describe_resource(&arguments.uri),
            MetaTool::CallTool => Err(self.reject_call(&arguments.name)),
        }
    }

    /// Returns all servers, or one server with its instructions.
    fn list_servers(&self, only: Option<&str>) -> MetaResult {
        let (mut servers, mut lines) = (Vec::new(), Vec::new());
        let is_wanted = |source: &Source| only.is_none_or(|id| source.backend.id.as_str() == id);
        let sources = self.catalog.sources.iter().zip(self.catalog.counts());
        for (source, counts) in sources.filter(|(source, _)| is_wanted(source)) {
            let (id, state) = (source.backend.id.as_str(), Availability::of(&source.backend).as_str());
            let instructions = only.and_then(|_| instructions::text_of(source));
            let instructions = instructions.map(|text| words::cut(text, MAX_INSTRUCTIONS));
            let is_stale = source.backend.is_stale();
            let card = server_card(id, state, counts).string("instructions", instructions.as_deref());
            let card = card.raw("stale", is_stale.then_some(true));
            servers.push(card.object());
            let counts = List::ALL.map(|list| format!("{} {}s", counts[list as usize], list.noun()));
            let mark = if is_stale { " (stale)" } else { "" };
            lines.push(format!("{id} - {state}: {}{mark}", counts.join(", ")));
            lines.extend(instructions.map(|text| format!("\n{text}")));
        }
        for server in self.misconfigured.iter().filter(|server| only.is_none_or(|id| server.id.as_str() == id)) {
            let (id, state) = (server.id.as_str(), Availability::Misconfigured.as_str());
            let reason = clean(&server.misconfiguration.summary());
            servers.push(server_card(id, state, [0; 4]).string("reason", reason.as_str()).object());
            lines.push(format!("{id} - {state}: {reason}"));
        }
        let structured = ObjectBuilder::default().array("servers", &servers).raw("total", Some(servers.len())).object();
        let text = if lines.is_empty() { "no servers".to_owned() } else { lines.join("\n") };
        MetaResult { structured, text }
    }

    /// Returns the reason why a call of `call_tool` names no valid call.
    fn reject_call(&self, name: &str) -> String {
        if self.catalog.meta.find(name).is_some() {
            return format!(
                "`{name}` is one of the gateway's own tools: call it by its name, not with `{}`",
                self.entry.name
            );
        }
        match self.view.tool(name) {
            Err(error) => self.not_found(List::Tools, name, &error),
            // The tool appeared after `unwrap_call`, or a key is duplicated.
            Ok(_) => format!("`{name}` was not called: give name and arguments once each, and try again"),
        }
    }
}

fn server_card(id: &str, state: &str, counts: [usize; 4]) -> ObjectBuilder {
    let members = ObjectBuilder::default().string("serverId", id).string("state", state);
    List::ALL
        .iter()
        .fold(members, |members, list| members.raw(&format!("{}s", list.noun()), Some(counts[*list as usize])))
}

fn tool_result(answer: &MetaResult) -> String {
    let MetaResult { structured, text } = answer;
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{structured}}}"#, quote(text))
}

fn tool_error(message: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, quote(message))
}
