//! The steps of the SDKs' clients in a tour, and their expected outcomes. The servers are `pipe` and `web` (fixtures),
//! `every` and `files` (reference servers).

use std::path::Path;

use serde_json::{Value, json};

use crate::sdk::Sdk;

pub const MESSAGE: &str = "notifications/message";
const CHANGED: &str = "notifications/tools/list_changed";

/// A step and its expected outcome: values by their JSON pointer.
pub type Step = (Value, Vec<(&'static str, Value)>);

/// Returns the whole tour. The directory `files` contains `a file.txt`.
pub fn script(sdk: Sdk, files: &Path) -> Vec<Step> {
    let mut script = arrival();
    for id in ["pipe", "web"] {
        script.extend(calls(id));
        script.extend(prompts(id));
        script.extend(reads(id, sdk));
        script.extend(logs(id));
        script.extend(changes(id));
    }
    script.extend(reference_servers(files));
    script
}

/// Returns the steps that wait until everything is listed, because over stdio the client starts the gateway and the
/// backends. The lists of a slow server are published independently, so each one is awaited.
fn arrival() -> Vec<Step> {
    let of_tools = ["pipe_widget", "web_widget", "every_simulate-research-query", "files_list_allowed_directories"];
    let mut steps: Vec<Step> = of_tools.map(|name| ok(json!({"do": "await_tool", "name": name}))).into();
    for (id, prompt, resource, template) in [
        ("pipe", "greet", "note:///alpha", "note:///{name}"),
        ("web", "greet", "note:///alpha", "note:///{name}"),
        (
            "every",
            "simple-prompt",
            "demo://resource/static/document/features.md",
            "demo://resource/dynamic/text/{resourceId}",
        ),
    ] {
        steps.push(ok(json!({"do": "await_prompt", "name": format!("{id}_{prompt}")})));
        steps.push(ok(json!({"do": "await_resource", "uri": format!("{id}+{resource}")})));
        steps.push(ok(json!({"do": "await_template", "uriTemplate": format!("{id}+{template}")})));
    }
    for list in ["list_tools", "list_prompts", "list_resources", "list_templates"] {
        steps.push(ok(json!({ "do": list })));
    }
    steps.push((json!({"do": "ping"}), vec![("/ok", json!(true)), ("/result", json!({}))]));
    steps
}

fn ok(step: Value) -> Step {
    (step, vec![("/ok", json!(true))])
}

fn call(name: String, arguments: Value) -> Value {
    json!({"do": "call_tool", "name": name, "arguments": arguments})
}

fn calls(id: &str) -> Vec<Step> {
    let mut progress = call(format!("{id}_progress"), json!({"steps": 3}));
    progress["progress"] = json!(true);
    let failing = json!({"code": -32050, "message": "odd", "data": {"x": 1.5}});
    let unknown = format!("{id}_nope");
    vec![
        (
            call(format!("{id}_echo"), json!({"a": "ü", "b": [1, null]})),
            vec![
                ("/result/content/0/text", json!(r#"{"a":"ü","b":[1,null]}"#)),
                ("/result/structuredContent", json!({"a": "ü", "b": [1, null]})),
            ],
        ),
        // The tool has an output schema, and the SDK validates the result with it.
        (call(format!("{id}_add"), json!({"a": 2, "b": 3})), vec![("/result/structuredContent/sum", json!(5))]),
        (progress, vec![("/result/content/0/text", json!("3 steps"))]),
        (call(format!("{id}_fail"), json!({})), vec![("/result/isError", json!(true))]),
        (
            call(format!("{id}_error"), failing),
            vec![("/error/code", json!(-32050)), ("/error/message", json!("odd")), ("/error/data", json!({"x": 1.5}))],
        ),
        (
            call(unknown.clone(), json!({})),
            vec![
                ("/error/code", json!(-32602)),
                ("/error/message", json!(format!("Tool not found: {unknown}"))),
                ("/error/data", json!({"code": "TOOL_NOT_FOUND", "name": unknown})),
            ],
        ),
    ]
}

fn prompts(id: &str) -> Vec<Step> {
    let greet = format!("{id}_greet");
    let row = format!("{id}+db://{{table}}/{{id}}");
    let prompt = |name: &str, arguments| json!({"do": "get_prompt", "name": name, "arguments": arguments});
    let complete = |reference, name, value, context| {
        let argument = json!({"name": name, "value": value});
        json!({"do": "complete", "ref": reference, "argument": argument, "context": {"arguments": context}})
    };
    vec![
        (prompt(&greet, json!({"name": "Ada"})), vec![("/result/messages/0/content/text", json!("Hello, Ada!"))]),
        (
            prompt(&format!("{id}_linked"), json!({})),
            vec![
                ("/result/messages/0/content/resource/uri", json!(format!("{id}+note:///alpha"))),
                ("/result/messages/1/content/uri", json!(format!("{id}+note:///beta"))),
            ],
        ),
        (
            prompt(&format!("{id}_nope"), json!({})),
            vec![("/error/code", json!(-32602)), ("/error/data/code", json!("PROMPT_NOT_FOUND"))],
        ),
        (
            complete(json!({"type": "ref/prompt", "name": greet}), "name", "Al", json!({})),
            vec![("/result/completion/values", json!(["Alan", "Alonzo"]))],
        ),
        (
            complete(json!({"type": "ref/resource", "uri": row}), "id", "", json!({"table": "users"})),
            vec![("/result/completion/values", json!(["users-1", "users-2", "users-3"]))],
        ),
    ]
}

/// Native URIs, their content at the fixture, and their spelling by Python 1.x in requests and results.
const READ: [(&str, &str, &str); 8] = [
    ("note:///alpha", "note alpha", "note:///alpha"),
    ("note:///gamma", "note gamma", "note:///gamma"),
    ("db://users/7", r#"{"table":"users","id":"7"}"#, "db://users/7"),
    ("search://docs?q=x&limit=3", "found for ?q=x&limit=3", "search://docs?q=x&limit=3"),
    ("file:///logs/app log.txt", "note file:///logs/app log.txt", "file:///logs/app%20log.txt"),
    ("file:///a/./b/../c.txt", "note file:///a/./b/../c.txt", "file:///a/c.txt"),
    ("file:///naïve/日本.txt", "note file:///naïve/日本.txt", "file:///na%C3%AFve/%E6%97%A5%E6%9C%AC.txt"),
    ("NOTE:///Up", "upper", "note:///Up"),
];

/// D3: the backend receives its own spelling, even if the SDK changes a URI. Its response contains that spelling.
fn reads(id: &str, sdk: Sdk) -> Vec<Step> {
    let read = |uri: &str| json!({"do": "read_resource", "uri": format!("{id}+{uri}")});
    let mut steps: Vec<Step> = READ
        .iter()
        .map(|(native, text, normalised)| {
            let shown = if sdk == Sdk::Python1 { normalised } else { native };
            let uri = json!(format!("{id}+{shown}"));
            (read(native), vec![("/result/contents/0/uri", uri), ("/result/contents/0/text", json!(text))])
        })
        .collect();
    steps.push((read("blob:///bin"), vec![("/result/contents/0/blob", json!("AAECA/3+/w=="))]));
    let unknown = json!(format!("{id}+nope:///x"));
    // TypeScript 2.x turns the server's -32002 into -32602 and keeps only the URI of its data.
    let (code, data) = match sdk {
        Sdk::TypeScript2 => (-32602, json!({ "uri": unknown })),
        _ => (-32002, json!({"code": "RESOURCE_NOT_FOUND", "uri": unknown})),
    };
    steps.push((read("nope:///x"), vec![("/error/code", json!(code)), ("/error/data", data)]));
    steps
}

fn logs(id: &str) -> Vec<Step> {
    let log = format!("{id}_log");
    let wait = json!({"do": "wait_notification", "method": MESSAGE, "params": {"logger": "fixture", "level": "error"}});
    vec![
        ok(json!({"do": "set_level", "level": "warning"})),
        ok(call(log.clone(), json!({"level": "info", "count": 3}))),
        ok(call(log, json!({"level": "error", "count": 2}))),
        (wait.clone(), vec![("/result/params/data/number", json!(1))]),
        (wait, vec![("/result/params/data/number", json!(2))]),
    ]
}

fn changes(id: &str) -> Vec<Step> {
    let added = format!("{id}_added_0001");
    vec![
        (call(format!("{id}_change_tools"), json!({})), vec![("/result/content/0/text", json!("added_0001"))]),
        ok(json!({"do": "wait_notification", "method": CHANGED, "fresh": true})),
        ok(json!({"do": "await_tool", "name": added})),
        (call(added, json!({})), vec![("/result/content/0/text", json!("added_0001 was called"))]),
    ]
}

fn reference_servers(files: &Path) -> Vec<Step> {
    let read =
        |name: &str| call("files_read_text_file".to_owned(), json!({"path": files.join(name).display().to_string()}));
    let weather = call("every_get-structured-content".to_owned(), json!({"location": "Chicago"}));
    let native = json!({"do": "read_resource", "uri": "demo://resource/dynamic/text/7"});
    vec![
        (
            call("every_echo".to_owned(), json!({"message": "hello"})),
            vec![("/result/content/0/text", json!("Echo: hello"))],
        ),
        (weather, vec![("/result/structuredContent/conditions", json!("Light rain / drizzle"))]),
        // Only one server has this resource, so its native URI is sufficient.
        (native, vec![("/result/contents/0/uri", json!("every+demo://resource/dynamic/text/7"))]),
        (read("a file.txt"), vec![("/result/content/0/text", json!("some words"))]),
        (read("none.txt"), vec![("/result/isError", json!(true))]),
    ]
}
