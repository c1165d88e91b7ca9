//! The description of a server: the result of `initialize`, or of `server/discover`.

use crate::Dialect;
use crate::extensions::OWN_PREFIX;
use crate::json::{self, Span};
use crate::listen::ListenFilter;
use crate::modern::{SERVER_INFO, TASKS};

/// The description of a backend from `initialize` or `server/discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub dialect: Dialect,
    pub capabilities: Capabilities,
    pub instructions: Option<String>,
    /// `name` and `version` of `serverInfo`, for people.
    pub software: String,
    /// The `extensions` member of the capabilities, unparsed. Only in versions without a handshake.
    pub extensions: Option<String>,
    /// The capabilities that the gateway does not know, for a client that sees this server alone.
    pub unknown: UnknownCapabilities,
    /// The result of `server/discover` lists a version with a handshake too.
    pub lists_handshake: bool,
}

/// The limit in bytes of the unknown capabilities of a server. Longer ones are dropped.
const MAX_UNKNOWN: usize = 16 * 1024;

/// Capabilities that no version defines. Each field is a list of members as JSON, empty or with a leading comma.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownCapabilities {
    pub experimental: String,
    pub extensions: String,
    /// Further members beside the defined ones.
    pub others: String,
}

impl UnknownCapabilities {
    fn read(text: &str, capabilities: Option<Span>) -> UnknownCapabilities {
        const DEFINED: [&str; 8] =
            ["tools", "prompts", "resources", "completions", "logging", "tasks", "experimental", "extensions"];
        let Some(whole) = capabilities.filter(|at| at.range().len() <= MAX_UNKNOWN) else { return Self::default() };
        let join = |of: Span, is_kept: &dyn Fn(&str) -> bool| {
            let kept = json::members(text, of).filter(|member| is_kept(&member.key(text)));
            kept.map(|member| format!(",{}", member.written(text))).collect()
        };
        let object = |key| json::member(text, whole, key).filter(|at| at.get(text).starts_with('{'));
        // The gateway relays tasks and declares them itself. Members of its own name belong to another gateway.
        let is_foreign = |key: &str| key != TASKS && !key.starts_with(OWN_PREFIX);
        UnknownCapabilities {
            experimental: object("experimental").map_or_else(String::new, |at| join(at, &is_foreign)),
            extensions: object("extensions").map_or_else(String::new, |at| join(at, &is_foreign)),
            others: join(whole, &|key| !DEFINED.contains(&key)),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    /// The backend sends `list_changed` notifications for tools.
    pub tools_change: bool,
    pub prompts_change: bool,
    pub resources_change: bool,
    pub completions: bool,
    pub logging: bool,
    /// Tools may be called as tasks.
    pub tasks: bool,
}

impl Hello {
    /// Returns a filter with the lists for which the backend sends `list_changed`.
    pub fn announced_lists(&self) -> ListenFilter {
        let Capabilities { tools_change, prompts_change, resources_change, .. } = self.capabilities;
        ListenFilter {
            tools: tools_change,
            prompts: prompts_change,
            resources: resources_change,
            ..ListenFilter::default()
        }
    }

    /// Reads the result of `server/discover`. Returns `None` if it has no array of versions.
    pub fn discovered(text: &str, result: Span) -> Option<Hello> {
        let versions = json::member(text, result, "supportedVersions").filter(|at| at.get(text).starts_with('['))?;
        let versions = json::elements(text, versions).filter_map(|at| json::string(text, at));
        let lists_handshake =
            versions.filter_map(|version| Dialect::parse(&version)).any(|dialect| dialect.has_handshake());
        Some(Hello { lists_handshake, ..Hello::read(text, result, Dialect::NEWEST) })
    }

    /// Reads the result of `initialize` or `server/discover`.
    pub fn read(text: &str, result: Span, dialect: Dialect) -> Hello {
        let string = |of, key| json::member(text, of, key).and_then(|span| json::string(text, span));
        let capabilities = json::member(text, result, "capabilities");
        let meta = json::member(text, result, "_meta").and_then(|meta| json::member(text, meta, SERVER_INFO));
        let info = json::member(text, result, "serverInfo").or(meta);
        let software = info.map_or_else(String::new, |info| {
            let part = |key| string(info, key).unwrap_or_default();
            format!("{} {}", part("name"), part("version")).trim().to_owned()
        });
        let extensions = capabilities.and_then(|at| json::member(text, at, "extensions"));
        Hello {
            dialect,
            capabilities: Capabilities::read(text, capabilities),
            instructions: string(result, "instructions").filter(|text| !text.trim().is_empty()).map(Into::into),
            software,
            extensions: extensions.filter(|_| !dialect.has_handshake()).map(|at| at.get(text).to_owned()),
            unknown: UnknownCapabilities::read(text, capabilities),
            lists_handshake: false,
        }
    }
}

impl Capabilities {
    fn read(text: &str, span: Option<Span>) -> Capabilities {
        let Some(span) = span else { return Capabilities::default() };
        let object = |of, key| json::member(text, of, key).filter(|value| value.get(text).starts_with('{'));
        let resources = object(span, "resources");
        let is_true = |of, key| json::member(text, of, key).is_some_and(|value| value.get(text) == "true");
        let changes = |key| object(span, key).is_some_and(|part| is_true(part, "listChanged"));
        Capabilities {
            tools: object(span, "tools").is_some(),
            prompts: object(span, "prompts").is_some(),
            resources: resources.is_some(),
            subscribe: resources.is_some_and(|resources| is_true(resources, "subscribe")),
            tools_change: changes("tools"),
            prompts_change: changes("prompts"),
            resources_change: changes("resources"),
            completions: object(span, "completions").is_some(),
            logging: object(span, "logging").is_some(),
            tasks: declares_tasks(text, span),
        }
    }
}

/// Reports whether the capabilities of either era declare calls as tasks.
fn declares_tasks(text: &str, capabilities: Span) -> bool {
    let find = |path: &[&str]| path.iter().try_fold(capabilities, |of, key| json::member(text, of, key));
    let found = find(&["tasks", "requests", "tools", "call"]).or_else(|| find(&["extensions", TASKS]));
    found.is_some_and(|found| found.get(text).starts_with('{'))
}
