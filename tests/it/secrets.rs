//! Secrets of the vault: `goblin secret`, `${secret:NAME}` in a configuration, and their import.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{eventually, fixture_server, output, write_file};
use crate::home::{Home, Ran};
use crate::support::await_log;
use crate::terminal::Terminal;

/// A text that appears in no output.
const CANARY: &str = "canary-5d1c7e";

/// Returns the vault of a home directory of a test.
fn vault(home: &Home) -> PathBuf {
    home.scratch.path().join("goblin/vault")
}

async fn set(home: &Home, name: &str, value: &str) -> Ran {
    let ran = home.run_with(&["secret", "set", name], value).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

fn assert_hidden(output: &str) {
    assert!(!output.contains(CANARY), "{output}");
}

#[tokio::test]
async fn oauth7_secrets_are_set_listed_and_removed() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let place = vault(&home).display().to_string();
    let ran = home.run(&["secret", "list"]).await;
    assert_eq!(ran.text(), format!("no secrets in {place} (goblin secret set NAME)\n"));
    assert!(!vault(&home).exists(), "a list creates nothing");
    let ran = set(&home, "github.TOKEN", &format!("{CANARY}\n")).await;
    let expected = format!("set github.TOKEN in {place}\nuse it in the configuration as ${{secret:github.TOKEN}}\n");
    assert_eq!(ran.text(), expected);
    let ran = set(&home, "github.TOKEN", CANARY).await;
    assert!(ran.text().starts_with("replaced github.TOKEN in /"), "{ran:?}");
    set(&home, "a-key", &"k".repeat(65_536)).await;
    assert_eq!(home.run(&["secret", "list"]).await.text(), "a-key\ngithub.TOKEN\n");
    let document = home.run(&["secret", "list", "--json"]).await.json();
    assert_eq!(document, json!({ "vault": place, "secrets": ["a-key", "github.TOKEN"] }));
    let ran = home.run(&["secret", "remove", "a-key"]).await;
    assert_eq!((ran.code, ran.text()), (Some(0), format!("removed a-key from {place}\n").as_str()));
    let ran = home.run(&["secret", "remove", "a-key"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("there is no secret a-key in /"), "{ran:?}");
    assert_eq!(home.run(&["secret", "list"]).await.text(), "github.TOKEN\n");
    for file in std::fs::read_dir(vault(&home)).expect("the vault") {
        let file = file.expect("an entry").path();
        assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o777, 0o600, "{}", file.display());
        assert_hidden(&String::from_utf8_lossy(&std::fs::read(&file).expect("readable")));
    }
}

#[tokio::test]
async fn oauth7_an_unusable_value_or_name_is_rejected() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    for (name, value, expected) in [
        ("a", "".to_owned(), "the value is empty"),
        ("a", "\n".to_owned(), "the value is empty"),
        ("a", format!("{CANARY}\0"), "NUL character"),
        ("a", CANARY.repeat(10_000), "more than 65536 bytes"),
        ("a b", CANARY.to_owned(), "letters, digits"),
    ] {
        let ran = home.run_with(&["secret", "set", name], &value).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
        assert_hidden(&ran.stderr);
    }
    let ran = home.run(&["secret", "set", "a", CANARY]).await;
    assert_eq!(ran.code, Some(2), "a value is never an argument: {ran:?}");
    assert!(!vault(&home).exists());
}

#[tokio::test]
async fn oauth7_a_terminal_does_not_show_the_value() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let mut command = home.goblin(&["secret", "set", "typed"]);
    let mut terminal = Terminal::of(&mut command).with_keyboard(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    terminal.await_text("value of typed (hidden): ").await;
    terminal.type_in(&format!("{CANARY}\n"));
    let shown = terminal.await_text("use it in the configuration as ${secret:typed}").await;
    assert!(child.wait().await.expect("the command ends").success());
    assert_hidden(&shown);
    let config = json!({ "mcpServers": { "a": fixture_with_env("${secret:typed}") } });
    std::fs::write(&home.config, config.to_string()).expect("a file");
    let (_gateway, client) = home.gateway("a_env").await;
    assert_eq!(client.call_text("a_env", json!({ "name": "TOKEN" })).await, CANARY);
}

