//! A client of the admin API of a gateway, for the commands and the dashboard.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use goblin_config::mask;
use goblin_config::secret::Secret;
use goblin_telemetry::clean;
use goblin_wire::headers::LAST_EVENT_ID;
use goblin_wire::units;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method as Verb, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;
use serde_json::Value;

use crate::address::{self, ENDPOINT};
use crate::bridge::wire::{GatewayConnection, GatewayResponse, GatewayTarget, STREAM};
use crate::events::ResumePosition;
use crate::gateway;
use crate::runtime::GatewayRecord;

/// The beginning of the message of a gateway that does not have the server of a request.
pub const UNKNOWN_SERVER: &str = "there is no server";

/// The timeout for a read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a change. A server may be slow to stop and to start.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_RESPONSE: usize = 256 * 1024 * 1024;

/// The errors of its functions are messages for the user.
pub struct AdminClient(GatewayConnection);

impl AdminClient {
    /// Connects to the gateway at the URL of its MCP endpoint, or of the directory that holds the endpoint.
    pub fn to_url(url: &str, token: Option<&Secret>) -> Result<AdminClient> {
        let target = GatewayTarget::new(&address::route(url, ENDPOINT), token, None)?;
        Ok(AdminClient(GatewayConnection::to(target)))
    }

    /// Connects to the gateway of this record, and to its successor after a restart.
    pub fn to_record(record: GatewayRecord) -> Result<AdminClient> {
        let always = |_: &GatewayRecord| true;
        gateway::following(record, always, target_of).map(AdminClient)
    }

    /// Returns the current address of the gateway, for messages.
    pub fn place(&self) -> String {
        self.0.url()
    }

    /// Returns the body of the response unchanged.
    pub async fn get(&self, path: &str) -> Result<Bytes, String> {
        self.within(READ_TIMEOUT, self.fetch(Verb::GET, path)).await
    }

    /// Returns the body of the response, or `None` if the gateway has no such path. An unknown server is an error.
    pub async fn find(&self, path: &str) -> Result<Option<Bytes>, String> {
        match self.within(READ_TIMEOUT, self.answer(Verb::GET, path, HeaderMap::new(), Bytes::new())).await? {
            (StatusCode::NOT_FOUND, body) if !names_unknown_server(&body) => Ok(None),
            (status, body) => accepted(status, path, body).map(Some),
        }
    }

    pub async fn post(&self, path: &str) -> Result<Bytes, String> {
        self.within(CHANGE_TIMEOUT, self.fetch(Verb::POST, path)).await
    }

    /// Sends a request with a JSON body.
    pub async fn post_json(&self, path: &str, body: &impl Serialize) -> Result<Bytes, String> {
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let answer = async {
            let (status, body) = self.answer(Verb::POST, path, headers, body.into()).await?;
            accepted(status, path, body)
        };
        self.within(CHANGE_TIMEOUT, answer).await
    }

    /// Opens an event stream after this position.
    pub async fn stream(&self, path: &str, after: &ResumePosition) -> Result<GatewayResponse, String> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, STREAM)]);
        headers.extend(after.last().map(|id| (LAST_EVENT_ID, id.clone())));
        let response = self.within(READ_TIMEOUT, self.send(Verb::GET, path, &headers, Bytes::new())).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(rejection_text(status, path, &[])),
        }
    }

    async fn fetch(&self, verb: Verb, path: &str) -> Result<Bytes, String> {
        let (status, body) = self.answer(verb, path, HeaderMap::new(), Bytes::new()).await?;
        accepted(status, path, body)
    }

    async fn answer(
        &self,
        verb: Verb,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let response = self.send(verb, path, &headers, body).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| format!("the response to {path} ended early: {error}"))?;
        Ok((status, body.to_bytes()))
    }

    async fn send(&self, verb: Verb, path: &str, headers: &HeaderMap, body: Bytes) -> Result<GatewayResponse, String> {
        self.0.send_to(verb, path, headers, body).await.map_err(|error| error.to_string())
    }

    async fn within<T>(&self, limit: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let timed_out = |_| format!("the gateway at {} did not answer within {}", self.place(), units::duration(limit));
        tokio::time::timeout(limit, work).await.map_err(timed_out)?
    }
}

fn accepted(status: StatusCode, path: &str, body: Bytes) -> Result<Bytes, String> {
    if status.is_success() { Ok(body) } else { Err(rejection_text(status, path, &body)) }
}

/// A gateway without an admin API has no admin token, and it rejects the requests.
fn target_of(record: GatewayRecord) -> Result<GatewayTarget> {
    let unreadable = || format!("cannot read the token of the gateway at {}", mask::url(&record.url));
    let token = record.admin_token().with_context(unreadable)?;
    let url = record.admin_url.clone().unwrap_or_else(|| record.address());
    GatewayTarget::new(&address::route(&url, ENDPOINT), token.as_ref(), Some(record))
}

/// Reports whether a rejection names a server that the gateway does not have.
fn names_unknown_server(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    body["error"]["message"].as_str().is_some_and(|message| message.starts_with(UNKNOWN_SERVER))
}

/// Describes a response with a failing HTTP status: by its own message, or by what the user can do.
fn rejection_text(status: StatusCode, path: &str, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let cure = match (status, clean(body["error"]["message"].as_str().unwrap_or_default())) {
        (StatusCode::UNAUTHORIZED, _) => {
            "pass its admin token (admin.token, not gateway.token) with --token-file FILE or the variable \
             GOBLIN_ADMIN_TOKEN"
        }
        (StatusCode::FORBIDDEN, _) => "add the host of this URL to its gateway.allowedHosts",
        (_, message) if !message.is_empty() => return message,
        _ => "is it a goblin gateway with its admin API enabled?",
    };
    format!("the gateway answered {path} with HTTP {status}; {cure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_response_names_its_cause_or_cure() {
        for (status, body, expected) in [
            (StatusCode::UNAUTHORIZED, "", "--token-file"),
            (StatusCode::FORBIDDEN, "", "allowedHosts"),
            (StatusCode::NOT_FOUND, r#"{"error":{"message":"no such\u001b route"}}"#, "no such route"),
            (StatusCode::NOT_FOUND, "<html>", "admin API"),
            (StatusCode::BAD_GATEWAY, "{}", "HTTP 502"),
        ] {
            let text = rejection_text(status, "/api/x", body.as_bytes());
            assert!(text.contains(expected) && !text.contains('\u{1b}'), "{status}: {text}");
        }
    }
}
