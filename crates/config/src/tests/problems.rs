//! Tests the files that are rejected, and the messages.

use super::{environment, origin};
use crate::edit::problems_of;
use crate::parse;

pub(super) fn check(text: &str, expected: &[&str]) {
    let problems = problems_of(text, &origin(), &environment);
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "in {text}");
}

/// Checks the problem of one section. `members` start at the first column of line 3.
fn check_section(section: &str, members: &str, expected: &str) {
    let text = format!("{{ \"mcpServers\": {{}},\n\"{section}\": {{\n{members}\n}} }}");
    check(&text, &[&format!("goblin.json:3:{expected}")]);
}

/// Checks the problems of one server, also from line 3. `expected` omits the file and `mcpServers.`.
pub(super) fn check_server(members: &str, expected: &[(&str, &str)]) {
    let text = format!("{{ \"mcpServers\": {{\n\"a\": {{\n{members}\n}} }} }}");
    let lines: Vec<String> =
        expected.iter().map(|(place, text)| format!("goblin.json:{place}: mcpServers.{text}")).collect();
    check(&text, &lines.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn all_problems_are_reported_at_once_and_in_order() {
    check(
        "// ours\r\n{\r\n  \"gatway\": {},\r\n  /* é */ \"policies\": { \"pageSize\": 0 },\r\n  \"mcpServers\": {\r\n\
         \x20   \"a\": { \"command\": \"x\", \"timeuot\": 1, \"env\": { \"K\": \"${NO}\" } },\r\n\
         \x20   \"my server\": { \"url\": \"x\" }, \"my server\": 1\r\n  }\r\n}",
        &[
            "goblin.json:3:3: gatway: unknown key, did you mean \"gateway\"?",
            "goblin.json:4:37: policies.pageSize: must be a whole number from 1 to 10000000",
            "goblin.json:6:28: mcpServers.a.timeuot: unknown key, did you mean \"timeout\"?",
            "goblin.json:6:56: mcpServers.a.env.K: variable NO is not set, set it or write ${file:/path/to/secret}",
            "goblin.json:7:27: mcpServers.\"my server\".url: must be a complete http or https URL, \
             write it like \"https://host/mcp\"",
            "goblin.json:7:34: mcpServers.\"my server\": duplicate key, remove one of the two",
            "goblin.json:7:47: mcpServers.\"my server\": must be an object, not a number",
        ],
    );
}

#[test]
fn a_byte_order_mark_does_not_count_in_positions() {
    check("\u{feff}[]", &["goblin.json:1:1: must be an object, not an array"]);
}

#[test]
fn problems_of_the_whole_file_are_reported() {
    check("{}", &["goblin.json:1:1: there is no \"mcpServers\", add \"mcpServers\": {}"]);
    check(
        r#"{ "a": { "command": "x" }, "b": { "url": "https://h/mcp" } }"#,
        &["goblin.json:1:1: the servers are not in \"mcpServers\", put them there: { \"mcpServers\": { ... } }"],
    );
    check(
        r#"{ "$schema": "x", "a": { "httpUrl": "https://h/mcp" }, "b": { "type": "files", "root": "." } }"#,
        &["goblin.json:1:1: the servers are not in \"mcpServers\", put them there: { \"mcpServers\": { ... } }"],
    );
    check(
        r#"{ "servers": {}, "mcpServers": {} }"#,
        &["goblin.json:1:3: servers: \"servers\" and \"mcpServers\" mean the same, keep one"],
    );
    check(r#"{ "mcpServers": [] }"#, &["goblin.json:1:17: mcpServers: must be an object, not an array"]);
    let url =
        "goblin.json:1:44: telemetry.otlp: must be a complete http or https URL, write it like \"https://host/mcp\"";
    check(r#"{ "mcpServers": {}, "telemetry": { "otlp": "127.0.0.1:4318" } }"#, &[url]);
}

#[test]
fn problems_of_the_admin_section_are_reported() {
    let address = "must be an address with a port, write it like \"127.0.0.1:3001\"";
    for (members, expected) in [
        (r#""enabled": "yes""#, "12: admin.enabled: must be true or false, not a string".to_owned()),
        (r#""listen": "localhost""#, format!("11: admin.listen: {address}")),
        (r#""listen": "::1:80""#, format!("11: admin.listen: {address}")),
        (r#""tokenFile": "~/token""#, "14: admin.tokenFile: \"~\" is not expanded, write \"${HOME}/token\"".to_owned()),
        (r#""lisen": 1"#, "1: admin.lisen: unknown key, did you mean \"listen\"?".to_owned()),
    ] {
        let expected = format!("goblin.json:2:{expected}");
        check(&format!("{{ \"mcpServers\": {{}}, \"admin\": {{\n{members} }} }}"), &[&expected]);
    }
}

#[test]
fn problems_of_the_gateway_section_are_reported() {
    let port = "9: gateway.port: must be a whole number from 0 to 65535";
    for (members, expected) in [
        (r#""port": 65536"#, port),
        (r#""port": "3000""#, port),
        (r#""port": 1.5"#, port),
        (
            r#""host": "0.0.0.0""#,
            "9: gateway.host: other machines can reach this address and there is no gateway.token, \
             set gateway.token or use \"127.0.0.1\"",
        ),
        (
            r#""host": "[::1]""#,
            "9: gateway.host: must be an IP address without brackets or a host name, set the port in gateway.port",
        ),
        (
            r#""host": "::", "token": "${NO}""#,
            "24: gateway.token: variable NO is not set, set it or write ${file:/path/to/secret}",
        ),
        (
            r#""token": "fifteen-letters""#,
            "10: gateway.token: must be at least 16 visible ASCII characters, without spaces, \
             generate one with: openssl rand -hex 16",
        ),
        (r#""allowedHosts": "x""#, "17: gateway.allowedHosts: must be an array, not a string"),
        (
            r#""allowedHosts": ["x", "*"]"#,
            "23: gateway.allowedHosts[1]: \"*\" is not a host, \
             write it like \"goblin.example\" or \"goblin.example:3000\"",
        ),
        (
            r#""allowedOrigins": ["*"]"#,
            "20: gateway.allowedOrigins[0]: \"*\" is not an origin, \
             write it like \"https://app.example\", without a path",
        ),
        (
            r#""tcp": false"#,
            "8: gateway.tcp: without TCP the gateway needs gateway.socket, set gateway.socket or remove tcp",
        ),
        (r#""tcp": false, "socket": """#, "25: gateway.socket: must not be empty"),
        (r#""socket": "~/x""#, "11: gateway.socket: \"~\" is not expanded, write \"${HOME}/x\""),
        (r#""sessionIdleTimeout": "0""#, "23: gateway.sessionIdleTimeout: must be more than 0"),
        (r#""grace": 10"#, "10: gateway.grace: must be a duration, write it like \"60s\", \"5m\", \"1h\" or \"200ms\""),
        (r#""grace": "10""#, "10: gateway.grace: a duration needs a unit, write \"10s\" or \"10ms\""),
        (r#""maxBodySize": "1B""#, "16: gateway.maxBodySize: must be between 1KiB and 1GiB"),
        (r#""maxBodySize": -1"#, "16: gateway.maxBodySize: must be between 1KiB and 1GiB"),
        (
            r#""maxBodySize": true"#,
            "16: gateway.maxBodySize: must be a size, write it like \"4MiB\", \"512KiB\" or as a number of bytes",
        ),
        (r#""maxSessions": 0"#, "16: gateway.maxSessions: must be a whole number from 1 to 10000000"),
    ] {
        check_section("gateway", members, expected);
    }
}

#[test]
fn problems_of_the_other_sections_are_reported() {
    for (section, members, expected) in [
        (
            "policies",
            r#""askTimeout": "5""#,
            "15: policies.askTimeout: a duration needs a unit, write \"5s\" or \"5ms\"",
        ),
        ("policies", r#""startTimeout": 0"#, "17: policies.startTimeout: must be more than 0"),
        (
            "policies",
            r#""defaultTimout": 0"#,
            "1: policies.defaultTimout: unknown key, did you mean \"defaultTimeout\"?",
        ),
        ("log", r#""level": "wran""#, "10: log.level: unknown value \"wran\", did you mean \"warn\"?"),
        ("log", r#""format": "xml""#, "11: log.format: unknown value \"xml\", use \"auto\" or \"text\" or \"json\""),
        ("log", r#""format": 1"#, "11: log.format: must be a string, not a number"),
        (
            "namespacing",
            r#""tools": "uri""#,
            "10: namespacing.tools: unknown value \"uri\", use \"prefix\" or \"none\"",
        ),
        (
            "namespacing",
            r#""separator": ".""#,
            "14: namespacing.separator: must be 1 to 8 letters, digits, \"_\" or \"-\"",
        ),
        ("namespacing", r#""maxLength": 8"#, "14: namespacing.maxLength: must be a whole number from 16 to 128"),
    ] {
        check_section(section, members, expected);
    }
    check(
        r#"{ "mcpServers": {}, "namespacing": "uri" }"#,
        &["goblin.json:1:36: namespacing: unknown value \"uri\", use \"prefix\" or \"none\""],
    );
}

#[test]
fn problems_of_server_ids_are_reported() {
    let long = "x".repeat(65);
    check(
        &format!(
            "{{ \"mcpServers\": {{\n\"\": {{ \"command\": \"x\" }},\n\"{long}\": {{ \"command\": \"x\" }},\n\
             \"a\\tb\": {{ \"command\": \"x\" }},\n\"My_Server\": {{ \"command\": \"x\" }},\n\
             \"my server\": {{ \"command\": \"x\" }} }} }}"
        ),
        &[
            "goblin.json:2:1: mcpServers.\"\": a server id must not be empty",
            &format!("goblin.json:3:1: mcpServers.\"{}\"...: a server id has at most 64 characters", &long[..60]),
            "goblin.json:4:1: mcpServers.\"a\\tb\": a server id must not contain control characters",
            "goblin.json:6:1: mcpServers.\"my server\": \"My_Server\" and \"my server\" are both \"my-server\" in URIs, \
             give one of them another id",
        ],
    );
}

#[test]
fn problems_of_the_transport_are_reported() {
    let foreign = |kind: &str| format!("does not belong to a server of type {kind}, remove it");
    let (not_stdio, not_http, not_files) = (foreign("stdio"), foreign("http"), foreign("files"));
    for (members, expected) in [
        ("", &[("2:6", "a: has neither a command nor a url, add one, or \"type\": \"files\"")][..]),
        (r#""command": "x", "url": "http://x""#, &[("2:6", "a: has both a command and a url, keep one")]),
        (r#""type": "stdio""#, &[("2:6", "a: \"command\" is missing")]),
        (r#""type": "http", "headers": {}"#, &[("2:6", "a: \"url\" is missing")]),
        (
            r#""command": "x", "headers": {}, "tls": {}"#,
            &[("3:17", &format!("a.headers: {not_stdio}")), ("3:32", &format!("a.tls: {not_stdio}"))],
        ),
        (
            r#""url": "http://x", "args": [], "cwd": ".""#,
            &[("3:20", &format!("a.args: {not_http}")), ("3:32", &format!("a.cwd: {not_http}"))],
        ),
        (
            r#""type": "http", "transport": "http", "url": "http://x", "httpUrl": "http://x""#,
            &[
                ("3:17", "a.transport: \"transport\" and \"type\" mean the same, keep one"),
                ("3:57", "a.httpUrl: \"httpUrl\" and \"url\" mean the same, keep one"),
            ],
        ),
        (r#""type": "sse""#, &[("2:6", "a: \"url\" is missing")]),
        (
            r#""type": "sse", "url": "http://x", "args": []"#,
            &[("3:35", "a.args: does not belong to a server of type sse, remove it")],
        ),
        (r#""root": ".", "command": "x""#, &[("2:6", "a: has both a root and a command or a url, keep one")]),
        (
            r#""command": "x", "hidden": true, "maxFiles": 1"#,
            &[("3:17", &format!("a.hidden: {not_stdio}")), ("3:33", &format!("a.maxFiles: {not_stdio}"))],
        ),
        (r#""url": "http://x", "ignored": true"#, &[("3:20", &format!("a.ignored: {not_http}"))]),
        (
            r#""type": "files", "cwd": ".", "url": "http://x""#,
            &[("3:18", &format!("a.cwd: {not_files}")), ("3:30", &format!("a.url: {not_files}"))],
        ),
        (
            r#""root": "~/x", "hidden": 1, "maxFiles": 0"#,
            &[
                ("3:9", "a.root: \"~\" is not expanded, write \"${HOME}/x\""),
                ("3:26", "a.hidden: must be true or false, not a number"),
                ("3:41", "a.maxFiles: must be a whole number from 1 to 10000000"),
            ],
        ),
    ] {
        check_server(members, expected);
    }
}

#[test]
fn problems_of_commands_and_urls_are_reported() {
    for (members, expected) in [
        (r#""command": """#, &[("3:12", "a.command: must not be empty")][..]),
        (r#""command": ["x"]"#, &[("3:12", "a.command: must be a string, not an array")]),
        (
            r#""command": { "args": [1] }, "env": {}"#,
            &[
                ("3:12", "a.command: \"path\" is missing"),
                ("3:23", "a.command.args[0]: must be a string, not a number"),
                ("3:29", "a.env: belongs inside \"command\" if that is an object"),
            ],
        ),
        (
            r#""command": "x", "args": ["\u0000"], "env": { "A=B": "", "C": 1 }, "cwd": "~/x""#,
            &[
                ("3:26", "a.args[0]: must not contain a NUL character"),
                ("3:46", "a.env.\"A=B\": is not the name of a variable"),
                ("3:62", "a.env.C: must be a string, not a number"),
                ("3:74", "a.cwd: \"~\" is not expanded, write \"${HOME}/x\""),
            ],
        ),
        (
            r#""url": "https://u:p@x/", "headers": { "Host": "x", "X-A": "${BROKEN}", "x-a": "", "a b": "" }"#,
            &[
                ("3:8", "a.url: must not contain a user name or password, put them in headers.Authorization"),
                ("3:39", "a.headers.Host: the gateway sets this header itself, remove it"),
                ("3:59", "a.headers.X-A: cannot be sent as a header value, which may contain only visible ASCII"),
                ("3:72", "a.headers.x-a: duplicate header, the case of names is ignored, keep one"),
                ("3:83", "a.headers.\"a b\": is not a header name"),
            ],
        ),
        (r#""url": "http://x", "tls": { "ca": "" }"#, &[("3:35", "a.tls.ca: must not be empty")]),
    ] {
        check_server(members, expected);
    }
}

#[test]
fn problems_of_a_server_entry_are_reported() {
    let duration = "must be a duration, write it like \"60s\", \"5m\", \"1h\" or \"200ms\"";
    for (members, column, expected) in [
        (r#""enabled": "yes""#, 12, "enabled: must be true or false, not a string"),
        (
            r#""enabled": true, "disabled": false"#,
            18,
            "disabled: \"disabled\" is the opposite of \"enabled\", keep one",
        ),
        (r#""prefix": "a.b""#, 11, "prefix: may contain only letters, digits, \"_\" and \"-\""),
        (r#""timeout": -1"#, 12, &format!("timeout: {duration}")),
        (r#""timeout": 99999999999999"#, 12, "timeout: is too long, use at most \"365d\", or \"0\" for no limit"),
        (r#""protocol": "modren""#, 13, "protocol: unknown value \"modren\", did you mean \"modern\"?"),
        (
            r#""includeTools": ["a"], "tools": { "allow": [] }"#,
            1,
            "includeTools: \"includeTools\" and tools.allow mean the same, keep one",
        ),
        (r#""tools": { "allow": [""] }"#, 22, "tools.allow[0]: a pattern must not be empty"),
        (r#""prompts": { "timeouts": {} }"#, 14, "prompts.timeouts: unknown key"),
        (
            r#""tools": { "rename": { "x": "a.b" } }"#,
            29,
            "tools.rename.x: an exposed name is 1 to 48 letters, digits, \"_\" or \"-\"",
        ),
        (
            r#""prompts": { "rename": { "x": "n", "y": "n" } }"#,
            41,
            "prompts.rename.y: \"x\" and \"y\" are both renamed to \"n\", use two names",
        ),
        (
            r#""resources": { "rename": { "file:///x": "manual" } }"#,
            41,
            "resources.rename.\"file:///x\": an exposed resource is a URI, write it like \"docs://manual\"",
        ),
        (r#""tools": { "timeouts": { "x": 5 } }"#, 31, &format!("tools.timeouts.x: {duration}")),
    ] {
        check_server(&format!("\"command\": \"x\",\n{members}"), &[(&format!("4:{column}"), &format!("a.{expected}"))]);
    }
    for (members, column, kind) in [
        (r#""type": "files", "protocol": "modern""#, 30, "files"),
        (r#""root": ".", "protocol": "modern""#, 26, "files"),
        (r#""type": "sse", "url": "http://x", "protocol": "modern""#, 47, "sse"),
        (r#""protocol": "modern", "transport": "sse", "serverUrl": "http://x""#, 13, "sse"),
    ] {
        let expected = format!(
            "a.protocol: a server of type {kind} has no version without a handshake, use \"auto\" or \"legacy\""
        );
        check_server(members, &[(&format!("3:{column}"), &expected)]);
    }
    for wrong in ["\"soon\"", "\"5\""] {
        let expected = "a.refresh: must be \"auto\", \"never\" or an interval, use an interval like \"30s\"";
        check_server(&format!(r#""command": "x", "refresh": {wrong}"#), &[("3:28", expected)]);
    }
    check_server(r#""command": "x", "refresh": false"#, &[("3:28", "a.refresh: must be a string, not true or false")]);
    check_server(r#""command": "x", "refresh": "999ms""#, &[("3:28", "a.refresh: is too short, use at least \"1s\"")]);
    check_server(r#""command": "x", "poll": "99ms""#, &[("3:25", "a.poll: is too short, use at least \"100ms\"")]);
}

#[test]
fn d17_a_stdio_server_that_should_match_each_client_gives_a_warning() {
    let warnings = |members: &str| {
        let text = format!("{{ \"mcpServers\": {{\n\"a\": {{\n{members}\n}} }} }}");
        let loaded = parse(&text, &origin(), &environment).unwrap();
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = "goblin.json:3:29: mcpServers.a.protocol: a stdio server has one process, which serves the clients \
                    of both eras in one of them, use \"auto\", or add \"session\": \"per-client\"";
    assert_eq!(warnings(r#""command": "x", "protocol": "match-client""#), [expected]);
    for accepted in [
        r#""command": "x", "protocol": "auto""#,
        r#""command": "x", "protocol": "match-client", "session": "per-client""#,
        r#""url": "http://x", "protocol": "match-client""#,
    ] {
        assert_eq!(warnings(accepted), [""; 0], "{accepted}");
    }
}

#[test]
fn problems_of_session_sharing_are_reported() {
    let no_effect = "a.maxClients: has no effect while all clients share the connection, \
                     remove it or add \"session\": \"per-client\"";
    let per_client =
        "a.roots: cannot be combined with \"session\": \"per-client\", where each client reports its own, remove it";
    let not_files = "does not belong to a server of type files, remove it";
    for (members, expected) in [
        (
            r#""command": "x", "session": "perclient", "roots": [], "maxClients": 1"#,
            &[("3:28", "a.session: unknown value \"perclient\", did you mean \"per-client\"?")][..],
        ),
        (
            r#""command": "x", "session": "own""#,
            &[("3:28", "a.session: unknown value \"own\", use \"shared\" or \"per-client\"")],
        ),
        (r#""command": "x", "maxClients": 5"#, &[("3:17", no_effect)]),
        (r#""command": "x", "session": "shared", "maxClients": 5"#, &[("3:38", no_effect)]),
        (
            r#""command": "x", "session": "per-client", "maxClients": 0"#,
            &[("3:56", "a.maxClients: must be a whole number from 1 to 10000000")],
        ),
        (r#""command": "x", "session": "per-client", "roots": []"#, &[("3:42", per_client)]),
        (
            r#""type": "files", "session": "per-client""#,
            &[("3:29", "a.session: a server of type files is the same for every client, use \"shared\"")],
        ),
        (
            r#""type": "files", "declare": [], "roots": []"#,
            &[("3:18", &format!("a.declare: {not_files}")), ("3:33", &format!("a.roots: {not_files}"))],
        ),
        (
            r#""command": "x", "declare": ["roots", "samplin"]"#,
            &[
                ("3:29", "a.declare[0]: unknown value \"roots\", use \"sampling\" or \"elicitation\""),
                ("3:38", "a.declare[1]: unknown value \"samplin\", did you mean \"sampling\"?"),
            ],
        ),
        (r#""command": "x", "declare": "sampling""#, &[("3:28", "a.declare: must be an array, not a string")]),
    ] {
        check_server(members, expected);
    }
}

#[test]
fn problems_of_roots_are_reported() {
    let not_a_root = "a root is a path or a file URI, write it like \"/srv/my files\" or \"file:///srv/my%20files\"";
    for (root, column, expected) in [
        (r#""https://x/y""#, 27, &format!("a.roots[0]: {not_a_root}")[..]),
        (r#""file:///a b""#, 27, &format!("a.roots[0]: {not_a_root}")),
        (r#""~/x""#, 27, "a.roots[0]: \"~\" is not expanded, write \"${HOME}/x\""),
        (r#""""#, 27, "a.roots[0]: must not be empty"),
        (r#""${NO}""#, 27, "a.roots[0]: variable NO is not set, set it or write ${NO:-default}"),
        ("1", 27, "a.roots[0]: must be a string, not a number"),
        (r#"{ "name": "n" }"#, 27, "a.roots[0]: \"uri\" is missing"),
        (r#"{ "uri": "file:x" }"#, 36, &format!("a.roots[0].uri: {not_a_root}")),
        (r#"{ "uri": "/x", "name": "" }"#, 50, "a.roots[0].name: must not be empty"),
        (r#"{ "uri": "/x", "title": "t" }"#, 42, "a.roots[0].title: unknown key"),
    ] {
        check_server(&format!("\"command\": \"x\", \"roots\": [{root}]"), &[(&format!("3:{column}"), expected)]);
    }
    let many = vec!["1"; 101].join(",");
    let expected = "a.roots: has 101 elements, at most 100 are allowed";
    check_server(&format!("\"command\": \"x\", \"roots\": [{many}]"), &[("3:26", expected)]);
}

#[test]
fn rename_targets_obey_the_maximum_length_of_the_server() {
    let target = "n".repeat(60);
    let members = |length: usize| {
        format!(
            "\"command\": \"x\", \"namespacing\": {{ \"maxLength\": {length} }}, \
             \"tools\": {{ \"rename\": {{ \"x\": \"{target}\" }} }}"
        )
    };
    let expected = "a.tools.rename.x: an exposed name is 1 to 59 letters, digits, \"_\" or \"-\"";
    check_server(&members(59), &[("3:81", expected)]);
    super::accept_server(&members(60));
}

#[test]
fn hard6_the_admin_token_is_long_and_differs_from_the_client_token() {
    let short = "10: admin.token: must be at least 16 visible ASCII characters, without spaces, generate one with: openssl rand -hex 16";
    check_section("admin", r#""token": "0123456789abcde""#, short);
    check_section("admin", r#""token": """#, short);
    check(
        r#"{ "mcpServers": {}, "gateway": { "token": "0123456789abcdef" }, "admin": { "token": "0123456789abcdef" } }"#,
        &["goblin.json:1:85: admin.token: is the same as gateway.token, which clients know, use another token"],
    );
}

#[test]
fn d13_problems_of_unlisted_are_reported() {
    check_server(
        r#""type": "files", "root": "/", "unlisted": "forward""#,
        &[("3:43", "a.unlisted: a server of type files offers every file that it serves, remove \"unlisted\"")],
    );
    check_server(
        r#""command": "x", "unlisted": "ask""#,
        &[("3:29", "a.unlisted: unknown value \"ask\", use \"reject\" or \"forward\"")],
    );
}

#[test]
fn d19_problems_of_inherit_are_reported() {
    let name = "must be the name of a variable, or a prefix and \"*\"";
    check_server(
        r#""command": "x", "inherit": ["A", "a b", "*", "GOBLIN_X", "A*", 1]"#,
        &[
            ("3:34", &format!("a.inherit[1]: {name}")),
            ("3:41", &format!("a.inherit[2]: {name}")),
            (
                "3:46",
                "a.inherit[3]: variables that start with GOBLIN_ are passed to no server, set another variable in \"env\"",
            ),
            ("3:64", "a.inherit[5]: must be a string, not a number"),
        ],
    );
    check_server(
        r#""command": "x", "inherit": "A""#,
        &[("3:28", "a.inherit: must be true or an array of names, write [\"NAME\", \"PREFIX_*\"]")],
    );
    check_server(
        r#""url": "http://x/", "inherit": true"#,
        &[("3:21", "a.inherit: does not belong to a server of type http, remove it")],
    );
    check(
        r#"{ "gateway": { "token": "${TOKEN}" }, "mcpServers": { "a": { "command": "x", "inherit": ["TOKEN"] } } }"#,
        &[
            "goblin.json:1:90: mcpServers.a.inherit[0]: contains a token of the gateway, which no server may see, remove it",
        ],
    );
}

#[test]
fn d16_an_unset_variable_concerns_one_server() {
    let loaded = parse(
        "{ \"mcpServers\": {\n\"a\": { \"url\": \"https://${HOST}/mcp\", \"headers\": { \"X-Key\": \"${NO}\" } },\n\
         \"b\": { \"command\": \"x\" },\n\"off\": { \"command\": \"${NO}\", \"enabled\": false },\n\
         \"file\": { \"command\": \"x\", \"args\": [\"${file:/no/such}\"] },\n\
         \"line\": { \"command\": \"npx -y x\" } } }",
        &origin(),
        &environment,
    );
    let config = loaded.expect("the other servers can run").config;
    let ids: Vec<_> = config.servers.keys().map(|id| id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "off", "file", "line"], "the order of the file");
    let reason = |id: &str| config.servers[id].misconfiguration().map(|found| found.reason());
    assert_eq!(
        reason("a").as_deref(),
        Some(
            "variable HOST is not set; variable NO is not set \
             (goblin.json:2:15: set it or write ${HOST:-default}; \
             goblin.json:2:60: set it or write ${file:/path/to/secret})"
        )
    );
    assert_eq!(config.servers["a"].transport.kind_name(), "http");
    assert_eq!(reason("b"), None);
    let file = reason("file").unwrap_or_default();
    assert!(file.starts_with("cannot read \"/no/such\": ") && file.ends_with(" (goblin.json:5:36)"), "{file}");
    let summary = config.servers["file"].misconfiguration().map(|found| found.summary());
    assert_eq!(summary.as_deref(), Some("a file that its entry names cannot be read"), "agents get no path");
    assert_eq!(
        reason("line").as_deref(),
        Some(
            "a whole command line is not a program \
             (goblin.json:6:22: write \"command\": \"npx\", \"args\": [\"-y\", \"x\"])"
        )
    );
    let runnable: Vec<_> = config.servers.iter().filter(|(_, server)| server.is_runnable()).collect();
    assert_eq!(runnable.len(), 1, "{runnable:?}");
}

#[test]
fn d16_an_unset_variable_outside_of_the_servers_rejects_the_file() {
    let text = r#"{ "mcpServers": { "a": { "command": "${NO}" } }, "telemetry": { "otlp": "${NO}" } }"#;
    let problems = parse(text, &origin(), &environment).expect_err("telemetry.otlp has no value").to_string();
    assert!(problems.contains("mcpServers.a.command") && problems.contains("telemetry.otlp"), "{problems}");
}

#[test]
fn d16_no_cure_suggests_a_default_for_a_secret() {
    for member in [
        r#""command": "x", "env": { "A": "${NO}" }"#,
        r#""command": "x", "args": ["${NO}"]"#,
        r#""url": "https://x", "headers": { "A": "${NO}" }"#,
        r#""url": "https://x/${API_TOKEN}""#,
        r#""url": "https://x/?key=${NO}""#,
        r#""httpUrl": "https://x/?key=${NO}""#,
        r#""command": "npx x ${NO}""#,
    ] {
        let text = format!("{{ \"mcpServers\": {{ \"a\": {{ {member} }} }} }}");
        let [problem] = &problems_of(&text, &origin(), &environment)[..] else { panic!("{text}") };
        assert_eq!(problem.cure.as_deref(), Some("set it or write ${file:/path/to/secret}"), "{text}");
    }
}

#[test]
fn a_tilde_in_an_argument_is_a_warning() {
    let text = r#"{ "mcpServers": { "a": { "command": "x", "args": ["~/notes", "a~b"] } } }"#;
    let warnings = parse(text, &origin(), &environment).expect("a valid file").warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(
        warning.to_string(),
        "goblin.json:1:51: mcpServers.a.args[0]: \"~\" is passed to the server as written, \
         write \"${HOME}/notes\" unless the server expands it"
    );
}
