//! Sorted texts in one block of memory, each with a number. An index has two dictionaries: its words, and the names of
//! its documents. Lookups are exact, by prefix, or with typos.

use crate::search::distance::{BitPattern, distance, letters, may_be_near};

/// The number of entries that are compared as one chunk.
const CHUNK: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    text: String,
    /// All entries, sorted by text.
    entries: Vec<DictionaryEntry>,
    /// The letter sets of the entries. They are a separate array, because a search for typos reads all of them.
    letters: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct DictionaryEntry {
    start: u32,
    length: u16,
    value: u32,
}

impl Dictionary {
    pub(crate) fn build(mut pairs: Vec<(Box<str>, u32)>) -> Dictionary {
        pairs.sort_unstable();
        pairs.dedup();
        let mut dictionary = Dictionary {
            text: String::with_capacity(pairs.iter().map(|(text, _)| text.len()).sum()),
            entries: Vec::with_capacity(pairs.len()),
            letters: pairs.iter().map(|(text, _)| letters(text)).collect(),
        };
        for (text, value) in pairs {
            let start = u32::try_from(dictionary.text.len()).expect("the texts of a catalog are far below 4 GiB");
            let length = u16::try_from(text.len()).expect("words and names are cut before");
            dictionary.text.push_str(&text);
            dictionary.entries.push(DictionaryEntry { start, length, value });
        }
        dictionary
    }

    /// Returns the number of a text. Returns the smallest number if the text has several.
    pub(crate) fn find(&self, text: &str) -> Option<u32> {
        let start_index = self.entries.partition_point(|entry| self.text_of(*entry) < text);
        self.entries.get(start_index).filter(|entry| self.text_of(**entry) == text).map(|entry| entry.value)
    }

    /// Iterates over all texts that begin with `prefix`, in order.
    pub(crate) fn starting_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u32)> {
        let start_index = self.entries.partition_point(|entry| self.text_of(*entry) < prefix);
        let pairs = self.entries[start_index..].iter().map(|entry| (self.text_of(*entry), entry.value));
        pairs.take_while(move |(text, _)| text.starts_with(prefix))
    }

    /// Returns the numbers of all texts with at most `MAX` typos relative to `word`.
    pub(crate) fn near<const MAX: usize>(&self, word: &str) -> Vec<u32> {
        let characters = word.chars().collect::<Vec<_>>();
        let pattern = BitPattern::new(word);
        let is_near = |other: &str| match pattern.as_ref().and_then(|pattern| pattern.typos(other)) {
            Some(typos) => typos <= MAX,
            None => distance(&characters, &other.chars().collect::<Vec<_>>(), MAX).is_some(),
        };
        let candidates = self.similar::<MAX>(letters(word));
        let candidates = candidates.filter(|entry| usize::from(entry.length).abs_diff(word.len()) <= MAX);
        candidates.filter(|entry| is_near(self.text_of(**entry))).map(|entry| entry.value).collect()
    }

    /// Iterates over the entries with letters that permit at most `MAX` typos. Most entries have other letters, so
    /// most chunks are skipped as a whole.
    fn similar<const MAX: usize>(&self, own: u32) -> impl Iterator<Item = &DictionaryEntry> {
        let is_similar = move |letters: &u32| may_be_near::<MAX>(*letters, own);
        let chunks = self.letters.chunks(CHUNK).zip(self.entries.chunks(CHUNK));
        let chunks = chunks.filter(move |(letters, _)| letters.iter().fold(false, |any, one| any | is_similar(one)));
        let pairs = chunks.flat_map(|(letters, entries)| letters.iter().zip(entries));
        pairs.filter(move |(letters, _)| is_similar(letters)).map(|(_, entry)| entry)
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.text.capacity()
            + self.entries.capacity() * size_of::<DictionaryEntry>()
            + self.letters.capacity() * size_of::<u32>()
    }

    fn text_of(&self, entry: DictionaryEntry) -> &str {
        &self.text[entry.start as usize..entry.start as usize + usize::from(entry.length)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dictionary() -> Dictionary {
        let words = ["issue", "list", "issues", "issuer", "pull", "é", "issue"];
        Dictionary::build(
            words.into_iter().zip([0, 1, 2, 3, 4, 5, 0]).map(|(word, value)| (word.into(), value)).collect(),
        )
    }

    #[test]
    fn words_are_found_exactly_by_prefix_and_with_typos() {
        let dictionary = dictionary();
        assert_eq!(dictionary.find("issue"), Some(0));
        assert_eq!(dictionary.find("é"), Some(5));
        assert_eq!(dictionary.find("issu"), None);
        assert_eq!(dictionary.find("zzz"), None);
        let begin = |prefix| dictionary.starting_with(prefix).map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(begin("issue"), [0, 3, 2]);
        assert_eq!(begin(""), [0, 3, 2, 1, 4, 5]);
        assert_eq!(begin("q"), [0_u32; 0]);
        assert_eq!(dictionary.near::<1>("isue"), [0]);
        assert_eq!(dictionary.near::<1>("issuee"), [0, 3, 2]);
        assert!(dictionary.near::<2>("quux").is_empty());
        assert_eq!(Dictionary::build(Vec::new()).find("x"), None);
    }
}
