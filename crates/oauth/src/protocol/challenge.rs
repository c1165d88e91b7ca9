//! Reads the `WWW-Authenticate` headers of a server.
//!
//! A header may contain several challenges, and commas separate both challenges and their parameters. The reader
//! skips what it cannot read: a broken challenge costs its parameters and no more.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// The limit of bytes that are read from all headers together.
const MAX_BYTES: usize = 8 << 10;
const MAX_PARAMETERS: usize = 32;
/// The limit of scopes in one list.
pub(crate) const MAX_SCOPES: usize = 100;
/// The length limit of an error code.
const MAX_CODE: usize = 64;

/// The reason and the demand with which a server rejects a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub resource_metadata: Option<String>,
    pub scopes: Vec<String>,
    pub error: Option<String>,
}

impl Challenge {
    /// Reads the first Bearer challenge. Returns an empty one if there is none.
    pub(crate) fn read(headers: &HeaderMap) -> Challenge {
        Challenge::find(headers).unwrap_or_default()
    }

    /// Reads the first Bearer challenge.
    pub(crate) fn find(headers: &HeaderMap) -> Option<Challenge> {
        let mut left = MAX_BYTES;
        for header in headers.get_all(WWW_AUTHENTICATE) {
            left = left.checked_sub(header.len())?;
            if let Some(parameters) = Reader::new(header.as_bytes()).bearer() {
                return Some(Challenge::new(&parameters));
            }
        }
        None
    }

    fn new(parameters: &[(String, String)]) -> Challenge {
        let value = |wanted: &str| {
            let mut found = parameters.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.next().map(|(_, value)| value.as_str())
        };
        Challenge {
            resource_metadata: value("resource_metadata").map(str::to_owned),
            scopes: value("scope").map(read_scopes).unwrap_or_default(),
            error: value("error").and_then(error_code),
        }
    }

    pub(crate) fn lacks_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }
}

/// Returns the scopes of a list that spaces separate, each once. Skips what is no scope.
pub(crate) fn read_scopes(text: &str) -> Vec<String> {
    let mut scopes: Vec<String> = Vec::new();
    for scope in text.split(' ').filter(|scope| is_scope(scope)) {
        if scopes.len() < MAX_SCOPES && !scopes.iter().any(|known| known == scope) {
            scopes.push(scope.to_owned());
        }
    }
    scopes
}

/// Reports whether a text is one scope (RFC 6749, section 3.3).
pub(crate) fn is_scope(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// Returns an OAuth error code, unless it contains characters that no code has.
pub(crate) fn error_code(text: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'/');
    let is_code = (1..=MAX_CODE).contains(&text.len()) && text.bytes().all(is_allowed);
    is_code.then(|| text.to_owned())
}

