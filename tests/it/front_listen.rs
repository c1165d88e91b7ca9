//! `subscriptions/listen`: the notifications on the streams of sessionless clients, and those that must not arrive.
//!
//! The acknowledgement is the first message of a stream, and lists only what will really be notified.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::client::http::Listener;
use crate::client::modern::{ACKNOWLEDGED, listen_to, named, with_meta};
use crate::harness::eventually;
use crate::subscriber::{ACTIVE, DELETED, UPDATED, await_upstream, subscribe, touch, touched, without_fences};
use crate::transport_pairs::Scene;
use crate::transport_pairs::{Back, Backend};

pub const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";
const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

pub fn uris(uris: &[&str]) -> Value {
    json!({ "resourceSubscriptions": uris })
}

/// Asserts that the next message is this notification. Returns its params without the subscription id.
pub async fn next_notification(stream: &mut Listener, method: &str, id: &Value) -> Value {
    let mut message = stream.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
    assert_eq!(message["method"], method, "{message}");
    let meta = message["params"]["_meta"].as_object_mut().unwrap_or_else(|| panic!("no _meta"));
    assert_eq!(meta.remove("io.modelcontextprotocol/subscriptionId").as_ref(), Some(id), "{method}");
    message["params"].clone()
}

/// Returns the next update that the server sent. If the acknowledgement preceded the server's response, the gateway's
/// own update comes first.
pub async fn next_touched(stream: &mut Listener, id: &Value) -> Value {
    loop {
        let update = next_notification(stream, UPDATED, id).await;
        if update.get("version").is_some() {
            return update;
        }
    }
}

async fn upstream(scene: &Scene, expected: &[&str]) {
    await_upstream(&scene.gateway.client().await, expected).await;
}

