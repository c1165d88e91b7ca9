//! Event streams to HTTP clients: one for each call with messages before its answer, and one per session for other
//! messages.
//!
//! Over Streamable HTTP a client can resume both, because its [`Replay`](crate::client::replay::Replay) keeps
//! every event for a while. If the client disconnects after the stream of a call has begun, the call continues and the
//! replay buffer keeps its events. A session stream reads only from the replay buffer. A message moves from the queue
//! of the client to the buffer in one step, so the loss of the stream does not lose the message.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use goblin_config::exposure::ProfileName;
use goblin_wire::json::Pieces;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use crate::catalog_store::CatalogStore;
use crate::client::call::CallEvent;
use crate::client::caller::Caller;
use crate::client::pending::PendingCall;
use crate::client::replay::{ReplayRead, ReplayReader};
use crate::client::sessions::Presence;
use crate::client::{Client, ListVersions};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::listening::ListenSubscription;
use crate::front::NOTIFY_INTERVAL;
use crate::front::body::{KEEP_ALIVE, event};
use crate::upstream::supervisor::stopped;

pub(crate) const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A source of server-sent events.
pub(crate) trait EventSource: Send + 'static {
    /// Waits for the next event. Returns `None` at the end. It must be cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Converts a source to an event stream that shows life when it is quiet.
