//! One ask on its way: from the backend to the client and back.
//!
//! It goes on the stream of the call it belongs to, or on the session's. It ends with the client's answer; when the backend
//! takes it back or its link is over; when its call is cancelled or late; when the client is gone; or when the client has
//! not answered in time. Who did not end it is told. A backend that answers its call without waiting for what it asked still
//! gets that. While an ask is open the clock of its call stands still.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::upstream::ear::{Ear, Mouth, Opened};
use crate::client::caller::{Abilities, SessionId};
use goblin_config::ServerId;
use crate::client::lane::Call;
use crate::client::mailbox::Mailbox;
use crate::client::mailbox::asks::{Ask, MOST_ASKS, Refused, Word};
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::method::Method;
use goblin_wire::{Id, Notification, Request};
use goblin_telemetry::worker;

/// Knows the names under which clients know what backends name.
pub trait Translate: Send + Sync {
    /// What must change in an ask of `server` on its way to a client.
    fn ask(&self, server: &ServerId, ask: &Request, dialect: Dialect) -> Splice;

    /// A URI of `server` as clients know it.
    fn expose(&self, server: &ServerId, native: &str) -> String;

    /// Returns the exposed URI of a resource that `server` lists.
    fn expose_listed(&self, server: &ServerId, native: &str) -> String;

    /// The id that the client of a task knows it by. `own` is whose own link it is.
    fn task_id(&self, server: &ServerId, own: Option<SessionId>, native: &str) -> Option<String>;

    /// The same the other way round.
    fn native_task(&self, server: &ServerId, id: &str) -> Option<String>;

    /// `server` tells of a task; tells whether somebody wanted to know.
    fn hear_task(&self, server: &ServerId, own: Option<SessionId>, notification: &Notification) -> bool;
}

/// Changes nothing; for tests.
#[cfg(test)]
impl Translate for () {
    fn ask(&self, _: &ServerId, _: &Request, _: Dialect) -> Splice {
        Splice::new()
    }

    fn expose(&self, _: &ServerId, native: &str) -> String {
        native.to_owned()
    }

    fn expose_listed(&self, _: &ServerId, native: &str) -> String {
        native.to_owned()
    }

    fn task_id(&self, _: &ServerId, _: Option<SessionId>, native: &str) -> Option<String> {
        Some(native.to_owned())
    }

    fn native_task(&self, _: &ServerId, id: &str) -> Option<String> {
        Some(id.to_owned())
    }

    fn hear_task(&self, _: &ServerId, _: Option<SessionId>, _: &Notification) -> bool {
        false
    }
}

/// Who is asked.
pub struct Recipient {
    pub mailbox: Arc<Mailbox>,
    pub abilities: Arc<Abilities>,
    pub dialect: Dialect,
    /// Its calls on the link, to any of which the ask may belong.
    pub calls: SmallVec<[Arc<Call>; 2]>,
    /// The link is this client's own.
    pub is_own: bool,
}

/// How an ask ended without an answer.
enum Ended {
    /// By the backend, or with its link: it does not wait any more.
    Withdrawn(String),
    /// With its call. The backend was told of that; but where it asks on its own it waits.
    Abandoned,
    Late,
    Gone,
}

impl Recipient {
    /// On the stream of a call, or else of the session; tells whether it was taken.
    pub fn ask(&self, message: &Bytes) -> bool {
        self.calls.iter().any(|call| call.lane.ask(message.clone()))
            || self.mailbox.has_stream() && self.mailbox.post(message.clone())
    }

    pub fn tell_cancelled(&self, id: u64, reason: &str) {
        if !self.dialect.has_asks() {
            // It was told what is asked as the answer to a request; nothing else can be said about that.
            return;
        }
        let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, quote(reason));
        let message = goblin_wire::notification(&Method::Cancelled, Some(&params));
        let told = self.calls.iter().any(|call| call.lane.offer(message.clone()));
        if !told {
            // A client that has no room for it finds out when its answer is dropped.
            self.mailbox.post(message);
        }
    }

    /// Waits until every call that the ask may belong to was cancelled or late; for ever where one has its answer, or where
    /// there are none.
    async fn abandoned(&self) {
        for call in &self.calls {
            call.abandoned().await;
        }
        if self.calls.is_empty() {
            std::future::pending().await
        }
    }
}

/// Holds the clocks of the calls that an ask may belong to.
struct Held<'a>(&'a [Arc<Call>]);

impl<'a> Held<'a> {
    fn new(calls: &'a [Arc<Call>]) -> Held<'a> {
        calls.iter().for_each(|call| call.hold_clock());
        Held(calls)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|call| call.release_clock());
    }
}

