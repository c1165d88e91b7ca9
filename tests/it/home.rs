//! The home directory of a user: a configuration, the gateways that run there, and commands that find them.
//!
//! The tests of the command line use it. Commands see no files outside of the directory.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::client::Client;
use crate::harness::{Gateway, Scratch, TIMEOUT, goblin};

pub struct Home {
    pub scratch: Scratch,
    pub config: PathBuf,
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    /// Asserts success and returns the output as JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Home {
    pub fn new(config: &Value) -> Home {
        let scratch = Scratch::new();
        let config = scratch.write("goblin.json", &config.to_string());
        Home { scratch, config }
    }

    pub fn config(&self) -> &str {
        self.config.to_str().expect("text")
    }

    pub fn goblin(&self, arguments: &[&str]) -> Command {
        let mut command = goblin(self.scratch.path());
        command.args(arguments).current_dir(self.scratch.path()).env("HOME", self.scratch.path());
        command.env_remove("XDG_CONFIG_HOME").stdin(Stdio::null());
        command
    }

    /// Returns the command of a gateway at this port.
    pub fn serve(&self, port: u16) -> Command {
        self.goblin(&["serve", "--port", &port.to_string(), "--log-level", "debug", "--config", self.config()])
    }

    /// Returns the command of a client over stdio.
    pub fn stdio(&self, arguments: &[&str]) -> Command {
        self.goblin(&[&["stdio"], arguments, &["--config", self.config()]].concat())
    }

    /// Starts a client over stdio without a handshake, which finds the gateways of this directory.
    pub fn bridge(&self) -> Client {
        let mut command = self.stdio(&[]);
        command.stderr(Stdio::null());
        Client::run(command)
    }

    /// Starts a gateway and waits until it lists this tool.
    pub async fn gateway(&self, tool: &str) -> (Gateway, Client) {
        let gateway = Gateway::of(self.serve(0)).await;
        let client = gateway.client_seeing(tool).await;
        (gateway, client)
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, "").await
    }

    /// Runs a command with this input.
    pub async fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = self.goblin(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("goblin starts");
        let mut stdin = child.stdin.take().expect("the stream is piped");
        // A write error means that the command has ended.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output())
            .await
            .expect("the process ends")
            .expect("the command ran");
        let stderr = String::from_utf8(output.stderr).expect("text");
        Ran { code: output.status.code(), stdout: output.stdout, stderr }
    }
}
