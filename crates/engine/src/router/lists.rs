//! Answers list requests, and brings lists up to date before a list or a lookup (D20, D21).
//!
//! A list is served from the catalog. It waits for a backend in three cases only: the gateway has just started, the
//! client's own link has not fetched its first lists, or the backend cannot announce changes and its lists may be
//! outdated. These waits are short, and the client then gets the lists that are known.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use goblin_catalog::listing::List;
use goblin_catalog::name::safe;
use goblin_config::{NamePolicy, Namespacing, UriPolicy};
use goblin_telemetry::Event;
use goblin_wire::json::{self, Pieces};
use goblin_wire::{Error, Method, Request};

use crate::catalog_store::{Catalog, Source};
use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::Caller;
use crate::router::Router;
use crate::upstream::Backend;
use crate::upstream::links::ListenerGuard;
use crate::upstream::refresh::{MAX_CLIENT_WAIT, RefreshReason};

/// The longest wait for the first lists of a client's own links.
const OWN_LISTS_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the list that a method requests.
pub(crate) fn requested_list(method: &Method) -> Option<List> {
    List::ALL.into_iter().find(|list| list.method() == *method)
}

impl Router {
    /// Returns one page of a list as the answer to `request`.
    /// Adds to a list of tools those that a meta tool described to `client`.
    pub(crate) fn list(
        &self,
        client: Option<&Client>,
        caller: &Caller,
        request: &Request,
        list: List,
    ) -> Result<Pieces, Error> {
        let text = request.raw.as_str();
        let cursor = match request.params.cursor.filter(|at| at.get(text) != "null") {
            Some(at) => Some(json::string(text, at).ok_or(Error::InvalidCursor)?),
            None => None,
        };
        let page = self.catalogs.page(caller, list, cursor.as_deref())?;
        let revealed = client.filter(|_| list == List::Tools).map(Client::revealed).unwrap_or_default();
        let page = match revealed.is_empty() {
            true => page,
            false => self.catalogs.catalog_of(caller).view_for(caller.viewer()).with_revealed(page, &revealed),
        };
        Ok(goblin_wire::reply(&request.id, page))
    }

    /// Reports whether the answer to a list request needs no wait. Only the first page of a list waits.
    pub(crate) fn is_list_ready(&self, caller: &Caller, request: &Request) -> bool {
        let text = request.raw.as_str();
        let has_cursor = request.params.cursor.is_some_and(|at| at.get(text) != "null");
        has_cursor || !self.waits_for_start(caller) && self.has_own_lists(caller) && !self.request_refreshes(caller)
    }

    /// Reports whether a list for this client waits for servers that start.
    fn waits_for_start(&self, caller: &Caller) -> bool {
        self.catalogs.is_starting() && !caller.is_gateway
    }

    /// Requests a refresh of all lists that may be outdated. Returns `false` if there are none to wait for.
    fn request_refreshes(&self, caller: &Caller) -> bool {
        let catalog = self.catalogs.catalog_of(caller);
        let requests = |backend: &Backend| match backend.is_per_client() {
            false => backend.lists().request_refresh(RefreshReason::List).is_some(),
            true => backend.lists_of(caller).request_refresh(RefreshReason::List).is_some(),
        };
        catalog.sources.iter().filter(|source| requests(&source.backend)).count() > 0
    }

    /// Reports whether the catalog contains the lists of all links that belong to the client alone.
    fn has_own_lists(&self, caller: &Caller) -> bool {
        if !self.catalogs.has_client_links() {
            return true;
        }
        let catalog = self.catalogs.catalog_of(caller);
        let has_lists = |backend: &Backend| {
            let listing = backend.own_listing(caller).filter(|_| backend.has_own_link(caller));
            listing.is_some_and(|listing| self.catalogs.contains_own(caller, &listing))
        };
        catalog.sources.iter().filter(|source| source.backend.is_per_client()).all(|source| has_lists(&source.backend))
    }

    /// Answers a list request that may have to wait.
    pub(super) async fn answer_list(&self, call: &Arc<Call>, list: List) -> Result<Pieces, Error> {
        self.prepare_lists(call).await;
        self.list(Some(&call.client), &call.caller, &call.request, list)
    }

    /// Brings the lists of a client up to date, as far as that is possible in a short time.
    pub(crate) async fn prepare_lists(&self, call: &Arc<Call>) {
        if self.waits_for_start(&call.caller) {
            // The client's own links are known only from the first catalog.
            self.catalogs.opened().await;
            tokio::join!(self.catalogs.started(call.caller.profile.as_ref()), self.prepare_own(call));
        } else {
            self.prepare_own(call).await;
        }
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        let backends: Vec<_> = catalog.sources.iter().map(|source| &source.backend).collect();
        self.refresh(&call.caller, RefreshReason::List, &backends).await;
    }

    /// Connects the client's own links and waits for their first lists, at most [`OWN_LISTS_TIMEOUT`].
    async fn prepare_own(&self, call: &Arc<Call>) {
        if !self.catalogs.has_client_links() {
            return;
        }
        self.catalogs.add_own(&call.caller, &call.client);
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        // Above the limit of clients there is no slot, and the lists of the shared link serve.
        let lists: Vec<_> = catalog.sources.iter().filter_map(|source| source.backend.connect_own(call)).collect();
        let fetched = async {
            for lists in &lists {
                lists.settled().await;
            }
            self.caught_up(&call.caller).await;
        };
        self.wait_at_most(OWN_LISTS_TIMEOUT, fetched).await;
    }

