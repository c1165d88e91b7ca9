//! `goblin tools`, `resources` and `prompts`: their lists, from a running gateway and directly from a configuration.
//!
//! Both sources must give the same output. A pipe receives plain and complete tables.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::fixture_server;
use crate::home::{Home, Ran};
use crate::raw_gateway::RawGateway;
use crate::terminal::Terminal;

fn two_servers() -> Value {
    json!({ "a": fixture_server(&[]), "b": fixture_server(&["--tools", "3"]) })
}

/// Appends arguments to a command.
fn with<'a>(arguments: &[&'a str], last: &[&'a str]) -> Vec<&'a str> {
    [arguments, last].concat()
}

fn names(list: &Value, member: &str, key: &str) -> Vec<String> {
    let entries = list[member].as_array().unwrap_or_else(|| panic!("{member}: {list}"));
    entries.iter().map(|entry| entry[key].as_str().unwrap_or_else(|| panic!("{key}: {entry}")).to_owned()).collect()
}

#[tokio::test]
async fn the_lists_of_a_gateway_and_of_a_configuration_are_equal() {
    let home = Home::new(&json!({ "mcpServers": two_servers() }));
    let (gateway, client) = home.gateway("a_echo").await;
    client.await_tool("b_tool_0003").await;
    let url = gateway.url();
    let mut lists = BTreeSet::new();
    for last in [&["--json"][..], &["--json", "--url", &url], &["--json", "--config", home.config()]] {
        let tools = home.run(&with(&["tools", "list"], last)).await.json();
        let listed = names(&tools, "tools", "name");
        assert!(listed.contains(&"a_echo".to_owned()) && listed.contains(&"b_tool_0003".to_owned()), "{tools}");
        assert_eq!(tools["total"], listed.len(), "{tools}");
        assert_eq!(tools["tools"][0]["serverId"], "a", "{tools}");
        let prompts = home.run(&with(&["prompts", "list"], last)).await.json();
        assert_eq!(names(&prompts, "prompts", "name"), ["a_greet", "a_linked", "b_greet", "b_linked"]);
        let resources = home.run(&with(&["resources", "list", "--server", "a"], last)).await.json();
        assert!(names(&resources, "resources", "uri").contains(&"a+note:///alpha".to_owned()), "{resources}");
        assert!(names(&resources, "resources", "serverId").iter().all(|server| server == "a"), "{resources}");
        let templates = home.run(&with(&["resources", "templates", "--limit", "1"], last)).await.json();
        assert_eq!(names(&templates, "templates", "uriTemplate"), ["a+note:///{name}"]);
        assert_eq!(templates["total"], 6, "{templates}");
        lists.insert([tools, prompts, resources, templates].map(|list| list.to_string()));
    }
    assert_eq!(lists.len(), 1, "each way shows the same: {lists:?}");
}

#[tokio::test]
async fn a_table_in_a_pipe_is_plain_and_complete() {
    let home = Home::new(&json!({ "mcpServers": two_servers() }));
    let (_gateway, client) = home.gateway("a_echo").await;
    client.await_tool("b_tool_0003").await;
    let Ran { code, stdout, stderr } = home.run(&["tools", "list", "--server", "b", "--limit", "2"]).await;
    let lines: Vec<_> = std::str::from_utf8(&stdout).expect("text").lines().collect();
    assert_eq!((code, lines.len()), (Some(0), 3), "{lines:?}");
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["TOOL", "SERVER", "DESCRIPTION"]);
    assert_eq!(lines[1], "b_echo   b       Returns its arguments untouched, as text and as structured content");
    assert!(stderr.starts_with("goblin: 2 of ") && stderr.contains("--limit"), "{stderr}");
    let resources = home.run(&["resources", "list"]).await;
    let alpha =
        resources.text().lines().find(|line| line.starts_with("a+note:///alpha ")).expect("the entry is listed");
    assert_eq!(
        alpha.split_whitespace().collect::<Vec<_>>(),
        ["a+note:///alpha", "text/plain", "10", "B", "a", "alpha"]
    );
    assert!(!resources.stdout.contains(&0x1b));
}

