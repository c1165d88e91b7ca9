//! Tests the translation of other clients' files, and the masked output.

use super::show::masked;
use super::{ClientApp, ClientFile, SearchBase, place, translate};
use crate::edit::relative_argument;
use crate::tree::JsonTree;

/// Checks the translated value of one variable of one server, and the number of notes.
fn check(client: ClientApp, text: &str, expected: &str, notes: usize) {
    let search_base = SearchBase { home: "/srv/me".into(), here: "/srv/here".into() };
    let source = ClientFile { client, path: "/srv/app/file".into(), project: Some("/srv/app".into()) };
    let file = match client {
        ClientApp::Codex => format!("[mcp_servers.a]\ncommand = \"x\"\nenv = {{ V = {text:?} }}"),
        ClientApp::VsCode => format!("{{\"servers\":{{\"a\":{{\"command\":\"x\",\"env\":{{\"V\":{text:?}}}}}}}}}"),
        _ => format!("{{\"mcpServers\":{{\"a\":{{\"command\":\"x\",\"env\":{{\"V\":{text:?}}}}}}}}}"),
    };
    let found = translate(&source, &file, &search_base).unwrap();
    let entry = &found.servers.first().unwrap_or_else(|| panic!("{:?}", found.notes)).entry;
    assert_eq!(entry.get("env").and_then(|env| env.get("V")), Some(&JsonTree::text(expected)), "{client} {text}");
    assert_eq!(found.notes.len(), notes, "{client} {text}: {:?}", found.notes);
}

