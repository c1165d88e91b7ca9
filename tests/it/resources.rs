//! Resources: their URIs, their servers, and their content.
//!
//! Every exposed URI leads back to exactly one native URI, and the backend receives its own spelling.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::support::frozen_server;

/// The native URIs of the fixture and their exposed forms for server `a`, sorted by the latter.
const EXPOSED: [(&str, &str); 9] = [
    ("plain name", "a+:plain name"),
    ("NOTE:///Up", "a+NOTE:///Up"),
    ("blob:///bin", "a+blob:///bin"),
    ("file:///a/./b/../c.txt", "a+file:///a/./b/../c.txt"),
    ("file:///logs/app log.txt", "a+file:///logs/app log.txt"),
    ("file:///naïve/日本.txt", "a+file:///naïve/日本.txt"),
    ("note:///alpha", "a+note:///alpha"),
    ("note:///beta", "a+note:///beta"),
    ("ui://widget/main", "ui://a/widget/main"),
];

async fn read(client: &Client, uri: &str) -> Value {
    client.request("resources/read", json!({"uri": uri})).await
}

/// Reads a resource and returns the URI and text of its only content.
async fn content(client: &Client, uri: &str) -> (String, String) {
    let answer = read(client, uri).await;
    let content = &answer["result"]["contents"][0];
    let text_member = |key| content[key].as_str().unwrap_or_else(|| panic!("{uri}: {answer}")).to_owned();
    (text_member("uri"), text_member("text"))
}

async fn uris(client: &Client) -> Vec<String> {
    let resources = client.list("resources/list", "resources").await;
    resources.iter().map(|resource| resource["uri"].as_str().expect("a URI").to_owned()).collect()
}

fn with(mut server: Value, key: &str, value: Value) -> Value {
    server[key] = value;
    server
}

/// Returns a fixture without the template that matches any note.
pub fn few_templates() -> Value {
    with(fixture_server(&[]), "resources", json!({ "deny": ["note:///{name}"] }))
}

async fn one(server: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    (gateway, client)
}

async fn two(a: Value, b: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "a": a, "b": b })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    (gateway, client)
}

#[tokio::test]
async fn d1_res1_res10_resources_are_exposed_under_their_server_and_sorted() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    assert_eq!(uris(&client).await, EXPOSED.map(|(_, exposed)| exposed));
}

#[tokio::test]
async fn d1_a_server_id_is_folded_into_a_scheme() {
    for (id, folded) in [("My Server", "my-server"), ("9_lives", "x-9-lives"), ("git.hub", "git.hub")] {
        let gateway = Gateway::with_servers(json!({ id: fixture_server(&[]) })).await;
        let client = gateway.client().await;
        let uri = format!("{folded}+note:///alpha");
        eventually(&format!("{uri} is listed"), || async { uris(&client).await.contains(&uri).then_some(()) }).await;
        assert_eq!(content(&client, &uri).await, (uri, "note alpha".to_owned()));
    }
}

#[tokio::test]
async fn res5_res14_every_exposed_uri_maps_back_to_its_native_uri() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (native, exposed) in EXPOSED {
        let answer = read(&client, exposed).await;
        assert_eq!(answer["result"]["contents"][0]["uri"], exposed, "{answer}");
        if native.starts_with("file:") {
            assert_eq!(
                answer["result"]["contents"][0]["text"],
                format!("note {native}"),
                "the request that the backend received"
            );
        }
    }
}

#[tokio::test]
async fn d1_both_spellings_of_a_uri_read_the_resource_and_return_the_canonical_one() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (sent, canonical) in [("a+:note:///alpha", "a+note:///alpha"), ("a+plain name", "a+:plain name")] {
        assert_eq!(content(&client, sent).await.0, canonical);
    }
}

#[tokio::test]
async fn d1_a_ui_resource_keeps_its_scheme_in_tool_definitions_and_reads() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    let tools = client.list("tools/list", "tools").await;
    let widget = tools.iter().find(|tool| tool["name"] == "a_widget").expect("the widget");
    assert_eq!(widget["_meta"]["ui"]["resourceUri"], "ui://a/widget/main");
    assert_eq!(widget["_meta"]["ui/resourceUri"], "ui://a/widget/main");
    assert_eq!(widget["_meta"]["ui"]["visibility"], json!(["model", "app"]));
    let answer = read(&client, "ui://a/widget/main").await;
    let content = &answer["result"]["contents"][0];
    assert_eq!(
        (&content["uri"], &content["mimeType"]),
        (&json!("ui://a/widget/main"), &json!("text/html;profile=mcp-app"))
    );
    assert_eq!(read(&client, "ui://b/widget/main").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND");
}

