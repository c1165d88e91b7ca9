//! Glob patterns that a subscription may name instead of one URI. See [`UriGlob`] for the syntax.
//!
//! The name patterns of the configuration are a different language: brackets are literal there and `*` matches `/`. The
//! two therefore share no matcher.

use std::str::Chars;

use smallvec::SmallVec;

/// The maximum length of a pattern, in bytes.
pub const MAX_GLOB: usize = 1024;
/// The maximum number of wildcards. Each may cost a pass over the whole URI, so this limits the time of a match.
pub(crate) const MAX_WILDCARDS: usize = 64;
/// The maximum length of a URI, in bytes. A longer URI matches nothing.
pub const MAX_URI: usize = 8 * 1024;

const WILDCARDS: [char; 3] = ['*', '?', '['];

/// A parsed pattern.
///
/// - `*` matches any run of characters except `/`.
/// - `**` matches any run of characters.
/// - `**/` at the start of a segment matches any number of whole segments, including none: `a/**/b` matches `a/b`.
/// - `?` matches one character, `[a-z]` one character of a class, `[!a-z]` and `[^a-z]` one outside of it, but never
///   `/`.
///
/// All other characters are literal, including braces. Brackets make a wildcard literal: `[*]`, `[?]`, `[[]`. A `]`
/// needs no brackets.
///
/// Matching walks the pattern once and keeps the set of offsets in the URI that it may have reached. The time is at
/// most the length of the URI times the number of wildcards, and both are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriGlob {
    text: String,
    /// The number of bytes before the first wildcard.
    literal: usize,
    /// The steps for the text from the first wildcard on.
    steps: Vec<GlobStep>,
}

/// The reason why a text is not a valid pattern. Positions count characters of the pattern from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriGlobError {
    #[error("a pattern must not be empty")]
    Empty,
    #[error("the pattern of {length} bytes is longer than {MAX_GLOB}")]
    TooLong { length: usize },
    #[error("the pattern has more than {MAX_WILDCARDS} wildcards")]
    TooManyWildcards,
    #[error("the bracket at character {position} is never closed; a literal one is written [[]")]
    NotClosed { position: usize },
    #[error("the brackets at character {position} are empty")]
    EmptyClass { position: usize },
    #[error("the range {first}-{last} at character {position} is the wrong way round")]
    Reversed { first: char, last: char, position: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobStep {
    Literal(String),
    /// `?`
    One,
    Class(CharClass),
    /// `*`
    Run,
    /// `**`
    Deep,
    /// `**/` at the start of a segment: any number of whole segments.
    Segments,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CharClass {
    is_negated: bool,
    ranges: Box<[(char, char)]>,
}

impl CharClass {
    fn has(&self, character: char) -> bool {
        let is_inside = self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&character));
        character != '/' && is_inside != self.is_negated
    }
}

