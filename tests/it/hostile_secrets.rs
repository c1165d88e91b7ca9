//! Secrets stay separate: a server sees only its own variables, and clients cannot read operators' information.
//!
//! The tests read the real environment of each process. Output and command lines of servers appear in no response to a
//! client.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, fixture, fixture_server, goblin};
use crate::home::{Home, Ran};
use crate::hostile::{Attack, HEALTHY};
use crate::operator::look;
use crate::support::{is_error, parent, path_text, pid_in};

/// Variables of the gateway, named after the part of the configuration that expands them. The value of each contains
/// its name in lower case.
const SECRETS: [&str; 9] = [
    "OTHER_ENV",
    "OTHER_ARG",
    "OTHER_HEADER",
    "OTHER_URL",
    "GATEWAY_SECRET",
    "ADMIN_SECRET",
    "GOBLIN_TOKEN",
    "GOBLIN_ADMIN_TOKEN",
    "UNRELATED_KEY",
];

fn secret_of(name: &str) -> String {
    format!("secret-of-{}", name.to_ascii_lowercase())
}

fn with_secrets(command: &mut Command) {
    command.envs(SECRETS.iter().map(|name| (name, secret_of(name))));
    command.env("UV_INDEX_PASSWORD", secret_of("UV_INDEX_PASSWORD")).env("OWN_SECRET", secret_of("OWN_SECRET"));
    command.env("LC_TEST", "lc").env("https_proxy", "proxy").env("NO_PROXY", "*");
}

/// Returns a configuration of servers with different inheritance. The remaining servers use the secrets.
fn configuration(scratch: &Scratch) -> Value {
    let server = |name: &str, more: Value| {
        let file = scratch.path().join(name);
        let mut server = fixture_server(&["--pid-file", path_text(&file)]);
        server.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server
    };
    json!({
        "gateway": { "token": "${GATEWAY_SECRET}" },
        "admin": { "token": "${ADMIN_SECRET}" },
        "mcpServers": {
            "plain": server("plain", json!({ "env": { "OWN": "${OWN_SECRET}" } })),
            "own": server("own", json!({ "session": "per-client" })),
            "named": server("named", json!({ "inherit": ["OTHER_ENV", "UNRELATED_*", "UV_INDEX_PASSWORD", "GO*", "GA*"] })),
            "all": server("all", json!({ "inherit": true })),
            "other": server("other", json!({ "env": { "X": "${OTHER_ENV}", "Y": "${UV_INDEX_PASSWORD}" } })),
            "argument": { "command": "true", "args": ["${OTHER_ARG}"], "enabled": false },
            "remote": {
                "url": "http://127.0.0.1:9/${OTHER_URL}", "headers": { "X-Key": "${OTHER_HEADER}" }, "enabled": false
            },
        }
    })
}

/// Returns the environment of a process, as other processes of the user can read it.
fn environment(pid: u32) -> BTreeMap<String, String> {
    let bytes = std::fs::read(format!("/proc/{pid}/environ")).expect("the process lives");
    let text = String::from_utf8(bytes).expect("text");
    let variable = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split('\0').filter_map(variable).collect()
}

/// Returns the secrets in the environment of a process.
fn secrets_in(environment: &BTreeMap<String, String>) -> Vec<&str> {
    let all = SECRETS.into_iter().chain(["UV_INDEX_PASSWORD", "OWN_SECRET"]);
    all.filter(|name| environment.values().any(|value| value.contains(&secret_of(name)))).collect()
}

#[tokio::test]
async fn hard6_d19_a_server_sees_its_own_variables_and_no_secret_of_others() {
    let scratch = Scratch::new();
    let config = scratch.write("goblin.json", &configuration(&scratch).to_string());
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--standalone", "--config"]).arg(&config).env("HOME", scratch.path());
    with_secrets(&mut command);
    let mut client = Client::run(command);
    client.initialize("2025-11-25").await;
    for server in ["plain", "own", "named", "all", "other"] {
        client.await_tool(&format!("{server}_env")).await;
    }
    let answer = client.request("tools/call", json!({ "name": "own_echo", "arguments": {} })).await;
    assert!(answer["error"].is_null(), "the client has a process of its own: {answer}");
    for (server, expected) in [
        ("plain", &["OWN_SECRET"][..]),
        ("own", &[]),
        ("other", &["OTHER_ENV", "UV_INDEX_PASSWORD"]),
        ("named", &["OTHER_ENV", "UNRELATED_KEY", "UV_INDEX_PASSWORD"]),
        (
            "all",
            &[
                "OTHER_ENV",
                "OTHER_ARG",
                "OTHER_HEADER",
                "OTHER_URL",
                "UNRELATED_KEY",
                "UV_INDEX_PASSWORD",
                "OWN_SECRET",
            ],
        ),
    ] {
        let process = pid_in(&scratch.path().join(server)).await;
        // The guard runs between the gateway and the server, and other processes can read its environment too.
        for process in [process, parent(process)] {
            let environment = environment(process);
            assert_eq!(secrets_in(&environment), expected, "{server}: {environment:?}");
            let passed = ["LC_TEST", "https_proxy", "NO_PROXY"].map(|name| environment.get(name).map(String::as_str));
            assert_eq!(passed, [Some("lc"), Some("proxy"), Some("*")], "{server}");
            assert!(environment.contains_key("PATH") && environment.contains_key("HOME"), "{server}");
        }
    }
    assert!(client.close().await.success());
}

