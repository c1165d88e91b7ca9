//! The tool `search`: finds a text in the paths and in the lines of files.

use goblin_wire::units;
use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use crate::content::{self, MAX_FILE, ToolResult};
use crate::rule::FileGlob;
use crate::tree::{FileKind, FileTree, StopFlag, WalkEntry, WalkStep};
use crate::{list, tools};

pub(crate) const DEFAULT_LIMIT: usize = 100;
pub(crate) const MAX_MATCHES: usize = 1000;
/// The number of characters to which a longer line is cut, around the match.
const MAX_LINE: usize = 300;
/// The number of characters before the match in a cut line.
const BEFORE: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Arguments", rename_all = "camelCase")]
pub(crate) struct SearchArguments {
    query: String,
    #[serde(default, rename = "in")]
    place: SearchScope,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    limit: Option<usize>,
    path: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum SearchScope {
    Names,
    Text,
    #[default]
    Both,
}

#[derive(Serialize)]
struct SearchOutput {
    matches: Vec<SearchMatch>,
    /// The number of files that were searched.
    searched: usize,
    skipped: SkippedFiles,
    /// True if these are all matches.
    complete: bool,
}

/// A match in a line. If there is no line, the path matches.
#[derive(Serialize)]
struct SearchMatch {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// The number of files that were not searched, by reason.
#[derive(Default, Serialize)]
struct SkippedFiles {
    binary: usize,
    large: usize,
    unreadable: usize,
}

pub(crate) fn call(tree: &FileTree, arguments: &SearchArguments, stop: &StopFlag) -> Result<ToolResult, String> {
    if arguments.query.is_empty() || arguments.query.contains(['\n', '\r']) {
        return Err("query must be one line of text, and not empty".to_owned());
    }
    let start = tools::find_entry(tree, arguments.path.as_deref().unwrap_or("."), stop)?;
    let glob = arguments.glob.as_deref().map(FileGlob::new).transpose()?;
    let limit = list::limit(arguments.limit, DEFAULT_LIMIT, MAX_MATCHES)?;
    let needle = Needle::new(&arguments.query, arguments.ignore_case);
    let mut found = SearchOutput { matches: Vec::new(), searched: 0, skipped: SkippedFiles::default(), complete: true };
    let whole = tree.walk(&start, stop, |item| {
        let is_match = glob.as_ref().is_none_or(|glob| glob.matches(item.path.as_path()));
        if item.kind == FileKind::File && is_match {
            let path = tree.root.named(item.path);
            // Compare the relative path. The URI would also contain the path of the root.
            if arguments.place != SearchScope::Text && needle.find(&item.path.shown()).is_some() {
                found.matches.push(SearchMatch { path: path.clone(), line: None, text: None });
            }
            if arguments.place != SearchScope::Names {
                found.search_file(item, &path, &needle, limit);
            }
        }
        if found.matches.len() > limit { WalkStep::End } else { WalkStep::Into }
    });
    found.complete = whole && found.matches.len() <= limit;
    found.matches.truncate(limit);
    Ok(ToolResult::structured(found.text(), &found))
}

impl SearchOutput {
    /// Adds the matching lines of a file, up to one more than `limit` matches in total.
    fn search_file(&mut self, item: &WalkEntry<'_>, path: &str, needle: &Needle, limit: usize) {
        let bytes = match item.open().and_then(content::whole) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return self.skipped.large += 1,
            Err(_) => return self.skipped.unreadable += 1,
        };
        let Ok(text) = content::text(bytes) else { return self.skipped.binary += 1 };
        self.searched += 1;
        let room = (limit + 1).saturating_sub(self.matches.len());
        let matches = needle.lines(&text, room).into_iter();
        self.matches.extend(matches.map(|(line, text)| SearchMatch {
            path: path.to_owned(),
            line: Some(line),
            text: Some(text),
        }));
    }

