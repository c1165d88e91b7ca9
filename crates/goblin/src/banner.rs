//! The text that `goblin serve` prints on a terminal around the lines of the servers: the address, and how to connect a
//! client.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use goblin_config::visible::shell_word;
use goblin_wire::json::quote;

use crate::style::paint_if;

pub(crate) struct Banner {
    /// The URL of the TCP listener.
    pub url: Option<String>,
    pub socket: Option<PathBuf>,
    /// The configuration that is served, for display.
    pub from: String,
    pub has_token: bool,
}

const CLAUDE: &str = "Claude Code";
/// The name that Claude Code gives in its handshake.
pub(crate) const CLAUDE_PROGRAM: &str = "claude-code";
const CODE: &str = "VS Code";
const CURSOR: &str = "Cursor, in .cursor/mcp.json";
const INSPECTOR: &str = "Inspector";

/// Returns the lines above those of the servers: the configuration and the addresses.
pub(crate) fn head(banner: &Banner, colourful: bool) -> String {
    let Banner { url, socket, from, .. } = banner;
    let mut text = format!("\n  {} serves {from}\n", paint_if(colourful, "goblin", "1"));
    let socket_url = socket.as_ref().map(|socket| format!("unix:{}", socket.display()));
    for address in url.iter().chain(&socket_url) {
        let _ = writeln!(text, "  at {}", paint_if(colourful, address, "1;36"));
    }
    text
}

/// Returns the lines that connect clients. `always_load` is true if clients must not defer the listed tools, because
/// others are unlisted.
pub(crate) fn client_lines(banner: &Banner, always_load: bool, colourful: bool) -> String {
    let Banner { url, socket, has_token, .. } = banner;
    let faint = |text: &str| paint_if(colourful, text, "2");
    let mut text = String::new();
    let lines = match (url, socket) {
        (Some(url), _) => http_lines(url, *has_token, always_load),
        (None, socket) => socket_lines(socket.as_deref().unwrap_or(Path::new("")), always_load),
    };
    for (client, line) in lines {
        let _ = write!(text, "\n  {}\n  {line}\n", faint(client));
    }
    if *has_token && url.is_some() {
        text.push_str("\n  TOKEN is gateway.token of the configuration.\n");
    }
    let _ = write!(text, "\n  {}\n", faint("Press Ctrl-C to stop."));
    text
}

/// Returns each client with the line that connects it to the URL.
fn http_lines(url: &str, has_token: bool, always_load: bool) -> [(&'static str, String); 4] {
    let (header, cursor, code, inspector) = match has_token {
        false => ("", "", "", ""),
        true => (
            r#" --header "Authorization: Bearer $TOKEN""#,
            r#", "headers": { "Authorization": "Bearer ${env:TOKEN}" }"#,
            r#","headers":{"Authorization":"Bearer '"$TOKEN"'"}"#,
            r#" --header "Authorization: Bearer $TOKEN""#,
        ),
    };
    let claude = match always_load {
        false => format!("claude mcp add --transport http goblin {url}{header}"),
        true => format!(r#"claude mcp add-json goblin '{{"type":"http","url":"{url}"{code},"alwaysLoad":true}}'"#),
    };
    [
        (CLAUDE, claude),
        (CODE, format!(r#"code --add-mcp '{{"name":"goblin","type":"http","url":"{url}"{code}}}'"#)),
        (CURSOR, format!(r#"{{ "mcpServers": {{ "goblin": {{ "url": "{url}"{cursor} }} }} }}"#)),
        (INSPECTOR, format!("npx @modelcontextprotocol/inspector --cli {url} --method tools/list{inspector}")),
    ]
}

/// Returns each client with the line that connects it to the socket. Clients do not speak HTTP over a socket, so each
/// line starts `goblin stdio`.
fn socket_lines(socket: &Path, always_load: bool) -> [(&'static str, String); 4] {
    let url = format!("unix:{}", socket.display());
    let (argument, json) = (shell_word(&url), quote(&url));
    let code = format!(r#"{{"name":"goblin","command":"goblin","args":["stdio","--url",{json}]}}"#);
    let entry = format!(r#"{{ "command": "goblin", "args": ["stdio", "--url", {json}] }}"#);
    let always = format!(r#"{{"command":"goblin","args":["stdio","--url",{json}],"alwaysLoad":true}}"#);
    let claude = match always_load {
        false => format!("claude mcp add goblin -- goblin stdio --url {argument}"),
        true => format!("claude mcp add-json goblin {}", shell_word(&always)),
    };
    [
        (CLAUDE, claude),
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
        head(&banner, false) + &client_lines(&banner, false, false)
    }

    #[test]
    fn use11_the_line_for_claude_code_keeps_the_listed_tools_loaded() {
        let line =
            |lines: [(&str, String); 4]| lines.into_iter().find(|(client, _)| *client == CLAUDE).map(|(_, line)| line);
        let url = "http://127.0.0.1:3000/mcp";
        let expected =
            r#"claude mcp add-json goblin '{"type":"http","url":"http://127.0.0.1:3000/mcp","alwaysLoad":true}'"#;
        assert_eq!(line(http_lines(url, false, true)).as_deref(), Some(expected));
        let with_token = line(http_lines(url, true, true)).expect("a line");
        assert!(with_token.contains(r#""headers":{"Authorization":"Bearer '"$TOKEN"'"},"alwaysLoad":true}'"#));
        let socket = line(socket_lines(Path::new("/x/goblin.sock"), true));
        let expected = concat!(
            r#"claude mcp add-json goblin '{"command":"goblin","args":["stdio","--url","unix:/x/goblin.sock"],"#,
            r#""alwaysLoad":true}'"#
        );
        assert_eq!(socket.as_deref(), Some(expected));
    }

    #[test]
    fn the_banner_has_a_line_for_every_client() {
        let text = banner(false);
        for line in [
            "  goblin serves goblin.json",
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
