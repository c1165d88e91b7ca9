//! Reads the roots that the gateway reports to a server. The file has paths or file URIs; the configuration has URIs.
//!
//! Nothing here accesses the disk. A directory may be created later or be on another machine.

use std::path::{Component, Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::field::Field;
use crate::problem::Fault;
use crate::schema::ObjectKeys;
use crate::{Root, network};

/// The limit of roots. All roots are sent in one message.
pub(crate) const MAX_ROOTS: usize = 100;

/// The punctuation that RFC 3986 allows in a path.
const PATH_CHARACTERS: &[u8] = b"-._~!$&'()*+,;=:@/";

/// The characters that a path must encode: all except letters, digits and [`PATH_CHARACTERS`].
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

pub(crate) fn roots(field: &Field<'_>) -> Option<Vec<Root>> {
    let count = field.list(|_| Some(()))?.len();
    if count > MAX_ROOTS {
        return field.accept(Err(Fault::new(format!("has {count} elements, at most {MAX_ROOTS} are allowed"))));
    }
    field.list(root)
}

/// Reads a string, or an object with a name.
fn root(field: &Field<'_>) -> Option<Root> {
    if !field.is_object() {
        return Some(Root { uri: uri(field)?, name: None });
    }
    let section = field.section(ObjectKeys::NamedRoot)?;
    let mut name = None;
    section.set(&mut name, "name", |field| field.accept(check_name(field.text()?)).map(Some));
    let Some(place) = section.get("uri") else {
        return field.accept(Err(Fault::new("\"uri\" is missing")));
    };
    Some(Root { uri: uri(&place)?, name })
}

fn check_name(text: &str) -> Result<String, Fault> {
    if text.is_empty() { Err(Fault::new("must not be empty")) } else { Ok(text.to_owned()) }
}

fn uri(field: &Field<'_>) -> Option<String> {
    let text = field.expanded()?;
    if is_uri(&text) { field.accept(check_uri(&text)).map(|()| text) } else { field.path().map(|path| uri_of(&path)) }
}

/// Reports whether the text is a URI. A path may contain a colon, so only `file:` or `scheme://` counts.
fn is_uri(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.eq_ignore_ascii_case("file") || (network::is_scheme(scheme) && rest.starts_with("//"))
    })
}

fn check_uri(text: &str) -> Result<(), Fault> {
    let path = text.strip_prefix("file://").and_then(|rest| rest.find('/').map(|start| &rest[start..]));
    if path.is_some_and(is_encoded) && text.is_ascii() {
        return Ok(());
    }
    Err(Fault::new("a root is a path or a file URI")
        .cure("write it like \"/srv/my files\" or \"file:///srv/my%20files\""))
}

/// Reports whether the path consists of valid path characters and complete `%XX` triplets.
fn is_encoded(path: &str) -> bool {
    let mut parts = path.split('%');
    let plain = |part: &str| part.bytes().all(is_path_character);
    let triplet = |part: &str| {
        part.len() >= 2 && part.bytes().take(2).all(|digit| digit.is_ascii_hexdigit()) && plain(&part[2..])
    };
    parts.next().is_some_and(plain) && parts.all(triplet)
}

/// Returns the URI of an absolute path. Resolves `..` here, because readers of URIs resolve it in different ways.
fn uri_of(path: &Path) -> String {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            // `..` at the root has no effect.
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    format!("file://{}", encode(plain.as_os_str().as_encoded_bytes()))
}

/// Percent-encodes a path, except for `/`.
pub fn encode(path: &[u8]) -> String {
    percent_encode(path, ENCODED).to_string()
}

fn is_path_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || PATH_CHARACTERS.contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{check_uri, is_uri, uri_of};

    #[test]
    fn paths_become_uris() {
        for (path, expected) in [
            ("/", "file:///"),
            ("/srv/my files", "file:///srv/my%20files"),
            ("/srv/100%/a#b?c", "file:///srv/100%25/a%23b%3Fc"),
            ("/srv/déjà", "file:///srv/d%C3%A9j%C3%A0"),
            ("/srv/a:b@c[1]", "file:///srv/a:b@c%5B1%5D"),
            ("/etc/goblin/../work", "file:///etc/work"),
            ("/../../work/", "file:///work"),
        ] {
            assert_eq!(uri_of(Path::new(path)), expected, "{path}");
            assert_eq!(check_uri(expected), Ok(()), "{expected}");
        }
    }

    #[test]
    fn a_text_is_a_uri_with_the_file_scheme_or_a_scheme_and_slashes() {
        for text in ["file:///x", "file:x", "FILE:///x", "https://x", "a+b://"] {
            assert!(is_uri(text), "{text}");
        }
        for text in ["/x", "x", "./file:///x", "a:b", "a b://c", "://x", "é://x"] {
            assert!(!is_uri(text), "{text}");
        }
    }

    #[test]
    fn a_root_uri_is_a_file_uri_with_encoded_characters() {
        for text in ["file:///", "file:///x/../y", "file://host/x", "file:///a%20b%FF", "file:///a:b@c"] {
            assert_eq!(check_uri(text), Ok(()), "{text}");
        }
        for text in [
            "https://x/",
            "File:///x",
            "file:/x",
            "file:x",
            "file://",
            "file://host",
            "file:///a b",
            "file:///a#b",
            "file:///a?b",
            "file:///é",
            "file:///a%",
            "file:///a%2",
            "file:///a%+1",
            "file:///a%é",
            "file://hé/a",
        ] {
            assert!(check_uri(text).is_err(), "{text}");
        }
    }
}
