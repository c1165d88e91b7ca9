//! A gateway on a Unix socket, beside TCP or instead of it (HARD-10).
//!
//! Every command and the dashboard must work over the socket alone.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use http::{Method, StatusCode};
use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, UnixSocketHttpClient};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::Client;
use crate::harness::{Gateway, PATIENCE, eventually, fixture_server, servers_only, signal};
use crate::home::Home;
use crate::screen::Screen;
use crate::socket_gateway::{SOCKET, SocketGateway, await_tools, call, home_with, post, send, socket_of};

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("the file is there").permissions().mode() & 0o777
}

#[tokio::test]
async fn hard10_the_socket_is_private_and_serves_the_sdk() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let mut gateway = SocketGateway::start(&home).await;
    assert_eq!((mode(socket.parent().expect("a directory")), mode(&socket)), (0o700, 0o600));
    assert!(!gateway.has_logged("listening on http"), "{:?}", gateway.log());
    await_tools(&socket).await;
    let client = UnixSocketHttpClient::new(&socket.display().to_string(), "http://localhost/mcp");
    let config = StreamableHttpClientTransportConfig::with_uri("/mcp");
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let service = ().serve(transport).await.expect("the SDK connects");
    let tools = service.list_all_tools().await.expect("a list");
    assert!(tools.iter().any(|tool| tool.name == "a_echo"), "{tools:?}");
    let arguments = json!({ "text": "over the socket" }).as_object().expect("an object").clone();
    let result = service.call_tool(CallToolRequestParams::new("a_echo").with_arguments(arguments)).await;
    assert!(serde_json::to_string(&result.expect("a result")).expect("JSON").contains("over the socket"));
    service.cancel().await.expect("the client ends");
    gateway.end("TERM").await;
    assert!(!socket.exists(), "the gateway removes its socket");
}

#[tokio::test]
async fn hard10_every_command_works_over_the_socket_alone() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let _gateway = SocketGateway::start(&home).await;
    await_tools(&socket).await;
    let url = format!("unix:{}", socket.display());
    let status = home.run(&["status"]).await;
    assert!(status.code == Some(0) && status.text().contains(&url), "{status:?}");
    for arguments in [
        &["status", "--json"][..],
        &["subscriptions", "--json"],
        &["tools", "list", "--json"],
        &["tools", "call", "a_echo", "text=hello", "--json"],
        &["resources", "list", "--json"],
        &["prompts", "list", "--json"],
        &["status", "--json", "--url", &url],
        &["tools", "list", "--json", "--url", &url],
    ] {
        let ran = home.run(arguments).await;
        assert!(ran.json().is_object() || ran.json().is_array(), "{arguments:?}: {ran:?}");
    }
    let doctor = home.run(&["doctor", "--config", home.config(), "--no-connect"]).await;
    let running = format!("a gateway of this configuration runs at {url}:/mcp");
    assert!(doctor.code == Some(0) && doctor.text().contains(&running), "{doctor:?}");
    assert!(!doctor.text().contains("port"), "there is no port to look at: {doctor:?}");
}

/// Starts `goblin stdio`. Returns the client and the line that names the gateway it uses.
async fn stdio(home: &Home, arguments: &[&str]) -> (Client, String) {
    let mut command = home.goblin(&["stdio"]);
    command.args(arguments).stderr(Stdio::piped());
    let client = Client::run(command);
    let mut lines = BufReader::new(client.stderr()).lines();
    let word = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a word in time").expect("text");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (client, word.expect("a line"))
}

#[tokio::test]
async fn hard10_a_bridge_uses_the_socket_and_finds_the_next_gateway_there() {
    let home = home_with(json!({ "token": "0123456789abcdef" }));
    let socket = socket_of(&home);
    let mut gateway = SocketGateway::start(&home).await;
    let (mut client, word) = stdio(&home, &["--config", home.config()]).await;
    assert!(word.contains(&format!("bridging to the gateway at unix:{}:/mcp", socket.display())), "{word}");
    client.initialize("2025-11-25").await;
    client.await_tool("a_echo").await;
    let (mut named, _) = stdio(&home, &["--url", &format!("unix:{}", socket.display())]).await;
    named.initialize("2025-11-25").await;
    named.await_tool("a_echo").await;
    gateway.end("TERM").await;
    let _gateway = SocketGateway::start(&home).await;
    client.await_tool("a_echo").await;
}

