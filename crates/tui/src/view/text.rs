//! Fits text to a number of terminal columns. A wide character takes two columns.

use unicode_truncate::{Alignment, UnicodeTruncateStr};
use unicode_width::UnicodeWidthStr;

const ELLIPSIS: &str = "…";

pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Returns the text cut to `max` columns. A cut text ends in an ellipsis.
pub(crate) fn fit(text: &str, max: usize) -> String {
    match text.width() > max {
        true if max == 0 => String::new(),
        true => format!("{}{ELLIPSIS}", text.unicode_truncate(max - 1).0),
        false => text.to_owned(),
    }
}

/// Returns the end of the text in at most `max` columns. A cut text starts with an ellipsis.
pub(crate) fn fit_end(text: &str, max: usize) -> String {
    match text.width() > max {
        true if max == 0 => String::new(),
        true => format!("{ELLIPSIS}{}", text.unicode_truncate_start(max - 1).0),
        false => text.to_owned(),
    }
}

/// Returns the text in exactly `columns` columns, padded or cut.
pub(crate) fn pad(text: &str, columns: usize, is_right: bool) -> String {
    let side = if is_right { Alignment::Right } else { Alignment::Left };
    fit(text, columns).unicode_pad(columns, side, false).into_owned()
}

/// Wraps text into lines of at most `max` columns, at spaces if possible. All lines keep the indentation.
pub(crate) fn wrap(text: &str, max: usize) -> Vec<String> {
    let max = max.max(2);
    let indent: String = text.chars().take_while(|character| *character == ' ').take(max / 2).collect();
    let mut lines = Vec::new();
    let mut rest = text;
    loop {
        let lead = if lines.is_empty() { "" } else { indent.as_str() };
        let room = max - lead.len();
        if rest.width() <= room {
            lines.push(format!("{lead}{rest}"));
            return lines;
        }
        let mut head = rest.unicode_truncate(room).0;
        if head.is_empty() {
            // Take a character that is wider than the line anyway, so that the loop ends.
            head = &rest[..rest.chars().next().map_or(0, char::len_utf8)];
        }
        let blank = head.rfind(' ').filter(|at| !head[..*at].trim().is_empty());
        let head = if rest[head.len()..].starts_with(' ') { head } else { blank.map_or(head, |at| &head[..at]) };
        lines.push(format!("{lead}{}", head.trim_end()));
        rest = rest[head.len()..].trim_start_matches(' ');
        if rest.is_empty() {
            return lines;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns() {
        for (text, max, expected) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本", 2, "…"),
            ("a", 0, ""),
        ] {
            assert_eq!(fit(text, max), expected, "{text} in {max}");
        }
        for (text, max, expected) in [("abcd", 3, "…cd"), ("日本語", 5, "…本語"), ("日本語", 4, "…語"), ("abc", 0, "")]
        {
            assert_eq!(fit_end(text, max), expected, "the end of {text} in {max}");
        }
        assert_eq!((pad("日", 4, false), pad("7", 3, true)), ("日  ".to_owned(), "  7".to_owned()));
    }

    #[test]
    fn lines_are_broken_at_blanks() {
        for (text, max, expected) in [
            ("", 5, vec![""]),
            ("one two three", 7, vec!["one two", "three"]),
            ("onetwothree", 4, vec!["onet", "woth", "ree"]),
            ("  a bb cc", 5, vec!["  a", "  bb", "  cc"]),
            ("日本語", 4, vec!["日本", "語"]),
            ("a  ", 2, vec!["a"]),
        ] {
            assert_eq!(wrap(text, max), expected, "{text:?} in {max}");
        }
    }
}
