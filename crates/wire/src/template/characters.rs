//! The characters that an expansion writes unchanged, and the percent encoding of all others.
//!
//! A percent-encoded character of one to four triplets is one unit everywhere. Prefixes count units, and no value ends
//! inside a unit.

/// The characters that the values of an operator may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    /// All characters except unreserved ones are encoded.
    Unreserved,
    /// Reserved characters and triplets pass unchanged.
    Reserved,
    /// Like `Reserved`, but a match contains no `?` or `#`.
    Path,
}

impl Charset {
    pub(super) const COUNT: usize = 3;
    /// All charsets in the order of their discriminants.
    pub(super) const ALL: [Charset; Charset::COUNT] = [Charset::Unreserved, Charset::Reserved, Charset::Path];

    /// Returns the length of the unit at the start of `text`. Returns 0 if no value of this charset expands to that
    /// text.
    pub(super) fn unit(self, text: &[u8]) -> usize {
        match (text.first(), encoded_at(text)) {
            (_, Some(encoded)) if encoded.is_canonical || self != Charset::Unreserved => encoded.length,
            (Some(&byte), None) if self.has(byte) => 1,
            _ => 0,
        }
    }

    pub(super) fn has(self, byte: u8) -> bool {
        CHARSETS[usize::from(byte)] & self.bit() != 0
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The charsets that contain each byte unencoded, as bits.
const CHARSETS: [u8; 256] = {
    let mut charsets = [0; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        charsets[byte as usize] = match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                Charset::Unreserved.bit() | Charset::Reserved.bit() | Charset::Path.bit()
            }
            b'?' | b'#' => Charset::Reserved.bit(),
            b':' | b'/' | b'[' | b']' | b'@' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';'
            | b'=' => Charset::Reserved.bit() | Charset::Path.bit(),
            _ => 0,
        };
        byte += 1;
    }
    charsets
};

/// Reports whether a character is unreserved or reserved.
pub(super) fn is_uri_character(character: char) -> bool {
    u8::try_from(character).is_ok_and(|byte| Charset::Reserved.has(byte))
}

/// Returns the octet of the triplet at the start of `text`.
pub(super) fn triplet(text: &[u8]) -> Option<u8> {
    let &[b'%', high, low, ..] = text else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

struct Encoded {
    length: usize,
    /// True if the expansion of the character gives exactly these bytes.
    is_canonical: bool,
}

/// Returns the percent-encoded character at the start of `text`. A triplet that begins no valid UTF-8 is a unit by
/// itself.
fn encoded_at(text: &[u8]) -> Option<Encoded> {
    let mut octets = [triplet(text)?, 0, 0, 0];
    let count = match octets[0] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let alone = Encoded { length: 3, is_canonical: false };
    for (index, octet) in octets.iter_mut().enumerate().take(count).skip(1) {
        let Some(next) = text.get(3 * index..).and_then(triplet) else {
            return Some(alone);
        };
        *octet = next;
    }
    if str::from_utf8(&octets[..count]).is_err() {
        return Some(alone);
    }
    let length = 3 * count;
    let has_lower_case = text[..length].iter().any(u8::is_ascii_lowercase);
    Some(Encoded { length, is_canonical: !has_lower_case && !Charset::Unreserved.has(octets[0]) })
}
