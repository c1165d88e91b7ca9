//! `goblin top` in a terminal, controlled by keys, with a real gateway.
//!
//! The terminal must be restored at every end of the program.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use goblin_tui::input::KEYS;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{GOBLIN, Gateway, Scratch, TIMEOUT, fixture_server, goblin, servers_only, signal};
use crate::screen::Screen;

const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";

/// A gateway with files and two fixtures, and the home directory in which it is found.
struct Stage {
    gateway: Gateway,
    home: Scratch,
}

fn config(home: &Scratch) -> Value {
    let root = home.path().join("project");
    std::fs::create_dir_all(&root).expect("a directory");
    std::fs::write(root.join("plan.md"), "# The plan\n\nThere is none.\n").expect("a file");
    servers_only(json!({ "mcpServers": {
        "files": {"type": "files", "root": root.display().to_string()},
        "one": fixture_server(&[]),
        "two": fixture_server(&["--tools", "3"]),
        "broken": {"command": "/nowhere/to/be/found"},
    }}))
}

fn serve(home: &Scratch) -> Command {
    let path = home.write("goblin.json", &config(home).to_string());
    let mut command = goblin(home.path());
    command.args(["serve", "--port", "0", "--config"]).arg(path);
    command
}

impl Stage {
    async fn new() -> Stage {
        let home = Scratch::new();
        let gateway = Gateway::of(serve(&home)).await;
        gateway.client_seeing("two_tool_0003").await.await_tool("one_echo").await;
        Stage { gateway, home }
    }

    /// Starts `goblin top` and waits until it shows the gateway.
    async fn top(&self, columns: u16, rows: u16) -> Screen {
        self.top_with(columns, rows, |_| {}).await
    }

    /// Starts `goblin top` with changes of its command.
    async fn top_with(&self, columns: u16, rows: u16, change: impl FnOnce(&mut Command)) -> Screen {
        let mut command = goblin(self.home.path());
        command.arg("top");
        change(&mut command);
        let screen = Screen::run(command, columns, rows);
        screen.shows("✗ degraded: 1 failed").await;
        screen
    }
}

fn line_of(screen: &str, text: &str) -> String {
    screen.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text} in\n{screen}")).to_owned()
}

