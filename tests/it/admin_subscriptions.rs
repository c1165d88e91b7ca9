//! `/api/subscriptions`: the subscriptions of all clients in the operators' view.
//!
//! The list covers sessions, bridges and per-client connections alike.

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, goblin};
use crate::subscriber::{UPDATED, subscribe, touch};

const ALPHA: &str = "a+note:///alpha";

async fn listed(client: &Client, query: &str) -> Value {
    let answer = get_admin(client, &format!("/api/subscriptions{query}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/json");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Returns the member `key` of all listed subscriptions, in order.
fn all<'a>(list: &'a Value, key: &str) -> Vec<&'a Value> {
    list["subscriptions"].as_array().expect("an array").iter().map(|subscription| &subscription[key]).collect()
}

/// Returns the expected description of a client.
fn about(client: &Client) -> Value {
    let session = client.session.as_deref().expect("a session");
    json!({"id": session[session.len() - 8..], "name": "test", "version": "0"})
}

#[tokio::test]
async fn sub15_all_subscriptions_are_listed_by_time_and_counted() {
    let servers = json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let one = gateway.client_seeing("a_touch").await;
    let other = gateway.client_seeing("b_touch").await;
    let none = json!({"total": 0, "omitted": 0, "servers": {}, "clients": [], "subscriptions": []});
    assert_eq!(listed(&one, "").await, none);

    let mut ids = Vec::new();
    for (client, uri, options) in [
        (&one, ALPHA, json!({"minIntervalMs": 250, "priority": -3})),
        (&one, "b+note:///beta", json!({"batchMs": 0, "priority": 0})),
        (&other, ALPHA, json!({})),
    ] {
        ids.push(subscribe(client, uri, options).await["dev.goblin/subscriptionId"].clone());
    }
    let list = listed(&one, "").await;
    assert_eq!((&list["total"], &list["omitted"]), (&json!(3), &json!(0)));
    assert_eq!(list["servers"], json!({"a": 2, "b": 1}));
    let count = |client: Value, count: u64| {
        let mut client = client;
        client["count"] = count.into();
        client
    };
    assert_eq!(list["clients"], json!([count(about(&one), 2), count(about(&other), 1)]));
    assert_eq!(all(&list, "id"), ids.iter().collect::<Vec<_>>(), "in the order of creation");
    assert_eq!(all(&list, "uri"), [ALPHA, "b+note:///beta", ALPHA]);
    assert_eq!(all(&list, "server"), ["a", "b", "a"]);
    assert_eq!(all(&list, "client"), [&about(&one), &about(&one), &about(&other)]);
    assert_eq!(all(&list, "state"), ["subscribed"; 3]);
    assert_eq!(all(&list, "options"), [&json!({"minIntervalMs": 250, "priority": -3}), &json!({}), &json!({})]);
    for created in all(&list, "created") {
        let created = created.as_str().expect("a time");
        assert!(created.len() == "2026-11-16T00:00:00Z".len() && created.ends_with('Z'), "{created}");
    }
    let whole = one.session.as_deref().expect("a session");
    assert!(!list.to_string().contains(whole), "a full session id is a credential: {list}");

    one.request("resources/unsubscribe", json!({ "uri": ALPHA })).await;
    assert_eq!(all(&listed(&one, "").await, "id"), [&ids[1], &ids[2]]);
}

