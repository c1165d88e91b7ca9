//! Calls that need something of their client, where that is a result (`input_required`) and the call comes back with it:
//! what clients without sessions see of it.
//!
//! The state of a backend is sealed on its way out and opened on its way back, so that it is good for its own call and
//! caller alone. What a backend with sessions says by an error of its own (-32042, the client must visit a URL first)
//! becomes such a result too.

use std::time::Duration;

use bytes::Bytes;

use crate::upstream::Backend;
use crate::client::caller::Caller;
use crate::client::lane::Call;
use goblin_wire::error::Error;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::keyword::Keyword;
use goblin_wire::method::Method;
use goblin_wire::{Id, Message, Request, Response};
use crate::router::content;
use crate::router::state::State;
use crate::router::{Reply, Router};

/// How long a client may take to come back, where nothing is held for it here.
const LIFE: Duration = Duration::from_secs(3600);
const URL_ELICITATION_REQUIRED: &str = "-32042";

/// One request and its two ends.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub backend: &'a Backend,
    pub caller: &'a Caller,
    pub request: &'a Request,
}

/// Something that the client is asked.
pub struct Question {
    /// Its id in the client's book of asks.
    pub id: Id,
    /// As it stands in the result: key and value.
    pub asked: String,
    pub key: String,
}

impl Question {
    /// Whether the backend still waits for it.
    pub fn is_open(&self, call: &Call) -> bool {
        call.mailbox.asks.is_open(&self.id)
    }

    /// Gives the backend what a request answers to it; tells whether it does.
    pub fn answer(&self, call: &Call, request: &Request) -> bool {
        let text = request.raw.as_str();
        let answered = request.params.input_responses.and_then(|answers| json::member(text, answers, &self.key));
        let Some(answered) = answered.filter(|answered| answered.get(text).starts_with('{')) else { return false };
        let response = goblin_wire::reply(&self.id, answered.slice(request.raw.bytes())).concat();
        if let Ok(Message::Response(response)) = Message::parse(response) {
            // It may be late: then the backend has gone on without.
            call.mailbox.asks.answer(response);
        }
        true
    }
}

impl Router {
    /// Opens the state that a request comes back with, in `edits`. What would make a backend begin anew is refused: the
    /// call has run, at least in part.
    pub(super) fn open_state(&self, exchange: Exchange<'_>, edits: &mut Splice) -> Result<(), Error> {
        let Exchange { backend, caller, request } = exchange;
        let params = &request.params;
        if caller.dialect.has_asks() || params.request_state.is_none() && params.input_responses.is_none() {
            return Ok(());
        }
        let text = request.raw.as_str();
        let has_asks = backend.listing().hello.as_ref().is_some_and(|hello| hello.dialect.has_asks());
        let Some(at) = params.request_state else {
            // A backend may give none. One that asks in its own way has nothing to do with what comes here.
            return if has_asks { Err(Error::StaleState) } else { Ok(()) };
        };
        let token = json::string(text, at).ok_or(Error::StaleState)?;
        match self.states.open(&token, caller, request)? {
            State::Native { server, state } if !has_asks && server == backend.id.as_str() => {
                edits.replace(at, quote(&state));
                Ok(())
            }
            State::Again if has_asks => {
                let whole = params.whole.ok_or(Error::StaleState)?;
                let is_round = |key: &str| matches!(key, "requestState" | "inputResponses");
                json::cut_members(text, whole, is_round, edits);
                Ok(())
            }
            State::Parked(_) | State::Native { .. } | State::Again => Err(Error::StaleState),
        }
    }

    /// What changes in a result that needs an input: the state is sealed, and URIs in what is asked are mapped.
    pub(super) fn seal_state(
        &self,
        Exchange { backend, caller, request }: Exchange<'_>,
        (text, result): (&str, Span),
        mut expose: impl FnMut(&str) -> String,
        edits: &mut Splice,
    ) {
        if !needs_input(text, result) {
            return;
        }
        if let Some(at) = json::member(text, result, "requestState")
            && let Some(state) = json::string(text, at)
        {
            let state = State::Native { server: backend.id.to_string(), state: state.into_owned() };
            edits.replace(at, quote(&self.states.seal(&state, caller, request, LIFE)));
        }
        let asked = json::member(text, result, "inputRequests");
        for member in asked.into_iter().flat_map(|asked| json::members(text, asked)) {
            let method = json::member(text, member.value, "method").and_then(|at| json::string(text, at));
            let params = json::member(text, member.value, "params");
            if let (Some(method), Some(params)) = (method, params) {
                edits.append(content::ask_edits(caller.dialect, &Method::parse(&method), text, params, &mut expose));
            }
        }
    }

