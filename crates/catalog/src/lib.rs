//! The catalog: one immutable snapshot of everything that the gateway offers.
//!
//! `build`, a pure function, makes a [`Catalog`] from the listings of all backends. `directory` publishes it as a
//! whole. One load of the catalog is enough to resolve a name or URI to its backend. A [`View`] is the part of the
//! catalog that one class of clients sees. The same view serves list, call, get, read and complete. It holds the bytes
//! of its lists, ready to send.

pub mod build;
pub mod content;
pub mod definition;
mod exposed_lists;
pub mod indexes;
pub mod instructions;
pub mod known_uris;
pub mod listing;
pub mod meta;
pub mod name;
pub mod profile;
pub mod resources;
pub mod schema;
pub mod search;
pub mod uri;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use goblin_config::{Server, ServerId};
use goblin_wire::json::quote;
use goblin_wire::mirror::Mirrors;
use goblin_wire::modern::{FRESHNESS, IDENTITY, SERVER_INFO};
use goblin_wire::via::Via;
use goblin_wire::{Dialect, Era, Error};
use parking_lot::MutexGuard;

use crate::build::CatalogSettings;
use crate::exposed_lists::Pages;
pub use crate::exposed_lists::{ClientRules, ExposedLists, ListedTools};
use crate::indexes::Indexes;
use crate::known_uris::KnownUris;
use crate::listing::{List, Listing};
use crate::meta::MetaSet;
use crate::resources::ResourceTable;
use crate::schema::{InputSchema, ValidationSkip};

pub struct Catalog<U: Upstream> {
    pub version: u64,
    pub sources: Vec<Source<U>>,
    pub tools: NameTable<U>,
    pub prompts: NameTable<U>,
    pub resources: Arc<ResourceTable>,
    /// The gateway's own tools.
    pub meta: Arc<MetaSet>,
    /// The lists that clients see, one for each distinct exposure. The first has no rule.
    lists: Vec<ExposedLists>,
    client_rules: Arc<ClientRules>,
    /// The gateways behind the lists, this one first.
    pub via: Via,
    page_size: usize,
    indexes: Indexes,
}

/// A backend and the listing this catalog was built from.
pub struct Source<U> {
    pub backend: Arc<U>,
    pub listing: Arc<Listing>,
}

impl<U> Clone for Source<U> {
    fn clone(&self) -> Source<U> {
        Source { backend: Arc::clone(&self.backend), listing: Arc::clone(&self.listing) }
    }
}

/// The running server behind a listing. The catalog does no I/O, so it reads only these properties.
pub trait Upstream {
    /// The counter of the calls of one tool.
    type Calls;

    fn id(&self) -> &ServerId;

    fn config(&self) -> &Arc<Server>;

    /// Returns the URIs that the server named in results without listing them.
    fn known_uris(&self) -> MutexGuard<'_, KnownUris>;

    fn calls_of(&self, tool: &str) -> Arc<Self::Calls>;
}

/// Tools or prompts.
pub struct NameTable<U: Upstream> {
    pub entries: Vec<CatalogEntry<U>>,
    index: HashMap<Box<str>, usize>,
    /// Names that several entries claimed, with the names that the entries received instead.
    pub contested: BTreeMap<String, Vec<String>>,
}

/// A tool or prompt.
pub struct CatalogEntry<U: Upstream> {
    pub source: usize,
    pub native: Box<str>,
    pub exposed: Box<str>,
    /// Other names that mean this entry. Lists do not have them.
    pub aliases: Box<[String]>,
    /// Names that this entry and others claimed. They mean no entry.
    pub lost: Box<[String]>,
    /// The definition that clients receive.
    pub definition: Bytes,
    /// The compiled input schema, for backends with argument validation.
    pub schema: Arc<OnceLock<Result<InputSchema, ValidationSkip>>>,
    /// The arguments that HTTP requests without a handshake repeat in headers.
    pub mirrors: Mirrors,
    /// Counts the calls of a tool.
    pub calls: Option<Arc<U::Calls>>,
}

impl<U: Upstream> CatalogEntry<U> {
    /// Returns every name that means this entry, the listed one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&*self.exposed].into_iter().chain(self.aliases.iter().map(String::as_str))
    }
}

