//! Sends the requests that subscriptions need while a link is connected.
//!
//! There are three kinds: subscribe and unsubscribe requests; reads that check whether an unlisted resource still
//! exists; and, with `poll`, reads that detect changes. The owner of the link polls [`SubscriptionManager::keep`] for
//! as long as the link is connected.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use goblin_catalog::listing::List;
use goblin_subscriptions::{UpstreamReply, UpstreamRequest};
use goblin_wire::json::{self, Span, quote};
use goblin_wire::{Hello, Method, Outcome as Answer, Response};

use crate::upstream::link::{Link, LinkError};
use crate::upstream::subscriptions::SubscriptionManager;
use crate::upstream::subscriptions::delivery::updated;
use crate::upstream::subscriptions::listening::{ListenError, Opener, UpstreamStreams};

/// The limit of requests in progress at once.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// The limit of timed-out requests with responses that are still awaited. Beyond it, late responses are ignored.
const MAX_LATE_REQUESTS: usize = 64;
/// The timeout of a request if the configuration sets none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// After a request failed, the time to wait for a sign that the whole link failed.
const LINK_LOSS_TIMEOUT: Duration = Duration::from_millis(200);

/// The error code for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

/// The params of an update that the gateway creates. They contain no fields.
const EMPTY_PARAMS: (&str, Span) = ("{}", Span { start: 0, end: 2 });

/// The queued reads. Their number is bounded by the number of subscriptions.
#[derive(Default)]
pub(crate) struct ReadQueue {
    /// Resources that are not listed. They count as deleted if they cannot be read either.
    suspects: VecDeque<Arc<str>>,
    /// Resources to read and compare with their last contents.
    polled: VecDeque<Arc<str>>,
    /// The hash of the last contents of each polled resource.
    known: HashMap<Arc<str>, u64>,
    hasher: RandomState,
}

impl ReadQueue {
    pub(crate) fn set_suspects(&mut self, suspects: Vec<Arc<str>>) {
        self.suspects = suspects.into();
    }

    pub(crate) fn add_suspects(&mut self, suspects: Vec<Arc<str>>) {
        for suspect in suspects {
            if !self.suspects.contains(&suspect) {
                self.suspects.push_back(suspect);
            }
        }
    }

    fn next(&mut self) -> Option<UpkeepRequest> {
        let suspect = self.suspects.pop_front().map(UpkeepRequest::Check);
        suspect.or_else(|| self.polled.pop_front().map(UpkeepRequest::Poll))
    }

    /// Stores the hash of a resource's contents. Returns `true` if the contents changed or were unknown.
    fn record(&mut self, native: &Arc<str>, contents: &str) -> bool {
        let now = self.hasher.hash_one(contents);
        self.known.insert(Arc::clone(native), now) != Some(now)
    }
}

/// One request to send.
enum UpkeepRequest {
    Job(UpstreamRequest),
    /// A notification stream has already answered the job.
    Settled(UpstreamRequest, UpstreamReply),
    Check(Arc<str>),
    Poll(Arc<str>),
}

/// A response in progress.
type ResponseFuture<'a> = BoxFuture<'a, Result<Response, LinkError>>;

/// The outcome of a request. `None` in a variant means that the request or the link failed.
enum UpkeepOutcome<'a> {
    Replied(UpstreamRequest, Option<UpstreamReply>),
    /// No response within this time. A response may still arrive.
    Late(UpstreamRequest, Duration, ResponseFuture<'a>),
    Checked(Arc<str>, Option<Response>),
    Polled(Arc<str>, Option<Response>),
}

impl SubscriptionManager {
    /// Sends the requests that the subscriptions need. Never returns; the caller drops the future when the link ends.
    pub async fn keep(&self, link: &Arc<Link>, hello: &Hello) -> Infallible {
        let can_subscribe = hello.capabilities.subscribe;
        let streams = || UpstreamStreams::new(self, hello.announced_lists(), can_subscribe, self.opener(link));
        self.keep_with(link, can_subscribe, (!hello.dialect.has_handshake()).then(streams)).await
    }