impl UriGlob {
    pub fn parse(text: &str) -> Result<UriGlob, UriGlobError> {
        if text.is_empty() {
            return Err(UriGlobError::Empty);
        }
        if text.len() > MAX_GLOB {
            return Err(UriGlobError::TooLong { length: text.len() });
        }
        let literal = text.find(WILDCARDS).unwrap_or(text.len());
        let steps = GlobParser::new(text, literal).steps()?;
        if steps.iter().filter(|step| !matches!(step, GlobStep::Literal(_))).count() > MAX_WILDCARDS {
            return Err(UriGlobError::TooManyWildcards);
        }
        Ok(UriGlob { text: text.to_owned(), literal, steps })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text that every match begins with.
    pub fn literal(&self) -> &str {
        &self.text[..self.literal]
    }

    /// Reports whether the pattern matches the whole URI.
    pub fn matches(&self, uri: &str) -> bool {
        if uri.len() > MAX_URI {
            return false;
        }
        let Some(rest) = uri.strip_prefix(self.literal()) else { return false };
        let mut offsets = Offsets::from_elem(0, 1);
        for step in &self.steps {
            offsets = step.advance(rest, &offsets);
            if offsets.is_empty() {
                return false;
            }
        }
        offsets.last() == Some(&rest.len())
    }
}

/// The offsets in a URI at which the rest of a pattern may begin, in ascending order.
type Offsets = SmallVec<[usize; 32]>;

impl GlobStep {
    /// Returns the offsets that this step reaches from `offsets`.
    fn advance(&self, uri: &str, offsets: &Offsets) -> Offsets {
        let one = |is_wanted: &dyn Fn(char) -> bool| {
            let after = |&offset: &usize| {
                let character = uri[offset..].chars().next().filter(|character| is_wanted(*character))?;
                Some(offset + character.len_utf8())
            };
            offsets.iter().filter_map(after).collect()
        };
        match self {
            GlobStep::Literal(text) => {
                let is_there = |offset: &&usize| uri.as_bytes()[**offset..].starts_with(text.as_bytes());
                offsets.iter().filter(is_there).map(|offset| offset + text.len()).collect()
            }
            GlobStep::One => one(&|character| character != '/'),
            GlobStep::Class(class) => one(&|character| class.has(character)),
            GlobStep::Run => runs(uri, offsets),
            GlobStep::Deep => offsets.first().map(|first| boundaries(uri, *first).collect()).unwrap_or_default(),
            GlobStep::Segments => segments(uri, offsets),
        }
    }
}

/// Returns every offset from `first` to the end of the URI.
fn boundaries(uri: &str, first: usize) -> impl Iterator<Item = usize> {
    (first..=uri.len()).filter(|offset| uri.is_char_boundary(*offset))
}

/// Returns the offsets that `*` reaches.
fn runs(uri: &str, offsets: &Offsets) -> Offsets {
    let mut reached = Offsets::new();
    for &offset in offsets {
        // A run from an earlier offset already covers this one.
        if reached.last().is_none_or(|last| *last < offset) {
            let end = uri[offset..].find('/').map_or(uri.len(), |length| offset + length);
            reached.extend(boundaries(&uri[..end], offset));
        }
    }
    reached
}

/// Returns the offsets themselves, and the offsets after every `/` behind the first of them.
fn segments(uri: &str, offsets: &Offsets) -> Offsets {
    let Some(&first) = offsets.first() else { return Offsets::new() };
    let slashes = memchr::memchr_iter(b'/', &uri.as_bytes()[first..]).map(|offset| first + offset + 1);
    let mut reached: Offsets = offsets.iter().copied().chain(slashes).collect();
    reached.sort_unstable();
    reached.dedup();
    reached
}

/// A position in the text of a pattern.
struct GlobParser<'a> {
    rest: Chars<'a>,
    /// The number of characters read so far.
    read: usize,
    is_segment_start: bool,
}

