//! Finds the blocks of servers in a client's file, with the settings of the file that affect them.

use std::path::PathBuf;

use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use crate::import::{Client, Ground, Scope, Source};
use crate::tree::Tree;
use crate::vocabulary;

/// Servers from one object of a file.
pub(crate) struct Block {
    pub scope: Scope,
    /// The directory that the client starts the servers in, if it uses one.
    pub project: Option<PathBuf>,
    pub servers: Vec<(String, Tree)>,
    /// The inputs that VS Code prompts the user for, by id.
    pub inputs: Vec<(String, Tree)>,
}

pub(crate) fn blocks(source: &Source, text: &str, ground: &Ground) -> Result<Vec<Block>, String> {
    let root = parse(source.client, text)?;
    let project = source.project.clone();
    let scope = if project.is_some() { Scope::Project } else { Scope::User };
    let mut blocks = Vec::new();
    if source.client == Client::ClaudeCode
        && let Some((directory, settings)) = own_project(&root, ground)
    {
        let servers = servers(settings)?;
        blocks.push(Block { scope: Scope::Local, project: Some(directory), servers, inputs: Vec::new() });
    }
    // Older versions of VS Code keep the servers in the settings file.
    let home = root.get("mcp").filter(|inner| source.client == Client::VsCode && inner.get("servers").is_some());
    let home = home.unwrap_or(&root);
    let mut servers = servers(home)?;
    if source.client == Client::Gemini {
        switch_off(&mut servers, &root);
    }
    blocks.push(Block { scope, project, servers, inputs: inputs(home) });
    Ok(blocks)
}

fn parse(client: Client, text: &str) -> Result<Tree, String> {
    if client == Client::Codex {
        // The parser's own message spans several lines and quotes the file, which may contain secrets.
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            format!("is not TOML near line {line}")
        })?;
        return Ok(Tree::of_toml(&toml::Value::Table(table)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default());
    let parsed = parsed.map_err(|error| format!("is not JSON: {} in line {}", error.kind(), error.line_display()))?;
    Ok(parsed.value.as_ref().map_or(Tree::Object(Vec::new()), Tree::of_json))
}

fn servers(root: &Tree) -> Result<Vec<(String, Tree)>, String> {
    let block = vocabulary::SERVERS.iter().find_map(|name| Some((name, root.get(name)?)));
    match block {
        None | Some((_, Tree::Null)) => Ok(Vec::new()),
        Some((_, Tree::Object(servers))) => Ok(servers.clone()),
        Some((name, _)) => Err(format!("{name} is not an object")),
    }
}

/// Returns the settings that Claude Code stores for the nearest project directory at or above the working directory.
fn own_project<'a>(root: &'a Tree, ground: &Ground) -> Option<(PathBuf, &'a Tree)> {
    let projects = root.get("projects")?;
    ground.here.ancestors().find_map(|directory| Some((directory.to_owned(), projects.get(directory.to_str()?)?)))
}

fn inputs(root: &Tree) -> Vec<(String, Tree)> {
    let Some(Tree::List(inputs)) = root.get("inputs") else { return Vec::new() };
    inputs.iter().filter_map(|input| Some((input.get("id")?.as_text()?.to_owned(), input.clone()))).collect()
}

/// Disables the servers that Gemini's separate lists `allowed` and `excluded` turn off.
fn switch_off(servers: &mut [(String, Tree)], root: &Tree) {
    let names = |list: &str| match root.get("mcp").and_then(|inner| inner.get(list)) {
        Some(Tree::List(names)) => Some(names.iter().filter_map(Tree::as_text).collect::<Vec<_>>()),
        _ => None,
    };
    let (allowed, excluded) = (names("allowed"), names("excluded").unwrap_or_default());
    for (name, server) in servers {
        let is_off = excluded.contains(&name.as_str())
            || allowed.as_ref().is_some_and(|allowed| !allowed.contains(&name.as_str()));
        if let Tree::Object(members) = server
            && is_off
        {
            members.retain(|(member, _)| member != "disabled");
            members.push(("disabled".to_owned(), Tree::Flag(true)));
        }
    }
}