#[tokio::test]
async fn oauth7_commands_that_run_at_once_use_one_key() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let names: Vec<String> = (0..8).map(|number| format!("secret-{number}")).collect();
    join_all(names.iter().map(|name| set(&home, name, CANARY))).await;
    let listed = home.run(&["secret", "list", "--json"]).await.json();
    assert_eq!(listed["secrets"], json!(names));
}

fn fixture_with_env(value: &str) -> Value {
    let mut server = fixture_server(&[]);
    server["env"] = json!({ "TOKEN": value });
    server
}

/// Returns the state and the reason of a server.
async fn state(home: &Home, server: &str) -> (String, String) {
    let ran = home.run(&["status", "--json", "--config", home.config()]).await;
    let status: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let servers = status["servers"].as_array().expect("a list");
    let found = servers.iter().find(|found| found["id"] == server).unwrap_or_else(|| panic!("{status}"));
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

/// Waits until the server has this value in its environment.
async fn await_env(client: &Client, expected: &str) {
    eventually(&format!("the server has {expected}"), || async {
        let answer = client.try_call("a_env", json!({ "name": "TOKEN" })).await;
        answer.to_string().contains(&format!("\"{expected}\"")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn oauth7_a_running_gateway_uses_secrets_and_applies_a_change() {
    let remote = HttpFixture::start(&[]).await;
    let mut server = remote.server();
    server["headers"] = json!({ "Authorization": "Bearer ${secret:web.TOKEN}", "X-Two": "${secret:a}/${secret:a}" });
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_with_env("<${secret:a}>"), "web": server } }));
    set(&home, "a", "first").await;
    set(&home, "web.TOKEN", CANARY).await;
    let (gateway, client) = home.gateway("a_env").await;
    client.await_tool("web_headers").await;
    await_env(&client, "<first>").await;
    let headers = client.call_text("web_headers", json!({})).await;
    assert!(headers.contains(&format!("Bearer {CANARY}")) && headers.contains("first/first"), "{headers}");

    let ran = set(&home, "a", "${secret:web.TOKEN}").await;
    let expected = format!("the gateway at {} uses it and reloads now\n", gateway.url());
    assert!(ran.text().ends_with(&expected), "{expected}: {ran:?}");
    await_env(&client, "<${secret:web.TOKEN}>").await;

    let ran = home.run(&["secret", "remove", "a"]).await;
    assert!(ran.text().ends_with(&expected), "{ran:?}");
    await_log(&gateway, &["secret a is not in the vault"]).await;
    assert_eq!(state(&home, "a").await.0, "ready", "a running server keeps its connection");
    await_env(&client, "<${secret:web.TOKEN}>").await;
    set(&home, "a", "second").await;
    await_env(&client, "<second>").await;
}

#[tokio::test]
async fn oauth7_d16_an_unknown_secret_disables_one_server_until_it_is_set() {
    let config = json!({ "mcpServers": { "a": fixture_with_env("${secret:a.TOKEN}"), "good": fixture_server(&[]) } });
    let home = Home::new(&config);
    let (_gateway, client) = home.gateway("good_echo").await;
    let (found, reason) = state(&home, "a").await;
    assert_eq!(found, "misconfigured");
    for part in ["secret a.TOKEN is not in the vault (", "goblin.json:1:", "set it: goblin secret set a.TOKEN)"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert!(ran.text().contains("goblin secret set a.TOKEN"), "{ran:?}");
    set(&home, "a.TOKEN", "value").await;
    await_env(&client, "value").await;

    let token = json!({ "gateway": { "token": "${secret:gateway}" }, "mcpServers": {} });
    std::fs::write(&home.config, token.to_string()).expect("a file");
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(2), "outside of mcpServers the file is rejected: {ran:?}");
    assert!(ran.text().contains("goblin secret set gateway"), "{ran:?}");
}

#[tokio::test]
async fn oauth7_a_configuration_without_secrets_creates_no_vault() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_with_env("$${secret:a}") } }));
    let (_gateway, client) = home.gateway("a_env").await;
    assert_eq!(client.call_text("a_env", json!({ "name": "TOKEN" })).await, "${secret:a}");
    let ran = home.run(&["doctor", "--no-connect", "--json", "--config", home.config()]).await;
    let findings = ran.json()["findings"].as_array().expect("a list").clone();
    assert!(!findings.iter().any(|finding| finding["about"] == "vault"), "{findings:?}");
    assert!(!vault(&home).exists());
}

