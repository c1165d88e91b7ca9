//! Tests that the schema and the reader have the same keys, words and limits.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::exposure::ProfileName;
use crate::tests::{FULL, accept};
use crate::{
    LogFormat, ServerId, field, lists, oauth, quantity, read, roots, rules, server, sharing, transport, views,
};

thread_local! {
    /// The keys that this thread has read, each with its object.
    static READ: RefCell<BTreeSet<(&'static str, String)>> = RefCell::default();
}

/// Notes that the reader looks for a key.
pub(crate) fn note_read(object: Option<ObjectKeys>, key: &str) {
    if let Some(object) = object {
        READ.with_borrow_mut(|read| read.insert((object.as_str(), key.to_owned())));
    }
}

#[test]
fn the_reader_reads_the_keys_of_the_schema_and_no_others() {
    accept(FULL);
    accept(r#"{ "servers": { "zed": { "command": { "path": "x", "args": [], "env": {} } } } }"#);
    let read = READ.take();
    let place = |object: ObjectKeys, key: &String| (object.as_str(), key.clone());
    let keys = |object: ObjectKeys| object.properties().keys().filter(move |key| !object.ignores(key));
    let known = ObjectKeys::ALL.iter().flat_map(|object| keys(*object).map(|key| place(*object, key)));
    assert_eq!(read, known.collect());
}

#[test]
fn every_object_of_the_schema_is_one_of_object_keys() {
    fn objects<'a>(schema: &'a Value, found: &mut Vec<&'a Value>) {
        if schema["additionalProperties"] == false {
            found.push(&schema["properties"]);
        }
        match schema {
            Value::Object(members) => members.values().for_each(|inner| objects(inner, found)),
            Value::Array(elements) => elements.iter().for_each(|inner| objects(inner, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    objects(schema(), &mut found);
    assert!(found.len() > ObjectKeys::ALL.len());
    for properties in found {
        let is_it = |object: &ObjectKeys| Some(object.properties()) == properties.as_object();
        assert!(ObjectKeys::ALL.iter().any(is_it), "{properties}");
    }
}

#[test]
fn an_alias_has_the_values_of_its_key() {
    let properties = ObjectKeys::ALL.iter().flat_map(|object| object.properties().iter().map(move |it| (object, it)));
    let mut aliases = Vec::new();
    for (object, (alias, property)) in properties {
        let name = property["description"].as_str().and_then(|text| text.strip_prefix("the same as "));
        let Some(key) = name.and_then(|name| object.properties().get(name)) else { continue };
        let without_description = |property: &Value| {
            let mut property = property.as_object().expect("an object").clone();
            property.remove("description");
            property
        };
        assert_eq!(without_description(property), without_description(key), "{alias}");
        aliases.push(alias.as_str());
    }
    assert_eq!(aliases, ["context_servers", "mcp_servers", "servers", "httpUrl", "serverUrl", "transport"]);
}

#[test]
fn the_schema_is_written_as_json_with_sorted_members() {
    assert_eq!(text(), serde_json::to_string_pretty(schema()).expect("it is JSON") + "\n");
}

fn check(object: ObjectKeys, key: &str, place: &str, expected: Value) {
    let property = &object.properties()[key];
    assert_eq!(property.pointer(place), Some(&expected), "{key}");
}

#[test]
fn the_enum_values_of_the_schema_match_the_reader() {
    fn names<T>(table: &[(&str, T)]) -> Value {
        table.iter().map(|(name, _)| Value::from(*name)).collect()
    }
    let place = "/anyOf/0/enum";
    check(ObjectKeys::Namespacing, "tools", place, names(&rules::NAMES));
    check(ObjectKeys::Namespacing, "prompts", place, names(&rules::NAMES));
    check(ObjectKeys::Namespacing, "resources", place, names(&rules::URIS));
    check(ObjectKeys::Exposure, "mode", place, names(&views::MODES));
    check(ObjectKeys::Log, "level", place, names(&read::LEVELS));
    check(ObjectKeys::Log, "format", place, names(&LogFormat::ALL));
    check(ObjectKeys::Server, "type", place, names(&transport::KINDS));
    check(ObjectKeys::Server, "session", place, names(&sharing::SESSIONS));
    check(ObjectKeys::Server, "declare", "/anyOf/0/items/enum", names(&sharing::DECLARABLE));
    check(ObjectKeys::OAuth, "grant", place, names(&oauth::GRANTS));
    check(ObjectKeys::OAuth, "callbackHost", place, names(&oauth::CALLBACK_HOSTS));
    check(ObjectKeys::Server, "protocol", place, names(&server::PROTOCOLS));
    check(ObjectKeys::Server, "unlisted", place, names(&lists::UNLISTED));
    check(ObjectKeys::Root, "namespacing", "/anyOf/0/anyOf/0/enum", names(&rules::NAMES));
    check(ObjectKeys::Root, "exposure", "/anyOf/0/anyOf/0/enum", names(&views::MODES));
}

#[test]
fn the_limits_of_the_schema_match_the_reader() {
    let counts = [
        (ObjectKeys::Gateway, "maxSessions"),
        (ObjectKeys::Policies, "maxInFlight"),
        (ObjectKeys::Policies, "maxInFlightPerBackend"),
        (ObjectKeys::Policies, "pageSize"),
        (ObjectKeys::Subscriptions, "maxPerClient"),
        (ObjectKeys::Subscriptions, "maxTotal"),
        (ObjectKeys::Subscriptions, "maxUpstream"),
        (ObjectKeys::Exposure, "autoAbove"),
        (ObjectKeys::Server, "maxFiles"),
        (ObjectKeys::Server, "maxClients"),
    ];
    for (object, key) in counts {
        check(object, key, "/anyOf/0/maximum", json!(field::MAX_COUNT));
    }
    let name = format!("^[A-Za-z0-9_-]{{1,{}}}$", ProfileName::MAX_LENGTH);
    check(ObjectKeys::Exposure, "clients", "/anyOf/0/maxProperties", json!(views::MAX_CLIENT_RULES));
    check(ObjectKeys::Root, "profiles", "/anyOf/0/propertyNames/pattern", json!(name));
    check(ObjectKeys::Root, "profiles", "/anyOf/0/maxProperties", json!(views::MAX_PROFILES));
    check(ObjectKeys::Root, "mcpServers", "/anyOf/0/propertyNames/maxLength", json!(ServerId::MAX_LENGTH));
    check(ObjectKeys::Server, "roots", "/anyOf/0/maxItems", json!(roots::MAX_ROOTS));
    check(ObjectKeys::OAuth, "scopes", "/anyOf/0/anyOf/1/maxItems", json!(oauth::MAX_SCOPES));
    let definitions = &schema()["$defs"];
    assert_eq!(definitions["size"]["anyOf"][1]["minimum"], quantity::MIN_SIZE);
    assert_eq!(definitions["size"]["anyOf"][1]["maximum"], quantity::MAX_SIZE);
    let longest = &definitions["durationOrMilliseconds"]["anyOf"][1]["maximum"];
    assert_eq!(*longest, quantity::MAX_DURATION.as_millis() as u64);
}

#[test]
fn an_unknown_key_is_reported_with_the_nearest_known_key() {
    for (key, expected) in [
        ("timeout", Ok(())),
        ("trust", Ok(())),
        ("timeuot", Err("unknown key, did you mean \"timeout\"?")),
        ("Command", Err("unknown key, did you mean \"command\"?")),
        ("header", Err("unknown key, did you mean \"headers\"?")),
        ("evn", Err("unknown key, did you mean \"env\"?")),
        ("color", Err("unknown key")),
        ("poll", Ok(())),
        ("pol", Err("unknown key, did you mean \"poll\"?")),
    ] {
        let found = ObjectKeys::Server.check(key).map_err(|fault| fault.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{key}");
    }
    assert_eq!(
        ObjectKeys::Gateway.check("maxSesions").map_err(|fault| fault.to_string()),
        Err("unknown key, did you mean \"maxSessions\"?".to_owned())
    );
}
