//! How deep a message is nested: a parser that recurses must not meet a depth that ends its stack.

use crate::json::string_end;

/// The deepest nesting of objects and arrays that passes, in either direction.
pub const MAX_DEPTH: usize = 512;

/// Returns whether a message, which is valid JSON, is nested deeper than [`MAX_DEPTH`].
pub fn is_too_deep(message: &[u8]) -> bool {
    // Each level takes two bytes. Most messages are too short to be too deep, and most others have too few levels.
    message.len() > 2 * MAX_DEPTH && openings(message) > MAX_DEPTH && nests_deeper(message)
}

/// Counts the brackets that open, also those in strings. Written so that the compiler uses vector instructions.
fn openings(message: &[u8]) -> usize {
    // `[` and `{` differ in one bit only.
    let in_chunk = |chunk: &[u8]| chunk.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    // No chunk has more than a byte can count.
    message.chunks(128).map(|chunk| usize::from(in_chunk(chunk))).sum()
}

fn nests_deeper(message: &[u8]) -> bool {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = message.get(at) {
        match byte {
            b'"' => {
                at = string_end(message, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn hard2_exactly_the_deepest_nesting_passes() {
        assert!(!is_too_deep(nested(MAX_DEPTH).as_bytes()));
        assert!(is_too_deep(nested(MAX_DEPTH + 1).as_bytes()));
        let objects = format!("{}1{}", r#"{"a":"#.repeat(MAX_DEPTH + 1), "}".repeat(MAX_DEPTH + 1));
        assert!(is_too_deep(objects.as_bytes()));
        assert!(is_too_deep(format!(r#"{{"a":"]]]","b":{}}}"#, nested(MAX_DEPTH)).as_bytes()));
    }

    #[test]
    fn brackets_side_by_side_or_in_strings_are_not_depth() {
        assert!(!is_too_deep(format!("[{}[]]", "[],".repeat(2000)).as_bytes()));
        assert!(!is_too_deep(format!(r#"["\"{}"]"#, "[{".repeat(2000)).as_bytes()));
        let inner = nested(MAX_DEPTH - 1);
        assert!(!is_too_deep(format!(r#"[{inner},"\\",{inner}]"#).as_bytes()));
    }
}