/// Reads one header from its start to its end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Returns the parameters of the first Bearer challenge.
    fn bearer(&mut self) -> Option<Vec<(String, String)>> {
        let mut found: Option<Vec<(String, String)>> = None;
        loop {
            self.skip(|byte| matches!(byte, b' ' | b'\t' | b','));
            let Some(name) = self.token() else { return found };
            let end = self.at;
            self.skip_spaces();
            if self.peek() == Some(b'=') {
                self.at += 1;
                self.skip_spaces();
                let Some(value) = self.value() else { return found };
                let parameters = found.as_mut().filter(|parameters| parameters.len() < MAX_PARAMETERS);
                if let (Some(parameters), Some(value)) = (parameters, value) {
                    parameters.push((name.to_owned(), value));
                }
                continue;
            }
            if found.is_some() {
                return found;
            }
            if name.eq_ignore_ascii_case("bearer") {
                found = Some(Vec::new());
            }
            if self.at > end {
                self.skip_token68();
            }
        }
    }

    /// Reads a token or a quoted string. The inner `None` stands for a value that is not UTF-8. Returns `None` if there
    /// is no value.
    fn value(&mut self) -> Option<Option<String>> {
        if self.peek() != Some(b'"') {
            // Servers forget the quotes of URLs, so read to the next separator.
            let value = self.take(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"'));
            return (!value.is_empty()).then(|| std::str::from_utf8(value).ok().map(str::to_owned));
        }
        self.at += 1;
        let mut value = Vec::new();
        loop {
            let byte = self.next()?;
            match byte {
                b'"' => return Some(String::from_utf8(value).ok()),
                b'\\' => value.push(self.next()?),
                byte => value.push(byte),
            }
        }
    }

    /// Skips credentials of the form token68, which follow a scheme instead of parameters.
    fn skip_token68(&mut self) {
        let start = self.at;
        self.skip(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte));
        self.skip(|byte| byte == b'=');
        self.skip_spaces();
        if !matches!(self.peek(), None | Some(b',')) {
            self.at = start;
        }
    }

    fn token(&mut self) -> Option<&'a str> {
        let token = self.take(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
        std::str::from_utf8(token).ok().filter(|token| !token.is_empty())
    }

    fn skip_spaces(&mut self) {
        self.skip(|byte| matches!(byte, b' ' | b'\t'));
    }

    fn skip(&mut self, is_skipped: impl Fn(u8) -> bool) {
        self.take(is_skipped);
    }

    fn take(&mut self, is_taken: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| !is_taken(*byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(headers: &[&str]) -> Option<Challenge> {
        let mut map = HeaderMap::new();
        for header in headers {
            map.append(WWW_AUTHENTICATE, HeaderValue::from_bytes(header.as_bytes()).expect("a header"));
        }
        Challenge::find(&map)
    }

    fn challenge(resource_metadata: Option<&str>, scopes: &[&str], error: Option<&str>) -> Option<Challenge> {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        let resource_metadata = resource_metadata.map(str::to_owned);
        Some(Challenge { resource_metadata, scopes, error: error.map(str::to_owned) })
    }

    #[test]
    fn oauth1_every_form_of_a_challenge_is_read() {
        let url = Some("https://a.example/m");
        let cases: [(&[&str], Option<Challenge>); 22] = [
            (&[], None),
            (&["Basic realm=\"x\""], None),
            (&["Basic abc==", "Negotiate"], None),
            (&["Bearer"], challenge(None, &[], None)),
            (&["bEaReR ReSource_Metadata=\"https://a.example/m\""], challenge(url, &[], None)),
            (&["Bearer resource_metadata=https://a.example/m, scope=a"], challenge(url, &["a"], None)),
            (&["Bearer scope=\"a b  a\"error=\"invalid_token\""], challenge(None, &["a", "b"], Some("invalid_token"))),
            (&["Bearer realm = \"x\" , scope\t=\t\"a\""], challenge(None, &["a"], None)),
            (&["Bearer realm=\"a, Bearer scope=b\", scope=\"c\""], challenge(None, &["c"], None)),
            (&["Bearer realm=\"a\\\"b\", scope=\"c\\d\""], challenge(None, &["cd"], None)),
            (&["Basic realm=\"x\", Bearer scope=\"a\", Bearer scope=\"b\""], challenge(None, &["a"], None)),
            (&["Basic abc==, Bearer scope=\"a\""], challenge(None, &["a"], None)),
            (&["Negotiate, Bearer scope=\"a\", Digest scope=\"b\""], challenge(None, &["a"], None)),
            (&["Digest scope=\"b\"", "Bearer scope=\"a\""], challenge(None, &["a"], None)),
            (&["Bearer scope=\"a\", scope=\"b\""], challenge(None, &["a"], None)),
            (&["Bearer scope=\"a\\\\b c\u{e9} d\""], challenge(None, &["d"], None)),
            (&["Bearer scope=\"a\", error=\"x y\""], challenge(None, &["a"], None)),
            (&["Bearer scope=\"a\", resource_metadata=\"https://a.exam"], challenge(None, &["a"], None)),
            (&["Bearer scope="], challenge(None, &[], None)),
            (&[",, Bearer ,, scope=a,,"], challenge(None, &["a"], None)),
            (&["=, Bearer scope=a"], None),
            (&["Bearer abc=="], challenge(None, &[], None)),
        ];
        for (headers, expected) in cases {
            assert_eq!(read(headers), expected, "{headers:?}");
        }
        assert!(read(&["Bearer error=insufficient_scope"]).expect("a challenge").lacks_scope());
    }

    #[test]
    fn oauth1_a_challenge_is_bounded() {
        let filler = "x".repeat(MAX_BYTES);
        assert_eq!(read(&[&filler, "Bearer scope=a"]), None);
        assert_eq!(read(&[&format!("Bearer scope=\"{filler}\"")]), None);
        let parameters: String = (0..MAX_PARAMETERS).map(|index| format!("p{index}=x, ")).collect();
        assert_eq!(read(&[&format!("Bearer {parameters} scope=a")]), challenge(None, &[], None));
        assert_eq!(read(&[&format!("Bearer {} scope=a", &parameters[6..])]), challenge(None, &["a"], None));
        let scopes: String = (0..200).map(|index| format!("s{index} ")).collect();
        assert_eq!(read_scopes(&scopes).len(), MAX_SCOPES);
    }
}
