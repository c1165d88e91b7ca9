//! A gateway with one server `a`, for every pair of transports on the client and the server side.
//!
//! Tests iterate over [`pairs`], so that each property holds for all of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::raw_member;
use crate::client::modern::everything;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::scrape::{find_metric, gauge_becomes};
use crate::support::path_text;

/// The transport of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    Http,
    Sse,
    Stdio,
}

/// The transport and stream of the server's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    Stdio,
    /// Streamable HTTP, on the stream of the call's POST.
    Post,
    /// Streamable HTTP, on the session's stream.
    Get,
    Sse,
}

impl Front {
    pub const ALL: [Front; 3] = [Front::Http, Front::Sse, Front::Stdio];
    /// The fronts that several clients can share.
    pub const SHARED: [Front; 2] = [Front::Http, Front::Sse];
}

impl Back {
    pub const ALL: [Back; 4] = [Back::Stdio, Back::Post, Back::Get, Back::Sse];
    /// The backs that do not identify the call of a message.
    pub const SHARED: [Back; 3] = [Back::Stdio, Back::Get, Back::Sse];
}

/// Returns all pairs.
pub fn pairs() -> impl Iterator<Item = (Front, Back)> {
    Front::ALL.into_iter().flat_map(|front| Back::ALL.map(|back| (front, back)))
}

/// The fixture. It records the messages it receives in a file, which tests can read without side effects.
pub struct Backend {
    back: Back,
    /// A name for error messages.
    name: String,
    fixture: Option<HttpFixture>,
    received: PathBuf,
    _scratch: Scratch,
}

impl Backend {
    pub async fn start(back: Back) -> Backend {
        let scratch = Scratch::new();
        let received = scratch.path().join("received");
        let switches: &[&str] = match back {
            Back::Stdio | Back::Post | Back::Get => &["--received", path_text(&received)],
            Back::Sse => &["--sse", "--received", path_text(&received)],
        };
        let fixture = match back {
            Back::Stdio => None,
            Back::Post | Back::Get | Back::Sse => Some(HttpFixture::start(switches).await),
        };
        Backend { back, name: format!("{back:?}"), fixture, received, _scratch: scratch }
    }

    /// Returns the entry of the configuration.
    pub fn server(&self) -> Value {
        match &self.fixture {
            Some(fixture) => fixture.server(),
            None => fixture_server(&["--received", path_text(&self.received)]),
        }
    }

    /// Returns the arguments of a fixture tool that sends messages. `rest` holds further members, each after a comma.
    pub fn arguments(&self, method: &str, rest: &str) -> String {
        let via = if self.back == Back::Get { "get" } else { "post" };
        format!(r#"{{"method":"{method}","via":"{via}"{rest}}}"#)
    }

    /// Returns the original text of the received notifications and responses.
    pub fn received(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.received).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub async fn await_message(&self, description: &str, wanted: impl Fn(&str) -> bool) -> String {
        eventually(&format!("{}: the server receives {description}", self.name), || async {
            self.received().into_iter().find(|message| wanted(message))
        })
        .await
    }

    /// Returns the response to the server request with this id, given as JSON text.
    pub async fn answer_to(&self, id: &str) -> Value {
        let is_it = |message: &str| raw_member(message, "id").as_deref() == Some(id);
        let answer = self.await_message(&format!("the answer to {id}"), is_it).await;
        serde_json::from_str(&answer).expect("a message")
    }

    /// Returns the params of a notification.
    pub async fn notification(&self, method: &str) -> String {
        let is_it = |message: &str| raw_member(message, "method") == Some(format!("{method:?}"));
        let message = self.await_message(method, is_it).await;
        raw_member(&message, "params").unwrap_or_else(|| panic!("no params in {message}"))
    }
}

pub struct Stage {
    front: Front,
    config: Value,
    gateway: Option<Gateway>,
    pub backend: Backend,
}

impl Stage {
    pub async fn start(front: Front, back: Back) -> Stage {
        Stage::configured(front, back, json!({}), json!({})).await
    }

