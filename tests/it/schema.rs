//! `goblin schema`: the output equals the committed file and agrees with the reader.
//!
//! Both must accept and reject the same configurations, also those in the documents.

use std::path::Path;
use std::process::Command;

use goblin_config::file::ConfigOrigin;
use goblin_config::{Config, parse, schema};
use jsonc_parser::ParseOptions;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::GOBLIN;

fn read(path: &str) -> String {
    let path = Path::new(crate::harness::ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn validator() -> Validator {
    jsonschema::draft202012::new(schema::schema()).expect("a valid schema")
}

/// Parses a configuration. Every variable is set. Two variables have two values, since the tokens of a file must differ.
fn reader_accepts(text: &str) -> Result<Config, String> {
    let environment = |name: &str| Some(format!("value-of-the-variable-{name}"));
    let loaded = parse(text, &ConfigOrigin::new("goblin.json", "/etc/goblin"), &environment);
    let config = loaded.map(|loaded| loaded.config).map_err(|problems| problems.to_string())?;
    match config.servers.values().find_map(|server| server.misconfiguration()) {
        Some(misconfiguration) => Err(misconfiguration.reason()),
        None => Ok(config),
    }
}

fn schema_accepts(validator: &Validator, value: &Value) -> Result<(), String> {
    let errors: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

#[test]
fn the_committed_schema_is_not_stale() {
    let output = Command::new(GOBLIN).arg("schema").output().expect("the command runs");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let committed: Value = serde_json::from_str(&read("goblin.schema.json")).expect("JSON");
    assert!(printed == committed, "goblin.schema.json is stale, run: goblin schema > goblin.schema.json");
    assert!(jsonschema::meta::is_valid(&printed), "the output is no schema");
}

/// Returns the blocks of a document that are fenced as `language`.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let text = read(document);
    let start = format!("```{language}\n");
    let fenced = text.split(&start).skip(1);
    fenced.map(|rest| rest.split("```").next().expect("the block is closed").to_owned()).collect()
}

/// Checks a text with the reader and with the schema.
fn check_configuration(validator: &Validator, name: &str, text: &str) {
    reader_accepts(text).unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
    schema_accepts(validator, &plain(text)).unwrap_or_else(|errors| panic!("{name}: {errors}\n{text}"));
}

#[test]
fn the_configurations_in_the_documents_are_valid() {
    let validator = validator();
    for document in [
        "README.md",
        "docs/connect.md",
        "docs/servers.md",
        "docs/context.md",
        "docs/security.md",
        "docs/reference/configuration.md",
    ] {
        let texts = blocks(document, "jsonc");
        assert!(!texts.is_empty(), "{document} has no configuration");
        texts.iter().for_each(|text| check_configuration(&validator, document, text));
    }
}

#[test]
fn the_configurations_in_the_examples_are_valid() {
    let validator = validator();
    let index = read("examples/README.md");
    let directory = Path::new(crate::harness::ROOT).join("examples");
    let mut checked = 0;
    for entry in std::fs::read_dir(directory).expect("the examples") {
        let name = entry.expect("an entry").file_name().into_string().expect("file names are UTF-8");
        if name == "README.md" {
            continue;
        }
        assert!(index.contains(&format!("({name})")), "examples/README.md does not mention {name}");
        if name != "grafana.json" {
            check_configuration(&validator, &name, &read(&format!("examples/{name}")));
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} examples");
}

/// Parses a text with comments and trailing commas.
fn plain(text: &str) -> Value {
    let parsed = jsonc_parser::parse_to_ast(text, &Default::default(), &ParseOptions::default()).expect("JSON");
    of(&parsed.value.expect("a value"))
}

fn of(value: &jsonc_parser::ast::Value<'_>) -> Value {
    use jsonc_parser::ast::Value as Ast;
    match value {
        Ast::NullKeyword(_) => Value::Null,
        Ast::BooleanLit(literal) => literal.value.into(),
        Ast::NumberLit(literal) => serde_json::from_str(literal.value).expect("a number"),
        Ast::StringLit(literal) => literal.value.as_ref().into(),
        Ast::Array(array) => array.elements.iter().map(of).collect(),
        Ast::Object(object) => {
            let members = object.properties.iter();
            Value::Object(members.map(|property| (property.name.as_str().to_owned(), of(&property.value))).collect())
        }
    }
}

/// Returns a configuration with one server that has these members.
fn server(members: Value) -> Value {
    json!({ "mcpServers": { "a": members } })
}

fn gateway(members: Value) -> Value {
    json!({ "mcpServers": {}, "gateway": members })
}

fn profile(members: Value) -> Value {
    json!({ "mcpServers": {}, "profiles": { "p": members } })
}

#[test]
fn reader_and_schema_accept_valid_configurations() {
    let validator = validator();
    for good in [
        json!({ "mcpServers": {} }),
        json!({ "servers": {}, "mcpServers": null, "$schema": "./goblin.schema.json" }),
        json!({ "context_servers": { "a": { "command": { "path": "x", "args": ["y"], "env": { "K": "${K}" } } } } }),
        json!({ "mcpServers": {}, "namespacing": "none" }),
        json!({ "mcpServers": {}, "namespacing": { "tools": "none", "resources": "identifier", "separator": "__", "maxLength": 16 } }),
        json!({ "mcpServers": {}, "log": { "level": "trace", "format": "json" } }),
        json!({ "mcpServers": {}, "policies": { "defaultTimeout": 0, "maxTimeout": "0", "askTimeout": 0, "startTimeout": "200ms", "maxMessageSize": 65536, "pageSize": 1 } }),
        json!({ "mcpServers": {}, "exposure": "auto", "metaTools": true, "profiles": {} }),
        json!({ "mcpServers": {}, "exposure": { "mode": "search", "pinned": ["a_*"], "autoAbove": 0, "reveal": true } }),
        json!({ "mcpServers": {}, "exposure": { "clients": { "claude-code": "all", "Cursor*": { "mode": "search", "pinned": [] } } } }),
        json!({ "mcpServers": {}, "metaTools": false, "exposure": { "clients": { "a": "all" } } }),
        json!({ "mcpServers": {}, "metaTools": false, "exposure": { "mode": "all" }, "profiles": { "p": { "exposure": "all" } } }),
        json!({ "mcpServers": {}, "metaTools": null, "exposure": "search" }),
        json!({ "mcpServers": {}, "metaTools": { "enabled": null, "prefix": "goblin_" }, "profiles": { "p": { "exposure": "search" } } }),
        json!({ "mcpServers": { "a": { "command": "x" } }, "profiles": { "A_b-1": { "servers": ["a", "b*"], "tools": ["a_*"], "prompts": [], "resources": { "allow": ["*"], "deny": ["a+file:///x"] } } } }),
        profile(
            json!({ "tools": { "allow": ["*"], "deny": [], "rename": { "a": "b" }, "describe": { "a": "\nB" } }, "exposure": null }),
        ),
        profile(json!({})),
        gateway(json!({ "host": "::1", "port": 0, "token": "${TOKEN}", "grace": "5 m", "maxBodySize": "1 gb" })),
        gateway(json!({ "socket": "${HOME}/goblin.sock", "tcp": false })),
        gateway(
            json!({ "allowedHosts": ["[::1]:80", "goblin.example"], "allowedOrigins": ["https://app.example", "http://[::1]:80"] }),
        ),
        server(json!({ "command": "x", "url": null, "cwd": "${HOME}/x", "timeout": 30000, "disabled": true })),
        server(json!({ "type": "stdio", "command": "x", "args": [], "env": {}, "autoApprove": ["y"], "trust": true })),
        server(
            json!({ "transport": "streamableHttp", "serverUrl": "https://x/mcp", "headers": { "A": "b" }, "tls": { "ca": "x.pem" } }),
        ),
        server(json!({ "httpUrl": "http://[::1]:80/mcp?x=1", "includeTools": ["a"], "excludeTools": ["b"] })),
        server(json!({ "url": "HTTPS://x" })),
        server(json!({ "type": "sse", "url": "https://x/sse", "headers": {}, "tls": {} })),
        server(
            json!({ "url": "https://${HOST}/mcp", "prefix": "", "validate": true, "session": "shared", "protocol": "legacy" }),
        ),
        server(json!({ "command": "x", "session": "per-client", "maxClients": 1, "declare": [], "roots": null })),
        server(json!({ "url": "https://x", "session": null, "maxClients": null, "declare": ["elicitation"] })),
        server(
            json!({ "command": "x", "roots": ["../a b", "file:///a%20b", "file:///${HOME}", "${HOME}", { "uri": "/x", "name": "y" }, { "uri": "file:///" }] }),
        ),
        server(json!({ "command": "x", "roots": vec!["x"; 100] })),
        server(json!({ "type": "files", "session": "shared", "maxClients": null, "declare": null, "roots": null })),
        server(json!({ "type": "files" })),
        server(json!({ "type": "files", "protocol": "match-client" })),
        server(json!({ "type": "sse", "url": "https://x", "protocol": "legacy" })),
        server(json!({ "url": "https://x", "protocol": "modern" })),
        server(json!({ "root": ".", "hidden": true, "ignored": true, "maxFiles": 5 })),
        server(
            json!({ "command": "x", "tools": { "allow": [], "deny": ["*"], "rename": { "a": "b" }, "timeouts": { "a": "0", "b": 0 } } }),
        ),
        server(
            json!({ "command": "x", "resources": { "rename": { "file:///a": "docs://a" } }, "prompts": { "rename": { "a": "b" } } }),
        ),
        server(json!({ "command": "x", "args": ["$${input:x}"], "namespacing": "prefix" })),
    ] {
        let text = good.to_string();
        reader_accepts(&text).unwrap_or_else(|problems| panic!("the reader: {problems}\n{text}"));
        schema_accepts(&validator, &good).unwrap_or_else(|errors| panic!("the schema: {errors}\n{text}"));
    }
}

#[test]
fn reader_and_schema_reject_invalid_configurations() {
    let validator = validator();
    let bad = [
        json!([]),
        json!({}),
        json!({ "mcpServers": null }),
        json!({ "mcpServers": [] }),
        json!({ "mcpServers": {}, "servers": {} }),
        json!({ "mcpServers": {}, "gatway": {} }),
        json!({ "mcpServers": {}, "telemetry": { "otlp": 4318 } }),
        json!({ "mcpServers": {}, "log": { "audit": "yes" } }),
        json!({ "mcpServers": {}, "namespacing": "uri" }),
        json!({ "mcpServers": {}, "namespacing": { "separator": "." } }),
        json!({ "mcpServers": {}, "namespacing": { "maxLength": 8 } }),
        json!({ "mcpServers": {}, "log": { "level": "loud" } }),
        json!({ "mcpServers": {}, "log": "info" }),
        json!({ "mcpServers": {}, "policies": { "defaultTimeout": "60" } }),
        json!({ "mcpServers": {}, "policies": { "defaultTimeout": 60 } }),
        json!({ "mcpServers": {}, "policies": { "startTimeout": "0s" } }),
        json!({ "mcpServers": {}, "policies": { "startTimeout": 0 } }),
        json!({ "mcpServers": {}, "policies": { "pageSize": 0 } }),
        json!({ "mcpServers": {}, "policies": { "maxInFlight": 1.5 } }),
        json!({ "mcpServers": {}, "policies": { "maxMessageSize": "4M" } }),
        json!({ "mcpServers": {}, "policies": { "maxMessageSize": 100 } }),
        gateway(json!({ "port": 65536 })),
        gateway(json!({ "port": "3000" })),
        gateway(json!({ "host": "http://x" })),
        gateway(json!({ "allowedHosts": ["*"] })),
        gateway(json!({ "allowedHosts": "x" })),
        gateway(json!({ "allowedOrigins": ["app.example"] })),
        gateway(json!({ "token": 1 })),
        json!({ "mcpServers": {}, "exposure": "none" }),
        json!({ "mcpServers": {}, "exposure": true }),
        json!({ "mcpServers": {}, "exposure": { "mode": "none" } }),
        json!({ "mcpServers": {}, "exposure": { "pinned": "a" } }),
        json!({ "mcpServers": {}, "exposure": { "autoAbove": -1 } }),
        json!({ "mcpServers": {}, "exposure": { "above": 1 } }),
        json!({ "mcpServers": {}, "exposure": { "clients": [] } }),
        json!({ "mcpServers": {}, "exposure": { "clients": { "": "all" } } }),
        json!({ "mcpServers": {}, "exposure": { "clients": { "a": "none" } } }),
        json!({ "mcpServers": {}, "exposure": { "clients": { "a": { "clients": {} } } } }),
        json!({ "mcpServers": {}, "metaTools": false, "exposure": { "clients": { "a": "search" } } }),
        json!({ "mcpServers": {}, "metaTools": false, "profiles": { "p": { "exposure": { "clients": { "a": { "mode": "auto" } } } } } }),
        json!({ "mcpServers": {}, "metaTools": "no" }),
        json!({ "mcpServers": {}, "metaTools": { "prefix": "a.b" } }),
        json!({ "mcpServers": {}, "metaTools": { "prefix": "p".repeat(33) } }),
        json!({ "mcpServers": {}, "metaTools": false, "exposure": "search" }),
        json!({ "mcpServers": {}, "metaTools": { "enabled": false }, "exposure": { "mode": "auto" } }),
        json!({ "mcpServers": {}, "metaTools": false, "profiles": { "p": { "exposure": "auto" } } }),
        json!({ "mcpServers": {}, "metaTools": false, "profiles": { "p": { "exposure": { "mode": "search" } } } }),
        json!({ "mcpServers": {}, "profiles": [] }),
        json!({ "mcpServers": {}, "profiles": { "a b": {} } }),
        json!({ "mcpServers": {}, "profiles": { "": {} } }),
        json!({ "mcpServers": {}, "profiles": { "p".repeat(65): {} } }),
        json!({ "mcpServers": {}, "profiles": (0..101).map(|index| (index.to_string(), json!({}))).collect::<serde_json::Map<_, _>>() }),
        json!({ "mcpServers": {}, "profiles": { "p": null } }),
        profile(json!({ "servers": "a" })),
        profile(json!({ "servers": [""] })),
        profile(json!({ "tools": "a" })),
        profile(json!({ "tools": { "timeouts": {} } })),
        profile(json!({ "tools": { "rename": { "a": "b c" } } })),
        profile(json!({ "tools": { "describe": { "a": "" } } })),
        profile(json!({ "tools": { "describe": { "a": 1 } } })),
        profile(json!({ "prompts": { "rename": {} } })),
        profile(json!({ "exposure": "some" })),
        json!({ "mcpServers": { "": { "command": "x" } } }),
        json!({ "mcpServers": { "a": null } }),
        json!({ "mcpServers": { "a": "x" } }),
        server(json!({})),
        server(json!({ "command": "x", "url": "https://x" })),
        server(json!({ "command": "x", "root": "." })),
        server(json!({ "type": "stdio" })),
        server(json!({ "type": "http", "command": "x" })),
        server(json!({ "type": "sse" })),
        server(json!({ "type": "sse", "url": "https://x", "args": [] })),
        server(json!({ "type": "sse", "url": "https://x", "protocol": "modern" })),
        server(json!({ "transport": "sse", "url": "https://x", "protocol": "modern" })),
        server(json!({ "type": "files", "protocol": "modern" })),
        server(json!({ "root": ".", "protocol": "modern" })),
        server(json!({ "type": "stdio", "transport": "stdio", "command": "x" })),
        server(json!({ "command": "x", "headers": {} })),
        server(json!({ "url": "https://x", "args": [] })),
        server(json!({ "url": "https://x", "httpUrl": "https://x" })),
        server(json!({ "url": "ftp://x" })),
        server(json!({ "url": "https://x/#a" })),
        server(json!({ "url": "https://user@x/" })),
        server(json!({ "command": "x", "args": "y" })),
        server(json!({ "command": "x", "args": [1] })),
        server(json!({ "command": "x", "args": ["${input:key}"] })),
        server(json!({ "command": "x", "env": { "K": 1 } })),
        server(json!({ "command": "x", "cwd": "~/x" })),
        server(json!({ "command": { "path": "x" }, "args": [] })),
        server(json!({ "command": "x", "enabled": true, "disabled": false })),
        server(json!({ "command": "x", "enabled": "yes" })),
        server(json!({ "command": "x", "timeout": -1 })),
        server(json!({ "command": "x", "poll": "0s" })),
        server(json!({ "command": "x", "comand": "y" })),
        server(json!({ "command": "x", "session": "own" })),
        server(json!({ "command": "x", "maxClients": 1 })),
        server(json!({ "command": "x", "session": "shared", "maxClients": 1 })),
        server(json!({ "command": "x", "session": null, "maxClients": 1 })),
        server(json!({ "command": "x", "session": "per-client", "maxClients": 0 })),
        server(json!({ "command": "x", "session": "per-client", "roots": [] })),
        server(json!({ "type": "files", "session": "per-client" })),
        server(json!({ "root": ".", "session": "per-client" })),
        server(json!({ "type": "files", "declare": [] })),
        server(json!({ "type": "files", "roots": [] })),
        server(json!({ "command": "x", "declare": ["roots"] })),
        server(json!({ "command": "x", "declare": "sampling" })),
        server(json!({ "command": "x", "roots": "x" })),
        server(json!({ "command": "x", "roots": ["~/x"] })),
        server(json!({ "command": "x", "roots": [""] })),
        server(json!({ "command": "x", "roots": ["https://x/y"] })),
        server(json!({ "command": "x", "roots": ["file:x"] })),
        server(json!({ "command": "x", "roots": ["file:///a b"] })),
        server(json!({ "command": "x", "roots": [null] })),
        server(json!({ "command": "x", "roots": [{}] })),
        server(json!({ "command": "x", "roots": [{ "uri": null }] })),
        server(json!({ "command": "x", "roots": [{ "uri": "/x", "name": "" }] })),
        server(json!({ "command": "x", "roots": [{ "uri": "/x", "title": "y" }] })),
        server(json!({ "command": "x", "roots": vec!["x"; 101] })),
        server(json!({ "command": "x", "prefix": "a.b" })),
        server(json!({ "command": "x", "tools": { "allow": [""] } })),
        server(json!({ "command": "x", "tools": { "rename": { "a": "b c" } } })),
        server(json!({ "command": "x", "includeTools": [], "tools": { "allow": [] } })),
        server(json!({ "command": "x", "prompts": { "timeouts": {} } })),
        server(json!({ "command": "x", "resources": { "rename": { "file:///a": "manual" } } })),
    ];
    for bad in bad {
        assert!(reader_accepts(&bad.to_string()).is_err(), "the reader takes {bad}");
        assert!(schema_accepts(&validator, &bad).is_err(), "the schema takes {bad}");
    }
}

/// Collects the properties of all objects in the schema.
fn properties<'a>(schema: &'a Value, found: &mut Vec<(&'a String, &'a Value)>) {
    match schema {
        Value::Object(members) => {
            // Conditions only refer to members of an object that is described elsewhere.
            if members.get("additionalProperties") == Some(&Value::Bool(false)) {
                found.extend(members["properties"].as_object().expect("an object"));
            }
            members.values().for_each(|inner| properties(inner, found));
        }
        Value::Array(elements) => elements.iter().for_each(|inner| properties(inner, found)),
        _ => {}
    }
}

#[test]
fn the_schema_describes_every_key() {
    let schema = schema::schema();
    let mut found = Vec::new();
    properties(schema, &mut found);
    for key in schema::keys() {
        assert!(found.iter().any(|(name, _)| *name == key), "{key}");
    }
    for (name, property) in found {
        assert!(property["description"].is_string(), "{name} has no description");
        let is_read = property["description"] != "ignored";
        let change = property["x-goblin-change"].as_str();
        assert_eq!(matches!(change, Some("live" | "restart")), is_read, "{name}");
    }
}

#[test]
fn schema_defaults_equal_the_values_of_omitted_keys() {
    let schema = schema::schema();
    let defaults = |properties: &Value| {
        let members = properties.as_object().expect("an object").iter();
        let members = members.filter_map(|(name, property)| Some((name.clone(), property.get("default")?.clone())));
        Value::Object(members.collect())
    };
    let section = |name: &str| defaults(&schema["properties"][name]["anyOf"][0]["properties"]);
    let namespacing = defaults(&schema["$defs"]["namespacing"]["properties"]);
    let exposure = defaults(&schema["$defs"]["exposure"]["properties"]);
    let meta_tools = defaults(&schema["properties"]["metaTools"]["anyOf"][0]["anyOf"][1]["properties"]);
    assert_eq!(meta_tools.as_object().map(|members| members.len()), Some(2), "{meta_tools}");
    let text = json!({
        "gateway": section("gateway"), "policies": section("policies"), "log": section("log"),
        "exposure": exposure, "metaTools": meta_tools, "namespacing": namespacing, "mcpServers": { "a": { "command": "x" } },
    });
    let written = reader_accepts(&text.to_string()).expect("defaults are good");
    let left_out = reader_accepts(r#"{ "mcpServers": { "a": { "command": "x" } } }"#).expect("so is nothing");
    assert_eq!(written, left_out);

    let of_profile = |profile: Value| {
        let text = json!({ "mcpServers": {}, "profiles": { "p": profile } });
        reader_accepts(&text.to_string()).expect("defaults are good")
    };
    let members = defaults(&schema["$defs"]["profile"]["properties"]);
    assert_eq!(of_profile(members), of_profile(json!({})));
    let entries = &schema["$defs"]["profile"]["properties"]["tools"]["anyOf"][0]["anyOf"][1]["properties"];
    assert_eq!(of_profile(json!({ "tools": defaults(entries) })), of_profile(json!({})));

    let members = defaults(&schema["$defs"]["server"]["properties"]);
    for (own, foreign) in [
        (
            json!({ "command": "x" }),
            &["headers", "tls", "root", "hidden", "ignored", "maxFiles", "maxClients", "disabled"][..],
        ),
        (
            json!({ "url": "https://x" }),
            &["args", "env", "inherit", "cwd", "root", "hidden", "ignored", "maxFiles", "maxClients", "disabled"],
        ),
        (
            json!({ "type": "files" }),
            &["args", "env", "inherit", "cwd", "headers", "tls", "declare", "roots", "maxClients", "disabled"],
        ),
    ] {
        let mut full = members.as_object().expect("an object").clone();
        foreign.iter().for_each(|name| drop(full.remove(*name)));
        full.extend(own.as_object().expect("an object").clone());
        let written = reader_accepts(&server(Value::Object(full)).to_string()).expect("defaults are good");
        assert_eq!(written, reader_accepts(&server(own).to_string()).expect("so is nothing"));
    }
}