    fn text(&self) -> String {
        let line = |found: &SearchMatch| match (found.line, &found.text) {
            (Some(line), Some(text)) => format!("{}:{line}: {text}", found.path),
            _ => found.path.clone(),
        };
        let mut lines: Vec<_> = self.matches.iter().map(line).collect();
        if lines.is_empty() {
            lines.push("nothing found".to_owned());
        }
        let SkippedFiles { binary, large, unreadable } = self.skipped;
        if binary + large + unreadable > 0 {
            let kinds =
                format!("{binary} binary, {large} larger than {}, {unreadable} unreadable", units::bytes(MAX_FILE));
            lines.push(format!("not searched: {kinds}"));
        }
        if !self.complete {
            lines.push("there may be more; narrow the search by path, glob or a longer query".to_owned());
        }
        lines.join("\n")
    }
}

/// A search text.
struct Needle {
    finder: Finder<'static>,
    ignore_case: bool,
}

impl Needle {
    fn new(query: &str, ignore_case: bool) -> Needle {
        let query = if ignore_case { query.to_lowercase() } else { query.to_owned() };
        Needle { finder: Finder::new(&query).into_owned(), ignore_case }
    }

    /// Returns the position of the first match.
    fn find(&self, text: &str) -> Option<usize> {
        if self.ignore_case {
            self.finder.find(text.to_lowercase().as_bytes())
        } else {
            self.finder.find(text.as_bytes())
        }
    }

    /// Returns the first `max` matching lines with their numbers.
    fn lines(&self, text: &str, max: usize) -> Vec<(usize, String)> {
        // Lower case neither adds nor removes line breaks, so the line numbers are the same.
        let folded = self.ignore_case.then(|| text.to_lowercase());
        let haystack = folded.as_deref().unwrap_or(text).as_bytes();
        let mut lines = text.lines();
        let mut found: Vec<(usize, String)> = Vec::new();
        let (mut counted, mut breaks, mut taken) = (0, 0, 0);
        for at in self.finder.find_iter(haystack) {
            if found.len() == max {
                break;
            }
            breaks += memchr::memchr_iter(b'\n', &haystack[counted..at]).count();
            counted = at;
            if breaks < taken {
                continue;
            }
            let line = lines.nth(breaks - taken).unwrap_or_default();
            taken = breaks + 1;
            found.push((breaks + 1, self.excerpt(line)));
        }
        found
    }

    fn excerpt(&self, line: &str) -> String {
        let count = line.chars().count();
        if count <= MAX_LINE {
            return line.to_owned();
        }
        let at = self.find(line).unwrap_or_default();
        // The position may differ in lower case. The excerpt is then slightly off.
        let before = line.char_indices().take_while(|(index, _)| *index < at).count();
        let from = before.saturating_sub(BEFORE).min(count - MAX_LINE);
        let shown: String = line.chars().skip(from).take(MAX_LINE).collect();
        let (head, tail) = (if from > 0 { "…" } else { "" }, if from + MAX_LINE < count { "…" } else { "" });
        format!("{head}{shown}{tail}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_lines_are_returned_with_their_numbers() {
        for (query, ignore_case, text, expected) in [
            ("b", false, "a\nb b\n\nab\r\nB", vec![(2, "b b"), (4, "ab")]),
            ("B", true, "a\nb b\n\nab\r\nB", vec![(2, "b b"), (4, "ab"), (5, "B")]),
            ("straße", true, "İ\nSTRAßE\n", vec![(2, "STRAßE")]),
            ("a", false, "a\n".repeat(20).as_str(), (1..10).map(|line| (line, "a")).collect()),
            ("x", false, "", vec![]),
            ("\\n", false, "a\\nb", vec![(1, "a\\nb")]),
        ] {
            let found = Needle::new(query, ignore_case).lines(text, 9);
            let found: Vec<_> = found.iter().map(|(line, text)| (*line, text.as_str())).collect();
            assert_eq!(found, expected, "{query} in {text:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut_around_the_match() {
        let line = format!("{}needle{}", "é".repeat(1000), "ü".repeat(1000));
        let found = Needle::new("needle", false).lines(&line, 9);
        let text = &found[0].1;
        assert!(text.starts_with("…é") && text.contains("needle") && text.ends_with("ü…"), "{text}");
        assert_eq!(text.chars().count(), MAX_LINE + 2);
    }
}
