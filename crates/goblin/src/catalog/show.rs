//! Prints cards as a table.

use goblin_catalog::listing::List;
use goblin_telemetry::clean;
use goblin_wire::units::bytes;

use crate::catalog::cards::{Card, Cards};
use crate::style::{is_colourful, note, plural, print, width};
use crate::table::{Column, Table};

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
    let [server, description] = ["SERVER", "DESCRIPTION"].map(Column::text);
    let mut table = match kind {
        List::Tools => Table::new(&[Column::text("TOOL"), server, description]),
        List::Prompts => Table::new(&[Column::text("PROMPT"), server, description]),
        List::Resources => {
            let [uri, mime, name] = ["URI", "TYPE", "NAME"].map(Column::text);
            Table::new(&[uri, mime, Column::number("SIZE"), server, name])
        }
        List::Templates => Table::new(&[Column::text("TEMPLATE"), server, description]),
    };
    cards.iter().for_each(|card| table.push(row(kind, card)));
    let stdout = std::io::stdout();
    print(&table.render(width(&stdout), is_colourful(&stdout)))
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
    fn a_description_is_one_line() {
        assert_eq!(line("First\n\n  second\tthird \u{1b}[31mred"), "First second third [31mred");
    }
}
