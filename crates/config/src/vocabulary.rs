//! Describes every key of the file: its position, type, default and alternative names.
//!
//! This is the only description of the file. The reader takes its keys and values from here, and the JSON schema is
//! built from it, so the two cannot diverge.
//!
//! There are four kinds of keys. The gateway reads some keys. Aliases are other names for them. Keys of other clients
//! that have no meaning for a gateway are ignored. Keys reserved for later versions are rejected, because a setting
//! without effect would mislead the operator.

use crate::problem::{Fault, quoted};
use crate::{LogFormat, field, read, rules, server, sharing, transport, views};

/// The keys of one object.
pub(crate) struct Keys {
    pub(crate) read: &'static [Key],
    /// Pairs of an alias and the key it means.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    pub(crate) passed_over: &'static [&'static str],
    pub(crate) later: &'static [&'static str],
}

/// One key that is read.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// The default as JSON. Empty if the default cannot be written as a value.
    pub(crate) default: &'static str,
    pub(crate) change: Change,
    pub(crate) doc: &'static str,
}

/// The time at which a change of the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// On reload.
    Live,
    /// At the next start.
    Restart,
}

/// The type of a key's value.
pub(crate) enum Shape {
    Flag,
    /// Text that matches a regular expression. Rust and ECMAScript must interpret the expression alike.
    Text(&'static str),
    /// Text with expanded `${VAR}` references.
    Expanded,
    /// Expanded text that becomes a path.
    Path,
    /// Expanded text that becomes a URL.
    Url,
    /// A whole number with its minimum and maximum.
    Whole(u64, u64),
    Size,
    Duration,
    PositiveDuration,
    /// A duration. A plain number counts milliseconds, as in other clients.
    DurationOrMilliseconds,
    Choice(&'static [&'static str]),
    List(&'static Shape),
    /// An object with keys of the operator's choice.
    Map(&'static Shape),
    Object(&'static Keys),
    Namespacing,
    /// A path or a file URI, which becomes a URI.
    Place,
    Roots,
    /// The servers by id.
    Servers,
    Exposure,
    /// The profiles by name.
    Profiles,
    Either(&'static Shape, &'static Shape),
}

const fn live(name: &'static str, shape: Shape, default: &'static str, doc: &'static str) -> Key {
    Key { name, shape, default, change: Change::Live, doc }
}

const fn restart(name: &'static str, shape: Shape, default: &'static str, doc: &'static str) -> Key {
    Key { name, shape, default, change: Change::Restart, doc }
}

/// Returns the names in a table of choices.
const fn words<T, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = table[index].0;
        index += 1;
    }
    words
}

/// The names of the servers object in goblin and in other clients.
pub(crate) const SERVERS: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp_servers"];
pub(crate) const URL: [&str; 3] = ["url", "serverUrl", "httpUrl"];
pub(crate) const TYPE: [&str; 2] = ["type", "transport"];

/// Members that only one kind of server has.
pub(crate) const STDIO_MEMBERS: [&str; 5] = ["command", "args", "env", "inherit", "cwd"];
pub(crate) const HTTP_MEMBERS: [&str; 5] = ["url", "serverUrl", "httpUrl", "headers", "tls"];
pub(crate) const FILES_MEMBERS: [&str; 4] = ["root", "hidden", "ignored", "maxFiles"];
/// Members of servers that may send requests to clients. The gateway's own file server sends none.
pub(crate) const ASK_MEMBERS: [&str; 2] = ["declare", "roots"];

const COUNT: Shape = Shape::Whole(1, field::LARGEST_COUNT);
const NAME: Shape = Shape::Text("^[A-Za-z0-9_-]{1,128}$");
const URI: Shape = Shape::Text(r"^[A-Za-z][A-Za-z0-9+.-]*:\S+$");
const GLOB: Shape = Shape::Text("^.+$");
const VARIABLES: Shape = Shape::Text(r"^[A-Za-z_][A-Za-z0-9_]*\*?$");
const GLOBS: Shape = Shape::List(&GLOB);
const NAMES: Shape = Shape::Choice(&words(&rules::NAMES));
const NAMING: Shape = Shape::Either(&NAMES, &Shape::Namespacing);
const MODE: Shape = Shape::Choice(&words(&views::MODES));
const EXPOSED: Shape = Shape::Either(&MODE, &Shape::Exposure);

pub(crate) const ROOT: Keys = Keys {
    read: &[
        live("mcpServers", Shape::Servers, "", "the servers by id"),
        restart("gateway", Shape::Object(&GATEWAY), "{}", "the side that clients see"),
        restart("policies", Shape::Object(&POLICIES), "{}", "limits for every server"),
        live("namespacing", NAMING, "\"prefix\"", "how exposed names are made"),
        restart("subscriptions", Shape::Object(&SUBSCRIPTIONS), "{}", "limits of resource subscriptions"),
        restart("exposure", EXPOSED, "\"all\"", "which tools are listed; the others are searched for"),
        restart(
            "metaTools",
            Shape::Either(&Shape::Flag, &Shape::Object(&META_TOOLS)),
            "true",
            "the gateway's own tools to find others with; true or false is short for enabled",
        ),
        restart("profiles", Shape::Profiles, "{}", "named views, each with an endpoint of its own: /mcp/p/NAME"),
        restart("log", Shape::Object(&LOG), "{}", "what is logged on stderr"),
        restart("admin", Shape::Object(&ADMIN), "{}", "what operators are served, and where"),
        restart("telemetry", Shape::Object(&TELEMETRY), "{}", "where traces go"),
    ],
    aliases: &[("servers", "mcpServers"), ("context_servers", "mcpServers"), ("mcp_servers", "mcpServers")],
    passed_over: &["$schema"],
    later: &[],
};

const HOST_NAME: Shape = Shape::Text(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$");
const ORIGIN: Shape = Shape::Text(r"^[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$");

pub(crate) const GATEWAY: Keys = Keys {
    read: &[
        restart(
            "host",
            Shape::Text("^[A-Za-z0-9._:-]+$"),
            "\"127.0.0.1\"",
            "address or host name to listen on; not loopback only together with token",
        ),
        restart("port", Shape::Whole(0, 65535), "3000", "0 takes any free port"),
        restart("tcp", Shape::Flag, "true", "false listens on socket only, not on host and port"),
        restart("socket", Shape::Path, "", "a Unix socket to listen on, for programs of the same user"),
        restart("allowedHosts", Shape::List(&HOST_NAME), "[]", "further names that a Host header may hold"),
        restart("allowedOrigins", Shape::List(&ORIGIN), "[]", "origins of web pages that may call"),
        restart("maxSessions", COUNT, "10000", "sessions of all clients together"),
        restart(
            "sessionIdleTimeout",
            Shape::PositiveDuration,
            "\"30m\"",
            "a session without a request or an open stream ends after this",
        ),
        restart("maxBodySize", Shape::Size, "\"4MiB\"", "the largest body of a request over HTTP"),
        restart("maxMemory", Shape::Size, "", "all buffers together; a quarter of the memory, at most 4GiB, if absent"),
        restart("grace", Shape::Duration, "\"10s\"", "how long calls may finish when the gateway ends"),
        restart("token", Shape::Expanded, "", "clients must send it as Authorization: Bearer TOKEN"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const POLICIES: Keys = Keys {
    read: &[
        restart(
            "defaultTimeout",
            Shape::Duration,
            "\"60s\"",
            "longest silence of a call; progress is a sign of life; 0 waits for ever",
        ),
        restart(
            "maxTimeout",
            Shape::Duration,
            "\"1h\"",
            "longest life of a call, whatever its progress; 0 means no limit",
        ),
        restart(
            "askTimeout",
            Shape::Duration,
            "\"5m\"",
            "how long a client may take to answer what a server asks of it; 0 waits for ever",
        ),
        restart(
            "startTimeout",
            Shape::PositiveDuration,
            "\"60s\"",
            "for the handshake of a server, and for each page of its lists",
        ),
        restart("maxInFlight", COUNT, "64", "open calls of one client"),
        restart("maxInFlightPerBackend", COUNT, "1024", "open calls to one server"),
        restart(
            "maxMessageSize",
            Shape::Size,
            "\"16MiB\"",
            "the largest message of a server, and of a client on stdio",
        ),
        restart("pageSize", COUNT, "1000", "entries per page of a list"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const SUBSCRIPTIONS: Keys = Keys {
    read: &[
        restart("maxPerClient", COUNT, "1000", "subscriptions of one client"),
        restart("maxTotal", COUNT, "1000000", "subscriptions of all clients together"),
        restart("maxUpstream", COUNT, "10000", "resources that patterns may subscribe to at one server"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const LOG: Keys = Keys {
    read: &[
        restart(
            "level",
            Shape::Choice(&words(&read::LEVELS)),
            "",
            "the least grave lines that are written; info when absent, warn below the banner of a terminal",
        ),
        restart(
            "format",
            Shape::Choice(&words(&LogFormat::ALL)),
            "\"auto\"",
            "auto writes text, with colours on a terminal",
        ),
        restart("audit", Shape::Flag, "false", "a line for each call that ended, whatever the level"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const ADMIN: Keys = Keys {
    read: &[
        restart("enabled", Shape::Flag, "true", "whether there are /api and /metrics at all"),
        restart(
            "listen",
            Shape::Text(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"),
            "",
            "HOST:PORT for /api and /metrics, instead of the address for clients",
        ),
        restart("tokenFile", Shape::Path, "", "where the admin token is written; in the runtime directory when absent"),
        restart(
            "token",
            Shape::Expanded,
            "",
            "the admin token, at least 16 characters and not gateway.token; a random one for each start when absent",
        ),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const TELEMETRY: Keys = Keys {
    read: &[restart(
        "otlp",
        Shape::Url,
        "",
        "a collector of OpenTelemetry, by OTLP over HTTP; each call becomes a span when it is set",
    )],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const NAMESPACING: Keys = Keys {
    read: &[
        live("tools", NAMES, "\"prefix\"", "files_read or read"),
        live("prompts", NAMES, "\"prefix\"", "the same for prompts"),
        live("resources", Shape::Choice(&words(&rules::URIS)), "\"uri\"", "files+file:///a, files_file_a or file:///a"),
        live("separator", Shape::Text("^[A-Za-z0-9_-]{1,8}$"), "\"_\"", "stands between prefix and name"),
        live("maxLength", Shape::Whole(16, 128), "48", "longer names are cut and end in a hash"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const EXPOSURE: Keys = Keys {
    read: &[
        restart("mode", MODE, "\"all\"", "all; search: the pinned ones only; auto: all while there are few"),
        restart("pinned", GLOBS, "[]", "names, as clients see them, that are listed in any mode"),
        restart("autoAbove", Shape::Whole(0, field::LARGEST_COUNT), "60", "with auto: more tools than this are many"),
        restart("reveal", Shape::Flag, "false", "list a tool to the client that had it described"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const META_TOOLS: Keys = Keys {
    read: &[
        restart("enabled", Shape::Flag, "true", "whether they are listed; search and auto need them"),
        restart("prefix", Shape::Text("^[A-Za-z0-9_-]{0,32}$"), "\"\"", "stands before their names"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const VIEW: Shape = Shape::Either(&GLOBS, &Shape::Object(&PROFILE_FILTER));

pub(crate) const PROFILE: Keys = Keys {
    read: &[
        restart("servers", GLOBS, "[\"*\"]", "ids of servers"),
        restart(
            "tools",
            Shape::Either(&GLOBS, &Shape::Object(&PROFILE_TOOLS)),
            "[\"*\"]",
            "which tools it has, and how; a list is short for allow",
        ),
        restart("prompts", VIEW, "[\"*\"]", "which prompts it has; a list is short for allow"),
        restart("resources", VIEW, "[\"*\"]", "which resources and templates it has; a list is short for allow"),
        restart("exposure", EXPOSED, "", "for this profile alone; what it leaves out is as in the global one"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const VIEW_ALLOW: Key = restart("allow", GLOBS, "[\"*\"]", "exposed names or URIs that it has; [] for none");
const VIEW_DENY: Key = restart("deny", GLOBS, "[]", "stands over allow");

pub(crate) const PROFILE_TOOLS: Keys = Keys {
    read: &[
        VIEW_ALLOW,
        VIEW_DENY,
        restart("rename", Shape::Map(&NAME), "{}", "exposed name to the one that clients of the profile see"),
        restart("describe", Shape::Map(&Shape::Text(r"\S")), "{}", "exposed name to another description"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const PROFILE_FILTER: Keys =
    Keys { read: &[VIEW_ALLOW, VIEW_DENY], aliases: &[], passed_over: &[], later: &[] };

pub(crate) const SERVER: Keys = Keys {
    read: &[
        live(
            "type",
            Shape::Choice(&words(&transport::KINDS)),
            "",
            "how it is reached; told by its members when absent",
        ),
        live(
            "command",
            Shape::Either(&Shape::Expanded, &Shape::Object(&COMMAND)),
            "",
            "the program to start; with a / relative to cwd, else found in PATH",
        ),
        live("args", Shape::List(&Shape::Expanded), "[]", "its arguments"),
        live("env", Shape::Map(&Shape::Expanded), "{}", "its variables, besides the few that every server gets"),
        live(
            "inherit",
            Shape::Either(&Shape::Flag, &Shape::List(&VARIABLES)),
            "[]",
            "variables of the gateway that it gets too: names, PREFIX_*, or true for all but the gateway's tokens",
        ),
        live("cwd", Shape::Path, "\".\"", "its working directory; relative to that of the file"),
        live("url", Shape::Url, "", "a complete http or https URL, without user, password or fragment"),
        live(
            "headers",
            Shape::Map(&Shape::Expanded),
            "{}",
            "sent with every request; those of the protocol cannot be set",
        ),
        live("tls", Shape::Object(&TLS), "{}", "whom to trust besides the system's certificates"),
        live("root", Shape::Path, "\".\"", "the directory to serve; relative to that of the file"),
        live("hidden", Shape::Flag, "false", "serve names that begin with a dot too"),
        live("ignored", Shape::Flag, "false", "serve what .gitignore names too"),
        live(
            "maxFiles",
            COUNT,
            "10000",
            "files that are listed, 100,000 at most; all are reached by the template and the tools",
        ),
        live("enabled", Shape::Flag, "true", "a disabled server is checked and not started"),
        live("disabled", Shape::Flag, "false", "the opposite of enabled"),
        live(
            "session",
            Shape::Choice(&words(&sharing::SESSIONS)),
            "\"shared\"",
            "all clients share one connection, or each has its own",
        ),
        live("maxClients", COUNT, "100", "with per-client: how many clients may have their own connection at once"),
        live(
            "declare",
            Shape::List(&Shape::Choice(&words(&sharing::DECLARABLE))),
            "[\"sampling\", \"elicitation\"]",
            "what the server may ask of clients; with per-client less what the client cannot do",
        ),
        live("roots", Shape::Roots, "[]", "with shared: the directories that the server is told of, 100 at most"),
        live(
            "protocol",
            Shape::Choice(&words(&server::PROTOCOLS)),
            "\"auto\"",
            "auto: as the server and each client know it; legacy: versions with a handshake; modern: those without",
        ),
        live(
            "prefix",
            Shape::Text("^[A-Za-z0-9_-]{0,64}$"),
            "",
            "stands before names; the id when absent; may be empty",
        ),
        live(
            "timeout",
            Shape::DurationOrMilliseconds,
            "",
            "longest silence of a call to this server; as policies.defaultTimeout when absent",
        ),
        live(
            "poll",
            Shape::PositiveDuration,
            "",
            "how often subscribed resources are read to see whether they changed, for a server that never tells",
        ),
        live("namespacing", NAMING, "", "for this server alone; as the global one when absent"),
        live("validate", Shape::Flag, "false", "check the arguments of tools against their input schema"),
        live("tools", Shape::Object(&TOOLS), "{}", "which tools are offered, and how"),
        live("includeTools", GLOBS, "", "the same as tools.allow"),
        live("excludeTools", GLOBS, "", "the same as tools.deny"),
        live("prompts", Shape::Object(&PROMPTS), "{}", "which prompts are offered, and how"),
        live("resources", Shape::Object(&RESOURCES), "{}", "which resources and templates are offered, and how"),
    ],
    aliases: &[("transport", "type"), ("serverUrl", "url"), ("httpUrl", "url")],
    passed_over: &["autoApprove", "alwaysAllow", "description", "trust", "gallery"],
    later: &[],
};

/// The object that older versions of Zed use for `command`.
pub(crate) const COMMAND: Keys = Keys {
    read: &[
        live("path", Shape::Expanded, "", "the program to start"),
        live("args", Shape::List(&Shape::Expanded), "[]", "its arguments"),
        live("env", Shape::Map(&Shape::Expanded), "{}", "its variables"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

/// An element of `roots` with a name.
pub(crate) const NAMED_ROOT: Keys = Keys {
    read: &[
        live("uri", Shape::Place, "", "a file URI, or a path relative to the directory of the file"),
        live("name", Shape::Text("^.+$"), "", "what people are shown"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const TLS: Keys = Keys {
    read: &[live("ca", Shape::Path, "", "a PEM file of certificates to trust besides the system's")],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const ALLOW: Key = live("allow", GLOBS, "[\"*\"]", "native names or URIs that are offered; [] offers none");
const DENY: Key = live("deny", GLOBS, "[]", "stands over allow");
const RENAME: Key = live("rename", Shape::Map(&NAME), "{}", "native name to the whole exposed one; no prefix is added");

pub(crate) const TOOLS: Keys = Keys {
    read: &[
        ALLOW,
        DENY,
        RENAME,
        live("timeouts", Shape::Map(&Shape::Duration), "{}", "native name to its longest silence; 0 waits for ever"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const PROMPTS: Keys = Keys { read: &[ALLOW, DENY, RENAME], aliases: &[], passed_over: &[], later: &[] };

pub(crate) const RESOURCES: Keys = Keys {
    read: &[ALLOW, DENY, live("rename", Shape::Map(&URI), "{}", "native URI to the whole exposed one")],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

impl Keys {
    pub(crate) fn check(&self, key: &str) -> Result<(), Fault> {
        if self.known().any(|known| known == key) {
            return Ok(());
        }
        if self.later.contains(&key) {
            return Err(later().cure("remove it"));
        }
        let fault = Fault::new("unknown key");
        Err(match nearest(key, self.known().chain(self.later.iter().copied())) {
            Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
            None => fault,
        })
    }

    fn known(&self) -> impl Iterator<Item = &'static str> {
        let read = self.read.iter().map(|key| key.name);
        let aliases = self.aliases.iter().map(|(alias, _)| *alias);
        read.chain(aliases).chain(self.passed_over.iter().copied())
    }
}

/// Returns the fault for a key that is reserved but not available yet.
pub(crate) fn later() -> Fault {
    Fault::new("known but not available in this version yet")
}

/// Returns the meaning of a value from a closed set. `unserved` lists values that are not available yet.
pub(crate) fn choose<T: Copy>(text: &str, values: &[(&str, T)], unserved: &[&str]) -> Result<T, Fault> {
    if let Some((_, meaning)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(*meaning);
    }
    let names: Vec<String> = values.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    let names = names.join(" or ");
    if unserved.contains(&text) {
        let fault = Fault::new(format!("\"{text}\" is known but not available in this version yet"));
        return Err(fault.cure(format!("use {names}")));
    }
    let fault = Fault::new(format!("unknown value {}", quoted(text)));
    Err(match nearest(text, values.iter().map(|(name, _)| *name)) {
        Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
        None => fault.cure(format!("use {names}")),
    })
}

/// Returns the known word that is most similar. At most a third of its letters may differ. Ignores case.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The comparison costs the product of both lengths, and a longer word is hardly a typing error.
    const MAX_LENGTH: usize = 64;
    if word.len() > MAX_LENGTH {
        return None;
    }
    let word = word.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&word, &known.to_lowercase());
    known
        .map(|known| (distance(known), known))
        .filter(|(distance, known)| *distance <= (known.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::{GATEWAY, SERVER, choose, nearest};

    #[test]
    fn unknown_keys_get_the_nearest_known_one() {
        for (key, expected) in [
            ("timeout", Ok(())),
            ("trust", Ok(())),
            ("timeuot", Err("unknown key, did you mean \"timeout\"?")),
            ("Command", Err("unknown key, did you mean \"command\"?")),
            ("header", Err("unknown key, did you mean \"headers\"?")),
            ("evn", Err("unknown key, did you mean \"env\"?")),
            ("color", Err("unknown key")),
            ("poll", Ok(())),
            ("pol", Err("unknown key, did you mean \"poll\"?")),
        ] {
            let found = SERVER.check(key).map_err(|fault| fault.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{key}");
        }
        assert_eq!(
            GATEWAY.check("maxSesions").map_err(|fault| fault.to_string()),
            Err("unknown key, did you mean \"maxSessions\"?".to_owned())
        );
    }

    #[test]
    fn nothing_is_near_to_something_else_entirely() {
        assert_eq!(nearest("x", ["url", "env"].into_iter()), None);
        assert_eq!(nearest("", ["url"].into_iter()), None);
        assert_eq!(nearest(&"u".repeat(1_000_000), ["url"].into_iter()), None);
        assert_eq!(nearest("ulr", ["env", "url"].into_iter()), Some("url"));
    }

    #[test]
    fn values_are_chosen_from_a_closed_set() {
        let choose = |text| choose(text, &[("auto", 1), ("legacy", 2)], &["modern"]).map_err(|fault| fault.to_string());
        assert_eq!(choose("legacy"), Ok(2));
        assert_eq!(choose("legaci"), Err("unknown value \"legaci\", did you mean \"legacy\"?".to_owned()));
        assert_eq!(choose("x"), Err("unknown value \"x\", use \"auto\" or \"legacy\"".to_owned()));
        assert_eq!(
            choose("modern"),
            Err("\"modern\" is known but not available in this version yet, use \"auto\" or \"legacy\"".to_owned())
        );
    }
}
