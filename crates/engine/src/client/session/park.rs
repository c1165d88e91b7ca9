//! Calls that wait for their client to come back.
//!
//! A backend with sessions asks in the middle of a call and waits. A client without a session cannot be asked: its call is
//! answered with what the backend wants to know, and comes back as another request that has the answers. Until then the
//! call waits here, on its way as before: it is never sent again. Full: the ask is refused. The call of a client that does
//! not come back in time is cancelled. What the backend took back, or does not wait for any more, is asked no more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::lane::{Call, Said};
use goblin_wire::error::Error;
use goblin_wire::json::Splice;
use goblin_wire::{Id, Message, Request};
use crate::router::Reply;
use crate::router::inputs::{Question, input_required, question, refuse};
use crate::router::state::State;
use crate::client::session::desk::{Desk, Pending};
use goblin_telemetry::worker;

/// How many calls may wait here.
const MOST_PARKED: usize = 1024;
/// How long one waits where asks have no time-out.
const LONGEST: Duration = Duration::from_secs(3600);
/// The backend may go on without the answers when they are late: then there is something to come back for, for so long.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// How exactly the times of those are kept.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub struct Park {
    book: Mutex<HashMap<u128, Parked>>,
    room: Arc<Semaphore>,
}

/// A call that waits.
struct Parked {
    pending: Pending,
    open: Vec<Question>,
    expires: Instant,
    place: OwnedSemaphorePermit,
}

/// What becomes of a call that came back.
pub enum Resumed {
    /// Something is still missing.
    Asks(Reply),
    Pending(Pending),
}

impl Default for Park {
    fn default() -> Park {
        Park { book: Mutex::default(), room: Arc::new(Semaphore::new(MOST_PARKED)) }
    }
}

impl Park {
    fn book(&self) -> MutexGuard<'_, HashMap<u128, Parked>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the calls whose clients did not come back in time.
    pub fn forget_late(&self, now: Instant) {
        let late: Vec<_> = self.book().extract_if(|_, parked| parked.expires <= now).collect();
        for (_, parked) in late {
            parked.pending.call.cancel("the client did not come back with what it was asked");
        }
    }
}

impl Desk {
    /// Ends calls whose clients do not come back, and forgets tasks whose time is over, for ever.
    pub async fn keep_park(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.park.forget_late(Instant::now());
            self.router.tasks.forget_late(Instant::now());
        }
    }

    /// Puts a call aside that asks its client something. The answer to `request`, which is the call or came back to it,
    /// says what; where nothing can be asked, the backend was told so and the call goes on.
    pub fn park(&self, mut pending: Pending, request: &Id, asks: Vec<Bytes>) -> Result<Reply, Pending> {
        let open = questions(&pending.call, asks);
        if open.is_empty() {
            return Err(pending);
        }
        let Ok(place) = Arc::clone(&self.park.room).try_acquire_owned() else {
            for question in open {
                refuse(&pending.call, Some(question.id), "too many calls wait for their clients");
            }
            return Err(pending);
        };
        // It goes on while nobody waits for it.
        let answer = worker::spawn(pending.answer);
        pending.answer = Box::pin(async move { answer.await.ok().flatten() });
        Ok(self.put(pending, request, open, place))
    }

    fn put(&self, pending: Pending, request: &Id, open: Vec<Question>, place: OwnedSemaphorePermit) -> Reply {
        let patience = self.policies.ask_timeout.unwrap_or(LONGEST).min(LONGEST) + AFTERWARDS;
        let id = random();
        let call = &pending.call;
        let state = self.router.states.seal(&State::Parked(id), &call.caller, &call.request, patience);
        let asked: Vec<_> = open.iter().map(|question| question.asked.as_str()).collect();
        let result = input_required(&asked.join(","), &state);
        self.park.book().insert(id, Parked { pending, open, expires: Instant::now() + patience, place });
        goblin_wire::reply(request, result).into()
    }

    /// Goes on with the call that `request` comes back to, with the answers it has.
    pub(super) fn resume(&self, id: u128, request: &Request, token: Option<Bytes>) -> Result<Resumed, Error> {
        let Parked { mut pending, mut open, place, .. } = self.park.book().remove(&id).ok_or(Error::StaleState)?;
        // Before the backend has the answers: what it says then is said under the new token. What it has said meanwhile
        // has the token of the request before, and nobody to hear it.
        pending.call.set_progress_token(token);
        let call = &pending.call;
        let asks = std::iter::from_fn(|| call.lane.try_next()).filter_map(|said| match said {
            Said::Ask(ask) => Some(ask),
            Said::Note(_) => None,
        });
        let asks = asks.collect();
        open.retain(|question| !question.answer(call, request) && question.is_open(call));
        open.extend(questions(call, asks));
        if !open.is_empty() {
            return Ok(Resumed::Asks(self.put(pending, &request.id, open, place)));
        }
        let id = request.id.clone();
        let answer = std::mem::replace(&mut pending.answer, Box::pin(std::future::ready(None)));
        pending.answer = Box::pin(async move { answer.await.map(|reply| under(reply, &id)) });
        Ok(Resumed::Pending(pending))
    }
}

