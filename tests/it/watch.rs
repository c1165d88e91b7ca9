//! `goblin watch`: its output, its commands, and its end.
//!
//! It survives a restart of the gateway, and reports an update for everything it may have missed.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, fixture, fixture_server, signal};
use crate::home::Home;
use crate::raw_gateway::RawGateway;

const ALPHA: &str = "a+note:///alpha";

/// Returns a home with one server.
fn home(server: &Value) -> Home {
    Home::new(&json!({ "mcpServers": { "a": server } }))
}

/// Starts a watch and waits until it has begun.
async fn watch(home: &Home, arguments: &[&str]) -> Watch {
    let watch = Watch::start(home.goblin(&[&["watch"], arguments].concat()));
    watch.await_error_line("goblin: watching ").await;
    watch
}

/// A running watch and its output.
struct Watch {
    child: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn start(mut command: Command) -> Watch {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("goblin starts");
        let stdout = gather(child.stdout.take().expect("stdout is piped"));
        let stderr = gather(child.stderr.take().expect("stderr is piped"));
        Watch { child, stdout, stderr }
    }

    fn printed(&self) -> Vec<String> {
        self.stdout.lock().expect("no test panics here").clone()
    }

    /// Waits for a line on stderr.
    async fn await_error_line(&self, text: &str) -> String {
        line_with(&self.stderr, text).await
    }

    /// Waits for a line on stdout.
    async fn await_output_line(&self, text: &str) -> String {
        line_with(&self.stdout, text).await
    }

    async fn end(&mut self) -> ExitStatus {
        tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .expect("the process ends")
            .expect("the exit status is known")
    }

    async fn interrupt(&mut self) -> ExitStatus {
        signal(self.child.id().expect("the process runs"), "INT");
        self.end().await
    }
}

fn gather(stream: impl AsyncRead + Unpin + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (gathered, mut lines) = (Arc::clone(&kept), BufReader::new(stream).lines());
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            gathered.lock().expect("no test panics here").push(line);
        }
    });
    kept
}

async fn line_with(lines: &Mutex<Vec<String>>, text: &str) -> String {
    eventually(&format!("{text:?} is written"), || async {
        lines.lock().expect("no test panics here").iter().find(|line| line.contains(text)).cloned()
    })
    .await
}

async fn touch(client: &Client, uri: &str) {
    client.call_text("a_touch", json!({ "uri": uri })).await;
}

