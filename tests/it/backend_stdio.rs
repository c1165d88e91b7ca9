//! Backends as child processes: their input, their output, and their failures.
//!
//! A crashed or stuck process affects only its own callers. Its restarts are bounded.

use serde_json::json;

use crate::harness::{Gateway, Scratch, eventually, fixture, fixture_server, signal};
use crate::support::{
    assert_error, await_arrivals, await_call, await_exit, await_log, begin_call, ended, is_error, next_pid_in,
    path_text, peak_memory, pid_in, scripted_server, starts,
};

#[tokio::test]
async fn environment_and_working_directory_reach_the_child() {
    let scratch = Scratch::new();
    let directory = scratch.path().canonicalize().expect("the path exists");
    let server = json!({ "command": fixture(), "env": { "COLOUR": "green and ${HOME:-x}" }, "cwd": directory });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_env").await;
    let home = std::env::var("HOME").unwrap_or_else(|_| "x".to_owned());
    assert_eq!(client.call_text("a_env", json!({"name": "COLOUR"})).await, format!("green and {home}"));
    assert_eq!(client.call_text("a_cwd", json!({})).await, path_text(&directory));
}

#[tokio::test]
async fn f5_stderr_is_logged_without_control_characters() {
    let server = scripted_server(r#"printf 'up \033[31mred\007 \342\200\256done\n' >&2; exec "$@""#, &[]);
    let gateway = Gateway::with_servers(json!({ "noisy": server })).await;
    let line = await_log(&gateway, &["noisy", "up red done"]).await;
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

#[tokio::test]
async fn f5_more_stderr_than_a_pipe_holds_blocks_no_call() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--stderr-noise"]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for number in 0..50 {
        assert_eq!(client.call("a_echo", json!({"n": number})).await["structuredContent"]["n"], number);
    }
}

#[tokio::test]
async fn f5_valid_answers_among_garbage_are_delivered() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let server = fixture_server(&["--garbage", "--start-log", path_text(&log)]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let calls: Vec<_> = (0..50).map(|number| begin_call(&client, "a_echo", json!({ "n": number }))).collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = ended(call).await;
        assert_eq!(answer["result"]["structuredContent"]["n"], number, "{answer}");
    }
    await_log(&gateway, &["backend sent text that is not a message"]).await;
    assert_eq!(starts(&log), 1);
}

#[tokio::test]
async fn f5_a_flood_of_junk_notifications_blocks_no_call() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--flood", "30000"]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    assert_eq!(client.call_text("a_echo", json!({"a": 1})).await, r#"{"a":1}"#);
}

#[tokio::test]
async fn f6_an_oversize_answer_fails_its_own_call_only() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let server = fixture_server(&["--oversize", "300000", "--start-log", path_text(&log)]);
    let config = json!({ "policies": { "maxMessageSize": "256KiB" }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_oversize").await;
    let other = begin_call(&client, "a_nonce", json!({"nonce": "n", "delayMs": 300}));
    await_arrivals(&gateway.client().await, "a", 1).await;
    let answer = client.try_call("a_oversize", json!({})).await;
    assert_eq!(assert_error(&answer, 1502, "BACKEND_PROTOCOL")["serverId"], "a");
    assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains("maxMessageSize")), "{answer}");
    assert_eq!(ended(other).await["result"]["content"][0]["text"], "n");
    assert_eq!(starts(&log), 1, "the connection stays");
}

