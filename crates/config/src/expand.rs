//! Expands `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:/path}` and `${secret:NAME}` in configuration values.
//!
//! An unset variable without a default is a fault. Some clients pass the literal text on and send `${TOKEN}` to a
//! server. A bare `$VAR` is never expanded. `$${` produces a literal `${`. The expanded value is not expanded again and
//! never appears in a fault.

use std::fmt;
use std::path::Path;

use crate::file::ConfigOrigin;
use crate::problem::{Fault, quoted};
use crate::secret::{SecretLookup, is_valid_name};
use crate::{Environment, bounded, mask, vocabulary};

/// The size limit of a `${file:}` reference. A secret is a line or a key, so a larger file is the wrong one.
const MAX_FILE_SIZE: u64 = 64 << 10;

/// A text of the file with its references expanded. Logs and users see the text as written, because the value may hold
/// a secret.
#[derive(Clone)]
pub struct ExpandedText {
    value: String,
    written: String,
}

impl ExpandedText {
    pub fn new(value: impl Into<String>, written: impl Into<String>) -> ExpandedText {
        ExpandedText { value: value.into(), written: written.into() }
    }

    /// Returns the expanded value, including secrets.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the text as written in the file.
    pub fn written(&self) -> &str {
        &self.written
    }
}

/// Creates a value from a text without references.
impl From<&str> for ExpandedText {
    fn from(text: &str) -> ExpandedText {
        ExpandedText::new(text, text)
    }
}

/// Compares values only. A server with the same value in another spelling has not changed.
impl PartialEq for ExpandedText {
    fn eq(&self, other: &ExpandedText) -> bool {
        self.value == other.value
    }
}

impl Eq for ExpandedText {}

impl fmt::Debug for ExpandedText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.fmt(formatter)
    }
}

/// The kind of a value. A secret has no default, so no cure suggests one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Secret,
    Open,
}

impl Place {
    /// Returns the kind of the value at this path. Variables, headers, arguments and tokens hold most secrets,
    /// and so do the user and the query of a URL.
    pub(crate) fn of(path: &str, text: &str) -> Place {
        let name = path.rsplit('.').next().unwrap_or_default();
        let is_secret = [".env.", ".headers.", ".args["].iter().any(|part| path.contains(part))
            || name == "token"
            || vocabulary::URL.contains(&name) && text.contains(['@', '?'])
            // A program has no arguments, so this is a command line.
            || name == "command" && text.contains(' ')
            || mask::is_secret_name(text);
        if is_secret { Place::Secret } else { Place::Open }
    }
}

/// Returns the text with every reference replaced. Returns all faults of its references otherwise. Relative file paths
/// start at the directory of `origin`.
pub(crate) fn expand(
    text: &str,
    environment: Environment<'_>,
    origin: &ConfigOrigin,
    place: Place,
) -> Result<String, Vec<Fault>> {
    let mut expanded = String::with_capacity(text.len());
    let mut faults = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = &reference[2..];
            continue;
        }
        expanded.push_str(before);
        let Some(end) = reference.find('}') else {
            faults.push(Fault::new("\"${\" is not closed by \"}\"").cure("write \"$${\" for a literal \"${\""));
            rest = "";
            break;
        };
        match resolve(&reference[2..end], environment, origin, place) {
            Ok(value) => expanded.push_str(&value),
            Err(fault) => faults.push(fault),
        }
        rest = &reference[end + 1..];
    }
    expanded.push_str(rest);
    if faults.is_empty() { Ok(expanded) } else { Err(faults) }
}

/// The beginning of a fault that names the path of a file.
pub(crate) const CANNOT_READ: &str = "cannot read ";
/// The beginning of a fault that names the path of the vault.
pub(crate) const CANNOT_READ_SECRET: &str = "cannot read the secret ";

