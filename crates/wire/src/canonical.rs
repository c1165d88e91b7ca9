//! The canonical form of a URI. The filters of servers and profiles compare it in addition to the spelling.
//!
//! Servers read a URI in different ways. Some decode before they parse, some decode twice, some resolve dot segments
//! with the rules of URLs, some with those of file systems. [`readings`] returns every text that a filter must compare.
//! This prevents a client from reaching a denied resource through an alternative spelling. A URI that servers may take
//! for different resources is [`Ambiguity`], and no filter admits it.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// The maximum number of rounds of decoding. A URI that is still encoded after them is ambiguous.
pub(crate) const MAX_ROUNDS: usize = 8;
/// The maximum number of `?`, `#` and `;`. Each of them adds a reading. A URI with more is ambiguous.
pub const MAX_SEPARATORS: usize = 16;

/// The reason why servers may take a URI for different resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    #[error("the URI is still percent-encoded after {MAX_ROUNDS} rounds of decoding")]
    Rounds,
    #[error("the URI has a control character or an overlong character")]
    Character,
    #[error("the URI depends on the order of decoding and removing dot segments")]
    Order,
    #[error("the URI has a dot segment that leads above its start")]
    Above,
    #[error("the URI has more than {MAX_SEPARATORS} of ?, # and ;")]
    Separators,
}

/// The texts that a filter compares in addition to the URI's spelling.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// The canonical form, and the canonical form with every backslash read as a slash.
    pub forms: Vec<String>,
    /// The texts before each `?` and `#`, and the text before trailing slashes and spaces. Some servers read no
    /// further.
    pub stems: Vec<String>,
    /// The URI without its host, user or port, and the texts before each `;`. Few servers read a URI like this.
    pub rare: Vec<String>,
}

/// The meaning of a backslash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backslash {
    Character,
    Slash,
}

/// Returns the canonical form of a URI. Returns an error if the URI is ambiguous.
///
/// The canonical form has no percent-encoding, no dot segment, no repeated slash, and scheme and host in lower case.
/// `file:x`, `file:/x`, `file:///x` and `file://localhost/x` are one URI, and so are `note:/x` and `note:///x`. The
/// form includes the query and the fragment. A backslash stays, as on Linux. A second reading treats it as a slash, as
/// URL parsers do.
///
/// The function is idempotent. Its time is linear in the length of the URI, because the number of rounds is bounded.
pub fn canonical(uri: &str) -> Result<Cow<'_, str>, Ambiguity> {
    if is_plain(uri) {
        return Ok(Cow::Borrowed(uri));
    }
    let decoded = decode_fully(uri.as_bytes(), Backslash::Character)?;
    Ok(Cow::Owned(UriParts::parse(&decoded, Backslash::Character)?.text()))
}

/// Returns every reading of a URI. Returns an error if the URI is ambiguous. The number of readings is bounded.
pub fn readings(uri: &str) -> Result<Readings, Ambiguity> {
    let mut readings = Readings::default();
    let decoded = decode_fully(uri.as_bytes(), Backslash::Character)?;
    readings.add(&decoded, Backslash::Character)?;
    if decoded.contains(&b'\\') {
        let decoded = decode_fully(uri.as_bytes(), Backslash::Slash)?;
        readings.add(&decoded, Backslash::Slash)?;
    }
    Ok(readings)
}

/// Reports whether the URI has no other reading than itself. The check is fast and conservative. Most listed URIs pass
/// it.
pub fn is_plain(uri: &str) -> bool {
    let Some((scheme, hierarchy)) = uri.split_once("://") else { return false };
    let Some((authority, path)) = hierarchy.split_once('/') else { return false };
    let is_lower = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'+');
    let is_odd = |byte: u8| byte.is_ascii_control() || matches!(byte, b'%' | b'\\' | b'?' | b'#' | b';');
    let is_named = |segment: &str| !segment.is_empty() && !segment.starts_with('.');
    scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && !scheme.ends_with('+')
        && scheme.bytes().chain(authority.bytes()).all(is_lower)
        && (authority.is_empty() || !is_file(scheme.as_bytes()) && !authority.ends_with('.'))
        && !path.bytes().any(is_odd)
        && path.split('/').all(is_named)
        && !path.ends_with(' ')
}

