//! Reference servers behind the gateway: their behaviour beyond that of the fixture.
//!
//! They run over every transport, and are killed and replaced like in real use.

use std::path::Path;
use std::process::Stdio;

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, signal};
use crate::sdk::{reference_program, reference_server};
use crate::support::{await_call, await_log, http_server, next_pid_in, path_text, pid_in};

/// A tool that the server registers after `initialized`, with a notification.
const LATE_TOOL: &str = "every_simulate-research-query";

/// server-everything as a separate HTTP server.
pub struct Everything {
    mode: &'static str,
    port: u16,
    child: Child,
}

impl Everything {
    /// Starts a server. `mode` is its name for the transport.
    pub async fn start(mode: &'static str) -> Everything {
        loop {
            let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = probe.local_addr().expect("an address").port();
            drop(probe);
            // Another process may have taken the port in between.
            if let Some(child) = Everything::listen(mode, port).await {
                return Everything { mode, port, child };
            }
        }
    }

    /// Starts the server on this port. Returns `None` if the port is taken.
    async fn listen(mode: &str, port: u16) -> Option<Child> {
        let mut command = Command::new("node");
        command.arg(reference_program("server-everything")).arg(mode).env("PORT", port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("node starts");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        loop {
            let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line in time").expect("text");
            match line.expect("the server prints its address") {
                line if line.contains("listening on port") || line.contains("running on port") => break,
                line if line.contains("already in use") || line.contains("EADDRINUSE") => return None,
                _ => {}
            }
        }
        // The output must be read, because a write to a closed pipe kills the server.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Some(child)
    }

    pub fn server(&self) -> Value {
        json!({ "url": self.url() })
    }

    pub fn url(&self) -> String {
        let path = if self.mode == "sse" { "sse" } else { "mcp" };
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Kills the server and starts another one at the same port, which does not know the earlier sessions.
    async fn replace(&mut self) {
        self.child.kill().await.expect("the process can be killed");
        let (mode, port) = (self.mode, self.port);
        self.child = eventually("the port is free again", || Everything::listen(mode, port)).await;
    }
}

async fn everything(server: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "every": server })).await;
    let client = gateway.client_seeing(LATE_TOOL).await;
    (gateway, client)
}

async fn everything_over_stdio() -> (Gateway, Client) {
    everything(reference_server("server-everything", &["stdio"])).await
}

#[tokio::test]
async fn reg3_srv3_server_everything_over_stdio_is_listed_completely() {
    let (_gateway, client) = everything_over_stdio().await;
    check_lists(&client).await;
}

#[tokio::test]
async fn reg3_srv3_server_everything_over_http_is_listed_completely() {
    let server = Everything::start("streamableHttp").await;
    let (_gateway, client) = everything(server.server()).await;
    check_lists(&client).await;
}

