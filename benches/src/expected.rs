//! The exact bytes of a correct response. They are learned once from a response that was parsed and checked. Each later
//! response is compared frame by frame as it arrives, which costs the load generator a `memcmp`.

use bytes::Bytes;

/// The first request id. All ids have the same number of digits, so that responses have the same length.
pub const FIRST_ID: u64 = 1_000_000_000;

/// A response that is split at its id, or unsplit if the server always sends the same bytes.
pub struct Expected {
    before: Bytes,
    after: Bytes,
    has_id: bool,
}

impl Expected {
    /// Learns from the response to request `id`. Returns `None` unless the response contains the id exactly once.
    pub fn with_id(answer: &Bytes, id: u64) -> Option<Self> {
        let digits = id.to_string();
        let mut places = answer.windows(digits.len()).enumerate().filter(|(_, window)| *window == digits.as_bytes());
        let (place, _) = places.next()?;
        if places.next().is_some() {
            return None;
        }
        Some(Self { before: answer.slice(..place), after: answer.slice(place + digits.len()..), has_id: true })
    }

    pub fn always(answer: Bytes) -> Self {
        Self { before: answer, after: Bytes::new(), has_id: false }
    }

    pub fn check(&self, id: u64) -> Check<'_> {
        let id = if self.has_id { id.to_string() } else { String::new() };
        Check { expected: self, id, seen: 0 }
    }

    fn len(&self, id: &str) -> usize {
        self.before.len() + id.len() + self.after.len()
    }
}

/// The comparison of one response, over any number of frames.
pub struct Check<'a> {
    expected: &'a Expected,
    id: String,
    seen: usize,
}

impl Check<'_> {
    /// Reports whether `frame` continues the response.
    pub fn accepts(&mut self, mut frame: &[u8]) -> bool {
        let mut start = 0;
        for segment in [&self.expected.before, self.id.as_bytes(), &self.expected.after] {
            let end = start + segment.len();
            if self.seen < end && !frame.is_empty() {
                let rest = &segment[self.seen - start..];
                let common = rest.len().min(frame.len());
                if rest[..common] != frame[..common] {
                    return false;
                }
                self.seen += common;
                frame = &frame[common..];
            }
            start = end;
        }
        frame.is_empty()
    }

    /// Reports whether the whole response was seen.
    pub fn is_complete(&self) -> bool {
        self.seen == self.expected.len(&self.id)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::Expected;

    fn check(expected: &Expected, id: u64, answer: &[u8], verdict: bool) {
        for size in 1..=answer.len() {
            let mut check = expected.check(id);
            let accepted = answer.chunks(size).all(|frame| check.accepts(frame));
            assert_eq!(accepted && check.is_complete(), verdict, "frames of {size} bytes");
        }
    }

    #[test]
    fn an_answer_must_equal_the_learned_one_except_for_its_id() {
        let learned = Bytes::from_static(br#"{"id":1000,"result":{}}"#);
        let expected = Expected::with_id(&learned, 1000).unwrap();
        check(&expected, 1000, &learned, true);
        check(&expected, 1001, br#"{"id":1001,"result":{}}"#, true);
        check(&expected, 1001, br#"{"id":1000,"result":{}}"#, false);
        check(&expected, 1001, br#"{"id":1001,"result":{"#, false);
        check(&expected, 1001, br#"{"id":1001,"result":{}} "#, false);
    }

    #[test]
    fn an_answer_with_an_absent_or_ambiguous_id_is_not_learned() {
        assert!(Expected::with_id(&Bytes::from_static(br#"{"id":1}"#), 1000).is_none());
        assert!(Expected::with_id(&Bytes::from_static(br#"{"id":1000,"x":1000}"#), 1000).is_none());
    }

    #[test]
    fn a_static_answer_must_equal_the_learned_bytes() {
        let expected = Expected::always(Bytes::from_static(b"{}"));
        check(&expected, 1000, b"{}", true);
        check(&expected, 1000, b"[]", false);
    }
}
