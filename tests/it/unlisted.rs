//! `"unlisted": "forward"`: reads and subscribes of URIs that no server offers.

use serde_json::{Value, json};

use crate::client::Client;
use crate::front_listen::{next_touched, uris};
use crate::harness::{Gateway, fixture_server};
use crate::resources::few_templates;
use crate::subscriber::{await_upstream, named, short, states_become, subscribe, touch};
use crate::subscriptions_deleted::deletion_mark;
use crate::support::assert_error;

const FAR: &str = "a+note:///far";

/// Returns a server that receives URIs which it does not offer: it lists few notes, but has all.
fn forwarding(arguments: &[&str]) -> Value {
    let mut server = few_templates();
    server["args"] = json!(arguments);
    server["unlisted"] = json!("forward");
    server
}

async fn assert_missing(client: &Client, uri: &str) {
    for (method, is_read) in [("resources/read", true), ("resources/subscribe", false)] {
        let answer = client.request(method, json!({ "uri": uri })).await;
        let code = if is_read { -32002 } else { -32602 };
        assert_eq!(assert_error(&answer, code, "RESOURCE_NOT_FOUND")["uri"], uri, "{answer}");
    }
}

#[tokio::test]
async fn d13_reads_and_subscribes_of_unlisted_uris_reach_only_the_server_that_forwards() {
    for arguments in [&[][..], &["--era", "modern"]] {
        let servers = json!({ "a": forwarding(arguments), "b": few_templates() });
        let gateway = Gateway::start(json!({ "exposure": "all", "mcpServers": servers })).await;
        let caller = gateway.client_seeing("a_touch").await;
        caller.await_tool("b_touch").await;
        let peer = Client::new(gateway.address).listening(json!({})).await;
        let modern = Client::modern(gateway.address, json!({}));
        for client in [&caller, &modern] {
            let answer = client.request("resources/read", json!({ "uri": FAR })).await;
            let content = &answer["result"]["contents"][0];
            assert_eq!((&content["uri"], &content["text"]), (&json!(FAR), &json!("note far")), "{answer}");
            let described = client.call("describe_resource", json!({ "uri": "a+note:///never-read" })).await;
            assert_eq!(described["isError"], true, "{described}");
            let reference = json!({ "type": "ref/resource", "uri": "a+note:///{name}" });
            let params = json!({ "ref": reference, "argument": { "name": "name", "value": "" } });
            let completion = client.request("completion/complete", params).await;
            assert_error(&completion, -32602, "RESOURCE_NOT_FOUND");
        }
        assert_eq!(peer.subscribe("a+note:///other").await["dev.goblin/uri"], "a+note:///other");
        let (acknowledged, mut stream) = modern.listen_to(json!("l"), uris(&["a+note:///other"])).await;
        assert_eq!(acknowledged, uris(&["a+note:///other"]));
        touch(&caller, "note:///other", 1).await;
        assert_eq!(short(&peer.updates().await), ["a+note:///other 1"]);
        assert_eq!(next_touched(&mut stream, &json!("l")).await["uri"], "a+note:///other");
        // A not-found of the server is its own answer.
        let answer = caller.request("resources/read", json!({ "uri": "a+note:///missing" })).await;
        assert_eq!(assert_error(&answer, -32002, "RESOURCE_NOT_FOUND")["uri"], "a+note:///missing", "{answer}");
        for uri in ["b+note:///far", "note:///unknown", "c+note:///far", "a+"] {
            assert_missing(&caller, uri).await;
            let answer = modern.request("resources/read", json!({ "uri": uri })).await;
            assert_error(&answer, -32602, "RESOURCE_NOT_FOUND");
        }
        let (acknowledged, _stream) = modern.listen_to(json!("m"), uris(&["b+note:///far"])).await;
        assert_eq!(acknowledged, json!({}));
        assert_eq!(caller.call_text("b_subscribed", json!({})).await, "[]");
        drop(stream);
        peer.unsubscribe("a+note:///other").await;
        if arguments.is_empty() {
            await_upstream(&caller, &["+note:///other", "-note:///other"]).await;
        }
    }
}

