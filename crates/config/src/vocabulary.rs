//! Describes every key of the file: its position, type, default and alternative names.
//!
//! This is the only description of the file. The reader takes its keys and values from here, and the JSON schema is
//! built from it, so the two cannot diverge.
//!
//! There are four kinds of keys. The gateway reads some keys. Aliases are other names for them. Keys of other clients
//! that have no meaning for a gateway are ignored. Keys reserved for later versions are rejected, because a setting
//! without effect would mislead the operator.

mod spec;

pub(crate) use self::spec::{ApplyMode, KeySpec, ObjectKeys, ValueType, choose, nearest};
use self::spec::{live, restart, words};
use crate::{LogFormat, field, read, rules, server, sharing, transport, views};

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

const COUNT: ValueType = ValueType::Whole(1, field::MAX_COUNT);
const NAME: ValueType = ValueType::Text("^[A-Za-z0-9_-]{1,128}$");
const URI: ValueType = ValueType::Text(r"^[A-Za-z][A-Za-z0-9+.-]*:\S+$");
const GLOB: ValueType = ValueType::Text("^.+$");
const VARIABLES: ValueType = ValueType::Text(r"^[A-Za-z_][A-Za-z0-9_]*\*?$");
const GLOBS: ValueType = ValueType::List(&GLOB);
const NAMES: ValueType = ValueType::Choice(&words(&rules::NAMES));
const NAMING: ValueType = ValueType::Either(&NAMES, &ValueType::Namespacing);
const MODE: ValueType = ValueType::Choice(&words(&views::MODES));
const EXPOSED: ValueType = ValueType::Either(&MODE, &ValueType::Exposure);

pub(crate) const ROOT: ObjectKeys = ObjectKeys {
    read: &[
        live("mcpServers", ValueType::Servers, "", "the servers by id"),
        restart("gateway", ValueType::Object(&GATEWAY), "{}", "the endpoints for clients"),
        restart("policies", ValueType::Object(&POLICIES), "{}", "limits for every server"),
        live("namespacing", NAMING, "\"prefix\"", "the form of exposed names"),
        restart("subscriptions", ValueType::Object(&SUBSCRIPTIONS), "{}", "limits of resource subscriptions"),
        restart("exposure", EXPOSED, "\"all\"", "the tools that are listed; clients find the others by search"),
        restart(
            "metaTools",
            ValueType::Either(&ValueType::Flag, &ValueType::Object(&META_TOOLS)),
            "true",
            "the gateway's own tools for finding other tools; true or false is short for enabled",
        ),
        restart("profiles", ValueType::Profiles, "{}", "named views, each with its own endpoint /mcp/p/NAME"),
        restart("log", ValueType::Object(&LOG), "{}", "the log on stderr"),
        restart("admin", ValueType::Object(&ADMIN), "{}", "the routes for operators"),
        restart("telemetry", ValueType::Object(&TELEMETRY), "{}", "the export of traces"),
    ],
    aliases: &[("servers", "mcpServers"), ("context_servers", "mcpServers"), ("mcp_servers", "mcpServers")],
    passed_over: &["$schema"],
    later: &[],
};

