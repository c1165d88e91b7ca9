//! Routing: the tool that a name reaches, and its result.
//!
//! A name never moves to another server, and an unknown name contacts no backend.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::support::frozen_server;

/// Returns a fixture with its name in a variable.
fn named(server_name: &str) -> Value {
    json!({ "command": crate::harness::fixture(), "env": { "SERVER_NAME": server_name } })
}

async fn server_name(client: &Client, tool: &str) -> String {
    client.call_text(tool, json!({"name": "SERVER_NAME"})).await
}

fn with(mut server: Value, key: &str, value: Value) -> Value {
    server[key] = value;
    server
}

#[tokio::test]
async fn route1_a_name_reaches_its_server_also_with_underscores() {
    let ids = ["a", "a_b", "a_b_", "_", "9", "My-Server"];
    let servers: serde_json::Map<_, _> = ids.iter().map(|id| ((*id).to_owned(), named(id))).collect();
    let gateway = Gateway::with_servers(servers.into()).await;
    let client = gateway.client().await;
    for id in ids {
        client.await_tool(&format!("{id}_env")).await;
        assert_eq!(server_name(&client, &format!("{id}_env")).await, id);
        assert_eq!(client.call_text(&format!("{id}_call_count"), json!({})).await, "2", "{id}");
    }
}

#[tokio::test]
async fn route1_a_name_may_be_spelled_with_escapes() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let body =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{"n\u0061me":"a_\u0065cho","arguments":{"n":1}}}"#;
    assert_eq!(client.post(body).await.json()["result"]["structuredContent"], json!({"n": 1}));
}

#[tokio::test]
async fn route2_an_unknown_tool_contacts_no_backend() {
    let (_gateway, client, frozen) = frozen_server().await;
    for name in ["nope", "a_nope", "echo", "a:echo", "a_", "A_ECHO", "a_echo ", "b_echo"] {
        let answer = client.request("tools/call", json!({"name": name, "arguments": {}})).await;
        let error = &answer["error"];
        assert_eq!(error["message"], format!("Tool not found: {name}"));
        assert_eq!((&error["code"], &error["data"]["code"]), (&json!(-32602), &json!("TOOL_NOT_FOUND")), "{answer}");
        assert_eq!(error["data"]["name"], name);
    }
    drop(frozen);
    assert_eq!(client.call_text("a_call_count", json!({})).await, "1", "no other call has arrived");
}

#[tokio::test]
async fn reg5_equal_names_on_two_servers_never_collide() {
    let gateway = Gateway::with_servers(json!({ "one": named("one"), "two": named("two") })).await;
    let client = gateway.client().await;
    for id in ["one", "two"] {
        client.await_tool(&format!("{id}_env")).await;
        assert_eq!(server_name(&client, &format!("{id}_env")).await, id);
    }
}

