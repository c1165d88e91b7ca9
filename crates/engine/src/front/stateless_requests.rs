//! The open requests without a session of one client on a pipe.
//!
//! HTTP clients need no such table, since closing the connection cancels a request there.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use goblin_config::exposure::ProfileName;
use goblin_wire::json::Pieces;
use goblin_wire::params::cancelled;
use goblin_wire::{Error, Id, Notification, Request};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::front::stateless::StatelessCall;
use crate::session::dispatcher::{CANCELLED, Dispatcher};
use crate::session::listening::ListenSubscription;
use crate::session::stateless::{StatelessClient, StatelessOutcome, check_meta, check_version};

/// The open requests of one client, by the client's ids.
pub(crate) struct StatelessRequests {
    dispatcher: Arc<Dispatcher>,
    profile: Option<ProfileName>,
    guest: OnceLock<StatelessClient>,
    open: Arc<Mutex<OpenRequestTable>>,
}

#[derive(Default)]
struct OpenRequestTable {
    open: HashMap<Id, OpenRequest>,
    last: u64,
}

struct OpenRequest {
    /// Distinguishes the request from an earlier one with the same id, since the id of a cancelled request can be
    /// reused.
    number: u64,
    /// Cancels the request when a reason is sent.
    cancel: oneshot::Sender<String>,
    listens: bool,
}

/// A guard for an open request. Dropping it frees the request's id.
pub(crate) struct RequestGuard {
    book: Arc<Mutex<OpenRequestTable>>,
    id: Id,
    number: u64,
    /// Resolves with a reason if the client cancels the request. Resolves with an error if the client is gone.
    pub cancelled: oneshot::Receiver<String>,
}

/// The outcome of beginning a request.
pub(crate) enum GuardedOutcome {
    Answer(Pieces),
    Visit(StatelessCall, RequestGuard),
    Listening(ListenSubscription, RequestGuard),
}

impl StatelessRequests {
    pub(crate) fn new(dispatcher: &Arc<Dispatcher>, profile: Option<ProfileName>) -> StatelessRequests {
        StatelessRequests { dispatcher: Arc::clone(dispatcher), profile, guest: OnceLock::new(), open: Arc::default() }
    }

    /// Begins a request. The answer is an error if the id is in use or too many requests are open.
    pub(crate) fn greet(&self, request: Request) -> GuardedOutcome {
        let id = request.id.clone();
        let refused = |error: Error| GuardedOutcome::Answer(goblin_wire::error_reply(Some(&id), &error.to_json()));
        let guest = self.guest.get_or_init(|| StatelessClient::known(&self.dispatcher, self.profile.clone()));
        let leash = match self.enter(&request) {
            Ok(leash) => leash,
            Err(error) => return refused(error),
        };
        match self.dispatcher.visit(guest, request) {
            Ok(StatelessOutcome::Ready(answer)) => GuardedOutcome::Answer(answer),
            Ok(StatelessOutcome::Replied(reply)) => GuardedOutcome::Answer(reply.pieces),
            Ok(StatelessOutcome::Pending(pending)) => {
                GuardedOutcome::Visit(StatelessCall::new(&self.dispatcher, id, pending), leash)
            }
            Ok(StatelessOutcome::Listening(listening)) => {
                if let Some(open) = self.open.lock().open.get_mut(&id) {
                    open.listens = true;
                }
                GuardedOutcome::Listening(listening, leash)
            }
            Err(error) => refused(error),
        }
    }

    fn enter(&self, request: &Request) -> Result<RequestGuard, Error> {
        check_meta(request)?;
        check_version(request)?;
        let (cancel, cancelled) = oneshot::channel();
        let mut book = self.open.lock();
        if book.open.contains_key(&request.id) {
            return Err(Error::InvalidRequest(format!("a request with the id {} is in flight", request.id)));
        }
        let most = self.dispatcher.most_in_flight();
        if book.open.len() >= most {
            return Err(Error::LimitExceeded { limit: "maxInFlight", value: most });
        }
        book.last += 1;
        let number = book.last;
        book.open.insert(request.id.clone(), OpenRequest { number, cancel, listens: false });
        Ok(RequestGuard { book: Arc::clone(&self.open), id: request.id.clone(), number, cancelled })
    }

    /// Cancels the request that a notification names. Returns `false` if it is not in this table.
    pub(crate) fn hear_cancelled(&self, notification: &Notification) -> bool {
        let Some((id, reason)) = cancelled(notification, CANCELLED) else { return false };
        let Some(open) = self.open.lock().open.remove(&id) else { return false };
        // The receiver is gone if the request has just ended.
        let _ = open.cancel.send(reason.into_owned());
        true
    }

    /// Ends all `subscriptions/listen` streams. Their tasks then send the answers.
    pub(crate) fn end_listening(&self) {
        self.open.lock().open.retain(|_, open| !open.listens);
    }

    /// Ends all requests and closes the mailbox, because the client is gone.
    pub(crate) fn end(&self) {
        self.open.lock().open.clear();
        if let Some(StatelessClient::Known { mailbox, .. }) = self.guest.get() {
            mailbox.close();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut book = self.book.lock();
        if book.open.get(&self.id).is_some_and(|open| open.number == self.number) {
            book.open.remove(&self.id);
        }
    }
}
