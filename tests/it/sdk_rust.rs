//! The official Rust SDK as a client of `goblin stdio`.
//!
//! The other SDKs run as separate programs; this one is linked into the test.
#![expect(deprecated, reason = "resources/subscribe belongs to older versions of the protocol")]

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, GetPromptRequestParams, JsonObject, ReadResourceRequestParams,
    ResourceUpdatedNotificationParam, SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RunningService, ServiceError};
use rmcp::{ClientHandler, RoleClient, ServiceExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use crate::fixture_http::HttpFixture;
use crate::harness::{GOBLIN, Scratch, TIMEOUT, eventually, fixture_server, servers_only};
use crate::home::Home;
use crate::subscriber::subscribed_upstream;

/// A receiver of notifications about changed tools and updated resources.
#[derive(Clone, Default)]
struct Recorder {
    tools: Arc<Notify>,
    updated: Arc<Mutex<Vec<String>>>,
}

impl ClientHandler for Recorder {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools.notify_one();
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.updated.lock().expect("no test panics here").push(params.uri);
    }
}

struct Client {
    service: RunningService<RoleClient, Recorder>,
    recorder: Recorder,
    goblin: Child,
    _scratch: Scratch,
}

impl Client {
    /// Starts a gateway with the fixture as `a`, and waits until it is ready.
    async fn start() -> Client {
        let scratch = Scratch::new();
        let config = json!({ "policies": { "pageSize": 7 }, "mcpServers": { "a": fixture_server(&[]) } });
        let path = scratch.write("goblin.json", &servers_only(config).to_string());
        let mut command = Command::new(GOBLIN);
        command.args(["stdio", "--config"]).arg(path).env_remove("GOBLIN_CONFIG").env("XDG_CACHE_HOME", scratch.path());
        Client::of(command, scratch).await
    }

    /// Starts `goblin stdio` by this command.
    async fn of(mut command: Command, scratch: Scratch) -> Client {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut goblin = command.spawn().expect("goblin starts");
        let transport = (goblin.stdout.take().expect("stdout is piped"), goblin.stdin.take().expect("stdin is piped"));
        let recorder = Recorder::default();
        let service = tokio::time::timeout(TIMEOUT, recorder.clone().serve(transport)).await;
        let service = service.expect("a handshake in time").expect("a handshake");
        let client = Client { service, recorder, goblin, _scratch: scratch };
        client.await_tool("a_echo").await;
        client
    }

    async fn tool_names(&self) -> Vec<String> {
        let tools = self.service.list_all_tools().await.expect("a list");
        tools.into_iter().map(|tool| tool.name.into_owned()).collect()
    }

    async fn await_tool(&self, name: &str) {
        eventually(&format!("{name} is listed"), || async {
            self.tool_names().await.iter().any(|known| known == name).then_some(())
        })
        .await;
    }

    async fn call(&self, name: &'static str, arguments: Value) -> Result<Value, ServiceError> {
        let params = CallToolRequestParams::new(name).with_arguments(object(arguments));
        self.service.call_tool(params).await.map(value)
    }

    async fn read(&self, uri: &str) -> Result<Value, ServiceError> {
        self.service.read_resource(ReadResourceRequestParams::new(uri)).await.map(value)
    }
}

fn object(value: Value) -> JsonObject {
    value.as_object().expect("an object").clone()
}

/// Converts a result to its JSON form.
fn value(result: impl Serialize) -> Value {
    serde_json::to_value(result).expect("JSON")
}

fn check_error(outcome: Result<Value, ServiceError>, code: i64, name: &str) {
    let Err(ServiceError::McpError(error)) = outcome else { panic!("{outcome:?}") };
    let error = value(error);
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(code), &json!(name)), "{error}");
}

