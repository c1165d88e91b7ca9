//! Subscriptions over a link without sessions. Notification streams replace the subscribe request there.
//!
//! [`StreamPlan`] decides which URI is on which stream; this module opens and closes the streams. Nothing is replayed
//! after a stream ends. All streams are then reopened after a pause, all lists are fetched again, and each subscriber
//! gets one update, as after a lost link. The link itself stays connected, because a backend behind a proxy that cuts
//! streams can still answer calls. Closing the link would end a child process and its calls. If the whole backend is
//! unreachable, reopening a stream detects that and the link ends by itself.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use goblin_catalog::listing::List;
use goblin_subscriptions::{UpstreamReply, UpstreamRequest};
use goblin_telemetry::Event;
use goblin_wire::Message;
use goblin_wire::json::quote;
use goblin_wire::listen::ListenFilter;

use crate::upstream::health::{self, Health};
use crate::upstream::listen::{ListenHandle, ListenOutcome};
use crate::upstream::subscriptions::SubscriptionManager;
use crate::upstream::subscriptions::plan::{StreamAction, StreamOutcome, StreamPlan, StreamRole};

/// Opens a stream with a filter.
pub(crate) type Opener<'a> =
    Box<dyn Fn(ListenFilter) -> BoxFuture<'a, Result<ListenHandle, ListenError>> + Send + Sync + 'a>;

/// The reason why a stream was not opened.
#[derive(Clone, Debug)]
pub(crate) enum ListenError {
    /// The backend does not know the method.
    Unknown,
    /// The backend did not acknowledge the stream in this time.
    Late(Duration),
    Failed(Arc<str>),
}

/// A job and its outcome.
type UpstreamResult = (UpstreamRequest, UpstreamReply);

/// The notification streams of one link.
pub(crate) struct UpstreamStreams<'a> {
    manager: &'a SubscriptionManager,
    opener: Opener<'a>,
    can_subscribe: bool,
    plan: StreamPlan,
    /// The jobs that wait for an acknowledgement.
    pending: HashMap<Arc<str>, UpstreamRequest>,
    /// The jobs with URIs on an open stream.
    active: HashMap<Arc<str>, UpstreamRequest>,
    base: Option<ListenHandle>,
    delta: Option<ListenHandle>,
    opening: Option<(StreamRole, BoxFuture<'a, Result<ListenHandle, ListenError>>)>,
    /// Outcomes that the caller has not taken yet.
    settled: VecDeque<UpstreamResult>,
    state: ListenState,
    /// Whether changes may have been missed since the last stream.
    has_gap: bool,
    health: Health,
    /// Whether the lack of a stream was reported since the last stream.
    is_reported: bool,
}

enum ListenState {
    On,
    /// All streams are reopened at this time.
    Paused(Instant),
    /// The backend does not support streams.
    Unsupported,
}

