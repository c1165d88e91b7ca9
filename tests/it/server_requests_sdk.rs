//! Server requests between third-party programs: server-everything sends them, clients of the official SDKs answer.
//!
//! The same script runs without a gateway first, so that a failure can be attributed.

use serde_json::{Value, json};

use crate::harness::{Gateway, fixture_server};
use crate::real_servers::Everything;
use crate::sdk::{Over, Report, Sdk, reference_program, reference_server};

const SAMPLING: &str = "sampling/createMessage";
const ELICITATION: &str = "elicitation/create";

/// Returns the steps that wait for a tool and call it. The server registers it after it knows its client's
/// capabilities.
fn request_and_await(prefix: &str, tool: &str, arguments: Value) -> [Value; 2] {
    let name = format!("{prefix}{tool}");
    [json!({"do": "await_tool", "name": name}), json!({"do": "call_tool", "name": name, "arguments": arguments})]
}

/// Returns a script with one server request of each kind. The calls are the steps 1, 3 and 5.
fn script(prefix: &str, mark: &str) -> Vec<Value> {
    let url = json!({"url": format!("https://{mark}.example/"), "message": mark, "elicitationId": mark});
    [
        request_and_await(
            prefix,
            "trigger-sampling-request",
            json!({"prompt": format!("from {mark}"), "maxTokens": 7}),
        ),
        request_and_await(prefix, "trigger-elicitation-request", json!({})),
        request_and_await(prefix, "trigger-url-elicitation", url),
    ]
    .concat()
}

/// Returns the texts of a tool result.
fn texts(step: &Value) -> String {
    let blocks = step["result"]["content"].as_array().unwrap_or_else(|| panic!("{step}"));
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// Checks the outcome of [`script`].
fn check(report: &Report, mark: &str) {
    let sdk = report.sdk;
    let sampled = texts(report.step(1));
    assert!(sampled.contains(&format!(r#""text": "{mark}""#)), "{sdk:?}: {sampled}");
    let filled = texts(report.step(3));
    assert!(filled.contains(&format!("- Name: {mark}")), "{sdk:?}: {filled}");
    let opened = texts(report.step(5));
    assert!(opened.contains(&format!("Elicitation ID: {mark}")), "{sdk:?}: {opened}");

    let [sampling] = report.server_requests(SAMPLING)[..] else {
        panic!("{sdk:?}: {:?}", report.server_requests(SAMPLING))
    };
    let prompt = format!("Resource trigger-sampling-request context: from {mark}");
    assert_eq!(sampling["messages"][0]["content"]["text"], prompt, "{sdk:?}");
    assert_eq!((&sampling["maxTokens"], &sampling["temperature"]), (&json!(7), &json!(0.7)), "{sdk:?}");
    let [form, url] = report.server_requests(ELICITATION)[..] else {
        panic!("{sdk:?}: {:?}", report.server_requests(ELICITATION))
    };
    assert_eq!(form["requestedSchema"]["required"], json!(["name"]), "{sdk:?}");
    assert_eq!(form["requestedSchema"]["properties"]["integer"]["default"], 42, "{sdk:?}");
    assert_eq!(url["url"], format!("https://{mark}.example/"), "{sdk:?}");
    assert_eq!(url["elicitationId"], mark, "{sdk:?}");
}

/// The clients and the server work together without a gateway.
#[tokio::test]
async fn sdk_clients_answer_server_requests_without_a_gateway() {
    let program = reference_program("server-everything");
    for sdk in Sdk::ALL {
        // The server requests the roots at any time. After it has them, no such request is under way when the client
        // ends.
        let steps = [script("", "direct"), request_and_await("", "get-roots-list", json!({})).to_vec()].concat();
        let over = Over::Program(&["node", &program, "stdio"]);
        let report = sdk.begin_answering("direct", over, &steps).report().await;
        check(&report, "direct");
        let roots = texts(report.step(7));
        assert!(roots.contains("URI: file:///direct"), "{sdk:?}: {roots}");
    }
}

#[tokio::test]
async fn every_sdk_answers_server_requests_over_every_front() {
    for sdk in Sdk::ALL {
        let config = json!({ "mcpServers": { "every": reference_server("server-everything", &["stdio"]) } });
        let gateway = Gateway::start(config.clone()).await;
        let (http, sse) = (gateway.url(), format!("http://{}/sse", gateway.address));
        for (mark, over) in [("http", Over::Http(&http)), ("sse", Over::Sse(&sse)), ("stdio", Over::Goblin(&config))] {
            check(&sdk.begin_answering(mark, over, &script("every_", mark)).report().await, mark);
        }
    }
}

/// Runs the script over each of the server's HTTP transports.
#[tokio::test]
async fn server_everything_sends_requests_over_http_and_sse() {
    for mode in ["streamableHttp", "sse"] {
        let server = Everything::start(mode).await;
        let gateway = Gateway::with_servers(json!({ "every": server.server() })).await;
        let playing = Sdk::TypeScript1.begin_answering(mode, Over::Http(&gateway.url()), &script("every_", mode));
        check(&playing.report().await, mode);
    }
}

/// All clients share one session with the server, and each call has a stream of its own there.
#[tokio::test]
async fn concurrent_sdk_clients_receive_only_the_server_requests_of_their_own_calls() {
    const ROUNDS: usize = 10;
    let server = Everything::start("streamableHttp").await;
    let servers = json!({ "every": server.server(), "start": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    // All clients start together after the last one has connected: they wait for the fixture's new tool.
    let watcher = gateway.client_seeing("start_change_tools").await;
    let playing = Sdk::ALL.map(|sdk| {
        let mut steps = vec![json!({"do": "ping"}), json!({"do": "await_tool", "name": "start_added_0001"})];
        for round in 0..ROUNDS {
            let prompt = format!("{sdk:?} {round}");
            steps.extend(request_and_await("every_", "trigger-sampling-request", json!({"prompt": prompt})));
        }
        sdk.begin_answering(&format!("{sdk:?}"), Over::Http(&gateway.url()), &steps)
    });
    for client in &playing {
        client.step_is_done(0).await;
    }
    watcher.call("start_change_tools", json!({})).await;
    for client in playing {
        let report = client.report().await;
        let sdk = report.sdk;
        for round in 0..ROUNDS {
            let sampled = texts(report.step(2 * round + 3));
            assert!(sampled.contains(&format!(r#""text": "{sdk:?}""#)), "{sampled}");
        }
        let prompts: Vec<_> = report
            .server_requests(SAMPLING)
            .iter()
            .map(|server_request| &server_request["messages"][0]["content"]["text"])
            .collect();
        let expected: Vec<_> = (0..ROUNDS)
            .map(|round| json!(format!("Resource trigger-sampling-request context: {sdk:?} {round}")))
            .collect();
        assert_eq!(prompts, expected.iter().collect::<Vec<_>>(), "{sdk:?}");
    }
}
