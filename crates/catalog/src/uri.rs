//! The exposed URIs of resources (D1, D2, D3). This module only transforms text. The catalog knows the owners.

use std::borrow::Cow;

use goblin_config::ServerId;

use crate::name;

/// Returns the exposed URI (D1): the folded server id, `+`, and the native URI. A `ui://` URI keeps its scheme, because
/// hosts of MCP Apps reject any other.
pub fn expose(folded: &str, native: &str) -> String {
    if let Some(rest) = strip_ui(native) {
        return format!("ui://{folded}/{rest}");
    }
    if scheme(native).is_some() { format!("{folded}+{native}") } else { format!("{folded}+:{native}") }
}

/// Splits an exposed URI into the folded server id and the native URI. Does not check that they exist.
pub fn split(exposed: &str) -> Option<(&str, Cow<'_, str>)> {
    if let Some(rest) = strip_ui(exposed) {
        let (folded, path) = rest.split_once('/')?;
        return Some((folded, Cow::Owned(format!("{}{path}", &exposed[..exposed.len() - rest.len()]))));
    }
    let (folded, native) = exposed.split_once('+')?;
    Some((folded, Cow::Borrowed(native.strip_prefix(':').unwrap_or(native))))
}

/// Returns the text after `ui://`.
fn strip_ui(uri: &str) -> Option<&str> {
    let head = uri.get(..5)?;
    head.eq_ignore_ascii_case("ui://").then(|| &uri[5..])
}

/// Returns the scheme that `uri` literally begins with.
fn scheme(uri: &str) -> Option<&str> {
    let (scheme, _) = uri.split_once(':')?;
    let mut characters = scheme.chars();
    let first = characters.next()?.is_ascii_alphabetic();
    let rest = characters.all(|character| character.is_ascii_alphanumeric() || matches!(character, '+' | '-' | '.'));
    (first && rest).then_some(scheme)
}

/// Returns the identifier of a resource (D2): server id, `_`, and the native URI. Each run of other characters becomes
/// one `_`.
pub fn identifier(server: &ServerId, native: &str) -> String {
    collapse(&format!("{server}_{native}"), |character| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | '-')
    })
}

/// Returns a unique identifier for a resource that would share its identifier with others.
pub(crate) fn contested_identifier(server: &ServerId, native: &str) -> String {
    // Lookups collapse runs of `_`, so the result must not contain any.
    format!("{}_{}", identifier(server, native).trim_end_matches('_'), name::hash(server, native, 6))
}

/// Collapses runs of `_` in an identifier that a client sent.
pub(crate) fn collapse_identifier(text: &str) -> String {
    collapse(text, |character| character != '_')
}

fn collapse(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut collapsed = String::with_capacity(text.len());
    for character in text.chars() {
        if keep(character) {
            collapsed.push(character);
        } else if !collapsed.ends_with('_') {
            collapsed.push('_');
        }
    }
    collapsed
}

/// Returns the normal form of a URI (D3), as URI types of clients rewrite it. Scheme and authority are in lower case,
/// dot segments are removed, and other characters are percent-encoded. URIs with equal normal forms count as the same
/// URI.
pub fn normalise(uri: &str) -> String {
    let encoded = encode(uri);
    let Some(scheme) = scheme(&encoded) else { return encoded };
    let lower = scheme.to_ascii_lowercase();
    let rest = &encoded[scheme.len() + 1..];
    let Some(hierarchy) = rest.strip_prefix("//") else { return format!("{lower}:{rest}") };
    let path_at = hierarchy.find(['/', '?', '#']).unwrap_or(hierarchy.len());
    let (authority, rest) = hierarchy.split_at(path_at);
    let query_at = rest.find(['?', '#']).unwrap_or(rest.len());
    let (path, tail) = rest.split_at(query_at);
    let path = remove_dot_segments(path);
    let path = if path.is_empty() { "/".to_owned() } else { path };
    format!("{lower}://{}{path}{tail}", authority.to_ascii_lowercase())
}

/// Percent-encodes characters that are invalid in a URI, and converts existing escapes to upper case.
fn encode(uri: &str) -> String {
    let mut encoded = String::with_capacity(uri.len());
    let bytes = uri.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        let escape =
            bytes.get(at + 1..at + 3).filter(|digits| byte == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        if let Some(digits) = escape {
            encoded.push('%');
            encoded.extend(digits.iter().map(|digit| char::from(digit.to_ascii_uppercase())));
            at += 3;
            continue;
        }
        if is_unsafe(byte) {
            encoded.push_str(&format!("%{byte:02X}"));
        } else {
            encoded.push(char::from(byte));
        }
        at += 1;
    }
    encoded
}