#[test]
fn a_file_that_consists_of_servers_is_translated() {
    let search_base = SearchBase { home: "/srv/me".into(), here: "/srv/here".into() };
    let source = ClientFile { client: ClientApp::ClaudeCode, path: "/srv/app/.mcp.json".into(), project: None };
    let servers = |text: &str| translate(&source, text, &search_base).unwrap().servers.len();
    assert_eq!(servers(r#"{"a": {"command": "x"}, "b": {"url": "https://h/mcp"}}"#), 2);
    assert_eq!(servers(r#"{"a": {"command": "x"}, "theme": "dark"}"#), 0);
}

#[test]
fn references_of_each_client_are_translated() {
    for (client, text, expected, notes) in [
        (ClientApp::ClaudeCode, "${A} ${B:-c} $D", "${A} ${B:-c} $D", 0),
        (ClientApp::ClaudeCode, "${not a name}", "$${not a name}", 1),
        (ClientApp::ClaudeDesktop, "${A} $B", "$${A} $B", 1),
        (ClientApp::Codex, "${A}", "$${A}", 1),
        (ClientApp::Cursor, "${env:A}-${userHome}${/}x", "${A}-${HOME}/x", 0),
        (ClientApp::Cursor, "${A}", "$${A}", 1),
        (ClientApp::VsCode, "${workspaceFolder}/${workspaceFolderBasename}", "/srv/app/app", 0),
        (ClientApp::VsCode, "${input:api-key}", "${API_KEY}", 1),
        (ClientApp::VsCode, "${input:1st}", "${_1ST}", 1),
        (ClientApp::VsCode, "${command:x.y}", "$${command:x.y}", 1),
        (ClientApp::Windsurf, "${env:A} ${file:/p} ${file:~/q}", "${A} ${file:/p} ${file:/srv/me/q}", 0),
        (ClientApp::Gemini, "$A ${B} $5 a$", "${A} ${B} $5 a$", 0),
        (ClientApp::Gemini, "x$A_B-y", "x${A_B}-y", 0),
        (ClientApp::Cursor, "open ${env:A", "open $${env:A", 0),
        (ClientApp::Cursor, "é$€${env:É}", "é$€$${env:É}", 1),
    ] {
        check(client, text, expected, notes);
    }
}

fn entry(members: &[(&str, JsonTree)]) -> JsonTree {
    JsonTree::object(members.iter().cloned())
}

fn command(args: &[&str]) -> JsonTree {
    entry(&[("command", JsonTree::text("x")), ("args", JsonTree::texts(args.iter().copied()))])
}

#[test]
fn a_masked_entry_shows_no_secret() {
    let remote =
        entry(&[("url", JsonTree::text("https://h/mcp?key=abc")), ("headers", entry(&[("A", JsonTree::text("abc"))]))]);
    assert_eq!(masked(&remote).to_string(), r#"{"headers":{"A":"***"},"url":"https://h/mcp?***"}"#);
    let local = masked(&command(&["--token", "abc", "postgres://me:pw@host/db"])).to_string();
    assert_eq!(local, r#"{"args":["--token","***","postgres://***@host/db"],"command":"x"}"#);
}

#[test]
fn a_relative_argument_is_reported_only_without_a_directory() {
    assert_eq!(relative_argument(&command(&["-x", "./a"])), Some("./a"));
    assert_eq!(relative_argument(&command(&["-x", "a", ".hidden"])), None);
    let placed =
        entry(&[("command", JsonTree::text("x")), ("args", JsonTree::texts(["."])), ("cwd", JsonTree::text("/"))]);
    assert_eq!(relative_argument(&placed), None);
}

#[test]
fn client_files_are_searched_in_the_project_and_the_home_directory() {
    let search_base = SearchBase { home: "/srv/me".into(), here: "/srv/me".into() };
    let environment = |name: &str| (name == "CODEX_HOME").then(|| "/codex".to_owned());
    let paths = |client| {
        place::sources(client, &search_base, &environment).into_iter().map(|source| source.path).collect::<Vec<_>>()
    };
    // In the home directory the project file and the user file are the same, and count once.
    assert_eq!(paths(ClientApp::Cursor), [std::path::Path::new("/srv/me/.cursor/mcp.json")]);
    assert_eq!(paths(ClientApp::Codex).last().unwrap(), std::path::Path::new("/codex/config.toml"));
    assert_eq!(
        place::project_of(ClientApp::Cursor, "/p/.cursor/mcp.json".as_ref(), &search_base.home),
        Some("/p".into())
    );
    assert_eq!(place::project_of(ClientApp::Cursor, "/srv/me/.cursor/mcp.json".as_ref(), &search_base.home), None);
    assert_eq!(place::project_of(ClientApp::Cursor, "/p/mcp.json".as_ref(), &search_base.home), None);
}

#[test]
fn import_notes_report_doubts_and_show_no_secret() {
    let search_base = SearchBase { home: "/srv/me".into(), here: "/srv/here".into() };
    for (client, members, expected) in [
        (ClientApp::Cursor, r#""url": "https://h/x/sse?k=v""#, None),
        (ClientApp::Cursor, r#""url": "https://h/sse", "type": "http""#, None),
        (
            ClientApp::Cursor,
            r#""url": "https://h/mcp", "type": "odd""#,
            Some("unknown type; the other members determine the transport"),
        ),
        (ClientApp::Cursor, r#""command": "x", "env": {"A": "${B:-abc}"}"#, Some("cursor leaves ${B:-***} as it is")),
        (ClientApp::Cursor, r#""command": "x", "env": {"A": "${b c:abc}"}"#, Some("cursor fills in ${b c:...}")),
        (
            ClientApp::ClaudeDesktop,
            r#""command": "x", "env": {"A": "${b abc}"}"#,
            Some("claude-desktop leaves ${...} as"),
        ),
    ] {
        let source = ClientFile { client, path: "/srv/file".into(), project: None };
        let found = translate(&source, &format!(r#"{{"mcpServers":{{"a":{{{members}}}}}}}"#), &search_base).unwrap();
        assert_eq!(found.servers.len(), 1, "{members}");
        let notes: Vec<String> = found.notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
        assert!(notes.iter().all(|note| note.contains(expected.unwrap()) && !note.contains("abc")), "{notes:?}");
    }
}
