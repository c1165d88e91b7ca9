//! Unusable servers: the log and the callers receive the cause and a remedy.
//!
//! Only a listed server can be called, so each one works first and is broken later.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture, fixture_server, signal};
use crate::raw_server::{RawServer, response};
use crate::support::{assert_error, await_log, http_server, path_text, pid_in, without_login};

/// Waits until callers of `server` receive `public` and the log contains `fragment`.
async fn assert_reported(gateway: &Gateway, client: &Client, server: &str, tool: &str, public: &str, fragment: &str) {
    let answer = eventually(&format!("callers of {server} read: {public}"), || async {
        let answer = client.try_call(tool, json!({})).await;
        answer["error"]["message"].as_str().is_some_and(|message| message.contains(public)).then_some(answer)
    })
    .await;
    let data = assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(data["serverId"], server, "{answer}");
    // The log escapes quotes.
    let quoted = fragment.replace('"', "\\\"");
    await_log(gateway, &["cannot connect to backend", &format!("server=\"{server}\""), &quoted]).await;
}

/// A server behind a script that can be replaced.
struct Scripted {
    directory: PathBuf,
}

impl Scripted {
    fn new(scratch: &Scratch, name: &str) -> Scripted {
        let directory = scratch.path().join(name);
        std::fs::create_dir_all(directory.join("cwd")).expect("room for a directory");
        let scripted = Scripted { directory };
        scripted.replace(&format!("exec '{}' --pid-file '{}'", fixture(), scripted.pid_file().display()));
        scripted
    }

    fn script(&self) -> PathBuf {
        self.directory.join("mcp-server-of-ours")
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("pid")
    }

    fn replace(&self, body: &str) {
        let fresh = self.directory.join("fresh");
        std::fs::write(&fresh, format!("#!/bin/sh\n{body}\n")).expect("room for a script");
        std::fs::set_permissions(&fresh, Permissions::from_mode(0o755)).expect("the test owns the file");
        std::fs::rename(&fresh, self.script()).expect("the same directory");
    }

    fn server(&self) -> Value {
        let path = format!("{}:{}", self.directory.display(), std::env::var("PATH").unwrap_or_default());
        json!({ "command": "mcp-server-of-ours", "cwd": self.directory.join("cwd"), "env": { "PATH": path } })
    }
}

fn remove_command(scripted: &Scripted) {
    std::fs::remove_file(scripted.script()).expect("the file existed");
}

fn make_unexecutable(scripted: &Scripted) {
    std::fs::set_permissions(scripted.script(), Permissions::from_mode(0o644)).expect("the test owns the file");
}

fn remove_cwd(scripted: &Scripted) {
    std::fs::remove_dir(scripted.directory.join("cwd")).expect("the file existed");
}

fn exit_at_start(scripted: &Scripted) {
    scripted.replace("echo 'no \u{1b}[31mlicence' >&2; echo 'call the vendor' >&2; exit 7");
}

fn never_answer(scripted: &Scripted) {
    scripted.replace("exec sleep 600");
}

fn print_text(scripted: &Scripted) {
    scripted.replace("echo 'Listening on port 8000'; exec sleep 600");
}

fn echo_input(scripted: &Scripted) {
    scripted.replace("exec cat");
}

fn print_and_exit(scripted: &Scripted) {
    scripted.replace("echo 'total 0'; exit 0");
}

fn raise_in_python(scripted: &Scripted) {
    scripted.replace("exec python3 -c 'import no_such_module'");
}

