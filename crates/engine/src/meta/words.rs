//! Texts for agents: shortening, formatting on one line, and messages about unknown names. The gateway's own tools and
//! the admin API use them.

use goblin_catalog::search::nearest;
use goblin_wire::Error;

/// The maximum length of client input that an error message repeats.
pub(crate) const MAX_QUOTED_INPUT: usize = 300;
/// The maximum number of suggestions for an unknown name.
const MAX_SUGGESTIONS: usize = 3;

/// Shortens a text to at most `max` characters, if possible at the end of a word.
pub(crate) fn cut(text: &str, max: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(max) else { return text.to_owned() };
    let kept = &text[..end];
    let at_word = kept.rfind(char::is_whitespace).filter(|at| *at > end / 2).unwrap_or(end);
    format!("{}…", kept[..at_word].trim_end())
}

/// Joins a text to one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Removes the whitespace between the tokens of JSON.
pub(crate) fn compact(json: &str) -> String {
    let mut compact = String::with_capacity(json.len());
    let (mut in_string, mut is_escaped) = (false, false);
    for character in json.chars() {
        if !in_string && character.is_ascii_whitespace() {
            continue;
        }
        compact.push(character);
        in_string = in_string != (character == '"' && !is_escaped);
        is_escaped = in_string && character == '\\' && !is_escaped;
    }
    compact
}

/// Formats names with backticks, separated by commas.
pub(crate) fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a question that suggests similar names. Returns `None` if no name is similar.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = nearest(wrong, names, MAX_SUGGESTIONS);
    (!near.is_empty()).then(|| format!("; did you mean {}?", quoted(near.into_iter())))
}

/// Returns the message for an unknown name: the candidates of an ambiguous name, similar `names`, or how to search.
pub(crate) fn not_found<'a>(
    kind: &str,
    name: &str,
    error: &Error,
    names: impl Iterator<Item = &'a str>,
    find: &str,
) -> String {
    let shown = cut(name, MAX_QUOTED_INPUT);
    let candidates = match error {
        Error::ToolNotFound { candidates, .. }
        | Error::PromptNotFound { candidates, .. }
        | Error::ResourceNotFound { candidates, .. } => &candidates[..],
        other => return other.to_string(),
    };
    if !candidates.is_empty() {
        let candidates = quoted(candidates.iter().map(String::as_str));
        return format!("`{shown}` names several {kind}s: use one of {candidates}");
    }
    format!("no {kind} `{shown}`{}", did_you_mean(name, names).as_deref().unwrap_or(find))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_words_and_characters() {
        for (text, max, expected) in [
            ("short", 5, "short"),
            ("a few words more", 12, "a few words…"),
            ("a few words more", 9, "a few…"),
            ("äöüäöüäöü", 4, "äöüä…"),
            ("one verylongwordindeed", 12, "one verylong…"),
            ("", 3, ""),
        ] {
            assert_eq!(cut(text, max), expected, "{text} {max}");
        }
        assert_eq!(one_line(" a\n\n b\tc "), "a b c");
    }

    #[test]
    fn json_is_compacted_and_its_strings_stay_unchanged() {
        for (json, expected) in [
            ("{ \"a\" : [ 1 ,\n2 ] }", r#"{"a":[1,2]}"#),
            (r#"{"a b": "c \" d", "e": "\\" , "f":" "}"#, r#"{"a b":"c \" d","e":"\\","f":" "}"#),
            (r#"["\\\" ", 1]"#, r#"["\\\" ",1]"#),
        ] {
            assert_eq!(compact(json), expected);
        }
    }

    #[test]
    fn meta5_a_not_found_message_names_similar_names_or_candidates() {
        let missing = |candidates: &[&str]| Error::ToolNotFound {
            name: "x".to_owned(),
            candidates: candidates.iter().map(|name| (*name).to_owned()).collect(),
        };
        let names = ["github_search", "github_issue"];
        let message = |name: &str, candidates: &[&str]| {
            not_found("tool", name, &missing(candidates), names.into_iter(), "; look there")
        };
        assert_eq!(message("githb_search", &[]), "no tool `githb_search`; did you mean `github_search`?");
        assert_eq!(message("zzz", &[]), "no tool `zzz`; look there");
        assert_eq!(message("x", &["a_x", "b_x"]), "`x` names several tools: use one of `a_x`, `b_x`");
        assert!(message(&"z".repeat(9999), &[]).len() < 500);
    }
}
