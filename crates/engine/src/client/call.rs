//! One call of one client, and the queue of messages that precede its answer.
//!
//! The task that awaits the answer, the transport that writes to the client and the link to the backend share a
//! [`Call`]. The answer does not pass through it. Progress, log messages and server requests do, through the call's
//! queue. If the queue is full, progress and log messages are dropped and counted, and server requests are rejected.
//! Nothing here waits for room.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use goblin_config::ServerId;
use goblin_subscriptions::ClientId;
use goblin_wire::json::Pieces;
use goblin_wire::{Error, Id, Message, Request};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::Client;
use crate::client::caller::Caller;

/// The limits, in messages and in bytes, of the progress and log messages that wait for a slow client.
const MAX_MESSAGES: usize = 256;
const MAX_BYTES: usize = 1024 * 1024;
/// The number of queued bytes beyond which a server request is rejected. An empty queue accepts any size.
const MAX_SERVER_REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// The duration after which the reader of a call learns that the call is slow.
pub(crate) const SLOW_AFTER: Duration = Duration::from_secs(1);

/// An answer, ready for the client.
#[derive(Debug)]
pub struct Reply {
    pub pieces: Pieces,
    /// The code of an error. Some protocol versions also map it to the HTTP status.
    pub code: Option<i64>,
    /// Whether the answer is an error. An error may have no code above.
    pub is_error: bool,
}

impl From<Pieces> for Reply {
    /// Returns the answer with a result.
    fn from(pieces: Pieces) -> Reply {
        Reply { pieces, code: None, is_error: false }
    }
}

/// An event of a call for its client.
#[derive(Debug)]
pub(crate) enum CallEvent {
    /// Progress or a log message. It may be dropped.
    Message(Bytes),
    /// A request that the client must answer.
    Request(Bytes),
    /// The answer takes long. Each reader of the call learns it once.
    Slow,
    /// The answer. `None` if the call was cancelled.
    Done(Option<Reply>),
}

/// A request of a client that is being processed.
pub struct Call {
    pub caller: Caller,
    pub request: Request,
    /// The header `Mcp-Name` of a request with an unknown method.
    pub name_header: Option<Box<str>>,
    /// The client that made the call.
    pub client: Arc<Client>,
    /// The client to which a message that names no call may belong. In versions without server requests, each call
    /// counts as a client: there the message must go to one call, and nothing decides between two calls.
    pub origin: ClientId,
    /// The server of the call, after the router found it.
    pub server: OnceLock<ServerId>,
    state: Mutex<CallState>,
    /// Wakes the task that awaits the answer, because the call must end.
    end: AtomicWaker,
    /// Wakes the reader of the queue.
    reader: AtomicWaker,
    /// Notified when the call is over.
    over: Notify,
    /// The time, in nanoseconds, that backends spent on the call.
    upstream: AtomicU64,
}

#[derive(Default)]
struct CallState {
    queue: VecDeque<QueuedMessage>,
    queued_bytes: usize,
    /// The reader must learn that the call is slow.
    is_slow: bool,
    ended: Option<AbortReason>,
    clock: Option<CallClock>,
    /// The number of open server requests of the call. While it is above zero, the idle timeout does not apply.
    open_requests: usize,
    /// The client's progress token as JSON. `None` if the client wants no progress.
    token: Option<Bytes>,
    is_over: bool,
}

/// A message that precedes the answer. It takes less room than a [`CallEvent`].
struct QueuedMessage {
    is_request: bool,
    message: Bytes,
}

impl CallState {
    fn try_next(&mut self) -> Option<CallEvent> {
        let QueuedMessage { is_request, message } = self.queue.pop_front()?;
        self.queued_bytes -= message.len();
        Some(if is_request { CallEvent::Request(message) } else { CallEvent::Message(message) })
    }
}

/// The reason why a call must end without its answer. Only the first one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortReason {
    Cancelled(String),
    /// The call reached its timeout after this time.
    TimedOut(Duration),
}

/// The timeouts of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallTimeouts {
    /// The longest time without a sign of life from the backend.
    pub idle: Option<Duration>,
    /// The longest time in total.
    pub total: Option<Duration>,
}

