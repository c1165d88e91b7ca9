//! Words that people and servers use for the same thing.
//!
//! Only general words of work with a computer, which any catalog may have on one side and any question on the other. A
//! word of one product does not belong here: what it means there is for its server's descriptions to say.

/// Each word may stand for the others of its group. A word may be in several groups; it then stands for all of them,
/// they do not stand for each other. What is often written as two words is written as one here.
#[rustfmt::skip]
pub const GROUPS: [&[&str]; 139] = [
    // What is done.
    &["delete", "remove", "erase", "destroy", "drop", "discard", "purge", "clear", "wipe", "trash", "uninstall", "getrid", "rm", "unlink", "forget"],
    &["create", "add", "make", "new", "insert", "generate", "build", "produce", "open"],
    &["create", "write", "draft", "compose", "author"],
    &["create", "start", "begin", "initialize", "init", "launch", "setup"],
    &["create", "post", "submit", "file", "raise", "report", "register", "propose"],
    &["update", "edit", "modify", "change", "set", "alter", "patch", "adjust", "revise", "replace", "rewrite"],
    &["add", "append", "insert", "attach", "put", "include"],
    &["get", "fetch", "retrieve", "read", "show", "view", "display", "see", "look", "load", "obtain", "return", "print", "dump"],
    &["get", "list", "show", "enumerate", "browse", "ls", "all"],
    &["describe", "details", "info", "information", "metadata", "inspect", "explain", "definition", "about"],
    &["get", "describe", "show", "inspect", "status", "state"],
    &["search", "find", "query", "lookup", "locate", "discover", "grep", "seek", "look", "hunt"],
    &["list", "search", "find"],
    &["send", "post", "publish", "submit", "deliver", "dispatch", "notify", "tell"],
    &["message", "chat", "text", "dm", "conversation"],
    &["run", "execute", "invoke", "launch", "start", "perform", "trigger", "call", "play"],
    &["rerun", "retry", "restart", "reboot", "again", "cycle"],
    &["stop", "kill", "terminate", "cancel", "end", "abort", "halt", "shutdown"],
    &["pause", "suspend", "disable", "deactivate", "turnoff", "off"],
    &["enable", "activate", "turnon", "resume", "on"],
    &["move", "rename", "relocate", "transfer", "mv", "shift", "reorder"],
    &["copy", "duplicate", "clone", "replicate", "cp", "fork"],
    &["upload", "import", "attach", "put", "push"],
    &["download", "export", "save", "fetch", "pull"],
    &["save", "store", "write", "record", "persist", "remember", "keep"],
    &["merge", "combine", "join", "concatenate", "integrate", "unite"],
    &["split", "divide", "separate", "partition"],
    &["compare", "diff", "difference", "versus"],
    &["compute", "calculate", "evaluate", "count", "sum", "total", "aggregate"],
    &["count", "number", "many"],
    &["convert", "transform", "translate", "change", "turn"],
    &["render", "draw", "plot", "visualize", "chart", "graph", "diagram"],
    &["summarize", "summary", "overview", "digest", "abstract"],
    &["check", "verify", "validate", "test", "inspect", "lint", "audit"],
    &["approve", "accept", "confirm", "allow"],
    &["reject", "decline", "deny", "refuse"],
    &["revert", "undo", "restore", "rollback", "reset", "recover"],
    &["install", "setup", "add", "deploy"],
    &["deploy", "release", "publish", "ship", "rollout"],
    &["close", "resolve", "complete", "finish", "done", "mark"],
    &["assign", "own", "ownership", "owner", "responsible", "allocate"],
    &["share", "grant", "permission", "access", "invite", "permit"],
    &["reply", "respond", "answer", "comment"],
    &["comment", "remark", "note", "annotation", "feedback", "review"],
    &["watch", "monitor", "observe", "track", "follow", "subscribe", "alert"],
    &["crawl", "scrape", "extract", "harvest"],
    &["extract", "parse", "read"],
    &["navigate", "visit", "goto", "browse", "open"],
    &["click", "tap", "press", "push", "touch"],
    &["type", "enter", "input", "fill", "write"],
    &["scroll", "swipe"],
    &["login", "signin", "authenticate", "auth"],
    &["archive", "backup", "snapshot"],
    &["lock", "protect", "secure"],
    &["schedule", "plan", "book", "arrange"],
    &["link", "connect", "relate", "associate", "relation", "association", "relationship", "attach"],
    &["filter", "where", "matching"],
    &["sort", "order", "rank"],
    &["authorize", "grant", "allow"],
    &["estimate", "forecast", "predict", "prediction"],
    &["resize", "scale", "shrink", "enlarge"],
    &["rotate", "flip", "turn"],
    &["highlight", "format", "style"],
    &["speak", "speech", "voice", "say", "talk"],
    &["transcribe", "transcript", "transcription", "recognize", "stt"],
    &["listen", "audio", "sound", "music", "recording"],
    &["zip", "compress", "pack"],
    &["unzip", "decompress", "unpack"],
    &["query", "select", "sql"],
    // What it is done to.
    &["directory", "folder", "dir", "mkdir"],
    &["file", "document", "path"],
    &["repository", "repo", "codebase"],
    &["database", "db"],
    &["image", "picture", "photo", "screenshot", "figure", "graphic", "media"],
    &["document", "doc", "docx", "page"],
    &["spreadsheet", "sheet", "workbook", "xlsx", "worksheet", "tab"],
    &["presentation", "slides", "pptx", "deck", "slide"],
    &["message", "mail", "email", "inbox"],
    &["user", "member", "person", "people", "account", "contact", "individual"],
    &["user", "employee", "staff", "colleague", "worker"],
    &["team", "group", "organization", "department"],
    &["task", "todo", "issue", "ticket", "item", "card", "story"],
    &["bug", "issue", "problem", "defect", "error", "fault"],
    &["problem", "incident", "outage", "failure", "health"],
    &["error", "failure", "exception", "crash", "failing", "failed"],
    &["configuration", "config", "settings", "preferences", "options", "setup"],
    &["environment", "env"],
    &["variable", "var", "parameter"],
    &["web", "website", "internet", "online", "site"],
    &["url", "link", "address", "hyperlink"],
    &["history", "log", "past", "previous", "changelog", "commits"],
    &["log", "logs", "journal", "logbook"],
    &["meeting", "event", "appointment", "calendar"],
    &["location", "place", "position", "coordinates", "gps", "geo"],
    &["route", "directions", "navigation", "path"],
    &["address", "geocode", "place"],
    &["weather", "forecast", "temperature", "climate"],
    &["price", "cost", "pricing", "rate", "fee"],
    &["money", "payment", "pay", "paid", "bill", "invoice"],
    &["customer", "client", "buyer"],
    &["product", "item", "goods", "article"],
    &["company", "business", "organization", "firm"],
    &["job", "build", "pipeline", "workflow", "ci"],
    &["machine", "server", "vm", "instance", "host", "computer", "virtual"],
    &["container", "pod"],
    &["secret", "credential", "password", "key", "token"],
    &["secret", "credentials", "passwords"],
    &["phone", "mobile", "device", "smartphone"],
    &["app", "application", "program"],
    &["browser", "page", "web", "tab"],
    &["table", "grid", "rows"],
    &["row", "record", "entry", "item"],
    &["column", "field", "attribute", "property"],
    &["cell", "cells", "range"],
    &["value", "number", "figure"],
    &["tag", "label", "category"],
    &["sprint", "iteration", "cycle"],
    &["branch", "fork"],
    &["commit", "change", "revision", "version"],
    &["merge", "request", "pull", "mr", "pr"],
    &["paper", "article", "publication"],
    &["video", "clip", "movie"],
    &["song", "track", "music"],
    &["stock", "share", "symbol", "ticker", "equity"],
    &["vacation", "leave", "holiday", "pto", "absence"],
    &["timesheet", "hours", "worklog", "time"],
    &["note", "memo", "memory"],
    &["topic", "subject", "theme"],
    &["text", "string", "content", "contents"],
    &["paragraph", "block", "section"],
    &["chart", "graph", "plot"],
    &["dashboard", "panel", "report"],
    &["metric", "statistic", "stats", "statistics", "measurement"],
    &["notification", "alert", "alarm"],
    &["permission", "right", "role", "access"],
    &["today", "current", "now"],
    &["toggle", "flag", "switch"],
    &["rental", "listing", "apartment", "stay", "accommodation"],
    &["network", "http", "request", "traffic"],
];

