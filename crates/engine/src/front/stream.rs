//! Event streams to HTTP clients: one for each call with messages before its answer, and one per session for other
//! messages.
//!
//! Over Streamable HTTP a client can resume both, because its [`Replay`](crate::client::mailbox::replay::Replay) keeps
//! every event for a while. If the client disconnects after the stream of a call has begun, the call continues and the
//! replay buffer keeps its events. A session stream reads only from the replay buffer. A message moves from the mailbox
//! to the buffer in one step, so the loss of the stream does not lose the message.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use crate::client::call::CallEvent;
use crate::client::mailbox::replay::{self, ReplayReader};
use crate::client::mailbox::{ListVersions, Mailbox};
use crate::client::pending::PendingCall;
use crate::front::NOTIFY_INTERVAL;
use crate::front::body::{KEEP_ALIVE, event};
use crate::session::dispatcher::Dispatcher;
use crate::session::{self, Session};
use crate::upstream::supervisor::stopped;

pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Converts the rest of a call to an event stream. A client with a session can resume it.
pub(crate) fn call_events(
    dispatcher: &Arc<Dispatcher>,
    pending: PendingCall,
) -> impl Stream<Item = Bytes> + Send + 'static {
    futures_util::stream::unfold((Arc::clone(dispatcher), pending), async |(dispatcher, mut pending)| {
        let event = next_of_call(&dispatcher, &mut pending).await?;
        Some((event, (dispatcher, pending)))
    })
}

async fn next_of_call(dispatcher: &Dispatcher, pending: &mut PendingCall) -> Option<Bytes> {
    if pending.is_over() {
        return None;
    }
    if let Some(first) = pending.begin_stream() {
        return Some(first);
    }
    let (mailbox, stream) = (Arc::clone(&pending.call.mailbox), pending.stream());
    let taken = async {
        match stream {
            Some(stream) => mailbox.replay.taken(stream).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        // A resuming client took the stream. Dropping this call then moves the rest to a task.
        () = taken => None,
        next = dispatcher.next_event(pending) => match (next, stream) {
            (CallEvent::Slow, _) => Some(KEEP_ALIVE),
            (next, Some(stream)) => pending.keep(stream, next),
            (CallEvent::Message(message) | CallEvent::Request(message), None) => Some(event(message.into())),
            (CallEvent::Done(reply), None) => Some(event(reply?.pieces)),
        },
        () = tokio::time::sleep(KEEP_ALIVE_EVERY) => Some(KEEP_ALIVE),
    }
}

/// The list changes for one client. It reports them at most once per [`NOTIFY_INTERVAL`].
pub(crate) struct ListChanges {
    versions: watch::Receiver<ListVersions>,
    /// The time before which no change is reported.
    quiet_until: Option<Instant>,
}

impl ListChanges {
    pub(crate) fn new(mut versions: watch::Receiver<ListVersions>) -> ListChanges {
        // Changes from before this call are due at once.
        versions.mark_changed();
        ListChanges { versions, quiet_until: None }
    }

    /// Waits for due notifications. Returns `None` if the gateway publishes no more changes.
    pub(crate) async fn due(&mut self, mailbox: &Mailbox) -> Option<Vec<Bytes>> {
        loop {
            if let Some(until) = self.quiet_until {
                tokio::time::sleep_until(until).await;
                self.quiet_until = None;
            }
            self.versions.changed().await.ok()?;
            let now = *self.versions.borrow_and_update();
            let due = mailbox.take_due(now);
            if !due.is_empty() {
                self.quiet_until = Some(Instant::now() + NOTIFY_INTERVAL);
                return Some(due);
            }
        }
    }
}

/// Waits for messages that belong to no call. Returns `None` if there will be no more. It is cancel-safe.
pub(crate) async fn unasked(session: &Session, changes: &mut ListChanges) -> Option<Vec<Bytes>> {
    tokio::select! {
        biased;
        // List changes come first. They are rare, so they cannot delay the updates, but a burst of updates could delay
        // them.
        due = changes.due(&session.mailbox) => due,
        messages = session.mailbox.next() => Some(messages),
    }
}

/// Formats several messages as events without ids.
pub(crate) fn all_events(messages: Vec<Bytes>) -> Bytes {
    messages.into_iter().flat_map(|message| event(message.into())).collect()
}

/// The session stream of a client. It ends when the client leaves, another stream takes over or the gateway stops.
pub(crate) struct SessionStream {
    pub hold: session::SessionStreamGuard,
    pub reader: ReplayReader,
    /// An event to send first.
    pub first: Option<Bytes>,
    pub changes: ListChanges,
    pub stop: watch::Receiver<bool>,
}

impl SessionStream {
    pub(crate) fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        futures_util::stream::unfold(self.begin(), async |mut stream| Some((stream.next().await?, stream)))
    }

    fn begin(self) -> SessionStreamWriter {
        let SessionStream { hold, reader, first, changes, stop } = self;
        let seldom = FuturesUnordered::new();
        seldom.push(end(stop).boxed());
        seldom.push(change(Arc::clone(&hold.session), changes).boxed());
        SessionStreamWriter { hold, reader, first, seldom, quiet: IdleTimer::new() }
    }
}

