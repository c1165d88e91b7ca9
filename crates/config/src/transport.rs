//! Reads the transport of a server: a command to start, a URL to call, or a directory that the gateway serves.
//!
//! All parts are always read, so their problems are reported for every type. The type then selects one part, and a
//! member of another part is a problem.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use goblin_wire::json::quote;

use crate::expand::ExpandedText;
use crate::field::{Field, Section};
use crate::inherit::Inherit;
use crate::misconfigured::Misconfiguration;
use crate::oauth::OAuthOptions;
use crate::problem::Fault;
use crate::schema::ObjectKeys;
use crate::secret::Secret;
use crate::target::{self, Target};
use crate::vocabulary::{FILES_MEMBERS, HTTP_MEMBERS, SERVER_REQUEST_MEMBERS, STDIO_MEMBERS};
use crate::{Files, HttpKind, Transport, command_line, inherit, mask, network, oauth, vocabulary};

#[derive(Clone, Copy)]
pub(crate) enum TransportKind {
    Stdio,
    Http(HttpKind),
    Files,
}

impl TransportKind {
    fn as_str(self) -> &'static str {
        match self {
            TransportKind::Stdio => "stdio",
            TransportKind::Http(HttpKind::Sse) => "sse",
            TransportKind::Http(HttpKind::Streamable | HttpKind::Unspecified) => "http",
            TransportKind::Files => "files",
        }
    }
}

pub(crate) const KINDS: [(&str, TransportKind); 6] = [
    ("stdio", TransportKind::Stdio),
    ("http", TransportKind::Http(HttpKind::Streamable)),
    ("sse", TransportKind::Http(HttpKind::Sse)),
    ("files", TransportKind::Files),
    ("streamable-http", TransportKind::Http(HttpKind::Streamable)),
    ("streamableHttp", TransportKind::Http(HttpKind::Streamable)),
];

/// Reads the transport. Returns `None` after reporting a problem.
pub(crate) fn transport(section: &Section<'_>) -> Option<Transport> {
    let stdio = stdio(section);
    let address = address(section);
    let files = files(section);
    let kind = kind(section)?;
    let transport = match kind {
        TransportKind::Stdio => {
            reject_members(section, &HTTP_MEMBERS, "stdio");
            reject_members(section, &FILES_MEMBERS, "stdio");
            require(section, &["command"]);
            stdio
        }
        TransportKind::Http(http_kind) => {
            let kind_name = kind.as_str();
            reject_members(section, &STDIO_MEMBERS, kind_name);
            reject_members(section, &FILES_MEMBERS, kind_name);
            require(section, &vocabulary::URL);
            let Address { url, headers, ca, oauth } = address;
            url.map(|url| Transport::Http { kind: http_kind, url, headers, ca, oauth })
        }
        TransportKind::Files => {
            reject_members(section, &STDIO_MEMBERS, "files");
            reject_members(section, &HTTP_MEMBERS, "files");
            reject_members(section, &SERVER_REQUEST_MEMBERS, "files");
            Some(Transport::Files(files))
        }
    };
    let is_misconfigured = section.field().context().is_misconfigured();
    transport.or_else(|| is_misconfigured.then(|| misconfigured(section, kind.as_str())))
}

/// Returns the transport of a server that needs a variable or a file that is missing. The reader adds the problems when
/// it knows their positions.
pub(crate) fn misconfigured(section: &Section<'_>, kind: &'static str) -> Transport {
    Transport::Misconfigured(Misconfiguration { kind, target: written_target(section), problems: Vec::new() })
}

/// Returns the target of an entry with references that cannot be expanded.
fn written_target(section: &Section<'_>) -> Target {
    let written = |field: Option<Field<'_>>| field.and_then(|field| field.written().map(str::to_owned));
    if let Some(command) = section.get("command") {
        // The faults of an object are reported by `stdio`.
        let object = Some(&command).filter(|command| command.is_object()).and_then(Field::map);
        let program =
            object.as_ref().map_or_else(|| written(Some(command.clone())), |object| written(object.get("path")));
        let args = object.as_ref().unwrap_or(section).get("args").filter(Field::is_array);
        let args = args.and_then(|args| args.list(|argument| Some(argument.written().unwrap_or_default())));
        return Target::command(&program.unwrap_or_default(), args.unwrap_or_default().into_iter());
    }
    let url = vocabulary::URL.iter().find_map(|name| section.get(name));
    match (url, written(section.get("root"))) {
        (Some(url), _) => Target::url(url.written().unwrap_or_default()),
        (None, Some(root)) => Target::directory(&root),
        (None, None) => Target::directory(&section.field().context().origin.directory.display().to_string()),
    }
}

/// Returns the type from the file. If it is absent, the other members determine the type.
fn kind(section: &Section<'_>) -> Option<TransportKind> {
    if let Some(field) = section.one_of(&vocabulary::TYPE) {
        return field.choice(&KINDS);
    }
    let has = |names: &[&str]| names.iter().any(|name| section.get(name).is_some());
    let fault = match (has(&["command"]), has(&vocabulary::URL), has(&["root"])) {
        (true, false, false) => return Some(TransportKind::Stdio),
        (false, true, false) => return Some(TransportKind::Http(HttpKind::Unspecified)),
        (false, false, true) => return Some(TransportKind::Files),
        (true, true, false) => Fault::new("has both a command and a url").cure("keep one"),
        (_, _, true) => Fault::new("has both a root and a command or a url").cure("keep one"),
        (false, false, false) => Fault::new("has neither a command nor a url").cure("add one, or \"type\": \"files\""),
    };
    section.field().problem(fault);
    None
}

