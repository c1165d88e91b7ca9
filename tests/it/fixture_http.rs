//! The fixture as a server of its own, over HTTP: a backend for the gateway, or something to compare the gateway with.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{Client, PATIENCE, fixture};
use crate::support::http_server;

/// It is started and ended by the test, never by a gateway.
pub struct HttpFixture {
    pub address: SocketAddr,
    child: Child,
}

impl HttpFixture {
    pub async fn start(switches: &[&str]) -> HttpFixture {
        let mut command = Command::new(fixture());
        command.arg("--http").args(switches).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().expect("the fixture starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line in time");
        let line = line.expect("text").expect("the fixture tells where it listens");
        let address = line.trim_start_matches("listening http://").trim_end_matches("/mcp");
        HttpFixture { address: address.parse().expect("an address"), child }
    }

    /// Ends it and starts another at the same address.
    pub async fn replace(mut self, switches: &[&str]) -> HttpFixture {
        self.child.kill().await.expect("it can be killed");
        let port = self.address.port().to_string();
        HttpFixture::start(&[&["--port", &port], switches].concat()).await
    }

    /// An entry of the configuration.
    pub fn server(&self) -> Value {
        http_server(self.address)
    }

    /// A client that speaks to the fixture itself, without a gateway.
    pub async fn client(&self) -> Client {
        let mut client = Client::new(self.address);
        client.initialize("2025-11-25").await;
        client
    }
}
