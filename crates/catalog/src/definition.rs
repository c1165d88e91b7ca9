//! The definition of an entry in the form that clients see: the exposed name or URI, and the origin in `_meta`. The
//! rest of the definition stays as the backend wrote it. An entry that keeps its name gets no origin.

use bytes::Bytes;
use goblin_wire::Mime;
use goblin_wire::json::{self, Span, Splice, quote};

use crate::listing::Definition;

const NATIVE: &str = "dev.goblin/native";
const SERVER: &str = "dev.goblin/server";
/// The member that Claude Code reads.
const ALWAYS_LOAD: &str = "anthropic/alwaysLoad";

/// Returns the definition under its exposed name. `expose_uri` maps the URIs in its `_meta`.
pub fn exposed(definition: &Definition, name: &str, server: &str, expose_uri: impl Fn(&str) -> String) -> Bytes {
    let text = definition.raw.as_str();
    let whole = json::whole(text);
    let mut edits = Splice::new();
    if name != &*definition.native {
        edits.replace(definition.native_at, quote(name));
        add_origin(text, whole, &definition.native, server, &mut edits);
    }
    for at in ui_uris(text, whole) {
        if let Some(native) = json::string(text, at) {
            edits.replace(at, quote(&expose_uri(&native)));
        }
    }
    edits.apply(definition.raw.bytes())
}

/// Returns an exposed definition under another name. Profiles use this.
pub fn renamed(definition: &Bytes, name: &str, native: &str, server: &str) -> Bytes {
    let Ok(text) = std::str::from_utf8(definition) else { return definition.clone() };
    let whole = json::whole(text);
    let mut edits = Splice::new();
    if let Some(at) = json::member(text, whole, "name") {
        edits.replace(at, quote(name));
        add_origin(text, whole, native, server, &mut edits);
    }
    edits.apply(definition)
}

/// Returns a definition with another description.
pub(crate) fn redescribed(definition: &Bytes, description: &str) -> Bytes {
    let Ok(text) = std::str::from_utf8(definition) else { return definition.clone() };
    let whole = json::whole(text);
    let mut edits = Splice::new();
    json::set_members(text, whole, &[("description", quote(description))], &mut edits);
    edits.apply(definition)
}

/// Marks a tool that a client must not defer. A client that defers tools behind a search of its own would otherwise
/// defer the tools that search this catalog.
pub(crate) fn always_loaded(definition: &Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(definition) else { return definition.clone() };
    let mut edits = Splice::new();
    set_meta(text, json::whole(text), &[(ALWAYS_LOAD, "true".to_owned())], &mut edits);
    edits.apply(definition)
}

