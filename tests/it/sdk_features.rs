//! The official SDKs as clients of the gateway. They use all features of the 2025 protocol versions over every front.
//! The four backends are the fixture over stdio and over HTTP, and two reference servers.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, fixture_server};
use crate::scrape::metric_becomes;
use crate::sdk::{Report, Sdk, reference_server};
use crate::sdk_features_script::{MESSAGE, script};

const PAGE_SIZE: usize = 20;

#[derive(Clone, Copy)]
enum Front {
    Http,
    Sse,
    Stdio,
}

#[tokio::test]
async fn http3_srv2_every_sdk_works_over_http() {
    for sdk in Sdk::ALL {
        tour(sdk, Front::Http).await;
    }
}

#[tokio::test]
async fn http3_srv2_every_sdk_works_over_stdio() {
    for sdk in Sdk::ALL {
        tour(sdk, Front::Stdio).await;
    }
}

#[tokio::test]
async fn http1_http2_every_sdk_works_over_sse() {
    for sdk in Sdk::ALL {
        tour(sdk, Front::Sse).await;
    }
}

/// All clients use the same request ids and progress tokens, and start after the last one has connected.
#[tokio::test]
async fn srv5_concurrent_sdk_clients_receive_their_own_answers() {
    const ROUNDS: usize = 20;
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let watcher = gateway.client_seeing("a_echo").await;
    let playing = Sdk::ALL.map(|sdk| {
        let mut steps = vec![json!({"do": "ping"}), json!({"do": "await_tool", "name": "a_added_0001"})];
        for round in 0..ROUNDS {
            let arguments = json!({"nonce": format!("{sdk:?} {round}"), "delayMs": 3});
            steps.push(json!({"do": "call_tool", "name": "a_nonce", "arguments": arguments}));
            let arguments = json!({"steps": own_steps(sdk), "delayMs": 1});
            steps.push(json!({"do": "call_tool", "name": "a_progress", "arguments": arguments, "progress": true}));
        }
        sdk.begin_over_http(&gateway.url(), &steps)
    });
    for client in &playing {
        client.step_is_done(0).await;
    }
    watcher.call("a_change_tools", json!({})).await;
    for client in playing {
        let report = client.report().await;
        for round in 0..ROUNDS {
            let (nonce, progress) = (2 + 2 * round, 3 + 2 * round);
            assert_eq!(text(report.step(nonce)), format!("{:?} {round}", report.sdk));
            let steps = own_steps(report.sdk);
            assert_eq!(text(report.step(progress)), format!("{steps} steps"));
            assert_eq!(report.progress(progress), progress_of(steps), "{:?}", report.sdk);
        }
    }
}

/// Returns a number of steps that is different for each client, so that progress can be attributed.
fn own_steps(sdk: Sdk) -> usize {
    match sdk {
        Sdk::Python1 => 2,
        Sdk::Python2 => 3,
        Sdk::TypeScript1 => 4,
        Sdk::TypeScript2 => 5,
    }
}

fn text(step: &Value) -> &str {
    step["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{step}"))
}

/// Returns the expected progress of a call with this many steps.
fn progress_of(steps: usize) -> Vec<(f64, f64)> {
    (1..=steps).map(|number| (number as f64, steps as f64)).collect()
}

async fn tour(sdk: Sdk, front: Front) {
    let fixture = HttpFixture::start(&[]).await;
    let files = Scratch::new();
    files.write("a file.txt", "some words");
    let config = json!({
        "policies": { "pageSize": PAGE_SIZE },
        "mcpServers": {
            "pipe": fixture_server(&[]),
            "web": fixture.server(),
            "every": reference_server("server-everything", &["stdio"]),
            "files": reference_server("server-filesystem", &[&files.path().display().to_string()]),
        },
    });
    let script = script(sdk, files.path());
    let steps: Vec<Value> = script.iter().map(|(step, _)| step.clone()).collect();
    let report = match front {
        Front::Http => {
            let gateway = Gateway::start(config).await;
            sdk.begin_over_http(&gateway.url(), &steps).report().await
        }
        Front::Sse => {
            let gateway = Gateway::start(config).await;
            let report = sdk.begin_over_sse(&format!("http://{}/sse", gateway.address), &steps).report().await;
            await_no_session(&gateway).await;
            report
        }
        Front::Stdio => sdk.begin_over_stdio(&config, &steps).report().await,
    };
    for (index, (step, expected)) in script.iter().enumerate() {
        let outcome = report.step(index);
        for (pointer, value) in expected {
            assert_eq!(outcome.pointer(pointer), Some(value), "{sdk:?}: {step} at {pointer}: {outcome}");
        }
    }
    let progress = script.iter().enumerate().filter(|(_, (step, _))| step["progress"] == true).map(|(index, _)| index);
    check_all_progress(&report, front, &progress.collect::<Vec<_>>());
    check_handshake(&report);
    check_lists(&report, &fixture).await;
    let levels: Vec<_> = report.notifications(MESSAGE).iter().map(|message| &message["params"]["level"]).collect();
    assert_eq!(levels, ["error"; 4], "{sdk:?}: only the requested level");
}

