//! The lists: complete, from the catalog, page by page, and with notifications of changes.
//!
//! A list request never contacts a backend. A sequence of pages shows one version of the catalog or is rejected.

use std::collections::BTreeSet;
use std::sync::Arc;

use goblin_client::connect::ProxyEnvironment;
use goblin_config::file::ConfigOrigin;
use goblin_engine::app::App;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::{Frozen, GOBLIN, Gateway, Scratch, eventually, fixture, fixture_server, servers_only};
use crate::scrape::scraped;
use crate::support::frozen_server;

const LISTS: [(&str, &str); 4] = [
    ("tools/list", "tools"),
    ("prompts/list", "prompts"),
    ("resources/list", "resources"),
    ("resources/templates/list", "resourceTemplates"),
];

fn key(entry: &Value) -> String {
    let key = ["uri", "uriTemplate", "name"].iter().find_map(|key| entry[*key].as_str());
    key.unwrap_or_else(|| panic!("{entry}")).to_owned()
}

async fn keys(client: &Client, method: &str, member: &str) -> Vec<String> {
    client.list(method, member).await.iter().map(key).collect()
}

#[tokio::test]
async fn reg1_res2_srv3_every_page_of_a_backend_is_fetched() {
    let content = ["--tools", "25", "--prompts", "7", "--resources", "11"];
    let paged: Vec<_> = content.into_iter().chain(["--page-size", "3"]).collect();
    let whole = Gateway::with_servers(json!({ "a": fixture_server(&content) })).await;
    let paged = Gateway::with_servers(json!({ "a": fixture_server(&paged) })).await;
    let (whole, paged) = (whole.client_seeing("a_echo").await, paged.client_seeing("a_echo").await);
    for (method, member) in LISTS {
        let expected = whole.list(method, member).await;
        assert!(expected.len() >= 3, "{method}");
        assert_eq!(paged.list(method, member).await, expected, "{method}");
    }
    assert!(paged.tool_names().await.contains(&"a_tool_0025".to_owned()));
}

