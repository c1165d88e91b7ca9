//! Subscriptions between third-party programs: clients of the official SDKs, and server-everything, which sends
//! simulated updates.
//!
//! The same steps run without a gateway too, so that a failure can be attributed.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, fixture_server};
use crate::real_servers::Everything;
use crate::scrape::gauge;
use crate::sdk::{Over, Sdk, reference_server};
use crate::subscriber::{ACTIVE, UPDATED};

const NOTE: &str = "a+note:///alpha";
const DEMO: &str = "every+demo://resource/dynamic/text/7";
const TOGGLE: &str = "every_toggle-subscriber-updates";

fn everything_over_stdio() -> Value {
    reference_server("server-everything", &["stdio"])
}

/// Returns the steps: subscribe, change the resource by a call, receive the update, and unsubscribe.
fn rounds() -> Vec<Value> {
    let round = |uri: &str, tool: &str, arguments: Value| {
        [
            json!({"do": "await_tool", "name": tool}),
            json!({"do": "subscribe", "uri": uri}),
            json!({"do": "call_tool", "name": tool, "arguments": arguments}),
            json!({"do": "wait_notification", "method": UPDATED, "params": { "uri": uri }}),
            json!({"do": "unsubscribe", "uri": uri}),
        ]
    };
    let mut steps = [round(NOTE, "a_touch", json!({"uri": "note:///alpha"})), round(DEMO, TOGGLE, json!({}))].concat();
    // The server logs the unsubscribe. Some SDKs fail if a message arrives while they disconnect.
    let log = "Received Unsubscribe Resource request: demo://resource/dynamic/text/7 ";
    steps.push(json!({"do": "wait_notification", "method": "notifications/message", "params": { "data": log }}));
    steps
}

#[tokio::test]
async fn sub1_sub2_sub5_python_clients_receive_updates_over_every_transport() {
    play([Sdk::Python1, Sdk::Python2]).await;
}

#[tokio::test]
async fn sub1_sub2_sub5_typescript_clients_receive_updates_over_every_transport() {
    play([Sdk::TypeScript1, Sdk::TypeScript2]).await;
}

async fn play(sdks: [Sdk; 2]) {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]), "every": everything_over_stdio() } });
    for sdk in sdks {
        // Each gateway has its own servers, because server-everything continues its simulated updates until it is
        // toggled again.
        let gateways = [Gateway::start(config.clone()).await, Gateway::start(config.clone()).await];
        let (http, sse) = (gateways[0].url(), format!("http://{}/sse", gateways[1].address));
        let steps = rounds();
        let playing = [
            sdk.begin_over_http(&http, &steps),
            sdk.begin_over_sse(&sse, &steps),
            sdk.begin_over_stdio(&config, &steps),
        ];
        for (number, playing) in playing.into_iter().enumerate() {
            let report = playing.report().await;
            for step in 0..steps.len() {
                assert_eq!(report.step(step)["ok"], true, "{sdk:?} {number}: {}", report.step(step));
            }
            let updates = report.notifications(UPDATED);
            let of_note = updates.iter().filter(|notification| notification["params"]["uri"] == NOTE).count();
            assert_eq!(of_note, 1, "{sdk:?} {number}: {updates:?}");
        }
    }
}

/// Checks two clients with one upstream subscription. One leaves, and the other still receives updates.
async fn check(server: Value) {
    let gateway = Gateway::with_servers(json!({ "every": server })).await;
    let one = Client::new(gateway.address).listening(json!({})).await;
    let two = Client::sse(gateway.address).await.listening(json!({})).await;
    one.await_tool(TOGGLE).await;
    for peer in [&one, &two] {
        assert_eq!(peer.subscribe(DEMO).await["dev.goblin/uri"], DEMO);
    }
    one.call_text(TOGGLE, "{}").await;
    for peer in [&one, &two] {
        assert_eq!(peer.updated().await.json()["params"], json!({ "uri": DEMO }));
    }
    one.unsubscribe(DEMO).await;
    // The server repeats the update after some seconds.
    assert_eq!(two.updated().await.json()["params"], json!({ "uri": DEMO }));
    two.unsubscribe(DEMO).await;
    let client = gateway.client().await;
    assert_eq!(gauge(&client, ACTIVE).await, 0);
}

#[tokio::test]
async fn sub2_sub12_server_everything_sends_updates_over_every_transport() {
    check(everything_over_stdio()).await;
    check(Everything::start("streamableHttp").await.server()).await;
    check(Everything::start("sse").await.server()).await;
}

/// The clients work with the fixture without a gateway.
#[tokio::test]
async fn sub1_sdk_clients_receive_updates_without_a_gateway() {
    let program = crate::harness::fixture();
    let uri = "note:///alpha";
    for sdk in Sdk::ALL {
        let steps = [
            json!({"do": "subscribe", "uri": uri}),
            json!({"do": "call_tool", "name": "touch", "arguments": { "uri": uri }}),
            json!({"do": "wait_notification", "method": UPDATED, "params": { "uri": uri }}),
        ];
        let report = sdk.begin_answering("x", Over::Program(&[&program]), &steps).report().await;
        assert_eq!(report.step(2)["ok"], true, "{sdk:?}: {}", report.step(2));
    }
}
