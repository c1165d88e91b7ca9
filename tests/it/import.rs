//! `goblin import`: reads the files of other clients and writes one configuration.
//!
//! Every file of `tests/clients_files` is copied to the place where its client has it. The expected configuration and
//! terminal output are next to it. `@HOME@` and `@PROJECT@` are placeholders for directories.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{GOBLIN, Scratch, write_file};

/// The text in the files at every place where a secret could be.
const SECRET: &str = "literal-secret-value";

const CASES: [(&str, &str, &str); 13] = [
    ("claude-desktop.json", "claude-desktop", "@HOME@/.config/Claude/claude_desktop_config.json"),
    ("claude-code-project.json", "claude-code", "@PROJECT@/.mcp.json"),
    ("claude-code-user.json", "claude-code", "@HOME@/.claude.json"),
    ("cursor-user.json", "cursor", "@HOME@/.cursor/mcp.json"),
    ("cursor-project.json", "cursor", "@PROJECT@/.cursor/mcp.json"),
    ("vscode-user.json", "vscode", "@HOME@/.config/Code/User/mcp.json"),
    ("vscode-project.json", "vscode", "@PROJECT@/.vscode/mcp.json"),
    ("windsurf.json", "windsurf", "@HOME@/.codeium/windsurf/mcp_config.json"),
    ("codex-user.toml", "codex", "@HOME@/.codex/config.toml"),
    ("codex-project.toml", "codex", "@PROJECT@/.codex/config.toml"),
    ("gemini-user.json", "gemini", "@HOME@/.gemini/settings.json"),
    ("gemini-project.json", "gemini", "@PROJECT@/.gemini/settings.json"),
    ("hostile.json", "cursor", "@PROJECT@/.cursor/mcp.json"),
];

fn fixture(name: &str) -> String {
    let path = Path::new(crate::harness::ROOT).join("tests/clients_files").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A home directory with a project in it.
struct Machine {
    scratch: Scratch,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { scratch: Scratch::new() };
        std::fs::create_dir_all(machine.project().join(".git")).expect("a directory");
        machine
    }

    fn home(&self) -> PathBuf {
        self.scratch.path().canonicalize().expect("the file exists")
    }

    fn project(&self) -> PathBuf {
        self.home().join("work/app")
    }

    /// Returns the path of Goblin's own file.
    fn target(&self) -> PathBuf {
        self.home().join(".config/goblin/goblin.json")
    }

    /// Replaces the placeholders by the directories of this machine.
    fn real(&self, text: &str) -> String {
        let (home, project) = (self.home().display().to_string(), self.project().display().to_string());
        text.replace("@PROJECT@", &project).replace("@HOME@", &home)
    }

    fn put(&self, place: &str, text: &str) -> PathBuf {
        let path = PathBuf::from(self.real(place));
        write_file(&path, &self.real(text));
        path
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(GOBLIN);
        command.args(arguments).env_clear().env("HOME", self.home()).current_dir(self.project()).stdin(Stdio::null());
        command.output().expect("the command runs")
    }

    /// Runs an import and returns its stdout. Asserts success and an empty stderr.
    fn import(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["import"], arguments].concat());
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{stdout}");
        stdout
    }

    fn written(&self) -> String {
        std::fs::read_to_string(self.target()).expect("the file was written")
    }
}

#[test]
fn every_client_file_gives_the_expected_output_and_configuration() {
    for (file, client, place) in CASES {
        let machine = Machine::new();
        machine.put(place, &fixture(file));
        let stdout = machine.import(&[client, "--yes"]);
        let stem = file.split('.').next().expect("a name");
        assert_eq!(stdout, machine.real(&fixture(&format!("{stem}.out.txt"))), "{file}");
        assert_eq!(machine.written(), machine.real(&fixture(&format!("{stem}.goblin.json"))), "{file}");
        if fixture(file).contains(SECRET) {
            let is_secret_kept = machine.written().contains(SECRET);
            assert!(is_secret_kept, "{file}: the server's secret is lost");
        }
    }
}

#[test]
fn every_client_file_has_a_test_case() {
    let directory = Path::new(crate::harness::ROOT).join("tests/clients_files");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let stem = name.split('.').next().expect("a name");
        assert!(CASES.iter().any(|(file, ..)| file.split('.').next() == Some(stem)), "{name} is not used");
        count += 1;
    }
    assert_eq!(count, CASES.len() * 3);
}

