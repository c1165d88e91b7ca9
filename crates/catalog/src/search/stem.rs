//! Reduces the forms of an English word to one stem: `issues`, `creating` and `creation` find `issue` and `create`.
//!
//! The stemmer is deliberately lighter than Porter's. Porter's stemmer also turns `organization` into `organ`,
//! `important` into `import`, and both `general` and `generate` into `gener`. These are different things in a catalog
//! of tools. Endings other than those of plurals, verbs and their nouns are rare there. Stems need not be words,
//! because they are never shown.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The minimum length that remains when `at` is removed (`validate`, `validation`, `validator`).
const MIN_BEFORE_AT: usize = 5;
/// The minimum length that remains when `ion` is removed: `creation`, not `notion`.
const MIN_BEFORE_ION: usize = 5;
/// The minimum length that remains when `ment` is removed: `deployment`, not `statement`.
const MIN_BEFORE_MENT: usize = 6;

/// Returns the plain form of an irregular form that is common in queries for tools.
fn regular(form: &str) -> Option<&'static str> {
    static FORMS: LazyLock<HashMap<&str, &str>> =
        LazyLock::new(|| include_str!("irregular.txt").lines().filter_map(|line| line.split_once(' ')).collect());
    FORMS.get(form).copied()
}

/// Reduces `word`, which must be in lower case, to its stem.
pub(crate) fn stem(word: &mut String) {
    if word.len() < 3 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return;
    }
    if let Some(plain) = regular(word) {
        plain.clone_into(word);
    }
    strip_plural(word);
    strip_verb(word);
    americanise(word);
    strip_noun(word);
    finish(word);
}

/// Reports whether a verb in this form may be an imperative: `create` and `creating`, but not `created` or `changes`.
pub(crate) fn may_be_imperative(word: &str) -> bool {
    let is_plural = word.ends_with('s') && !word.ends_with("ss");
    let is_past = word.ends_with("ed") && !word.ends_with("eed");
    !is_plural && !is_past && regular(word).is_none()
}

fn strip_plural(word: &mut String) {
    let length = word.len();
    if word.ends_with("sses") {
        word.truncate(length - 2);
    } else if word.ends_with("ies") {
        word.truncate(if length > 4 { length - 2 } else { length - 1 });
    } else if word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("us") && !word.ends_with("is") {
        word.truncate(length - 1);
    }
}

fn strip_verb(word: &mut String) {
    let length = word.len();
    let rest_length = if word.ends_with("eed") {
        return;
    } else if word.ends_with("ied") && length > 4 {
        return word.truncate(length - 1);
    } else if word.ends_with("ing") {
        length - 3
    } else if word.ends_with("ed") {
        length - 2
    } else {
        return;
    };
    if rest_length < 2 || !has_vowel(&word[..rest_length]) {
        return;
    }
    word.truncate(rest_length);
    let bytes = word.as_bytes();
    if let [.., before, last] = bytes
        && before == last
        && !matches!(last, b'l' | b's' | b'z' | b'a' | b'e' | b'i' | b'o' | b'u')
    {
        word.pop();
    }
}

/// Unifies British and American spelling: `colour`, `organise`.
fn americanise(word: &mut String) {
    if word.len() > 4 && word.ends_with("our") {
        word.truncate(word.len() - 2);
        word.push('r');
    } else if word.len() > 5 && (word.ends_with("is") || word.ends_with("ise") || word.ends_with("isation")) {
        let at = word.rfind("is").expect("each of the endings has it");
        word.replace_range(at..at + 2, "iz");
    }
}

fn strip_noun(word: &mut String) {
    let length = word.len();
    if word.ends_with("ification") {
        return word.truncate(length - "cation".len());
    }
    if (word.ends_with("tion") || word.ends_with("sion")) && length >= MIN_BEFORE_ION + 3 {
        word.truncate(length - 3);
    } else if word.ends_with("ator") {
        word.truncate(length - 2);
    } else if word.ends_with("ment") && length >= MIN_BEFORE_MENT + 4 {
        word.truncate(length - 4);
    }
}

