//! The record that a running gateway writes for other commands.
//!
//! It exists as long as the gateway runs. The next reader removes the record of a killed gateway.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Gateway, Scratch, goblin};

fn records(home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home.join("goblin")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn record(home: &Path) -> Value {
    let files = records(home);
    let file = files.iter().find(|file| file.extension().is_some_and(|is| is == "json")).expect("a record");
    serde_json::from_str(&std::fs::read_to_string(file).expect("text")).expect("JSON")
}

async fn serve(home: &Path, config: &Value) -> Gateway {
    let path = home.join("goblin.json");
    std::fs::write(&path, config.to_string()).expect("room");
    let mut command = goblin(home);
    command.args(["serve", "--port", "0", "--config"]).arg(path);
    Gateway::of(command).await
}

#[tokio::test]
async fn a_gateway_keeps_a_private_runtime_record_while_it_runs() {
    let scratch = Scratch::new();
    let config = json!({ "gateway": { "token": "s3cret-token-0123" }, "mcpServers": {} });
    let mut gateway = serve(scratch.path(), &config).await;
    let record = record(scratch.path());
    assert_eq!(record["url"], gateway.url());
    assert_eq!(record["pid"], gateway.child.id().expect("the process runs"));
    assert_eq!(record["version"], env!("CARGO_PKG_VERSION"));
    let config = scratch.path().canonicalize().expect("a path").join("goblin.json");
    assert_eq!(record["config"], config.to_str().expect("text"));
    assert!(record["directory"].is_null() && record["digest"].is_string() && record["started"].is_u64(), "{record}");
    assert!(!record.to_string().contains("s3cret-token-0123"), "{record}");
    let token = std::fs::read_to_string(record["tokenFile"].as_str().expect("a path")).expect("a token");
    assert_eq!(token, "s3cret-token-0123");
    for file in records(scratch.path()) {
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    assert_eq!(gateway.terminate().await.code(), Some(0));
    assert_eq!(records(scratch.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn the_next_reader_removes_the_record_of_a_killed_gateway() {
    let scratch = Scratch::new();
    let mut gateway = serve(scratch.path(), &json!({ "mcpServers": {} })).await;
    gateway.child.kill().await.expect("the process can be killed");
    assert_eq!(records(scratch.path()).len(), 2, "the record and the admin token");
    let (mut client, config) = (goblin(scratch.path()), scratch.path().join("goblin.json"));
    client
        .args(["stdio", "--config"])
        .arg(config)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    assert!(client.status().await.expect("the command runs").success());
    assert_eq!(records(scratch.path()), Vec::<PathBuf>::new());
}
