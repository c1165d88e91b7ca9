//! The Inspector's command line against a gateway, over HTTP and stdio.
//!
//! It is an independent client, so it finds misreadings of the protocol that the gateway and the harness share.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{GOBLIN, Gateway, Scratch, TIMEOUT, fixture_server};
use crate::sdk::tool;
use crate::support::path_text;

/// Runs `inspector --cli ARGUMENTS` and parses the JSON output.
async fn inspect(arguments: &[&str]) -> Value {
    let scratch = Scratch::new();
    let program = tool("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js");
    let mut command = Command::new("node");
    command.arg(program).arg("--cli").args(arguments).env_remove("GOBLIN_CONFIG");
    // Both the Inspector and Goblin keep files in the home directory.
    command.env("HOME", scratch.path()).env_remove("XDG_RUNTIME_DIR").current_dir(scratch.path());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await.expect("the process ends").expect("node runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}{stderr}"))
}

fn names<'a>(listed: &'a Value, list: &str, key: &str) -> Vec<&'a str> {
    let entries = listed[list].as_array().unwrap_or_else(|| panic!("no {list} in {listed}"));
    entries.iter().filter_map(|entry| entry[key].as_str()).collect()
}

#[tokio::test]
async fn the_inspector_lists_and_calls_over_http() {
    let gateway = Gateway::with_servers(json!({ "server1": fixture_server(&[]) })).await;
    gateway.client_seeing("server1_echo").await;
    let url = gateway.url();
    let tools = inspect(&[&url, "--method", "tools/list"]).await;
    assert!(names(&tools, "tools", "name").contains(&"server1_echo"), "{tools}");
    let call = [&url, "--method", "tools/call", "--tool-name", "server1_echo", "--tool-arg", "word=hello"];
    let answer = inspect(&call).await;
    assert_eq!(answer["content"][0]["text"], r#"{"word":"hello"}"#, "{answer}");
    let prompts = inspect(&[&url, "--method", "prompts/list"]).await;
    assert!(!names(&prompts, "prompts", "name").is_empty(), "{prompts}");
}

#[tokio::test]
async fn the_inspector_reads_files_of_a_gateway_on_stdio() {
    let scratch = Scratch::new();
    scratch.write("notes.txt", "remember the milk\n");
    let config = json!({ "mcpServers": { "files": { "type": "files", "root": "." } } });
    let config = scratch.write("goblin.json", &config.to_string());
    // The Inspector would interpret `--config` as its own option.
    let variable = format!("GOBLIN_CONFIG={}", path_text(&config));
    let goblin = ["-e", &variable, GOBLIN, "stdio", "--standalone"];
    let inspect_with = async |more: &[&str]| inspect(&[&goblin[..], more].concat()).await;
    let listed = inspect_with(&["--method", "resources/list"]).await;
    let uris = names(&listed, "resources", "uri");
    let notes = uris.iter().find(|uri| uri.ends_with("/notes.txt")).unwrap_or_else(|| panic!("{uris:?}"));
    let read = inspect_with(&["--method", "resources/read", "--uri", notes]).await;
    assert_eq!(read["contents"][0]["text"], "remember the milk\n", "{read}");
}