#[tokio::test]
async fn srv2_srv3_rmcp_completes_the_handshake_and_lists_all_entries() {
    let client = Client::start().await;
    let info = value(client.service.peer_info().expect("a handshake"));
    assert_eq!((&info["protocolVersion"], &info["serverInfo"]["name"]), (&json!("2025-11-25"), &json!("goblin")));
    let fixture = HttpFixture::start(&[]).await;
    let native = fixture.client().await.tool_names().await;
    assert_eq!(client.tool_names().await, native.iter().map(|name| format!("a_{name}")).collect::<Vec<_>>());
    let prompts = value(client.service.list_all_prompts().await.expect("a list"));
    assert_eq!((&prompts[0]["name"], &prompts[1]["name"]), (&json!("a_greet"), &json!("a_linked")));
    let resources = client.service.list_all_resources().await.expect("a list");
    assert_eq!(resources.len(), 9);
    assert!(resources.iter().any(|resource| resource.uri == "a+file:///logs/app log.txt"), "{resources:?}");
    let templates = value(client.service.list_all_resource_templates().await.expect("a list"));
    assert_eq!(templates[1]["uriTemplate"], "a+db://{table}/{id}");
    assert_eq!(templates.as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn srv5_rmcp_calls_tools_reads_resources_and_fetches_prompts() {
    let mut client = Client::start().await;
    let result = client.call("a_echo", json!({"a": [1, "ü"]})).await.expect("a result");
    assert_eq!(result["structuredContent"], json!({"a": [1, "ü"]}));
    assert_eq!(client.call("a_fail", json!({})).await.expect("a result")["isError"], true);
    check_error(client.call("a_nope", json!({})).await, -32602, "TOOL_NOT_FOUND");
    for (uri, text) in [
        ("a+note:///alpha", "note alpha"),
        ("a+db://users/7", r#"{"table":"users","id":"7"}"#),
        ("a+NOTE:///Up", "upper"),
    ] {
        let content = &client.read(uri).await.expect("a result")["contents"][0];
        assert_eq!((&content["uri"], &content["text"]), (&json!(uri), &json!(text)));
    }
    check_error(client.read("a+nope:///x").await, -32002, "RESOURCE_NOT_FOUND");
    let params = GetPromptRequestParams::new("a_greet").with_arguments(object(json!({"name": "Ada"})));
    let prompt = value(client.service.get_prompt(params).await.expect("a result"));
    assert_eq!(prompt["messages"][0]["content"]["text"], "Hello, Ada!");
    let completion = client.service.complete_prompt_simple("a_greet", "name", "Al").await.expect("a result");
    assert_eq!(completion, ["Alan", "Alonzo"]);
    client.service.close().await.expect("an end");
    let status = tokio::time::timeout(TIMEOUT, client.goblin.wait()).await.expect("an end in time");
    assert!(status.expect("the exit status is known").success());
}

#[tokio::test]
async fn srv4_rmcp_receives_list_changed() {
    let client = Client::start().await;
    client.call("a_change_tools", json!({})).await.expect("a result");
    tokio::time::timeout(TIMEOUT, client.recorder.tools.notified()).await.expect("a notification in time");
    client.await_tool("a_added_0001").await;
}

#[tokio::test]
async fn d22_rmcp_subscribes_over_stdio_and_over_the_bridge() {
    const ALPHA: &str = "a+note:///alpha";
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&[]) } }));
    let (_gateway, caller) = home.gateway("a_touch").await;
    for is_bridged in [false, true] {
        let client = match is_bridged {
            false => Client::start().await,
            true => Client::of(home.stdio(&[]), Scratch::new()).await,
        };
        client.service.subscribe(SubscribeRequestParams::new(ALPHA)).await.expect("a subscription");
        if is_bridged {
            subscribed_upstream(&caller, r#"["note:///alpha"]"#).await;
        }
        client.call("a_touch", json!({"uri": "note:///alpha", "count": 1})).await.expect("a result");
        eventually("the update arrives", || async {
            let updated = client.recorder.updated.lock().expect("no test panics here");
            updated.iter().any(|uri| uri == ALPHA).then_some(())
        })
        .await;
        client.service.unsubscribe(UnsubscribeRequestParams::new(ALPHA)).await.expect("an end");
        subscribed_upstream(&caller, "[]").await;
    }
}
