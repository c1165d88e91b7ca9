//! Calls that wait for their client to come back.
//!
//! A backend with sessions asks in the middle of a call and waits. A client without a session cannot be asked: its call is
//! answered with what the backend wants to know, and comes back as another request that has the answers. Until then the
//! call waits here, on its way as before: it is never sent again. Full: the ask is refused. A client that does not come
//! back in time ends its call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::lane::{Call, Said};
use crate::protocol::error::Error;
use crate::protocol::json::{self, Splice};
use crate::protocol::{self, Id, Message, Request};
use crate::router::Reply;
use crate::router::inputs::{Question, input_required, question, refuse};
use crate::router::state::State;
use crate::session::desk::{Desk, Pending};

/// How many calls may wait here.
const MOST_PARKED: usize = 1024;
/// How long one waits where asks have no time-out.
const LONGEST: Duration = Duration::from_secs(3600);
/// The backend may go on without the answers when they are late: then there is something to come back for, for so long.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// How exactly the times of those are kept.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Park {
    book: Mutex<HashMap<u128, Parked>>,
}

/// A call that waits. Its drop ends the call.
struct Parked {
    pending: Pending,
    open: Vec<Question>,
    expires: Instant,
}

/// What becomes of a call that came back.
pub enum Resumed {
    /// Something is still missing.
    Asks(Reply),
    Pending(Pending),
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

    pub fn len(&self) -> usize {
        self.book().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        let mut open = Vec::new();
        for ask in asks {
            match question(ask) {
                Ok(question) => open.push(question),
                Err(refused) => refuse(&pending.call, refused, "it cannot be asked this without a session"),
            }
        }
        if open.is_empty() {
            return Err(pending);
        }
        if self.park.len() >= MOST_PARKED {
            for question in open {
                refuse(&pending.call, Some(question.id), "too many calls wait for their clients");
            }
            return Err(pending);
        }
        // It goes on while nobody waits for it.
        let answer = tokio::spawn(pending.answer);
        pending.answer = Box::pin(async move { answer.await.ok().flatten() });
        Ok(self.put(pending, request, open))
    }

    fn put(&self, pending: Pending, request: &Id, open: Vec<Question>) -> Reply {
        let patience = self.policies.ask_timeout.unwrap_or(LONGEST).min(LONGEST) + AFTERWARDS;
        let id = random();
        let call = &pending.call;
        let state = self.router.states.seal(&State::Parked(id), &call.caller, &call.request, patience);
        let asked: Vec<_> = open.iter().map(|question| question.asked.as_str()).collect();
        let result = input_required(&asked.join(","), &state);
        self.park.book().insert(id, Parked { pending, open, expires: Instant::now() + patience });
        protocol::reply(request, result).into()
    }

    /// Goes on with the call that `request` comes back to, with the answers it has.
    pub(super) fn resume(&self, id: u128, request: &Request, token: Option<Bytes>) -> Result<Resumed, Error> {
        let Parked { mut pending, open, .. } = self.park.book().remove(&id).ok_or(Error::StaleState)?;
        let missing = answer(&pending.call, request, open);
        if !missing.is_empty() {
            return Ok(Resumed::Asks(self.put(pending, &request.id, missing)));
        }
        pending.call.set_progress_token(token);
        let id = request.id.clone();
        let answer = std::mem::replace(&mut pending.answer, Box::pin(std::future::ready(None)));
        pending.answer = Box::pin(async move { answer.await.map(|reply| under(reply, &id)) });
        Ok(Resumed::Pending(pending))
    }
}

/// Gives the backend what the client answered; what it did not is left.
fn answer(call: &Call, request: &Request, open: Vec<Question>) -> Vec<Question> {
    let text = request.raw.as_str();
    // What was said while nobody listened has the token of the request before.
    let mut asks = Vec::new();
    while let Some(said) = call.lane.try_next() {
        asks.extend(matches!(said, Said::Ask(_)).then_some(said));
    }
    let missing = open.into_iter().filter(|question| {
        let answered = request.params.input_responses.and_then(|answers| json::member(text, answers, &question.key));
        let Some(answered) = answered.filter(|answered| answered.get(text).starts_with('{')) else { return true };
        let response = protocol::reply(&question.id, answered.slice(request.raw.bytes())).concat();
        if let Ok(Message::Response(response)) = Message::parse(response) {
            // It may be late: then the backend has gone on without.
            call.mailbox.asks.answer(response);
        }
        false
    });
    let missing = missing.collect();
    for said in asks {
        if let Said::Ask(ask) = said {
            call.lane.ask(ask);
        }
    }
    missing
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