impl<'a> UpstreamStreams<'a> {
    /// Creates the state without opening a stream. `lists` names the lists that the backend announces changes of.
    pub(crate) fn new(
        manager: &'a SubscriptionManager,
        lists: ListenFilter,
        can_subscribe: bool,
        opener: Opener<'a>,
    ) -> UpstreamStreams<'a> {
        UpstreamStreams {
            manager,
            opener,
            can_subscribe,
            plan: StreamPlan::new(lists),
            pending: HashMap::new(),
            active: HashMap::new(),
            base: None,
            delta: None,
            opening: None,
            settled: VecDeque::new(),
            state: ListenState::On,
            has_gap: false,
            health: Health::default(),
            is_reported: false,
        }
    }

    /// Accepts a job. [`settled`](UpstreamStreams::settled) returns its outcome later.
    pub(crate) fn take(&mut self, job: UpstreamRequest) {
        let reply = match self.state {
            _ if !job.subscribes => {
                self.active.remove(&job.native);
                self.plan.remove(&job.native, now());
                UpstreamReply::Done
            }
            _ if !self.can_subscribe => UpstreamReply::Done,
            ListenState::Unsupported => UpstreamReply::Unknown,
            ListenState::On | ListenState::Paused(_) => {
                let is_served = self.plan.add(&job.native);
                let jobs = if is_served { &mut self.active } else { &mut self.pending };
                jobs.insert(Arc::clone(&job.native), job.clone());
                if !is_served {
                    return;
                }
                UpstreamReply::Done
            }
        };
        self.settled.push_back((job, reply));
    }

    /// Removes and returns the next outcome.
    pub(crate) fn settled(&mut self) -> Option<(UpstreamRequest, UpstreamReply)> {
        self.settled.pop_front()
    }

    /// Opens and closes streams until an outcome is available or new jobs are possible. Cancel safe.
    pub(crate) async fn next(&mut self) {
        loop {
            match self.state {
                ListenState::On => self.act(),
                ListenState::Paused(until) => {
                    tokio::time::sleep_until(until.into()).await;
                    return self.resume();
                }
                ListenState::Unsupported => std::future::pending().await,
            }
            tokio::select! {
                opened = opened(&mut self.opening) => return self.on_opened(opened),
                outcome = ended(&mut self.base) => return self.on_ended(outcome),
                outcome = ended(&mut self.delta) => return self.on_ended(outcome),
                () = sleep_until(self.plan.due()) => {}
            }
        }
    }

    /// Performs the next step of the plan.
    fn act(&mut self) {
        match self.plan.next(now()) {
            Some(StreamAction::Open(role, filter)) => self.opening = Some((role, (self.opener)(filter))),
            Some(StreamAction::Close) => (self.base, self.delta) = (None, None),
            Some(StreamAction::Drop) => {
                (self.base, self.delta, self.has_gap) = (None, None, true);
                self.act();
            }
            None => {}
        }
    }

    fn on_opened(&mut self, opened: Result<ListenHandle, ListenError>) {
        let Some((role, _)) = self.opening.take() else { return };
        let is_first = self.base.is_none();
        match opened {
            Ok(listen) => {
                let settled = self.plan.opened(&listen.acknowledged, now());
                if is_first {
                    self.on_first(&listen.acknowledged);
                }
                let stream = Some(listen).filter(|listen| !listen.acknowledged.is_empty());
                match role {
                    StreamRole::Base => (self.base, self.delta) = (stream, None),
                    StreamRole::Delta => self.delta = stream,
                }
                self.settle(settled, omitted);
            }
            Err(ListenError::Unknown) if is_first => {
                self.plan.reset();
                self.state = ListenState::Unsupported;
                self.manager.lists().set_can_announce(false);
                self.settled.extend(self.pending.drain().map(|(_, job)| (job, UpstreamReply::Unknown)));
            }
            Err(error) => self.on_failed(error),
        }
    }

    fn on_failed(&mut self, error: ListenError) {
        let (reason, reply) = match error {
            ListenError::Unknown => ("it does not know subscriptions/listen any more".into(), None),
            ListenError::Late(after) => (
                format!("no answer within {}", goblin_wire::units::duration(after)).into(),
                Some(UpstreamReply::Late(after)),
            ),
            ListenError::Failed(reason) => (reason, None),
        };
        let settled = self.plan.failed(now());
        self.settle(settled, |_| reply.clone().unwrap_or_else(|| UpstreamReply::Failed(Arc::clone(&reason))));
        let repeated = std::mem::replace(&mut self.is_reported, true);
        let events = self.manager.events();
        events.emit(&Event::ListenFailed { server: events.server(), reason: &reason, repeated });
        if self.base.is_none() {
            // Clients that wait for this stream get the error before all subscribers get the update for the gap.
            self.settled.drain(..).for_each(|(job, reply)| self.manager.on_reply(&job, reply));
            self.pause();
        }
    }

    /// Handles the first stream after none was open. Earlier changes were not announced, so fetch the lists again.
    fn on_first(&mut self, acknowledged: &ListenFilter) {
        self.health.connected(now());
        self.is_reported = false;
        self.manager.lists().set_can_announce(true);
        let announced = [(acknowledged.tools, List::Tools), (acknowledged.prompts, List::Prompts)];
        let announced =
            announced.into_iter().chain([List::Resources, List::Templates].map(|list| (acknowledged.resources, list)));
        let lists: Vec<_> =
            announced.filter(|(is_announced, _)| *is_announced || self.has_gap).map(|(_, list)| list).collect();
        self.has_gap = false;
        if !lists.is_empty() {
            self.manager.lists().mark(&lists);
        }
    }

    /// Records the outcome of a stream. The URIs in `settled.served` are subscribed; `reply_for` returns the reply for
    /// the others.
    fn settle(&mut self, settled: StreamOutcome, reply_for: impl Fn(&str) -> UpstreamReply) {
        for native in settled.served {
            if let Some(job) = self.pending.remove(&native) {
                self.active.insert(native, job.clone());
                self.settled.push_back((job, UpstreamReply::Done));
            }
        }
        for native in settled.unserved {
            // The URI may have been on an earlier stream.
            let job = self.pending.remove(&native).or_else(|| self.active.remove(&native));
            self.settled.extend(job.map(|job| (job, reply_for(&native))));
        }
    }

    fn on_ended(&mut self, outcome: ListenOutcome) {
        let reason = match outcome {
            ListenOutcome::Ended => "the server ended the stream".to_owned(),
            ListenOutcome::Lost(reason) => reason,
        };
        let events = self.manager.events();
        events.emit(&Event::ListenLost { server: events.server(), reason: &reason });
        self.pause();
    }

    /// Drops all streams. They are reopened after the pause that [`Health`] returns.
    fn pause(&mut self) {
        (self.base, self.delta, self.opening) = (None, None, None);
        self.plan.reset();
        self.pending.clear();
        self.active.clear();
        self.has_gap = true;
        if self.can_subscribe {
            self.manager.link_down();
        }
        self.state = ListenState::Paused(now() + self.health.failed(now(), health::jitter()));
    }

    fn resume(&mut self) {
        self.state = ListenState::On;
        if self.can_subscribe {
            self.manager.link_up(true);
        }
    }
}

/// Returns the time of tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn opened<T>(opening: &mut Option<(StreamRole, BoxFuture<'_, T>)>) -> T {
    match opening {
        Some((_, opening)) => opening.await,
        None => std::future::pending().await,
    }
}

async fn ended(listen: &mut Option<ListenHandle>) -> ListenOutcome {
    match listen {
        Some(listen) => (&mut listen.ended).await.unwrap_or_else(|_| ListenOutcome::Lost("its link ended".to_owned())),
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the reply for a URI that the acknowledgement omits. The backend gives no reason, so the reply names the
/// resource.
fn omitted(native: &str) -> UpstreamReply {
    const REASON: &str = "the server does not announce changes of this resource";
    let data = format!(r#"{{"code":"SUBSCRIPTION_FAILED","uri":{}}}"#, quote(native));
    let error = format!(r#"{{"code":-32602,"message":"{REASON}","data":{data}}}"#);
    match Message::parse(goblin_wire::error_reply(None, &error).concat()) {
        Ok(Message::Response(response)) => UpstreamReply::Rejected(Arc::new(response)),
        _ => UpstreamReply::Failed(REASON.into()),
    }
}
