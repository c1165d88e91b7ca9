//! The queue of all messages to a client with one stream, in the order of their arrival.
//!
//! If the queue is full, progress and log messages are dropped, as in a [`Call`](crate::client::call::Call). An answer
//! must not be dropped, so its sender closes the stream. Droppable messages have a lower limit, which leaves room for
//! answers. No function here waits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures_util::task::AtomicWaker;
use goblin_wire::json::Pieces;
use parking_lot::Mutex;

/// The limits of the queue: for all messages, and for those that may be dropped. A client that reads without delay must
/// not reach the first, even if all its calls are answered at once.
const MAX_QUEUED: Bound = Bound { messages: 1024, bytes: 64 << 20 };
const MAX_DROPPABLE: Bound = Bound { messages: 256, bytes: 1 << 20 };

#[derive(Clone, Copy)]
struct Bound {
    messages: usize,
    bytes: usize,
}

#[derive(Default)]
pub(crate) struct OutboundQueue {
    queue: Mutex<OutboundState>,
    wake: AtomicWaker,
}

#[derive(Default)]
struct OutboundState {
    messages: VecDeque<Pieces>,
    bytes: usize,
    writers: usize,
    finishing: bool,
    closed: bool,
}

impl OutboundState {
    /// Reports whether a message fits. An empty queue accepts a message of any size.
    fn has_room(&self, length: usize, bound: Bound) -> bool {
        self.messages.is_empty() || self.messages.len() < bound.messages && self.bytes + length <= bound.bytes
    }

    fn push(&mut self, message: Pieces) {
        self.bytes += message.len();
        self.messages.push_back(message);
    }
}

/// The reason why a message was rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EnqueueError {
    Full,
    Closed,
}

impl OutboundQueue {
    /// Queues a message that may be dropped. Returns `false` if it was rejected.
    pub(crate) fn offer(&self, message: Pieces) -> bool {
        self.push_within(message, MAX_DROPPABLE).is_ok()
    }

    /// Queues a message that must not be dropped. Returns an error if the queue is full or closed.
    pub(crate) fn push(&self, message: Pieces) -> Result<(), EnqueueError> {
        self.push_within(message, MAX_QUEUED)
    }

    fn push_within(&self, message: Pieces, bound: Bound) -> Result<(), EnqueueError> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(EnqueueError::Closed);
        }
        if !queue.has_room(message.len(), bound) {
            return Err(EnqueueError::Full);
        }
        queue.push(message);
        drop(queue);
        self.wake.wake();
        Ok(())
    }

    /// Closes the queue and discards its messages.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let discarded = std::mem::take(&mut queue.messages);
        queue.bytes = 0;
        drop(queue);
        drop(discarded);
        self.wake.wake();
    }

    /// Ends the queue after the last writer is dropped and the last message is read.
    pub(crate) fn finish(&self) {
        self.queue.lock().finishing = true;
        self.wake.wake();
    }

    /// Registers a writer. [`finish`](OutboundQueue::finish) has no effect until all writers are dropped.
    pub(crate) fn writer(self: &Arc<OutboundQueue>) -> OutboundWriter {
        self.queue.lock().writers += 1;
        OutboundWriter(Arc::clone(self))
    }

    /// Waits for the next message. Returns `None` at the end. Only one task may read the queue.
    pub(crate) async fn next(&self) -> Option<Pieces> {
        poll_fn(|context| {
            // Register before the check, or a message between the check and the wait is lost.
            self.wake.register(context.waker());
            let mut queue = self.queue.lock();
            if let Some(message) = queue.messages.pop_front() {
                queue.bytes -= message.len();
                return Poll::Ready(Some(message));
            }
            let is_over = queue.closed || queue.finishing && queue.writers == 0;
            if is_over { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

pub(crate) struct OutboundWriter(Arc<OutboundQueue>);

impl Drop for OutboundWriter {
    fn drop(&mut self) {
        self.0.queue.lock().writers -= 1;
        self.0.wake.wake();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn message(length: usize) -> Pieces {
        "x".repeat(length).into()
    }

    #[test]
    fn droppable_messages_have_a_smaller_limit_than_answers() {
        let outbound = OutboundQueue::default();
        let taken = (0..2000).filter(|_| outbound.offer(message(1))).count();
        assert_eq!(taken, MAX_DROPPABLE.messages);
        let taken = (0..2000).take_while(|_| outbound.push(message(1)).is_ok()).count();
        assert_eq!(taken, MAX_QUEUED.messages - MAX_DROPPABLE.messages);
        assert_eq!(outbound.push(message(1)), Err(EnqueueError::Full));
        assert!(outbound.next().now_or_never().is_some());
        assert_eq!(outbound.push(message(1)), Ok(()));
    }

    #[test]
    fn queued_bytes_are_bounded_but_one_message_always_fits() {
        let outbound = OutboundQueue::default();
        assert!(outbound.push(message(MAX_QUEUED.bytes + 1)).is_ok());
        assert_eq!(outbound.push(message(1)), Err(EnqueueError::Full));
        let outbound = OutboundQueue::default();
        assert!(outbound.offer(message(MAX_DROPPABLE.bytes - 1)) && outbound.offer(message(1)));
        assert!(!outbound.offer(message(1)));
        assert!(outbound.push(message(1)).is_ok());
    }

    #[test]
    fn a_closed_queue_drops_its_messages_and_takes_none() {
        let outbound = OutboundQueue::default();
        assert!(outbound.push(message(1)).is_ok());
        outbound.close();
        assert_eq!(outbound.push(message(1)), Err(EnqueueError::Closed));
        assert!(outbound.next().now_or_never().expect("the queue has ended").is_none());
    }

    #[test]
    fn a_queue_finishes_after_its_last_writer_and_message() {
        let outbound = Arc::new(OutboundQueue::default());
        let writer = outbound.writer();
        outbound.finish();
        assert!(outbound.next().now_or_never().is_none());
        assert!(outbound.push(message(1)).is_ok());
        drop(writer);
        assert!(outbound.next().now_or_never().expect("a message").is_some());
        assert!(outbound.next().now_or_never().expect("the queue has ended").is_none());
    }
}
