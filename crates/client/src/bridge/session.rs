//! Keeps the session of a bridge: reads the gateway's notification stream, and repeats the handshake if the gateway
//! does not know the session.
//!
//! One task does both, so at most one handshake runs at a time, however many requests found the session unknown. Each
//! report names the session generation it is about. A report about an older generation does not cause another
//! handshake.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use goblin_wire::{Error, Method};
use http::{HeaderMap, StatusCode};

use crate::bridge::message::GatewayMessage;
use crate::bridge::stream::{pause, start};
use crate::bridge::wire::{BodyError, ResponseMessages};
use crate::bridge::{Bridge, ClientOutput};
use crate::events::{Backoff, ResumePosition, STABLE_AFTER, is_temporary};

pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request waits for the next session after the gateway rejected the current one.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(15);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);

/// A session at the gateway.
#[derive(Clone, Default)]
pub(crate) struct GatewaySession {
    /// The number of this session. 0 means that no handshake succeeded yet.
    pub generation: u64,
    pub headers: HeaderMap,
    /// The number of failed renewals. `reason` belongs to the last one.
    failures: u64,
    reason: Option<Error>,
}

impl GatewaySession {
    pub(crate) fn exists(&self) -> bool {
        self.generation > 0
    }

    /// Returns the session after this one.
    pub(crate) fn next(&self, headers: HeaderMap) -> GatewaySession {
        GatewaySession { generation: self.generation + 1, headers, ..self.clone() }
    }
}

/// The reason why the notification stream ended.
enum StreamEnd {
    Cut,
    SessionLost,
    /// The gateway offers no such stream.
    Unsupported,
}

/// Returns the pace of attempts to reach the gateway.
pub(crate) fn backoff() -> Backoff {
    Backoff::new(FIRST_RECONNECT, SLOWEST_RECONNECT)
}

/// Keeps the session until the task is aborted.
pub(crate) async fn maintain(bridge: Arc<Bridge>, output: ClientOutput) {
    let mut backoff = backoff();
    let mut position = start();
    let mut session_began = Instant::now();
    let mut must_renew = bridge.wait_initialized().await;
    loop {
        if must_renew {
            // Do not ask without pause for the next session if the gateway drops each one at once.
            if session_began.elapsed() < STABLE_AFTER {
                bridge.pause_or_wake(backoff.after(session_began.elapsed())).await;
            }
            if let Err(error) = bridge.renew(&output).await {
                bridge.session.send_modify(|session| {
                    session.failures += 1;
                    session.reason = Some(error);
                });
                bridge.pause_or_wake(backoff.pause()).await;
                continue;
            }
            session_began = Instant::now();
            position = start();
        }
        let opened = Instant::now();
        let end = tokio::select! {
            end = bridge.listen(&output, &mut position) => end,
            () = bridge.session_lost() => StreamEnd::SessionLost,
        };
        must_renew = match end {
            StreamEnd::SessionLost => true,
            StreamEnd::Unsupported => {
                bridge.session_lost().await;
                true
            }
            StreamEnd::Cut => {
                position.gap();
                let pause = pause(&position, backoff.after(opened.elapsed()));
                tokio::select! {
                    () = tokio::time::sleep(pause) => false,
                    () = bridge.session_lost() => true,
                }
            }
        };
    }
}

impl Bridge {
    /// Waits for the session after `stale_session`, which the gateway does not know. Returns an error if the renewal fails.
    pub(crate) async fn renewed(&self, stale_session: &GatewaySession) -> Result<(), Error> {
        let mut session = self.session.subscribe();
        let failures = session.borrow().failures;
        self.mark_lost(stale_session);
        let change = session.wait_for(|now| now.generation != stale_session.generation || now.failures != failures);
        let change = tokio::time::timeout(RENEWAL_TIMEOUT, change).await;
        match change.ok().and_then(Result::ok) {
            Some(now) if now.generation != stale_session.generation => Ok(()),
            Some(now) => Err(now.reason.clone().unwrap_or_else(|| self.session_dropped())),
            None => Err(self.session_dropped()),
        }
    }

    /// Reports that the gateway does not know this session.
    pub(crate) fn mark_lost(&self, stale_session: &GatewaySession) {
        self.lost.fetch_max(stale_session.generation, Ordering::Relaxed);
        self.wakeup.notify_one();
    }

