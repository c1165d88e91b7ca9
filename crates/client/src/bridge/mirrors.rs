//! Builds the HTTP headers that mirror a request without a session.
//!
//! A tool's definition declares which arguments headers must mirror, and a client on stdio need not know them. Few
//! tools declare any. The bridge therefore lists the tools only after the gateway rejected a call for missing headers,
//! and caches the result. The rejected call had no effect, so it is sent again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use goblin_wire::headers::PROTOCOL_VERSION;
use goblin_wire::json::{self, Span};
use goblin_wire::mirror::{Mirrors, encode};
use goblin_wire::mirrored::HeaderSource;
use goblin_wire::modern::{CLIENT_CAPABILITIES, PROTOCOL_VERSION as VERSION_KEY};
use goblin_wire::{Id, Message, Method, Outcome, Request, Response, mirrored};
use http::HeaderMap;
use http::header::HeaderValue;
use tokio::sync::Semaphore;

use crate::bridge::Bridge;
use crate::bridge::stateless::answer;
use crate::bridge::wire::ResponseMessages;

/// The maximum number of pages of the tool list. Tools on later pages are called without mirrored arguments.
const MAX_PAGES: usize = 100;
/// The timeout for listing the tools. After it the client gets the original error.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

type ToolMirrors = HashMap<String, Mirrors>;

pub(crate) struct MirrorCache {
    /// The tools with mirrored arguments, from the last listing.
    tools: ArcSwap<ToolMirrors>,
    /// One permit, so that concurrent rejections cause one listing.
    refresh: Semaphore,
}

impl Default for MirrorCache {
    fn default() -> MirrorCache {
        MirrorCache { tools: ArcSwap::default(), refresh: Semaphore::new(1) }
    }
}

impl Bridge {
    /// Returns the headers of a request, with the mirrored arguments as far as they are known.
    pub(crate) fn headers_of(&self, request: &Request) -> HeaderMap {
        headers(request, &self.mirrors.tools.load())
    }

    /// Returns different headers for a call that was rejected with `sent`. Returns `None` if the tool needs no others.
    pub(crate) async fn refresh_mirrors(&self, request: &Request, sent: &HeaderMap) -> Option<HeaderMap> {
        if request.method != Method::ToolsCall {
            return None;
        }
        let others = || Some(self.headers_of(request)).filter(|headers| headers != sent);
        let _permit = self.mirrors.refresh.acquire().await.ok()?;
        // The previous holder of the permit may have listed the tools.
        if let Some(headers) = others() {
            return Some(headers);
        }
        let tools = tokio::time::timeout(LIST_TIMEOUT, self.annotated(request)).await.ok()??;
        self.mirrors.tools.store(Arc::new(tools));
        others()
    }

    /// Lists the tools, with the version and capabilities of `request`.
    async fn annotated(&self, request: &Request) -> Option<ToolMirrors> {
        let mut tools = ToolMirrors::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let page = self.page(&listing(request, cursor.as_deref())?).await?;
            cursor = read_page(&page, &mut tools)?;
            if cursor.is_none() {
                break;
            }
        }
        Some(tools)
    }

    async fn page(&self, listing: &Request) -> Option<Response> {
        let headers = headers(listing, &ToolMirrors::new());
        let response = self.post_stateless(listing.raw.bytes(), &headers).await.ok()?;
        answer(&mut ResponseMessages::new(response), None).await.ok()?
    }
}

fn headers(request: &Request, tools: &ToolMirrors) -> HeaderMap {
    let text = request.raw.as_str();
    let name = named(request).and_then(|at| json::string(text, at));
    let tool = name.as_deref().filter(|_| request.method == Method::ToolsCall);
    let mirrors = tool.and_then(|tool| tools.get(tool)).map(|mirrors| (mirrors, request));
    let mirrored = mirrored::headers(HeaderSource { method: &request.method, name: name.as_deref(), mirrors });
    let mut headers: HeaderMap = mirrored.into_iter().collect();
    let version = request.params.said.version.and_then(|at| json::string(text, at));
    let version = version.and_then(|version| HeaderValue::try_from(&*encode(&version)).ok());
    headers.extend(version.map(|version| (PROTOCOL_VERSION, version)));
    headers
}

/// Returns the position of the name, URI or task id that a request is about.
fn named(request: &Request) -> Option<Span> {
    match request.method {
        Method::ToolsCall | Method::PromptsGet => request.params.name,
        Method::ResourcesRead => request.params.uri,
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => request.params.task_id,
        _ => None,
    }
}