impl GlobParser<'_> {
    fn new(text: &str, literal: usize) -> GlobParser<'_> {
        let (before, rest) = text.split_at(literal);
        let is_segment_start = before.is_empty() || before.ends_with('/');
        GlobParser { rest: rest.chars(), read: before.chars().count(), is_segment_start }
    }

    fn steps(mut self) -> Result<Vec<GlobStep>, UriGlobError> {
        let mut steps = Vec::new();
        while let Some(character) = self.next() {
            let step = match character {
                '*' => self.run(),
                '?' => GlobStep::One,
                '[' => GlobStep::Class(self.class()?),
                literal => GlobStep::Literal(self.literal(literal)),
            };
            self.is_segment_start = match &step {
                GlobStep::Literal(text) => text.ends_with('/'),
                GlobStep::Segments => true,
                GlobStep::One | GlobStep::Class(_) | GlobStep::Run | GlobStep::Deep => false,
            };
            steps.push(step);
        }
        Ok(steps)
    }

    /// Reads up to the next wildcard.
    fn literal(&mut self, first: char) -> String {
        let mut text = String::from(first);
        while !self.rest.as_str().starts_with(WILDCARDS) {
            let Some(character) = self.next() else { break };
            text.push(character);
        }
        text
    }

    fn next(&mut self) -> Option<char> {
        self.read += 1;
        self.rest.next()
    }

    fn next_if(&mut self, wanted: char) -> bool {
        let is_next = self.rest.as_str().starts_with(wanted);
        if is_next {
            self.next();
        }
        is_next
    }

    fn run(&mut self) -> GlobStep {
        if !self.next_if('*') {
            return GlobStep::Run;
        }
        while self.next_if('*') {}
        if self.is_segment_start && self.next_if('/') { GlobStep::Segments } else { GlobStep::Deep }
    }

    fn class(&mut self) -> Result<CharClass, UriGlobError> {
        let opened = self.read;
        let is_negated = self.next_if('!') || self.next_if('^');
        let mut ranges = Vec::new();
        loop {
            let first = self.next().ok_or(UriGlobError::NotClosed { position: opened })?;
            if first == ']' {
                break;
            }
            let position = self.read;
            let last = self.last_of_range().unwrap_or(first);
            if last < first {
                return Err(UriGlobError::Reversed { first, last, position });
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err(UriGlobError::EmptyClass { position: opened });
        }
        Ok(CharClass { is_negated, ranges: ranges.into() })
    }

    /// Reads `-z` if it comes next. A `-` before the closing bracket is a literal.
    fn last_of_range(&mut self) -> Option<char> {
        let mut ahead = self.rest.clone();
        let (dash, last) = (ahead.next()?, ahead.next()?);
        if dash != '-' || last == ']' {
            return None;
        }
        self.next();
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, uri: &str, expected: bool) {
        let glob = UriGlob::parse(pattern).expect(pattern);
        assert_eq!(glob.matches(uri), expected, "{pattern} on {uri}");
    }

    #[test]
    fn subx1_wildcards_and_classes_match_with_respect_to_slashes() {
        for (pattern, matching, others) in [
            ("a:b", &["a:b"][..], &["a:", "a:bc", "A:b", ""][..]),
            ("x/*", &["x/", "x/a", "x/é"], &["x", "x/a/b", "x/a/"]),
            ("x/*.log", &["x/.log", "x/a.log", "x/a.log.log"], &["x/a/b.log", "x/a.logs"]),
            ("x/**", &["x/", "x/a", "x/a/b/"], &["x", "y/a"]),
            ("x/**/b", &["x/b", "x/a/b", "x/a/c/b", "x//b", "x/b/b"], &["x/ab", "xb", "x/a/cb", "x/b/"]),
            ("x/**/*.log", &["x/a.log", "x/a/b.log", "x/.log"], &["x/a.txt", "xa.log"]),
            ("**/b", &["b", "a/b", "/b", "a/c/b"], &["ab", "b/a"]),
            ("**/**/b", &["b", "a/b", "a/c/b"], &["ab"]),
            ("x**/b", &["x/b", "xa/b", "xa/c/b"], &["xb", "xab"]),
            ("x/**b", &["x/b", "x/ab", "x/a/cb"], &["x/a"]),
            ("x/***/b", &["x/b", "x/a/b"], &["x/ab"]),
            ("x/**/**", &["x/", "x/a", "x/a/b"], &["x"]),
            ("*/**/*", &["a/b", "/", "a/b/c"], &["a"]),
            ("a?c", &["abc", "aéc", "a?c", "a語c"], &["ac", "a/c", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x", "-x"]),
            ("[!a-c]x", &["dx", "-x", "éx"], &["ax", "/x", "x"]),
            ("[^ab]", &["c", "^"], &["a", "b", "/"]),
            ("[a^!]", &["a", "^", "!"], &["b"]),
            ("[/]", &[], &["/"]),
            ("[.-0]", &[".", "0"], &["/"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[-a]", &["a", "-"], &["b"]),
            ("[!-a]", &["b"], &["a", "-"]),
            ("[a-c-e]", &["b", "-", "e"], &["d"]),
            ("[[]*]", &["[x]", "[]"], &["[x", "x]"]),
            ("[*][?]", &["*?"], &["ab"]),
            ("a{b,c}", &["a{b,c}"], &["ab", "ac"]),
            ("fs+file:///日本/*語", &["fs+file:///日本/x語"], &["fs+file:///日本/x/語"]),
            (r"a\*", &[r"a\", r"a\b"], &["a*"]),
        ] {
            matching.iter().for_each(|uri| check(pattern, uri, true));
            others.iter().for_each(|uri| check(pattern, uri, false));
        }
    }

    #[test]
    fn a_glob_has_a_literal_prefix() {
        for (pattern, literal) in
            [("fs+file:///logs/**/*.log", "fs+file:///logs/"), ("a?b", "a"), ("a[b]", "a"), ("*", ""), ("a{b}", "a{b}")]
        {
            assert_eq!(UriGlob::parse(pattern).expect(pattern).literal(), literal, "{pattern}");
        }
    }

    #[test]
    fn an_invalid_glob_is_rejected_with_its_cause() {
        let check =
            |pattern: &str, expected: UriGlobError| assert_eq!(UriGlob::parse(pattern), Err(expected), "{pattern}");
        check("", UriGlobError::Empty);
        check("é*[ab", UriGlobError::NotClosed { position: 3 });
        check("[", UriGlobError::NotClosed { position: 1 });
        check("[a-", UriGlobError::NotClosed { position: 1 });
        check("a[]", UriGlobError::EmptyClass { position: 2 });
        check("a[]]", UriGlobError::EmptyClass { position: 2 });
        check("a[!]", UriGlobError::EmptyClass { position: 2 });
        check("x/[ac-b]", UriGlobError::Reversed { first: 'c', last: 'b', position: 5 });
        check(&"a".repeat(MAX_GLOB + 1), UriGlobError::TooLong { length: MAX_GLOB + 1 });
        check(&"?".repeat(MAX_WILDCARDS + 1), UriGlobError::TooManyWildcards);
        let error = UriGlobError::Reversed { first: 'c', last: 'b', position: 5 }.to_string();
        assert_eq!(error, "the range c-b at character 5 is the wrong way round");
        assert!(UriGlob::parse(&"a".repeat(MAX_GLOB)).is_ok());
    }

    #[test]
    fn many_wildcards_match_in_bounded_time() {
        let uri = "a".repeat(MAX_URI);
        let stars = "*a".repeat(MAX_WILDCARDS - 1);
        check(&format!("{stars}*"), &uri, true);
        check(&format!("{stars}*b"), &uri, false);
        check(&format!("{}b", "**/".repeat(MAX_WILDCARDS)), &"a/".repeat(MAX_URI / 2), false);
        check(&format!("**{}b", "a".repeat(MAX_GLOB - 3)), &uri, false);
        check("**", &uri, true);
        check("**", &format!("{uri}a"), false);
    }

    /// The straightforward definition, for comparison.
    fn slow(pattern: &[char], uri: &[char], is_start: bool) -> bool {
        let skip = |count: usize, is_start| slow(&pattern[count..], uri, is_start);
        let swallow = |is_start| !uri.is_empty() && slow(pattern, &uri[1..], is_start);
        match pattern {
            [] => uri.is_empty(),
            ['*', '*', '*', ..] => slow(&pattern[1..], uri, is_start),
            ['*', '*', '/', after @ ..] if is_start => {
                let ends = (0..uri.len()).filter(|at| uri[*at] == '/');
                skip(3, true) || ends.into_iter().any(|at| slow(after, &uri[at + 1..], true))
            }
            ['*', '*', ..] => skip(2, false) || swallow(false),
            ['*', ..] => skip(1, false) || (uri.first() != Some(&'/') && swallow(false)),
            ['[', '!', 'a', ']', after @ ..] => {
                !matches!(uri.first(), None | Some('a' | '/')) && slow(after, &uri[1..], false)
            }
            ['?', after @ ..] => !matches!(uri.first(), None | Some('/')) && slow(after, &uri[1..], false),
            [wanted, after @ ..] => uri.first() == Some(wanted) && slow(after, &uri[1..], *wanted == '/'),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_match_of_any_glob_starts_with_its_literal_prefix(pattern in any::<String>(), uri in any::<String>()) {
            if let Ok(glob) = UriGlob::parse(&pattern) {
                prop_assert!(!glob.matches(&uri) || uri.starts_with(glob.literal()));
            }
        }

        #[test]
        fn a_glob_agrees_with_the_naive_definition(
            pattern in r"(a|b|/|\*|\*\*|\*\*/|\?|\[!a\]|é){1,7}", uri in "[ab/é]{0,8}"
        ) {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                UriGlob::parse(&pattern).expect("a pattern").matches(&uri),
                slow(&characters(&pattern), &characters(&uri), true)
            );
        }
    }
}