/// What the client is asked. What has no place in a result is refused; what was taken back meanwhile is left out.
fn questions(call: &Call, asks: Vec<Bytes>) -> Vec<Question> {
    let mut open = Vec::new();
    for ask in asks {
        match question(ask) {
            Ok(question) => open.push(question),
            Err(refused) => refuse(call, refused, "it cannot be asked this without a session"),
        }
    }
    open.retain(|question| question.is_open(call));
    open
}

/// The same answer to another request.
fn under(reply: Reply, id: &Id) -> Reply {
    match Message::parse(reply.pieces.concat()) {
        Ok(Message::Response(response)) => Reply { pieces: response.rekeyed(id, Splice::new()), code: reply.code },
        // We wrote it ourselves.
        _ => reply,
    }
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::lane::End;
    use crate::client::mailbox::asks::{Ask, Word};

    /// A call that waits for ever, and whose backend asks `count` things.
    fn asking(count: usize) -> (Pending, Vec<Ask>, Vec<Bytes>) {
        let call = Arc::new(Call::example());
        let asks: Vec<_> = (0..count).map(|_| call.mailbox.asks.open().expect("there is room")).collect();
        let messages = asks.iter().map(|ask| {
            let id = ask.id;
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#).into()
        });
        let messages = messages.collect();
        (Pending { call, answer: Box::pin(std::future::pending()) }, asks, messages)
    }

    fn park(desk: &Desk, (pending, asks, messages): (Pending, Vec<Ask>, Vec<Bytes>)) -> (Arc<Call>, Vec<Ask>, bool) {
        let call = Arc::clone(&pending.call);
        let is_parked = desk.park(pending, &Id::from(1), messages).is_ok();
        (call, asks, is_parked)
    }

    #[tokio::test]
    async fn ask_a_client_that_does_not_come_back_ends_its_call_in_time_and_not_before() {
        let desk = Desk::example(1);
        let (call, _asks, is_parked) = park(&desk, asking(1));
        assert!(is_parked);
        let id = *desk.park.book().keys().next().expect("it waits");
        let patience = desk.policies.ask_timeout.expect("asks have a time-out") + AFTERWARDS;
        desk.park.forget_late(Instant::now() + patience - Duration::from_secs(5));
        assert_eq!(call.end_so_far(), None);
        desk.park.forget_late(Instant::now() + patience);
        assert!(matches!(call.end_so_far(), Some(End::Cancelled(reason)) if reason.contains("did not come back")));
        assert!(matches!(desk.resume(id, &call.request, None), Err(Error::StaleState)), "it comes too late");
        assert_eq!(desk.park.room.available_permits(), MOST_PARKED);
    }

    #[tokio::test]
    async fn ask_exactly_so_many_calls_wait_and_the_next_ask_is_refused() {
        let desk = Desk::example(1);
        let mut parked: Vec<_> = (0..MOST_PARKED).map(|_| park(&desk, asking(1))).collect();
        assert!(parked.iter().all(|(_, _, is_parked)| *is_parked));
        let (_, mut asks, is_parked) = park(&desk, asking(2));
        assert!(!is_parked);
        for ask in &mut asks {
            let refusal = ask.next().await;
            assert!(matches!(refusal, Word::Answer(answer) if answer.raw.as_str().contains("too many calls")));
        }
        let (call, mut asks, _) = parked.pop().expect("there are some");
        let is_its = |parked: &Parked| Arc::ptr_eq(&parked.pending.call, &call);
        let id = desk.park.book().iter().find(|(_, parked)| is_its(parked)).map(|(id, _)| *id).expect("it waits");
        // Asked again: it keeps its place.
        assert!(matches!(desk.resume(id, &call.request, None), Ok(Resumed::Asks(_))));
        assert!(!park(&desk, asking(1)).2);
        // Nobody waits for the answer any more: the call goes on, and its place is free.
        asks.clear();
        let id = desk.park.book().iter().find(|(_, parked)| is_its(parked)).map(|(id, _)| *id).expect("it waits");
        assert!(matches!(desk.resume(id, &call.request, None), Ok(Resumed::Pending(_))));
        assert!(park(&desk, asking(1)).2);
    }

    #[tokio::test]
    async fn ask_what_was_taken_back_is_not_asked() {
        let desk = Desk::example(1);
        let (pending, mut asks, messages) = asking(2);
        asks.clear();
        assert!(!park(&desk, (pending, asks, messages)).2, "there is nothing to ask");
        let (pending, mut asks, messages) = asking(2);
        asks.pop();
        let Ok(reply) = desk.park(pending, &Id::from(1), messages) else { panic!("it is parked") };
        let text = String::from_utf8_lossy(&reply.pieces.concat()).into_owned();
        assert!(text.contains("ask-1") && !text.contains("ask-2"), "{text}");
    }

    #[test]
    fn ask_a_question_keeps_what_it_asks_and_no_more() {
        let check = |ask: &'static str, expected: Option<&str>| {
            let asked = question(Bytes::from_static(ask.as_bytes())).ok().map(|question| question.asked);
            assert_eq!(asked.as_deref(), expected, "{ask}");
        };
        check(
            r#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"u","_meta":{"progressToken":3},"x":1.0}}"#,
            Some(r#""ask-3":{"method":"elicitation/create","params":{"mode":"url","url":"u","x":1.0}}"#),
        );
        check(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#, Some(r#""ask-4":{"method":"roots/list"}"#));
        check(r#"{"jsonrpc":"2.0","id":5,"method":"tasks/get","params":{}}"#, None);
    }
}
