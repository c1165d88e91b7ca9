//! `goblin status`: its output, its end, and its behaviour across a restart of the gateway.
//!
//! The JSON output is the response of the API, byte for byte.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::harness::{Gateway, TIMEOUT, eventually, fixture_server, signal};
use crate::home::{Home, Ran};
use crate::raw_server::{RawServer, response};
use crate::terminal::Terminal;

fn three_servers() -> Value {
    json!({ "mcpServers": {
        "good": fixture_server(&[]),
        "bad": { "command": "no-such-program" },
        "off": { "command": "no-such-program", "enabled": false },
    } })
}

async fn raw_status(gateway: &Gateway) -> String {
    get_admin(&Client::new(gateway.address), "/api/status").await.body
}

/// Waits until this server has this state.
async fn await_state(gateway: &Gateway, id: &str, state: &str) {
    eventually(&format!("{id} is {state}"), || async {
        let status: Value = serde_json::from_str(&raw_status(gateway).await).expect("JSON");
        let mut servers = status["servers"].as_array().expect("a list").iter();
        servers.any(|server| server["id"] == id && server["state"] == state).then_some(())
    })
    .await;
}

/// Returns the cells of the row that begins with this id, in the table with this column.
fn cells(text: &str, column: &str, id: &str) -> Vec<String> {
    let table = text.lines().skip_while(|line| !(line.starts_with("SERVER ") && line.contains(column)));
    let row = table.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    row.take_while(|row| !row.is_empty())
        .find(|row| row[0] == id)
        .unwrap_or_else(|| panic!("{id} below {column}:\n{text}"))
}

