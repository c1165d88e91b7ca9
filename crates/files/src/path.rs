//! Converts the names that clients write to paths below the root, and paths to URIs.
//!
//! Nothing here accesses the disk. A [`RelativePath`] has only plain names, so its spelling cannot lead out of the root.
//! The tree handles links. Each file has exactly one URI: characters that RFC 3986 allows in a path segment are
//! literal, every other byte is `%XX`. `resources/read` accepts only that spelling, because `resources.deny` in the
//! configuration compares spellings. Tools accept any spelling, for the convenience of agents.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use goblin_config::roots::encode;

/// The longest path that is accepted. No system opens a longer one.
const MAX_PATH: usize = 4096;

/// A path below the root, of plain names without `.` and `..`. An empty one is the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RelativePath(PathBuf);

/// The reason why a text names no path below the root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("a path must not be empty; \".\" is the root")]
    Empty,
    #[error("a path must not be longer than {MAX_PATH} bytes")]
    TooLong,
    #[error("a path must not contain a NUL character")]
    Nul,
    #[error("{0} is outside of the root; only paths below it are served")]
    Outside(String),
    #[error("{uri} is not a file URI: {reason}")]
    Uri { uri: String, reason: &'static str },
    #[error("{uri} is not in canonical form; write {canonical}")]
    Spelling { uri: String, canonical: String },
}

impl RelativePath {
    pub(crate) fn as_path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &OsStr) -> RelativePath {
        RelativePath(self.0.join(name))
    }

    /// Returns the directories that contain it, from the nearest to the root.
    pub(crate) fn above(&self) -> impl Iterator<Item = RelativePath> {
        self.0.ancestors().skip(1).map(|directory| RelativePath(directory.to_owned()))
    }

    /// Converts a path from the system. Returns `None` if it has components other than plain names and `.`.
    pub(crate) fn from_plain(path: &Path) -> Option<RelativePath> {
        let plain = |component| matches!(component, Component::Normal(_) | Component::CurDir);
        path.components().all(plain).then(|| RelativePath(path.components().filter(|part| plain_name(*part)).collect()))
    }

    /// Returns the path for display. Bytes that are not UTF-8 become �.
    pub(crate) fn shown(&self) -> String {
        if self.0.as_os_str().is_empty() { ".".to_owned() } else { self.0.to_string_lossy().into_owned() }
    }
}

fn plain_name(component: Component<'_>) -> bool {
    matches!(component, Component::Normal(_))
}

/// The spellings of the root.
#[derive(Debug)]
pub(crate) struct RootPath {
    /// The path with links resolved.
    path: PathBuf,
    /// The configured path, which agents may know.
    configured: PathBuf,
    /// The URI of the root: `file://` and the path, without a trailing slash.
    uri: String,
}

impl RootPath {
    pub(crate) fn new(path: PathBuf, configured: PathBuf) -> RootPath {
        let encoded = encode(path.as_os_str().as_bytes());
        let uri = format!("file://{}", encoded.trim_end_matches('/'));
        RootPath { path, configured, uri }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the URI of a file.
    pub(crate) fn uri(&self, relative: &RelativePath) -> String {
        format!("{}/{}", self.uri, encode(relative.as_path().as_os_str().as_bytes()))
    }

    /// Returns a tool argument that names the file: the relative path, or the URI if the path is ambiguous or not
    /// UTF-8.
    pub(crate) fn named(&self, relative: &RelativePath) -> String {
        match relative.as_path().to_str() {
            Some("") => ".".to_owned(),
            Some(text) if strip_scheme(text).is_none() => text.to_owned(),
            Some(_) | None => self.uri(relative),
        }
    }

    /// Returns the template that matches every file URI.
    pub(crate) fn template(&self) -> String {
        format!("{}/{{+path}}", self.uri)
    }

    /// Parses a tool argument: a path relative to the root, an absolute path, or a file URI.
    pub(crate) fn path_of(&self, text: &str) -> Result<RelativePath, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if strip_scheme(text).is_some() {
            return self.uri_of(text);
        }
        check(text.as_bytes())?;
        let outside = || PathError::Outside(text.to_owned());
        let normal = normalise(Path::new(text)).ok_or_else(outside)?;
        if normal.is_absolute() { self.strip(&normal).ok_or_else(outside) } else { Ok(RelativePath(normal)) }
    }

