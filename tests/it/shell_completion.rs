//! Completion in a real bash: of static words, and of names that only a running gateway has.
//!
//! The tests run the generated script, because quoting and word splitting are bash's own.

use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;

use crate::harness::{GOBLIN, TIMEOUT, fixture_server};
use crate::home::Home;

/// Returns the completions of bash after `line`, as it would insert them.
async fn offered(home: &Home, line: &str) -> Vec<String> {
    // The script splits like readline: blanks separate words, and `:` and `=` are words.
    let script = r#"
        source <(goblin completions bash)
        COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=()
        rest=$1
        while [[ -n $rest ]]; do
            if [[ $rest =~ ^[[:space:]]+ ]]; then rest=${rest:${#BASH_REMATCH[0]}}; [[ -n $rest ]] || COMP_WORDS+=('')
            elif [[ $rest =~ ^[:=]+ || $rest =~ ^[^:=[:space:]]+ ]]; then
                COMP_WORDS+=("${BASH_REMATCH[0]}"); rest=${rest:${#BASH_REMATCH[0]}}
            fi
        done
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        complete -p goblin | grep -q -- '-F _goblin goblin' || exit 9
        _goblin goblin "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    let directory = std::path::Path::new(GOBLIN).parent().expect("a directory").display();
    let path = format!("{directory}:{}", std::env::var("PATH").expect("a path"));
    command.args(["--norc", "-c", script, "bash", line]).env("PATH", path).env("HOME", home.scratch.path());
    command
        .env("XDG_RUNTIME_DIR", home.scratch.path())
        .env("XDG_STATE_HOME", home.scratch.path())
        .env("XDG_CACHE_HOME", home.scratch.path());
    command.env_remove("XDG_CONFIG_HOME").env_remove("GOBLIN_CONFIG").current_dir(home.scratch.path());
    let output = tokio::time::timeout(TIMEOUT, command.stdin(Stdio::null()).output()).await.expect("the process ends");
    let output = output.expect("bash runs");
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{line}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn names_of_a_running_gateway_are_completed() {
    let profiles = json!({ "review": {}, "release": {} });
    let servers = json!({ "a": fixture_server(&[]), "abacus": fixture_server(&[]) });
    let home = Home::new(&json!({ "profiles": profiles, "mcpServers": servers }));
    let (gateway, client) = home.gateway("a_echo").await;
    client.await_tool("abacus_echo").await;
    let with_url = format!("goblin tools call --url {} a_ec", gateway.url());
    for (line, expected) in [
        ("goblin tools call a_ec", &["a_echo"][..]),
        ("goblin tools describe a_subsc", &["a_subscriptions", "a_subscribed"]),
        ("goblin prompts get a_", &["a_greet", "a_linked"]),
        // Bash keeps the text before the last colon.
        ("goblin resources read a+note:///al", &["///alpha"]),
        ("goblin resources read a+no", &["a+note:///alpha", "a+note:///beta"]),
        ("goblin resources read a+file:///lo", &["///logs/app\\ log.txt"]),
        ("goblin tools list --server a", &["a", "abacus"]),
        ("goblin tools list --server=ab", &["abacus"]),
        ("goblin tools list --profile re", &["release", "review"]),
        ("goblin tools call a_add ", &["a=", "b="]),
        ("goblin tools call a_add a=1 ", &["b="]),
        ("goblin prompts get a_greet n", &["name="]),
        (&with_url, &["a_echo"]),
        ("goblin tools call --url http://127.0.0.1:1/mcp a_ec", &[]),
        ("goblin tools call nothing_like_it", &[]),
    ] {
        assert_eq!(offered(&home, line).await, expected, "{line}");
    }
}

#[tokio::test]
async fn oauth7_names_of_secrets_are_completed() {
    let home = Home::new(&json!({ "mcpServers": {} }));
    assert_eq!(offered(&home, "goblin secret remove gi").await, [""; 0]);
    for name in ["github.TOKEN", "gitlab", "other"] {
        assert_eq!(home.run_with(&["secret", "set", name], "value").await.code, Some(0));
    }
    assert_eq!(offered(&home, "goblin secret remove gi").await, ["github.TOKEN", "gitlab"]);
    assert_eq!(offered(&home, "goblin secret s").await, ["set"]);
}

#[tokio::test]
async fn use8_commands_options_and_configured_names_are_completed_without_a_gateway() {
    let home = Home::new(&json!({ "profiles": { "review": {} }, "mcpServers": { "a": fixture_server(&[]) } }));
    let of_config = format!("goblin tools list --config {} ", home.config());
    let (server, profile) = (format!("{of_config}--server "), format!("{of_config}--profile "));
    let [of_remove, of_restart, of_enable, of_disable, of_logs, of_calls] =
        ["remove", "restart", "enable", "disable", "logs --follow", "calls --failed --server"].map(|command| {
            let (command, flags) = command.split_once(' ').unwrap_or((command, ""));
            format!("goblin {command} --config {} {flags} ", home.config())
        });
    for (line, expected) in [
        ("goblin too", &["tools"][..]),
        ("goblin tools ", &["list", "describe", "search", "call", "help"]),
        ("goblin tools call a_", &[]),
        ("goblin resources read ", &[]),
        ("goblin tools list --ser", &["--server"]),
        (&server, &["a"]),
        (&of_remove, &["a"]),
        (&of_restart, &["a"]),
        (&of_enable, &["a"]),
        (&of_disable, &["a"]),
        (&of_logs, &["a"]),
        (&of_calls, &["a"]),
        (&profile, &["review"]),
        ("goblin tools list --config gob", &["goblin.json"]),
    ] {
        assert_eq!(offered(&home, line).await, expected, "{line}");
    }
}
