//! The session of a bridge: it hears what the gateway says unasked, and begins anew when the gateway forgot the session.
//!
//! One task does both, so there is never more than one handshake at a time however many requests met the loss. A request
//! that did names the session it met it with: a loss that was made good meanwhile is no reason to begin again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

use crate::bridge::message::Said;
use crate::bridge::stream::{Step, Trail, is_passing};
use crate::bridge::wire::{Answers, Broken};
use crate::bridge::{Bridge, Output};
use goblin_wire::error::Error;
use goblin_wire::method::Method;

pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// A request that met a forgotten session waits this long for the next.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(15);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);
/// A session or stream that ends sooner shows that the next attempt should take its time.
pub const LASTING: Duration = Duration::from_secs(1);

/// What the gateway knows us by.
#[derive(Clone, Default)]
pub struct Session {
    /// 0 before the first handshake.
    pub generation: u64,
    pub headers: HeaderMap,
    /// How often a new one could not be had, and why the last time.
    failures: u64,
    reason: Option<Error>,
}

impl Session {
    pub fn exists(&self) -> bool {
        self.generation > 0
    }

    /// The one after this.
    pub fn next(&self, headers: HeaderMap) -> Session {
        Session { generation: self.generation + 1, headers, ..self.clone() }
    }
}

/// How the stream of what the gateway says unasked ended.
enum End {
    Cut,
    Forgotten,
    /// It offers none.
    Absent,
}

/// How long to wait before the next attempt: each time longer, until something lasted.
pub struct Pace(Duration);

impl Default for Pace {
    fn default() -> Pace {
        Pace(FIRST_RECONNECT)
    }
}

impl Pace {
    /// The pause after what `lasted` so long.
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= LASTING {
            self.0 = FIRST_RECONNECT;
        }
        let pause = self.0;
        self.0 = (self.0 * 2).min(SLOWEST_RECONNECT);
        pause
    }

    pub fn after_failure(&mut self) -> Duration {
        self.after(Duration::ZERO)
    }
}

/// Keeps the session alive until it is aborted.
pub async fn keep(bridge: Arc<Bridge>, output: Output) {
    let mut pace = Pace::default();
    let mut trail = Trail::default();
    let mut begun = Instant::now();
    let mut must_renew = bridge.begun().await;
    loop {
        if must_renew {
            // A gateway that forgets every session at once must not be asked for the next without end.
            if begun.elapsed() < LASTING {
                bridge.rest(pace.after(begun.elapsed())).await;
            }
            if let Err(error) = bridge.renew(&output).await {
                bridge.session.send_modify(|session| {
                    session.failures += 1;
                    session.reason = Some(error);
                });
                bridge.rest(pace.after_failure()).await;
                continue;
            }
            begun = Instant::now();
            trail = Trail::default();
        }
        let opened = Instant::now();
        let end = tokio::select! {
            end = bridge.listen(&output, &mut trail) => end,
            () = bridge.is_lost() => End::Forgotten,
        };
        must_renew = match end {
            End::Forgotten => true,
            End::Absent => {
                bridge.is_lost().await;
                true
            }
            End::Cut => {
                let pause = trail.pause(pace.after(opened.elapsed()));
                tokio::select! {
                    () = tokio::time::sleep(pause) => false,
                    () = bridge.is_lost() => true,
                }
            }
        };
    }
}

impl Bridge {
    /// Waits for the session after `met`, which the gateway does not know.
    pub async fn renewed(&self, met: &Session) -> Result<(), Error> {
        let mut session = self.session.subscribe();
        let failures = session.borrow().failures;
        self.lose(met);
        let news = session.wait_for(|now| now.generation != met.generation || now.failures != failures);
        let news = tokio::time::timeout(RENEWAL_PATIENCE, news).await;
        match news.ok().and_then(Result::ok) {
            Some(now) if now.generation != met.generation => Ok(()),
            Some(now) => Err(now.reason.clone().unwrap_or_else(|| self.forgetful())),
            None => Err(self.forgetful()),
        }
    }

