//! The scenarios: the operations, the ways they can take, and the correct response to each.
//!
//! The target set starts the servers of a scenario, and the load generator repeats its request. A response is checked in
//! full once, before its bytes become the expected ones.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hyper::header::HeaderValue;
use serde::Serialize;
use serde_json::{Value, json};

use crate::backend;
use crate::client::Template;

/// The tools of the list scenario, and the number of backends they are spread over behind Goblin.
pub const LISTED_TOOLS: usize = 1000;
pub const LISTED_BACKENDS: usize = 10;
/// The tools of the single backend in the other scenarios.
pub const FEW_TOOLS: usize = 10;

const LARGE_BYTES: usize = 1 << 20;
const ECHOED: &str = "the quick brown fox jumps over the lazy dog";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// `tools/call` with a small result
    CallSmall,
    /// `tools/call` with a result of 1 MiB
    CallLarge,
    /// `tools/list` of 1,000 tools
    List,
    /// `initialize` and `notifications/initialized`
    Setup,
    /// `tools/call` with a small result, with a session and without
    Stateless,
}

/// The way of an operation. It names the process under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    Direct,
    Proxy,
    Static,
    /// The baseline of the fan-out.
    Bare,
    Goblin,
    /// Goblin between a client and a backend of 2026-07-28.
    Stateless,
}

impl Scenario {
    pub const ALL: [Self; 5] = [Self::CallSmall, Self::CallLarge, Self::List, Self::Setup, Self::Stateless];

    pub fn title(self) -> &'static str {
        match self {
            Self::CallSmall => "`tools/call`, small",
            Self::CallLarge => "`tools/call`, 1 MiB",
            Self::List => "`tools/list`, 1,000 tools",
            Self::Setup => "session set-up",
            Self::Stateless => "`tools/call`, small, by era",
        }
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::CallSmall => "call-small",
            Self::CallLarge => "call-large",
            Self::List => "list",
            Self::Setup => "setup",
            Self::Stateless => "stateless",
        }
    }

    /// Returns the limit of operations per measurement. A set-up leaves a session until the end of its measurement, and
    /// a gateway holds at most 10,000 by default.
    pub fn max_operations(self) -> usize {
        match self {
            Self::Setup => 8000,
            Self::CallSmall | Self::CallLarge | Self::List | Self::Stateless => usize::MAX,
        }
    }

    /// Returns the request to repeat, with `prefix` before tool names. Returns `None` for a set-up, which is not a
    /// single request.
    pub fn request(self, through: Through, prefix: &str) -> Option<Template<String>> {
        let (method, mut params) = match self {
            Self::CallSmall | Self::Stateless => ("tools/call", call(prefix, "echo", json!({ "text": ECHOED }))),
            Self::CallLarge => ("tools/call", call(prefix, "big", json!({ "bytes": LARGE_BYTES }))),
            Self::List => ("tools/list", json!({})),
            Self::Setup => return None,
        };
        let repeated = (through == Through::Stateless).then(|| {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": { "name": "goblin-bench", "version": "0.1.0" },
            });
            let name = params["name"].as_str().unwrap_or_default();
            (HeaderValue::from_static(method), HeaderValue::from_str(name).expect("names of tools are plain"))
        });
        Some(Template {
            before: r#"{"jsonrpc":"2.0","id":"#.to_owned(),
            after: format!(r#","method":"{method}","params":{params}}}"#),
            repeated,
        })
    }

    /// Returns an error if `answer` is not correct. It is checked once, before its bytes become the expected ones.
    pub fn check(self, answer: &Bytes) -> Result<()> {
        let answer: Value = serde_json::from_slice(answer).context("the answer is not JSON")?;
        let result = answer.get("result").with_context(|| format!("the answer is not a result: {answer}"))?;
        let text = || result["content"][0]["text"].as_str();
        match self {
            Self::CallSmall | Self::Stateless => {
                ensure!(text() == Some(&backend::echo_text(ECHOED)), "not the echo: {answer}")
            }
            Self::CallLarge => ensure!(text() == Some(&backend::big_text(LARGE_BYTES)), "not the large text"),
            Self::List => {
                let tools = result["tools"].as_array().map_or(0, Vec::len);
                ensure!(tools == LISTED_TOOLS, "{tools} tools in the list where {LISTED_TOOLS} were expected");
                ensure!(result.get("nextCursor").is_none(), "the list has a second page");
            }
            Self::Setup => {
                ensure!(result["protocolVersion"].is_string(), "no protocol version: {answer}");
            }
        }
        Ok(())
    }
}

impl Through {
    pub fn title(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "bare proxy",
            Self::Static => "static body",
            Self::Bare => "bare axum",
            Self::Goblin => "Goblin",
            Self::Stateless => "Goblin, 2026-07-28",
        }
    }
}

fn call(prefix: &str, name: &str, arguments: Value) -> Value {
    json!({ "name": format!("{prefix}{name}"), "arguments": arguments })
}
