//! Finds literal secrets in imported entries, and replaces them by references to the vault.
//!
//! A secret is recognized by its name, as in the warning about readable files, or by its form. Paths and flags are not
//! secret. Variables that decide which code runs stay in the file, because the user must be able to review them.

use crate::secret::{Secret, SecretLookup};
use crate::tree::JsonTree;
use crate::{consent, mask, network};

/// The members of an entry that may have secrets.
const SECTIONS: [&str; 2] = ["env", "headers"];
/// The maximum length of the name of a secret in the vault.
const MAX_NAME: usize = 128;

/// A literal secret in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiteralSecret {
    /// `env` or `headers`.
    section: &'static str,
    /// The name of the variable or header.
    member: String,
    /// The text before the secret, such as `Bearer `. It stays in the file.
    before: String,
    pub value: Secret,
}

impl LiteralSecret {
    /// Returns the place of the secret, for messages: `github.GITHUB_TOKEN`.
    pub fn place(&self, server: &str) -> String {
        format!("{server}.{}", self.member)
    }

    /// Returns a name for the secret in the vault: its place, with `_` for each character that a name cannot have.
    pub fn name(&self, server: &str) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() || "_.-".contains(letter) { letter } else { '_' };
        self.place(server).chars().map(plain).take(MAX_NAME).collect()
    }

    /// Replaces the secret in its entry by a reference to the vault.
    pub fn replace(&self, entry: &mut JsonTree, name: &str) {
        let reference = JsonTree::text(format!("{}${{secret:{name}}}", self.before));
        if let Some(value) = member_mut(entry, self.section).and_then(|section| member_mut(section, &self.member)) {
            *value = reference;
        }
    }
}

/// Returns `name-2`, `name-3` and so on, within the length of a name.
pub fn numbered(name: &str, number: usize) -> String {
    let suffix = format!("-{number}");
    let room = MAX_NAME - suffix.len();
    name.chars().take(room).chain(suffix.chars()).collect()
}

/// Returns the literal secrets of an entry.
pub fn literals(entry: &JsonTree) -> Vec<LiteralSecret> {
    let of_section = |section: &'static str| {
        let members = entry.get(section).and_then(JsonTree::members).unwrap_or_default().iter();
        members.filter_map(move |(member, value)| literal(section, member, value.as_text()?))
    };
    SECTIONS.into_iter().flat_map(of_section).collect()
}

fn literal(section: &'static str, member: &str, text: &str) -> Option<LiteralSecret> {
    let is_named = match section {
        "headers" => mask::is_secret_name(member) || network::is_secret_header(&member.to_ascii_lowercase()),
        _ if consent::chooses_code(member) => return None,
        _ => mask::is_secret_name(member),
    };
    let is_secret = is_named || mask::text(text) != text;
    // An entry with a reference has no literal secret, or one in a text that nothing can take apart.
    if !is_secret || text.contains("${") || text.starts_with(['/', '~']) || is_flag(text) {
        return None;
    }
    let (before, value) = match text.split_once(' ') {
        Some((scheme, value)) if mask::is_scheme(scheme) && !value.trim().is_empty() => (format!("{scheme} "), value),
        _ => (String::new(), text),
    };
    let (member, value) = (member.to_owned(), Secret::new(value));
    Some(LiteralSecret { section, member, before, value })
}

fn is_flag(text: &str) -> bool {
    let is_word = ["true", "false", "yes", "no", "on", "off"].iter().any(|word| text.eq_ignore_ascii_case(word));
    is_word || text.len() < 3
}

/// Returns the entry with its secrets of the vault as literals, for a comparison. A secret that is not found stays a
/// reference.
pub fn expanded(entry: &JsonTree, secrets: &SecretLookup) -> JsonTree {
    let mut entry = entry.clone();
    for section in SECTIONS {
        let Some(JsonTree::Object(members)) = member_mut(&mut entry, section) else { continue };
        for (_, value) in members {
            let found = value.as_text().and_then(|text| {
                let (before, reference) = text.split_once("${secret:")?;
                let secret = secrets.find(reference.strip_suffix('}')?).ok()??;
                Some(format!("{before}{}", secret.expose()))
            });
            if let Some(text) = found {
                *value = JsonTree::text(text);
            }
        }
    }
    entry
}

fn member_mut<'a>(tree: &'a mut JsonTree, name: &str) -> Option<&'a mut JsonTree> {
    match tree {
        JsonTree::Object(members) => members.iter_mut().find(|(known, _)| known == name).map(|(_, value)| value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(section: &str, member: &str, value: &str) -> JsonTree {
        JsonTree::object([(section, JsonTree::object([(member, JsonTree::text(value))]))])
    }

    #[test]
    fn oauth7_literal_secrets_are_found_and_replaced() {
        for (section, member, value, secret, replaced) in [
            ("env", "GITHUB_TOKEN", "ghp_0123", "ghp_0123", "${secret:gh.GITHUB_TOKEN}"),
            ("env", "DATABASE_URL", "postgres://me:pw@db/x", "postgres://me:pw@db/x", "${secret:gh.DATABASE_URL}"),
            ("headers", "Authorization", "Bearer abc", "abc", "Bearer ${secret:gh.Authorization}"),
            ("headers", "Authorization", "abc def", "abc def", "${secret:gh.Authorization}"),
            ("headers", "X-Api-Key", "abc", "abc", "${secret:gh.X-Api-Key}"),
        ] {
            let mut entry = entry(section, member, value);
            let before = entry.clone();
            let found = literals(&entry);
            assert_eq!(found.len(), 1, "{member}");
            assert_eq!(found[0].value.expose(), secret);
            found[0].replace(&mut entry, &found[0].name("gh"));
            assert_eq!(entry.get(section).unwrap().get(member).unwrap().as_text(), Some(replaced));
            assert_eq!(literals(&entry), []);
            let value = found[0].value.clone();
            let secrets = SecretLookup::new(move |_| Ok(Some(value.clone())));
            assert_eq!(expanded(&entry, &secrets), before);
            assert_eq!(expanded(&entry, &SecretLookup::default()), entry);
        }
    }

    #[test]
    fn oauth7_references_paths_flags_and_code_are_no_literal_secrets() {
        for (section, member, value) in [
            ("env", "GITHUB_TOKEN", "${GITHUB_TOKEN}"),
            ("env", "GITHUB_TOKEN", ""),
            ("env", "TOKEN_FILE", "/run/secrets/token"),
            ("env", "USE_TOKEN", "true"),
            ("env", "MODE", "production"),
            ("env", "GIT_CONFIG_KEY_0", "core.sshCommand"),
            ("headers", "Authorization", "Bearer ${TOKEN}"),
            ("headers", "Accept", "text/plain"),
            ("other", "TOKEN", "abcdef"),
        ] {
            assert_eq!(literals(&entry(section, member, value)), [], "{member}");
        }
    }

    #[test]
    fn oauth7_the_name_of_a_moved_secret_is_valid() {
        let found = literals(&entry("env", "API KEY\u{e9}", "abcdef"));
        assert_eq!(found[0].name("my server"), "my_server.API_KEY_");
        let long = found[0].name(&"s".repeat(200));
        assert!(crate::secret::is_valid_name(&long) && crate::secret::is_valid_name(&numbered(&long, 12)));
        assert_eq!(numbered("a.B", 2), "a.B-2");
    }
}
