//! Prints cards as a table.

use goblin_catalog::listing::List;
use goblin_client::units::bytes;
use goblin_telemetry::clean;

use crate::catalog::cards::{Card, Cards};
use crate::check::table::{SIZE, lay_out};
use crate::style::{is_colourful, note, plural, print, width};

/// Prints the cards, and on stderr how many are left out.
pub(crate) fn cards(cards: &Cards) -> std::io::Result<()> {
    table(cards.kind, &cards.cards)?;
    left_out(cards.cards.len(), cards, cards.kind.noun());
    Ok(())
}

/// Prints search results of two kinds. The gateway counts them together.
pub(crate) fn both(first: &Cards, second: &Cards) -> std::io::Result<()> {
    table(first.kind, &first.cards)?;
    if !first.cards.is_empty() && !second.cards.is_empty() {
        print("\n")?;
    }
    table(second.kind, &second.cards)?;
    left_out(first.cards.len() + second.cards.len(), first, "result");
    Ok(())
}

fn left_out(shown: usize, cards: &Cards, noun: &str) {
    let total = cards.total;
    if total == 0 {
        // The gateway's note about an empty result is written for agents.
        return note(&format!("no {noun}s"));
    }
    if shown < total {
        note(&format!("{shown} of {}; --limit {total} shows all", plural(total, noun)));
    }
    if let Some(text) = &cards.note {
        note(&clean(text));
    }
}

fn table(kind: List, cards: &[Card]) -> std::io::Result<()> {
    if cards.is_empty() {
        return Ok(());
    }
    let head: &[&str] = match kind {
        List::Tools => &["TOOL", "SERVER", "DESCRIPTION"],
        List::Prompts => &["PROMPT", "SERVER", "DESCRIPTION"],
        List::Resources => &["URI", "TYPE", SIZE, "SERVER", "NAME"],
        List::Templates => &["TEMPLATE", "SERVER", "DESCRIPTION"],
    };
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows = std::iter::once(head).chain(cards.iter().map(|card| row(kind, card)));
    let stdout = std::io::stdout();
    print(&lay_out(&rows.collect::<Vec<_>>(), width(&stdout), is_colourful(&stdout)))
}

fn row(kind: List, card: &Card) -> Vec<String> {
    let cell = |key: &str| or_dash(line(card.text(key)));
    let (key, server) = (cell(kind.key()), cell("serverId"));
    match kind {
        List::Tools | List::Prompts | List::Templates => {
            vec![key, server, line(card.text("description"))]
        }
        List::Resources => {
            let size = or_dash(card.size().map(bytes).unwrap_or_default());
            vec![key, cell("mimeType"), size, server, line(card.text("name"))]
        }
    }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Returns the text as one line with single spaces.
fn line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_people_say_them() {
        for (count, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (1234, "1.2 kB"),
            (9960, "10 kB"),
            (12_345, "12 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (5_000_000_000_000, "5000 GB"),
        ] {
            assert_eq!(bytes(count), expected, "{count}");
        }
    }

    #[test]
    fn a_description_is_one_line() {
        assert_eq!(line("First\n\n  second\tthird \u{1b}[31mred"), "First second third [31mred");
    }
}
