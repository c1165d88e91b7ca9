//! `goblin doctor`: each problem with its real cause and its remedy.
//!
//! The command changes nothing, and its exit code follows its findings.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{GOBLIN, Gateway, fixture, fixture_server, signal};
use crate::home::{Home, Ran};
use crate::terminal::Terminal;

/// Returns a configuration with these servers that needs nothing from the machine.
fn minimal_config(servers: Value) -> Value {
    let token = "${GOBLIN_TEST_TOKEN:-a-token-of-sixteen}";
    json!({ "gateway": { "port": 0, "maxSessions": 1, "token": token }, "mcpServers": servers })
}

/// Returns the same with a short start timeout.
fn impatient_config(servers: Value) -> Value {
    let mut config = minimal_config(servers);
    config["policies"] = json!({ "startTimeout": "1s" });
    config
}

async fn doctor(home: &Home, arguments: &[&str]) -> Ran {
    home.run(&[&["doctor", "--config", home.config()], arguments].concat()).await
}

/// Asserts that this finding exists, and that the exit code matches the findings.
fn assert_found(ran: &Ran, verdict: &str, about: &str, fragment: &str, cure: &str) {
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let findings = document["findings"].as_array().expect("a list");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let found = findings.iter().any(|finding| {
        finding["verdict"] == verdict
            && finding["about"] == about
            && text(finding, "what").contains(fragment)
            && text(finding, "cure").contains(cure)
    });
    assert!(found, "{verdict} {about}: {fragment} / {cure}:\n{}", ran.text());
    let problems = findings.iter().filter(|finding| finding["verdict"] == "problem").count();
    assert_eq!(document["problems"], problems);
    assert_eq!((ran.code, &document["ok"]), (Some(i32::from(problems > 0)), &json!(problems == 0)), "{ran:?}");
}

/// Asserts a finding about the only server of a configuration.
async fn check_server(server: Value, verdict: &str, text: &str, cure: &str) {
    let home = Home::new(&minimal_config(json!({ "a": server })));
    assert_found(&doctor(&home, &["--json"]).await, verdict, "server a", text, cure);
}

#[tokio::test]
async fn a_healthy_setup_is_reported_part_by_part() {
    let home =
        Home::new(&minimal_config(json!({ "a": fixture_server(&[]), "off": { "command": "x", "enabled": false } })));
    let ran = doctor(&home, &[]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let text = ran.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], format!("ok       configuration: {}, 2 servers", home.config()));
    assert!(lines[1].starts_with("ok       runtime directory: "), "{text}");
    assert!(lines[2].starts_with("ok       descriptors: "), "{text}");
    assert!(lines[3].starts_with("ok       server a: ready in ") && lines[3].contains(" tools"), "{text}");
    assert_eq!(lines[4..], ["", "no problems"], "{text}");
    assert!(!home.scratch.path().join("goblin").exists(), "nothing is made");
}

#[tokio::test]
async fn other_users_of_the_machine_cause_a_warning() {
    let home = Home::new(&json!({ "gateway": { "port": 0, "maxSessions": 1 }, "mcpServers": {} }));
    let ran = doctor(&home, &["--json"]).await;
    let passwd = std::fs::read_to_string("/etc/passwd").expect("every Unix has one");
    let own = rustix::process::getuid().as_raw();
    let is_person = |line: &&str| {
        let fields: Vec<_> = line.split(':').collect();
        let uid: u32 = fields[2].parse().expect("a number");
        (1000..65534).contains(&uid) && uid != own && fields[6].ends_with("sh")
    };
    match passwd.lines().find(is_person) {
        Some(person) => {
            let name = person.split(':').next().expect("a name");
            assert_found(&ran, "warning", "users", name, "set gateway.token");
        }
        None => assert!(!ran.text().contains("without a token"), "{ran:?}"),
    }
}

#[tokio::test]
async fn a_missing_or_broken_configuration_is_a_problem() {
    let home = Home::new(&json!({ "mcpServers": { "a": { "command": "x", "env": { "K": "${NO_SUCH_VARIABLE}" } } } }));
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "server a", "mcpServers.a.env.K: variable NO_SUCH_VARIABLE is not set", "set it");
    std::fs::write(&home.config, "{\n  \"gateway\": { \"prot\": 1 }\n}").expect("the file can be written");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(
        &ran,
        "problem",
        "configuration",
        "goblin.json:2:16: gateway.prot: unknown key",
        "did you mean \"port\"",
    );
    std::fs::remove_file(&home.config).expect("the file exists");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "configuration", "cannot read ", "goblin import");
}

