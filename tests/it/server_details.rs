//! The details of servers in the status: command or URL, process, instructions and last error. Secrets of the
//! configuration appear neither there nor in the dashboard, and clients get none of these details.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, fixture, fixture_server, goblin, servers_only, signal};
use crate::screen::Screen;
use crate::support::{path_text, pid_in};

/// The value of every secret.
const CANARY: &str = "canary0secret";

async fn server(client: &Client, id: &str) -> Value {
    get_admin(client, &format!("/api/servers/{id}")).await.json()
}

/// Waits until the status of a server satisfies the condition.
async fn server_when(client: &Client, id: &str, condition: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(condition, || async { Some(server(client, id).await).filter(|server| is_so(server)) }).await
}

fn text<'a>(server: &'a Value, key: &str) -> &'a str {
    server[key].as_str().unwrap_or_else(|| panic!("{key} in {server}"))
}

#[tokio::test]
async fn use14_the_status_has_the_command_the_process_and_the_last_error_of_a_server() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let instructions = "Use small steps.\nThen \u{1b}[31mstop.";
    let server = fixture_server(&["--pid-file", path_text(&pid_file), "--instructions", instructions]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let first = server_when(&client, "a", "the server is ready", |server| server["state"] == "ready").await;
    assert!(text(&first, "command").starts_with(&fixture()), "{first}");
    assert!(text(&first, "command").contains(path_text(&pid_file)), "{first}");
    assert_eq!(text(&first, "instructions"), "Use small steps.\nThen [31mstop.");
    assert!(first["url"].is_null() && first["lastError"].is_null(), "{first}");
    let pid = pid_in(&pid_file).await;
    if cfg!(target_os = "linux") {
        assert_eq!(first["pid"], pid);
    }
    assert!(first["pid"].is_u64(), "{first}");
    signal(pid, "KILL");
    let second = server_when(&client, "a", "the server has another process", |server| {
        server["state"] == "ready" && server["pid"].is_u64() && server["pid"] != first["pid"]
    })
    .await;
    let error = &second["lastError"];
    assert!(text(error, "message").contains("signal 9"), "{second}");
    let time = text(error, "time");
    assert!(time.len() == "2026-11-16T00:00:00Z".len() && time.ends_with('Z'), "{time}");
    assert!(second["reason"].is_null(), "the server has recovered: {second}");
}

