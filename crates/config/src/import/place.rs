//! Locates the configuration files of other clients, on Linux and macOS.

use std::path::{Path, PathBuf};

use crate::import::{ClientApp, ClientFile, SearchBase};
use crate::{Environment, file};

/// Returns the possible files of one client. They may not exist.
pub fn sources(client: ClientApp, search_base: &SearchBase, environment: Environment<'_>) -> Vec<ClientFile> {
    let user = user_file(client, &search_base.home, environment);
    let mut sources = Vec::new();
    for directory in project_directories(&search_base.here) {
        if let Some(path) = project_file(client).map(|file| directory.join(file))
            && path != user
        {
            sources.push(ClientFile { client, path, project: Some(directory) });
        }
    }
    sources.push(ClientFile { client, path: user, project: None });
    sources
}

fn project_file(client: ClientApp) -> Option<&'static str> {
    match client {
        ClientApp::ClaudeDesktop | ClientApp::Windsurf => None,
        ClientApp::ClaudeCode => Some(".mcp.json"),
        ClientApp::Cursor => Some(".cursor/mcp.json"),
        ClientApp::VsCode => Some(".vscode/mcp.json"),
        ClientApp::Codex => Some(".codex/config.toml"),
        ClientApp::Gemini => Some(".gemini/settings.json"),
    }
}

fn user_file(client: ClientApp, home: &Path, environment: Environment<'_>) -> PathBuf {
    let applications = if cfg!(target_os = "macos") {
        home.join("Library/Application Support")
    } else {
        file::user_directory(environment).unwrap_or_else(|| home.join(".config"))
    };
    let codex = environment("CODEX_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    match client {
        ClientApp::ClaudeDesktop => applications.join("Claude/claude_desktop_config.json"),
        ClientApp::ClaudeCode => home.join(".claude.json"),
        ClientApp::Cursor => home.join(".cursor/mcp.json"),
        ClientApp::VsCode => applications.join("Code/User/mcp.json"),
        ClientApp::Windsurf => home.join(".codeium/windsurf/mcp_config.json"),
        ClientApp::Codex => codex.unwrap_or_else(|| home.join(".codex")).join("config.toml"),
        ClientApp::Gemini => home.join(".gemini/settings.json"),
    }
}

/// Returns the working directory, and the root of its repository if that is another directory.
fn project_directories(here: &Path) -> Vec<PathBuf> {
    let mut directories = vec![here.to_owned()];
    let top = here.ancestors().find(|directory| directory.join(".git").exists());
    directories.extend(top.filter(|top| *top != here).map(Path::to_owned));
    directories
}

/// Returns the project that a given file belongs to, if the file is at its usual path inside a project.
pub fn project_of(client: ClientApp, path: &Path, home: &Path) -> Option<PathBuf> {
    let file = Path::new(project_file(client)?);
    let directory = path.ancestors().nth(file.components().count())?;
    (path.ends_with(file) && directory != home).then(|| directory.to_owned())
}

/// Guesses the client from the file name, otherwise from the content.
pub fn guess(path: &Path, text: &str) -> ClientApp {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    match (parent, name) {
        (_, "claude_desktop_config.json") => ClientApp::ClaudeDesktop,
        (_, ".mcp.json" | ".claude.json") => ClientApp::ClaudeCode,
        (_, "mcp_config.json") => ClientApp::Windsurf,
        (".cursor", _) => ClientApp::Cursor,
        (".vscode" | "User", _) => ClientApp::VsCode,
        (".gemini", _) => ClientApp::Gemini,
        _ if name.ends_with(".toml") => ClientApp::Codex,
        _ if text.contains("\"serverUrl\"") => ClientApp::Windsurf,
        _ if text.contains("\"httpUrl\"") => ClientApp::Gemini,
        _ if text.contains("\"servers\"") => ClientApp::VsCode,
        _ if text.contains("${env:") => ClientApp::Cursor,
        // The format of Claude Code is the common base of the other formats.
        _ => ClientApp::ClaudeCode,
    }
}
