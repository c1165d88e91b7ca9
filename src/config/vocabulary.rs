//! Every key we know, where it may stand, and what it is called elsewhere.
//!
//! Three kinds: keys we read; keys of other clients that say nothing to a gateway and are passed over; keys of ours that
//! this version does not serve yet, which are refused, because a setting that is silently without effect is worse.

use crate::config::problem::{Fault, quoted};

/// The keys of one object.
pub(crate) struct Keys {
    pub(crate) read: &'static [&'static str],
    pub(crate) passed_over: &'static [&'static str],
    pub(crate) later: &'static [&'static str],
}

/// The servers, as goblin and others call them.
pub(crate) const SERVERS: [&str; 4] = ["mcpServers", "servers", "context_servers", "mcp_servers"];
pub(crate) const URL: [&str; 3] = ["url", "serverUrl", "httpUrl"];
pub(crate) const TYPE: [&str; 2] = ["type", "transport"];

pub(crate) const ROOT: Keys = Keys {
    read: &["gateway", "namespacing", "policies", "log", "mcpServers", "servers", "context_servers", "mcp_servers"],
    passed_over: &["$schema"],
    later: &["subscriptions", "exposure", "profiles", "metaTools", "admin", "telemetry"],
};

pub(crate) const GATEWAY: Keys = Keys {
    read: &[
        "host",
        "port",
        "allowedHosts",
        "allowedOrigins",
        "maxSessions",
        "sessionIdleTimeout",
        "maxBodySize",
        "grace",
        "token",
    ],
    passed_over: &[],
    later: &[],
};

pub(crate) const POLICIES: Keys = Keys {
    read: &[
        "defaultTimeout",
        "maxTimeout",
        "startTimeout",
        "maxInFlight",
        "maxInFlightPerBackend",
        "maxMessageSize",
        "pageSize",
    ],
    passed_over: &[],
    later: &["askTimeout"],
};

pub(crate) const LOG: Keys = Keys { read: &["level", "format"], passed_over: &[], later: &[] };

pub(crate) const NAMESPACING: Keys =
    Keys { read: &["tools", "prompts", "resources", "separator", "maxLength"], passed_over: &[], later: &[] };

pub(crate) const SERVER: Keys = Keys {
    read: &[
        "type",
        "transport",
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "serverUrl",
        "httpUrl",
        "headers",
        "tls",
        "root",
        "hidden",
        "ignored",
        "maxFiles",
        "enabled",
        "disabled",
        "session",
        "protocol",
        "prefix",
        "timeout",
        "namespacing",
        "validate",
        "tools",
        "includeTools",
        "excludeTools",
        "prompts",
        "resources",
    ],
    passed_over: &["autoApprove", "alwaysAllow", "description", "trust", "gallery"],
    later: &["poll", "declare", "roots"],
};

/// The object that older Zed has for `command`.
pub(crate) const COMMAND: Keys = Keys { read: &["path", "args", "env"], passed_over: &[], later: &[] };

pub(crate) const TLS: Keys = Keys { read: &["ca"], passed_over: &[], later: &[] };

pub(crate) const TOOLS: Keys = Keys { read: &["allow", "deny", "rename", "timeouts"], passed_over: &[], later: &[] };

/// Prompts and resources.
pub(crate) const RULES: Keys = Keys { read: &["allow", "deny", "rename"], passed_over: &[], later: &[] };

impl Keys {
    pub(crate) fn check(&self, key: &str) -> Result<(), Fault> {
        if self.read.contains(&key) || self.passed_over.contains(&key) {
            return Ok(());
        }
        if self.later.contains(&key) {
            return Err(later().cure("remove it"));
        }
        let fault = Fault::new("unknown key");
        Err(match nearest(key, self.read.iter().chain(self.later).chain(self.passed_over).copied()) {
            Some(known) => fault.cure(format!("did you mean \"{known}\"?")),
            None => fault,
        })
    }
}

/// For keys and values that are in the vocabulary but not served yet.
pub(crate) fn later() -> Fault {
    Fault::new("known but not available in this version yet")
}

/// A closed set of values: what each means, and which are not served yet.
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

/// The known word that a slip of the finger would explain: a third of its letters may differ, case does not count.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing costs the product of the lengths; nobody mistypes a word at this length.
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
            ("poll", Err("known but not available in this version yet, remove it")),
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