    /// Does the work of [`keep`](SubscriptionManager::keep). Uses `streams` instead of subscribe requests, if given.
    pub(crate) async fn keep_with<'a>(
        &'a self,
        link: &'a Arc<Link>,
        can_subscribe: bool,
        mut streams: Option<UpstreamStreams<'a>>,
    ) -> Infallible {
        let (mut jobs, mut late) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut poll: Option<tokio::time::Interval> = None;
        loop {
            // A reload may have changed the interval.
            let period = self.context.config.load().poll;
            if poll.as_ref().map(|poll| poll.period()) != period {
                poll = period.map(poll_interval);
            }
            while jobs.len() < MAX_CONCURRENT_REQUESTS {
                let Some(request) = self.next_request(streams.as_mut()) else { break };
                jobs.push(self.perform(request, link, can_subscribe));
            }
            tokio::select! {
                () = next_stream_event(streams.as_mut()) => {}
                Some(done) = jobs.next(), if !jobs.is_empty() => match done {
                    UpkeepOutcome::Late(job, after, response) => {
                        self.on_reply(&job, UpstreamReply::Late(after));
                        if late.len() < MAX_LATE_REQUESTS {
                            late.push(async move { (job, response.await) });
                        }
                    }
                    done => self.on_done(done),
                },
                Some((job, answer)) = late.next(), if !late.is_empty() => self.on_late_answer(&job, answer),
                () = self.wakeup.notified() => {}
                () = next_poll(&mut poll) => self.start_poll_round(),
            }
        }
    }

    fn next_request(&self, streams: Option<&mut UpstreamStreams<'_>>) -> Option<UpkeepRequest> {
        let next_request = || self.state().table.next_request();
        let request = match streams {
            Some(streams) => {
                std::iter::from_fn(next_request).for_each(|job| streams.take(job));
                streams.settled().map(|(job, reply)| UpkeepRequest::Settled(job, reply))
            }
            None => next_request().map(UpkeepRequest::Job),
        };
        request.or_else(|| self.reads().next())
    }

    /// Returns a function that opens notification streams over a link.
    fn opener<'a>(&self, link: &'a Arc<Link>) -> Opener<'a> {
        let timeout = self.request_timeout();
        Box::new(move |filter| {
            Box::pin(async move {
                match tokio::time::timeout(timeout, link.listen(&filter)).await {
                    Ok(Ok(listen)) => Ok(listen),
                    Ok(Err(LinkError::Rejected { code: Some(METHOD_NOT_FOUND), .. })) => Err(ListenError::Unknown),
                    Ok(Err(error)) => match has_link_failed(link, &error).await {
                        // The link ended. The caller drops this future once it notices that.
                        true => std::future::pending().await,
                        false => Err(ListenError::Failed(error.to_string().into())),
                    },
                    Err(_) => Err(ListenError::Late(timeout)),
                }
            })
        })
    }

    /// Sends one request and waits for its response.
    async fn perform<'a>(
        &'a self,
        request: UpkeepRequest,
        link: &'a Arc<Link>,
        can_subscribe: bool,
    ) -> UpkeepOutcome<'a> {
        match request {
            UpkeepRequest::Job(job) => {
                let mut reply = Some(UpstreamReply::Done);
                if can_subscribe {
                    let (mut response, timeout) = (send_job(link, &job), self.request_timeout());
                    match tokio::time::timeout(timeout, &mut response).await {
                        Ok(answer) => reply = reply_in(link, answer).await,
                        Err(_) => return UpkeepOutcome::Late(job, timeout, response),
                    }
                }
                self.complete(link, job, reply).await
            }
            UpkeepRequest::Settled(job, reply) => self.complete(link, job, Some(reply)).await,
            UpkeepRequest::Check(native) => UpkeepOutcome::Checked(native.clone(), self.read(link, &native).await),
            UpkeepRequest::Poll(native) => UpkeepOutcome::Polled(native.clone(), self.read(link, &native).await),
        }
    }

    /// Completes a job. A polled resource is read here first, and the read replaces the subscription if the backend
    /// supports none.
    async fn complete<'a>(
        &'a self,
        link: &Link,
        job: UpstreamRequest,
        mut reply: Option<UpstreamReply>,
    ) -> UpkeepOutcome<'a> {
        if self.context.config.load().poll.is_some()
            && matches!(reply, Some(UpstreamReply::Done | UpstreamReply::Unknown))
        {
            self.read_baseline(link, &job).await;
            reply = Some(UpstreamReply::Done);
        }
        UpkeepOutcome::Replied(job, reply)
    }

    /// Stores the contents of a polled resource at the start of a subscription.
    async fn read_baseline(&self, link: &Link, job: &UpstreamRequest) {
        self.reads().known.remove(&job.native);
        if job.subscribes
            && let Some(answer) = self.read(link, &job.native).await
            && let Some(contents) = contents(&answer)
        {
            self.reads().record(&job.native, contents);
        }
    }

    pub(crate) fn on_reply(&self, job: &UpstreamRequest, reply: UpstreamReply) {
        let mut state = self.state();
        let notices = state.table.handle_reply(job, reply);
        self.send_updates(&state, &notices);
    }

    /// Handles a response that arrived after the timeout. The waiting clients already received an error, so an unwanted
    /// late subscription is cancelled.
    fn on_late_answer(&self, job: &UpstreamRequest, answer: Result<Response, LinkError>) {
        if answer.is_ok_and(|answer| matches!(answer.outcome, Answer::Result(_))) {
            let mut state = self.state();
            let notices = state.table.handle_late_reply(job);
            self.send_updates(&state, &notices);
        }
    }

    fn on_done(&self, done: UpkeepOutcome<'_>) {
        match done {
            UpkeepOutcome::Replied(job, Some(reply)) => self.on_reply(&job, reply),
            UpkeepOutcome::Late(job, after, _) => self.on_reply(&job, UpstreamReply::Late(after)),
            UpkeepOutcome::Checked(native, Some(answer)) if answer.is_not_found() => self.on_deleted(&native),
            UpkeepOutcome::Checked(native, Some(answer)) if contents(&answer).is_some() => self.on_readable(&native),
            UpkeepOutcome::Polled(native, Some(answer)) => match contents(&answer) {
                Some(contents) if self.reads().record(&native, contents) => {
                    self.distribute(&native, Some(EMPTY_PARAMS), updated);
                }
                Some(_) => {}
                // The lists decide whether the resource was deleted. A backend that needs polling may not announce list
                // changes, so fetch the lists.
                None if answer.is_not_found() => self.context.lists.mark(&[List::Resources, List::Templates]),
                None => {}
            },
            UpkeepOutcome::Replied(_, None) | UpkeepOutcome::Checked(..) | UpkeepOutcome::Polled(_, None) => {}
        }
    }

    /// Handles a resource that is neither listed nor readable: notifies its subscribers of the deletion.
    fn on_deleted(&self, native: &str) {
        let mut state = self.state();
        let offered = self.context.lists.view();
        let vanished = state.table.mark_deleted(native, &self.exposed(&offered));
        self.send_deletions(&state, vanished.deleted);
        self.send_updates(&state, &vanished.notices);
    }

    /// Handles a resource that is not listed but readable: notifies its subscribers if it was missing.
    fn on_readable(&self, native: &str) {
        let mut state = self.state();
        let notices = state.table.mark_readable(native);
        self.send_updates(&state, &notices);
    }

    /// Queues a read of every subscribed resource, unless reads of the previous round are still queued.
    fn start_poll_round(&self) {
        let state = self.state();
        let (wanted, is_list_wanted) = (state.table.active_resources(), state.table.wants_list());
        drop(state);
        let mut reads = self.reads();
        if reads.polled.is_empty() {
            let wanted_set: HashSet<_> = wanted.iter().collect();
            reads.known.retain(|native, _| wanted_set.contains(native));
            reads.polled = wanted.into();
        }
        drop(reads);
        if is_list_wanted {
            // A backend that needs polling may not announce list changes either.
            self.context.lists.mark(&[List::Resources, List::Templates]);
        }
    }

    /// Handles the report of the backend that a resource no longer exists. The next listing and a read decide.
    pub(crate) fn on_end(&self, native: &str) {
        if self.state().table.note_end(native) {
            self.context.lists.mark(&[List::Resources]);
        }
    }

    /// Discards pending deletion checks, because a new connection fetches the lists. The next listing decides anew.
    pub(crate) fn discard_checks(&self) {
        self.reads().set_suspects(Vec::new());
    }

    /// Sends one update per subscription, because notifications may have been lost on a connection that continues.
    pub fn notify_all(&self) {
        let mut state = self.state();
        let notices = state.table.mark_stale();
        self.send_updates(&state, &notices);
    }

    /// Sets the limit of resources that patterns and forwarded URIs may subscribe to upstream. Existing ones stay.
    pub(crate) fn set_max_upstream(&self, max: usize) {
        self.state().table.set_max_resources(max);
    }

    /// Returns the timeout of one request.
    pub(crate) fn request_timeout(&self) -> Duration {
        let configured = self.context.config.load().timeout.and_then(|timeout| timeout.duration());
        configured.unwrap_or(REQUEST_TIMEOUT)
    }

    /// Reads a resource. Returns `None` on a timeout or if the link failed.
    async fn read(&self, link: &Link, native: &str) -> Option<Response> {
        let params = format!(r#"{{"uri":{}}}"#, quote(native));
        let answer = tokio::time::timeout(self.request_timeout(), link.query(&Method::ResourcesRead, &params)).await;
        answer.ok()?.ok()
    }
}