#[tokio::test]
async fn oauth7_a_vault_that_others_can_read_is_reported_with_the_cure() {
    let home = Home::new(&json!({ "gateway": { "port": 0 }, "mcpServers": { "a": fixture_with_env("${secret:a}") } }));
    set(&home, "a", CANARY).await;
    let finding = async || {
        let ran = home.run(&["doctor", "--no-connect", "--json", "--config", home.config()]).await;
        let document: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        let findings = document["findings"].as_array().expect("a list").clone();
        findings.into_iter().find(|finding| finding["about"] == "vault").unwrap_or_else(|| panic!("{ran:?}"))
    };
    let good = finding().await;
    assert_eq!(good["verdict"], "ok", "{good}");
    for part in ["goblin/vault, 1 secret, 0 logins", "the generated key file", "no more than its mode 0600"] {
        assert!(good["what"].as_str().expect("text").contains(part), "{part}: {good}");
    }
    std::fs::set_permissions(vault(&home), PermissionsExt::from_mode(0o755)).expect("own directory");
    let cure = format!("chmod 700 {}", vault(&home).display());
    let bad = finding().await;
    assert_eq!((&bad["verdict"], &bad["cure"]), (&json!("problem"), &json!(cure)), "{bad}");
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert!(ran.text().contains("cannot read the secret a: the vault is not private"), "{ran:?}");
    let ran = home.run_with(&["secret", "set", "b"], "value").await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&cure), "{ran:?}");
}

#[tokio::test]
async fn oauth7_a_running_gateway_notices_that_the_vault_was_repaired() {
    let config = json!({ "mcpServers": { "a": fixture_with_env("${secret:a}"), "good": fixture_server(&[]) } });
    let home = Home::new(&config);
    set(&home, "a", "value").await;
    let set_mode = |mode| std::fs::set_permissions(vault(&home), PermissionsExt::from_mode(mode)).expect("own files");
    set_mode(0o755);
    let (_gateway, client) = home.gateway("good_echo").await;
    let (found, reason) = state(&home, "a").await;
    assert_eq!(found, "misconfigured");
    assert!(reason.contains("the vault is not private") && reason.contains("chmod 700 /"), "{reason}");
    let listed = client.call("list_servers", json!({})).await.to_string();
    assert!(listed.contains("a secret of its entry cannot be read"), "{listed}");
    assert!(!listed.contains("chmod"), "clients see no paths of the machine: {listed}");
    set_mode(0o700);
    await_env(&client, "value").await;
}

