//! The listing of one server: its four lists as the server wrote them.

use std::sync::Arc;

use bytes::BytesMut;
use goblin_wire::json::{self, Span};
use goblin_wire::memory::Reservation;
use goblin_wire::via::Via;
use goblin_wire::{Hello, Method, Text};

/// An entry takes this much besides its text: its names, and its places in the catalog's tables.
const PER_ENTRY: usize = 256;

/// The lists a backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl List {
    pub const ALL: [List; 4] = [List::Tools, List::Prompts, List::Resources, List::Templates];

    pub fn method(self) -> Method {
        match self {
            List::Tools => Method::ToolsList,
            List::Prompts => Method::PromptsList,
            List::Resources => Method::ResourcesList,
            List::Templates => Method::TemplatesList,
        }
    }

    /// Returns the bit of this list in a set of lists.
    pub fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The word for one entry. The admin API and the meta tools name a list by its plural.
    pub fn noun(self) -> &'static str {
        match self {
            List::Tools => "tool",
            List::Prompts => "prompt",
            List::Resources => "resource",
            List::Templates => "template",
        }
    }

    /// The member of the result that holds the entries.
    pub fn member(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Prompts => "prompts",
            List::Resources => "resources",
            List::Templates => "resourceTemplates",
        }
    }

    /// The member of an entry that names it.
    pub fn key(self) -> &'static str {
        match self {
            List::Tools | List::Prompts => "name",
            List::Resources => "uri",
            List::Templates => "uriTemplate",
        }
    }

    pub fn is_offered(self, hello: &Hello) -> bool {
        match self {
            List::Tools => hello.capabilities.tools,
            List::Prompts => hello.capabilities.prompts,
            List::Resources | List::Templates => hello.capabilities.resources,
        }
    }

    /// Reports whether the server declares that it announces changes of this list.
    pub fn is_announced(self, hello: &Hello) -> bool {
        match self {
            List::Tools => hello.capabilities.tools_change,
            List::Prompts => hello.capabilities.prompts_change,
            List::Resources | List::Templates => hello.capabilities.resources_change,
        }
    }
}

/// The last complete lists of one backend.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub hello: Option<Arc<Hello>>,
    /// The entries of each list.
    pub lists: [Arc<Vec<Definition>>; 4],
    /// The reserved memory of each list.
    pub reserved: [Option<Arc<Reservation>>; 4],
    /// The gateways that the lists come from.
    pub via: Via,
    /// The gateways that each list comes from. A proxy may remove them from some lists.
    pub vias: [Via; 4],
}

/// One tool, prompt, resource or template as the backend wrote it.
#[derive(Clone, Debug)]
pub struct Definition {
    pub raw: Text,
    /// Its `name`, `uri` or `uriTemplate`, decoded.
    pub native: Box<str>,
    pub native_at: Span,
}

impl PartialEq for Definition {
    fn eq(&self, other: &Definition) -> bool {
        self.raw.bytes() == other.raw.bytes()
    }
}

impl Listing {
    pub fn get(&self, list: List) -> &Arc<Vec<Definition>> {
        &self.lists[list as usize]
    }

    /// Returns the bytes that the lists of this listing take together.
    pub fn weight(&self) -> usize {
        self.lists.iter().map(|entries| weight(entries)).sum()
    }

    pub fn set(&mut self, list: List, entries: Vec<Definition>, reserved: Reservation) {
        self.lists[list as usize] = Arc::new(entries);
        self.reserved[list as usize] = Some(Arc::new(reserved));
    }

    /// Replaces the gateways that a list comes from. Reports whether those of the listing changed.
    pub fn set_via(&mut self, list: List, via: Via) -> bool {
        self.vias[list as usize] = via;
        let union = Via::union(&self.vias);
        std::mem::replace(&mut self.via, union.clone()) != union
    }

    /// Replaces a list by the equal one of another listing, to share its memory.
    pub fn share(&mut self, list: List, other: &Listing) {
        self.lists[list as usize] = Arc::clone(other.get(list));
        self.reserved[list as usize] = other.reserved[list as usize].clone();
    }

    /// Reports whether two listings of one server have the same entries, capabilities and gateways.
    pub fn is_same(&self, other: &Listing) -> bool {
        let is_same = |(one, two): (&Arc<Vec<Definition>>, &Arc<Vec<Definition>>)| Arc::ptr_eq(one, two) || one == two;
        let capabilities = |listing: &Listing| listing.hello.as_ref().map(|hello| hello.capabilities);
        self.via == other.via
            && capabilities(self) == capabilities(other)
            && self.lists.iter().zip(&other.lists).all(is_same)
    }
}

/// Returns the bytes that entries count for: their text and their places in tables.
pub fn weight(entries: &[Definition]) -> usize {
    entries.iter().map(|entry| entry.raw.bytes().len() + PER_ENTRY).sum()
}

/// Reads the entries of a page. Leaves out entries without a usable name, because no request can name them. Copies the
/// text of the others, because a slice would keep the whole page in memory.
pub fn read_entries(page: &Text, result: Span, list: List, entries: &mut Vec<Definition>) {
    let text = page.as_str();
    let Some(array) = json::member(text, result, list.member()) else { return };
    let mut named = Vec::new();
    for element in json::elements(text, array) {
        let Some(key) = json::member(text, element, list.key()) else { continue };
        let Some(native) = json::string(text, key).filter(|native| !native.is_empty()) else { continue };
        let native_at = Span { start: key.start - element.start, end: key.end - element.start };
        named.push((element, Box::<str>::from(native), native_at));
    }
    let mut copy = BytesMut::with_capacity(named.iter().map(|(element, ..)| element.range().len()).sum());
    for (element, native, native_at) in named {
        copy.extend_from_slice(element.get(text).as_bytes());
        let raw = json::single_line(copy.split().freeze());
        let Ok(raw) = Text::new(raw) else { continue };
        entries.push(Definition { raw, native, native_at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard2_entries_do_not_hold_the_memory_of_their_page() {
        let text =
            format!(r#"{{"garbage":"{}","tools":[{{"name":"a"}},{{"no":1}},{{"name":\n"b"}}]}}"#, "x".repeat(9_999));
        let page = Text::new(text.replace("\\n", "\n").into()).expect("text");
        let mut entries = Vec::new();
        read_entries(&page, json::whole(page.as_str()), List::Tools, &mut entries);
        let read: Vec<_> = entries.iter().map(|entry| (entry.raw.as_str(), &*entry.native)).collect();
        assert_eq!(read, [(r#"{"name":"a"}"#, "a"), (r#"{"name": "b"}"#, "b")]);
        let page = page.bytes().as_ptr_range();
        assert!(entries.iter().all(|entry| !page.contains(&entry.raw.bytes().as_ptr())));
        assert_eq!(weight(&entries), 12 + 13 + 2 * PER_ENTRY);
    }
}