    /// Parses a URI in its canonical spelling. Returns an error with that spelling for any other.
    pub(crate) fn canonical_uri_of(&self, uri: &str) -> Result<RelativePath, PathError> {
        let relative = self.uri_of(uri)?;
        let canonical = self.uri(&relative);
        if canonical == uri { Ok(relative) } else { Err(PathError::Spelling { uri: uri.to_owned(), canonical }) }
    }

    /// Parses a file URI in any spelling. Decodes it once.
    fn uri_of(&self, uri: &str) -> Result<RelativePath, PathError> {
        let invalid = |reason| PathError::Uri { uri: uri.to_owned(), reason };
        let rest = strip_scheme(uri).ok_or_else(|| invalid("the scheme must be file:"))?;
        let path = match rest.strip_prefix("//") {
            Some(hierarchy) => {
                let (host, path) = hierarchy.split_at(hierarchy.find('/').unwrap_or(hierarchy.len()));
                if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
                    return Err(invalid("files of other hosts are not served"));
                }
                path
            }
            None => rest,
        };
        if !path.starts_with('/') {
            return Err(invalid("the path must be absolute"));
        }
        if path.contains(['?', '#']) {
            return Err(invalid("a query or a fragment is not allowed; in a name, write %3F and %23"));
        }
        let mut absolute = PathBuf::from("/");
        for segment in path.split('/').filter(|segment| !segment.is_empty()) {
            let name = decode(segment).ok_or_else(|| invalid("a % must be followed by two hex digits"))?;
            if matches!(&name[..], b"." | b"..") {
                return Err(invalid("the segments . and .. are not allowed"));
            }
            if name.contains(&b'/') {
                return Err(invalid("a name cannot contain a slash, not even as %2F"));
            }
            absolute.push(OsStr::from_bytes(&name));
        }
        check(absolute.as_os_str().as_bytes())?;
        self.strip(&absolute).ok_or_else(|| PathError::Outside(uri.to_owned()))
    }

    fn strip(&self, absolute: &Path) -> Option<RelativePath> {
        let below = absolute.strip_prefix(&self.path).or_else(|_| absolute.strip_prefix(&self.configured));
        below.ok().map(|below| RelativePath(below.to_owned()))
    }
}

fn check(path: &[u8]) -> Result<(), PathError> {
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if path.contains(&0) { Err(PathError::Nul) } else { Ok(()) }
}

/// Resolves `.` and `..` without disk access. Returns `None` if the path leads above its start.
fn normalise(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    Some(normal)
}

/// Returns the part after `file:`. The case of the scheme does not matter.
fn strip_scheme(uri: &str) -> Option<&str> {
    let scheme = uri.get(..5)?;
    scheme.eq_ignore_ascii_case("file:").then(|| &uri[5..])
}

/// Encodes a name as a value of `{+path}`. Its expansion keeps `?`, `#`, `[`, `]` and `%XX` and encodes the rest.
pub(crate) fn template_value(name: &OsStr) -> String {
    let mut value = String::new();
    for chunk in name.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '%' | '?' | '#' | '[' | ']' => value.push_str(&encode(&[character as u8])),
                other => value.push(other),
            }
        }
        value.push_str(&encode(chunk.invalid()));
    }
    value
}

