//! `goblin check`: problems, servers, exit codes, and no leftovers.
//!
//! The command starts servers only with the flag for it, and never prints secrets.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture_http::HttpFixture;
use crate::harness::{Scratch, fixture, fixture_server, goblin, output};
use crate::raw_server::{RawServer, response};
use crate::support::http_server;

struct Checked {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Checked {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

fn server<'a>(report: &'a Value, id: &str) -> &'a Value {
    let servers = report["servers"].as_array().expect("a list");
    servers.iter().find(|server| server["id"] == id).unwrap_or_else(|| panic!("{id}: {report}"))
}

async fn check(scratch: &Scratch, config: &Value, arguments: &[&str]) -> Checked {
    let path = scratch.write("goblin.json", &serde_json::to_string_pretty(config).expect("JSON"));
    let mut command = goblin(scratch.path());
    command.arg("check").args(arguments).arg("--config").arg(path).stdin(Stdio::null());
    let (code, stdout, stderr) = output(command).await;
    Checked { code, stdout, stderr }
}

#[tokio::test]
async fn problems_are_reported_with_their_place_and_fail_the_check() {
    let scratch = Scratch::new();
    let config = json!({ "gateway": { "prot": 1 }, "mcpServers": { "a": { "url": "ftp://x" } } });
    let checked = check(&scratch, &config, &[]).await;
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(2), ""), "{}", checked.stdout);
    assert!(checked.stdout.contains("2 problems"), "{}", checked.stdout);
    assert!(checked.stdout.contains("goblin.json:3:5: gateway.prot: unknown key"), "{}", checked.stdout);
    let json = check(&scratch, &config, &["--json", "--connect"]).await;
    assert_eq!(json.code, Some(2));
    let report = json.json();
    assert_eq!(report["ok"], false);
    let problem = &report["problems"][0];
    assert_eq!(
        (&problem["line"], &problem["column"], &problem["path"]),
        (&json!(3), &json!(5), &json!("gateway.prot"))
    );
    assert_eq!(report["connected"], false, "nothing was started: {report}");
}