#[tokio::test]
async fn sub1_a_listen_stream_first_acknowledges_the_notifications_it_will_send() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    for (wanted, expected) in [
        (json!({}), json!({})),
        (json!({"toolsListChanged": false, "other": true, "promptsListChanged": "yes"}), json!({})),
        (
            json!({"toolsListChanged": true, "promptsListChanged": true}),
            json!({"toolsListChanged": true, "promptsListChanged": true}),
        ),
        (json!({"resourcesListChanged": true, "resourceSubscriptions": []}), json!({"resourcesListChanged": true})),
        (uris(&[ALPHA, "nobody:///x", "a+nobody:///x", BETA, ALPHA]), uris(&[ALPHA, BETA])),
        (json!({"resourceSubscriptions": [7, null, ALPHA]}), uris(&[ALPHA])),
        (json!({"resourceSubscriptions": ALPHA}), json!({})),
    ] {
        for id in [json!(4), json!("4")] {
            let (accepted, _) = scene.client.listen_to(id, wanted.clone()).await;
            assert_eq!(accepted, expected, "{wanted}");
        }
    }
    for wrong in [json!(null), json!([]), json!("x")] {
        let answer = scene.client.request("subscriptions/listen", json!({ "notifications": wrong })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let unknown = json!({"notifications": {}, "_meta": {"dev.goblin/whatever": 1}});
    let answer = scene.client.request("subscriptions/listen", unknown).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

/// Resources of a server without subscriptions are not honoured.
#[tokio::test]
async fn sub3_a_listen_acknowledges_no_resource_of_a_server_without_subscriptions() {
    let gateway = crate::harness::Gateway::with_servers(json!({
        "a": crate::harness::fixture_server(&["--without", "subscribe"]),
        "b": crate::harness::fixture_server(&[]),
    }))
    .await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_touch").await;
    client.await_tool("b_touch").await;
    let (accepted, _) = client.listen_to(json!(1), uris(&[ALPHA, "b+note:///alpha"])).await;
    assert_eq!(accepted, uris(&["b+note:///alpha"]));
}

#[tokio::test]
async fn sub2_one_update_reaches_sessions_and_listeners() {
    for back in Back::ALL {
        let scene = Scene::start(back, json!({}), json!({})).await;
        let legacy = scene.gateway.client().await;
        let mut session = legacy.listen().await;
        subscribe(&legacy, ALPHA, json!({})).await;
        let (text, number) = (json!("1"), json!(1));
        let (_, mut first) = scene.client.listen_to(text.clone(), uris(&[ALPHA])).await;
        let (_, mut second) = scene.client.listen_to(number.clone(), uris(&[ALPHA, BETA])).await;
        scene.gauge_becomes(ACTIVE, 4).await;
        await_upstream(&legacy, &["+note:///alpha", "+note:///beta"]).await;
        touch(&legacy, "note:///alpha", 1).await;
        let expected: Value = serde_json::from_str(&touched(ALPHA, 1)).expect("JSON");
        assert_eq!(session.await_method(UPDATED).await["params"], expected, "{back:?}");
        assert_eq!(next_touched(&mut first, &text).await, expected, "{back:?}");
        assert_eq!(next_touched(&mut second, &number).await, expected, "{back:?}");
        touch(&legacy, "note:///beta", 1).await;
        assert_eq!(next_touched(&mut second, &number).await["uri"], BETA, "{back:?}");
        scene.gauge_becomes("goblin_streams_active", 3).await;

        // A closed stream receives nothing more, and the end of the last one unsubscribes upstream.
        drop(second);
        await_upstream(&legacy, &["+note:///alpha", "+note:///beta", "-note:///beta"]).await;
        drop(first);
        scene.gauge_becomes(ACTIVE, 1).await;
        scene.gauge_becomes("goblin_streams_active", 1).await;
        touch(&legacy, "note:///alpha", 1).await;
        assert_eq!(session.await_method(UPDATED).await["params"]["version"], 2, "{back:?}");
        await_upstream(&legacy, &["+note:///alpha", "+note:///beta", "-note:///beta"]).await;
    }
}

/// A change between the acknowledgement and the server's response is not notified by the server, so the gateway sends
/// an update.
#[tokio::test]
async fn sub10_a_listener_receives_an_update_when_the_server_accepts_its_subscription() {
    const HELD: &str = "a+note:///held-x";
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let (accepted, mut stream) = scene.client.listen_to(json!(1), uris(&[HELD])).await;
    assert_eq!(accepted, uris(&[HELD]));
    upstream(&scene, &["+note:///held-x"]).await;
    scene.client.try_call("a_release", json!({})).await;
    assert_eq!(next_notification(&mut stream, UPDATED, &json!(1)).await, json!({"uri": HELD, "_meta": {}}));
}

#[tokio::test]
async fn sub13_a_listener_receives_the_params_of_an_update_byte_for_byte() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let (_, mut stream) = scene.client.listen_to(json!("é"), uris(&[ALPHA])).await;
    upstream(&scene, &["+note:///alpha"]).await;
    let params = r#"{"x":[1.0,1e3,-0],"uri":"note:\/\/\/alpha","_meta":{"y":1.50}}"#;
    let draft = scene
        .client
        .draft("tools/call", json!({"name": "a_notify", "arguments": {"method": UPDATED, "params": "PARAMS"}}));
    let body = draft.body.replace(r#""PARAMS""#, params);
    scene.client.send_draft(&crate::client::modern::Draft { body, ..draft }).await;
    let message = stream.next_text().await.expect("an update");
    let expected = params
        .replace(r"note:\/\/\/alpha", ALPHA)
        .replace(r#"{"y""#, r#"{"io.modelcontextprotocol/subscriptionId":"é","y""#);
    assert!(message.contains(&expected), "{message}\n{expected}");
}

#[tokio::test]
async fn reg8_a_listener_receives_only_the_list_changes_it_requested() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let wanted = |key: &str| json!({ key: true });
    let (_, mut tools) = scene.client.listen_to(json!("t"), wanted("toolsListChanged")).await;
    let (_, mut prompts) = scene.client.listen_to(json!("p"), wanted("promptsListChanged")).await;
    let (_, mut resources) = scene.client.listen_to(json!("r"), wanted("resourcesListChanged")).await;
    let (_, mut none) = scene.client.listen_to(json!("n"), uris(&[ALPHA])).await;
    upstream(&scene, &["+note:///alpha"]).await;
    for (tool, stream, method, id) in [
        ("a_change_tools", &mut tools, TOOLS, "t"),
        ("a_change_resources", &mut resources, RESOURCES, "r"),
        ("a_change_prompts", &mut prompts, PROMPTS, "p"),
    ] {
        scene.client.try_call(tool, json!({})).await;
        // This is the first message, although other lists have changed before.
        assert_eq!(next_notification(stream, method, &json!(id)).await, json!({"_meta": {}}));
    }
    touch(&scene.gateway.client().await, "note:///alpha", 1).await;
    assert_eq!(
        next_notification(&mut none, UPDATED, &json!("n")).await["uri"],
        ALPHA,
        "the stream has no list changes"
    );
}

#[tokio::test]
async fn subx1_a_listener_can_subscribe_to_a_glob_pattern() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let mut params = listen_to(uris(&["a+note:///*"]));
    params["_meta"]["dev.goblin/pattern"] = json!("glob");
    let (accepted, mut stream) = scene.client.listen_with(json!(1), params).await;
    assert_eq!(accepted, uris(&["a+note:///*"]));
    let legacy = scene.gateway.client().await;
    eventually("both are subscribed to, in whichever order", || async {
        let mut requests = without_fences(&legacy.call_text("a_subscribed", json!({})).await);
        requests.sort();
        (requests == ["+note:///alpha", "+note:///beta"]).then_some(())
    })
    .await;
    touch(&legacy, "note:///beta", 1).await;
    assert_eq!(next_notification(&mut stream, UPDATED, &json!(1)).await["uri"], BETA);
    let mut params = listen_to(uris(&["a+note:///*"]));
    params["_meta"]["dev.goblin/pattern"] = json!("regex");
    let answer = scene.client.request("subscriptions/listen", params).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[tokio::test]
async fn sub14_a_deletion_reaches_each_listener_in_the_form_it_supports() {
    const BIN: &str = "a+blob:///bin";
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let knowing = Client::modern(scene.gateway.address, json!({"extensions": {"dev.goblin/subscriptions": {}}}));
    let (_, mut plain) = scene.client.listen_to(json!(1), uris(&[BIN])).await;
    let (_, mut marked) = knowing.listen_to(json!(2), uris(&[BIN])).await;
    scene.gauge_becomes(ACTIVE, 2).await;
    upstream(&scene, &["+blob:///bin"]).await;
    scene.client.try_call("a_change_resources", json!({"remove": "blob:///bin"})).await;
    let update = next_notification(&mut plain, UPDATED, &json!(1)).await;
    assert_eq!(update, json!({"uri": BIN, "_meta": {"dev.goblin/deleted": true}}));
    assert_eq!(next_notification(&mut marked, DELETED, &json!(2)).await["uri"], BIN);
    scene.client.try_call("a_change_resources", json!({"restore": "blob:///bin"})).await;
    for (stream, id) in [(&mut plain, 1), (&mut marked, 2)] {
        assert_eq!(next_notification(stream, UPDATED, &json!(id)).await["uri"], BIN, "the resource is back");
    }
}

#[tokio::test]
async fn sub2_listen_streams_over_stdio_have_their_own_ids_and_end_separately() {
    for members in [json!({}), json!({"session": "per-client"})] {
        let backend = Backend::start(Back::Stdio).await;
        let client = Client::stdio(Scene::config(&backend, json!({}), members.clone())).as_modern(json!({}));
        client.await_tool("a_touch").await;
        for id in [json!(900), json!("900")] {
            let params = json!({ "notifications": uris(&[ALPHA]) });
            client.begin_as(id.clone(), "subscriptions/listen", params).await;
            let first = client.message().await;
            assert_eq!(first["method"], ACKNOWLEDGED, "{first}");
            assert_eq!(first["params"], json!({"_meta": named(&id), "notifications": uris(&[ALPHA])}));
        }
        subscribed(&client, r#"["+note:///alpha"]"#).await;
        let touch = |id: &str| {
            json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": with_meta(
                json!({"name": "a_touch", "arguments": {"uri": "note:///alpha"}}), &json!({}))})
        };
        client.write(&touch("x").to_string()).await;
        let mut ids: Vec<_> =
            messages(&client, 3).await.iter().filter_map(stream_of).map(|id| id.to_string()).collect();
        ids.sort();
        assert_eq!(ids, [r#""900""#, "900"], "{members}");
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":900}}"#).await;
        client.write(&touch("y").to_string()).await;
        let ids: Vec<_> = messages(&client, 2).await.iter().filter_map(stream_of).collect();
        assert_eq!(ids, [json!("900")], "{members}: the other listen was cancelled");
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"900"}}"#).await;
        subscribed(&client, r#"["+note:///alpha","-note:///alpha"]"#).await;
    }
}

fn stream_of(message: &Value) -> Option<Value> {
    message["params"]["_meta"].get("io.modelcontextprotocol/subscriptionId").cloned()
}

async fn messages(client: &Client, count: usize) -> Vec<Value> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(client.message().await);
    }
    messages
}

