//! The history of ended calls, for operators.
//!
//! The ledger is a ring with a limit in calls and one in bytes, which count towards `gateway.maxMemory`. It never
//! contains arguments or results, and the secrets of URIs are masked. Every call of a client adds one entry, so an entry
//! costs one short lock and two small allocations. A reader copies references under the lock. It filters, cleans and
//! formats the entries afterwards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use goblin_config::ServerId;
use goblin_telemetry::meter::MethodLabel;
use goblin_wire::memory::{BufferKind, Memory, Reservation};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::call::{Call, Reply};
use crate::client::call_name;
use crate::client::caller::SessionId;
use crate::client::outcome::{CallFailure, CallOutcome, CallResult};

/// The limits of the ledger, in calls and in bytes.
pub(crate) const MAX_CALLS: usize = 1000;
pub(crate) const MAX_BYTES: usize = 1024 * 1024;

/// An ended call. The names are as the client sent them, except for masked secrets of URIs.
#[derive(Debug)]
pub(crate) struct EndedCall {
    /// The sequence number. It starts at 1 and has no gaps.
    pub seq: u64,
    pub ended: SystemTime,
    pub client: Arc<str>,
    pub session: Option<SessionId>,
    pub method: MethodLabel,
    /// The exposed name of the tool or prompt, or the exposed URI.
    pub name: Box<str>,
    pub server: Option<ServerId>,
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub took: Duration,
    pub result: CallResult,
    pub failure: Option<Box<CallFailure>>,
}

impl EndedCall {
    /// Returns the entry of a call. Returns `None` if the ledger does not record its method.
    pub(crate) fn of(
        call: &Call,
        took: Duration,
        answer: Option<&Reply>,
        outcome: &mut CallOutcome,
    ) -> Option<EndedCall> {
        let method = MethodLabel::from(&call.request.method);
        if method == MethodLabel::Other {
            return None;
        }
        Some(EndedCall {
            seq: 0,
            ended: SystemTime::now(),
            client: Arc::clone(&call.client.introduction.name),
            session: call.caller.session,
            method,
            name: call_name::of(&call.request),
            server: call.server.get().cloned(),
            request_bytes: call.request.raw.as_str().len(),
            response_bytes: answer.map_or(0, |answer| answer.pieces.len()),
            took,
            result: outcome.result,
            failure: outcome.failure.take(),
        })
    }

    fn size(&self) -> usize {
        let failure = self.failure.as_ref().map_or(0, |failure| {
            size_of::<CallFailure>() + failure.message.capacity() + failure.code.as_ref().map_or(0, String::capacity)
        });
        size_of::<EndedCall>() + self.name.len() + failure
    }
}

#[derive(Debug)]
struct LedgerRing {
    calls: VecDeque<Arc<EndedCall>>,
    /// The size of the calls.
    reserved: Reservation,
    /// The number of calls so far.
    total: u64,
}

/// The newest ended calls.
#[derive(Debug)]
pub(crate) struct CallLedger {
    ring: Mutex<LedgerRing>,
    /// The number of readers that wait for a call.
    waiting: AtomicUsize,
    added: Notify,
}

/// The calls after a sequence number.
#[derive(Debug)]
pub(crate) struct CallsAfter {
    /// The number of calls so far.
    pub total: u64,
    /// The number of calls after the sequence number that were removed.
    pub missed: u64,
    /// The kept calls, oldest first.
    pub calls: Vec<Arc<EndedCall>>,
}

impl CallLedger {
    pub(crate) fn new(memory: &Arc<Memory>) -> CallLedger {
        let reserved = memory.hold(BufferKind::Calls, 0);
        let ring = LedgerRing { calls: VecDeque::new(), reserved, total: 0 };
        CallLedger { ring: Mutex::new(ring), waiting: AtomicUsize::new(0), added: Notify::new() }
    }

    /// Adds a call. Removes the oldest ones beyond the limits.
    pub(crate) fn add(&self, call: EndedCall) {
        let mut call = Arc::new(call);
        let mut ring = self.ring.lock();
        ring.total += 1;
        Arc::get_mut(&mut call).expect("no other reference exists yet").seq = ring.total;
        ring.reserved.add(call.size());
        ring.calls.push_back(call);
        let mut removed = None;
        while ring.calls.len() > MAX_CALLS || ring.reserved.bytes() > MAX_BYTES {
            removed = ring.calls.pop_front();
            ring.reserved.shrink(removed.as_ref().map_or(0, |removed| removed.size()));
        }
        drop(ring);
        // Free the removed call outside of the lock.
        drop(removed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.added.notify_waiters();
        }
    }

