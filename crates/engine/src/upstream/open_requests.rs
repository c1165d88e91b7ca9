//! The open requests of a link.
//!
//! Links with one stream for all messages (stdio, HTTP+SSE) match responses to requests by id. Over Streamable HTTP a
//! request reads its own response, and its entry only attributes messages that come outside of its stream.
//!
//! A message that names no call goes to the only client with calls in flight on the link. A backend may still work on a
//! cancelled call. Until the backend answers that call or [`LINGER`] has passed, such a message goes to no other
//! client. Without calls in flight, the message goes to the only session that ever sent a call over the link, unless
//! another client has a subscription there. Locks are held only for a lookup.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use goblin_subscriptions::ClientId;
use goblin_telemetry::Event;
use goblin_wire::{Error, Id, MalformedMessage, Method, Notification, Response};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::{Caller, SessionId};
use crate::upstream::inbound::{Attribution, InboundHandler, LinkOwner};
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::listen::ListenEvent;
use crate::upstream::listen_message::{
    acknowledged_filter, cancelled_request, rejection_error, subscription_id, without_subscription_id,
};

/// The time for which a cancelled call prevents attribution to another client.
const LINGER: Duration = Duration::from_secs(5);
/// The number of cancelled calls that are remembered. The oldest is forgotten first.
const MAX_CANCELLED_CALLS: usize = 32;

/// Cancelled calls that the backend may still work on.
#[derive(Default)]
struct CancelledCalls(VecDeque<CancelledCall>);

struct CancelledCall {
    request: u64,
    client: ClientId,
    at: Instant,
}

impl CancelledCalls {
    fn add(&mut self, request: u64, call: &Arc<Call>, now: Instant) {
        if self.0.len() == MAX_CANCELLED_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(CancelledCall { request, client: call.origin, at: now });
    }

    /// Removes a call, because the backend answered it after all.
    fn forget(&mut self, request: u64) {
        self.0.retain(|call| call.request != request);
    }

    /// Turns a clear owner into [`Attribution::Ambiguous`] if a cancelled call of another client is recent.
    fn refine(&self, attribution: Attribution, now: Instant) -> Attribution {
        let Attribution::Calls(calls) = &attribution else { return attribution };
        let Some(sole) = calls.first().map(|call| call.origin) else { return attribution };
        let is_other = |call: &CancelledCall| call.client != sole && now.duration_since(call.at) < LINGER;
        if self.0.iter().any(is_other) { Attribution::Ambiguous } else { attribution }
    }
}

/// The sessions that sent calls over a link.
#[derive(Default)]
enum LinkUsers {
    #[default]
    None,
    One(LinkUser),
    /// Several sessions, or a client without a session. The link then never belongs to one client again.
    Many,
}

struct LinkUser {
    caller: Caller,
    client: Weak<Client>,
    id: SessionId,
}

impl LinkUsers {
    fn add(&mut self, call: &Call) {
        match (&*self, call.caller.session) {
            (LinkUsers::None, Some(id)) => {
                let (caller, client) = (call.caller.clone(), Arc::downgrade(&call.client));
                *self = LinkUsers::One(LinkUser { caller, client, id });
            }
            (LinkUsers::One(user), id) if id == Some(user.id) => {}
            _ => *self = LinkUsers::Many,
        }
    }

    /// Returns the owner of a message that belongs to no open call.
    fn attribution(&self) -> Attribution {
        let LinkUsers::One(user) = self else { return Attribution::None };
        let owner = |client| LinkOwner { caller: user.caller.clone(), client, id: user.id };
        user.client.upgrade().map_or(Attribution::None, |client| Attribution::Client(owner(client)))
    }
}

/// The open requests of a link, and the end of the link.
pub(crate) struct LinkRequests {
    inbound: Arc<InboundHandler>,
    table: Mutex<RequestTable>,
    end: watch::Sender<Option<LinkEnd>>,
}