#[test]
fn all_clients_are_imported_together_and_a_second_import_adds_nothing() {
    let machine = Machine::new();
    for (file, _, place) in CASES.iter().filter(|(file, ..)| *file != "hostile.json") {
        machine.put(place, &fixture(file));
    }
    let first = machine.import(&["--yes"]);
    assert!(first.contains("added 36 servers to "), "{first}");
    // Two servers have the same name, so the second gets the name of its client as a suffix.
    assert!(first.contains("vscode/mcp.json: github: imported as github-vscode"), "{first}");
    assert!(first.contains("figma-codex"), "{first}");
    assert!(
        first.contains(".claude.json: sentry: left out: claude-code uses the entry for this project in"),
        "{first}"
    );
    let written = machine.written();
    let second = machine.import(&["--yes"]);
    assert!(second.contains("nothing to add to ") && !second.contains("added"), "{second}");
    assert_eq!(machine.written(), written);
    let loaded = goblin_config::load(&machine.target(), &|_| Some("https://value".to_owned()));
    let config = loaded.expect("the file can be used").config;
    assert!(config.servers.values().any(|server| server.misconfiguration().is_some()), "a referenced file is missing");
}

#[test]
fn equal_servers_of_two_clients_are_imported_once() {
    let machine = Machine::new();
    machine.put("@HOME@/.cursor/mcp.json", r#"{"mcpServers":{"a":{"command":"x","env":{"K":"${env:K}","L":"1"}}}}"#);
    machine.put("@HOME@/.gemini/settings.json", r#"{"mcpServers":{"a":{"env":{"L":"1","K":"$K"},"command":"x"}}}"#);
    let stdout = machine.import(&["--yes"]);
    assert!(stdout.contains("a       cursor, gemini  K=${K} L=*** x\n"), "{stdout}");
    let written: Value = serde_json::from_str(&machine.written()).expect("JSON");
    assert_eq!(written["mcpServers"].as_object().expect("servers").len(), 1);
}

#[test]
fn conflicting_and_invalid_names_are_replaced() {
    let machine = Machine::new();
    let long = "n".repeat(70);
    machine.put(
        "@HOME@/.cursor/mcp.json",
        &format!(r#"{{"mcpServers":{{"My Server":{{"command":"x"}},"my_server":{{"command":"y"}},"{long}":{{"command":"z"}},"":{{"command":"w"}}}}}}"#),
    );
    let stdout = machine.import(&["--yes"]);
    assert!(stdout.contains("my_server: imported as my_server-cursor"), "{stdout}");
    assert!(stdout.contains(&format!("imported as {}", "n".repeat(64))), "{stdout}");
    assert!(stdout.contains("imported as server"), "{stdout}");
    assert!(stdout.contains("added 4 servers"), "{stdout}");
}

const OWN: &str = "{\n  // mine\n  \"servers\": {\n    \"a\": { \"command\": \"x\" }, // kept\n    \"b\": { \"command\": \"other\" },\n  },\n}\n";

#[test]
fn servers_are_added_to_an_existing_file() {
    let machine = Machine::new();
    let target = machine.put("@HOME@/.config/goblin/goblin.json", OWN);
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o640)).expect("permissions");
    machine.put(
        "@HOME@/.cursor/mcp.json",
        r#"{"mcpServers":{"a":{"command":"x"},"b":{"command":"y"},"c":{"command":"z","args":["1"]}}}"#,
    );
    let stdout = machine.import(&["cursor", "--yes"]);
    assert!(stdout.contains("a       cursor  x  (already present)\n"), "{stdout}");
    assert!(
        stdout.contains("b: left out: your file has a different server b, keep it, or run goblin remove b"),
        "{stdout}"
    );
    let added = "    \"c\": {\n      \"command\": \"z\",\n      \"args\": [\"1\"],\n    },\n  },\n}\n";
    assert_eq!(machine.written(), OWN.replace("  },\n}\n", added));
    assert_eq!(target.metadata().expect("the file exists").permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_file_with_problems_is_not_changed() {
    let machine = Machine::new();
    let bad = OWN.replace("command", "comand");
    machine.put("@HOME@/.config/goblin/goblin.json", &bad);
    machine.put("@HOME@/.cursor/mcp.json", r#"{"mcpServers":{"c":{"command":"z"}}}"#);
    let output = machine.run(&["import", "--yes"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(stderr.contains("fix its problems first") && stderr.contains("servers.a.comand: unknown key"), "{stderr}");
    assert_eq!(machine.written(), bad);
}

#[test]
fn nothing_is_written_without_a_yes() {
    let machine = Machine::new();
    machine.put("@HOME@/.cursor/mcp.json", r#"{"mcpServers":{"c":{"command":"z"}}}"#);
    for (arguments, fragment) in [
        (&[][..], "nothing was written; run the command again with --yes"),
        (&["--dry-run"], "nothing was written (--dry-run)"),
    ] {
        let stdout = machine.import(arguments);
        assert!(stdout.contains("c       cursor  z\n") && stdout.contains(fragment), "{stdout}");
        assert!(!machine.target().exists());
    }
    let json: Value = serde_json::from_str(&machine.import(&["--json"])).expect("JSON");
    assert_eq!((&json["written"], &json["servers"][0]["id"]), (&Value::Bool(false), &Value::from("c")));
    assert!(!machine.target().exists());
}

#[test]
fn only_the_owner_can_access_the_written_file() {
    let machine = Machine::new();
    machine.put("@HOME@/.cursor/mcp.json", r#"{"mcpServers":{"c":{"command":"z"}}}"#);
    let json: Value = serde_json::from_str(&machine.import(&["--json", "--yes"])).expect("JSON");
    assert_eq!(json["written"], true);
    let mode = |path: &Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
    assert_eq!((mode(&machine.target()), mode(machine.target().parent().expect("a parent"))), (0o600, 0o700));
    let names: Vec<_> = std::fs::read_dir(machine.target().parent().expect("a parent")).expect("a directory").collect();
    assert_eq!(names.len(), 1, "a temporary file remains");
}

#[test]
fn the_json_output_contains_no_secret() {
    for (file, client, place) in CASES {
        let machine = Machine::new();
        machine.put(place, &fixture(file));
        let stdout = machine.import(&[client, "--json"]);
        assert!(!stdout.contains(SECRET), "a secret is shown: {stdout}");
        let json: Value = serde_json::from_str(&stdout).expect("JSON");
        assert!(!json["servers"].as_array().expect("a list").is_empty(), "{file}");
    }
}

#[test]
fn the_from_flag_selects_one_file() {
    let machine = Machine::new();
    for (name, text, client) in [
        ("x.toml", "[mcp_servers.a]\ncommand = \"x\"\n", "codex"),
        ("x.json", r#"{"mcpServers":{"a":{"serverUrl":"https://x/mcp"}}}"#, "windsurf"),
        ("x.json", r#"{"mcpServers":{"a":{"httpUrl":"https://x/mcp"}}}"#, "gemini"),
        ("x.json", r#"{"servers":{"a":{"command":"x"}}}"#, "vscode"),
        ("x.json", r#"{"mcp":{"servers":{"a":{"command":"x"}}}}"#, "vscode"),
        ("x.json", r#"{"mcpServers":{"a":{"command":"x"}}}"#, "claude-code"),
        ("claude_desktop_config.json", r#"{"mcpServers":{"a":{"command":"x"}}}"#, "claude-desktop"),
    ] {
        let path = machine.put(&format!("@HOME@/{name}"), text).display().to_string();
        let stdout = machine.import(&["--from", &path, "--dry-run"]);
        assert!(stdout.contains(&format!("\na       {client}")), "{text}: {stdout}");
    }
    // The name on the command line selects the client.
    let path = machine.put("@HOME@/x.json", r#"{"mcpServers":{"a":{"url":"https://x/mcp"}}}"#).display().to_string();
    let json: Value = serde_json::from_str(&machine.import(&["gemini", "--from", &path, "--json"])).expect("JSON");
    assert_eq!(json["servers"][0]["id"], "a", "{json}");
    for arguments in [&["--from", "/nowhere"][..], &["cursor", "gemini", "--from", &path], &["dance"]] {
        assert_eq!(machine.run(&[&["import"], arguments].concat()).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_broken_file_does_not_prevent_the_import_of_others() {
    let machine = Machine::new();
    machine.put("@HOME@/.cursor/mcp.json", "{ \"mcpServers\": ");
    machine.put("@HOME@/.codex/config.toml", "[mcp_servers.a]\nkey = \"literal-secret-value\n");
    machine.put("@HOME@/.gemini/settings.json", r#"{"mcpServers":{"c":{"command":"z"}}}"#);
    // Reading a pipe would never end.
    let made = Command::new("mkfifo").arg(machine.project().join(".mcp.json")).status().expect("mkfifo is there");
    assert!(made.success());
    let stdout = machine.import(&["--yes"]);
    assert!(stdout.contains("/.mcp.json: skipped: not a regular file"), "{stdout}");
    assert!(stdout.contains(".cursor/mcp.json: is not JSON: "), "{stdout}");
    assert!(stdout.contains(".codex/config.toml: is not TOML near line 2"), "{stdout}");
    assert!(stdout.contains("added 1 server to "), "{stdout}");
}

#[test]
fn an_import_without_clients_lists_the_searched_paths() {
    let machine = Machine::new();
    let stdout = machine.import(&[]);
    assert!(stdout.starts_with("no servers were found\n\nsearched:\n"), "{stdout}");
    assert!(stdout.contains("/.cursor/mcp.json\n") && stdout.contains("/.claude.json\n"), "{stdout}");
}
