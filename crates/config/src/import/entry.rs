//! Translates one server of another client, member by member, into an entry of goblin's format.

use std::path::Path;

use crate::edit::relative_argument;
use crate::import::block::ServerBlock;
use crate::import::variables::VariableMapper;
use crate::import::{ClientApp, Note, SearchBase};
use crate::schema::ObjectKeys;
use crate::tree::JsonTree;
use crate::{network, transport, vocabulary};

/// Members without meaning for a gateway, in addition to those that goblin's own reader ignores. They get no note.
const SILENT: [&str; 7] = ["version", "dev", "icon", "required", "type", "transport", "default_tools_approval_mode"];

/// Login settings that need a user or a helper program of the client.
const LOGIN: [&str; 8] = [
    "auth",
    "oauth",
    "oauth_resource",
    "scopes",
    "authProviderType",
    "targetAudience",
    "targetServiceAccount",
    "headersHelper",
];

/// The members of the entry, collected before it is built.
#[derive(Default)]
struct EntryParts {
    command: Option<JsonTree>,
    args: Option<JsonTree>,
    env: Vec<(String, JsonTree)>,
    inherit: Option<JsonTree>,
    cwd: Option<JsonTree>,
    url: Option<JsonTree>,
    headers: Vec<(String, JsonTree)>,
    is_off: bool,
    timeout: Option<JsonTree>,
    allow: Option<JsonTree>,
    deny: Option<JsonTree>,
}

/// Returns the entry. Returns `None` after adding a note.
pub(crate) fn entry(
    client: ClientApp,
    server: &JsonTree,
    block: &ServerBlock,
    search_base: &SearchBase,
    notes: &mut Vec<Note>,
) -> Option<JsonTree> {
    let JsonTree::Object(members) = server else {
        notes.push(Note::new("", "not imported: the entry is not an object"));
        return None;
    };
    let is_sse = is_sse(client, server);
    notes.extend(note_unknown_type(server));
    let mut reader =
        EntryReader { variables: VariableMapper { client, block, search_base }, parts: EntryParts::default(), notes };
    for (name, value) in members {
        reader.member(name, value);
    }
    let mut parts = reader.parts;
    if parts.command.is_some() && parts.cwd.is_none() {
        parts.cwd = block.project.as_ref().map(|directory| path(directory));
    }
    let entry = parts.into_tree(is_sse);
    if let Some(argument) = relative_argument(&entry) {
        let why = format!("{argument} is relative to the directory of goblin.json");
        notes.push(Note::new("args", why).cure("add a cwd or write an absolute path"));
    }
    Some(entry)
}

fn is_known_kind(kind: &str) -> bool {
    transport::KINDS.iter().any(|(known, _)| *known == kind)
}

fn kind(server: &JsonTree) -> Option<&str> {
    vocabulary::TYPE.iter().find_map(|name| server.get(name)).and_then(JsonTree::as_text)
}

/// Returns a note if the server has an unknown type and the other members decide its kind.
fn note_unknown_type(server: &JsonTree) -> Option<Note> {
    let is_unknown = kind(server).is_some_and(|kind| !is_known_kind(kind));
    is_unknown.then(|| Note::new("type", "unknown type; the other members determine the transport"))
}

/// Reports whether the server uses HTTP+SSE. Gemini means HTTP+SSE by `url`, unless a type or `httpUrl` is present.
fn is_sse(client: ClientApp, server: &JsonTree) -> bool {
    match kind(server) {
        Some(kind) => kind == "sse",
        None => client == ClientApp::Gemini && server.get("url").is_some() && server.get("httpUrl").is_none(),
    }
}

fn path(path: &Path) -> JsonTree {
    JsonTree::text(path.display().to_string().replace("${", "$${"))
}

struct EntryReader<'a, 'n> {
    variables: VariableMapper<'a>,
    parts: EntryParts,
    notes: &'n mut Vec<Note>,
}

