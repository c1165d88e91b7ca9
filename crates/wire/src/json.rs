//! Reads and edits JSON text without building a tree: spans, shallow walks and splices.
//!
//! All functions expect one valid JSON value, which `Message::parse` has checked. A walk therefore only searches for
//! the end of each value. No function recurses, so deep nesting cannot overflow the stack. The gateway never serializes
//! a payload again: a [`Splice`] replaces values at their spans and copies the rest.

use std::borrow::Cow;
use std::iter;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::Id;

/// The position of a value in its text. Messages are far smaller than 4 GiB, so 32 bits are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Span {
        let narrow = |offset| u32::try_from(offset).expect("messages are bounded far below 4 GiB");
        Span { start: narrow(start), end: narrow(end) }
    }

    /// Returns the span of `part`, which must be a slice of `text`.
    pub fn of(text: &str, part: &str) -> Span {
        let start = part.as_ptr() as usize - text.as_ptr() as usize;
        Span::new(start, start + part.len())
    }

    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub fn get(self, text: &str) -> &str {
        &text[self.range()]
    }

    pub fn slice(self, raw: &Bytes) -> Bytes {
        raw.slice(self.range())
    }
}

/// A member of an object. The span of the key includes the quotes.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub key: Span,
    pub value: Span,
}

impl Member {
    /// Returns the decoded key.
    pub fn key<'a>(&self, text: &'a str) -> Cow<'a, str> {
        string(text, self.key).unwrap_or(Cow::Borrowed(""))
    }

    /// Returns key and value as they are written in `text`.
    pub fn written(&self, text: &str) -> String {
        format!("{}:{}", self.key.get(text), self.value.get(text))
    }
}

/// Iterates over the members of the object at `span`. Yields nothing if the value is not an object.
pub fn members(text: &str, span: Span) -> Members<'_> {
    Members { walk: Walk::into(text, span, b'{') }
}

/// Iterates over the elements of the array at `span`. Yields nothing if the value is not an array.
pub fn elements(text: &str, span: Span) -> impl Iterator<Item = Span> {
    let mut walk = Walk::into(text, span, b'[');
    iter::from_fn(move || walk.next_value())
}

/// Returns the value of the first member called `key`.
pub fn member(text: &str, span: Span, key: &str) -> Option<Span> {
    members(text, span).find(|member| member.key(text) == key).map(|member| member.value)
}

/// Returns the decoded string at `span`. Returns `None` if the value is not a string.
pub fn string(text: &str, span: Span) -> Option<Cow<'_, str>> {
    let token = span.get(text);
    let inner = token.strip_prefix('"')?.strip_suffix('"')?;
    if !has_escape(inner.as_bytes()) {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str::<String>(token).ok().map(Cow::Owned)
}

/// Reports whether a string has a backslash. Most strings are names, and a call of `memchr` is too slow for them.
fn has_escape(inner: &[u8]) -> bool {
    const SHORT: usize = 64;
    let (head, tail) = inner.split_at(inner.len().min(SHORT));
    head.contains(&b'\\') || memchr::memchr(b'\\', tail).is_some()
}

/// Encodes `text` as a JSON string token.
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).expect("every text has a JSON token")
}

/// Returns the span of the whole text without surrounding whitespace.
pub fn whole(text: &str) -> Span {
    Span::of(text, text.trim_matches([' ', '\t', '\r', '\n']))
}

/// Removes the members of the object at `span` for which `is_cut` returns true, each with one adjacent comma. Returns
/// the number of members that remain.
pub fn cut_members(text: &str, span: Span, is_cut: impl Fn(&str) -> bool, edits: &mut Splice) -> usize {
    let (mut kept, mut before) = (0, None);
    let mut members = members(text, span).peekable();
    while let Some(member) = members.next() {
        if !is_cut(&member.key(text)) {
            kept += 1;
        } else if let (true, Some(start)) = (kept > 0, before) {
            edits.replace(Span { start, end: member.value.end }, "");
        } else {
            let end = members.peek().map_or(member.value.end, |next| next.key.start);
            edits.replace(Span { start: member.key.start, end }, "");
        }
        before = Some(member.value.end);
    }
    kept
}

/// Inserts `members` at the beginning of the object at `span`. `members` must be written with commas between them.
pub fn prepend(text: &str, span: Span, members: &str, edits: &mut Splice) {
    let comma = if self::members(text, span).next().is_some() { "," } else { "" };
    edits.insert(span.start + 1, format!("{members}{comma}"));
}