fn reject_members(section: &Section<'_>, members: &[&str], kind: &str) {
    for field in members.iter().filter_map(|member| section.get(member)) {
        field.key_problem(Fault::new(format!("does not belong to a server of type {kind}")).cure("remove it"));
    }
}

fn require(section: &Section<'_>, names: &[&str]) {
    if !names.iter().any(|name| section.get(name).is_some()) {
        section.field().problem(Fault::new(format!("\"{}\" is missing", names[0])));
    }
}

fn stdio(section: &Section<'_>) -> Option<Transport> {
    let command = section.get("command");
    // Older versions of Zed use one object for the program, its arguments and its environment.
    let object = command.as_ref().filter(|field| field.is_object());
    let inner = object.and_then(|field| field.section(ObjectKeys::Command));
    if inner.is_some() {
        for field in ["args", "env"].iter().filter_map(|member| section.get(member)) {
            field.key_problem(Fault::new("belongs inside \"command\" if that is an object"));
        }
    }
    let source = inner.as_ref().unwrap_or(section);

    let mut args = Vec::new();
    source.set(&mut args, "args", |field| field.list(argument));
    let mut env = BTreeMap::new();
    source.set(&mut env, "env", environment);
    let mut inherit = Inherit::default();
    section.set(&mut inherit, "inherit", inherit::inherit);
    let mut cwd = section.field().context().origin.directory.clone();
    section.set(&mut cwd, "cwd", Field::path);
    let (key, program) = match inner {
        Some(inner) => {
            let path = inner.get("path");
            if path.is_none() {
                inner.field().problem(Fault::new("\"path\" is missing"));
            }
            ("path", path)
        }
        None => ("command", command),
    };
    let program = program?;
    let command = program_name(&program)?;
    program.accept(command_line::check(&command, key, &args, &cwd))?;
    Some(Transport::Stdio { command, args, env, inherit, cwd })
}

fn program_name(field: &Field<'_>) -> Option<ExpandedText> {
    let text = field.expansion()?;
    field.accept(if text.value().trim().is_empty() { Err(Fault::new("must not be empty")) } else { Ok(text) })
}

/// Reads an argument. Some servers expand `~` themselves, so it is only a warning.
fn argument(field: &Field<'_>) -> Option<ExpandedText> {
    let text = field.expansion()?;
    if let Some(path) = command_line::with_home(text.written()) {
        let fault = Fault::new("\"~\" is passed to the server as written");
        field.warning(fault.cure(format!("write {} unless the server expands it", quote(&path))));
    }
    Some(text)
}

fn environment(field: &Field<'_>) -> Option<BTreeMap<String, Secret>> {
    let mut variables = BTreeMap::new();
    for (name, field) in field.map()?.fields() {
        if name.is_empty() || name.contains(['=', '\0']) {
            field.key_problem(Fault::new("is not the name of a variable"));
        } else if let Some(value) = field.expanded() {
            if mask::is_secret_name(name) {
                field.warn_if_literal_secret();
            }
            variables.insert(name.to_owned(), Secret::new(value));
        }
    }
    Some(variables)
}

struct Address {
    /// The URL. `None` if it is missing or has been reported as invalid.
    url: Option<ExpandedText>,
    headers: Vec<(String, Secret)>,
    ca: Option<PathBuf>,
    oauth: Option<OAuthOptions>,
}

fn address(section: &Section<'_>) -> Address {
    let url = section.one_of(&vocabulary::URL).and_then(|field| {
        let url = field.expansion()?;
        field.accept(network::check_url(url.value())).map(|()| url)
    });
    let mut headers = Vec::new();
    section.set(&mut headers, "headers", self::headers);
    let mut ca = None;
    section.set(&mut ca, "tls", tls);
    let oauth = oauth::oauth(section, &headers);
    Address { url, headers, ca, oauth }
}

fn files(section: &Section<'_>) -> Files {
    let mut files = Files::at(section.field().context().origin.directory.clone());
    if let Some(field) = section.get("root")
        && let Some(root) = field.path()
    {
        files.root_text = target::path_text(&root, field.written().unwrap_or_default());
        files.root = root;
    }
    section.set(&mut files.hidden, "hidden", Field::flag);
    section.set(&mut files.ignored, "ignored", Field::flag);
    section.set(&mut files.max_files, "maxFiles", Field::count);
    files
}

fn tls(field: &Field<'_>) -> Option<Option<PathBuf>> {
    let section = field.section(ObjectKeys::Tls)?;
    Some(section.get("ca").and_then(|field| field.path()))
}

fn headers(field: &Field<'_>) -> Option<Vec<(String, Secret)>> {
    let mut headers = Vec::new();
    let mut seen = HashSet::new();
    for (name, field) in field.map()?.fields() {
        let value = header_value(&field);
        let name = match network::check_header_name(name) {
            Ok(name) => name,
            Err(fault) => {
                field.key_problem(fault);
                continue;
            }
        };
        if !seen.insert(name.clone()) {
            field.key_problem(Fault::new("duplicate header").cure("the case of names is ignored, keep one"));
        }
        if network::is_secret_header(&name) {
            field.warn_if_literal_secret();
        }
        headers.extend(value.map(|value| (name, value)));
    }
    Some(headers)
}

fn header_value(field: &Field<'_>) -> Option<Secret> {
    let value = field.expanded()?;
    field.accept(network::check_header_value(&value))?;
    Some(Secret::new(value))
}
