//! Splits text into words, normalizes their spelling, and defines the stop words.
//!
//! Names come in many styles (`listPullRequests`, `list_pull_requests`, `HTTPServer2`), and queries use none of them. A
//! run of letters and digits therefore counts both as a whole and as the parts that case and digits show. Scripts
//! without spaces between words are split into pairs of characters.

use std::collections::HashSet;
use std::sync::LazyLock;

use smallvec::SmallVec;

/// The maximum length of a word. A longer word is cut, and its beginning still matches as a prefix.
pub(crate) const MAX_WORD: usize = 40;

/// The minimum number of letters next to digits that form a separate word.
const MIN_BESIDE_DIGITS: usize = 3;

/// Reports whether an English word carries no meaning in a query.
pub(crate) fn is_stop_word(word: &str) -> bool {
    static WORDS: LazyLock<HashSet<&str>> =
        LazyLock::new(|| include_str!("stop_words.txt").split_whitespace().collect());
    WORDS.contains(word)
}

/// Iterates over the runs of letters and digits in `text`.
pub(crate) fn runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric()).filter(|run| !run.is_empty())
}

/// Splits a run by case, digits and script: `HTTPServer2` gives `HTTP`, `Server`, `2`. Text in scripts without spaces
/// gives every pair of adjacent characters.
pub(crate) fn parts(run: &str) -> SmallVec<[&str; 4]> {
    if run.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return SmallVec::from_slice(&[run]);
    }
    let characters: SmallVec<[(usize, char); 32]> = run.char_indices().collect();
    let end_of = |index: usize| characters.get(index).map_or(run.len(), |(offset, _)| *offset);
    let (mut parts, mut begin) = (SmallVec::new(), 0);
    for index in 1..=characters.len() {
        if index < characters.len() && !is_boundary(&characters, index) {
            continue;
        }
        if index - begin > 2 && is_unspaced(characters[begin].1) {
            parts.extend((begin..index - 1).map(|first| &run[end_of(first)..end_of(first + 2)]));
        } else {
            parts.push(&run[end_of(begin)..end_of(index)]);
        }
        begin = index;
    }
    parts
}

/// Calls `each` for the words of `text` as they are indexed: in lower case, runs both as a whole and in parts.
pub(crate) fn each_word(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::with_capacity(MAX_WORD);
    for run in runs(text) {
        let parts = parts(run);
        if parts.len() > 1 && !run.chars().any(is_unspaced) {
            fold(run, &mut word);
            each(&word);
        }
        for part in parts.iter().filter(|part| parts.len() == 1 || !is_letter(part)) {
            fold(part, &mut word);
            each(&word);
        }
    }
}

/// Calls `each` for the parts of `text` in lower case. Names are indexed by parts only, because whole runs would only
/// make them longer.
pub(crate) fn each_part(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::with_capacity(MAX_WORD);
    for part in runs(text).flat_map(parts) {
        fold(part, &mut word);
        each(&word);
    }
}

/// Returns `text` in the form in which names are compared: its parts in lower case, separated by single spaces.
pub(crate) fn key(text: &str) -> String {
    let mut key = String::new();
    each_part(text, |word| {
        if !key.is_empty() {
            key.push(' ');
        }
        key.push_str(word);
    });
    key
}

/// Puts `part` into `word` in lower case, cut to [`MAX_WORD`].
pub(crate) fn fold(part: &str, word: &mut String) {
    word.clear();
    let part = cut(part, MAX_WORD);
    if part.is_ascii() {
        word.push_str(part);
        word.make_ascii_lowercase();
    } else {
        word.extend(part.chars().flat_map(char::to_lowercase));
    }
}

/// Returns the beginning of `text`, at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Reports whether a part is a single letter. A letter split from a word, as in `iPhone`, has no meaning by itself.
fn is_letter(part: &str) -> bool {
    part.len() == 1 && part.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn is_boundary(characters: &[(usize, char)], index: usize) -> bool {
    let (before, here) = (characters[index - 1].1, characters[index].1);
    let after = |further: usize| characters.get(index + further).map(|(_, character)| *character);
    if is_unspaced(before) != is_unspaced(here) {
        return true;
    }
    if before.is_numeric() != here.is_numeric() {
        // `s3`, `k8s` and `mp4` are one word. `base64` and `sheet1` are two.
        let letters = |character: &&(usize, char)| character.1.is_alphabetic();
        let side = match here.is_numeric() {
            true => characters[..index].iter().rev().take_while(letters).count(),
            false => characters[index..].iter().take_while(letters).count(),
        };
        return side >= MIN_BESIDE_DIGITS;
    }
    if before.is_uppercase() && here.is_uppercase() {
        // The last of several capitals belongs to the following letters, except before a plural `s`: `URLs`.
        let is_before_lower_case = after(1).is_some_and(char::is_lowercase);
        let is_plural = after(1) == Some('s') && !after(2).is_some_and(char::is_lowercase);
        return is_before_lower_case && !is_plural;
    }
    before.is_lowercase() && here.is_uppercase()
}

/// Reports whether a character belongs to a script without spaces, such as Chinese, Japanese or Thai.
fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character), 0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff | 0x3400..=0x9fff | 0x2_0000..=0x3_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_recognized() {
        assert!(is_stop_word("the") && is_stop_word("your") && !is_stop_word("issue"));
    }

    #[test]
    fn names_of_every_style_split_into_words() {
        let check = |text: &str, expected: &[&str]| {
            let mut words = Vec::new();
            each_word(text, |word| words.push(word.to_owned()));
            assert_eq!(words, expected, "{text}");
        };
        check("list_pull-requests.all/now", &["list", "pull", "requests", "all", "now"]);
        check("listPullRequests", &["listpullrequests", "list", "pull", "requests"]);
        check("HTTPServer2", &["httpserver2", "http", "server", "2"]);
        check("GitHub iPhone", &["github", "git", "hub", "iphone", "phone"]);
        check("URLs and IDs", &["urls", "and", "ids"]);
        check("s3 k8s base64", &["s3", "k8s", "base64", "base", "64"]);
        check("file:///logs/app.log", &["file", "logs", "app", "log"]);
        check("Straßen-ÖPNV", &["straßen", "öpnv"]);
        check("查询天气 x", &["查询", "询天", "天气", "x"]);
        check("天气API", &["天气", "api"]);
        check("天", &["天"]);
        check("", &[]);
        check("?!...", &[]);
        check(&"x".repeat(1000), &[&"x".repeat(MAX_WORD)]);
        check(&"é".repeat(1000), &[&"é".repeat(MAX_WORD / 2)]);
    }

    #[test]
    fn keys_of_names_do_not_depend_on_their_style() {
        let check = |text: &str, expected: &str| assert_eq!(key(text), expected, "{text}");
        check("createIssue", "create issue");
        check(" Create  ISSUE! ", "create issue");
        check("github_create-issue", "github create issue");
        check("list_entries", "list entries");
        check("***", "");
    }
}
