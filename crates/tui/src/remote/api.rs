//! A client of the admin API.
//!
//! A gateway that was found by its record is trusted while the record's lock is held. After that, another program may
//! listen on its port, so no token is sent. [`Api::renew`] switches to the gateway that replaced it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use goblin_admin::api::Refused;
use goblin_client::address;
use goblin_client::bridge::wire::GatewayResponse;
use goblin_client::connect::{HttpClient, ProxyEnvironment};
use goblin_client::environment::environment;
use goblin_client::runtime::{GatewayRecord, RecordDirectories};
use goblin_config::mask;
use goblin_config::secret::Secret;
use goblin_telemetry::clean;
use goblin_wire::headers::LAST_EVENT_ID;
use http::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::remote::read;

const ADMIN_TOKEN_WANTED: &str =
    "the gateway wants its admin token: give it by --token-file FILE or the variable GOBLIN_ADMIN_TOKEN";
/// The timeout for a read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for a change. A server may be slow to stop and to start.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
const MAX_RESPONSE: usize = 256 * 1024 * 1024;

/// The gateway that the dashboard shows.
#[derive(Clone)]
pub enum GatewayAddress {
    Named {
        url: String,
        /// The client token, for calls and reads.
        token: Option<Secret>,
        admin_token: Option<Secret>,
    },
    /// A gateway on this machine.
    Recorded(Box<GatewayRecord>),
}

impl GatewayAddress {
    pub fn place(&self) -> String {
        match self {
            GatewayAddress::Named { url, .. } => mask::url(url),
            GatewayAddress::Recorded(record) => mask::url(&record.url),
        }
    }

    /// Returns the gateway that replaced this one. Returns `None` for a gateway at a given URL.
    fn successor(&self) -> Option<GatewayAddress> {
        let GatewayAddress::Recorded(own) = self else { return None };
        let mut running = RecordDirectories::of(&environment).running().into_iter();
        let found = running.find(|record| record.identity.is_same_place(&own.identity));
        found.map(|record| GatewayAddress::Recorded(Box::new(record)))
    }
}

pub struct Api {
    target: ArcSwap<ApiTarget>,
    /// The number of restarts so far. Event ids are only valid until the next restart.
    gateways: watch::Sender<u64>,
}

struct ApiTarget {
    gateway: GatewayAddress,
    client: HttpClient,
    /// The scheme and authority of the URL.
    origin: String,
    authorization: Option<HeaderValue>,
}

impl ApiTarget {
    fn new(gateway: GatewayAddress) -> anyhow::Result<ApiTarget> {
        let (url, token) = match &gateway {
            GatewayAddress::Named { url, admin_token, .. } => (url.clone(), admin_token.clone()),
            GatewayAddress::Recorded(record) => {
                (record.admin_url.clone().unwrap_or_else(|| record.address()), record.admin_token()?)
            }
        };
        let (client, uri) = address::client(&url, &ProxyEnvironment::from_process())?;
        let origin = format!(
            "{}://{}",
            uri.scheme_str().unwrap_or("http"),
            uri.authority().map(|authority| authority.as_str()).unwrap_or_default()
        );
        let authorization = token.map(|token| bearer(&token)).transpose()?;
        Ok(ApiTarget { gateway, client, origin, authorization })
    }

    fn lives(&self) -> bool {
        match &self.gateway {
            GatewayAddress::Named { .. } => true,
            GatewayAddress::Recorded(record) => record.lives(),
        }
    }
}

fn bearer(token: &Secret) -> anyhow::Result<HeaderValue> {
    let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
    let mut value = value.map_err(|_| anyhow::anyhow!("the token holds characters that no header can"))?;
    value.set_sensitive(true);
    Ok(value)
}

impl Api {
    pub fn new(gateway: GatewayAddress) -> anyhow::Result<Api> {
        Ok(Api { target: ArcSwap::from_pointee(ApiTarget::new(gateway)?), gateways: watch::Sender::new(0) })
    }

    /// Switches to the successor if the gateway has ended.
    pub fn renew(&self) {
        let target = self.target.load();
        if target.lives() {
            return;
        }
        if let Some(Ok(successor)) = target.gateway.successor().map(ApiTarget::new) {
            self.target.store(Arc::new(successor));
        }
    }

    /// Reports a restart of the gateway to the event stream.
    pub(crate) fn begin_anew(&self) {
        self.gateways.send_modify(|gateways| *gateways += 1);
    }

    pub fn gateways(&self) -> watch::Receiver<u64> {
        self.gateways.subscribe()
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let body = within(READ_TIMEOUT, self.fetch(Method::GET, path)).await?;
        read(path, &body)
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let body = within(CHANGE_TIMEOUT, self.fetch(Method::POST, path)).await?;
        read(path, &body)
    }

    /// Opens an event stream after the event with the id `after`.
    pub async fn stream(&self, path: &str, after: Option<&HeaderValue>) -> Result<GatewayResponse, String> {
        let after = after.map(|id| (LAST_EVENT_ID, id.clone()));
        let accept = (ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = within(READ_TIMEOUT, self.send(Method::GET, path, [accept].into_iter().chain(after))).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(refusal(status, path, &[])),
        }
    }

    async fn fetch(&self, method: Method, path: &str) -> Result<Bytes, String> {
        let accept = (ACCEPT, HeaderValue::from_static("application/json"));
        let response = self.send(method, path, [accept]).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| format!("the answer of {path} broke off: {error}"))?.to_bytes();
        if status.is_success() { Ok(body) } else { Err(refusal(status, path, &body)) }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    ) -> Result<GatewayResponse, String> {
        let target = self.target.load_full();
        if !target.lives() {
            return Err(format!("the gateway at {} is not running any more", target.gateway.place()));
        }
        let uri = format!("{}{path}", target.origin);
        let request = Request::builder().method(method).uri(uri).body(Full::default());
        let mut request = request.map_err(|error| format!("{path} cannot be asked for: {error}"))?;
        request.headers_mut().extend(headers);
        request.headers_mut().extend(target.authorization.clone().map(|value| (AUTHORIZATION, value)));
        target.client.request(request).await.map_err(|error| error.to_string())
    }
}

async fn within<T>(patience: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || format!("the gateway did not answer in {} s", patience.as_secs());
    tokio::time::timeout(patience, work).await.map_err(|_| late())?
}

/// Describes a response with a failing HTTP status, by its own message if it has one.
fn refusal(status: StatusCode, path: &str, body: &[u8]) -> String {
    let said = serde_json::from_slice::<Refused>(body).map(|refused| clean(&refused.error.message));
    match (status, said) {
        (StatusCode::UNAUTHORIZED, _) => ADMIN_TOKEN_WANTED.to_owned(),
        (_, Ok(said)) if !said.is_empty() => said,
        (StatusCode::NOT_FOUND, _) => format!("the gateway has no {path}: its admin API is disabled, or it is older"),
        (status, _) => format!("the gateway answers {path} with HTTP {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_can_be_done() {
        for (status, body, expected) in [
            (401, "", "--token-file"),
            (404, "", "/api/x: its admin API is disabled"),
            (404, r#"{"error":{"message":"there is no server y\u001b"}}"#, "there is no server y"),
            (500, "oops", "HTTP 500"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let words = refusal(status, "/api/x", body.as_bytes());
            assert!(words.contains(expected) && !words.contains('\u{1b}'), "{words}");
        }
    }
}
