//! A short test of the whole gateway: one call over HTTP, and one over stdio.
//!
//! It needs only the fixture, so it is the first test to look at if many fail.

use serde_json::json;

use crate::client::Client;
use crate::harness::{Gateway, fixture_server};

#[tokio::test]
async fn http3_a_call_succeeds_over_http() {
    let gateway = Gateway::with_servers(json!({ "server1": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("server1_echo").await;
    assert_eq!(client.call_text("server1_echo", json!({"a": 1})).await, r#"{"a":1}"#);
}

#[tokio::test]
async fn http3_a_call_succeeds_over_stdio() {
    let config = json!({ "mcpServers": { "server1": fixture_server(&[]) } });
    let client = Client::stdio(config).connected("2025-06-18").await;
    client.await_tool("server1_echo").await;
    let answer = client.request("tools/call", json!({"name": "server1_echo", "arguments": {"a": 1}})).await;
    assert_eq!(answer["result"]["content"][0]["text"], r#"{"a":1}"#);
    assert!(client.close().await.success());
}
