//! Translates variable references of other clients into goblin's syntax.
//!
//! Each client has its own syntax: `${env:X}`, `$X`, `${workspaceFolder}`, `${input:id}`, or none. Text that a client
//! does not expand must stay unexpanded here. A `${` without meaning to the client therefore becomes `$${`.

use std::path::Path;

use crate::expand::is_variable_name;
use crate::import::block::ServerBlock;
use crate::import::{ClientApp, Note, SearchBase};
use crate::mask;
use crate::tree::JsonTree;

pub(crate) struct VariableMapper<'a> {
    pub(crate) client: ClientApp,
    pub(crate) block: &'a ServerBlock,
    pub(crate) search_base: &'a SearchBase,
}

impl VariableMapper<'_> {
    /// Returns the text of `member` in goblin's syntax.
    pub(crate) fn translate(&self, member: &str, text: &str, notes: &mut Vec<Note>) -> String {
        let mut translated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('$') {
            translated.push_str(&rest[..start]);
            rest = &rest[start..];
            let braced = rest.strip_prefix("${").and_then(|inner| inner.split_once('}'));
            if let Some((inner, after)) = braced {
                translated.push_str(&self.braced(member, inner, notes));
                rest = after;
            } else if let Some(name) = self.bare(rest) {
                translated.push_str(&format!("${{{name}}}"));
                rest = &rest[1 + name.len()..];
            } else {
                // An unclosed `${` must be escaped, because goblin rejects it.
                translated.push_str(if rest.starts_with("${") { "$$" } else { "$" });
                rest = &rest[1..];
            }
        }
        translated.push_str(rest);
        translated
    }

    /// Returns the name of a `$NAME` reference, which only Gemini expands.
    fn bare<'t>(&self, text: &'t str) -> Option<&'t str> {
        let inner = &text[1..];
        let end = inner.find(|next: char| !next.is_ascii_alphanumeric() && next != '_').unwrap_or(inner.len());
        (self.client == ClientApp::Gemini && is_variable_name(&inner[..end])).then(|| &inner[..end])
    }

    fn braced(&self, member: &str, inner: &str, notes: &mut Vec<Note>) -> String {
        let known = match self.client {
            ClientApp::ClaudeDesktop | ClientApp::Codex => None,
            ClientApp::ClaudeCode => self.claude_code(member, inner, notes),
            ClientApp::Gemini => is_variable_name(inner.split(":-").next().unwrap_or(inner)).then(|| reference(inner)),
            ClientApp::Windsurf => self.windsurf(inner),
            ClientApp::Cursor | ClientApp::VsCode => self.editor(member, inner, notes),
        };
        known.unwrap_or_else(|| {
            let shown = mask::reference(inner);
            let is_filled_in = matches!(self.client, ClientApp::Cursor | ClientApp::VsCode) && !inner.contains(":-");
            let note = match inner.split_once(':').filter(|_| is_filled_in) {
                Some((kind, _)) => {
                    let why = format!("{} fills in ${{{kind}:...}}, which a gateway cannot do", self.client);
                    Note::new(member, why).cure(format!("replace $${{{kind}:...}} with its value"))
                }
                None => {
                    let why = format!("{} leaves {shown} as it is, so it is written as ${shown}", self.client);
                    Note::new(member, why).cure("remove one $ if a variable was meant")
                }
            };
            notes.push(note);
            format!("$${{{inner}}}")
        })
    }

    fn claude_code(&self, member: &str, inner: &str, notes: &mut Vec<Note>) -> Option<String> {
        let name = inner.split(":-").next().unwrap_or(inner);
        if name == "CLAUDE_PROJECT_DIR" {
            return Some(self.folder(member, inner, notes));
        }
        is_variable_name(name).then(|| reference(inner))
    }

    fn windsurf(&self, inner: &str) -> Option<String> {
        if let Some(path) = inner.strip_prefix("file:") {
            let path = path
                .strip_prefix("~/")
                .map_or_else(|| Path::new(path).to_owned(), |rest| self.search_base.home.join(rest));
            return Some(format!("${{file:{}}}", path.display()));
        }
        inner.strip_prefix("env:").filter(|name| is_variable_name(name)).map(reference)
    }

    /// Translates a reference of an editor. Cursor uses the syntax of VS Code.
    fn editor(&self, member: &str, inner: &str, notes: &mut Vec<Note>) -> Option<String> {
        if let Some(name) = inner.strip_prefix("env:") {
            return is_variable_name(name).then(|| reference(name));
        }
        if let Some(id) = inner.strip_prefix("input:") {
            return Some(self.input(member, id, notes));
        }
        match inner {
            "userHome" => Some(reference("HOME")),
            "pathSeparator" | "/" => Some("/".to_owned()),
            "workspaceFolder" => Some(self.folder(member, inner, notes)),
            "workspaceFolderBasename" => {
                let folder = self.folder(member, inner, notes);
                Some(folder.rsplit('/').next().unwrap_or(&folder).to_owned())
            }
            _ => None,
        }
    }

    /// Returns the directory of the project. A user-level file has no project, so the working directory is used.
    fn folder(&self, member: &str, inner: &str, notes: &mut Vec<Note>) -> String {
        let folder = self.block.project.as_ref().unwrap_or_else(|| {
            let here = self.search_base.here.display();
            let why = format!("${{{inner}}} depends on the open folder, and is written as {here}");
            notes.push(Note::new(member, why).cure("write another directory if that is wrong"));
            &self.search_base.here
        });
        folder.display().to_string().replace("${", "$${")
    }

    /// Returns a variable reference in place of an input that the editor prompts the user for.
    fn input(&self, member: &str, id: &str, notes: &mut Vec<Note>) -> String {
        let mut name: String = id
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' })
            .collect();
        if !is_variable_name(&name) {
            name.insert(0, '_');
        }
        let input = self.block.inputs.iter().find(|(known, _)| known == id).map(|(_, input)| input);
        let text = |key: &str| input.and_then(|input| input.get(key)).and_then(JsonTree::as_text);
        let description = text("description").map(|description| format!(" ({description})")).unwrap_or_default();
        let why = format!("a gateway cannot prompt for {id}{description}, so the value is the variable {name}");
        notes.push(Note::new(member, why).cure(format!("export {name}=...")));
        match text("default").filter(|default| !default.is_empty() && !default.contains(['}', '$'])) {
            Some(default) => reference(&format!("{name}:-{default}")),
            None => reference(&name),
        }
    }
}

fn reference(name: &str) -> String {
    format!("${{{name}}}")
}
