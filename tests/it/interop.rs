//! Programs with the SDKs of both eras on both ends and the gateway between them. `interop_table.rs` lists the pairs.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::Gateway;
use crate::interop_features::{Era, FEATURES, Verdict, Verdicts};
use crate::interop_player::{HttpServer, Over};
use crate::interop_table::{PAIRS, Pair, Transport};

/// The number of pairs that run in parallel.
const AT_ONCE: usize = 2;

/// Returns a configuration with the backend. A legacy backend has a second entry for features that need a connection
/// per client.
fn config(pair: &Pair, entry: &Value) -> Value {
    let (era, _) = pair.server;
    let with = |members: Value| {
        let mut entry = entry.clone();
        let object = entry.as_object_mut().expect("an object");
        object.insert("protocol".to_owned(), json!(era.name()));
        object.extend(members.as_object().expect("an object").clone());
        entry
    };
    let servers = match era {
        Era::Modern => json!({ "all": with(json!({})) }),
        Era::Legacy => json!({
            "all": with(json!({"tools": {"deny": ["list_my_roots"]}})),
            "own": with(json!({
                "session": "per-client",
                "tools": {"allow": ["list_my_roots"]}, "prompts": {"allow": []}, "resources": {"allow": []},
            })),
        }),
    };
    json!({"namespacing": "none", "mcpServers": servers})
}

async fn play(pair: &Pair, mark: &str) -> (Verdicts, Vec<String>) {
    let server = match pair.over {
        Transport::Http => Some(HttpServer::start(pair.server.1).await),
        Transport::Stdio => None,
    };
    let entry = match &server {
        Some(server) => json!({ "url": server.url() }),
        None => pair.server.1.stdio_entry(),
    };
    let gateway = Gateway::start(config(pair, &entry)).await;
    // A client receives the capabilities in its handshake, and most clients do not check them again. The tools must
    // therefore be ready before.
    let looking = gateway.client().await;
    for tool in ["add", "list_my_roots"] {
        looking.await_tool(tool).await;
    }
    let (era, client) = pair.client;
    let verdicts = client.play(era, Over::Http(&gateway.url()), mark).await;
    (verdicts, gateway.log())
}

/// Returns the features that fail. Features that an SDK does not support are skipped.
fn broken(pair: &Pair, verdicts: &Verdicts) -> Vec<String> {
    let tried = FEATURES.into_iter().filter(|feature| pair.lacks(feature).is_none());
    let failed = tried.filter(|feature| verdicts[feature] != Verdict::Works);
    failed.map(|feature| format!("{feature}: {pair:?}: {:?}", verdicts[feature])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_feature_works_between_clients_and_servers_of_either_era() {
    let mut playing = JoinSet::new();
    let mut problems = Vec::new();
    for (number, pair) in PAIRS.into_iter().enumerate() {
        if playing.len() == AT_ONCE {
            problems.extend(playing.join_next().await.expect("one plays").expect("no panic"));
        }
        playing.spawn(async move {
            let (verdicts, log) = play(&pair, &format!("mark{number}")).await;
            let broken = broken(&pair, &verdicts);
            if !broken.is_empty() {
                eprintln!("{pair:?}:\n{}", log.join("\n"));
            }
            broken
        });
    }
    problems.extend(playing.join_all().await.into_iter().flatten());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
