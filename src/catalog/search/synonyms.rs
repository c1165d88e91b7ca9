//! Words that people and servers use for the same thing.
//!
//! Only general words of work with a computer, which any catalog may have on one side and any question on the other. A
//! word of one product does not belong here: what it means there is for its server's descriptions to say.

/// Each word may stand for the others of its group. A word may be in several groups; it then stands for all of them,
/// they do not stand for each other.
pub const GROUPS: [&[&str]; 46] = [
    // What is done.
    &["delete", "remove", "erase", "destroy", "drop", "discard", "purge"],
    &["create", "add", "make", "new", "insert", "generate"],
    &["create", "write", "draft", "compose"],
    &["open", "create", "file", "raise"],
    &["update", "edit", "modify", "change", "set", "alter", "patch"],
    &["get", "fetch", "retrieve", "read", "show", "view", "display", "see", "look", "load"],
    &["list", "show", "enumerate", "browse", "all"],
    &["get", "list"],
    &["describe", "details", "info", "information", "metadata", "inspect"],
    &["search", "find", "query", "lookup", "look", "locate", "discover", "grep"],
    &["send", "post", "publish", "submit", "write"],
    &["run", "execute", "invoke", "launch", "start", "perform", "trigger"],
    &["stop", "kill", "terminate", "cancel", "end", "abort", "halt"],
    &["move", "rename", "relocate"],
    &["copy", "duplicate", "clone", "replicate"],
    &["upload", "import", "attach"],
    &["download", "export", "save", "fetch"],
    &["save", "store", "write", "record"],
    &["merge", "combine", "join", "concatenate"],
    &["split", "divide", "separate"],
    &["compare", "diff", "difference"],
    &["compute", "calculate", "evaluate"],
    &["convert", "transform", "translate", "change"],
    &["summarize", "summary", "overview"],
    &["check", "verify", "validate", "test", "inspect"],
    &["revert", "undo", "restore", "rollback", "reset"],
    &["install", "setup", "add"],
    &["close", "resolve", "complete", "finish"],
    &["share", "grant", "permission", "access"],
    &["reply", "respond", "answer", "comment"],
    &["watch", "monitor", "observe", "track", "follow"],
    &["crawl", "scrape", "extract"],
    // What it is done to.
    &["directory", "folder"],
    &["repository", "repo"],
    &["database", "db"],
    &["image", "picture", "photo", "screenshot"],
    &["document", "doc", "page"],
    &["message", "mail", "email"],
    &["user", "member", "person", "people", "account"],
    &["task", "todo", "issue", "ticket", "item"],
    &["configuration", "config", "settings", "preferences", "options"],
    &["environment", "env"],
    &["web", "website", "internet", "online", "url", "link"],
    &["history", "log", "past", "previous"],
    &["bug", "issue", "problem", "defect", "error"],
    &["meeting", "event", "appointment", "calendar", "schedule"],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_of_single_words_and_say_each_once() {
        for group in GROUPS {
            assert!(group.len() > 1, "{group:?}");
            for (index, word) in group.iter().enumerate() {
                assert!(word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
                assert!(!group[..index].contains(word), "{word} stands twice in {group:?}");
            }
        }
    }
}