/// A session stream that is being written.
struct SessionStreamWriter {
    hold: session::SessionStreamGuard,
    reader: ReplayReader,
    first: Option<Bytes>,
    /// The shutdown signal and the list changes. All streams wait on the same few channels, and registering a new
    /// waiter per event would cost more than the event. These futures therefore persist and are polled only when woken.
    seldom: FuturesUnordered<BoxFuture<'static, RareEvent>>,
    quiet: IdleTimer,
}

enum RareEvent {
    End,
    Changed(Vec<Bytes>, ListChanges),
}

async fn end(mut stop: watch::Receiver<bool>) -> RareEvent {
    stopped(&mut stop).await;
    RareEvent::End
}

async fn change(session: Arc<Session>, mut changes: ListChanges) -> RareEvent {
    match changes.due(&session.mailbox).await {
        Some(messages) => RareEvent::Changed(messages, changes),
        None => RareEvent::End,
    }
}

impl SessionStreamWriter {
    async fn next(&mut self) -> Option<Bytes> {
        let event = match self.first.take() {
            Some(first) => first,
            None => self.next_event().await?,
        };
        self.quiet.end();
        Some(event)
    }

    async fn next_event(&mut self) -> Option<Bytes> {
        let session = &self.hold.session;
        let replay = &session.mailbox.replay;
        loop {
            // Register before the check, or a notification between the check and the wait is lost.
            let rung = replay.rung();
            match replay.read(&mut self.reader) {
                replay::ReplayRead::Events(events) => return Some(events),
                // Another stream took over, or the session has ended.
                replay::ReplayRead::Over => return None,
                replay::ReplayRead::Nothing => {}
            }
            let messages = tokio::select! {
                biased;
                Some(seldom) = self.seldom.next() => match seldom {
                    RareEvent::End => return None,
                    RareEvent::Changed(messages, changes) => {
                        self.seldom.push(change(Arc::clone(session), changes).boxed());
                        messages
                    }
                },
                () = rung => continue,
                messages = session.mailbox.next() => messages,
                () = self.quiet.over() => return Some(KEEP_ALIVE),
            };
            // There must be no await before this line. The messages left the mailbox, and only the buffer keeps them
            // for the reader.
            messages.into_iter().for_each(|message| replay.keep(message));
        }
    }
}

/// The time since the last write to a stream. The timer is not reset with each event, only when it fires too early.
struct IdleTimer {
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new() -> IdleTimer {
        IdleTimer { since: Instant::now(), timer: Box::pin(tokio::time::sleep(KEEP_ALIVE_EVERY)) }
    }

    /// Records a write.
    fn end(&mut self) {
        self.since = Instant::now();
    }

    /// Waits until a keep-alive is due. It is cancel-safe.
    async fn over(&mut self) {
        loop {
            self.timer.as_mut().await;
            let due = self.since + KEEP_ALIVE_EVERY;
            if due <= Instant::now() {
                return;
            }
            self.timer.as_mut().reset(due);
        }
    }
}

/// The rest of a call's stream, for a client that resumed it.
pub(crate) struct ResumedCall {
    pub present: session::CallReaderGuard,
    pub reader: ReplayReader,
}

impl ResumedCall {
    pub(crate) fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        futures_util::stream::unfold(self, async |mut call| Some((call.next().await?, call)))
    }

    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            events = self.present.session.mailbox.replay.follow(&mut self.reader) => events,
            () = tokio::time::sleep(KEEP_ALIVE_EVERY) => Some(KEEP_ALIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Dialect;

    use super::*;
    use crate::client::caller::Introduction;

    #[tokio::test(start_paused = true)]
    async fn http1_a_stream_shows_life_when_it_was_quiet_and_not_before() {
        let mut quiet = IdleTimer::new();
        for spoken_after in [Duration::ZERO, KEEP_ALIVE_EVERY / 3, KEEP_ALIVE_EVERY / 2] {
            tokio::time::sleep(spoken_after).await;
            quiet.end();
            let begin = Instant::now();
            quiet.over().await;
            assert_eq!(begin.elapsed(), KEEP_ALIVE_EVERY);
            quiet.end();
        }
    }

    #[tokio::test]
    async fn sess2_of_two_streams_that_begin_at_once_exactly_one_goes_on() {
        let dispatcher = Dispatcher::example(1);
        let place = dispatcher.reserve().expect("there is room");
        let session = dispatcher.sessions.open(
            place,
            None,
            Dialect::V2025_11_25,
            Introduction::default(),
            ListVersions::default(),
        );
        let stop = watch::Sender::new(false);
        let stream = |reader, hold| {
            let changes = ListChanges::new(dispatcher.router.directory.watch());
            SessionStream { hold, reader, first: None, changes, stop: stop.subscribe() }.begin()
        };
        let ((first, _), (second, _)) = (session.mailbox.replay.take_session(), session.mailbox.replay.take_session());
        let mut second = stream(second, session.open_stream());
        let mut first = stream(first, session.open_stream());
        assert_eq!(first.next().await, None);
        assert!(session.mailbox.post(Bytes::from_static(b"{}")));
        assert!(second.next().await.is_some_and(|event| event.ends_with(b"data: {}\n\n")));
        dispatcher.sessions.end(session.id, "test");
        assert_eq!(second.next().await, None);
        let (late, _) = session.mailbox.replay.take_session();
        assert_eq!(stream(late, session.open_stream()).next().await, None, "it comes after the end");
    }
}
