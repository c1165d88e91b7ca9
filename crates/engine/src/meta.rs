//! The gateway's own tools. They search and describe the catalog for clients that do not see all of it in their lists.
//!
//! A tool sees exactly what its caller sees. Problems are tool errors, which an agent can read and correct. All work
//! runs outside the runtime threads, so a search among many entries delays no other call. A call of `call_tool` reaches
//! this module only to be rejected: `unwrap_call` has replaced a valid one with the call that it names.

mod arguments;
mod cards;
mod describe;
mod list;
pub(crate) mod words;

use std::sync::Arc;

use goblin_catalog::listing::List;
use goblin_catalog::meta::{MetaEntry, MetaTool};
use goblin_telemetry::worker;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Message, Method, Request};

use crate::catalog_store::{Catalog, View};
use crate::client::call::Call;
use crate::client::caller::Caller;
use crate::meta::arguments::MetaArguments;
use crate::meta::cards::ObjectBuilder;
use crate::router::{Router, find_resource};
use crate::upstream::availability::Availability;

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
}

impl Router {
    /// Returns the result of a call of one of the gateway's own tools. Returns `None` if `name` is not one of them.
    pub(crate) async fn meta_result(&self, call: &Arc<Call>, name: &str) -> Option<String> {
        let tool = self.catalogs.catalog_of(&call.caller).meta.find(name)?.tool;
        self.prepare_for(tool, call).await;
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        let (call, name) = (Arc::clone(call), name.to_owned());
        let result = worker::compute(move || {
            let entry = catalog.meta.find(&name)?;
            let meta_call = MetaCall { view: catalog.view(call.caller.dialect), catalog: &catalog, call: &call, entry };
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
            MetaTool::ListServers => Ok(self.list_servers()),
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

    fn list_servers(&self) -> MetaResult {
        let (mut servers, mut lines) = (Vec::new(), Vec::new());
        for (source, counts) in self.catalog.sources.iter().zip(self.catalog.counts()) {
            let (id, state) = (source.backend.id.as_str(), Availability::of(&source.backend).as_str());
            let counts = List::ALL.map(|list| (format!("{}s", list.noun()), counts[list as usize]));
            let members = ObjectBuilder::default().string("serverId", id).string("state", state);
            let members = counts.iter().fold(members, |members, (kind, count)| members.raw(kind, Some(count)));
            servers.push(members.object());
            let summary: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            lines.push(format!("{id} - {state}: {}", summary.join(", ")));
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

fn tool_result(answer: &MetaResult) -> String {
    let MetaResult { structured, text } = answer;
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{structured}}}"#, quote(text))
}

fn tool_error(message: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, quote(message))
}
