//! The gateway's own tools (META-1 to META-5, REG-6, REG-7, D2): their results for every kind of client.
//!
//! The results must match their output schemas and be the same over every transport.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::raw_member;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::meta_client::{NAMES, clients_of_each_kind, column, text};

/// Returns a configuration with two similar servers. `b` has forty more resources and three more prompts.
fn config() -> Value {
    let b = fixture_server(&["--resources", "40", "--prompts", "3"]);
    json!({ "metaTools": true, "mcpServers": { "a": fixture_server(&[]), "b": b } })
}

/// Starts a gateway with both servers, and one client of each kind.
async fn meta_clients() -> (Gateway, Vec<Client>) {
    let gateway = Gateway::start(config()).await;
    let meta_clients = clients_of_each_kind(&gateway, &config(), &["a_echo", "b_echo"]).await;
    (gateway, meta_clients)
}

async fn client() -> (Gateway, Client) {
    let gateway = Gateway::start(config()).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    (gateway, client)
}

#[tokio::test]
async fn meta5_meta_tools_are_listed_after_the_tools_of_servers() {
    let scratch = crate::harness::Scratch::new();
    let config = json!({ "metaTools": true, "mcpServers": { "a": fixture_server(&[]) } });
    let path = scratch.write("goblin.json", &config.to_string());
    let mut command = crate::harness::goblin(scratch.path());
    command.args(["serve", "--port", "0", "--config"]).arg(path);
    let gateway = Gateway::of(command).await;
    let client = gateway.client_seeing("a_echo").await;
    let names = client.tool_names().await;
    assert_eq!(names[names.len() - NAMES.len()..], NAMES);
    assert!(names[..names.len() - NAMES.len()].iter().all(|name| name.starts_with("a_")), "{names:?}");
}

#[tokio::test]
async fn meta5_every_result_matches_its_output_schema_over_every_transport() {
    let (_gateway, meta_clients) = meta_clients().await;
    let mut answers: Vec<Vec<Value>> = Vec::new();
    for client in meta_clients {
        let listed = client.request("tools/list", json!({})).await["result"]["tools"].clone();
        let mut own = Vec::new();
        for (tool, arguments) in [
            ("list_servers", json!({})),
            ("catalog_tools", json!({"limit": 7})),
            ("search_tools", json!({"query": "add numbers"})),
            ("search_tools", json!({"query": "xyzzy plugh", "limit": 1000})),
            ("describe_tool", json!({"name": "a_add"})),
            ("describe_tool", json!({"name": "search_tools"})),
            ("catalog_prompts", json!({})),
            ("search_prompts", json!({"query": "greet", "serverId": "b"})),
            ("describe_prompt", json!({"name": "b_greet"})),
            ("catalog_resources", json!({"limit": 3})),
            ("search_resources", json!({"query": "note"})),
            ("describe_resource", json!({"uri": "a+note:///alpha"})),
            ("describe_resource", json!({"uri": "a+note:///something"})),
            ("catalog_resource_templates", json!({"serverId": "a"})),
        ] {
            let answer = client.call_structured(tool, arguments.clone()).await;
            let definition =
                listed.as_array().expect("tools").iter().find(|it| it["name"] == tool).expect("the entry is listed");
            let validator = jsonschema::validator_for(&definition["outputSchema"]).expect("a schema");
            let problems: Vec<String> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
            assert!(problems.is_empty(), "{} {tool} {arguments}: {problems:?} in {answer}", client.name);
            own.push(answer);
        }
        answers.push(own);
    }
    // Cursors contain the version of the catalog, and the eras read tools differently.
    let plain = |answers: &[Value]| {
        let mut answers = answers.to_vec();
        answers.iter_mut().for_each(|answer| {
            answer.as_object_mut().expect("an object").remove("nextCursor");
        });
        answers
    };
    assert_eq!(plain(&answers[0]), plain(&answers[1]));
    assert_eq!(plain(&answers[0]), plain(&answers[2]));
}

