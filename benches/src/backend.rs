//! A Streamable HTTP MCP server with minimal cost: all responses are built at start, and a response is its id followed
//! by shared bytes.
//!
//! The server stores no sessions. It assigns session ids and requires one on each request, like a server with a
//! handshake, but does not look them up. The modern variant (2026-07-28) uses no session ids.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::envelope::{self, Call, Method};
use crate::serve::{self, Reply, SESSION_ID};

/// Serves `tools` tools as server number `server`. A modern server uses no sessions. Returns only on an error.
pub async fn run(listener: TcpListener, tools: usize, server: usize, is_modern: bool) -> std::io::Result<()> {
    let answers = Arc::new(Answers::new(tools, server, is_modern));
    serve::serve(listener, move |request| answer(Arc::clone(&answers), request)).await
}

/// Returns the text of the `big` tool: exactly `bytes` bytes of UTF-8, with quotes, newlines and tabs to escape.
pub fn big_text(bytes: usize) -> String {
    const LINE: &str = "row 0017\tstate=\"open\" owner=mina size=20480 note=copied from the archive, see above\n";
    LINE.repeat(bytes.div_ceil(LINE.len()))[..bytes].to_owned()
}

/// Returns the text of the `echo` tool for `text`.
pub fn echo_text(text: &str) -> String {
    format!("echo: {text}")
}

async fn answer(answers: Arc<Answers>, request: Request<Incoming>) -> Response<Reply> {
    match request.method().as_str() {
        "POST" => {}
        "GET" => return event_stream(),
        "DELETE" => return serve::status(StatusCode::OK),
        _ => return serve::status(StatusCode::METHOD_NOT_ALLOWED),
    }
    let has_session = request.headers().contains_key(SESSION_ID);
    let Ok(body) = request.into_body().collect().await else {
        return serve::status(StatusCode::BAD_REQUEST);
    };
    let body = body.to_bytes();
    let Some(call) = envelope::call(&body) else {
        return serve::status(StatusCode::BAD_REQUEST);
    };
    let Some(id) = call.id else {
        return serve::status(StatusCode::ACCEPTED);
    };
    if answers.is_modern {
        return answers.result(&call, id.get());
    }
    if call.method() == Method::Initialize {
        return serve::initialized(id.get(), &answers.name);
    }
    if !has_session {
        let mut response = error(id.get(), -32600, "missing session id");
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return response;
    }
    answers.result(&call, id.get())
}

fn event_stream() -> Response<Reply> {
    let mut response = Response::new(Reply::open(Bytes::from_static(b": open\n\n")));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

fn error(id: &str, code: i32, message: &str) -> Response<Reply> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#);
    serve::json(Reply::whole(body.into()))
}

/// The part of each response after its id, ready to send.
struct Answers {
    name: String,
    is_modern: bool,
    discovered: Bytes,
    ping: Bytes,
    tools: Bytes,
    /// The responses of `big` by size. The lock is held for one map lookup, and a run uses one size.
    big: Mutex<HashMap<usize, Bytes>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    name: &'a str,
    arguments: Arguments,
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    text: String,
    #[serde(default)]
    bytes: usize,
}

impl Answers {
    fn new(tools: usize, server: usize, is_modern: bool) -> Self {
        let tools: Vec<_> = (0..tools).map(|index| tool(index, server)).collect();
        Self {
            name: format!("bench-{server}"),
            is_modern,
            discovered: after_id(&json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
                "ttlMs": 0, "cacheScope": "private",
            })),
            ping: after_id(&json!({})),
            tools: after_id(&match is_modern {
                true => json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" }),
                false => json!({ "tools": tools }),
            }),
            big: Mutex::default(),
        }
    }

    fn result(&self, call: &Call<'_>, id: &str) -> Response<Reply> {
        let after_id = match call.method() {
            Method::Discover if self.is_modern => self.discovered.clone(),
            Method::Ping => self.ping.clone(),
            Method::ToolsList => self.tools.clone(),
            Method::ToolsCall => {
                let parsed = call.params.map(|params| serde_json::from_str::<ToolCall<'_>>(params.get()));
                match parsed {
                    Some(Ok(ToolCall { name: "echo", arguments })) => self.text(&echo_text(&arguments.text)),
                    Some(Ok(ToolCall { name: "big", arguments })) => self.big(arguments.bytes),
                    _ => return error(id, -32602, "unknown tool or bad arguments"),
                }
            }
            Method::Initialize | Method::Discover | Method::Other => return error(id, -32601, "method not found"),
        };
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#);
        serve::json(Reply::pieces(head.into(), after_id))
    }

    fn big(&self, bytes: usize) -> Bytes {
        let mut big = self.big.lock().unwrap_or_else(PoisonError::into_inner);
        big.entry(bytes).or_insert_with(|| self.text(&big_text(bytes))).clone()
    }

    fn text(&self, text: &str) -> Bytes {
        let content = json!([{ "type": "text", "text": text }]);
        after_id(&match self.is_modern {
            true => json!({ "resultType": "complete", "content": content, "isError": false }),
            false => json!({ "content": content, "isError": false }),
        })
    }
}

fn after_id(result: &serde_json::Value) -> Bytes {
    format!("{result}}}").into()
}

/// Returns a tool definition of a realistic size, about 300 bytes.
fn tool(index: usize, server: usize) -> serde_json::Value {
    let name = match index {
        0 => "echo".to_owned(),
        1 => "big".to_owned(),
        _ => format!("search_records_{index}"),
    };
    json!({
        "name": name,
        "description": format!("Searches the records of archive {server}, shelf {index}, and returns the best matches."),
        "inputSchema": {
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "words to look for" },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100 }
            },
            "required": ["query"]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Answers, big_text, tool};

    #[test]
    fn the_big_text_has_the_requested_size_and_needs_escapes() {
        for bytes in [0, 1, 100, 1 << 20] {
            assert_eq!(big_text(bytes).len(), bytes);
        }
        assert!(Answers::new(0, 0, false).big(1000).len() > 1000 + 30);
    }

    #[test]
    fn tool_definitions_have_a_realistic_size() {
        let size = tool(17, 3).to_string().len();
        assert!((250..=350).contains(&size), "{size}");
    }
}
