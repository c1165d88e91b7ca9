//! Hostile text of servers on a terminal and in a pipe.
//!
//! A terminal receives no control characters. A pipe receives all bytes unchanged.

use serde_json::json;

use crate::harness::fixture_server;
use crate::home::Home;
use crate::terminal::Terminal;

/// A text that reverses its direction, opens an escape sequence, ends a line, and adds an invisible tag.
const HOSTILE: &str = "a\u{202e}b\u{1b}[2J\u{9b}31m\u{2066}\u{61c}\u{2028}c\r\u{e0041}é";
const HARMLESS: &str = "ab[2J31mcé";

fn home() -> Home {
    let home = Home::new(&json!({}));
    home.scratch.write("hostile.txt", HOSTILE);
    let files = json!({ "type": "files", "root": home.scratch.path() });
    let config = json!({ "mcpServers": { "a": fixture_server(&[]), "f": files } });
    std::fs::write(&home.config, config.to_string()).expect("the file can be written");
    home
}

/// Returns the text that a terminal receives up to these words.
async fn on_terminal(home: &Home, arguments: &[&str], fragment: &str) -> String {
    let mut command = home.goblin(arguments);
    let terminal = Terminal::of(&mut command).of_width(200);
    let _child = command.env("NO_COLOR", "1").spawn().expect("goblin starts");
    let shown = terminal.await_text(fragment).await.replace("\r\n", "\n");
    let is_hostile = |letter: char| {
        (letter.is_control() && letter != '\n')
            || matches!(letter, '\u{61c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(shown.chars().find(|letter| is_hostile(*letter)), None, "{arguments:?}: {shown:?}");
    shown
}

#[tokio::test]
async fn results_on_a_terminal_contain_no_control_characters() {
    let home = home();
    let (_gateway, client) = home.gateway("a_echo").await;
    client.await_tool("f_read").await;
    let uri = format!("file://{}/hostile.txt", home.scratch.path().canonicalize().expect("the file exists").display());
    let text = format!("text={HOSTILE}");
    let name = format!("name={HOSTILE}");
    let path = "path=hostile.txt";
    on_terminal(&home, &["tools", "call", "f_read", path], HARMLESS).await;
    on_terminal(&home, &["resources", "read", &uri], HARMLESS).await;
    on_terminal(&home, &["prompts", "get", "a_greet", &name], HARMLESS).await;
    // Escaped JSON keeps its value.
    let shown = on_terminal(&home, &["tools", "call", "f_read", path, "--json"], "\n").await;
    assert!(shown.contains(r"a\u202eb") && shown.contains(r"\u009b31m\u2066\u061c\u2028c"), "{shown}");
    let value: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert!(value["content"][0]["text"].as_str().is_some_and(|text| text.contains("a\u{202e}b")), "{value}");
    // An error is printed on stderr.
    on_terminal(&home, &["tools", "call", "a_error", &format!("message={HOSTILE}")], HARMLESS).await;
    // A pipe receives every byte.
    let piped = home.run(&["resources", "read", &uri]).await;
    assert_eq!(piped.stdout, HOSTILE.as_bytes());
    let piped = home.run(&["tools", "call", "f_read", path]).await;
    assert!(piped.text().contains(HOSTILE), "{piped:?}");
    let piped = home.run(&["tools", "call", "a_echo", &text, "--json"]).await;
    assert!(piped.text().contains("a\u{202e}b"), "{piped:?}");
}