#[tokio::test]
async fn oauth7_another_key_is_reported_with_both_sources() {
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_with_env("${secret:a}") } }));
    let key = home.scratch.write("mounted.key", &"0123456789abcdef".repeat(4));
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("own file");
    let with_key = |arguments: &[&str]| {
        let mut command = home.goblin(arguments);
        command.env("GOBLIN_KEY_FILE", &key);
        command
    };
    set(&home, "a", CANARY).await;
    let (code, stdout, _) = output(with_key(&["check", "--config", home.config()])).await;
    assert_eq!(code, Some(1), "{stdout}");
    for part in ["the generated key file", "mounted.key", "has another key", "unset GOBLIN_KEY_FILE"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    std::fs::remove_dir_all(vault(&home)).expect("the vault");
    let mut command = with_key(&["secret", "set", "a"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("goblin starts");
    tokio::io::AsyncWriteExt::write_all(&mut child.stdin.take().expect("piped"), b"value").await.expect("open");
    assert!(child.wait().await.expect("the command ends").success());
    assert!(!vault(&home).join("key").exists(), "the vault creates no key of its own");
    let (_, stdout, _) = output(with_key(&["doctor", "--no-connect", "--config", home.config()])).await;
    assert!(stdout.contains("mounted.key (GOBLIN_KEY_FILE)"), "{stdout}");
    let ran = home.run(&["check", "--config", home.config()]).await;
    assert!(ran.text().contains("no key was found"), "{ran:?}");
}

#[tokio::test]
async fn oauth7_a_secret_appears_in_no_output() {
    let remote = HttpFixture::start(&[]).await;
    let mut server = remote.server();
    server["headers"] = json!({ "Authorization": "Bearer ${secret:web.TOKEN}" });
    let dead = json!({ "url": "http://127.0.0.1:9/${secret:web.TOKEN}", "headers": { "Authorization": "${secret:web.TOKEN}" } });
    let failing = json!({ "command": "sh", "args": ["-c", "exit 3", "sh", "${secret:web.TOKEN}"] });
    let home = Home::new(&json!({
        "mcpServers": { "a": fixture_with_env("${secret:web.TOKEN}"), "web": server, "dead": dead, "failing": failing }
    }));
    set(&home, "web.TOKEN", CANARY).await;
    let (mut gateway, client) = home.gateway("web_echo").await;
    client.await_tool("a_env").await;
    assert_eq!(client.call_text("a_env", json!({ "name": "TOKEN" })).await, CANARY, "the server has the secret");
    let key = std::fs::read_to_string(vault(&home).join("key")).expect("the key");
    let mut shown = String::new();
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["check", "--connect"],
        &["check", "--connect", "--json"],
        &["doctor", "--json"],
        &["logs"],
        &["logs", "failing"],
        &["calls", "--json"],
        &["tools", "list"],
    ] {
        let ran = home.run(&[arguments, &["--config", home.config()]].concat()).await;
        assert!(!ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
        shown += &format!("{arguments:?}: {ran:?} {}\n", String::from_utf8_lossy(&ran.stdout));
    }
    for path in ["/api/status", "/api/servers", "/api/servers/dead", "/api/logs?server=failing", "/api/calls"] {
        let answer = get_admin(&client, path).await.body;
        assert!(!answer.is_empty(), "{path}");
        shown += &format!("{path}: {answer}\n");
    }
    shown += &client.call("list_servers", json!({})).await.to_string();
    set(&home, "web.TOKEN", &format!("{CANARY}-2")).await;
    eventually("the change is applied", || async {
        gateway.log().iter().any(|line| line.contains("configuration reloaded")).then_some(())
    })
    .await;
    gateway.terminate().await;
    shown += &gateway.log().join("\n");
    assert!(shown.contains("web.TOKEN") && shown.contains("failing"), "{shown}");
    assert_hidden(&shown);
    assert!(!shown.contains(key.trim()), "{shown}");
}

const CLIENT_FILE: &str = r#"{ "mcpServers": {
    "github": { "command": "gh", "args": ["x"], "env": { "GITHUB_TOKEN": "canary-5d1c7e", "MODE": "fast" } },
    "web": { "url": "https://web.example/mcp", "headers": { "Authorization": "Bearer canary-5d1c7e-web" } }
} }"#;

/// Returns a home directory with a file of Cursor and no configuration.
fn with_client_file() -> Home {
    let home = Home::new(&json!({}));
    std::fs::remove_file(&home.config).expect("the file exists");
    write_file(&home.scratch.path().join(".cursor/mcp.json"), CLIENT_FILE);
    home
}

fn assert_moved(home: &Home, github: &str) {
    let written = std::fs::read_to_string(&home.config).expect("the file was written");
    assert_hidden(&written);
    let config: Value = serde_json::from_str(&written).expect("JSON");
    let servers = &config["mcpServers"];
    assert_eq!(servers["github"]["env"], json!({ "GITHUB_TOKEN": github, "MODE": "fast" }));
    assert_eq!(servers["web"]["headers"]["Authorization"], "Bearer ${secret:web.Authorization}");
}