#[derive(Default)]
struct RequestTable {
    requests: HashMap<u64, OpenRequest>,
    cancelled: CancelledCalls,
    users: LinkUsers,
    closed: bool,
}

struct OpenRequest {
    waiter: Waiter,
    call: Option<Arc<Call>>,
}

/// The receiver of the response to a request.
enum Waiter {
    /// The request reads its response from its own connection.
    Connection,
    Answer(oneshot::Sender<Result<Response, LinkError>>),
    /// A notification stream. The channel has room for two events: the acknowledgement and the end.
    Stream {
        events: mpsc::Sender<ListenEvent>,
        is_acknowledged: bool,
    },
}

impl Waiter {
    /// Passes the response on. The receiver may be dropped at this moment; the response then has no use.
    fn answer(self, answer: Result<Response, LinkError>) {
        match self {
            Waiter::Connection => {}
            Waiter::Answer(sender) => drop(sender.send(answer)),
            Waiter::Stream { events, .. } => drop(events.try_send(match answer {
                Ok(answer) => ListenEvent::Ended(rejection_error(&answer)),
                Err(error) => ListenEvent::Lost(error),
            })),
        }
    }
}

/// The entry of a request and the receiver of its response.
pub(crate) type ExpectedAnswer<'a> = (LinkRequestGuard<'a>, oneshot::Receiver<Result<Response, LinkError>>);

/// The entry of a request. Dropping it removes the entry, and remembers the call as cancelled if it has no response.
pub(crate) struct LinkRequestGuard<'a> {
    open: &'a LinkRequests,
    id: u64,
    is_answered: bool,
}

impl LinkRequestGuard<'_> {
    /// Removes a request that has its response.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for LinkRequestGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.open.table.lock();
        let open = table.requests.remove(&self.id);
        if let Some(call) = open.and_then(|open| open.call).filter(|_| !self.is_answered) {
            table.cancelled.add(self.id, &call, Instant::now());
        }
    }
}

impl LinkRequests {
    pub(crate) fn new(inbound: Arc<InboundHandler>) -> LinkRequests {
        LinkRequests { inbound, table: Mutex::default(), end: watch::Sender::new(None) }
    }

