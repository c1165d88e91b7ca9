//! Calls that wait for their answer, and the table of a client's open requests.
//!
//! A transport polls a [`PendingCall`] for events until the answer. It does not depend on its transport, and dropping
//! it follows its [`OnDrop`] policy. Each request is in a table of [`OpenCalls`] from its admission to its answer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::{Error, Id, Message};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::client::call::{Call, CallEvent, Reply};
use crate::client::caller::SessionId;
use crate::client::replay::ReplayEventKind;

/// The effect of dropping a call before its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OnDrop {
    /// A task finishes the call, because a lost connection is no cancellation. Holds the number of the call's stream in
    /// the replay buffer, after it has begun. The client can resume that stream.
    Detach(Option<u64>),
    /// The call is cancelled.
    Cancel,
}

/// A call that waits for its answer.
pub struct PendingCall {
    pub call: Arc<Call>,
    /// The id of the request that resumed the call. `None` means the request that began it.
    resumed_by: Option<Id>,
    /// The answer. `None` after it has arrived, or if the call is suspended.
    answer: Option<BoxFuture<'static, Option<Reply>>>,
    /// The events to return first. The answer may be the last of them.
    held: VecDeque<CallEvent>,
    on_drop: OnDrop,
    observe: Arc<Observe>,
}

impl PendingCall {
    pub(crate) fn new(
        call: Arc<Call>,
        answer: BoxFuture<'static, Option<Reply>>,
        on_drop: OnDrop,
        observe: &Arc<Observe>,
    ) -> PendingCall {
        let (answer, observe) = (Some(answer), Arc::clone(observe));
        PendingCall { call, resumed_by: None, answer, held: VecDeque::new(), on_drop, observe }
    }

    /// Returns the id of the request to answer: the one that began the call, or the one that resumed it.
    pub(crate) fn id(&self) -> &Id {
        self.resumed_by.as_ref().unwrap_or(&self.call.request.id)
    }

    /// Reports whether [`CallEvent::Done`] was returned.
    pub(crate) fn is_over(&self) -> bool {
        self.answer.is_none() && self.held.is_empty()
    }

    /// Waits for the next event. Messages come first, so that they reach the client before the answer. It is
    /// cancel-safe.
    pub(crate) async fn next(&mut self) -> CallEvent {
        if let Some(event) = self.held.pop_front() {
            return self.readdress(event);
        }
        let Some(answer) = &mut self.answer else { return CallEvent::Done(None) };
        tokio::select! {
            biased;
            event = self.call.next() => event,
            reply = answer => {
                self.answer = None;
                let done = CallEvent::Done(reply);
                // Messages may have arrived together with the answer. The queue accepts no more of them.
                let Some(message) = self.call.try_next() else { return self.readdress(done) };
                self.held.extend(std::iter::from_fn(|| self.call.try_next()));
                self.held.push_back(done);
                message
            }
        }
    }

    /// Returns an answer under the id of the request that resumed the call.
    fn readdress(&self, event: CallEvent) -> CallEvent {
        match (event, &self.resumed_by) {
            (CallEvent::Done(Some(reply)), Some(id)) => {
                CallEvent::Done(Some(Reply { pieces: reply.pieces.with_id(id), ..reply }))
            }
            (event, _) => event,
        }
    }

    /// Puts back an event that [`next`](PendingCall::next) returned and the caller did not write.
    pub(crate) fn put_back(&mut self, event: CallEvent) {
        self.held.push_front(event);
    }

    /// Reports a message that was dropped.
    pub(crate) fn report_dropped(&self) {
        let session = self.call.caller.session.map_or_else(|| "none".to_owned(), SessionId::short);
        self.observe.emit(&Event::MessageDropped { session: &session });
    }

    /// Reports an answer that no client can read.
    pub(crate) fn report_unread(&self) {
        let session = self.call.caller.session.map(SessionId::short).unwrap_or_default();
        self.observe.emit(&Event::AnswerWithoutReader { session: &session });
    }

