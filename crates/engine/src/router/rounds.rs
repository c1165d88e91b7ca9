//! The `input_required` results of modern backends, for clients with sessions.
//!
//! The gateway sends each input request to the client on the stream of its call, as a legacy backend would. It then
//! repeats the call with the responses. If the client rejects an elicitation, the backend gets the response `cancel`.
//! Sampling and roots have no such response, so their rejection ends the call.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use goblin_catalog::content;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Error, Message, Method, Outcome, Request};
use smallvec::SmallVec;

use crate::client::call::{Call, CallTimeouts};
use crate::client::server_requests::ServerRequestEvent;
use crate::router::Router;
use crate::router::inputs::needs_input;
use crate::upstream::inbound::check_ability;
use crate::upstream::server_request::Recipient;
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest};

/// The largest number of rounds in one call. The protocol has no limit, but SDKs have this one.
const MAX_ROUNDS: usize = 10;
const CANCELLED: &str = r#"{"action":"cancel"}"#;

/// The response of the client to one input request, or the reason why there is none.
pub(super) enum InputResponse {
    Result(String),
    /// The reason why the call cannot go on.
    Nothing(String),
}

impl Router {
    /// Sends the input requests of `answered` to the client and repeats the call, until its result is complete.
    pub(super) async fn ask_and_call(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        (first, patience): (&OutgoingRequest<'_>, CallTimeouts),
        mut answered: BackendResponse,
    ) -> Result<BackendResponse, CallEnd> {
        for _ in 0..MAX_ROUNDS {
            let Some(result) = needed(&answered) else { return Ok(answered) };
            let said = self.ask_all(call, backend, answered.response.raw.as_str(), result).await?;
            let text = answered.response.raw.as_str();
            let mut responses = Vec::new();
            for (key, said) in said {
                match said {
                    InputResponse::Result(result) => responses.push(format!("{key}:{result}")),
                    InputResponse::Nothing(reason) => return Err(Error::ClientUnavailable { reason }.into()),
                }
            }
            let mut edits = first.edits.clone();
            let state = json::member(text, result, "requestState");
            let state = state.map(|state| format!(r#","requestState":{}"#, state.get(text))).unwrap_or_default();
            let members = format!(r#""inputResponses":{{{}}}{state}"#, responses.join(","));
            add_params(&call.request, &members, &mut edits);
            answered = backend.call(&OutgoingRequest { edits, ..first.clone() }, call, patience).await?;
        }
        let reason = format!("it wants an input for the {}th time", MAX_ROUNDS + 1);
        if needed(&answered).is_none() {
            return Ok(answered);
        }
        Err(Error::BackendProtocol { server: backend.id.to_string(), reason }.into())
    }

    /// Sends all input requests at once. Returns each response with its key as JSON.
    pub(super) async fn ask_all(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        text: &str,
        result: Span,
    ) -> Result<Vec<(String, InputResponse)>, CallEnd> {
        let asked = json::member(text, result, "inputRequests");
        let asked = asked.into_iter().flat_map(|asked| json::members(text, asked));
        let _held = IdlePause::new(call);
        let all = join_all(asked.map(|member| async move {
            let key = member.key.get(text).to_owned();
            (key, self.ask_client(call, backend, member.value.get(text)).await)
        }));
        tokio::select! {
            biased;
            end = call.ended() => Err(backend.abort_outcome(end, call).1),
            said = all => Ok(said),
        }
    }

    /// Sends one input request to the client and waits for the response, at most for the timeout of server requests.
    async fn ask_client(&self, call: &Arc<Call>, backend: &Backend, asked: &str) -> InputResponse {
        let (method, params) = method_and_params(asked);
        let Ok(mut ask) = call.client.open_request() else {
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
            client: Arc::clone(&call.client),
            abilities: Arc::clone(&call.caller.abilities),
            dialect: call.caller.dialect,
            calls: SmallVec::from_elem(Arc::clone(call), 1),
            is_own: false,
        };
        if !recipient.send(&message) {
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
                    recipient.notify_cancelled(ask.id, "the gateway's time-out");
                    return refusal(&method, "it did not answer in time");
                }
            };
            match word {
                ServerRequestEvent::Answer(answer) => {
                    let text = answer.raw.as_str();
                    return match answer.outcome {
                        Outcome::Result(result) => InputResponse::Result(result.get(text).to_owned()),
                        Outcome::Error(error) => refusal(&method, &format!("it refused: {}", error.get(text))),
                    };
                }
                ServerRequestEvent::Progress(_) => {}
                ServerRequestEvent::Nothing => return refusal(&method, "it is gone"),
            }
        }
    }

    /// Translates the parameters to the client's version and maps their URIs. Returns `None` if that version cannot
    /// express them.
    fn params_for(&self, call: &Call, backend: &Backend, method: &Method, params: &str, ask: u64) -> Option<String> {
        let dialect = call.caller.dialect;
        let whole = json::whole(params);
        let mut edits =
            content::server_request_edits(dialect, method, params, whole, |native| backend.events.expose(native));
        if *method == Method::Elicit {
            let is_url = json::member(params, whole, "mode").is_some_and(|mode| mode.get(params) == "\"url\"");
            if is_url && json::member(params, whole, "elicitationId").is_none() {
                // Versions with sessions require an id here, by which a later notification reports the end.
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

/// Returns the result of an answer with the type `input_required`.
fn needed(answered: &BackendResponse) -> Option<Span> {
    match answered.response.outcome {
        Outcome::Result(result) if needs_input(answered.response.raw.as_str(), result) => Some(result),
        _ => None,
    }
}

/// Adds members to the parameters of a request. Calls always have parameters, since they name their object.
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

/// Returns the response to use for a client that gives none.
fn refusal(method: &Method, reason: &str) -> InputResponse {
    match method {
        Method::Elicit => InputResponse::Result(CANCELLED.to_owned()),
        _ => InputResponse::Nothing(format!("{method}: {reason}")),
    }
}

/// A guard that suspends the idle timeout of a call while the client is asked.
struct IdlePause<'a>(&'a Call);

impl<'a> IdlePause<'a> {
    fn new(call: &'a Call) -> IdlePause<'a> {
        call.hold_clock();
        IdlePause(call)
    }
}

impl Drop for IdlePause<'_> {
    fn drop(&mut self) {
        self.0.release_clock();
    }
}
