//! Uniform access to the entries of all lists, and the search indexes over them.
//!
//! An index is built once, on the first search. After that, the gateway builds it for each new catalog in advance. An
//! unchanged list keeps its index. Building may take long with many entries, so it must not run on a runtime thread.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::listing::List;
use crate::search::{Document, Index, document};
use crate::{Catalog, Upstream};

#[derive(Default)]
pub(crate) struct Indexes([Arc<OnceLock<Index>>; 4]);

/// An entry of any list.
#[derive(Clone, Copy)]
pub struct VisibleEntry<'a> {
    /// The index of its server among the sources of the catalog.
    pub source: usize,
    /// The id of its server.
    pub server: &'a str,
    /// The name that clients use. For a resource this is its URI, for a template its pattern.
    pub exposed: &'a str,
    pub native: &'a str,
    pub definition: &'a Bytes,
    /// The identifier of a resource. `None` for other entries.
    pub identifier: Option<&'a str>,
}

impl<'a> VisibleEntry<'a> {
    /// Returns the definition as text.
    pub fn text(&self) -> &'a str {
        // Definitions are parts of messages, which are UTF-8.
        std::str::from_utf8(self.definition).unwrap_or("{}")
    }

    /// Reports whether two entries of different catalogs have the same document.
    fn is_same(&self, other: &VisibleEntry<'_>) -> bool {
        (self.server, self.exposed, self.native, self.definition, self.identifier)
            == (other.server, other.exposed, other.native, other.definition, other.identifier)
    }
}

impl<U: Upstream> Catalog<U> {
    /// Returns the number of entries of a list.
    pub fn count(&self, list: List) -> usize {
        match list {
            List::Tools => self.tools.entries.len(),
            List::Prompts => self.prompts.entries.len(),
            List::Resources => self.resources.entries.len(),
            List::Templates => self.resources.templates.len(),
        }
    }

    /// Returns all entries of a list, in the order that clients see.
    pub fn entries(&self, list: List) -> impl Iterator<Item = VisibleEntry<'_>> {
        (0..self.count(list)).map(move |place| self.entry(list, place))
    }

    /// Returns the entry at index `place` of a list.
    pub fn entry(&self, list: List, place: usize) -> VisibleEntry<'_> {
        let (source, exposed, native, definition, identifier) = match list {
            List::Tools | List::Prompts => {
                let it = &(if list == List::Tools { &self.tools } else { &self.prompts }).entries[place];
                (it.source, &it.exposed, &it.native, &it.definition, None)
            }
            List::Resources => {
                let it = &self.resources.entries[place];
                (it.source, &it.exposed, &it.native, &it.definition, Some(&*it.identifier))
            }
            List::Templates => {
                let it = &self.resources.templates[place];
                (it.source, &it.exposed, &it.native, &it.definition, None)
            }
        };
        let server = self.source(source).backend.id().as_str();
        VisibleEntry { source, server, exposed, native, definition, identifier }
    }

    /// Returns the index of a list and builds it if necessary. Documents have the same numbers as entries. Must not run
    /// on a runtime thread.
    pub fn index_of(&self, list: List) -> &Index {
        let documents = self.entries(list).map(|entry| document_of(list, entry));
        self.indexes.0[list as usize].get_or_init(|| Index::build(documents))
    }

    /// Reports whether the index of a list is already built.
    pub fn has_index(&self, list: List) -> bool {
        self.indexes.0[list as usize].get().is_some()
    }

    /// Takes over the indexes of the previous catalog for lists that did not change.
    pub fn inherit(&mut self, before: &Catalog<U>) {
        for list in List::ALL {
            let is_same = |place| self.entry(list, place).is_same(&before.entry(list, place));
            if self.count(list) == before.count(list) && (0..self.count(list)).all(is_same) {
                self.indexes.0[list as usize] = Arc::clone(&before.indexes.0[list as usize]);
            }
        }
    }
}

fn document_of(list: List, entry: VisibleEntry<'_>) -> Document<'_> {
    let VisibleEntry { server, exposed, native, .. } = entry;
    let definition = entry.text();
    match list {
        List::Tools => document::tool(definition, exposed, native, server),
        List::Prompts => document::prompt(definition, exposed, native, server),
        List::Resources | List::Templates => document::resource(definition, exposed, server),
    }
}
