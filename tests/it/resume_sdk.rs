//! Clients of the official SDKs that lose their connection during a call and resume.
//!
//! A proxy cuts the connection at a defined event, and the call must still succeed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Gateway, fixture_server};
use crate::sdk::Sdk;

/// The first event of the first stream of a call.
const FIRST_EVENT: &[u8] = b"id: 1-";

/// A proxy that cuts one connection: the first with a begun stream of a call.
struct Scissors {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    has_cut: AtomicBool,
    resumed: AtomicUsize,
}

impl Scissors {
    async fn before(target: SocketAddr) -> Scissors {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(target).await.expect("the gateway listens");
                let ((from_client, to_client), (from_gateway, to_gateway)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(from_client, to_gateway, Arc::clone(&shared)));
                tokio::spawn(pass(from_gateway, to_client, Arc::clone(&shared)));
            }
        });
        Scissors { address, state }
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: Arc<State>) {
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        let bytes = &chunk[..length];
        if to.write_all(bytes).await.is_err() {
            return;
        }
        let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text));
        if has(b"last-event-id: 1-") {
            state.resumed.fetch_add(1, Ordering::Relaxed);
        }
        if has(FIRST_EVENT) && !state.has_cut.swap(true, Ordering::Relaxed) {
            return;
        }
    }
}

async fn check(sdk: Sdk) {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let watcher = gateway.client_seeing("a_progress").await;
    let scissors = Scissors::before(gateway.address).await;
    let steps = [
        json!({"do": "call_tool", "name": "a_progress", "arguments": {"steps": 4, "delayMs": 200}, "progress": true}),
        json!({"do": "ping"}),
    ];
    let report = sdk.begin_over_http(&format!("http://{}/mcp", scissors.address), &steps).report().await;
    assert!(scissors.state.has_cut.load(Ordering::Relaxed), "{sdk:?}: no stream had begun");
    let call = report.step(0);
    assert_eq!((&call["ok"], call["result"]["content"].is_array()), (&json!(true), true), "{sdk:?}: {call}");
    assert_eq!(report.step(1)["ok"], true, "{sdk:?}");
    assert!(scissors.state.resumed.load(Ordering::Relaxed) > 0, "{sdk:?}: the stream was not resumed");
    assert_eq!(
        watcher.call_text("a_call_count", json!({})).await,
        "2",
        "{sdk:?}: the backend received one call, and this one"
    );
}

#[tokio::test]
async fn sess2_typescript_clients_resume_a_call() {
    for sdk in [Sdk::TypeScript1, Sdk::TypeScript2] {
        check(sdk).await;
    }
}

#[tokio::test]
async fn sess2_python_clients_resume_a_call() {
    for sdk in [Sdk::Python1, Sdk::Python2] {
        check(sdk).await;
    }
}