#[tokio::test]
async fn meta1_d2_catalog_resources_returns_cards_with_identifiers_and_filters_by_server() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let all = client.call_structured("catalog_resources", json!({})).await;
        let of_a = client.call_structured("catalog_resources", json!({"serverId": "a"})).await;
        let listed = client.request("resources/list", json!({})).await["result"]["resources"].clone();
        assert_eq!(column(&all["resources"], "uri"), column(&listed, "uri"));
        assert_eq!(all["total"], listed.as_array().map(Vec::len).expect("resources"));
        assert!(column(&of_a["resources"], "serverId").iter().all(|server| *server == "a"));
        assert_eq!(of_a["total"], of_a["resources"].as_array().map(Vec::len).expect("cards"));
        assert!(of_a["total"].as_u64() < all["total"].as_u64());
        let find =
            |uri: &str| all["resources"].as_array().expect("cards").iter().find(|card| card["uri"] == uri).cloned();
        let alpha = find("a+note:///alpha").expect("the file exists");
        let size = listed
            .as_array()
            .expect("a list")
            .iter()
            .find(|it| it["uri"] == "a+note:///alpha")
            .expect("the file exists")["size"]
            .clone();
        let mut expected = json!({"uri": "a+note:///alpha", "id": "a_note_alpha", "name": "alpha", "mimeType": "text/plain", "serverId": "a"});
        if !size.is_null() {
            expected["size"] = size;
        }
        assert_eq!(alpha, expected);
        assert_eq!(find("b+file:///logs/app log.txt").expect("the file exists")["id"], "b_file_logs_app_log.txt");
        let mut ids = column(&all["resources"], "id");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all["resources"].as_array().expect("cards").len(), "identifiers are unique");
    }
}

#[tokio::test]
async fn meta1_catalog_pages_are_complete_and_a_changed_catalog_rejects_the_cursor() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let whole = client.call_structured("catalog_resources", json!({})).await;
        let (mut arguments, mut pages, mut uris) = (json!({"limit": 7}), 0, Vec::new());
        loop {
            let page = client.call_structured("catalog_resources", arguments.clone()).await;
            assert_eq!(page["total"], whole["total"]);
            uris.extend(column(&page["resources"], "uri").into_iter().map(str::to_owned));
            pages += 1;
            let Some(cursor) = page["nextCursor"].as_str() else { break };
            assert_eq!(page["resources"].as_array().map(Vec::len), Some(7));
            arguments["cursor"] = json!(cursor);
        }
        assert_eq!(uris, column(&whole["resources"], "uri"), "{}", client.name);
        assert_eq!(pages, uris.len().div_ceil(7));
        // A cursor's position counts all entries, so the server filter may change.
        arguments["serverId"] = json!("a");
        let rest = client.call_structured("catalog_resources", arguments.clone()).await;
        let (seen, last) = (uris.len(), column(&rest["resources"], "uri"));
        assert!(last.iter().all(|uri| uris[seen / 7 * 7..].iter().any(|known| known == uri)), "{last:?}");
        assert!(column(&rest["resources"], "serverId").iter().all(|server| *server == "a"), "{rest}");

        client.call("a_change_tools", json!({})).await;
        let deadline = crate::harness::Deadline::new();
        let rejected = loop {
            let result = client.call("catalog_resources", arguments.clone()).await;
            if result["isError"] == true {
                break result;
            }
            deadline.pause("the catalog has changed").await;
        };
        assert!(text(&rejected).contains("begin again without one"), "{rejected}");
    }
}