#[tokio::test]
async fn watch_prints_updates_and_reports_rejected_resources() {
    let home = home(&fixture_server(&[]));
    let (gateway, client) = home.gateway("a_touch").await;
    let mut watch = watch(&home, &["note:///alpha", "note:///refused", "no:where"]).await;
    assert_eq!(watch.await_error_line("note:///refused").await, "error: note:///refused: subscription refused");
    assert!(watch.await_error_line("no:where").await.contains("not found"));
    assert!(watch.await_error_line("goblin: watching ").await.contains("1 resource"));
    touch(&client, "note:///alpha").await;
    let line = watch.await_output_line(ALPHA).await;
    let (time, uri) = line.split_once(' ').expect("a time and a URI");
    assert!(time.ends_with('Z') && time.contains('T') && uri == ALPHA, "{line}");
    assert_eq!(client.call_text("a_subscriptions", json!({})).await, r#"["note:///alpha"]"#);
    assert_eq!(watch.interrupt().await.code(), Some(0));
    let unsubscribed = || async { (client.call_text("a_subscriptions", json!({})).await == "[]").then_some(()) };
    eventually("the server receives the unsubscribe", unsubscribed).await;
    assert!(gateway.log().iter().any(|line| line.contains("session ended")), "its session did not end");
    assert_eq!(watch.printed(), [line]);
}

#[tokio::test]
async fn watch_without_any_subscription_fails_with_the_error_of_the_gateway() {
    let home = home(&fixture_server(&[]));
    let (_gateway, _client) = home.gateway("a_touch").await;
    for (arguments, text) in [
        (&["no:where"][..], "error: no:where: Resource not found"),
        (&["--min-interval", "2h", ALPHA], "dev.goblin/minIntervalMs must be"),
        (&["--batch", "61m", ALPHA], "dev.goblin/batchMs must be"),
    ] {
        let mut watch = Watch::start(home.goblin(&[&["watch"], arguments].concat()));
        watch.await_error_line(text).await;
        assert_eq!(watch.end().await.code(), Some(1), "{arguments:?}");
    }
}

#[tokio::test]
async fn watch_reports_a_missing_an_ambiguous_or_an_unreachable_gateway() {
    let home = home(&fixture_server(&[]));
    let mut no_gateway = Watch::start(home.goblin(&["watch", ALPHA]));
    no_gateway.await_error_line("error: no gateway is running on this machine").await;
    assert_eq!(no_gateway.end().await.code(), Some(1));
    let (first, _client) = home.gateway("a_touch").await;
    let (second, client) = home.gateway("a_touch").await;
    let mut either = Watch::start(home.goblin(&["watch", ALPHA]));
    either.await_error_line("2 gateways are running; choose one with --url URL").await;
    for gateway in [&first, &second] {
        either.await_error_line(&gateway.url()).await;
    }
    assert_eq!(either.end().await.code(), Some(1));
    let watch = watch(&home, &["--url", &second.url(), ALPHA]).await;
    touch(&client, "note:///alpha").await;
    watch.await_output_line(ALPHA).await;
    let mut unreachable = Watch::start(home.goblin(&["watch", "--url", "http://127.0.0.1:1/mcp", ALPHA]));
    unreachable.await_error_line("cannot connect to http://127.0.0.1:1").await;
    assert_eq!(unreachable.end().await.code(), Some(1));
}

#[tokio::test]
async fn json_output_has_the_params_token_for_token() {
    let home = home(&fixture_server(&[]));
    let (_gateway, client) = home.gateway("a_touch").await;
    let watch = watch(&home, &["--json", "a_note_alpha"]).await;
    touch(&client, "note:///alpha").await;
    let line = watch.await_output_line(ALPHA).await;
    let raw =
        r#""params":{"uri":"a+note:///alpha","version":1,"x-extra":{"odd":1.0},"_meta":{"dev.fixture/touched":1e0}}}"#;
    assert!(line.ends_with(raw), "{line}");
    let object: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&object["uri"], &object["server"], &object["deleted"]), (&json!(ALPHA), &json!("a"), &json!(false)));
    assert!(object["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
}

#[tokio::test]
async fn commands_run_one_at_a_time_for_the_newest_update_of_each_resource() {
    let home = home(&fixture_server(&[]));
    let (_gateway, client) = home.gateway("a_touch").await;
    let command = "echo \"$1 $GOBLIN_URI\" >> ran; while [ ! -e go ]; do sleep 0.01; done; echo chatter; exit 3";
    let mut watch = watch(&home, &["--json", "--exec", command, ALPHA, "a+note:///beta"]).await;
    let ran = || std::fs::read_to_string(home.scratch.path().join("ran")).unwrap_or_default();
    let has_run = |times: usize| {
        eventually("the command has run", move || async move { (ran().lines().count() == times).then_some(()) })
    };
    touch(&client, "note:///alpha").await;
    has_run(1).await;
    for _ in 0..5 {
        touch(&client, "note:///alpha").await;
    }
    // All updates have arrived, and are merged into one.
    watch.await_output_line(r#""version":6"#).await;
    touch(&client, "note:///beta").await;
    watch.await_output_line("note:///beta").await;
    home.scratch.write("go", "");
    watch.await_error_line("a+note:///beta: the command failed: exit code 3").await;
    let line = |uri: &str| format!("{uri} {uri}\n");
    assert_eq!(ran(), line(ALPHA) + &line(ALPHA) + &line("a+note:///beta"));
    watch.await_error_line("chatter").await;
    assert_eq!(watch.interrupt().await.code(), Some(0));
    assert!(watch.printed().iter().all(|line| line.starts_with('{')), "{:?}", watch.printed());
}

#[tokio::test]
async fn watch_survives_a_restart_of_the_gateway() {
    let home = home(&fixture_server(&[]));
    let (mut gateway, client) = home.gateway("a_touch").await;
    let mut watch = watch(&home, &["--json", ALPHA]).await;
    touch(&client, "note:///alpha").await;
    watch.await_output_line(r#""version":1"#).await;
    gateway.child.kill().await.expect("the process can be killed");
    let (_again, client) = home.gateway("a_touch").await;
    // An update may have been missed.
    watch.await_output_line(r#""params":{"uri":"a+note:///alpha"}"#).await;
    for _ in 0..2 {
        touch(&client, "note:///alpha").await;
    }
    watch.await_output_line(r#""version":2"#).await;
    assert_eq!(watch.interrupt().await.code(), Some(0));
}

#[tokio::test]
async fn a_server_that_is_ready_late_after_a_restart_is_watched_again() {
    let gate = Scratch::new();
    let wait = format!("while [ ! -e {} ]; do sleep 0.01; done; exec {}", gate.path().join("go").display(), fixture());
    // A cached listing would contain the resource, so that the gateway would accept the subscription at once.
    let servers = json!({ "a": { "command": "sh", "args": ["-c", wait] } });
    let home = Home::new(&json!({ "mcpServers": servers, "gateway": { "listingCache": false } }));
    let go = gate.write("go", "");
    let (mut gateway, _client) = home.gateway("a_touch").await;
    let watch = watch(&home, &["--json", "--log-level", "info", ALPHA]).await;
    gateway.child.kill().await.expect("the process can be killed");
    std::fs::remove_file(go).expect("the file exists");
    let again = Gateway::of(home.serve(0)).await;
    watch.await_error_line("the gateway rejected a subscription after its restart").await;
    gate.write("go", "");
    let client = again.client_seeing("a_touch").await;
    watch.await_output_line(r#""params":{"uri":"a+note:///alpha"}"#).await;
    touch(&client, "note:///alpha").await;
    watch.await_output_line(r#""version":1"#).await;
}

#[tokio::test]
async fn watch_with_a_configuration_starts_its_own_gateway() {
    let server = HttpFixture::start(&[]).await;
    let home = home(&server.server());
    let config = home.config.display().to_string();
    let mut watch = watch(&home, &["--config", &config, ALPHA]).await;
    // This gateway is another client of the same server.
    let (_gateway, client) = home.gateway("a_touch").await;
    touch(&client, "note:///alpha").await;
    watch.await_output_line(ALPHA).await;
    assert_eq!(watch.interrupt().await.code(), Some(0));
    let broken = home.scratch.write("broken.json", "{").display().to_string();
    let mut rejected = Watch::start(home.goblin(&["watch", "--config", &broken, ALPHA]));
    rejected.await_error_line("broken.json").await;
    assert_eq!(rejected.end().await.code(), Some(2));
}

#[tokio::test]
async fn watch_subscribes_with_patterns_and_fields_and_prints_deletions() {
    let (home, mut gateway) = (home(&fixture_server(&[])), RawGateway::start().await);
    let (logs, odd) = ("a+file:///logs/**/*.log", "file:///app/[slug]");
    let arguments = ["watch", "--url", &gateway.url, "--json", "--fields", "size,a.b", logs, odd, "a+db:///{table}"];
    let mut watch = Watch::start(home.goblin(&arguments));
    let (initialize, mut stream) = gateway.begin("one").await;
    assert!(initialize.contains(r#""capabilities":{"experimental":{"dev.goblin/subscriptions":{}}}"#), "{initialize}");
    // A listed URI is not a pattern, on any page of the list.
    let (first, second) = (gateway.request("resources/list").await, "p2");
    first.reply(json!({"resources": [{"uri": "a+file:///x"}], "nextCursor": second})).await;
    let page = gateway.request("resources/list").await;
    assert_eq!(page.message["params"], json!({"cursor": second}));
    page.reply(json!({"resources": [{"uri": "a+file:///app/[slug]"}]})).await;
    for (uri, pattern) in [(logs, Some("glob")), (odd, None), ("a+db:///{table}", Some("template"))] {
        let subscribe = gateway.take(uri, |arrival| arrival.message["params"]["uri"] == uri).await;
        let mut expected = json!({"dev.goblin/fields": ["size", "a.b"]});
        if let Some(pattern) = pattern {
            expected["dev.goblin/pattern"] = pattern.into();
        }
        assert_eq!(subscribe.message["params"]["_meta"], expected, "{uri}");
        subscribe.reply(json!({"_meta": {"dev.goblin/uri": uri, "dev.goblin/server": "a"}})).await;
    }
    watch.await_error_line("goblin: watching 1 resource and 2 patterns at ").await;
    for (kind, deleted) in [("updated", false), ("deleted", true)] {
        let uri = format!("a+file:///logs/{kind}.log");
        let method = format!("notifications/resources/{kind}");
        stream.send_message(&json!({"jsonrpc": "2.0", "method": method, "params": { "uri": uri }}).to_string()).await;
        let line: Value = serde_json::from_str(&watch.await_output_line(&uri).await).expect("JSON");
        assert_eq!((&line["server"], &line["deleted"]), (&json!("a"), &json!(deleted)), "{line}");
    }
    signal(watch.child.id().expect("the process runs"), "INT");
    gateway.take("the end of the session", |arrival| arrival.verb() == "DELETE").await.accept().await;
    assert_eq!(watch.end().await.code(), Some(0));
}

#[tokio::test]
async fn subx1_subx2_a_pattern_with_fields_is_watched_at_a_gateway() {
    let home = home(&fixture_server(&[]));
    let (_gateway, client) = home.gateway("a_touch").await;
    let watch = watch(&home, &["--json", "--fields", "version", "a+note:///al*"]).await;
    watch.await_error_line("watching 1 pattern at ").await;
    touch(&client, "note:///beta").await;
    touch(&client, "note:///alpha").await;
    assert!(watch.await_output_line(r#""version":1"#).await.contains(r#""uri":"a+note:///alpha","server":"a""#));
    // An update without a new value is not printed.
    for version in [1, 2] {
        let params = json!({"uri": "note:///alpha", "version": version, "x": "again"});
        client.call_text("a_notify", json!({"method": "notifications/resources/updated", "params": params})).await;
    }
    watch.await_output_line(r#""version":2"#).await;
    assert_eq!(watch.printed().len(), 2, "{:?}", watch.printed());
}

#[tokio::test]
async fn watch_ends_quietly_when_its_output_is_closed() {
    let home = home(&fixture_server(&[]));
    let (_gateway, client) = home.gateway("a_touch").await;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut child =
        home.goblin(&["watch", ALPHA]).stdout(writer).stderr(Stdio::piped()).spawn().expect("the process starts");
    drop(reader);
    let stderr = gather(child.stderr.take().expect("stderr is piped"));
    line_with(&stderr, "goblin: watching ").await;
    touch(&client, "note:///alpha").await;
    let ended =
        tokio::time::timeout(TIMEOUT, child.wait()).await.expect("the process ends").expect("the exit status is known");
    assert_eq!(ended.code(), Some(0));
    assert_eq!(stderr.lock().expect("no test panics here").len(), 1, "{stderr:?}");
}