/// Checks the lists. Three of the tools exist because the gateway declares sampling and elicitation. It does not
/// declare roots, so the tool for roots is absent.
async fn check_lists(client: &Client) {
    let tools = client.list("tools/list", "tools").await;
    assert_eq!(tools.len(), 16, "{tools:?}");
    let weather = tools.iter().find(|tool| tool["name"] == "every_get-structured-content").expect("the file exists");
    assert_eq!(weather["outputSchema"]["required"], json!(["temperature", "conditions", "humidity"]));
    assert_eq!(weather["annotations"]["readOnlyHint"], true);
    let late = tools.iter().find(|tool| tool["name"] == LATE_TOOL).expect("the file exists");
    assert_eq!(late["execution"], json!({"taskSupport": "required"}));
    // A change of the tools may be fetched before the other lists are.
    for (method, member, count) in [
        ("prompts/list", "prompts", 4),
        ("resources/list", "resources", 7),
        ("resources/templates/list", "resourceTemplates", 2),
    ] {
        eventually(&format!("{method} has {count}"), || async {
            (client.list(method, member).await.len() == count).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn srv5_server_everything_over_stdio_answers_calls_prompts_and_reads() {
    let (_gateway, client) = everything_over_stdio().await;
    check_calls(&client).await;
    check_prompts(&client).await;
    check_resources(&client).await;
}

#[tokio::test]
async fn srv5_server_everything_over_http_answers_calls_prompts_and_reads() {
    let server = Everything::start("streamableHttp").await;
    let (_gateway, client) = everything(server.server()).await;
    check_calls(&client).await;
    check_prompts(&client).await;
    check_resources(&client).await;
}

/// The transport comes from the entry in the first run, and from the 404 response to a POST in the second.
#[tokio::test]
async fn srv2_srv5_server_everything_over_sse_is_listed_completely_and_answers() {
    let server = Everything::start("sse").await;
    let mut entry_with_type = server.server();
    entry_with_type["type"] = json!("sse");
    for entry in [entry_with_type, server.server()] {
        let (gateway, client) = everything(entry).await;
        check_lists(&client).await;
        check_calls(&client).await;
        check_prompts(&client).await;
        check_resources(&client).await;
        await_log(&gateway, &["backend ready", "transport=\"sse\""]).await;
    }
}

async fn check_calls(client: &Client) {
    assert_eq!(client.call_text("every_echo", json!({"message": "hello"})).await, "Echo: hello");
    assert_eq!(
        client.call("every_get-annotated-message", json!({"messageType": "success"})).await,
        json!({"content": [{
            "type": "text",
            "text": "Operation completed successfully",
            "annotations": {"priority": 0.7, "audience": ["user"]},
        }]})
    );
    let weather = json!({"temperature": 33, "conditions": "Cloudy", "humidity": 82});
    let result = client.call("every_get-structured-content", json!({"location": "New York"})).await;
    assert_eq!(result["structuredContent"], weather);
    let image = client.call("every_get-tiny-image", json!({})).await;
    assert_eq!(image["content"][1]["mimeType"], "image/png", "{image}");
    let rejected = client.call("every_get-sum", json!({"a": "no number"})).await;
    assert_eq!(rejected["isError"], true, "{rejected}");

    let params = json!({
        "name": "every_trigger-long-running-operation",
        "arguments": {"duration": 0.03, "steps": 3},
        "_meta": {"progressToken": "mine"},
    });
    let answer = client
        .post(json!({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": params}).to_string())
        .await;
    let messages: Vec<Value> =
        answer.messages().iter().map(|message| serde_json::from_str(message).expect("a message")).collect();
    let progress: Vec<&Value> = messages
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|it| &it["params"])
        .collect();
    let expected = [1, 2, 3].map(|step| json!({"progress": step, "total": 3, "progressToken": "mine"}));
    assert_eq!(progress, expected.iter().collect::<Vec<_>>());
    assert_eq!(answer.json()["id"], "long");
}

async fn check_prompts(client: &Client) {
    let params = json!({"name": "every_args-prompt", "arguments": {"city": "Bern"}});
    let answer = client.request("prompts/get", params).await;
    assert_eq!(answer["result"]["messages"][0]["content"]["text"], "What's weather in Bern?", "{answer}");
    let arguments = json!({"resourceType": "Text", "resourceId": "3"});
    let answer = client.request("prompts/get", json!({"name": "every_resource-prompt", "arguments": arguments})).await;
    let embedded = &answer["result"]["messages"][1]["content"]["resource"];
    assert_eq!(embedded["uri"], "every+demo://resource/dynamic/text/3", "{answer}");

    let complete = async |reference: Value, name: &str, value: &str, context: Value| {
        let argument = json!({"name": name, "value": value});
        let params = json!({"ref": reference, "argument": argument, "context": {"arguments": context}});
        let answer = client.request("completion/complete", params).await;
        answer["result"]["completion"]["values"].clone()
    };
    let prompt = json!({"type": "ref/prompt", "name": "every_completable-prompt"});
    assert_eq!(complete(prompt.clone(), "department", "S", json!({})).await, json!(["Sales", "Support"]));
    assert_eq!(complete(prompt, "name", "", json!({"department": "Sales"})).await, json!(["David", "Eve", "Frank"]));
    let template = json!({"type": "ref/resource", "uri": "every+demo://resource/dynamic/text/{resourceId}"});
    assert_eq!(complete(template, "resourceId", "5", json!({})).await, json!(["5"]));
}

async fn check_resources(client: &Client) {
    let read = async |uri: &str| client.request("resources/read", json!({"uri": uri})).await;
    for uri in ["every+demo://resource/dynamic/text/7", "demo://resource/dynamic/text/7"] {
        let content = read(uri).await["result"]["contents"][0].clone();
        assert_eq!(content["uri"], "every+demo://resource/dynamic/text/7");
        assert!(content["text"].as_str().is_some_and(|text| text.starts_with("Resource 7: ")), "{content}");
    }
    let content = read("every+demo://resource/static/document/features.md").await["result"]["contents"][0].clone();
    assert_eq!(content["mimeType"], "text/markdown", "{content}");

    let links = client.call("every_get-resource-links", json!({"count": 2})).await;
    let link = links["content"][1]["uri"].as_str().expect("a link");
    assert_eq!(link, "every+demo://resource/dynamic/blob/1");
    assert!(read(link).await["result"]["contents"][0]["blob"].is_string());

    // D13: a resource that this result created can be read at once.
    let made = client.call("every_gzip-file-as-resource", json!({"name": "new.gz", "data": "data:,words"})).await;
    let uri = made["content"][0]["uri"].as_str().unwrap_or_else(|| panic!("{made}"));
    assert_eq!(uri, "every+demo://resource/session/new.gz");
    let answer = read(uri).await;
    assert_eq!(answer["result"]["contents"][0]["mimeType"], "application/gzip", "{answer}");

    // The server decides about a URI that matches its template but does not exist.
    let answer = read("every+demo://resource/dynamic/text/none").await;
    assert!(
        answer["error"]["message"].as_str().is_some_and(|message| message.contains("Unknown resource")),
        "{answer}"
    );
}

/// Returns server-everything over stdio, with its process id in this file.
fn tracked(pid_file: &Path) -> Value {
    let script = r#"echo $$ > "$0"; exec node "$@""#;
    json!({ "command": "sh", "args": ["-c", script, path_text(pid_file), reference_program("server-everything"), "stdio"] })
}

#[tokio::test]
async fn a_killed_stdio_server_is_restarted() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let (_gateway, client) = everything(tracked(&pid_file)).await;
    let old = pid_in(&pid_file).await;
    signal(old, "KILL");
    next_pid_in(&pid_file, old).await;
    await_call(&client, "every_get-tiny-image").await;
    check_calls(&client).await;
    client.await_tool(LATE_TOOL).await;
    check_lists(&client).await;
}

#[tokio::test]
async fn a_replaced_http_server_is_reconnected() {
    for mode in ["streamableHttp", "sse"] {
        let mut server = Everything::start(mode).await;
        let (_gateway, client) = everything(server.server()).await;
        server.replace().await;
        await_call(&client, "every_get-tiny-image").await;
        check_calls(&client).await;
        client.await_tool(LATE_TOOL).await;
        check_lists(&client).await;
    }
}

/// The server stores its events, so the rest of a call can be fetched after a network cut.
#[tokio::test]
async fn http3_a_call_of_server_everything_continues_after_a_cut_connection() {
    let server = Everything::start("streamableHttp").await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port).into());
    let (_gateway, client) = everything(http_server(proxy.addr())).await;
    let params = json!({
        "name": "every_trigger-long-running-operation",
        "arguments": {"duration": 3, "steps": 6},
        "_meta": {"progressToken": "mine"},
    });
    let call = json!({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": params});
    let (_, mut stream) = client.open(call.to_string()).await;
    for step in 1..=6 {
        let progress = stream.next().await.expect("the call continues");
        assert_eq!(progress["params"]["progress"], step, "{progress}");
        if step == 2 {
            proxy.cut().await;
            proxy.pass().await;
        }
    }
    let answer = stream.next().await.expect("an answer");
    assert!(answer["result"].is_object(), "{answer}");
}

#[tokio::test]
async fn srv5_res3_the_filesystem_server_works_on_its_directory() {
    let files = Scratch::new();
    let inside = |name: &str| files.path().join(name).display().to_string();
    files.write("ein Wort.txt", "Grüße\n日本");
    let server = reference_server("server-filesystem", &[path_text(files.path())]);
    let gateway = Gateway::with_servers(json!({ "files": server })).await;
    let client = gateway.client_seeing("files_read_text_file").await;
    assert_eq!(client.tool_names().await.len(), 14);
    assert!(client.list("resources/list", "resources").await.is_empty());
    assert!(client.list("prompts/list", "prompts").await.is_empty());

    let read = client.call("files_read_text_file", json!({"path": inside("ein Wort.txt")})).await;
    assert_eq!(read["content"][0]["text"], "Grüße\n日本", "{read}");
    client.call("files_write_file", json!({"path": inside("new.txt"), "content": "a \"b\"\\\n"})).await;
    assert_eq!(std::fs::read_to_string(inside("new.txt")).expect("the file was written"), "a \"b\"\\\n");
    let edits = json!([{"oldText": "\"b\"", "newText": "c"}]);
    client.call("files_edit_file", json!({"path": inside("new.txt"), "edits": edits})).await;
    assert_eq!(std::fs::read_to_string(inside("new.txt")).expect("the file was written"), "a c\\\n");
    client.call("files_create_directory", json!({"path": inside("deep/er")})).await;
    let tree = client.call_text("files_list_directory", json!({"path": inside("")})).await;
    for entry in ["[FILE] ein Wort.txt", "[FILE] new.txt", "[DIR] deep"] {
        assert!(tree.contains(entry), "{tree}");
    }
    let rejected = client.try_call("files_read_text_file", json!({"path": "/etc/passwd"})).await;
    assert_eq!(rejected["result"]["isError"], true, "{rejected}");
}
