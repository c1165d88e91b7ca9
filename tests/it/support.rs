//! What the tests of backends and faults share: fixtures over HTTP, processes seen through `/proc`, answers taken apart.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Client, Gateway, PATIENCE, eventually, fixture};

/// An HTTP server entry of the configuration.
pub fn http_server(address: SocketAddr) -> Value {
    json!({ "url": format!("http://{address}/mcp") })
}

/// The fixture behind `sh -c SCRIPT`, in which `$@` is the fixture with `arguments`.
pub fn scripted_server(script: &str, arguments: &[&str]) -> Value {
    let fixture = fixture();
    let mut args = vec!["-c", script, "sh", &fixture];
    args.extend(arguments);
    json!({ "command": "sh", "args": args })
}

/// One member of `/proc/PID/stat` after the name; nothing when the process is gone.
fn stat(pid: u32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(") ")?.1;
    after_name.split(' ').nth(index).map(str::to_owned)
}

/// A zombie is gone: only its status waits for somebody.
pub fn is_alive(pid: u32) -> bool {
    stat(pid, 0).is_some_and(|state| !matches!(state.as_str(), "Z" | "X"))
}

pub fn parent(pid: u32) -> u32 {
    stat(pid, 1).and_then(|parent| parent.parse().ok()).expect("a living process has a parent")
}

/// The processes that it started and that are not gone.
pub fn children(pid: u32) -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|it| stat(*it, 1) == Some(pid.to_string()) && is_alive(*it)).collect()
}

pub async fn is_gone(pid: u32) {
    eventually(&format!("process {pid} is gone"), || async { (!is_alive(pid)).then_some(()) }).await;
}

/// The process id in this file, once it is there.
pub async fn pid_in(path: &Path) -> u32 {
    eventually(&format!("{} is there", path.display()), || async {
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
    })
    .await
}

/// The process id in this file, once it is another than `old`.
pub async fn next_pid_in(path: &Path, old: u32) -> u32 {
    eventually(&format!("{} names another process", path.display()), || async {
        let pid = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        (pid != old).then_some(pid)
    })
    .await
}

/// How many times a fixture with `--start-log` was started.
pub fn starts(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// The processes of a fixture with `--start-log` that are not gone. Their command line names the log, so a number that
/// somebody else has by now does not count.
pub fn started_and_alive(path: &Path) -> BTreeSet<u32> {
    let command = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_ours = |pid: &u32| is_alive(*pid) && command(*pid).contains(path_text(path));
    let log = std::fs::read_to_string(path).unwrap_or_default();
    log.lines().filter_map(|line| line.parse().ok()).filter(is_ours).collect()
}

pub fn path_text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

/// The line of the log that holds all of `words`, once it is there.
pub async fn logged(gateway: &Gateway, words: &[&str]) -> String {
    eventually(&format!("the log has {words:?}"), || async {
        gateway.log().into_iter().find(|line| words.iter().all(|word| line.contains(word)))
    })
    .await
}

/// Asserts that an answer is this error of the gateway; gives its `data`.
pub fn assert_error(answer: &Value, code: i64, name: &str) -> Value {
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert_eq!(answer["error"]["data"]["code"], name, "{answer}");
    answer["error"]["data"].clone()
}

pub fn is_error(answer: &Value, name: &str) -> bool {
    answer["error"]["data"]["code"] == name
}

/// A tool call's whole answer, error or not.
pub async fn try_call(client: &Client, tool: &str, arguments: Value) -> Value {
    client.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
}

/// Waits until a call of this tool succeeds again.
pub async fn await_call(client: &Client, tool: &str) {
    eventually(&format!("{tool} answers"), || async {
        try_call(client, tool, json!({})).await["error"].is_null().then_some(())
    })
    .await;
}

/// A call on its way, in a task of its own.
pub fn begin_call(client: &Client, tool: &str, arguments: Value) -> tokio::task::JoinHandle<Value> {
    let (client, tool) = (client.clone(), tool.to_owned());
    tokio::spawn(async move { try_call(&client, &tool, arguments).await })
}

/// Counts the calls that have reached a backend, besides those that ask for the count. Nobody else may ask for it.
pub struct Arrivals {
    watcher: Client,
    tool: String,
    asked: AtomicU64,
}

impl Arrivals {
    pub fn new(watcher: Client, server: &str) -> Arrivals {
        Arrivals { watcher, tool: format!("{server}_call_count"), asked: AtomicU64::new(0) }
    }

    /// Waits until there are `count`.
    pub async fn reach(&self, count: u64) {
        eventually(&format!("{}: {count}", self.tool), || async {
            let mine = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
            let all: u64 = self.watcher.call_text(&self.tool, json!({})).await.parse().expect("a number");
            (all - mine >= count).then_some(())
        })
        .await;
    }
}

/// Waits until `count` calls have reached a backend that nobody has asked for the count yet.
pub async fn arrived(watcher: &Client, server: &str, count: u64) {
    Arrivals::new(watcher.clone(), server).reach(count).await;
}

/// The end of a call begun by [`begin_call`].
pub async fn ended(call: tokio::task::JoinHandle<Value>) -> Value {
    tokio::time::timeout(PATIENCE, call).await.expect("an end in time").expect("no panic")
}

/// One raw request, `Connection: close`; the stream to read from or to leave.
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

/// What the peer still says before it closes.
pub async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an end in time").expect("bytes");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a scrape says of a gauge, all its series added up.
pub async fn gauge(client: &Client, family: &str) -> usize {
    let answer = client.send(http::Method::GET, "/metrics", &[], "").await;
    let series =
        answer.body.lines().filter(|line| line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let values: Vec<usize> =
        series.map(|line| line.rsplit(' ').next().and_then(|it| it.parse().ok()).expect("a count")).collect();
    assert!(!values.is_empty(), "there is no {family} in {}", answer.body);
    values.into_iter().sum()
}

/// The pause between two faults of a series.
pub const FAULT_PAUSE: Duration = Duration::from_millis(250);