#[tokio::test]
async fn d13_without_namespacing_only_one_server_may_forward() {
    let bare = |mut server: Value| {
        server["namespacing"] = json!({ "resources": "none" });
        server
    };
    let servers = json!({ "a": bare(forwarding(&[])), "b": few_templates() });
    let gateway = Gateway::with_servers(servers).await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    client.await_tool("a_touch").await;
    client.await_tool("b_touch").await;
    let answer = client.request("resources/read", json!({ "uri": "note:///far" })).await;
    assert_eq!(answer["result"]["contents"][0]["uri"], "note:///far", "{answer}");
    assert_eq!(subscribe(&client, "note:///far", json!({})).await["dev.goblin/uri"], "note:///far");
    touch(&client, "note:///far", 1).await;
    assert_eq!(client.updated().await.json()["params"]["uri"], "note:///far");
    await_upstream(&client, &["+note:///far"]).await;

    let servers = json!({ "a": bare(forwarding(&[])), "b": bare(forwarding(&[])) });
    let profiles = json!({ "p": { "servers": ["b"] } });
    let gateway = Gateway::start(json!({ "metaTools": false, "profiles": profiles, "mcpServers": servers })).await;
    let client = gateway.client_seeing("a_touch").await;
    client.await_tool("b_touch").await;
    assert_missing(&client, "note:///far").await;
    for server in ["a", "b"] {
        assert_eq!(client.call_text(&format!("{server}_subscribed"), json!({})).await, "[]");
    }
    let mut confined = Client::new(gateway.address).at("/mcp/p/p");
    confined.initialize("2025-11-25").await;
    let answer = confined.request("resources/read", json!({ "uri": "note:///far" })).await;
    assert_eq!(
        answer["result"]["contents"][0]["uri"], "note:///far",
        "one server of the view has the setting: {answer}"
    );
}

#[tokio::test]
async fn d13_forwarded_subscriptions_count_as_upstream_resources() {
    let config = json!({ "subscriptions": { "maxUpstream": 2 }, "mcpServers": { "a": forwarding(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_touch").await;
    for uri in ["a+note:///1", "a+note:///2", "a+note:///2"] {
        subscribe(&client, uri, json!({})).await;
    }
    let answer = client.request("resources/subscribe", named("a+note:///3")).await;
    assert_eq!(assert_error(&answer, 1429, "LIMIT_EXCEEDED")["limit"], "subscriptions.maxUpstream", "{answer}");
    subscribe(&client, "a+blob:///bin", json!({})).await;
    await_upstream(&client, &["+note:///1", "+note:///2", "+blob:///bin"]).await;
}

#[tokio::test]
async fn d13_d10_a_forwarded_subscription_is_never_deleted() {
    let gateway = Gateway::with_servers(json!({ "a": forwarding(&[]) })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    for uri in ["a+blob:///bin", FAR] {
        peer.subscribe(uri).await;
    }
    peer.change(json!({ "remove": "note:///far" })).await;
    peer.change(json!({ "remove": "blob:///bin" })).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark("a+blob:///bin"));
    let answer = peer.request("resources/read", json!({ "uri": FAR })).await;
    assert_error(&answer, -32002, "RESOURCE_NOT_FOUND");
    assert_eq!(peer.updates().await, Vec::<Value>::new());
    states_become(gateway.address, &[("a+blob:///bin", "missing"), (FAR, "subscribed")]).await;
    peer.touch("note:///far", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{FAR} 1")]);
}

#[tokio::test]
async fn d13_a_directory_cannot_forward() {
    let home = crate::home::Home::new(&json!({
        "mcpServers": { "f": { "type": "files", "root": "/", "unlisted": "forward" }, "a": fixture_server(&[]) },
    }));
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let output = ran.text().to_owned() + &ran.stderr;
    let message = "mcpServers.f.unlisted: a server of type files offers every file that it serves";
    assert!(output.contains(message) && output.contains("remove \"unlisted\""), "{output}");
}