#[tokio::test]
async fn sub15_the_subscribers_of_a_uri_are_found_under_every_spelling() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    client.await_tool("b_touch").await;
    for uri in [ALPHA, "a+note:///beta", "b+note:///alpha"] {
        subscribe(&client, uri, json!({})).await;
    }
    for (query, expected) in [
        ("?uri=a+note:///alpha", &[ALPHA][..]),
        ("?uri=a%2Bnote%3A%2F%2F%2Falpha", &[ALPHA]),
        ("?uri=a_note_alpha", &[ALPHA]),
        // An update of a sub-resource would reach this subscription.
        ("?uri=a+note:///alpha/part", &[ALPHA]),
        ("?uri=a+note:///alphabet", &[]),
        // Both servers have this resource.
        ("?uri=note:///alpha", &[ALPHA, "b+note:///alpha"]),
        ("?uri=no:where", &[]),
        ("", &[ALPHA, "a+note:///beta", "b+note:///alpha"]),
    ] {
        let list = listed(&client, query).await;
        assert_eq!(all(&list, "uri"), expected, "{query}");
        assert_eq!(list["total"], expected.len(), "{query}");
    }
    // A pattern also covers unlisted resources, and is found by its own text.
    let (pattern, options) = ("a+note:///al*", json!({"pattern": "glob", "fields": ["size", "a.b"]}));
    subscribe(&client, pattern, options.clone()).await;
    for (query, expected) in [
        ("?uri=a+note:///alpha", &[ALPHA, pattern][..]),
        ("?uri=a+note:///almost", &[pattern]),
        ("?uri=a+note:///al*", &[pattern]),
        ("?uri=b+note:///almost", &[]),
    ] {
        assert_eq!(all(&listed(&client, query).await, "uri"), expected, "{query}");
    }
    assert_eq!(all(&listed(&client, "?uri=a+note:///almost").await, "options"), [&options]);
    for query in ["?uri=", "?url=x", "?uri=a&uri=b", "?uri=%ff"] {
        let answer = get_admin(&client, &format!("/api/subscriptions{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}: {answer:?}");
        assert!(answer.json()["error"]["message"].as_str().is_some_and(|it| it.contains("uri")), "{query}: {answer:?}");
    }
}

/// Waits until a subscription has this state and these counts of delivered and coalesced updates.
async fn state_becomes(client: &Client, uri: &str, expected: Value) {
    eventually(&format!("the state of {uri} is {expected}"), || async {
        let list = listed(client, &format!("?uri={uri}")).await;
        let found = &list["subscriptions"][0];
        (json!([found["state"], found["delivered"], found["coalesced"]]) == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sub15_the_state_and_the_update_counts_of_a_subscription_are_reported() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    subscribe(&client, "a+note:///unsupported", json!({})).await;
    state_becomes(&client, "a+note:///unsupported", json!(["tracked", 0, 0])).await;
    let held = json!({"jsonrpc": "2.0", "id": "held", "method": "resources/subscribe",
        "params": { "uri": "a+note:///held-x" }});
    let opened = client.open(held.to_string());
    let release = async {
        state_becomes(&client, "a+note:///held-x", json!(["pending", 0, 0])).await;
        // Another task sends the subscribe request, so a release can overtake it.
        loop {
            client.call_text("a_release", json!({})).await;
        }
    };
    let _opened = tokio::select! {
        opened = opened => opened,
        () = release => unreachable!("the loop has no end"),
    };
    state_becomes(&client, "a+note:///held-x", json!(["subscribed", 0, 0])).await;

    // The client has no stream, so newer updates replace older ones.
    subscribe(&client, ALPHA, json!({})).await;
    touch(&client, "note:///alpha", 3).await;
    state_becomes(&client, ALPHA, json!(["subscribed", 0, 2])).await;
    let mut stream = client.listen().await;
    stream.await_method(UPDATED).await;
    state_becomes(&client, ALPHA, json!(["subscribed", 1, 2])).await;
}

#[tokio::test]
async fn sub15_clients_of_a_bridge_and_per_client_links_are_listed_like_all_others() {
    let mut server = fixture_server(&[]);
    server["session"] = "per-client".into();
    let scratch = Scratch::new();
    let config = json!({ "mcpServers": { "a": server } });
    let config = scratch.write("goblin.json", &config.to_string());
    let mut command = goblin(scratch.path());
    command.args(["serve", "--port", "0", "--config"]).arg(&config);
    let gateway = Gateway::of(command).await;
    let operator = gateway.client_seeing("a_touch").await;
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--config"]).arg(&config);
    let bridged = Client::run(command);
    let info = json!({"name": "bridged", "version": "1.2.3"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
    bridged.request("initialize", hello).await;
    bridged.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    bridged.request("resources/subscribe", json!({ "uri": ALPHA })).await;
    subscribe(&operator, ALPHA, json!({})).await;
    let list = listed(&operator, "").await;
    let names: Vec<_> = all(&list, "client").iter().map(|client| json!([client["name"], client["version"]])).collect();
    assert_eq!(names, [json!(["bridged", "1.2.3"]), json!(["test", "0"])]);
    assert_eq!(all(&list, "state"), ["subscribed"; 2]);
    bridged.close().await;
    eventually("the subscriptions of the ended client are not listed", || async {
        (listed(&operator, "").await["total"] == 1).then_some(())
    })
    .await;
}