#[tokio::test]
async fn d4_equal_names_all_receive_a_suffix_and_the_bare_name_returns_the_candidates() {
    let servers = json!({
        "one": with(named("one"), "prefix", json!("p")),
        "two": with(named("two"), "prefix", json!("p")),
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client().await;
    let candidates = eventually("both are listed", || async {
        let names = client.tool_names().await;
        let found: Vec<_> = names.into_iter().filter(|name| name.starts_with("p_env")).collect();
        (found.len() == 2).then_some(found)
    })
    .await;
    let mut reached = Vec::new();
    for name in &candidates {
        assert!(name.starts_with("p_env_"), "{name}");
        reached.push(server_name(&client, name).await);
    }
    assert_eq!(reached, ["one", "two"]);
    let answer = client.request("tools/call", json!({"name": "p_env", "arguments": {"name": "SERVER_NAME"}})).await;
    assert_eq!(answer["error"]["data"]["code"], "TOOL_NOT_FOUND", "{answer}");
    assert_eq!(answer["error"]["data"]["candidates"], json!(candidates), "{answer}");
}

#[tokio::test]
async fn d4_a_name_never_moves_to_another_server() {
    let alone = json!({ "one": with(named("one"), "prefix", json!("p")) });
    let servers = json!({ "one": alone["one"], "two": with(named("two"), "prefix", json!("p")) });
    let gateway = Gateway::with_servers(alone).await;
    let client = gateway.client_seeing("p_env").await;
    assert_eq!(server_name(&client, "p_env").await, "one");

    let gateway = Gateway::with_servers(servers.clone()).await;
    let client = gateway.client().await;
    let first = eventually("both are listed", || async {
        let names = client.tool_names().await;
        let found: Vec<_> = names.into_iter().filter(|name| name.starts_with("p_env")).collect();
        (found.len() == 2).then_some(found)
    })
    .await;
    // A second run has one more server with this name. The same names refer to the same servers.
    let more = json!({ "another": servers["two"], "two": servers["two"], "one": servers["one"] });
    let gateway = Gateway::with_servers(more).await;
    let client = gateway.client().await;
    for (name, expected) in first.iter().zip(["one", "two"]) {
        client.await_tool(name).await;
        assert_eq!(server_name(&client, name).await, expected);
    }
}

#[tokio::test]
async fn d4_a_prefix_may_be_custom_or_empty() {
    let servers = json!({
        "one": with(named("one"), "prefix", json!("my-own")),
        "two": with(named("two"), "prefix", json!("")),
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("my-own_env").await;
    client.await_tool("env").await;
    assert_eq!(server_name(&client, "my-own_env").await, "one");
    assert_eq!(server_name(&client, "env").await, "two");
    assert!(!client.tool_names().await.iter().any(|name| name.starts_with("one_") || name.starts_with("two_")));
}

#[tokio::test]
async fn d4_without_namespacing_names_are_native() {
    let config = json!({ "namespacing": "none", "mcpServers": { "one": named("one") } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("env").await;
    assert_eq!(server_name(&client, "env").await, "one");
    let tools = client.list("tools/list", "tools").await;
    assert!(tools.iter().all(|tool| tool["_meta"]["dev.goblin/native"].is_null()), "unchanged where nothing changed");
}

#[tokio::test]
async fn d4_long_names_are_cut_to_the_same_unique_names_in_every_run() {
    let config = json!({
        "namespacing": { "maxLength": 20 },
        "mcpServers": { "a_rather_long_server_id": fixture_server(&["--tools", "40"]) },
    });
    let mut runs = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::start(config.clone()).await;
        let client = gateway.client().await;
        let tools = eventually("the tools are listed", || async {
            let tools = client.list("tools/list", "tools").await;
            (!tools.is_empty()).then_some(tools)
        })
        .await;
        let names: std::collections::BTreeSet<_> =
            tools.iter().map(|tool| tool["name"].as_str().expect("a name")).collect();
        assert_eq!(names.len(), tools.len(), "names are unique");
        for tool in &tools {
            let name = tool["name"].as_str().expect("a name");
            assert!(
                name.len() <= 20 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)),
                "{name}"
            );
            let native = tool["_meta"]["dev.goblin/native"].as_str().expect("the native name is kept");
            if native.starts_with("tool_") {
                assert_eq!(client.call_text(name, json!({})).await, format!("{native} was called"));
            }
        }
        runs.push(tools);
    }
    assert_eq!(runs[0], runs[1], "the same in every run");
}

#[tokio::test]
async fn reg9_an_alias_replaces_the_minted_name() {
    let server = with(named("one"), "tools", json!({ "rename": { "env": "ask_env" } }));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("ask_env").await;
    assert_eq!(server_name(&client, "ask_env").await, "one");
    assert!(!client.tool_names().await.contains(&"a_env".to_owned()));
    let answer = client.request("tools/call", json!({"name": "a_env"})).await;
    assert_eq!(answer["error"]["data"]["code"], "TOOL_NOT_FOUND");
}

#[tokio::test]
async fn reg9_an_alias_takes_part_in_conflicts() {
    let servers = json!({
        "a": with(named("a"), "tools", json!({ "rename": { "env": "b_env" } })),
        "b": named("b"),
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    let answer = client.request("tools/call", json!({"name": "b_env", "arguments": {"name": "SERVER_NAME"}})).await;
    let candidates = answer["error"]["data"]["candidates"].as_array().expect("candidates").clone();
    let mut reached = Vec::new();
    for name in &candidates {
        reached.push(server_name(&client, name.as_str().expect("a name")).await);
    }
    assert_eq!(reached, ["a", "b"]);
}

#[tokio::test]
async fn reg1_only_tools_allowed_by_the_configuration_are_offered() {
    let rules = json!({ "allow": ["e*", "call_count"], "deny": ["error"] });
    let gateway = Gateway::with_servers(json!({ "a": with(fixture_server(&[]), "tools", rules) })).await;
    let client = gateway.client_seeing("a_echo").await;
    assert_eq!(client.tool_names().await, ["a_echo", "a_call_count", "a_env"]);
    for name in ["a_error", "a_add"] {
        let answer = client.request("tools/call", json!({"name": name})).await;
        assert_eq!(answer["error"]["message"], format!("Tool not found: {name}"));
    }
    assert_eq!(client.call_text("a_call_count", json!({})).await, "1");
}

#[tokio::test]
async fn route4_an_error_of_the_backend_passes_unchanged() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_error").await;
    for error in [
        r#"{"code":-32050,"message":"caf\u00e9 \/","data":{"z":1.0,"a":[1e3,null],"uri":"note:///alpha"}}"#,
        r#"{"code":7,"message":""}"#,
        r#"{"code":-32002,"message":"Resource not found","data":{"uri":"note:///alpha"}}"#,
        r#"{"code":-32601,"message":"Method not found","data":null}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{{"name":"a_error","arguments":{error}}}}}"#
        );
        let answer = client.post(body).await.body;
        assert!(answer.contains(&format!(r#""error":{error}"#)), "{error}: {answer}");
    }
    let failed = client.call("a_fail", json!({})).await;
    assert_eq!(failed["isError"], true);
}

#[tokio::test]
async fn route5_arguments_are_validated_only_where_validate_is_set() {
    let servers = json!({ "free": fixture_server(&[]), "strict": with(fixture_server(&[]), "validate", json!(true)) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("free_nonce").await;
    client.await_tool("strict_nonce").await;

    let judged = client.call("free_nonce", json!({"nonce": 7})).await;
    assert_eq!(judged["content"][0]["text"], "nonce is missing", "the backend's own text");
    assert_eq!(client.call_text("free_call_count", json!({})).await, "2");

    let rejected = client.call("strict_nonce", json!({"nonce": 7})).await;
    assert_eq!(rejected["isError"], true, "{rejected}");
    let text = rejected["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("strict_nonce") && text.contains("/nonce"), "{text}");
    assert_eq!(client.call_text("strict_call_count", json!({})).await, "1", "the rejected call never arrived");
    assert_eq!(client.call_text("strict_nonce", json!({"nonce": "n"})).await, "n");
}

#[tokio::test]
async fn srv5_a_result_has_the_id_exactly_as_the_client_wrote_it() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for id in ["1", "\"1\"", "-7", "\"\"", "\"é \\\"quoted\\\"\"", "18446744073709551617"] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"a_echo","arguments":{{}}}}}}"#
        );
        let answer = client.post(body).await.body;
        assert!(answer.contains(&format!(r#""id":{id}"#)), "{id}: {answer}");
        assert!(answer.contains(r#""structuredContent":{}"#), "{id}: {answer}");
    }
}

#[tokio::test]
async fn err1_an_error_about_a_backend_names_the_server() {
    let server = json!({ "command": "sh", "args": ["-c", "test -e once && exit 1; touch once; exec \"$0\"", crate::harness::fixture()] });
    let scratch = Scratch::new();
    let server = with(server, "cwd", json!(scratch.path()));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_crash").await;
    let crashed = client.request("tools/call", json!({"name": "a_crash"})).await;
    assert_eq!(crashed["error"]["code"], 1503, "{crashed}");
    assert_eq!(crashed["error"]["data"]["serverId"], "a", "{crashed}");
    assert!(crashed["error"]["data"]["retryable"].is_null(), "the call had been sent: {crashed}");
    let after = client.request("tools/call", json!({"name": "a_echo"})).await;
    assert_eq!(after["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{after}");
    assert_eq!(after["error"]["data"]["retryable"], true, "the call was never sent: {after}");
}

#[tokio::test]
async fn d6_an_exceeded_limit_is_reported_by_name() {
    let config = json!({
        "gateway": { "maxSessions": 2 },
        "policies": { "maxInFlight": 1 },
        "mcpServers": { "a": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_hang").await;
    let body = json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "a_hang"}});
    let (_, _hanging) = client.open(body.to_string()).await;
    let rejected = client.request("tools/call", json!({"name": "a_echo"})).await;
    check_limit(&rejected, "maxInFlight", 1);
    client.notify("notifications/cancelled", json!({"requestId": "h"})).await;
    eventually("there is room again", || async {
        client.request("tools/call", json!({"name": "a_echo", "arguments": {}})).await["error"].is_null().then_some(())
    })
    .await;

    // Sessions with a stream are not evicted.
    let second = gateway.client().await;
    let _streams = (client.listen().await, second.listen().await);
    let mut third = Client::new(gateway.address);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
    let answer = third.post(hello.to_string()).await;
    assert_eq!(answer.status, http::StatusCode::SERVICE_UNAVAILABLE);
    check_limit(&answer.json(), "maxSessions", 2);
    client.send(http::Method::DELETE, "/mcp", &client.headers(), "").await;
    assert_eq!(third.initialize("2025-11-25").await["result"]["protocolVersion"], "2025-11-25");
}

fn check_limit(answer: &Value, limit: &str, value: u64) {
    let error = &answer["error"];
    assert_eq!(error["code"], 1429, "{answer}");
    assert_eq!(error["data"]["code"], "LIMIT_EXCEEDED", "{answer}");
    assert_eq!((&error["data"]["limit"], &error["data"]["value"]), (&json!(limit), &json!(value)), "{answer}");
    assert!(error["message"].as_str().expect("a text").starts_with("LimitExceeded: "), "{answer}");
}

/// With one server, the receiver of an unknown method is certain. `interop_difference` plays the successful requests.
#[tokio::test]
async fn an_unknown_method_reaches_the_only_server_and_none_of_several() {
    let only = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = only.client_seeing("a_echo").await;
    let answer = client.request("vendor/method", json!({"x": 1})).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    assert!(answer["error"]["data"]["code"].is_null(), "the error is that of the server: {answer}");
    // A legacy server may answer with another code, and a modern client needs this one.
    let answer = Client::modern(only.address, json!({})).request("vendor/method", json!({"x": 1})).await;
    assert_eq!(answer["error"]["data"]["code"], "METHOD_NOT_FOUND", "{answer}");
    let several = json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) });
    let several = Gateway::with_servers(several).await;
    for client in [several.client_seeing("a_echo").await, Client::modern(several.address, json!({}))] {
        let answer = client.request("vendor/method", json!({"x": 1})).await;
        assert_eq!(answer["error"]["data"]["code"], "METHOD_NOT_FOUND", "{answer}");
    }
    let answer = several.client().await.request("vendor/method", json!({})).await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.ends_with("only if the client sees exactly one server)"), "{message}");
}