impl EntryReader<'_, '_> {
    fn member(&mut self, name: &str, value: &JsonTree) {
        match name {
            _ if *value == JsonTree::Null => {}
            "command" => self.parts.command = self.text(name, value),
            "args" => self.parts.args = self.texts(name, value),
            "env" => self.parts.env = self.map(name, value),
            // Codex passes these variables on to the server.
            "env_vars" => self.parts.inherit = self.names(name, value),
            "cwd" => self.parts.cwd = self.directory(name, value),
            "url" | "serverUrl" | "httpUrl" => {
                // Gemini prefers `httpUrl` if both are present.
                if self.parts.url.is_none() || name == "httpUrl" {
                    self.parts.url = self.text(name, value);
                }
            }
            "headers" | "http_headers" => {
                let headers = self.map(name, value);
                self.headers(name, headers);
            }
            "env_http_headers" => {
                let headers = self.map(name, value).into_iter();
                let headers = headers.map(|(header, variable)| (header, refer("", &variable))).collect();
                self.headers(name, headers);
            }
            "bearer_token_env_var" => {
                let header = ("Authorization".to_owned(), refer("Bearer ", value));
                self.headers(name, vec![header]);
            }
            "disabled" => self.parts.is_off |= *value == JsonTree::Flag(true),
            "enabled" => self.parts.is_off |= *value == JsonTree::Flag(false),
            "timeout" => self.parts.timeout = self.duration(name, value, 1.0),
            "tool_timeout_sec" => self.parts.timeout = self.duration(name, value, 1000.0),
            "includeTools" | "enabled_tools" => self.parts.allow = self.names(name, value),
            "excludeTools" | "disabled_tools" | "disabledTools" => self.parts.deny = self.names(name, value),
            _ => self.other(name),
        }
    }

    /// Adds a note for a member without an equivalent.
    fn other(&mut self, name: &str) {
        let note = |why: &str, cure: &str| Some(Note::new(name, why).cure(cure));
        let found = match name {
            _ if SILENT.contains(&name) || ObjectKeys::Server.ignores(name) => None,
            _ if LOGIN.contains(&name) => note("login is not supported yet", "put a token into headers.Authorization"),
            "envFile" => note("variable files are not read", "write the variables into env, or export them"),
            "startup_timeout_sec" | "startup_timeout_ms" => {
                note("all servers share one start timeout", "set policies.startTimeout")
            }
            // Codex uses this member only for approval settings.
            "tools" if self.variables.client == ClientApp::Codex => None,
            "tcp" => note("WebSocket is not available", "check whether the server has a Streamable HTTP address"),
            _ => Some(Note::new(name, "goblin has no equivalent")),
        };
        self.notes.extend(found);
    }

    fn wrong<T>(&mut self, name: &str, expected: &str) -> Option<T> {
        self.notes.push(Note::new(name, format!("left out: not {expected}")));
        None
    }

    fn text(&mut self, name: &str, value: &JsonTree) -> Option<JsonTree> {
        match value {
            JsonTree::Text(text) => Some(JsonTree::text(self.variables.translate(name, text, self.notes))),
            // A number or boolean without quotes is meant as text in a member that only accepts text.
            JsonTree::Number(number) => Some(JsonTree::text(number)),
            JsonTree::Flag(flag) => Some(JsonTree::text(flag.to_string())),
            _ => self.wrong(name, "text"),
        }
    }

    fn texts(&mut self, name: &str, value: &JsonTree) -> Option<JsonTree> {
        let JsonTree::List(elements) = value else { return self.wrong(name, "a list") };
        Some(JsonTree::List(elements.iter().filter_map(|element| self.text(name, element)).collect()))
    }

    fn map(&mut self, name: &str, value: &JsonTree) -> Vec<(String, JsonTree)> {
        let JsonTree::Object(members) = value else { return self.wrong(name, "an object").unwrap_or_default() };
        let read = |(key, value): &(String, JsonTree)| Some((key.clone(), self.text(&format!("{name}.{key}"), value)?));
        members.iter().filter_map(read).collect()
    }

