//! An example gateway as plain values, for tests of the state and the view.

use std::time::Duration;

use goblin_admin::api::{CallList, EntryList, EventInfo, LogList, SessionList, Status, SubscriptionList};
use goblin_admin::routes::List;
use serde_json::{Value, json};

use crate::state::State;
use crate::state::data::CatalogItem;
use crate::state::message::{Action, LinkStatus, UiEvent};

pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    // Parse the text, because a `Value` cannot hold raw JSON.
    serde_json::from_str(&value.to_string()).expect("an example of this type")
}

pub(crate) fn act(state: &mut State, action: Action) {
    state.update(UiEvent::Act(action));
}

pub(crate) fn write(state: &mut State, text: &str) {
    text.chars().for_each(|character| drop(state.update(UiEvent::Write(character))));
}

/// Returns the status at this second. The number of calls grows with it.
pub(crate) fn status(second: u64) -> Status {
    let calls = 40 * second;
    read(json!({
        "version": "0.1.0", "started": "2026-11-16T15:00:00Z", "uptimeSeconds": 3725 + second, "pid": 4711, "state": "degraded",
        "summary": "degraded: 2 failed", "serverCounts": {"total": 6, "ready": 2, "starting": 1, "failed": 2},
        "configuration": {"source": "/srv/ops/.config/goblin/goblin.json", "loaded": "2026-11-16T15:00:00Z", "reloads": 2},
        "servers": [
            {"id": "files", "state": "ready", "transport": "files", "protocol": "2025-11-25", "session": "shared",
             "entries": {"tools": 1, "resources": 3, "templates": 1}, "subscriptions": 2,
             "calls": {"ok": calls / 4}, "latency": {"count": calls / 4, "meanMs": 0.4, "p50Ms": 0.3, "p95Ms": 0.9, "p99Ms": 2.0}},
            {"id": "git", "state": "ready", "stale": true, "command": "git-mcp --root /srv/ops/project", "pid": 4720,
             "instructions": "Commit small changes.\nWrite why.",
             "lastError": {"time": "2026-11-16T14:58:00Z", "message": "its process ended: exit status 1"}, "transport": "stdio", "protocol": "2025-06-18", "era": "legacy",
             "software": "git-server 2.1", "session": "shared", "inFlight": 3, "restarts": 1,
             "entries": {"tools": 3, "prompts": 1, "resources": 1}, "lacking": ["its list of templates failed"],
             "calls": {"ok": calls, "error": second, "timeout": 1},
             "latency": {"count": calls, "meanMs": 10.0 + second as f64, "p50Ms": 9.5, "p95Ms": 48.0, "p99Ms": 210.0}},
            {"id": "mail", "state": "misconfigured", "reason": "its variable MAIL_TOKEN is not set", "session": "shared"},
            {"id": "weather", "state": "failed", "reason": "spawn weather-mcp: No such file or directory", "session": "shared",
             "command": "weather-mcp --city 東京", "calls": {"unavailable": 4},
             "lastError": {"time": "2026-11-16T15:00:03Z", "message": "spawn weather-mcp: No such file or directory"}},
            {"id": "notes", "state": "starting", "session": "per-client", "clientLinks": 2},
            {"id": "old", "state": "disabled", "session": "shared"},
        ],
        "sessions": {"total": 3, "streams": 2, "inFlight": 3},
        "catalog": {"version": 7, "tools": 4, "prompts": 1, "resources": 4, "templates": 1, "conflicts": []},
        "subscriptions": 2, "process": {"residentBytes": 23_400_000, "openDescriptors": 31},
    }))
}

/// Returns a status with a server that needs a login.
pub(crate) fn needs_login() -> Status {
    let mut status = status(144);
    status.summary = "degraded: 2 failed, 1 without login".to_owned();
    status.server_counts.total += 1;
    status.server_counts.login_needed = 1;
    status.servers.push(read(json!({
        "id": "linear", "state": "login_needed", "stale": true, "url": "https://mcp.linear.example/mcp",
        "reason": "it needs a login: nobody has logged in (run: goblin login linear)", "session": "shared",
        "entries": {"tools": 12}, "lastError": {"time": "2026-11-16T15:00:05Z", "message": "it needs a login"},
    })));
    status
}

