//! Prints and saves the content of results.
//!
//! Text of a server goes to a pipe unchanged. On a terminal, control characters are removed, because the terminal would
//! obey them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use goblin_client::content::ContentBlock;
use goblin_config::visible::is_command;
use goblin_telemetry::clean;
use goblin_wire::units;

use crate::cli::CliError;
use crate::style::{self, note};

/// Prints blocks to stdout, one below the other.
pub(crate) fn print(blocks: &[ContentBlock]) -> std::io::Result<()> {
    let text: String = blocks.iter().map(|block| with_newline(block.line())).collect();
    style::print(&for_terminal(&text))
}

/// Returns the text with a line end.
fn with_newline(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Returns a text for stdout. Removes control characters if stdout is a terminal.
fn for_terminal(text: &str) -> String {
    match std::io::stdout().is_terminal() {
        true => without_commands(text),
        false => text.to_owned(),
    }
}

fn without_commands(text: &str) -> String {
    text.chars().filter(|character| !is_command(*character) || matches!(character, '\n' | '\t')).collect()
}

/// Saves all binary blocks. The second and later files get a number.
pub(crate) fn save(blocks: &[ContentBlock], path: &Path) -> Result<(), CliError> {
    let all = blocks.iter().filter_map(|block| match block {
        ContentBlock::Bytes { bytes, .. } => Some(bytes.as_slice()),
        ContentBlock::Text(_) | ContentBlock::Other(_) => None,
    });
    let mut saved = 0;
    for bytes in all {
        saved += 1;
        write_file(&numbered(path, saved), bytes)?;
    }
    if saved == 0 {
        note(&format!("there is no image, audio or other file in the result; {} was not written", path.display()));
    }
    Ok(())
}

fn numbered(path: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Writes a file and reports its size on stderr.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let refused = |error| CliError::Refused(format!("cannot write {}: {error}", path.display()));
    std::fs::write(path, bytes).map_err(refused)?;
    note(&format!("saved {}, {}", path.display(), units::bytes(bytes.len() as u64)));
    Ok(())
}

/// Writes the contents of a resource to stdout. A pipe gets the exact bytes. Returns an error for binary contents on a
/// terminal.
pub(crate) fn write_resource(uri: &str, blocks: &[ContentBlock]) -> Result<(), CliError> {
    let is_terminal = std::io::stdout().is_terminal();
    let is_binary = blocks.iter().any(|block| matches!(block, ContentBlock::Bytes { .. }));
    if is_terminal && is_binary {
        let lines: Vec<_> = blocks.iter().map(|block| clean(&block.line())).collect();
        return Err(CliError::Usage(format!(
            "{} is not text, and the output is a terminal: {}; write it to a file with --output FILE",
            clean(uri),
            lines.join(" ")
        )));
    }
    if is_terminal {
        return Ok(print(blocks)?);
    }
    style::write(&joined(blocks))?;
    Ok(())
}

/// Returns the bytes of all text and binary blocks.
pub(crate) fn joined(blocks: &[ContentBlock]) -> Vec<u8> {
    let part = |block: &ContentBlock| match block {
        ContentBlock::Text(text) => text.clone().into_bytes(),
        ContentBlock::Bytes { bytes, .. } => bytes.clone(),
        ContentBlock::Other(_) => Vec::new(),
    };
    blocks.iter().flat_map(part).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_content_block_is_shown_as_text_or_a_short_label() {
        for (block, expected) in [
            (json!({"type": "text", "text": "a\nb"}), "a\nb"),
            (json!({"type": "image", "mimeType": "image/png", "data": "AAECAw=="}), "[image image/png, 4 B]"),
            (json!({"type": "audio", "data": "AAEC"}), "[audio, 3 B]"),
            (json!({"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}), "inside"),
            (json!({"type": "resource", "resource": {"uri": "a:b", "blob": "AA=="}}), "[resource a:b, 1 B]"),
            (json!({"type": "resource_link", "uri": "a:b\u{1b}"}), "[resource a:b]"),
            (json!({"type": "hologram"}), "[hologram]"),
            (json!({}), "[]"),
        ] {
            assert_eq!(ContentBlock::read(&block).line(), expected, "{block}");
        }
        assert!(ContentBlock::read(&json!({"type": "image", "data": "?"})).line().starts_with("[image, unreadable: "));
    }

    #[test]
    fn control_characters_are_removed_for_terminals() {
        assert_eq!(without_commands("a\tb\nc\u{1b}[2J\r\u{7}é"), "a\tb\nc[2Jé");
        assert_eq!(without_commands("\u{202e}a\u{2066}\u{61c}\u{9b}b\u{2028}\u{e0041}👩\u{200d}🚀"), "ab👩\u{200d}🚀");
    }

    #[test]
    fn several_files_are_numbered() {
        let names: Vec<_> = (1..=3).map(|number| numbered(Path::new("x/a.png"), number)).collect();
        assert_eq!(names, ["x/a.png", "x/a.png.2", "x/a.png.3"].map(PathBuf::from));
    }
}
