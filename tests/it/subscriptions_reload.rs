//! Subscriptions during changes of the configuration: servers that stay, change, appear and disappear.
//!
//! A subscription keeps its id. It moves to the changed server, or its client is notified of a deletion.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use goblin_client::connect::ProxyEnvironment;
use goblin_config::Gateway;
use goblin_config::admin::AdminSettings;
use goblin_engine::admin::permit::AdminAccess;
use goblin_engine::app::App;
use serde_json::{Value, json};

use crate::admin_client::{get_admin, remember_token};
use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::front_listen::{next_notification, next_touched};
use crate::harness::{Deadline, GOBLIN, Scratch, eventually, fixture_server};
use crate::lists::config;
use crate::per_client::own_process;
use crate::subscriber::{DELETED, UPDATED, await_upstream, named, short, states, states_become, touch};
use crate::subscriptions_patterns::glob;
use crate::support::{path_text, starts};

/// A gateway in this process with a replaceable configuration.
struct Running {
    app: App,
    address: SocketAddr,
}

impl Running {
    async fn start(servers: Value) -> Running {
        let mut app = App::start(config(servers), GOBLIN.into(), ProxyEnvironment::default(), Arc::default());
        app.readiness().wait_for(|readiness| readiness.is_ready()).await.expect("the process starts");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let permit = AdminAccess::new(&Gateway::default(), &AdminSettings::default());
        remember_token(address, permit.token().expose());
        app.set_permit(permit);
        drop(app.accept_http(listener).expect("the listener is accepted"));
        Running { app, address }
    }

    fn reload(&mut self, servers: Value) {
        self.app.reload(config(servers));
    }

    async fn peer(&self, capabilities: Value) -> Client {
        Client::new(self.address).listening(capabilities).await
    }

    /// Returns the ids of all subscriptions, by client and URI.
    async fn ids(&self) -> BTreeMap<(String, String), String> {
        let answer = get_admin(&Client::new(self.address), "/api/subscriptions").await;
        let list: Value = serde_json::from_str(&answer.body).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let all = list["subscriptions"].as_array().expect("an array").iter();
        all.map(|it| ((text(&it["client"]["id"]), text(&it["uri"])), text(&it["id"]))).collect()
    }
}

/// Returns the sorted requests that a server received.
async fn requests_to(peer: &Client, server: &str) -> Vec<String> {
    let text = peer.call_text(&format!("{server}_subscribed"), "{}").await;
    let mut requests: Vec<String> = serde_json::from_str(&text).expect("a list");
    requests.retain(|entry| !entry.ends_with("note:///fence"));
    requests.sort();
    requests
}

/// Returns the sorted params of the next `count` messages of this method.
async fn receive_notifications(peer: &Client, method: &str, count: usize) -> Vec<Value> {
    let mut received = Vec::new();
    for _ in 0..count {
        received.push(peer.notification(method).await.json()["params"].clone());
    }
    received.sort_by_key(Value::to_string);
    received
}

fn deletion_mark(uri: &str) -> Value {
    json!({"uri": uri, "_meta": {"dev.goblin/deleted": true}})
}

fn deletion_capabilities() -> Value {
    json!({"experimental": {"dev.goblin/subscriptions": {}}})
}