#[tokio::test]
async fn f6_an_endless_line_is_dropped_in_bounded_memory() {
    let config = json!({
        "policies": { "maxMessageSize": "256KiB" },
        "mcpServers": { "a": fixture_server(&["--oversize", "300000"]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_endless").await;
    assert_eq!(client.call_text("a_endless", json!({"mib": 1})).await, "went on");
    let pid = gateway.child.id().expect("the process runs");
    let before = peak_memory(pid);
    assert_eq!(client.call_text("a_endless", json!({"mib": 128})).await, "went on");
    let risen = peak_memory(pid).saturating_sub(before);
    assert!(risen < 32 * 1024, "{risen} KiB more");
}

#[tokio::test]
async fn f1_a_crash_gives_each_call_in_flight_one_error_and_the_backend_restarts() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--pid-file", path_text(&file)]) })).await;
    let client = gateway.client_seeing("a_hang").await;
    let watcher = gateway.client().await;
    let listed = client.tool_names().await;
    let pid = pid_in(&file).await;
    let call = |id| {
        let (client, body) =
            (client.clone(), json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "a_hang"}}));
        tokio::spawn(async move { client.post(body.to_string()).await })
    };
    let calls: Vec<_> = (100..108).map(call).collect();
    await_arrivals(&watcher, "a", 8).await;
    signal(pid, "KILL");
    for (call, id) in calls.into_iter().zip(100..) {
        let answer = call.await.expect("no panic");
        assert_eq!(answer.messages().len(), 1, "{answer:?}");
        let answer = answer.json();
        assert_eq!(answer["id"], id);
        let data = assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
        assert_eq!(data["serverId"], "a");
        assert!(data["retryable"].is_null(), "the backend may have acted on the call: {answer}");
    }
    assert_eq!(client.tool_names().await, listed, "a lost backend keeps its listing");
    next_pid_in(&file, pid).await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn f1_a_running_child_that_closes_its_input_is_lost_and_started_again() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    // The handshake and the lists are six lines. The seventh line is never read.
    let six = r#"(for i in 1 2 3 4 5 6; do IFS= read -r line <&3; printf '%s\n' "$line"; done)"#;
    let script = format!(r#"exec 3<&0 </dev/null; {six} | "$@" 3<&- & exec 3<&-; wait"#);
    let server = scripted_server(&script, &["--ignore-eof", "--start-log", path_text(&log)]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let answer = eventually("a call meets the closed input", || async {
        let answer = client.try_call("a_echo", json!({})).await;
        (!answer["error"].is_null()).then_some(answer)
    })
    .await;
    assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
    await_log(&gateway, &["backend lost", "server=\"a\"", "closed its stdin"]).await;
    eventually("the server was started again", || async { (starts(&log) >= 2).then_some(()) }).await;
}

#[tokio::test]
async fn f1_a_running_child_that_closes_its_output_is_ended_and_started_again() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let script = format!("exec 1>&-; echo $$ > '{}'; exec sleep 600", file.display());
    let gateway = Gateway::with_servers(json!({ "a": scripted_server(&script, &[]) })).await;
    let pid = pid_in(&file).await;
    await_log(&gateway, &["server=\"a\"", "it closed its stdout"]).await;
    await_exit(pid).await;
    next_pid_in(&file, pid).await;
}

#[tokio::test]
async fn f8_a_backend_that_restarts_with_other_tools_is_listed_again() {
    let scratch = Scratch::new();
    let (file, again) = (scratch.path().join("pid"), scratch.path().join("again"));
    let script =
        format!(r#"if [ -e '{0}' ]; then exec "$@" --tools 3; fi; : > '{0}'; exec "$@" --prompts 2"#, again.display());
    let server = scripted_server(&script, &["--pid-file", path_text(&file)]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let mut listener = gateway.client().await.listen().await;
    signal(pid_in(&file).await, "KILL");
    listener.await_method("notifications/tools/list_changed").await;
    client.await_tool("a_tool_0003").await;
    client.call("a_tool_0003", json!({})).await;
    let prompts = client.list("prompts/list", "prompts").await;
    assert!(prompts.iter().all(|prompt| prompt["name"] != "a_prompt_0001"), "{prompts:?}");
}

#[tokio::test]
async fn f2_a_crash_loop_is_bounded_and_others_are_unaffected() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let crashing = fixture_server(&["--exit-at-start", "--start-log", path_text(&log)]);
    let gateway = Gateway::with_servers(json!({ "bad": crashing, "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("good_echo").await;
    let fragments = ["cannot connect to backend", "server=\"bad\"", "retry_in="];
    eventually("the breaker is open", || async {
        client.call("good_echo", json!({})).await;
        let is_open = |line: &String| {
            let seconds = line.split("retry_in=").nth(1).and_then(|rest| rest.strip_suffix('s')?.parse::<f64>().ok());
            fragments.iter().all(|fragment| line.contains(fragment))
                && seconds.is_some_and(|seconds| (24.0..=30.0).contains(&seconds))
        };
        gateway.log().iter().any(is_open).then_some(())
    })
    .await;
    // The first attempt includes a second start with a legacy handshake, because the server might have exited on the
    // probe for its era.
    assert_eq!(starts(&log), 6);
    await_log(&gateway, &["server=\"bad\"", "exit code 3"]).await;
}

#[tokio::test]
async fn f3_a_hanging_handshake_delays_no_other_backend_and_a_late_backend_is_added() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let gated = format!(r#"while [ ! -e '{}' ]; do sleep 0.05; done; exec "$@""#, gate.display());
    let gateway = Gateway::with_servers(json!({
        "hanging": fixture_server(&["--hang-handshake"]),
        "late": scripted_server(&gated, &["--slow-start", "100"]),
        "good": fixture_server(&[]),
    }))
    .await;
    let client = gateway.client_seeing("good_echo").await;
    assert!(client.tool_names().await.iter().all(|name| name.starts_with("good_")));
    client.call("good_echo", json!({})).await;
    let mut listener = gateway.client().await.listen().await;
    scratch.write("gate", "");
    listener.await_method("notifications/tools/list_changed").await;
    client.await_tool("late_echo").await;
    client.call("late_echo", json!({})).await;
}

#[tokio::test]
async fn f3_a_hanging_handshake_times_out_and_is_tried_again() {
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let server = fixture_server(&["--hang-handshake", "--start-log", path_text(&log)]);
    let config = json!({ "policies": { "startTimeout": "300ms" }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    eventually("the server was started again", || async { (starts(&log) >= 2).then_some(()) }).await;
    await_log(&gateway, &["server=\"a\"", "startTimeout"]).await;
}

#[tokio::test]
async fn d14_a_missing_command_is_named_in_the_log_but_not_to_callers() {
    let scratch = Scratch::new();
    let (file, command) = (scratch.path().join("pid"), scratch.path().join("server"));
    std::os::unix::fs::symlink(fixture(), &command).expect("room for a link");
    let gateway = Gateway::with_servers(json!({
        "never": { "command": "no-such-program-anywhere" },
        "a": { "command": command, "args": ["--pid-file", file] },
    }))
    .await;
    await_log(&gateway, &["server=\"never\"", "no-such-program-anywhere", "not found"]).await;
    let client = gateway.client_seeing("a_echo").await;
    std::fs::remove_file(&command).expect("the file existed");
    signal(pid_in(&file).await, "KILL");
    let answer = eventually("callers receive the reason", || async {
        let answer = client.try_call("a_echo", json!({})).await;
        answer["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("cannot be started"))
            .then_some(answer)
    })
    .await;
    let data = assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(data["retryable"], true, "nothing was sent: {answer}");
    assert!(!answer.to_string().contains(path_text(&command)), "{answer}");
    await_log(&gateway, &["server=\"a\"", "not found", path_text(&command)]).await;
    client.await_tool("a_echo").await;
}

#[tokio::test]
async fn f3_a_stopped_child_affects_only_its_own_callers_and_late_answers_are_dropped() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let mut stopped = fixture_server(&["--ignore-cancel", "--pid-file", path_text(&file)]);
    stopped["timeout"] = json!("500ms");
    let gateway = Gateway::with_servers(json!({ "stopped": stopped, "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("stopped_echo").await;
    client.await_tool("good_echo").await;
    let pid = pid_in(&file).await;
    signal(pid, "STOP");
    // The calls together exceed the buffer of a pipe.
    let padding = "x".repeat(40_000);
    let calls: Vec<_> =
        (0..8).map(|number| begin_call(&client, "stopped_echo", json!({"n": number, "p": padding}))).collect();
    for _ in 0..20 {
        client.call("good_echo", json!({})).await;
    }
    for call in calls {
        assert_eq!(assert_error(&ended(call).await, 1504, "TIMEOUT")["serverId"], "stopped");
    }
    signal(pid, "CONT");
    await_log(&gateway, &["server=\"stopped\"", "backend sent an answer without a waiting call"]).await;
    let answer = eventually("the server answers again", || async {
        let answer = client.try_call("stopped_echo", json!({"n": "mine"})).await;
        (!is_error(&answer, "TIMEOUT")).then_some(answer)
    })
    .await;
    assert_eq!(answer["result"]["structuredContent"]["n"], "mine", "{answer}");
}

#[tokio::test]
async fn route3_a_call_without_a_sign_of_life_is_cancelled_and_progress_restarts_its_timeout() {
    let mut server = fixture_server(&[]);
    server["timeout"] = json!("1500ms");
    server["tools"] = json!({ "timeouts": { "hang": "100ms" } });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_hang").await;
    let answer = client.try_call("a_hang", json!({})).await;
    let data = assert_error(&answer, 1504, "TIMEOUT");
    assert_eq!((&data["serverId"], &data["method"]), (&json!("a"), &json!("tools/call")));
    eventually("the backend received the cancellation", || async {
        (client.call_text("a_cancelled", json!({})).await != "[]").then_some(())
    })
    .await;
    // 24 progress notifications, which together last longer than the timeout.
    let params = json!({
        "name": "a_progress", "arguments": {"steps": 24, "delayMs": 100}, "_meta": {"progressToken": "t"},
    });
    let answer = client.request("tools/call", params).await;
    assert_eq!(answer["result"]["content"][0]["text"], "24 steps", "{answer}");
}

#[tokio::test]
async fn route4_a_backends_error_reaches_the_caller_unchanged() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_error").await;
    let error = json!({"code": -32050, "message": "né \u{1F600}", "data": {"code": "X", "deep": [1, null]}});
    assert_eq!(client.try_call("a_error", error.clone()).await["error"], error);
    assert_eq!(client.call("a_fail", json!({})).await["isError"], true);
}

#[tokio::test]
async fn reg1_every_page_of_every_list_is_fetched() {
    let server = fixture_server(&["--tools", "25", "--prompts", "9", "--resources", "11", "--page-size", "4"]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_tool_0025").await;
    let count = |entries: Vec<serde_json::Value>, key: &str, part: &str| {
        entries.iter().filter(|entry| entry[key].as_str().is_some_and(|value| value.contains(part))).count()
    };
    assert_eq!(count(client.list("tools/list", "tools").await, "name", "a_tool_"), 25);
    assert_eq!(count(client.list("prompts/list", "prompts").await, "name", "a_prompt_"), 9);
    assert_eq!(count(client.list("resources/list", "resources").await, "uri", "note:///numbered/"), 11);
}

#[tokio::test]
async fn reg3_tools_registered_late_are_announced_and_listed() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--late-tools", "1500"]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let mut listener = gateway.client().await.listen().await;
    client.await_tool("a_late_4").await;
    listener.await_method("notifications/tools/list_changed").await;
    client.call("a_late_4", json!({})).await;
}

#[tokio::test]
async fn f9_a_storm_of_list_changed_without_a_change_is_not_forwarded() {
    let server = fixture_server(&["--list-changed-storm", "5000"]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    gateway.client_seeing("a_echo").await;
    let client = gateway.client().await;
    let mut listener = client.listen().await;
    client.call("a_change_prompts", json!({})).await;
    let first = listener.next().await.expect("a message");
    assert_eq!(first["method"], "notifications/prompts/list_changed", "{first}");
}