/// Sets members of the object at `span` to values that are JSON. Members that the object lacks come at its beginning.
pub fn set_members(text: &str, span: Span, values: &[(&str, String)], edits: &mut Splice) {
    let mut new = Vec::new();
    for (key, value) in values {
        match member(text, span, key) {
            Some(at) => edits.replace(at, value.clone()),
            None => new.push(format!("\"{key}\":{value}")),
        }
    }
    if !new.is_empty() {
        prepend(text, span, &new.join(","), edits);
    }
}

/// Replaces line breaks by spaces, for transports that frame messages by lines. Line breaks in valid JSON are always
/// whitespace. A backend that pretty-prints would otherwise break the framing or could inject a message.
pub fn single_line(raw: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &raw).is_none() {
        return raw;
    }
    let mut line = BytesMut::from(&raw[..]);
    for byte in line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    line.freeze()
}

pub struct Members<'a> {
    walk: Walk<'a>,
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let key = self.next_key()?;
        let value = self.next_value()?;
        Some(Member { key, value })
    }
}

/// Reads keys and values separately, for callers that choose by the key how to read the value.
impl Members<'_> {
    pub fn next_key(&mut self) -> Option<Span> {
        let key = self.walk.next_value()?;
        self.walk.skip_one(b':');
        Some(key)
    }

    pub(crate) fn next_value(&mut self) -> Option<Span> {
        self.walk.next_value()
    }

    /// Skips the value like `next_value`. If it is an object, passes each of its members to `visit`.
    pub fn next_object(&mut self, visit: impl FnMut(Member)) -> Option<Span> {
        self.walk.skip_blanks();
        let Walk { bytes, at: start, end } = self.walk;
        if bytes.get(start) != Some(&b'{') {
            return self.next_value();
        }
        let mut inside = Members { walk: Walk { bytes, at: start + 1, end } };
        inside.by_ref().for_each(visit);
        self.walk.at = (inside.walk.at + 1).min(end);
        Some(Span::new(start, self.walk.at))
    }
}

/// A position between the tokens of one container.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Walk<'a> {
    fn into(text: &'a str, span: Span, open: u8) -> Walk<'a> {
        let bytes = text.as_bytes();
        let Range { start, end } = span.range();
        let inside = bytes.get(start) == Some(&open);
        Walk { bytes, at: if inside { start + 1 } else { end }, end }
    }

    /// Skips whitespace and commas.
    fn skip_blanks(&mut self) {
        while self.at < self.end && matches!(self.bytes[self.at], b' ' | b'\t' | b'\n' | b'\r' | b',') {
            self.at += 1;
        }
    }

    fn skip_one(&mut self, byte: u8) {
        self.skip_blanks();
        if self.at < self.end && self.bytes[self.at] == byte {
            self.at += 1;
        }
    }

    fn next_value(&mut self) -> Option<Span> {
        self.skip_blanks();
        if self.at >= self.end || matches!(self.bytes[self.at], b'}' | b']') {
            return None;
        }
        let start = self.at;
        self.at = value_end(self.bytes, start).min(self.end);
        Some(Span::new(start, self.at))
    }
}

/// Returns the end of the value that begins at `start`.
fn value_end(bytes: &[u8], start: usize) -> usize {
    match bytes[start] {
        b'"' => string_end(bytes, start),
        b'{' | b'[' => container_end(bytes, start, usize::MAX).unwrap_or(bytes.len()),
        _ => {
            let rest = &bytes[start..];
            let length = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
            start + length.unwrap_or(rest.len())
        }
    }
}

/// Returns the end of the string that begins at `start`, after its closing quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(offset) = quote_or_escape(&bytes[at.min(bytes.len())..]) {
        at += offset;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// Returns the position of the first `"` or `\`. Checks eight bytes at a time at first, because most strings are short.
fn quote_or_escape(bytes: &[u8]) -> Option<usize> {
    const NEAR: usize = 64;
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    // Sets the high bit of each equal byte. Only the lowest set bit is reliable, and it marks the first equal byte.
    let same = |word: u64, byte: u8| {
        let difference = word ^ (ONES * u64::from(byte));
        difference.wrapping_sub(ONES) & !difference & HIGHS
    };
    let mut at = 0;
    while at < NEAR
        && let Some(chunk) = bytes[at..].first_chunk::<8>()
    {
        let word = u64::from_le_bytes(*chunk);
        let found = same(word, b'"') | same(word, b'\\');
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', &bytes[at..]).map(|offset| at + offset)
}

/// Returns the end of the container that begins at `start`. Returns `None` if it is nested deeper than `max_depth`.
pub(crate) fn container_end(bytes: &[u8], start: usize, max_depth: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at);
                continue;
            }
            b'{' | b'[' if depth == max_depth => return None,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
    Some(bytes.len())
}

/// Replacements in one text. Their spans must not overlap.
#[derive(Clone, Debug, Default)]
pub struct Splice {
    edits: SmallVec<[(Span, Bytes); 4]>,
}