pub(crate) fn into_events(source: impl EventSource) -> impl Stream<Item = Bytes> + Send + 'static {
    futures_util::stream::unfold((source, IdleTimer::new()), async |(mut source, mut timer)| {
        let event = tokio::select! {
            biased;
            event = source.next() => event?,
            () = timer.expired() => KEEP_ALIVE,
        };
        timer.record_write();
        Some((event, (source, timer)))
    })
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
    fn record_write(&mut self) {
        self.since = Instant::now();
    }

    /// Waits until a keep-alive is due. It is cancel-safe.
    async fn expired(&mut self) {
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

/// The rest of a call. A client with a session can resume its stream.
pub(crate) struct CallEvents {
    pub dispatcher: Arc<Dispatcher>,
    pub pending: PendingCall,
}

impl EventSource for CallEvents {
    async fn next(&mut self) -> Option<Bytes> {
        let CallEvents { dispatcher, pending } = self;
        if pending.is_over() {
            return None;
        }
        if let Some(first) = pending.begin_stream() {
            return Some(first);
        }
        let Some(stream) = pending.stream() else {
            return match dispatcher.next_event(pending).await {
                CallEvent::Slow => Some(KEEP_ALIVE),
                CallEvent::Message(message) | CallEvent::Request(message) => Some(event(message.into())),
                CallEvent::Done(reply) => Some(event(reply?.pieces)),
            };
        };
        let client = Arc::clone(&pending.call.client);
        tokio::select! {
            biased;
            // A resuming client took the stream. Dropping this call then moves the rest to a task.
            () = client.replay.taken(stream) => None,
            next = dispatcher.next_event(pending) => match next {
                CallEvent::Slow => Some(KEEP_ALIVE),
                next => pending.keep(stream, next),
            },
        }
    }
}

/// The list changes for one client. It reports them at most once per [`NOTIFY_INTERVAL`].
pub(crate) struct ListChanges {
    catalogs: Arc<CatalogStore>,
    /// The sender of the request for a notification stream. `None` if the client's session has the lists.
    caller: Option<Caller>,
    versions: watch::Receiver<ListVersions>,
    /// The time before which no change is reported.
    quiet_until: Option<Instant>,
}

impl ListChanges {
    /// Creates the changes for a session of a profile.
    pub(crate) fn new(catalogs: &Arc<CatalogStore>, profile: Option<&ProfileName>) -> ListChanges {
        ListChanges::with_versions(catalogs, None, catalogs.watch_profile(profile))
    }

    /// Creates the changes for a notification stream.
    pub(crate) fn of_stream(catalogs: &Arc<CatalogStore>, caller: &Caller) -> ListChanges {
        ListChanges::with_versions(catalogs, Some(caller.clone()), catalogs.watch_of(caller))
    }

    fn with_versions(
        catalogs: &Arc<CatalogStore>,
        caller: Option<Caller>,
        mut versions: watch::Receiver<ListVersions>,
    ) -> ListChanges {
        // Changes from before this call are due at once.
        versions.mark_changed();
        ListChanges { catalogs: Arc::clone(catalogs), caller, versions, quiet_until: None }
    }

    /// Watches the client's own catalog as soon as the client has one.
    fn follow(&mut self, client: &Client) {
        if !self.catalogs.has_client_links() {
            return;
        }
        let versions = match &self.caller {
            Some(caller) => self.catalogs.watch_of(caller),
            None => self.catalogs.watch_of(&client.caller()),
        };
        if !versions.same_channel(&self.versions) {
            self.versions = versions;
            self.versions.mark_changed();
        }
    }

    /// Waits for due notifications. Returns `None` if the gateway publishes no more changes.
    pub(crate) async fn due(&mut self, client: &Client) -> Option<Vec<Bytes>> {
        loop {
            if let Some(until) = self.quiet_until {
                tokio::time::sleep_until(until).await;
                self.quiet_until = None;
            }
            self.follow(client);
            self.versions.changed().await.ok()?;
            let now = match &self.caller {
                Some(caller) => self.catalogs.versions_of(caller),
                None => self.catalogs.versions_of(&client.caller()),
            };
            let due = client.take_due(now);
            if !due.is_empty() {
                self.quiet_until = Some(Instant::now() + NOTIFY_INTERVAL);
                return Some(due);
            }
        }
    }
}

/// Waits for messages that belong to no call. Returns `None` if there will be no more. It is cancel-safe.
pub(crate) async fn next_unsolicited(client: &Client, changes: &mut ListChanges) -> Option<Vec<Bytes>> {
    tokio::select! {
        biased;
        // List changes come first. They are rare, so they cannot delay the updates, but a burst of updates could delay
        // them.
        due = changes.due(client) => due,
        messages = client.next() => Some(messages),
    }
}

/// Formats several messages as events without ids.
pub(crate) fn all_events(messages: Vec<Bytes>) -> Bytes {
    messages.into_iter().flat_map(|message| event(message.into())).collect()
}

/// The session stream of a client. It ends when the client leaves, another stream takes over or the gateway stops.
pub(crate) struct SessionStream {
    presence: Presence,
    reader: ReplayReader,
    /// An event to send first.
    first: Option<Bytes>,
    /// The shutdown signal and the list changes. All streams wait on the same few channels, and registering a new
    /// waiter per event would cost more than the event. These futures therefore persist and are polled only when woken.
    rare: FuturesUnordered<BoxFuture<'static, RareEvent>>,
}

enum RareEvent {
    Stopped,
    Changed(Vec<Bytes>, ListChanges),
}

async fn wait_for_stop(mut stop: watch::Receiver<bool>) -> RareEvent {
    stopped(&mut stop).await;
    RareEvent::Stopped
}

async fn wait_for_change(client: Arc<Client>, mut changes: ListChanges) -> RareEvent {
    match changes.due(&client).await {
        Some(messages) => RareEvent::Changed(messages, changes),
        None => RareEvent::Stopped,
    }
}

impl SessionStream {
    pub(crate) fn new(
        presence: Presence,
        reader: ReplayReader,
        first: Option<Bytes>,
        changes: ListChanges,
        stop: watch::Receiver<bool>,
    ) -> SessionStream {
        let rare = FuturesUnordered::new();
        rare.push(wait_for_stop(stop).boxed());
        rare.push(wait_for_change(Arc::clone(&presence.client), changes).boxed());
        SessionStream { presence, reader, first, rare }
    }
}

impl EventSource for SessionStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let client = &self.presence.client;
        let replay = &client.replay;
        loop {
            // Register before the check, or a notification between the check and the wait is lost.
            let woken = replay.changed();
            match replay.read(&mut self.reader) {
                ReplayRead::Events(events) => return Some(events),
                // Another stream took over, or the session has ended.
                ReplayRead::Ended => return None,
                ReplayRead::Nothing => {}
            }
            let messages = tokio::select! {
                biased;
                Some(rare) = self.rare.next() => match rare {
                    RareEvent::Stopped => return None,
                    RareEvent::Changed(messages, changes) => {
                        self.rare.push(wait_for_change(Arc::clone(client), changes).boxed());
                        messages
                    }
                },
                () = woken => continue,
                messages = client.next() => messages,
            };
            // There must be no await before this line. The messages left the queue, and only the buffer keeps them for
            // the reader.
            messages.into_iter().for_each(|message| replay.keep(message));
        }
    }
}

