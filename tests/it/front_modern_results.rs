//! The results for clients of 2026-07-28: `resultType`, log lines and progress on their own requests.
//!
//! The gateway adds members only at the front of a result. Every other token is as the backend wrote it.

use goblin_fixture::lossless::LOSSLESS;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Answer;
use crate::client::modern::{Draft, META, VERSION};
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, fixture_server};

/// Starts a gateway with one server over stdio and one over HTTP.
async fn gateway() -> (Gateway, Client, HttpFixture) {
    let http = HttpFixture::start(&[]).await;
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "h": http.server() })).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_echo").await;
    client.await_tool("h_echo").await;
    (gateway, client, http)
}

fn is_hint(result: &Value) -> bool {
    result["ttlMs"].is_u64() && matches!(result["cacheScope"].as_str(), Some("private" | "public"))
}

#[tokio::test]
async fn srv2_discover_returns_the_versions_and_capabilities_of_the_gateway() {
    let (_gateway, client, _http) = gateway().await;
    let result = client.request("server/discover", json!({})).await["result"].clone();
    assert_eq!((&result["resultType"], is_hint(&result)), (&json!("complete"), true), "{result}");
    assert_eq!(result["supportedVersions"], json!([VERSION]));
    let capabilities = &result["capabilities"];
    assert_eq!(capabilities["resources"], json!({"subscribe": true, "listChanged": true}), "{result}");
    for kind in ["tools", "prompts"] {
        assert_eq!(capabilities[kind], json!({"listChanged": true}), "{result}");
    }
    assert!(capabilities["completions"].is_object() && capabilities["logging"].is_object(), "{result}");
    assert_eq!(result["_meta"][format!("{META}serverInfo")]["name"], "goblin", "{result}");
    let pipe = Client::stdio(json!({ "mcpServers": {} })).as_modern(json!({}));
    let piped = pipe.request("server/discover", json!({})).await["result"].clone();
    assert_eq!((&piped["supportedVersions"], &piped["capabilities"]), (&result["supportedVersions"], capabilities));
}

#[tokio::test]
async fn srv2_results_have_a_type_and_cacheable_results_have_a_lifetime() {
    let (_gateway, client, _http) = gateway().await;
    for server in ["a", "h"] {
        for (method, params, may_be_kept) in [
            ("server/discover", json!({}), true),
            ("tools/list", json!({}), true),
            ("prompts/list", json!({}), true),
            ("resources/list", json!({}), true),
            ("resources/templates/list", json!({}), true),
            ("resources/read", json!({"uri": format!("{server}+note:///alpha")}), true),
            ("tools/call", json!({"name": format!("{server}_add"), "arguments": {"a": 1, "b": 2}}), false),
            ("tools/call", json!({"name": format!("{server}_fail")}), false),
            ("prompts/get", json!({"name": format!("{server}_greet"), "arguments": {"name": "Ada"}}), false),
            (
                "completion/complete",
                json!({"ref": {"type": "ref/prompt", "name": format!("{server}_greet")}, "argument": {"name": "name", "value": "A"}}),
                false,
            ),
        ] {
            let answer = client.request(method, params).await;
            let result = &answer["result"];
            assert_eq!(result["resultType"], "complete", "{method}: {answer}");
            assert_eq!(is_hint(result), may_be_kept, "{method}: {answer}");
            assert!(may_be_kept || result.get("ttlMs").is_none(), "{method}: {answer}");
            assert_eq!(result["_meta"][format!("{META}serverInfo")]["name"], "goblin", "{method}: {answer}");
        }
    }
}