fn entry(server: &str, exposed: &str, definition: Value) -> Value {
    json!({"server": server, "exposed": exposed, "native": exposed.rsplit('_').next(), "definition": definition})
}

fn items(kind: List) -> Vec<CatalogItem> {
    let entries = match kind {
        List::Tools => json!([
            entry(
                "files",
                "files_search",
                json!({"name": "files_search", "description": "Search the text of files",
                "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}})
            ),
            entry(
                "git",
                "git_commit",
                json!({"name": "git_commit", "description": "Record changes\nwith a message",
                "inputSchema": {"type": "object", "properties": {
                    "amend": {"type": "boolean", "description": "Replace the last commit"},
                    "message": {"type": "string", "description": "What was changed, and why"},
                    "times": {"type": "integer"}, "mode": {"enum": ["fast", "safe"]}},
                    "required": ["message"]},
                "annotations": {"destructiveHint": false}})
            ),
            entry(
                "git",
                "git_log",
                json!({"name": "git_log", "description": "Show commits \u{1b}[31mred\u{202e}", "inputSchema": {}})
            ),
            entry(
                "git",
                "git_検索",
                json!({"name": "git_検索", "description": "日本語の説明をここに書きます", "inputSchema": {}})
            ),
        ]),
        List::Prompts => json!([entry(
            "git",
            "git_review",
            json!({"name": "git_review", "description": "Review a change",
            "arguments": [{"name": "depth"}, {"name": "branch", "required": true, "description": "The branch to review"}]})
        )]),
        List::Resources => json!([
            entry(
                "files",
                "file:///srv/ops/project/README.md",
                json!({"uri": "file:///srv/ops/project/README.md",
                "name": "README.md", "mimeType": "text/markdown", "size": 4321, "description": "What it is",
                "_meta": {"dev.goblin/id": "files_file_home_me_project_README.md"}})
            ),
            entry(
                "files",
                "file:///srv/ops/project/logo.png",
                json!({"uri": "file:///srv/ops/project/logo.png",
                "name": "logo.png", "mimeType": "image/png", "size": 120_000})
            ),
            entry(
                "files",
                "file:///srv/ops/project/notes.txt",
                json!({"name": "notes.txt", "mimeType": "text/plain", "size": 7})
            ),
            entry("git", "git://project/HEAD", json!({"name": "HEAD", "title": "The newest commit"})),
        ]),
        List::Templates => json!([entry(
            "files",
            "file:///srv/ops/project/{path}",
            json!({"name": "file",
            "uriTemplate": "file:///srv/ops/project/{path}", "description": "Any file of the project"})
        )]),
    };
    let list: EntryList = read(json!({"version": 7, "entries": entries}));
    list.entries.iter().map(CatalogItem::read).collect()
}

fn events() -> Vec<EventInfo> {
    let event = |seq: u64, level: &str, kind: &str, server: Value, message: &str, fields: Value| {
        let time = format!("2026-11-16T15:00:0{seq}.250Z");
        read(json!({"seq": seq, "time": time, "level": level, "kind": kind, "server": server, "message": message,
            "fields": fields}))
    };
    vec![
        event(1, "info", "listening", Value::Null, "listening", json!({"address": "127.0.0.1:7777"})),
        event(2, "info", "backend_ready", json!("git"), "connected", json!({})),
        event(
            3,
            "error",
            "backend_failed",
            json!("weather"),
            "cannot connect",
            json!({"reason": "No such file or directory"}),
        ),
        event(4, "warn", "list_failed", json!("git"), "a list failed", json!({"list": "templates"})),
        event(5, "debug", "call_ended", json!("git"), "call ended", json!({"tool": "git_log"})),
    ]
}

fn subscriptions() -> SubscriptionList {
    let subscription = |id: &str, uri: &str, delivered: u32| {
        json!({"id": id, "client": {"id": "9f3c", "name": "editor", "version": "3"}, "server": "files", "uri": uri,
            "created": "2026-11-16T15:00:01Z", "options": {"minIntervalMs": 200}, "state": "subscribed",
            "delivered": delivered, "coalesced": 0})
    };
    let all = [
        subscription("s1", "file:///srv/ops/project/README.md", 12),
        subscription("s2", "file:///srv/ops/project/", 0),
    ];
    read(json!({"total": 2, "omitted": 0, "servers": {"files": 2}, "clients": [], "subscriptions": all}))
}

fn sessions() -> SessionList {
    read(json!({"total": 2, "omitted": 0, "sessions": [
        {"id": "9f3c", "client": "editor", "clientVersion": "3", "protocol": "2025-11-25", "started": "2026-11-16T15:00:00Z",
         "idleSeconds": 3, "streams": 1, "inFlight": 2, "subscriptions": 2},
        {"id": "77ab", "client": "agent", "protocol": "2025-06-18", "profile": "work", "started": "2026-11-16T15:00:00Z",
         "requests": 40, "idleSeconds": 75, "streams": 1, "inFlight": 1},
        {"id": "", "stateless": true, "client": "batch", "clientVersion": "1.2", "protocol": "2026-07-28", "requests": 1234,
         "started": "2026-11-16T15:00:00Z", "idleSeconds": 0},
    ]}))
}

pub(crate) fn calls(newest: u64) -> CallList {
    let call = |seq: u64| {
        let (outcome, error) = match seq % 4 {
            0 => ("tool_error", Some("fatal: not a git repository")),
            1 => ("error", Some("backend weather is not available: spawn weather-mcp: No such file or directory")),
            _ => ("ok", None),
        };
        let (name, server) = if seq % 4 == 1 { ("weather_today", "weather") } else { ("git_log", "git") };
        json!({"seq": seq, "time": format!("2026-11-16T15:00:{:02}.125Z", seq % 60), "client": "editor", "session": "9f3c",
            "method": "tools/call", "name": name, "server": server, "requestBytes": 120 + seq, "responseBytes": 4000,
            "durationMs": 3.5 * seq as f64, "outcome": outcome, "error": error,
            "code": (seq % 4 == 1).then_some("BACKEND_UNAVAILABLE")})
    };
    let first = newest.saturating_sub(5);
    read(json!({"total": newest, "calls": (first..newest).rev().map(|seq| call(seq + 1)).collect::<Vec<_>>()}))
}

/// Returns the log of the server `git`, with lines of its stderr.
pub(crate) fn log() -> LogList {
    let event = |seq: u64, level: &str, kind: &str, message: &str| {
        json!({"seq": seq, "time": format!("2026-11-16T15:00:0{seq}.250Z"), "level": level, "kind": kind, "server": "git",
            "message": message})
    };
    read(json!({"events": [
        event(1, "info", "backend_stderr", "git-mcp 2.1 \u{1b}[1mlistening"),
        event(2, "info", "backend_ready", "backend ready"),
        event(3, "warn", "list_failed", "a list failed"),
        event(4, "info", "backend_stderr", "warning: templates/list is not implemented"),
    ]}))
}

/// Returns a dashboard that has polled the gateway for some seconds.
pub(crate) fn state() -> State {
    let mut state = State::new("http://127.0.0.1:7777/mcp".to_owned(), None);
    state.update(UiEvent::Link(LinkStatus::Live));
    for second in 0..12 {
        let status = status(second * second);
        state.update(UiEvent::Status { at: Duration::from_secs(second), status: Box::new(status) });
    }
    for kind in List::ALL {
        state.update(UiEvent::Items(kind, items(kind)));
    }
    state.update(UiEvent::Subscriptions(subscriptions()));
    state.update(UiEvent::Sessions(sessions()));
    state.update(UiEvent::Calls(calls(8)));
    state.update(UiEvent::Logs { server: "git".to_owned(), list: log() });
    events().into_iter().for_each(|event| drop(state.update(UiEvent::Event(event))));
    state
}
