//! A client that vanishes without a word (a pulled cable, F7): its machine acknowledges nothing any more.
#![cfg(target_os = "linux")]

use serde_json::json;
use socket2::{SockFilter, SockRef};

use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_client::RawClient;
use crate::support::gauge;

/// Takes away all that comes to this client before its TCP sees it: to the gateway the cable is pulled. Nothing is closed,
/// neither in order nor by a reset, for as long as the client is held. What it sent must have been acknowledged: else its
/// system would send that again, which is a sign of life.
async fn vanish(client: &RawClient) {
    let port = client.socket.local_addr().expect("an address").port();
    let port = format!(":{port:04X}");
    eventually("all that the client sent is acknowledged", || async {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
        let row =
            table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row[1].ends_with(&port));
        row.expect("the connection")[4].starts_with("00000000:").then_some(())
    })
    .await;
    let nothing = SockFilter::new(6, 0, 0, 0);
    SockRef::from(&client.socket).attach_filter(&[nothing]).expect("a filter needs no privilege");
}

fn descriptors(gateway: &Gateway) -> usize {
    let pid = gateway.child.id().expect("it runs");
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count()
}

/// It takes as long as it says in SESS-2: a keep-alive, and then the patience for it.
#[tokio::test]
async fn sess2_a_client_that_vanished_is_noticed_and_one_that_is_silent_is_not_taken_for_it() {
    let mut server = fixture_server(&[]);
    server["timeout"] = json!("10m");
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let watcher = gateway.client_seeing("a_hang").await;
    let address = gateway.address;
    let silent = RawClient::streamable(address).await.listen().await;
    let before = (descriptors(&gateway), gauge(&watcher, "goblin_sessions_active").await);
    let vanished = [
        RawClient::sse(address).await,
        RawClient::streamable(address).await.listen().await,
        // To this one nothing is written before its answer, which does not come.
        RawClient::streamable(address).await.begin_call("application/json", "a_hang", json!({})).await,
    ];
    eventually("the call is open", || async {
        (gauge(&watcher, "goblin_requests_in_flight").await == 1).then_some(())
    })
    .await;
    assert_eq!(gauge(&watcher, "goblin_streams_active").await, 3);
    assert_eq!(descriptors(&gateway), before.0 + vanished.len());
    for client in &vanished {
        vanish(client).await;
    }
    eventually("the connections of those that vanished are closed", || async {
        let streams = gauge(&watcher, "goblin_streams_active").await;
        (streams == 1 && descriptors(&gateway) == before.0).then_some(())
    })
    .await;
    // Over HTTP+SSE the stream is the session; the others may come back. A lost connection cancels no call.
    assert_eq!(gauge(&watcher, "goblin_sessions_active").await, before.1 + 2);
    assert_eq!(gauge(&watcher, "goblin_requests_in_flight").await, 1);
    silent.delete().await;
    drop(vanished);
}