impl Readings {
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().chain(&self.stems).chain(&self.rare).map(String::as_str)
    }

    fn add(&mut self, decoded: &[u8], backslash: Backslash) -> Result<(), Ambiguity> {
        let whole = UriParts::parse(decoded, backslash)?;
        self.forms.push(whole.text());
        self.add_shorter(whole);
        let is_separator = |byte: &u8| matches!(byte, b'?' | b'#' | b';');
        let separators = decoded.iter().enumerate().filter(|(_, byte)| is_separator(byte));
        let mut is_in_path = true;
        for (count, (at, separator)) in separators.enumerate() {
            if count >= MAX_SEPARATORS {
                return Err(Ambiguity::Separators);
            }
            let stem = UriParts::parse(&decoded[..at], backslash)?;
            if *separator != b';' {
                is_in_path = false;
                self.stems.push(stem.text());
                self.add_shorter(stem);
            } else if is_in_path {
                self.rare.push(stem.text());
            }
        }
        Ok(())
    }

    fn add_shorter(&mut self, mut parts: UriParts) {
        self.rare.extend(parts.without_host());
        if parts.trim_end() {
            self.stems.push(parts.text());
            self.rare.extend(parts.without_host());
        }
    }
}

/// Decodes until nothing changes. Returns an error if a server that removes dot segments between the rounds gets a
/// different result.
fn decode_fully(uri: &[u8], backslash: Backslash) -> Result<Vec<u8>, Ambiguity> {
    // The first entry is the URI itself. Each further entry had its dot segments removed after one of the rounds.
    let mut stages = vec![uri.to_vec()];
    for _ in 0..=MAX_ROUNDS {
        let form = UriParts::parse(&stages[0], backslash)?.bytes();
        for stage in &stages[1..] {
            if UriParts::parse(stage, backslash)?.bytes() != form {
                return Err(Ambiguity::Order);
            }
        }
        let Some(next) = decode(&stages[0]) else {
            return if has_odd_bytes(&stages[0]) { Err(Ambiguity::Character) } else { Ok(stages.swap_remove(0)) };
        };
        if form != stages[0] {
            stages.push(form);
        }
        stages[0] = next;
        for stage in &mut stages[1..] {
            *stage = decode(stage).unwrap_or_else(|| std::mem::take(stage));
        }
    }
    Err(Ambiguity::Rounds)
}

/// Decodes once. Returns `None` if nothing is encoded.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    decoded.extend(percent_decode(text));
    (decoded.len() < text.len()).then_some(decoded)
}

/// Reports whether the text has control characters or overlong UTF-8 sequences. Some servers end a path at a control
/// character or drop it. Lenient decoders read an overlong sequence as `.` or `/`.
fn has_odd_bytes(text: &[u8]) -> bool {
    let is_overlong = |pair: &[u8]| matches!(pair, [0xc0 | 0xc1, _] | [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]);
    text.iter().any(u8::is_ascii_control) || text.windows(2).any(is_overlong)
}

/// A parsed URI. Its path has no dot segments and no repeated slashes.
struct UriParts {
    /// The scheme in lower case, including the namespaces before it. It ends in `+` if there is a namespace but no
    /// scheme.
    scheme: Vec<u8>,
    authority: Option<Vec<u8>>,
    path: Vec<u8>,
}

impl UriParts {
    fn parse(text: &[u8], backslash: Backslash) -> Result<UriParts, Ambiguity> {
        let (scheme, rest) = split_scheme(text);
        let rest: Cow<'_, [u8]> = match backslash {
            Backslash::Slash if rest.contains(&b'\\') => {
                rest.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect()
            }
            _ => Cow::Borrowed(rest),
        };
        let is_file = is_file(&scheme);
        let has_scheme = !scheme.is_empty() && !scheme.ends_with(b"+");
        let hierarchy = rest.strip_prefix(b"//").filter(|_| has_scheme);
        let (authority, path) = match hierarchy {
            Some(hierarchy) => {
                let end = hierarchy.iter().position(|byte| *byte == b'/').unwrap_or(hierarchy.len());
                (Some(canonical_authority(&hierarchy[..end], is_file)?), &hierarchy[end..])
            }
            None => (None, &*rest),
        };
        let has_host = authority.as_ref().is_some_and(|authority| !authority.is_empty());
        let mut path = remove_dots(path, !has_host, is_file)?;
        if is_file && !has_host && !path.starts_with(b"/") {
            path.insert(0, b'/');
        }
        let is_rooted = has_scheme && path.starts_with(b"/");
        let authority = authority.or_else(|| is_rooted.then(Vec::new));
        // The remaining path would parse as a URI with a scheme.
        if !has_scheme && (scheme_length(&path).is_some() || path.starts_with(b" ")) {
            return Err(Ambiguity::Order);
        }
        Ok(UriParts { scheme, authority, path })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.scheme.clone();
        if !self.scheme.is_empty() {
            bytes.push(b':');
        }
        if let Some(authority) = &self.authority {
            bytes.extend_from_slice(b"//");
            bytes.extend_from_slice(authority);
        }
        bytes.extend_from_slice(&self.path);
        bytes
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// Removes trailing slashes and spaces from the path. Returns whether there were any.
    fn trim_end(&mut self) -> bool {
        let before = self.path.len();
        let has_host = self.authority.as_ref().is_some_and(|authority| !authority.is_empty());
        let min_length = usize::from(!has_host);
        while self.path.len() > min_length && matches!(self.path.last(), Some(b'/' | b' ')) {
            self.path.pop();
        }
        self.path.len() < before
    }

