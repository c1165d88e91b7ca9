//! Helpers for the tests of backends and faults: fixtures over HTTP, processes in `/proc`, and parsed responses.
//!
//! Functions that wait do so with the timeout of the harness.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::harness::{Frozen, Gateway, Scratch, TIMEOUT, eventually, fixture, fixture_server};

/// Returns an HTTP server entry of the configuration.
pub fn http_server(address: SocketAddr) -> Value {
    json!({ "url": format!("http://{address}/mcp") })
}

/// Returns a server entry whose server must not be logged in to.
pub fn without_login(mut server: Value) -> Value {
    server["oauth"] = json!(false);
    server
}

/// Returns the fixture behind `sh -c SCRIPT`. `$@` in the script is the fixture with `arguments`.
pub fn scripted_server(script: &str, arguments: &[&str]) -> Value {
    let fixture = fixture();
    let mut args = vec!["-c", script, "sh", &fixture];
    args.extend(arguments);
    json!({ "command": "sh", "args": args })
}

/// Returns one field of `/proc/PID/stat` after the name. Returns `None` if the process is gone.
fn stat(pid: u32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(") ")?.1;
    after_name.split(' ').nth(index).map(str::to_owned)
}

/// Reports whether a process is alive. A zombie is not.
pub fn is_alive(pid: u32) -> bool {
    stat(pid, 0).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
}

pub fn parent(pid: u32) -> u32 {
    stat(pid, 1).and_then(|parent| parent.parse().ok()).expect("a living process has a parent")
}

/// Returns the living child processes.
pub fn children(pid: u32) -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|it| stat(*it, 1) == Some(pid.to_string()) && is_alive(*it)).collect()
}

pub async fn await_exit(pid: u32) {
    eventually(&format!("process {pid} has ended"), || async { (!is_alive(pid)).then_some(()) }).await;
}

/// Waits for this file and returns the process id in it.
pub async fn pid_in(path: &Path) -> u32 {
    eventually(&format!("{} is there", path.display()), || async {
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
    })
    .await
}

/// Waits until the process id in this file differs from `old`, and returns it.
pub async fn next_pid_in(path: &Path, old: u32) -> u32 {
    eventually(&format!("{} names another process", path.display()), || async {
        let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        (pid != old).then_some(pid)
    })
    .await
}

/// Returns the number of starts of a fixture with `--start-log`.
pub fn starts(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Returns the living processes of a fixture with `--start-log`. Their command line contains the log, so a reused
/// process id does not count.
pub fn started_and_alive(path: &Path) -> BTreeSet<u32> {
    let command = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_fixture = |pid: &u32| is_alive(*pid) && command(*pid).contains(path_text(path));
    let log = std::fs::read_to_string(path).unwrap_or_default();
    log.lines().filter_map(|line| line.parse().ok()).filter(is_fixture).collect()
}

pub fn path_text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

/// Returns the peak of the resident memory of a process in KiB.
pub fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux reports the peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Starts a gateway and stops its only server `a`, so that a response proves that the server was not asked.
pub async fn frozen_server() -> (Gateway, Client, Frozen) {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let server = fixture_server(&["--pid-file", path_text(&pid_file)]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let frozen = Frozen::new(&pid_file).await;
    (gateway, client, frozen)
}

/// Waits for a line of the log with all of `fragments`, and returns it.
pub async fn await_log(gateway: &Gateway, fragments: &[&str]) -> String {
    eventually(&format!("the log has {fragments:?}"), || async {
        gateway.log().into_iter().find(|line| fragments.iter().all(|fragment| line.contains(fragment)))
    })
    .await
}

/// Asserts that a response is this error of the gateway. Returns its `data`.
pub fn assert_error(answer: &Value, code: i64, name: &str) -> Value {
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert_eq!(answer["error"]["data"]["code"], name, "{answer}");
    answer["error"]["data"].clone()
}

pub fn is_error(answer: &Value, name: &str) -> bool {
    answer["error"]["data"]["code"] == name
}

/// Makes a call and returns all messages of its response, the result last.
pub async fn messages_of(client: &Client, tool: &str, arguments: Value) -> Vec<Value> {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "same"}});
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let answer = client.post(body.to_string()).await;
    answer.messages().iter().map(|message| serde_json::from_str(message).expect("a message")).collect()
}

/// Waits until a call of this tool succeeds again.
pub async fn await_call(client: &Client, tool: &str) {
    eventually(&format!("{tool} answers"), || async {
        client.try_call(tool, json!({})).await["error"].is_null().then_some(())
    })
    .await;
}

/// Starts a call of server `a` that ends with [`release`], and waits until the server has it.
pub async fn hold_call(client: &Client) -> u64 {
    let count = async || client.call_text("a_call_count", json!({})).await.parse::<u64>().expect("a number");
    let counted = AtomicU64::new(count().await);
    let held = client.begin_call("a_request", json!({"times": 0, "then": "release"})).await;
    eventually("the call has arrived", || async {
        // The query is a call too.
        let expected = counted.fetch_add(1, Ordering::Relaxed) + 1;
        (count().await > expected).then_some(())
    })
    .await;
    held
}

/// Ends the calls of [`hold_call`] over the same connection of the server.
pub async fn release(client: &Client) {
    client.call("a_release", json!({})).await;
}

/// Starts a call in a task.
pub fn begin_call(client: &Client, tool: &str, arguments: Value) -> tokio::task::JoinHandle<Value> {
    let (client, tool) = (client.clone(), tool.to_owned());
    tokio::spawn(async move { client.try_call(&tool, arguments).await })
}

/// A counter of the calls that have reached a backend, without those that query the count. No other client may query
/// it.
pub struct Arrivals {
    watcher: Client,
    tool: String,
    queries: AtomicU64,
}

impl Arrivals {
    pub fn new(watcher: Client, server: &str) -> Arrivals {
        Arrivals { watcher, tool: format!("{server}_call_count"), queries: AtomicU64::new(0) }
    }

    /// Waits until there are `count`.
    pub async fn reach(&self, count: u64) {
        eventually(&format!("{}: {count}", self.tool), || async {
            let queries = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
            let all: u64 = self.watcher.call_text(&self.tool, json!({})).await.parse().expect("a number");
            (all - queries >= count).then_some(())
        })
        .await;
    }
}

/// Waits until `count` calls have reached a backend. No client may have queried the count yet.
pub async fn await_arrivals(watcher: &Client, server: &str, count: u64) {
    Arrivals::new(watcher.clone(), server).reach(count).await;
}

/// Returns the response to a call that [`begin_call`] started.
pub async fn ended(call: tokio::task::JoinHandle<Value>) -> Value {
    tokio::time::timeout(TIMEOUT, call).await.expect("an end in time").expect("no panic")
}

/// Sends one raw request with `Connection: close`. Returns the stream of the response.
pub async fn raw_post(client: &Client, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).await.expect("the gateway listens");
    let mut head = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", client.address);
    for (name, value) in client.headers() {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(head.as_bytes()).await.expect("the gateway reads");
    stream
}

/// Reads until the peer closes the connection.
pub async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("an end in time").expect("bytes");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The pause between two faults of a series.
pub const FAULT_PAUSE: Duration = Duration::from_millis(250);
