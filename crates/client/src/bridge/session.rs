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
use crate::events::{Backoff, LASTING, ResumePosition, is_passing};

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
    Forgotten,
    /// The gateway offers no such stream.
    Absent,
}

/// Returns the pace of attempts to reach the gateway.
pub(crate) fn pace() -> Backoff {
    Backoff::new(FIRST_RECONNECT, SLOWEST_RECONNECT)
}

/// Keeps the session until the task is aborted.
pub(crate) async fn keep(bridge: Arc<Bridge>, output: ClientOutput) {
    let mut pace = pace();
    let mut position = start();
    let mut begun = Instant::now();
    let mut must_renew = bridge.begun().await;
    loop {
        if must_renew {
            // Do not ask without pause for the next session if the gateway drops each one at once.
            if begun.elapsed() < LASTING {
                bridge.rest(pace.after(begun.elapsed())).await;
            }
            if let Err(error) = bridge.renew(&output).await {
                bridge.session.send_modify(|session| {
                    session.failures += 1;
                    session.reason = Some(error);
                });
                bridge.rest(pace.pause()).await;
                continue;
            }
            begun = Instant::now();
            position = start();
        }
        let opened = Instant::now();
        let end = tokio::select! {
            end = bridge.listen(&output, &mut position) => end,
            () = bridge.is_lost() => StreamEnd::Forgotten,
        };
        must_renew = match end {
            StreamEnd::Forgotten => true,
            StreamEnd::Absent => {
                bridge.is_lost().await;
                true
            }
            StreamEnd::Cut => {
                position.gap();
                let pause = pause(&position, pace.after(opened.elapsed()));
                tokio::select! {
                    () = tokio::time::sleep(pause) => false,
                    () = bridge.is_lost() => true,
                }
            }
        };
    }
}

impl Bridge {
    /// Waits for the session after `met`, which the gateway does not know. Returns an error if the renewal fails.
    pub(crate) async fn renewed(&self, met: &GatewaySession) -> Result<(), Error> {
        let mut session = self.session.subscribe();
        let failures = session.borrow().failures;
        self.lose(met);
        let news = session.wait_for(|now| now.generation != met.generation || now.failures != failures);
        let news = tokio::time::timeout(RENEWAL_TIMEOUT, news).await;
        match news.ok().and_then(Result::ok) {
            Some(now) if now.generation != met.generation => Ok(()),
            Some(now) => Err(now.reason.clone().unwrap_or_else(|| self.forgetful())),
            None => Err(self.forgetful()),
        }
    }

    /// Reports that the gateway does not know this session.
    pub(crate) fn lose(&self, met: &GatewaySession) {
        self.lost.fetch_max(met.generation, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Waits until another session has replaced this one.
    pub(crate) async fn is_renewed(&self, session: &GatewaySession) {
        // Cannot fail: `self` holds the sender.
        let _ = self.session.subscribe().wait_for(|now| now.generation != session.generation).await;
    }

    fn forgetful(&self) -> Error {
        self.unavailable("the gateway dropped the session and starts no new one".to_owned(), false)
    }

    fn lost_session(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.session.borrow().generation
    }

    /// Waits until a message reports the current session as unknown.
    async fn is_lost(&self) {
        while !self.lost_session() {
            self.bell.notified().await;
        }
    }

    /// Waits for the end of the client's handshake: before it, the gateway must not send notifications. Returns `true`
    /// if the session is already lost.
    async fn begun(&self) -> bool {
        while self.initialized.get().is_none() && !self.lost_session() {
            self.bell.notified().await;
        }
        self.lost_session()
    }

    /// Waits for `pause`, or until a message needs the session.
    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.bell.notified() => {}
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
                status if is_passing(status) => return StreamEnd::Cut,
                // The gateway rejects either the event id or the session. Try again without the event id.
                status if status.is_client_error() && position.forget() => has_gap = true,
                StatusCode::NOT_FOUND => return StreamEnd::Forgotten,
                status if status.is_client_error() => return StreamEnd::Absent,
                _ => return StreamEnd::Cut,
            }
        };
        if has_gap {
            self.list_again(output).await;
            self.subscriptions().doubt();
            self.doubts.notify_one();
        }
        self.hear(ResponseMessages::new(response), &session, output, position).await
    }

    async fn hear(
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
            for said in messages {
                // If the client does not read, this task is aborted together with the bridge.
                let _ = self.tell(said, session, output).await;
            }
        }
    }

    /// Notifies the client that all its lists may have changed.
    async fn list_again(&self, output: &ClientOutput) {
        for method in [Method::ToolsChanged, Method::PromptsChanged, Method::ResourcesChanged] {
            let _ = output.send(goblin_wire::notification(&method, None)).await;
        }
    }

    /// Begins a new session with the client's own handshake, and notifies the client that its lists may have changed.
    async fn renew(&self, output: &ClientOutput) -> Result<(), Error> {
        let Some(handshake) = self.handshake.get() else { return Err(self.forgetful()) };
        let (headers, _, version) = self.shake_hands(&handshake.hello, output).await?;
        if version.as_ref() != Some(&handshake.version) {
            let reason = format!("the gateway no longer supports protocol version {}", handshake.version);
            return Err(self.unavailable(reason, false));
        }
        let level = self.level.lock().clone();
        for body in self.initialized.get().cloned().into_iter().chain(level) {
            let taken = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.wire.post(body, &headers)).await;
            taken.map_err(|_| self.forgetful())?.map_err(|error| self.unreachable(&error))?;
        }
        self.session.send_modify(|session| *session = session.next(headers));
        tracing::info!(url = self.wire.url(), "the gateway was restarted; started a new session");
        self.withdraw_asks(output).await;
        if self.initialized.get().is_some() {
            self.list_again(output).await;
        }
        Ok(())
    }
}
