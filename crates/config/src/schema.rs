//! Builds the JSON schema of the configuration from the vocabulary.
//!
//! Editors use the schema for completion and checks. It accepts every file that the reader accepts, and rejects
//! mistakes that are visible in the text alone. It cannot detect unset variables, missing files or ids with the same
//! folded form. `null` is allowed for every optional key, because the reader treats it as absent.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::exposure::ProfileName;
use crate::vocabulary::{
    self, ASK_MEMBERS, ApplyMode, FILES_MEMBERS, HTTP_MEMBERS, KeySpec, ObjectKeys, STDIO_MEMBERS, ValueType,
};
use crate::{ServerId, quantity, roots, views};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A duration. Only `0` needs no unit.
const DURATION: &str = "^(0+|[0-9]+ *(ms|s|m|h|d))$";
const POSITIVE_DURATION: &str = "^[0-9]*[1-9][0-9]* *(ms|s|m|h|d)$";
const SIZE: &str = "^[0-9]+ *([bB]|[kKmMgG][iI]?[bB])?$";
/// An `${input:...}` reference, which the gateway cannot prompt for. `$${` escapes it.
const ASKS: &str = r"(^|[^$])\$\{input:";
const URL: &str = r"^([hH][tT][tT][pP][sS]?://[^\s#@/]+(/[^\s#]*)?(\?[^\s#]*)?|[^#]*\$\{.*)$";
const PATH: &str = "^[^~]";
const FILE_URI: &str = r"^file://([^\s#?]*/[^\s#?]*|.*\$\{.*)$";
/// The beginning of a root that is a URI instead of a path.
const ANY_URI: &str = "^([fF][iI][lL][eE]:|[A-Za-z][A-Za-z0-9+.-]*://)";

pub fn schema() -> Value {
    let mut schema = object(&vocabulary::ROOT);
    let servers: Vec<Value> = vocabulary::SERVERS.iter().map(|name| has(name)).collect();
    extend(
        &mut schema,
        json!({
            "$schema": DIALECT,
            "title": "The configuration of Goblin, an MCP gateway",
            "description": "x-goblin-change is live if a reload applies a change of the key, and restart if the next start does",
            "oneOf": servers,
            "if": { "required": ["metaTools"], "properties": { "metaTools": disabled() } },
            "then": lists_all(),
            "$defs": definitions(),
        }),
    );
    schema
}

/// Returns the schema as it is committed and printed.
pub fn text() -> String {
    let text = serde_json::to_string_pretty(&schema()).expect("a value made of text and numbers");
    text + "\n"
}

/// Returns every key of the vocabulary, including ignored and future ones.
pub fn keys() -> BTreeSet<&'static str> {
    let mut keys = BTreeSet::new();
    collect(&vocabulary::ROOT, &mut keys);
    collect(&vocabulary::NAMESPACING, &mut keys);
    collect(&vocabulary::SERVER, &mut keys);
    collect(&vocabulary::NAMED_ROOT, &mut keys);
    collect(&vocabulary::EXPOSURE, &mut keys);
    collect(&vocabulary::PROFILE, &mut keys);
    keys
}

fn collect(object: &ObjectKeys, keys: &mut BTreeSet<&'static str>) {
    keys.extend(object.aliases.iter().map(|(alias, _)| *alias));
    keys.extend(object.passed_over.iter().chain(object.later));
    for key in object.read {
        keys.insert(key.name);
        let shapes = match &key.shape {
            ValueType::Either(one, other) => [*one, *other],
            shape => [shape, shape],
        };
        for shape in shapes {
            if let ValueType::Object(inner) = shape {
                collect(inner, keys);
            }
        }
    }
}

