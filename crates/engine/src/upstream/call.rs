//! One call of a client to a backend: picks the link, sends the request and waits for the response.
//!
//! The call uses the client's own link, if the client has one. Otherwise it uses the shared link, or the second one if
//! the shared link is of the other protocol generation. A call without a link makes its supervisor connect at once and
//! waits for that attempt. A request is sent a second time only if the backend certainly
//! did not process it, and only once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use goblin_catalog::listing::List;
use goblin_telemetry::meter::{MethodLabel, RequestOutcome};
use goblin_telemetry::{Event, worker};
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::listen::ListenFilter;
use goblin_wire::mirror::Mirrors;
use goblin_wire::mirrored::HeaderSource;
use goblin_wire::{Dialect, Era, Error, Id, Method, Notification, Outcome, Response};
use tokio::sync::SemaphorePermit;

use crate::client::call::{AbortReason, Call, CallTimeouts, SLOW_AFTER};
use crate::client::caller::Level;
use crate::upstream::link::{Link, LinkError};
use crate::upstream::links::LinkTable;
use crate::upstream::listen::ListenHandle;
use crate::upstream::request_meta::RequestMeta;
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest};

/// The longest wait for a free slot at a busy backend.
const CALL_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait for a new tool list after the backend rejected a call's headers.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// The error code for headers that contradict the body.
const HEADER_MISMATCH: &str = "-32020";

impl Backend {
    /// Sends a client's request and waits for its response within `timeouts`. Counts the outcome.
    pub async fn call(
        &self,
        outgoing: &OutgoingRequest<'_>,
        call: &Arc<Call>,
        timeouts: CallTimeouts,
    ) -> Result<BackendResponse, CallEnd> {
        let ended = self.call_uncounted(outgoing, call, timeouts).await;
        if call.request.method == Method::ToolsCall {
            self.note_call(call);
        }
        self.meter.count_outcome(MethodLabel::from(&call.request.method), outcome_label(&ended));
        ended
    }

    /// Records the end of a tool call, which may have changed the lists.
    fn note_call(&self, call: &Call) {
        match self.client_links() {
            None => self.lists().note_call(),
            Some(_) => self.lists_of(&call.caller).note_call(),
        }
    }

    async fn call_uncounted(
        &self,
        outgoing: &OutgoingRequest<'_>,
        call: &Arc<Call>,
        timeouts: CallTimeouts,
    ) -> Result<BackendResponse, CallEnd> {
        // Get the link before the slot. A call that waits for its client's own link must not occupy a slot that other
        // clients could use.
        let link = match self.current_link(call) {
            Some(link) => link,
            None => Box::pin(self.wait_for_link(None, call)).await?,
        };
        let _slot = self.slot().await?;
        match self.send(&link, outgoing, call, timeouts).await? {
            Err(error) if may_retry(&error) => {
                // Boxed because it is rare: an inlined future would make every call's future larger.
                let link = Box::pin(self.wait_for_link(Some(&link), call)).await?;
                let retried = Box::pin(self.send(&link, outgoing, call, timeouts)).await?;
                retried.map_err(|error| self.explain(error).into())
            }
            Ok(answered) if link.repeats_arguments() && is_header_mismatch(&answered.response) => {
                Box::pin(self.resend_refreshed(&link, outgoing, call, timeouts, answered)).await
            }
            answer => answer.map_err(|error| self.explain(error).into()),
        }
    }

    /// Sends a call again after the backend rejected its headers, because the tool's definition may have changed. Waits
    /// for a new tool list first. A rejection has no side effects, so the retry is safe. Returns the rejection if the
    /// tool is no longer listed.
    async fn resend_refreshed(
        &self,
        link: &Arc<Link>,
        outgoing: &OutgoingRequest<'_>,
        call: &Arc<Call>,
        timeouts: CallTimeouts,
        rejected: BackendResponse,
    ) -> Result<BackendResponse, CallEnd> {
        let lists = self.lists_of(&call.caller);
        lists.mark(&[List::Tools]);
        tokio::select! {
            // After a timeout, retry with the tool list known so far.
            _ = tokio::time::timeout(REFRESH_TIMEOUT, lists.refreshed()) => {}
            end = call.ended() => return Err(self.abort_outcome(end, call).1),
        }
        let listing = lists.listing();
        let tool = listing
            .get(List::Tools)
            .iter()
            .find(|tool| outgoing.request.method == Method::ToolsCall && Some(&*tool.native) == outgoing.name);
        let Some(Ok(mirrors)) = tool.map(|tool| Mirrors::read(tool.raw.as_str())) else { return Ok(rejected) };
        let refreshed = OutgoingRequest { edits: outgoing.edits.clone(), mirrors: Some(&mirrors), ..*outgoing };
        self.send(link, &refreshed, call, timeouts).await?.map_err(|error| self.explain(error).into())
    }