    /// Starts a gateway with these policies, and these members in the server's entry.
    pub async fn configured(front: Front, back: Back, policies: Value, members: Value) -> Stage {
        let backend = Backend { name: format!("{front:?} {back:?}"), ..Backend::start(back).await };
        let mut server = backend.server();
        for (name, value) in members.as_object().expect("an object") {
            server[name] = value.clone();
        }
        // The grace period is long, so that a shutdown that waits in vain fails the test.
        let gateway = json!({ "grace": "10m" });
        let config = json!({ "gateway": gateway, "policies": policies, "mcpServers": { "a": server } });
        let gateway = match front {
            Front::Http | Front::Sse => Some(Gateway::start(config.clone()).await),
            Front::Stdio => None,
        };
        Stage { front, config, gateway, backend }
    }

    /// Returns a client with these capabilities that sees the tools. Over stdio there can be only one.
    pub async fn peer(&self, capabilities: Value) -> Client {
        let mut peer = match (self.front, &self.gateway) {
            (Front::Http, Some(gateway)) => Client::new(gateway.address).listening(capabilities).await,
            (Front::Sse, Some(gateway)) => Client::sse(gateway.address).await.listening(capabilities).await,
            (Front::Stdio, _) | (_, None) => Client::stdio(self.config.clone()).listening(capabilities).await,
        };
        peer.name.clone_from(&self.backend.name);
        peer.await_tool("a_request").await;
        peer
    }

    /// Returns a client over Streamable HTTP without the session's stream.
    pub async fn client(&self, capabilities: Value) -> Client {
        let mut client = Client::new(self.gateway.as_ref().expect("a front over HTTP").address);
        client.initialize_with("2025-11-25", capabilities).await;
        client
    }

    /// Returns the value of a metric with its labels, or 0 if it is absent.
    pub async fn metric(&self, name: &str) -> u64 {
        let gateway = self.gateway.as_ref().expect("metrics are for fronts over HTTP");
        find_metric(&Client::new(gateway.address), name).await.unwrap_or(0)
    }

    pub async fn metric_becomes(&self, name: &str, value: u64) {
        eventually(&format!("{name} is {value}"), || async { (self.metric(name).await == value).then_some(()) }).await;
    }
}

/// A gateway with one server `a`, and a sessionless client that supports everything.
pub struct Scene {
    pub gateway: Gateway,
    pub backend: Backend,
    pub client: Client,
    counted: AtomicU64,
}

impl Scene {
    /// Starts a gateway with these policies, and these members in the server's entry.
    pub async fn start(back: Back, policies: Value, members: Value) -> Scene {
        let backend = Backend::start(back).await;
        let config = Scene::config(&backend, policies, members);
        let gateway = Gateway::start(config).await;
        let client = Client::modern(gateway.address, everything());
        client.await_tool("a_request").await;
        Scene { gateway, backend, client, counted: AtomicU64::new(0) }
    }

    /// Returns the configuration. The grace period is long, so that a shutdown that waits in vain fails the test.
    pub fn config(backend: &Backend, policies: Value, members: Value) -> Value {
        let mut server = backend.server();
        for (name, value) in members.as_object().expect("an object") {
            server[name] = value.clone();
        }
        json!({ "gateway": { "grace": "10m" }, "policies": policies, "mcpServers": { "a": server } })
    }

    /// Returns the number of calls that the server received, without those of this function.
    pub async fn runs(&self) -> u64 {
        let queries = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let all: u64 = self.client.call_text("a_call_count", json!({})).await.parse().expect("a number");
        all - queries
    }

    pub async fn gauge_becomes(&self, name: &str, value: usize) {
        gauge_becomes(&Client::new(self.gateway.address), name, value).await;
    }
}