    /// Adds a request that reads its response from its own connection.
    pub(crate) fn add(&self, id: u64, call: &Arc<Call>) -> LinkRequestGuard<'_> {
        let open = OpenRequest { waiter: Waiter::Connection, call: Some(Arc::clone(call)) };
        let mut table = self.table.lock();
        table.users.add(call);
        table.requests.insert(id, open);
        drop(table);
        LinkRequestGuard { open: self, id, is_answered: false }
    }

    /// Adds a request with a response on the stream of the link. Returns an error if the link is closed.
    pub(crate) fn expect_answer(&self, id: u64, call: Option<&Arc<Call>>) -> Result<ExpectedAnswer<'_>, LinkError> {
        let (sender, answered) = oneshot::channel();
        self.insert(id, OpenRequest { waiter: Waiter::Answer(sender), call: call.cloned() })?;
        Ok((LinkRequestGuard { open: self, id, is_answered: false }, answered))
    }

    /// Adds the request of a notification stream. Returns an error if the link is closed.
    pub(crate) fn expect_stream(&self, id: u64) -> Result<mpsc::Receiver<ListenEvent>, LinkError> {
        let (events, receiver) = mpsc::channel(2);
        self.insert(id, OpenRequest { waiter: Waiter::Stream { events, is_acknowledged: false }, call: None })?;
        Ok(receiver)
    }

    fn insert(&self, id: u64, open: OpenRequest) -> Result<(), LinkError> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(self.lost_error(false));
        }
        if let Some(call) = &open.call {
            table.users.add(call);
        }
        table.requests.insert(id, open);
        Ok(())
    }

    /// Removes the request of a stream that the gateway no longer wants.
    pub(crate) fn forget(&self, id: u64) {
        drop(self.take(id));
    }

    fn take(&self, id: u64) -> Option<OpenRequest> {
        self.table.lock().requests.remove(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().requests.is_empty()
    }

    /// Passes a response to the request with its id. Reports a response without a request.
    pub(crate) fn on_response(&self, response: Response) {
        let open = response.id.as_ref().and_then(Id::as_u64).and_then(|id| {
            let mut table = self.table.lock();
            table.cancelled.forget(id);
            table.requests.remove(&id)
        });
        match open {
            Some(open) => open.waiter.answer(Ok(response)),
            None => self.inbound.emit(&Event::AnswerWithoutCall { server: self.inbound.server() }),
        }
    }

    /// Handles a notification. Progress belongs to the call with the token, on any stream. `attribution` returns
    /// the owner of any other notification.
    pub(crate) fn on_notification(&self, notification: &Notification, attribution: impl FnOnce() -> Attribution) {
        if notification.method != Method::Progress {
            return self.inbound.on_notification(notification, attribution);
        }
        let call = |id| self.table.lock().requests.get(&id).and_then(|open| open.call.clone());
        match request_of(notification).and_then(call) {
            Some(call) => self.inbound.on_progress(notification, &call),
            None => self.inbound.emit(&Event::ProgressDropped { server: self.inbound.server() }),
        }
    }

    /// Handles a notification of a stream. Returns `false` if it belongs to none.
    pub(crate) fn on_stream_notification(&self, notification: &Notification) -> bool {
        if notification.method == Method::Cancelled {
            let Some(events) = cancelled_request(notification).and_then(|id| self.remove_stream(id)) else {
                return false;
            };
            let ended = LinkError::Protocol("it ended the stream instead of acknowledging it".to_owned());
            // The receiver may be dropped at this moment.
            let _ = events.try_send(ListenEvent::Ended(ended));
            return true;
        }
        let Some(id) = subscription_id(notification) else { return false };
        if notification.method == Method::Acknowledged {
            if let Some(OpenRequest { waiter: Waiter::Stream { events, is_acknowledged }, .. }) =
                self.table.lock().requests.get_mut(&id)
                && !std::mem::replace(is_acknowledged, true)
            {
                // The receiver may be dropped at this moment.
                let _ = events.try_send(ListenEvent::Acknowledged(acknowledged_filter(notification)));
            }
            return true;
        }
        self.inbound.on_notification(without_subscription_id(notification).as_ref().unwrap_or(notification), || {
            Attribution::None
        });
        true
    }

    fn remove_stream(&self, id: u64) -> Option<mpsc::Sender<ListenEvent>> {
        match self.table.lock().requests.entry(id) {
            Entry::Occupied(open) if matches!(open.get().waiter, Waiter::Stream { .. }) => match open.remove().waiter {
                Waiter::Stream { events, .. } => Some(events),
                Waiter::Connection | Waiter::Answer(_) => None,
            },
            _ => None,
        }
    }

    /// Reports that an oversized message was dropped. Fails the request that it answers, if its id can still be read.
    pub(crate) fn on_too_long(&self, head: &[u8]) {
        self.inbound.emit(&Event::MessageTooLarge { server: self.inbound.server() });
        if let Some(open) = id_in(head).and_then(|id| self.take(id)) {
            open.waiter.answer(Err(LinkError::too_large()));
        }
    }

    /// Reports an invalid message with `reason`. If the message is a response that exceeds a limit, fails its request.
    pub(crate) fn on_malformed(&self, malformed: &MalformedMessage, reason: &str) {
        if let Some(error) = limit_error(malformed)
            && let Some(id) = malformed.id.as_ref().and_then(Id::as_u64)
            && let Some(open) = self.take(id)
        {
            open.waiter.answer(Err(error));
        }
        self.inbound.report_malformed(malformed, reason);
    }

    /// Ends the link, unless it ended earlier. Fails the open requests that wait for a response on its
    /// stream, and rejects new ones of that kind.
    pub(crate) fn close(&self, end: LinkEnd) {
        self.end.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(end);
            is_first
        });
        let failed: Vec<_> = {
            let mut table = self.table.lock();
            table.closed = true;
            // A request with its own connection may still get its response.
            table.requests.extract_if(|_, open| !matches!(open.waiter, Waiter::Connection)).collect()
        };
        let lost = self.lost_error(true);
        for (_, open) in failed {
            open.waiter.answer(Err(lost.clone()));
        }
        self.inbound.close();
    }

    /// Waits until the link ends and returns the reason.
    pub(crate) async fn closed(&self) -> LinkEnd {
        let mut end = self.end.subscribe();
        // Cannot fail: `self` holds the sender.
        let end = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or(LinkEnd::Forgotten)
    }

    /// Returns the end of the link, or `None` while it is open.
    pub(crate) fn end(&self) -> Option<LinkEnd> {
        self.end.borrow().clone()
    }

    /// Returns the error for a request that got no response. `sent` states whether the backend may have received it.
    pub(crate) fn lost_error(&self, sent: bool) -> LinkError {
        let reason = match &*self.end.borrow() {
            Some(LinkEnd::Forgotten) if !sent => return LinkError::SessionLost,
            Some(end) => end.reason(),
            None => "the connection was lost".to_owned(),
        };
        LinkError::Closed { reason, sent }
    }

    /// Determines the owner of a message that names no call.
    pub(crate) fn attribution(&self) -> Attribution {
        let table = self.table.lock();
        let attribution = match Attribution::among(table.requests.values().filter_map(|open| open.call.as_ref())) {
            Attribution::None => table.users.attribution(),
            attribution => return table.cancelled.refine(attribution, Instant::now()),
        };
        drop(table);
        match attribution {
            // The message may belong to the subscription of another client.
            Attribution::Client(user) if !self.inbound.subscriptions.serves_only(user.client.id) => Attribution::None,
            attribution => attribution,
        }
    }
}