    /// Returns the calls after a sequence number. A number of an earlier run of the gateway counts as 0.
    pub(crate) fn after(&self, seq: u64) -> CallsAfter {
        let ring = self.ring.lock();
        let start = if seq > ring.total { 0 } else { seq };
        let oldest = ring.calls.front().map_or(ring.total + 1, |call| call.seq);
        let known = usize::try_from((start + 1).saturating_sub(oldest)).unwrap_or(usize::MAX);
        let calls = ring.calls.range(known.min(ring.calls.len())..).cloned().collect();
        CallsAfter { total: ring.total, missed: oldest.saturating_sub(start + 1), calls }
    }

    /// Waits for a call after a sequence number that `selects` selects. Looks at each call once.
    pub(crate) async fn wait_after(&self, seq: u64, selects: impl Fn(&EndedCall) -> bool) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitGuard(&self.waiting);
        let mut seen = seq;
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            // Enable the notification before the check, or a call between the check and the wait is lost.
            added.as_mut().enable();
            let CallsAfter { total, calls, .. } = self.after(seen);
            if calls.iter().any(|call| selects(call)) {
                return;
            }
            seen = total;
            added.await;
        }
    }
}

struct WaitGuard<'a>(&'a AtomicUsize);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &str, failure: Option<Box<CallFailure>>) -> EndedCall {
        let mut outcome = CallOutcome { result: CallResult::Ok, failure };
        let entry = EndedCall::of(&Call::example(), Duration::ZERO, None, &mut outcome);
        EndedCall { name: name.into(), ..entry.expect("the ledger records tools/call") }
    }

    fn sequence(ledger: &CallLedger) -> (u64, Vec<u64>) {
        let CallsAfter { total, calls, .. } = ledger.after(0);
        (total, calls.iter().map(|call| call.seq).collect())
    }

    #[test]
    fn use6_the_ledger_keeps_the_newest_calls() {
        let ledger = CallLedger::new(&Arc::default());
        for _ in 0..MAX_CALLS + 5 {
            ledger.add(ended("t", None));
        }
        let (total, kept) = sequence(&ledger);
        assert_eq!((total, kept.len(), kept[0], kept[MAX_CALLS - 1]), (1005, MAX_CALLS, 6, 1005));
    }

    #[test]
    fn use6_a_reader_gets_the_calls_after_a_number_and_the_number_of_missed_ones() {
        let ledger = CallLedger::new(&Arc::default());
        for _ in 0..MAX_CALLS + 5 {
            ledger.add(ended("t", None));
        }
        for (seq, expected) in [
            (0, (5, Some(6), MAX_CALLS)),
            (3, (2, Some(6), MAX_CALLS)),
            (5, (0, Some(6), MAX_CALLS)),
            (1003, (0, Some(1004), 2)),
            (1005, (0, None, 0)),
            (1006, (5, Some(6), MAX_CALLS)),
        ] {
            let CallsAfter { missed, calls, .. } = ledger.after(seq);
            assert_eq!((missed, calls.first().map(|call| call.seq), calls.len()), expected, "after {seq}");
        }
    }

    #[test]
    fn hard2_the_bytes_of_the_ledger_are_bounded_and_counted() {
        let memory = Arc::default();
        let ledger = CallLedger::new(&memory);
        let failure = || Some(Box::new(CallFailure { code: None, message: "x".repeat(MAX_BYTES / 10) }));
        for _ in 0..20 {
            ledger.add(ended("t", failure()));
        }
        let (total, kept) = sequence(&ledger);
        assert_eq!((total, kept.len()), (20, 9));
        assert!(ledger.ring.lock().reserved.bytes() <= MAX_BYTES);
        for _ in 0..MAX_CALLS {
            ledger.add(ended("t", None));
        }
        let bytes = ledger.ring.lock().reserved.bytes();
        assert!(memory.read().contains(&("calls", bytes)));
        assert_eq!(bytes, MAX_CALLS * (size_of::<EndedCall>() + 1), "the size of removed calls is subtracted");
    }

    #[tokio::test]
    async fn use6_a_reader_wakes_when_a_call_ends() {
        let ledger = Arc::new(CallLedger::new(&Arc::default()));
        let (reader, looked_at) = (Arc::clone(&ledger), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&looked_at);
        let waiting = tokio::spawn(async move {
            let is_b = |call: &EndedCall| {
                count.fetch_add(1, Ordering::Relaxed);
                &*call.name == "b"
            };
            reader.wait_after(0, is_b).await;
        });
        tokio::task::yield_now().await;
        ledger.add(ended("a", None));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        ledger.add(ended("b", None));
        waiting.await.expect("no panic");
        assert_eq!(looked_at.load(Ordering::Relaxed), 2, "the reader looks at each call once");
        assert_eq!(ledger.waiting.load(Ordering::Relaxed), 0);
    }
}
