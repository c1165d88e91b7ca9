//! The fixture as an independent HTTP server: a backend for the gateway, or a reference to compare it with.
//!
//! The process ends with its handle.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::harness::{TIMEOUT, fixture};
use crate::support::http_server;

/// A fixture process that the test starts and ends.
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
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line in time");
        let line = line.expect("text").expect("the fixture prints its address");
        let address = line.trim_start_matches("listening http://").trim_end_matches("/mcp");
        HttpFixture { address: address.parse().expect("an address"), child }
    }

    /// Ends the process and starts another at the same address.
    pub async fn replace(mut self, switches: &[&str]) -> HttpFixture {
        self.child.kill().await.expect("the process can be killed");
        let port = self.address.port().to_string();
        HttpFixture::start(&[&["--port", &port], switches].concat()).await
    }

    /// Returns the entry of the configuration.
    pub fn server(&self) -> Value {
        http_server(self.address)
    }

    /// Returns a client that connects to the fixture directly.
    pub async fn client(&self) -> Client {
        let mut client = Client::new(self.address);
        client.initialize("2025-11-25").await;
        client
    }
}
