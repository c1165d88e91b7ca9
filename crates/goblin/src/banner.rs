//! The text that `goblin serve` prints on a terminal: the address, what each server offers, and how to connect a
//! client.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goblin_catalog::listing::List;
use goblin_engine::admin::readiness::Readiness;
use goblin_engine::catalog_store::CatalogStore;
use goblin_engine::upstream::BackendState;
use goblin_telemetry::clean;
use goblin_wire::json::quote;
use tokio::sync::watch;

use crate::style::{is_colourful, paint_if, plural, print, shell_word};

pub(crate) struct Banner {
    /// The URL of the TCP listener.
    pub url: Option<String>,
    pub socket: Option<PathBuf>,
    /// The configuration that is served, for display.
    pub from: String,
    pub has_token: bool,
}

const CLAUDE: &str = "Claude Code";
const CODE: &str = "VS Code";
const CURSOR: &str = "Cursor, in .cursor/mcp.json";
const INSPECTOR: &str = "Inspector";

/// A server and what it offers: one line of the banner.
struct ServerLine {
    server: String,
    text: String,
    is_problem: bool,
}

/// Prints the banner once the gateway is ready.
pub(crate) async fn show(banner: Banner, mut readiness: watch::Receiver<Readiness>, directory: Arc<CatalogStore>) {
    // The gateway ended before it became ready.
    let Ok(_) = readiness.wait_for(Readiness::is_ready).await else { return };
    let colourful = is_colourful(&std::io::stdout());
    // A closed stdout is no error here.
    let _ = print(&render(&banner, &server_lines(&directory), colourful));
}

fn server_lines(directory: &CatalogStore) -> Vec<ServerLine> {
    let catalog = directory.catalog();
    let listed = |counts: [usize; 4]| {
        let counts = counts.into_iter().zip(List::ALL.map(List::noun));
        let some = counts.filter(|(count, _)| *count > 0);
        some.map(|(count, noun)| plural(count, noun)).collect::<Vec<_>>().join(", ")
    };
    let server_line = |(source, counts): (&goblin_engine::catalog_store::Source, [usize; 4])| {
        let (text, is_problem) = match source.backend.state() {
            BackendState::Starting => ("starting".to_owned(), false),
            BackendState::Ready => (listed(counts), false),
            BackendState::Lost(reason) => (clean(&reason), true),
            BackendState::Stopped => ("stopped".to_owned(), true),
        };
        let text = if text.is_empty() { "nothing".to_owned() } else { text };
        ServerLine { server: source.backend.id.to_string(), text, is_problem }
    };
    catalog.sources.iter().zip(catalog.counts()).map(server_line).collect()
}

fn render(banner: &Banner, server_lines: &[ServerLine], colourful: bool) -> String {
    let Banner { url, socket, from, has_token } = banner;
    let faint = |text: &str| paint_if(colourful, text, "2");
    let mut text = format!("\n  {} serves {from}\n", paint_if(colourful, "goblin", "1"));
    let socket_url = socket.as_ref().map(|socket| format!("unix:{}", socket.display()));
    for address in url.iter().chain(&socket_url) {
        let _ = writeln!(text, "  at {}", paint_if(colourful, address, "1;36"));
    }
    text.push('\n');
    let widest = server_lines.iter().map(|server_line| server_line.server.chars().count()).max().unwrap_or_default();
    for ServerLine { server, text: summary, is_problem } in server_lines {
        let summary = paint_if(colourful && *is_problem, summary, "33");
        let _ = writeln!(text, "  {server:widest$}  {summary}");
    }
    if server_lines.is_empty() {
        text.push_str("  no server yet: goblin add, goblin import\n");
    }
    let lines = match (url, socket) {
        (Some(url), _) => http_lines(url, *has_token),
        (None, socket) => socket_lines(socket.as_deref().unwrap_or(Path::new(""))),
    };
    for (client, line) in lines {
        let _ = write!(text, "\n  {}\n  {line}\n", faint(client));
    }
    if *has_token && url.is_some() {
        text.push_str("\n  TOKEN is gateway.token of the configuration.\n");
    }
    let _ = write!(text, "\n  {}\n\n", faint("Press Ctrl-C to stop."));
    text
}

