//! Form data and queries (`application/x-www-form-urlencoded`).

use std::fmt::Write;

use percent_encoding::percent_decode_str;

/// Form data under construction.
#[derive(Default)]
pub(crate) struct Form(String);

impl Form {
    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Form {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(&encoded(name));
        self.0.push('=');
        self.0.push_str(&encoded(value));
        self
    }

    /// Adds a field if there is a value.
    pub(crate) fn with_some(self, name: &str, value: Option<&str>) -> Form {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Encodes a text for a form or a query. The result has only unreserved characters, `%` and `+`.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => encoded.push('+'),
            b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            byte => write!(encoded, "%{byte:02X}").expect("a write to a string succeeds"),
        }
    }
    encoded
}

/// Decodes a text of a query. Returns `None` if it is not UTF-8 or has an incomplete escape.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_complete = |at: usize| bytes[at] != b'%' || (is_hex(at + 1) && is_hex(at + 2));
    if !(0..bytes.len()).all(is_complete) {
        return None;
    }
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(|decoded| decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oauth1_form_data_survives_its_encoding() {
        let text = "a b+c&d=e%/?#é\u{0}\"'$`~-._";
        assert_eq!(decoded(&encoded(text)).as_deref(), Some(text));
        assert!(encoded(text).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%+".contains(&byte)));
        for broken in ["%", "a%4", "%zz", "%ff"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
        let form = Form::default().with("a", "1 2").with_some("b", None).with_some("c", Some("&"));
        assert_eq!(form.into_text(), "a=1+2&c=%26");
    }
}