#[tokio::test]
async fn hard6_d19_check_and_doctor_start_servers_with_the_same_environment() {
    for arguments in [&["check", "--connect"][..], &["doctor"]] {
        let scratch = Scratch::new();
        let file = scratch.path().join("environment");
        let script = format!(r#"env > '{}'; exec "$@""#, file.display());
        let server = json!({ "command": "sh", "args": ["-c", script, "sh", fixture()] });
        let home = Home::new(&json!({ "gateway": { "port": 0 }, "mcpServers": { "a": server } }));
        let mut command = home.goblin(arguments);
        command.args(["--config", home.config()]);
        with_secrets(&mut command);
        assert!(command.output().await.expect("it runs").status.success(), "{arguments:?}");
        let seen = std::fs::read_to_string(&file).expect("the server was started");
        assert!(seen.contains("LC_TEST=lc"), "{arguments:?}: {seen}");
        // A prefix of the allow-list passes variables that no other server expands.
        assert_eq!(seen.matches("secret-of-").count(), 1, "{arguments:?}: {seen}");
        assert!(seen.contains("UV_INDEX_PASSWORD="), "{arguments:?}: {seen}");
    }
}

#[tokio::test]
async fn d19_an_inherit_that_names_a_token_of_the_gateway_is_refused() {
    for (name, words) in
        [("GATEWAY_SECRET", "contains a token of the gateway"), ("GOBLIN_TOKEN", "are passed to no server")]
    {
        let home = Home::new(&json!({
            "gateway": { "token": "${GATEWAY_SECRET}" },
            "mcpServers": { "a": { "command": "true", "inherit": [name] } },
        }));
        let mut command = home.goblin(&["check", "--config", home.config()]);
        with_secrets(&mut command);
        let output = command.output().await.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(words), "{text}");
    }
}

/// Runs a command with the secrets in its environment.
async fn run(home: &Home, arguments: &[&str]) -> Ran {
    let mut command = home.goblin(arguments);
    with_secrets(&mut command);
    let output = command.output().await.expect("it runs");
    Ran { code: output.status.code(), stdout: output.stdout, stderr: String::from_utf8(output.stderr).expect("text") }
}

#[tokio::test]
async fn d19_doctor_names_a_variable_that_a_failed_server_may_need() {
    let fails = |line: &str| json!({ "command": "sh", "args": ["-c", format!("echo '{line}' >&2; exit 1")] });
    let home = Home::new(&json!({ "gateway": { "port": 0 }, "mcpServers": {
        "told": fails("error: UNRELATED_KEY is required"),
        "unrelated": fails("cannot log in"),
        "quiet": fails("no idea"),
    } }));
    let ran = run(&home, &["doctor", "--config", home.config()]).await;
    let text = ran.text();
    assert_eq!(ran.code, Some(1), "{text}");
    let after = |id: &str| text.split(&format!("server {id}: ")).nth(1).unwrap_or_else(|| panic!("{id}: {text}"));
    let cure = "UNRELATED_KEY is set, but the server does not get it; name it in its \"inherit\"";
    for (id, is_named) in [("told", true), ("unrelated", true), ("quiet", false)] {
        let finding: Vec<_> = after(id).lines().take(2).collect();
        assert_eq!(finding[1].contains(cure), is_named, "{id}: {finding:?}");
    }
    assert!(!text.contains("secret-of-"), "{text}");
}

#[tokio::test]
async fn hard7_variables_in_a_command_line_are_shown_as_they_were_written() {
    let home = Home::new(&json!({ "mcpServers": {
        "a": { "command": "${UNRELATED_KEY}", "args": ["--db=${OTHER_ARG}", "${OWN_SECRET:-x}"] },
    } }));
    for arguments in [
        &["check"][..],
        &["check", "--json"],
        &["check", "--connect"],
        &["check", "--connect", "--json"],
        &["doctor"],
        &["doctor", "--json"],
    ] {
        let ran = run(&home, &[arguments, &["--config", home.config()]].concat()).await;
        let shown = format!("{}{}", ran.text(), ran.stderr);
        assert!(!shown.contains("secret-of-"), "{arguments:?}: {shown}");
        assert!(shown.contains("${UNRELATED_KEY}"), "{arguments:?}: {shown}");
    }
    let mut command = home.goblin(&["serve", "--port", "0", "--log-level", "debug", "--config", home.config()]);
    with_secrets(&mut command);
    let gateway = Gateway::of(command).await;
    let status = eventually("the server has failed", || async {
        let status = look(&Client::new(gateway.address), "/api/status").await.json();
        (status["servers"][0]["state"] == "failed").then_some(status)
    })
    .await;
    let reason = status["servers"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("${UNRELATED_KEY}") && !reason.contains("secret-of-"), "{reason}");
    assert!(!gateway.log().concat().contains("secret-of-"), "{:?}", gateway.log());
}

