//! Lists the catalog's entries and the sessions for the admin API.

use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;
use goblin_admin::api::{Entry, EntryList, SessionInfo, SessionList};
use goblin_catalog::definition;
use goblin_catalog::listing::List;
use goblin_telemetry::clean;
use serde_json::value::RawValue;

use crate::admin::Admin;
use crate::admin::status::iso;
use crate::catalog_store::Catalog;
use crate::session::Session;

/// The maximum number of listed sessions. The response also has the total number.
pub(crate) const MAX_SESSIONS: usize = 1000;

impl Admin {
    /// Returns the entries of all servers, or of one server.
    pub(crate) fn entries(&self, list: List, server: Option<&str>) -> EntryList {
        let catalog = Arc::clone(&self.dispatcher.router.directory.catalog());
        let of_source = |source: usize, exposed: &str, native: &str, definition: &Bytes| {
            let id = &catalog.source(source).backend.id;
            let is_wanted = server.is_none_or(|server| server == id.as_str());
            is_wanted.then(|| entry(id.as_str(), exposed, native, definition)).flatten()
        };
        EntryList { version: catalog.number(), entries: each(&catalog, list, of_source) }
    }

    pub(crate) fn sessions(&self) -> SessionList {
        let mut sessions = self.dispatcher.sessions.all();
        let total = sessions.len();
        sessions.sort_by_cached_key(|session| (session.idle(), Reverse(session.opened)));
        sessions.truncate(MAX_SESSIONS);
        let listed: Vec<_> = sessions.iter().map(|session| info(session)).collect();
        SessionList { total, omitted: total - listed.len(), sessions: listed }
    }
}

/// Returns the entries that `make` accepts, in the order that clients see.
fn each(catalog: &Catalog, list: List, make: impl Fn(usize, &str, &str, &Bytes) -> Option<Entry>) -> Vec<Entry> {
    match list {
        List::Tools => {
            let shown = |entry: &crate::catalog_store::CatalogEntry| definition::for_older(&entry.definition);
            let entries = catalog.tools.entries.iter();
            entries.filter_map(|it| make(it.source, &it.exposed, &it.native, &shown(it))).collect()
        }
        List::Prompts => {
            let entries = catalog.prompts.entries.iter();
            entries.filter_map(|it| make(it.source, &it.exposed, &it.native, &it.definition)).collect()
        }
        List::Resources => {
            let entries = catalog.resources.entries.iter();
            entries.filter_map(|it| make(it.source, &it.exposed, &it.native, &it.definition)).collect()
        }
        List::Templates => {
            let entries = catalog.resources.templates.iter();
            entries.filter_map(|it| make(it.source, &it.exposed, &it.native, &it.definition)).collect()
        }
    }
}

/// Returns an entry. Returns `None` if the definition is not JSON, which the catalog never contains.
fn entry(server: &str, exposed: &str, native: &str, definition: &Bytes) -> Option<Entry> {
    let definition = serde_json::from_slice::<Box<RawValue>>(definition).ok()?;
    Some(Entry { server: server.to_owned(), exposed: exposed.to_owned(), native: native.to_owned(), definition })
}

fn info(session: &Session) -> SessionInfo {
    let introduction = &session.mailbox.introduction;
    SessionInfo {
        id: session.id.short(),
        client: clean(&introduction.name),
        client_version: clean(&introduction.version),
        protocol: session.dialect.as_str().to_owned(),
        profile: session.profile.as_ref().map(|profile| profile.as_str().to_owned()),
        started: iso(session.opened),
        idle_seconds: session.idle().as_secs(),
        streams: session.mailbox.open_streams(),
        in_flight: session.calls.len(),
        subscriptions: session.mailbox.subscriptions.count(),
    }
}
