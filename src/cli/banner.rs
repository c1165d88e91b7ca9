//! What a terminal is told when the gateway serves: where it is, what it offers, and how to connect a client.

use std::fmt::Write as _;
use std::sync::Arc;

use tokio::sync::watch;

use crate::admin::readiness::Readiness;
use crate::backend::State;
use crate::catalog::directory::Directory;
use crate::cli::style::{is_colourful, paint_if, plural, print};
use crate::observe::clean;

pub struct Banner {
    pub url: String,
    /// What is served, for people.
    pub from: String,
    pub has_token: bool,
}

/// One line of the banner.
struct Offer {
    server: String,
    text: String,
    is_trouble: bool,
}

/// Prints the banner once the gateway is ready.
pub async fn show(banner: Banner, mut readiness: watch::Receiver<Readiness>, directory: Arc<Directory>) {
    // The gateway that could have become ready is gone.
    let Ok(_) = readiness.wait_for(Readiness::is_ready).await else { return };
    let colourful = is_colourful(&std::io::stdout());
    // Without a reader there is nobody to tell.
    let _ = print(&render(&banner, &offers(&directory), colourful));
}

fn offers(directory: &Directory) -> Vec<Offer> {
    let catalog = directory.catalog();
    let of_source = |index: usize| {
        let count = |sources: &mut dyn Iterator<Item = usize>| sources.filter(|source| *source == index).count();
        let counts = [
            (count(&mut catalog.tools.entries.iter().map(|entry| entry.source)), "tool"),
            (count(&mut catalog.prompts.entries.iter().map(|entry| entry.source)), "prompt"),
            (count(&mut catalog.resources.entries.iter().map(|entry| entry.source)), "resource"),
            (count(&mut catalog.resources.templates.iter().map(|entry| entry.source)), "template"),
        ];
        let some = counts.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, noun)| plural(*count, noun)).collect::<Vec<_>>().join(", ")
    };
    let offer = |(index, source): (usize, &crate::catalog::Source)| {
        let (text, is_trouble) = match source.backend.state() {
            State::Starting => ("starting".to_owned(), false),
            State::Ready => (of_source(index), false),
            State::Lost(reason) => (clean(&reason), true),
            State::Stopped => ("stopped".to_owned(), true),
        };
        let text = if text.is_empty() { "nothing".to_owned() } else { text };
        Offer { server: source.backend.id.to_string(), text, is_trouble }
    };
    catalog.sources.iter().enumerate().map(offer).collect()
}

fn render(banner: &Banner, offers: &[Offer], colourful: bool) -> String {
    let Banner { url, from, has_token } = banner;
    let bold = |text: &str| paint_if(colourful, text, "1");
    let faint = |text: &str| paint_if(colourful, text, "2");
    let mut text = format!("\n  {} serves {from}\n  at {}\n\n", bold("goblin"), paint_if(colourful, url, "1;36"));
    let widest = offers.iter().map(|offer| offer.server.chars().count()).max().unwrap_or_default();
    for Offer { server, text: offered, is_trouble } in offers {
        let offered = paint_if(colourful && *is_trouble, offered, "33");
        let _ = writeln!(text, "  {server:widest$}  {offered}");
    }
    if offers.is_empty() {
        text.push_str("  no server yet: goblin add, goblin import\n");
    }
    let (claude, cursor, code, inspector) = match has_token {
        false => (String::new(), String::new(), String::new(), String::new()),
        true => (
            r#" --header "Authorization: Bearer $TOKEN""#.to_owned(),
            r#", "headers": { "Authorization": "Bearer ${env:TOKEN}" }"#.to_owned(),
            r#","headers":{"Authorization":"Bearer '"$TOKEN"'"}"#.to_owned(),
            r#" --header "Authorization: Bearer $TOKEN""#.to_owned(),
        ),
    };
    for (client, line) in [
        ("Claude Code", format!("claude mcp add --transport http goblin {url}{claude}")),
        ("VS Code", format!(r#"code --add-mcp '{{"name":"goblin","type":"http","url":"{url}"{code}}}'"#)),
        ("Cursor, in .cursor/mcp.json", format!(r#"{{ "mcpServers": {{ "goblin": {{ "url": "{url}"{cursor} }} }} }}"#)),
        ("Inspector", format!("npx @modelcontextprotocol/inspector --cli {url} --method tools/list{inspector}")),
    ] {
        let _ = write!(text, "\n  {}\n  {line}\n", faint(client));
    }
    if *has_token {
        text.push_str("\n  TOKEN is gateway.token of the configuration.\n");
    }
    let _ = write!(text, "\n  {}\n\n", faint("Ctrl-C ends it."));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banner(has_token: bool) -> String {
        let banner = Banner { url: "http://127.0.0.1:3000/mcp".to_owned(), from: "goblin.json".to_owned(), has_token };
        let offer =
            |server: &str, text: &str| Offer { server: server.to_owned(), text: text.to_owned(), is_trouble: false };
        render(&banner, &[offer("a", "1 tool, 2 prompts"), offer("longer", "starting")], false)
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
    fn with_a_token_every_line_has_the_header() {
        let text = banner(true);
        let with_url = text.lines().filter(|line| line.contains("goblin\"") || line.contains("--"));
        for line in with_url {
            assert!(line.contains("Authorization"), "{line}");
        }
        assert!(text.contains("gateway.token"), "{text}");
    }
}
