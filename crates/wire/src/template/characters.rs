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
            (_, Some(encoded)) if encoded.canonical.is_some() || self != Charset::Unreserved => encoded.length,
            (Some(&byte), None) if self.has(byte) => 1,
            _ => 0,
        }
    }

    /// Appends the first `limit` characters of a value to `uri`, encoded.
    pub(super) fn encode(self, value: &str, limit: usize, uri: &mut String) {
        let mut rest = value;
        for _ in 0..limit {
            let Some(character) = rest.chars().next() else {
                break;
            };
            let passing = match self {
                Charset::Unreserved => None,
                Charset::Reserved | Charset::Path => encoded_at(rest.as_bytes()),
            };
            let length = passing.map_or(character.len_utf8(), |encoded| encoded.length);
            let (unit, behind) = rest.split_at(length);
            if passing.is_some() || self.writes_plainly(character) {
                uri.push_str(unit);
            } else {
                push_encoded(uri, unit);
            }
            rest = behind;
        }
    }

    /// Returns a value that `encode` turns into `text`. The text must consist of units of this charset.
    pub(super) fn decode(self, text: &str) -> String {
        let mut value = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('%') {
            let (plain, encoded) = rest.split_at(start);
            value.push_str(plain);
            let (length, character) =
                encoded_at(encoded.as_bytes()).map_or((1, None), |found| (found.length, found.canonical));
            let (unit, behind) = encoded.split_at(length);
            match character {
                Some(character) if self.restores(character) => value.push(character),
                _ => value.push_str(unit),
            }
            rest = behind;
        }
        value.push_str(rest);
        value
    }

    fn has(self, byte: u8) -> bool {
        CHARSETS[usize::from(byte)] & self.bit() != 0
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    fn writes_plainly(self, character: char) -> bool {
        let Ok(byte) = u8::try_from(character) else {
            return false;
        };
        match self {
            Charset::Unreserved => Charset::Unreserved.has(byte),
            Charset::Reserved | Charset::Path => Charset::Reserved.has(byte),
        }
    }

    /// Reports whether `encode` always writes this character as triplets. It may pass a `%` unchanged as the start of a
    /// triplet.
    fn restores(self, character: char) -> bool {
        !self.writes_plainly(character) && (self == Charset::Unreserved || character != '%')
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
    Charset::Reserved.writes_plainly(character)
}

pub(super) fn push_encoded(written: &mut String, text: &str) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    for byte in text.bytes() {
        written.extend(['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

/// Returns the octet of the triplet at the start of `text`.
pub(super) fn triplet(text: &[u8]) -> Option<u8> {
    let &[b'%', high, low, ..] = text else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[derive(Clone, Copy)]
struct Encoded {
    length: usize,
    /// The character, if its expansion gives exactly these bytes.
    canonical: Option<char>,
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
    let alone = Encoded { length: 3, canonical: None };
    for (index, octet) in octets.iter_mut().enumerate().take(count).skip(1) {
        let Some(next) = text.get(3 * index..).and_then(triplet) else {
            return Some(alone);
        };
        *octet = next;
    }
    let Some(character) = str::from_utf8(&octets[..count]).ok().and_then(|text| text.chars().next()) else {
        return Some(alone);
    };
    let length = 3 * count;
    let has_lower_case = text[..length].iter().any(u8::is_ascii_lowercase);
    let is_canonical = !has_lower_case && !Charset::Unreserved.has(octets[0]);
    Some(Encoded { length, canonical: is_canonical.then_some(character) })
}