/// One page of a list, as the `result` of a response.
pub struct Page {
    pub json: Bytes,
    /// True if the page existed before this request.
    pub was_made: bool,
}

/// The pages of lists with several pages. The vector of a list is empty if no client requested the list.
pub struct LongPages {
    /// The pages by exposure, by era and by list.
    pages: Vec<[[Vec<Bytes>; 4]; 2]>,
    client_rules: Arc<ClientRules>,
}

/// The properties of a client that select its lists.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    pub dialect: Dialect,
    /// The name of the client program in lower case.
    pub program: Option<&'a str>,
}

impl LongPages {
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().flatten().flatten().map(Bytes::len).sum()
    }

    pub fn get(&self, viewer: Viewer<'_>, list: List, number: usize) -> Option<Bytes> {
        let exposure = if list == List::Tools { self.client_rules.find(viewer.program) } else { 0 };
        self.pages[exposure][viewer.dialect.era() as usize][list as usize].get(number).cloned()
    }
}

/// The first list of tools that equals the list of an exposure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EqualTools {
    /// The list of this exposure in the catalog before.
    Before(usize),
    /// The list of this exposure in the new catalog, possibly the same one. The catalog before has no equal list.
    Now(usize),
}

/// The tools that the clients of one exposure see.
#[derive(PartialEq)]
struct ToolList<'a> {
    definitions: Vec<&'a Bytes>,
    /// Whether the list also has the tools that the client had described. `None` if it has all tools.
    reveal: Option<bool>,
}

/// The part of a catalog that the clients of one era see. The client's profile has already chosen the catalog.
pub struct View<'a, U: Upstream> {
    pub catalog: &'a Catalog<U>,
    pub lists: &'a ExposedLists,
    era: Era,
}

impl<U: Upstream> Clone for View<'_, U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U: Upstream> Copy for View<'_, U> {}

impl<U: Upstream> Catalog<U> {
    /// Returns the view for lookups, which all clients of an era share.
    pub fn view(&self, dialect: Dialect) -> View<'_, U> {
        View { catalog: self, lists: self.default_lists(), era: dialect.era() }
    }

    /// Returns the view of one client, with the lists for its program.
    pub fn view_for(&self, viewer: Viewer<'_>) -> View<'_, U> {
        View { catalog: self, lists: self.lists_for(viewer.program), era: viewer.dialect.era() }
    }

    /// Returns the lists for a client program.
    pub fn lists_for(&self, program: Option<&str>) -> &ExposedLists {
        &self.lists[self.exposure_of(program)]
    }

    /// Returns the index of the exposure for a client program.
    pub fn exposure_of(&self, program: Option<&str>) -> usize {
        self.client_rules.find(program)
    }

    /// Returns the number of distinct exposures.
    pub fn count_exposures(&self) -> usize {
        self.lists.len()
    }

    /// Returns for each exposure the first equal list of tools. Other rules for clients may move a client to another
    /// exposure, so the list of every exposure counts.
    pub fn equal_tools(&self, before: &Catalog<U>) -> Vec<EqualTools> {
        let (earlier, current) = (before.listed_tools(), self.listed_tools());
        let first = |list: &ToolList<'_>| match earlier.iter().position(|other| other == list) {
            Some(place) => EqualTools::Before(place),
            None => EqualTools::Now(current.iter().take_while(|other| *other != list).count()),
        };
        current.iter().map(first).collect()
    }

    /// Returns the listed tools of each exposure. The gateways behind the servers are part of the pages, but clients
    /// need no notification of them: a restarted inner gateway has another id and the same tools.
    fn listed_tools(&self) -> Vec<ToolList<'_>> {
        let listed = |lists| ToolList {
            definitions: View { catalog: self, lists, era: Era::Legacy }.definitions(List::Tools),
            reveal: match lists.tools {
                ListedTools::All => None,
                ListedTools::Pinned { reveal, .. } => Some(reveal),
            },
        };
        self.lists.iter().map(listed).collect()
    }

    /// Returns the lists of clients whose program has no exposure of its own.
    pub fn default_lists(&self) -> &ExposedLists {
        &self.lists[0]
    }

    /// Returns the pages of every long list that a client has started to read.
    pub fn long_pages(&self) -> LongPages {
        let of = |(index, lists): (usize, &ExposedLists)| {
            let has = |list: List| index == 0 || list == List::Tools;
            let view = |era| View { catalog: self, lists, era };
            let pages = |era, list| if has(list) { view(era).started_pages(list) } else { Vec::new() };
            [Era::Legacy, Era::Modern].map(|era| List::ALL.map(|list| pages(era, list)))
        };
        let pages = self.lists.iter().enumerate().map(of).collect();
        LongPages { pages, client_rules: Arc::clone(&self.client_rules) }
    }

    /// Returns the arguments of a tool that headers repeat. Returns `None` if the catalog does not offer the tool.
    pub fn mirrors(&self, tool: &str) -> Option<&Mirrors> {
        self.tools.find(tool).ok().map(|(_, entry)| &entry.mirrors)
    }

    /// Adds the lists of each exposure to a catalog that has all its entries.
    fn with_lists(mut self, settings: &CatalogSettings) -> Catalog<U> {
        let (exposures, rules) = ClientRules::new(&settings.exposure);
        self.lists = exposures.iter().map(|exposure| ExposedLists::new(&self, exposure)).collect();
        self.client_rules = Arc::new(rules);
        self
    }

    fn definition(&self, list: List, position: usize) -> &Bytes {
        match list {
            List::Tools => &self.tools.entries[position].definition,
            List::Prompts => &self.prompts.entries[position].definition,
            List::Resources => &self.resources.entries[position].definition,
            List::Templates => &self.resources.templates[position].definition,
        }
    }

    pub fn source(&self, index: usize) -> &Source<U> {
        &self.sources[index]
    }

    /// Returns the number of this catalog within this run, for logs.
    pub fn number(&self) -> u64 {
        self.version & 0x00ff_ffff
    }

    /// Returns the number of entries of each source, by list in the order of [`List::ALL`].
    pub fn counts(&self) -> Vec<[usize; 4]> {
        let mut counts = vec![[0; 4]; self.sources.len()];
        let mut add = |list: List, source: usize| counts[source][list as usize] += 1;
        self.tools.entries.iter().for_each(|entry| add(List::Tools, entry.source));
        self.prompts.entries.iter().for_each(|entry| add(List::Prompts, entry.source));
        self.resources.entries.iter().for_each(|entry| add(List::Resources, entry.source));
        self.resources.templates.iter().for_each(|entry| add(List::Templates, entry.source));
        counts
    }
}