fn is_unsafe(byte: u8) -> bool {
    byte <= b' ' || byte >= 0x7f || matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
}

/// Reports whether [`normalise`] would not change the URI. The check is fast and may return false for a normal URI.
pub(crate) fn is_plainly_normal(uri: &str) -> bool {
    let Some((scheme, hierarchy)) = uri.split_once("://") else { return false };
    let Some((authority, path)) = hierarchy.split_once('/') else { return false };
    let is_lower = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.');
    let is_escape = |rest: &[u8]| matches!(rest, [_, b'0'..=b'9' | b'A'..=b'F', b'0'..=b'9' | b'A'..=b'F', ..]);
    let bytes = path.as_bytes();
    let is_kept = |(at, byte): (usize, &u8)| match byte {
        b'%' => is_escape(&bytes[at..]),
        byte => !is_unsafe(*byte),
    };
    let may_be_dots = |segment: &str| segment.starts_with('.') || segment.starts_with("%2E");
    scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().chain(authority.bytes()).all(is_lower)
        && bytes.iter().enumerate().all(is_kept)
        && !path.split('/').any(may_be_dots)
}

fn remove_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | "%2E" => {
                if last {
                    kept.push("");
                }
            }
            ".." | "%2E." | ".%2E" | "%2E%2E" => {
                if kept.len() > 1 {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    kept.join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn d1_a_native_uri_is_exposed_under_its_server_id() {
        for (native, exposed) in [
            ("file:///logs/app.log", "fs+file:///logs/app.log"),
            ("mcp://database/{table}/{id}", "fs+mcp://database/{table}/{id}"),
            ("git+ssh://host/x", "fs+git+ssh://host/x"),
            ("{+path}", "fs+:{+path}"),
            ("no scheme", "fs+:no scheme"),
            (":odd", "fs+::odd"),
            ("ui://widget/main", "ui://fs/widget/main"),
            ("UI://widget", "ui://fs/widget"),
        ] {
            assert_eq!(expose("fs", native), exposed);
        }
    }

    #[test]
    fn d1_both_spellings_of_an_exposed_uri_name_one_resource() {
        assert_eq!(split("fs+:file:///x"), Some(("fs", Cow::Borrowed("file:///x"))));
        assert_eq!(split("fs+file:///x"), Some(("fs", Cow::Borrowed("file:///x"))));
        assert_eq!(split("file:///x"), None);
    }

    #[test]
    fn d2_an_identifier_folds_the_native_uri_and_collapses_underscores() {
        let server = ServerId::new("filesystem").expect("a valid id");
        assert_eq!(identifier(&server, "file:///logs/app.log"), "filesystem_file_logs_app.log");
        assert_eq!(collapse_identifier("filesystem_file___logs_app.log"), "filesystem_file_logs_app.log");
    }

    #[test]
    fn d3_a_uri_has_a_stable_normal_form() {
        for (uri, normal) in [
            ("NOTE:///Up", "note:///Up"),
            ("file:///a b", "file:///a%20b"),
            ("file:///a%2fb", "file:///a%2Fb"),
            ("file:///a/./b/../c", "file:///a/c"),
            ("http://Host", "http://host/"),
            ("fs+file:///é", "fs+file:///%C3%A9"),
            ("urn:X:y", "urn:X:y"),
        ] {
            assert_eq!(normalise(uri), normal);
            assert_eq!(normalise(normal), normal);
        }
        assert!(is_plainly_normal("fs+file:///srv/a%20b/C.rs"));
    }

    proptest! {
        #[test]
        fn res5_exposed_uris_map_back_exactly(folded in "[a-z][a-z0-9.-]{0,8}", native in "\\PC{1,40}|[a-z]{1,5}:[a-z+:/]{0,9}") {
            // `ui:` in another case is exposed in lower case, because schemes are case-insensitive.
            prop_assume!(!native.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("ui://") && head != "ui://"));
            let exposed = expose(&folded, &native);
            let (server, back) = split(&exposed).expect("an exposed URI");
            prop_assert_eq!(server, folded);
            prop_assert_eq!(back, native);
        }

        #[test]
        fn normalising_twice_changes_nothing(uri in "\\PC{0,40}") {
            let once = normalise(&uri);
            prop_assert_eq!(normalise(&once), once);
        }

        #[test]
        fn a_plainly_normal_uri_is_normal(uri in "[a-zA-Z+]{0,3}:?//(a|Host|:80|@)?(/|\\.|%2E|%2e|%20|%2|[a-z]|é|\\?|#| |\\{){0,12}") {
            prop_assert!(!is_plainly_normal(&uri) || normalise(&uri) == uri, "{}", uri);
        }
    }
}
