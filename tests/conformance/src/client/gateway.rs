//! A gateway between this client and the suite's server, for one scenario.
//!
//! The client starts it, plays the scenario through it, and ends it. Dropping it kills the process and removes its
//! directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs, process};

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::sleep;

use crate::client::wire::{Messages, send};

/// The interval of the readiness checks.
const PAUSE: Duration = Duration::from_millis(20);
/// The name of the configuration file.
const CONFIG: &str = "goblin.json";

pub struct Gateway {
    process: Child,
    directory: PathBuf,
    pub url: String,
    address: String,
}

/// The state of the server behind the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    Ready,
    LoginNeeded,
}

impl Gateway {
    /// Starts a gateway with one server, and waits until the server is ready or needs a login.
    pub async fn start(program: &OsStr, server: Value) -> Result<Gateway> {
        let directory = env::temp_dir().join(format!("goblin-conformance-gateway-{}", process::id()));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let config = directory.join(CONFIG);
        let text = json!({"namespacing": "none", "mcpServers": {"suite": server}}).to_string();
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--log-level", "debug", "--config"]).arg(&config);
        isolate(&mut command, &directory);
        command.kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut log = BufReader::new(process.stderr.take().context("stderr is a pipe")?).lines();
        let address = address(&mut log).await?;
        tokio::spawn(async move {
            while let Ok(Some(line)) = log.next_line().await {
                eprintln!("{line}");
            }
        });
        let gateway = Gateway { process, directory, url: format!("http://{address}/mcp"), address };
        gateway.server_state().await?;
        Ok(gateway)
    }

    /// Returns the path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.directory.join(CONFIG)
    }

    /// Lets a command use the directories of this gateway.
    pub fn isolate(&self, command: &mut Command) {
        isolate(command, &self.directory);
    }

    /// Waits until the server is ready or needs a login. The gateway reports itself ready earlier if the server takes
    /// long.
    pub async fn server_state(&self) -> Result<ServerState> {
        let url = format!("http://{}/readyz", self.address);
        loop {
            let response = send(&url, Method::GET, &[], String::new()).await?;
            let status = Messages::of(response).next().await?.unwrap_or_default();
            let is_settled = status["ready"] == true;
            if is_settled && status["servers"]["ready"] == 1 {
                return Ok(ServerState::Ready);
            }
            if is_settled && status["servers"]["loginNeeded"] == 1 {
                return Ok(ServerState::LoginNeeded);
            }
            sleep(PAUSE).await;
        }
    }

    /// Ends the gateway with a signal, like an operator would.
    pub async fn stop(mut self) -> Result<()> {
        let id = self.process.id().context("the gateway has ended before its time")?;
        let status = Command::new("kill").args(["-TERM", &id.to_string()]).status().await;
        ensure!(status.is_ok_and(|status| status.success()), "cannot end the gateway");
        let status = self.process.wait().await.context("the end of the gateway cannot be waited for")?;
        ensure!(status.success(), "the gateway has ended badly: {status}");
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // A leftover directory is below the one for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the address in the gateway's log. The lines are printed again, because the suite stores them.
async fn address(log: &mut Lines<BufReader<ChildStderr>>) -> Result<String> {
    while let Some(line) = log.next_line().await? {
        eprintln!("{line}");
        if let Some(rest) = line.split("listening on http://").nth(1) {
            return Ok(rest.split('/').next().unwrap_or_default().to_owned());
        }
    }
    bail!("the gateway has ended without listening")
}

fn isolate(command: &mut Command, directory: &Path) {
    for variable in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
        command.env(variable, directory);
    }
}
