//! Finds the blocks of servers in a client's file, with the settings of the file that affect them.

use std::path::PathBuf;

use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::import::{ClientApp, ClientFile, Scope, SearchBase};
use crate::tree::JsonTree;
use crate::vocabulary;

/// Servers from one object of a file.
pub(crate) struct ServerBlock {
    pub scope: Scope,
    /// The directory that the client starts the servers in, if it uses one.
    pub project: Option<PathBuf>,
    pub servers: Vec<(String, JsonTree)>,
    /// The inputs that VS Code prompts the user for, by id.
    pub inputs: Vec<(String, JsonTree)>,
}

pub(crate) fn blocks(source: &ClientFile, text: &str, search_base: &SearchBase) -> Result<Vec<ServerBlock>, String> {
    let root = parse(source.client, text)?;
    let project = source.project.clone();
    let scope = if project.is_some() { Scope::Project } else { Scope::User };
    let mut blocks = Vec::new();
    if source.client == ClientApp::ClaudeCode
        && let Some((directory, settings)) = own_project(&root, search_base)
    {
        let servers = servers(settings)?;
        blocks.push(ServerBlock { scope: Scope::Local, project: Some(directory), servers, inputs: Vec::new() });
    }
    // Older versions of VS Code keep the servers in the settings file.
    let home = root.get("mcp").filter(|inner| source.client == ClientApp::VsCode && inner.get("servers").is_some());
    let home = home.unwrap_or(&root);
    let mut servers = servers(home)?;
    if source.client == ClientApp::Gemini {
        switch_off(&mut servers, &root);
    }
    blocks.push(ServerBlock { scope, project, servers, inputs: inputs(home) });
    Ok(blocks)
}

fn parse(client: ClientApp, text: &str) -> Result<JsonTree, String> {
    if client == ClientApp::Codex {
        // The parser's own message spans several lines and quotes the file, which may contain secrets.
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            format!("is not TOML near line {line}")
        })?;
        return Ok(JsonTree::of_toml(&toml::Value::Table(table)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    let parsed = parsed.map_err(|error| format!("is not JSON: {} in line {}", error.kind(), error.line_display()))?;
    Ok(parsed.value.as_ref().map_or(JsonTree::Object(Vec::new()), JsonTree::of_json))
}

fn servers(root: &JsonTree) -> Result<Vec<(String, JsonTree)>, String> {
    let block = vocabulary::SERVERS.iter().find_map(|name| Some((name, root.get(name)?)));
    match block {
        None => Ok(bare_servers(root).unwrap_or_default()),
        Some((_, JsonTree::Null)) => Ok(Vec::new()),
        Some((_, JsonTree::Object(servers))) => Ok(servers.clone()),
        Some((name, _)) => Err(format!("{name} is not an object")),
    }
}

/// Returns the members of a file that consists of servers only. Some clients accept such a file.
fn bare_servers(root: &JsonTree) -> Option<Vec<(String, JsonTree)>> {
    let JsonTree::Object(members) = root else { return None };
    let is_server = |member: &JsonTree| {
        member.get("command").is_some() || vocabulary::URL.iter().any(|name| member.get(name).is_some())
    };
    members.iter().all(|(_, member)| is_server(member)).then(|| members.clone())
}

/// Returns the settings that Claude Code stores for the nearest project directory at or above the working directory.
fn own_project<'a>(root: &'a JsonTree, search_base: &SearchBase) -> Option<(PathBuf, &'a JsonTree)> {
    let projects = root.get("projects")?;
    search_base.here.ancestors().find_map(|directory| Some((directory.to_owned(), projects.get(directory.to_str()?)?)))
}

fn inputs(root: &JsonTree) -> Vec<(String, JsonTree)> {
    let Some(JsonTree::List(inputs)) = root.get("inputs") else { return Vec::new() };
    inputs.iter().filter_map(|input| Some((input.get("id")?.as_text()?.to_owned(), input.clone()))).collect()
}

/// Disables the servers that Gemini's separate lists `allowed` and `excluded` turn off.
fn switch_off(servers: &mut [(String, JsonTree)], root: &JsonTree) {
    let names = |list: &str| match root.get("mcp").and_then(|inner| inner.get(list)) {
        Some(JsonTree::List(names)) => Some(names.iter().filter_map(JsonTree::as_text).collect::<Vec<_>>()),
        _ => None,
    };
    let (allowed, excluded) = (names("allowed"), names("excluded").unwrap_or_default());
    for (name, server) in servers {
        let is_off = excluded.contains(&name.as_str())
            || allowed.as_ref().is_some_and(|allowed| !allowed.contains(&name.as_str()));
        if let JsonTree::Object(members) = server
            && is_off
        {
            members.retain(|(member, _)| member != "disabled");
            members.push(("disabled".to_owned(), JsonTree::Flag(true)));
        }
    }
}