#[tokio::test]
async fn servers_are_shown_with_their_state_and_the_cause_of_a_failure() {
    let home = Home::new(&three_servers());
    let (gateway, client) = home.gateway("good_echo").await;
    client.call("good_echo", json!({ "a": 1 })).await;
    await_state(&gateway, "bad", "failed").await;
    let ran = home.run(&["status"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let text = ran.text();
    let pid = gateway.child.id().expect("the process runs");
    assert!(text.starts_with(&format!("goblin {} is degraded: 1 failed, up ", env!("CARGO_PKG_VERSION"))), "{text}");
    for fragment in [
        format!("pid {pid}\n"),
        format!("address        {}\n", gateway.url()),
        format!("configuration  {}\n", home.config()),
        "servers        1 of 2 ready, 1 failed, 1 disabled\n".to_owned(),
        "clients        1 session, 0 streams, 0 open requests\n".to_owned(),
        "failed: bad: its command cannot be started: command \"no-such-program\" not found (is it installed and on PATH? ".to_owned(),
    ] {
        assert!(text.contains(&fragment), "{fragment}:\n{text}");
    }
    let good = cells(text, "STATE", "good");
    let after_latency: Vec<_> = good.iter().rev().take(4).rev().map(String::as_str).collect();
    assert_eq!((good[1].as_str(), after_latency), ("ready", vec!["1", "0", "0", "0"]), "{text}");
    assert_eq!(cells(text, "STATE", "bad")[1], "failed");
    assert_eq!(cells(text, "STATE", "off"), ["off", "disabled"]);
    assert_eq!(cells(text, "ERA", "good")[1..3], ["legacy", "2025-11-25"], "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn status_on_a_terminal_is_coloured_and_fits_80_columns() {
    let home = Home::new(&three_servers());
    let (gateway, _client) = home.gateway("good_echo").await;
    await_state(&gateway, "bad", "failed").await;
    let mut command = home.goblin(&["status"]);
    command.env_remove("NO_COLOR");
    let terminal = Terminal::of(&mut command).of_width(80);
    assert_eq!(command.status().await.expect("the command runs").code(), Some(1));
    let shown = terminal.await_text("failed\u{1b}[0m: bad").await;
    assert!(shown.contains("\u{1b}[32mready "), "{shown:?}");
    let tables =
        shown.lines().skip_while(|line| !line.starts_with("SERVER")).take_while(|line| !line.contains(": bad"));
    for line in tables {
        let plain: String = line.split('\u{1b}').enumerate().map(|(at, part)| strip(at, part)).collect();
        assert!(plain.trim_end().chars().count() <= 80, "{plain}");
    }
}

/// Returns a part of a line without the rest of the colour sequence at its start.
fn strip(at: usize, part: &str) -> &str {
    if at == 0 { part } else { part.split_once('m').map_or(part, |(_, rest)| rest) }
}

#[tokio::test]
async fn json_output_equals_the_response_of_the_api() {
    let home = Home::new(&json!({
        "gateway": { "token": "s3cret-0123456789" }, "admin": { "token": "0123456789abcdef" }, "mcpServers": {}
    }));
    let command = home.goblin(&["serve", "--port", "0", "--config", home.config()]);
    let gateway = Gateway::of(command).await;
    let token = home.scratch.write("token", "0123456789abcdef\n");
    let token = token.to_str().expect("text");
    let url = gateway.url();
    for arguments in [&["status", "--json"][..], &["status", "--json", "--url", &url, "--token-file", token]] {
        // The values change between two requests, so it may take several attempts until both match.
        eventually("both show the same", || async {
            let raw = raw_status(&gateway).await;
            let Ran { code, stdout, stderr } = home.run(arguments).await;
            assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
            let text = String::from_utf8(stdout).expect("text");
            let line = text.strip_suffix('\n').expect("one line");
            let without_time = |text: &str| {
                let changing = ["uptimeSeconds", "residentBytes", "openDescriptors"];
                let parts = text.split(',').filter(|part| !changing.iter().any(|name| part.contains(name)));
                parts.collect::<Vec<_>>().join(",")
            };
            (without_time(line) == without_time(&raw)).then_some(())
        })
        .await;
    }
    let found = home.run(&["status", "--url", &url]).await;
    assert_eq!(found.code, Some(0), "the runtime directory has the token: {found:?}");
    let token = home.scratch.write("token", "s3cret\n");
    let rejected = home.run(&["status", "--url", &url, "--token-file", token.to_str().expect("text")]).await;
    assert_eq!(rejected.code, Some(3), "{rejected:?}");
    assert!(rejected.stderr.contains("GOBLIN_ADMIN_TOKEN"), "{rejected:?}");
}

#[tokio::test]
async fn exit_codes_report_the_state_of_the_gateway() {
    let home = Home::new(&json!({ "mcpServers": { "off": { "command": "no-such-program", "enabled": false } } }));
    let check = async |arguments: &[&str], code: i32, fragment: &str| {
        let ran = home.run(arguments).await;
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(fragment) || ran.text().contains(fragment), "{fragment}: {ran:?}");
    };
    check(&["status"], 3, "no gateway is running on this machine; start one (goblin serve)").await;
    check(&["status", "--watch"], 3, "no gateway is running").await;
    let unreachable = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    check(&["status", "--url", &format!("http://{unreachable}")], 3, "error: ").await;
    check(&["status", "--watch", "0"], 2, "--watch").await;
    check(&["status", "--token-file", "x"], 2, "--url").await;
    check(&["status", "--url", "http://h", "--token-file", "/no/such"], 2, "/no/such").await;
    let command = home.goblin(&["serve", "--port", "0", "--config", home.config()]);
    let gateway = Gateway::of(command).await;
    check(&["status"], 0, "0 of 0 ready, 1 disabled").await;
    check(&["status", "-c", home.config()], 0, "0 of 0 ready, 1 disabled").await;
    let other = home.scratch.write("other.json", "{\"mcpServers\": {}}").display().to_string();
    check(&["status", "-c", &other], 3, &format!("no gateway runs with {other}; start one")).await;
    std::fs::write(&home.config, "{\"mcpServers\": 1}").expect("the file can be written");
    signal(gateway.child.id().expect("the process runs"), "HUP");
    eventually("the file is rejected", || async { raw_status(&gateway).await.contains("\"problem\"").then_some(()) })
        .await;
    check(&["status"], 1, "rejected       ").await;
    check(&["status", "--url", &gateway.url()], 1, "mcpServers").await;
}

#[tokio::test]
async fn watch_continues_with_the_next_gateway_and_ends_at_a_signal() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let serve = || home.goblin(&["serve", "--port", "0", "--config", home.config()]);
    let mut first = Gateway::of(serve()).await;
    let mut command = home.goblin(&["status", "--watch", "1", "--json"]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("goblin starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("the stream is piped")).lines();
    let mut warnings = BufReader::new(watching.stderr.take().expect("the stream is piped")).lines();
    let mut await_pid = async |pid: u32| loop {
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("in time").expect("text");
        let status: Value = serde_json::from_str(&line.expect("the command continues")).expect("JSON");
        if status["pid"] == pid {
            break;
        }
    };
    await_pid(first.child.id().expect("the process runs")).await;
    first.terminate().await;
    let warning = tokio::time::timeout(TIMEOUT, warnings.next_line()).await.expect("in time").expect("text");
    let warning = warning.expect("a warning");
    assert!(warning.contains("no longer running; trying again every 1 s"), "{warning}");
    let second = Gateway::of(serve()).await;
    await_pid(second.child.id().expect("the process runs")).await;
    signal(watching.id().expect("the process runs"), "INT");
    let status =
        tokio::time::timeout(TIMEOUT, watching.wait()).await.expect("the process ends").expect("the command ran");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn watch_on_a_terminal_redraws_in_place() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let mut gateway = Gateway::of(home.goblin(&["serve", "--port", "0", "--config", home.config()])).await;
    let mut command = home.goblin(&["status", "--watch", "1"]);
    let terminal = Terminal::of(&mut command).of_width(80);
    let mut watching = command.spawn().expect("goblin starts");
    terminal.await_text("\u{1b}[2J\u{1b}[Hgoblin ").await;
    terminal.await_text("\u{1b}[J\u{1b}[Hgoblin ").await;
    gateway.terminate().await;
    terminal.await_text("trying again every 1 s").await;
    signal(watching.id().expect("the process runs"), "INT");
    let status =
        tokio::time::timeout(TIMEOUT, watching.wait()).await.expect("the process ends").expect("the command ran");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn json_output_passes_the_response_byte_for_byte() {
    const ODD: &str = r#"{"version" : "9.9.9",  "later": [1.50, "\u0041"]}"#;
    let server = RawServer::rejecting(|_| Some(response("200 OK", "", ODD)), |_| Vec::new()).await;
    let home = Home::new(&json!({ "mcpServers": {} }));
    let url = format!("http://{}/mcp", server.address);
    let ran = home.run(&["status", "--json", "--url", &url]).await;
    assert_eq!((ran.code, ran.text()), (Some(0), format!("{ODD}\n").as_str()), "{ran:?}");
}

#[tokio::test]
async fn sub15_the_shell_lists_all_subscriptions_or_those_of_one_uri() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&[]) } }));
    let (gateway, _) = home.gateway("a_touch").await;
    let none = home.run(&["subscriptions"]).await;
    assert_eq!((none.code, none.text()), (Some(0), "0 subscriptions of 0 clients\n"), "{none:?}");
    let peer = Client::new(gateway.address).listening(json!({})).await;
    for uri in ["a+note:///alpha", "a+note:///beta"] {
        peer.subscribe(uri).await;
    }
    peer.touch("note:///alpha", 1).await;
    peer.updated().await;
    let all = home.run(&["subscriptions"]).await;
    assert!(all.text().starts_with("2 subscriptions of 1 client\n\nURI "), "{all:?}");
    let row = |text: &str, uri: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(uri)).unwrap_or_else(|| panic!("{uri}:\n{text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    let alpha = row(all.text(), "a+note:///alpha");
    assert_eq!(alpha[1], "a", "{alpha:?}");
    assert_eq!(alpha[alpha.len() - 4..alpha.len() - 1], ["subscribed", "1", "0"], "{alpha:?}");
    let one = home.run(&["subscriptions", "a+note:///beta"]).await;
    assert!(one.text().starts_with("1 subscription of 1 client\n"), "{one:?}");
    row(one.text(), "a+note:///beta");
    let json = home.run(&["subscriptions", "a+note:///beta", "--json"]).await.json();
    assert_eq!((&json["total"], &json["subscriptions"][0]["uri"]), (&json!(1), &json!("a+note:///beta")), "{json}");
    drop(gateway);
    let after_stop = home.run(&["subscriptions"]).await;
    assert_eq!(after_stop.code, Some(3), "{after_stop:?}");
}