impl Splice {
    pub fn new() -> Splice {
        Splice::default()
    }

    pub fn replace(&mut self, span: Span, with: impl Into<Bytes>) {
        self.edits.push((span, with.into()));
    }

    pub fn insert(&mut self, at: u32, text: impl Into<Bytes>) {
        self.replace(Span { start: at, end: at }, text);
    }

    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    pub fn append(&mut self, other: Splice) {
        self.edits.extend(other.edits);
    }

    /// Returns the new text as pieces that share the memory of the old text.
    pub fn pieces(mut self, raw: &Bytes) -> Pieces {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let mut pieces = Pieces::new();
        let mut at = 0;
        for (span, with) in self.edits {
            let Range { start, end } = span.range();
            pieces.push(raw.slice(at..start));
            pieces.push(with);
            at = end;
        }
        pieces.push(raw.slice(at..));
        pieces
    }

    pub fn apply(self, raw: &Bytes) -> Bytes {
        if self.is_empty() {
            return raw.clone();
        }
        self.pieces(raw).concat()
    }
}

/// A message as a list of shared byte slices. The gateway can change the id of a large result without copying it.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    parts: SmallVec<[Bytes; 5]>,
    /// The index of the piece that is the id of a response.
    id: Option<usize>,
}

impl Pieces {
    pub fn new() -> Pieces {
        Pieces::default()
    }

    pub fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.parts.push(piece);
        }
    }

    /// Appends the id of a response. [`with_id`](Pieces::with_id) replaces it.
    pub(crate) fn push_id(&mut self, id: &Id) {
        self.id = Some(self.parts.len());
        self.parts.push(id.token());
    }

    /// Marks the piece that is the id. It is the only one that begins at the memory of `id`.
    pub(crate) fn mark_id(mut self, id: &Id) -> Pieces {
        self.id = self.parts.iter().position(|part| part.as_ptr() == id.0.as_ptr());
        self
    }

    /// Returns the response under another id. Returns it unchanged if it has no id.
    #[must_use]
    pub fn with_id(mut self, id: &Id) -> Pieces {
        if let Some(index) = self.id {
            self.parts[index] = id.token();
        }
        self
    }

    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter()
    }

    pub fn concat(&self) -> Bytes {
        if let [only] = &self.parts[..] {
            return only.clone();
        }
        let mut whole = BytesMut::with_capacity(self.len());
        for piece in &self.parts {
            whole.extend_from_slice(piece);
        }
        whole.freeze()
    }

    /// Puts the message on one line, see [`single_line`].
    pub fn into_line(self) -> Pieces {
        Pieces { parts: self.parts.into_iter().map(single_line).collect(), id: self.id }
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 5]>;

    fn into_iter(self) -> Self::IntoIter {
        self.parts.into_iter()
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Pieces {
        let mut pieces = Pieces::new();
        pieces.push(bytes);
        pieces
    }
}

