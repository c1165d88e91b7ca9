//! The table of a client's open requests. A request is in it from its admission to its answer, and its id is unique.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use goblin_wire::{Error, Id};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::call::Call;

pub struct Inflight {
    book: Mutex<InflightTable>,
    pulse: Arc<OpenCallCount>,
}

/// The number of open calls of all clients. The task that checks timeouts sleeps while it is zero.
#[derive(Default)]
pub struct OpenCallCount {
    open: AtomicUsize,
    begun: Notify,
}

impl OpenCallCount {
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub fn is_quiet(&self) -> bool {
        self.open() == 0
    }

    /// Waits until a call is open.
    pub async fn begun(&self) {
        while self.is_quiet() {
            self.begun.notified().await;
        }
    }
}

#[derive(Default)]
struct InflightTable {
    calls: HashMap<Id, Arc<Call>>,
    closed: bool,
}

/// A guard for a request's entry. Dropping it removes the entry.
pub struct InflightGuard {
    book: Arc<Inflight>,
    id: Id,
}

impl Inflight {
    pub fn new(pulse: Arc<OpenCallCount>) -> Inflight {
        Inflight { book: Mutex::default(), pulse }
    }

    /// Adds a call. Returns an error if the id is in use, `most` requests are open or the session has ended.
    pub fn admit(self: &Arc<Inflight>, id: &Id, call: &Arc<Call>, most: usize) -> Result<InflightGuard, Error> {
        let mut book = self.book.lock();
        if book.closed {
            return Err(Error::InvalidRequest("the session has ended".to_owned()));
        }
        if book.calls.contains_key(id) {
            return Err(Error::InvalidRequest(format!("a request with the id {id} is in flight")));
        }
        if book.calls.len() >= most {
            return Err(Error::LimitExceeded { limit: "maxInFlight", value: most });
        }
        book.calls.insert(id.clone(), Arc::clone(call));
        drop(book);
        if self.pulse.open.fetch_add(1, Ordering::AcqRel) == 0 {
            self.pulse.begun.notify_one();
        }
        Ok(InflightGuard { book: Arc::clone(self), id: id.clone() })
    }

    pub(crate) fn look_at_clock(&self, now: Instant) {
        for call in self.book.lock().calls.values() {
            call.look_at_clock(now);
        }
    }

    pub fn calls(&self) -> Vec<Arc<Call>> {
        self.book.lock().calls.values().cloned().collect()
    }

    /// Cancels a request. Does nothing if it is not open, since its answer may be on the way.
    pub fn cancel(&self, id: &Id, reason: &str) {
        if let Some(call) = self.book.lock().calls.get(id) {
            call.cancel(reason);
        }
    }

    /// Cancels all requests and rejects new ones.
    pub fn close(&self, reason: &str) {
        let mut book = self.book.lock();
        book.closed = true;
        for call in book.calls.values() {
            call.cancel(reason);
        }
    }

    pub fn len(&self) -> usize {
        self.book.lock().calls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.book.book.lock().calls.remove(&self.id);
        self.book.pulse.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Arc<Call> {
        Arc::new(Call::example())
    }

    #[test]
    fn exactly_so_many_are_admitted_and_a_place_is_freed_by_its_ticket() {
        let book = Arc::new(Inflight::new(Arc::default()));
        let mut tickets: Vec<_> = (0..3).map(|id| book.admit(&Id::from(id), &call(), 3).ok()).collect();
        assert!(tickets.iter().all(Option::is_some));
        assert!(matches!(book.admit(&Id::from(9), &call(), 3), Err(Error::LimitExceeded { .. })));
        tickets.pop();
        assert!(book.admit(&Id::from(9), &call(), 3).is_ok());
    }

    #[tokio::test]
    async fn a_closed_book_admits_nothing_and_all_in_it_are_cancelled() {
        let book = Arc::new(Inflight::new(Arc::default()));
        let open = call();
        let _ticket = book.admit(&Id::from(1), &open, 9);
        book.close("over");
        assert!(open.end_so_far().is_some());
        assert!(book.admit(&Id::from(2), &call(), 9).is_err());
    }

    #[test]
    fn an_id_in_flight_is_refused_and_the_first_stays() {
        let book = Arc::new(Inflight::new(Arc::default()));
        let ticket = book.admit(&Id::from(1), &call(), 9);
        assert!(ticket.is_ok());
        assert!(matches!(book.admit(&Id::from(1), &call(), 9), Err(Error::InvalidRequest(_))));
        assert_eq!(book.len(), 1);
    }
}
