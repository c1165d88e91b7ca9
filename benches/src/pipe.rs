//! A stdio MCP server with one tool, or one that reads and never answers. The start-up measurement uses both.

use std::io::{self, BufRead, Write};

use crate::envelope::{self, Method};

/// Serves until stdin ends.
pub fn run(silent: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some((call, id)) = envelope::call(line.as_bytes()).and_then(|call| call.id.map(|id| (call, id))) else {
            continue;
        };
        if silent {
            continue;
        }
        let answer = match call.method() {
            Method::Initialize => concat!(
                r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#,
                r#""serverInfo":{"name":"pipe","version":"1"}}"#
            ),
            Method::ToolsList => r#""result":{"tools":[{"name":"tool","inputSchema":{"type":"object"}}]}"#,
            Method::Ping => r#""result":{}"#,
            Method::ToolsCall | Method::Discover | Method::Other => r#""error":{"code":-32601,"message":"unknown"}"#,
        };
        writeln!(output, r#"{{"jsonrpc":"2.0","id":{},{answer}}}"#, id.get())?;
        output.flush()?;
    }
    Ok(())
}
