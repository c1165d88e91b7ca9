//! Clients of 2026-07-28 over HTTP in the list of sessions. They have no session, so the list shows one entry for each
//! name and version.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::client::modern::{Draft, META};
use crate::front_listen::{ALPHA, uris};
use crate::harness::{Gateway, eventually, fixture_server};

async fn sessions(operator: &Client) -> Value {
    get_admin(operator, "/api/sessions").await.json()
}

/// Returns the entries of clients without a session.
fn stateless(list: &Value) -> Vec<Value> {
    let sessions = list["sessions"].as_array().expect("a list");
    sessions.iter().filter(|session| session["stateless"] == true).cloned().collect()
}

/// Returns the entry of the client with this name.
fn entry(list: &Value, name: &str) -> Option<Value> {
    stateless(list).into_iter().find(|session| session["client"] == name)
}

/// Returns a request of the client with this description.
fn described(method: &str, params: Value, client_info: Value) -> Draft {
    Draft::new(method, params)
        .changed(|message| message["params"]["_meta"][format!("{META}clientInfo")] = client_info.clone())
}

fn call(tool: &str, arguments: Value, name: &str) -> Draft {
    described("tools/call", json!({"name": tool, "arguments": arguments}), json!({"name": name, "version": "1.2"}))
}

#[tokio::test]
async fn use14_clients_without_a_session_are_listed_with_their_calls_and_streams() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let operator = gateway.client_seeing("a_echo").await;
    let modern = Client::modern(gateway.address, json!({}));
    for _ in 0..2 {
        assert!(modern.send_draft(&call("a_echo", json!({}), "batch")).await.status.is_success());
    }
    modern.send_draft(&described("tools/list", json!({}), json!({"version": "1.2", "name": "batch"}))).await;
    modern.send_draft(&Draft::new("tools/list", json!({}))).await;
    let list = sessions(&operator).await;
    let batch = entry(&list, "batch").expect("the client is listed");
    for (key, expected) in [
        ("id", json!("")),
        ("clientVersion", json!("1.2")),
        ("protocol", json!("2026-07-28")),
        ("requests", json!(3)),
        ("inFlight", json!(0)),
        ("streams", json!(0)),
        ("subscriptions", json!(0)),
    ] {
        assert_eq!(batch[key], expected, "{key} in {batch}");
    }
    assert!(batch["started"].as_str().is_some_and(|time| time.ends_with('Z')), "{batch}");
    let nameless = stateless(&list).into_iter().find(|session| session["client"].is_null());
    assert_eq!(nameless.expect("one entry for clients without a name")["requests"], 1);
    assert_eq!((&list["total"], &list["stateless"], &list["omitted"]), (&json!(1), &json!(2), &json!(0)), "{list}");
    let status = get_admin(&operator, "/api/status").await.json();
    assert_eq!(status["sessions"], json!({"total": 1, "streams": 0, "inFlight": 0}));

    let (slow, caller) = (call("a_sleep", json!({"ms": 600_000}), "slow"), modern.clone());
    let waiting = tokio::spawn(async move { caller.send_draft(&slow).await });
    let listen = json!({ "notifications": uris(&[ALPHA]) });
    let listen = described("subscriptions/listen", listen, json!({"name": "listener", "version": "3"}));
    let (_, stream) = modern.open_draft(&listen).await;
    let busy = eventually("the call and the subscription are listed", || async {
        let list = sessions(&operator).await;
        let (slow, listener) = (entry(&list, "slow")?, entry(&list, "listener")?);
        (slow["inFlight"] == 1 && listener["subscriptions"] == 1).then_some((slow, listener))
    })
    .await;
    assert_eq!((&busy.0["idleSeconds"], &busy.0["streams"]), (&json!(0), &json!(0)), "{busy:?}");
    assert_eq!((&busy.1["idleSeconds"], &busy.1["streams"]), (&json!(0), &json!(1)), "{busy:?}");
    let subscriptions = get_admin(&operator, "/api/subscriptions").await.json();
    assert_eq!(subscriptions["subscriptions"][0]["client"]["name"], "listener", "{subscriptions}");
    waiting.abort();
    drop(stream);
    eventually("the call and the stream have ended", || async {
        let list = sessions(&operator).await;
        let (slow, listener) = (entry(&list, "slow")?, entry(&list, "listener")?);
        (slow["inFlight"] == 0 && listener["streams"] == 0 && listener["subscriptions"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn use14_a_call_without_a_session_names_its_client() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let operator = gateway.client_seeing("a_echo").await;
    let modern = Client::modern(gateway.address, json!({}));
    modern.send_draft(&call("a_echo", json!({}), "ba\u{1b}[2Jtch")).await;
    modern.send_draft(&Draft::new("tools/call", json!({"name": "a_echo", "arguments": {}}))).await;
    let calls = get_admin(&operator, "/api/calls").await.json();
    let clients = [0, 1].map(|index| calls["calls"][index]["client"].clone());
    assert_eq!(clients, [Value::Null, json!("ba[2Jtch")], "{calls}");
    assert!(calls["calls"][1]["session"].is_null(), "{calls}");
}

#[tokio::test]
async fn use14_a_hostile_client_cannot_fill_the_list_of_clients() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let operator = gateway.client_seeing("a_echo").await;
    let modern = Client::modern(gateway.address, json!({}));
    for number in 0..300 {
        let info = json!({"name": format!("c{number}"), "version": "1"});
        modern.send_draft(&described("tools/list", json!({}), info)).await;
    }
    let long = json!({"name": "x".repeat(4096), "version": "1"});
    modern.send_draft(&described("tools/list", json!({}), long)).await;
    let list = sessions(&operator).await;
    assert_eq!((&list["total"], &list["stateless"]), (&json!(1), &json!(101)));
    assert!(entry(&list, "c299").is_some() && entry(&list, "c0").is_none(), "{list}");
    let nameless = stateless(&list).into_iter().find(|session| session["client"].is_null());
    assert_eq!(nameless.expect("the long description has no name")["requests"], 1);
}