    /// Acquires one of the backend's call slots. Returns [`Error::Overloaded`] if none is free within
    /// [`CALL_PERMIT_TIMEOUT`].
    async fn slot(&self) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(permit) = self.calls.permits().try_acquire() {
            return Ok(permit);
        }
        match tokio::time::timeout(CALL_PERMIT_TIMEOUT, self.calls.permits().acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::Overloaded { server: self.id.to_string() }),
        }
    }

    /// Sends the request over `link` and waits for the response, the cancellation or the timeout. The outer error ends
    /// the call; the inner error may allow a retry.
    async fn send(
        &self,
        link: &Arc<Link>,
        outgoing: &OutgoingRequest<'_>,
        call: &Arc<Call>,
        timeouts: CallTimeouts,
    ) -> Result<Result<BackendResponse, LinkError>, CallEnd> {
        if let Some(end) = call.abort_reason() {
            return Err(self.abort_outcome(end, call).1);
        }
        let id = link.next_id();
        let upstream = Id::from(id);
        let OutgoingRequest { request, name, mirrors, .. } = *outgoing;
        let dialect = link.dialect();
        let mut edits = outgoing.edits.clone();
        edits.append(self.meta_edits(outgoing, call, dialect, upstream.token()));
        let body = request.rekeyed(&upstream, edits);
        let header_source =
            HeaderSource { method: &request.method, name, mirrors: mirrors.map(|mirrors| (mirrors, request)) };
        let started = call.start_clock(timeouts);
        tokio::select! {
            biased;
            answer = link.request(id, body, header_source, Some(call)) => {
                if answer.is_ok() {
                    let took = started.elapsed();
                    self.meter.record_duration(MethodLabel::from(&request.method), took);
                    call.count_upstream(took);
                }
                Ok(answer.map(|response| BackendResponse { response, dialect }))
            }
            end = call.ended() => {
                let (reason, end) = self.abort_outcome(end, call);
                notify_cancelled(link, id, &reason);
                Err(end)
            }
        }
    }

    /// Returns the changes that the link's protocol version requires in the request.
    fn meta_edits(&self, outgoing: &OutgoingRequest<'_>, call: &Call, dialect: Dialect, token: Bytes) -> Splice {
        let request_meta = RequestMeta {
            request: outgoing.request,
            caller: &call.caller,
            // A session without a level gets all messages, as from a server with sessions.
            level: if dialect.has_handshake() { None } else { Some(call.client.level()) },
            declare: self.config.declare,
            token: outgoing.progress_token_at.map(|at| (at, token)),
            tasks: outgoing.tasks,
        };
        request_meta.edits(dialect)
    }

    /// Opens a notification stream on the link of a client's call. Returns an error if the link is not connected or has
    /// no such streams.
    pub async fn listen(&self, call: &Call, filter: &ListenFilter) -> Result<ListenHandle, LinkError> {
        let closed = || LinkError::Closed { reason: "it is not connected".to_owned(), sent: false };
        self.current_link(call).ok_or_else(closed)?.listen(filter).await
    }

    /// Waits until the backend knows the log level that a client set. Returns at once if the client's calls have no
    /// connected link.
    pub(crate) async fn await_level(&self, call: &Call, level: Level) {
        if let Some(link) = self.current_link(call) {
            link.await_level(level).await;
        }
    }

    /// Forwards a notification of a client of `era` over the shared link, in the background. Does nothing if each client
    /// has its own link, or if the link is not connected.
    pub(crate) fn notify_shared_link(&self, era: Era, notification: &Notification) {
        let shared = self.shared.link().filter(|_| self.client_links().is_none());
        // The calls of a client with a handshake use the second link, if there is one.
        let links = self.links.as_ref().filter(|links| era == Era::Legacy && links.has_calls_only());
        let second = links.map(|links| links.calls_only(&self.shared));
        let Some(link) = second.and_then(|slot| slot.link()).or(shared) else { return };
        let (notification, events) = (notification.clone(), Arc::clone(&self.events));
        let mut sent = Box::pin(async move {
            if link.forward_notification(&notification).await.is_err() {
                events.emit(&Event::ReplyDropped { server: events.server() });
            }
        });
        // A queue with room takes the notification here, before the client's next request.
        if (&mut sent).now_or_never().is_none() {
            worker::spawn(sent);
        }
    }

    /// Returns the cancellation reason for the backend and the outcome for the client, for a call that ends without a
    /// response.
    pub fn abort_outcome(&self, end: AbortReason, call: &Call) -> (String, CallEnd) {
        match end {
            AbortReason::Cancelled(reason) => (reason, CallEnd::Cancelled),
            AbortReason::TimedOut(after) => {
                let (server, method) = (self.id.to_string(), call.request.method.to_string());
                ("the gateway's timeout expired".to_owned(), Error::Timeout { server, method, after }.into())
            }
        }
    }

    /// Returns the link for a call, if it is connected.
    fn current_link(&self, call: &Call) -> Option<Arc<Link>> {
        if let Some(links) = self.client_links() {
            return links.link_of(&call.caller);
        }
        let link = self.shared.link()?;
        match self.calls_only_links(call, &link) {
            Some(links) => links.calls_only(&self.shared).link(),
            None => Some(link),
        }
    }

    /// Returns the table with the second link if the call must use that instead of `link`: the client has a handshake
    /// and `link` has none.
    fn calls_only_links(&self, call: &Call, link: &Link) -> Option<&Arc<LinkTable>> {
        let is_other = call.caller.dialect.has_handshake() && !link.dialect().has_handshake();
        self.links.as_ref().filter(|links| is_other && links.may_have_calls_only())
    }

    /// Waits for the shared link, or the second one, that follows `old`.
    async fn next_shared_link(&self, old: Option<&Arc<Link>>, call: &Call) -> Result<Arc<Link>, Error> {
        let link = self.shared.link();
        if let Some(links) = link.and_then(|link| self.calls_only_links(call, &link)) {
            let slot = links.calls_only(&self.shared);
            if let Ok(link) = slot.await_link(old).await {
                return Ok(link);
            }
        }
        self.shared.await_link(old).await
    }

    /// Waits for the link of a call that has none, or only `old`, which has ended. Stops waiting when the call ends.
    async fn wait_for_link(&self, old: Option<&Arc<Link>>, call: &Call) -> Result<Arc<Link>, CallEnd> {
        let link = async {
            match self.client_links() {
                Some(links) => links.slot_of(call)?.await_link(old).await,
                None => self.next_shared_link(old, call).await,
            }
        };
        tokio::select! {
            biased;
            link = link => Ok(link?),
            end = call.ended() => Err(self.abort_outcome(end, call).1),
            never = mark_slow(call) => match never {},
        }
    }
}