/// Returns a `tools/list` request with the version and capabilities of `request`.
fn listing(request: &Request, cursor: Option<&str>) -> Option<Request> {
    let text = request.raw.as_str();
    let meta = request.params.said;
    let (version, capabilities) = (meta.version?.get(text), meta.capabilities?.get(text));
    let cursor = cursor.map(|cursor| format!(r#","cursor":{cursor}"#)).unwrap_or_default();
    let params = format!(r#"{{"_meta":{{"{VERSION_KEY}":{version},"{CLIENT_CAPABILITIES}":{capabilities}}}{cursor}}}"#);
    match Message::parse(goblin_wire::request(&Id::from(0), &Method::ToolsList, &params)) {
        Ok(Message::Request(listing)) => Some(listing),
        _ => None,
    }
}

/// Adds the tools of a page that mirror arguments. Returns the cursor of the next page; the inner `None` marks the last
/// page. Returns the outer `None` if `page` is no tool list.
fn read_page(page: &Response, tools: &mut ToolMirrors) -> Option<Option<String>> {
    let Outcome::Result(result) = page.outcome else { return None };
    let text = page.raw.as_str();
    for tool in json::elements(text, json::member(text, result, "tools")?) {
        let mirrors = Mirrors::read(tool.get(text)).unwrap_or_default();
        let name = json::member(text, tool, "name").and_then(|at| json::string(text, at));
        if let Some(name) = name.filter(|_| !mirrors.is_empty()) {
            tools.insert(name.into_owned(), mirrors);
        }
    }
    let next = json::member(text, result, "nextCursor").map(|at| at.get(text));
    Some(next.filter(|next| next.starts_with('"')).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = concat!(
        r#""_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}"#
    );

    fn request(method: &str, params: &str) -> Request {
        let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{META}}}}}"#);
        let Ok(Message::Request(request)) = Message::parse(line.into()) else { panic!("a request") };
        request
    }

    fn page(result: &str) -> Response {
        let Ok(Message::Response(page)) = Message::parse(format!(r#"{{"jsonrpc":"2.0","id":0,{result}}}"#).into())
        else {
            panic!("an answer")
        };
        page
    }

    #[test]
    fn srv2_headers_repeat_what_a_request_is_about() {
        let definition = r#"{"name":"t","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}}"#;
        let tools = ToolMirrors::from([("t".to_owned(), Mirrors::read(definition).expect("it is valid"))]);
        let check = |method: &str, params: &str, expected: &[&str]| {
            let headers = headers(&request(method, params), &tools);
            let mut found: Vec<_> = headers
                .iter()
                .filter(|(name, _)| *name != PROTOCOL_VERSION)
                .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")))
                .collect();
            found.sort();
            assert_eq!(found, expected, "{method} {params}");
            assert_eq!(headers.get(PROTOCOL_VERSION).map(HeaderValue::as_bytes), Some(&b"2026-07-28"[..]));
        };
        check("server/discover", "", &["mcp-method: server/discover"]);
        check("tools/list", r#""name":"t","#, &["mcp-method: tools/list"]);
        check("tools/call", r#""name":"u","arguments":{"r":"x"},"#, &["mcp-method: tools/call", "mcp-name: u"]);
        check(
            "tools/call",
            r#""name":"t","arguments":{"r":"x"},"#,
            &["mcp-method: tools/call", "mcp-name: t", "mcp-param-r: x"],
        );
        check(
            "prompts/get",
            r#""name":"\u00e9","arguments":{"r":"x"},"#,
            &["mcp-method: prompts/get", "mcp-name: =?base64?w6k=?="],
        );
        check("resources/read", r#""uri":"a:b","#, &["mcp-method: resources/read", "mcp-name: a:b"]);
        check("tasks/get", r#""taskId":"7","#, &["mcp-method: tasks/get", "mcp-name: 7"]);
        check("tools/call", r#""name":7,"#, &["mcp-method: tools/call"]);
    }

    #[test]
    fn srv2_the_list_is_asked_for_in_the_words_of_the_client() {
        let listing = listing(&request("tools/call", r#""name":"t","#), Some(r#""c""#)).expect("a request");
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}"#;
        let params = listing.params.whole.map(|at| at.get(listing.raw.as_str()));
        assert_eq!(params, Some(&*format!(r#"{{"_meta":{meta},"cursor":"c"}}"#)));
        assert_eq!(listing.method, Method::ToolsList);
    }

    #[test]
    fn srv2_pages_are_read_to_the_last() {
        let annotated = r#"{"name":"t","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}}"#;
        let check = |result: &str, expected: Option<Option<&str>>, names: &[&str]| {
            let mut tools = ToolMirrors::new();
            let cursor = read_page(&page(result), &mut tools);
            assert_eq!(cursor, expected.map(|cursor| cursor.map(str::to_owned)), "{result}");
            assert_eq!(tools.keys().collect::<Vec<_>>(), names, "{result}");
        };
        check(
            &format!(r#""result":{{"tools":[{annotated},{{"name":"u"}}],"nextCursor":"c"}}"#),
            Some(Some(r#""c""#)),
            &["t"],
        );
        check(r#""result":{"tools":[],"nextCursor":null}"#, Some(None), &[]);
        check(r#""result":{}"#, None, &[]);
        check(r#""error":{"code":1,"message":"no"}"#, None, &[]);
    }
}