    /// Waits for the answer alone. Earlier messages are dropped, except server requests, which go to the session
    /// stream.
    pub(crate) async fn answer(&mut self) -> Option<Reply> {
        loop {
            match self.next().await {
                CallEvent::Done(reply) => return reply,
                CallEvent::Request(request) => self.send_on_session_stream(request),
                CallEvent::Message(_) => self.report_dropped(),
                CallEvent::Slow => {}
            }
        }
    }

    /// Sends a server request on the session stream, because this call has no stream. If the session has none either,
    /// the backend gets an error.
    fn send_on_session_stream(&self, request: Bytes) {
        let client = &self.call.client;
        if client.has_stream() && client.post(request.clone()) {
            return;
        }
        if let Ok(Message::Request(request)) = Message::parse(request) {
            self.call.reject(Some(&request.id), "no stream for server requests is open");
        }
    }
}

/// The stream of a call in the replay buffer.
impl PendingCall {
    /// Returns the number of the stream. Returns `None` if the call has no stream that the client can resume.
    pub(crate) fn stream(&self) -> Option<u64> {
        match self.on_drop {
            OnDrop::Detach(stream) => stream,
            OnDrop::Cancel => None,
        }
    }

    /// Assigns the call to a stream that has already begun.
    pub(crate) fn on_stream(mut self, stream: u64) -> PendingCall {
        self.on_drop = OnDrop::Detach(Some(stream));
        self
    }

    /// Begins the stream of a call that outlives its connection, unless it has begun. Returns the first event, if the
    /// protocol version has one. A client cannot resume a stream of which it never saw an event.
    pub(crate) fn begin_stream(&mut self) -> Option<Bytes> {
        let OnDrop::Detach(stream @ None) = &mut self.on_drop else { return None };
        let replay = &self.call.client.replay;
        let number = replay.begin([&self.call.request.id]);
        *stream = Some(number);
        self.call.caller.dialect.has_priming().then(|| replay.prime(number))
    }

    /// Adds an event to the stream and returns the bytes to write. Returns `None` if there are none.
    pub(crate) fn keep(&self, stream: u64, event: CallEvent) -> Option<Bytes> {
        let replay = &self.call.client.replay;
        match event {
            CallEvent::Slow => None,
            CallEvent::Message(message) => Some(replay.event(stream, ReplayEventKind::Message, message.into())),
            CallEvent::Request(request) => Some(replay.event(stream, ReplayEventKind::Request, request.into())),
            CallEvent::Done(reply) => {
                let last = reply.map(|reply| replay.event(stream, ReplayEventKind::Answer, reply.pieces));
                replay.finish(stream);
                last
            }
        }
    }

    /// Finishes the call without a reader. The replay buffer keeps its events for the client.
    async fn finish_on(mut self, stream: u64) {
        while !self.is_over() {
            let event = self.next().await;
            self.keep(stream, event);
        }
    }

    /// Finishes the call without a stream that the client could resume.
    async fn finish_unread(mut self) {
        if self.answer().await.is_some() {
            self.report_unread();
        }
    }
}

/// The suspension of a call without a session.
impl PendingCall {
    /// Removes all queued server requests. Other events stay.
    pub(crate) fn take_requests(&mut self) -> Vec<Bytes> {
        let queued = std::iter::from_fn(|| self.call.try_next());
        let (mut requests, mut others) = (Vec::new(), VecDeque::new());
        for event in std::mem::take(&mut self.held).into_iter().chain(queued) {
            match event {
                CallEvent::Request(request) => requests.push(request),
                event => others.push_back(event),
            }
        }
        self.held = others;
        requests
    }

