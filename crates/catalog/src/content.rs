//! The changes to the content of a result: mapped URIs (RES-4), and replacements for content that an older client
//! cannot parse (SRV-7). All other parts of a result pass without being parsed.

use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::modern::{FRESHNESS, IDENTITY, SERVER_INFO};
use goblin_wire::{Dialect, Keyword, Method};

use crate::definition::ui_uris;

/// Returns the positions of URIs in the result of `method`. A result without the bytes `uri"` or `Uri"` is not parsed.
fn uris(method: &Method, text: &str, result: Span) -> Vec<Span> {
    if !may_hold_uris(result.get(text)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    match method {
        Method::ResourcesRead => {
            let contents = json::member(text, result, "contents");
            let contents = contents.into_iter().flat_map(|contents| json::elements(text, contents));
            found.extend(contents.filter_map(|content| json::member(text, content, "uri")));
        }
        Method::ToolsCall | Method::PromptsGet | Method::Sample => {
            found.extend(blocks(method, text, result).into_iter().filter_map(|block| block_uri(text, block)));
        }
        _ => return found,
    }
    found.extend(ui_uris(text, result));
    found.retain(|at| at.get(text).starts_with('"'));
    found
}

/// Reports whether a key that ends in `uri` or `Uri` may occur. The scan is much cheaper than parsing a large result.
fn may_hold_uris(result: &str) -> bool {
    static END: Keyword = Keyword::new("ri\"");
    END.positions(result).any(|at| at > 0 && matches!(result.as_bytes()[at - 1], b'u' | b'U'))
}

/// Returns the content blocks of a tool result, of a prompt's messages or of a sampling request.
fn blocks(method: &Method, text: &str, result: Span) -> Vec<Span> {
    match method {
        Method::ToolsCall => json::member(text, result, "content")
            .into_iter()
            .flat_map(|content| json::elements(text, content))
            .collect(),
        Method::PromptsGet => contents(text, result).flat_map(|content| one_or_many(text, content)).collect(),
        Method::Sample => {
            let own: Vec<_> = contents(text, result).flat_map(|content| one_or_many(text, content)).collect();
            // A tool result inside a message contains further blocks.
            let nested = own.iter().filter(|block| kind(text, **block).is_some_and(|kind| kind == "tool_result"));
            let nested = nested.filter_map(|block| json::member(text, *block, "content"));
            let nested: Vec<_> = nested.flat_map(|content| one_or_many(text, content)).collect();
            [own, nested].concat()
        }
        _ => Vec::new(),
    }
}

/// Returns the content of each message.
fn contents(text: &str, result: Span) -> impl Iterator<Item = Span> {
    let messages = json::member(text, result, "messages");
    let messages = messages.into_iter().flat_map(|messages| json::elements(text, messages));
    messages.filter_map(|message| json::member(text, message, "content"))
}

fn one_or_many(text: &str, content: Span) -> Vec<Span> {
    match content.get(text).as_bytes().first() {
        Some(b'[') => json::elements(text, content).collect(),
        _ => vec![content],
    }
}

/// Returns the changes to a server request for a client. Before 2025-11-25 a sampling message had one block instead of
/// a list, so a list of one block becomes that block.
pub fn server_request_edits(
    dialect: Dialect,
    method: &Method,
    text: &str,
    params: Span,
    expose: impl FnMut(&str) -> String,
) -> Splice {
    if *method != Method::Sample {
        return Splice::new();
    }
    let mut edits = edits(dialect, method, text, params, expose);
    if !dialect.has_content_lists() {
        for content in contents(text, params).filter(|content| content.get(text).starts_with('[')) {
            let mut blocks = json::elements(text, content);
            if let (Some(block), None) = (blocks.next(), blocks.next()) {
                edits.replace(Span { start: content.start, end: block.start }, "");
                edits.replace(Span { start: block.end, end: content.end }, "");
            }
        }
    }
    edits
}

/// Returns the changes to an elicitation form for 2025-06-18, which has one mode and choices without titles of their
/// own. Returns `None` for a form with multiple choices, which that version cannot express.
pub fn plain_form(text: &str, params: Span) -> Option<Splice> {
    let mut edits = Splice::new();
    json::cut_members(text, params, |key| key == "mode", &mut edits);
    let properties =
        json::member(text, params, "requestedSchema").and_then(|form| json::member(text, form, "properties"));
    for property in properties.into_iter().flat_map(|properties| json::members(text, properties)) {
        if json::member(text, property.value, "type").is_some_and(|kind| kind.get(text) == r#""array""#) {
            return None;
        }
        for member in json::members(text, property.value).filter(|member| member.key(text) == "oneOf") {
            let choices = |key: &str| {
                let choice = |choice| json::member(text, choice, key).map_or("null", |at| at.get(text));
                json::elements(text, member.value).map(choice).collect::<Vec<_>>().join(",")
            };
            let plain = format!(r#""enum":[{}],"enumNames":[{}]"#, choices("const"), choices("title"));
            edits.replace(Span { start: member.key.start, end: member.value.end }, plain);
        }
    }
    Some(edits)
}

fn kind<'a>(text: &'a str, block: Span) -> Option<std::borrow::Cow<'a, str>> {
    json::member(text, block, "type").and_then(|at| json::string(text, at))
}