#[tokio::test]
async fn servers_are_listed_without_secrets_and_without_being_started() {
    let scratch = Scratch::new();
    let started = scratch.path().join("started");
    let config = json!({ "mcpServers": {
        "a": { "command": fixture(), "args": ["--start-log", started, "--api-key", "hunter2"] },
        "web": { "url": "https://search.example/mcp?key=hunter2", "headers": { "Authorization": "Bearer hunter2" } },
        "pinned": { "command": "npx", "args": ["-y", "some-server@1.2.3"] },
        "loose": { "command": "npx", "args": ["-y", "some-server"] },
        "off": { "command": "uvx", "args": ["other-server"], "enabled": false },
    } });
    let checked = check(&scratch, &config, &[]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    assert!(!checked.stdout.contains("hunter2"), "{}", checked.stdout);
    for fragment in
        ["5 servers", "https://search.example/mcp?***", "without a fixed version (loose: write some-server@VERSION)"]
    {
        assert!(checked.stdout.contains(fragment), "{fragment}: {}", checked.stdout);
    }
    let report = check(&scratch, &config, &["--json"]).await.json();
    assert!(!report.to_string().contains("hunter2"), "{report}");
    assert_eq!(server(&report, "loose")["unpinned"]["package"], "some-server");
    assert_eq!(server(&report, "pinned")["unpinned"], Value::Null);
    assert_eq!(server(&report, "off")["state"], "disabled");
    assert_eq!(check(&scratch, &config, &["--strict"]).await.code, Some(1), "warnings count");
    assert!(!started.exists());
}

#[tokio::test]
async fn profiles_are_listed_with_their_endpoint_and_contents() {
    let scratch = Scratch::new();
    let config = json!({
        "exposure": { "mode": "auto", "pinned": ["git_echo"] },
        "mcpServers": {
            "git": fixture_server(&[]),
            "github": fixture_server(&[]),
            "notes": { "type": "files" },
            "old": { "command": "git", "enabled": false },
        },
        "profiles": {
            "review": { "servers": ["git*"], "tools": { "allow": ["git_*"], "deny": ["git_push"] }, "prompts": [], "exposure": "search" },
            "all": {},
            "none": { "servers": ["old"] },
        },
    });
    let checked = check(&scratch, &config, &[]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    assert!(checked.stdout.contains("no problem, 4 servers, 3 profiles"), "{}", checked.stdout);
    let table: Vec<&str> = checked.stdout.lines().skip_while(|line| !line.starts_with("PROFILE")).collect();
    let expected = [
        "PROFILE  ENDPOINT       SERVERS      OF TOOLS            OF PROMPTS  OF RESOURCES  EXPOSURE",
        "all      /mcp/p/all     all          all                 all         all           auto above 60",
        "none     /mcp/p/none    none         all                 all         all           auto above 60",
        "review   /mcp/p/review  git, github  git_* but git_push  none        all           search",
    ];
    assert_eq!(table, expected);

    let connected = check(&scratch, &config, &["--connect"]).await;
    let head = "PROFILE  ENDPOINT       SERVERS      TOOLS  LISTED  PROMPTS  RESOURCES  TEMPLATES  EXPOSURE";
    let row = "none     /mcp/p/none    none             0       0        0          0          0  auto above 60";
    assert!(connected.stdout.contains(&format!("{head}\n")), "{}", connected.stdout);
    assert!(connected.stdout.contains(&format!("{row}\n")), "{}", connected.stdout);
    let report = check(&scratch, &config, &["--connect", "--json"]).await.json();
    let profile = |name: &str| {
        let profiles = report["profiles"].as_array().expect("a list");
        profiles.iter().find(|profile| profile["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
    };
    let mut review = profile("review").clone();
    let seen = review["seen"].take();
    assert_eq!(
        review,
        json!({
            "name": "review", "path": "/mcp/p/review", "servers": ["git", "github"],
            "tools": { "allow": ["git_*"], "deny": ["git_push"] },
            "prompts": { "allow": [], "deny": [] }, "resources": { "allow": ["*"], "deny": [] },
            "exposure": { "mode": "search", "pinned": ["git_echo"], "autoAbove": 60, "reveal": false },
            "seen": null,
        })
    );
    let offered = |id: &str, kind: &str| server(&report, id)["seen"][kind].as_u64().expect("a count");
    let held = json!({
        "tools": offered("git", "tools"), "listed": 1, "prompts": 0,
        "resources": offered("git", "resources") + offered("github", "resources"),
        "templates": offered("git", "templates") + offered("github", "templates"),
    });
    assert_eq!(seen, held);
    assert_eq!(profile("all")["servers"], json!(["git", "github", "notes"]));
    assert!(profile("all")["seen"]["tools"].as_u64() > seen["tools"].as_u64(), "{report}");
}

#[tokio::test]
async fn a_profile_of_an_unknown_server_is_a_problem() {
    let scratch = Scratch::new();
    let config =
        json!({ "mcpServers": { "github": fixture_server(&[]) }, "profiles": { "p": { "servers": ["githb"] } } });
    let checked = check(&scratch, &config, &[]).await;
    assert_eq!(checked.code, Some(2), "{}", checked.stdout);
    let fragment = "profiles.p.servers[0]: there is no server \"githb\", did you mean \"github\"?";
    assert!(checked.stdout.contains(fragment), "{}", checked.stdout);
}

#[tokio::test]
async fn connecting_reports_the_software_protocol_and_entries_of_each_server() {
    let scratch = Scratch::new();
    let pids = scratch.path().join("pids");
    let config = json!({ "mcpServers": {
        "a": { "command": fixture(), "args": ["--tools", "2", "--start-log", pids] },
        "b": fixture_server(&["--protocol", "2025-03-26", "--without", "prompts"]),
    } });
    let checked = check(&scratch, &config, &["--connect"]).await;
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains("2 of 2 servers ready"), "{}", checked.stdout);
    assert!(checked.stdout.contains("goblin-fixture") && !checked.stdout.contains('\x1b'), "{}", checked.stdout);
    let report = check(&scratch, &config, &["--connect", "--json"]).await.json();
    assert_eq!(report["ok"], true);
    let (a, b) = (server(&report, "a"), server(&report, "b"));
    assert_eq!((&a["state"], &b["state"]), (&json!("ready"), &json!("ready")));
    assert_eq!((&a["seen"]["protocol"], &b["seen"]["protocol"]), (&json!("2025-11-25"), &json!("2025-03-26")));
    assert_eq!(a["seen"]["era"], "legacy");
    assert!(a["seen"]["software"].as_str().is_some_and(|name| name.starts_with("goblin-fixture ")), "{a}");
    assert!(a["seen"]["handshakeMs"].is_f64() && a["seen"]["pingMs"].is_f64(), "{a}");
    assert_eq!(a["seen"]["tools"].as_u64(), b["seen"]["tools"].as_u64().map(|tools| tools + 2));
    assert_eq!((&a["seen"]["prompts"], &b["seen"]["prompts"]), (&json!(2), &json!(0)));
    assert_eq!((&a["seen"]["resources"], &a["seen"]["templates"]), (&json!(9), &json!(3)));
    let pids = std::fs::read_to_string(scratch.path().join("pids")).expect("pids");
    assert_eq!(pids.lines().count(), 2, "each run starts the server once");
    for pid in pids.lines() {
        assert!(!std::path::Path::new("/proc").join(pid).exists(), "{pid} still runs");
    }
}

#[tokio::test]
async fn a_failed_server_is_reported_with_its_cause_beside_the_ready_ones() {
    let scratch = Scratch::new();
    let config = json!({ "mcpServers": {
        "good": fixture_server(&[]),
        "absent": { "command": "/nowhere/server" },
        "mute": fixture_server(&["--hang-handshake"]),
        "refused": { "url": "http://127.0.0.1:1/mcp" },
    } });
    let checked = check(&scratch, &config, &["--connect", "--json", "--timeout", "3"]).await;
    assert_eq!(checked.code, Some(1), "{}", checked.stdout);
    let report = checked.json();
    for (id, state, fragment) in [
        ("good", "ready", None),
        ("absent", "failed", Some("/nowhere/server")),
        ("mute", "failed", Some("within 3 s")),
        ("refused", "failed", Some("refused")),
    ] {
        let server = server(&report, id);
        assert_eq!(server["state"], state, "{server}");
        assert_eq!(server["seen"].is_object(), state == "ready", "{server}");
        let error = server["error"].as_str();
        assert!(fragment.is_none_or(|fragment| error.is_some_and(|error| error.contains(fragment))), "{server}");
    }
}

#[tokio::test]
async fn conflicting_and_shortened_names_are_reported() {
    let scratch = Scratch::new();
    let config = json!({ "namespacing": { "maxLength": 16 }, "mcpServers": {
        "a": { "command": fixture(), "prefix": "same" },
        "b": { "command": fixture(), "prefix": "same" },
    } });
    let checked = check(&scratch, &config, &["--connect", "--json"]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    let report = checked.json();
    let conflicts = report["conflicts"].as_array().expect("a list");
    let echo = conflicts.iter().find(|conflict| conflict["name"] == "same_echo").expect("a conflict");
    assert_eq!((&echo["kind"], echo["exposed"].as_array().map(Vec::len)), (&json!("tool"), Some(2)));
    let cut = report["cut"].as_array().expect("a list");
    let of = |native: &str| cut.iter().find(|cut| cut["native"] == native && cut["server"] == "a");
    assert_eq!(of("change_resources").and_then(|cut| cut["exposed"].as_str()).map(str::len), Some(16));
    assert!(of("echo").is_none(), "{report}");
    let strict = check(&scratch, &config, &["--connect", "--strict"]).await;
    assert_eq!(strict.code, Some(1));
    assert!(strict.stdout.contains("several tools have the name same_echo"), "{}", strict.stdout);
}

/// Simulates a server that does not list its tools.
fn no_tools(method: &str) -> Option<Vec<u8>> {
    (method == "tools/list").then(|| response("500 Internal Server Error", "", ""))
}

#[tokio::test]
async fn srv2_connecting_reports_the_era_of_each_server_and_the_tools_left_out() {
    let scratch = Scratch::new();
    let modern = HttpFixture::start(&["--era", "modern", "--header-tools"]).await;
    let config = json!({ "mcpServers": { "a": modern.server(), "b": fixture_server(&[]) } });
    let report = check(&scratch, &config, &["--connect", "--json"]).await.json();
    let (a, b) = (server(&report, "a"), server(&report, "b"));
    assert_eq!((&a["seen"]["protocol"], &a["seen"]["era"]), (&json!("2026-07-28"), &json!("modern")));
    assert_eq!(b["seen"]["era"], "legacy");
    assert!(a["seen"]["pingMs"].is_f64(), "{a}");
    let warning = report["warnings"].to_string();
    assert!(warning.contains("tool headed_badly is skipped: x-mcp-header"), "{report}");
}

#[tokio::test]
async fn a_failed_list_is_reported_with_its_server() {
    let scratch = Scratch::new();
    let half = RawServer::rejecting(no_tools, |_| Vec::new()).await;
    let config = json!({ "mcpServers": { "good": fixture_server(&[]), "half": http_server(half.address) } });
    let checked = check(&scratch, &config, &["--connect"]).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stdout);
    let fragment = "warning: mcpServers.half: tools/list failed: it answered HTTP 500 Internal Server Error";
    assert!(checked.stdout.contains(fragment), "{}", checked.stdout);
    assert_eq!(checked.stdout.matches(" failed: ").count(), 1, "{}", checked.stdout);
    let strict = check(&scratch, &config, &["--connect", "--strict"]).await;
    assert_eq!(strict.code, Some(1), "{}", strict.stdout);
}