fn definitions() -> Value {
    let zero = json!({ "const": 0 });
    let milliseconds = json!({ "type": "integer", "minimum": 0, "maximum": quantity::MAX_DURATION.as_millis() as u64 });
    let bytes = json!({ "type": "integer", "minimum": quantity::MIN_SIZE, "maximum": quantity::MAX_SIZE });
    json!({
        "duration": either(pattern(DURATION), zero),
        "positiveDuration": pattern(POSITIVE_DURATION),
        "durationOrMilliseconds": either(pattern(DURATION), milliseconds),
        "size": either(pattern(SIZE), bytes),
        "expanded": {
            "description": "${VAR}, ${VAR:-default}, ${env:VAR} and ${file:PATH} are expanded",
            "type": "string",
            "not": { "pattern": ASKS },
        },
        "path": { "$ref": "#/$defs/expanded", "pattern": PATH },
        "url": { "$ref": "#/$defs/expanded", "pattern": URL },
        "place": {
            "$ref": "#/$defs/path",
            "anyOf": [{ "pattern": FILE_URI }, { "not": { "pattern": ANY_URI } }],
        },
        "namespacing": object(&vocabulary::NAMESPACING),
        "server": server(),
        "exposure": object(&vocabulary::EXPOSURE),
        "profile": object(&vocabulary::PROFILE),
    })
}

/// Returns the schema of a `metaTools` value that disables the tools.
fn disabled() -> Value {
    either(json!({ "const": false }), json!({ "type": "object", "allOf": [is("enabled", false)] }))
}