/// Returns the value of one reference, given without its braces.
fn resolve(
    reference: &str,
    environment: Environment<'_>,
    origin: &ConfigOrigin,
    place: Place,
) -> Result<String, Fault> {
    if let Some(path) = reference.strip_prefix("file:") {
        return read_file(&origin.directory.join(path))
            .map_err(|reason| Fault::new(format!("{CANNOT_READ}{}: {reason}", quoted(path))).outside());
    }
    if let Some(name) = reference.strip_prefix("secret:") {
        return find_secret(name, &origin.secrets);
    }
    if reference.starts_with("input:") {
        let fault = Fault::new(format!("{} prompts the user, which a gateway cannot do", quoted(reference)));
        return Err(fault.cure("use a variable: ${VAR}"));
    }
    let reference = reference.strip_prefix("env:").unwrap_or(reference);
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !is_variable_name(name) {
        let fault = Fault::new(format!("{} is not the name of a variable", quoted(name)));
        return Err(fault.cure("write \"$${\" for a literal \"${\""));
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(Fault::new("a default cannot contain another \"${\""));
    }
    match (environment(name), default) {
        (Some(value), None) => Ok(value),
        // `:-` also replaces an empty value, as in a shell.
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => {
            let fault = Fault::new(format!("variable {name} is not set")).outside();
            Err(fault.cure(match place {
                Place::Open if !mask::is_secret_name(name) => format!("set it or write ${{{name}:-default}}"),
                Place::Open | Place::Secret => "set it or write ${file:/path/to/secret}".to_owned(),
            }))
        }
    }
}

/// Returns a secret of the vault. A disk that does not respond is reported after a time.
fn find_secret(name: &str, secrets: &SecretLookup) -> Result<String, Fault> {
    if !is_valid_name(name) {
        let fault = Fault::new(format!("{} is not the name of a secret", quoted(name)));
        return Err(fault.cure("use at most 128 letters, digits, \"_\", \".\" and \"-\""));
    }
    let (secrets, requested) = (secrets.clone(), name.to_owned());
    let found = bounded::in_time(move || secrets.find(&requested)).map_err(|error| error.to_string());
    match found.and_then(|found| found) {
        Ok(Some(secret)) => Ok(secret.expose().to_owned()),
        Ok(None) => {
            let fault = Fault::new(format!("secret {name} is not in the vault")).outside();
            Err(fault.cure(format!("set it: goblin secret set {name}")))
        }
        Err(reason) => Err(Fault::new(format!("{CANNOT_READ_SECRET}{name}: {reason}")).outside()),
    }
}

