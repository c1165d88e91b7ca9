//! Prompts: listed under gateway names, and fetched from their server.
//!
//! An unknown prompt is rejected without contacting a backend.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::support::frozen_server;

async fn names(client: &Client) -> Vec<String> {
    let prompts = client.list("prompts/list", "prompts").await;
    prompts.iter().map(|prompt| prompt["name"].as_str().expect("a name").to_owned()).collect()
}

async fn get(client: &Client, name: &str, arguments: Value) -> Value {
    client.request("prompts/get", json!({"name": name, "arguments": arguments})).await
}

#[tokio::test]
async fn prompt1_prompts_of_all_servers_are_listed_with_their_full_definition() {
    let gateway = Gateway::with_servers(json!({ "server1": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("server1_echo").await;
    client.await_tool("b_echo").await;
    assert_eq!(names(&client).await, ["b_greet", "b_linked", "server1_greet", "server1_linked"]);
    let greet = client.list("prompts/list", "prompts").await.remove(2);
    assert_eq!((&greet["title"], &greet["description"]), (&json!("Greet"), &json!("Greets")));
    assert_eq!(greet["arguments"], json!([{"name": "name", "description": "Whom", "required": true}]));
    assert_eq!(greet["_meta"], json!({"dev.goblin/native": "greet", "dev.goblin/server": "server1"}));
}

#[tokio::test]
async fn prompt2_a_prompt_is_fetched_from_its_owner() {
    let gateway = Gateway::with_servers(json!({ "my_server": fixture_server(&["--prompts", "3"]) })).await;
    let client = gateway.client_seeing("my_server_echo").await;
    let answer = get(&client, "my_server_greet", json!({"name": "Ada"})).await;
    assert_eq!(answer["result"]["messages"][0]["content"]["text"], "Hello, Ada!");
    assert_eq!(answer["result"]["description"], "Greets");
    let answer = get(&client, "my_server_prompt_0002", json!({})).await;
    assert_eq!(answer["result"]["messages"][0]["content"]["text"], "This is prompt_0002");
    let answer = get(&client, "my_server_greet", json!({})).await;
    assert_eq!(
        answer["error"],
        json!({"code": -32602, "message": "argument name is missing"}),
        "the backend's own error"
    );
}

#[tokio::test]
async fn prompt2_links_in_a_prompt_are_exposed_and_readable() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let messages = get(&client, "a_linked", json!({})).await["result"]["messages"].clone();
    assert_eq!(messages[0]["content"]["resource"]["uri"], "a+note:///alpha");
    assert_eq!(messages[1]["content"]["uri"], "a+note:///beta");
    let read = client.request("resources/read", json!({"uri": messages[1]["content"]["uri"]})).await;
    assert_eq!(read["result"]["contents"][0]["uri"], "a+note:///beta");
}

#[tokio::test]
async fn prompt2_an_unknown_prompt_contacts_no_backend() {
    let (_gateway, client, _frozen) = frozen_server().await;
    for name in ["greet", "a_nope", "b_greet"] {
        let error = get(&client, name, json!({})).await["error"].clone();
        assert_eq!(error["message"], format!("Prompt not found: {name}"));
        assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32602), &json!("PROMPT_NOT_FOUND")));
        assert_eq!(error["data"]["name"], name);
    }
}

#[tokio::test]
async fn prompt3_prompts_are_paginated_on_both_sides() {
    let config = json!({
        "policies": { "pageSize": 4 },
        "mcpServers": { "a": fixture_server(&["--prompts", "9", "--page-size", "2"]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let page = eventually("prompts are listed", || async {
        let page = client.request("prompts/list", json!({})).await["result"].clone();
        page["nextCursor"].is_string().then_some(page)
    })
    .await;
    assert_eq!(page["prompts"].as_array().map(Vec::len), Some(4));
    let mut expected = vec!["a_greet".to_owned(), "a_linked".to_owned()];
    expected.extend((1..=9).map(|number| format!("a_prompt_{number:04}")));
    assert_eq!(names(&client).await, expected);
}

#[tokio::test]
async fn prompt3_a_changed_prompt_list_is_notified_and_listed() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let mut stream = client.listen().await;
    let added = client.call_text("a_change_prompts", json!({})).await;
    stream.await_method("notifications/prompts/list_changed").await;
    eventually("the new one is listed", || async {
        names(&client).await.contains(&format!("a_{added}")).then_some(())
    })
    .await;
    client.call("a_change_prompts", json!({"remove": "greet"})).await;
    stream.await_method("notifications/prompts/list_changed").await;
    eventually("the old prompt is not listed", || async {
        (!names(&client).await.contains(&"a_greet".to_owned())).then_some(())
    })
    .await;
    assert_eq!(get(&client, "a_greet", json!({"name": "x"})).await["error"]["data"]["code"], "PROMPT_NOT_FOUND");
}

#[tokio::test]
async fn reg9_a_prompt_can_be_renamed_and_denied() {
    let mut server = fixture_server(&["--prompts", "2"]);
    server["prompts"] = json!({ "rename": { "greet": "welcome" }, "deny": ["prompt_0001"] });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    assert_eq!(names(&client).await, ["welcome", "a_linked", "a_prompt_0002"]);
    let answer = get(&client, "welcome", json!({"name": "Bo"})).await;
    assert_eq!(answer["result"]["messages"][0]["content"]["text"], "Hello, Bo!");
    assert_eq!(get(&client, "a_prompt_0001", json!({})).await["error"]["data"]["code"], "PROMPT_NOT_FOUND");
}
