//! Requests and responses that are large in total, although each is within its limit.
//!
//! The gateway bounds the memory of all bodies together. It rejects new work at the bound and completes the accepted
//! work.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::Client;
use crate::client::http::Answer;
use crate::harness::{Gateway, TIMEOUT, eventually, fixture_server};
use crate::hostile::{Attack, HEALTHY, await_limit, counter, limit_hits};
use crate::scrape::gauge;
use crate::support::{assert_error, rest};

const MIB: usize = 1024 * 1024;
const MAX_BODY_BYTES: usize = 128 * MIB;

/// Returns a call of a tool with a body of about this size.
fn large_call(id: usize, tool: &str, bytes: usize) -> Bytes {
    let arguments = json!({ "text": "x".repeat(bytes) });
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string().into()
}

async fn reserved(client: &Client, kind: &str) -> u64 {
    counter(client, "goblin_memory_reserved_bytes", &format!(r#"kind="{kind}""#)).await
}

fn assert_full(answer: &Value, limit: &str, value: usize) {
    let data = assert_error(answer, 1529, "OVERLOADED");
    assert_eq!((&data["limit"], &data["value"]), (&json!(limit), &json!(value)), "{answer}");
    assert_eq!(data["retryable"], true);
}

fn assert_rejected(answer: &Answer, limit: &str, value: usize) {
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert!(answer.headers.contains_key("retry-after"));
    assert_full(&answer.json(), limit, value);
}

async fn gateway_with(settings: Value) -> Gateway {
    let servers = json!({ HEALTHY: fixture_server(&[]), "hostile": fixture_server(&[]) });
    Gateway::start(json!({ "gateway": settings, "mcpServers": servers })).await
}

/// Returns the head of a POST in the session of `client`, with a body of this length.
fn head(client: &Client, length: usize) -> String {
    let headers = client.headers().into_iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let headers: String = headers.collect();
    format!("POST /mcp HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: {length}\r\n\r\n", client.address)
}

/// The number of bytes that an unfinished body lacks.
const MISSING: usize = 1024;

/// Sends a body without its last bytes.
async fn unfinished(client: &Client, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).await.expect("the gateway listens");
    stream.write_all(head(client, length).as_bytes()).await.expect("the gateway reads");
    stream.write_all(&vec![b' '; length - MISSING]).await.expect("the gateway reads");
    stream
}

/// Reads a response and returns its status line and body.
async fn read_answer(stream: &mut TcpStream) -> (String, String) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return (head.lines().next().unwrap_or_default().to_owned(), body.to_owned());
            }
        }
        let read = tokio::time::timeout(TIMEOUT, stream.read(&mut chunk)).await.expect("an answer in time");
        let count = read.expect("the connection is open");
        assert!(count > 0, "the connection is closed after {text}");
        bytes.extend_from_slice(&chunk[..count]);
    }
}

#[tokio::test]
async fn hard2_bodies_in_flight_are_bounded_for_all_clients_together() {
    let gateway = gateway_with(json!({ "maxMemory": "1GiB" })).await;
    let client = gateway.client_seeing("hostile_echo").await;
    let attack = Attack::begin("large bodies that never end", &gateway).await;
    let mut held = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let client = client.clone();
        held.spawn(async move { unfinished(&client, 4 * MIB).await });
    }
    let mut held = held.join_all().await;
    let all = 32 * (4 * MIB - MISSING) as u64;
    eventually("the gateway holds all that fit", || async { (reserved(&client, "bodies").await == all).then_some(()) })
        .await;
    // Two bodies that grow at the same time could block each other and a third one.
    for hits in 1..=2 {
        held.push(unfinished(&client, 4 * MIB).await);
        eventually("the body is rejected", || async { (limit_hits(&client, "bodyBytes").await == hits).then_some(()) })
            .await;
    }
    assert!(reserved(&client, "bodies").await <= MAX_BODY_BYTES as u64);
    let large = large_call(1, "hostile_echo", 64 * 1024);
    assert_rejected(&client.post(large.clone()).await, "bodyBytes", MAX_BODY_BYTES);
    // The connection can be used again at once.
    let mut stream = TcpStream::connect(client.address).await.expect("the gateway listens");
    for _ in 0..2 {
        stream.write_all(head(&client, large.len()).as_bytes()).await.expect("the gateway reads");
        stream.write_all(&large).await.expect("the gateway reads");
        let (status, body) = read_answer(&mut stream).await;
        assert!(status.contains("503") && body.contains("OVERLOADED"), "{status} {body}");
    }
    let ping = r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;
    stream.write_all(format!("{}{ping}", head(&client, ping.len())).as_bytes()).await.expect("the gateway reads");
    assert!(read_answer(&mut stream).await.1.contains(r#""result":{}"#), "a small request has room");
    held.clear();
    eventually("the memory is released", || async { (reserved(&client, "bodies").await == 0).then_some(()) }).await;
    let answer = client.post(large).await.json();
    assert!(answer["error"].is_null(), "there is room again: {}", answer["error"]);
    attack.end(400).await;
}

#[tokio::test]
async fn hard2_an_announced_length_reserves_no_memory() {
    let gateway = gateway_with(json!({ "maxMemory": "4MiB" })).await;
    let client = gateway.client_seeing("hostile_echo").await;
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(client.address).await.expect("the gateway listens");
        stream.write_all(head(&client, 4 * MIB).as_bytes()).await.expect("the gateway reads");
        held.push(stream);
    }
    let answer = client.post(large_call(1, "hostile_echo", MIB)).await.json();
    assert!(answer["error"].is_null(), "{}", answer["error"]);
}

