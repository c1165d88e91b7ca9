//! Attacks from outside that the gateway withstands, kept as regression tests.
//!
//! Related tests are in `files_escape` (paths), `resume` (event ids of other clients), `profiles` (sessions of other
//! endpoints) and `bad_input`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use goblin_admin::routes::{ROUTES, ReadTarget, RouteAction};
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client::modern::Draft;
use crate::client::{Client, text_of};
use crate::harness::{Gateway, Scratch, fixture_server, goblin, servers_only};
use crate::hostile::{Attack, HEALTHY};
use crate::operator::bearer;
use crate::park::{ELICITATION, ask, required, retry, to_all};
use crate::raw_server::response;
use crate::scripted::{Reply, Scripted};
use crate::stage::Back;
use crate::stage::Scene;
use crate::support::{children, http_server, logged, scripted_server};

/// The memory limit in MiB. None of these attacks costs memory.
const CEILING: u64 = 128;

/// Starts a gateway with a healthy server and the attacked server `a`.
async fn gateway_with(server: Value) -> Gateway {
    Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]), "a": server })).await
}

/// A listener that counts connections. The gateway must never connect to it.
struct Canary {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Canary {
    async fn start() -> Canary {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Canary { address, connections }
    }

    /// Asserts that there was exactly one connection: the one of this function, which proves that connections are
    /// counted.
    async fn assert_untouched(&self) {
        drop(tokio::net::TcpStream::connect(self.address).await.expect("the canary listens"));
        let is_counted = || async { (self.connections.load(Ordering::SeqCst) > 0).then_some(()) };
        crate::harness::eventually("the canary counts", is_counted).await;
        assert_eq!(self.connections.load(Ordering::SeqCst), 1, "the gateway connected to an address of the attacker");
    }
}

#[tokio::test]
async fn hard_equal_ids_of_many_clients_never_get_the_answer_of_another() {
    const CLIENTS: usize = 8;
    const CALLS: usize = 25;
    let gateway = gateway_with(fixture_server(&[])).await;
    let attack = Attack::begin("equal ids", &gateway).await;
    gateway.client_seeing("a_echo").await;
    let address = gateway.address;
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let session = gateway.client().await;
        tasks.push(tokio::spawn(async move {
            let stateless = Client::modern(address, json!({}));
            for call in 0..CALLS {
                let nonce = format!("client {number} call {call}");
                let params = json!({ "name": "a_echo", "arguments": { "nonce": nonce } });
                let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
                let draft = Draft::new("tools/call", params);
                let (one, two) = tokio::join!(session.post(message.to_string()), stateless.send_draft(&draft));
                for answer in [one.json(), two.json()] {
                    assert_eq!((&answer["id"], answer["result"].to_string().contains(&nonce)), (&json!(1), true));
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("every answer is that of its own call");
    }
    attack.end(CEILING).await;
}

#[tokio::test]
async fn hard_a_request_state_with_any_flipped_bit_is_refused() {
    let scene = Scene::start(Back::Post, json!({}), json!({})).await;
    let call = ask(&scene.backend, ELICITATION, r#","params":{"message":"m"}"#);
    let (asked, state) = required(&scene.client.request("tools/call", call.clone()).await);
    let answers = to_all(&asked, json!({"action": "accept"}));
    let mut tried = 0;
    for (place, byte) in state.bytes().enumerate() {
        for bit in 0..7 {
            let mut flipped = state.clone().into_bytes();
            flipped[place] = byte ^ (1 << bit);
            let flipped = String::from_utf8(flipped).expect("ASCII stays ASCII");
            let answer = scene.client.request("tools/call", retry(&call, answers.clone(), &flipped)).await;
            assert_eq!(answer["error"]["data"]["code"], "STALE_STATE", "bit {bit} of byte {place}: {answer}");
            tried += 1;
        }
    }
    assert!(tried > 100, "the state has {} bytes", state.len());
    assert_eq!(scene.runs().await, 1, "no forged state reached the server");
    let done = scene.client.request("tools/call", retry(&call, answers, &state)).await;
    assert_eq!(text_of(&done), r#"{"result":{"action":"accept"}}"#, "the state itself is still good");
}

/// A text that repaints a terminal: escapes of seven and eight bits, a bell, a carriage return.
const REPAINT: &str = "evil\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\rfake line";

#[tokio::test]
async fn hard_no_text_of_a_peer_reaches_a_terminal_by_the_log() {
    let listed = json!({ "tools": [{ "name": REPAINT, "description": REPAINT, "inputSchema": { "type": "object" } }] });
    let server = Scripted::start(move |seen, _| match seen.method() {
        "initialize" => seen.result(json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {}, "logging": {} },
            "serverInfo": { "name": REPAINT, "version": REPAINT },
        })),
        "tools/list" => seen.result(listed.clone()),
        "tools/call" => seen.error("500 Internal Server Error", json!({ "code": -32000, "message": REPAINT })),
        _ => seen.legacy(),
    })
    .await;
    let printing = scripted_server(r#"printf 'evil\033[2J\033]0;owned\007\rfake line\n' >&2; exec "$@""#, &[]);
    let servers = json!({ HEALTHY: fixture_server(&[]), "a": http_server(server.address), "b": printing });
    let gateway = Gateway::with_servers(servers).await;
    let attack = Attack::begin("terminal escapes", &gateway).await;
    let client = gateway.client_seeing("b_echo").await;
    logged(&gateway, &["fake line"]).await;
    let name = client.tool_names().await.into_iter().find(|name| name.starts_with("a_")).expect("the tool is listed");
    client.try_call(&name, json!({})).await;
    let hostile = Client::new(gateway.address);
    let info = json!({ "name": REPAINT, "version": REPAINT });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info });
    for (method, params) in [("initialize", params), (REPAINT, json!({})), ("tools/call", json!({ "name": REPAINT }))] {
        let message = json!({ "jsonrpc": "2.0", "id": REPAINT, "method": method, "params": params });
        hostile.post(message.to_string()).await;
    }
    for message in [json!({ "name": REPAINT }), json!({ "name": format!("a_{REPAINT}") })] {
        client.request("tools/call", message).await;
    }
    attack.end(CEILING).await;
    for line in gateway.log() {
        assert!(!line.chars().any(|letter| letter.is_control() && letter != '\t'), "{line:?}");
    }
}

#[tokio::test]
async fn hard_a_tool_name_with_control_characters_is_listed_and_called_by_a_plain_name() {
    let listed = json!({ "tools": [{ "name": REPAINT, "inputSchema": { "type": "object" } }] });
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/list" => seen.result(listed.clone()),
        _ => seen.legacy(),
    })
    .await;
    let gateway = gateway_with(http_server(server.address)).await;
    let attack = Attack::begin("control characters in names", &gateway).await;
    let client = gateway.client().await;
    let name = crate::harness::eventually("the tool is listed", || async {
        client.tool_names().await.into_iter().find(|name| name.starts_with("a_"))
    })
    .await;
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)), "{name:?}");
    client.call(&name, json!({})).await;
    assert_eq!(server.of("tools/call")[0].message["params"]["name"], REPAINT, "the server gets the name it gave");
    attack.end(CEILING).await;
}

