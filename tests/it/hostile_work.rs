//! Hostile tests: expensive work of a client or a backend does not block the worker threads (HARD-4).
//!
//! Each test documents the maximal memory of the gateway in MiB. The test build is not optimized, so the sizes here are
//! smaller than those of a real attack.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::hostile::{Attack, HEALTHY, await_limit, limit_hits};
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::support::{assert_error, await_log, begin_call, ended, http_server};

/// The lists of a hostile server.
#[derive(Clone, Default)]
struct Lists {
    tools: Vec<Value>,
    resources: Vec<Value>,
    templates: Vec<Value>,
}

const PAGE: usize = 5_000;

impl Lists {
    async fn serve(self) -> Scripted {
        Scripted::start(move |seen, _| self.answer(seen)).await
    }

    fn answer(&self, seen: &Seen) -> Reply {
        match seen.method() {
            "initialize" => seen.result(json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "hostile", "version": "0"},
            })),
            "tools/list" => page(seen, "tools", &self.tools),
            "resources/list" => page(seen, "resources", &self.resources),
            "resources/templates/list" => page(seen, "resourceTemplates", &self.templates),
            "resources/read" => {
                let uri = &seen.message["params"]["uri"];
                seen.result(json!({"contents": [{"uri": uri, "text": "read"}]}))
            }
            _ => seen.legacy(),
        }
    }
}

fn page(seen: &Seen, member: &str, entries: &[Value]) -> Reply {
    let cursor = seen.message["params"]["cursor"].as_str();
    let from: usize = cursor.map_or(0, |cursor| cursor.parse().expect("our own cursor"));
    let to = entries.len().min(from + PAGE);
    let mut result = json!({ member: entries[from..to] });
    if to < entries.len() {
        result["nextCursor"] = json!(to.to_string());
    }
    seen.result(result)
}

/// Starts a gateway with a hostile and a healthy server, and a client.
async fn attacked(evil: &Scripted, settings: Value) -> (Gateway, Client) {
    let mut server = http_server(evil.address);
    for (key, value) in settings.as_object().expect("settings") {
        server[key] = value.clone();
    }
    let gateway = Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]), "evil": server })).await;
    let client = gateway.client_seeing(&format!("{HEALTHY}_echo")).await;
    (gateway, client)
}

fn tool(name: &str, schema: Value) -> Value {
    json!({ "name": name, "inputSchema": schema })
}

fn error_text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

/// Returns thirty definitions, each of which refers to the next one twice: two kilobytes that expand to a billion
/// nodes.
fn schema_bomb() -> Value {
    let mut definitions = serde_json::Map::new();
    for number in 0..30 {
        let next = json!({ "$ref": format!("#/$defs/d{}", number + 1) });
        definitions.insert(format!("d{number}"), json!({ "anyOf": [next, next] }));
    }
    definitions.insert("d30".to_owned(), json!({ "type": "integer" }));
    json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/d0" } }, "$defs": definitions })
}

#[tokio::test]
async fn hard4_calls_of_a_tool_with_an_exploding_schema_pass_unvalidated() {
    let evil = Lists { tools: vec![tool("bomb", schema_bomb())], ..Lists::default() }.serve().await;
    let (gateway, client) = attacked(&evil, json!({ "validate": true })).await;
    client.await_tool("evil_bomb").await;
    let attack = Attack::begin("a schema of doubling references", &gateway).await;
    for argument in [json!(1), json!("of the wrong type")] {
        let answer = client.call("evil_bomb", json!({ "a": argument })).await;
        assert_eq!(answer["content"], json!([]), "the backend is the judge: {answer}");
    }
    assert_eq!(limit_hits(&client, "schemaNodes").await, 2);
    await_log(&gateway, &["calls of a tool are not validated", "bomb"]).await;
    attack.end(256).await;
}

#[tokio::test]
async fn hard4_recursive_schemas_and_patterns_are_still_validated() {
    let tree = json!({
        "type": "object",
        "properties": { "value": { "type": "integer" }, "children": { "type": "array", "items": { "$ref": "#" } } },
    });
    let pattern = |pattern: &str| json!({ "type": "object", "properties": { "a": { "pattern": pattern } } });
    let tools = vec![
        tool("tree", tree),
        tool("backtracking", pattern("^(a+)+$")),
        tool("enormous", pattern("(?:a{1,1000}){1,1000}")),
    ];
    let evil = Lists { tools, ..Lists::default() }.serve().await;
    let (gateway, client) = attacked(&evil, json!({ "validate": true })).await;
    client.await_tool("evil_tree").await;
    let attack = Attack::begin("recursive schemas and patterns", &gateway).await;
    let nested = |leaf: Value| (0..8).fold(leaf, |inner, _| json!({ "value": 1, "children": [inner] }));
    assert_eq!(client.call("evil_tree", nested(json!({ "value": 1 }))).await["content"], json!([]));
    let rejected = client.call("evil_tree", nested(json!({ "value": "x" }))).await;
    assert!(error_text(&rejected).contains("/children/0/value: "), "{rejected}");
    let long = format!("{}!", "a".repeat(50_000));
    let rejected = client.call("evil_backtracking", json!({ "a": long })).await;
    assert!(error_text(&rejected).contains("/a: "), "{rejected}");
    let passed = client.call("evil_enormous", json!({ "a": long })).await;
    assert_eq!(passed["content"], json!([]), "the backend checks a pattern that cannot be compiled");
    attack.end(256).await;
}

