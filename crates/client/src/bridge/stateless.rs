//! Runs one request that carries its protocol version: one POST without a session.
//!
//! Headers repeat parts of the body (see [`mirrors`](crate::bridge::mirrors)). Dropping the POST cancels the request.
//! A broken stream is not resumed. Only a call that the gateway rejected for its headers alone is sent a second time.
//! The response gets the client's id before it is written.

use std::sync::Arc;

use bytes::Bytes;
use goblin_wire::json::{self, Splice};
use goblin_wire::{Error, Message, Notification, Outcome, Request, Response};
use http::{HeaderMap, StatusCode};
use tokio::sync::oneshot;

use crate::bridge::message::response;
use crate::bridge::wire::{self, BodyError, ResponseMessages};
use crate::bridge::{Bridge, ClientOutput};
use crate::connect::RequestError;

/// Runs a request until its response, unless the client cancels it.
pub(crate) async fn call_stateless(
    bridge: Arc<Bridge>,
    request: Request,
    output: ClientOutput,
    cancelled: oneshot::Receiver<()>,
) {
    let answered = tokio::select! {
        biased;
        Ok(()) = cancelled => return,
        () = output.closed() => return,
        answered = bridge.answer_stateless(&request, &output) => answered,
    };
    let _ = output.send(answered.unwrap_or_else(|error| failure(&request, &error))).await;
}

/// Returns an error response of the bridge itself.
pub(crate) fn failure(request: &Request, error: &Error) -> Bytes {
    goblin_wire::error_reply(Some(&request.id_as_written()), &error.to_json()).concat()
}

/// Returns the response with the id that the client used.
pub(crate) fn answer_to(request: &Request, answer: &Response) -> Bytes {
    match answer.id.as_ref() == Some(&request.id) {
        true => answer.raw.bytes().clone(),
        false => answer.rekeyed(&request.id_as_written(), Splice::new()).concat(),
    }
}

/// A message on the stream of a request.
pub(crate) enum StreamMessage {
    Notification(Box<Notification>),
    Answer(Response),
}

/// Returns the next message, or `None` at the end. Drops requests and invalid messages, which have no place on such a
/// stream.
pub(crate) async fn next_stream_message(answers: &mut ResponseMessages) -> Result<Option<StreamMessage>, BodyError> {
    while let Some(message) = answers.next_message().await? {
        match Message::parse(message) {
            Ok(Message::Notification(note)) => return Ok(Some(StreamMessage::Notification(Box::new(note)))),
            Ok(Message::Response(answer)) => return Ok(Some(StreamMessage::Answer(answer))),
            Ok(Message::Request(server_request)) => {
                tracing::debug!(method = %server_request.method, "the gateway sent a request to a client without a session; dropped");
            }
            Err(_) => tracing::debug!("the gateway sent data that is not a message; dropped"),
        }
    }
    Ok(None)
}

/// Returns the response, or `None` if the stream ends before it. Forwards the notifications before it to `output`.
pub(crate) async fn answer(
    answers: &mut ResponseMessages,
    output: Option<&ClientOutput>,
) -> Result<Option<Response>, BodyError> {
    loop {
        match (next_stream_message(answers).await?, output) {
            (Some(StreamMessage::Answer(answer)), _) => return Ok(Some(answer)),
            // If the client does not read, this task ends together with the bridge.
            (Some(StreamMessage::Notification(note)), Some(output)) => {
                drop(output.send(note.raw.bytes().clone()).await)
            }
            (Some(StreamMessage::Notification(_)), None) => {}
            (None, _) => return Ok(None),
        }
    }
}

impl Bridge {
    /// Returns the response. Forwards the notifications before it at once.
    async fn answer_stateless(&self, request: &Request, output: &ClientOutput) -> Result<Bytes, Error> {
        let response = match self.send_stateless(request).await? {
            Ok(response) => response,
            Err(rejection) => return Ok(rejection),
        };
        match answer(&mut ResponseMessages::new(response), Some(output)).await {
            Ok(Some(answer)) => Ok(answer_to(request, &answer)),
            Ok(None) => Err(self.unavailable("the answer ended early".to_owned(), true)),
            Err(broken) => Err(self.unavailable(broken.to_string(), true)),
        }
    }

    /// Sends a request, and once more if the gateway wants other headers. The inner error is the gateway's rejection.
    async fn send_stateless(&self, request: &Request) -> Result<Result<wire::GatewayResponse, Bytes>, Error> {
        let sent = self.headers_of(request);
        let response = self.post_stateless(request.raw.bytes(), &sent).await?;
        if response.status().is_success() {
            return Ok(Ok(response));
        }
        let may_lack_headers = response.status() == StatusCode::BAD_REQUEST;
        let rejection = self.rejection(response, std::slice::from_ref(&request.id)).await?;
        if !may_lack_headers || !is_header_mismatch(&rejection) {
            return Ok(Err(rejection));
        }
        let Some(headers) = self.refresh_mirrors(request, &sent).await else { return Ok(Err(rejection)) };
        let response = self.post_stateless(request.raw.bytes(), &headers).await?;
        match response.status().is_success() {
            true => Ok(Ok(response)),
            false => self.rejection(response, std::slice::from_ref(&request.id)).await.map(Err),
        }
    }

    pub(crate) async fn post_stateless(
        &self,
        body: &Bytes,
        headers: &HeaderMap,
    ) -> Result<wire::GatewayResponse, Error> {
        self.wire.post(body.clone(), headers).await.map_err(|error| self.unreachable_stateless(&error))
    }

    fn unreachable_stateless(&self, error: &RequestError) -> Error {
        let reason = format!("{error}; start the gateway (goblin serve), then this client continues");
        self.unavailable(reason, !error.is_safe_to_retry())
    }
}

/// Reports whether a response is the error that headers and body do not match.
fn is_header_mismatch(answer: &Bytes) -> bool {
    let Some(answer) = response(answer) else { return false };
    let Outcome::Error(error) = answer.outcome else { return false };
    let text = answer.raw.as_str();
    let code = Error::HeaderMismatch(String::new()).class().code;
    json::member(text, error, "code").is_some_and(|at| at.get(text).parse() == Ok(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_under_the_id_as_the_client_spelled_it() {
        let request = |id: &str| {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"server/discover"}}"#);
            let Ok(Message::Request(request)) = Message::parse(line.into()) else { panic!("a request") };
            request
        };
        let answer = |id: &str| {
            let Ok(Message::Response(answer)) =
                Message::parse(format!(r#"{{{id}"jsonrpc":"2.0","result":{{}}}}"#).into())
            else {
                panic!("an answer")
            };
            answer
        };
        for (requested, answered, expected) in [
            ("7", r#""id": 7,"#, r#"{"id": 7,"jsonrpc":"2.0","result":{}}"#),
            (r#""a""#, r#""id":"b","#, r#"{"id":"a","jsonrpc":"2.0","result":{}}"#),
        ] {
            assert_eq!(answer_to(&request(requested), &answer(answered)), expected, "{requested}");
        }
    }

    #[test]
    fn only_one_error_is_about_headers() {
        for (answer, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"m"}}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32021,"message":"m"}}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"code":-32020}}"#, false),
            ("<html>", false),
        ] {
            assert_eq!(is_header_mismatch(&Bytes::from_static(answer.as_bytes())), expected, "{answer}");
        }
    }
}