#[tokio::test]
async fn d2_a_resource_is_found_by_its_identifier() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (identifier, exposed) in [
        ("a_note_alpha", "a+note:///alpha"),
        ("a_note____alpha", "a+note:///alpha"),
        ("a_file_logs_app_log.txt", "a+file:///logs/app log.txt"),
        ("a_file___logs_app_log.txt", "a+file:///logs/app log.txt"),
        ("a_plain_name", "a+:plain name"),
        ("a_ui_widget_main", "ui://a/widget/main"),
    ] {
        assert_eq!(content(&client, identifier).await.0, exposed, "{identifier}");
    }
}

#[tokio::test]
async fn d2_the_identifier_can_be_the_exposed_uri() {
    let server = with(fixture_server(&[]), "namespacing", json!({ "resources": "identifier" }));
    let (_gateway, client) = one(server).await;
    let listed = uris(&client).await;
    assert!(listed.contains(&"a_note_alpha".to_owned()) && listed.contains(&"a_blob_bin".to_owned()), "{listed:?}");
    for uri in &listed {
        assert_eq!(read(&client, uri).await["result"]["contents"][0]["uri"], *uri);
    }
    assert_eq!(content(&client, "a+note:///alpha").await.0, "a_note_alpha", "the canonical URI is returned");
}

#[tokio::test]
async fn d2_two_resources_with_the_same_identifier_each_receive_a_suffix() {
    let config = json!({
        "namespacing": { "resources": "identifier" },
        "mcpServers": { "a": fixture_server(&[]), "a_": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("a__echo").await;
    let listed = uris(&client).await;
    let alphas: Vec<_> = listed.iter().filter(|uri| uri.starts_with("a_note_alpha_")).collect();
    assert_eq!(alphas.len(), 2, "{listed:?}");
    for uri in &listed {
        assert_eq!(read(&client, uri).await["result"]["contents"][0]["uri"], *uri, "each leads to its own");
    }
    assert_eq!(read(&client, "a_note_alpha").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND");
}

#[tokio::test]
async fn d3_a_native_uri_of_exactly_one_server_is_accepted() {
    let (_gateway, client) =
        two(fixture_server(&[]), with(fixture_server(&[]), "resources", json!({ "allow": ["blob:*"] }))).await;
    assert_eq!(content(&client, "note:///alpha").await, ("a+note:///alpha".to_owned(), "note alpha".to_owned()));
    assert_eq!(content(&client, "plain name").await.0, "a+:plain name");
}

#[tokio::test]
async fn d3_res6_an_ambiguous_native_uri_is_rejected_with_the_candidates() {
    let (_gateway, client) = two(fixture_server(&[]), fixture_server(&[])).await;
    let error = read(&client, "note:///alpha").await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32002), &json!("RESOURCE_NOT_FOUND")), "{error}");
    assert_eq!(error["data"]["candidates"], json!(["a+note:///alpha", "b+note:///alpha"]), "{error}");
    assert_eq!(error["data"]["uri"], "note:///alpha");
    for uri in ["a+note:///alpha", "b+note:///alpha"] {
        assert_eq!(content(&client, uri).await.0, uri);
    }
}

#[tokio::test]
async fn d3_normalised_uris_are_accepted_and_the_backend_receives_its_own_spelling() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (sent, native) in [
        ("a+file:///logs/app%20log.txt", "file:///logs/app log.txt"),
        ("file:///logs/app%20log.txt", "file:///logs/app log.txt"),
        ("a+file:///na%C3%AFve/%E6%97%A5%E6%9C%AC.txt", "file:///naïve/日本.txt"),
        ("a+file:///na%c3%afve/%e6%97%a5%e6%9c%ac.txt", "file:///naïve/日本.txt"),
        ("a+file:///a/c.txt", "file:///a/./b/../c.txt"),
        ("A+FILE:///a/c.txt", "file:///a/./b/../c.txt"),
        ("a+:plain%20name", "plain name"),
    ] {
        let exposed = EXPOSED.iter().find(|(known, _)| *known == native).expect("known").1;
        assert_eq!(content(&client, sent).await, (exposed.to_owned(), format!("note {native}")), "{sent}");
    }
}