#[tokio::test]
async fn tui1_a_panel_lists_resources_with_uri_name_type_and_size() {
    let stage = Stage::new().await;
    let mut screen = stage.top(160, 50).await;
    screen.press("5");
    let text = screen.wait("resources are listed", |text| text.contains("plan.md") && text.contains("alpha")).await;
    let line = line_of(&text, "plan.md");
    for fragment in ["file://", "/project/plan.md", "text/markdown", "27 B"] {
        assert!(line.contains(fragment), "{fragment} in {line}");
    }
    assert!(text.contains("[5 Resources]"), "{text}");
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn tui2_a_filter_shows_one_server_only() {
    let stage = Stage::new().await;
    let mut screen = stage.top(140, 40).await;
    screen.press("3");
    screen.shows("one_echo").await;
    screen.press("f");
    screen.shows("all servers").await;
    // The servers are listed by id after that line.
    screen.press("jjjj");
    screen.shows("> two").await;
    screen.press(ENTER);
    let text = screen.shows("server two").await;
    assert!(text.contains("two_echo") && !text.contains("one_"), "{text}");
    screen.press("5");
    let text = screen.wait("its resources are shown", |text| text.contains("Resources") && text.contains("beta")).await;
    assert!(!text.contains("plan.md"), "{text}");
    screen.press("1");
    let text = screen.shows("Last events").await;
    assert!(!text.contains("broken"), "{text}");
    screen.press(ESCAPE);
    screen.shows("broken").await;
    screen.press("\x03");
    assert_eq!(screen.ended().await, Some(0), "Ctrl-C");
}

#[tokio::test]
async fn tui3_a_search_highlights_matches_and_hides_the_rest() {
    let stage = Stage::new().await;
    let mut screen = stage.top(120, 40).await;
    screen.press("3");
    screen.shows("one_echo").await;
    screen.press("/TOOL_0002");
    let text = screen.shows("· /TOOL_0002").await;
    assert!(!text.contains("one_echo") && text.contains("two_tool_0002") && !text.contains("two_tool_0001"), "{text}");
    screen.wait("the row is highlighted", |_| screen.painted(vt100::Color::Idx(3)) == "tool_0002").await;
    screen.press(ENTER);
    screen.hides("Enter apply").await;
    screen.press(ESCAPE);
    screen.shows("two_widget").await;
    assert_eq!(screen.painted(vt100::Color::Idx(3)), "");
}

#[tokio::test]
async fn tui4_a_side_panel_shows_details() {
    let stage = Stage::new().await;
    let mut screen = stage.top(140, 40).await;
    screen.press("5");
    screen.shows("plan.md").await;
    screen.press("/note:///alpha\r");
    screen.wait("the search is over", |text| text.contains("· /note:///alpha ") && !text.contains("Enter apply")).await;
    screen.press(ENTER);
    let text = screen.shows("Metadata").await;
    for fragment in ["note:///alpha", "A text note", "text/plain", "Annotations", "0.70", "dev.goblin/"] {
        assert!(text.contains(fragment), "{fragment} in\n{text}");
    }
    screen.press("\x1b");
    screen.hides("Metadata").await;
}

#[tokio::test]
async fn tui4_a_schema_can_be_scrolled_in_a_small_terminal() {
    let stage = Stage::new().await;
    let mut screen = stage.top(80, 24).await;
    screen.press("3");
    screen.shows("one_echo").await;
    screen.press("/two_add\r");
    screen.press("\x1b[C");
    screen.shows("Input schema").await;
    screen.press("G");
    screen.shows("dev.goblin/").await;
    screen.press("g");
    screen.shows("native").await;
}

#[tokio::test]
async fn tui5_templates_have_their_own_section() {
    let stage = Stage::new().await;
    let mut screen = stage.top(140, 50).await;
    screen.press("5");
    let text = screen.wait("templates are listed", |text| text.contains("db://{table}/{id}")).await;
    let row = |part: &str| text.lines().position(|line| line.contains(part)).expect("the text is shown");
    assert!(row("Resources ") < row("Templates ") && row("PATTERN") < row("db://{table}/{id}"), "{text}");
    assert!(line_of(&text, "db://{table}/{id}").contains("A row"), "{text}");
    screen.press("G");
    screen
        .wait("a template is selected", |text| text.lines().any(|line| line.contains("> ") && line.contains('{')))
        .await;
}

#[tokio::test]
async fn a_tool_is_called_by_a_form_and_a_resource_is_read() {
    let stage = Stage::new().await;
    let mut screen = stage.top(120, 40).await;
    screen.press("3");
    screen.shows("one_add").await;
    screen.press("/one_add\r");
    screen.hides("one_echo").await;
    screen.press("c");
    screen.shows("Call one_add").await;
    screen.press("two\t3\r");
    screen.shows("must be a number").await;
    screen.press("\x7f\x7f\x7f2\r");
    let text = screen.wait("the result is shown", |text| text.contains("one_add (Esc closes)")).await;
    assert!(text.contains('5'), "{text}");
    screen.press(ESCAPE);
    screen.hides("Esc closes").await;
    // The search is still active. A key right after an escape would be read as one key with it.
    screen.press(ESCAPE);
    screen.hides("· /one_add").await;
    screen.press("5");
    screen.press("/plan\r");
    screen.hides("alpha").await;
    screen.press("r");
    screen.shows("There is none.").await;
}

#[tokio::test]
async fn a_watched_resource_shows_its_updates() {
    let stage = Stage::new().await;
    let mut screen = stage.top(140, 40).await;
    screen.press("5");
    screen.shows("plan.md").await;
    screen.press("/plan.md\r");
    screen.hides("alpha").await;
    screen.press("w");
    screen.shows("watching").await;
    std::fs::write(stage.home.path().join("project/plan.md"), "Another plan\n").expect("a file");
    screen.shows("has changed").await;
    screen.shows("1 at ").await;
    screen.press("6");
    let text = screen.shows("goblin top").await;
    assert!(text.contains("Subscriptions 1"), "{text}");
    screen.press(ESCAPE);
    screen.hides("· /plan.md").await;
    screen.press("7");
    screen.wait("the session is shown", |text| text.contains("PROTOCOL") && text.contains("goblin top")).await;
}

#[tokio::test]
async fn panels_show_servers_and_events_and_a_click_selects_a_row() {
    let stage = Stage::new().await;
    let mut screen = stage.top(140, 40).await;
    let text =
        screen.wait("servers are shown", |text| text.contains("✗ failed") && text.contains("3 of 4 ready")).await;
    assert!(line_of(&text, "one ").contains("● ready"), "{text}");
    screen.press("9");
    screen.wait("events are shown", |text| text.contains("MESSAGE") && text.contains("broken")).await;
    screen.press("2");
    screen.wait("the servers are shown", |text| text.contains("RESTARTS")).await;
    // A click on the third tab, then on the second row of its list.
    screen.press("\x1b[<0;25;2M");
    screen.shows("[3 Tools]").await;
    screen.wait("tools are listed", |text| text.lines().nth(5).is_some_and(|line| line.contains('_'))).await;
    screen.press("\x1b[<0;10;6M");
    screen.wait("the second row is selected", |text| text.lines().nth(5).is_some_and(|line| line.contains("> "))).await;
}

/// Starts a fake gateway with only the admin API. It records the commands it receives.
async fn fake_gateway(status: Value) -> (String, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&requests);
    let answer = move |request: http::Request<hyper::body::Incoming>| {
        let path = request.uri().path().to_owned();
        if request.method() == http::Method::POST {
            let token = request.headers().get("authorization").map(|value| value.to_str().expect("text"));
            kept.lock().expect("no test panics here").push(format!("{path} {}", token.unwrap_or_default()));
        }
        let body = match path.as_str() {
            "/api/status" => status.clone(),
            "/api/reload" => json!({"changed": ["a b/c"], "unchanged": 1}),
            "/api/servers/off/enable" => json!({"error": {"message": "off cannot be enabled\u{1b}[2J"}}),
            _ => json!({"version": 1, "entries": []}),
        };
        let code = match path.as_str() {
            "/api/calls" | "/api/logs" => 404,
            path if path.ends_with("/enable") => 409,
            _ => 200,
        };
        let answer = http::Response::builder().status(code).body(Full::<Bytes>::from(body.to_string()));
        std::future::ready(answer)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let served = http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer.clone()));
            tokio::spawn(served);
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_change_is_sent_with_the_admin_token_after_a_confirmation() {
    let servers = json!([{"id": "a b/c", "state": "ready"}, {"id": "off", "state": "disabled"}]);
    let (url, requests) =
        fake_gateway(json!({"state": "ready", "started": "now", "servers": servers, "catalog": {"version": 1}})).await;
    let home = Scratch::new();
    let mut command = goblin(home.path());
    command.args(["top", "--url", &url]).env("GOBLIN_ADMIN_TOKEN", "secret");
    let mut screen = Screen::run(command, 100, 30);
    screen.shows("● ready").await;
    screen.press("2R");
    screen.shows("Restart a b/c?").await;
    screen.press("n");
    screen.hides("Restart a b/c?").await;
    screen.press("R");
    screen.shows("Restart a b/c?").await;
    screen.press("y");
    screen.shows("a b/c is restarted").await;
    screen.press("jD");
    screen.shows("Enable off?").await;
    screen.press("y");
    screen.shows("off cannot be enabled[2J").await;
    screen.press("L");
    screen.shows("reloaded: changed a b/c").await;
    let requests = requests.lock().expect("no test panics here").clone();
    let paths = ["/api/servers/a%20b%2Fc/restart", "/api/servers/off/enable", "/api/reload"];
    assert_eq!(requests, paths.map(|path| format!("{path} Bearer secret")));
    assert!(!screen.text().contains("secret"));
    screen.press("8");
    screen.shows("the gateway is older than this dashboard: it has no /api/calls").await;
    screen.press("e");
    screen.shows("this gateway has none here").await;
}

