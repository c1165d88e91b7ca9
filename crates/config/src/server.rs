//! Reads the servers of the file and checks their ids.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;

use crate::field::{ConfigPart, Field, Section};
use crate::problem::{Fault, quoted};
use crate::schema::ObjectKeys;
use crate::{
    Files, HttpKind, Namespacing, Protocol, Server, ServerId, Sharing, Transport, inherit, lists, roots, rules,
    sharing, transport,
};

/// The length limit of a prefix. Longer names would be cut anyway.
const MAX_PREFIX_LENGTH: usize = 64;
/// The shortest poll interval. A shorter one would keep the server busy with reads alone.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);

const MATCH_CLIENT: &str = "match-client";
pub(crate) const PROTOCOLS: [(&str, Protocol); 4] = [
    ("auto", Protocol::Auto),
    ("legacy", Protocol::Legacy),
    ("modern", Protocol::Modern),
    (MATCH_CLIENT, Protocol::Auto),
];

pub(crate) fn servers(field: &Field<'_>, namespacing: &Namespacing) -> IndexMap<ServerId, Arc<Server>> {
    let mut servers = IndexMap::new();
    let mut folded_ids = HashMap::new();
    let Some(section) = field.map() else {
        return servers;
    };
    for (name, field) in section.fields() {
        let id = check_id(name, &field, &mut folded_ids);
        let part = ConfigPart::Server(name.to_owned());
        let server = field.context().within(part, || server(name, &field, namespacing));
        if let (Some(id), Some(server)) = (id, server) {
            servers.insert(id, Arc::new(server));
        }
    }
    servers
}

/// Withholds variables from each server: those with tokens of the gateway, and those that other parts of the file
/// expand.
pub(crate) fn withhold(field: &Field<'_>, servers: &mut IndexMap<ServerId, Arc<Server>>) {
    let expansions = field.context().expansions.borrow();
    let tokens: Vec<&str> = expansions.of(|part| *part == ConfigPart::Token).collect();
    let Some(section) = field.is_object().then(|| field.map()).flatten() else { return };
    for (name, field) in section.fields() {
        let entry = field.is_object().then(|| field.map()).flatten();
        if let Some(inherit) = entry.and_then(|entry| entry.get("inherit")) {
            inherit::report_tokens(&inherit, |name| tokens.contains(&name));
        }
        let own = ConfigPart::Server(name.to_owned());
        let own_names: Vec<&str> = expansions.of(|part| *part == own).collect();
        let elsewhere = expansions.of(|part| *part != own).filter(|name| !own_names.contains(name));
        let Some(server) = servers.get_mut(name) else { continue };
        if let Transport::Stdio { inherit, .. } = &mut Arc::make_mut(server).transport {
            inherit.withhold(tokens.iter().copied(), elsewhere);
        }
    }
}

/// Checks an id. `folded_ids` maps each folded form to its id, to detect duplicates (D1).
fn check_id<'a>(name: &'a str, field: &Field<'a>, folded_ids: &mut HashMap<String, &'a str>) -> Option<ServerId> {
    let id = match ServerId::new(name) {
        Ok(id) => id,
        Err(error) => {
            field.key_problem(Fault::new(error.to_string()));
            return None;
        }
    };
    let folded = id.folded();
    if let Some(other) = folded_ids.get(&folded).filter(|other| **other != name) {
        let message = format!("{} and {} are both \"{folded}\" in URIs", quoted(other), quoted(name));
        field.key_problem(Fault::new(message).cure("give one of them another id"));
        return None;
    }
    folded_ids.insert(folded, name);
    Some(id)
}

