//! The lists of words in text files: one word per line, and comments that start with `#`.

/// Returns the words of a list.
pub(crate) fn of(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

/// Reports whether one of the patterns is the name, or a prefix of it with `*`.
pub(crate) fn match_name<'a>(mut patterns: impl Iterator<Item = &'a str>, name: &str) -> bool {
    patterns.any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    })
}