#[tokio::test]
async fn use14_a_small_terminal_shows_failures_first_with_their_reason() {
    let stage = Stage::new().await;
    let mut screen = stage.top(80, 24).await;
    for panel in ["1", "2"] {
        screen.press(panel);
        let text = screen.wait("the panel is open", |text| text.contains(&format!("[{panel} "))).await;
        let row = |part: &str| text.lines().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{text}"));
        assert!(row("┌ Failed 1") < row("broken") && row("broken") < row("┌ Servers 3"), "{text}");
        assert!(line_of(&text, "broken").contains("✗ failed  its command cannot be started"), "{text}");
    }
    screen.press(ENTER);
    let text = screen.shows("Log and stderr").await;
    assert!(text.contains("/nowhere/to/be/found"), "{text}");
}

#[tokio::test]
async fn use14_a_prompt_and_a_template_are_used_by_forms() {
    let stage = Stage::new().await;
    let mut screen = stage.top(120, 40).await;
    screen.press("4");
    screen.shows("one_greet").await;
    screen.press("/one_greet\r");
    screen.hides("two_greet").await;
    screen.press("c");
    screen.shows("Get one_greet").await;
    screen.press(ENTER);
    screen.shows("✗ required").await;
    screen.press("\x1b[C");
    screen.shows("→ Ada").await;
    screen.press("\x1b[C\r");
    screen.wait("the messages are shown", |text| text.contains("user:") && text.contains("Hello, Ada!")).await;
    screen.press("y");
    screen.shows("copied the result to the clipboard").await;
    screen.press("q");
    screen.hides("Hello, Ada!").await;
    screen.press(":");
    screen.shows("Jump to").await;
    screen.press("onedb\r");
    screen
        .wait("the template is selected", |text| {
            text.lines().any(|line| line.contains("> ") && line.contains("{table}/{id}"))
        })
        .await;
    screen.press("r");
    screen.shows("Read ").await;
    screen.press("users\t7");
    screen.shows("db://users/7").await;
    screen.press(ENTER);
    screen.wait("the content is shown", |text| text.contains("db://users/7 (Esc closes)")).await;
}

