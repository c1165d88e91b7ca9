//! The content of a file with a listing, and the identity of the server that it belongs to.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use goblin_catalog::listing::{Definition, List, Listing, read_entries, weight};
use goblin_config::{Server, Sharing, Transport};
use goblin_wire::json::{self, quote};
use goblin_wire::memory::{BufferKind, Memory};
use goblin_wire::{Dialect, Hello, MAX_LIST_ENTRIES, Message, Outcome, units};

use crate::upstream::fetch::{COPIES, MAX_LIST_BYTES, MAX_TEMPLATES, SHORT_LIST, remove_misannotated};

/// The version of the file format. A file of another version is ignored.
const FORMAT: &str = "1";

/// Returns the parts of the configuration that decide which server answers, and how. A process also depends on the
/// variables that it inherits by name, so `environment` has the variables of the gateway. Returns `None` if the listing
/// of the server is not cached.
pub(super) fn identity(
    server: &str,
    config: &Server,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Option<Vec<u8>> {
    if config.session == Sharing::PerClient {
        return None;
    }
    let mut identity = Vec::new();
    let mut add = |part: &[u8]| {
        identity.extend_from_slice(&(part.len() as u64).to_be_bytes());
        identity.extend_from_slice(part);
    };
    add(server.as_bytes());
    match &config.transport {
        Transport::Stdio { command, args, env, inherit, cwd } => {
            add(b"stdio");
            add(&(args.len() as u64).to_be_bytes());
            std::iter::once(command).chain(args).for_each(|word| add(word.value().as_bytes()));
            for (name, value) in env {
                add(name.as_bytes());
                add(value.expose().as_bytes());
            }
            add(format!("{inherit:?}").as_bytes());
            let mut inherited: Vec<_> = environment.filter(|(name, _)| inherit.adds(name)).collect();
            inherited.sort();
            for (name, value) in inherited {
                add(name.as_bytes());
                add(value.as_bytes());
            }
            add(cwd.as_os_str().as_bytes());
        }
        Transport::Http { kind, url, headers, ca, oauth: _ } => {
            add(format!("{kind:?}").as_bytes());
            add(url.value().as_bytes());
            for (name, value) in headers {
                add(name.as_bytes());
                add(value.expose().as_bytes());
            }
            add(format!("{ca:?}").as_bytes());
        }
        Transport::Files(_) | Transport::Misconfigured(_) => return None,
    }
    add(format!("{:?} {:?} {:?}", config.protocol, config.declare, config.roots).as_bytes());
    Some(identity)
}

/// Returns a listing as a response of a server: the result of `initialize` with the lists as further members. Returns
/// `None` for a listing without a connection.
pub(super) fn body(listing: &Listing) -> Option<String> {
    let hello = listing.hello.as_ref()?;
    let mut body = format!(
        r#"{{"jsonrpc":"2.0","id":0,"result":{{"format":{FORMAT},"protocolVersion":{},"capabilities":{},"serverInfo":{{"name":{}}},"listsHandshake":{}"#,
        quote(hello.dialect.as_str()),
        capabilities(hello),
        quote(&hello.software),
        hello.lists_handshake
    );
    if let Some(instructions) = &hello.instructions {
        body += &format!(r#","instructions":{}"#, quote(instructions));
    }
    for list in List::ALL {
        body += &format!(r#",{}:["#, quote(list.member()));
        for (index, entry) in listing.get(list).iter().enumerate() {
            body += if index == 0 { "" } else { "," };
            body += entry.raw.as_str();
        }
        body += "]";
    }
    body += "}}";
    Some(body)
}

/// Writes capabilities so that [`Hello::read`] returns them again.
fn capabilities(hello: &Hello) -> String {
    let known = hello.capabilities;
    let unknown = &hello.unknown;
    let mut members = Vec::new();
    let mut add = |is_declared: bool, key: &str, value: String| {
        if is_declared {
            members.push(format!("{}:{value}", quote(key)));
        }
    };
    add(known.tools, "tools", format!(r#"{{"listChanged":{}}}"#, known.tools_change));
    add(known.prompts, "prompts", format!(r#"{{"listChanged":{}}}"#, known.prompts_change));
    let resources = format!(r#"{{"listChanged":{},"subscribe":{}}}"#, known.resources_change, known.subscribe);
    add(known.resources, "resources", resources);
    add(known.completions, "completions", "{}".to_owned());
    add(known.logging, "logging", "{}".to_owned());
    add(known.tasks, "tasks", r#"{"requests":{"tools":{"call":{}}}}"#.to_owned());
    let object = |members: &str| format!("{{{}}}", members.trim_start_matches(','));
    add(!unknown.experimental.is_empty(), "experimental", object(&unknown.experimental));
    let extensions = hello.extensions.clone().or_else(|| Some(object(&unknown.extensions)).filter(|it| it != "{}"));
    add(extensions.is_some(), "extensions", extensions.unwrap_or_default());
    members.extend(Some(unknown.others.trim_start_matches(',').to_owned()).filter(|others| !others.is_empty()));
    format!("{{{}}}", members.join(","))
}

/// Parses the content of a file with the limits for a listing from a server. `is_http` reports whether the server is
/// reached over HTTP.
pub(super) fn parse(body: Bytes, memory: &Arc<Memory>, is_http: bool) -> Result<Listing, String> {
    let Ok(Message::Response(response)) = Message::parse(body) else { return Err("the file is no listing".to_owned()) };
    let Outcome::Result(result) = response.outcome else { return Err("the file has no lists".to_owned()) };
    let text = response.raw.as_str();
    let member = |key: &str| json::member(text, result, key);
    if member("format").is_none_or(|format| format.get(text) != FORMAT) {
        return Err("the file is of another version of goblin".to_owned());
    }
    let version = member("protocolVersion").and_then(|at| json::string(text, at));
    let dialect = version.and_then(|version| Dialect::parse(&version)).ok_or("the file has no protocol version")?;
    let lists_handshake = member("listsHandshake").is_some_and(|at| at.get(text) == "true");
    // Like `Link::repeats_arguments`.
    let repeats_arguments = is_http && !dialect.has_handshake();
    let hello = Hello { lists_handshake, ..Hello::read(text, result, dialect) };
    let mut listing = Listing { hello: Some(Arc::new(hello)), ..Listing::default() };
    for list in List::ALL {
        let mut entries: Vec<Definition> = Vec::new();
        read_entries(&response.raw, result, list, &mut entries);
        let limit = if list == List::Templates { MAX_TEMPLATES } else { MAX_LIST_ENTRIES };
        if entries.len() > limit {
            return Err(format!("the file has more than {limit} {}s", list.noun()));
        }
        if list == List::Tools && repeats_arguments {
            remove_misannotated(&mut entries);
        }
        if list == List::Resources && entries.len() > SHORT_LIST {
            entries.sort_by(|one, other| one.native.cmp(&other.native));
        }
        let reserved = memory.reserve(BufferKind::Listings, COPIES * weight(&entries));
        listing.set(
            list,
            entries,
            reserved.map_err(|full| format!("maxMemory is {}", units::bytes(full.value as u64)))?,
        );
    }
    match listing.weight() > MAX_LIST_BYTES {
        true => Err(format!("the lists take more than {}", units::bytes(MAX_LIST_BYTES as u64))),
        false => Ok(listing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Listing, String> {
        parse(Bytes::from(text.to_owned()), &Arc::default(), false)
    }

    #[test]
    fn use4_a_listing_survives_its_file() {
        for result in [
            r#""protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{},"x":{"y":1}},"serverInfo":{"name":"a b"},"instructions":"use \"it\"","tools":[{"name":"t","inputSchema":{"b": 1.50}}],"prompts":[],"resources":[],"resourceTemplates":[]"#,
            r#""protocolVersion":"2026-07-28","listsHandshake":true,"capabilities":{"resources":{"subscribe":true},"extensions":{"e/x":{}},"experimental":{"q":1}},"serverInfo":{"name":"a"},"resources":[{"uri":"x:1"}]"#,
        ] {
            let first =
                parsed(&format!(r#"{{"jsonrpc":"2.0","id":0,"result":{{"format":1,{result}}}}}"#)).expect("valid");
            let again = parsed(&body(&first).expect("a listing")).expect("valid");
            assert_eq!(first.hello, again.hello);
            assert!(first.is_same(&again) && first.weight() > 0);
        }
    }

    #[test]
    fn use4_only_a_server_that_gets_arguments_in_headers_loses_tools_with_bad_annotations() {
        let tools = r#""tools":[{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"array","x-mcp-header":"A"}}}}]"#;
        for (version, is_http, count) in
            [("2025-11-25", true, 1), ("2025-11-25", false, 1), ("2026-07-28", true, 0), ("2026-07-28", false, 1)]
        {
            let result = format!(r#""format":1,"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},{tools}"#);
            let text = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{{{result}}}}}"#);
            let listing = parse(Bytes::from(text), &Arc::default(), is_http).expect("valid");
            assert_eq!(listing.get(List::Tools).len(), count, "{version} {is_http}");
        }
    }

    #[test]
    fn use4_the_values_of_variables_that_inherit_names_belong_to_the_identity() {
        let file = r#"{"mcpServers":{"a":{"command":"x","inherit":["LOGIN"]}}}"#;
        let origin = goblin_config::file::ConfigOrigin::new("goblin.json", "/");
        let config = goblin_config::parse(file, &origin, &|_| None).expect("valid").config;
        let identity = |login: &str, path: &str| {
            let environment = [("PATH", path), ("LOGIN", login), ("OTHER", login)];
            let environment = environment.map(|(name, value)| (name.into(), value.into()));
            identity("a", &config.servers[0], environment.into_iter())
        };
        assert!(identity("one", "/bin").is_some());
        assert_eq!(identity("one", "/bin"), identity("one", "/usr/bin"));
        assert_ne!(identity("one", "/bin"), identity("two", "/bin"));
    }

    #[test]
    fn use4_other_content_is_rejected() {
        for text in [
            "",
            "{",
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":0,"result":{"format":2,"protocolVersion":"2025-11-25"}}"#,
            r#"{"jsonrpc":"2.0","id":0,"result":{"format":1,"protocolVersion":"1"}}"#,
            r#"{"jsonrpc":"2.0","id":0,"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list"}"#,
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