/// Waits until the session has ended with its client and stream.
async fn await_no_session(gateway: &Gateway) {
    metric_becomes(&Client::new(gateway.address), "goblin_sessions_active", 0).await;
}

/// Asserts that each of these steps received all of its progress, except for that lost by the SDK itself.
fn check_all_progress(report: &Report, front: Front, steps: &[usize]) {
    let (sdk, lost, expected) = (report.sdk, report.lost_progress(), progress_of(3));
    let mut seen = 0;
    for step in steps {
        let progress = report.progress(*step);
        assert!(expected.starts_with(&progress), "{sdk:?}: {progress:?}");
        seen += progress.len();
    }
    assert_eq!(seen + lost, expected.len() * steps.len(), "{sdk:?}");
    match (sdk, front) {
        (Sdk::TypeScript1 | Sdk::TypeScript2, Front::Sse | Front::Stdio) => {}
        (_, Front::Http | Front::Sse | Front::Stdio) => assert_eq!(lost, 0, "{sdk:?}"),
    }
}

fn check_handshake(report: &Report) {
    assert_eq!(report.member("protocolVersion"), "2025-11-25");
    assert_eq!(report.member("serverInfo")["name"], "goblin");
    let capabilities = report.member("capabilities");
    assert_eq!(capabilities["resources"], json!({"subscribe": true, "listChanged": true}), "{capabilities}");
    for name in ["tools", "prompts"] {
        assert_eq!(capabilities[name], json!({"listChanged": true}), "{capabilities}");
    }
    for name in ["completions", "logging"] {
        assert_eq!(capabilities[name], json!({}), "{capabilities}");
    }
}

async fn check_lists(report: &Report, fixture: &HttpFixture) {
    let sdk = report.sdk;
    let tools = report.listed("list_tools", "tools", "name");
    let of = |server: &str| -> Vec<&String> {
        tools.iter().filter(|name| name.starts_with(&format!("{server}_"))).collect()
    };
    // The fixture has one more tool now.
    let native: Vec<_> =
        fixture.client().await.tool_names().await.into_iter().filter(|name| name != "added_0001").collect();
    for id in ["pipe", "web"] {
        let expected: Vec<_> = native.iter().map(|name| format!("{id}_{name}")).collect();
        assert_eq!(of(id), expected.iter().collect::<Vec<_>>(), "{sdk:?}");
    }
    assert_eq!((of("every").len(), of("files").len()), (16, 14), "{sdk:?}: {tools:?}");
    assert_eq!(tools.len(), 2 * native.len() + 16 + 14, "{sdk:?}: {tools:?}");
    // TypeScript 2.x does not report the pages.
    if sdk != Sdk::TypeScript2 {
        assert_eq!(report.first("list_tools")["pages"], tools.len().div_ceil(PAGE_SIZE), "{sdk:?}");
    }

    let prompts = report.listed("list_prompts", "prompts", "name");
    let every = ["simple", "args", "completable", "resource"].map(|name| format!("every_{name}-prompt"));
    assert_eq!(prompts[..4], every, "{sdk:?}");
    assert_eq!(prompts[4..], ["pipe_greet", "pipe_linked", "web_greet", "web_linked"], "{sdk:?}");

    let templates = report.listed("list_templates", "resourceTemplates", "uriTemplate");
    let fixtures = ["pipe", "web"].map(|id| {
        ["note:///{name}", "db://{table}/{id}", "search://docs{?q,limit}"].map(|native| format!("{id}+{native}"))
    });
    let every = ["text", "blob"].map(|kind| format!("every+demo://resource/dynamic/{kind}/{{resourceId}}"));
    assert_eq!(templates, [every.to_vec(), fixtures.concat()].concat(), "{sdk:?}");

    let resources = report.listed("list_resources", "resources", "uri");
    let of = |prefix: &str| resources.iter().filter(|uri| uri.starts_with(prefix)).count();
    assert_eq!((of("pipe+"), of("web+"), of("every+"), of("ui://")), (8, 8, 7, 2), "{sdk:?}: {resources:?}");
    assert_eq!(resources.len(), 25, "{sdk:?}: {resources:?}");
}
