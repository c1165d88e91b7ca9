//! The book of a client's open requests: admitted once, found by their id, gone with their answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lane::Call;
use crate::protocol::Id;
use crate::protocol::error::Error;

#[derive(Default)]
pub struct Inflight {
    calls: Mutex<HashMap<Id, Arc<Call>>>,
}

/// A request's place in the book; dropping it frees the place.
pub struct Ticket {
    book: Arc<Inflight>,
    id: Id,
}

impl Inflight {
    pub fn admit(self: &Arc<Inflight>, id: &Id, call: &Arc<Call>, most: usize) -> Result<Ticket, Error> {
        let mut calls = self.lock();
        if calls.contains_key(id) {
            return Err(Error::InvalidRequest(format!("a request with the id {id} is in flight")));
        }
        if calls.len() >= most {
            return Err(Error::LimitExceeded { limit: "maxInFlight", value: most });
        }
        calls.insert(id.clone(), Arc::clone(call));
        Ok(Ticket { book: Arc::clone(self), id: id.clone() })
    }

    /// Cancels one request; one that is not open is none of our business.
    pub fn cancel(&self, id: &Id, reason: &str) {
        if let Some(call) = self.lock().get(id) {
            call.cancel(reason);
        }
    }

    pub fn cancel_all(&self, reason: &str) {
        for call in self.lock().values() {
            call.cancel(reason);
        }
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Arc<Call>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.book.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Caller, Level, Principal};
    use crate::protocol::dialect::Dialect;

    fn call() -> Arc<Call> {
        let caller = Caller {
            session: None,
            principal: Principal::Anonymous,
            dialect: Dialect::V2025_11_25,
            level: Level::Info,
        };
        Arc::new(Call::new(caller, None))
    }

    #[test]
    fn exactly_so_many_are_admitted_and_a_place_is_freed_by_its_ticket() {
        let book = Arc::new(Inflight::default());
        let mut tickets: Vec<_> = (0..3).map(|id| book.admit(&Id::from(id), &call(), 3).ok()).collect();
        assert!(tickets.iter().all(Option::is_some));
        assert!(matches!(book.admit(&Id::from(9), &call(), 3), Err(Error::LimitExceeded { .. })));
        tickets.pop();
        assert!(book.admit(&Id::from(9), &call(), 3).is_ok());
    }

    #[test]
    fn an_id_in_flight_is_refused_and_the_first_stays() {
        let book = Arc::new(Inflight::default());
        let ticket = book.admit(&Id::from(1), &call(), 9);
        assert!(ticket.is_ok());
        assert!(matches!(book.admit(&Id::from(1), &call(), 9), Err(Error::InvalidRequest(_))));
        assert_eq!(book.len(), 1);
    }
}