pub(crate) fn is_variable_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Returns the file's content without the trailing line end that editors add.
fn read_file(path: &Path) -> Result<String, String> {
    let bytes = bounded::read(path, MAX_FILE_SIZE).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8".to_owned())?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Place, expand};
    use crate::file::ConfigOrigin;
    use crate::secret::{Secret, SecretLookup};

    fn environment(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("s3cret".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${TOKEN}".to_owned()),
            _ => None,
        }
    }

    fn check(text: &str, expected: Result<&str, &str>) {
        let secrets = SecretLookup::new(|name| match name {
            "github.TOKEN" => Ok(Some(Secret::new("${TOKEN} ${secret:github.TOKEN}"))),
            "broken" => Err("the vault is not private (chmod 700 /v)".to_owned()),
            _ => Ok(None),
        });
        let origin = ConfigOrigin { secrets, ..ConfigOrigin::new("goblin.json", "/nowhere") };
        let found = expand(text, &environment, &origin, Place::Open)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned), "{text}");
    }

    #[test]
    fn variable_references_expand_to_their_values() {
        for (text, expected) in [
            ("", ""),
            ("plain $TOKEN $ {TOKEN}", "plain $TOKEN $ {TOKEN}"),
            ("Bearer ${TOKEN}", "Bearer s3cret"),
            ("${env:TOKEN}${TOKEN}!", "s3crets3cret!"),
            ("${NO:-a:-b}", "a:-b"),
            ("${NO:-}", ""),
            ("${env:NO:-d}", "d"),
            ("${EMPTY}", ""),
            ("${EMPTY:-d}", "d"),
            ("${TOKEN:-d}", "s3cret"),
            ("$${TOKEN}", "${TOKEN}"),
            ("${NESTED}", "${TOKEN}"),
        ] {
            check(text, Ok(expected));
        }
    }

    #[test]
    fn an_expansion_error_names_the_variable_and_never_a_value() {
        for (text, expected) in [
            ("${NO}", "variable NO is not set, set it or write ${NO:-default}"),
            (
                "${TOKEN}${A}${env:B}",
                "variable A is not set, set it or write ${A:-default}; \
                 variable B is not set, set it or write ${B:-default}",
            ),
            ("${TOKEN", "\"${\" is not closed by \"}\", write \"$${\" for a literal \"${\""),
            ("${}", "\"\" is not the name of a variable, write \"$${\" for a literal \"${\""),
            ("${1A}", "\"1A\" is not the name of a variable, write \"$${\" for a literal \"${\""),
            ("${input:key}", "\"input:key\" prompts the user, which a gateway cannot do, use a variable: ${VAR}"),
            ("${A:-${B}}", "a default cannot contain another \"${\""),
            ("${file:/}", "cannot read \"/\": not a regular file"),
        ] {
            check(text, Err(expected));
        }
    }

    #[test]
    fn oauth7_a_secret_expands_once_and_an_unknown_one_has_a_cure() {
        check("Bearer ${secret:github.TOKEN}", Ok("Bearer ${TOKEN} ${secret:github.TOKEN}"));
        check("$${secret:absent}", Ok("${secret:absent}"));
        for (text, expected) in [
            ("${secret:absent}", "secret absent is not in the vault, set it: goblin secret set absent"),
            ("${secret:broken}", "cannot read the secret broken: the vault is not private (chmod 700 /v)"),
            (
                "${secret:a b}",
                "\"a b\" is not the name of a secret, use at most 128 letters, digits, \"_\", \".\" and \"-\"",
            ),
            (
                "${secret:a:-b}",
                "\"a:-b\" is not the name of a secret, use at most 128 letters, digits, \"_\", \".\" and \"-\"",
            ),
        ] {
            check(text, Err(expected));
        }
        let origin = ConfigOrigin::new("goblin.json", "/nowhere");
        let faults = expand("${secret:a}", &environment, &origin, Place::Secret).unwrap_err();
        assert_eq!(faults[0].to_string(), "cannot read the secret a: there is no vault (set XDG_STATE_HOME or HOME)");
        assert!(faults[0].is_outside());
    }

    #[test]
    fn oauth7_a_text_without_secrets_does_not_look_up_any() {
        let secrets = SecretLookup::new(|name| panic!("{name} was looked up"));
        let origin = ConfigOrigin { secrets, ..ConfigOrigin::new("goblin.json", "/nowhere") };
        let expanded = expand("${TOKEN} $${secret:a}", &environment, &origin, Place::Open);
        assert_eq!(expanded.ok().as_deref(), Some("s3cret ${secret:a}"));
    }

    #[test]
    fn a_file_reference_expands_without_the_last_line_end() {
        let directory = std::env::temp_dir().join(format!("goblin-expand-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("key"), "s3cret\r\n").unwrap();
        std::fs::write(directory.join("large"), vec![b'x'; 70_000]).unwrap();
        std::fs::write(directory.join("binary"), [0xff, 0xfe]).unwrap();
        let origin = ConfigOrigin::new("goblin.json", &directory);
        let expand =
            |text: &str| expand(text, &environment, &origin, Place::Open).map_err(|faults| faults[0].to_string());
        assert_eq!(expand("Bearer ${file:key}").as_deref(), Ok("Bearer s3cret"));
        let absolute = format!("${{file:{}}}", directory.join("key").display());
        assert_eq!(expand(&absolute).as_deref(), Ok("s3cret"));
        assert_eq!(expand("${file:large}"), Err("cannot read \"large\": the file is larger than 64 KiB".to_owned()));
        assert_eq!(expand("${file:binary}"), Err("cannot read \"binary\": the file is not UTF-8".to_owned()));
        assert!(expand("${file:absent}").unwrap_err().starts_with("cannot read \"absent\": "));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
