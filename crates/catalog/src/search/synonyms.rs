//! Words that people and servers use for the same thing.
//!
//! The table has only general words about work with a computer, which may occur in any catalog and in any query. Words
//! of a single product do not belong here. The descriptions of its server must explain them.

/// Returns the groups of synonyms. A word in several groups is a synonym of all their words. Those words do not become
/// synonyms of each other. Terms often written as two words appear here as one.
pub(crate) fn groups() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = include_str!("synonyms.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synonym_group_has_single_words_without_repetition() {
        for group in groups() {
            assert!(group.len() > 1, "{group:?}");
            for (index, word) in group.iter().enumerate() {
                assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{word}");
                assert!(!group[..index].contains(word), "{word} occurs twice in {group:?}");
            }
        }
    }
}
