//! Requests to the admin API with the admin token, as commands on the same machine send them.
//!
//! The harness remembers the runtime directory of each gateway, where the token is found.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use http::Method;
use http::response::Parts;
use serde_json::Value;
use tokio::process::Command;

use crate::client::Client;
use crate::client::http::{Answer, Listener};
use crate::harness::eventually;

/// The runtime directories of the gateways that tests started, by address.
static HOMES: Mutex<BTreeMap<SocketAddr, PathBuf>> = Mutex::new(BTreeMap::new());

/// Records the directory in which the gateway of this command writes its record.
pub fn remember(address: SocketAddr, command: &Command) {
    let mut variables = command.as_std().get_envs();
    let home = variables.find_map(|(name, value)| value.filter(|_| name == "XDG_RUNTIME_DIR"));
    if let Some(home) = home {
        HOMES.lock().expect("no test panics here").insert(address, home.into());
    }
}

/// The admin tokens of gateways in the process of the test.
static TOKENS: Mutex<BTreeMap<SocketAddr, String>> = Mutex::new(BTreeMap::new());

/// Records the admin token of a gateway that writes no record.
pub fn remember_token(address: SocketAddr, token: &str) {
    TOKENS.lock().expect("no test panics here").insert(address, token.to_owned());
}

/// Waits for the record of the gateway that listens at this address, and returns it.
pub async fn record(address: SocketAddr) -> Value {
    let home = HOMES.lock().expect("no test panics here").get(&address).expect("a gateway of this address").clone();
    eventually("the record is written", || async { record_in(&home, address) }).await
}

fn record_in(home: &Path, address: SocketAddr) -> Option<Value> {
    let files = std::fs::read_dir(home.join("goblin")).ok()?.flatten().map(|file| file.path());
    let records = files.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let mut records = records.filter_map(|path| serde_json::from_slice::<Value>(&std::fs::read(path).ok()?).ok());
    // A gateway that listens everywhere records how programs of this machine reach it.
    let port = format!(":{}/", address.port());
    records.find(|record| record["url"].as_str().is_some_and(|url| url.contains(&port)))
}

/// Returns the admin token, which a gateway writes for the commands of its user.
pub async fn admin_token(address: SocketAddr) -> String {
    if let Some(token) = TOKENS.lock().expect("no test panics here").get(&address) {
        return token.clone();
    }
    let record = record(address).await;
    let file = record["adminTokenFile"].as_str().unwrap_or_else(|| panic!("no file in {record}"));
    std::fs::read_to_string(file).expect("the admin token")
}

/// Returns the value of an `Authorization` header with the admin token.
pub async fn bearer(address: SocketAddr) -> String {
    format!("Bearer {}", admin_token(address).await)
}

/// GETs a route of the admin API.
pub async fn get_admin(client: &Client, path: &str) -> Answer {
    let bearer = bearer(client.address).await;
    client.send(Method::GET, path, &[("authorization", &bearer)], "").await
}

/// Opens a stream of the admin API.
pub async fn open_admin_stream(client: &Client, path: &str, headers: &[(&str, &str)]) -> (Parts, Listener) {
    let bearer = bearer(client.address).await;
    let headers: Vec<_> = headers.iter().copied().chain([("authorization", bearer.as_str())]).collect();
    client.get(path, &headers).await
}
