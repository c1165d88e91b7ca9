//! Names that do not repeat the name of their server. The full names stay valid everywhere.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, output};
use crate::home::Home;
use crate::native_names::{listed, server};
use crate::scripted_backend::{Reply, Scripted};
use crate::support::http_server;

fn git_names() -> Vec<String> {
    ["git_log", "git-status", "other"].map(str::to_owned).to_vec()
}

async fn git() -> Scripted {
    server(git_names(), false).await
}

/// Starts a gateway with one server `git`, which has these additional settings.
async fn start(backend: &Scripted, settings: Value, members: Value) -> Gateway {
    let mut entry = http_server(backend.address);
    entry.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    let mut config = json!({ "metaTools": false, "mcpServers": { "git": entry } });
    config.as_object_mut().expect("an object").extend(members.as_object().expect("an object").clone());
    Gateway::start(config).await
}

async fn called(client: &Client, tool: &str) -> String {
    client.call_text(tool, json!({})).await
}

async fn is_missing(client: &Client, tool: &str) -> bool {
    let answer = client.request("tools/call", json!({ "name": tool, "arguments": {} })).await;
    answer["error"]["data"]["code"] == "TOOL_NOT_FOUND"
}

#[tokio::test]
async fn use13_a_name_does_not_repeat_the_server_and_the_full_name_stays_valid() {
    let backend = git().await;
    let gateway = start(&backend, json!({}), json!({})).await;
    let client = gateway.client().await;
    for list in ["tools", "prompts"] {
        assert_eq!(listed(&client, list, 3).await, ["git_log", "git_status", "git_other"], "{list}");
    }
    let tools = client.list("tools/list", "tools").await;
    assert_eq!(tools[0]["_meta"], json!({ "dev.goblin/native": "git_log", "dev.goblin/server": "git" }));
    for (names, native) in [
        (["git_log", "git_git_log"], "git_log"),
        (["git_status", "git_git-status"], "git-status"),
        (["git_other", "git_other"], "other"),
    ] {
        for name in names {
            assert_eq!(called(&client, name).await, native, "{name}");
            let wrapped = client.call("call_tool", json!({ "name": name })).await;
            assert_eq!(wrapped["content"][0]["text"], native, "{wrapped}");
            let described = client.call("describe_tool", json!({ "name": name })).await;
            assert_eq!(described["structuredContent"]["tool"]["name"], names[0], "{described}");
            let prompt = client.request("prompts/get", json!({ "name": name })).await;
            assert_eq!(prompt["result"]["messages"][0]["content"]["text"], native, "{prompt}");
            let described = client.call("describe_prompt", json!({ "name": name })).await;
            assert_eq!(described["structuredContent"]["prompt"]["name"], names[0], "{described}");
            let reference = json!({ "type": "ref/prompt", "name": name });
            let params = json!({ "ref": reference, "argument": { "name": "x", "value": "" } });
            let completed = client.request("completion/complete", params).await;
            assert_eq!(completed["result"]["completion"]["values"][0], native, "{completed}");
        }
        let found = client.call("search_tools", json!({ "query": names[1], "limit": 1 })).await;
        assert_eq!(found["structuredContent"]["tools"][0]["name"], names[0], "{found}");
    }
    let modern = Client::modern(gateway.address, json!({}));
    assert_eq!(called(&modern, "git_git_log").await, "git_log");
    assert!(is_missing(&client, "git_git_other").await);
}

#[tokio::test]
async fn use13_the_setting_restores_full_names() {
    let backend = git().await;
    let gateway = start(&backend, json!({ "namespacing": { "shorten": false } }), json!({})).await;
    let client = gateway.client().await;
    assert_eq!(listed(&client, "tools", 3).await, ["git_git_log", "git_git-status", "git_other"]);
    assert!(is_missing(&client, "git_log").await);
}

/// Returns the names that a profile with these rules lists and the calls that it accepts.
async fn visible(gateway: &Gateway, profile: &str) -> (Vec<String>, Client) {
    let client = Client::new(gateway.address).at(&format!("/mcp/p/{profile}")).connected("2025-11-25").await;
    (client.tool_names().await, client)
}

