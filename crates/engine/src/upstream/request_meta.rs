//! Rewrites the `_meta` of a request for the link that carries it. All functions are pure.
//!
//! A client with a handshake introduces itself once. In versions without a handshake, each request carries the client's
//! version, capabilities, name and log level in `_meta`. If the client and the link are of different generations, these
//! members are added or removed. Other members stay unchanged. The progress token is always replaced by the gateway's
//! own.

use bytes::Bytes;
use goblin_config::Declare;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::modern::{CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION, RESERVED, TASKS};
use goblin_wire::{Dialect, Keyword, Request};

use crate::client::caller::{Caller, Level};
use crate::upstream::TaskPolicy;

/// A client's request and the data about its sender.
pub(crate) struct RequestMeta<'a> {
    pub request: &'a Request,
    pub caller: &'a Caller,
    /// The log level that the client set by a request, if its version has such a request.
    pub level: Option<Level>,
    /// The capabilities that the configuration permits to declare.
    pub declare: Declare,
    /// The position of the client's progress token, and the gateway's token.
    pub token: Option<(Span, Bytes)>,
    pub tasks: TaskPolicy,
}

impl RequestMeta<'_> {
    /// Returns the changes for a link that speaks `dialect`.
    pub(crate) fn edits(self, dialect: Dialect) -> Splice {
        let (request, tasks) = (self.request, self.tasks);
        let eras = (self.caller.dialect.has_handshake(), dialect.has_handshake());
        let mut edits = match eras {
            (true, true) => self.replace_token(),
            (false, false) => self.reduce_capabilities(),
            (true, false) => self.add_introduction(dialect),
            (false, true) => self.remove_introduction(),
        };
        let text = request.raw.as_str();
        // The member requests a task only in versions with a handshake. In others, a capability replaces it.
        let is_foreign = match eras {
            (true, false) => tasks.accepted,
            (false, true) => true,
            (true, true) | (false, false) => false,
        };
        if let Some(params) = request.params.whole {
            if is_foreign && request.params.task.is_some() {
                json::cut_members(text, params, |key| key == "task", &mut edits);
            }
            if tasks.required && dialect.has_tasks() {
                json::prepend(text, params, r#""task":{}"#, &mut edits);
            }
        }
        edits
    }

    fn replace_token(self) -> Splice {
        let mut edits = Splice::new();
        if let Some((at, token)) = self.token {
            edits.replace(at, token);
        }
        edits
    }

    /// Reduces the declared capabilities. The client's `_meta` is complete, but it may declare more capabilities than
    /// the gateway permits here.
    fn reduce_capabilities(self) -> Splice {
        let text = self.request.raw.as_str();
        let mut changed = None;
        let must_remove_tasks = !self.tasks.accepted && names_tasks(&self.caller.client_capabilities.raw);
        if !self.declare.sampling || !self.declare.elicitation || must_remove_tasks {
            let at = self.request.params.known_meta.capabilities;
            changed = at.map(|at| (at, capabilities(at.get(text), self.declare, self.tasks)));
        }
        let mut edits = self.replace_token();
        if let Some((at, capabilities)) = changed {
            edits.replace(at, capabilities);
        }
        edits
    }

    /// Adds the data that the client sent in its handshake.
    fn add_introduction(self, dialect: Dialect) -> Splice {
        let request = self.request;
        let (text, params) = (request.raw.as_str(), &request.params);
        let mut members =
            introduction(dialect, &capabilities(&self.caller.client_capabilities.raw, self.declare, self.tasks));
        if let Some(level) = self.level {
            members.push((LOG_LEVEL, quote(level.as_str())));
        }
        let whole = params.whole;
        let meta = params.meta.filter(|meta| meta.get(text).starts_with('{'));
        let mut edits = match meta {
            Some(_) => self.replace_token(),
            None => Splice::new(),
        };
        match (meta, params.meta, whole) {
            (Some(meta), ..) => {
                // Members of these names have no meaning in the client's version, so replace them.
                for member in json::members(text, meta) {
                    let key = member.key(text);
                    if let Some(index) = members.iter().position(|(name, _)| *name == key) {
                        edits.replace(member.value, members.swap_remove(index).1);
                    }
                }
                insert_members(&mut edits, text, meta, &members);
            }
            (None, Some(at), _) => edits.replace(at, object(&members)),
            (None, None, Some(params)) => insert_members(&mut edits, text, params, &[("_meta", object(&members))]),
            // Only a request with an unknown method has no params.
            (None, None, None) => request.set_params(&format!(r#"{{"_meta":{}}}"#, object(&members)), &mut edits),
        }
        edits
    }

    /// Removes the data that the link's handshake already covered.
    fn remove_introduction(self) -> Splice {
        let text = self.request.raw.as_str();
        let Some(meta) = self.request.params.meta else { return self.replace_token() };
        let kept = json::members(text, meta).filter(|member| !member.key(text).starts_with(RESERVED));
        let kept: Vec<_> = kept
            .map(|member| {
                let value = match &self.token {
                    Some((at, token)) if *at == member.value => String::from_utf8_lossy(token).into_owned(),
                    _ => member.value.get(text).to_owned(),
                };
                format!("{}:{value}", member.key.get(text))
            })
            .collect();
        let mut edits = Splice::new();
        edits.replace(meta, format!("{{{}}}", kept.join(",")));
        edits
    }
}

/// Returns the params of a request of the gateway itself, with `declared` as its capabilities.
pub(crate) fn own_params(dialect: Dialect, declared: &str, params: &str) -> String {
    let mut edits = Splice::new();
    let meta = object(&introduction(dialect, declared));
    insert_members(&mut edits, params, json::whole(params), &[("_meta", meta)]);
    let params = edits.apply(&Bytes::copy_from_slice(params.as_bytes()));
    String::from_utf8_lossy(&params).into_owned()
}

/// Returns the capabilities to declare for a client: its own without those that the configuration disables or the
/// gateway cannot relay. Tasks are declared if this call may become one, even if the client declares them in another
/// form.
fn capabilities(raw: &str, declare: Declare, tasks: TaskPolicy) -> String {
    let mut members = permitted(raw, declare, |key, value| match key {
        // In this version tasks are an extension, not a capability.
        "tasks" => None,
        "extensions" if names_tasks(value) && !tasks.accepted => Some(without_tasks(value)),
        "extensions" if tasks.accepted => None,
        // The gateway does not forward changes of roots, so omit `listChanged`.
        "roots" if value.starts_with('{') => Some("{}".to_owned()),
        _ => Some(value.to_owned()),
    });
    if tasks.accepted {
        let extensions = json::member(raw, json::whole(raw), "extensions").map_or("{}", |at| at.get(raw));
        members.push(format!(r#""extensions":{}"#, with_tasks(extensions)));
    }
    format!("{{{}}}", members.join(","))
}

/// Returns the capabilities to declare on a client's own link: those of the client without those that the configuration
/// disables.
pub(crate) fn own_capabilities(raw: &str, declare: Declare) -> String {
    format!("{{{}}}", permitted(raw, declare, |_, value| Some(value.to_owned())).join(","))
}

/// Returns the members of the capabilities that the configuration permits, with the values that `value_of` returns.
fn permitted(raw: &str, declare: Declare, value_of: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let member = |member: json::Member| {
        let key = member.key(raw);
        let is_disabled = key == "sampling" && !declare.sampling || key == "elicitation" && !declare.elicitation;
        let value = if is_disabled { None } else { value_of(&key, member.value.get(raw)) };
        Some(format!("{}:{}", member.key.get(raw), value?))
    };
    json::members(raw, json::whole(raw)).filter_map(member).collect()
}

/// Returns the extensions with the tasks extension added.
fn with_tasks(extensions: &str) -> String {
    let whole = json::whole(extensions);
    if json::member(extensions, whole, TASKS).is_some() {
        return extensions.to_owned();
    }
    let mut members: Vec<_> = json::members(extensions, whole).map(|member| member.written(extensions)).collect();
    members.push(format!(r#""{TASKS}":{{}}"#));
    format!("{{{}}}", members.join(","))
}

/// Returns the gateway's own capabilities with tasks added, to receive task notifications.
pub(crate) fn declaring_tasks(declared: &str) -> String {
    capabilities(
        declared,
        Declare { sampling: true, elicitation: true },
        TaskPolicy { accepted: true, required: false },
    )
}

fn names_tasks(capabilities: &str) -> bool {
    static NAME: Keyword = Keyword::new(TASKS);
    NAME.is_in(capabilities)
}

fn without_tasks(extensions: &str) -> String {
    let mut edits = Splice::new();
    json::cut_members(extensions, json::whole(extensions), |key| key == TASKS, &mut edits);
    let kept = edits.apply(&Bytes::copy_from_slice(extensions.as_bytes()));
    String::from_utf8_lossy(&kept).into_owned()
}

fn introduction(dialect: Dialect, capabilities: &str) -> Vec<(&'static str, String)> {
    let info = format!(r#"{{"name":"goblin","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    vec![
        (PROTOCOL_VERSION, quote(dialect.as_str())),
        (CLIENT_CAPABILITIES, capabilities.to_owned()),
        (CLIENT_INFO, info),
    ]
}

fn object(members: &[(&str, String)]) -> String {
    let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

/// Inserts members at the start of the object at `span`.
fn insert_members(edits: &mut Splice, text: &str, span: Span, members: &[(&str, String)]) {
    if members.is_empty() {
        return;
    }
    let object = object(members);
    let comma = if json::members(text, span).next().is_some() { "," } else { "" };
    edits.insert(span.start + 1, format!("{}{comma}", &object[1..object.len() - 1]));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use goblin_wire::Message;

    use super::*;
    use crate::client::caller::{ClientCapabilities, Principal};

    const ALL: Declare = Declare { sampling: true, elicitation: true };
    const MODERN: Dialect = Dialect::V2026_07_28;
    const LEGACY: Dialect = Dialect::V2025_11_25;

    fn request(params: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        match Message::parse(text.into()) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the params as the backend receives them. The gateway's progress token is 9, and reserved names are
    /// shortened.
    fn edited_params(
        params: &str,
        from: Dialect,
        to: Dialect,
        raw: &str,
        level: Option<Level>,
        declare: Declare,
    ) -> String {
        edited_params_with(params, (from, to), raw, level, declare, TaskPolicy::default())
    }

    fn edited_params_with(
        params: &str,
        (from, to): (Dialect, Dialect),
        raw: &str,
        level: Option<Level>,
        declare: Declare,
        tasks: TaskPolicy,
    ) -> String {
        let request = request(params);
        let caller = Caller {
            session: None,
            principal: Principal::Anonymous,
            profile: None,
            dialect: from,
            level: None,
            client_capabilities: Arc::new(ClientCapabilities { raw: raw.into(), ..ClientCapabilities::default() }),
            is_gateway: false,
            program: None,
        };
        let token = request.params.known_meta.progress_token.map(|at| (at, Bytes::from_static(b"9")));
        let edits = RequestMeta { request: &request, caller: &caller, level, declare, token, tasks }.edits(to);
        let text = edits.apply(request.raw.bytes());
        assert!(Message::parse(text.clone()).is_ok(), "{params}: {text:?}");
        let text = String::from_utf8(text.to_vec()).expect("UTF-8");
        let info = format!(r#","{CLIENT_INFO}":{{"name":"goblin","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
        let version = format!(r#""{PROTOCOL_VERSION}":"2026-07-28""#);
        let text = text.replace(&info, "").replace(&version, "V").replace(RESERVED, "r/");
        let start = text.find("\"params\":").expect("params") + "\"params\":".len();
        text[start..text.len() - 1].to_owned()
    }

    #[test]
    fn srv2_within_an_era_only_the_progress_token_changes() {
        let check = |params: &str, expected: &str| {
            assert_eq!(edited_params(params, LEGACY, LEGACY, "{}", Some(Level::Info), ALL), expected, "{params}");
        };
        check(r#"{"name":"t"}"#, r#"{"name":"t"}"#);
        check(
            r#"{"name":"t","_meta":{"a": 1.0,"progressToken":"x"}}"#,
            r#"{"name":"t","_meta":{"a": 1.0,"progressToken":9}}"#,
        );
        let modern = format!(r#"{{"_meta":{{"{CLIENT_CAPABILITIES}":{{"roots":{{}}, "x":1.0}} ,"progressToken":1}}}}"#);
        let expected = r#"{"_meta":{"r/clientCapabilities":{"roots":{}, "x":1.0} ,"progressToken":9}}"#;
        assert_eq!(edited_params(&modern, MODERN, MODERN, r#"{"roots":{}, "x":1.0}"#, None, ALL), expected);
    }

    #[test]
    fn a_capability_excluded_by_declare_is_removed_from_requests() {
        let raw = format!(r#"{{"sampling":{{}},"elicitation":{{}},"extensions":{{"{TASKS}":{{}},"a/b":{{}}}}}}"#);
        let params = format!(r#"{{"_meta":{{"{CLIENT_CAPABILITIES}":{raw},"progressToken":1}}}}"#);
        let check = |sampling, elicitation, expected: &str| {
            let declare = Declare { sampling, elicitation };
            let expected = format!(r#"{{"_meta":{{"r/clientCapabilities":{expected},"progressToken":9}}}}"#);
            assert_eq!(edited_params(&params, MODERN, MODERN, &raw, None, declare), expected);
        };
        check(true, true, r#"{"sampling":{},"elicitation":{},"extensions":{"a/b":{}}}"#);
        check(false, true, r#"{"elicitation":{},"extensions":{"a/b":{}}}"#);
        check(false, false, r#"{"extensions":{"a/b":{}}}"#);
    }

    #[test]
    fn srv2_a_request_of_a_legacy_client_gets_the_modern_meta() {
        let check = |params: &str, raw: &str, level, expected: &str| {
            assert_eq!(edited_params(params, LEGACY, MODERN, raw, level, ALL), expected, "{params}");
        };
        let none = r#"V,"r/clientCapabilities":{}"#;
        check(r#"{"name":"t"}"#, "", None, &format!(r#"{{"_meta":{{{none}}},"name":"t"}}"#));
        check("{}", "", None, &format!(r#"{{"_meta":{{{none}}}}}"#));
        check(r#"{"_meta":null}"#, "{}", None, &format!(r#"{{"_meta":{{{none}}}}}"#));
        check(r#"{"_meta":{}}"#, "{}", None, &format!(r#"{{"_meta":{{{none}}}}}"#));
        check(
            r#"{"_meta":{"traceparent":"x", "progressToken" : "y"}}"#,
            r#"{"roots":{"listChanged":true},"tasks":{"list":{}},"elicitation":{},"sampling":{"tools":{}}}"#,
            Some(Level::Warning),
            r#"{"_meta":{V,"r/clientCapabilities":{"roots":{},"elicitation":{},"sampling":{"tools":{}}},"r/logLevel":"warning","traceparent":"x", "progressToken" : 9}}"#,
        );
        check(
            &format!(r#"{{"_meta":{{"{LOG_LEVEL}":7,"{RESERVED}related-task":{{}}}}}}"#),
            "{}",
            Some(Level::Info),
            &format!(r#"{{"_meta":{{{none},"r/logLevel":"info","r/related-task":{{}}}}}}"#),
        );
    }

    #[test]
    fn srv2_a_legacy_link_removes_the_modern_meta_of_a_request() {
        let check = |meta: &str, expected: &str| {
            let params = format!(r#"{{"name":"t","_meta":{meta},"x":1}}"#);
            let expected = format!(r#"{{"name":"t","_meta":{expected},"x":1}}"#);
            assert_eq!(edited_params(&params, MODERN, LEGACY, "{}", None, ALL), expected);
        };
        check("{}", "{}");
        check(&format!(r#"{{"{PROTOCOL_VERSION}":"2026-07-28","{CLIENT_CAPABILITIES}":{{}}}}"#), "{}");
        check(
            &format!(r#"{{"{LOG_LEVEL}":"info","a":1.0,"{CLIENT_INFO}":{{}},"progressToken":"z","b":[1, 2]}}"#),
            r#"{"a":1.0,"progressToken":9,"b":[1, 2]}"#,
        );
        assert_eq!(edited_params(r#"{"name":"t"}"#, MODERN, LEGACY, "{}", None, ALL), r#"{"name":"t"}"#);
    }

    #[test]
    fn task1_a_task_request_is_translated_to_the_era_of_the_link() {
        let accepted = TaskPolicy { accepted: true, required: false };
        let required = TaskPolicy { accepted: false, required: true };
        let check = |from, to, raw: &str, params: &str, tasks, expected: &str| {
            assert_eq!(edited_params_with(params, (from, to), raw, None, ALL, tasks), expected, "{params}");
        };
        let with_task = r#"{"name":"t","task":{"ttl":5}}"#;
        check(LEGACY, LEGACY, "{}", with_task, accepted, with_task);
        check(
            LEGACY,
            MODERN,
            r#"{"tasks":{},"extensions":{"a/b":{}}}"#,
            with_task,
            accepted,
            r#"{"_meta":{V,"r/clientCapabilities":{"extensions":{"a/b":{},"r/tasks":{}}}},"name":"t"}"#,
        );
        let raw = format!(r#"{{"extensions":{{"{TASKS}":{{}}}}}}"#);
        let params = format!(r#"{{"name":"t","_meta":{{"{CLIENT_CAPABILITIES}":{raw}}}}}"#);
        let declared = r#"{"name":"t","_meta":{"r/clientCapabilities":{"extensions":{"r/tasks":{}}}}}"#;
        check(MODERN, MODERN, &raw, &params, accepted, declared);
        check(MODERN, MODERN, &raw, &params, TaskPolicy::default(), &declared.replace(r#""r/tasks":{}"#, ""));
        check(MODERN, LEGACY, &raw, &params, required, r#"{"task":{},"name":"t","_meta":{}}"#);
        check(MODERN, LEGACY, &raw, &params, accepted, r#"{"name":"t","_meta":{}}"#);
        let unused = params.replace(r#""name":"t""#, r#""name":"t","task":{"ttl":5}"#);
        check(MODERN, LEGACY, &raw, &unused, TaskPolicy::default(), r#"{"name":"t","_meta":{}}"#);
        check(MODERN, LEGACY, &raw, &unused, required, r#"{"task":{},"name":"t","_meta":{}}"#);
        check(Dialect::V2024_11_05, LEGACY, "{}", r#"{"name":"t"}"#, required, r#"{"task":{},"name":"t"}"#);
        assert_eq!(declaring_tasks("{}"), goblin_wire::modern::TASKS_DECLARED);
    }

    #[test]
    fn srv2_requests_of_the_gateway_carry_its_identity() {
        let check = |params: &str, rest: &str| {
            let params = own_params(MODERN, r#"{"roots":{}}"#, params);
            let start = format!(
                r#"{{"_meta":{{"{PROTOCOL_VERSION}":"2026-07-28","{CLIENT_CAPABILITIES}":{{"roots":{{}}}},"{CLIENT_INFO}""#
            );
            assert!(params.starts_with(&start) && params.ends_with(rest), "{params}");
        };
        check("{}", r#""}}}"#);
        check(r#"{"cursor":"x"}"#, r#""}},"cursor":"x"}"#);
    }

    #[test]
    fn a_client_link_declares_the_capabilities_of_the_client_except_excluded_ones() {
        let all =
            r#"{"x":{"odd":1.0}, "sampling" : {"tools":{}},"roots":{},"elicitation":{"url":{}},"experimental":{}}"#;
        let check = |raw: &str, sampling, elicitation, expected: &str| {
            assert_eq!(own_capabilities(raw, Declare { sampling, elicitation }), expected, "{raw}");
        };
        check("", true, true, "{}");
        check("{}", false, false, "{}");
        check(r#"{"sampling":{}}"#, false, true, "{}");
        check(r#"{"\u0073ampling":{}}"#, false, true, "{}");
        check(all, false, false, r#"{"x":{"odd":1.0},"roots":{},"experimental":{}}"#);
        check(all, false, true, r#"{"x":{"odd":1.0},"roots":{},"elicitation":{"url":{}},"experimental":{}}"#);
        check(all, true, true, &all.replace(", ", ",").replace(" : ", ":"));
    }
}
