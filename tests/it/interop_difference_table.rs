//! The known differences between a direct connection and one through the gateway, each with its reason. They are the
//! source of a table in `docs/reference/interop.md`.

use std::fmt::Write as _;

use crate::interop_difference::Difference;

#[derive(Debug)]
pub struct Row {
    pub feature: &'static str,
    /// The features and the places of the difference. `*` stands for any characters.
    pub at: &'static [(&'static str, &'static str)],
    pub direct: &'static str,
    pub through: &'static str,
    pub wanted: &'static str,
    pub reason: &'static str,
}

const AS_NOW: &str = "as through the gateway";

/// The feature whose difference must not occur if the client has a connection of its own.
pub const OF_SHARING: &str = "roots";

pub const DIFFERENCES: [Row; 18] = [
    Row {
        feature: "name and version of the server",
        at: &[("handshake", "serverInfo/*"), ("*", "*/_meta/io.modelcontextprotocol/serverInfo/*")],
        direct: "those of the server",
        through: "those of the gateway, in the handshake and in lists",
        wanted: AS_NOW,
        reason: "The gateway may have several servers (SRV-6).",
    },
    Row {
        feature: "instructions",
        at: &[("handshake", "instructions")],
        direct: "the text of the server",
        through: "the same text under a heading with the server's id",
        wanted: AS_NOW,
        reason: "The gateway joins the instructions of all servers (SRV-6).",
    },
    Row {
        feature: "capability `dev.goblin/subscriptions`",
        at: &[("handshake", "capabilities/*/dev.goblin/subscriptions")],
        direct: "absent",
        through: "present",
        wanted: AS_NOW,
        reason: "The gateway offers further options of subscriptions (SUBX-1 to SUBX-4).",
    },
    Row {
        feature: "capability for tasks",
        at: &[("handshake", "capabilities/extensions"), ("handshake", "capabilities/tasks")],
        direct: "in the form of one era",
        through: "in the form of the client's era",
        wanted: AS_NOW,
        reason: "The gateway translates tasks between the eras (TASK-1).",
    },
    Row {
        feature: "number of pages",
        at: &[("*lists", "step */pages"), ("pages", "step 1/result/nextCursor"), ("pages", "step 1/result/tools")],
        direct: "as the server divides its lists",
        through: "one page up to the gateway's page size",
        wanted: AS_NOW,
        reason: "The gateway reads all pages in advance and makes its own (REG-1, RES-11).",
    },
    Row {
        feature: "unknown cursor",
        at: &[("pages", "step 2*")],
        direct: "the server decides",
        through: "-32602",
        wanted: AS_NOW,
        reason: "The cursors are the gateway's own (RES-11).",
    },
    Row {
        feature: "order of resources",
        at: &[("lists", "step 3/result/resources"), ("pages", "step 3/result/resources")],
        direct: "the order of the server",
        through: "sorted by URI",
        wanted: AS_NOW,
        reason: "The resources of all servers are one list (RES-10). Tools, prompts and templates keep their order.",
    },
    Row {
        feature: "`_meta` of a list",
        at: &[("*lists", "step */result/_meta*"), ("pages", "step */result/_meta*")],
        direct: "present, if the server sends it",
        through: "absent",
        wanted: AS_NOW,
        reason: "A list joins the pages of all servers (SRV-3). Each entry keeps its own `_meta`.",
    },
    Row {
        feature: "`list_changed` without a change",
        at: &[
            ("changed lists without a change", "step *"),
            ("messages", "notifications/prompts/list_changed"),
            ("messages", "notifications/resources/list_changed"),
        ],
        direct: "the client gets it",
        through: "the client does not get it",
        wanted: AS_NOW,
        reason: "The gateway compares the new list with the old one (REG-8).",
    },
    Row {
        feature: "unknown tool",
        at: &[("unknown tool", "step 1*")],
        direct: "the server decides",
        through: "-32602, `TOOL_NOT_FOUND`",
        wanted: AS_NOW,
        reason: "The gateway does not ask a server about it (ROUTE-2).",
    },
    Row {
        feature: "unknown prompt, also in a completion",
        at: &[("prompts", "step 3/error/*"), ("completion", "step 3")],
        direct: "the server decides",
        through: "-32602, `PROMPT_NOT_FOUND`",
        wanted: AS_NOW,
        reason: "The gateway does not ask a server about it (D20).",
    },
    Row {
        feature: "error of a resource that does not exist",
        at: &[("resources that are not listed", "step 1/error/*"), ("resources that do not exist", "step 1/error/*")],
        direct: "the code, message and data of the server",
        through: "the code of the client's version, `data.code` and `data.uri`",
        wanted: AS_NOW,
        reason: "Every client can recognise the error (D5, D12).",
    },
    Row {
        feature: "`resources/read` without a URI",
        at: &[("resources that do not exist", "step 2/error/*")],
        direct: "the server decides",
        through: "-32602",
        wanted: AS_NOW,
        reason: "The URI selects the server (RES-14).",
    },
    Row {
        feature: "subscription to a resource that does not exist",
        at: &[("subscriptions", "step 6")],
        direct: "the server decides",
        through: "-32602, `RESOURCE_NOT_FOUND`",
        wanted: AS_NOW,
        reason: "The gateway does not ask a server about it (SUB-3).",
    },
    Row {
        feature: "unknown log level",
        at: &[("log messages, a level", "step 7/error/*")],
        direct: "the server decides",
        through: "-32602",
        wanted: AS_NOW,
        reason: "The gateway keeps the level of each client, since clients share a server.",
    },
    Row {
        feature: OF_SHARING,
        at: &[("roots", "step 1/result/*"), ("messages", "roots/list")],
        direct: "the server gets the roots of the client",
        through: "the server gets -32601, or the roots of the configuration",
        wanted: AS_NOW,
        reason: "The roots of one client must not apply to another. `\"session\": \"per-client\"` forwards the request.",
    },
    Row {
        feature: "error -32601 of a tool",
        at: &[("tool errors", "step 6/error/*")],
        direct: "HTTP status 404, which some SDKs do not read",
        through: "HTTP status 200 with the error",
        wanted: AS_NOW,
        reason: "The error concerns the tool, not the method `tools/call`.",
    },
    Row {
        feature: "error -32601 of an unknown method",
        at: &[("unknown requests of the client", "step 4/error/*")],
        direct: "HTTP status 200 or 404, as the server chooses",
        through: "HTTP status 404 in 2026-07-28",
        wanted: AS_NOW,
        reason: "The protocol requires this status. The Rust SDK does not read the error in it.",
    },
];

