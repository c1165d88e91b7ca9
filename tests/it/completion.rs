//! `completion/complete` goes to the server of the prompt or template (RES-17).
//!
//! An unknown reference is rejected without contacting a backend.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, fixture_server};
use crate::support::frozen_server;

async fn complete(client: &Client, reference: Value, name: &str, value: &str, context: Value) -> Value {
    let params =
        json!({"ref": reference, "argument": {"name": name, "value": value}, "context": {"arguments": context}});
    client.request("completion/complete", params).await
}

fn prompt(name: &str) -> Value {
    json!({"type": "ref/prompt", "name": name})
}

fn template(uri: &str) -> Value {
    json!({"type": "ref/resource", "uri": uri})
}

#[tokio::test]
async fn res17_a_prompts_argument_is_completed_by_its_owner() {
    let gateway = Gateway::with_servers(json!({ "my_server": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("my_server_echo").await;
    let answer = complete(&client, prompt("my_server_greet"), "name", "Al", json!({})).await;
    assert_eq!(answer["result"], json!({"completion": {"values": ["Alan", "Alonzo"], "total": 2, "hasMore": false}}));
}

#[tokio::test]
async fn res17_a_templates_variable_is_completed_by_its_owner() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for uri in ["a+db://{table}/{id}", "a+:db://{table}/{id}", "db://{table}/{id}"] {
        let answer = complete(&client, template(uri), "table", "", json!({})).await;
        assert_eq!(answer["result"]["completion"]["values"], json!(["orders", "users"]), "{uri}: {answer}");
        let answer = complete(&client, template(uri), "id", "", json!({"table": "users"})).await;
        assert_eq!(answer["result"]["completion"]["values"][0], "users-1", "{uri}: {answer}");
    }
    let answer = complete(&client, template("a+db://{table}/{id}"), "nothing", "", json!({})).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer["error"]["message"].as_str().expect("a text").ends_with("of db://{table}/{id}"), "native: {answer}");
}

#[tokio::test]
async fn res17_an_unknown_reference_contacts_no_backend() {
    let (_gateway, client, _frozen) = frozen_server().await;
    let answer = complete(&client, prompt("a_nope"), "name", "", json!({})).await;
    assert_eq!(answer["error"]["data"]["code"], "PROMPT_NOT_FOUND", "{answer}");
    let answer = complete(&client, template("a+nope://{x}"), "x", "", json!({})).await;
    assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{answer}");
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[tokio::test]
async fn res17_a_template_of_two_servers_needs_its_exposed_uri() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    let answer = complete(&client, template("db://{table}/{id}"), "table", "", json!({})).await;
    assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{answer}");
    for uri in ["a+db://{table}/{id}", "b+db://{table}/{id}"] {
        let answer = complete(&client, template(uri), "table", "u", json!({})).await;
        assert_eq!(answer["result"]["completion"]["values"], json!(["users"]), "{uri}: {answer}");
    }
}