/// Decodes `%XX` once. Returns `None` if a `%` is not followed by two hex digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        decoded.push(u8::try_from(high * 16 + low).expect("two hex digits are one byte"));
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn root() -> RootPath {
        RootPath::new("/srv/my files".into(), "/link".into())
    }

    #[test]
    fn tools_take_relative_paths_absolute_ones_and_uris() {
        for (text, expected) in [
            ("a.txt", Some("a.txt")),
            ("./a//b/", Some("a/b")),
            (".", Some("")),
            ("a/../b", Some("b")),
            ("a\\..\\b", Some("a\\..\\b")),
            ("/srv/my files/a", Some("a")),
            ("/srv/my files", Some("")),
            ("/link/a", Some("a")),
            ("/srv/../srv/my files/a", Some("a")),
            ("file:///srv/my%20files/a", Some("a")),
            ("FILE://LocalHost/srv/my%20files//a", Some("a")),
            ("file:/link/a", Some("a")),
            ("%2e%2e/a", Some("%2e%2e/a")),
            ("..", None),
            ("a/../../b", None),
            ("/etc/passwd", None),
            ("/srv/my files2/a", None),
            ("/srv/my files/../a", None),
            ("file:///srv/my%20files/../a", None),
            ("file:///srv/my%20files/%2E%2e/a", None),
            ("file:///srv/my%20files/a%2Fb", None),
            ("file:///srv/my%20files/a%00", None),
            ("file:///srv/my%20files/a%", None),
            ("file:///srv/my%20files/a%+1", None),
            ("file:///srv/my%20files/a?b", None),
            ("file:///srv/my%20files/a#b", None),
            ("file://host/srv/my%20files/a", None),
            ("file:a", None),
            ("file:", None),
            ("a\0b", None),
            ("", None),
        ] {
            let found = root().path_of(text).ok().map(|relative| relative.as_path().display().to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
        assert_eq!(root().path_of(&"a".repeat(MAX_PATH + 1)), Err(PathError::TooLong));
    }

    #[test]
    fn a_uri_has_one_spelling() {
        let root = root();
        let canonical = "file:///srv/my%20files/d%C3%A9j%C3%A0%20vu/a%5B1%5D@b+c,%25.txt";
        let relative = root.canonical_uri_of(canonical).expect("it is the canonical one");
        assert_eq!(relative.as_path(), Path::new("déjà vu/a[1]@b+c,%.txt"));
        for other in [
            canonical.replace("%C3", "%c3"),
            canonical.replace("@", "%40"),
            canonical.replace("/a", "//a"),
            canonical.replace("file:", "FILE:"),
            canonical.replace("file://", "file:"),
            format!("{canonical}/"),
        ] {
            let error = root.canonical_uri_of(&other).expect_err(&other);
            assert_eq!(error, PathError::Spelling { uri: other, canonical: canonical.to_owned() });
        }
    }

    #[test]
    fn what_tools_show_they_take_back() {
        for (name, expected) in [
            (&b"a/b c"[..], "a/b c"),
            (b"", "."),
            (b"a\xff", "file:///srv/my%20files/a%FF"),
            (b"File:x", "file:///srv/my%20files/File:x"),
        ] {
            let relative = RelativePath(OsStr::from_bytes(name).into());
            assert_eq!(root().named(&relative), expected);
            assert_eq!(root().path_of(expected), Ok(relative));
        }
    }

    #[test]
    fn the_root_of_everything_is_spelled_well() {
        let root = RootPath::new("/".into(), "/".into());
        assert_eq!(root.template(), "file:///{+path}");
        assert_eq!(root.uri(&root.path_of("/etc/hosts").expect("it is below")), "file:///etc/hosts");
    }

    proptest! {
        #[test]
        fn every_name_reads_back_from_its_uri(names in prop::collection::vec(prop::collection::vec(1_u8..=255, 1..8), 1..4)) {
            let relative: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
            prop_assume!(names.iter().all(|name| !name.contains(&b'/') && !matches!(&name[..], b"." | b"..")));
            let relative = RelativePath(relative);
            let uri = root().uri(&relative);
            prop_assert_eq!(root().path_of(&root().named(&relative)), Ok(relative.clone()));
            prop_assert_eq!(decode(&encode(relative.as_path().as_os_str().as_bytes())), Some(relative.as_path().as_os_str().as_bytes().to_vec()));
            prop_assert_eq!(root().canonical_uri_of(&uri), Ok(relative));
        }

        #[test]
        fn no_text_leads_out(text in "(/|\\.|\\.\\.|a|%2e|%2F|file:|//|srv/my files|\\\\){0,12}") {
            if let Ok(relative) = root().path_of(&text) {
                prop_assert!(relative.as_path().components().all(plain_name), "{:?}", relative);
            }
        }
    }
}