#[tokio::test]
async fn meta2_d2_a_resource_is_described_by_uri_identifier_and_native_uri() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let listed = client.request("resources/list", json!({})).await["result"]["resources"].clone();
        let definition = |uri: &str| listed.as_array().expect("a list").iter().find(|it| it["uri"] == uri).cloned();
        for (uri, exposed, id) in [
            ("a+note:///alpha", "a+note:///alpha", "a_note_alpha"),
            ("a_note_alpha", "a+note:///alpha", "a_note_alpha"),
            ("a_note____alpha", "a+note:///alpha", "a_note_alpha"),
            ("b_file___logs_app_log.txt", "b+file:///logs/app log.txt", "b_file_logs_app_log.txt"),
            ("b+file:///logs/app%20log.txt", "b+file:///logs/app log.txt", "b_file_logs_app_log.txt"),
            ("note:///numbered/0007", "b+note:///numbered/0007", "b_note_numbered_0007"),
        ] {
            let described = client.call_structured("describe_resource", json!({"uri": uri})).await;
            let server = exposed.split_once('+').expect("a server").0;
            let resource = definition(exposed).unwrap_or_else(|| panic!("{exposed} is listed"));
            assert_eq!(described, json!({"serverId": server, "id": id, "resource": resource}), "{uri}");
        }
        let ambiguous = client.call("describe_resource", json!({"uri": "note:///alpha"})).await;
        assert_eq!(ambiguous["isError"], true);
        assert!(text(&ambiguous).contains("`a+note:///alpha`, `b+note:///alpha`"), "{ambiguous}");
        // A resource that only a template covers can be read, so it can be described.
        let described = client.call_structured("describe_resource", json!({"uri": "a+db://users/7"})).await;
        assert_eq!((&described["serverId"], &described["resource"]["uri"]), (&json!("a"), &json!("a+db://users/7")));
        assert_eq!(described["template"]["uriTemplate"], "a+db://{table}/{id}", "{described}");
    }
}

#[tokio::test]
async fn meta3_resources_are_found_by_relevance_and_mime_type() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let found = client.call_structured("search_resources", json!({"query": "json note", "serverId": "a"})).await;
        assert_eq!(found["resources"][0]["uri"], "a+note:///beta", "{found}");
        assert_eq!(found["resources"][0]["id"], "a_note_beta", "{found}");
        assert!(column(&found["templates"], "uriTemplate").contains(&"a+note:///{name}"), "{found}");
        let limited = client.call_structured("search_resources", json!({"query": "note", "limit": 3})).await;
        assert_eq!(limited["resources"].as_array().map(Vec::len), Some(3), "{limited}");
        assert!(limited["total"].as_u64() > Some(40), "{limited}");
        for (mime, expected) in [
            ("application/octet-stream", vec!["a+blob:///bin"]),
            ("APPLICATION/Octet-Stream; x=y", vec!["a+blob:///bin"]),
            ("text/html", vec!["ui://a/widget/main"]),
            ("application/*", vec!["a+blob:///bin", "a+note:///beta"]),
            ("image/*", vec![]),
        ] {
            let found = client
                .call_structured("search_resources", json!({"query": "", "mimeType": mime, "serverId": "a"}))
                .await;
            let mut uris = column(&found["resources"], "uri");
            uris.sort_unstable();
            assert_eq!(uris, expected, "{mime}");
        }
        // An empty query returns everything in catalog order.
        let all = client.call_structured("search_resources", json!({"query": "", "limit": 100})).await;
        let catalog = client.call_structured("catalog_resources", json!({})).await;
        assert_eq!(all["resources"], catalog["resources"]);
    }
}

#[tokio::test]
async fn meta4_catalog_resource_templates_returns_cards_with_patterns() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let all = client.call_structured("catalog_resource_templates", json!({})).await;
        let of_b = client.call_structured("catalog_resource_templates", json!({"serverId": "b"})).await;
        let listed = client.request("resources/templates/list", json!({})).await["result"]["resourceTemplates"].clone();
        assert_eq!(column(&all["templates"], "uriTemplate"), column(&listed, "uriTemplate"));
        let row = json!({"uriTemplate": "b+db://{table}/{id}", "name": "row", "description": "A row", "mimeType": "application/json", "serverId": "b"});
        assert!(of_b["templates"].as_array().expect("cards").contains(&row), "{of_b}");
        assert_eq!((of_b["total"].as_u64(), all["total"].as_u64()), (Some(3), Some(6)));
    }
}