#[tokio::test]
async fn use13_rules_of_profiles_accept_the_short_and_the_full_name() {
    let backend = git().await;
    let rules = |name: &str| {
        json!({
            format!("deny-{name}"): { "tools": { "deny": [name] } },
            format!("allow-{name}"): { "tools": { "allow": [name] } },
            format!("rename-{name}"): { "tools": { "allow": [name], "rename": { name: "history" } } },
            format!("describe-{name}"): { "tools": { "allow": [name], "describe": { name: "Shows commits." } } },
            format!("prompts-{name}"): { "prompts": { "deny": [name] } },
            format!("pinned-{name}"): { "exposure": { "mode": "search", "pinned": [name] } },
        })
    };
    let mut profiles = rules("git_log");
    profiles.as_object_mut().expect("an object").extend(rules("git_git_log").as_object().expect("an object").clone());
    let gateway = start(&backend, json!({}), json!({ "metaTools": "auto", "profiles": profiles })).await;
    listed(&gateway.client().await, "tools", 3).await;
    for name in ["git_log", "git_git_log"] {
        let (names, client) = visible(&gateway, &format!("deny-{name}")).await;
        assert_eq!(names, ["git_status", "git_other"], "deny {name}");
        for denied in ["git_log", "git_git_log"] {
            assert!(is_missing(&client, denied).await, "deny {name}: {denied}");
            let found = client.call("describe_tool", json!({ "name": denied })).await;
            assert_eq!(found["isError"], true, "deny {name}: {found}");
        }
        let (names, client) = visible(&gateway, &format!("allow-{name}")).await;
        assert_eq!(names, ["git_log"], "allow {name}");
        assert_eq!(called(&client, "git_git_log").await, "git_log", "allow {name}");
        let (names, client) = visible(&gateway, &format!("rename-{name}")).await;
        assert_eq!(names, ["history"], "rename {name}");
        assert_eq!(called(&client, "history").await, "git_log");
        assert!(
            is_missing(&client, "git_log").await && is_missing(&client, "git_git_log").await,
            "the name is replaced"
        );
        let (_, client) = visible(&gateway, &format!("describe-{name}")).await;
        let tools = client.list("tools/list", "tools").await;
        assert_eq!(tools[0]["description"], "Shows commits.", "describe {name}");
        let (_, client) = visible(&gateway, &format!("prompts-{name}")).await;
        assert_eq!(listed(&client, "prompts", 2).await, ["git_status", "git_other"], "prompts {name}");
        let (names, _) = visible(&gateway, &format!("pinned-{name}")).await;
        assert_eq!(names[0], "git_log", "pinned {name}");
        assert!(!names.iter().any(|found| found == "git_status"), "pinned {name}: {names:?}");
    }
}

#[tokio::test]
async fn use13_rules_of_servers_keep_the_native_names() {
    let backend = git().await;
    for (rules, expected) in [
        (json!({ "deny": ["git_log"] }), vec!["git_status", "git_other"]),
        (json!({ "allow": ["git_log", "git-status"] }), vec!["git_log", "git_status"]),
        (json!({ "allow": ["git_log"], "rename": { "git_log": "git_log" } }), vec!["git_log"]),
        (json!({ "allow": ["git_log"], "rename": { "git_log": "history" } }), vec!["history"]),
    ] {
        let gateway = start(&backend, json!({ "tools": rules }), json!({})).await;
        let client = gateway.client().await;
        assert_eq!(listed(&client, "tools", expected.len()).await, expected, "{rules}");
        let denied = rules.get("deny").is_some() || rules.get("rename").is_some();
        assert_eq!(is_missing(&client, "git_git_log").await, denied, "{rules}");
    }
}

#[tokio::test]
async fn use13_the_timeout_of_a_tool_applies_under_both_names() {
    let backend = Scripted::start(|seen, _| match seen.method() {
        "tools/list" => seen.result(json!({ "tools": [{ "name": "git_log", "inputSchema": { "type": "object" } }] })),
        "tools/call" => Reply::Held(Vec::new()),
        _ => seen.legacy(),
    });
    let backend = backend.await;
    let gateway = start(&backend, json!({ "tools": { "timeouts": { "git_log": "100ms" } } }), json!({})).await;
    let client = gateway.client_seeing("git_log").await;
    for name in ["git_log", "git_git_log"] {
        let answer = client.request("tools/call", json!({ "name": name, "arguments": {} })).await;
        assert_eq!(answer["error"]["data"]["code"], "TIMEOUT", "{answer}");
    }
}

#[tokio::test]
async fn use13_a_contested_short_name_means_nothing_and_stays_denied() {
    let (one, other) = (git().await, server(vec!["git_log".to_owned()], false).await);
    let mut plain = http_server(other.address);
    plain["prefix"] = json!("");
    let config = json!({
        "metaTools": false,
        "profiles": { "p": { "tools": { "deny": ["git_log"] } }, "q": { "tools": ["git_log"] } },
        "mcpServers": { "git": http_server(one.address), "plain": plain },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let names = listed(&client, "tools", 4).await;
    assert_eq!(names[..3], ["git_git_log", "git_status", "git_other"], "{names:?}");
    assert!(names[3].starts_with("git_log_"), "{names:?}");
    let answer = client.request("tools/call", json!({ "name": "git_log", "arguments": {} })).await;
    assert_eq!(answer["error"]["data"]["candidates"], json!(["git_git_log", names[3]]), "{answer}");
    let (denied, _) = visible(&gateway, "p").await;
    assert_eq!(denied, ["git_status", "git_other"], "both tools claim the denied name");
    let (allowed, _) = visible(&gateway, "q").await;
    assert!(allowed.is_empty(), "the allowed name means no tool: {allowed:?}");
}

#[tokio::test]
async fn use13_the_shell_accepts_both_names() {
    let backend = git().await;
    let home = Home::new(&json!({ "mcpServers": { "git": http_server(backend.address) } }));
    for name in ["git_log", "git_git_log"] {
        let shown = eventually("the tool is called", || async {
            let (code, stdout, _) = output(home.goblin(&["tools", "call", name, "--config", home.config()])).await;
            (code == Some(0)).then_some(stdout)
        });
        assert_eq!(shown.await.trim(), "git_log", "{name}");
    }
}
