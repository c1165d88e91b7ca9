//! A stdio MCP server that offers the tools of a published server and returns the same result for every call.
//!
//! The context measurement starts one process of it for each published server. The definitions are sent exactly as they
//! were captured.

use std::io::{self, BufRead, Write};

use anyhow::Result;

use crate::context::sample;
use crate::envelope::{self, Method};

/// The result of every tool call.
pub const DONE: &str = "done";

/// Serves the first `count` tools of `server` until stdin ends.
pub fn run(server: &str, count: usize) -> Result<()> {
    let tools: Vec<_> = sample::server(server)?.tools.into_iter().take(count).map(|tool| tool.definition).collect();
    let tools = serde_json::to_string(&tools)?;
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some((call, id)) = envelope::call(line.as_bytes()).and_then(|call| call.id.map(|id| (call, id))) else {
            continue;
        };
        let answer = match call.method() {
            Method::Initialize => concat!(
                r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#,
                r#""serverInfo":{"name":"shelf","version":"1"}}"#
            )
            .to_owned(),
            Method::ToolsList => format!(r#""result":{{"tools":{tools}}}"#),
            Method::ToolsCall => format!(r#""result":{{"content":[{{"type":"text","text":"{DONE}"}}]}}"#),
            Method::Ping => r#""result":{}"#.to_owned(),
            Method::Discover | Method::Other => r#""error":{"code":-32601,"message":"unknown"}"#.to_owned(),
        };
        writeln!(output, r#"{{"jsonrpc":"2.0","id":{},{answer}}}"#, id.get())?;
        output.flush()?;
    }
    Ok(())
}