/// Unifies the spellings that remain after the endings are removed.
fn finish(word: &mut String) {
    if word.len() > 3 && word.ends_with('e') {
        word.pop();
    }
    let length = word.len();
    if word.ends_with("at") && length >= MIN_BEFORE_AT + 2 {
        word.truncate(length - 2);
    } else if word.ends_with("ll") && length > 5 {
        word.pop();
    } else if let [.., before, b'y'] = word.as_bytes()
        && length > 2
        && !is_vowel(*before)
    {
        word.pop();
        word.push('i');
    }
}

fn has_vowel(word: &str) -> bool {
    word.bytes().any(|byte| is_vowel(byte) || byte == b'y')
}

fn is_vowel(byte: u8) -> bool {
    matches!(byte, b'a' | b'e' | b'i' | b'o' | b'u')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stemmed(word: &str) -> String {
        let mut form = word.to_owned();
        stem(&mut form);
        form
    }

    #[test]
    fn forms_of_one_word_have_one_stem() {
        for family in [
            &["issue", "issues"][..],
            &["query", "queries", "queried", "querying"],
            &["create", "creates", "created", "creating", "creation", "creator"],
            &["delete", "deleted", "deleting", "deletion"],
            &["repository", "repositories"],
            &["box", "boxes"],
            &["cache", "caches", "cached", "caching"],
            &["class", "classes"],
            &["plan", "plans", "planned", "planning"],
            &["cancel", "cancelled", "canceled"],
            &["install", "installs", "installed", "installing"],
            &["configure", "configuration", "configured"],
            &["validate", "validation", "validator", "validating"],
            &["organize", "organization", "organizations"],
            &["document", "documents", "documentation"],
            &["notify", "notifies", "notification", "notifications"],
            &["deploy", "deployment", "deployments", "deployed"],
            &["manage", "management", "managing"],
            &["execute", "executing", "execution"],
            &["need", "needed"],
            &["color", "colour", "colours", "colored", "coloured"],
            &["summarize", "summarise", "summarised", "summarising"],
            &["organization", "organisation"],
            &["write", "wrote", "written", "writing"],
            &["compare", "compares", "comparison"],
            &["remove", "removed", "removal"],
        ] {
            for word in family {
                assert_eq!(stemmed(word), stemmed(family[0]), "{word} of {family:?}");
            }
        }
    }

    #[test]
    fn different_words_have_different_stems() {
        for (one, other) in [
            ("organ", "organization"),
            ("import", "important"),
            ("general", "generate"),
            ("use", "user"),
            ("serve", "server"),
            ("state", "statement"),
            ("new", "news2"),
            ("status", "state"),
            ("string", "stre"),
            ("id", "ide"),
            ("note", "notion"),
            ("state", "station"),
        ] {
            assert_ne!(stemmed(one), stemmed(other), "{one}, {other}");
        }
    }

    #[test]
    fn an_imperative_has_the_plain_form_of_a_verb() {
        for word in ["create", "creating", "send", "process", "feed", "delte", "天气", ""] {
            assert!(may_be_imperative(word), "{word}");
        }
        for word in ["created", "creates", "changes", "sent", "built"] {
            assert!(!may_be_imperative(word), "{word}");
        }
    }

    #[test]
    fn each_line_of_irregular_forms_is_a_pair_of_words() {
        for line in include_str!("irregular.txt").lines() {
            let (form, plain) = line.split_once(' ').expect(line);
            assert_eq!(regular(form), Some(plain), "{form} occurs twice");
            assert!(!plain.contains(' ') && !plain.is_empty(), "{line}");
        }
    }

    #[test]
    fn words_without_an_english_suffix_stay_unchanged() {
        for word in ["", "a", "is", "s3", "öffnungen", "天气", "thing", "king", "red", "bus", "this", "access"] {
            assert_eq!(stemmed(word), word);
        }
    }
}