#[tokio::test]
async fn use14_servers_that_do_not_run_are_shown_with_their_targets() {
    let scratch = Scratch::new();
    let root = scratch.path().join("docs");
    std::fs::create_dir_all(&root).expect("a directory");
    let servers = json!({
        "off": { "command": "no-such-program", "args": ["--level", "2"], "enabled": false },
        "failed": { "command": "no-such-program" },
        "unset": { "command": "mail", "args": ["--user", "me", "--token", "${GOBLIN_TEST_UNSET}"] },
        "remote": { "url": "http://127.0.0.1:9/mcp?k=v" },
        "unset-url": { "url": "https://${GOBLIN_TEST_UNSET}/mcp?k=v" },
        "files": { "type": "files", "root": path_text(&root) },
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = Client::new(gateway.address);
    let failed = server_when(&client, "failed", "it has failed", |server| server["state"] == "failed").await;
    assert_eq!(failed["lastError"]["message"], failed["reason"], "{failed}");
    for (id, key, expected) in [
        ("off", "command", "no-such-program --level 2"),
        ("failed", "command", "no-such-program"),
        ("unset", "command", "mail --user me --token ${GOBLIN_TEST_UNSET}"),
        ("remote", "url", "http://127.0.0.1:9/mcp?***"),
        ("unset-url", "url", "https://${GOBLIN_TEST_UNSET}/mcp?***"),
        ("files", "url", path_text(&root)),
    ] {
        let server = server(&client, id).await;
        let other = if key == "url" { "command" } else { "url" };
        assert!(text(&server, key) == expected && server[other].is_null(), "{server}");
        assert!(server["pid"].is_null(), "{server}");
    }
    assert_eq!(server(&client, "unset").await["state"], "misconfigured");
}

/// Returns servers with the canary in arguments, variables, headers and URLs, literally and by a variable.
fn servers_with_secrets() -> Value {
    let database = format!("postgres://me:{CANARY}@127.0.0.1/db?password={CANARY}");
    let command = |args: Value| json!({ "command": "sh", "args": args, "env": { "API_KEY": CANARY } });
    let begin = ["-c", "exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    let runs = begin.into_iter().chain([fixture(), "--instructions".to_owned(), "${CANARY_TEXT}".to_owned()]);
    json!({
        "runs": command(json!(runs.collect::<Vec<_>>())),
        "fails": command(json!(["-c", "exit 3", "--token", CANARY, "--db", database, "${CANARY}"])),
        "missing": { "command": "no-such-${CANARY}", "args": [format!("--api-key={CANARY}")] },
        "unset": { "command": "sh", "args": ["--password", CANARY, "${GOBLIN_TEST_UNSET}"] },
        "off": { "command": "sh", "args": ["${CANARY}", "--password", CANARY], "enabled": false },
        "remote": {
            "url": format!("http://127.0.0.1:9/${{CANARY}}/mcp?key={CANARY}"),
            "headers": { "Authorization": "Bearer ${CANARY}" },
        },
    })
}

#[tokio::test]
async fn hard8_the_status_and_the_dashboard_show_no_secret_of_a_server() {
    let home = Scratch::new();
    let config = servers_only(json!({ "mcpServers": servers_with_secrets() }));
    let path = home.write("goblin.json", &config.to_string());
    let mut command = goblin(home.path());
    command.args(["serve", "--port", "0", "--config"]).arg(path).env("CANARY", CANARY).env("CANARY_TEXT", "Be kind.");
    let gateway = Gateway::of(command).await;
    let client = gateway.client_seeing("runs_echo").await;
    for id in ["fails", "missing", "remote"] {
        server_when(&client, id, "the server has failed", |server| !server["lastError"].is_null()).await;
    }
    assert_eq!(server(&client, "runs").await["instructions"], "Be kind.");
    for path in ["/api/status", "/api/servers", "/api/sessions", "/readyz", "/api/logs"] {
        let body = get_admin(&client, path).await.body;
        assert!(!body.contains(CANARY), "{path}: {body}");
    }
    let expected = "sh -c 'exit 3' --token *** --db 'postgres://***@127.0.0.1/db?***' ${CANARY}";
    assert_eq!(text(&server(&client, "fails").await, "command"), expected);

    let mut command = goblin(home.path());
    command.arg("top");
    let mut screen = Screen::run(command, 200, 60);
    screen.shows("failed").await;
    for (search, fragment) in [
        ("/fails\r", "--db 'postgres://***@127.0.0.1/db?***'"),
        ("/missing\r", "no-such-${CANARY}"),
        ("/unset\r", "${GOBLIN_TEST_UNSET}"),
        ("/off\r", "sh ${CANARY} --password ***"),
        ("/remote\r", "http://127.0.0.1:9/${CANARY}/mcp?***"),
        ("/runs\r", "Be kind."),
    ] {
        screen.press("2");
        screen.press(search);
        screen.shows(&format!("· {}", search.trim_end())).await;
        screen.press("\r");
        // The reason in the list may have the fragment too, so wait for the details first.
        screen.shows("Log and stderr").await;
        let shown = screen.shows(fragment).await;
        assert!(!shown.contains(CANARY), "{shown}");
        screen.press("\x1b");
        screen.hides("Log and stderr").await;
        screen.press("\x1b");
        screen.hides(&format!("· {}", search.trim_end())).await;
    }
}

#[tokio::test]
async fn hard7_the_target_and_the_last_error_of_a_server_need_the_admin_token() {
    let script = format!("echo noise-of-the-server >&2; exec '{}' --crash-after 0", fixture());
    let servers = json!({ "a": { "command": "sh", "args": ["-c", script] }, "b": fixture_server(&[]) });
    let gateway = Gateway::start(json!({ "metaTools": true, "mcpServers": servers })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    let crashed = client.try_call("a_echo", json!({})).await;
    server_when(&client, "a", "the failure is recorded", |server| !server["lastError"].is_null()).await;
    let status = get_admin(&client, "/api/status").await.body;
    assert!(status.contains("--crash-after") && status.contains("noise-of-the-server"), "{status}");
    for path in ["/api/status", "/api/servers", "/api/servers/a", "/api/sessions"] {
        assert_eq!(client.send(Method::GET, path, &[], "").await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let probe = client.send(Method::GET, "/readyz", &[], "").await.body;
    let metrics = client.send(Method::GET, "/metrics", &[], "").await.body;
    let mut meta = Vec::new();
    for tool in ["catalog_tools", "search_tools", "describe_tool"] {
        meta.push(client.try_call(tool, json!({ "query": "echo", "name": "a_echo" })).await);
    }
    for shown in [probe, metrics, crashed.to_string(), json!(meta).to_string()] {
        for fragment in ["--crash-after", "noise-of-the-server", "lastError"] {
            assert!(!shown.contains(fragment), "{fragment}: {shown}");
        }
    }
}