const HOST_NAME: ValueType = ValueType::Text(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$");
const ORIGIN: ValueType =
    ValueType::Text(r"^[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$");

pub(crate) const GATEWAY: ObjectKeys = ObjectKeys {
    read: &[
        restart(
            "host",
            ValueType::Text("^[A-Za-z0-9._:-]+$"),
            "\"127.0.0.1\"",
            "address or host name to listen on; an address other than loopback requires token",
        ),
        restart("port", ValueType::Whole(0, 65535), "3000", "0 takes any free port"),
        restart("tcp", ValueType::Flag, "true", "false listens on socket only, not on host and port"),
        restart("socket", ValueType::Path, "", "a Unix socket to listen on, for programs of the same user"),
        restart("allowedHosts", ValueType::List(&HOST_NAME), "[]", "further names that are allowed in the Host header"),
        restart("allowedOrigins", ValueType::List(&ORIGIN), "[]", "origins of web pages that may send requests"),
        restart("maxSessions", COUNT, "10000", "sessions of all clients together"),
        restart(
            "sessionIdleTimeout",
            ValueType::PositiveDuration,
            "\"30m\"",
            "a session without a request or an open stream ends after this time",
        ),
        restart("maxBodySize", ValueType::Size, "\"4MiB\"", "the largest body of a request over HTTP"),
        restart(
            "maxMemory",
            ValueType::Size,
            "",
            "the bytes of all buffers together; if absent, a quarter of the memory, at most 4GiB",
        ),
        restart("grace", ValueType::Duration, "\"10s\"", "the time for open calls to finish when the gateway ends"),
        restart("token", ValueType::Expanded, "", "clients must send it as Authorization: Bearer TOKEN"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const POLICIES: ObjectKeys = ObjectKeys {
    read: &[
        restart(
            "defaultTimeout",
            ValueType::Duration,
            "\"60s\"",
            "the longest time of a call without an answer or progress; 0 waits for ever",
        ),
        restart(
            "maxTimeout",
            ValueType::Duration,
            "\"1h\"",
            "the longest duration of a call, regardless of progress; 0 means no limit",
        ),
        restart(
            "askTimeout",
            ValueType::Duration,
            "\"5m\"",
            "the time for a client to answer a request of a server; 0 waits for ever",
        ),
        restart(
            "startTimeout",
            ValueType::PositiveDuration,
            "\"60s\"",
            "the time for the handshake of a server, and for each page of its lists",
        ),
        restart("maxInFlight", COUNT, "64", "open calls of one client"),
        restart("maxInFlightPerBackend", COUNT, "1024", "open calls to one server"),
        restart(
            "maxMessageSize",
            ValueType::Size,
            "\"16MiB\"",
            "the largest message of a server, and of a client on stdio",
        ),
        restart("pageSize", COUNT, "1000", "entries per page of a list"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const SUBSCRIPTIONS: ObjectKeys = ObjectKeys {
    read: &[
        restart("maxPerClient", COUNT, "1000", "subscriptions of one client"),
        restart("maxTotal", COUNT, "1000000", "subscriptions of all clients together"),
        restart("maxUpstream", COUNT, "10000", "resources that patterns may subscribe to at one server"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const LOG: ObjectKeys = ObjectKeys {
    read: &[
        restart(
            "level",
            ValueType::Choice(&words(&read::LEVELS)),
            "",
            "the minimum level of log lines; if absent, info, or warn below the banner of a terminal",
        ),
        restart(
            "format",
            ValueType::Choice(&words(&LogFormat::ALL)),
            "\"auto\"",
            "auto writes text, with colours on a terminal",
        ),
        restart("audit", ValueType::Flag, "false", "write a line for each completed call, at every level"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const ADMIN: ObjectKeys = ObjectKeys {
    read: &[
        restart("enabled", ValueType::Flag, "true", "serve /api and /metrics"),
        restart(
            "listen",
            ValueType::Text(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"),
            "",
            "HOST:PORT for /api and /metrics, instead of the address for clients",
        ),
        restart(
            "tokenFile",
            ValueType::Path,
            "",
            "the file for the admin token; if absent, a file in the runtime directory",
        ),
        restart(
            "token",
            ValueType::Expanded,
            "",
            "the admin token, at least 16 characters, different from gateway.token; if absent, random for each start",
        ),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const TELEMETRY: ObjectKeys = ObjectKeys {
    read: &[restart(
        "otlp",
        ValueType::Url,
        "",
        "the URL of an OpenTelemetry collector, for OTLP over HTTP; if set, each call becomes a span",
    )],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const NAMESPACING: ObjectKeys = ObjectKeys {
    read: &[
        live("tools", NAMES, "\"prefix\"", "exposed names of tools: files_read or read"),
        live("prompts", NAMES, "\"prefix\"", "exposed names of prompts: files_ask or ask"),
        live(
            "resources",
            ValueType::Choice(&words(&rules::URIS)),
            "\"uri\"",
            "exposed URIs of resources: files+file:///a, files_file_a or file:///a",
        ),
        live("separator", ValueType::Text("^[A-Za-z0-9_-]{1,8}$"), "\"_\"", "the text between prefix and name"),
        live(
            "maxLength",
            ValueType::Whole(16, 128),
            "48",
            "the maximum length of a name; longer names are cut and end in a hash",
        ),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const EXPOSURE: ObjectKeys = ObjectKeys {
    read: &[
        restart(
            "mode",
            MODE,
            "\"all\"",
            "all: list all tools; search: list only the pinned ones; auto: list all up to autoAbove",
        ),
        restart("pinned", GLOBS, "[]", "exposed names that are listed in any mode"),
        restart(
            "autoAbove",
            ValueType::Whole(0, field::MAX_COUNT),
            "60",
            "with auto: the largest number of tools that is listed",
        ),
        restart("reveal", ValueType::Flag, "false", "add a tool to the list of a client after the client described it"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const META_TOOLS: ObjectKeys = ObjectKeys {
    read: &[
        restart("enabled", ValueType::Flag, "true", "list these tools; the modes search and auto need them"),
        restart("prefix", ValueType::Text("^[A-Za-z0-9_-]{0,32}$"), "\"\"", "the text before their names"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const VIEW: ValueType = ValueType::Either(&GLOBS, &ValueType::Object(&PROFILE_FILTER));

pub(crate) const PROFILE: ObjectKeys = ObjectKeys {
    read: &[
        restart("servers", GLOBS, "[\"*\"]", "the ids of the servers in the profile"),
        restart(
            "tools",
            ValueType::Either(&GLOBS, &ValueType::Object(&PROFILE_TOOLS)),
            "[\"*\"]",
            "the tools of the profile; a list is short for allow",
        ),
        restart("prompts", VIEW, "[\"*\"]", "the prompts of the profile; a list is short for allow"),
        restart("resources", VIEW, "[\"*\"]", "the resources and templates of the profile; a list is short for allow"),
        restart("exposure", EXPOSED, "", "exposure for this profile alone; absent members are as in the global one"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const VIEW_ALLOW: KeySpec = restart("allow", GLOBS, "[\"*\"]", "exposed names or URIs of the profile; [] for none");
const VIEW_DENY: KeySpec = restart("deny", GLOBS, "[]", "wins over allow");

pub(crate) const PROFILE_TOOLS: ObjectKeys = ObjectKeys {
    read: &[
        VIEW_ALLOW,
        VIEW_DENY,
        restart("rename", ValueType::Map(&NAME), "{}", "exposed name to the name that clients of the profile see"),
        restart("describe", ValueType::Map(&ValueType::Text(r"\S")), "{}", "exposed name to another description"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const PROFILE_FILTER: ObjectKeys =
    ObjectKeys { read: &[VIEW_ALLOW, VIEW_DENY], aliases: &[], passed_over: &[], later: &[] };

pub(crate) const SERVER: ObjectKeys = ObjectKeys {
    read: &[
        live(
            "type",
            ValueType::Choice(&words(&transport::KINDS)),
            "",
            "the transport; if absent, the other members determine it",
        ),
        live(
            "command",
            ValueType::Either(&ValueType::Expanded, &ValueType::Object(&COMMAND)),
            "",
            "the program to start; a name with a / is relative to cwd, any other is found in PATH",
        ),
        live("args", ValueType::List(&ValueType::Expanded), "[]", "the arguments of the program"),
        live(
            "env",
            ValueType::Map(&ValueType::Expanded),
            "{}",
            "the variables of the program, in addition to those of every server",
        ),
        live(
            "inherit",
            ValueType::Either(&ValueType::Flag, &ValueType::List(&VARIABLES)),
            "[]",
            "further variables of the gateway to pass: names, PREFIX_*, or true for all but the gateway's tokens",
        ),
        live(
            "cwd",
            ValueType::Path,
            "\".\"",
            "the working directory of the program; relative to the directory of the file",
        ),
        live("url", ValueType::Url, "", "a complete http or https URL, without user, password or fragment"),
        live(
            "headers",
            ValueType::Map(&ValueType::Expanded),
            "{}",
            "headers for every request; headers of the protocol cannot be set",
        ),
        live("tls", ValueType::Object(&TLS), "{}", "the certificates to trust in addition to those of the system"),
        live("root", ValueType::Path, "\".\"", "the directory to serve; relative to the directory of the file"),
        live("hidden", ValueType::Flag, "false", "serve names that begin with a dot too"),
        live("ignored", ValueType::Flag, "false", "serve names that .gitignore excludes too"),
        live(
            "maxFiles",
            COUNT,
            "10000",
            "the number of files that are listed, 100,000 at most; the template and the tools reach all files",
        ),
        live("enabled", ValueType::Flag, "true", "start the server; a disabled server is checked but not started"),
        live("disabled", ValueType::Flag, "false", "the opposite of enabled"),
        live(
            "session",
            ValueType::Choice(&words(&sharing::SESSIONS)),
            "\"shared\"",
            "one connection for all clients, or one for each client",
        ),
        live(
            "maxClients",
            COUNT,
            "100",
            "with per-client: the number of clients with their own connection at the same time",
        ),
        live(
            "declare",
            ValueType::List(&ValueType::Choice(&words(&sharing::DECLARABLE))),
            "[\"sampling\", \"elicitation\"]",
            "the requests that the server may send to clients; with per-client, only those that the client supports",
        ),
        live(
            "roots",
            ValueType::Roots,
            "[]",
            "with shared: the directories that the server gets as roots, 100 at most",
        ),
        live(
            "protocol",
            ValueType::Choice(&words(&server::PROTOCOLS)),
            "\"auto\"",
            "auto, match-client: as the server and each client support; legacy: with a handshake; modern: without one",
        ),
        live(
            "prefix",
            ValueType::Text("^[A-Za-z0-9_-]{0,64}$"),
            "",
            "the text before names; if absent, the id; may be empty",
        ),
        live(
            "timeout",
            ValueType::DurationOrMilliseconds,
            "",
            "the timeout of calls to this server; if absent, policies.defaultTimeout",
        ),
        live(
            "poll",
            ValueType::PositiveDuration,
            "",
            "the interval at which subscribed resources are read to find changes, for a server that sends no updates",
        ),
        live("namespacing", NAMING, "", "namespacing for this server alone; if absent, the global one"),
        live("validate", ValueType::Flag, "false", "check the arguments of tools against their input schema"),
        live("tools", ValueType::Object(&TOOLS), "{}", "the tools that are offered"),
        live("includeTools", GLOBS, "", "the same as tools.allow"),
        live("excludeTools", GLOBS, "", "the same as tools.deny"),
        live("prompts", ValueType::Object(&PROMPTS), "{}", "the prompts that are offered"),
        live("resources", ValueType::Object(&RESOURCES), "{}", "the resources and templates that are offered"),
    ],
    aliases: &[("transport", "type"), ("serverUrl", "url"), ("httpUrl", "url")],
    passed_over: &["autoApprove", "alwaysAllow", "description", "trust", "gallery"],
    later: &[],
};

/// The object that older versions of Zed use for `command`.
pub(crate) const COMMAND: ObjectKeys = ObjectKeys {
    read: &[
        live("path", ValueType::Expanded, "", "the program to start"),
        live("args", ValueType::List(&ValueType::Expanded), "[]", "the arguments of the program"),
        live("env", ValueType::Map(&ValueType::Expanded), "{}", "the variables of the program"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

/// An element of `roots` with a name.
pub(crate) const NAMED_ROOT: ObjectKeys = ObjectKeys {
    read: &[
        live("uri", ValueType::Place, "", "a file URI, or a path relative to the directory of the file"),
        live("name", ValueType::Text("^.+$"), "", "the name that people see"),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const TLS: ObjectKeys = ObjectKeys {
    read: &[live("ca", ValueType::Path, "", "a PEM file of certificates to trust in addition to those of the system")],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

const ALLOW: KeySpec = live("allow", GLOBS, "[\"*\"]", "native names or URIs that are offered; [] offers none");
const DENY: KeySpec = live("deny", GLOBS, "[]", "wins over allow");
const RENAME: KeySpec =
    live("rename", ValueType::Map(&NAME), "{}", "native name to the whole exposed name, without a prefix");

pub(crate) const TOOLS: ObjectKeys = ObjectKeys {
    read: &[
        ALLOW,
        DENY,
        RENAME,
        live(
            "timeouts",
            ValueType::Map(&ValueType::Duration),
            "{}",
            "native name to the timeout of its calls; 0 waits for ever",
        ),
    ],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

pub(crate) const PROMPTS: ObjectKeys =
    ObjectKeys { read: &[ALLOW, DENY, RENAME], aliases: &[], passed_over: &[], later: &[] };

pub(crate) const RESOURCES: ObjectKeys = ObjectKeys {
    read: &[ALLOW, DENY, live("rename", ValueType::Map(&URI), "{}", "native URI to the whole exposed URI")],
    aliases: &[],
    passed_over: &[],
    later: &[],
};

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