/// Relays an ask that the link has opened under the backend's id.
pub fn relay(ear: &Arc<Ear>, request: Request, recipient: Recipient, mut opened: Opened, mouth: Arc<dyn Mouth>) {
    let ask = match recipient.mailbox.asks.open() {
        Ok(ask) => ask,
        Err(refused) => {
            let error = match refused {
                Refused::Full => Error::LimitExceeded { limit: "asks", value: MOST_ASKS },
                Refused::Closed => gone(),
            };
            return ear.refuse(&request, &error, &*mouth);
        }
    };
    // Its end is told to those who have a stream for that.
    if request.method == Method::Elicit && !recipient.is_own && recipient.dialect.has_asks() {
        ear.inbox.remember_elicited(&request, &recipient.mailbox);
    }
    // Before anything else is heard on the link, so that the order stays.
    let mut edits = ear.inbox.translate_ask(&request, recipient.dialect);
    ear.relate(request.raw.as_str(), request.params.whole, &mut edits);
    if !recipient.ask(&outgoing(&request, ask.id, edits)) {
        return ear.refuse(&request, &gone(), &*mouth);
    }
    let ear = Arc::clone(ear);
    worker::spawn(async move {
        let ended = wait(&ear, &request, &recipient, ask, &mut opened.withdrawn, &*mouth).await;
        ear.leave(&request.id);
        if let Some(answer) = answer_to(&request, ended, &ear) {
            mouth.answer(answer).await;
        }
        // Its place is free only now, so that answers on their way are bounded too.
        drop(opened);
    });
}

/// What the backend is told; nothing where it does not wait.
fn answer_to(request: &Request, ended: Result<Bytes, Ended>, ear: &Ear) -> Option<Bytes> {
    let error = match ended {
        Ok(answer) => return Some(answer),
        Err(Ended::Withdrawn(_)) => return None,
        Err(Ended::Abandoned) => Error::ClientUnavailable { reason: "its call was cancelled".to_owned() },
        Err(Ended::Late) => {
            Error::Unanswered { method: request.method.to_string(), after: ear.patience.unwrap_or_default() }
        }
        Err(Ended::Gone) => gone(),
    };
    Some(ear.refusal(request, &error))
}

/// The ask as the client sees it: under our id, and with our progress token where it has one.
fn outgoing(request: &Request, id: u64, mut edits: Splice) -> Bytes {
    let id = Id::from(id);
    if let Some(at) = request.params.said.progress_token {
        edits.replace(at, id.token());
    }
    json::single_line(request.rekeyed(&id, edits))
}

async fn wait(
    ear: &Ear,
    request: &Request,
    recipient: &Recipient,
    mut ask: Ask,
    withdrawn: &mut oneshot::Receiver<String>,
    mouth: &dyn Mouth,
) -> Result<Bytes, Ended> {
    let _held = Held::new(&recipient.calls);
    let late = async {
        match ear.patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(late);
    let ended = loop {
        tokio::select! {
            biased;
            word = ask.next() => match word {
                Word::Answer(answer) => {
                    let edits = ear.unrelate(answer.raw.as_str(), answer.outcome.span());
                    return Ok(answer.rekeyed(&request.id_as_written(), edits).concat());
                }
                Word::Progress(progress) => mouth.say(progress_for(request, &progress)),
                Word::Nothing => break Ended::Gone,
            },
            reason = &mut *withdrawn => {
                break Ended::Withdrawn(reason.unwrap_or_else(|_| "the connection to the server is over".to_owned()));
            }
            () = recipient.abandoned() => break Ended::Abandoned,
            () = &mut late => break Ended::Late,
        }
    };
    match &ended {
        Ended::Withdrawn(reason) => recipient.tell_cancelled(ask.id, reason),
        Ended::Abandoned => recipient.tell_cancelled(ask.id, "its call was cancelled"),
        Ended::Late => recipient.tell_cancelled(ask.id, "the gateway's time-out"),
        Ended::Gone => {}
    }
    Err(ended)
}

/// The client's progress under the backend's token. A client that was given no token cannot have used it.
fn progress_for(request: &Request, progress: &Notification) -> Bytes {
    let token = request.params.said.progress_token;
    let mut edits = Splice::new();
    if let (Some(at), Some(token)) = (progress.params.progress_token, token) {
        edits.replace(at, token.slice(request.raw.bytes()));
    }
    edits.apply(progress.raw.bytes())
}

fn gone() -> Error {
    Error::ClientUnavailable { reason: "it is gone, or has no open stream to be asked on".to_owned() }
}