    /// Keeps the client's own links connected for a notification stream, and gives the client its own catalog.
    pub(crate) fn hold_own_links(&self, call: &Arc<Call>) -> Vec<ListenerGuard> {
        if !self.catalogs.has_client_links() {
            return Vec::new();
        }
        self.catalogs.add_own(&call.caller, &call.client);
        let catalog = self.catalogs.catalog_of(&call.caller);
        catalog.sources.iter().filter_map(|source| source.backend.hold_own(call)).collect()
    }

    /// Waits until the client's catalog contains the last listings of all backends: those of its own links, and those of
    /// the shared links.
    async fn caught_up(&self, caller: &Caller) {
        let mut versions = self.catalogs.watch_of(caller);
        let is_current = |source: &Source| match source.backend.is_per_client() {
            true => {
                let own = source.backend.own_listing(caller);
                own.is_none_or(|listing| self.catalogs.contains_own(caller, &listing))
            }
            false => Arc::ptr_eq(&source.listing, &source.backend.listing()),
        };
        loop {
            let catalog = Arc::clone(&self.catalogs.catalog_of(caller));
            if catalog.sources.iter().all(is_current) || versions.changed().await.is_err() {
                return;
            }
        }
    }

    /// Refreshes the lists of `backends` that may be outdated, and waits until the catalog contains them, at most
    /// [`MAX_CLIENT_WAIT`].
    async fn refresh(&self, caller: &Caller, reason: RefreshReason, backends: &[&Arc<Backend>]) {
        let request = |backend: &&Arc<Backend>| {
            let lists = backend.lists_of(caller);
            let refresh = lists.request_refresh(reason)?;
            Some(async move { lists.await_refresh(refresh).await })
        };
        let refreshes: Vec<_> = backends.iter().filter_map(request).collect();
        if refreshes.is_empty() {
            return;
        }
        let refreshed = async {
            join_all(refreshes).await;
            self.caught_up(caller).await;
        };
        self.wait_at_most(MAX_CLIENT_WAIT, refreshed).await;
    }

    /// Waits for newer lists. The client gets those that are known if the time is over.
    async fn wait_at_most(&self, limit: Duration, lists: impl Future<Output = ()>) {
        if tokio::time::timeout(limit, lists).await.is_err() {
            self.observe.emit(&Event::ListsOutdated { waited: limit });
        }
    }

    /// Brings the lists up to date that may have a missing entry: those of the servers that its name allows. Never
    /// sends the client's request itself.
    pub(super) async fn refresh_missing(&self, call: &Arc<Call>, missing: &Error) {
        if self.catalogs.is_starting() {
            self.catalogs.opened().await;
            let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
            Box::pin(self.catalogs.settled(named_servers(&catalog, missing))).await;
        }
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        let named: Vec<_> = named_servers(&catalog, missing).collect();
        if named.iter().any(|backend| backend.is_per_client()) {
            Box::pin(self.prepare_own(call)).await;
        }
        self.refresh(&call.caller, RefreshReason::Miss, &named).await;
    }
}

/// Returns the servers that may have an entry that was not found.
fn named_servers<'a>(catalog: &'a Catalog, missing: &'a Error) -> impl Iterator<Item = &'a Arc<Backend>> {
    let owner = match missing {
        Error::ResourceNotFound { uri, .. } => catalog.resources.named_server(uri),
        _ => None,
    };
    let is_named = move |(index, backend): &(usize, &Arc<Backend>)| match missing {
        Error::ToolNotFound { name, .. } => {
            let config = &backend.config;
            config.tools.rename.values().any(|alias| alias == name)
                || allows(config.namespacing.tools, &config.prefix, &config.namespacing, name)
        }
        Error::PromptNotFound { name, .. } => {
            let config = &backend.config;
            config.prompts.rename.values().any(|alias| alias == name)
                || allows(config.namespacing.prompts, &config.prefix, &config.namespacing, name)
        }
        Error::ResourceNotFound { .. } => match owner {
            Some(owner) => owner == *index,
            None => backend.config.namespacing.resources != UriPolicy::Uri,
        },
        _ => false,
    };
    catalog.sources.iter().map(|source| &source.backend).enumerate().filter(is_named).map(|(_, backend)| backend)
}

/// Reports whether a server may expose an entry under this name.
fn allows(policy: NamePolicy, prefix: &str, namespacing: &Namespacing, name: &str) -> bool {
    let (prefix, separator) = (safe(prefix), safe(&namespacing.separator));
    let is_own = |rest: &str| rest.starts_with(&separator) || namespacing.shorten && rest.is_empty();
    policy == NamePolicy::None || prefix.is_empty() || name.strip_prefix(&prefix).is_some_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d20_a_name_allows_the_servers_with_its_prefix() {
        let namespacing = Namespacing::default();
        let prefixed = |prefix, name| allows(NamePolicy::Prefix, prefix, &namespacing, name);
        assert!(prefixed("a", "a_tool") && prefixed("a_b", "a_b_c") && prefixed("a", "a_b_c"));
        assert!(!prefixed("a", "b_tool") && !prefixed("a", "ab_tool") && !prefixed("a", "tool"));
        assert!(prefixed("", "anything"), "a server without a prefix");
        assert!(prefixed("a", "a"), "a tool with the name of its server");
        assert!(prefixed("my.server", "my_server_x"), "an exposed name has safe characters only");
        assert!(allows(NamePolicy::None, "a", &namespacing, "anything"));
    }
}
