//! The metrics in a scrape.
//!
//! Every family is documented and every documented one exists. A removed server takes its series with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use goblin_client::connect::ProxyEnvironment;
use goblin_config::Config;
use goblin_config::file::ConfigOrigin;
use goblin_engine::app::App;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{GOBLIN, Gateway, Scratch, fixture_server, signal};
use crate::scrape::{scrape, scraped};
use crate::support::{await_arrivals, await_call, begin_call, path_text, pid_in};

/// Waits until each of these lines is in a scrape.
async fn all_scraped(client: &Client, lines: &[&str]) {
    for line in lines {
        scraped(client, line).await;
    }
}

#[tokio::test]
async fn met1_each_read_counts_with_server_mime_type_and_status() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    let read = async |uri: &str| client.request("resources/read", json!({ "uri": uri })).await;
    for (uri, succeeds) in [
        ("a+note:///alpha", true),
        ("a+note:///alpha", true),
        ("b+note:///alpha", true),
        ("a+note:///by-template", true),
        ("a+note:///missing", false),
        ("a+nobody:///has-it", false),
    ] {
        let answer = read(uri).await;
        assert_eq!(answer["error"].is_null(), succeeds, "{uri}: {answer}");
    }
    let reads = |server: &str, mime: &str, status: &str, count: u32| {
        format!(r#"mcp_resource_reads_total{{server_id="{server}",mime_type="{mime}",status="{status}"}} {count}"#)
    };
    let expected = [
        reads("a", "text/plain", "success", 2),
        reads("a", "unknown", "success", 1),
        reads("a", "unknown", "failure", 1),
        reads("b", "text/plain", "success", 1),
    ];
    all_scraped(&client, &expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let scraped_lines = scrape(&client).await;
    // A request that reached no server has no server label.
    assert_eq!(
        scraped_lines.iter().filter(|line| line.starts_with("mcp_resource_reads_total")).count(),
        expected.len()
    );
}

#[tokio::test]
async fn d7_calls_are_counted_by_server_method_and_outcome() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let mut server = fixture_server(&["--pid-file", path_text(&file)]);
    server["tools"] = json!({ "timeouts": { "hang": "200ms" } });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    for _ in 0..3 {
        client.call("a_echo", json!({ "x\"}\n": "y" })).await;
    }
    assert_eq!(client.try_call("a_hang", json!({})).await["error"]["data"]["code"], "TIMEOUT");
    assert!(!client.try_call("a_error", json!({})).await["error"].is_null());
    // A tool error counts as a response.
    assert_eq!(client.try_call("a_fail", json!({})).await["result"]["isError"], true);
    assert!(!client.request("prompts/get", json!({ "name": "a_nobody" })).await["error"].is_null());
    assert!(!client.request("no/such\"} 1\nmethod", json!({})).await["error"].is_null());
    let duration_count = |method: &str, outcome: &str, count: u32| {
        format!(r#"mcp_requests_total{{server_id="a",method="{method}",outcome="{outcome}"}} {count}"#)
    };
    let expected = [
        duration_count("tools/call", "ok", 4),
        duration_count("tools/call", "error", 1),
        duration_count("tools/call", "timeout", 1),
        duration_count("other", "error", 1),
    ];
    all_scraped(&client, &expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let scrape = scrape(&client).await;
    assert_eq!(scrape.iter().filter(|line| line.starts_with("mcp_requests_total")).count(), expected.len());
    assert!(
        scrape.iter().any(
            |line| *line == r#"mcp_request_duration_seconds_bucket{le="+Inf",server_id="a",method="tools/call"} 5"#
        )
    );
    assert!(
        scrape.iter().any(|line| *line == r#"mcp_request_duration_seconds_count{server_id="a",method="tools/call"} 5"#)
    );
    assert!(
        !scrape.iter().any(|line| line.contains("no/such") || line.contains("nobody")),
        "labels have no text of clients"
    );
}

#[tokio::test]
async fn met2_metrics_report_calls_sessions_subscriptions_entries_and_backends() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let servers =
        json!({ "a": fixture_server(&["--pid-file", path_text(&file)]), "bad": { "command": "no-such-program" } });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_hang").await;
    let watcher = gateway.client().await;
    let hanging = begin_call(&client, "a_hang", json!({}));
    await_arrivals(&watcher, "a", 1).await;
    let tools = client.tool_names().await.len();
    let entries = format!("goblin_catalog_entries{{kind=\"tool\"}} {tools}");
    all_scraped(
        &client,
        &[
            "goblin_requests_in_flight 1",
            "goblin_sessions_active 2",
            "mcp_resource_subscriptions_active 0",
            &entries,
            r#"goblin_backend_up{server_id="a"} 1"#,
            r#"goblin_backend_up{server_id="bad"} 0"#,
            r#"goblin_backend_restarts_total{server_id="a"} 0"#,
            r#"goblin_events_total{kind="backend_ready"} 1"#,
            r#"goblin_events_total{kind="session_opened"} 2"#,
        ],
    )
    .await;
    signal(pid_in(&file).await, "KILL");
    assert!(!crate::support::ended(hanging).await["error"].is_null());
    await_call(&client, "a_echo").await;
    all_scraped(&client, &["goblin_requests_in_flight 0", r#"goblin_backend_restarts_total{server_id="a"} 1"#]).await;
    // The call that hung, and those that came too early.
    let lost = r#"mcp_requests_total{server_id="a",method="tools/call",outcome="unavailable"}"#;
    assert_eq!(scrape(&client).await.iter().filter(|line| line.starts_with(lost)).count(), 1);
}

fn config(servers: Value) -> Config {
    let text = json!({ "mcpServers": servers }).to_string();
    let loaded = goblin_config::parse(&text, &ConfigOrigin::new("test", "/"), &|_| None);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).config
}

#[tokio::test]
async fn d7_removing_a_server_removes_its_series() {
    let both = config(json!({ "gone": fixture_server(&[]), "kept": fixture_server(&[]) }));
    let mut app = App::start(both, GOBLIN.into(), ProxyEnvironment::default(), Arc::default());
    app.readiness().wait_for(|readiness| readiness.is_ready()).await.expect("the process starts");
    app.reload(config(json!({ "kept": fixture_server(&[]) })));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut stopped = Some(stopped);
    let serving = tokio::spawn(app.serve_http(listener, async move || match stopped.take() {
        Some(stopped) => drop(stopped.await),
        None => std::future::pending().await,
    }));
    let client = Client::new(address);
    let scraped_lines = scrape(&client).await;
    assert!(scraped_lines.iter().any(|line| line.contains(r#"server_id="kept""#)), "{scraped_lines:?}");
    assert!(!scraped_lines.iter().any(|line| line.contains(r#"server_id="gone""#)), "{scraped_lines:?}");
    drop(stop);
    serving.await.expect("no panic").expect("the gateway stops without an error");
}

/// Returns the names of families in `# TYPE` lines.
fn families<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let named = lines.filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
    named.collect()
}

#[tokio::test]
async fn d7_the_metrics_reference_lists_exactly_the_existing_families() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let scraped_lines = scrape(&client).await;
    let scraped_lines = families(scraped_lines.iter().map(String::as_str));
    let page = include_str!("../../docs/reference/metrics.md");
    assert_eq!(families(page.lines()), scraped_lines, "the scrape in docs/reference/metrics.md");
    let table = page.split("## Families").nth(1).and_then(|rest| rest.split("\n\n`method`").next());
    let table = table.expect("docs/reference/metrics.md has the table of families");
    let rows: BTreeSet<_> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next()).collect();
    for family in &scraped_lines {
        let name = |suffix: &str| rows.contains(&*format!("{family}{suffix}"));
        assert!(name("") || name("_total") || name("_info"), "docs/reference/metrics.md has no row for {family}");
    }
    assert_eq!(rows.len(), scraped_lines.len(), "{rows:?} {scraped_lines:?}");
}

#[tokio::test]
async fn d7_the_example_dashboard_queries_only_existing_families() {
    let page = include_str!("../../docs/reference/metrics.md");
    let families = families(page.lines());
    let dashboard: Value = serde_json::from_str(include_str!("../../examples/grafana.json")).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array());
    let mut queried = BTreeSet::new();
    for expression in targets.flatten().map(|target| target["expr"].as_str().expect("an expression")) {
        let tokens = expression.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for name in tokens.filter(|token| ["goblin_", "mcp_", "process_"].iter().any(|it| token.starts_with(it))) {
            let family = ["_total", "_bucket"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            assert!(families.contains(family), "{family} of {expression} is no metric");
            queried.insert(family.to_owned());
        }
    }
    let unqueried: Vec<_> = families.difference(&queried).collect();
    assert_eq!(unqueried, ["goblin_build"], "each is shown, or marks a line in time");
}

/// Parses a scrape with the parser of the Prometheus project and prints the families with their samples.
const READER: &str = r#"
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps({f.name: [f.type, len(f.samples), f.documentation] for f in families}))
"#;

#[tokio::test]
async fn d7_the_prometheus_parser_accepts_a_scrape() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "odd \"one\"": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for _ in 0..3 {
        client.call("a_nonce", json!({"nonce": "x"})).await;
    }
    client.request("resources/read", json!({"uri": "a+note:///alpha"})).await;
    all_scraped(&client, &[r#"mcp_tool_calls_total{server_id="a",tool="nonce",outcome="ok"} 3"#]).await;
    let scrape = scrape(&client).await.join("\n") + "\n";
    let mut reader = tokio::process::Command::new(crate::sdk::tool("py1/bin/python"))
        .args(["-c", READER])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python starts");
    let mut input = reader.stdin.take().expect("the stream is piped");
    tokio::io::AsyncWriteExt::write_all(&mut input, scrape.as_bytes()).await.expect("the gateway reads");
    drop(input);
    let output = reader.wait_with_output().await.expect("the process ends");
    assert!(output.status.success(), "{scrape}");
    let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let read = read.as_object().expect("families");
    assert_eq!(read.keys().cloned().collect::<BTreeSet<_>>(), families(scrape.lines()));
    for (name, kind, samples) in [
        ("mcp_request_duration_seconds", "histogram", 36),
        ("mcp_tool_calls", "counter", 1),
        ("goblin_overhead_seconds", "histogram", 18),
    ] {
        assert_eq!((read[name][0].as_str(), read[name][1].as_u64()), (Some(kind), Some(samples)), "{}", read[name]);
    }
    assert!(read.values().all(|family| family[2] != ""), "each has its help");
}

#[tokio::test]
async fn met2_metrics_report_updates_list_pages_backend_states_and_overhead() {
    let gateway =
        Gateway::with_servers(json!({ "a": fixture_server(&[]), "bad": { "command": "no-such-program" } })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    peer.subscribe("a+note:///alpha").await;
    peer.touch("note:///alpha", 1).await;
    peer.updated().await;
    let client = gateway.client().await;
    all_scraped(
        &client,
        &[
            r#"mcp_resource_updates_total{outcome="delivered"} 1"#,
            r#"mcp_resource_updates_total{outcome="coalesced"} 0"#,
            r#"mcp_resource_updates_total{outcome="dropped"} 0"#,
            "goblin_updates_waiting 0",
            r#"goblin_backend_state{server_id="a",state="ready"} 1"#,
            r#"goblin_backend_state{server_id="bad",state="failed"} 1"#,
            r#"goblin_backend_state{server_id="bad",state="ready"} 0"#,
            "goblin_overhead_seconds_count 1",
        ],
    )
    .await;
    client.list("tools/list", "tools").await;
    let count = async |source: &str| {
        let start = format!("goblin_list_pages_total{{source=\"{source}\"}} ");
        let scraped_lines = scrape(&client).await;
        scraped_lines
            .iter()
            .find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
            .expect("the counter is scraped")
    };
    let (ready, made) = (count("ready").await, count("made").await);
    client.list("tools/list", "tools").await;
    assert_eq!((count("ready").await, count("made").await), (ready + 1, made), "the object existed");
}
