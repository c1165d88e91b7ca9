//! Patterns for names and URIs: `*` matches any run of characters, `?` matches one, everything else is literal.
//!
//! Brackets and braces are literal on purpose, because names and URI templates contain them. Matching backtracks only
//! to the last `*`. There is no recursion, and the worst case is the product of the two lengths.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("a pattern must not be empty")]
    Empty,
    #[error("a pattern has at most {} bytes", Glob::MAX_LENGTH)]
    TooLong,
    #[error("a pattern must not contain control characters")]
    Control,
}

impl Glob {
    pub(crate) const MAX_LENGTH: usize = 2048;

    pub fn new(text: &str) -> Result<Glob, GlobError> {
        if text.is_empty() {
            return Err(GlobError::Empty);
        }
        if text.len() > Glob::MAX_LENGTH {
            return Err(GlobError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(GlobError::Control);
        }
        Ok(Glob(text.to_owned()))
    }

    /// Returns the pattern that matches everything.
    pub fn any() -> Glob {
        Glob("*".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether the pattern can match more than its own text.
    pub fn has_wildcard(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    pub fn matches(&self, text: &str) -> bool {
        let (mut pattern, mut rest) = (self.0.as_str(), text);
        // The backtrack point at the last `*`: the pattern after it, and the text that it has not consumed yet.
        let mut retry: Option<(&str, &str)> = None;
        loop {
            if let Some(after) = pattern.strip_prefix('*') {
                retry = Some((after, rest));
                pattern = after;
            } else if let Some((pattern_after, rest_after)) = step(pattern, rest) {
                (pattern, rest) = (pattern_after, rest_after);
            } else if pattern.is_empty() && rest.is_empty() {
                return true;
            } else {
                let Some((pattern_after, swallowed_from)) = retry else {
                    return false;
                };
                let mut characters = swallowed_from.chars();
                if characters.next().is_none() {
                    return false;
                }
                (pattern, rest) = (pattern_after, characters.as_str());
                retry = Some((pattern, rest));
            }
        }
    }
}

/// Removes one character from both sides if they match.
fn step<'a>(pattern: &'a str, text: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    let (wanted, found) = (pattern.next()?, text.next()?);
    (wanted == '?' || wanted == found).then_some((pattern.as_str(), text.as_str()))
}

impl fmt::Display for Glob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Glob, GlobError};

    fn check(pattern: &str, text: &str, expected: bool) {
        let glob = Glob::new(pattern).unwrap();
        assert_eq!(glob.matches(text), expected, "{pattern} on {text}");
    }

    #[test]
    fn matches_stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("find_*", "find_", true),
            ("find_*", "find_all", true),
            ("find_*", "refind_all", false),
            ("*_find", "a_find_find", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a?c", "abc", true),
            ("a?c", "aéc", true),
            ("a?c", "ac", false),
            ("?", "", false),
            ("**", "x", true),
            ("*?*", "", false),
            ("*?*", "x", true),
            ("a", "A", false),
            ("file:///{path}[0]", "file:///{path}[0]", true),
            ("file:///*", "file:///日本/語", true),
            ("*語", "file:///日本/語", true),
        ] {
            check(pattern, text, expected);
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = format!("{}b", "a*".repeat(1000));
        check(&pattern, &"a".repeat(20_000), false);
    }

    #[test]
    fn refuses_what_cannot_be_meant() {
        assert_eq!(Glob::new(""), Err(GlobError::Empty));
        assert_eq!(Glob::new("a\nb"), Err(GlobError::Control));
        assert_eq!(Glob::new(&"a".repeat(Glob::MAX_LENGTH + 1)), Err(GlobError::TooLong));
    }

    /// The plain recursive definition, for comparison.
    fn slow(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(('*', after)), None) => slow(after, text),
            (Some(('*', after)), Some((_, rest))) => slow(after, text) || slow(pattern, rest),
            (Some(_), None) => false,
            (Some((wanted, after)), Some((found, rest))) => (*wanted == '?' || wanted == found) && slow(after, rest),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_obvious_definition(pattern in "[ab*?é]{1,8}", text in "[abé]{0,10}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                Glob::new(&pattern).unwrap().matches(&text),
                slow(&characters(&pattern), &characters(&text))
            );
        }
    }
}