/// The memory limit of the gateway in a debug build, in MiB.
const MAX_MEMORY_MIB: u64 = 256;

/// The output of the servers on stderr and stdout.
const NOISE: [&str; 2] = ["Traceback of the server", "garbage of the server"];

/// Returns a server that writes noise, serves, and exits with 3 at the first call.
fn noisy_server(more: Value) -> Value {
    let script = format!(r#"echo '{}' >&2; echo '{}'; exec "$@""#, NOISE[0], NOISE[1]);
    let mut server = json!({ "command": "sh", "args": ["-c", script, "sh", fixture(), "--crash-after", "0"] });
    server.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    server
}

/// Asserts that a response for a client quotes no output or command of the server.
fn assert_quotes_nothing(answer: &Value) {
    let text = answer.to_string();
    for words in NOISE.into_iter().chain(["last words", "sh -c", "--crash-after"]) {
        assert!(!text.contains(words), "{words}: {text}");
    }
}

#[tokio::test]
async fn hard7_clients_read_no_stderr_no_stdout_and_no_command_line() {
    let config = json!({ "metaTools": true, "mcpServers": {
        "shared": noisy_server(json!({})),
        "own": noisy_server(json!({ "session": "per-client" })),
        HEALTHY: fixture_server(&[]),
    } });
    let gateway = Gateway::start(config).await;
    let attack = Attack::begin("servers that crash and write secrets", &gateway).await;
    let client = gateway.client_seeing("shared_echo").await;
    client.await_tool("own_echo").await;
    for server in ["shared", "own"] {
        let answer = client.try_call(&format!("{server}_echo"), json!({})).await;
        assert!(is_error(&answer, "BACKEND_UNAVAILABLE"), "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("exit code 3") && message.contains("goblin status shows more"), "{answer}");
        assert_quotes_nothing(&answer);
        let listed = client.try_call("list_servers", json!({})).await;
        assert!(listed["error"].is_null(), "{listed}");
        assert_quotes_nothing(&listed);
    }
    for (method, params) in [
        ("resources/read", json!({ "uri": "shared+note:///alpha" })),
        ("resources/subscribe", json!({ "uri": "shared+note:///alpha" })),
        ("tools/call", json!({ "name": "shared_echo" })),
    ] {
        assert_quotes_nothing(&client.request(method, params).await);
    }
    // Operators can read all of it.
    let told = eventually("an operator reads the last words", || async {
        let status = look(&client, "/api/servers/shared").await;
        status.body.contains(NOISE[0]).then_some(status)
    })
    .await;
    assert_eq!(told.status, StatusCode::OK);
    for path in ["/api/status", "/api/servers", "/api/servers/shared", "/api/sessions", "/api/events"] {
        let answer = client.send(Method::GET, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}: {answer:?}");
        assert!(answer.body.contains("the admin token, which stands in"), "{path}: {answer:?}");
        assert_quotes_nothing(&answer.json());
    }
    let metrics = client.send(Method::GET, "/metrics", &[], "").await;
    assert_eq!(metrics.status, StatusCode::OK);
    assert_quotes_nothing(&json!(metrics.body));
    attack.end(MAX_MEMORY_MIB).await;
}

#[tokio::test]
async fn hard7_clients_do_not_read_the_command_that_cannot_be_started() {
    let scratch = Scratch::new();
    let program = scratch.write("program", &format!("#!/bin/sh\nrm \"$0\"; exec '{}' --crash-after 0\n", fixture()));
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, executable).expect("it is ours");
    let gateway = Gateway::with_servers(json!({ "a": { "command": program } })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.try_call("a_echo", json!({})).await;
    let answer = eventually("the server cannot be started", || async {
        let answer = client.try_call("a_echo", json!({})).await;
        answer["error"]["message"].as_str().is_some_and(|it| it.contains("cannot be started")).then_some(answer)
    })
    .await;
    assert!(!answer.to_string().contains(path_text(&program)), "{answer}");
    let status = look(&client, "/api/servers/a").await;
    assert!(status.body.contains(path_text(&program)), "{status:?}");
}
