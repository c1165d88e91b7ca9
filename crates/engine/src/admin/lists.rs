//! Lists the catalog's entries, the sessions and the clients without a session for the admin API.

use std::cmp::Reverse;

use bytes::Bytes;
use goblin_admin::api::{Entry, EntryList, SessionInfo, SessionList};
use goblin_catalog::definition;
use goblin_catalog::indexes::VisibleEntry;
use goblin_catalog::listing::List;
use goblin_telemetry::clean;
use goblin_wire::Dialect;
use serde_json::value::RawValue;

use crate::admin::Admin;
use crate::admin::status::iso;
use crate::client::Client;
use crate::client::stateless_clients::ClientUse;

/// The maximum number of listed sessions. The response also has the total number.
pub(crate) const MAX_SESSIONS: usize = 1000;

impl Admin {
    /// Returns the entries of all servers, or of one server.
    pub(crate) fn entries(&self, list: List, server: Option<&str>) -> EntryList {
        let catalog = self.dispatcher.router.catalogs.catalog();
        let wanted = catalog.entries(list).filter(|entry| server.is_none_or(|server| server == entry.server));
        EntryList { version: catalog.number(), entries: wanted.filter_map(|shown| entry(list, shown)).collect() }
    }

    pub(crate) fn sessions(&self) -> SessionList {
        let mut sessions = self.dispatcher.sessions.all();
        let total = sessions.len();
        sessions.sort_by_cached_key(|session| (session.idle(), Reverse(session.opened())));
        sessions.truncate(MAX_SESSIONS);
        let mut listed: Vec<_> = sessions.iter().map(|session| (session.idle(), info(session))).collect();
        let omitted = total - listed.len();
        let stateless = self.dispatcher.sessions.stateless_clients.all();
        listed.extend(stateless.iter().map(|client| (client.idle, stateless_info(client))));
        // The sort is stable, so sessions that are equally idle keep their order.
        listed.sort_by_key(|(idle, _)| *idle);
        let sessions = listed.into_iter().map(|(_, info)| info).collect();
        SessionList { total, omitted, stateless: stateless.len(), sessions }
    }
}

/// Returns an entry. Returns `None` if the definition is not JSON, which the catalog never contains.
fn entry(list: List, shown: VisibleEntry<'_>) -> Option<Entry> {
    let VisibleEntry { server, exposed, native, definition, identifier } = shown;
    let mut definition = Bytes::copy_from_slice(definition.as_bytes());
    if list == List::Tools {
        definition = definition::for_older(&definition);
    }
    let definition = serde_json::from_slice::<Box<RawValue>>(&definition).ok()?;
    Some(Entry {
        server: server.to_owned(),
        exposed: exposed.to_owned(),
        native: native.to_owned(),
        id: identifier.map(str::to_owned),
        definition,
    })
}

fn info(session: &Client) -> SessionInfo {
    let introduction = &session.introduction;
    SessionInfo {
        id: session.session_name(),
        stateless: false,
        requests: session.requests(),
        client: clean(&introduction.name),
        client_version: clean(&introduction.version),
        protocol: session.dialect.as_str().to_owned(),
        profile: session.profile.as_ref().map(|profile| profile.as_str().to_owned()),
        started: iso(session.opened()),
        idle_seconds: session.idle().as_secs(),
        streams: session.open_streams(),
        in_flight: session.calls.len(),
        subscriptions: session.subscriptions.count(),
    }
}

fn stateless_info(client: &ClientUse) -> SessionInfo {
    SessionInfo {
        id: String::new(),
        stateless: true,
        requests: client.requests,
        client: clean(&client.name),
        client_version: clean(&client.version),
        protocol: Dialect::NEWEST.as_str().to_owned(),
        profile: None,
        started: iso(client.first_seen),
        idle_seconds: client.idle.as_secs(),
        streams: client.streams,
        in_flight: client.open_calls,
        subscriptions: client.subscriptions,
    }
}