    /// Moves the call out, so that it goes on in a task without a reader. Queued messages stay here. The reply to the
    /// request follows them.
    pub(crate) fn suspend(&mut self) -> PendingCall {
        let answer = self.answer.take().map(|answer| {
            let task = worker::spawn(answer);
            async move { task.await.ok().flatten() }.boxed()
        });
        let is_done = matches!(self.held.back(), Some(CallEvent::Done(_)));
        let held = if is_done { self.held.pop_back() } else { None };
        PendingCall {
            call: Arc::clone(&self.call),
            resumed_by: None,
            answer,
            held: held.into_iter().collect(),
            on_drop: OnDrop::Cancel,
            observe: Arc::clone(&self.observe),
        }
    }

    /// Adds the reply to the client's request, because the call is suspended.
    pub(crate) fn reply_with(&mut self, reply: Reply) {
        self.held.push_back(CallEvent::Done(Some(reply)));
    }

    /// Continues a suspended call for the request `id`. Returns the server requests that were queued meanwhile. Drops
    /// other messages, because they carry the progress token of an earlier request.
    pub(crate) fn resume(&mut self, id: &Id) -> Vec<Bytes> {
        self.resumed_by = Some(id.clone());
        let requests = self.take_requests();
        self.held.retain(|event| matches!(event, CallEvent::Done(_)));
        requests
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        // No task can be spawned after the end of the runtime. The call has ended with it.
        if self.is_over() || Handle::try_current().is_err() {
            return;
        }
        match self.on_drop {
            OnDrop::Detach(stream) => {
                let rest = PendingCall {
                    call: Arc::clone(&self.call),
                    resumed_by: None,
                    answer: self.answer.take(),
                    held: std::mem::take(&mut self.held),
                    // If the runtime drops the task, no other task can finish the call.
                    on_drop: OnDrop::Cancel,
                    observe: Arc::clone(&self.observe),
                };
                match stream {
                    Some(stream) => worker::spawn(rest.finish_on(stream)),
                    None => worker::spawn(rest.finish_unread()),
                };
            }
            OnDrop::Cancel => {
                if let Some(answer) = self.answer.take() {
                    self.call.cancel("the client closed the stream of its request");
                    // The task keeps polling the call, so that the backend receives the cancellation.
                    worker::spawn(answer);
                }
            }
        }
    }
}

/// The open requests of one client, or of all clients without a session.
#[derive(Default)]
pub struct OpenCalls {
    table: Mutex<CallTable>,
    /// Counts the requests, unless another table does.
    count: Option<Arc<OpenCallCount>>,
}

/// The number of open calls of all clients. The task that checks timeouts sleeps while it is zero.
#[derive(Default)]
pub struct OpenCallCount {
    open: AtomicUsize,
    opened: Notify,
}

impl OpenCallCount {
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until a call is open.
    pub async fn wait_for_call(&self) {
        while self.open() == 0 {
            self.opened.notified().await;
        }
    }
}

#[derive(Default)]
struct CallTable {
    open: HashMap<CallKey, (u64, OpenCall)>,
    last: u64,
    closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CallKey {
    /// The client's id of the request, which is unique among its open requests.
    Client(Id),
    /// The number of a request without an id of its client.
    Number(u64),
}

/// An open request.
pub(crate) enum OpenCall {
    /// A request that is about to begin.
    Starting,
    Call(Arc<Call>),
    /// A `subscriptions/listen` stream. A reason that is sent here cancels it. Dropping the sender ends the stream.
    Listen(oneshot::Sender<String>),
}

/// A guard for a request's entry. Dropping it removes the entry.
pub(crate) struct OpenCallGuard {
    calls: Arc<OpenCalls>,
    key: CallKey,
    /// Distinguishes the request from an earlier one with the same id, since the id of a cancelled request can be
    /// reused.
    number: u64,
}

impl OpenCalls {
    pub fn new(count: &Arc<OpenCallCount>) -> OpenCalls {
        OpenCalls { table: Mutex::default(), count: Some(Arc::clone(count)) }
    }

