//! Hostile configuration files: pipes and devices, endless files, and files that another user can change.
//!
//! Owners are judged by pure tests in `goblin_config::trust`; here a file of another user is tried where the test runs as root.

use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{fixture_server, signal};
use crate::home::{Home, Ran};
use crate::support::await_log;

/// A user id that does not exist on this machine.
const OTHER_USER: u32 = 54_321;

fn home() -> Home {
    Home::new(&json!({ "gateway": { "port": 0 }, "mcpServers": { "kept": { "command": "kept" } } }))
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("the test owns the file");
}

/// Runs every command that reads or writes the configuration. Asserts that each rejects it for this reason and leaves
/// the text unchanged.
async fn assert_rejected(home: &Home, config: &Path, reason: &str) {
    let read = || config.is_file().then(|| std::fs::read(config).expect("the test owns the file"));
    let (before, path) = (read(), config.to_str().expect("text"));
    let cursor = home.scratch.path().join(".cursor");
    std::fs::create_dir_all(&cursor).expect("a directory");
    std::fs::write(cursor.join("mcp.json"), r#"{"mcpServers":{"x":{"command":"x"}}}"#).expect("a file");
    for arguments in [
        &["serve"][..],
        &["stdio"],
        &["check"],
        &["tools", "list"],
        &["add", "x", "--", "x"],
        &["remove", "kept"],
        &["import", "--yes"],
    ] {
        // The command of `goblin add` follows all flags.
        let command = arguments.iter().position(|argument| *argument == "--").unwrap_or(arguments.len());
        let (flags, command) = arguments.split_at(command);
        let ran = home.run(&[flags, &["--config", path], command].concat()).await;
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        let Ran { stdout, stderr, .. } = &ran;
        let output = format!("{stderr}{}", String::from_utf8_lossy(stdout));
        assert!(output.contains(reason), "{arguments:?}: {reason}\nis not in\n{output}");
        assert_eq!(read(), before, "{arguments:?}");
    }
    let doctor = home.run(&["doctor", "--config", path]).await;
    // The doctor prints the remedy on a separate line.
    let is_reported = reason.split(", ").all(|part| doctor.text().contains(part));
    assert!(doctor.code == Some(1) && is_reported, "{doctor:?}");
}

#[tokio::test]
async fn hard9_a_file_that_others_can_write_is_rejected_by_every_command() {
    let home = home();
    chmod(&home.config, 0o606);
    let cure = format!("others can change it (mode 606), chmod go-w {}", home.config());
    assert_rejected(&home, &home.config, &cure).await;
    chmod(&home.config, 0o644);
    assert_eq!(home.run(&["check", "--config", home.config()]).await.code, Some(0));
}

#[tokio::test]
async fn hard9_a_directory_that_others_can_write_is_rejected_at_every_level() {
    let home = home();
    let (top, inner) = (home.scratch.path().join("top"), home.scratch.path().join("top/inner"));
    std::fs::create_dir_all(&inner).expect("a directory");
    let config = inner.join("goblin.json");
    std::fs::copy(&home.config, &config).expect("a copy");
    let path = config.to_str().expect("text");
    for open in [&top, &inner] {
        chmod(open, 0o777);
        let reason = format!("others can write {} (mode 777), chmod go-w {}", open.display(), open.display());
        assert_rejected(&home, &config, &reason).await;
        // In a sticky directory, other users cannot replace files they do not own.
        chmod(open, 0o1777);
        assert_eq!(home.run(&["check", "--config", path]).await.code, Some(0));
        chmod(open, 0o755);
    }
    // A link into the directory is rejected too, and so is a link in it.
    chmod(&top, 0o777);
    let link = home.scratch.path().join("link.json");
    symlink(&config, &link).expect("a link");
    assert_rejected(&home, &link, "others can write ").await;
    let outward = top.join("outward.json");
    symlink(&home.config, &outward).expect("a link");
    assert_rejected(&home, &outward, "others can write ").await;
    // A new file is not created there either.
    let new = top.join("new.json");
    let ran = home.run(&["add", "x", "--config", new.to_str().expect("text"), "--", "x"]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("others can write ") && !new.exists(), "{ran:?}");
}

#[tokio::test]
async fn hard9_a_file_directory_or_link_of_another_user_is_rejected() {
    let home = home();
    let directory = home.scratch.path().join("theirs");
    std::fs::create_dir(&directory).expect("a directory");
    let (config, link) = (directory.join("goblin.json"), home.scratch.path().join("link.json"));
    std::fs::copy(&home.config, &config).expect("a copy");
    symlink(&config, &link).expect("a link");
    assert_eq!(home.run(&["check", "--config", link.to_str().expect("text")]).await.code, Some(0));
    // Only root can give files away; `goblin_config::trust` judges owners for every other user.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    chown(&config, Some(OTHER_USER), None).expect("we are root");
    let cure = format!("belongs to another user ({OTHER_USER}), copy it, or as root: chown 0 {}", config.display());
    assert_rejected(&home, &config, &cure).await;
    chown(&config, Some(0), None).expect("we are root");
    chown(&directory, Some(OTHER_USER), None).expect("we are root");
    assert_rejected(&home, &config, &format!("{} belongs to another user ({OTHER_USER})", directory.display())).await;
    chown(&directory, Some(0), None).expect("we are root");
    lchown(&link, Some(OTHER_USER), None).expect("we are root");
    assert_rejected(&home, &link, &format!("the link {} belongs to user {OTHER_USER}", link.display())).await;
}

#[tokio::test]
async fn hard9_a_running_gateway_keeps_its_configuration_when_the_file_becomes_untrusted() {
    let servers = |id: &str| -> Value { json!({ "mcpServers": { id: fixture_server(&[]) } }) };
    let home = Home::new(&servers("a"));
    let (gateway, client) = home.gateway("a_echo").await;
    chmod(&home.config, 0o606);
    std::fs::write(&home.config, servers("evil").to_string()).expect("the file can be written");
    signal(gateway.child.id().expect("the process runs"), "HUP");
    await_log(&gateway, &["others can change it (mode 606)"]).await;
    assert_eq!(client.call_text("a_echo", json!({ "text": "still there" })).await, r#"{"text":"still there"}"#);
    chmod(&home.config, 0o600);
    signal(gateway.child.id().expect("the process runs"), "HUP");
    client.await_tool("evil_echo").await;
}

#[tokio::test]
async fn hard9_only_a_regular_file_is_a_configuration() {
    let home = home();
    let at = |name: &str| home.scratch.path().join(name);
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    let _socket = UnixListener::bind(at("socket")).expect("a socket");
    symlink("/dev/zero", at("device")).expect("a link");
    for special in [at("pipe"), at("socket"), at("device"), "/dev/stdin".into(), home.scratch.path().to_owned()] {
        assert_rejected(&home, &special, "is not a regular file").await;
    }
    std::fs::File::create(at("huge")).expect("a file").set_len(1 << 40).expect("a size");
    let ran = home.run(&["check", "--config", at("huge").to_str().expect("text")]).await;
    assert!(ran.code == Some(2) && ran.text().contains("is larger than 4 MiB"), "{ran:?}");
}

#[tokio::test]
async fn hard9_a_secret_is_read_from_a_regular_file_only() {
    let home = home();
    let at = |name: &str| home.scratch.path().join(name);
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    std::fs::File::create(at("huge")).expect("a file").set_len(1 << 40).expect("a size");
    for (name, reason) in [
        ("pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("huge", "the file is larger than 64 KiB"),
    ] {
        let env = json!({ "K": format!("${{file:{name}}}") });
        let config = json!({ "mcpServers": { "a": { "command": "x", "env": env } } });
        std::fs::write(&home.config, config.to_string()).expect("the file can be written");
        let ran = home.run(&["check", "--config", home.config()]).await;
        assert!(ran.code == Some(1) && ran.text().contains(reason), "{name}: {ran:?}");
    }
}

#[tokio::test]
async fn a_short_token_is_rejected_with_the_cure() {
    let config = |token: &str| json!({ "gateway": { "token": token }, "mcpServers": {} }).to_string();
    let home = home();
    for (token, is_long_enough) in [("fifteen-letters", false), ("sixteen--letters", true)] {
        std::fs::write(&home.config, config(token)).expect("the file can be written");
        let ran = home.run(&["check", "--config", home.config()]).await;
        assert_eq!(ran.code == Some(0), is_long_enough, "{ran:?}");
        assert_ne!(ran.text().contains("openssl rand -hex 16"), is_long_enough, "{ran:?}");
        assert!(!ran.text().contains(token), "{ran:?}");
    }
}