#[tokio::test]
async fn d10_subscriptions_follow_added_changed_and_removed_servers() {
    let numbered = &["--resources", "2"][..];
    let changed = &["--resources", "2", "--instructions", "other"][..];
    let server = fixture_server;
    let mut running =
        Running::start(json!({ "a": server(numbered), "b": server(numbered), "c": server(numbered) })).await;
    let mut peers = [running.peer(json!({})).await, running.peer(deletion_capabilities()).await];
    for peer in &mut peers {
        for id in ["a", "b", "c"] {
            peer.subscribe(&format!("{id}+note:///alpha")).await;
            peer.subscribe_with(&format!("{id}+note:///numbered/*"), glob()).await;
        }
    }
    let wanted = ["+note:///alpha", "+note:///numbered/0001", "+note:///numbered/0002"];
    let [plain, _] = &mut peers;
    for id in ["a", "b", "c"] {
        assert_eq!(requests_to(plain, id).await, wanted, "{id}");
    }
    let before = running.ids().await;
    assert_eq!(before.len(), 12);

    running.reload(json!({ "d": server(&[]), "b": server(changed), "a": server(numbered) }));
    let [plain, aware] = &mut peers;
    let removed = ["c+note:///alpha", "c+note:///numbered/*"];
    assert_eq!(receive_notifications(aware, DELETED, 2).await, removed.map(|uri| json!({ "uri": uri })));
    let carried = ["b+note:///alpha", "b+note:///numbered/*"].map(|uri| json!({ "uri": uri }));
    assert_eq!(receive_notifications(aware, UPDATED, 2).await, carried);
    assert_eq!(receive_notifications(plain, UPDATED, 4).await, [&removed.map(deletion_mark)[..], &carried].concat());
    for peer in &mut peers {
        peer.await_tool("b_subscribed").await;
        await_requests_to(peer, "b", &wanted).await;
        assert_eq!(requests_to(peer, "a").await, wanted, "the server received nothing");
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "each update arrived once, and none of a");
    }
    let kept: BTreeMap<_, _> = before
        .iter()
        .filter(|((_, uri), _)| !uri.starts_with("c+"))
        .map(|(key, id)| (key.clone(), id.clone()))
        .collect();
    assert_eq!(running.ids().await, kept, "the same subscriptions");
    assert!(states(running.address).await.iter().all(|(_, state)| state == "subscribed"));

    let [plain, aware] = &mut peers;
    for id in ["a", "b"] {
        plain.call_text(&format!("{id}_touch"), r#"{"uri":"note:///numbered/0001"}"#).await;
        for peer in [&mut *plain, &mut *aware] {
            assert_eq!(
                short(&receive_notifications(peer, UPDATED, 1).await),
                [format!("{id}+note:///numbered/0001 1")]
            );
        }
    }
    plain.await_tool("d_touch").await;
    plain.subscribe("d+note:///alpha").await;
    plain.call_text("d_touch", r#"{"uri":"note:///alpha"}"#).await;
    assert_eq!(
        short(&receive_notifications(plain, UPDATED, 1).await),
        ["d+note:///alpha 1"],
        "the new server is served"
    );
    // A carried-over subscription ends like any other.
    for peer in [&mut *plain, &mut *aware] {
        for uri in ["b+note:///alpha", "b+note:///numbered/*"] {
            peer.unsubscribe(uri).await;
        }
    }
    let ended = wanted.map(|entry| entry.replace('+', "-"));
    let all = wanted.iter().copied().chain(ended.iter().map(String::as_str)).collect::<Vec<_>>();
    await_requests_to(plain, "b", &all).await;
    running.app.stop().await;
}

async fn await_requests_to(peer: &Client, server: &str, expected: &[&str]) {
    let deadline = Deadline::new();
    loop {
        let requests = requests_to(peer, server).await;
        if requests == expected {
            return;
        }
        deadline.pause(&format!("{server} receives {expected:?}, not {requests:?}")).await;
    }
}

#[tokio::test]
async fn sub10_a_pending_subscribe_moves_to_the_changed_server() {
    let mut running = Running::start(json!({ "a": fixture_server(&[]) })).await;
    let (one, two) = (running.peer(json!({})).await, running.peer(json!({})).await);
    let begun = one.begin("resources/subscribe", named("a+note:///held-x")).await;
    two.await_upstream(&["+note:///held-x"]).await;
    running.reload(json!({ "a": fixture_server(&["--instructions", "other"]) }));
    let answer = one.answer_to(begun).await;
    assert_eq!(answer["result"]["_meta"]["dev.goblin/state"], "pending", "{answer}");
    // The old server may still receive calls until the new one is ready.
    let deadline = Deadline::new();
    loop {
        let id = two.begin_call("a_hello", "{}").await;
        let answer = two.answer_to(id).await;
        deadline.pause("the next one is there").await;
        if answer["result"].is_object() {
            break;
        }
    }
    two.await_upstream(&["+note:///held-x"]).await;
    two.call_text("a_release", "{}").await;
    assert_eq!(one.updated().await.json()["params"], json!({"uri": "a+note:///held-x"}));
    states_become(running.address, &[("a+note:///held-x", "subscribed")]).await;
    one.touch("note:///held-x", 1).await;
    assert_eq!(short(&one.updates().await), ["a+note:///held-x 1"]);
    running.app.stop().await;
}

#[tokio::test]
async fn sub14_a_resource_that_a_changed_server_lacks_is_notified_as_deleted() {
    let web = HttpFixture::start(&[]).await;
    let with = |mark: &str| {
        let mut server = web.server();
        server["headers"] = json!({ "X-Mark": mark });
        json!({ "a": server })
    };
    let mut running = Running::start(with("one")).await;
    let peer = running.peer(json!({})).await;
    let id = peer.subscribe("a+blob:///bin").await["dev.goblin/subscriptionId"].clone();
    assert_eq!(peer.call_text("a_toggle_quiet", "{}").await, "quiet");
    peer.change(json!({"remove": "blob:///bin"})).await;
    running.reload(with("two"));
    assert_eq!(
        receive_notifications(&peer, UPDATED, 1).await,
        [json!({"uri": "a+blob:///bin"})],
        "the subscription is carried over"
    );
    assert_eq!(
        receive_notifications(&peer, UPDATED, 1).await,
        [deletion_mark("a+blob:///bin")],
        "and the resource is deleted"
    );
    states_become(running.address, &[("a+blob:///bin", "missing")]).await;
    peer.change(json!({"restore": "blob:///bin"})).await;
    // The server sends no notifications, so the gateway sends an update when polling starts again.
    running.reload(with("three"));
    assert_eq!(receive_notifications(&peer, UPDATED, 1).await, [json!({"uri": "a+blob:///bin"})]);
    states_become(running.address, &[("a+blob:///bin", "subscribed")]).await;
    assert_eq!(running.ids().await.into_values().collect::<Vec<_>>(), [id.as_str().expect("an id")]);
    running.app.stop().await;
}

#[tokio::test]
async fn d10_a_newly_denied_resource_is_notified_as_deleted_until_it_is_allowed() {
    const ALL: &str = "a+blob:///*";
    let denying = |denied: Value| {
        let mut server = fixture_server(&[]);
        server["resources"] = json!({ "deny": denied });
        json!({ "a": server })
    };
    let mut running = Running::start(denying(json!([]))).await;
    let peer = running.peer(json!({})).await;
    peer.subscribe("a+blob:///bin").await;
    peer.subscribe_with(ALL, glob()).await;
    assert_eq!(requests_to(&peer, "a").await, ["+blob:///bin"]);
    running.reload(denying(json!(["blob:///*"])));
    assert_eq!(receive_notifications(&peer, UPDATED, 1).await, [deletion_mark("a+blob:///bin")]);
    states_become(running.address, &[("a+blob:///bin", "missing"), (ALL, "subscribed")]).await;
    peer.touch("blob:///bin", 1).await;
    peer.touch("blob:///other", 1).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new());
    running.reload(denying(json!([])));
    assert_eq!(receive_notifications(&peer, UPDATED, 1).await, [json!({"uri": "a+blob:///bin"})]);
    states_become(running.address, &[("a+blob:///bin", "subscribed"), (ALL, "subscribed")]).await;
    await_requests_to(&peer, "a", &["+blob:///bin", "+blob:///bin"]).await;
    peer.touch("blob:///bin", 1).await;
    assert_eq!(short(&peer.updates().await), ["a+blob:///bin 2"], "the process stays");
    running.app.stop().await;
}

