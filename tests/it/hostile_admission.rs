//! Floods of sessions and connections. New clients and operators are still accepted, and nothing in use is closed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use goblin_engine::upstream::descriptors;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::harness::{GOBLIN, Gateway, Scratch, eventually, fixture_server, servers_only};
use crate::hostile::{Attack, HEALTHY, await_limit, limit_hits};
use crate::scrape::gauge;
use crate::support::{assert_error, scripted_server};

/// The memory limit of the gateway during a flood of sessions, in MiB.
const SESSION_CEILING: u64 = 256;
/// The memory limit of the gateway during a flood of connections, in MiB.
const CONNECTION_CEILING: u64 = 128;

fn initialize() -> String {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()
}

/// Returns the status of a ping in the client's session.
async fn ping(client: &Client) -> StatusCode {
    client.post(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string()).await.status
}

fn flood_config(max_sessions: usize) -> Value {
    json!({ "gateway": { "maxSessions": max_sessions }, "mcpServers": { HEALTHY: fixture_server(&[]) } })
}

/// Opens this many sessions over one connection and uses none of them.
async fn flood(gateway: &Gateway, sessions: usize) {
    let client = Client::new(gateway.address);
    for _ in 0..sessions {
        let answer = client.post(initialize()).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
}

#[tokio::test]
async fn hard5_a_flood_of_sessions_locks_out_no_client() {
    const MAX_SESSIONS: usize = 3000;
    let gateway = Gateway::start(flood_config(MAX_SESSIONS)).await;
    let attack = Attack::begin("a flood of sessions", &gateway).await;
    let (streaming, subscribed, used) = (gateway.client().await, gateway.client().await, gateway.client().await);
    let stream = streaming.listen().await;
    let uri = json!({ "uri": format!("{HEALTHY}+note:///alpha") });
    assert!(subscribed.request("resources/subscribe", uri).await["error"].is_null());
    assert_eq!(ping(&used).await, StatusCode::OK);

    let is_over = AtomicBool::new(false);
    let flooding = async {
        tokio::join!(flood(&gateway, 2000), flood(&gateway, 2000), flood(&gateway, 2000));
        is_over.store(true, Ordering::Relaxed);
    };
    let newcomers = async {
        let mut served = 0;
        while !is_over.load(Ordering::Relaxed) {
            let client = gateway.client().await;
            assert_eq!(ping(&client).await, StatusCode::OK, "a new client keeps its session until its first request");
            served += 1;
        }
        served
    };
    let (newcomers, ()) = tokio::join!(newcomers, flooding);
    assert!(newcomers > 0);
    assert!(limit_hits(&used, "maxSessions").await >= 3000, "half of the flood found no free place");
    assert_eq!(gauge(&used, "goblin_sessions_active").await, MAX_SESSIONS);
    for (client, held) in [(&streaming, "a stream"), (&subscribed, "a subscription"), (&used, "an earlier request")] {
        assert_eq!(ping(client).await, StatusCode::OK, "a session with {held} outlives the flood");
    }
    drop(stream);
    attack.end(SESSION_CEILING).await;
}

#[tokio::test]
async fn hard5_an_evicted_client_gets_404_and_can_initialize_again() {
    let gateway = Gateway::start(flood_config(2)).await;
    let used = gateway.client().await;
    assert_eq!(ping(&used).await, StatusCode::OK);
    let mut unused = gateway.client().await;
    let new_client = gateway.client().await;
    assert_eq!(ping(&used).await, StatusCode::OK, "a session without a request is evicted first");
    assert_eq!(ping(&new_client).await, StatusCode::OK);
    assert_eq!(ping(&unused).await, StatusCode::NOT_FOUND);
    let id = unused.session.clone().expect("a session");
    let short = id[id.len() - 8..].to_owned();
    let is_logged = |line: &String| line.contains("session ended") && line.contains(&short) && line.contains("evicted");
    eventually("the log reports the eviction", || async { gateway.log().iter().any(is_logged).then_some(()) }).await;
    unused.session = None;
    assert!(unused.initialize("2025-11-25").await["error"].is_null());
    assert_eq!(ping(&unused).await, StatusCode::OK);
    assert_eq!(ping(&used).await, StatusCode::NOT_FOUND, "the least recently active session made room");
    assert_eq!(limit_hits(&new_client, "maxSessions").await, 2);
}

#[tokio::test]
async fn hard5_only_sessions_that_hold_nothing_are_evicted() {
    let mut own = fixture_server(&[]);
    own["session"] = json!("per-client");
    let config = json!({ "gateway": { "maxSessions": 4 }, "mcpServers": { "a": fixture_server(&[]), "own": own } });
    let gateway = Gateway::start(config).await;
    let calling = gateway.client_seeing("a_hang").await;
    let (streaming, subscribed, linked) = (gateway.client().await, gateway.client().await, gateway.client().await);
    let hang = json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "a_hang"}});
    let (_, hanging) = calling.open(hang.to_string()).await;
    let stream = streaming.listen().await;
    assert!(subscribed.request("resources/subscribe", json!({"uri": "a+note:///alpha"})).await["error"].is_null());
    linked.await_tool("own_echo").await;
    linked.call("own_echo", json!({})).await;
    let rejected = Client::new(gateway.address).post(initialize()).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE, "{rejected:?}");
    assert!(rejected.headers.contains_key("retry-after"));
    assert_eq!(assert_error(&rejected.json(), 1429, "LIMIT_EXCEEDED")["limit"], "maxSessions");
    assert_eq!(limit_hits(&calling, "maxSessions").await, 1);
    for client in [&calling, &streaming, &subscribed, &linked] {
        assert_eq!(ping(client).await, StatusCode::OK);
    }
    // A session without the subscription may be ended.
    assert!(subscribed.request("resources/unsubscribe", json!({"uri": "a+note:///alpha"})).await["error"].is_null());
    let new_client = eventually("the subscription has ended", || async {
        let mut client = Client::new(gateway.address);
        client.session =
            client.post(initialize()).await.headers.get("mcp-session-id")?.to_str().ok().map(str::to_owned);
        Some(client)
    })
    .await;
    assert_eq!((ping(&new_client).await, ping(&subscribed).await), (StatusCode::OK, StatusCode::NOT_FOUND));
    for client in [&calling, &streaming, &linked] {
        assert_eq!(ping(client).await, StatusCode::OK);
    }
    drop((hanging, stream));
}