    /// Adds a request. Returns an error if the id is in use, `max` requests are open or the client is gone. A request
    /// without an id of its client gets a number.
    pub(crate) fn admit(
        self: &Arc<OpenCalls>,
        id: Option<&Id>,
        open: OpenCall,
        max: usize,
    ) -> Result<OpenCallGuard, Error> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(Error::InvalidRequest("the session has ended".to_owned()));
        }
        table.last += 1;
        let number = table.last;
        let key = id.map_or(CallKey::Number(number), |id| CallKey::Client(id.clone()));
        if let Some(id) = id.filter(|_| table.open.contains_key(&key)) {
            return Err(Error::InvalidRequest(format!("a request with the id {id} is in flight")));
        }
        if table.open.len() >= max {
            return Err(Error::LimitExceeded { limit: "maxInFlight", value: max });
        }
        table.open.insert(key.clone(), (number, open));
        drop(table);
        if let Some(count) = &self.count
            && count.open.fetch_add(1, Ordering::AcqRel) == 0
        {
            count.opened.notify_one();
        }
        Ok(OpenCallGuard { calls: Arc::clone(self), key, number })
    }

    /// Ends calls with an expired timeout.
    pub(crate) fn check_timeouts(&self, now: Instant) {
        self.table.lock().calls().for_each(|call| call.check_timeouts(now));
    }

    pub(crate) fn calls(&self) -> Vec<Arc<Call>> {
        self.table.lock().calls().cloned().collect()
    }

    /// Cancels a call, which keeps its id until its end. Does nothing if it is not open, since its answer may be on the
    /// way.
    pub fn cancel(&self, id: &Id, reason: &str) {
        if let Some((_, OpenCall::Call(call))) = self.table.lock().open.get(&CallKey::Client(id.clone())) {
            call.cancel(reason);
        }
    }

    /// Cancels a request and frees its id at once. Returns `false` if it is not open.
    pub(crate) fn cancel_and_free(&self, id: &Id, reason: &str) -> bool {
        let removed = self.table.lock().open.remove(&CallKey::Client(id.clone()));
        match removed {
            Some((_, OpenCall::Call(call))) => call.cancel(reason),
            // The receiver is gone if the stream has just ended.
            Some((_, OpenCall::Listen(cancel))) => drop(cancel.send(reason.to_owned())),
            Some((_, OpenCall::Starting)) => {}
            None => return false,
        }
        true
    }

    /// Ends all `subscriptions/listen` streams. Their tasks then send the answers.
    pub(crate) fn end_listening(&self) {
        self.table.lock().open.retain(|_, (_, open)| !matches!(open, OpenCall::Listen(_)));
    }

    /// Ends all requests and rejects new ones.
    pub fn close(&self, reason: &str) {
        let mut table = self.table.lock();
        table.closed = true;
        table.calls().for_each(|call| call.cancel(reason));
        drop(table);
        self.end_listening();
    }

    pub fn len(&self) -> usize {
        self.table.lock().open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl CallTable {
    fn calls(&self) -> impl Iterator<Item = &Arc<Call>> {
        self.open.values().filter_map(|(_, open)| match open {
            OpenCall::Call(call) => Some(call),
            OpenCall::Starting | OpenCall::Listen(_) => None,
        })
    }
}

impl OpenCallGuard {
    /// Replaces the entry, unless the request was cancelled meanwhile.
    pub(crate) fn set(&self, open: OpenCall) {
        let mut table = self.calls.table.lock();
        if let Some((_, before)) = table.open.get_mut(&self.key).filter(|(number, _)| *number == self.number) {
            *before = open;
        }
    }
}

impl Drop for OpenCallGuard {
    fn drop(&mut self) {
        let mut table = self.calls.table.lock();
        if table.open.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            table.open.remove(&self.key);
        }
        drop(table);
        if let Some(count) = &self.calls.count {
            count.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests;
