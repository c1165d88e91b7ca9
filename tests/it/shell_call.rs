//! Calling tools, reading resources and filling in prompts from a shell.
//!
//! The exit code reports the outcome. JSON output and binary resources keep every byte.

use std::process::Stdio;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::{Scratch, eventually, fixture_server, signal};
use crate::home::Home;
use crate::terminal::Terminal;

fn home() -> Home {
    Home::new(&json!({ "mcpServers": { "a": fixture_server(&[]) } }))
}

#[tokio::test]
async fn arguments_in_every_form_are_typed_by_the_schema() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    let file = home.scratch.write("arguments.json", r#"{ "a": 2, "b": 3 }"#).display().to_string();
    let file = format!("@{file}");
    for (arguments, input, expected) in [
        (&["a_add", "a=1", "b=2.5"][..], "", "3.5\n"),
        (&["a_add", r#"{"a":1,"b":2}"#], "", "3\n"),
        (&["a_add", r#"{"a":1}"#, "b=4"], "", "5\n"),
        (&["a_add", "-"], r#"{"a":20,"b":2}"#, "22\n"),
        (&["a_add", &file], "", "5\n"),
        (&["a_nonce", "nonce=42"], "", "42\n"),
        (&["a_echo", "count=3", "list:=[1, 2.0]"], "", "{\"count\":\"3\",\"list\":[1, 2.0]}\n"),
        (&["a_big", "bytes=3"], "", "xxx\n"),
        (&["a_audio"], "", "[audio audio/wav, 12 B]\n"),
        (&["a_link"], "", "[resource a+note:///alpha]\nlinked\n"),
    ] {
        let ran = home.run_with(&[&["tools", "call"], arguments].concat(), input).await;
        assert_eq!((ran.code, ran.text()), (Some(0), expected), "{arguments:?}: {ran:?}");
    }
    let ran = home.run(&["tools", "call", "a_add", "a=1", "b=2", "--config", home.config()]).await;
    assert_eq!((ran.code, ran.text()), (Some(0), "3\n"), "{ran:?}");
}

#[tokio::test]
async fn a_failing_call_reports_the_cause_and_its_exit_code() {
    let home = home();
    let (_gateway, client) = home.gateway("a_echo").await;
    for (arguments, code, fragment) in [
        (&["a_add", "a=one"][..], 2, "the argument a of a_add must be a number, not \"one\""),
        (&["a_add", "a"], 2, "\"a\" is not an argument"),
        (&["a_nonce", "nonse=1"], 2, "did you mean nonce?"),
        (&["a_add", "{"], 2, "is not JSON"),
        (&["a_fail"], 1, "error: this tool fails\n"),
        (&["a_error", "message=boom"], 1, "error: boom\n"),
    ] {
        let ran = home.run(&[&["tools", "call"], arguments].concat()).await;
        assert_eq!((ran.code, ran.text()), (Some(code), ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(fragment), "{arguments:?}: {ran:?}");
    }
    assert_eq!(client.call_text("a_call_count", json!({})).await, "3", "an invalid call is not sent");
    let failed = home.run(&["tools", "call", "a_fail", "--json"]).await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&failed.stdout).expect("JSON")["isError"], true);
    let crashed = home.run(&["tools", "call", "a_crash"]).await;
    assert_eq!(crashed.code, Some(3), "{crashed:?}");
}

#[tokio::test]
async fn json_output_prints_a_result_token_for_token() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    let result = home.run(&["tools", "call", "a_lossless", "--json"]).await;
    assert_eq!(result.text().trim_end(), goblin_fixture::lossless::LOSSLESS);
    // A part that is nested too deep does not prevent the display of the rest.
    let shown = home.run(&["tools", "call", "a_lossless"]).await;
    assert!(shown.text().starts_with("café é / / 😀") && shown.text().ends_with("[x-unknown-block]\n"), "{shown:?}");
}

#[tokio::test]
async fn progress_is_printed_and_elicitation_is_declined_without_a_terminal() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    let ran = home.run(&["tools", "call", "a_progress", "steps=2"]).await;
    assert_eq!(ran.stderr, "progress: 1 of 2, step 1\nprogress: 2 of 2, step 2\n");
    assert_eq!(ran.text(), "2 steps\n");
    let form = json!({"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}});
    let params = format!("params={form}");
    let ran = home.run(&["tools", "call", "a_request", "method=elicitation/create", &params]).await;
    assert_eq!(ran.text(), "{\"result\":{\"action\":\"decline\"}}\n", "{ran:?}");
    assert!(ran.stderr.contains("question of the server: Which one?") && ran.stderr.contains("declined"), "{ran:?}");
    let ran = home.run(&["tools", "call", "a_request", "method=roots/list"]).await;
    assert!(ran.text().contains("\"error\""), "{ran:?}");
}

#[tokio::test]
async fn elicitation_is_answered_by_a_person_at_a_terminal() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}, "why": {"type": "string"}});
    let form =
        json!({"message": "Where to?", "requestedSchema": {"properties": properties, "required": ["city", "days"]}});
    let params = format!("params={form}");
    let mut command = home.goblin(&["tools", "call", "a_request", "method=elicitation/create", &params]);
    let mut terminal = Terminal::of(&mut command);
    terminal = terminal.with_keyboard(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    terminal.await_text("question of the server: Where to?").await;
    terminal.await_text("city (string): ").await;
    terminal.type_in("Oslo\n");
    terminal.await_text("days (integer): ").await;
    terminal.type_in("many\n");
    terminal.await_text("the value must be an integer").await;
    terminal.type_in("3\n");
    terminal.await_text("why (string, optional): ").await;
    terminal.type_in("\n");
    terminal.await_text(r#"{"action":"accept","content":{"city":"Oslo","days":3}}"#).await;
    assert!(child.wait().await.expect("the process ends").success());
}

#[tokio::test]
async fn a_signal_cancels_the_call() {
    let home = home();
    let (_gateway, client) = home.gateway("a_echo").await;
    let arguments = ["tools", "call", "a_request", "method=elicitation/create", "then=hang"];
    let mut child = home.goblin(&arguments).stderr(Stdio::piped()).spawn().expect("goblin starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("the stream is piped")).lines();
    let line = stderr.next_line().await.expect("the line can be read").expect("a line");
    assert!(line.contains("question of the server"), "{line}");
    signal(child.id().expect("the process runs"), "INT");
    assert_eq!(child.wait().await.expect("the process ends").code(), Some(130));
    let cancelled = || async { (client.call_text("a_cancelled", json!({})).await != "[]").then_some(()) };
    eventually("the server receives the cancellation", cancelled).await;
}

#[tokio::test]
async fn a_signal_ends_the_servers_that_the_command_started() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid").display().to_string();
    let home = Home::new(&json!({ "mcpServers": { "a": fixture_server(&["--pid-file", &pid_file]) } }));
    let mut command = home.goblin(&["tools", "call", "a_hang", "--config", home.config()]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("goblin starts");
    let pid = || async { std::fs::read_to_string(&pid_file).ok().filter(|pid| pid.ends_with('\n')) };
    let pid = eventually("the server has started", pid).await;
    signal(child.id().expect("the process runs"), "INT");
    assert_eq!(child.wait().await.expect("the process ends").code(), Some(130));
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "the server has ended with the command");
}

#[tokio::test]
async fn a_resource_is_read_byte_for_byte() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    const BYTES: [u8; 7] = [0, 1, 2, 3, 0xfd, 0xfe, 0xff];
    for last in [&[][..], &["--config", home.config()]] {
        let text = home.run(&[&["resources", "read", "a+note:///alpha"], last].concat()).await;
        assert_eq!((text.code, text.text()), (Some(0), "note alpha"), "{text:?}");
        let bytes = home.run(&[&["resources", "read", "blob:///bin"], last].concat()).await;
        assert_eq!((bytes.code, &bytes.stdout[..]), (Some(0), &BYTES[..]), "{bytes:?}");
    }
    let saved = home.run(&["resources", "read", "a_blob_bin", "--output", "bin"]).await;
    assert_eq!((saved.code, saved.text()), (Some(0), ""), "{saved:?}");
    assert_eq!(std::fs::read(home.scratch.path().join("bin")).expect("the file was written"), BYTES);
    let json = home.run(&["resources", "read", "a+note:///alpha", "--json"]).await.json();
    assert_eq!(json["contents"][0]["uri"], "a+note:///alpha");
    let mut command = home.goblin(&["resources", "read", "a+blob:///bin"]);
    let terminal = Terminal::of(&mut command);
    assert_eq!(command.status().await.expect("the command runs").code(), Some(2));
    terminal.await_text("--output FILE").await;
}

#[tokio::test]
async fn use15_output_saves_the_binary_content_of_a_result_and_reports_its_size() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    let ran = home.run(&["tools", "call", "a_audio", "--output", "sound.wav"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(std::fs::read(home.scratch.path().join("sound.wav")).expect("the file was written").starts_with(b"RIFF"));
    let size =
        goblin_wire::units::bytes(std::fs::metadata(home.scratch.path().join("sound.wav")).expect("a file").len());
    assert!(ran.stderr.contains(&format!("saved sound.wav, {size}\n")), "{ran:?}");
    let ran = home.run(&["tools", "call", "a_big", "bytes=1", "--output", "nothing"]).await;
    assert!(ran.code == Some(0) && ran.stderr.contains("nothing was not written"), "{ran:?}");
    let ran = home.run(&["tools", "call", "a_audio", "--output", "no/where"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("cannot write no/where"), "{ran:?}");
}

#[tokio::test]
async fn a_prompt_is_fetched_with_its_arguments() {
    let home = home();
    let (_gateway, _client) = home.gateway("a_echo").await;
    for last in [&[][..], &["--config", home.config()]] {
        let ran = home.run(&[&["prompts", "get", "a_greet", "name=3"], last].concat()).await;
        assert_eq!((ran.code, ran.text()), (Some(0), "user:\nHello, 3!\n"), "{ran:?}");
        let ran = home.run(&[&["prompts", "get", "a_greet"], last].concat()).await;
        assert_eq!((ran.code, ran.text()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("a_greet needs name (string)"), "{ran:?}");
    }
    let json = home.run(&["prompts", "get", "a_linked", "--json"]).await.json();
    assert_eq!(json["messages"][1]["content"]["uri"], "a+note:///beta");
    let linked = home.run(&["prompts", "get", "a_linked"]).await;
    assert_eq!(linked.text(), "user:\nnote alpha\nuser:\n[resource a+note:///beta]\n");
}