    /// Returns a list of names unchanged. The other client takes names literally, not as patterns.
    fn names(&mut self, name: &str, value: &JsonTree) -> Option<JsonTree> {
        match value {
            JsonTree::List(names) if names.iter().all(|name| name.as_text().is_some()) => Some(value.clone()),
            _ => self.wrong(name, "a list of names"),
        }
    }

    /// Returns an absolute directory. A relative path starts at the project, or at the working directory.
    fn directory(&mut self, name: &str, value: &JsonTree) -> Option<JsonTree> {
        let text = self.text(name, value)?;
        let text = text.as_text()?;
        if let Some(rest) = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            return Some(JsonTree::text(format!("${{HOME}}{rest}")));
        }
        if text.starts_with(['/', '$']) {
            return Some(JsonTree::text(text));
        }
        let (block, search_base) = (self.variables.block, self.variables.search_base);
        let base = block.project.as_ref().unwrap_or(&search_base.here);
        let whole: std::path::PathBuf = base.join(text).components().collect();
        if block.project.is_none() {
            let why = format!(
                "{text} depends on the directory where the client starts, and is written as {}",
                whole.display()
            );
            self.notes.push(Note::new(name, why).cure("write another directory if that is wrong"));
        }
        Some(path(&whole))
    }

    /// Adds headers. Leaves out headers that the gateway sets itself, because goblin's reader rejects them.
    fn headers(&mut self, name: &str, headers: Vec<(String, JsonTree)>) {
        for (header, value) in headers {
            if network::is_own_header(&header) {
                let why = "left out: the gateway sets this header itself";
                self.notes.push(Note::new(format!("{name}.{header}"), why));
            } else {
                self.parts.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&header));
                self.parts.headers.push((header, value));
            }
        }
    }

    fn duration(&mut self, name: &str, value: &JsonTree, milliseconds_each: f64) -> Option<JsonTree> {
        let number = match value {
            JsonTree::Number(number) => number.parse::<f64>().ok(),
            _ => None,
        };
        let Some(milliseconds) = number.map(|number| number * milliseconds_each).filter(|number| *number >= 0.0) else {
            return self.wrong(name, "a number");
        };
        let milliseconds = milliseconds.round() as u64;
        Some(JsonTree::text(if milliseconds.is_multiple_of(1000) {
            format!("{}s", milliseconds / 1000)
        } else {
            format!("{milliseconds}ms")
        }))
    }
}

/// Returns a reference to a variable, given its name.
fn refer(before: &str, variable: &JsonTree) -> JsonTree {
    JsonTree::text(format!("{before}${{{}}}", variable.as_text().unwrap_or_default()))
}

impl EntryParts {
    /// Returns the entry with the members that are present, in the order of the documentation.
    fn into_tree(self, is_sse: bool) -> JsonTree {
        let object = |members: Vec<(String, JsonTree)>| (!members.is_empty()).then_some(JsonTree::Object(members));
        let rules = [("allow", self.allow), ("deny", self.deny)];
        let rules = rules.into_iter().filter_map(|(name, names)| Some((name.to_owned(), names?))).collect();
        let members = [
            ("type", is_sse.then(|| JsonTree::text("sse"))),
            ("command", self.command),
            ("args", self.args.filter(|args| *args != JsonTree::List(Vec::new()))),
            ("env", object(self.env)),
            ("inherit", self.inherit),
            ("cwd", self.cwd),
            ("url", self.url),
            ("headers", object(self.headers)),
            ("enabled", self.is_off.then_some(JsonTree::Flag(false))),
            ("timeout", self.timeout),
            ("tools", object(rules)),
        ];
        JsonTree::object(members.into_iter().filter_map(|(name, value)| Some((name, value?))))
    }
}