/// What a tool does to the world, as far as the verb in its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Reads,
    Changes,
    Destroys,
}

#[rustfmt::skip]
pub const DEEDS: [(Deed, &[&str]); 3] = [
    (Deed::Reads, &[
        "get", "list", "show", "search", "find", "read", "fetch", "view", "describe", "query", "browse", "count", "check",
        "display", "see", "look", "lookup", "retrieve", "inspect", "compare", "analyze", "monitor", "watch", "track",
        "tell", "explain", "summarize", "enumerate", "download", "export",
    ]),
    (Deed::Changes, &[
        "create", "add", "make", "insert", "update", "edit", "modify", "change", "set", "write", "send", "post", "publish",
        "put", "append", "replace", "rename", "move", "copy", "merge", "assign", "upload", "import", "install", "enable",
        "disable", "start", "stop", "restart", "run", "execute", "trigger", "cancel", "approve", "reject", "close", "open",
        "reply", "share", "invite", "attach", "apply", "deploy", "submit", "save", "store", "register", "draft", "compose",
        "schedule", "book", "build", "fork", "restore", "revert", "reset", "archive", "lock", "protect", "link",
        "connect", "associate", "convert", "turn", "give", "rotate", "resize", "format", "pause", "resume", "retry",
        "rerun", "raise", "propose", "grant", "transfer", "duplicate", "clone",
    ]),
    (Deed::Destroys, &["delete", "remove", "erase", "destroy", "drop", "discard", "purge", "clear", "wipe", "trash", "uninstall", "unlink", "forget", "getrid"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_single_words_and_say_each_once() {
        for group in GROUPS {
            assert!(group.len() > 1, "{group:?}");
            for (index, word) in group.iter().enumerate() {
                assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{word}");
                assert!(!group[..index].contains(word), "{word} stands twice in {group:?}");
            }
        }
    }
}