    /// The result that an error of a backend becomes, which wants the client to visit a URL first; nothing for others.
    pub(super) fn required_visit(&self, exchange: Exchange<'_>, response: &Response, error: Span) -> Option<Reply> {
        let Exchange { caller, request, .. } = exchange;
        let text = response.raw.as_str();
        let is_it = json::member(text, error, "code").is_some_and(|code| code.get(text) == URL_ELICITATION_REQUIRED);
        if caller.dialect.has_asks() || !is_it {
            return None;
        }
        if !caller.abilities.elicitation_url {
            let missing = Error::MissingCapability { required: r#"{"elicitation":{"url":{}}}"# };
            return Some(self.error(request, caller, &missing));
        }
        let asked = json::member(text, error, "data").and_then(|data| json::member(text, data, "elicitations"));
        let asked = asked.into_iter().flat_map(|asked| json::elements(text, asked)).map(|params| params.get(text));
        let asked: Vec<_> = asked
            .filter(|params| params.starts_with('{'))
            .enumerate()
            .map(|(number, params)| {
                let params = without(params, |key| key == "elicitationId");
                format!(r#""url-{}":{{"method":"elicitation/create","params":{params}}}"#, number + 1)
            })
            .collect();
        if asked.is_empty() {
            // Nothing to come back with: a result that asks nothing would only have the call made again and again.
            return None;
        }
        let state = self.states.seal(&State::Again, caller, request, LIFE);
        Some(Reply { pieces: goblin_wire::reply(&request.id, input_required(&asked.join(","), &state)), code: None })
    }
}

/// The result of a call that needs these inputs, members of an object, to go on.
pub fn input_required(asked: &str, state: &str) -> String {
    format!(r#"{{"resultType":"input_required","inputRequests":{{{asked}}},"requestState":{}}}"#, quote(state))
}

static INPUT_REQUIRED: Keyword = Keyword::new("input_required");

/// Whether a result says that its call needs an input.
pub fn needs_input(text: &str, result: Span) -> bool {
    INPUT_REQUIRED.is_in(result.get(text))
        && json::member(text, result, "resultType").is_some_and(|kind| kind.get(text) == "\"input_required\"")
}

/// The part of a text at `span`, with edits of the whole applied to it.
pub fn inside(text: &str, span: Span, edits: Splice) -> String {
    let whole = edits.apply(&Bytes::copy_from_slice(text.as_bytes()));
    let end = whole.len() - (text.len() - span.end as usize);
    String::from_utf8_lossy(&whole[span.start as usize..end]).into_owned()
}

/// An object without the members that `is_cut` names.
pub fn without(object: &str, is_cut: impl Fn(&str) -> bool) -> String {
    let mut edits = Splice::new();
    json::cut_members(object, json::whole(object), is_cut, &mut edits);
    let left = edits.apply(&Bytes::copy_from_slice(object.as_bytes()));
    String::from_utf8_lossy(&left).into_owned()
}

/// What a client is asked, from the message that a client with a session would get; the id alone where it has no place in
/// a result.
pub fn question(ask: Bytes) -> Result<Question, Option<Id>> {
    let Ok(Message::Request(request)) = Message::parse(ask) else { return Err(None) };
    if !matches!(request.method, Method::Elicit | Method::Sample | Method::RootsList) {
        return Err(Some(request.id));
    }
    let params = request.params.whole.map(|params| {
        // Progress of an answer, and names for what a session hears later, are unknown here.
        let is_unknown = |key: &str| matches!(key, "_meta" | "elicitationId" | "task");
        format!(r#","params":{}"#, without(params.get(request.raw.as_str()), is_unknown))
    });
    let key = format!("ask-{}", request.id);
    let asked = format!(r#"{}:{{"method":"{}"{}}}"#, quote(&key), request.method.as_str(), params.unwrap_or_default());
    Ok(Question { id: request.id, asked, key })
}

/// Tells the backend that an ask gets no answer.
pub fn refuse(call: &Call, ask: Option<Id>, reason: &str) {
    let error = Error::ClientUnavailable { reason: reason.to_owned() };
    let answer = goblin_wire::error_reply(ask.as_ref(), &error.to_json()).concat();
    if let Ok(Message::Response(answer)) = Message::parse(answer) {
        call.mailbox.asks.answer(answer);
    }
}
