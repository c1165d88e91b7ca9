//! What a backend offers, fetched whole: every list, page by page, kept as the backend wrote it.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::inbox::List;
use crate::backend::link::{Hello, Link, LinkError};
use crate::protocol::json::{self, Span, quote};
use crate::protocol::mirror::Mirrors;
use crate::protocol::{Outcome, Text};

/// Bounds for a backend that never stops listing.
const MOST_PAGES: usize = 10_000;
pub const MOST_ENTRIES: usize = 100_000;

/// The last complete word of one backend on what it offers.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub hello: Option<Arc<Hello>>,
    pub tools: Arc<Vec<Definition>>,
    pub prompts: Arc<Vec<Definition>>,
    pub resources: Arc<Vec<Definition>>,
    pub templates: Arc<Vec<Definition>>,
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

impl List {
    /// The member of the result that holds the entries.
    fn member(self) -> &'static str {
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
}

impl Listing {
    pub fn get(&self, list: List) -> &Arc<Vec<Definition>> {
        match list {
            List::Tools => &self.tools,
            List::Prompts => &self.prompts,
            List::Resources => &self.resources,
            List::Templates => &self.templates,
        }
    }

    pub fn set(&mut self, list: List, fresh: Vec<Definition>) {
        let place = match list {
            List::Tools => &mut self.tools,
            List::Prompts => &mut self.prompts,
            List::Resources => &mut self.resources,
            List::Templates => &mut self.templates,
        };
        *place = Arc::new(fresh);
    }
}

/// All pages of one list. Each page must come within `patience`.
pub async fn fetch(link: &Link, list: List, patience: Duration) -> Result<Vec<Definition>, LinkError> {
    let mut entries = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MOST_PAGES {
        let params =
            cursor.as_deref().map_or_else(|| "{}".to_owned(), |cursor| format!("{{\"cursor\":{}}}", quote(cursor)));
        let answer = tokio::time::timeout(patience, link.ask(&list.method(), &params)).await;
        let answer = answer.map_err(|_| LinkError::Protocol(format!("no answer within {patience:?}")))??;
        let text = answer.raw.as_str();
        let result = match answer.outcome {
            Outcome::Result(span) => span,
            // A capability may be declared without this list having anything to it.
            Outcome::Error(span) if is_unknown_method(text, span) => return Ok(Vec::new()),
            Outcome::Error(span) => return Err(LinkError::Protocol(span.get(text).to_owned())),
        };
        read_page(&answer.raw, result, list, &mut entries);
        if entries.len() > MOST_ENTRIES {
            return Err(LinkError::Protocol(format!("it lists more than {MOST_ENTRIES} entries")));
        }
        let next = json::member(text, result, "nextCursor").and_then(|span| json::string(text, span)).map(String::from);
        match next {
            None => return Ok(entries),
            same if same == cursor => return Err(LinkError::Protocol("its pages go round in a circle".to_owned())),
            next => cursor = next,
        }
    }
    Err(LinkError::Protocol(format!("its list has more than {MOST_PAGES} pages")))
}

/// A tool that is not offered, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub tool: Box<str>,
    pub reason: String,
}

/// Takes the tools out whose arguments nobody knows how to repeat in headers: over HTTP they must not be called.
pub fn leave_out_misannotated(tools: &mut Vec<Definition>) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    tools.retain(|definition| match Mirrors::read(definition.raw.as_str()) {
        Ok(_) => true,
        Err(reason) => {
            left_out.push(LeftOut { tool: definition.native.clone(), reason });
            false
        }
    });
    left_out
}

fn is_unknown_method(text: &str, error: Span) -> bool {
    json::member(text, error, "code").is_some_and(|code| code.get(text) == "-32601")
}

/// Entries without a usable name cannot be asked for, so they are left out.
fn read_page(page: &Text, result: Span, list: List, entries: &mut Vec<Definition>) {
    let text = page.as_str();
    let Some(array) = json::member(text, result, list.member()) else { return };
    for element in json::elements(text, array) {
        let Some(key) = json::member(text, element, list.key()) else { continue };
        let Some(native) = json::string(text, key).filter(|native| !native.is_empty()) else { continue };
        let native_at = Span { start: key.start - element.start, end: key.end - element.start };
        let raw = json::single_line(element.slice(page.bytes()));
        let Ok(raw) = Text::new(raw) else { continue };
        entries.push(Definition { raw, native: native.into(), native_at });
    }
}