#[tokio::test]
async fn lines_on_a_terminal_fit_its_width_and_mark_cuts() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&[]) } }));
    let (_gateway, _client) = home.gateway("a_echo").await;
    let mut command = home.goblin(&["tools", "list"]);
    let terminal = Terminal::of(&mut command).of_width(60);
    assert!(command.status().await.expect("the command runs").success());
    let shown = terminal.await_text("a_widget").await;
    let echo = shown.lines().find(|line| line.starts_with("a_echo ")).expect("the entry is listed");
    assert!(echo.ends_with('…') && echo.chars().count() == 60, "{echo:?}");
    let mut command = home.goblin(&["tools", "describe", "a_add"]);
    let terminal = Terminal::of(&mut command);
    assert!(command.status().await.expect("the command runs").success());
    terminal.await_text("\x1b[1ma_add\x1b[0m").await;
}

#[tokio::test]
async fn a_tool_is_described_with_its_arguments() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&["--tools", "1"]) } }));
    let (_gateway, _client) = home.gateway("a_echo").await;
    for last in [&[][..], &["--config", home.config()]] {
        let described = home.run(&with(&["tools", "describe", "a_tool_0001"], last)).await;
        assert_eq!(described.code, Some(0), "{described:?}");
        for fragment in ["a_tool_0001  (server a)", "limit     integer  no        (default 10)", "What to look for"] {
            assert!(described.text().contains(fragment), "{fragment}: {}", described.text());
        }
        let described = home.run(&with(&["tools", "describe", "a_tool_0001", "--json"], last)).await.json();
        assert_eq!((&described["serverId"], &described["tool"]["name"]), (&json!("a"), &json!("a_tool_0001")));
        assert_eq!(described["tool"]["inputSchema"]["properties"]["limit"]["maximum"], 100, "{described}");
    }
}

#[tokio::test]
async fn tools_and_resources_are_found_by_words() {
    let home = Home::new(&json!({ "mcpServers": two_servers() }));
    let (_gateway, client) = home.gateway("a_echo").await;
    client.await_tool("b_tool_0003").await;
    for last in [&["--json"][..], &["--json", "--config", home.config()]] {
        let search = ["tools", "search", "add", "two", "numbers", "--server", "a", "--limit", "2"];
        let found = home.run(&with(&search, last)).await.json();
        let found = names(&found, "tools", "name");
        assert!(found[0] == "a_add" && found.len() <= 2, "{found:?}");
        let found = home.run(&with(&["resources", "search", "JSON note", "--mime-type", "application/*"], last)).await;
        let found = found.json();
        assert_eq!(names(&found, "resources", "uri"), ["a+note:///beta", "b+note:///beta"], "{found}");
    }
    let found = home.run(&["tools", "search", "numbers"]).await;
    assert!(found.text().lines().nth(1).is_some_and(|line| line.contains("_add ")), "{found:?}");
    let nothing = home.run(&["tools", "search", "xylophone"]).await;
    assert_eq!((nothing.code, nothing.text(), nothing.stderr.as_str()), (Some(0), "", "goblin: no tools\n"));
}

#[tokio::test]
async fn the_shell_lists_and_calls_unexposed_tools_under_any_meta_prefix() {
    let exposure = json!({ "mode": "search", "pinned": ["a_echo"] });
    for prefix in ["", "own-"] {
        let home = Home::new(&json!({
            "exposure": exposure, "metaTools": { "prefix": prefix }, "mcpServers": { "a": fixture_server(&[]) },
        }));
        let (_gateway, client) = home.gateway("a_echo").await;
        assert!(!client.tool_names().await.contains(&"a_add".to_owned()));
        let tools = home.run(&["tools", "list", "--json"]).await.json();
        let names = names(&tools, "tools", "name");
        assert!(names.contains(&"a_add".to_owned()), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("search_tools")), "{names:?}");
        assert_eq!(home.run(&["tools", "call", "a_add", "a=1", "b=2"]).await.text(), "3\n");
    }
}