#[tokio::test]
async fn hard5_a_session_with_a_task_is_not_evicted() {
    let config = json!({ "gateway": { "maxSessions": 1 }, "mcpServers": { "a": fixture_server(&["--tasks"]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_task_slow").await;
    let params = json!({"name": "a_task_slow", "arguments": {}, "task": {"ttl": 600_000}});
    let made = client.request("tools/call", params).await;
    assert!(made["result"]["task"]["taskId"].is_string(), "{made}");
    let rejected = Client::new(gateway.address).post(initialize()).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE, "{rejected:?}");
    assert_eq!(ping(&client).await, StatusCode::OK);
}

/// Starts a gateway under `ulimit`.
async fn limited(scratch: &Scratch, limit: &str, config: Value) -> Gateway {
    let path = scratch.write("goblin.json", &servers_only(config).to_string());
    let script = format!("ulimit {limit}; exec {GOBLIN} serve --port 0 --log-level debug --config {}", path.display());
    let mut command = tokio::process::Command::new("sh");
    command
        .args(["-c", &script])
        .env("XDG_RUNTIME_DIR", scratch.path())
        .env("XDG_STATE_HOME", scratch.path())
        .env("XDG_CACHE_HOME", scratch.path());
    command.kill_on_drop(true);
    Gateway::of(command).await
}

/// Opens connections that send these bytes and nothing more.
async fn open_idle(gateway: &Gateway, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(gateway.address).await.expect("the gateway listens");
        // The gateway may have closed the connection again already.
        let _ = stream.write_all(bytes).await;
        open.push(stream);
    }
    open
}

/// Asserts that each route of operators responds over a new connection.
async fn operators_are_served(gateway: &Gateway) {
    for path in ["/healthz", "/readyz", "/metrics", "/api/status"] {
        let answer = Client::new(gateway.address).send(Method::GET, path, &[], "").await;
        assert!(!answer.status.is_server_error(), "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn hard5_idle_connections_lock_out_neither_operators_nor_servers() {
    descriptors::raise();
    let mut own = fixture_server(&[]);
    own["session"] = json!("per-client");
    let scratch = Scratch::new();
    let config = json!({ "mcpServers": { HEALTHY: fixture_server(&[]), "own": own } });
    let gateway = limited(&scratch, "-n 256", config).await;
    let attack = Attack::begin("idle connections with 256 descriptors", &gateway).await;
    let streaming = gateway.client_seeing("own_echo").await;
    let stream = streaming.listen().await;
    let mut open = Vec::new();
    for bytes in [&b""[..], b"GET /healthz HTTP/1.1\r\nhost: loc", b"", b"POST /mcp HTTP/1.1\r\n"] {
        open.extend(open_idle(&gateway, 150, bytes).await);
        operators_are_served(&gateway).await;
        let new_client = gateway.client().await;
        new_client.call("own_echo", json!({})).await;
    }
    await_limit(&streaming, "maxConnections").await;
    assert_eq!(gauge(&streaming, "goblin_streams_active").await, 1, "a stream is no idle connection");
    let pid = gateway.child.id().expect("the gateway runs");
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    assert!(descriptors < 256, "{descriptors} descriptors are open");
    drop((open, stream));
    attack.end(CONNECTION_CEILING).await;
}

#[tokio::test]
async fn hard5_connections_in_use_are_not_closed_for_new_ones() {
    // The bound is four connections per session.
    let gateway = Gateway::start(json!({ "gateway": { "maxSessions": 1 }, "mcpServers": {} })).await;
    let client = gateway.client().await;
    let stream = client.listen().await;
    let rest = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    let busy = open_idle(&gateway, 3, rest.as_bytes()).await;
    eventually("a connection beyond the bound is closed", || async {
        let mut stream = TcpStream::connect(gateway.address).await.ok()?;
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let mut bytes = [0; 64];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await;
        read.map_or(true, |count| count == 0).then_some(())
    })
    .await;
    drop(busy);
    eventually("there is room again", || async {
        let mut stream = TcpStream::connect(gateway.address).await.ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.ok()?;
        let mut bytes = [0; 64];
        let count = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.ok()?;
        (count > 0).then_some(())
    })
    .await;
    assert!(limit_hits(&client, "maxConnections").await > 0);
    assert_eq!(gauge(&client, "goblin_streams_active").await, 1);
    drop(stream);
}

/// Returns the soft limit on descriptors of a process.
fn soft_limit(pid: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the process runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("Linux reports the limit");
    line.split_whitespace().next().and_then(|limit| limit.parse().ok()).expect("a number")
}

async fn written(path: &Path) -> String {
    eventually("the command has written its limit", || async {
        std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
    .await
}

#[tokio::test]
async fn hard5_the_gateway_raises_its_descriptor_limit_and_commands_get_the_old_one() {
    let scratch = Scratch::new();
    let file = scratch.path().join("limit");
    let server = scripted_server(&format!("ulimit -n > {}; exec \"$@\"", file.display()), &[]);
    let gateway = limited(&scratch, "-S -n 300", json!({ "mcpServers": { "a": server } })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.call("a_echo", json!({})).await;
    assert_eq!(written(&file).await, "300\n");
    assert!(soft_limit(gateway.child.id().expect("the gateway runs")) > 300);
}