#[tokio::test]
async fn reg6_the_catalog_lists_tools_and_prompts_as_compact_cards() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        for (tool, method, member) in
            [("catalog_tools", "tools/list", "tools"), ("catalog_prompts", "prompts/list", "prompts")]
        {
            let cards = client.call_structured(tool, json!({"limit": 1000})).await;
            let listed = client.request(method, json!({})).await["result"][member].clone();
            let server_entries: Vec<_> =
                column(&listed, "name").into_iter().filter(|name| !NAMES.contains(name)).collect();
            assert_eq!(column(&cards[member], "name"), server_entries, "the gateway's own tools are excluded");
            assert_eq!(cards["total"], server_entries.len());
            for card in cards[member].as_array().expect("cards") {
                let keys: Vec<_> = card.as_object().expect("an object").keys().map(String::as_str).collect();
                assert!(keys.iter().all(|key| ["name", "description", "serverId"].contains(key)), "{card}");
                assert!(card["name"].as_str().expect("a name").starts_with(card["serverId"].as_str().expect("an id")));
            }
        }
        let card = client.call_structured("catalog_tools", json!({"serverId": "b"})).await["tools"][2].clone();
        assert_eq!(card, json!({"name": "b_add", "description": "Adds two numbers", "serverId": "b"}));
    }
}

#[tokio::test]
async fn reg7_a_tool_is_described_byte_for_byte_as_it_is_listed() {
    let gateway =
        Gateway::start(json!({ "metaTools": true, "mcpServers": { "a": fixture_server(&["--prefix-unknown"]) } }))
            .await;
    let session = gateway.client_seeing("a_echo").await;
    let stateless = Client::modern(gateway.address, json!({}));
    let body = |method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    for tool in ["a_echo", "a_add", "a_widget", "search_tools"] {
        let list = session.post(body("tools/list", json!({}))).await.body;
        let described =
            session.post(body("tools/call", json!({"name": "describe_tool", "arguments": {"name": tool}}))).await.body;
        check_described(tool, &list, &described);
        let list = stateless.send_draft(&stateless.draft("tools/list", json!({}))).await.body;
        let draft = stateless.draft("tools/call", json!({"name": "describe_tool", "arguments": {"name": tool}}));
        check_described(tool, &list, &stateless.send_draft(&draft).await.body);
    }
}

