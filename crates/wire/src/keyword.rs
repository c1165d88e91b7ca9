//! Keywords that the gateway searches for in every message. Each finder is built once, because building it costs more
//! than a search.

use std::sync::OnceLock;

use memchr::memmem::Finder;

/// A keyword that decides whether a message needs a closer look.
pub struct Keyword {
    text: &'static str,
    finder: OnceLock<Finder<'static>>,
}

impl Keyword {
    pub const fn new(text: &'static str) -> Keyword {
        Keyword { text, finder: OnceLock::new() }
    }

    pub fn is_in(&self, text: &str) -> bool {
        self.finder().find(text.as_bytes()).is_some()
    }

    pub fn positions(&self, text: &str) -> impl Iterator<Item = usize> {
        self.finder().find_iter(text.as_bytes())
    }

    fn finder(&self) -> &Finder<'static> {
        self.finder.get_or_init(|| Finder::new(self.text))
    }
}