/// Reports whether a call is sent again over the next link, because the backend certainly did not process it.
fn may_retry(error: &LinkError) -> bool {
    match error {
        LinkError::SessionLost => true,
        LinkError::Closed { sent, .. } => !sent,
        LinkError::Overloaded
        | LinkError::LoginNeeded
        | LinkError::ScopeMissing
        | LinkError::Protocol(_)
        | LinkError::Busy { .. }
        | LinkError::Rejected { .. } => false,
    }
}

/// Returns the label under which the meter counts this outcome.
pub(crate) fn outcome_label(ended: &Result<BackendResponse, CallEnd>) -> RequestOutcome {
    match ended {
        Ok(answered) => match answered.response.outcome {
            Outcome::Result(_) => RequestOutcome::Ok,
            Outcome::Error(_) => RequestOutcome::Error,
        },
        Err(CallEnd::Cancelled) => RequestOutcome::Cancelled,
        Err(CallEnd::Failed(error)) => match error {
            Error::Timeout { .. } => RequestOutcome::Timeout,
            Error::Overloaded { .. } => RequestOutcome::Overloaded,
            Error::BackendUnavailable { .. } => RequestOutcome::Unavailable,
            Error::BackendProtocol { .. } => RequestOutcome::Protocol,
            _ => RequestOutcome::Error,
        },
    }
}

fn is_header_mismatch(response: &Response) -> bool {
    let text = response.raw.as_str();
    let Outcome::Error(error) = response.outcome else { return false };
    json::member(text, error, "code").is_some_and(|code| code.get(text) == HEADER_MISMATCH)
}

/// Marks a waiting call as slow after [`SLOW_AFTER`], so that the client's stream opens in time. The call's own clock
/// starts only when the request is sent.
async fn mark_slow(call: &Call) -> Infallible {
    tokio::time::sleep(SLOW_AFTER).await;
    call.mark_slow();
    std::future::pending().await
}

