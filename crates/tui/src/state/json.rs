//! Formats JSON for display: one member per line, every token unchanged.

const INDENT: &str = "  ";
/// The maximum indentation depth. Deeper nesting would make the output quadratic in the length of the text.
const MAX_DEPTH: usize = 32;

/// Returns the lines of `text`. Text that is not valid JSON causes no error, but its lines may look odd.
pub(crate) fn pretty(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut depth = 0_usize;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                let line = last(&mut lines);
                line.push('"');
                copy_string(&mut characters, line);
            }
            '{' | '[' => {
                last(&mut lines).push(character);
                while characters.peek().is_some_and(|next| next.is_ascii_whitespace()) {
                    characters.next();
                }
                match characters.next_if(|next| matches!(next, '}' | ']')) {
                    Some(closing) => last(&mut lines).push(closing),
                    None => {
                        depth += 1;
                        lines.push(indent(depth));
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                lines.push(indent(depth) + &character.to_string());
            }
            ',' => {
                last(&mut lines).push(',');
                lines.push(indent(depth));
            }
            ':' => last(&mut lines).push_str(": "),
            space if space.is_ascii_whitespace() => {}
            other => last(&mut lines).push(other),
        }
    }
    lines
}

fn indent(depth: usize) -> String {
    INDENT.repeat(depth.min(MAX_DEPTH))
}

fn last(lines: &mut Vec<String>) -> &mut String {
    if lines.is_empty() {
        lines.push(String::new());
    }
    let at = lines.len() - 1;
    &mut lines[at]
}

fn copy_string(characters: &mut impl Iterator<Item = char>, line: &mut String) {
    let mut is_escaped = false;
    for character in characters {
        line.push(character);
        match character {
            '"' if !is_escaped => return,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_json_has_one_member_per_line_and_keeps_each_token() {
        for (text, expected) in [
            (r#"{"b":1.50,"a":[]}"#, "{\n  \"b\": 1.50,\n  \"a\": []\n}"),
            (r#" [ {"x" : "a\"],{ b\\"}, { } ]"#, "[\n  {\n    \"x\": \"a\\\"],{ b\\\\\"\n  },\n  {}\n]"),
            (r#""whole""#, r#""whole""#),
            ("12e3", "12e3"),
            ("]]", "\n]\n]"),
        ] {
            assert_eq!(pretty(text).join("\n"), expected);
        }
    }
}