#[tokio::test]
async fn hard3_above_the_maximum_new_work_is_rejected_and_accepted_work_continues() {
    const MAX: usize = 16 * MIB;
    let gateway = gateway_with(json!({ "maxMemory": "16MiB" })).await;
    let client = gateway.client_seeing("hostile_sleep").await;
    let attack = Attack::begin("large calls that wait for their answers", &gateway).await;
    let (sender, mut rejected) = tokio::sync::mpsc::channel(100);
    let mut calls = Vec::new();
    for id in 0..10 {
        let (client, sender, body) = (client.clone(), sender.clone(), large_call(id, "hostile_hang", 3 * MIB));
        calls.push(tokio::spawn(async move {
            let answer = client.post(body).await;
            if answer.status != StatusCode::OK {
                let _ = sender.send(answer).await;
            }
        }));
    }
    for _ in 0..5 {
        let answer = tokio::time::timeout(TIMEOUT, rejected.recv()).await.expect("a rejection in time");
        assert_rejected(&answer.expect("a rejection"), "maxMemory", MAX);
    }
    await_limit(&client, "maxMemory").await;
    let bytes = reserved(&client, "bodies").await;
    assert!(bytes > 0 && bytes <= MAX as u64, "{bytes}");
    // The bodies count until the calls end, not until they are read.
    let answer = client.send(http::Method::DELETE, "/mcp", &client.headers(), "").await;
    assert!(answer.status.is_success(), "{answer:?}");
    let client = gateway.client().await;
    eventually("the memory is released", || async { (reserved(&client, "bodies").await == 0).then_some(()) }).await;
    let answer = client.post(large_call(1, "hostile_echo", 3 * MIB)).await.json();
    assert!(answer["error"].is_null(), "there is room again: {}", answer["error"]);
    attack.end(200).await;
}

#[tokio::test]
async fn hard3_unread_answers_count_as_memory_and_are_not_lost() {
    const BIG: usize = 6 * MIB;
    const MAX: usize = 10 * MIB;
    let gateway = gateway_with(json!({ "maxMemory": "10MiB" })).await;
    let client = gateway.client_seeing("hostile_big").await;
    let mut unread = Vec::new();
    for id in 0..2 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(8192).expect("a small buffer");
        let mut stream = socket.connect(client.address).await.expect("the gateway listens");
        let params = json!({ "name": "hostile_big", "arguments": { "bytes": BIG } });
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string();
        let head = head(&client, body.len()).replace("Content-Length", "Connection: close\r\nContent-Length");
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the gateway reads");
        unread.push(stream);
    }
    eventually("both answers are there", || async {
        (gauge(&client, "goblin_memory_reserved_bytes").await >= 2 * BIG).then_some(())
    })
    .await;
    assert_full(&client.try_call(&format!("{HEALTHY}_echo"), json!({})).await, "maxMemory", MAX);
    assert!(client.request("ping", json!({})).await["error"].is_null(), "a request without a large body is served");
    for stream in unread {
        let answer = rest(stream).await;
        assert!(answer.contains("200 OK") && answer.len() > BIG, "the answer is complete");
    }
    eventually("the memory is released", || async {
        (gauge(&client, "goblin_memory_reserved_bytes").await < MIB).then_some(())
    })
    .await;
    assert!(client.try_call(&format!("{HEALTHY}_echo"), json!({})).await["error"].is_null());
}

#[tokio::test]
async fn hard3_the_maximum_holds_over_stdio() {
    let config = json!({ "gateway": { "maxMemory": "2MiB" }, "mcpServers": { "a": fixture_server(&[]) } });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    client.write(std::str::from_utf8(&large_call(77, "a_echo", 3 * MIB)).expect("text")).await;
    let answer = client.answer_to(77).await;
    assert_full(&answer, "maxMemory", 2 * MIB);
    let answer =
        client.request("tools/call", json!({ "name": "a_echo", "arguments": { "text": "x".repeat(65536) } })).await;
    assert!(answer["error"].is_null(), "{}", answer["error"]);
}