#[tokio::test]
async fn hard10_the_dashboard_uses_the_socket() {
    let home = home_with(json!({}));
    let _gateway = SocketGateway::start(&home).await;
    await_tools(&socket_of(&home)).await;
    let mut screen = Screen::run(home.goblin(&["top"]), 100, 30);
    screen.shows("● ready").await;
    screen.shows(&format!("unix:{}", socket_of(&home).display())).await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn hard10_beside_tcp_the_uid_replaces_the_token_of_clients_only() {
    let token = "0123456789abcdef";
    let config = json!({
        "gateway": { "socket": SOCKET, "token": token },
        "mcpServers": { "a": fixture_server(&[]) },
    });
    let home = Home::new(&servers_only(config));
    let socket = socket_of(&home);
    let gateway = Gateway::of(home.goblin(&["serve", "--port", "0", "--config", home.config()])).await;
    let tcp = crate::client::Client::new(gateway.address);
    let refused = tcp.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{refused:?}");
    await_tools(&socket).await;
    let change = |headers: Vec<(&'static str, String)>| {
        let socket = socket.clone();
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            send(&socket, Method::POST, "/api/servers/a/restart", &headers, "").await.status
        }
    };
    let host = || ("host", "localhost".to_owned());
    assert_eq!(change(vec![host()]).await, StatusCode::UNAUTHORIZED, "a change needs the admin token");
    // The rules for Host and Origin also apply to the socket, because a program may forward a port to it.
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for headers in [&[("host", "evil.example")][..], &[("host", "localhost"), ("origin", "http://evil.example")]] {
        let answer = send(&socket, Method::POST, "/mcp", headers, body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{headers:?}: {answer:?}");
    }
    let status = home.run(&["status"]).await;
    assert!(status.text().contains(&format!("unix:{}", socket.display())), "commands prefer the socket: {status:?}");
    let record = std::fs::read_dir(home.scratch.path().join("goblin")).expect("a directory").flatten();
    let record = record.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|is| is == "json"));
    let record: Value = serde_json::from_slice(&std::fs::read(record.expect("a record")).expect("text")).expect("JSON");
    assert_eq!((&record["url"], &record["socket"]), (&json!(gateway.url()), &json!(socket)), "{record}");
}

#[tokio::test]
async fn hard10_a_shutdown_waits_for_calls_over_the_socket() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let mut gateway = SocketGateway::start(&home).await;
    await_tools(&socket).await;
    let path = socket.clone();
    let slow = tokio::spawn(async move { call(&path, "a_sleep", json!({ "ms": 1500 })).await });
    eventually("the call is open", || async {
        let status = home.run(&["status", "--json"]).await.json();
        (status["servers"][0]["inFlight"] == 1).then_some(())
    })
    .await;
    signal(gateway.child.id().expect("the gateway runs"), "TERM");
    eventually("the socket is gone", || async { (!socket.exists()).then_some(()) }).await;
    let result = slow.await.expect("the call ends");
    assert!(result["content"].is_array(), "{result}");
    let ended = tokio::time::timeout(PATIENCE, gateway.child.wait()).await.expect("the gateway ends");
    assert!(ended.expect("a child").success());
}

#[tokio::test]
async fn hard10_another_socket_needs_a_restart() {
    let home = home_with(json!({}));
    let socket = socket_of(&home);
    let gateway = SocketGateway::start(&home).await;
    let text = std::fs::read_to_string(&home.config).expect("text");
    std::fs::write(&home.config, text.replace("goblin.sock", "other.sock")).expect("a file");
    signal(gateway.child.id().expect("the gateway runs"), "HUP");
    eventually("the change is rejected", || async {
        gateway.has_logged("gateway.socket cannot change while the gateway runs").then_some(())
    })
    .await;
    assert_eq!(post(&socket, None, "ping", &json!({})).await.status, StatusCode::BAD_REQUEST);
}
