//! A text that must not be shown: header values, environment values and tokens.
//!
//! There is no `Display`, and `Debug` prints a placeholder. A secret reaches a log line only through
//! [`Secret::expose`], which is easy to search for. It is not wiped from memory, because the environment it came from
//! is not wiped either.

use std::fmt;

#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

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
    use super::Secret;

    #[test]
    fn debug_output_hides_a_secret() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[secret] Some([secret])");
        assert_eq!(secret.expose(), "hunter2");
    }
}