    /// Waits until another session has replaced this one.
    pub(crate) async fn session_renewed(&self, session: &GatewaySession) {
        // Cannot fail: `self` holds the sender.
        let _ = self.session.subscribe().wait_for(|now| now.generation != session.generation).await;
    }

    fn session_dropped(&self) -> Error {
        self.unavailable("the gateway dropped the session and starts no new one".to_owned(), false)
    }

    fn is_session_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.session.borrow().generation
    }

    /// Waits until a message reports the current session as unknown.
    async fn session_lost(&self) {
        while !self.is_session_lost() {
            self.wakeup.notified().await;
        }
    }

    /// Waits for the end of the client's handshake: before it, the gateway must not send notifications. Returns `true`
    /// if the session is already lost.
    async fn wait_initialized(&self) -> bool {
        while self.initialized.get().is_none() && !self.is_session_lost() {
            self.wakeup.notified().await;
        }
        self.is_session_lost()
    }

    /// Waits for `pause`, or until a message needs the session.
    async fn pause_or_wake(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.wakeup.notified() => {}
        }
    }

    /// Opens the notification stream after the last event of `position` and forwards its messages.
    async fn listen(&self, output: &ClientOutput, position: &mut ResumePosition) -> StreamEnd {
        let session = self.session.borrow().clone();
        let mut has_gap = false;
        let response = loop {
            let Ok(response) = self.wire.get(&session.headers, position.last()).await else { return StreamEnd::Cut };
            match response.status() {
                status if status.is_success() => break response,
                status if is_temporary(status) => return StreamEnd::Cut,
                // The gateway rejects either the event id or the session. Try again without the event id.
                status if status.is_client_error() && position.forget() => has_gap = true,
                StatusCode::NOT_FOUND => return StreamEnd::SessionLost,
                status if status.is_client_error() => return StreamEnd::Unsupported,
                _ => return StreamEnd::Cut,
            }
        };
        if has_gap {
            self.notify_lists_changed(output).await;
            self.subscriptions().mark_stale();
            self.stale_subscriptions.notify_one();
        }
        self.read_stream(ResponseMessages::new(response), &session, output, position).await
    }

    async fn read_stream(
        &self,
        mut answers: ResponseMessages,
        session: &GatewaySession,
        output: &ClientOutput,
        position: &mut ResumePosition,
    ) -> StreamEnd {
        loop {
            let event = match answers.next().await {
                Ok(Some(event)) => event,
                Err(BodyError::TooLarge) => {
                    tracing::warn!("the gateway sent a message that is too large; dropped");
                    continue;
                }
                Ok(None) | Err(BodyError::Lost) => return StreamEnd::Cut,
            };
            if !position.note(&event) || event.data.is_empty() {
                continue;
            }
            let Ok(messages) = GatewayMessage::read(event.data, &mut Vec::new()) else {
                tracing::debug!("the gateway sent data that is not a message; dropped");
                continue;
            };
            for message in messages {
                // If the client does not read, this task is aborted together with the bridge.
                let _ = self.deliver(message, session, output).await;
            }
        }
    }

    /// Notifies the client that all its lists may have changed.
    async fn notify_lists_changed(&self, output: &ClientOutput) {
        for method in [Method::ToolsChanged, Method::PromptsChanged, Method::ResourcesChanged] {
            let _ = output.send(goblin_wire::notification(&method, None)).await;
        }
    }

    /// Begins a new session with the client's own handshake, and notifies the client that its lists may have changed.
    async fn renew(&self, output: &ClientOutput) -> Result<(), Error> {
        let Some(handshake) = self.handshake.get() else { return Err(self.session_dropped()) };
        let (headers, _, version) = self.exchange_handshake(&handshake.initialize_request, output).await?;
        if version.as_ref() != Some(&handshake.version) {
            let reason = format!("the gateway no longer supports protocol version {}", handshake.version);
            return Err(self.unavailable(reason, false));
        }
        let level = self.level.lock().clone();
        for body in self.initialized.get().cloned().into_iter().chain(level) {
            let response = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.wire.post(body, &headers)).await;
            response.map_err(|_| self.session_dropped())?.map_err(|error| self.unreachable(&error))?;
        }
        self.session.send_modify(|session| *session = session.next(headers));
        tracing::info!(url = self.wire.url(), "the gateway was restarted; started a new session");
        self.cancel_server_requests(output).await;
        if self.initialized.get().is_some() {
            self.notify_lists_changed(output).await;
        }
        Ok(())
    }
}
