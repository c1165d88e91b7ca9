//! Handles the notifications of a backend that belong to no call, from all of its links.
//!
//! Links call this module from their reading tasks, so no function here waits. This module remembers which client
//! received which URL elicitation, to notify only that client of the end.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use goblin_catalog::known_uris::KnownUris;
use goblin_catalog::resources::ResourceTable;
use goblin_catalog::{content, uri};
use goblin_config::ServerId;
use goblin_telemetry::{Event, Observe};
use goblin_wire::json::{self, Span, Splice};
use goblin_wire::{Dialect, Limit, Notification, Request};
use parking_lot::{Mutex, MutexGuard};

use crate::client::Client;
use crate::upstream::tasks::TaskTable;

/// The number of URL elicitations that are remembered until they end. The oldest is forgotten first.
const MAX_ELICITATIONS: usize = 1000;
/// The longest elicitation id that is remembered, in bytes. Limits the memory of all of them together.
const MAX_ELICITATION_ID: usize = 1024;

/// The URL elicitations that have not ended, at most [`MAX_ELICITATIONS`].
#[derive(Default)]
struct OpenElicitations {
    clients: HashMap<String, Weak<Client>>,
    order: VecDeque<String>,
}

impl OpenElicitations {
    fn insert(&mut self, id: String, client: &Arc<Client>) {
        if id.len() > MAX_ELICITATION_ID {
            return;
        }
        if self.clients.insert(id.clone(), Arc::downgrade(client)).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MAX_ELICITATIONS {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.clients.remove(&oldest));
        }
    }

    /// Removes the elicitation and returns its client, if that client still exists. The id stays in `order` until it
    /// is the oldest.
    fn remove(&mut self, id: &str) -> Option<Arc<Client>> {
        self.clients.remove(id)?.upgrade()
    }
}

/// The names of a server's resources in the published catalog.
pub struct ExposedUris {
    pub table: Arc<ResourceTable>,
    pub source: usize,
    /// The URIs that the server named in results without listing them.
    pub known: Arc<Mutex<KnownUris>>,
}

/// The notifications of one backend that belong to no call.
pub struct BackendEvents {
    server: ServerId,
    observe: Arc<Observe>,
    /// Stored with every catalog. A backend shares this cell with the one it replaces, so that updates of both have the
    /// same names. `None` until a catalog has the server.
    pub uris: Arc<ArcSwapOption<ExposedUris>>,
    /// The tasks of all clients.
    pub tasks: Arc<TaskTable>,
    elicitations: Mutex<OpenElicitations>,
}

impl BackendEvents {
    pub fn new(
        server: ServerId,
        observe: Arc<Observe>,
        uris: Arc<ArcSwapOption<ExposedUris>>,
        tasks: Arc<TaskTable>,
    ) -> BackendEvents {
        BackendEvents { server, observe, uris, tasks, elicitations: Mutex::default() }
    }

    pub(crate) fn id(&self) -> &ServerId {
        &self.server
    }

    pub fn server(&self) -> &str {
        self.server.as_str()
    }

    pub fn observe(&self) -> &Observe {
        &self.observe
    }

    pub fn emit(&self, event: &Event<'_>) {
        self.observe.emit(event);
    }

    /// Remembers the client of a URL elicitation. The user completes it elsewhere, and the backend announces the end
    /// later. Only this client may receive that notification.
    pub(crate) fn remember_elicitation(&self, request: &Request, client: &Arc<Client>) {
        let text = request.raw.as_str();
        let id = request.params.whole.and_then(|params| json::member(text, params, "elicitationId"));
        if let Some(id) = id.and_then(|at| json::string(text, at)) {
            self.elicitations().insert(id.into_owned(), client);
        }
    }

    /// Remembers the URL elicitations that an error response requires before the call can be repeated.
    pub(crate) fn remember_required(&self, text: &str, error: Span, client: &Arc<Client>) {
        const URL_ELICITATION_REQUIRED: &str = "-32042";
        if json::member(text, error, "code").is_none_or(|code| code.get(text) != URL_ELICITATION_REQUIRED) {
            return;
        }
        let data = json::member(text, error, "data");
        let required = data.and_then(|data| json::member(text, data, "elicitations"));
        let required = required.into_iter().flat_map(|required| json::elements(text, required));
        for id in required.filter_map(|elicitation| json::member(text, elicitation, "elicitationId")) {
            if let Some(id) = json::string(text, id) {
                self.elicitations().insert(id.into_owned(), client);
            }
        }
    }

