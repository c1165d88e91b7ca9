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
use crate::upstream::inbound::check_capability;
use crate::upstream::server_request::Recipient;
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest};

/// The largest number of rounds in one call. The protocol has no limit, but SDKs have this one.
const MAX_ROUNDS: usize = 10;
const CANCELLED: &str = r#"{"action":"cancel"}"#;

/// The response of the client to one input request, or the reason why there is none.
pub(super) enum InputResponse {
    Result(String),
    /// The reason why the call cannot go on.
    Missing(String),
}

impl Router {
    /// Sends the input requests of `answer` to the client and repeats the call, until its result is complete.
    pub(super) async fn run_input_rounds(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        (first, timeouts): (&OutgoingRequest<'_>, CallTimeouts),
        mut answer: BackendResponse,
    ) -> Result<BackendResponse, CallEnd> {
        for _ in 0..MAX_ROUNDS {
            let Some(result) = input_required_result(&answer) else { return Ok(answer) };
            let inputs = self.request_inputs(call, backend, answer.response.raw.as_str(), result).await?;
            let text = answer.response.raw.as_str();
            let mut responses = Vec::new();
            for (key, input) in inputs {
                match input {
                    InputResponse::Result(result) => responses.push(format!("{key}:{result}")),
                    InputResponse::Missing(reason) => return Err(Error::ClientUnavailable { reason }.into()),
                }
            }
            let mut edits = first.edits.clone();
            let state = json::member(text, result, "requestState");
            let state = state.map(|state| format!(r#","requestState":{}"#, state.get(text))).unwrap_or_default();
            let members = format!(r#""inputResponses":{{{}}}{state}"#, responses.join(","));
            add_params(&call.request, &members, &mut edits);
            answer = backend.call(&OutgoingRequest { edits, ..first.clone() }, call, timeouts).await?;
        }
        let reason = format!("the server requests input for the {}th time", MAX_ROUNDS + 1);
        if input_required_result(&answer).is_none() {
            return Ok(answer);
        }
        Err(Error::BackendProtocol { server: backend.id.to_string(), reason }.into())
    }

    /// Sends all input requests at once. Returns each response with its key as JSON.
    pub(super) async fn request_inputs(
        &self,
        call: &Arc<Call>,
        backend: &Backend,
        text: &str,
        result: Span,
    ) -> Result<Vec<(String, InputResponse)>, CallEnd> {
        let requests = json::member(text, result, "inputRequests");
        let requests = requests.into_iter().flat_map(|requests| json::members(text, requests));
        let _idle_pause = IdlePause::new(call);
        let all = join_all(requests.map(|member| async move {
            let key = member.key.get(text).to_owned();
            (key, self.request_input(call, backend, member.value.get(text)).await)
        }));
        tokio::select! {
            biased;
            end = call.ended() => Err(backend.abort_outcome(end, call).1),
            inputs = all => Ok(inputs),
        }
    }

    /// Sends one input request to the client and waits for the response, at most for the timeout of server requests.
    async fn request_input(&self, call: &Arc<Call>, backend: &Backend, input_request: &str) -> InputResponse {
        let (method, params) = method_and_params(input_request);
        let Ok(mut open) = call.client.open_request() else {
            return missing_response(&method, "the client has too many open requests, or disconnected");
        };
        let params = params.map(|params| self.params_for(call, backend, &method, params, open.id));
        let params = match params {
            Some(None) => {
                return missing_response(&method, "the protocol version of the client cannot express the request");
            }
            params => params.flatten().map(|params| format!(r#","params":{params}"#)).unwrap_or_default(),
        };
        let message = format!(r#"{{"jsonrpc":"2.0","id":{},"method":{}{params}}}"#, open.id, quote(method.as_str()));
        let message = json::single_line(message.into());
        let allowed = match Message::parse(message.clone()) {
            Ok(Message::Request(request)) => check_capability(&request, &call.caller.client_capabilities),
            _ => Err(Error::Internal("the message for the client is not a request".to_owned())),
        };
        if let Err(error) = allowed {
            return missing_response(&method, &error.to_string());
        }
        let recipient = Recipient {
            client: Arc::clone(&call.client),
            client_capabilities: Arc::clone(&call.caller.client_capabilities),
            dialect: call.caller.dialect,
            calls: SmallVec::from_elem(Arc::clone(call), 1),
            is_own: false,
        };
        if !recipient.send(&message) {
            return missing_response(&method, "the client disconnected, or has no open stream for server requests");
        }
        let timeout = async {
            let ask_timeout = self.policies.load().ask_timeout;
            match ask_timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(timeout);
        loop {
            let event = tokio::select! {
                event = open.next() => event,
                () = &mut timeout => {
                    recipient.notify_cancelled(open.id, "the gateway's timeout expired");
                    return missing_response(&method, "the client did not answer in time");
                }
            };
            match event {
                ServerRequestEvent::Answer(answer) => {
                    let text = answer.raw.as_str();
                    return match answer.outcome {
                        Outcome::Result(result) => InputResponse::Result(result.get(text).to_owned()),
                        Outcome::Error(error) => {
                            missing_response(&method, &format!("the client returned an error: {}", error.get(text)))
                        }
                    };
                }
                ServerRequestEvent::Progress(_) => {}
                ServerRequestEvent::Closed => return missing_response(&method, "the client disconnected"),
            }
        }
    }

    /// Translates the parameters to the client's version and maps their URIs. Returns `None` if that version cannot
    /// express them.
    fn params_for(
        &self,
        call: &Call,
        backend: &Backend,
        method: &Method,
        params: &str,
        request_id: u64,
    ) -> Option<String> {
        let dialect = call.caller.dialect;
        let whole = json::whole(params);
        let mut edits =
            content::server_request_edits(dialect, method, params, whole, |native| backend.events.expose(native));
        if *method == Method::Elicit {
            let is_url = json::member(params, whole, "mode").is_some_and(|mode| mode.get(params) == "\"url\"");
            if is_url && json::member(params, whole, "elicitationId").is_none() {
                // Versions with sessions require an id here, by which a later notification reports the end.
                let id =
                    format!("{}-{request_id}", call.caller.session.map(|session| session.short()).unwrap_or_default());
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
fn input_required_result(answer: &BackendResponse) -> Option<Span> {
    match answer.response.outcome {
        Outcome::Result(result) if needs_input(answer.response.raw.as_str(), result) => Some(result),
        _ => None,
    }
}

/// Adds members to the parameters of a request. Calls always have parameters, since they name their object.
fn add_params(request: &Request, members: &str, edits: &mut Splice) {
    match request.params.whole {
        Some(params) => json::prepend(request.raw.as_str(), params, members, edits),
        None => request.set_params(&format!("{{{members}}}"), edits),
    }
}

fn method_and_params(request: &str) -> (Method, Option<&str>) {
    let whole = json::whole(request);
    let method = json::member(request, whole, "method").and_then(|at| json::string(request, at)).unwrap_or_default();
    (Method::parse(&method), json::member(request, whole, "params").map(|params| params.get(request)))
}

/// Returns the response to use for a client that gives none.
fn missing_response(method: &Method, reason: &str) -> InputResponse {
    match method {
        Method::Elicit => InputResponse::Result(CANCELLED.to_owned()),
        _ => InputResponse::Missing(format!("{method}: {reason}")),
    }
}

/// A guard that pauses the idle timeout of a call while a server request is open.
struct IdlePause<'a>(&'a Call);

impl<'a> IdlePause<'a> {
    fn new(call: &'a Call) -> IdlePause<'a> {
        call.pause_idle_timeout();
        IdlePause(call)
    }
}

impl Drop for IdlePause<'_> {
    fn drop(&mut self) {
        self.0.resume_idle_timeout();
    }
}