/// Returns the section about the differences for the page.
pub fn section() -> String {
    let mut section = String::from(INTRODUCTION);
    for Row { feature, direct, through, wanted, reason, .. } in &DIFFERENCES {
        writeln!(section, "| {feature} | {direct} | {through} | {wanted} | {reason} |")
            .expect("a string takes everything");
    }
    section + SEVERAL
}

const INTRODUCTION: &str = "\
\n## Differences

`tests/it/interop_difference.rs` plays every entry of `tests/clients/differences.json` twice: without the gateway and
through it. The gateway has one server, `\"namespacing\": \"none\"` and otherwise its default configuration. Four pairs
also have `\"session\": \"per-client\"`, with which the roots of the client reach the server. The test compares the handshake, results, errors, server requests and notifications, and their order. Only these differences
remain, and the test fails if one of them no longer occurs:

| feature | direct | through the gateway | wanted | reason |
|---|---|---|---|---|
";

const SEVERAL: &str = "
Further decisions, which often depend on the number of clients and servers:

- **Unknown methods.** A request or notification with a method that no version defines goes to the server, if the client
  sees exactly one. With several servers the request gets -32601. The same holds for unknown capabilities of a server.
  A request of a 2026-07-28 client reaches only a server of that version, because older servers do not agree on the
  error for an unknown method. A notification of such a client over HTTP names no client, so it passes a shared
  connection only.
- **Messages without a call.** Clients may share one connection to a server. A log message, notification or request that
  belongs to no open call goes to the client only if no other client ever used the connection. Otherwise a log message
  goes to the gateway's log and a request is rejected. `\"session\": \"per-client\"` gives each client its own connection.
- **Unrequested messages.** Goblin drops an update of a resource without a subscription (SUB-6), progress after the answer
  of its call, progress of a client with an unknown token, and the end of an unknown URL elicitation.
- **Undeclared features.** Goblin lists only what the capabilities of a server declare (RES-1). It rejects a request of a
  server that the capabilities of the client do not allow.
- **Log level.** A client that sets no level gets every log message that the server sends. If another client of the
  connection sets a level, the server gets the level `debug`, and the gateway filters for the other client.
- **Capabilities and name of the client.** A server learns them only over a client's own connection, or in 2026-07-28.
- **Servers of both eras over stdio.** One process serves all clients, in 2026-07-28. The gateway translates for a legacy
  client, see [Protocol versions](versions.md). `\"protocol\": \"legacy\"` avoids the translation.
";

impl Row {
    pub fn explains(&self, difference: &Difference) -> bool {
        let is_at = |(feature, place): &(&str, &str)| {
            matches(feature, &difference.feature) && matches(place, &difference.place)
        };
        self.at.iter().any(is_at)
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).filter(|at| tail.is_char_boundary(*at)).any(|at| matches(rest, &tail[at..]))
        }),
    }
}

#[test]
fn a_place_of_a_difference_may_have_wildcards() {
    for (pattern, text, expected) in
        [("a", "a", true), ("a", "ab", false), ("a*", "a", true), ("*/c", "a/b/c", true), ("*/c", "a/b/cd", false)]
    {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}
