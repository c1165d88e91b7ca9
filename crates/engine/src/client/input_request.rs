//! Server requests in the form of `inputRequests`, for clients without sessions.

use bytes::Bytes;
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::{Id, Message, Method, Request};

use crate::client::call::Call;

/// A server request as an entry of `inputRequests`.
pub(crate) struct InputRequest {
    /// The id in the client's table of open server requests.
    pub id: Id,
    /// The key and value in the result, as JSON.
    pub member: String,
    pub key: String,
}

impl InputRequest {
    /// Converts a server request to an input request. Returns its id as an error if its method has no such form.
    pub(crate) fn from_server_request(message: Bytes) -> Result<InputRequest, Option<Id>> {
        let Ok(Message::Request(request)) = Message::parse(message) else { return Err(None) };
        if !matches!(request.method, Method::Elicit | Method::Sample | Method::RootsList) {
            return Err(Some(request.id));
        }
        let params = request.params.whole.map(|params| {
            // Clients without a session support neither progress of a response nor names for later notifications.
            let is_unknown = |key: &str| matches!(key, "_meta" | "elicitationId" | "task");
            format!(r#","params":{}"#, without_members(params.get(request.raw.as_str()), is_unknown))
        });
        let key = format!("input-{}", request.id);
        let member =
            format!(r#"{}:{{"method":"{}"{}}}"#, quote(&key), request.method.as_str(), params.unwrap_or_default());
        Ok(InputRequest { id: request.id, member, key })
    }

    /// Reports whether the backend still waits for the response.
    pub(crate) fn is_open(&self, call: &Call) -> bool {
        call.client.is_request_open(&self.id)
    }

    /// Delivers the input for this entry to the backend. Returns `false` if the request does not contain it.
    pub(crate) fn answer(&self, call: &Call, request: &Request) -> bool {
        let text = request.raw.as_str();
        let responses = request.params.input_responses;
        let input = responses.and_then(|responses| json::member(text, responses, &self.key));
        let Some(input) = input.filter(|input| input.get(text).starts_with('{')) else { return false };
        let response = goblin_wire::reply(&self.id, input.slice(request.raw.bytes())).concat();
        if let Ok(Message::Response(response)) = Message::parse(response) {
            // The input is ignored if it is late and the backend has gone on without it.
            call.client.answer(response);
        }
        true
    }
}

/// Returns an object without the members for which `is_cut` returns `true`.
pub(crate) fn without_members(object: &str, is_cut: impl Fn(&str) -> bool) -> String {
    let mut edits = Splice::new();
    json::cut_members(object, json::whole(object), is_cut, &mut edits);
    let left = edits.apply(&Bytes::copy_from_slice(object.as_bytes()));
    String::from_utf8_lossy(&left).into_owned()
}
