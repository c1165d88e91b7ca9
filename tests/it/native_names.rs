//! Names without namespacing: a client sees and sends the names of the server, whatever their characters and length.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually};
use crate::home::Home;
use crate::raw_server::response;
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::support::{assert_error, http_server};
use crate::terminal::Terminal;

/// Returns native names that a namespaced name could not have.
fn names() -> Vec<String> {
    let odd = ["a.b", "a/b", "späť 工具", "=?base64?eA==?=", " blank ", "x\u{1b}[2J\ty\u{202e}z", "a_b"];
    odd.into_iter().map(str::to_owned).chain(["n".repeat(200)]).collect()
}

/// Answers like a server of either era. Each tool, prompt and completion returns the name that the server received.
fn answer(seen: &Seen, names: &[String], is_modern: bool) -> Reply {
    let listed = |key: &str| {
        let entry = |name: &String| match key {
            "tools" => json!({ "name": name, "inputSchema": { "type": "object" } }),
            _ => json!({ "name": name, "arguments": [{ "name": "x" }] }),
        };
        json!({ key: names.iter().map(entry).collect::<Vec<_>>() })
    };
    let (params, capabilities) = (&seen.message["params"], json!({"tools": {}, "prompts": {}, "completions": {}}));
    let mut result = match seen.method() {
        "initialize" if !is_modern => json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "serverInfo": { "name": "s", "version": "0" },
        }),
        "server/discover" if is_modern => json!({ "supportedVersions": ["2026-07-28"], "capabilities": capabilities }),
        "tools/list" => listed("tools"),
        "prompts/list" => listed("prompts"),
        "tools/call" => json!({ "content": [{ "type": "text", "text": params["name"] }] }),
        "prompts/get" => {
            json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": params["name"] } }] })
        }
        "completion/complete" => json!({ "completion": { "values": [params["ref"]["name"]] } }),
        "notifications/initialized" => return Reply::Bytes(response("202 Accepted", "", "")),
        _ if is_modern => return seen.error("404 Not Found", json!({ "code": -32601, "message": "Method not found" })),
        _ => return Reply::Bytes(response("405 Method Not Allowed", "", "")),
    };
    if is_modern {
        let members = [("resultType", json!("complete")), ("ttlMs", json!(0)), ("cacheScope", json!("private"))];
        members.into_iter().for_each(|(key, value)| result[key] = value);
    }
    seen.result(result)
}

pub(crate) async fn server(names: Vec<String>, is_modern: bool) -> Scripted {
    Scripted::start(move |seen, _| answer(seen, &names, is_modern)).await
}

/// Returns the names in a list of the gateway, as soon as there are this many.
pub(crate) async fn listed(client: &Client, list: &str, count: usize) -> Vec<String> {
    eventually(&format!("{list} has {count} entries"), || async {
        let entries = client.list(&format!("{list}/list"), list).await;
        let name = |entry: &Value| entry["name"].as_str().expect("a name").to_owned();
        (entries.len() == count).then(|| entries.iter().map(name).collect())
    })
    .await
}

fn clients(gateway: &Gateway) -> impl Future<Output = [Client; 2]> {
    let address = gateway.address;
    async move { [Client::new(address).connected("2025-11-25").await, Client::modern(address, json!({}))] }
}

/// Asserts that the name reaches the tool, the prompt and the completion of this native name.
async fn assert_reaches(client: &Client, exposed: &str, native: &str) {
    assert_eq!(client.call_text(exposed, json!({})).await, native);
    let prompt = client.request("prompts/get", json!({ "name": exposed })).await;
    assert_eq!(prompt["result"]["messages"][0]["content"]["text"], native, "{prompt}");
    let reference = json!({ "type": "ref/prompt", "name": exposed });
    let params = json!({ "ref": reference, "argument": { "name": "x", "value": "" } });
    let completion = client.request("completion/complete", params).await;
    assert_eq!(completion["result"]["completion"]["values"], json!([native]), "{completion}");
}

