//! Calls that need something of their client, for clients that can be asked: a backend without sessions answers with what it
//! needs to know (`input_required`) and is called again with the answers.
//!
//! The client is asked on the stream of its call, as a backend with sessions would ask. Refused is told as the backend
//! would hear it: an elicitation as cancelled; sampling and roots have no such word, so there the call ends.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::upstream::ask::{Recipient, Translate};
use crate::upstream::ear::check_ability;
use crate::upstream::{Answered, Backend, CallEnd, Outgoing};
use crate::client::lane::{Call, Patience};
use crate::client::mailbox::asks::Word;
use goblin_wire::error::Error;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::method::Method;
use goblin_wire::{Message, Outcome, Request};
use crate::router::inputs::needs_input;
use crate::router::{Router, content};

/// How often one call may ask. The protocol has no bound; SDKs have this one.
const MOST_ROUNDS: usize = 10;
const CANCELLED: &str = r#"{"action":"cancel"}"#;

/// What stands for an answer of the client, or why there is none.
pub(super) enum Said {
    Result(String),
    /// The call cannot go on.
    Nothing(String),
}

impl Router {
    /// Asks the client whatever `answered` needs, and calls again, until the call is complete.
    pub(super) async fn ask_and_call(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        (first, patience): (&Outgoing<'_>, Patience),
        mut answered: Answered,
    ) -> Result<Answered, CallEnd> {
        for _ in 0..MOST_ROUNDS {
            let Some(result) = needed(&answered) else { return Ok(answered) };
            let said = self.ask_all(call, backend, answered.response.raw.as_str(), result).await?;
            let text = answered.response.raw.as_str();
            let mut responses = Vec::new();
            for (key, said) in said {
                match said {
                    Said::Result(result) => responses.push(format!("{key}:{result}")),
                    Said::Nothing(reason) => return Err(Error::ClientUnavailable { reason }.into()),
                }
            }
            let mut edits = first.edits.clone();
            let state = json::member(text, result, "requestState");
            let state = state.map(|state| format!(r#","requestState":{}"#, state.get(text))).unwrap_or_default();
            let members = format!(r#""inputResponses":{{{}}}{state}"#, responses.join(","));
            add_params(&call.request, &members, &mut edits);
            answered = backend.call(&Outgoing { edits, ..first.clone() }, call, patience).await?;
        }
        let reason = format!("it wants an input for the {}th time", MOST_ROUNDS + 1);
        if needed(&answered).is_none() {
            return Ok(answered);
        }
        Err(Error::BackendProtocol { server: backend.id.to_string(), reason }.into())
    }

    /// Asks side by side; each answer with its key as written.
    pub(super) async fn ask_all(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        text: &str,
        result: Span,
    ) -> Result<Vec<(String, Said)>, CallEnd> {
        let asked = json::member(text, result, "inputRequests");
        let asked = asked.into_iter().flat_map(|asked| json::members(text, asked));
        let _held = Held::new(call);
        let all = join_all(asked.map(|member| async move {
            let key = member.key.get(text).to_owned();
            (key, self.ask_client(call, backend, member.value.get(text)).await)
        }));
        tokio::select! {
            biased;
            end = call.ended() => Err(backend.cut(end, call).1),
            said = all => Ok(said),
        }
    }

    async fn ask_client(&self, call: &Arc<Call>, backend: &Backend, asked: &str) -> Said {
        let (method, params) = method_and_params(asked);
        let Ok(mut ask) = call.mailbox.asks.open() else {
            return refusal(&method, "it has too many questions open, or is gone");
        };
        let params = params.map(|params| self.params_for(call, backend, &method, params, ask.id));
        let params = match params {
            Some(None) => return refusal(&method, "its version of the protocol cannot express what is asked"),
            params => params.flatten().map(|params| format!(r#","params":{params}"#)).unwrap_or_default(),
        };
        let message = format!(r#"{{"jsonrpc":"2.0","id":{},"method":{}{params}}}"#, ask.id, quote(method.as_str()));
        let message = json::single_line(message.into());
        let able = match Message::parse(message.clone()) {
            Ok(Message::Request(request)) => check_ability(&request, &call.caller.abilities),
            _ => Err(Error::Internal("what a client is asked is no request".to_owned())),
        };
        if let Err(error) = able {
            return refusal(&method, &error.to_string());
        }
        let recipient = Recipient {
            mailbox: Arc::clone(&call.mailbox),
            abilities: Arc::clone(&call.caller.abilities),
            dialect: call.caller.dialect,
            calls: SmallVec::from_elem(Arc::clone(call), 1),
            is_own: false,
        };
        if !recipient.ask(&message) {
            return refusal(&method, "it is gone, or has no open stream to be asked on");
        }
        let late = async {
            match self.policies.ask_timeout {
                Some(patience) => tokio::time::sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(late);
        loop {
            let word = tokio::select! {
                word = ask.next() => word,
                () = &mut late => {
                    recipient.tell_cancelled(ask.id, "the gateway's time-out");
                    return refusal(&method, "it did not answer in time");
                }
            };
            match word {
                Word::Answer(answer) => {
                    let text = answer.raw.as_str();
                    return match answer.outcome {
                        Outcome::Result(result) => Said::Result(result.get(text).to_owned()),
                        Outcome::Error(error) => refusal(&method, &format!("it refused: {}", error.get(text))),
                    };
                }
                Word::Progress(_) => {}
                Word::Nothing => return refusal(&method, "it is gone"),
            }
        }
    }

    /// What is asked in the words of the client's version, and with URIs as it knows them; nothing where it has no words.
    fn params_for(&self, call: &Call, backend: &Backend, method: &Method, params: &str, ask: u64) -> Option<String> {
        let dialect = call.caller.dialect;
        let whole = json::whole(params);
        let mut edits = content::ask_edits(dialect, method, params, whole, |native| self.expose(&backend.id, native));
        if *method == Method::Elicit {
            let is_url = json::member(params, whole, "mode").is_some_and(|mode| mode.get(params) == "\"url\"");
            if is_url && json::member(params, whole, "elicitationId").is_none() {
                // Versions that have sessions name it, to tell of its end later.
                let id = format!("{}-{ask}", call.caller.session.map(|session| session.short()).unwrap_or_default());
                json::prepend(params, whole, &format!(r#""elicitationId":{}"#, quote(&id)), &mut edits);
            }
            if !is_url && !dialect.has_rich_forms() {
                edits = content::plain_form(params, whole)?;
            }
        }
        Some(String::from_utf8_lossy(&edits.apply(&Bytes::copy_from_slice(params.as_bytes()))).into_owned())
    }
}

/// The result of an answer that is not complete yet.
fn needed(answered: &Answered) -> Option<Span> {
    match answered.response.outcome {
        Outcome::Result(result) if needs_input(answered.response.raw.as_str(), result) => Some(result),
        _ => None,
    }
}

/// Puts members into the params of a request, which has some: it names what it calls.
fn add_params(request: &Request, members: &str, edits: &mut Splice) {
    if let Some(params) = request.params.whole {
        json::prepend(request.raw.as_str(), params, members, edits);
    }
}

fn method_and_params(asked: &str) -> (Method, Option<&str>) {
    let whole = json::whole(asked);
    let method = json::member(asked, whole, "method").and_then(|at| json::string(asked, at)).unwrap_or_default();
    (Method::parse(&method), json::member(asked, whole, "params").map(|params| params.get(asked)))
}

/// What stands for the answer of a client that gives none.
fn refusal(method: &Method, reason: &str) -> Said {
    match method {
        Method::Elicit => Said::Result(CANCELLED.to_owned()),
        _ => Said::Nothing(format!("{method}: {reason}")),
    }
}

/// Holds the clock of a call that waits for its client.
struct Held<'a>(&'a Call);

impl<'a> Held<'a> {
    fn new(call: &'a Call) -> Held<'a> {
        call.hold_clock();
        Held(call)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release_clock();
    }
}
