//! URI templates: listed with their server, and matched against the URIs that clients read.
//!
//! A listed resource takes precedence over a template. A URI without a match contacts no backend.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, fixture_server};
use crate::support::frozen_server;

async fn one(server: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    (gateway, client)
}

async fn read(client: &Client, uri: &str) -> Value {
    client.request("resources/read", json!({"uri": uri})).await
}

async fn check_read(client: &Client, uri: &str, exposed: &str, text: &str) {
    let answer = read(client, uri).await;
    let content = &answer["result"]["contents"][0];
    assert_eq!((&content["uri"], &content["text"]), (&json!(exposed), &json!(text)), "{uri}: {answer}");
}

#[tokio::test]
async fn res7_res16_templates_are_listed_with_their_owner() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    let templates = client.list("resources/templates/list", "resourceTemplates").await;
    let row = templates.iter().find(|template| template["name"] == "row").expect("a row");
    let expected = json!({
        "uriTemplate": "a+db://{table}/{id}",
        "name": "row",
        "description": "A row",
        "mimeType": "application/json",
        "_meta": {"dev.goblin/native": "db://{table}/{id}", "dev.goblin/server": "a"},
    });
    assert_eq!(*row, expected);
    let mut uris: Vec<_> =
        templates.iter().map(|template| template["uriTemplate"].as_str().expect("a template")).collect();
    uris.sort_unstable();
    assert_eq!(uris, ["a+db://{table}/{id}", "a+note:///{name}", "a+search://docs{?q,limit}"]);
}

#[tokio::test]
async fn res16_templates_are_listed_without_contacting_a_backend() {
    let (_gateway, client, _frozen) = frozen_server().await;
    assert_eq!(client.list("resources/templates/list", "resourceTemplates").await.len(), 3);
}

#[tokio::test]
async fn res8_a_uri_that_matches_a_template_is_read_from_its_owner() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (native, text) in [
        ("note:///gamma", "note gamma"),
        ("db://users/7", r#"{"table":"users","id":"7"}"#),
        ("db://a%20b/%2F", r#"{"table":"a%20b","id":"%2F"}"#),
        ("search://docs", "found for "),
        ("search://docs?q=x", "found for ?q=x"),
        ("search://docs?q=x&limit=3", "found for ?q=x&limit=3"),
        ("search://docs?limit=3", "found for ?limit=3"),
    ] {
        let exposed = format!("a+{native}");
        check_read(&client, &exposed, &exposed, text).await;
        check_read(&client, native, &exposed, text).await;
    }
}

#[tokio::test]
async fn res8_a_matching_uri_reaches_only_the_owner_of_the_template() {
    let server_entry = |id: &str| json!({ "command": crate::harness::fixture(), "env": { "SERVER_NAME": id } });
    let mut b = server_entry("b");
    b["resources"] = json!({ "deny": ["db:*"] });
    let gateway = Gateway::with_servers(json!({ "a": server_entry("a"), "b": b })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    // Only `a` has rows, but both servers have notes.
    check_read(&client, "db://users/7", "a+db://users/7", r#"{"table":"users","id":"7"}"#).await;
    assert_eq!(read(&client, "b+db://users/7").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND");
    let error = read(&client, "note:///gamma").await["error"].clone();
    assert_eq!(error["data"]["candidates"], json!(["a+note:///gamma", "b+note:///gamma"]), "{error}");
    check_read(&client, "b+note:///gamma", "b+note:///gamma", "note gamma").await;
}

#[tokio::test]
async fn res9_a_uri_without_a_matching_template_contacts_no_backend() {
    let (_gateway, client, _frozen) = frozen_server().await;
    for uri in ["a+db:/users", "a+db://users", "a+search://docs?other=1", "a+search://doc", "a+notes:///x"] {
        assert_eq!(read(&client, uri).await["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{uri}");
    }
}

#[tokio::test]
async fn d12_a_missing_resource_of_a_template_keeps_the_backends_message() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    let error = read(&client, "a+note:///missing").await["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!(-32002), &json!("Resource not found")), "{error}");
    assert_eq!(error["data"], json!({"code": "RESOURCE_NOT_FOUND", "uri": "a+note:///missing"}));
}

/// A scheme is case-insensitive. Some clients change it to lower case, and still refer to the listed resource.
#[tokio::test]
async fn d3_a_listed_resource_in_another_spelling_takes_precedence_over_a_template() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    check_read(&client, "a+note:///Up", "a+NOTE:///Up", "upper").await;
    check_read(&client, "note:///Up", "a+NOTE:///Up", "upper").await;
}