#[tokio::test]
async fn oauth7_import_moves_literal_secrets_into_the_vault() {
    let home = with_client_file();
    set(&home, "github.GITHUB_TOKEN", "a different secret").await;
    let arguments = ["import", "cursor", "--yes", "--secrets", "vault", "--config", home.config()];
    let ran = home.run(&arguments).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert_hidden(ran.text());
    let expected = "moved 2 secrets into the vault: github.GITHUB_TOKEN-2, web.Authorization\n";
    assert!(ran.text().contains(expected), "{}", ran.text());
    assert_moved(&home, "${secret:github.GITHUB_TOKEN-2}");
    let ran = home.run(&["check", "--json", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(0), "the references are found: {ran:?}");
    let ran = home.run(&arguments).await;
    assert!(ran.text().contains("nothing to add"), "a second import changes nothing: {}", ran.text());
    assert!(!ran.text().contains("left out"), "{}", ran.text());
    let listed = home.run(&["secret", "list"]).await;
    assert_eq!(listed.text(), "github.GITHUB_TOKEN\ngithub.GITHUB_TOKEN-2\nweb.Authorization\n");
}

#[tokio::test]
async fn oauth7_import_without_a_terminal_keeps_secrets_and_names_them() {
    for more in [&["--yes"][..], &["--yes", "--secrets", "keep"], &["--dry-run"], &["--dry-run", "--secrets", "vault"]]
    {
        let home = with_client_file();
        let ran = home.run(&[&["import", "cursor", "--config", home.config()], more].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let note = "literal secrets (--secrets vault moves them into the vault):\n  github.GITHUB_TOKEN\n  \
                    web.Authorization\n";
        assert!(ran.text().contains(note), "{}", ran.text());
        assert!(!vault(&home).exists(), "{more:?}");
        assert_eq!(home.config.exists(), more.contains(&"--yes"), "{more:?}");
    }
    let home = with_client_file();
    let arguments = ["import", "cursor", "--json", "--yes", "--secrets", "vault", "--config", home.config()];
    let document = home.run(&arguments).await.json();
    let moved: Vec<_> = document["secrets"].as_array().expect("a list").iter().map(|secret| &secret["moved"]).collect();
    assert_eq!(moved, ["github.GITHUB_TOKEN", "web.Authorization"]);
    assert_moved(&home, "${secret:github.GITHUB_TOKEN}");
}

#[tokio::test]
async fn oauth7_import_asks_once_on_a_terminal() {
    for (answer, is_moved) in [("\n", true), ("n\n", false)] {
        let home = with_client_file();
        let mut command = home.goblin(&["import", "cursor", "--config", home.config()]);
        let mut terminal = Terminal::of(&mut command).with_keyboard(&mut command);
        let mut child = command.spawn().expect("goblin starts");
        terminal.await_text("[y/N] ").await;
        terminal.type_in("y\n");
        let question = "2 entries contain literal secrets: github.GITHUB_TOKEN, web.Authorization; move them into the vault? [Y/n] ";
        terminal.await_text(question).await;
        terminal.type_in(answer);
        let shown = terminal.await_text("added 2 servers").await;
        assert!(child.wait().await.expect("the command ends").success());
        assert_hidden(&shown);
        assert_eq!(vault(&home).exists(), is_moved, "{shown}");
        if is_moved {
            assert_moved(&home, "${secret:github.GITHUB_TOKEN}");
        }
    }
}

#[tokio::test]
async fn oauth7_a_failed_import_into_the_vault_leaves_the_file_as_it_was() {
    let home = with_client_file();
    let before = r#"{ "mcpServers": { "mine": { "command": "x" } } }"#;
    std::fs::write(&home.config, before).expect("a file");
    write_file(&vault(&home), "a file in the place of the vault");
    let ran = home.run(&["import", "cursor", "--yes", "--secrets", "vault", "--config", home.config()]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("nothing was written: ") && ran.stderr.contains("is no directory"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&home.config).expect("the file"), before);
}