/// The rest of a call's stream, for a client that resumed it.
pub(crate) struct ResumedCall {
    pub presence: Presence,
    pub reader: ReplayReader,
}

impl EventSource for ResumedCall {
    async fn next(&mut self) -> Option<Bytes> {
        self.presence.client.replay.follow(&mut self.reader).await
    }
}

/// A `subscriptions/listen` stream. It ends when the client closes it or the gateway stops.
pub(crate) struct ListenStream {
    listening: ListenSubscription,
    changes: ListChanges,
    stop: watch::Receiver<bool>,
    phase: ListenPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenPhase {
    Starting,
    Running,
    Ended,
}

impl ListenStream {
    pub(crate) fn new(
        catalogs: &Arc<CatalogStore>,
        listening: ListenSubscription,
        stop: watch::Receiver<bool>,
    ) -> ListenStream {
        let changes = ListChanges::of_stream(catalogs, &listening.caller);
        ListenStream { listening, changes, stop, phase: ListenPhase::Starting }
    }

    /// Waits for the next messages. Returns `None` after the last one, which is the answer. It is cancel-safe.
    pub(crate) async fn next_messages(&mut self) -> Option<Vec<Bytes>> {
        match self.phase {
            ListenPhase::Starting => {
                let acknowledgement = self.listening.acknowledgement().await;
                self.phase = ListenPhase::Running;
                Some(vec![acknowledgement])
            }
            ListenPhase::Running => {
                let listening = &self.listening;
                let messages = tokio::select! {
                    biased;
                    () = stopped(&mut self.stop) => None,
                    due = self.changes.due(&listening.client) => due,
                    messages = listening.client.next() => Some(messages),
                };
                let Some(messages) = messages else {
                    return self.end().map(|answer| vec![answer.concat()]);
                };
                Some(messages.into_iter().filter_map(|message| listening.tag(message)).collect())
            }
            ListenPhase::Ended => None,
        }
    }

    /// Ends the stream. Returns its answer the first time, and `None` afterwards.
    pub(crate) fn end(&mut self) -> Option<Pieces> {
        let is_first = std::mem::replace(&mut self.phase, ListenPhase::Ended) != ListenPhase::Ended;
        is_first.then(|| self.listening.end())
    }
}

impl EventSource for ListenStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let messages = self.next_messages().await?;
            if !messages.is_empty() {
                return Some(all_events(messages));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Dialect;

    use super::*;
    use crate::client::caller::Introduction;

    #[tokio::test(start_paused = true)]
    async fn http1_a_keep_alive_is_due_after_the_quiet_interval_and_not_before() {
        let mut timer = IdleTimer::new();
        for written_after in [Duration::ZERO, KEEP_ALIVE_EVERY / 3, KEEP_ALIVE_EVERY / 2] {
            tokio::time::sleep(written_after).await;
            timer.record_write();
            let begin = Instant::now();
            timer.expired().await;
            assert_eq!(begin.elapsed(), KEEP_ALIVE_EVERY);
            timer.record_write();
        }
    }

    #[tokio::test]
    async fn sess2_only_the_newer_of_two_simultaneous_streams_continues() {
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
            let changes = ListChanges::new(&dispatcher.router.catalogs, None);
            SessionStream::new(hold, reader, None, changes, stop.subscribe())
        };
        let ((first, _), (second, _)) = (session.replay.take_session(), session.replay.take_session());
        let mut second = stream(second, dispatcher.sessions.open_stream(&session));
        let mut first = stream(first, dispatcher.sessions.open_stream(&session));
        assert_eq!(first.next().await, None);
        assert!(session.post(Bytes::from_static(b"{}")));
        assert!(second.next().await.is_some_and(|event| event.ends_with(b"data: {}\n\n")));
        dispatcher.sessions.end(&session, "test");
        assert_eq!(second.next().await, None);
        let (late, _) = session.replay.take_session();
        assert_eq!(
            stream(late, dispatcher.sessions.open_stream(&session)).next().await,
            None,
            "the stream opens after the end"
        );
    }
}