fn send_job<'a>(link: &'a Link, job: &UpstreamRequest) -> ResponseFuture<'a> {
    let method = if job.subscribes { Method::Subscribe } else { Method::Unsubscribe };
    let params = format!(r#"{{"uri":{}}}"#, quote(&job.native));
    Box::pin(async move { link.query(&method, &params).await })
}

/// Interprets the response to a subscribe or unsubscribe request. Returns `None` if the link ended.
async fn reply_in(link: &Link, answer: Result<Response, LinkError>) -> Option<UpstreamReply> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let has_failed = has_link_failed(link, &error).await;
            return (!has_failed).then(|| UpstreamReply::Failed(error.to_string().into()));
        }
    };
    Some(match answer.outcome {
        Answer::Result(_) => UpstreamReply::Done,
        Answer::Error(error) => {
            let text = answer.raw.as_str();
            let code = json::member(text, error, "code").and_then(|code| code.get(text).parse().ok());
            if code == Some(METHOD_NOT_FOUND) {
                UpstreamReply::Unknown
            } else {
                UpstreamReply::Rejected(Arc::new(answer))
            }
        }
    })
}

/// Reports whether the whole link failed and not just one request.
async fn has_link_failed(link: &Link, error: &LinkError) -> bool {
    matches!(error, LinkError::SessionLost) || tokio::time::timeout(LINK_LOSS_TIMEOUT, link.closed()).await.is_ok()
}

async fn next_stream_event(streams: Option<&mut UpstreamStreams<'_>>) {
    match streams {
        Some(streams) => streams.next().await,
        None => std::future::pending().await,
    }
}

/// Returns the `contents` of a read result as the backend wrote them.
fn contents(answer: &Response) -> Option<&str> {
    let Answer::Result(result) = answer.outcome else { return None };
    let text = answer.raw.as_str();
    Some(json::member(text, result, "contents")?.get(text))
}

fn poll_interval(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

async fn next_poll(poll: &mut Option<tokio::time::Interval>) {
    match poll {
        Some(poll) => drop(poll.tick().await),
        None => std::future::pending().await,
    }
}