/// Waits until the server has received exactly these subscribe requests.
async fn subscribed(client: &Client, expected: &str) {
    let deadline = crate::harness::Deadline::new();
    loop {
        let answer = client.try_call("a_subscribed", json!({})).await;
        if answer["result"]["content"][0]["text"] == expected {
            return;
        }
        deadline.pause(&format!("the server received {expected}, not {answer}")).await;
    }
}

/// Operators see them like those of sessions.
#[tokio::test]
async fn gauges_count_listeners_until_their_streams_close() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let gauges = ["goblin_sessions_active", "goblin_streams_active", ACTIVE];
    let (_, stream) = scene.client.listen_to(json!(1), uris(&[ALPHA, BETA])).await;
    for (name, value) in gauges.into_iter().zip([1, 1, 2]) {
        scene.gauge_becomes(name, value).await;
    }
    eventually("both subscriptions are listed", || async {
        let listed = get_admin(&Client::new(scene.gateway.address), "/api/subscriptions").await;
        (listed.body.contains(ALPHA) && listed.body.contains(BETA)).then_some(())
    })
    .await;
    let (_, call) = scene.client.open_draft(&scene.client.draft("tools/call", json!({"name": "a_hang"}))).await;
    scene.gauge_becomes("goblin_requests_in_flight", 1).await;
    drop((stream, call));
    for name in gauges.into_iter().chain(["goblin_requests_in_flight"]) {
        scene.gauge_becomes(name, 0).await;
    }
}
