//! The session of a bridge: it hears what the gateway says unasked, and begins anew when the gateway forgot the session.
//!
//! One task does both, so there is never more than one handshake at a time however many requests met the loss. A request
//! that did names the session it met it with: a loss that was made good meanwhile is no reason to begin again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

use crate::cli::bridge::wire::Answers;
use crate::cli::bridge::{Bridge, Output};
use crate::protocol::error::Error;
use crate::protocol::method::Method;

pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// A request that met a forgotten session waits this long for the next.
const RENEWAL_PATIENCE: Duration = Duration::from_secs(15);
const FIRST_RECONNECT: Duration = Duration::from_millis(100);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(5);
/// A session or stream that ends sooner shows that the next attempt should take its time.
const LASTING: Duration = Duration::from_secs(1);

/// What the gateway knows us by.
#[derive(Clone, Default)]
pub struct Session {
    /// 0 before the first handshake.
    generation: u64,
    pub headers: HeaderMap,
    /// How often a new one could not be had, and why the last time.
    failures: u64,
    reason: Option<Error>,
}

impl Session {
    pub fn exists(&self) -> bool {
        self.generation > 0
    }

    pub fn renew(&mut self, headers: HeaderMap) {
        self.generation += 1;
        self.headers = headers;
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
struct Pace(Duration);

impl Pace {
    /// The pause after what `lasted` so long.
    fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= LASTING {
            self.0 = FIRST_RECONNECT;
        }
        let pause = self.0;
        self.0 = (self.0 * 2).min(SLOWEST_RECONNECT);
        pause
    }
}

/// Keeps the session alive until it is aborted.
pub async fn keep(bridge: Arc<Bridge>, output: Output) {
    let mut pace = Pace(FIRST_RECONNECT);
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
                bridge.rest(pace.after(Duration::ZERO)).await;
                continue;
            }
            begun = Instant::now();
        }
        let opened = Instant::now();
        let end = tokio::select! {
            end = bridge.listen(&output) => end,
            () = bridge.is_lost() => End::Forgotten,
        };
        must_renew = match end {
            End::Forgotten => true,
            End::Absent => {
                bridge.is_lost().await;
                true
            }
            End::Cut => bridge.rest(pace.after(opened.elapsed())).await,
        };
    }
}

impl Bridge {
    /// Waits for the session after `met`, which the gateway does not know.
    pub async fn renewed(&self, met: &Session) -> Result<(), Error> {
        let mut session = self.session.subscribe();
        let failures = session.borrow().failures;
        self.lost.fetch_max(met.generation, Ordering::Relaxed);
        self.bell.notify_one();
        let news = session.wait_for(|now| now.generation != met.generation || now.failures != failures);
        let news = tokio::time::timeout(RENEWAL_PATIENCE, news).await;
        match news.ok().and_then(Result::ok) {
            Some(now) if now.generation != met.generation => Ok(()),
            Some(now) => Err(now.reason.clone().unwrap_or_else(|| self.forgetful())),
            None => Err(self.forgetful()),
        }
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

    /// Waits before the next attempt; tells whether the session was found lost meanwhile.
    async fn rest(&self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => false,
            () = self.bell.notified() => self.lost_session(),
        }
    }

    async fn listen(&self, output: &Output) -> End {
        let headers = self.session.borrow().headers.clone();
        let response = match self.wire.get(&headers).await {
            Ok(response) => response,
            Err(_) => return End::Cut,
        };
        match response.status() {
            StatusCode::NOT_FOUND => return End::Forgotten,
            status if status.is_client_error() => return End::Absent,
            status if !status.is_success() => return End::Cut,
            _ => {}
        }
        let mut messages = Answers::new(response);
        while let Ok(Some(message)) = messages.next().await {
            let _ = output.send(message).await;
        }
        End::Cut
    }

    /// Repeats what the client said when it began, and tells it to list again.
    async fn renew(&self, output: &Output) -> Result<(), Error> {
        let Some(handshake) = self.handshake.get() else { return Err(self.forgetful()) };
        let (headers, _, version) = self.shake_hands(&handshake.hello).await?;
        if version.as_ref() != Some(&handshake.version) {
            let reason = format!("it does not speak protocol version {} any more", handshake.version);
            return Err(self.unavailable(reason, false));
        }
        let level = self.level.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for body in self.initialized.get().cloned().into_iter().chain(level) {
            let taken = tokio::time::timeout(HANDSHAKE_PATIENCE, self.wire.post(body, &headers)).await;
            taken.map_err(|_| self.forgetful())?.map_err(|error| self.unreachable(&error))?;
        }
        self.session.send_modify(|session| session.renew(headers));
        tracing::info!(url = self.wire.url(), "the gateway was restarted; the session was begun anew");
        if self.initialized.get().is_none() {
            return Ok(());
        }
        for method in [Method::ToolsChanged, Method::PromptsChanged, Method::ResourcesChanged] {
            let _ = output.send(crate::protocol::notification(&method, None)).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_last_is_tried_ever_more_seldom() {
        let mut pace = Pace(FIRST_RECONNECT);
        let pauses: Vec<_> = (0..8).map(|_| pace.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pace.after(LASTING), FIRST_RECONNECT);
    }
}