#[tokio::test]
async fn res9_d13_a_uri_that_is_not_offered_contacts_no_backend() {
    let (_gateway, client, _frozen) = frozen_server().await;
    for uri in
        ["a+secret:///x", "secret:///x", "b+note:///alpha", "a_secret_x", "+", "a+", "ui://", "ui://a", "%", "a+%zz"]
    {
        let error = read(&client, uri).await["error"].clone();
        assert_eq!(
            (&error["code"], &error["data"]["code"]),
            (&json!(-32002), &json!("RESOURCE_NOT_FOUND")),
            "{uri}: {error}"
        );
        assert_eq!(error["data"]["uri"], uri);
        assert_eq!(error["message"], format!("Resource not found: {uri}"));
    }
}

#[tokio::test]
async fn d13_a_link_in_a_result_is_readable_afterwards() {
    let (_gateway, client) = one(few_templates()).await;
    assert_eq!(read(&client, "a+note:///unlisted").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND");
    let linked = client.call("a_link", json!({"uri": "note:///unlisted"})).await;
    let uri = linked["content"][0]["uri"].as_str().expect("a link").to_owned();
    assert_eq!(uri, "a+note:///unlisted");
    assert_eq!(linked["content"][1]["resource"]["uri"], uri.as_str());
    let expected = (uri, "note unlisted".to_owned());
    for spelling in ["a+note:///unlisted", "note:///unlisted", "A+note:///unlisted"] {
        assert_eq!(content(&client, spelling).await, expected, "{spelling}");
    }
    let other = client.request("resources/read", json!({"uri": "a+note:///another"})).await;
    assert_eq!(other["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "only listed URIs are readable");
}

#[tokio::test]
async fn d13_a_link_of_one_server_is_not_readable_from_another() {
    let (_gateway, client) = two(few_templates(), few_templates()).await;
    client.call("a_link", json!({"uri": "note:///unlisted"})).await;
    assert_eq!(content(&client, "a+note:///unlisted").await.1, "note unlisted");
    assert_eq!(read(&client, "b+note:///unlisted").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND");
}

#[tokio::test]
async fn d13_an_unlisted_uri_in_a_definition_is_offered() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    client.call("a_change_resources", json!({"remove": "ui://widget/main"})).await;
    eventually("the resource is not listed", || async {
        (!uris(&client).await.contains(&"ui://a/widget/main".to_owned())).then_some(())
    })
    .await;
    // The error comes from the backend, with its own message.
    assert_eq!(read(&client, "ui://a/widget/main").await["error"]["message"], "Resource not found");
}

#[tokio::test]
async fn d5_d12_err2_a_missing_resource_keeps_the_backends_message_and_receives_our_code() {
    let (gateway, _) = one(few_templates()).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = gateway.client_of(version).await;
        client.call("a_link", json!({"uri": "note:///missing"})).await;
        let error = read(&client, "a+note:///missing").await["error"].clone();
        assert_eq!(error["code"], -32002, "{version}: {error}");
        assert_eq!(error["message"], "Resource not found");
        assert_eq!(error["data"], json!({"code": "RESOURCE_NOT_FOUND", "uri": "a+note:///missing"}), "{version}");
    }
    let is_logged =
        |line: &String| line.contains("BACKEND_ERROR") && line.contains("resources/read") && line.contains("-32002");
    eventually("the error is logged with details", || async { gateway.log().iter().any(is_logged).then_some(()) })
        .await;
}

#[tokio::test]
async fn res15_text_and_blob_pass_unchanged() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    for (uri, expected) in [
        ("a+blob:///bin", r#"{"uri":"a+blob:///bin","mimeType":"application/octet-stream","blob":"AAECA/3+/w=="}"#),
        (
            "a+note:///beta",
            r#"{"uri":"a+note:///beta","mimeType":"application/json","text":"{\"note\":\"beta\",\"odd\":1.0}"}"#,
        ),
    ] {
        let body = json!({"jsonrpc": "2.0", "id": "r", "method": "resources/read", "params": {"uri": uri}}).to_string();
        let answer = client.post(body).await.body;
        assert!(answer.contains(&format!(r#""result":{{"contents":[{expected}]}}"#)), "{answer}");
    }
}

#[tokio::test]
async fn res4_uris_in_structured_content_texts_and_arguments_stay_unchanged() {
    let (_gateway, client) = one(fixture_server(&[])).await;
    let echoed =
        client.call("a_echo", json!({"uri": "note:///alpha", "_meta": {"ui": {"resourceUri": "ui://w"}}})).await;
    assert_eq!(echoed["structuredContent"]["uri"], "note:///alpha");
    assert_eq!(echoed["structuredContent"]["_meta"]["ui"]["resourceUri"], "ui://w");
    assert!(echoed["content"][0]["text"].as_str().expect("text").contains(r#""uri":"note:///alpha""#));
    let sent = client.call_text("a_echo", json!({"uri": "a+note:///alpha"})).await;
    assert_eq!(sent, r#"{"uri":"a+note:///alpha"}"#, "arguments are not translated");
}

#[tokio::test]
async fn res3_a_server_without_resources_adds_none_and_is_no_error() {
    let (gateway, client) = two(fixture_server(&["--without", "resources,prompts"]), fixture_server(&[])).await;
    let listed = uris(&client).await;
    assert!(
        !listed.is_empty() && listed.iter().all(|uri| uri.starts_with("b+") || uri.starts_with("ui://b/")),
        "{listed:?}"
    );
    let templates = client.list("resources/templates/list", "resourceTemplates").await;
    assert!(templates.iter().all(|template| template["uriTemplate"].as_str().is_some_and(|uri| uri.starts_with("b+"))));
    assert!(
        !gateway.log().iter().any(|line| line.contains("cannot list the entries")),
        "the server received no request"
    );
}

#[tokio::test]
async fn reg9_a_resource_can_have_an_alias() {
    let rules = json!({ "rename": { "note:///alpha": "docs://manual" }, "deny": ["blob:*"] });
    let (_gateway, client) = one(with(fixture_server(&[]), "resources", rules)).await;
    let listed = uris(&client).await;
    assert!(
        listed.contains(&"docs://manual".to_owned()) && !listed.contains(&"a+note:///alpha".to_owned()),
        "{listed:?}"
    );
    let expected = ("docs://manual".to_owned(), "note alpha".to_owned());
    for spelling in ["docs://manual", "a_note_alpha", "note:///alpha"] {
        assert_eq!(content(&client, spelling).await, expected, "{spelling}");
    }
    let linked = client.call("a_link", json!({"uri": "note:///alpha"})).await;
    assert_eq!(linked["content"][0]["uri"], "docs://manual", "the same name everywhere");
    assert_eq!(read(&client, "a+blob:///bin").await["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "denied");
}

#[tokio::test]
async fn d1_without_namespacing_uris_are_native_unless_two_servers_share_one() {
    let config = json!({ "namespacing": { "resources": "none" }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config.clone()).await;
    let client = gateway.client_seeing("a_echo").await;
    let mut natives = EXPOSED.map(|(native, _)| native);
    natives.sort_unstable();
    assert_eq!(uris(&client).await, natives);
    assert_eq!(content(&client, "note:///alpha").await.0, "note:///alpha");

    let mut config = config;
    config["mcpServers"]["b"] = with(fixture_server(&[]), "resources", json!({ "allow": ["note:///alpha"] }));
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    let listed = uris(&client).await;
    for uri in ["a+note:///alpha", "b+note:///alpha", "note:///beta"] {
        assert!(listed.contains(&uri.to_owned()), "{uri}: {listed:?}");
        assert_eq!(content(&client, uri).await.0, uri);
    }
    assert!(!listed.contains(&"note:///alpha".to_owned()));
}

#[tokio::test]
async fn d13_a_miss_during_a_refresh_waits_for_the_refresh() {
    let (_gateway, client) = one(few_templates()).await;
    for _ in 0..3 {
        let native = client.call_text("a_change_resources", json!({})).await;
        assert_eq!(content(&client, &format!("a+{native}")).await.0, format!("a+{native}"), "without a pause");
    }
}