    /// Returns the changes that a server request needs before it goes to a client.
    pub(crate) fn translate_request(&self, request: &Request, dialect: Dialect) -> Splice {
        let Some(params) = request.params.whole else { return Splice::new() };
        content::server_request_edits(dialect, &request.method, request.raw.as_str(), params, |native| {
            self.expose(native)
        })
    }

    /// Returns the exposed URI for a URI that the backend named, and remembers it.
    pub fn expose(&self, native: &str) -> String {
        let uris = self.uris.load();
        let Some(ExposedUris { table, source, known }) = uris.as_deref() else { return self.namespaced(native) };
        self.remember(known, native);
        table.expose(*source, native)
    }

    /// Returns the exposed URI of an unlisted resource without remembering it.
    pub(crate) fn expose_unlisted(&self, native: &str) -> String {
        match self.uris.load().as_deref() {
            Some(uris) => uris.table.expose(uris.source, native),
            None => self.namespaced(native),
        }
    }

    /// Returns the exposed URI of a listed resource.
    pub fn expose_listed(&self, native: &str) -> String {
        match self.uris.load().as_deref() {
            Some(uris) => uris.table.expose_listed(uris.source, native),
            None => self.namespaced(native),
        }
    }

    fn namespaced(&self, native: &str) -> String {
        uri::expose(&self.server.folded(), native)
    }

    pub(crate) fn remember(&self, known: &Mutex<KnownUris>, native: &str) {
        if known.lock().remember(native, uri::normalise) {
            self.observe.limit_hit(Limit::KnownUriBytes);
        }
    }

    /// Forwards the end of a URL elicitation to its client. Reports the notification if the client is unknown or
    /// disconnected.
    pub(crate) fn on_elicitation_complete(&self, notification: &Notification) {
        let text = notification.raw.as_str();
        let id = notification.params.whole.and_then(|params| json::member(text, params, "elicitationId"));
        let client = id.and_then(|at| json::string(text, at)).and_then(|id| self.elicitations().remove(&id));
        let is_delivered =
            client.is_some_and(|client| client.post(json::single_line(notification.raw.bytes().clone())));
        if !is_delivered {
            let event = Event::BackendNotification { server: self.server(), method: notification.method.as_str() };
            self.emit(&event);
        }
    }

    fn elicitations(&self) -> MutexGuard<'_, OpenElicitations> {
        self.elicitations.lock()
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn events() -> BackendEvents {
        BackendEvents::new(ServerId::new("a").expect("a valid id"), Arc::default(), Arc::default(), Arc::default())
    }

    fn elicitation(id: &str) -> Request {
        let params = format!(r#"{{"mode":"url","elicitationId":"{id}"}}"#);
        match Message::parse(
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{params}}}"#).into(),
        ) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn complete(id: &str) -> Notification {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{{"elicitationId":"{id}"}}}}"#
        );
        match Message::parse(text.into()) {
            Ok(Message::Notification(notification)) => notification,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn elicitation_complete_reaches_the_client_of_the_elicitation_once() {
        let events = events();
        let client = || Arc::new(Client::stateless(Default::default()));
        let (one, two) = (client(), client());
        events.remember_elicitation(&elicitation("x"), &one);
        events.remember_elicitation(&elicitation("y"), &two);
        events.on_elicitation_complete(&complete("x"));
        events.on_elicitation_complete(&complete("x"));
        events.on_elicitation_complete(&complete("z"));
        assert!(one.try_next().is_some_and(|message| message.ends_with(br#"{"elicitationId":"x"}}"#)));
        assert!(one.try_next().is_none() && two.try_next().is_none());
    }

    #[test]
    fn the_number_of_remembered_elicitations_is_limited() {
        let events = events();
        let client = Arc::new(Client::stateless(Default::default()));
        for number in 0..=MAX_ELICITATIONS {
            events.remember_elicitation(&elicitation(&number.to_string()), &client);
        }
        events.on_elicitation_complete(&complete("0"));
        assert!(client.try_next().is_none());
        events.on_elicitation_complete(&complete("1"));
        assert!(client.try_next().is_some());
        assert!(events.elicitations().order.len() <= MAX_ELICITATIONS);
        let long = "x".repeat(MAX_ELICITATION_ID + 1);
        events.remember_elicitation(&elicitation(&long), &client);
        events.on_elicitation_complete(&complete(&long));
        assert!(client.try_next().is_none());
    }
}