    /// Returns the readings of servers that ignore the host, take it for a directory, or drop the user and the port.
    fn without_host(&self) -> Vec<String> {
        let Some(authority) = self.authority.as_ref().filter(|authority| !authority.is_empty()) else {
            return Vec::new();
        };
        let with = |authority: &[u8], path: Vec<u8>| {
            UriParts { scheme: self.scheme.clone(), authority: Some(authority.to_vec()), path }.text()
        };
        if is_file(&self.scheme) {
            let directory = [b"/", authority.as_slice(), self.path.as_slice()].concat();
            return vec![with(b"", self.path.clone()), with(b"", directory)];
        }
        let host = bare_host(authority, &self.scheme);
        if host == authority { Vec::new() } else { vec![with(host, self.path.clone())] }
    }
}

/// Returns the scheme in lower case, including the namespaces before it, and the rest. `fs+:file:///x` and
/// `fs+file:///x` give the same result.
fn split_scheme(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let (mut scheme, mut rest) = (Vec::new(), text.trim_ascii_start());
    while let Some(length) = scheme_length(rest) {
        scheme.extend(rest[..length].to_ascii_lowercase());
        rest = &rest[length + 1..];
        if !scheme.ends_with(b"+") {
            break;
        }
        rest = rest.trim_ascii_start();
    }
    (scheme, rest)
}

fn scheme_length(text: &[u8]) -> Option<usize> {
    let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let length = text.iter().position(|byte| !is_inside(byte))?;
    (text[length] == b':' && text[0].is_ascii_alphanumeric()).then_some(length)
}

fn is_file(scheme: &[u8]) -> bool {
    scheme.rsplit(|byte| *byte == b'+').next() == Some(b"file")
}

fn canonical_authority(authority: &[u8], is_file: bool) -> Result<Vec<u8>, Ambiguity> {
    if matches!(authority, b"." | b"..") {
        return Err(Ambiguity::Above);
    }
    let host_at = authority.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let mut canonical = authority.to_vec();
    canonical[host_at..].make_ascii_lowercase();
    let is_this_host = is_file && matches!(canonical.as_slice(), b"localhost" | b"127.0.0.1" | b"[::1]");
    Ok(if is_this_host { Vec::new() } else { canonical })
}

/// Returns the host without user, default port and final dot.
fn bare_host<'a>(authority: &'a [u8], scheme: &[u8]) -> &'a [u8] {
    let host_at = authority.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    let host = &authority[host_at..];
    let port: &[u8] = match scheme.rsplit(|byte| *byte == b'+').next() {
        Some(b"http" | b"ws") => b":80",
        Some(b"https" | b"wss") => b":443",
        _ => b":",
    };
    let host = host.strip_suffix(port).or_else(|| host.strip_suffix(b":")).unwrap_or(host);
    host.strip_suffix(b".").unwrap_or(host)
}

/// Removes dot segments and empty segments. `is_local` is true if no host precedes the path, so `..` cannot lead above
/// the root. `is_rooted` is true if a path without a leading slash also begins at the root.
fn remove_dots(path: &[u8], is_local: bool, is_rooted: bool) -> Result<Vec<u8>, Ambiguity> {
    let has_slash = path.starts_with(b"/");
    let inside = path.strip_prefix(b"/").unwrap_or(path);
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut is_directory = false;
    for segment in inside.split(|byte| *byte == b'/') {
        is_directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"." => {}
            b".." => match kept.pop() {
                // URL parsers remove the empty segment, file systems remove the segment before it.
                Some(b"") => return Err(Ambiguity::Order),
                Some(_) => {}
                None if is_local && (has_slash || is_rooted) => {}
                None => return Err(Ambiguity::Above),
            },
            [b'.', b'.', b'?' | b'#' | b';', ..] => return Err(Ambiguity::Order),
            segment => kept.push(segment),
        }
    }
    kept.retain(|segment| !segment.is_empty());
    let mut canonical = if has_slash { b"/".to_vec() } else { Vec::new() };
    canonical.extend(kept.join(&b'/'));
    if is_directory && !kept.is_empty() {
        canonical.push(b'/');
    }
    Ok(canonical)
}

#[cfg(test)]
mod tests;