/// Returns each client with the line that connects it to the URL.
fn http_lines(url: &str, has_token: bool) -> [(&'static str, String); 4] {
    let (claude, cursor, code, inspector) = match has_token {
        false => ("", "", "", ""),
        true => (
            r#" --header "Authorization: Bearer $TOKEN""#,
            r#", "headers": { "Authorization": "Bearer ${env:TOKEN}" }"#,
            r#","headers":{"Authorization":"Bearer '"$TOKEN"'"}"#,
            r#" --header "Authorization: Bearer $TOKEN""#,
        ),
    };
    [
        (CLAUDE, format!("claude mcp add --transport http goblin {url}{claude}")),
        (CODE, format!(r#"code --add-mcp '{{"name":"goblin","type":"http","url":"{url}"{code}}}'"#)),
        (CURSOR, format!(r#"{{ "mcpServers": {{ "goblin": {{ "url": "{url}"{cursor} }} }} }}"#)),
        (INSPECTOR, format!("npx @modelcontextprotocol/inspector --cli {url} --method tools/list{inspector}")),
    ]
}

/// Returns each client with the line that connects it to the socket. Clients do not speak HTTP over a socket, so each
/// line starts `goblin stdio`.
fn socket_lines(socket: &Path) -> [(&'static str, String); 4] {
    let url = format!("unix:{}", socket.display());
    let (argument, json) = (shell_word(&url), quote(&url));
    let code = format!(r#"{{"name":"goblin","command":"goblin","args":["stdio","--url",{json}]}}"#);
    let entry = format!(r#"{{ "command": "goblin", "args": ["stdio", "--url", {json}] }}"#);
    [
        (CLAUDE, format!("claude mcp add goblin -- goblin stdio --url {argument}")),
        (CODE, format!("code --add-mcp {}", shell_word(&code))),
        (CURSOR, format!(r#"{{ "mcpServers": {{ "goblin": {entry} }} }}"#)),
        (
            INSPECTOR,
            format!("npx @modelcontextprotocol/inspector --cli goblin stdio --url {argument} --method tools/list"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banner(has_token: bool) -> String {
        render_with(Some("http://127.0.0.1:3000/mcp"), None, has_token)
    }

    fn render_with(url: Option<&str>, socket: Option<&str>, has_token: bool) -> String {
        let (url, socket) = (url.map(str::to_owned), socket.map(PathBuf::from));
        let banner = Banner { url, socket, from: "goblin.json".to_owned(), has_token };
        let server_line = |server: &str, text: &str| ServerLine {
            server: server.to_owned(),
            text: text.to_owned(),
            is_problem: false,
        };
        render(&banner, &[server_line("a", "1 tool, 2 prompts"), server_line("longer", "starting")], false)
    }

    #[test]
    fn every_client_has_its_line() {
        let text = banner(false);
        for line in [
            "  goblin serves goblin.json",
            "  a       1 tool, 2 prompts",
            "  longer  starting",
            "  claude mcp add --transport http goblin http://127.0.0.1:3000/mcp",
            r#"  code --add-mcp '{"name":"goblin","type":"http","url":"http://127.0.0.1:3000/mcp"}'"#,
            r#"  { "mcpServers": { "goblin": { "url": "http://127.0.0.1:3000/mcp" } } }"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("TOKEN") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn without_tcp_every_client_connects_by_stdio() {
        let text = render_with(None, Some("/x/goblin.sock"), true);
        for line in [
            "  at unix:/x/goblin.sock",
            "  claude mcp add goblin -- goblin stdio --url unix:/x/goblin.sock",
            r#"  code --add-mcp '{"name":"goblin","command":"goblin","args":["stdio","--url","unix:/x/goblin.sock"]}'"#,
            r#"  { "mcpServers": { "goblin": { "command": "goblin", "args": ["stdio", "--url", "unix:/x/goblin.sock"] } } }"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("TOKEN") && !text.contains("http:"), "{text}");
        let both = render_with(Some("http://127.0.0.1:3000/mcp"), Some("/x/goblin.sock"), false);
        assert!(both.contains("  at http://127.0.0.1:3000/mcp\n  at unix:/x/goblin.sock\n"), "{both}");
    }

    #[test]
    fn with_a_token_every_line_has_the_header() {
        let text = banner(true);
        let with_url = text.lines().filter(|line| line.contains("goblin\"") || line.contains("--"));
        for line in with_url {
            assert!(line.contains("Authorization"), "{line}");
        }
        assert!(text.contains("gateway.token"), "{text}");
    }
}