fn block_uri(text: &str, block: Span) -> Option<Span> {
    match &*kind(text, block)? {
        "resource_link" => json::member(text, block, "uri"),
        "resource" => json::member(text, json::member(text, block, "resource")?, "uri"),
        _ => None,
    }
}

/// Returns text replacements for the blocks that `dialect` does not support. `expose` maps URIs.
fn downgrade(
    dialect: Dialect,
    method: &Method,
    text: &str,
    result: Span,
    expose: impl Fn(&str) -> String,
) -> Vec<(Span, String)> {
    if dialect.has_resource_links() && dialect.has_audio() {
        return Vec::new();
    }
    let string = |block, key| json::member(text, block, key).and_then(|at| json::string(text, at));
    let replace = |block: Span| {
        let replacement = match &*kind(text, block)? {
            "resource_link" if !dialect.has_resource_links() => {
                let name = string(block, "name").map(|name| format!("{name}: ")).unwrap_or_default();
                format!("{name}{}", expose(&string(block, "uri")?))
            }
            "audio" if !dialect.has_audio() => {
                format!("[audio content of type {} omitted]", string(block, "mimeType").unwrap_or_default())
            }
            _ => return None,
        };
        Some((block, format!(r#"{{"type":"text","text":{}}}"#, quote(&replacement))))
    };
    blocks(method, text, result).into_iter().filter_map(replace).collect()
}

/// Returns all changes to a result for a client. `expose` maps a backend's URI and may record it.
pub fn edits(
    dialect: Dialect,
    method: &Method,
    text: &str,
    result: Span,
    mut expose: impl FnMut(&str) -> String,
) -> Splice {
    let mut exposed = Vec::new();
    for at in uris(method, text, result) {
        if let Some(native) = json::string(text, at) {
            exposed.push((at, native.to_string(), expose(&native)));
        }
    }
    let known = |native: &str| {
        let same = exposed.iter().find(|(_, known, _)| known == native);
        same.map_or_else(|| native.to_owned(), |(_, _, exposed)| exposed.clone())
    };
    let replaced = downgrade(dialect, method, text, result, known);
    let mut edits = Splice::new();
    // A URI that stays the same keeps the backend's spelling.
    for (at, native, uri) in &exposed {
        let inside = replaced.iter().any(|(block, _)| block.start <= at.start && at.end <= block.end);
        if !inside && uri != native {
            edits.replace(*at, quote(uri));
        }
    }
    for (block, with) in replaced {
        edits.replace(block, with);
    }
    edits
}

/// Returns every `uri` in a result of an unknown method, at any depth. The client may read these resources, even if no list
/// has them.
pub fn mentioned_uris(text: &str, result: Span) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = if may_hold_uris(result.get(text)) { vec![result] } else { Vec::new() };
    while let Some(span) = open.pop() {
        if span.get(text).starts_with('[') {
            open.extend(json::elements(text, span));
        } else if span.get(text).starts_with('{') {
            for member in json::members(text, span) {
                match json::string(text, member.value) {
                    Some(uri) if member.key(text) == "uri" => found.push(uri.into_owned()),
                    Some(_) => {}
                    None => open.push(member.value),
                }
            }
        }
    }
    found
}

/// Adds the result type for a client that requires it, to a result of a backend without result types. The type is
/// `complete`. If a freshness is required, the result is stale at once.
pub fn add_result_type(method: &Method, text: &str, result: Span, edits: &mut Splice) {
    static RESULT_TYPE: Keyword = Keyword::new("\"resultType\"");
    static META: Keyword = Keyword::new("\"_meta\"");
    let whole = result.get(text);
    if !whole.starts_with('{') || RESULT_TYPE.is_in(whole) && json::member(text, result, "resultType").is_some() {
        return;
    }
    let freshness = if *method == Method::ResourcesRead { FRESHNESS } else { "" };
    let identity = match META.is_in(whole) && json::member(text, result, "_meta").is_some() {
        true => String::new(),
        false => format!(r#","_meta":{{"{SERVER_INFO}":{IDENTITY}}}"#),
    };
    json::prepend(text, result, &format!(r#""resultType":"complete"{freshness}{identity}"#), edits);
}

/// Removes result types for a client without them. Also removes `structuredContent` that is no object, because such a
/// client would reject the whole result. `content` holds the same information.
pub fn remove_foreign(has_result_type: bool, method: &Method, text: &str, result: Span, edits: &mut Splice) {
    const STRUCTURE: &str = "structuredContent";
    static STRUCTURED: Keyword = Keyword::new(STRUCTURE);
    let structure = (*method == Method::ToolsCall && STRUCTURED.is_in(result.get(text)))
        .then(|| json::member(text, result, STRUCTURE));
    let is_not_object = structure.flatten().is_some_and(|at| !at.get(text).starts_with('{'));
    if !is_not_object && !has_result_type {
        return;
    }
    let mut inside = Splice::new();
    let meta = json::member(text, result, "_meta").filter(|meta| has_result_type && meta.get(text).starts_with('{'));
    let remaining = meta.map(|meta| json::cut_members(text, meta, |key| key == SERVER_INFO, &mut inside));
    // Remove `_meta` as well if this was its only member.
    let is_emptied = remaining == Some(0) && !inside.is_empty();
    if !is_emptied {
        edits.append(inside);
    }
    let is_cut = |key: &str| match key {
        STRUCTURE => is_not_object,
        "resultType" | "ttlMs" | "cacheScope" => has_result_type,
        "_meta" => is_emptied,
        _ => false,
    };
    json::cut_members(text, result, is_cut, edits);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn check(dialect: Dialect, method: &Method, result: &str, expected: &str) {
        let mut splice = edits(dialect, method, result, json::whole(result), |uri| format!("s+{uri}"));
        if dialect.has_handshake() {
            remove_foreign(false, method, result, json::whole(result), &mut splice);
        }
        let changed = splice.apply(&Bytes::copy_from_slice(result.as_bytes()));
        assert_eq!(String::from_utf8_lossy(&changed), expected);
    }

    #[test]
    fn d13_every_uri_of_an_unknown_result_is_found() {
        let text =
            r#"{"skills":[{"uri":"skill://a","files":{"uri":"skill://b"}},{"url":"no"}],"uri":"skill://c","n":1}"#;
        let mut found = mentioned_uris(text, json::whole(text));
        found.sort();
        assert_eq!(found, ["skill://a", "skill://b", "skill://c"]);
    }

    #[test]
    fn res4_uris_are_mapped_where_they_name_resources_and_nowhere_else() {
        check(
            Dialect::V2025_11_25,
            &Method::ToolsCall,
            r#"{"content":[{"type":"resource_link","uri":"a:1","x":{"uri":"a:1"}},{"type":"resource","resource":{"uri":"a:2","text":"uri\""}},{"type":"text","text":"a:1","uri":"a:3"}],"structuredContent":{"uri":"a:1"},"_meta":{"uri":"a:1","ui":{"resourceUri":"ui://w"}}}"#,
            r#"{"content":[{"type":"resource_link","uri":"s+a:1","x":{"uri":"a:1"}},{"type":"resource","resource":{"uri":"s+a:2","text":"uri\""}},{"type":"text","text":"a:1","uri":"a:3"}],"structuredContent":{"uri":"a:1"},"_meta":{"uri":"a:1","ui":{"resourceUri":"s+ui://w"}}}"#,
        );
        check(
            Dialect::V2025_11_25,
            &Method::ResourcesRead,
            r#"{"contents":[{"uri":"a:1","text":"x"},{"blob":"","uri":"a:2"}]}"#,
            r#"{"contents":[{"uri":"s+a:1","text":"x"},{"blob":"","uri":"s+a:2"}]}"#,
        );
        check(
            Dialect::V2025_11_25,
            &Method::PromptsGet,
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:1"}}},{"content":[{"type":"resource_link","uri":"a:2"}]}]}"#,
            r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"s+a:1"}}},{"content":[{"type":"resource_link","uri":"s+a:2"}]}]}"#,
        );
        let completion = r#"{"completion":{"values":["uri"],"uri":"a:1"}}"#;
        check(Dialect::V2025_11_25, &Method::Complete, completion, completion);
    }

    #[test]
    fn srv7_older_clients_get_content_they_can_parse() {
        let result = r#"{"content":[{"type":"resource_link","uri":"a:1","name":"n"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},{"type":"text","text":"t"}]}"#;
        check(
            Dialect::V2024_11_05,
            &Method::ToolsCall,
            result,
            r#"{"content":[{"type":"text","text":"n: s+a:1"},{"type":"text","text":"[audio content of type audio/wav omitted]"},{"type":"text","text":"t"}]}"#,
        );
        check(
            Dialect::V2025_03_26,
            &Method::ToolsCall,
            result,
            r#"{"content":[{"type":"text","text":"n: s+a:1"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},{"type":"text","text":"t"}]}"#,
        );
        check(Dialect::V2025_06_18, &Method::ToolsCall, result, &result.replace("a:1", "s+a:1"));
    }

    #[test]
    fn results_of_unexpected_shape_pass_unchanged() {
        for result in [
            r#"{"content":{"uri":"x"}}"#,
            r#"{"content":[{"type":"resource_link","uri":7},{"type":"resource","resource":null},null,3,{"type":9,"uri":"x"}]}"#,
            r#"{"contents":"uri"}"#,
            "null",
            "[]",
        ] {
            for method in [Method::ToolsCall, Method::PromptsGet, Method::ResourcesRead] {
                check(Dialect::V2024_11_05, &method, result, result);
            }
        }
    }

    #[test]
    fn res4_uris_in_sampling_messages_are_mapped_and_older_clients_get_one_block() {
        let check = |dialect: Dialect, params: &str, expected: &str| {
            let edits =
                server_request_edits(dialect, &Method::Sample, params, json::whole(params), |uri| format!("x+{uri}"));
            assert_eq!(edits.apply(&params.to_owned().into()), expected);
        };
        let link = r#"{"type":"resource_link","uri":"a:b"}"#;
        let nested = format!(r#"{{"messages":[{{"content":[{{"type":"tool_result","content":[{link}]}},{link}]}}]}}"#);
        check(Dialect::V2025_11_25, &nested, &nested.replace("a:b", "x+a:b"));
        let text = r#"{"messages":[{"content":[ {"type":"text","text":"uri"} ]}],"uri":"a:b"}"#;
        check(Dialect::V2025_11_25, text, text);
        check(Dialect::V2025_06_18, text, r#"{"messages":[{"content":{"type":"text","text":"uri"}}],"uri":"a:b"}"#);
        let form = r#"{"messages":[{"content":[{"type":"resource_link","uri":"a:b"}]}]}"#;
        assert!(
            server_request_edits(Dialect::V2024_11_05, &Method::Elicit, form, json::whole(form), str::to_owned)
                .is_empty()
        );
    }

    #[test]
    fn srv7_structured_content_that_is_no_object_is_removed_for_older_clients() {
        let check = |dialect: Dialect, result: &str, expected: &str| {
            let mut edits = edits(dialect, &Method::ToolsCall, result, json::whole(result), str::to_owned);
            if dialect.has_handshake() {
                remove_foreign(false, &Method::ToolsCall, result, json::whole(result), &mut edits);
            }
            assert_eq!(edits.apply(&result.to_owned().into()), expected);
        };
        let list = r#"{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1],"x":"structuredContent"}"#;
        check(Dialect::V2025_11_25, list, r#"{"content":[{"type":"text","text":"[1]"}],"x":"structuredContent"}"#);
        check(Dialect::V2026_07_28, list, list);
        let object = r#"{"structuredContent":{"structuredContent":[1]}}"#;
        check(Dialect::V2025_06_18, object, object);
        check(Dialect::V2025_06_18, r#"{"structuredContent":null}"#, "{}");
    }

    #[test]
    fn srv2_a_result_for_modern_clients_gets_its_result_type() {
        let check = |method: &Method, result: &str, expected: &str| {
            let mut edits = Splice::new();
            add_result_type(method, result, json::whole(result), &mut edits);
            let identity = format!(r#""_meta":{{"{SERVER_INFO}":{IDENTITY}}}"#);
            assert_eq!(edits.apply(&result.to_owned().into()), expected.replace("IDENTITY", &identity), "{result}");
        };
        check(&Method::ToolsCall, "{}", r#"{"resultType":"complete",IDENTITY}"#);
        check(&Method::ToolsCall, r#"{"_meta":{"a":1}}"#, r#"{"resultType":"complete","_meta":{"a":1}}"#);
        let read = r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private",IDENTITY,"contents":[]}"#;
        check(&Method::ResourcesRead, r#"{"contents":[]}"#, read);
        let typed = r#"{"x":"resultType","resultType":"task"}"#;
        check(&Method::ToolsCall, typed, typed);
        check(&Method::ToolsCall, "null", "null");
    }

    #[test]
    fn srv7_modern_result_members_are_removed_for_older_clients() {
        let check = |result: &str, expected: &str| {
            let mut edits = Splice::new();
            remove_foreign(true, &Method::ToolsCall, result, json::whole(result), &mut edits);
            assert_eq!(edits.apply(&result.to_owned().into()), expected, "{result}");
        };
        check(r#"{"resultType":"complete"}"#, "{}");
        check(r#"{"structuredContent":[1],"resultType":"complete","content":[]}"#, r#"{"content":[]}"#);
        check(
            r#"{"a":1,"_meta":{"io.modelcontextprotocol/serverInfo":{}},"ttlMs":1,"cacheScope":"public"}"#,
            r#"{"a":1}"#,
        );
        let kept = r#"{"_meta":{"x":{"ttlMs":1}},"structuredContent":{"resultType":1}}"#;
        check(kept, kept);
        check(r#"{"_meta":{},"resultType":"complete"}"#, r#"{"_meta":{}}"#);
    }

    #[test]
    fn an_elicitation_form_gets_plain_choices_for_older_clients_if_possible() {
        let check = |params: &str, expected: Option<&str>| {
            let plain = plain_form(params, json::whole(params)).map(|edits| edits.apply(&params.to_owned().into()));
            assert_eq!(plain.as_deref(), expected.map(str::as_bytes), "{params}");
        };
        check(
            r#"{"mode":"form","message":"m","requestedSchema":{"properties":{"c":{"type":"string","oneOf":[{"const":"a","title":"A"},{"const":"b","title":"B"}]}}}}"#,
            Some(
                r#"{"message":"m","requestedSchema":{"properties":{"c":{"type":"string","enum":["a","b"],"enumNames":["A","B"]}}}}"#,
            ),
        );
        let plain = r#"{"message":"m","requestedSchema":{"properties":{"n":{"type":"number"}}}}"#;
        check(plain, Some(plain));
        check(r#"{"requestedSchema":{"properties":{"c":{"type":"array","items":{"enum":["a"]}}}}}"#, None);
    }
}
