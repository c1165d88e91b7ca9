//! The fixture as a server of its own, over HTTP: a backend for the gateway, or something to compare the gateway with.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{Client, PATIENCE, fixture};

pub struct HttpFixture {
    pub url: String,
    _child: Child,
}

impl HttpFixture {
    pub async fn start(switches: &[&str]) -> HttpFixture {
        let mut command = Command::new(fixture());
        command.arg("--http").args(switches).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().expect("the fixture starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line in time");
        let line = line.expect("text").expect("the fixture tells where it listens");
        let url = line.strip_prefix("listening ").expect("an address").to_owned();
        HttpFixture { url, _child: child }
    }

    /// An entry of the configuration.
    pub fn server(&self) -> Value {
        json!({ "type": "http", "url": self.url })
    }

    /// A client that speaks to the fixture itself, without a gateway.
    pub async fn client(&self) -> Client {
        let authority = self.url.trim_start_matches("http://").trim_end_matches("/mcp");
        let mut client = Client::new(authority.parse().expect("an address"));
        client.initialize("2025-11-25").await;
        client
    }
}