fn check_described(tool: &str, list: &str, answer: &str) {
    let result = raw_member(answer, "result").unwrap_or_else(|| panic!("no result in {answer}"));
    let structured = raw_member(&result, "structuredContent").unwrap_or_else(|| panic!("{result}"));
    let definition = raw_member(&structured, "tool").expect("a definition");
    assert!(definition.contains(&format!(r#""name":"{tool}""#)), "{definition}");
    assert!(list.contains(&definition), "{definition} is not in the list");
}

#[tokio::test]
async fn meta5_search_tools_finds_tools_by_name_and_description() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        for (query, server, first) in [
            ("adds numbers", "a", "a_add"),
            ("adding two numbers", "b", "b_add"),
            ("echo", "b", "b_echo"),
            ("working directory", "a", "a_cwd"),
            ("enviroment variable", "a", "a_env"),
            ("a_add", "a", "a_add"),
        ] {
            let found = client.call_structured("search_tools", json!({"query": query, "serverId": server})).await;
            assert_eq!(found["tools"][0]["name"], first, "{query}: {found}");
            assert!(column(&found["tools"], "serverId").iter().all(|it| *it == server));
        }
        let both = client.call_structured("search_tools", json!({"query": "adds numbers", "limit": 2})).await;
        let mut names = column(&both["tools"], "name");
        names.sort_unstable();
        assert_eq!(names, ["a_add", "b_add"], "{both}");
        // The search does not find the gateway's own tools, because its callers know them already.
        let found = client.call_structured("search_tools", json!({"query": "search tools", "limit": 100})).await;
        assert!(column(&found["tools"], "name").iter().all(|name| !NAMES.contains(name)), "{found}");
        let nothing = client.call_structured("search_tools", json!({"query": "xyzzyplugh"})).await;
        assert_eq!((&nothing["tools"], &nothing["total"]), (&json!([]), &json!(0)));
        assert!(nothing["note"].as_str().expect("a note").contains("`catalog_tools`"), "{nothing}");
    }
}

#[tokio::test]
async fn meta5_prompts_are_found_and_described() {
    let (_gateway, meta_clients) = meta_clients().await;
    for client in meta_clients {
        let found =
            client.call_structured("search_prompts", json!({"query": "greets somebody", "serverId": "a"})).await;
        assert_eq!(found["prompts"][0], json!({"name": "a_greet", "description": "Greets", "serverId": "a"}));
        let listed = client.request("prompts/list", json!({})).await["result"]["prompts"].clone();
        let listed =
            listed.as_array().expect("prompts").iter().find(|it| it["name"] == "a_greet").expect("the entry is listed");
        let described = client.call_structured("describe_prompt", json!({"name": "a_greet"})).await;
        assert_eq!(described, json!({"serverId": "a", "prompt": listed}));
    }
}

#[tokio::test]
async fn meta5_list_servers_returns_the_state_and_the_entry_counts_of_each_server() {
    let servers =
        json!({ "a": fixture_server(&["--without", "prompts"]), "gone": { "command": "/nonexistent/server" } });
    let gateway = Gateway::start(json!({ "mcpServers": servers })).await;
    let client = gateway.client_seeing("a_echo").await;
    let listed = eventually("both have settled", || async {
        let listed = client.call("list_servers", json!({})).await;
        (listed["structuredContent"]["servers"][1]["state"] == "failed").then_some(listed)
    })
    .await;
    let structured = &listed["structuredContent"];
    assert_eq!(structured["total"], 2);
    let count = |list: Vec<Value>| list.len();
    let expected = json!({
        "serverId": "a", "state": "ready", "prompts": 0,
        "tools": count(client.list("tools/list", "tools").await),
        "resources": count(client.list("resources/list", "resources").await),
        "templates": count(client.list("resources/templates/list", "resourceTemplates").await),
    });
    assert_eq!(structured["servers"][0], expected);
    let lines: Vec<&str> = text(&listed).lines().collect();
    assert_eq!(lines[1], "gone - failed: 0 tools, 0 prompts, 0 resources, 0 templates");
}

/// The text contains the same information as the structured content.
#[tokio::test]
async fn meta5_the_text_and_the_structured_content_of_a_result_agree() {
    let (_gateway, client) = client().await;
    for (tool, member, key, arguments) in [
        ("catalog_tools", "tools", "name", json!({"limit": 5})),
        ("search_tools", "tools", "name", json!({"query": "changes"})),
        ("catalog_resources", "resources", "uri", json!({"serverId": "a"})),
        ("catalog_prompts", "prompts", "name", json!({})),
        ("catalog_resource_templates", "templates", "uriTemplate", json!({})),
    ] {
        let result = client.call(tool, arguments).await;
        let structured = &result["structuredContent"];
        let names = column(&structured[member], key);
        let lines: Vec<&str> = text(&result).lines().collect();
        assert!(!names.is_empty());
        for (name, line) in names.iter().zip(&lines) {
            assert!(line.starts_with(name) && line.ends_with(')'), "{tool}: {line}");
        }
        let rest = &lines[names.len()..];
        let is_whole = structured["total"] == names.len();
        assert_eq!(rest.is_empty(), is_whole, "{tool}: {rest:?}");
        if let Some(cursor) = structured["nextCursor"].as_str() {
            assert_eq!(rest, [format!("[{} of {}; nextCursor: {cursor}]", names.len(), structured["total"])]);
        }
    }
}
