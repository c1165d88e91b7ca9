//! The tool `read`: returns a file, or a part of it by lines or by bytes.
//!
//! An answer has at most [`MAX_BYTES`] of the file, and states where the next call must continue. Only the necessary
//! part of a file is read, however large the file is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use serde::Deserialize;

use crate::content::{self, Contents, ResultBlock, ToolResult};
use crate::tools;
use crate::tree::{FileKind, FileTree, StopFlag, TreeEntry};

pub(crate) const MAX_BYTES: usize = 256 * 1024;
/// The number of bytes between two checks whether the caller still waits.
const CHUNK: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Arguments", rename_all = "camelCase")]
pub(crate) struct ReadArguments {
    path: String,
    start_line: Option<u64>,
    end_line: Option<u64>,
    offset: Option<u64>,
    length: Option<u64>,
}

pub(crate) fn call(tree: &FileTree, arguments: &ReadArguments, stop: &StopFlag) -> Result<ToolResult, String> {
    let requested = &arguments.path;
    let lines = arguments.start_line.or(arguments.end_line).is_some();
    let bytes = arguments.offset.or(arguments.length).is_some();
    if lines && bytes {
        return Err("lines and bytes cannot be requested together; use one of the two".to_owned());
    }
    let entry = tools::find_entry(tree, requested, stop)?;
    match entry.facts.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(format!("{requested} is a directory; the tool list shows its entries")),
        FileKind::Link | FileKind::Other => {
            return Err(format!("{requested} is not a regular file and cannot be read"));
        }
    }
    let file = entry.open().map_err(|error| unreadable(requested, &error))?;
    if bytes {
        return read_bytes(tree, &entry, arguments, file);
    }
    let (first, last) = (arguments.start_line.unwrap_or(1), arguments.end_line.unwrap_or(u64::MAX));
    if first == 0 || last < first {
        return Err(format!(
            "lines {first} to {last} cannot be read; lines begin at 1, and endLine is not before startLine"
        ));
    }
    let part = FileExcerpt::read(BufReader::with_capacity(CHUNK, file), first, last, stop);
    show_lines(&entry, requested, first, part.map_err(|error| unreadable(requested, &error))?)
}

fn unreadable(requested: &str, error: &io::Error) -> String {
    format!("{requested} cannot be read: {error}")
}

/// Some lines of a file.
struct FileExcerpt {
    bytes: Vec<u8>,
    /// The position of the first line in the file.
    offset: u64,
    /// The number of lines read, including a partial last one.
    lines: u64,
    end: ExcerptEnd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExcerptEnd {
    /// The requested lines, or the file, end here.
    Whole,
    /// The limit was reached before this line.
    Before(u64),
    /// The limit was reached inside a line.
    Inside,
}

impl FileExcerpt {
    fn read(mut file: impl BufRead, first: u64, last: u64, stop: &StopFlag) -> io::Result<FileExcerpt> {
        let mut part = FileExcerpt { bytes: Vec::new(), offset: 0, lines: 0, end: ExcerptEnd::Whole };
        // The next byte begins a line.
        let mut fresh = true;
        loop {
            let chunk = file.fill_buf()?;
            if chunk.is_empty() || stop.is_set() {
                return Ok(part);
            }
            if fresh && part.lines == last {
                return Ok(part);
            }
            part.lines += u64::from(fresh);
            let length = memchr::memchr(b'\n', chunk).map_or(chunk.len(), |at| at + 1);
            fresh = chunk[length - 1] == b'\n';
            if part.lines < first {
                part.offset += length as u64;
            } else {
                part.bytes.extend_from_slice(&chunk[..length]);
            }
            file.consume(length);
            if part.bytes.len() > MAX_BYTES {
                part.cut();
                return Ok(part);
            }
        }
    }