#[tokio::test]
async fn res11_lists_are_paginated_and_complete() {
    let server = fixture_server(&["--tools", "25", "--prompts", "7", "--resources", "11"]);
    let config = json!({ "policies": { "pageSize": 4 }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    for (method, member) in LISTS {
        let all = keys(&client, method, member).await;
        let mut cursor = None;
        let mut seen = Vec::new();
        loop {
            let params = cursor.map_or(json!({}), |cursor: Value| json!({"cursor": cursor}));
            let page = client.request(method, params).await["result"].clone();
            let entries = page[member].as_array().expect("entries").clone();
            let is_last = page["nextCursor"].is_null();
            assert!(entries.len() == 4 || (is_last && (1..=4).contains(&entries.len())), "{method}: {}", entries.len());
            seen.extend(entries.iter().map(key));
            if is_last {
                break;
            }
            cursor = Some(page["nextCursor"].clone());
        }
        assert_eq!(seen, all, "{method}");
        let unique: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(unique.len(), seen.len(), "{method}");
    }
    assert_eq!(client.tool_names().await.iter().filter(|name| name.starts_with("a_tool_")).count(), 25);
}

/// Adds a tool and waits until it is listed.
async fn add_tool(client: &Client) -> String {
    let added = format!("a_{}", client.call_text("a_change_tools", json!({})).await);
    client.await_tool(&added).await;
    added
}

#[tokio::test]
async fn res11_a_sequence_of_pages_stays_on_one_version_or_is_rejected() {
    let config = json!({ "policies": { "pageSize": 10 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    let before = client.tool_names().await;
    let first = client.request("tools/list", json!({})).await["result"].clone();
    let added = add_tool(&client).await;
    client.call("a_change_tools", json!({"remove": "echo"})).await;
    eventually("the tool is not listed", || async {
        (!client.tool_names().await.contains(&"a_echo".to_owned())).then_some(())
    })
    .await;

    let mut seen: Vec<_> = first["tools"].as_array().expect("tools").iter().map(key).collect();
    let mut cursor = first["nextCursor"].clone();
    while cursor.is_string() {
        let page = client.request("tools/list", json!({"cursor": cursor})).await["result"].clone();
        seen.extend(page["tools"].as_array().expect("tools").iter().map(key));
        cursor = page["nextCursor"].clone();
    }
    assert_eq!(seen, before, "the list of the first page");
    assert!(!seen.contains(&added));

    // Catalogs without an open list are not kept.
    for count in (before.len() + 1..).take(20) {
        client.call("a_change_tools", json!({})).await;
        let line = format!(r#"goblin_catalog_entries{{kind="tool"}} {count}"#);
        scraped(&client, &line).await;
    }
    let second = client.request("tools/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(second["result"]["tools"].as_array().map(Vec::len), Some(10), "{second}");

    for _ in 0..17 {
        add_tool(&client).await;
    }
    let rejected = client.request("tools/list", json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(rejected["error"]["code"], -32602, "{rejected}");
    assert_eq!(rejected["error"]["data"]["code"], "INVALID_CURSOR", "{rejected}");
}

#[tokio::test]
async fn res12_srv3_lists_are_answered_without_contacting_a_backend() {
    let (gateway, client, _frozen) = frozen_server().await;
    let new_client = gateway.client().await;
    for (method, member) in LISTS {
        assert!(!new_client.list(method, member).await.is_empty(), "{method}");
        assert_eq!(new_client.list(method, member).await, client.list(method, member).await, "{method}");
    }
}

#[tokio::test]
async fn res10_a_resource_is_listed_with_all_its_members() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--prefix-unknown"]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let resources = client.list("resources/list", "resources").await;
    let alpha = resources.iter().find(|resource| resource["name"] == "alpha").expect("alpha");
    for (member, value) in [
        ("uri", json!("a+note:///alpha")),
        ("title", json!("Alpha")),
        ("description", json!("A text note")),
        ("mimeType", json!("text/plain")),
        ("size", json!(10)),
    ] {
        assert_eq!(alpha[member], value, "{alpha}");
    }
    assert_eq!(alpha["annotations"]["priority"], json!(0.70));
    assert!(alpha["x-vendor"].is_object() && alpha["annotations"]["x-vendor"].is_object(), "{alpha}");
    let uris: Vec<_> = resources.iter().map(key).collect();
    assert!(uris.is_sorted(), "{uris:?}");
}

#[tokio::test]
async fn reg4_reg6_reg7_a_tool_is_listed_with_its_full_definition_and_its_server() {
    let gateway = Gateway::with_servers(json!({ "my_server": fixture_server(&["--prefix-unknown"]) })).await;
    let client = gateway.client_seeing("my_server_echo").await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let raw = client.post(body).await.body;
    assert!(raw.contains(r#""dev.fixture/weight":1.50"#), "numbers keep their spelling");
    let tools = client.list("tools/list", "tools").await;
    for tool in &tools {
        assert!(tool["name"].is_string() && tool["description"].is_string(), "{tool}");
        assert_eq!(tool["_meta"]["dev.goblin/server"], "my_server", "{tool}");
        assert_eq!(tool["name"], format!("my_server_{}", tool["_meta"]["dev.goblin/native"].as_str().expect("a name")));
        assert!(tool["inputSchema"]["x-vendor"].is_object() && tool["x-vendor"].is_object(), "{tool}");
    }
    let of = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("{name}"));
    let echo = of("my_server_echo");
    assert_eq!(echo["title"], "Echo");
    assert_eq!(echo["annotations"]["readOnlyHint"], true);
    assert_eq!(echo["execution"]["taskSupport"], "forbidden");
    assert_eq!(of("my_server_add")["outputSchema"]["required"], json!(["sum"]));
}

#[tokio::test]
async fn reg3_res1_a_change_is_fetched_and_the_next_list_is_fresh() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let added = add_tool(&client).await;
    assert_eq!(client.call_text(&added, json!({})).await, format!("{} was called", &added[2..]));
    let resource = format!("a+{}", client.call_text("a_change_resources", json!({})).await);
    eventually("the tool is listed", || async {
        keys(&client, "resources/list", "resources").await.contains(&resource).then_some(())
    })
    .await;
    client.call("a_change_tools", json!({"remove": "echo"})).await;
    eventually("the tool is not listed", || async {
        (!client.tool_names().await.contains(&"a_echo".to_owned())).then_some(())
    })
    .await;
    let removed = client.request("tools/call", json!({"name": "a_echo"})).await;
    assert_eq!(removed["error"]["data"]["code"], "TOOL_NOT_FOUND", "{removed}");
}

/// Changes the prompts and returns the notifications that arrive before that one.
async fn changes_before_prompts(client: &Client, stream: &mut Listener, changer: &str) -> Vec<String> {
    client.call(changer, json!({})).await;
    let mut changes = Vec::new();
    loop {
        let message = stream.next().await.expect("the stream is open");
        let method = message["method"].as_str().expect("a notification").to_owned();
        if method == "notifications/prompts/list_changed" {
            return changes;
        }
        changes.push(method);
    }
}

#[tokio::test]
async fn reg8_an_unchanged_list_sends_no_notification() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--list-changed-storm", "50"]) })).await;
    gateway.client_seeing("a_echo").await;
    // A client that is up to date.
    let client = gateway.client().await;
    let mut stream = client.listen().await;
    for _ in 0..20 {
        client.call("a_change_tools", json!({"remove": "unknown"})).await;
    }
    let changes = changes_before_prompts(&client, &mut stream, "a_change_prompts").await;
    assert_eq!(changes, Vec::<String>::new());
}

#[tokio::test]
async fn reg3_reg8_a_burst_of_changes_sends_few_notifications_and_ends_in_the_last_state() {
    const CHANGES: usize = 60;
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    gateway.client_seeing("a_echo").await;
    let client = gateway.client().await;
    let mut stream = client.listen().await;
    let mut last = String::new();
    for _ in 0..CHANGES {
        last = client.call_text("a_change_tools", json!({})).await;
    }
    client.await_tool(&format!("a_{last}")).await;
    let changes = changes_before_prompts(&client, &mut stream, "a_change_prompts").await;
    assert!((1..CHANGES / 2).contains(&changes.len()), "{} notifications", changes.len());
    assert!(changes.iter().all(|method| method == "notifications/tools/list_changed"), "{changes:?}");
    let added = client.tool_names().await.iter().filter(|name| name.starts_with("a_added_")).count();
    assert_eq!(added, CHANGES);
}

#[tokio::test]
async fn reg1_tools_added_after_the_connection_are_listed() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--late-tools", "50"]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("a_late_4").await;
    let late: Vec<_> = client.tool_names().await.into_iter().filter(|name| name.starts_with("a_late_")).collect();
    assert_eq!(late, ["a_late_1", "a_late_2", "a_late_3", "a_late_4"]);
}

#[tokio::test]
async fn d14_a_lost_backend_keeps_its_lists_and_causes_no_list_changed() {
    let scratch = Scratch::new();
    // This server starts once and never again.
    let once = json!({
        "command": "sh",
        "args": ["-c", "test -e once && exit 1; touch once; exec \"$0\"", fixture()],
        "cwd": scratch.path(),
    });
    let gateway = Gateway::with_servers(json!({ "a": once, "b": fixture_server(&[]) })).await;
    let watcher = gateway.client_seeing("a_echo").await;
    watcher.await_tool("b_echo").await;
    let client = gateway.client().await;
    let mut before = Vec::new();
    for (method, member) in LISTS {
        before.push(client.list(method, member).await);
    }
    let mut stream = client.listen().await;
    client.request("tools/call", json!({"name": "a_crash"})).await;
    for (method, params) in [
        ("tools/call", json!({"name": "a_echo"})),
        ("prompts/get", json!({"name": "a_greet"})),
        ("resources/read", json!({"uri": "a+note:///alpha"})),
    ] {
        let answer = client.request(method, params).await;
        assert_eq!(answer["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{method}: {answer}");
        assert_eq!(answer["error"]["data"]["serverId"], "a", "{method}: {answer}");
    }
    for ((method, member), before) in LISTS.into_iter().zip(before) {
        assert_eq!(client.list(method, member).await, before, "{method}");
    }
    let changes = changes_before_prompts(&client, &mut stream, "b_change_prompts").await;
    assert_eq!(changes, Vec::<String>::new());
}

#[tokio::test]
async fn d14_a_backend_that_restarts_with_the_same_lists_causes_no_list_changed() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let watcher = gateway.client_seeing("a_echo").await;
    watcher.await_tool("b_echo").await;
    let client = gateway.client().await;
    let mut stream = client.listen().await;
    client.request("tools/call", json!({"name": "a_crash"})).await;
    eventually("the tool is back", || async {
        client.request("tools/call", json!({"name": "a_echo", "arguments": {}})).await["error"].is_null().then_some(())
    })
    .await;
    let changes = changes_before_prompts(&client, &mut stream, "b_change_prompts").await;
    assert_eq!(changes, Vec::<String>::new());
}

#[tokio::test]
async fn res13_a_changed_list_of_one_server_contacts_no_other_server() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let frozen = fixture_server(&["--pid-file", &pid_file.display().to_string()]);
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": frozen })).await;
    let client = gateway.client_seeing("a_change_resources").await;
    client.await_tool("b_echo").await;
    let before = keys(&client, "resources/list", "resources").await;
    assert!(before.iter().any(|uri| uri == "b+note:///alpha"), "{before:?}");
    let frozen = Frozen::new(&pid_file).await;
    let native = client.call_text("a_change_resources", json!({})).await;
    let mut expected: BTreeSet<_> = before.into_iter().collect();
    expected.insert(format!("a+{native}"));
    eventually("the list is fresh without a notification of b", || async {
        let now = keys(&client, "resources/list", "resources").await;
        (now.into_iter().collect::<BTreeSet<_>>() == expected).then_some(())
    })
    .await;
    drop(frozen);
}

/// Returns the configuration with these servers, as `goblin serve` would read it.
pub fn config(servers: Value) -> goblin_config::Config {
    let text = servers_only(json!({ "mcpServers": servers })).to_string();
    let loaded = goblin_config::parse(&text, &ConfigOrigin::new("test", "/"), &|_| None);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).config
}

#[tokio::test]
async fn reg2_removing_a_server_removes_its_entries_and_its_process() {
    let scratch = Scratch::new();
    let pid_file = |name: &str| scratch.path().join(name);
    let server = |name: &str| fixture_server(&["--pid-file", &pid_file(name).display().to_string()]);
    let pid = |name: &str| std::fs::read_to_string(pid_file(name)).ok().filter(|pid| !pid.is_empty());
    let observe = Arc::default();
    let both = config(json!({ "a": server("a"), "b": server("b") }));
    let mut app = App::start(both, GOBLIN.into(), ProxyEnvironment::from_process(), Arc::clone(&observe));
    eventually("both are connected", || async {
        let ready = observe.counts().contains(&("backend_ready", 2));
        (ready && pid("a").is_some() && pid("b").is_some()).then_some(())
    })
    .await;
    app.reload(config(json!({ "b": server("b") })));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut stopped = Some(stopped);
    let serving = tokio::spawn(app.serve_http(listener, async move || match stopped.take() {
        Some(stopped) => drop(stopped.await),
        None => std::future::pending().await,
    }));
    let mut client = Client::new(address);
    client.initialize("2025-11-25").await;
    client.await_tool("b_echo").await;
    for (method, member) in LISTS {
        let owned = |key: &String| key.starts_with("b_") || key.starts_with("b+") || key.starts_with("ui://b/");
        eventually(&format!("{method} is of b alone"), || async {
            let keys = keys(&client, method, member).await;
            (!keys.is_empty() && keys.iter().all(owned)).then_some(())
        })
        .await;
    }
    let answer = client.request("resources/read", json!({"uri": "a+note:///alpha"})).await;
    assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{answer}");
    let process = |name: &str| std::path::Path::new("/proc").join(pid(name).expect("a pid").trim()).exists();
    eventually("its process has ended", || async { (!process("a")).then_some(()) }).await;
    assert!(process("b"));
    let _ = stop.send(());
    serving.await.expect("no panic").expect("the gateway stops");
}
