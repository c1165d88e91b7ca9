//! A client that vanishes without closing its connection (a pulled cable, F7): its machine acknowledges nothing any
//! more.
//!
//! The gateway must notice it, and must not confuse it with a client that is only silent.
#![cfg(target_os = "linux")]

use serde_json::json;
use socket2::{SockFilter, SockRef};

use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_client::RawClient;
use crate::scrape::gauge;

/// Drops all packets to this client before its TCP stack sees them, which looks like a pulled cable to the gateway. The
/// connection is not closed or reset as long as the client is held. All data of the client must be acknowledged first,
/// because a retransmission would be a sign of life.
async fn drop_packets(client: &RawClient) {
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
    let pid = gateway.child.id().expect("the process runs");
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count()
}

/// The test takes as long as SESS-2 specifies: a keep-alive interval, and then its timeout.
#[tokio::test]
async fn sess2_a_vanished_client_is_disconnected_and_a_silent_one_stays_connected() {
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
        // This client receives nothing before its response, which never comes.
        RawClient::streamable(address).await.begin_call("application/json", "a_hang", json!({})).await,
    ];
    eventually("the call is open", || async {
        (gauge(&watcher, "goblin_requests_in_flight").await == 1).then_some(())
    })
    .await;
    assert_eq!(gauge(&watcher, "goblin_streams_active").await, 3);
    assert_eq!(descriptors(&gateway), before.0 + vanished.len());
    for client in &vanished {
        drop_packets(client).await;
    }
    eventually("the connections of those that vanished are closed", || async {
        let streams = gauge(&watcher, "goblin_streams_active").await;
        (streams == 1 && descriptors(&gateway) == before.0).then_some(())
    })
    .await;
    // Over HTTP+SSE the stream is the session. The other clients may return, so a lost connection cancels no call.
    assert_eq!(gauge(&watcher, "goblin_sessions_active").await, before.1 + 2);
    assert_eq!(gauge(&watcher, "goblin_requests_in_flight").await, 1);
    silent.delete().await;
    drop(vanished);
}
