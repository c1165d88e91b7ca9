//! The gateway's own tools: a look at the catalog for clients that do not have all of it before them.
//!
//! They see what their caller sees, and nothing else. What goes wrong is a tool error, which an agent can read and mend.

use std::sync::Arc;

use crate::caller::Caller;
use crate::catalog::meta::MetaTool;
use crate::catalog::{Catalog, Listed};
use crate::lane::Call;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Splice, quote};
use crate::protocol::method::Method;
use crate::protocol::{Message, Request};
use crate::router::{Reply, Router};

impl Router {
    /// The result of a call of one of our own tools, if that is what `name` is.
    pub(crate) async fn meta_result(&self, call: &Call, name: &str) -> Option<String> {
        let catalog = Arc::clone(&self.directory.catalog_of(call.caller.profile.as_ref()));
        let tool = catalog.meta.find(name)?;
        Some(tool_error(tool.name()))
    }

    /// The call that a call of `call_tool` stands for: from here on it is that call. Nothing where it is another's; the
    /// answer that says why where it stands for none.
    pub fn unwrap_call(&self, caller: &Caller, request: &Request) -> Result<Option<Request>, Reply> {
        let text = request.raw.as_str();
        let name = request.params.name.filter(|_| request.method == Method::ToolsCall);
        let Some(name) = name.and_then(|at| json::string(text, at)) else { return Ok(None) };
        let catalog = self.directory.catalog_of(caller.profile.as_ref());
        if !catalog.meta.is_call(&name) {
            return Ok(None);
        }
        unwrap(&catalog, request).map(Some).map_err(|result| self.own_result(caller, request, &result))
    }
}

fn unwrap(catalog: &Catalog, request: &Request) -> Result<Request, String> {
    let text = request.raw.as_str();
    let (Some(name_at), Some(arguments_at)) = (request.params.name, request.params.arguments) else {
        return Err(tool_error("name is missing: the tool to call"));
    };
    let member = |key| json::member(text, arguments_at, key);
    let Some(wanted) = member("name").and_then(|at| json::string(text, at)) else {
        return Err(tool_error("name must be a string: the tool to call"));
    };
    let arguments = member("arguments").map(|at| at.get(text));
    let mut edits = Splice::new();
    edits.replace(name_at, quote(&wanted));
    edits.replace(arguments_at, arguments.unwrap_or("{}").to_owned());
    match Message::parse(edits.apply(request.raw.bytes())) {
        Ok(Message::Request(request)) => Ok(request),
        _ => Err(tool_error("arguments must be an object")),
    }
}

fn tool_error(words: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, quote(words))
}
