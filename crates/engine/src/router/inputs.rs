//! The `input_required` results of calls for clients without sessions, which send the input in another request.
//!
//! The state of a backend is sealed on its way to the client and opened on its way back. It is therefore valid only for
//! the same call of the same caller. The error -32042 of legacy backends, which asks the client to visit a URL, also
//! becomes such a result.

use std::time::Duration;

use bytes::Bytes;
use goblin_catalog::content;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Error, Keyword, Method, Request, Response};

use crate::client::call::Reply;
use crate::client::caller::Caller;
use crate::client::input_request::without_members;
use crate::router::Router;
use crate::router::state::RequestState;
use crate::upstream::Backend;

/// The lifetime of a state that refers to nothing in this gateway.
pub(super) const STATE_LIFETIME: Duration = Duration::from_secs(3600);
pub(super) const URL_ELICITATION_REQUIRED: &str = "-32042";

/// A request with its caller and its backend.
#[derive(Clone, Copy)]
pub(crate) struct Exchange<'a> {
    pub backend: &'a Backend,
    pub caller: &'a Caller,
    pub request: &'a Request,
}

impl Router {
    /// Replaces the sealed state in a request by the backend's own. Returns an error if the state is not valid, because
    /// the backend would begin the call again although a part of it has run.
    pub(crate) fn open_state(&self, exchange: Exchange<'_>, edits: &mut Splice) -> Result<(), Error> {
        let Exchange { backend, caller, request } = exchange;
        let params = &request.params;
        if caller.dialect.has_server_requests() || params.request_state.is_none() && params.input_responses.is_none() {
            return Ok(());
        }
        let text = request.raw.as_str();
        let has_server_requests =
            backend.listing().hello.as_ref().is_some_and(|hello| hello.dialect.has_server_requests());
        let Some(at) = params.request_state else {
            // A modern backend may send no state. A legacy backend keeps the call open, and its state names that call.
            let missing = "inputResponses need the requestState of the result that requested them";
            return if has_server_requests { Err(Error::InvalidParams(missing.to_owned())) } else { Ok(()) };
        };
        let token = json::string(text, at).ok_or(Error::StaleState)?;
        match self.states.open(&token, caller, request)? {
            RequestState::Native { server, state } if !has_server_requests && server == backend.id.as_str() => {
                edits.replace(at, quote(&state));
                Ok(())
            }
            RequestState::Restart => {
                let whole = params.whole.ok_or(Error::StaleState)?;
                let is_round_member = |key: &str| matches!(key, "requestState" | "inputResponses");
                json::cut_members(text, whole, is_round_member, edits);
                Ok(())
            }
            RequestState::Suspended(_) | RequestState::Native { .. } => Err(Error::StaleState),
        }
    }

    /// Seals the state in an `input_required` result and maps the URIs in its input requests.
    pub(crate) fn seal_state(
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
            let state = RequestState::Native { server: backend.id.to_string(), state: state.into_owned() };
            edits.replace(at, quote(&self.states.seal(&state, caller, request, STATE_LIFETIME)));
        }
        let requests = json::member(text, result, "inputRequests");
        for member in requests.into_iter().flat_map(|requests| json::members(text, requests)) {
            let method = json::member(text, member.value, "method").and_then(|at| json::string(text, at));
            let params = json::member(text, member.value, "params");
            if let (Some(method), Some(params)) = (method, params) {
                edits.append(content::server_request_edits(
                    caller.dialect,
                    &Method::parse(&method),
                    text,
                    params,
                    &mut expose,
                ));
            }
        }
    }

    /// Converts a backend's error that asks the client to visit URLs to an `input_required` result. Returns `None` for
    /// others.
    pub(crate) fn convert_url_elicitation(
        &self,
        exchange: Exchange<'_>,
        response: &Response,
        error: Span,
    ) -> Option<Reply> {
        let Exchange { caller, request, .. } = exchange;
        let text = response.raw.as_str();
        let is_url_elicitation =
            json::member(text, error, "code").is_some_and(|code| code.get(text) == URL_ELICITATION_REQUIRED);
        if caller.dialect.has_server_requests() || !is_url_elicitation {
            return None;
        }
        if !caller.client_capabilities.elicitation_url {
            let missing = Error::MissingCapability { required: r#"{"elicitation":{"url":{}}}"# };
            return Some(self.error(request, caller, &missing));
        }
        let elicitations = json::member(text, error, "data").and_then(|data| json::member(text, data, "elicitations"));
        let elicitations =
            elicitations.into_iter().flat_map(|list| json::elements(text, list)).map(|params| params.get(text));
        let requests: Vec<_> = elicitations
            .filter(|params| params.starts_with('{'))
            .enumerate()
            .map(|(number, params)| {
                let params = without_members(params, |key| key == "elicitationId");
                format!(r#""url-{}":{{"method":"elicitation/create","params":{params}}}"#, number + 1)
            })
            .collect();
        if requests.is_empty() {
            // A result without input requests would only make the client repeat the call forever.
            return None;
        }
        let state = self.states.seal(&RequestState::Restart, caller, request, STATE_LIFETIME);
        Some(goblin_wire::reply(&request.id, input_required(&requests.join(","), &state)).into())
    }
}

/// Returns the `input_required` result with these input requests, which are members of an object.
pub(crate) fn input_required(requests: &str, state: &str) -> String {
    format!(r#"{{"resultType":"input_required","inputRequests":{{{requests}}},"requestState":{}}}"#, quote(state))
}

/// The text that a result must contain before it is parsed for its type.
static INPUT_REQUIRED: Keyword = Keyword::new("input_required");

/// Reports whether a result has the type `input_required`.
pub(crate) fn needs_input(text: &str, result: Span) -> bool {
    INPUT_REQUIRED.is_in(result.get(text))
        && json::member(text, result, "resultType").is_some_and(|kind| kind.get(text) == "\"input_required\"")
}

/// Returns the part of `text` at `span` after applying `edits`, which refer to the whole text.
pub(crate) fn edited_slice(text: &str, span: Span, edits: Splice) -> String {
    let whole = edits.apply(&Bytes::copy_from_slice(text.as_bytes()));
    let end = whole.len() - (text.len() - span.end as usize);
    String::from_utf8_lossy(&whole[span.start as usize..end]).into_owned()
}
