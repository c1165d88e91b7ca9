//! One call of one client, and the write side of its stream.
//!
//! A [`Call`] is shared by the task that waits for the answer, the front that writes to the client and the link that hears
//! from the backend. The reply does not pass through it; progress and log lines do, through its [`Lane`].
//!
//! Policy when a lane is full: progress and log lines are dropped and counted. Nothing here waits.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::caller::Caller;

/// How many messages, and how many bytes of them, may wait for a client that reads slowly.
const MOST_MESSAGES: usize = 256;
const MOST_BYTES: usize = 1024 * 1024;

/// What is on its way to one client besides the answer.
#[derive(Default)]
pub struct Lane {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
    slow: bool,
}

impl Lane {
    /// Queues a message that may be dropped; tells whether it was taken.
    pub fn offer(&self, message: Bytes) -> bool {
        let mut queue = lock(&self.queue);
        let full = queue.messages.len() >= MOST_MESSAGES || queue.bytes + message.len() > MOST_BYTES;
        if queue.closed || full {
            return false;
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// Takes no more: the answer has been given.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
    }

    pub fn try_next(&self) -> Option<Bytes> {
        let mut queue = lock(&self.queue);
        let message = queue.messages.pop_front()?;
        queue.bytes -= message.len();
        Some(message)
    }

    /// Tells the reader, once, that the answer takes its time.
    pub fn tell_slow(&self) {
        lock(&self.queue).slow = true;
        self.wake.notify_one();
    }

    /// The next message; nothing when there is none and the answer takes its time. For one reader.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.try_next() {
                return Some(message);
            }
            if std::mem::take(&mut lock(&self.queue).slow) {
                return None;
            }
            self.wake.notified().await;
        }
    }
}

/// A request on its way through the gateway.
pub struct Call {
    pub caller: Caller,
    /// The client's progress token, as its JSON token; none where it wants no progress.
    pub progress_token: Option<Bytes>,
    pub lane: Lane,
    control: Mutex<Control>,
    controlled: Notify,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Why the call must end.
    pub cancelled: Option<String>,
    /// The backend showed a sign of life since the last look.
    pub alive: bool,
}

impl Call {
    pub fn new(caller: Caller, progress_token: Option<Bytes>) -> Call {
        Call { caller, progress_token, lane: Lane::default(), control: Mutex::default(), controlled: Notify::new() }
    }

    /// Ends the call: its slot is freed and the backend told. The first reason stands.
    pub fn cancel(&self, reason: &str) {
        lock(&self.control).cancelled.get_or_insert_with(|| reason.to_owned());
        self.controlled.notify_one();
    }

    pub fn is_cancelled(&self) -> bool {
        lock(&self.control).cancelled.is_some()
    }

    /// Restarts the call's deadline.
    pub fn show_life(&self) {
        lock(&self.control).alive = true;
        self.controlled.notify_one();
    }

    /// Waits until there is something to know. For the one task that awaits the answer.
    pub async fn control(&self) -> Control {
        loop {
            let control = {
                let mut state = lock(&self.control);
                Control { alive: std::mem::take(&mut state.alive), cancelled: state.cancelled.clone() }
            };
            if control != Control::default() {
                return control;
            }
            self.controlled.notified().await;
        }
    }
}

/// No code that holds these locks can panic, so a poisoned one still guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_so_many_messages_fit() {
        let lane = Lane::default();
        let taken = (0..MOST_MESSAGES + 10).filter(|_| lane.offer(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MOST_MESSAGES);
        assert!(lane.try_next().is_some());
        assert!(lane.offer(Bytes::from_static(b"x")));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let lane = Lane::default();
        assert!(lane.offer(vec![b'x'; MOST_BYTES].into()));
        assert!(!lane.offer(Bytes::from_static(b"x")));
    }

    #[test]
    fn nothing_is_taken_after_the_answer() {
        let lane = Lane::default();
        lane.close();
        assert!(!lane.offer(Bytes::from_static(b"x")));
    }

    #[tokio::test]
    async fn a_sign_of_life_is_told_once_and_a_cancellation_for_good() {
        let caller = Caller {
            session: None,
            principal: crate::caller::Principal::Anonymous,
            dialect: crate::protocol::dialect::Dialect::V2025_11_25,
            level: crate::caller::Level::Info,
        };
        let call = Call::new(caller, None);
        call.show_life();
        assert_eq!(call.control().await, Control { alive: true, cancelled: None });
        call.cancel("first");
        call.cancel("second");
        for _ in 0..2 {
            assert_eq!(call.control().await, Control { alive: false, cancelled: Some("first".to_owned()) });
        }
    }
}
