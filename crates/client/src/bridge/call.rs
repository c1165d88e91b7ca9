//! Runs one request of the client, or one batch, until it is answered or cancelled.
//!
//! A request and its cancellation are two POSTs, and nothing orders two connections. A cancellation that arrives first
//! has no effect. The bridge therefore sends it at once, and again as soon as the gateway shows that it has the
//! request. The response head shows it; Goblin sends that head early if a call is slow. Cancelling a request twice is
//! harmless.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::bridge::message::ClientMessage;
use crate::bridge::{Bridge, ClientOutput};

/// How long the bridge waits for a sign that the gateway has a cancelled request. The request then frees its place.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// The progress of one message, shared by the future that sends it and the one that cancels it.
#[derive(Default)]
pub(crate) struct SendProgress {
    /// Set once the gateway has the message.
    arrived: watch::Sender<bool>,
    /// Set once the client cancelled the request.
    cancelled: AtomicBool,
}

impl SendProgress {
    pub(crate) fn arrive(&self) {
        self.arrived.send_replace(true);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    async fn arrival(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.arrived.subscribe().wait_for(|arrived| *arrived).await;
    }
}

/// Runs `outgoing` until every request in it is answered. `cancel` receives the client's cancellation.
pub(crate) async fn call(
    bridge: Arc<Bridge>,
    outgoing: ClientMessage,
    output: ClientOutput,
    cancel: oneshot::Receiver<ClientMessage>,
) {
    answer(&bridge, &outgoing, &output, cancel).await;
    bridge.subscriptions().close(&outgoing);
}

async fn answer(
    bridge: &Bridge,
    outgoing: &ClientMessage,
    output: &ClientOutput,
    cancel: oneshot::Receiver<ClientMessage>,
) {
    let mut waiting = outgoing.waiting();
    let progress = SendProgress::default();
    let forwarded = {
        let forwarding = bridge.forward(outgoing, output, &mut waiting, &progress);
        tokio::pin!(forwarding);
        tokio::select! {
            biased;
            Ok(cancel) = cancel => return forward_cancel(bridge, forwarding, &progress, &cancel, output).await,
            forwarded = &mut forwarding => forwarded,
        }
    };
    if waiting.is_empty() {
        return;
    }
    let ended_early = || bridge.unavailable("the answer ended early".to_owned(), true);
    let error = forwarded.err().unwrap_or_else(ended_early).to_json();
    for id in &waiting {
        let _ = output.send(goblin_wire::error_reply(Some(id), &error).concat()).await;
    }
}

/// Forwards a cancellation while `forwarding`, the future that sends the request, continues.
async fn forward_cancel<T>(
    bridge: &Bridge,
    forwarding: Pin<&mut impl Future<Output = T>>,
    progress: &SendProgress,
    cancel: &ClientMessage,
    output: &ClientOutput,
) {
    progress.cancel();
    let had_arrived = *progress.arrived.borrow();
    let arrives = async {
        tokio::select! {
            biased;
            // The request was answered, or was never sent.
            _ = forwarding => false,
            () = progress.arrival() => true,
            () = tokio::time::sleep(ARRIVAL_TIMEOUT) => false,
        }
    };
    let ((), arrived) = tokio::join!(bridge.forward_with_timeout(cancel, output), arrives);
    if arrived && !had_arrived {
        bridge.forward_with_timeout(cancel, output).await;
    }
}