/// A name, a fault, the message for callers and the message for operators.
type Row = (&'static str, fn(&Scripted), &'static str, &'static str);

const UNSTARTABLE: &str = "its command cannot be started; goblin status shows more";
const ECHO: &str = "it echoes its input, so it is not an MCP server (is it the right command?)";
const SILENT: &str = "no answer to the handshake within 5 s (does the command start an MCP server on stdin";

#[tokio::test]
async fn d14_a_broken_command_is_reported_with_its_cause_and_cure() {
    let rows: [Row; 9] = [
        (
            "absent",
            remove_command,
            UNSTARTABLE,
            "command \"mcp-server-of-ours\" not found (is it installed and on PATH?",
        ),
        ("plain", make_unexecutable, UNSTARTABLE, "mcp-server-of-ours is not executable (chmod +x?)"),
        ("astray", remove_cwd, UNSTARTABLE, "No such file or directory (os error 2) (check cwd in the configuration)"),
        (
            "dying",
            exit_at_start,
            "exit code 7; goblin status shows more",
            "exit code 7; last on stderr: no licence / call the vendor (run its command by hand",
        ),
        ("silent", never_answer, SILENT, SILENT),
        ("echoing", echo_input, ECHO, ECHO),
        (
            "lister",
            print_and_exit,
            "exit code 0; goblin status shows more",
            "exit code 0, but \"total 0\" on stdout, which is not an MCP message (is it the command of an MCP server?)",
        ),
        (
            "python",
            raise_in_python,
            "exit code 1; goblin status shows more",
            "exit code 1; cause: ModuleNotFoundError: No module named 'no_such_module' (install",
        ),
        (
            "babbling",
            print_text,
            "no answer to the handshake within 5 s; goblin status shows more",
            "but \"Listening on port 8000\" on stdout, which is not an MCP message (is it the right command?",
        ),
    ];
    let scratch = Scratch::new();
    let scripted = rows.map(|(name, ..)| Scripted::new(&scratch, name));
    let servers = rows.iter().zip(&scripted).map(|((name, ..), scripted)| ((*name).to_owned(), scripted.server()));
    let config =
        json!({ "policies": { "startTimeout": "5s" }, "mcpServers": servers.collect::<serde_json::Map<_, _>>() });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    for ((name, break_it, ..), scripted) in rows.iter().zip(&scripted) {
        client.await_tool(&format!("{name}_echo")).await;
        let pid = pid_in(&scripted.pid_file()).await;
        break_it(scripted);
        signal(pid, "KILL");
    }
    for (name, _, public, fragment) in rows {
        assert_reported(&gateway, &client, name, &format!("{name}_echo"), public, fragment).await;
    }
}

static BROKEN: AtomicBool = AtomicBool::new(false);

const REJECTIONS: [(&str, &str, &str); 5] = [
    ("locked", "401 Unauthorized", "HTTP 401 Unauthorized (check its headers in the configuration)"),
    ("forbidden", "403 Forbidden", "HTTP 403 Forbidden (check its headers in the configuration)"),
    ("moved", "404 Not Found", "HTTP 404 Not Found (is the url right?)"),
    ("website", "200 OK", "it answered with a web page (is the url right?"),
    ("ill", "503 Service Unavailable", "HTTP 503 Service Unavailable (see its own log)"),
];

/// Accepts a session at first, and rejects everything after it is broken.
fn reject<const ROW: usize>(method: &str) -> Option<Vec<u8>> {
    if BROKEN.load(Ordering::SeqCst) {
        return Some(response(REJECTIONS[ROW].1, "Content-Type: text/html\r\n", "\n<!doctype html><h1>hello</h1>"));
    }
    let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
    let headers = "Content-Type: application/json\r\nMcp-Session-Id: one\r\n";
    (method == "initialize").then(|| response("200 OK", headers, &body))
}

/// Forgets the session, so that the next handshake is rejected.
fn forget(_: &Value) -> Vec<u8> {
    response("404 Not Found", "", "")
}

#[tokio::test]
async fn d12_a_broken_http_server_is_reported_with_its_cause_and_cure() {
    let raw = [
        RawServer::rejecting(reject::<0>, forget).await,
        RawServer::rejecting(reject::<1>, forget).await,
        RawServer::rejecting(reject::<2>, forget).await,
        RawServer::rejecting(reject::<3>, forget).await,
        RawServer::rejecting(reject::<4>, forget).await,
    ];
    let down = HttpFixture::start(&[]).await;
    let mut servers = json!({ "down": down.server() });
    for ((name, ..), raw) in REJECTIONS.iter().zip(&raw) {
        servers[*name] = without_login(http_server(raw.address));
    }
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("down_echo").await;
    for (name, ..) in REJECTIONS {
        client.await_tool(&format!("{name}_t")).await;
    }
    BROKEN.store(true, Ordering::SeqCst);
    drop(down);
    for (name, _, fragment) in REJECTIONS {
        assert_reported(&gateway, &client, name, &format!("{name}_t"), fragment, fragment).await;
    }
    let refused = "connection refused (is the server running, and on this port?)";
    assert_reported(&gateway, &client, "down", "down_echo", refused, refused).await;
}

/// A server that never worked cannot be called. The log names its problem.
#[tokio::test]
async fn d12_an_unreachable_url_is_logged_with_its_cure() {
    let plain = HttpFixture::start(&[]).await;
    let gateway = Gateway::with_servers(json!({
        "nowhere": { "url": "http://no-such-host.invalid/mcp" },
        "unencrypted": { "url": format!("https://{}/mcp", plain.address) },
    }))
    .await;
    for (server, fragment) in [
        ("nowhere", "(is the host name in the url right?)"),
        ("unencrypted", "(does the server use TLS? if not, write http: in the url)"),
    ] {
        await_log(&gateway, &["WARN", "cannot connect to backend", &format!("server=\"{server}\""), fragment]).await;
    }
}

fn count(log: &[String], fragments: &[&str]) -> usize {
    log.iter().filter(|line| fragments.iter().all(|fragment| line.contains(fragment))).count()
}

#[tokio::test]
async fn f2_the_same_failure_is_logged_as_a_warning_only_once() {
    let scratch = Scratch::new();
    let flag = scratch.path().join("other");
    let script = failing_script(&flag);
    let servers = json!({ "bad": { "command": "sh", "args": ["-c", script] }, "good": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let reported_again = ["DEBUG", "cannot connect to backend, as before", "server=\"bad\"", "exit code 3"];
    eventually("the server failed twice more", || async {
        (count(&gateway.log(), &reported_again) >= 2).then_some(())
    })
    .await;
    assert_eq!(count(&gateway.log(), &["WARN", "server=\"bad\"", "exit code 3"]), 1);
    assert_eq!(count(&gateway.log(), &["INFO", "server=\"bad\""]), 1, "the stderr of the first start");
    scratch.write("other", "");
    await_log(&gateway, &["WARN", "server=\"bad\"", "exit code 4"]).await;
}

/// Returns a script that fails with a different text each time, and with another code after the flag exists.
fn failing_script(flag: &Path) -> String {
    format!("echo $$ >&2; if [ -e '{}' ]; then exit 4; fi; exit 3", path_text(flag))
}
