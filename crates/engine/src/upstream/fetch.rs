//! Fetches the lists of a backend, page by page, and keeps the entries as the backend wrote them.
//!
//! The lister calls [`fetch`] for each list. Limits on pages, entries and bytes protect the gateway from a backend that
//! lists without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use goblin_catalog::listing::{Definition, List, read_entries, weight};
use goblin_telemetry::worker;
use goblin_wire::json::{self, Span, quote};
use goblin_wire::memory::{BufferKind, Memory, Reservation};
use goblin_wire::mirror::Mirrors;
use goblin_wire::via::{GatewayId, Via, ViaProblem, refusal};
use goblin_wire::{Limit, MAX_LIST_ENTRIES, Outcome, Text, units};

use crate::upstream::link::{Link, LinkError};

/// The limit of pages per list.
const MAX_PAGES: usize = 10_000;
/// The limit of bytes of all lists of one backend, as received. A page counts with its entries and the text around
/// them.
pub(crate) const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;
/// The factor by which listed bytes are reserved. The catalog also holds the entries under exposed names and as pages.
pub(crate) const COPIES: usize = 3;
/// The limit of templates per backend. The lookup of a URI may have to try many of them.
pub(crate) const MAX_TEMPLATES: usize = 10_000;
/// The size in bytes up to which a page is parsed on a worker thread.
const SHORT_PAGE: usize = 256 * 1024;
/// The number of entries up to which a list is processed on a worker thread.
pub(crate) const SHORT_LIST: usize = 1_000;

/// One fetched list with its memory reservation.
#[derive(Debug)]
pub(crate) struct FetchedList {
    pub entries: Vec<Definition>,
    pub reserved: Reservation,
    /// The shortest `ttlMs` of the pages. `None` if no page has one.
    pub ttl: Option<Duration>,
    /// The gateways that the list comes from.
    pub via: Via,
}

/// The limits of one fetch: the bytes of all lists that are fetched together, and the memory of all backends.
pub(crate) struct FetchBudget {
    fetched: AtomicUsize,
    memory: Arc<Memory>,
    /// Whether a list exceeded a limit.
    is_exceeded: AtomicBool,
    /// The longest `Retry-After` of the server, in milliseconds.
    retry_after: AtomicU64,
}

impl FetchBudget {
    pub(crate) fn new(memory: &Arc<Memory>) -> FetchBudget {
        FetchBudget {
            fetched: AtomicUsize::new(0),
            memory: Arc::clone(memory),
            is_exceeded: AtomicBool::new(false),
            retry_after: AtomicU64::new(0),
        }
    }

    /// Records a failed list, for the time of the next fetch.
    pub(crate) fn note_failure(&self, error: &ListingError) {
        match error {
            ListingError::TooLarge { .. } | ListingError::Endless(_) => self.is_exceeded.store(true, Ordering::Relaxed),
            ListingError::Failed(LinkError::Busy { retry_after, .. }) => {
                let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                self.retry_after.fetch_max(millis, Ordering::Relaxed);
            }
            ListingError::Failed(_) | ListingError::Dropped(_) => {}
        }
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Returns the time that the server demands before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let millis = self.retry_after.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Counts received bytes. Returns an error beyond [`MAX_LIST_BYTES`].
    fn add(&self, bytes: usize) -> Result<(), ListingError> {
        let before = self.fetched.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_LIST_BYTES { Err(ListingError::too_large()) } else { Ok(()) }
    }

    /// Returns an empty list, for a list that the backend does not offer.
    pub(crate) fn empty_list(&self) -> FetchedList {
        FetchedList {
            entries: Vec::new(),
            reserved: self.memory.hold(BufferKind::Listings, 0),
            ttl: None,
            via: Via::default(),
        }
    }
}

/// The reason why a list keeps its last entries.
#[derive(Clone, Debug)]
pub(crate) enum ListingError {
    Failed(LinkError),
    /// The gateway must not use the server.
    Dropped(ViaProblem),
    /// The list has too many pages or entries.
    Endless(String),
    /// The list exceeds a limit. `reason` names the cause and a remedy.
    TooLarge {
        limit: Limit,
        reason: String,
    },
}

impl ListingError {
    pub(crate) fn too_large() -> ListingError {
        let reason = format!(
            "its lists take more than listBytes, {} (shorten its descriptions and schemas, or split the server; its \
             last lists stay)",
            units::bytes(MAX_LIST_BYTES as u64)
        );
        ListingError::TooLarge { limit: Limit::ListBytes, reason }
    }

    fn too_many_templates() -> ListingError {
        let reason = format!(
            "it lists more than {MAX_TEMPLATES} resource templates (let it list fewer, with more variables in each; its last \
             list stays)"
        );
        ListingError::TooLarge { limit: Limit::Templates, reason }
    }

