//! Recognizes and escapes invisible characters, which a terminal obeys or a reader cannot see.
//!
//! There are three levels of treatment. Text of a server loses characters that control a terminal. A name or a log line
//! loses every invisible character. A command that the user approves keeps them, as visible escapes.

use std::borrow::Cow;

/// The characters that begin a control sequence.
const CONTROL_SEQUENCES: [char; 2] = ['\u{1b}', '\u{9b}'];

/// Reports whether the character changes the direction of text, so the text reads differently than it runs.
pub(crate) fn is_bidi(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Reports whether a terminal obeys the character.
pub fn is_command(letter: char) -> bool {
    letter.is_control() || is_bidi(letter) || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{e0000}'..='\u{e007f}')
}

/// Reports whether the character is invisible.
pub fn is_hidden(letter: char) -> bool {
    is_command(letter)
        || matches!(letter, '\u{ad}' | '\u{34f}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0100}'..='\u{e01ef}')
}

/// Returns the text without the sequences that colour text on a terminal or move its cursor, such as `ESC [ 31 m`. Other
/// sequences stay, because a sequence without an end would hide the rest of the text.
pub fn without_styles(text: &str) -> Cow<'_, str> {
    let Some(mut at) = text.find(CONTROL_SEQUENCES) else { return Cow::Borrowed(text) };
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text);
    loop {
        kept.push_str(&rest[..at]);
        let sequence = &rest[at..];
        let parameters = sequence.strip_prefix("\u{1b}[").or(sequence.strip_prefix('\u{9b}'));
        let end = parameters.and_then(|parameters| {
            let end = parameters.trim_start_matches(|letter| matches!(letter, ' '..='?'));
            end.strip_prefix(|letter| matches!(letter, '@'..='~'))
        });
        // An incomplete sequence loses its first character alone.
        rest = end.unwrap_or_else(|| sequence.trim_start_matches(CONTROL_SEQUENCES));
        let Some(next) = rest.find(CONTROL_SEQUENCES) else { break };
        at = next;
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// Reports whether the character looks like a space but is not a space to a shell.
fn is_blank(letter: char) -> bool {
    letter != ' ' && letter.is_whitespace()
        || matches!(letter, '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}')
}

/// Returns the text on one line. Escapes every character that is invisible or looks like a space.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) || is_blank(letter) {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

/// Returns equivalent JSON with every terminal control character escaped. They occur only inside strings, except for
/// line ends and tabs between tokens, which are kept.
pub fn escaped_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => escaped.push(letter),
            '\r' => {}
            letter if is_command(letter) => {
                let units = &mut [0; 2];
                escaped.extend(letter.encode_utf16(units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Quotes a word for a shell, if it needs quotes.
pub fn shell_word(word: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "/._-@:=+,%".contains(character);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hidden_character_is_shown_as_an_escape() {
        for (given, expected) in [
            ("a\u{202e}\r\nb\t", r"a\u{202e}\r\nb\t"),
            ("\u{1b}[2J\u{9b}\u{7f}", r"\u{1b}[2J\u{9b}\u{7f}"),
            ("\u{61c}\u{2066}\u{200f}\u{ad}\u{feff}", r"\u{61c}\u{2066}\u{200f}\u{ad}\u{feff}"),
            ("\u{a0}\u{3000}\u{2800}\u{3164}", r"\u{a0}\u{3000}\u{2800}\u{3164}"),
            ("\u{e0041}\u{e0101}", r"\u{e0041}\u{e0101}"),
            ("é 日本 😀", "é 日本 😀"),
        ] {
            assert_eq!(escaped(given), expected);
        }
    }

    #[test]
    fn styles_are_removed_and_nothing_else() {
        for (given, expected) in [
            ("\u{1b}[1;31merror\u{1b}[0m: x", "error: x"),
            ("\u{9b}31mred\u{1b}[38;5;208m!", "red!"),
            ("a\u{1b}]0;title\u{7}b", "a]0;title\u{7}b"),
            ("a\u{1b}[31é \u{1b}\u{1b}[", "a[31é ["),
            ("[INFO] plain", "[INFO] plain"),
        ] {
            assert_eq!(without_styles(given), expected, "{given:?}");
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let text = "{\r\n\t\"a\u{202e}\": \"\u{9b}31m\u{e0041}é\u{200d}\"}";
        let escaped = escaped_json(text);
        assert_eq!(escaped, "{\n\t\"a\\u202e\": \"\\u009b31m\\udb40\\udc41é\u{200d}\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&escaped), value(text));
    }
}
