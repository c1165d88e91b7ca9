//! Tests that an edit changes only the intended part of the file.

use super::{Draft, EditError, Path};
use crate::file::ConfigOrigin;
use crate::tree::JsonTree;

fn draft(text: &str) -> Draft {
    Draft::of(Path::new("goblin.json"), Some(text.to_owned()), ConfigOrigin::new("goblin.json", "/etc/goblin")).unwrap()
}

fn entry(command: &str) -> JsonTree {
    JsonTree::Object(vec![
        ("command".to_owned(), JsonTree::text(command)),
        ("args".to_owned(), JsonTree::texts(["-y", "a b"])),
    ])
}

fn check_put(before: &str, id: &str, after: &str) {
    let draft = draft(before);
    draft.put(id, &entry("x"));
    assert_eq!(draft.text(), after);
    draft.check(&|_| None).unwrap();
}

fn check_remove(before: &str, id: &str, after: &str) {
    let draft = draft(before);
    draft.remove(id);
    assert_eq!(draft.text(), after);
}

/// Comments in every place, tabs, a trailing comma, odd spaces.
const KEPT: &str = "// mine\n{\n\t\"gateway\" : { \"port\":3000 }, // port\n\t\"servers\": {\n\t\t/* first */\n\t\t\"a\": {\"command\":\"one\"  },\n\n\t\t\"b\": { \"command\": \"two\", }, // second\n\t},\n}\n// end\n";

#[test]
fn a_server_is_added_behind_the_others() {
    let added = "\t\t\"c\": {\n\t\t\t\"command\": \"x\",\n\t\t\t\"args\": [\"-y\", \"a b\"],\n\t\t},\n";
    check_put(KEPT, "c", &KEPT.replace(", // second\n", &format!(", // second\n{added}")));
}

#[test]
fn a_server_is_replaced_where_it_stands() {
    let new = "{\n\t\t\t\"command\": \"x\",\n\t\t\t\"args\": [\"-y\", \"a b\"]\n\t\t}";
    check_put(KEPT, "a", &KEPT.replace("{\"command\":\"one\"  }", new));
}

#[test]
fn a_file_without_servers_gets_them() {
    let block = "\"a\": {\n      \"command\": \"x\",\n      \"args\": [\"-y\", \"a b\"]\n    }\n  }\n";
    check_put("{\n  \"mcpServers\": {}\n}\n", "a", &format!("{{\n  \"mcpServers\": {{\n    {block}}}\n"));
    check_put("", "a", &format!("{{\n  \"mcpServers\": {{\n    {block}}}\n"));
    check_put(
        "{\n  \"log\": {} // what\n}\n",
        "a",
        &format!("{{\n  \"log\": {{}}, // what\n  \"mcpServers\": {{\n    {block}}}\n"),
    );
    check_put("\u{feff}{}", "a", &format!("\u{feff}{{\n  \"mcpServers\": {{\n    {block}}}"));
}

#[test]
fn line_ends_are_those_of_the_file() {
    check_put(
        "{\r\n  \"mcpServers\": {}\r\n}\r\n",
        "a",
        "{\r\n  \"mcpServers\": {\r\n    \"a\": {\r\n      \"command\": \"x\",\r\n      \"args\": [\"-y\", \"a b\"]\r\n    }\r\n  }\r\n}\r\n",
    );
}

#[test]
fn a_server_is_removed_and_the_rest_stays() {
    check_remove(KEPT, "a", &KEPT.replace("\t\t\"a\": {\"command\":\"one\"  },\n", ""));
    let last = "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" }, // one\n    \"b\": { \"command\": \"y\" }\n  }\n}\n";
    check_remove(last, "b", "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" } // one\n  }\n}\n");
    check_remove("{ \"mcpServers\": { \"a\": { \"command\": \"x\" } } }", "a", "{ \"mcpServers\": {} }");
    check_remove(last, "absent", last);
}

#[test]
fn what_was_added_can_be_removed_without_a_trace() {
    for text in [KEPT, "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" } // one\n  }\n}\n"] {
        let draft = draft(text);
        draft.put("new", &entry("x"));
        assert_ne!(draft.text(), text);
        draft.remove("new");
        assert_eq!(draft.text(), text);
    }
}

#[test]
fn the_servers_are_told_in_order() {
    let names: Vec<String> = draft(KEPT).servers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn problems_that_were_there_are_told_with_their_place() {
    let draft = draft("{\n  \"mcpServers\": { \"a\": { \"comand\": \"x\" } }\n}");
    draft.put("b", &entry("x"));
    let error = draft.check(&|_| None).unwrap_err();
    assert!(matches!(error, EditError::Broken { .. }));
    assert!(error.to_string().contains("goblin.json:2:26: mcpServers.a.comand: unknown key"), "{error}");
    // The change itself may fix the problem.
    draft.remove("a");
    draft.check(&|_| None).unwrap();
}

#[test]
fn problems_of_the_change_are_told_without() {
    let draft = draft("{ \"mcpServers\": { \"My_Server\": { \"command\": \"x\" } } }");
    draft.put("my server", &entry("x"));
    let error = draft.check(&|_| None).unwrap_err();
    let expected = "nothing was changed: mcpServers.\"my server\": \"My_Server\" and \"my server\" are both \
                    \"my-server\" in URIs, give one of them another id";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn variables_that_are_not_set_are_no_reason_to_refuse() {
    // Variables that were already missing are not reported again.
    let draft = draft("{ \"mcpServers\": { \"b\": { \"command\": \"${BEFORE}\" } } }");
    draft.put("a", &entry("${NOWHERE}"));
    let outside = draft.check(&|_| None).unwrap();
    assert_eq!(
        outside.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>(),
        ["variable NOWHERE is not set"]
    );
}

#[test]
fn a_text_that_is_no_object_is_refused() {
    for text in ["[]", "{", "{ \"mcpServers\": {} } x", "1", "{ \"mcpServers\": [] }", "{ \"servers\": \"a\" }"] {
        let opened = Draft::of(Path::new("goblin.json"), Some(text.to_owned()), ConfigOrigin::new("goblin.json", "/"));
        let Err(EditError::Broken { problems, .. }) = opened else { panic!("{text} was taken") };
        assert!(problems.starts_with("goblin.json:1:"), "{problems}");
    }
}

#[test]
fn what_somebody_else_wrote_meanwhile_is_kept() {
    let directory = std::env::temp_dir().join(format!("goblin-edit-{}", std::process::id()));
    let path = directory.join("goblin.json");
    let open = || {
        let draft = Draft::open(&path).unwrap();
        draft.put("a", &entry("x"));
        draft
    };
    let (first, second) = (open(), open());
    first.write().unwrap();
    let written = std::fs::read_to_string(&path).unwrap();
    let error = second.write().unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot write {}: the file was changed in the meantime, run the command again", path.display())
    );
    let third = open();
    std::fs::remove_file(&path).unwrap();
    third.write().unwrap_err();
    open().write().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    std::fs::remove_dir_all(&directory).unwrap();
}
