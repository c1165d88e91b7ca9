//! The nesting depth of a message. The limit protects peers with recursive parsers from a stack overflow.

use crate::json::container_end;

/// The maximum nesting of objects and arrays, in both directions.
pub(crate) const MAX_DEPTH: usize = 512;

/// Reports whether a message is nested deeper than [`MAX_DEPTH`]. The message must be valid JSON.
pub(crate) fn is_too_deep(message: &[u8]) -> bool {
    // Each level takes two bytes, so most messages are too short to be too deep. Most others have too few brackets.
    message.len() > 2 * MAX_DEPTH && openings(message) > MAX_DEPTH && container_end(message, 0, MAX_DEPTH).is_none()
}

/// Counts opening brackets, including brackets in strings. The shape of the loop lets the compiler use vector
/// instructions.
fn openings(message: &[u8]) -> usize {
    // `[` and `{` differ in one bit only.
    let in_chunk = |chunk: &[u8]| chunk.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    // A chunk has at most 128 brackets, which fits into a byte.
    message.chunks(128).map(|chunk| usize::from(in_chunk(chunk))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn hard2_nesting_up_to_the_limit_passes() {
        assert!(!is_too_deep(nested(MAX_DEPTH).as_bytes()));
        assert!(is_too_deep(nested(MAX_DEPTH + 1).as_bytes()));
        let objects = format!("{}1{}", r#"{"a":"#.repeat(MAX_DEPTH + 1), "}".repeat(MAX_DEPTH + 1));
        assert!(is_too_deep(objects.as_bytes()));
        assert!(is_too_deep(format!(r#"{{"a":"]]]","b":{}}}"#, nested(MAX_DEPTH)).as_bytes()));
    }

    #[test]
    fn brackets_side_by_side_or_in_strings_do_not_count_as_depth() {
        assert!(!is_too_deep(format!("[{}[]]", "[],".repeat(2000)).as_bytes()));
        assert!(!is_too_deep(format!(r#"["\"{}"]"#, "[{".repeat(2000)).as_bytes()));
        let inner = nested(MAX_DEPTH - 1);
        assert!(!is_too_deep(format!(r#"[{inner},"\\",{inner}]"#).as_bytes()));
    }
}