    /// Cuts the bytes to the limit: before the last line, or inside it if it is the only one.
    fn cut(&mut self) {
        let body = &self.bytes[..MAX_BYTES];
        match memchr::memrchr(b'\n', body) {
            Some(at) => {
                self.bytes.truncate(at + 1);
                self.end = ExcerptEnd::Before(self.lines);
            }
            None => {
                self.bytes.truncate(inside(body).end);
                self.end = ExcerptEnd::Inside;
            }
        }
    }
}

fn show_lines(entry: &TreeEntry, requested: &str, first: u64, part: FileExcerpt) -> Result<ToolResult, String> {
    let size = entry.facts.size;
    if part.lines < first && first > 1 {
        return Err(format!("{requested} has only {} lines; startLine {first} is after its end", part.lines));
    }
    let FileExcerpt { bytes, offset, lines, end } = part;
    let next = offset + bytes.len() as u64;
    let Ok(text) = content::text(bytes) else {
        let mime = content::binary_mime(&entry.path);
        let text = format!("{requested} is binary: {size} bytes, {mime}; read its bytes with offset and length");
        return Ok(ToolResult::text(text));
    };
    let note = match end {
        ExcerptEnd::Whole if text.is_empty() => Some(format!("{requested} is empty")),
        ExcerptEnd::Whole => None,
        ExcerptEnd::Before(line) => {
            Some(format!("cut before line {line} ({next} of {size} bytes); continue with startLine {line}"))
        }
        ExcerptEnd::Inside => {
            Some(format!("cut inside of line {lines} ({next} of {size} bytes); continue with offset {next}"))
        }
    };
    Ok(with_note(ResultBlock::Text { text }, note))
}

fn with_note(block: ResultBlock, note: Option<String>) -> ToolResult {
    let mut content = vec![block];
    content.extend(note.map(|text| ResultBlock::Text { text }));
    ToolResult::new(content)
}

fn read_bytes(
    tree: &FileTree,
    entry: &TreeEntry,
    arguments: &ReadArguments,
    mut file: File,
) -> Result<ToolResult, String> {
    let requested = &arguments.path;
    let (size, offset) = (entry.facts.size, arguments.offset.unwrap_or_default());
    if offset > 0 && offset >= size {
        return Err(format!("{requested} has only {size} bytes; offset {offset} is after its end"));
    }
    if arguments.length == Some(0) {
        return Err("length must be at least 1".to_owned());
    }
    let length = arguments.length.unwrap_or(MAX_BYTES as u64).min(MAX_BYTES as u64);
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.take(length).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(requested, &error))?;
    // The range may begin or end inside a character.
    let range = inside(&bytes);
    let range_note = |start: usize, end: usize| {
        let (start, end) = (offset + start as u64, offset + end as u64);
        let more = if end < size { format!("; continue with offset {end}") } else { String::new() };
        (start > 0 || end < size).then(|| format!("bytes {start} to {end} of {size}{more}"))
    };
    match content::text(bytes[range.clone()].to_vec()) {
        Ok(text) if !text.is_empty() || bytes.is_empty() => {
            Ok(with_note(ResultBlock::Text { text }, range_note(range.start, range.end)))
        }
        _ => {
            let contents = Contents::blob(tree.root.uri(&entry.path), &entry.path, &bytes);
            Ok(with_note(ResultBlock::Resource { resource: contents }, range_note(0, bytes.len())))
        }
    }
}

/// Returns the range without partial UTF-8 characters at both ends.
fn inside(bytes: &[u8]) -> std::ops::Range<usize> {
    const MAX_CHARACTER_BYTES: usize = 4;
    let continues = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let start = bytes.iter().take(MAX_CHARACTER_BYTES - 1).take_while(continues).count();
    let trailing = bytes.iter().rev().take(MAX_CHARACTER_BYTES - 1).take_while(continues).count();
    let lead = bytes.len().saturating_sub(trailing + 1);
    let whole = std::str::from_utf8(&bytes[lead..]).is_ok();
    start..if whole { bytes.len() } else { lead.max(start) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn check_lines(text: &str, first: u64, last: u64, expected: &str, lines: u64) {
        // The buffer is so small that lines cross its end.
        let guard = Arc::new(());
        let stop = StopFlag::new(&guard);
        let part = FileExcerpt::read(BufReader::with_capacity(3, text.as_bytes()), first, last, &stop);
        let part = part.expect("memory can be read");
        assert_eq!((String::from_utf8_lossy(&part.bytes).as_ref(), part.lines), (expected, lines), "{text:?}");
        assert!(part.end == ExcerptEnd::Whole);
        assert_eq!(&text[usize::try_from(part.offset).expect("small")..][..expected.len()], expected);
    }

    #[test]
    fn lines_are_counted_from_one_and_the_last_is_included() {
        check_lines("one\ntwo\r\nthree", 1, u64::MAX, "one\ntwo\r\nthree", 3);
        check_lines("one\ntwo\r\nthree", 2, 2, "two\r\n", 2);
        check_lines("one\ntwo\r\nthree", 3, 9, "three", 3);
        check_lines("one\n", 2, 2, "", 1);
        check_lines("", 1, 1, "", 0);
        check_lines("\n\n\n", 2, 3, "\n\n", 3);
    }

    #[test]
    fn what_is_too_much_is_cut_at_a_line_or_else_at_a_character() {
        let guard = Arc::new(());
        let stop = StopFlag::new(&guard);
        let read = |text: &str| FileExcerpt::read(text.as_bytes(), 1, u64::MAX, &stop).expect("memory can be read");
        let part = read(&"0123456789abcde\n".repeat(MAX_BYTES / 16 + 5));
        assert_eq!(part.bytes.len(), MAX_BYTES);
        assert!(part.end == ExcerptEnd::Before(MAX_BYTES as u64 / 16 + 1));
        let part = read(&format!("x{}", "é".repeat(MAX_BYTES)));
        assert_eq!(part.bytes.len(), MAX_BYTES - 1);
        assert!(part.end == ExcerptEnd::Inside);
    }

    #[test]
    fn parts_of_characters_are_left_out() {
        let text = "aé😀z".as_bytes();
        for (from, to, expected) in
            [(0, 8, 0..8), (2, 8, 1..6), (0, 2, 0..1), (0, 5, 0..3), (4, 7, 3..3), (1, 3, 0..2), (0, 0, 0..0)]
        {
            assert_eq!(inside(&text[from..to]), expected, "{from} to {to}");
        }
    }
}