/// Notifies the backend of a cancellation, in the background. A failure is ignored: no task depends on it.
fn notify_cancelled(link: &Arc<Link>, id: u64, reason: &str) {
    let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, quote(reason));
    let message = goblin_wire::notification(&Method::Cancelled, Some(&params));
    let link = Arc::clone(link);
    worker::spawn(async move { link.notify(message).await });
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use goblin_config::{Policies, Server, ServerId};

    use super::*;
    use crate::upstream::events::BackendEvents;
    use crate::upstream::http::HttpLink;
    use crate::upstream::http::peer::HttpPeer;
    use crate::upstream::link::LinkTransport;
    use crate::upstream::{BackendState, TaskPolicy};

    fn backend() -> Backend {
        let id = ServerId::new("a").expect("a valid id");
        let transport = goblin_config::Transport::Files(goblin_config::Files::at("/".into()));
        let config = Arc::new(Server::new("a", transport, Default::default()));
        let events = BackendEvents::new(id.clone(), Arc::default(), Arc::default(), Arc::default());
        Backend::new(id, config, &Policies::default(), events)
    }

    #[tokio::test(start_paused = true)]
    async fn p6_a_call_waits_for_a_slot_of_a_busy_backend_for_a_limited_time() {
        let backend = backend();
        let all = u32::try_from(backend.calls.permits().available_permits()).expect("a small number");
        let busy = backend.calls.permits().try_acquire_many(all).expect("all slots are free");
        let started = tokio::time::Instant::now();
        assert!(backend.slot().await.is_err_and(|error| matches!(error, Error::Overloaded { .. })));
        assert_eq!(started.elapsed(), CALL_PERMIT_TIMEOUT);
        let free = async {
            tokio::time::sleep(CALL_PERMIT_TIMEOUT / 2).await;
            drop(busy);
        };
        let (slot, ()) = tokio::join!(backend.slot(), free);
        assert!(slot.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn d18_waiting_calls_share_one_attempt_and_its_result() {
        let backend = backend();
        let slot = &backend.shared;
        slot.publish(BackendState::Lost("old".to_owned()));
        let call = Call::example();
        let attempt = async {
            slot.requested().await;
            slot.publish_attempt();
            tokio::time::sleep(Duration::from_secs(4)).await;
            slot.publish_failure("new".to_owned(), slot.failure_error("new", None), None);
            assert!(slot.requested().now_or_never().is_none(), "no call requests a second attempt");
        };
        let wait = || backend.wait_for_link(None, &call);
        let (one, other, ()) = tokio::join!(wait(), wait(), attempt);
        for ended in [one, other] {
            let is_new = |end: &CallEnd| matches!(end, CallEnd::Failed(error) if error.to_string().contains("new;"));
            assert!(ended.is_err_and(|end| is_new(&end)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn d18_a_call_waits_five_seconds_for_the_result_of_an_attempt() {
        let (backend, call) = (backend(), Call::example());
        let slot = &backend.shared;
        for state in [BackendState::Starting, BackendState::Lost("old".to_owned())] {
            slot.publish(state);
            slot.publish_attempt();
            let started = tokio::time::Instant::now();
            assert!(backend.wait_for_link(None, &call).await.is_err());
            assert_eq!(started.elapsed(), Duration::from_secs(5));
        }
        let started = tokio::time::Instant::now();
        slot.publish(BackendState::Stopped);
        assert!(backend.wait_for_link(None, &call).await.is_err());
        assert_eq!(started.elapsed(), Duration::ZERO, "a stopped backend has no further attempt");
    }

    /// The backend forgot the session and never reconnects. The call must still end when its timeout expires.
    #[tokio::test(start_paused = true)]
    async fn route3_a_call_that_times_out_before_its_resend_returns_an_error() {
        let backend = backend();
        backend.shared.publish(BackendState::Ready);
        let call = Arc::new(Call::example());
        let timeouts = CallTimeouts { idle: Some(Duration::ZERO), total: None };
        call.start_clock(timeouts);
        call.check_timeouts(Instant::now());
        let is_late = |end: CallEnd| matches!(end, CallEnd::Failed(Error::Timeout { .. }));
        assert!(backend.wait_for_link(None, &call).await.is_err_and(is_late));
        let link = HttpLink::new(HttpPeer::example("127.0.0.1:9"));
        let link = Arc::new(Link::new(LinkTransport::Http(link)));
        let (edits, progress_token_at) = (Splice::new(), None);
        let outgoing = OutgoingRequest {
            request: &call.request,
            edits,
            progress_token_at,
            name: None,
            mirrors: None,
            tasks: TaskPolicy::default(),
        };
        assert!(backend.send(&link, &outgoing, &call, timeouts).await.is_err_and(is_late));
    }
}