#[tokio::test]
async fn srv2_an_answer_keeps_the_type_of_its_request_id() {
    let (_gateway, client, _http) = gateway().await;
    let pipe = Client::stdio(json!({ "mcpServers": { "a": fixture_server(&[]) } })).as_modern(json!({}));
    pipe.await_tool("a_echo").await;
    for id in ["1", r#""1""#, "-3", "0", r#""a é \"b\"""#, "9007199254740993"] {
        for (method, params) in [("tools/list", json!({})), ("tools/call", json!({"name": "a_nobody"}))] {
            let draft = Draft::new(method, params);
            let body = draft.body.replacen(r#""id":1,"#, &format!(r#""id":{id},"#), 1);
            pipe.write(&body).await;
            let over_http = client.send_draft(&Draft { body, ..draft }).await.body;
            for answer in [over_http, pipe.line().await.expect("an answer")] {
                assert!(answer.contains(&format!(r#""id":{id},"#)), "{id}: {answer}");
            }
        }
    }
}

fn call_with(tool: &str, arguments: Value, meta: Value) -> Draft {
    Draft::new("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}))
}

/// Returns the params of the notifications of this method, in order.
fn notifications(answer: &Answer, method: &str) -> Vec<Value> {
    let messages = answer.messages();
    let messages = messages.iter().map(|message| serde_json::from_str::<Value>(message).expect("JSON"));
    messages.filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect()
}

#[tokio::test]
async fn srv2_log_messages_reach_only_requests_that_set_a_log_level() {
    let (_gateway, client, _http) = gateway().await;
    let level = |name: &str| json!({ format!("{META}logLevel"): name });
    for server in ["a", "h"] {
        for (meta, level, expected) in [
            (json!({}), "emergency", 0),
            (level("debug"), "debug", 3),
            (level("info"), "debug", 0),
            (level("warning"), "notice", 0),
            (level("warning"), "warning", 3),
            (level("warning"), "critical", 3),
            (level("emergency"), "alert", 0),
        ] {
            let arguments = json!({"count": 3, "level": level});
            let answer = client.send_draft(&call_with(&format!("{server}_log"), arguments, meta.clone())).await;
            let lines = notifications(&answer, "notifications/message");
            assert_eq!(lines.len(), expected, "{server} {meta} {level}: {answer:?}");
            for (number, line) in lines.iter().enumerate() {
                assert_eq!((&line["level"], &line["data"]["number"]), (&json!(level), &json!(number + 1)), "{line}");
            }
            assert_eq!(answer.json()["result"]["content"][0]["text"], "3 messages");
        }
    }
}

#[tokio::test]
async fn srv2_log_messages_over_a_pipe_reach_only_requests_that_set_a_log_level() {
    let client = Client::stdio(json!({ "mcpServers": { "a": fixture_server(&[]) } })).as_modern(json!({}));
    client.await_tool("a_log").await;
    for (level, expected) in [(None, 0), (Some("error"), 0), (Some("info"), 2)] {
        let mut params = json!({"name": "a_log", "arguments": {"count": 2, "level": "info"}});
        if let Some(level) = level {
            params["_meta"][format!("{META}logLevel")] = json!(level);
        }
        client.begin_as(json!("x"), "tools/call", params).await;
        let mut lines = 0;
        loop {
            let message = client.message().await;
            match message["method"].as_str() {
                Some("notifications/message") => lines += 1,
                Some(other) => assert!(other.ends_with("list_changed"), "{message}"),
                None => break assert_eq!(message["id"], "x", "{message}"),
            }
        }
        assert_eq!(lines, expected, "{level:?}");
    }
}

#[tokio::test]
async fn srv2_progress_has_the_token_of_its_request() {
    let (_gateway, client, _http) = gateway().await;
    for tool in ["a_progress", "h_progress"] {
        for token in [json!("p"), json!(7), json!("7"), json!(-1)] {
            let answer =
                client.send_draft(&call_with(tool, json!({"steps": 3}), json!({"progressToken": token}))).await;
            let progress = notifications(&answer, "notifications/progress");
            let seen: Vec<_> =
                progress.iter().map(|it| (it["progressToken"].clone(), it["progress"].clone())).collect();
            let expected: Vec<_> = (1..=3).map(|step| (token.clone(), json!(step))).collect();
            assert_eq!(seen, expected, "{tool}: {answer:?}");
        }
        for meta in [json!({}), json!({"progressToken": null}), json!({"progressToken": {}})] {
            let answer = client.send_draft(&call_with(tool, json!({"steps": 3}), meta.clone())).await;
            assert_eq!(notifications(&answer, "notifications/progress"), Vec::<Value>::new(), "{tool} {meta}");
        }
    }
}

const ODD: &str = r#"{"numbers":[1.0,1e3,1E+2,-0,-0.0,0.10,1e400,123456789012345678901234567890.000],"caf\u00e9 \/":"\ud83d\ude00 \u2028 \"\\\b","":{"":null},"10":1,"9":2}"#;

/// The results are unchanged except for the members that the version adds at the front.
#[tokio::test]
async fn srv5_results_are_lossless_for_clients_without_a_session() {
    let (_gateway, client, _http) = gateway().await;
    let pipe = Client::stdio(json!({ "mcpServers": { "a": fixture_server(&[]) } })).as_modern(json!({}));
    pipe.await_tool("a_echo").await;
    let lossless = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":"complete",{}}}"#, &LOSSLESS[1..]);
    let echoed = format!(r#","content":[{{"type":"text","text":{}}}],"structuredContent":{ODD}}}}}"#, json!(ODD));
    for server in ["a", "h"] {
        let draft = Draft::new("tools/call", json!({"name": format!("{server}_lossless")}));
        let echo = Draft::new("tools/call", json!({"name": format!("{server}_echo"), "arguments": "ODD"}));
        let echo = Draft { body: echo.body.replace(r#""ODD""#, ODD), ..echo };
        let mut answers = vec![(client.send_draft(&draft).await.body, client.send_draft(&echo).await.body)];
        if server == "a" {
            pipe.write(&draft.body).await;
            let first = pipe.line().await.expect("an answer");
            pipe.write(&echo.body).await;
            answers.push((first, pipe.line().await.expect("an answer")));
        }
        for (first, second) in answers {
            assert_eq!(first, lossless, "{server}");
            assert!(second.ends_with(&echoed), "{server}: {second}");
        }
    }
}

#[tokio::test]
async fn d5_a_missing_resource_is_an_invalid_params_error_with_its_uri() {
    let (_gateway, client, _http) = gateway().await;
    for uri in ["a+note:///missing", "h+note:///missing", "a+nobody:///x", "nobody:///x"] {
        let answer = client.request("resources/read", json!({ "uri": uri })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert_eq!(answer["error"]["data"]["uri"], uri, "{answer}");
        assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{answer}");
    }
}

#[tokio::test]
async fn srv5_errors_of_backends_pass_with_200() {
    let (_gateway, client, _http) = gateway().await;
    for tool in ["a_error", "h_error"] {
        for code in [-32000, -32603, -32602, 7] {
            let arguments = json!({"code": code, "message": "m", "data": {"x": [1]}});
            let answer = client.send_draft(&call_with(tool, arguments.clone(), json!({}))).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (200, &arguments), "{answer:?}");
        }
    }
}
