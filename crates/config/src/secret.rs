//! A text that must not be shown: header values, environment values and tokens.
//!
//! There is no `Display`, and `Debug` prints a placeholder. A secret reaches a log line only through
//! [`Secret::expose`], which is easy to search for. It is not wiped from memory, because the environment it came from
//! is not wiped either.

use std::fmt;
use std::sync::Arc;

/// The maximum length of the name of a secret in the vault.
const MAX_NAME: usize = 128;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Looks up secrets of the vault for a configuration. The default finds none. A configuration without `${secret:NAME}`
/// calls nothing.
#[derive(Clone, Default)]
pub struct SecretLookup(Option<Arc<LookupFunction>>);

/// Returns the secret with a name, or the reason why the vault cannot be read.
type LookupFunction = dyn Fn(&str) -> Result<Option<Secret>, String> + Send + Sync;

impl SecretLookup {
    pub fn new(look_up: impl Fn(&str) -> Result<Option<Secret>, String> + Send + Sync + 'static) -> SecretLookup {
        SecretLookup(Some(Arc::new(look_up)))
    }

    pub(crate) fn find(&self, name: &str) -> Result<Option<Secret>, String> {
        match &self.0 {
            Some(look_up) => look_up(name),
            None => Err("there is no vault (set XDG_STATE_HOME or HOME)".to_owned()),
        }
    }
}

/// Compares by identity. Two lookups may find different secrets.
impl PartialEq for SecretLookup {
    fn eq(&self, other: &SecretLookup) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for SecretLookup {}

impl fmt::Debug for SecretLookup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretLookup")
    }
}

/// Reports whether a secret can have this name: 1 to 128 letters, digits, `_`, `.` and `-`.
pub fn is_valid_name(name: &str) -> bool {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'_' | b'.' | b'-');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain)
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::{Secret, is_valid_name};

    #[test]
    fn debug_output_hides_a_secret() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[secret] Some([secret])");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn oauth7_the_name_of_a_secret_is_short_and_plain() {
        let longest = "n".repeat(128);
        for name in ["A", "github.GITHUB_TOKEN", "a-b_c.9", &longest] {
            assert!(is_valid_name(name), "{name}");
        }
        let longer = "n".repeat(129);
        for name in ["", "a b", "a/b", "a:b", "a}", "\u{e9}", "a\n", &longer] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
