//! A stdio MCP server with some tools, or one that reads and never answers. It does not announce changes.

use std::io::{self, BufRead, Write};

use crate::envelope::{self, Method};

/// Serves `tools` tools until stdin ends.
pub fn run(silent: bool, tools: usize) -> io::Result<()> {
    let list = format!(r#""result":{{"tools":[{}]}}"#, (0..tools).map(tool).collect::<Vec<_>>().join(","));
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
            Method::ToolsList => &list,
            Method::Ping => r#""result":{}"#,
            Method::ToolsCall | Method::Discover | Method::Other => r#""error":{"code":-32601,"message":"unknown"}"#,
        };
        writeln!(output, r#"{{"jsonrpc":"2.0","id":{},{answer}}}"#, id.get())?;
        output.flush()?;
    }
    Ok(())
}

/// Returns a definition of the usual size.
fn tool(number: usize) -> String {
    let description = "Searches the records of the service and returns those that match the query, newest first.";
    let query = r#"{"type":"string","description":"the words to search for"}"#;
    let limit = r#"{"type":"integer","minimum":1,"maximum":100,"description":"the largest number of records"}"#;
    format!(
        r#"{{"name":"tool{number}","description":"{description}","inputSchema":{{"type":"object","properties":{{"query":{query},"limit":{limit}}},"required":["query"]}}}}"#
    )
}