#[tokio::test]
async fn an_unusable_command_is_reported_once_with_its_cure() {
    let home = Home::new(&json!({}));
    let bin = home.scratch.path().join("bin");
    std::fs::create_dir(&bin).expect("a directory");
    std::fs::write(bin.join("my-server"), "").expect("a file");
    let path = json!({ "PATH": bin });
    let servers = json!({
        "npx": { "command": "npx", "args": ["x@1.0.0"], "env": path },
        "uvx": { "command": "uvx", "args": ["x==1.0.0"], "env": path },
        "near": { "command": "my-servr", "env": path },
        "plain": { "command": "my-server", "env": path },
        "far": { "command": "no-such-program", "env": path },
    });
    std::fs::write(&home.config, minimal_config(servers).to_string()).expect("the file can be written");
    for arguments in [&["--json"][..], &["--json", "--no-connect"], &["--json", "--offline"]] {
        let ran = doctor(&home, arguments).await;
        let assert_problem =
            |id: &str, text: &str, cure: &str| assert_found(&ran, "problem", &format!("server {id}"), text, cure);
        assert_problem("npx", "command \"npx\" not found", "https://nodejs.org");
        assert_problem("uvx", "command \"uvx\" not found", "https://docs.astral.sh/uv");
        assert_problem("near", "command \"my-servr\" not found", "did you mean my-server?");
        assert_problem("plain", "is not executable", "chmod +x ");
        assert_problem("far", "not found", "absolute path");
        let document: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        assert_eq!(document["problems"], 5, "each problem is reported once: {document}");
    }
}

#[tokio::test]
async fn an_unusable_server_is_a_problem() {
    let missing = json!({ "command": fixture(), "cwd": "/no/such/directory" });
    check_server(missing, "problem", "working directory /no/such/directory", "mkdir -p /no/such/directory").await;
    let home = Home::new(&impatient_config(json!({ "a": fixture_server(&["--hang-handshake"]) })));
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "server a", "no answer to the handshake within 1 s", "policies.startTimeout");
    let ending = fixture_server(&["--exit-at-start"]);
    check_server(ending, "problem", "it ended with exit code 3", "by hand").await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    drop(listener);
    check_server(json!({ "url": url }), "problem", "connection refused", "is the server running, and on this port?")
        .await;
}

#[tokio::test]
async fn noise_on_stdout_is_a_warning_that_names_the_first_line() {
    let script = format!("echo 'server is up'; exec {}", fixture());
    let noisy = json!({ "command": "sh", "args": ["-c", script] });
    check_server(noisy.clone(), "warning", "\"server is up\"", "stderr").await;
    check_server(noisy, "ok", "ready", "").await;
}

#[tokio::test]
async fn a_taken_port_is_reported_with_its_owner() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let home = Home::new(&json!({ "gateway": { "port": port }, "mcpServers": {} }));
    let ran = doctor(&home, &["--json"]).await;
    let owner =
        if cfg!(target_os = "linux") { format!("(pid {}) listens", std::process::id()) } else { "lsof".to_owned() };
    assert_found(&ran, "problem", "port", &owner, "goblin serve --port ");
    drop(listener);
    assert_found(&doctor(&home, &["--json"]).await, "ok", "port", &format!("127.0.0.1:{port} is free"), "");
    let other = home.scratch.write("other.json", r#"{ "mcpServers": {} }"#);
    let serve = ["serve", "--port", &port.to_string(), "--config", other.to_str().expect("text")];
    let gateway = Gateway::of(home.goblin(&serve)).await;
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "port", "other.json runs there already", "--port");
    assert_found(&ran, "ok", "gateway", &format!("another gateway runs at {}", gateway.url()), "");
}