fn server(name: &str, field: &Field<'_>, namespacing: &Namespacing) -> Option<Server> {
    let section = field.section(ObjectKeys::Server)?;
    let transport = transport::transport(&section);
    // The remaining members are read even without a transport, to report their problems too.
    let unknown = Transport::Files(Files::at(PathBuf::new()));
    let mut server = Server::new(name, unknown, namespacing.clone());
    section.set(&mut server.protocol, "protocol", |field| protocol(field, transport.as_ref()));
    server.session = sharing::session(&section, transport.as_ref());
    if server.session == Sharing::Shared && matches!(transport, Some(Transport::Stdio { .. })) {
        warn_of_one_process(&section);
    }
    section.set(&mut server.declare, "declare", sharing::declare);
    section.set(&mut server.roots, "roots", roots::roots);
    section.set(&mut server.max_clients, "maxClients", Field::count);
    section.set(&mut server.namespacing, "namespacing", |field| rules::namespacing(field, namespacing));
    section.set(&mut server.prefix, "prefix", |field| field.accept(check_prefix(field.text()?, MAX_PREFIX_LENGTH)));
    section.set(&mut server.timeout, "timeout", |field| field.timeout_or_milliseconds().map(Some));
    section.set(&mut server.poll, "poll", poll);
    section.set(&mut server.refresh, "refresh", lists::refresh);
    section.set(&mut server.unlisted, "unlisted", |field| lists::unlisted(field, transport.as_ref()));
    section.set(&mut server.validate, "validate", Field::flag);
    server.tools = rules::tools(&section, server.namespacing.max_length);
    server.prompts = rules::prompts(&section, server.namespacing.max_length);
    server.enabled = enabled(&section);
    server.resources = rules::resources(&section);
    server.transport = transport?;
    if field.context().is_misconfigured() {
        // Parts with faults are missing in the transport, so take the target from the file.
        server.transport = transport::misconfigured(&section, server.transport.kind_name());
    }
    Some(server)
}

/// Reads `protocol`. Servers of type `files` and `sse` support only versions with a handshake.
fn protocol(field: &Field<'_>, transport: Option<&Transport>) -> Option<Protocol> {
    let protocol = field.choice(&PROTOCOLS)?;
    let kind = match transport {
        Some(Transport::Files(_)) => "files",
        Some(Transport::Http { kind: HttpKind::Sse, .. }) => "sse",
        _ => return Some(protocol),
    };
    let fault = || Fault::new(format!("a server of type {kind} has no version without a handshake"));
    let is_wrong = protocol == Protocol::Modern;
    field.accept(if is_wrong { Err(fault().cure("use \"auto\" or \"legacy\"")) } else { Ok(protocol) })
}

/// Warns if `protocol` requests a second connection to a stdio server that clients share (D17).
fn warn_of_one_process(section: &Section<'_>) {
    if let Some(field) = section.get("protocol").filter(|field| field.is_text(MATCH_CLIENT)) {
        let fault = Fault::new("a stdio server has one process, which serves the clients of both eras in one of them");
        field.warning(fault.cure("use \"auto\", or add \"session\": \"per-client\""));
    }
}

/// Reads `enabled`, or `disabled`, its opposite in the files of other clients.
fn enabled(section: &Section<'_>) -> bool {
    if let (Some(_), Some(disabled)) = (section.get("enabled"), section.get("disabled")) {
        disabled.key_problem(Fault::new("\"disabled\" is the opposite of \"enabled\"").cure("keep one"));
    }
    let mut enabled = true;
    section.set(&mut enabled, "enabled", Field::flag);
    section.set(&mut enabled, "disabled", |field| field.flag().map(|disabled| !disabled));
    enabled
}

fn poll(field: &Field<'_>) -> Option<Option<Duration>> {
    let poll = field.duration()?;
    let wrong = || Fault::new("is too short").cure("use at least \"100ms\"");
    field.accept(if poll < MIN_POLL_INTERVAL { Err(wrong()) } else { Ok(Some(poll)) })
}

pub(crate) fn check_prefix(text: &str, max_length: usize) -> Result<String, Fault> {
    if text.len() > max_length {
        return Err(Fault::new(format!("must have at most {max_length} characters")));
    }
    if !text.chars().all(rules::is_name_character) {
        return Err(Fault::new("may contain only letters, digits, \"_\" and \"-\""));
    }
    Ok(text.to_owned())
}
