//! The gateway's own tools: a look at the catalog for clients that do not have all of it before them.
//!
//! They see what their caller sees, and nothing else. What goes wrong is a tool error, which an agent can read and mend.
//! All of it is worked out off the threads of the runtime: a search among many entries must hold up no call. `call_tool`
//! comes here only to be refused; one that stands for a call has become that call before anybody looks.

mod arguments;
mod cards;
mod describe;
mod list;
pub mod words;

use std::collections::HashMap;
use std::sync::Arc;

use goblin_catalog::listing::List;
use crate::upstream::standing::Standing;
use crate::client::caller::Caller;
use goblin_catalog::meta::{MetaEntry, MetaTool};
use crate::directory::{Catalog, View};
use crate::client::lane::Call;
use crate::meta::arguments::Arguments;
use crate::meta::words::tool_not_found;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::method::Method;
use goblin_wire::{Message, Request};
use crate::router::{Router, find_resource};
use goblin_telemetry::worker;

/// What one of them says: the same twice, for programs and for readers.
struct Answer {
    /// An object by the tool's output schema.
    structured: String,
    text: String,
}

/// One call of one of them.
struct Look<'a> {
    view: View<'a>,
    catalog: &'a Catalog,
    call: &'a Call,
    entry: &'a MetaEntry,
}

impl Router {
    /// The result of a call of one of our own tools, if that is what `name` is.
    pub(crate) async fn meta_result(&self, call: &Arc<Call>, name: &str) -> Option<String> {
        let tool = self.directory.catalog_of(call.caller.profile.as_ref()).meta.find(name)?.tool;
        if tool == MetaTool::DescribeResource {
            self.await_resource(call).await;
        }
        let catalog = Arc::clone(&self.directory.catalog_of(call.caller.profile.as_ref()));
        let (call, name) = (Arc::clone(call), name.to_owned());
        let looked = worker::compute(move || {
            let entry = catalog.meta.find(&name)?;
            let look = Look { view: catalog.view(call.caller.dialect), catalog: &catalog, call: &call, entry };
            Some(look.answer().map_or_else(|words| tool_error(&words), |answer| result(&answer)))
        });
        looked.await.unwrap_or_else(|| Some(tool_error("the gateway is shutting down: try again later")))
    }

    /// D13: waits for the lists that are being fetched, where the resource that is asked for may be in them.
    async fn await_resource(&self, call: &Call) {
        let text = call.request.raw.as_str();
        let uri = call.request.params.arguments.and_then(|arguments| json::member(text, arguments, "uri"));
        if let Some(uri) = uri.and_then(|at| json::string(text, at)) {
            // Whether it came or not is seen by whoever looks next.
            let _ = self.look_up(|view| find_resource(view, &uri), &call.caller).await;
        }
    }

    /// The call that a call of `call_tool` stands for: from here on it is that call. Nothing where it stands for none.
    pub fn unwrap_call(&self, caller: &Caller, request: &Request) -> Option<Request> {
        let name_at = request.params.name.filter(|_| request.method == Method::ToolsCall)?;
        let name = json::string(request.raw.as_str(), name_at)?;
        let catalog = self.directory.catalog_of(caller.profile.as_ref());
        if catalog.meta.is_call(&name) { unwrap(catalog.view(caller.dialect), request, name_at) } else { None }
    }
}

/// What a call of `call_tool` names.
struct Wanted {
    name: Span,
    arguments: Option<Span>,
}

impl Wanted {
    /// Nothing where it does not fit the schema, or says anything twice.
    fn read(text: &str, arguments: Span) -> Option<Wanted> {
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
        is_object.then_some(Wanted { name: name?, arguments: inner })
    }
}

fn unwrap(view: View<'_>, request: &Request, name_at: Span) -> Option<Request> {
    let text = request.raw.as_str();
    let arguments_at = request.params.arguments?;
    let wanted = Wanted::read(text, arguments_at)?;
    // A call that goes on has been let in before; its tool may be gone by now, which is for others to say.
    let goes_on = request.params.request_state.is_some();
    if !goes_on && view.tool(&json::string(text, wanted.name)?).is_err() {
        return None;
    }
    let slice = |at: Span| at.slice(request.raw.bytes());
    let mut edits = Splice::new();
    edits.replace(name_at, slice(wanted.name));
    edits.replace(arguments_at, wanted.arguments.map_or_else(|| "{}".into(), slice));
    match Message::parse(edits.apply(request.raw.bytes())) {
        Ok(Message::Request(request)) => Some(request),
        _ => None,
    }
}

impl Look<'_> {
    fn answer(&self) -> Result<Answer, String> {
        let arguments = Arguments::read(self)?;
        match self.entry.tool {
            MetaTool::ListServers => Ok(self.list_servers()),
            MetaTool::CatalogTools => self.list_all(List::Tools, &arguments),
            MetaTool::CatalogPrompts => self.list_all(List::Prompts, &arguments),
            MetaTool::CatalogResources => self.list_all(List::Resources, &arguments),
            MetaTool::CatalogTemplates => self.list_all(List::Templates, &arguments),
            MetaTool::SearchTools => self.search(&[List::Tools], &arguments),
            MetaTool::SearchPrompts => self.search(&[List::Prompts], &arguments),
            MetaTool::SearchResources => self.search(&[List::Resources, List::Templates], &arguments),
            MetaTool::DescribeTool => self.describe_tool(&arguments.name),
            MetaTool::DescribePrompt => self.describe_prompt(&arguments.name),
            MetaTool::DescribeResource => self.describe_resource(&arguments.uri),
            MetaTool::CallTool => Err(self.refuse_call(&arguments.name)),
        }
    }

    fn list_servers(&self) -> Answer {
        let mut counted: HashMap<&str, [usize; 4]> = HashMap::new();
        for list in List::ALL {
            for place in 0..self.catalog.count(list) {
                counted.entry(self.catalog.shown(list, place).server).or_default()[list as usize] += 1;
            }
        }
        let (mut servers, mut lines) = (Vec::new(), Vec::new());
        for source in &self.catalog.sources {
            let (id, state) = (source.backend.id.as_str(), Standing::of(&source.backend).word());
            let own = counted.get(id).copied().unwrap_or_default();
            let counts = List::ALL.map(|list| (list::member(list), own[list as usize]));
            let members: String = counts.iter().map(|(kind, count)| format!(r#","{kind}":{count}"#)).collect();
            servers.push(format!(r#"{{"serverId":{},"state":"{state}"{members}}}"#, quote(id)));
            let words: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            lines.push(format!("{id} - {state}: {}", words.join(", ")));
        }
        let structured = format!(r#"{{"servers":[{}],"total":{}}}"#, servers.join(","), servers.len());
        let text = if lines.is_empty() { "no servers".to_owned() } else { lines.join("\n") };
        Answer { structured, text }
    }

    /// Why a call of `call_tool` stands for none.
    fn refuse_call(&self, wanted: &str) -> String {
        if self.catalog.meta.find(wanted).is_some() {
            return format!(
                "`{wanted}` is one of the gateway's own tools: call it by its name, not with `{}`",
                self.entry.name
            );
        }
        match self.view.tool(wanted) {
            Err(error) => tool_not_found(self.catalog, wanted, &error),
            // It came between two looks, or something stands twice.
            Ok(_) => format!("`{wanted}` was not called: say name and arguments once each, and try again"),
        }
    }
}

fn result(answer: &Answer) -> String {
    let Answer { structured, text } = answer;
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{structured}}}"#, quote(text))
}

fn tool_error(words: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, quote(words))
}
