//! Errors of the gateway's own tools are tool errors that the agent can correct.
//!
//! Each message names the mistake and the next step. An invalid call reaches no server.

use serde_json::{Value, json};

use crate::harness::{Gateway, fixture_server};
use crate::meta_client::{clients_of_each_kind, text};

fn config() -> Value {
    let servers = json!({ "github": fixture_server(&[]), "notes": fixture_server(&["--resources", "2"]) });
    json!({ "metaTools": true, "mcpServers": servers })
}

/// Returns each call, and the text that its error must contain.
fn mistakes() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("search_tools", json!({}), r#"invalid arguments for search_tools: arguments: "query" is a required property"#),
        ("search_tools", json!({"query": 7}), r#"/query: 7 is not of type "string""#),
        ("search_tools", json!({"query": "x", "limit": "many"}), r#"/limit: "many" is not of type "integer""#),
        ("search_tools", json!({"query": "x", "limit": 2.5}), r#"/limit: 2.5 is not of type "integer""#),
        ("search_tools", json!({"query": "x", "server": "a"}), "'server' was unexpected"),
        ("search_tools", json!({"query": "x", "serverId": "githb"}), "no server `githb`; did you mean `github`?"),
        (
            "search_tools",
            json!({"query": "x", "serverId": "zzzzzz"}),
            "no server `zzzzzz`; `list_servers` lists all servers",
        ),
        ("search_resources", json!({"query": "x", "mimeType": ["a"]}), r#"/mimeType: ["a"] is not of type "string""#),
        ("list_servers", json!({"all": true}), "'all' was unexpected"),
        ("list_servers", json!([]), r#"[] is not of type "object""#),
        ("catalog_tools", json!({"cursor": "nonsense"}), "not a cursor of `catalog_tools`: begin again without one"),
        ("catalog_tools", json!({"cursor": "p0-0-1"}), "the catalog has changed since this cursor was given"),
        ("catalog_prompts", json!({"cursor": "p0-0-1"}), "not a cursor of `catalog_prompts`"),
        ("catalog_resources", json!({"serverId": "note"}), "no server `note`; did you mean `notes`?"),
        ("describe_tool", json!({"name": "githb_echo"}), "no tool `githb_echo`; did you mean `github_echo`"),
        ("describe_tool", json!({"name": "qqqqqqqqqq"}), "no tool `qqqqqqqqqq`; `search_tools` finds tools"),
        ("describe_tool", json!({"name": ""}), "no tool ``"),
        ("describe_tool", json!({}), r#""name" is a required property"#),
        ("describe_prompt", json!({"name": "github_gret"}), "no prompt `github_gret`; did you mean `github_greet`"),
        ("describe_prompt", json!({"name": "qqqqqqqqqq"}), "no prompt `qqqqqqqqqq`; `search_prompts` finds prompts"),
        ("describe_resource", json!({"uri": "github+blob:///bim"}), "did you mean `github+blob:///bin`"),
        (
            "describe_resource",
            json!({"uri": "mail:///qqqqqqqqqq"}),
            "no resource `mail:///qqqqqqqqqq`; `search_resources`",
        ),
        (
            "describe_resource",
            json!({"uri": "note:///alpha"}),
            "use one of `github+note:///alpha`, `notes+note:///alpha`",
        ),
        ("describe_resource", json!({"uri": "a\u{1}b"}), "control characters"),
        ("call_tool", json!({}), r#""name" is a required property"#),
        ("call_tool", json!({"name": 3}), r#"/name: 3 is not of type "string""#),
        ("call_tool", json!({"name": "github_echo", "arguments": "x"}), r#"/arguments: "x" is not of type "object""#),
        ("call_tool", json!({"name": "github_echo", "arguments": null}), r#"/arguments: null is not of type "object""#),
        ("call_tool", json!({"name": "github_echo", "timeout": 3}), "'timeout' was unexpected"),
        ("call_tool", json!({"name": "githb_echo"}), "no tool `githb_echo`; did you mean `github_echo`"),
        (
            "call_tool",
            json!({"name": "search_tools", "arguments": {"query": "x"}}),
            "`search_tools` is one of the gateway's own tools",
        ),
        (
            "call_tool",
            json!({"name": "call_tool", "arguments": {"name": "github_echo"}}),
            "`call_tool` is one of the gateway's own tools",
        ),
    ]
}

#[tokio::test]
async fn meta5_an_invalid_call_returns_a_tool_error_with_a_cure_and_reaches_no_server() {
    let gateway = Gateway::start(config()).await;
    for client in clients_of_each_kind(&gateway, &config(), &["github_echo", "notes_echo"]).await {
        let before = client.call("github_call_count", json!({})).await;
        for (tool, arguments, expected) in mistakes() {
            let result = client.call(tool, arguments.clone()).await;
            let case = format!("{} {tool} {arguments}: {result}", client.name);
            assert_eq!(result["isError"], true, "{case}");
            assert!(result.get("structuredContent").is_none(), "{case}");
            assert!(text(&result).contains(expected), "{case}");
        }
        let after = client.call("github_call_count", json!({})).await;
        let number = |result: &Value| text(result).parse::<u64>().expect("a number");
        assert_eq!(number(&after), number(&before) + 1, "no server received any of the calls");
    }
}

#[tokio::test]
async fn meta5_a_limit_out_of_range_is_clamped_and_noted_in_the_result() {
    let gateway = Gateway::start(config()).await;
    for client in clients_of_each_kind(&gateway, &config(), &["github_echo", "notes_echo"]).await {
        for (tool, limit, used, note) in [
            ("search_tools", json!(0), Some(1), "limit must be from 1 to 100; 1 was used"),
            ("search_tools", json!(-5), Some(1), "; 1 was used"),
            ("search_tools", json!(101), None, "limit must be from 1 to 100; 100 was used"),
            ("catalog_tools", json!(1001), None, "limit must be from 1 to 1000; 1000 was used"),
            ("catalog_tools", json!(0), Some(1), "limit must be from 1 to 1000; 1 was used"),
        ] {
            let arguments =
                if tool == "search_tools" { json!({"query": "", "limit": limit}) } else { json!({"limit": limit}) };
            let result = client.call(tool, arguments).await;
            let structured = &result["structuredContent"];
            assert!(structured["note"].as_str().expect("a note").contains(note), "{result}");
            assert!(text(&result).contains(note), "{result}");
            if let Some(used) = used {
                assert_eq!(structured["tools"].as_array().map(Vec::len), Some(used), "{result}");
            }
        }
    }
}

/// A duplicate member is ambiguous, so the call is rejected.
#[tokio::test]
async fn meta5_a_call_with_a_duplicate_member_reaches_no_server() {
    let gateway = Gateway::start(config()).await;
    let client = gateway.client_seeing("github_echo").await;
    for arguments in [
        r#"{"name":"github_echo","name":"github_crash","arguments":{}}"#,
        r#"{"name":"github_echo","arguments":{},"arguments":{"a":1}}"#,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"call_tool","arguments":{arguments}}}}}"#
        );
        let answer = client.post(body).await.json();
        assert_eq!(answer["result"]["isError"], true, "{answer}");
    }
    assert_eq!(client.call_text("github_call_count", json!({})).await, "1");
}

#[tokio::test]
async fn meta5_an_ambiguous_tool_name_is_rejected_with_the_candidates() {
    let config = json!({
        "metaTools": true, "namespacing": "none",
        "mcpServers": { "a": fixture_server(&[]), "b": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let names = crate::harness::eventually("both are there", || async {
        let names = client.tool_names().await;
        let echoes: Vec<String> = names.into_iter().filter(|name| name.starts_with("echo_")).collect();
        (echoes.len() == 2).then_some(echoes)
    })
    .await;
    for tool in ["describe_tool", "call_tool"] {
        let result = client.call(tool, json!({"name": "echo"})).await;
        assert_eq!(result["isError"], true, "{result}");
        let text_value = text(&result);
        assert!(text_value.starts_with("`echo` names several tools: use one of "), "{text_value}");
        assert!(names.iter().all(|name| text_value.contains(&format!("`{name}`"))), "{text_value}");
    }
    let result = client.call("call_tool", json!({"name": names[0], "arguments": {"x": 1}})).await;
    assert_eq!(result["structuredContent"], json!({"x": 1}));
}
