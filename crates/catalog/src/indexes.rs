//! Uniform access to the entries of all lists, and the search indexes over them.
//!
//! An index is built once, on the first search. After that, the gateway builds it for each new catalog in advance. An
//! unchanged list keeps its index. Building may take long with many entries, so it must not run on a runtime thread.

use std::sync::{Arc, OnceLock};

use crate::listing::List;
use crate::search::{Document, Index, document};
use crate::{Catalog, Upstream};

#[derive(Default)]
pub(crate) struct Indexes([Arc<OnceLock<Index>>; 4]);

/// An entry of any list.
#[derive(Clone, Copy, PartialEq)]
pub struct VisibleEntry<'a> {
    /// The id of its server.
    pub server: &'a str,
    /// The name that clients use. For a resource this is its URI, for a template its pattern.
    pub exposed: &'a str,
    pub native: &'a str,
    pub definition: &'a str,
    /// The identifier of a resource. `None` for other entries.
    pub identifier: Option<&'a str>,
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

    /// Returns all entries of a list, in the order of their indexes.
    pub fn entries(&self, list: List) -> impl Iterator<Item = VisibleEntry<'_>> {
        (0..self.count(list)).map(move |index| self.shown(list, index))
    }

    /// Returns the entry of a list at `index`.
    pub fn shown(&self, list: List, index: usize) -> VisibleEntry<'_> {
        match list {
            List::Tools | List::Prompts => {
                let table = if list == List::Tools { &self.tools } else { &self.prompts };
                let entry = &table.entries[index];
                self.shown_of(entry.source, &entry.exposed, &entry.native, &entry.definition)
            }
            List::Resources => {
                let entry = &self.resources.entries[index];
                let shown = self.shown_of(entry.source, &entry.exposed, &entry.native, &entry.definition);
                VisibleEntry { identifier: Some(&entry.identifier), ..shown }
            }
            List::Templates => {
                let entry = &self.resources.templates[index];
                self.shown_of(entry.source, &entry.exposed, &entry.native, &entry.definition)
            }
        }
    }

    fn shown_of<'a>(
        &'a self,
        source: usize,
        exposed: &'a str,
        native: &'a str,
        definition: &'a [u8],
    ) -> VisibleEntry<'a> {
        let server = self.source(source).backend.id().as_str();
        // Definitions are parts of messages, which are UTF-8.
        let definition = std::str::from_utf8(definition).unwrap_or("{}");
        VisibleEntry { server, exposed, native, definition, identifier: None }
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

    /// Takes over the parts of another catalog that are equal: the indexes of equal lists, and the definitions and
    /// compiled schemas of equal entries. Catalogs of many clients then share most of their memory.
    pub fn inherit(&mut self, before: &Catalog<U>) {
        for list in List::ALL {
            if self.entries(list).eq(before.entries(list)) {
                self.indexes.0[list as usize] = Arc::clone(&before.indexes.0[list as usize]);
            }
        }
        self.tools.inherit(&before.tools);
        self.prompts.inherit(&before.prompts);
        if self.resources.is_same(&before.resources) {
            self.resources = Arc::clone(&before.resources);
        }
    }
}

fn document_of(list: List, shown: VisibleEntry<'_>) -> Document<'_> {
    let VisibleEntry { server, exposed, native, definition, .. } = shown;
    match list {
        List::Tools => document::tool(definition, exposed, native, server),
        List::Prompts => document::prompt(definition, exposed, native, server),
        List::Resources | List::Templates => document::resource(definition, exposed, server),
    }
}
