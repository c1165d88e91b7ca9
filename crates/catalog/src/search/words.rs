//! Text as words: where they begin and end, how they are spelt, and which of them mean nothing.
//!
//! Names are written in every style there is (`listPullRequests`, `list_pull_requests`, `HTTPServer2`), and what is asked for
//! in none of them. So a run of letters and digits counts as a whole and as the parts that case and digits show.
//! Scripts without blanks between words are taken two characters at a time.

use smallvec::SmallVec;

/// Longer words are no words; what is left of them still finds what begins so.
pub const LONGEST_WORD: usize = 40;

/// Letters that are a word of their own beside digits.
const LEAST_BESIDE_DIGITS: usize = 3;

/// English words that tell nothing about what is wanted. Sorted.
#[rustfmt::skip]
const STOP_WORDS: [&str; 206] = [
    "a", "about", "above", "across", "after", "again", "against", "all", "along", "also", "although", "am", "amid",
    "among", "an", "and", "another", "any", "anybody", "anyone", "anything", "are", "around", "as", "at", "away",
    "be", "because", "been", "before", "being", "below", "beneath", "beside", "besides", "between", "beyond",
    "both", "but", "by", "can", "cannot", "could", "d", "did", "do", "does", "doing", "don", "down", "during",
    "each", "either", "else", "every", "everybody", "everyone", "everything", "except", "few", "for", "from",
    "further", "had", "has", "have", "having", "he", "her", "here", "hers", "herself", "him", "himself", "his",
    "how", "however", "i", "if", "in", "inside", "into", "is", "it", "its", "itself", "just", "let", "lets", "like",
    "ll", "m", "many", "may", "me", "might", "more", "most", "much", "must", "my", "myself", "near", "need",
    "needed", "neither", "no", "nor", "not", "now", "of", "off", "on", "once", "one", "ones", "only", "onto", "or",
    "other", "others", "ought", "our", "ours", "ourselves", "out", "outside", "over", "own", "please", "rather",
    "re", "s", "same", "several", "shall", "she", "should", "since", "so", "some", "somebody", "someone",
    "something", "such", "t", "than", "that", "the", "their", "theirs", "them", "themselves", "then", "there",
    "these", "they", "thing", "things", "this", "those", "though", "through", "to", "together", "too", "toward",
    "towards", "under", "underneath", "until", "unto", "up", "upon", "us", "ve", "very", "via", "want", "wanted",
    "wants", "was", "we", "were", "what", "whatever", "when", "where", "whether", "which", "while", "who", "whom",
    "whose", "why", "will", "with", "within", "without", "would", "yes", "yet", "you", "your", "yours", "yourself",
];

pub fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// The runs of letters and digits in `text`.
pub fn runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric()).filter(|run| !run.is_empty())
}

/// What a run is made of by case, digits and script: `HTTPServer2` is `HTTP`, `Server`, `2`. Of scripts without blanks,
/// each two characters that stand together.
pub fn parts(run: &str) -> SmallVec<[&str; 4]> {
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

/// The words of `text` as they are indexed: in lower case, runs as a whole and in parts.
pub fn each_word(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::with_capacity(LONGEST_WORD);
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

/// The parts of `text` in lower case. A name is made of these; runs of them would only make it longer.
pub fn each_part(text: &str, mut each: impl FnMut(&str)) {
    let mut word = String::with_capacity(LONGEST_WORD);
    for part in runs(text).flat_map(parts) {
        fold(part, &mut word);
        each(&word);
    }
}

/// `text` as names are compared: its parts in lower case with one blank between them.
pub fn key(text: &str) -> String {
    let mut key = String::new();
    each_part(text, |word| {
        if !key.is_empty() {
            key.push(' ');
        }
        key.push_str(word);
    });
    key
}

/// Puts `part` into `word` in lower case, cut to what a word may have.
pub fn fold(part: &str, word: &mut String) {
    word.clear();
    let part = cut(part, LONGEST_WORD);
    if part.is_ascii() {
        word.push_str(part);
        word.make_ascii_lowercase();
    } else {
        word.extend(part.chars().flat_map(char::to_lowercase));
    }
}

/// The beginning of `text` in at most `most` bytes.
pub fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A letter split from a word, as in `iPhone`, means nothing without it.
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
        // `s3`, `k8s` and `mp4` are words; `base64` and `sheet1` are two.
        let letters = |character: &&(usize, char)| character.1.is_alphabetic();
        let side = match here.is_numeric() {
            true => characters[..index].iter().rev().take_while(letters).count(),
            false => characters[index..].iter().take_while(letters).count(),
        };
        return side >= LEAST_BESIDE_DIGITS;
    }
    if before.is_uppercase() && here.is_uppercase() {
        // The last capital of several belongs to what follows, unless that is the plural's: `URLs`.
        let follows = after(1).is_some_and(char::is_lowercase);
        let is_plural = after(1) == Some('s') && !after(2).is_some_and(char::is_lowercase);
        return follows && !is_plural;
    }
    before.is_lowercase() && here.is_uppercase()
}

/// Chinese, Japanese, Thai and the like.
fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character), 0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff | 0x3400..=0x9fff | 0x2_0000..=0x3_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
        assert!(is_stop_word("the") && is_stop_word("your") && !is_stop_word("issue"));
    }

    #[test]
    fn names_of_every_style_are_the_same_words() {
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
        check(&"x".repeat(1000), &[&"x".repeat(LONGEST_WORD)]);
        check(&"é".repeat(1000), &[&"é".repeat(LONGEST_WORD / 2)]);
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
