//! A client for one route of a gateway's admin API.
//!
//! It uses the connection of the bridge ([`Wire`]). A gateway that was found by its record is trusted while the
//! record's lock is held. After that, requests go to the gateway that replaced it.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use goblin_admin::api::Refused;
use goblin_client::address::{self, ENDPOINT};
use goblin_client::bridge::wire::{GatewayConnection, GatewayTarget};
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_client::runtime;
use goblin_client::runtime::{FindError, GatewayRecord, RecordDirectories};
use goblin_config::mask;
use goblin_telemetry::clean;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};

use crate::catalog::CliError;
use crate::{load, stdio};

/// The timeout for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE: usize = 64 * 1024 * 1024;

/// The flags that select a running gateway.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GatewayArgs {
    /// Use the gateway at this URL, or at unix:SOCKET, instead of the one that runs on this machine
    #[arg(long, value_name = "URL", value_parser = address::parse)]
    pub url: Option<String>,
    /// Read the admin token of the gateway at --url from this file (default: the variable GOBLIN_ADMIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
}

pub(crate) struct AdminClient {
    wire: GatewayConnection,
    path: String,
}

impl AdminClient {
    /// Finds the gateway and prepares requests for `path`. Returns an error if no gateway runs or several fit.
    pub(crate) async fn find(which: &GatewayArgs, path: &str) -> Result<AdminClient, CliError> {
        let path = path.to_owned();
        let unusable = |error: anyhow::Error| CliError::Usage(format!("{error:#}"));
        if let Some(url) = &which.url {
            let token = stdio::admin_token(which.token_file.as_deref(), url).map_err(unusable)?;
            let url = route(url, &path);
            let target =
                GatewayTarget::new(&url, token.as_ref(), &ProxyEnvironment::from_process()).map_err(unusable)?;
            return Ok(AdminClient { wire: GatewayConnection::to(target), path });
        }
        let own = load::find(None).ok().map(|found| found.identity());
        let record = runtime::find(own.as_ref()).await.map_err(|error| match error {
            FindError::None => CliError::Unavailable(
                "no gateway is running on this machine; start one (goblin serve), or name one (--url URL)".to_owned(),
            ),
            FindError::Several(_) => CliError::Usage(error.to_string()),
        })?;
        let identity = record.identity.clone();
        let target = target_of(record, &path).map_err(|error| CliError::Unavailable(format!("{error:#}")))?;
        let asked = path.clone();
        let successor = move || {
            let mut running = RecordDirectories::of(&environment).running().into_iter();
            target_of(running.find(|record| record.identity.is_same_place(&identity))?, &asked).ok()
        };
        Ok(AdminClient { wire: GatewayConnection::to_successors(target, successor), path })
    }

    /// Returns the current address of the gateway, for messages.
    pub(crate) fn place(&self) -> String {
        let url = self.wire.url();
        format!("{}{ENDPOINT}", url.strip_suffix(&self.path).unwrap_or(&url))
    }

    /// Returns the body of the response unchanged. Returns a message for the user if there is no successful response.
    pub(crate) async fn get(&self) -> Result<Bytes, String> {
        let late = |_| format!("the gateway at {} did not answer within {RESPONSE_TIMEOUT:?}", self.place());
        tokio::time::timeout(RESPONSE_TIMEOUT, self.ask()).await.map_err(late)?
    }

    async fn ask(&self) -> Result<Bytes, String> {
        let response = self.wire.fetch().await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| format!("the answer of {} broke off: {error}", self.place()))?.to_bytes();
        match status {
            StatusCode::OK => Ok(body),
            status => Err(format!("the gateway at {} {}", self.place(), refusal(status, &self.path, &body))),
        }
    }
}

fn target_of(record: GatewayRecord, path: &str) -> anyhow::Result<GatewayTarget> {
    let Some(operators) = record.admin_url.clone() else {
        anyhow::bail!("the gateway at {} has no admin API (admin.enabled)", mask::url(&record.url));
    };
    let token = record.admin_token().map_err(|error| {
        anyhow::anyhow!("cannot read the token of the gateway at {}: {error}; restart it", mask::url(&record.url))
    })?;
    GatewayTarget::of_record(&route(&operators, path), record, token.as_ref(), &ProxyEnvironment::from_process())
}

/// Returns the URL of a route, given the URL of the gateway or of its MCP endpoint.
fn route(url: &str, path: &str) -> String {
    let base = url[..address::query_start(url)].trim_end_matches('/');
    format!("{}{path}", base.strip_suffix(ENDPOINT).unwrap_or(base))
}

/// Describes a response with a failing HTTP status, and what the user can do about it.
fn refusal(status: StatusCode, path: &str, body: &[u8]) -> String {
    let said = serde_json::from_slice::<Refused>(body).map(|refused| clean(&refused.error.message));
    let cure = match (status, said) {
        (StatusCode::UNAUTHORIZED, _) => {
            "give its admin token (admin.token, not gateway.token) by --token-file FILE or the variable \
             GOBLIN_ADMIN_TOKEN"
                .to_owned()
        }
        (StatusCode::FORBIDDEN, _) => "its gateway.allowedHosts must name the host of this URL".to_owned(),
        (_, Ok(said)) if !said.is_empty() => said,
        _ => "is it a goblin gateway with its admin API enabled?".to_owned(),
    };
    format!("answers {path} with HTTP {status}; {cure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_stands_beside_the_endpoint() {
        for (url, expected) in [
            ("http://h:1", "http://h:1/api/x"),
            ("http://h:1/", "http://h:1/api/x"),
            ("http://h:1/mcp", "http://h:1/api/x"),
            ("http://h:1/mcp/?key=a/b", "http://h:1/api/x"),
            ("https://h/goblin/mcp", "https://h/goblin/api/x"),
            ("unix:/x/a.sock:/mcp", "unix:/x/a.sock:/api/x"),
            ("unix:/x/a.sock:/", "unix:/x/a.sock:/api/x"),
        ] {
            assert_eq!(route(url, "/api/x"), expected, "{url}");
        }
    }

    #[test]
    fn a_refusal_says_what_can_be_done() {
        for (status, body, expected) in [
            (StatusCode::UNAUTHORIZED, "", "--token-file"),
            (StatusCode::FORBIDDEN, "", "allowedHosts"),
            (StatusCode::NOT_FOUND, r#"{"error":{"message":"no such\u001b route"}}"#, "; no such route"),
            (StatusCode::NOT_FOUND, "<html>", "admin API"),
            (StatusCode::BAD_GATEWAY, "{}", "HTTP 502"),
        ] {
            let words = refusal(status, "/api/x", body.as_bytes());
            assert!(words.contains(expected), "{status}: {words}");
        }
    }
}