#[tokio::test]
async fn a_profile_limits_the_shell_like_its_clients() {
    let profiles = json!({ "review": { "servers": ["b"], "tools": ["b_echo", "b_add"] } });
    let home = Home::new(&json!({ "profiles": profiles, "mcpServers": two_servers() }));
    let (gateway, client) = home.gateway("a_echo").await;
    client.await_tool("b_tool_0003").await;
    let url = gateway.url();
    for last in [&[][..], &["--url", &url], &["--config", home.config()]] {
        let last = with(&["--profile", "review"], last);
        let tools = home.run(&with(&["tools", "list", "--json"], &last)).await.json();
        assert_eq!(names(&tools, "tools", "name"), ["b_echo", "b_add"], "{last:?}");
        assert_eq!(home.run(&with(&["tools", "call", "b_add", "a=1", "b=1"], &last)).await.text(), "2\n");
        let hidden = home.run(&with(&["tools", "call", "a_add"], &last)).await;
        assert_eq!(hidden.code, Some(2), "{hidden:?}");
    }
    for (last, code) in [(&[][..], 3), (&["--config", home.config()], 2)] {
        let unknown = home.run(&with(&["tools", "list", "--profile", "revue"], last)).await;
        assert_eq!(unknown.code, Some(code), "{unknown:?}");
        assert!(unknown.stderr.contains("unknown profile"), "{unknown:?}");
    }
}

#[tokio::test]
async fn a_foreign_gateway_is_queried_with_the_list_methods_of_the_protocol() {
    let (home, mut gateway) = (Home::new(&json!({})), RawGateway::start().await);
    let url = gateway.url.clone();
    let tool = |name: &str| json!({"name": name, "inputSchema": {}, "_meta": {"dev.goblin/server": name[..1]}});
    let arguments = ["tools", "list", "--json", "--server", "b", "--url", &url];
    let listed = home.run(&arguments);
    let played = async {
        gateway.begin("one").await;
        gateway.request("tools/list").await.reply(json!({"tools": [tool("a_one")], "nextCursor": "p2"})).await;
        let second = gateway.request("tools/list").await;
        assert_eq!(second.message["params"], json!({"cursor": "p2"}));
        second.reply(json!({"tools": [tool("b_one"), tool("b_two")]})).await;
        gateway.take("the end of the session", |arrival| arrival.verb() == "DELETE").await.accept().await;
    };
    let (listed, ()) = tokio::join!(listed, played);
    let card = |name: &str| json!({"name": name, "serverId": "b"});
    assert_eq!(listed.json(), json!({"tools": [card("b_one"), card("b_two")], "total": 2}));
}

#[tokio::test]
async fn a_failing_command_reports_the_cause_and_its_exit_code() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&[]) } }));
    let no_gateway = home.run(&["tools", "list"]).await;
    assert_eq!(no_gateway.code, Some(3), "{no_gateway:?}");
    assert!(no_gateway.stderr.contains("no gateway is running on this machine"), "{no_gateway:?}");
    let (_gateway, _client) = home.gateway("a_echo").await;
    let broken = home.scratch.write("broken.json", "{").display().to_string();
    for (arguments, code, fragment) in [
        (&["tools", "list", "--url", "http://127.0.0.1:1/mcp"][..], 3, "cannot connect to http://127.0.0.1:1"),
        (&["tools", "list", "--config", &broken], 2, "broken.json"),
        (&["tools", "list", "--url", "nonsense"], 2, "nonsense"),
        (&["tools", "list", "--server", "aa"], 2, "did you mean"),
        (&["tools", "list", "--limit", "0"], 2, "--limit"),
        (&["tools", "list", "--profile", "a b"], 2, "the name of a profile"),
        (&["tools"], 2, "Usage"),
        (&["tools", "describe", "a_ecko"], 2, "did you mean"),
        (&["tools", "call", "a_ecko"], 2, "a_echo"),
        (&["prompts", "get", "a_gret"], 2, "a_greet"),
        (&["resources", "read", "no:where"], 2, "not found"),
    ] {
        let ran = home.run(arguments).await;
        assert_eq!((ran.code, ran.text()), (Some(code), ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(fragment), "{arguments:?}: {ran:?}");
    }
    let (_second, _client) = home.gateway("a_echo").await;
    let either = home.run(&["tools", "list"]).await;
    assert!(either.code == Some(2) && either.stderr.contains("2 gateways are running"), "{either:?}");
}