#[tokio::test]
async fn hard4_many_templates_without_a_literal_prefix_do_not_stop_the_gateway() {
    // The number of templates is the cap per backend. None of them has a literal prefix, so all are tried.
    let mut templates: Vec<_> =
        (0..9_999).map(|number| json!({ "name": "t", "uriTemplate": format!("{{+a}}/q{number}/{{b}}") })).collect();
    templates.push(json!({ "name": "t", "uriTemplate": "literal://here/{b}" }));
    let evil = Lists { templates, ..Lists::default() }.serve().await;
    let (mut gateway, client) = attacked(&evil, json!({})).await;
    let read = async |uri: &str| client.request("resources/read", json!({ "uri": uri })).await;
    eventually("the templates are there", || async {
        let answer = read("evil+literal://here/a").await;
        (answer["result"]["contents"][0]["text"] == "read").then_some(())
    })
    .await;
    let attack = Attack::begin("templates without a literal prefix", &gateway).await;
    let long = format!("evil+x://{}", "a".repeat(8_000));
    for _ in 0..3 {
        let error = assert_error(&read(&long).await, 1429, "LIMIT_EXCEEDED");
        assert_eq!(error["limit"], "matchSteps");
    }
    assert!(limit_hits(&client, "matchSteps").await >= 3);
    attack.end(256).await;
    let reads: Vec<_> = (0..4)
        .map(|_| {
            let (client, long) = (client.clone(), long.clone());
            tokio::spawn(async move { client.request("resources/read", json!({ "uri": long })).await })
        })
        .collect();
    assert!(gateway.terminate().await.success());
    reads.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn hard4_a_list_of_too_many_templates_is_rejected_and_logged() {
    let template = |number: usize| json!({ "name": "t", "uriTemplate": format!("t{number}://{{a}}") });
    let lists = Lists {
        tools: vec![tool("t", json!({ "type": "object" }))],
        templates: (0..10_001).map(template).collect(),
        ..Lists::default()
    };
    let evil = lists.serve().await;
    let (gateway, client) = attacked(&evil, json!({})).await;
    client.await_tool("evil_t").await;
    let attack = Attack::begin("too many templates", &gateway).await;
    await_limit(&client, "templates").await;
    await_log(
        &gateway,
        &["cannot list the entries of the backend", "resources/templates/list", "more than 10000 resource templates"],
    )
    .await;
    let listed = client.list("resources/templates/list", "resourceTemplates").await;
    assert!(
        listed.iter().all(|template| !template["uriTemplate"].to_string().contains("evil")),
        "none was listed before"
    );
    attack.end(256).await;
}

#[tokio::test]
async fn hard4_a_long_list_is_built_listed_searched_and_subscribed_off_the_worker_threads() {
    const COUNT: usize = 30_000;
    let resource = |number: usize| json!({ "uri": format!("X:///Dir/%7e{number}.txt"), "name": format!("n{number}") });
    let evil = Lists { resources: (0..COUNT).map(resource).collect(), ..Lists::default() }.serve().await;
    let (gateway, client) = attacked(&evil, json!({})).await;
    let attack = Attack::begin("a long list of resources", &gateway).await;
    let is_listed = async || {
        let answer = client.request("resources/read", json!({ "uri": "evil+X:///Dir/%7e29999.txt" })).await;
        (answer["result"]["contents"][0]["text"] == "read").then_some(())
    };
    eventually("the list is there", is_listed).await;
    let listed = client.list("resources/list", "resources").await;
    let of_evil = listed.iter().filter(|it| it["uri"].to_string().contains("evil+")).count();
    assert_eq!(of_evil, COUNT);
    let search = begin_call(&client, "search_resources", json!({ "query": "n123" }));
    let glob = async |glob: &str| {
        let meta = json!({ "dev.goblin/pattern": "glob" });
        client.request("resources/subscribe", json!({ "uri": glob, "_meta": meta })).await
    };
    let everything = glob("evil+X:///**").await;
    let error = assert_error(&everything, 1429, "LIMIT_EXCEEDED");
    assert_eq!(error["limit"], "subscriptions.maxUpstream");
    let some = glob("evil+X:///Dir/*77.txt").await;
    assert!(some["error"].is_null(), "{some}");
    let found = ended(search).await;
    assert!(found.to_string().contains("n123"), "{found}");
    // Another spelling is found by its normal form.
    let spelled = client.request("resources/read", json!({ "uri": "evil+x:///Dir/%7e77.txt" })).await;
    assert_eq!(spelled["result"]["contents"][0]["text"], "read", "{spelled}");
    attack.end(512).await;
}
