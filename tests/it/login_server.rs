//! The fixture of the login tests: an authorization server (`oidc-provider`) and an MCP server that demands its tokens.
//!
//! `tests/login/README.md` describes both and their control paths. One process serves both, and each test has its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::client::Client;
use crate::harness::{ROOT, TIMEOUT, eventually};
use crate::sdk::tool;

/// The account that every browser logs in to.
pub const ACCOUNT: &str = "ada";
pub const MACHINE_SECRET: &str = "canary-machine-secret-0123456789abcdef";

/// A running fixture. It ends with this value.
pub struct LoginServer {
    /// The URL of the authorization server.
    pub issuer: String,
    /// The URL of the MCP server.
    pub url: String,
    /// The private key of the client `machine-key`, in PEM form.
    pub machine_key: String,
    _child: Child,
    /// The process ends at the end of its input.
    _stdin: ChildStdin,
}

impl LoginServer {
    pub async fn start() -> LoginServer {
        tool("node_modules/oidc-provider");
        let mut command = Command::new(tool("conformance/node_modules/.bin/node"));
        command.arg(Path::new(ROOT).join("tests/login/server.mjs"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("node starts");
        let stdin = child.stdin.take().expect("the stream is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("the stream is piped")).lines();
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line in time").expect("text");
        let line = line.expect("the fixture prints its addresses");
        let place: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |name: &str| place[name].as_str().expect("text").to_owned();
        LoginServer {
            issuer: text("issuer"),
            url: text("url"),
            machine_key: text("machineKey"),
            _child: child,
            _stdin: stdin,
        }
    }

    /// Returns the server entry of the configuration.
    pub fn entry(&self) -> Value {
        json!({ "url": self.url })
    }

    /// Switches faults and returns the counters.
    pub async fn set(&self, faults: Value) -> Value {
        self.control(Method::POST, "", &faults.to_string()).await
    }

    pub async fn counters(&self) -> Value {
        self.control(Method::GET, "", "").await
    }

    pub async fn count(&self, name: &str) -> u64 {
        let counters = self.counters().await;
        counters[name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {counters}"))
    }

    /// Returns the number of performed calls of a tool.
    pub async fn calls(&self, tool: &str) -> u64 {
        self.counters().await["calls"][tool].as_u64().unwrap_or(0)
    }

    /// Waits until a counter has at least this value.
    pub async fn reaches(&self, name: &str, count: u64) {
        eventually(&format!("{name} is {count}"), || async { (self.count(name).await >= count).then_some(()) }).await;
    }

    /// Lets the MCP server reject all access tokens that exist.
    pub async fn expire_tokens(&self) {
        self.set(json!({ "expireAll": true })).await;
    }

    /// Revokes all tokens at the authorization server.
    pub async fn revoke_tokens(&self) {
        self.set(json!({ "revokeAll": true, "expireAll": true })).await;
    }

    /// Returns the recorded requests to the MCP server: `requests`, to the token endpoint: `tokens`, the parameters of
    /// `authorizations`, or the `secrets`.
    pub async fn recorded(&self, list: &str) -> Vec<Value> {
        let list = self.control(Method::GET, &format!("/{list}"), "").await;
        list.as_array().expect("a list").clone()
    }

    async fn control(&self, method: Method, path: &str, body: &str) -> Value {
        let client = Client::new(address_of(&self.issuer));
        let answer = client.send(method, &format!("/control{path}"), &[], body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    }
}

/// Returns the socket address in an `http` URL.
pub fn address_of(url: &str) -> SocketAddr {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split('/').next()).expect("an http URL");
    authority.replace("localhost", "127.0.0.1").parse().unwrap_or_else(|error| panic!("{error}: {url}"))
}

/// A test of the fixture: tokens are demanded, and none is issued without a login.
#[tokio::test]
async fn the_login_fixture_demands_tokens_and_counts() {
    let server = LoginServer::start().await;
    let client = Client::new(address_of(&server.url));
    let answer = client.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
    let challenge = answer.headers["www-authenticate"].to_str().expect("text");
    assert!(
        challenge.contains("/.well-known/oauth-protected-resource/mcp") && challenge.contains("read"),
        "{challenge}"
    );
    assert_eq!(server.count("unauthorized").await, 1);
    assert_eq!(server.recorded("requests").await.len(), 1);
    let refused = Client::new(address_of(&server.issuer));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = refused.send(Method::POST, "/token", &form, "grant_type=refresh_token&refresh_token=x").await;
    assert!(answer.status.is_client_error(), "{answer:?}");
    assert_eq!(server.count("tokenRequests").await, 1);
    assert_eq!(server.set(json!({ "token": "500" })).await["faults"]["token"], "500");
}
