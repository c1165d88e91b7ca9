//! The definitions of the gateway's own tools. They are part of the context of every agent, so the texts are short.
//!
//! The texts have `@` in place of the name prefix.

use bytes::Bytes;

use crate::meta::{MetaTool, ResultLimit};

/// The key in `_meta` that identifies the tool. It does not depend on the prefix.
pub(crate) const KEY: &str = "dev.goblin/meta";

const SERVER: &str = r#""serverId":{"type":"string","description":"only of this server"}"#;
const CURSOR: &str = r#""cursor":{"type":"string","description":"nextCursor of the page before"}"#;

/// The parts of a definition that differ between the tools. The schemas are JSON members separated by commas.
struct DefinitionText {
    title: &'static str,
    description: &'static str,
    arguments: String,
    required: &'static str,
    result: String,
    result_required: &'static str,
}

pub(crate) fn definition(tool: MetaTool, prefix: &str) -> Bytes {
    let DefinitionText { title, description, arguments, required, result, result_required } = words(tool);
    let name = tool.name();
    let required = if required.is_empty() { String::new() } else { format!(r#","required":[{required}]"#) };
    // The called tool may do anything and may return anything.
    let (output, hints) = match tool {
        MetaTool::CallTool => (String::new(), r#""readOnlyHint":false"#),
        _ => (
            format!(r#""outputSchema":{{"type":"object","properties":{{{result}}},"required":[{result_required}]}},"#),
            r#""readOnlyHint":true,"openWorldHint":false"#,
        ),
    };
    format!(
        concat!(
            r#"{{"name":"@{}","title":"{}","description":"{}","#,
            r#""inputSchema":{{"type":"object","properties":{{{}}}{},"additionalProperties":false}},"#,
            r#"{}"annotations":{{{}}},"_meta":{{"{}":"{}"}}}}"#
        ),
        name, title, description, arguments, required, output, hints, KEY, name,
    )
    .replace('@', prefix)
    .into()
}

fn words(tool: MetaTool) -> DefinitionText {
    match tool {
        MetaTool::ListServers => DefinitionText {
            title: "List servers",
            description: "The servers behind this gateway: state, and how much each offers.",
            arguments: String::new(),
            required: "",
            result: list("servers", "serverId state tools prompts resources templates", ""),
            result_required: r#""servers","total""#,
        },
        MetaTool::CatalogTools => DefinitionText {
            title: "List all tools",
            description: "All tools as short cards, page by page. To find one, @search_tools costs less.",
            arguments: paged(),
            required: "",
            result: list("tools", "name serverId", PAGED),
            result_required: r#""tools","total""#,
        },
        MetaTool::SearchTools => DefinitionText {
            title: "Search tools",
            description: "Finds tools by what they do, best first. Then @describe_tool tells the arguments and @call_tool calls.",
            arguments: searched("what the tool should do, in a few words"),
            required: r#""query""#,
            result: list("tools", "name serverId", NOTE),
            result_required: r#""tools","total""#,
        },
        MetaTool::DescribeTool => DefinitionText {
            title: "Describe a tool",
            description: "One tool's whole definition: description, arguments, result.",
            arguments: string("name", "as found or listed"),
            required: r#""name""#,
            result: described("tool"),
            result_required: r#""tool""#,
        },
        MetaTool::CallTool => DefinitionText {
            title: "Call a tool",
            description: "Calls a tool by name, listed or not; the result is that tool's own.",
            arguments: format!(
                r#"{},"arguments":{{"type":"object","description":"by that tool's inputSchema"}}"#,
                string("name", "as found or listed")
            ),
            required: r#""name""#,
            result: String::new(),
            result_required: "",
        },
        MetaTool::CatalogPrompts => DefinitionText {
            title: "List all prompts",
            description: "All prompts as short cards, page by page.",
            arguments: paged(),
            required: "",
            result: list("prompts", "name serverId", PAGED),
            result_required: r#""prompts","total""#,
        },
        MetaTool::SearchPrompts => DefinitionText {
            title: "Search prompts",
            description: "Finds prompts by what they are for, best first.",
            arguments: searched("a few words"),
            required: r#""query""#,
            result: list("prompts", "name serverId", NOTE),
            result_required: r#""prompts","total""#,
        },
        MetaTool::DescribePrompt => DefinitionText {
            title: "Describe a prompt",
            description: "One prompt's whole definition.",
            arguments: string("name", "as found or listed"),
            required: r#""name""#,
            result: described("prompt"),
            result_required: r#""serverId","prompt""#,
        },
        MetaTool::CatalogResources => DefinitionText {
            title: "List all resources",
            description: "All resources as short cards, page by page.",
            arguments: paged(),
            required: "",
            result: list("resources", "uri id name serverId", PAGED),
            result_required: r#""resources","total""#,
        },
        MetaTool::SearchResources => DefinitionText {
            title: "Search resources",
            description: "Finds resources and templates of resources by name, description and URI, best first.",
            arguments: format!(
                r#"{},"mimeType":{{"type":"string","description":"such as text/plain or text/*"}}"#,
                searched("a few words")
            ),
            required: r#""query""#,
            result: format!(
                "{},{}",
                array("templates", "uriTemplate name serverId"),
                list("resources", "uri id name serverId", NOTE)
            ),
            result_required: r#""resources","templates","total""#,
        },
        MetaTool::DescribeResource => DefinitionText {
            title: "Describe a resource",
            description: "One resource's whole definition. What only a template offers comes with that template.",
            arguments: string("uri", "URI, id, or the server's own URI"),
            required: r#""uri""#,
            result: format!(r#""id":{{"type":"string"}},"template":{{"type":"object"}},{}"#, described("resource")),
            result_required: r#""serverId","id","resource""#,
        },
        MetaTool::CatalogTemplates => DefinitionText {
            title: "List all resource templates",
            description: "All templates of resources with their patterns, page by page.",
            arguments: paged(),
            required: "",
            result: list("templates", "uriTemplate name serverId", PAGED),
            result_required: r#""templates","total""#,
        },
    }
}

const NOTE: &str = r#","note":{"type":"string"}"#;
const PAGED: &str = r#","nextCursor":{"type":"string"},"note":{"type":"string"}"#;

fn string(name: &str, description: &str) -> String {
    format!(r#""{name}":{{"type":"string","description":"{description}"}}"#)
}

fn limit(limit: ResultLimit) -> String {
    let ResultLimit { default, most } = limit;
    format!(r#""limit":{{"type":"integer","minimum":1,"maximum":{most},"default":{default}}}"#)
}

fn paged() -> String {
    format!("{SERVER},{},{CURSOR}", limit(ResultLimit::CATALOG))
}

fn searched(query: &str) -> String {
    format!("{},{SERVER},{}", string("query", query), limit(ResultLimit::SEARCH))
}

fn described(member: &str) -> String {
    format!(r#""serverId":{{"type":"string"}},"{member}":{{"type":"object"}}"#)
}

/// Returns the schema of an array of cards with at least these members, followed by the total and `rest`.
fn list(member: &str, keys: &str, rest: &str) -> String {
    format!(r#"{},"total":{{"type":"integer"}}{rest}"#, array(member, keys))
}

fn array(member: &str, keys: &str) -> String {
    let keys: Vec<_> = keys.split_whitespace().map(|key| format!(r#""{key}""#)).collect();
    format!(r#""{member}":{{"type":"array","items":{{"type":"object","required":[{}]}}}}"#, keys.join(","))
}