#[tokio::test]
async fn hard_an_argument_that_becomes_a_header_injects_none() {
    let schema = json!({ "type": "object", "properties": { "r": { "type": "string", "x-mcp-header": "R" } } });
    let server = Scripted::start(move |seen, _| seen.modern(&schema)).await;
    let gateway = gateway_with(http_server(server.address)).await;
    let attack = Attack::begin("header injection", &gateway).await;
    let client = gateway.client_seeing("a_t").await;
    let values =
        ["x\r\nX-Evil: 1", "x\nX-Evil: 1", "x\rX-Evil: 1", "\0X-Evil", " x ", "é\u{2028}X-Evil: 1", "=?base64?WA==?="];
    for value in values {
        client.call("a_t", json!({ "r": value })).await;
    }
    let calls = server.of("tools/call");
    assert_eq!(calls.len(), values.len());
    for (call, value) in calls.iter().zip(values) {
        assert_eq!(call.header("x-evil"), None, "{call:?}");
        assert_eq!(call.message["params"]["arguments"]["r"], value);
        let header = call.header("mcp-param-r").expect("the argument is repeated");
        let encoded = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
        let decoded = STANDARD.decode(encoded.unwrap_or_else(|| panic!("{header} is not encoded"))).expect("base64");
        assert_eq!(decoded, value.as_bytes());
    }
    attack.end(CEILING).await;
}

