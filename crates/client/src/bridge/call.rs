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
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// The progress of one message, shared by the future that sends it and the one that cancels it.
#[derive(Default)]
pub(crate) struct SendProgress {
    /// Set once the gateway has the message.
    arrived: watch::Sender<bool>,
    /// Set once the client cancelled the request.
    given_up: AtomicBool,
}

impl SendProgress {
    pub(crate) fn arrive(&self) {
        self.arrived.send_replace(true);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
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
    let way = SendProgress::default();
    let carried = {
        let carrying = bridge.carry(outgoing, output, &mut waiting, &way);
        tokio::pin!(carrying);
        tokio::select! {
            biased;
            Ok(cancel) = cancel => return give_up(bridge, carrying, &way, &cancel, output).await,
            carried = &mut carrying => carried,
        }
    };
    if waiting.is_empty() {
        return;
    }
    let ended_early = || bridge.unavailable("the answer ended early".to_owned(), true);
    let error = carried.err().unwrap_or_else(ended_early).to_json();
    for id in &waiting {
        let _ = output.send(goblin_wire::error_reply(Some(id), &error).concat()).await;
    }
}

/// Forwards a cancellation while `carrying`, the future that sends the request, continues.
async fn give_up<T>(
    bridge: &Bridge,
    carrying: Pin<&mut impl Future<Output = T>>,
    way: &SendProgress,
    cancel: &ClientMessage,
    output: &ClientOutput,
) {
    way.give_up();
    let had_arrived = *way.arrived.borrow();
    let arrives = async {
        tokio::select! {
            biased;
            // The request was answered, or was never sent.
            _ = carrying => false,
            () = way.arrival() => true,
            () = tokio::time::sleep(SHOWN_WITHIN) => false,
        }
    };
    let ((), arrived) = tokio::join!(bridge.carry_aside(cancel, output), arrives);
    if arrived && !had_arrived {
        bridge.carry_aside(cancel, output).await;
    }
}
