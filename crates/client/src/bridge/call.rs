//! One request of the client, or several as a batch, until it is answered or the client gives it up.
//!
//! A request and the notification that cancels it are two POSTs, and nothing orders two connections: the cancel may come
//! first, when it means nothing yet, and the request would run for nobody. So the gateway is told at once and, where it had
//! not shown that it has the request, told again as soon as it does: by the head of its answer, which Goblin sends at the
//! latest when a call is slow. A request that is cancelled twice is cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::bridge::message::Outgoing;
use crate::bridge::{Bridge, Output};

/// How long a gateway may take to show that it has a request that was given up; then the request keeps nobody's place.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// Where a message is on its way, for those who look on.
#[derive(Default)]
pub struct Way {
    /// The gateway has it.
    arrived: watch::Sender<bool>,
    /// Nobody waits for it any more.
    given_up: AtomicBool,
}

impl Way {
    pub fn arrive(&self) {
        self.arrived.send_replace(true);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    async fn arrival(&self) {
        // The sender is ours.
        let _ = self.arrived.subscribe().wait_for(|arrived| *arrived).await;
    }
}

/// Carries `outgoing` until all of it is answered. `cancel` is the notification by which the client gives it up.
pub async fn call(bridge: Arc<Bridge>, outgoing: Outgoing, output: Output, cancel: oneshot::Receiver<Outgoing>) {
    answer(&bridge, &outgoing, &output, cancel).await;
    bridge.subscriptions().close(&outgoing);
}

async fn answer(bridge: &Bridge, outgoing: &Outgoing, output: &Output, cancel: oneshot::Receiver<Outgoing>) {
    let mut waiting = outgoing.waiting();
    let way = Way::default();
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
    let ended_early = || bridge.unavailable("its answer ended early".to_owned(), true);
    let error = carried.err().unwrap_or_else(ended_early).to_json();
    for id in &waiting {
        let _ = output.send(goblin_wire::error_reply(Some(id), &error).concat()).await;
    }
}

/// Tells the gateway that the request which is `carrying` itself there is not wanted any more.
async fn give_up<T>(
    bridge: &Bridge,
    carrying: Pin<&mut impl Future<Output = T>>,
    way: &Way,
    cancel: &Outgoing,
    output: &Output,
) {
    way.give_up();
    let had_arrived = *way.arrived.borrow();
    let arrives = async {
        tokio::select! {
            biased;
            // Answered, or not sent at all.
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