/// Adapts a tool for versions with a handshake. These versions require an output schema of type object, so any other
/// output schema is removed.
pub fn for_older(definition: &Bytes) -> Bytes {
    const KEY: &str = "outputSchema";
    if memchr::memmem::find(definition, KEY.as_bytes()).is_none() {
        return definition.clone();
    }
    let Ok(text) = std::str::from_utf8(definition) else { return definition.clone() };
    let whole = json::whole(text);
    let is_object = |schema| json::member(text, schema, "type").is_some_and(|kind| kind.get(text) == r#""object""#);
    let mut edits = Splice::new();
    if json::member(text, whole, KEY).is_some_and(|schema| !is_object(schema)) {
        json::cut_members(text, whole, |key| key == KEY, &mut edits);
    }
    edits.apply(definition)
}

/// Adapts a tool for versions without a handshake. These versions declare tasks in another way, so `execution` is
/// removed.
pub fn for_newer(definition: &Bytes) -> Bytes {
    const KEY: &str = "execution";
    if memchr::memmem::find(definition, KEY.as_bytes()).is_none() {
        return definition.clone();
    }
    let Ok(text) = std::str::from_utf8(definition) else { return definition.clone() };
    let mut edits = Splice::new();
    json::cut_members(text, json::whole(text), |key| key == KEY, &mut edits);
    edits.apply(definition)
}

/// Reports whether a tool must be called as a task, according to the `execution` member of 2025-11-25.
pub fn requires_task(definition: &Bytes) -> bool {
    if memchr::memmem::find(definition, b"\"taskSupport\"").is_none() {
        return false;
    }
    let Ok(text) = std::str::from_utf8(definition) else { return false };
    let execution = json::member(text, json::whole(text), "execution");
    let support = execution.and_then(|execution| json::member(text, execution, "taskSupport"));
    support.is_some_and(|support| support.get(text) == "\"required\"")
}

/// Returns the URIs in a definition's `_meta`.
pub fn mentioned(definition: &Definition) -> Vec<String> {
    let text = definition.raw.as_str();
    ui_uris(text, json::whole(text)).into_iter().filter_map(|at| json::string(text, at)).map(String::from).collect()
}

/// Returns the MIME type of a resource, or `Mime::Unknown` if the definition has none.
pub fn mime(definition: &Definition) -> Mime {
    let text = definition.raw.as_str();
    let mime_type = json::member(text, json::whole(text), "mimeType").and_then(|at| json::string(text, at));
    mime_type.map_or(Mime::Unknown, |text| Mime::parse(&text))
}

/// Returns the spans of `_meta.ui.resourceUri` and its older spelling `_meta["ui/resourceUri"]` in the object at
/// `span`.
pub fn ui_uris(text: &str, span: Span) -> Vec<Span> {
    let Some(meta) = json::member(text, span, "_meta") else { return Vec::new() };
    let new = json::member(text, meta, "ui").and_then(|ui| json::member(text, ui, "resourceUri"));
    let old = json::member(text, meta, "ui/resourceUri");
    new.into_iter().chain(old).filter(|at| at.get(text).starts_with('"')).collect()
}

/// Adds the native name and the server to `_meta`. Replaces the values of a gateway further upstream.
fn add_origin(text: &str, whole: Span, native: &str, server: &str, edits: &mut Splice) {
    set_meta(text, whole, &[(NATIVE, quote(native)), (SERVER, quote(server))], edits);
}

/// Sets members of `_meta`. Adds `_meta` if the definition has none.
fn set_meta(text: &str, whole: Span, members: &[(&str, String)], edits: &mut Splice) {
    let meta = json::member(text, whole, "_meta").filter(|meta| meta.get(text).starts_with('{'));
    let Some(meta) = meta else {
        let before = if json::members(text, whole).next().is_some() { "," } else { "" };
        let written: Vec<_> = members.iter().map(|(key, value)| format!("{}:{value}", quote(key))).collect();
        return edits.insert(whole.end - 1, format!(r#"{before}"_meta":{{{}}}"#, written.join(",")));
    };
    json::set_members(text, meta, members, edits);
}

#[cfg(test)]
mod tests {
    use goblin_wire::Text;

    use super::*;
    use crate::listing::List;

    fn check(raw: &str, expected: &str) {
        let text = Text::new(Bytes::copy_from_slice(raw.as_bytes())).expect("UTF-8");
        let native_at = json::member(raw, json::whole(raw), List::Tools.key()).expect("a name");
        let native = json::string(raw, native_at).expect("a string").into();
        let definition = Definition { raw: text, native, native_at };
        let shown = exposed(&definition, "s_t", "s", |uri| format!("s+{uri}"));
        assert_eq!(String::from_utf8_lossy(&shown), expected);
    }

    #[test]
    fn reg4_only_the_name_changes_and_the_origin_is_added() {
        check(
            r#"{"x":1.0,"name":"t","inputSchema":{"a":1e3},"é":"\u00e9"}"#,
            r#"{"x":1.0,"name":"s_t","inputSchema":{"a":1e3},"é":"\u00e9","_meta":{"dev.goblin/native":"t","dev.goblin/server":"s"}}"#,
        );
        check(
            r#"{"name":"t","_meta":{}}"#,
            r#"{"name":"s_t","_meta":{"dev.goblin/native":"t","dev.goblin/server":"s"}}"#,
        );
        check(
            r#"{"name":"t","_meta":{"a":1}}"#,
            r#"{"name":"s_t","_meta":{"dev.goblin/native":"t","dev.goblin/server":"s","a":1}}"#,
        );
    }

    #[test]
    fn the_origin_of_an_inner_gateway_is_replaced() {
        check(
            r#"{"name":"t","_meta":{"dev.goblin/native":"deeper","dev.goblin/server":"far"}}"#,
            r#"{"name":"s_t","_meta":{"dev.goblin/native":"t","dev.goblin/server":"s"}}"#,
        );
    }

    #[test]
    fn res4_uris_of_apps_are_mapped_in_both_spellings() {
        check(
            r#"{"name":"t","_meta":{"ui":{"resourceUri":"ui://w"},"ui/resourceUri":"ui://w","other":"ui://w"}}"#,
            r#"{"name":"s_t","_meta":{"dev.goblin/native":"t","dev.goblin/server":"s","ui":{"resourceUri":"s+ui://w"},"ui/resourceUri":"s+ui://w","other":"ui://w"}}"#,
        );
    }

    #[test]
    fn use11_a_tool_is_marked_and_keeps_its_other_bytes() {
        for (definition, expected) in [
            (r#"{"name":"t" , "x":1.0}"#, r#"{"name":"t" , "x":1.0,"_meta":{"anthropic/alwaysLoad":true}}"#),
            (r#"{"name":"t","_meta":{ "a":1e3}}"#, r#"{"name":"t","_meta":{"anthropic/alwaysLoad":true, "a":1e3}}"#),
            (r#"{"_meta":{"anthropic/alwaysLoad":false}}"#, r#"{"_meta":{"anthropic/alwaysLoad":true}}"#),
        ] {
            assert_eq!(always_loaded(&Bytes::from_static(definition.as_bytes())), expected);
        }
    }

    #[test]
    fn an_entry_that_keeps_its_name_keeps_every_byte() {
        check(r#"{"name":"s_t" , "_meta":null}"#, r#"{"name":"s_t" , "_meta":null}"#);
    }

    #[test]
    fn srv7_an_output_schema_that_is_no_object_is_left_out_for_older_clients() {
        let check = |definition: &'static str, expected: &str| {
            assert_eq!(for_older(&Bytes::from_static(definition.as_bytes())), expected);
        };
        check(r#"{"name":"t","outputSchema":{"type":"array"},"x":1}"#, r#"{"name":"t","x":1}"#);
        check(r#"{"name":"t","outputSchema":{"anyOf":[]}}"#, r#"{"name":"t"}"#);
        let object = r#"{"name":"t","outputSchema":{"type":"object","outputSchema":{}}}"#;
        check(object, object);
    }
}