#[tokio::test]
async fn use14_events_are_filtered_by_level_and_the_log_follows() {
    let stage = Stage::new().await;
    let mut screen = stage.top(120, 40).await;
    screen.press("9");
    screen.shows("info and above").await;
    screen.press("v");
    let text = screen.wait("warnings are shown", |text| text.contains("warn and above")).await;
    assert!(text.contains("broken") && !text.contains(" info "), "{text}");
    screen.press("vvv");
    screen.shows("info and above · following").await;
    screen.press("l");
    screen.shows("Log of ").await;
    screen.press("k");
    screen.press(ESCAPE);
    screen.hides("Log of ").await;
}

#[tokio::test]
async fn use14_the_configuration_is_edited_and_reloaded() {
    let stage = Stage::new().await;
    let mut shorter = config(&stage.home);
    shorter["mcpServers"].as_object_mut().expect("servers").remove("two");
    let (good, bad) = (stage.home.write("good.json", &shorter.to_string()), stage.home.write("bad.json", "{"));
    let editor = stage.home.path().join("next.json");
    std::fs::copy(&good, &editor).expect("a copy");
    let script = format!("cp {}", editor.display());
    let mut screen = stage
        .top_with(100, 30, |command| {
            command.env("VISUAL", script);
        })
        .await;
    screen.press("2");
    screen.shows("two").await;
    screen.press("e");
    screen.shows("the configuration was reloaded").await;
    screen.wait("the server is gone", |text| text.contains("Servers 2")).await;
    std::fs::copy(&bad, &editor).expect("a copy");
    screen.press("e");
    screen.shows("The new configuration is not in force").await;
    screen.press("q");
    screen.hides("The new configuration is not in force").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn a_lost_gateway_is_shown_and_its_successor_is_found() {
    let mut stage = Stage::new().await;
    let screen = stage.top(100, 30).await;
    stage.gateway.terminate().await;
    screen.shows("retry in").await;
    screen.shows("✗ lost").await;
    stage.gateway = Gateway::of(serve(&stage.home)).await;
    screen.shows("✗ degraded: 1 failed").await;
}

#[tokio::test]
async fn a_signal_restores_the_terminal() {
    let stage = Stage::new().await;
    for name in ["TERM", "INT"] {
        let mut screen = stage.top(80, 24).await;
        assert!(!screen.is_restored(), "the screen was restored too early");
        signal(screen.child.id().expect("the process runs"), name);
        assert_eq!(screen.ended().await, Some(0), "{name}");
    }
}

#[tokio::test]
async fn a_small_terminal_shows_the_required_size() {
    let stage = Stage::new().await;
    let mut command = goblin(stage.home.path());
    command.arg("top");
    let mut screen = Screen::run(command, 60, 20);
    screen.shows("It has 60x20; goblin top needs 80x24.").await;
    screen.press("q");
    assert_eq!(screen.ended().await, Some(0));
}

#[tokio::test]
async fn the_dashboard_without_a_terminal_or_a_gateway_exits_with_the_cause() {
    let home = Scratch::new();
    let check = |output: std::process::Output, code: i32, text: &str| {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(text) && output.stdout.is_empty(), "{stderr}");
    };
    for arguments in [&["top"][..], &["serve", "--tui"]] {
        let mut command = goblin(home.path());
        let output = command.args(arguments).stdin(Stdio::null()).output().await.expect("the command runs");
        check(output, 2, "needs a terminal");
    }
    let mut command = goblin(home.path());
    command.arg("top");
    let mut screen = Screen::run(command, 80, 24);
    screen.shows("no gateway is running on this machine").await;
    assert_eq!(screen.ended().await, Some(3));
    let mut dumb = Command::new("env");
    dumb.args(["TERM=dumb", GOBLIN, "top"]).kill_on_drop(true);
    let mut screen = Screen::run(dumb, 80, 24);
    screen.shows("TERM is not set").await;
    assert_eq!(screen.ended().await, Some(2));
}

#[tokio::test]
async fn serve_with_tui_shows_its_own_gateway_and_ends_with_the_dashboard() {
    let home = Scratch::new();
    let mut command = serve(&home);
    command.arg("--tui");
    let mut screen = Screen::run(command, 100, 30);
    screen.shows("✗ degraded: 1 failed").await;
    let text = screen.wait("its servers are shown", |text| text.contains("3 of 4 ready")).await;
    assert!(!text.contains("INFO") && !text.contains("WARN"), "no line of the log is on the screen:\n{text}");
    screen.press("q");
    assert_eq!(tokio::time::timeout(TIMEOUT, screen.ended()).await.expect("the process ends"), Some(0));
}

#[test]
fn the_manual_lists_the_keys_of_the_help() {
    let path = std::path::Path::new(crate::harness::ROOT).join("docs/reference/tui.md");
    let text = std::fs::read_to_string(path).expect("the manual");
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<_> = KEYS
        .iter()
        .map(|binding| {
            let keys: Vec<_> = binding.shown.split(", ").map(|key| format!("`{key}`")).collect();
            format!("| {} | {} |", keys.join(", "), binding.help)
        })
        .collect();
    assert_eq!(rows, expected);
}