#[tokio::test]
async fn hard_a_reference_to_the_network_in_a_schema_is_never_fetched() {
    let canary = Canary::start().await;
    let url = format!("http://{}/schema.json", canary.address);
    let schema = json!({
        "$schema": url, "$id": url, "type": "object", "properties": { "r": { "$ref": url }, "d": { "$dynamicRef": url } },
        "allOf": [{ "$ref": format!("{url}#/definitions/x") }],
    });
    let listed = json!({ "tools": [{ "name": "t", "inputSchema": schema, "outputSchema": schema }] });
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/list" => seen.result(listed.clone()),
        _ => seen.legacy(),
    })
    .await;
    let mut entry = http_server(server.address);
    entry["validate"] = json!(true);
    let gateway = gateway_with(entry).await;
    let attack = Attack::begin("references to the network", &gateway).await;
    let client = gateway.client_seeing("a_t").await;
    client.try_call("a_t", json!({ "r": 1, "d": 2 })).await;
    client.request("tools/call", json!({ "name": "describe_tool", "arguments": { "name": "a_t" } })).await;
    attack.end(CEILING).await;
    canary.assert_untouched().await;
}

#[tokio::test]
async fn hard_a_redirect_is_never_followed() {
    let canary = Canary::start().await;
    let location = format!("Location: http://{}/mcp\r\n", canary.address);
    let moved = location.clone();
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/call" => Reply::Bytes(response("307 Temporary Redirect", &moved, "")),
        _ => seen.legacy(),
    })
    .await;
    let gone = Scripted::start(move |_, _| Reply::Bytes(response("308 Permanent Redirect", &location, ""))).await;
    let old = json!({ "type": "sse", "url": format!("http://{}/sse", gone.address) });
    let servers = json!({
        HEALTHY: fixture_server(&[]), "a": http_server(server.address), "b": http_server(gone.address), "c": old,
    });
    let gateway = Gateway::with_servers(servers).await;
    let attack = Attack::begin("redirects", &gateway).await;
    let client = gateway.client_seeing("a_t").await;
    let answer = client.try_call("a_t", json!({})).await;
    assert!(answer["error"]["message"].as_str().is_some_and(|words| words.contains("redirect")), "{answer}");
    for name in ["b", "c"] {
        logged(&gateway, &[name, "308 Permanent Redirect"]).await;
    }
    attack.end(CEILING).await;
    canary.assert_untouched().await;
}

#[tokio::test]
async fn hard_no_request_starts_a_program() {
    let scratch = Scratch::new();
    let marker = scratch.path().join("marker");
    let config = json!({ "mcpServers": { HEALTHY: fixture_server(&[]) } });
    let path = scratch.write("goblin.json", &servers_only(config).to_string());
    let mut command = goblin(scratch.path());
    command.args(["serve", "--port", "0", "--config"]).arg(&path);
    let gateway = Gateway::of(command).await;
    let attack = Attack::begin("programs by request", &gateway).await;
    let client = gateway.client_seeing(&format!("{HEALTHY}_echo")).await;
    let pid = gateway.child.id().expect("the gateway runs");
    let before = children(pid);
    let entry = json!({ "command": "touch", "args": [marker], "env": {}, "type": "stdio", "enabled": true });
    let mut body = entry.clone();
    for name in ["server", "config", "transport", "params", "arguments", "process"] {
        body[name] = entry.clone();
    }
    body["mcpServers"] = json!({ "evil": entry });
    let token = bearer(gateway.address).await;
    let headers = [("authorization", token.as_str()), ("content-type", "application/json")];
    for route in ROUTES.iter().filter(|route| route.action != RouteAction::Read(ReadTarget::Events)) {
        for verb in [Method::POST, Method::PUT, Method::PATCH] {
            let path = route.path.replace("{id}", "evil");
            client.send(verb, &path, &headers, body.to_string()).await;
        }
    }
    for method in ["initialize", "servers/add", "tools/call", "completion/complete", "server/discover"] {
        client.request(method, body.clone()).await;
    }
    for tool in ["call_tool", "search_tools", "describe_tool", "read_resource", "healthy_echo"] {
        client.request("tools/call", json!({ "name": tool, "arguments": body })).await;
    }
    let servers = client.send(Method::GET, "/api/servers", &headers, "").await.json();
    assert_eq!(servers["servers"].as_array().map(Vec::len), Some(1), "{servers}");
    assert_eq!(children(pid), before, "the gateway has started a program");
    assert!(!marker.exists(), "a request has started a program");
    attack.end(CEILING).await;
}