    fn no_memory(max: usize) -> ListingError {
        let reason = format!(
            "the gateway has no memory left for its lists: maxMemory is {} (raise gateway.maxMemory, or remove servers; its \
             last lists stay)",
            units::bytes(max as u64)
        );
        ListingError::TooLarge { limit: Limit::MaxMemory, reason }
    }
}

impl From<ViaProblem> for ListingError {
    fn from(problem: ViaProblem) -> ListingError {
        ListingError::Dropped(problem)
    }
}

impl From<LinkError> for ListingError {
    fn from(error: LinkError) -> ListingError {
        ListingError::Failed(error)
    }
}

/// Fetches all pages of one list. Each page must arrive within `timeout`. Returns [`ListingError::Dropped`] at the first
/// page that comes from the gateway `own`, or from too many gateways.
pub(crate) async fn fetch(
    link: &Link,
    list: List,
    timeout: Duration,
    budget: &FetchBudget,
    own: &GatewayId,
) -> Result<FetchedList, ListingError> {
    let FetchedList { mut entries, mut reserved, mut ttl, mut via } = budget.empty_list();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params =
            cursor.as_deref().map_or_else(|| "{}".to_owned(), |cursor| format!("{{\"cursor\":{}}}", quote(cursor)));
        let answer = tokio::time::timeout(timeout, link.query(&list.method(), &params)).await;
        let answer = answer.map_err(|_| {
            LinkError::Protocol(format!("no answer within {}", goblin_wire::units::duration(timeout)))
        })??;
        let text = answer.raw.as_str();
        let result = match answer.outcome {
            Outcome::Result(span) => span,
            // A backend may declare a capability without this list. The list then counts as empty.
            Outcome::Error(span) if is_unknown_method(text, span) => return Ok(budget.empty_list()),
            Outcome::Error(span) if span.get(text).contains(&refusal(own)) => return Err(ViaProblem::Loop.into()),
            Outcome::Error(span) => return Err(LinkError::Protocol(span.get(text).to_owned()).into()),
        };
        let via_of_page = Via::read(text, result);
        via_of_page.check(own)?;
        via = Via::union([&via, &via_of_page]);
        via.check(own)?;
        let before = entries.len();
        entries = read_page(&answer.raw, result, list, entries).await?;
        if list == List::Templates && entries.len() > MAX_TEMPLATES {
            return Err(ListingError::too_many_templates());
        }
        if entries.len() > MAX_LIST_ENTRIES {
            return Err(ListingError::Endless(format!("it lists more than {MAX_LIST_ENTRIES} entries")));
        }
        let kept = weight(&entries[before..]);
        budget.add(kept.max(text.len()))?;
        reserved.grow(COPIES * kept).map_err(|full| ListingError::no_memory(full.value))?;
        ttl = [ttl, read_ttl(text, result)].into_iter().flatten().min();
        let next = json::member(text, result, "nextCursor").and_then(|span| json::string(text, span)).map(String::from);
        match next {
            None => {
                let entries = sorted(list, entries).await?;
                return Ok(FetchedList { entries, reserved, ttl, via });
            }
            same if same == cursor => {
                return Err(LinkError::Protocol("its nextCursor repeats the cursor of the same page".to_owned()).into());
            }
            next => cursor = next,
        }
    }
    Err(ListingError::Endless(format!("its list has more than {MAX_PAGES} pages")))
}

/// Returns the time for which a page stays fresh. A number that is not valid counts as zero.
fn read_ttl(text: &str, result: Span) -> Option<Duration> {
    let ttl = json::member(text, result, "ttlMs")?;
    Some(Duration::from_millis(ttl.get(text).parse().unwrap_or_default()))
}

/// A tool that is not offered, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SkippedTool {
    pub tool: Box<str>,
    pub reason: String,
}

/// Removes the tools with invalid header annotations and returns them. The protocol forbids calls of such tools over
/// HTTP.
pub(crate) fn remove_misannotated(tools: &mut Vec<Definition>) -> Vec<SkippedTool> {
    let mut skipped = Vec::new();
    tools.retain(|definition| match Mirrors::read(definition.raw.as_str()) {
        Ok(_) => true,
        Err(reason) => {
            skipped.push(SkippedTool { tool: definition.native.clone(), reason });
            false
        }
    });
    skipped
}

fn is_unknown_method(text: &str, error: Span) -> bool {
    json::member(text, error, "code").is_some_and(|code| code.get(text) == "-32601")
}

/// Sorts a long list of resources by URI. Subscriptions look up resources by URI, and clients get them sorted anyway.
async fn sorted(list: List, mut entries: Vec<Definition>) -> Result<Vec<Definition>, LinkError> {
    if list != List::Resources || entries.len() <= SHORT_LIST {
        return Ok(entries);
    }
    let sorted = worker::offload(move || {
        entries.sort_by(|one, other| one.native.cmp(&other.native));
        entries
    });
    sorted.await.ok_or_else(shutting_down)
}

/// Parses a page. A long page is parsed outside of the worker threads.
async fn read_page(
    page: &Text,
    result: Span,
    list: List,
    entries: Vec<Definition>,
) -> Result<Vec<Definition>, LinkError> {
    let read = move |page: &Text, mut entries: Vec<Definition>| {
        read_entries(page, result, list, &mut entries);
        entries
    };
    if page.bytes().len() <= SHORT_PAGE {
        return Ok(read(page, entries));
    }
    let page = page.clone();
    worker::offload(move || read(&page, entries)).await.ok_or_else(shutting_down)
}

fn shutting_down() -> LinkError {
    LinkError::Protocol("the gateway is shutting down".to_owned())
}
