//! The lifetime of subscriptions: they end with their client, and survive streams, connections and servers.
//!
//! A client that may have missed an update receives one for each subscription.

use goblin_fixture::fault::FaultProxy;
use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, signal};
use crate::home::Home;
use crate::per_client::{each_transport, own_process, per_client};
use crate::scrape::{gauge, gauge_becomes};
use crate::subscriber::{ACTIVE, UPDATED, meta, named, short, subscribe, touch};
use crate::support::{http_server, path_text, scripted_server, starts};

const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";

/// Waits until exactly these resources are subscribed at the fixture, by any client.
async fn await_subscribed(watcher: &Client, expected: &Value) {
    eventually(&format!("{expected} is subscribed"), || async {
        let all = watcher.call_text("subscriptions", json!({"all": true})).await;
        let all: Value = serde_json::from_str(&all).expect("a list");
        (all == *expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sub7_met2_every_end_of_a_client_ends_its_subscriptions() {
    let web = HttpFixture::start(&[]).await;
    let watcher = web.client().await;
    let home = Home::new(&json!({"gateway": {"sessionIdleTimeout": "2s"}, "mcpServers": { "a": web.server() }}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let address = gateway.address;
    let stays = gateway.client_seeing("a_touch").await;
    let mut stream = stays.listen().await;
    subscribe(&stays, BETA, json!({})).await;

    for end in ["delete", "cut", "silence", "sse", "bridge", "killed bridge"] {
        let mut client = match end {
            "sse" => Client::sse(address).await.listening(json!({})).await,
            "bridge" => home.bridge().listening(json!({})).await,
            "delete" | "cut" => Client::new(address).listening(json!({})).await,
            "silence" => {
                let client = gateway.client().await;
                subscribe(&client, ALPHA, json!({})).await;
                // This client never returns.
                await_subscribed(&watcher, &json!(["note:///beta"])).await;
                continue;
            }
            _ => {
                let client = home.bridge().connected("2025-11-25").await;
                meta(&client.request("resources/subscribe", named(ALPHA)).await);
                await_subscribed(&watcher, &json!(["note:///alpha", "note:///beta"])).await;
                signal(client.pid(), "KILL");
                await_subscribed(&watcher, &json!(["note:///beta"])).await;
                continue;
            }
        };
        client.name = end.to_owned();
        client.subscribe(ALPHA).await;
        client.subscribe(BETA).await;
        assert_eq!(gauge(&stays, ACTIVE).await, 3, "{end}");
        await_subscribed(&watcher, &json!(["note:///alpha", "note:///beta"])).await;
        match end {
            "cut" => drop(client),
            _ => client.disconnect().await,
        }
        await_subscribed(&watcher, &json!(["note:///beta"])).await;
        gauge_becomes(&stays, ACTIVE, 1).await;
    }
    watcher.call("touch", json!({"uri": "note:///beta"})).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["version"], 1, "the other client is not affected");
    gateway.terminate().await;
    await_subscribed(&watcher, &json!([])).await;
}

#[tokio::test]
async fn sub7_the_end_of_input_ends_the_subscriptions_of_a_stdio_client() {
    let web = HttpFixture::start(&[]).await;
    let watcher = web.client().await;
    let config = json!({ "mcpServers": { "a": web.server() } });
    let client = Client::stdio(config).listening(json!({})).await;
    client.await_tool("a_touch").await;
    client.subscribe(ALPHA).await;
    await_subscribed(&watcher, &json!(["note:///alpha"])).await;
    client.disconnect().await;
    await_subscribed(&watcher, &json!([])).await;
}

/// A way to end a server, so that another one replaces it.
enum Fall {
    /// The process crashes during a call.
    Crash,
    /// The server forgets all sessions.
    Forget,
    /// Another server starts at the same address with these options.
    Replace(Box<HttpFixture>, &'static [&'static str]),
}

impl Fall {
    async fn apply(self, client: &Client) -> Option<HttpFixture> {
        match self {
            Fall::Crash => drop(client.try_call("a_crash", json!({})).await),
            Fall::Forget => drop(client.try_call("a_forget_sessions", json!({})).await),
            Fall::Replace(web, switches) => return Some(web.replace(switches).await),
        }
        None
    }
}

#[tokio::test]
async fn sub16_a_restarted_server_is_subscribed_again_and_each_client_receives_one_update() {
    let (web, old, forgetful) =
        (HttpFixture::start(&[]).await, HttpFixture::start(&["--sse"]).await, HttpFixture::start(&[]).await);
    let ways = [
        (fixture_server(&[]), Fall::Crash),
        (web.server(), Fall::Replace(web.into(), &[])),
        (old.server(), Fall::Replace(old.into(), &["--sse"])),
        (forgetful.server(), Fall::Forget),
    ];
    for (number, (server, fall)) in ways.into_iter().enumerate() {
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let caller = gateway.client_seeing("a_touch").await;
        let mut peers = [
            Client::new(gateway.address).listening(json!({})).await,
            Client::sse(gateway.address).await.listening(json!({})).await,
        ];
        for peer in &mut peers {
            peer.name = number.to_string();
            peer.subscribe(ALPHA).await;
        }
        peers[0].subscribe(BETA).await;
        let _server = fall.apply(&caller).await;
        for (peer, expected) in peers.iter_mut().zip([2, 1]) {
            for _ in 0..expected {
                let params = peer.updated().await.json()["params"].clone();
                assert_eq!(params, json!({"uri": params["uri"]}), "the gateway's own update");
            }
        }
        for peer in &mut peers {
            assert_eq!(peer.updates().await, Vec::<Value>::new(), "way {number}: once");
        }
        eventually(&format!("way {number}: both are subscribed"), || async {
            let all = caller.call_text("a_subscriptions", json!({})).await;
            (all == r#"["note:///alpha","note:///beta"]"#).then_some(())
        })
        .await;
        peers[0].touch("note:///alpha", 1).await;
        for peer in &mut peers {
            assert_eq!(short(&peer.updates().await).len(), 1, "way {number}");
        }
    }
}

#[tokio::test]
async fn sub10_a_subscribe_to_a_disconnected_server_is_pending_until_it_reconnects() {
    let web = HttpFixture::start(&[]).await;
    let proxy = FaultProxy::start(web.address);
    let gateway = Gateway::with_servers(json!({ "a": http_server(proxy.addr()) })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    let watcher = web.client().await;
    proxy.cut().await;
    let http = Client::new(gateway.address);
    gauge_becomes(&http, "goblin_backend_up", 0).await;
    assert_eq!(peer.subscribe(ALPHA).await["dev.goblin/state"], "pending");
    assert_eq!(peer.subscribe(ALPHA).await["dev.goblin/state"], "pending");
    assert_eq!(peer.subscribe(BETA).await["dev.goblin/state"], "pending");
    peer.unsubscribe(BETA).await;
    assert_eq!(gauge(&http, ACTIVE).await, 1);
    proxy.pass().await;
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": ALPHA }));
    await_subscribed(&watcher, &json!(["note:///alpha"])).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "once, and no update of an unsubscribed resource");
    assert!(peer.subscribe(ALPHA).await["dev.goblin/state"].is_null());
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")]);
}

/// Returns the event id and the params of the next update.
async fn next_update(stream: &mut crate::client::http::Listener) -> (String, Value) {
    loop {
        let event = stream.next_event().await.expect("another event");
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let data: Value = serde_json::from_str(&field("data: ").unwrap_or_default()).unwrap_or_default();
        if data["method"] == UPDATED {
            return (field("id: ").expect("an id"), data["params"].clone());
        }
    }
}

#[tokio::test]
async fn subx6_a_resumed_stream_replays_earlier_updates_and_delivers_later_ones() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    for uri in [ALPHA, BETA] {
        subscribe(&client, uri, json!({})).await;
    }
    let mut stream = client.listen().await;
    touch(&client, "note:///alpha", 1).await;
    let (first, params) = next_update(&mut stream).await;
    assert_eq!(params["version"], 1);
    touch(&client, "note:///alpha", 1).await;
    assert_eq!(next_update(&mut stream).await.1["version"], 2);
    drop(stream);
    touch(&client, "note:///alpha", 3).await;
    touch(&client, "note:///beta", 2).await;
    let (_, mut stream) = client.get("/mcp", &[("last-event-id", &first)]).await;
    let (second, params) = next_update(&mut stream).await;
    assert_eq!((&params["uri"], &params["version"]), (&json!(ALPHA), &json!(2)), "replayed");
    let mut newest = (0, 0);
    while newest != (5, 2) {
        let (_, params) = next_update(&mut stream).await;
        let version = params["version"].as_u64().expect("the server's own update");
        if params["uri"] == ALPHA { newest.0 = version } else { newest.1 = version }
    }
    // Delivery is at least once: events after the named one are sent again.
    drop(stream);
    let (_, mut stream) = client.get("/mcp", &[("last-event-id", &second)]).await;
    assert!(next_update(&mut stream).await.1["version"].as_u64().is_some_and(|version| version > 2));
}

#[tokio::test]
async fn subx6_a_gap_sends_one_update_per_subscription() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    for uri in [ALPHA, BETA] {
        subscribe(&client, uri, json!({})).await;
    }
    let assert_updated = async |stream: &mut crate::client::http::Listener, why: &str| {
        for uri in [ALPHA, BETA] {
            assert_eq!(next_update(stream).await.1, json!({ "uri": uri }), "{why}");
        }
    };
    let mut stream = client.listen().await;
    touch(&client, "note:///alpha", 1).await;
    let (id, params) = next_update(&mut stream).await;
    assert_eq!(params["version"], 1, "nothing was missed before the first stream");
    let spent = format!("{}-999", id.rsplit_once('-').expect("parts").0);
    for wrong in ["x", "0-0000000-0", &spent] {
        (_, stream) = client.get("/mcp", &[("last-event-id", wrong)]).await;
        assert_updated(&mut stream, wrong).await;
    }
    // The client sends no event id.
    stream = client.listen().await;
    assert_updated(&mut stream, "a second stream").await;
    touch(&client, "note:///alpha", 1).await;
    assert_eq!(next_update(&mut stream).await.1["version"], 2, "once");
}

#[tokio::test]
async fn sub2_sub7_each_client_of_a_per_client_server_subscribes_over_its_own_link() {
    for (transport, server, _backend) in each_transport().await {
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let (one, two) = (
            Client::new(gateway.address).listening(json!({})).await,
            Client::sse(gateway.address).await.listening(json!({})).await,
        );
        one.await_tool("a_touch").await;
        let meta = one.subscribe(ALPHA).await;
        assert!(meta["dev.goblin/state"].is_null(), "{transport}: {meta}");
        assert_eq!(one.call_text("a_subscriptions", "{}").await, r#"["note:///alpha"]"#, "{transport}");
        assert_eq!(two.call_text("a_subscriptions", "{}").await, "[]", "{transport}: no subscription is shared");
        two.touch("note:///beta", 1).await;
        two.subscribe(ALPHA).await;
        one.touch("note:///alpha", 1).await;
        assert_eq!(short(&one.updates().await), [format!("{ALPHA} 1")], "{transport}");
        let expected: &[String] = if transport == "stdio" { &[] } else { &[format!("{ALPHA} 1")] };
        assert_eq!(short(&two.updates().await), expected, "{transport}: each process has its own notes");
        one.disconnect().await;
        let http = Client::new(gateway.address);
        gauge_becomes(&http, ACTIVE, 1).await;
        two.touch("note:///alpha", 1).await;
        assert_eq!(short(&two.updates().await).len(), 1, "{transport}");
        let other = two.call_text("a_subscriptions", r#"{"all":true}"#).await;
        assert!(other.contains("note:///alpha"), "{transport}");
    }
}

#[tokio::test]
async fn sub16_a_dead_per_client_process_with_subscriptions_is_restarted() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let gateway = Gateway::with_servers(json!({ "a": own_process(&["--start-log", path_text(&log)]) })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    peer.subscribe(ALPHA).await;
    assert_eq!(starts(&log), 2, "the one that lists, and the client's own");
    let crash = peer.begin_call("a_crash", "{}").await;
    assert!(peer.answer_to(crash).await["error"].is_object());
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": ALPHA }), "without a call");
    assert_eq!(starts(&log), 3);
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")]);
}

#[tokio::test]
async fn sub10_a_subscribe_is_pending_until_the_per_client_process_starts() {
    let scratch = Scratch::new();
    let barrier = scratch.path().join("barrier");
    let script = format!(r#"test ! -e {} && exec "$@""#, path_text(&barrier));
    let gateway = Gateway::with_servers(json!({ "a": per_client(scripted_server(&script, &[])) })).await;
    gateway.client_seeing("a_touch").await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    scratch.write("barrier", "");
    assert_eq!(peer.subscribe(ALPHA).await["dev.goblin/state"], "pending");
    std::fs::remove_file(&barrier).expect("the file exists");
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": ALPHA }), "without a call");
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")]);
}

#[tokio::test]
async fn sub7_an_ended_session_cannot_subscribe() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    subscribe(&client, ALPHA, json!({})).await;
    client.send(Method::DELETE, "/mcp", &client.headers(), "").await;
    let other = gateway.client().await;
    eventually("the session is not counted any more", || async { (gauge(&other, ACTIVE).await == 0).then_some(()) })
        .await;
    let late = client
        .post(json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": ALPHA}}).to_string())
        .await;
    assert_eq!(late.status, http::StatusCode::NOT_FOUND);
    assert_eq!(gauge(&other, ACTIVE).await, 0);
}