/// The times of a call, from the moment it is sent. [`Call::check_timeouts`] checks them periodically. A timer per call
/// would cost more, since most calls end long before a timeout.
struct CallClock {
    begun: Instant,
    last_activity: Instant,
    timeouts: CallTimeouts,
    is_reported_slow: bool,
}

impl Call {
    pub fn new(caller: Caller, client: Arc<Client>, request: Request, progress_token: Option<Bytes>) -> Call {
        let origin = if caller.dialect.has_server_requests() { client.id } else { ClientId::next() };
        Call {
            caller,
            request,
            name_header: None,
            client,
            origin,
            server: OnceLock::new(),
            state: Mutex::new(CallState { token: progress_token, ..CallState::default() }),
            end: AtomicWaker::new(),
            reader: AtomicWaker::new(),
            over: Notify::new(),
            upstream: AtomicU64::new(0),
        }
    }

    /// Adds the time that a backend took to answer.
    pub(crate) fn count_upstream(&self, took: Duration) {
        self.upstream.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time that backends spent on the call, or `None` if none has answered.
    pub fn upstream(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.upstream.load(Ordering::Relaxed))).filter(|took| !took.is_zero())
    }

    /// Returns an example call for tests.
    #[cfg(test)]
    pub fn example() -> Call {
        Call::example_of(goblin_wire::Dialect::V2025_11_25)
    }

    #[cfg(test)]
    pub fn example_of(dialect: goblin_wire::Dialect) -> Call {
        let caller = Caller {
            session: None,
            principal: crate::client::caller::Principal::Anonymous,
            profile: None,
            dialect,
            level: Some(crate::client::caller::Level::Info),
            client_capabilities: Arc::default(),
            is_gateway: false,
            program: None,
        };
        let client = Arc::new(Client::stateless(Default::default()));
        let request = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
        match goblin_wire::Message::parse(Bytes::from_static(request)) {
            Ok(goblin_wire::Message::Request(request)) => Call::new(caller, client, request, None),
            other => panic!("{other:?}"),
        }
    }

    /// Queues a message that may be dropped. Returns `false` if the queue is full or the call is over.
    pub(crate) fn offer(&self, message: Bytes) -> bool {
        self.push(QueuedMessage { is_request: false, message }, |state, length| {
            state.queue.len() < MAX_MESSAGES && state.queued_bytes + length <= MAX_BYTES
        })
    }

    /// Queues a server request. Returns `false` if the queue is full or the call is over. The client's table of open
    /// requests bounds their number.
    pub(crate) fn queue_request(&self, message: Bytes) -> bool {
        self.push(QueuedMessage { is_request: true, message }, |state, length| {
            state.queue.is_empty() || state.queued_bytes + length <= MAX_SERVER_REQUEST_BYTES
        })
    }

    fn push(&self, queued: QueuedMessage, has_room: impl FnOnce(&CallState, usize) -> bool) -> bool {
        let mut state = self.state.lock();
        if state.is_over || !has_room(&state, queued.message.len()) {
            return false;
        }
        state.queued_bytes += queued.message.len();
        state.queue.push_back(queued);
        drop(state);
        self.reader.wake();
        true
    }

    /// Returns the next queued message.
    pub(crate) fn try_next(&self) -> Option<CallEvent> {
        self.state.lock().try_next()
    }

    /// Waits for the next queued message, or for [`CallEvent::Slow`]. Only one task may read the queue.
    pub(crate) async fn next(&self) -> CallEvent {
        poll_fn(|context| {
            // Register before the check, or a message between the check and the wait is lost.
            self.reader.register(context.waker());
            let mut state = self.state.lock();
            match state.try_next() {
                Some(event) => Poll::Ready(event),
                None if std::mem::take(&mut state.is_slow) => Poll::Ready(CallEvent::Slow),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Wakes the reader once with [`CallEvent::Slow`].
    pub(crate) fn mark_slow(&self) {
        self.state.lock().is_slow = true;
        self.reader.wake();
    }

    /// Rejects a server request with an error to the backend.
    pub(crate) fn reject(&self, request: Option<&Id>, reason: &str) {
        let error = Error::ClientUnavailable { reason: reason.to_owned() };
        let answer = goblin_wire::error_reply(request, &error.to_json()).concat();
        if let Ok(Message::Response(answer)) = Message::parse(answer) {
            self.client.answer(answer);
        }
    }

    /// Ends the call. The task that awaits the answer then frees its slot and cancels it at the backend.
    pub fn cancel(&self, reason: &str) {
        self.end(AbortReason::Cancelled(reason.to_owned()));
    }

    /// Returns the reason why the call must end, or `None` if it may go on.
    pub(crate) fn abort_reason(&self) -> Option<AbortReason> {
        self.state.lock().ended.clone()
    }

    /// Starts the timeouts, because the call is being sent.
    pub(crate) fn start_clock(&self, timeouts: CallTimeouts) -> Instant {
        let now = Instant::now();
        self.state.lock().clock = Some(CallClock { begun: now, last_activity: now, timeouts, is_reported_slow: false });
        now
    }

    /// Returns the time since the call was sent, or `None` if it was not sent yet.
    pub fn age(&self) -> Option<Duration> {
        self.state.lock().clock.as_ref().map(|clock| clock.begun.elapsed())
    }

    /// Restarts the idle timeout. Returns the client's progress token, or `None` if the client wants no progress.
    pub(crate) fn record_activity(&self) -> Option<Bytes> {
        let mut state = self.state.lock();
        if let Some(clock) = &mut state.clock {
            clock.last_activity = Instant::now();
        }
        state.token.clone()
    }

    /// Replaces the progress token, because the client resumed the call with another request. The new reader learns
    /// again if the call is slow.
    pub(crate) fn set_progress_token(&self, token: Option<Bytes>) {
        let mut state = self.state.lock();
        state.token = token;
        if let Some(clock) = &mut state.clock {
            clock.is_reported_slow = false;
        }
    }

    /// Pauses the idle timeout while a server request is open, until
    /// [`resume_idle_timeout`](Call::resume_idle_timeout).
    pub(crate) fn pause_idle_timeout(&self) {
        self.state.lock().open_requests += 1;
    }

    pub(crate) fn resume_idle_timeout(&self) {
        let mut state = self.state.lock();
        state.open_requests -= 1;
        if let Some(clock) = &mut state.clock {
            clock.last_activity = Instant::now();
        }
    }

    /// Marks the call as over, with or without an answer. Its queue then rejects messages.
    pub fn finish(&self) {
        self.state.lock().is_over = true;
        self.over.notify_waiters();
    }

    fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.is_over && state.ended.is_some()
    }

    /// Waits until the call is over and was ended without the backend's answer. Never completes if the backend
    /// answered.
    pub async fn abandoned(&self) {
        loop {
            // Register before the check, or an end between the check and the wait is lost.
            let woken = self.over.notified();
            if self.is_abandoned() {
                return;
            }
            woken.await;
        }
    }

    /// Ends the call if a timeout has passed, and wakes its reader if the call is slow.
    pub(crate) fn check_timeouts(&self, now: Instant) {
        let mut state = self.state.lock();
        let is_held = state.open_requests > 0;
        let Some(clock) = &mut state.clock else { return };
        let over =
            |since: Instant, limit: Option<Duration>| limit.is_some_and(|limit| now.duration_since(since) >= limit);
        let taken = now.duration_since(clock.begun);
        if !is_held && over(clock.last_activity, clock.timeouts.idle) || over(clock.begun, clock.timeouts.total) {
            drop(state);
            return self.end(AbortReason::TimedOut(taken));
        }
        if taken >= SLOW_AFTER && !std::mem::replace(&mut clock.is_reported_slow, true) {
            state.is_slow = true;
            drop(state);
            self.reader.wake();
        }
    }

    fn end(&self, end: AbortReason) {
        self.state.lock().ended.get_or_insert(end);
        self.end.wake();
    }

    /// Waits until the call must end. Only the task that awaits the answer may wait here.
    pub async fn ended(&self) -> AbortReason {
        poll_fn(|context| {
            self.end.register(context.waker());
            self.abort_reason().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_queued_messages_of_a_call_is_limited() {
        let call = Call::example();
        let taken = (0..MAX_MESSAGES + 10).filter(|_| call.offer(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MAX_MESSAGES);
        assert!(call.try_next().is_some());
        assert!(call.offer(Bytes::from_static(b"x")));
    }

    #[test]
    fn the_queued_bytes_of_a_call_are_bounded() {
        let call = Call::example();
        assert!(call.offer(vec![b'x'; MAX_BYTES].into()));
        assert!(!call.offer(Bytes::from_static(b"x")));
    }

    #[test]
    fn a_finished_call_takes_no_message() {
        let call = Call::example();
        call.finish();
        assert!(!call.offer(Bytes::from_static(b"x")));
    }

    fn call(idle: Option<u64>, total: Option<u64>) -> Call {
        let call = Call::example();
        let limit = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        call.start_clock(CallTimeouts { idle: limit(idle), total: limit(total) });
        call
    }

    /// Returns the end of a call that is checked `seconds` after its start.
    fn end_after(call: &Call, seconds: u64) -> Option<AbortReason> {
        let begun = call.state.lock().clock.as_ref().map(|clock| clock.begun).expect("the clock runs");
        call.check_timeouts(begun + Duration::from_secs(seconds));
        call.state.lock().ended.clone()
    }

    #[test]
    fn route3_a_call_times_out_without_activity_or_at_its_total_limit() {
        let timed_out = |seconds| Some(AbortReason::TimedOut(Duration::from_secs(seconds)));
        assert_eq!(end_after(&call(Some(60), None), 59), None);
        assert_eq!(end_after(&call(Some(60), None), 60), timed_out(60));
        assert_eq!(end_after(&call(None, Some(60)), 60), timed_out(60));
        assert_eq!(end_after(&call(None, None), 1_000_000), None);
        let alive = call(Some(60), Some(90));
        if let Some(clock) = &mut alive.state.lock().clock {
            clock.last_activity += Duration::from_secs(50);
        }
        assert_eq!(end_after(&alive, 60), None);
        assert_eq!(end_after(&alive, 90), timed_out(90));
    }

    #[tokio::test]
    async fn route3_the_clock_stops_while_a_server_request_is_open() {
        let held = call(Some(60), Some(600));
        held.pause_idle_timeout();
        held.pause_idle_timeout();
        held.resume_idle_timeout();
        assert_eq!(end_after(&held, 599), None);
        assert_eq!(end_after(&held, 600), Some(AbortReason::TimedOut(Duration::from_secs(600))));
        let released = call(Some(60), None);
        released.pause_idle_timeout();
        released.resume_idle_timeout();
        assert!(end_after(&released, 61).is_some());
        let answered = call(None, None);
        answered.finish();
        assert!(futures_util::FutureExt::now_or_never(answered.abandoned()).is_none());
        assert!(!answered.queue_request(Bytes::from_static(b"x")));
        let cancelled = call(None, None);
        cancelled.cancel("test");
        assert!(futures_util::FutureExt::now_or_never(cancelled.abandoned()).is_none());
        cancelled.finish();
        cancelled.abandoned().await;
    }

    #[test]
    fn a_server_request_has_room_beyond_the_message_limit() {
        let call = Call::example();
        while call.offer(Bytes::from_static(b"x")) {}
        assert!(call.queue_request(Bytes::from_static(b"y")));
        assert!(!call.queue_request(vec![b'y'; MAX_SERVER_REQUEST_BYTES].into()));
        let call = Call::example();
        assert!(call.queue_request(vec![b'y'; MAX_SERVER_REQUEST_BYTES + 1].into()), "an empty queue accepts any size");
        assert!(matches!(call.try_next(), Some(CallEvent::Request(_))));
    }

    #[tokio::test]
    async fn a_call_keeps_its_first_abort_reason() {
        let call = call(Some(1), None);
        call.cancel("first");
        call.cancel("second");
        assert_eq!(end_after(&call, 9), Some(AbortReason::Cancelled("first".to_owned())));
        assert_eq!(call.ended().await, AbortReason::Cancelled("first".to_owned()));
    }

    #[tokio::test]
    async fn a_slow_call_is_reported_once_to_each_reader() {
        let call = call(None, None);
        assert_eq!(end_after(&call, 1), None);
        assert_eq!(end_after(&call, 2), None);
        assert!(matches!(call.next().await, CallEvent::Slow));
        assert!(!call.state.lock().is_slow);
        call.set_progress_token(None);
        assert_eq!(end_after(&call, 3), None);
        assert!(matches!(call.next().await, CallEvent::Slow), "the reader that resumes the call is notified again");
    }
}