#[tokio::test]
async fn d10_subscriptions_of_per_client_links_follow_a_reload() {
    let scratch = Scratch::new();
    let log = |name: &str| scratch.path().join(name);
    let server = |id: &str| own_process(&["--start-log", path_text(&log(id))]);
    let changed = |id: &str| own_process(&["--start-log", path_text(&log(id)), "--instructions", "other"]);
    let mut running = Running::start(json!({ "a": server("a"), "b": server("b"), "c": server("c") })).await;
    let (one, two) = (running.peer(json!({})).await, running.peer(json!({})).await);
    for id in ["a", "b", "c"] {
        one.subscribe(&format!("{id}+note:///alpha")).await;
    }
    two.subscribe("b+note:///beta").await;
    let before = running.ids().await;
    let begun = ["a", "b", "c"].map(|id| starts(&log(id)));
    running.reload(json!({ "a": server("a"), "b": changed("b") }));
    assert_eq!(
        receive_notifications(&one, UPDATED, 2).await,
        [deletion_mark("c+note:///alpha"), json!({"uri": "b+note:///alpha"})]
    );
    assert_eq!(receive_notifications(&two, UPDATED, 1).await, [json!({"uri": "b+note:///beta"})], "its own");
    eventually("b has been started for two clients and for its lists", || async {
        (starts(&log("b")) == begun[1] + 3).then_some(())
    })
    .await;
    assert_eq!((starts(&log("a")), starts(&log("c"))), (begun[0], begun[2]), "no other server was started");
    one.await_tool("b_subscribed").await;
    assert_eq!(requests_to(&one, "b").await, ["+note:///alpha"]);
    assert_eq!(requests_to(&two, "b").await, ["+note:///beta"], "no subscription is shared");
    assert_eq!(requests_to(&one, "a").await, ["+note:///alpha"]);
    let kept: BTreeMap<_, _> = before.into_iter().filter(|((_, uri), _)| !uri.starts_with("c+")).collect();
    assert_eq!(running.ids().await, kept);
    one.call_text("b_touch", r#"{"uri":"note:///alpha"}"#).await;
    assert_eq!(short(&receive_notifications(&one, UPDATED, 1).await), ["b+note:///alpha 1"]);
    assert_eq!(one.updates().await, Vec::<Value>::new(), "each update arrived once");
    running.app.stop().await;
}

/// A server that becomes per-client loses its subscriptions, because the gateway cannot connect for a client without a
/// call. A server that becomes shared keeps them.
#[tokio::test]
async fn d10_subscriptions_end_when_a_server_becomes_per_client_and_stay_when_it_becomes_shared() {
    let mut running = Running::start(json!({ "a": fixture_server(&[]), "b": own_process(&[]) })).await;
    let peer = running.peer(deletion_capabilities()).await;
    for id in ["a", "b"] {
        peer.subscribe(&format!("{id}+note:///alpha")).await;
    }
    running.reload(json!({ "a": own_process(&[]), "b": fixture_server(&[]) }));
    assert_eq!(receive_notifications(&peer, DELETED, 1).await, [json!({"uri": "a+note:///alpha"})]);
    assert_eq!(receive_notifications(&peer, UPDATED, 1).await, [json!({"uri": "b+note:///alpha"})]);
    states_become(running.address, &[("b+note:///alpha", "subscribed")]).await;
    running.app.catalogs().caught_up().await;
    peer.call_text("b_touch", r#"{"uri":"note:///alpha"}"#).await;
    assert_eq!(short(&receive_notifications(&peer, UPDATED, 1).await), ["b+note:///alpha 1"]);
    peer.subscribe("a+note:///alpha").await;
    assert_eq!(requests_to(&peer, "a").await, ["+note:///alpha"], "over its own connection");
    running.app.stop().await;
}

#[tokio::test]
async fn d13_a_forwarded_subscription_survives_a_reload_and_ends_with_its_setting() {
    let server = |unlisted: &str, arguments: &[&str]| {
        let mut server = fixture_server(arguments);
        server["resources"] = json!({ "deny": ["note:///{name}"] });
        server["unlisted"] = json!(unlisted);
        json!({ "a": server })
    };
    let mut running = Running::start(server("forward", &[])).await;
    let peer = running.peer(json!({})).await;
    peer.subscribe("a+note:///far").await;
    // A changed process gets the subscription.
    running.reload(server("forward", &["--instructions", "other"]));
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": "a+note:///far" }));
    states_become(running.address, &[("a+note:///far", "subscribed")]).await;
    running.reload(server("reject", &["--instructions", "other"]));
    let deletion = json!({ "uri": "a+note:///far", "_meta": { "dev.goblin/deleted": true } });
    let deadline = Deadline::new();
    while peer.updated().await.json()["params"] != deletion {
        deadline.pause("the subscriber is notified of the deletion").await;
    }
    states_become(running.address, &[("a+note:///far", "missing")]).await;
    running.reload(server("forward", &["--instructions", "other"]));
    states_become(running.address, &[("a+note:///far", "subscribed")]).await;
}

/// A client without a session has a link by its capabilities.
#[tokio::test]
async fn d10_a_listen_stream_of_a_per_client_server_follows_a_reload() {
    let mut running = Running::start(json!({ "a": own_process(&[]) })).await;
    let client = Client::modern(running.address, json!({}));
    client.await_tool("a_touch").await;
    let wanted = json!({ "resourceSubscriptions": ["a+note:///alpha"] });
    let (accepted, mut stream) = client.listen_to(json!(1), wanted.clone()).await;
    assert_eq!(accepted, wanted);
    await_upstream(&client, &["+note:///alpha"]).await;
    touch(&client, "note:///alpha", 2).await;
    while next_touched(&mut stream, &json!(1)).await["version"] != 2 {}
    running.reload(json!({ "a": own_process(&["--instructions", "other"]) }));
    let update = next_notification(&mut stream, UPDATED, &json!(1)).await;
    assert_eq!(update, json!({ "uri": "a+note:///alpha", "_meta": {} }), "the subscription is carried over");
    await_upstream(&client, &["+note:///alpha"]).await;
    touch(&client, "note:///alpha", 1).await;
    assert_eq!(next_touched(&mut stream, &json!(1)).await["version"], 1, "the new process is subscribed to");
    running.app.stop().await;
}

#[tokio::test]
async fn d1_a_client_that_subscribes_after_a_renaming_gets_updates_under_the_new_name() {
    let server_with = |rename: Value| {
        let mut server = fixture_server(&[]);
        server["resources"] = json!({ "rename": rename });
        json!({ "a": server })
    };
    let mut running = Running::start(server_with(json!({}))).await;
    let [old, covering, new] = [(); 3].map(|()| running.peer(json!({})));
    let (old, covering, new) = (old.await, covering.await, new.await);
    old.subscribe("a+note:///alpha").await;
    covering.subscribe_with("a+note:///*", glob()).await;
    running.reload(server_with(json!({ "note:///alpha": "my:alpha" })));
    running.app.catalogs().caught_up().await;
    assert_eq!(new.subscribe("my:alpha").await["dev.goblin/uri"], "my:alpha");
    old.touch("note:///alpha", 1).await;
    for (peer, uri) in [(&old, "a+note:///alpha"), (&covering, "my:alpha"), (&new, "my:alpha")] {
        assert_eq!(short(&receive_notifications(peer, UPDATED, 1).await), [format!("{uri} 1")]);
    }
    // A deletion has the same names.
    old.change(json!({"remove": "note:///alpha"})).await;
    for (peer, uri) in [(&old, "a+note:///alpha"), (&covering, "my:alpha"), (&new, "my:alpha")] {
        assert_eq!(receive_notifications(peer, UPDATED, 1).await, [deletion_mark(uri)]);
    }
    running.app.stop().await;
}