#[tokio::test]
async fn too_few_descriptors_are_a_warning() {
    let home = Home::new(&json!({ "gateway": { "port": 0, "maxSessions": 5000 }, "mcpServers": {} }));
    let mut command = tokio::process::Command::new("sh");
    let script = format!("ulimit -n 300; exec {GOBLIN} doctor --json --config {}", home.config());
    command.args(["-c", &script]).env("XDG_RUNTIME_DIR", home.scratch.path());
    let output = command.output().await.expect("the command runs");
    let stderr = String::from_utf8(output.stderr).expect("text");
    let ran = Ran { code: output.status.code(), stdout: output.stdout, stderr };
    assert_found(
        &ran,
        "warning",
        "descriptors",
        "300 may be open, but gateway.maxSessions is 5000",
        "gateway.maxSessions",
    );
}

#[tokio::test]
async fn an_open_or_unusable_runtime_directory_is_reported() {
    let home = Home::new(&minimal_config(json!({})));
    let directory = home.scratch.path().join("goblin");
    std::fs::create_dir(&directory).expect("a directory");
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).expect("the test owns the file");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "warning", "runtime directory", "(mode 755)", &format!("chmod 700 {}", directory.display()));
    std::fs::remove_dir(&directory).expect("the directory is empty");
    std::fs::write(&directory, "in the way").expect("a file");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "runtime directory", "not a directory", "mv ");
    std::fs::write(&home.config, "{").expect("the file can be written");
    assert_found(&doctor(&home, &["--json"]).await, "problem", "runtime directory", "not a directory", "mv ");
}

fn files(home: &Home, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home.scratch.path().join("goblin")).expect("a directory").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|is| is == extension)).collect()
}

#[tokio::test]
async fn a_gateway_of_this_configuration_is_examined() {
    let home = Home::new(&minimal_config(json!({})));
    let mut gateway = Gateway::of(home.goblin(&["serve", "--config", home.config()])).await;
    let pid = gateway.child.id().expect("the process runs");
    let url = gateway.url();
    assert_found(&doctor(&home, &["--json"]).await, "ok", "gateway", &format!("runs at {url} (pid {pid})"), "");
    let mut command = home.goblin(&["doctor", "--json", "--config", home.config()]);
    let output = command.env("GOBLIN_TEST_TOKEN", "another-token-of-16").output().await.expect("the command runs");
    let ran = Ran { code: output.status.code(), stdout: output.stdout, stderr: String::new() };
    assert_found(&ran, "warning", "gateway", "another value of GOBLIN_TEST_TOKEN", &format!("kill {pid}"));
    let token = files(&home, "token").pop().expect("the token file exists");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).expect("the test owns the file");
    assert_found(
        &doctor(&home, &["--json"]).await,
        "problem",
        "gateway",
        "the token of the gateway at",
        "goblin serve",
    );
    signal(pid, "STOP");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "problem", "gateway", "does not answer", &format!("kill {pid}"));
    gateway.child.kill().await.expect("the process can be killed");
    let ran = doctor(&home, &["--json"]).await;
    assert_found(&ran, "warning", "gateway", "is left over from a gateway that was killed", "nothing to do");
    assert_eq!(files(&home, "json").len(), 1, "nothing is changed");
}

#[tokio::test]
async fn no_server_starts_without_connecting() {
    let home = Home::new(&json!({}));
    let started = home.scratch.path().join("started");
    let server = json!({ "a": { "command": fixture(), "args": ["--start-log", started] } });
    std::fs::write(&home.config, minimal_config(server).to_string()).expect("the file can be written");
    assert_eq!(doctor(&home, &["--no-connect"]).await.code, Some(0));
    assert!(!started.exists());
    assert_eq!(doctor(&home, &[]).await.code, Some(0));
    assert!(started.exists());
}

#[tokio::test]
async fn a_terminal_shows_the_servers_that_are_still_connecting() {
    let home = Home::new(&impatient_config(json!({ "slow": fixture_server(&["--hang-handshake"]) })));
    let mut command = home.goblin(&["doctor", "--config", home.config()]);
    command.env_remove("NO_COLOR");
    let terminal = Terminal::of(&mut command).of_width(80);
    assert_eq!(command.status().await.expect("the command runs").code(), Some(1));
    let shown = terminal.await_text("1 problem").await;
    assert!(shown.contains("connecting, 0 of 1: slow"), "{shown:?}");
    assert!(shown.contains("\u{1b}[1;31mproblem\u{1b}[0m  server slow: no answer"), "{shown:?}");
}