    /// A message met the loss of this session.
    pub fn lose(&self, met: &Session) {
        self.lost.fetch_max(met.generation, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Waits until another session has taken the place of this one.
    pub async fn is_renewed(&self, session: &Session) {
        // The sender is ours.
        let _ = self.session.subscribe().wait_for(|now| now.generation != session.generation).await;
    }

    fn forgetful(&self) -> Error {
        self.unavailable("it forgot the session and gives no other".to_owned(), false)
    }

    fn lost_session(&self) -> bool {
        self.lost.load(Ordering::Relaxed) >= self.session.borrow().generation
    }

    /// Waits until a message met the loss of the current session.
    async fn is_lost(&self) {
        while !self.lost_session() {
            self.bell.notified().await;
        }
    }

    /// Waits for the end of the client's handshake, before which nothing may be said unasked; tells whether the session
    /// was lost by then.
    async fn begun(&self) -> bool {
        while self.initialized.get().is_none() && !self.lost_session() {
            self.bell.notified().await;
        }
        self.lost_session()
    }

    /// Waits before the next attempt to begin anew, or until a message is in want of it.
    async fn rest(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.bell.notified() => {}
        }
    }

    /// Hears what is said unasked, from where `trail` ends.
    async fn listen(&self, output: &Output, trail: &mut Trail) -> End {
        let session = self.session.borrow().clone();
        let mut has_gap = false;
        let response = loop {
            let Ok(response) = self.wire.get(&session.headers, trail.last()).await else { return End::Cut };
            match response.status() {
                status if status.is_success() => break response,
                status if is_passing(status) => return End::Cut,
                // It may be the event that it does not know, or the session.
                status if status.is_client_error() && trail.forget() => has_gap = true,
                StatusCode::NOT_FOUND => return End::Forgotten,
                status if status.is_client_error() => return End::Absent,
                _ => return End::Cut,
            }
        };
        if has_gap {
            self.list_again(output).await;
            self.subscriptions().doubt();
            self.doubts.notify_one();
        }
        self.hear(Answers::new(response), &session, output, trail).await
    }

    async fn hear(&self, mut answers: Answers, session: &Session, output: &Output, trail: &mut Trail) -> End {
        loop {
            let event = match answers.next().await {
                Ok(Some(event)) => event,
                Err(Broken::TooLarge) => {
                    tracing::warn!("the gateway said something too large; dropped");
                    continue;
                }
                Ok(None) | Err(Broken::Lost) => return End::Cut,
            };
            let Step::Message(message) = trail.follow(event) else { continue };
            let Ok(messages) = Said::read(message, &mut Vec::new()) else {
                tracing::debug!("the gateway sent something that is no message; dropped");
                continue;
            };
            for said in messages {
                // Where nobody reads, this task ends with the rest.
                let _ = self.tell(said, session, output).await;
            }
        }
    }

    /// Tells the client that what it has listed may be old.
    async fn list_again(&self, output: &Output) {
        for method in [Method::ToolsChanged, Method::PromptsChanged, Method::ResourcesChanged] {
            let _ = output.send(goblin_wire::notification(&method, None)).await;
        }
    }

    /// Repeats what the client said when it began, and tells it to list again.
    async fn renew(&self, output: &Output) -> Result<(), Error> {
        let Some(handshake) = self.handshake.get() else { return Err(self.forgetful()) };
        let (headers, _, version) = self.shake_hands(&handshake.hello, output).await?;
        if version.as_ref() != Some(&handshake.version) {
            let reason = format!("it does not speak protocol version {} any more", handshake.version);
            return Err(self.unavailable(reason, false));
        }
        let level = self.level.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for body in self.initialized.get().cloned().into_iter().chain(level) {
            let taken = tokio::time::timeout(HANDSHAKE_PATIENCE, self.wire.post(body, &headers)).await;
            taken.map_err(|_| self.forgetful())?.map_err(|error| self.unreachable(&error))?;
        }
        self.session.send_modify(|session| *session = session.next(headers));
        tracing::info!(url = self.wire.url(), "the gateway was restarted; the session was begun anew");
        self.withdraw_asks(output).await;
        if self.initialized.get().is_some() {
            self.list_again(output).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_last_is_tried_ever_more_seldom() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = (0..8).map(|_| pace.after_failure().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pace.after(LASTING), FIRST_RECONNECT);
    }
}