impl From<String> for Pieces {
    fn from(text: String) -> Pieces {
        Bytes::from(text).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_walk_visits_members_and_elements() {
        let text = r#" {"a" : [1, {"b":"]}"} , "x\"y"], "c\u0061":{} , "d":-1.0e3}"#;
        let span = whole(text);
        let seen: Vec<_> = members(text, span).map(|m| (m.key(text).into_owned(), m.value.get(text))).collect();
        assert_eq!(
            seen,
            [("a".to_owned(), r#"[1, {"b":"]}"} , "x\"y"]"#), ("ca".to_owned(), "{}"), ("d".to_owned(), "-1.0e3"),]
        );
        let array = member(text, span, "a").expect("the member a");
        let seen: Vec<_> = elements(text, array).map(|element| element.get(text)).collect();
        assert_eq!(seen, ["1", r#"{"b":"]}"}"#, r#""x\"y""#]);
    }

    #[test]
    fn a_walk_into_another_kind_of_value_is_empty() {
        for text in ["[]", "1", "\"{}\"", "null", "{}"] {
            assert_eq!(members(text, whole(text)).count(), 0, "{text}");
            assert_eq!(elements(text, whole(text)).count(), 0, "{text}");
        }
    }

    #[test]
    fn a_walk_visits_the_members_of_a_nested_object() {
        let text = r#"{"a":{"b":1,"c":{"d":"}"}},"e": {} ,"f":[{}],"g":2}"#;
        let mut outside = members(text, whole(text));
        let (mut seen, mut inside) = (Vec::new(), Vec::new());
        while let Some(key) = outside.next_key() {
            let value = outside.next_object(|member| inside.push(member.written(text))).expect("a value");
            seen.push((key.get(text), value.get(text)));
        }
        assert_eq!(inside, [r#""b":1"#, r#""c":{"d":"}"}"#]);
        let expected = [("\"a\"", r#"{"b":1,"c":{"d":"}"}}"#), ("\"e\"", "{}"), ("\"f\"", "[{}]"), ("\"g\"", "2")];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_end_of_a_string_is_found_at_every_length() {
        for length in 0..200 {
            for (inner, is_end) in [(b"\"".as_slice(), true), (b"\\\"x\"", false)] {
                // The filler has bytes close to the two delimiters, and bytes that are not ASCII.
                let filler = b"!#[]\xc3\xa9\x01 ".iter().cycle().take(length).copied();
                let bytes: Vec<_> = b"\"".iter().copied().chain(filler).chain(inner.iter().copied()).collect();
                let end = if is_end { length + 2 } else { length + 5 };
                assert_eq!(string_end(&bytes, 0), end, "{length}");
            }
        }
    }

    #[test]
    fn deep_nesting_is_walked_without_recursion() {
        let text = format!("[{}{}]", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(elements(&text, whole(&text)).count(), 1);
    }

    #[test]
    fn line_breaks_become_spaces() {
        assert_eq!(single_line(Bytes::from("{\r\n\"a\":\"\\n\"\n}")), "{  \"a\":\"\\n\" }");
    }

    proptest! {
        #[test]
        fn quoting_round_trips(text in any::<String>()) {
            let token = quote(&text);
            prop_assert_eq!(serde_json::from_str::<String>(&token).expect("a JSON string"), text.clone());
            prop_assert_eq!(string(&token, whole(&token)).expect("a string"), text);
        }

        #[test]
        fn a_splice_replaces_only_its_spans(before in "[a-z]{0,9}", old in "[A-Z]{0,9}", after in "[a-z]{0,9}", new in "[0-9]{0,9}") {
            let raw = Bytes::from(format!("{before}{old}{after}"));
            let mut splice = Splice::new();
            splice.replace(Span::new(before.len(), before.len() + old.len()), new.clone());
            prop_assert_eq!(splice.apply(&raw), format!("{before}{new}{after}"));
        }
    }

    #[test]
    fn a_member_is_cut_with_one_comma() {
        let check = |text: &str, expected: &str| {
            let mut edits = Splice::new();
            cut_members(text, whole(text), |key| key == "k", &mut edits);
            assert_eq!(edits.apply(&text.to_owned().into()), expected, "{text}");
        };
        check(r#"{"k":1}"#, "{}");
        check(r#"{ "k" : [1,2] , "b":2}"#, r#"{ "b":2}"#);
        check(r#"{"a":{"k":1} , "k":{"x":","}, "b":2}"#, r#"{"a":{"k":1}, "b":2}"#);
        check(r#"{"a":1,"k":null}"#, r#"{"a":1}"#);
        check(r#"{"a":{"k":1}}"#, r#"{"a":{"k":1}}"#);
    }

    #[test]
    fn members_are_set_whether_present_or_absent() {
        let check = |text: &str, expected: &str| {
            let mut edits = Splice::new();
            set_members(text, whole(text), &[("a", "1".to_owned()), ("b", "2".to_owned())], &mut edits);
            assert_eq!(edits.apply(&text.to_owned().into()), expected, "{text}");
        };
        check("{}", r#"{"a":1,"b":2}"#);
        check(r#"{"b":{"a":0}}"#, r#"{"a":1,"b":2}"#);
        check(r#"{ "b":0, "c":0, "a":[] }"#, r#"{ "b":2, "c":0, "a":1 }"#);
        check(r#"{"c":0}"#, r#"{"a":1,"b":2,"c":0}"#);
    }

    #[test]
    fn cutting_members_leaves_a_valid_object() {
        let check = |text: &str, expected: &str| {
            let mut edits = Splice::new();
            let kept = cut_members(text, whole(text), |key| key.starts_with('x'), &mut edits);
            let edited = edits.apply(&Bytes::copy_from_slice(text.as_bytes()));
            assert_eq!(edited, expected, "{text}");
            assert_eq!(kept, members(expected, whole(expected)).count(), "{text}");
        };
        check("{}", "{}");
        check(r#"{"x":1}"#, "{}");
        check(r#"{ "x1" : 1 , "x2":{"a":2} }"#, "{  }");
        check(r#"{"x1":1,"a":2,"x2":3,"x3":4,"b":5,"x4":6}"#, r#"{"a":2,"b":5}"#);
        check(r#"{"x1":1,"x2":2,"a":[3]}"#, r#"{"a":[3]}"#);
        check(r#"{"a":1,"x1":2,"x2":3}"#, r#"{"a":1}"#);
        check("[1]", "[1]");
    }
}