/// Returns a tool's definition in a form that clients of this era can read.
fn shown_tool(definition: &Bytes, era: Era) -> Bytes {
    match era {
        Era::Legacy => definition::for_older(definition),
        Era::Modern => definition::for_newer(definition),
    }
}

impl<'a, U: Upstream> View<'a, U> {
    /// Returns the definitions of a list that clients see.
    pub fn definitions(self, list: List) -> Vec<&'a Bytes> {
        self.listed(list, 0..self.count_listed(list))
    }

    /// Returns definitions of a list by their positions in the list that clients see. The gateway's own tools come
    /// last.
    fn listed(self, list: List, positions: Range<usize>) -> Vec<&'a Bytes> {
        let own = self.own_tools(list);
        let backend_count = self.count_listed(list) - own.len();
        let definition = |position: usize| match (position.checked_sub(backend_count), self.pinned(list)) {
            (Some(position), _) => &self.catalog.meta.entries[own[position]].definition,
            (None, Some(pinned)) => self.catalog.definition(list, pinned[position]),
            (None, None) => self.catalog.definition(list, position),
        };
        positions.map(definition).collect()
    }

    /// Returns the number of entries of a list that clients see.
    fn count_listed(self, list: List) -> usize {
        self.pinned(list).map_or_else(|| self.catalog.count(list), <[usize]>::len) + self.own_tools(list).len()
    }

    /// Returns the indexes of the listed entries if others are not listed.
    fn pinned(self, list: List) -> Option<&'a [usize]> {
        match (list, &self.lists.tools) {
            (List::Tools, ListedTools::Pinned { positions, .. }) => Some(positions),
            _ => None,
        }
    }

    /// Returns the indexes of the gateway's own tools that a list has.
    fn own_tools(self, list: List) -> &'a [usize] {
        if list == List::Tools { &self.lists.own } else { &[] }
    }

    fn count_pages(self, list: List) -> usize {
        self.count_listed(list).div_ceil(self.catalog.page_size).max(1)
    }

    /// Builds one page of a list. The page ends in a cursor if another page follows.
    fn make_page(self, list: List, number: usize) -> Bytes {
        let shown = |definition: &Bytes| match list {
            List::Tools => self.listed_tool(definition),
            List::Prompts | List::Resources | List::Templates => definition.clone(),
        };
        let begin = number * self.catalog.page_size;
        let until = self.count_listed(list).min(begin + self.catalog.page_size);
        let definitions: Vec<_> = self.listed(list, begin..until).into_iter().map(shown).collect();
        // Older clients get `_meta` at the end, because `with_revealed` replaces the beginning of a page.
        let via = self.catalog.via.member();
        let (kind, end) = match self.era {
            Era::Legacy if via.is_empty() => (String::new(), String::new()),
            Era::Legacy => (String::new(), format!(r#","_meta":{{{via}}}"#)),
            Era::Modern => {
                let comma = if via.is_empty() { "" } else { "," };
                let meta = format!(r#"{{"{SERVER_INFO}":{IDENTITY}{comma}{via}}}"#);
                (format!(r#""resultType":"complete"{FRESHNESS},"_meta":{meta},"#), String::new())
            }
        };
        let size: usize = definitions.iter().map(|definition| definition.len() + 1).sum();
        let mut json = Vec::with_capacity(size + kind.len() + end.len() + 64);
        json.extend_from_slice(format!("{{{kind}\"{}\":[", list.member()).as_bytes());
        for (index, definition) in definitions.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            json.extend_from_slice(definition);
        }
        json.push(b']');
        if number + 1 < self.count_pages(list) {
            let cursor = Cursor { version: self.catalog.version, list, page: number + 1 };
            json.extend_from_slice(format!(",\"nextCursor\":{}", quote(&cursor.to_string())).as_bytes());
        }
        json.extend_from_slice(end.as_bytes());
        json.push(b'}');
        json.into()
    }

    /// Returns a tool and its index. The error names the candidates if several tools claimed the name.
    pub fn tool(self, name: &str) -> Result<(usize, &'a CatalogEntry<U>), Error> {
        self.catalog.tools.find(name).map_err(|candidates| Error::ToolNotFound { name: name.to_owned(), candidates })
    }

    /// Returns a tool's definition in the form that lists have for this client. `position` is the index of a server's
    /// tool.
    pub fn shown_tool(self, definition: &Bytes, position: Option<usize>) -> Bytes {
        let is_listed = match (&self.lists.tools, position) {
            (ListedTools::All, _) | (_, None) => true,
            (ListedTools::Pinned { positions, reveal }, Some(position)) => *reveal || positions.contains(&position),
        };
        if is_listed { self.listed_tool(definition) } else { shown_tool(definition, self.era) }
    }

    /// Returns the definition of a listed tool. If other tools are unlisted, a client must not defer the listed ones.
    fn listed_tool(self, definition: &Bytes) -> Bytes {
        let shown = shown_tool(definition, self.era);
        match self.lists.tools {
            ListedTools::All => shown,
            ListedTools::Pinned { .. } => definition::always_loaded(&shown),
        }
    }

    pub fn prompt(self, name: &str) -> Result<(usize, &'a CatalogEntry<U>), Error> {
        self.catalog
            .prompts
            .find(name)
            .map_err(|candidates| Error::PromptNotFound { name: name.to_owned(), candidates })
    }

    /// Adds the tools that the client had described to the first page of the tools. Returns any other page unchanged.
    pub fn with_revealed(self, page: Bytes, names: &[Box<str>]) -> Bytes {
        let ListedTools::Pinned { positions, reveal: true } = &self.lists.tools else { return page };
        const HEAD: &[u8] = br#"{"tools":["#;
        let is_first = self.page(List::Tools, 0).is_some_and(|first| first == page);
        if !is_first || !page.starts_with(HEAD) {
            return page;
        }
        let mut whole = BytesMut::from(HEAD);
        let known = names.iter().filter_map(|name| self.catalog.tools.find(name).ok());
        for (_, entry) in known.filter(|(position, _)| !positions.contains(position)) {
            whole.extend_from_slice(&self.listed_tool(&entry.definition));
            whole.extend_from_slice(b",");
        }
        // The gateway's own tools are always listed in this mode, so the page is not empty.
        whole.extend_from_slice(&page[HEAD.len()..]);
        whole.freeze()
    }

    /// Returns one page of a list as the `result` of a response, ready to send.
    pub fn page(self, list: List, number: usize) -> Option<Bytes> {
        self.find_page(list, number).map(|page| page.json)
    }

    pub fn find_page(self, list: List, number: usize) -> Option<Page> {
        let empty = || (0..self.count_pages(list)).map(|_| OnceLock::new()).collect();
        let position = self.pages(list).0[list as usize].get_or_init(empty).get(number)?;
        let was_made = position.get().is_some();
        let json = position.get_or_init(|| self.make_page(list, number)).clone();
        Some(Page { json, was_made })
    }

    /// Returns all pages of a list if it has several pages and a client has started to read it. Returns nothing
    /// otherwise.
    fn started_pages(self, list: List) -> Vec<Bytes> {
        let count = self.pages(list).0[list as usize].get().map_or(0, |pages| pages.len());
        let numbers = if count > 1 { 0..count } else { 0..0 };
        numbers.filter_map(|number| self.page(list, number)).collect()
    }

    /// Reports whether a list has more than one page.
    pub fn is_long(self, list: List) -> bool {
        self.count_pages(list) > 1
    }

    /// Returns the pages of a list. Exposures differ in tools only, so they share the pages of other lists.
    fn pages(self, list: List) -> &'a Pages {
        let lists = if list == List::Tools { self.lists } else { self.catalog.default_lists() };
        &lists.pages[self.era as usize]
    }
}

impl<U: Upstream> Default for NameTable<U> {
    fn default() -> NameTable<U> {
        NameTable { entries: Vec::new(), index: HashMap::new(), contested: BTreeMap::new() }
    }
}

impl<U: Upstream> NameTable<U> {
    fn insert(&mut self, entry: CatalogEntry<U>) {
        let names = [&*entry.exposed].into_iter().chain(entry.aliases.iter().map(String::as_str));
        self.index.extend(names.map(|name| (name.into(), self.entries.len())));
        self.entries.push(entry);
    }

    /// Takes over the definitions and compiled schemas of equal entries.
    fn inherit(&mut self, before: &NameTable<U>) {
        for entry in &mut self.entries {
            let Some(index) = before.index.get(&entry.exposed) else { continue };
            let old = &before.entries[*index];
            if old.native == entry.native && old.definition == entry.definition {
                entry.definition = old.definition.clone();
                entry.schema = Arc::clone(&old.schema);
            }
        }
    }

    /// Finds an entry by its exposed name. The error has the candidates for a contested name.
    pub fn find(&self, name: &str) -> Result<(usize, &CatalogEntry<U>), Vec<String>> {
        match self.index.get(name) {
            Some(index) => Ok((*index, &self.entries[*index])),
            None => Err(self.contested.get(name).cloned().unwrap_or_default()),
        }
    }
}

/// The position at which a list continues. A cursor is opaque to clients and valid for one version of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub version: u64,
    pub list: List,
    pub page: usize,
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:x}-{:x}-{:x}", self.version, self.list as u8, self.page)
    }
}

impl std::str::FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cursor, Error> {
        let mut parts = text.splitn(3, '-').map(|part| u64::from_str_radix(part, 16).ok());
        let mut next = || parts.next().flatten().ok_or(Error::InvalidCursor);
        let (version, list, page) = (next()?, next()?, next()?);
        let list = List::ALL.into_iter().find(|known| *known as u64 == list).ok_or(Error::InvalidCursor)?;
        let cursor = Cursor { version, list, page: usize::try_from(page).map_err(|_| Error::InvalidCursor)? };
        // Accepts only the spelling that `Display` writes: `+f` and `0f` also parse as numbers.
        if cursor.to_string() == text { Ok(cursor) } else { Err(Error::InvalidCursor) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_parses_back_and_has_only_one_spelling(version in any::<u64>(), list in 0_usize..4, page in any::<usize>(), noise in "\\PC{0,20}") {
            let cursor = Cursor { version, list: List::ALL[list], page };
            prop_assert_eq!(cursor.to_string().parse::<Cursor>().ok(), Some(cursor));
            if let Ok(read) = noise.parse::<Cursor>() {
                prop_assert_eq!(read.to_string(), noise);
            }
        }
    }
}
