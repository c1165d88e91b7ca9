//! Words that are looked for in every message: prepared once, since preparing costs more than looking.

use std::sync::OnceLock;

use memchr::memmem::Finder;

/// A word that says whether a message must be looked into at all.
pub struct Keyword {
    word: &'static str,
    finder: OnceLock<Finder<'static>>,
}

impl Keyword {
    pub const fn new(word: &'static str) -> Keyword {
        Keyword { word, finder: OnceLock::new() }
    }

    pub fn is_in(&self, text: &str) -> bool {
        self.finder().find(text.as_bytes()).is_some()
    }

    pub fn places(&self, text: &str) -> impl Iterator<Item = usize> {
        self.finder().find_iter(text.as_bytes())
    }

    fn finder(&self) -> &Finder<'static> {
        self.finder.get_or_init(|| Finder::new(self.word))
    }
}