/// Returns the schema of a file with `exposure` modes that list every tool.
fn lists_all() -> Value {
    let other = json!({ "enum": ["search", "auto"] });
    let inner = json!({ "type": "object", "required": ["mode"], "properties": { "mode": other } });
    let all = json!({ "properties": { "exposure": not(either(other, inner)) } });
    let profiles = json!({ "properties": { "profiles": { "additionalProperties": all } } });
    json!({ "allOf": [all, profiles] })
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn either(one: Value, other: Value) -> Value {
    json!({ "anyOf": [one, other] })
}

fn not(schema: Value) -> Value {
    json!({ "not": schema })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn object(keys: &ObjectKeys) -> Value {
    let mut properties = Map::new();
    for key in keys.read {
        properties.insert(key.name.to_owned(), property(key));
    }
    for (alias, name) in keys.aliases {
        if let Some(key) = keys.read.iter().find(|key| key.name == *name) {
            let mut alias_of = property(key);
            extend(&mut alias_of, json!({ "description": format!("the same as {name}") }));
            properties.insert((*alias).to_owned(), alias_of);
        }
    }
    for name in keys.passed_over {
        properties.insert((*name).to_owned(), json!({ "description": "ignored" }));
    }
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

fn property(key: &KeySpec) -> Value {
    let mut property = or_null(shape(&key.shape));
    let change = match key.change {
        ApplyMode::Live => "live",
        ApplyMode::Restart => "restart",
    };
    extend(&mut property, json!({ "description": key.doc, "x-goblin-change": change }));
    if !key.default.is_empty() {
        let default: Value = serde_json::from_str(key.default).expect("a test reads every default");
        extend(&mut property, json!({ "default": default }));
    }
    property
}

fn or_null(shape: Value) -> Value {
    either(shape, json!({ "type": "null" }))
}

fn shape(shape: &ValueType) -> Value {
    match shape {
        ValueType::Flag => json!({ "type": "boolean" }),
        ValueType::Text(form) => pattern(form),
        ValueType::Expanded => reference("expanded"),
        ValueType::Path => reference("path"),
        ValueType::Url => reference("url"),
        ValueType::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueType::Size => reference("size"),
        ValueType::Duration => reference("duration"),
        ValueType::PositiveDuration => reference("positiveDuration"),
        ValueType::DurationOrMilliseconds => reference("durationOrMilliseconds"),
        ValueType::Choice(words) => json!({ "enum": words }),
        ValueType::List(element) => json!({ "type": "array", "items": self::shape(element) }),
        ValueType::Map(value) => json!({ "type": "object", "additionalProperties": self::shape(value) }),
        ValueType::Exposure => reference("exposure"),
        ValueType::Profiles => json!({
            "type": "object",
            "maxProperties": views::MAX_PROFILES,
            "propertyNames": { "pattern": format!("^[A-Za-z0-9_-]{{1,{}}}$", ProfileName::MAX_LENGTH) },
            "additionalProperties": reference("profile"),
        }),
        ValueType::Namespacing => reference("namespacing"),
        ValueType::Place => reference("place"),
        ValueType::Roots => json!({
            "type": "array",
            "maxItems": roots::MAX_ROOTS,
            "items": either(reference("place"), json!({ "allOf": [object(&vocabulary::NAMED_ROOT), has("uri")] })),
        }),
        ValueType::Object(keys) => object(keys),
        ValueType::Servers => json!({
            "type": "object",
            "propertyNames": { "minLength": 1, "maxLength": ServerId::MAX_LENGTH },
            "additionalProperties": reference("server"),
        }),
        ValueType::Either(one, other) => either(self::shape(one), self::shape(other)),
    }
}

/// Returns the schema of a server: a command, a URL or a directory, without members of the other two.
fn server() -> Value {
    let mut server = object(&vocabulary::SERVER);
    let urls: Vec<Value> = vocabulary::URL.iter().map(|name| has(name)).collect();
    let stdio = half("a command to start", &["stdio"], &[&HTTP_MEMBERS, &FILES_MEMBERS], json!([has("command")]));
    let http = half(
        "a URL to call",
        &["http", "sse", "streamable-http", "streamableHttp"],
        &[&STDIO_MEMBERS, &FILES_MEMBERS],
        json!([{ "oneOf": urls }]),
    );
    let named = either(is("type", "files"), is("transport", "files"));
    let files = half(
        "a directory to serve",
        &["files"],
        &[&STDIO_MEMBERS, &HTTP_MEMBERS, &ASK_MEMBERS],
        json!([either(has("root"), named), not(is("session", "per-client")), not(is("protocol", "modern"))]),
    );
    let both = |one: Value, other: Value| not(json!({ "allOf": [one, other] }));
    let inner = |member: &str| json!({ "required": ["tools"], "properties": { "tools": has(member) } });
    let object_command = json!({ "required": ["command"], "properties": { "command": { "type": "object" } } });
    extend(
        &mut server,
        json!({
            "title": "A server",
            "oneOf": [stdio, http, files],
            "allOf": [
                both(has("type"), has("transport")),
                both(has("enabled"), has("disabled")),
                both(has("includeTools"), inner("allow")),
                both(has("excludeTools"), inner("deny")),
                both(object_command, either(has("args"), has("env"))),
                both(is("protocol", "modern"), either(is("type", "sse"), is("transport", "sse"))),
                both(is("session", "per-client"), has("roots")),
                both(not(is("session", "per-client")), has("maxClients")),
            ],
        }),
    );
    server
}

/// Returns the schema of one kind of server: its types, its required members and the members of other kinds.
fn half(title: &str, types: &[&str], foreign: &[&[&str]], required: Value) -> Value {
    let mut properties = Map::new();
    let mut words: Vec<Value> = types.iter().map(|name| json!(name)).collect();
    words.push(Value::Null);
    for name in vocabulary::TYPE {
        properties.insert(name.to_owned(), json!({ "enum": words }));
    }
    for name in foreign.concat() {
        properties.insert(name.to_owned(), json!({ "type": "null" }));
    }
    json!({ "title": title, "properties": properties, "allOf": required })
}

/// Returns a schema that requires the member to be present and not `null`.
fn has(name: &str) -> Value {
    json!({ "type": "object", "required": [name], "properties": { name: { "not": { "type": "null" } } } })
}

fn is(name: &str, value: impl Into<Value>) -> Value {
    json!({ "required": [name], "properties": { name: { "const": value.into() } } })
}

fn extend(object: &mut Value, members: Value) {
    if let (Value::Object(object), Value::Object(members)) = (object, members) {
        object.extend(members);
    }
}
