//! The scenarios in which the suite's server needs a login.
//!
//! The suite's authorization server approves each login at once. The client starts `goblin login`, plays the browser
//! with the URL that the command prints, and repeats a call that needs another login.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use http::header::LOCATION;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::client::Part;
use crate::client::gateway::{Gateway, ServerState};
use crate::client::peer::Peer;
use crate::client::wire::send;

/// The document of the client, as the suite expects it. Servers without support for such documents register the client.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// The error code of a call that needs a login.
const LOGIN_NEEDED: i64 = 1407;
/// The limit of logins in one scenario. The gateway refuses earlier to log in again and again.
const MAX_LOGINS: usize = 8;
const MAX_REDIRECTS: usize = 10;

/// Returns the `oauth` member of the server in the gateway's configuration.
pub fn options(context: &Value) -> Value {
    let Some(id) = context["client_id"].as_str() else { return json!({ "clientId": DOCUMENT }) };
    let mut options = json!({ "clientId": id });
    for (name, key) in [("client_secret", "clientSecret"), ("private_key_pem", "privateKey"), ("issuer", "issuer")] {
        if let Some(value) = context[name].as_str() {
            options[key] = value.replace("${", "$${").into();
        }
    }
    options
}

/// Returns the options of a login without a person.
pub fn machine_options(context: &Value) -> Value {
    let mut options = options(context);
    options["grant"] = "client_credentials".into();
    options
}

/// Logs in as often as the server demands it, and calls the tool of the scenario.
pub async fn play(part: &Part, gateway: &Gateway, program: &Path) -> Result<()> {
    for _ in 0..MAX_LOGINS {
        match gateway.server_state().await? {
            ServerState::LoginNeeded => log_in(gateway, program).await?,
            ServerState::Ready => match call(part, gateway).await? {
                true => return Ok(()),
                false => log_in(gateway, program).await?,
            },
        }
    }
    bail!("the server still needs a login after {MAX_LOGINS} of them")
}

/// Calls the tool. Returns `false` if the call needs another login.
async fn call(part: &Part, gateway: &Gateway) -> Result<bool> {
    let peer = Peer::connect(&gateway.url, &part.client_version).await?;
    peer.tools().await?;
    let answer = peer.send_request("tools/call", json!({"name": "test-tool", "arguments": {}})).await?;
    if answer["error"]["code"] == LOGIN_NEEDED {
        return Ok(false);
    }
    ensure!(answer["result"]["content"][0]["text"] == "test", "the call failed: {answer}");
    Ok(true)
}

async fn log_in(gateway: &Gateway, program: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["login", "suite", "--no-browser", "--config"]).arg(gateway.config());
    gateway.isolate(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().context("cannot start goblin login")?;
    let mut lines = BufReader::new(process.stdout.take().context("stdout is a pipe")?).lines();
    while let Some(line) = lines.next_line().await? {
        eprintln!("goblin login: {line}");
        if line.starts_with("http") {
            browse(line.trim()).await?;
        }
    }
    let status = process.wait().await?;
    ensure!(status.success(), "goblin login failed: {status}");
    Ok(())
}

/// Opens a URL and follows its redirects, the last one to the callback of the login.
async fn browse(url: &str) -> Result<()> {
    let mut url = url.to_owned();
    for _ in 0..MAX_REDIRECTS {
        let response = send(&url, Method::GET, &[], String::new()).await?;
        let Some(location) = response.headers().get(LOCATION) else { return Ok(()) };
        url = location.to_str().context("a redirect has an invalid location")?.to_owned();
    }
    bail!("the browser was redirected {MAX_REDIRECTS} times")
}