/// Returns the request that a progress notification belongs to. The gateway's progress tokens are its request ids.
pub(crate) fn request_of(progress: &Notification) -> Option<u64> {
    progress.params.progress_token.and_then(|at| progress.raw.get(at).parse().ok())
}

/// Reports whether a message with this beginning is a response and not a request or notification.
pub(crate) fn is_answer(head: &[u8]) -> bool {
    let request_at = find(head, "\"method\"").min(find(head, "\"params\""));
    payload(head) < request_at
}

/// Returns the error for a complete response that exceeds a limit.
pub(crate) fn limit_error(malformed: &MalformedMessage) -> Option<LinkError> {
    let Error::LimitExceeded { limit, value } = malformed.error else { return None };
    malformed.is_response.then(|| LinkError::Protocol(format!("its answer is nested too deep: {limit} is {value}")))
}

/// Returns the id of a response from its first bytes. The id must precede the payload, which may contain other ids.
fn id_in(head: &[u8]) -> Option<u64> {
    let at = find(head, "\"id\"");
    if !is_answer(head) || at > payload(head) {
        return None;
    }
    let rest = head.get(at + "\"id\"".len()..)?;
    let rest = std::str::from_utf8(&rest[..rest.len().min(64)]).ok()?.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns the position of the payload of a response.
fn payload(head: &[u8]) -> usize {
    find(head, "\"result\"").min(find(head, "\"error\""))
}

fn find(head: &[u8], member: &str) -> usize {
    memchr::memmem::find(head, member.as_bytes()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use goblin_wire::Dialect;

    use super::*;
    use crate::client::Client;

    fn requests() -> LinkRequests {
        LinkRequests::new(Arc::new(InboundHandler::example()))
    }

    #[test]
    fn p2_a_recently_cancelled_call_of_another_client_prevents_attribution() {
        let open = requests();
        let (one, two) = (Arc::new(Call::example()), Arc::new(Call::example()));
        let is_certain = || matches!(open.attribution(), Attribution::Calls(_));
        let held = open.add(1, &one);
        let answered = open.add(2, &two);
        answered.answered();
        assert!(is_certain());
        drop(open.add(3, &one));
        assert!(is_certain(), "the cancelled call is of the same client");
        drop(open.add(4, &two));
        assert!(!is_certain());
        drop(held);
        assert!(matches!(open.attribution(), Attribution::None));
        let long_ago = Instant::now().checked_sub(LINGER).expect("the machine runs for longer");
        let mut cancelled = CancelledCalls::default();
        for number in 0..99 {
            cancelled.add(number, &two, long_ago);
        }
        assert_eq!(cancelled.0.len(), MAX_CANCELLED_CALLS);
        assert!(matches!(cancelled.refine(Attribution::of(Some(&one)), Instant::now()), Attribution::Calls(_)));
    }

    /// Returns a call of a client that receives server requests only as the result of a call.
    fn stateless_call(client: &Arc<Client>) -> Arc<Call> {
        let Call { mut caller, request, .. } = Call::example();
        caller.dialect = Dialect::NEWEST;
        Arc::new(Call::new(caller, Arc::clone(client), request, None))
    }

    #[test]
    fn p2_a_server_request_is_not_attributed_among_several_modern_calls() {
        let (open, client) = (requests(), Arc::clone(&Call::example().client));
        let (one, two) = (stateless_call(&client), stateless_call(&client));
        let _held = open.add(1, &one);
        assert!(matches!(open.attribution(), Attribution::Calls(_)));
        let other = open.add(2, &two);
        assert!(matches!(open.attribution(), Attribution::Ambiguous), "both calls are of one client");
        drop(other);
        assert!(matches!(open.attribution(), Attribution::Ambiguous), "the other call was just cancelled");
        // A dropped call must not be taken for another.
        for _ in 0..100 {
            let open = requests();
            drop(open.add(1, &stateless_call(&Arc::clone(&Call::example().client))));
            let next = stateless_call(&Arc::clone(&Call::example().client));
            let _held = open.add(2, &next);
            assert!(matches!(open.attribution(), Attribution::Ambiguous));
        }
    }

    #[tokio::test]
    async fn p2_an_answered_call_does_not_prevent_attribution() {
        let open = requests();
        let (one, two) = (Arc::new(Call::example()), Arc::new(Call::example()));
        let is_certain = || matches!(open.attribution(), Attribution::Calls(_));
        let _held = open.expect_answer(1, Some(&one)).expect("the link is open");
        let answer = |id: u64| {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            match goblin_wire::Message::parse(answer.into()) {
                Ok(goblin_wire::Message::Response(answer)) => open.on_response(answer),
                other => panic!("{other:?}"),
            }
        };
        let answered = open.expect_answer(2, Some(&two)).expect("the link is open");
        answer(2);
        drop(answered);
        assert!(is_certain());
        drop(open.expect_answer(3, Some(&two)));
        assert!(!is_certain(), "the backend may still work on the cancelled call");
        answer(3);
        assert!(is_certain(), "the backend answered the cancelled call");
    }

    #[test]
    fn the_id_of_a_dropped_answer_is_read_from_its_beginning() {
        for (head, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":17,\"result\":{"[..], Some(17)),
            (b"{\"id\" : 3,\"error\":{\"data\":{\"method\":1", Some(3)),
            (b"{\"id\":\"x\",\"result\":{", None),
            (b"{\"result\":{", None),
            (b"{\"id\"", None),
            // Ids of other objects.
            (b"{\"result\":{\"id\":17", None),
            (b"{\"jsonrpc\":\"2.0\",\"id\":17,\"method\":\"sampling/createMessage\",\"params\":{\"result\":1", None),
            (b"{\"method\":\"x\",\"params\":{\"id\":17,\"result\":1", None),
        ] {
            assert_eq!(id_in(head), id);
        }
    }
}