#[tokio::test]
async fn d4_without_namespacing_every_native_name_is_exposed_as_it_is() {
    for is_modern in [false, true] {
        let backend = server(names(), is_modern).await;
        let config = json!({
            "namespacing": "none", "exposure": "all",
            "mcpServers": { "s": http_server(backend.address) },
        });
        let gateway = Gateway::start(config).await;
        for client in clients(&gateway).await {
            let tools = listed(&client, "tools", names().len() + 12).await;
            assert_eq!(tools[..names().len()], names());
            assert_eq!(listed(&client, "prompts", names().len()).await, names());
            for name in names() {
                assert_reaches(&client, &name, &name).await;
                let described = client.call("describe_tool", json!({ "name": name })).await;
                assert_eq!(described["structuredContent"]["tool"]["name"], *name, "{described}");
                let called = client.call("call_tool", json!({ "name": name, "arguments": {} })).await;
                assert_eq!(called["content"][0]["text"], *name, "{called}");
            }
            let answer = client.request("tools/call", json!({ "name": "a:b" })).await;
            assert_error(&answer, -32602, "TOOL_NOT_FOUND");
        }
        let scraped = Client::new(gateway.address).get("/metrics", &[]).await.1.rest().await;
        assert!(scraped.contains(r#"tool="a/b""#) && !scraped.contains('\u{1b}'), "{scraped}");
    }
}

#[tokio::test]
async fn d4_only_names_that_two_servers_or_a_meta_tool_share_get_a_suffix() {
    let shared: Vec<_> = names().into_iter().chain(["search_tools".to_owned()]).collect();
    let (one, two) = (server(shared, false).await, server(names(), true).await);
    let own = server(vec!["only/here".to_owned()], false).await;
    let mut native = http_server(own.address);
    native["namespacing"] = json!({ "tools": "none" });
    let bare = |address| {
        let mut server = http_server(address);
        server["namespacing"] = json!("none");
        server
    };
    let servers = json!({ "one": bare(one.address), "two": bare(two.address), "own": native });
    let gateway = Gateway::start(json!({ "exposure": "all", "mcpServers": servers })).await;
    for client in clients(&gateway).await {
        let total = names().len() * 2 + 2;
        let tools = listed(&client, "tools", total + 12).await;
        assert!(tools.contains(&"only/here".to_owned()), "{tools:?}");
        let is_safe = |name: &str| {
            name.len() <= 48 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        let backends = &tools[..total];
        assert!(backends.iter().all(|name| name == "only/here" || is_safe(name)), "{tools:?}");
        assert_eq!(client.call_text("only/here", json!({})).await, "only/here");
        let prompts = listed(&client, "prompts", total).await;
        assert!(prompts.contains(&"own_only_here".to_owned()), "prompts have their own policy: {prompts:?}");
        for name in names() {
            let answer = client.request("tools/call", json!({ "name": name })).await;
            let data = assert_error(&answer, -32602, "TOOL_NOT_FOUND");
            let candidates = data["candidates"].as_array().expect("candidates");
            assert_eq!(candidates.len(), 2, "{answer}");
            for candidate in candidates {
                assert_reaches(&client, candidate.as_str().expect("a name"), &name).await;
            }
        }
        let moved = tools.iter().find(|name| name.starts_with("search_tools_")).expect("the tool has a suffix");
        assert_eq!(client.call_text(moved, json!({})).await, "search_tools");
    }
}

#[tokio::test]
async fn d4_an_empty_prefix_keeps_names_safe() {
    let backend = server(vec!["a.b".to_owned()], false).await;
    let mut bare = http_server(backend.address);
    bare["prefix"] = json!("");
    let gateway = Gateway::start(json!({ "mcpServers": { "s": bare } })).await;
    let client = gateway.client_seeing("a_b").await;
    assert_eq!(client.call_text("a_b", json!({})).await, "a.b");
}

#[tokio::test]
async fn d4_the_shell_calls_native_names_and_shows_no_control_characters() {
    let backend = server(names(), false).await;
    let config = json!({ "namespacing": "none", "mcpServers": { "s": http_server(backend.address) } });
    let home = Home::new(&config);
    let (_gateway, _client) = home.gateway("a/b").await;
    for name in names() {
        let ran = home.run(&["tools", "call", "--json", "--", &name]).await;
        assert_eq!(ran.json()["content"][0]["text"], *name, "{ran:?}");
        let ran = home.run(&["tools", "describe", "--json", "--", &name]).await;
        assert_eq!(ran.json()["tool"]["name"], *name, "{ran:?}");
        let ran = home.run(&["prompts", "get", "--json", "--", &name]).await;
        assert_eq!(ran.json()["messages"][0]["content"]["text"], *name, "{ran:?}");
    }
    let hostile = &names()[5];
    for arguments in [&["tools", "list"][..], &["tools", "describe", hostile], &["tools", "call", hostile, "nope=1"]] {
        let mut command = home.goblin(arguments);
        let terminal = Terminal::of(&mut command).of_width(200);
        let _child = command.env("NO_COLOR", "1").spawn().expect("goblin starts");
        let shown = terminal.await_text("x[2J").await;
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{arguments:?}: {shown:?}");
    }
}

#[tokio::test]
async fn d4_check_reports_a_conflict_without_control_characters() {
    let (one, two) = (server(names(), false).await, server(names(), false).await);
    let servers = json!({ "one": http_server(one.address), "two": http_server(two.address) });
    let home = Home::new(&json!({ "namespacing": "none", "mcpServers": servers }));
    for command in ["check", "doctor"] {
        let mut arguments = vec![command, "--config", home.config()];
        if command == "check" {
            arguments.push("--connect");
        }
        let ran = home.run(&arguments).await;
        let output = ran.text().to_owned() + &ran.stderr;
        assert!(output.contains("several tools have the name x[2J yz and are exposed as x__2J_y_z_"), "{ran:?}");
        assert!(!output.contains(['\u{1b}', '\u{202e}']) && !output.contains("too long"), "{ran:?}");
    }
}
