//! The table of all errors that the gateway sends to a client, or to a backend that sent a request to a client.
//!
//! One exhaustive match decides code, HTTP status, `data.code`, the party at fault and whether a retry is safe. A
//! JSON-RPC error of a backend is not a variant here: `Router::forward_error` passes it on with few
//! changes.

use std::time::Duration;

use crate::json::quote;
use crate::{Dialect, Limit, units};

/// An error that a peer receives instead of a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("parse error: {0}")]
    Parse(String),
    #[error("invalid request: {0}")]
    InvalidRequest(String),
    #[error("Method not found: {0}")]
    MethodNotFound(String),
    #[error("invalid params: {0}")]
    InvalidParams(String),
    #[error("invalid cursor: begin again without one")]
    InvalidCursor,
    /// A request without a handshake lacks required members of `_meta`.
    #[error("invalid params: {0}")]
    MissingMeta(String),
    #[error("header mismatch: {0}")]
    HeaderMismatch(String),
    #[error("the request needs a capability that it does not declare: {required}")]
    MissingCapability {
        /// The required client capabilities, as JSON.
        required: &'static str,
    },
    #[error("unsupported protocol version: {requested}")]
    UnsupportedVersion { requested: String },
    #[error("invalid or expired requestState: begin the call again without one")]
    StaleState,
    #[error("Tool not found: {name}{}", candidates_note(candidates))]
    ToolNotFound { name: String, candidates: Vec<String> },
    #[error("Prompt not found: {name}{}", candidates_note(candidates))]
    PromptNotFound { name: String, candidates: Vec<String> },
    #[error("Resource not found: {uri}{}", candidates_note(candidates))]
    ResourceNotFound { uri: String, candidates: Vec<String> },
    #[error("LimitExceeded: {limit} is {value}")]
    LimitExceeded { limit: &'static str, value: usize },
    /// The gateway has no memory left for new work of any client.
    #[error("the gateway has no room for this: {limit} is {}; try again", units::bytes(*value as u64))]
    NoRoom { limit: &'static str, value: usize },
    #[error("backend {server} has no room for another call; try again")]
    Overloaded { server: String },
    #[error("backend {server} is unavailable: {reason}")]
    BackendUnavailable { server: String, reason: String, sent: bool },
    /// The backend needs a login, or one with more permissions. `command` performs it.
    #[error("backend {server} needs a login{} (the operator runs: {command})", if *lacks_permission { " with more permissions" } else { "" })]
    LoginNeeded { server: String, command: String, lacks_permission: bool },
    #[error("Timeout: backend {server} did not answer {method} in {}", units::duration(*after))]
    Timeout { server: String, method: String, after: Duration },
    #[error("backend {server} broke the protocol: {reason}")]
    BackendProtocol { server: String, reason: String },
    /// A backend's request cannot reach the client, or the client cannot answer it.
    #[error("the client cannot receive this request: {reason}")]
    ClientUnavailable { reason: String },
    /// The client did not respond to a backend's request in time.
    #[error("Timeout: the client did not answer {method} in {}", units::duration(*after))]
    Unanswered { method: String, after: Duration },
    /// A client resumes the stream of a call after the gateway has discarded the response.
    #[error("Timeout: the answer arrived while no stream was open, and is no longer kept")]
    Unfetched,
    #[error("the gateway is shutting down; try again")]
    ShuttingDown,
    #[error("internal error: {0}")]
    Internal(String),
}

/// The party that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultParty {
    Client,
    Backend,
    Gateway,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorClass {
    pub code: i64,
    /// The HTTP status of a response with nothing but this error. Errors of a request that was understood use 200.
    pub status: u16,
    /// The stable name, sent as `data.code`.
    pub name: &'static str,
    pub fault: FaultParty,
    /// True if sending the same request again is safe and may help.
    pub retry: bool,
}

impl Error {
    pub fn class(&self) -> ErrorClass {
        use FaultParty::{Backend, Client, Gateway};
        let row = |code, status, name, fault, retry| ErrorClass { code, status, name, fault, retry };
        match self {
            Error::Parse(_) => row(-32700, 400, "PARSE_ERROR", Client, false),
            Error::InvalidRequest(_) => row(-32600, 400, "INVALID_REQUEST", Client, false),
            Error::MethodNotFound(_) => row(-32601, 200, "METHOD_NOT_FOUND", Client, false),
            Error::InvalidParams(_) => row(-32602, 200, "INVALID_PARAMS", Client, false),
            Error::InvalidCursor => row(-32602, 200, "INVALID_CURSOR", Client, false),
            Error::MissingMeta(_) => row(-32602, 400, "MISSING_META", Client, false),
            Error::HeaderMismatch(_) => row(-32020, 400, "HEADER_MISMATCH", Client, false),
            Error::MissingCapability { .. } => row(-32021, 400, "MISSING_CAPABILITY", Client, false),
            Error::UnsupportedVersion { .. } => row(-32022, 400, "UNSUPPORTED_VERSION", Client, false),
            Error::StaleState => row(-32602, 200, "STALE_STATE", Client, false),
            Error::ToolNotFound { .. } => row(-32602, 200, "TOOL_NOT_FOUND", Client, false),
            Error::PromptNotFound { .. } => row(-32602, 200, "PROMPT_NOT_FOUND", Client, false),
            // `to_json_for_read` replaces the code for `resources/read`.
            Error::ResourceNotFound { .. } => row(-32602, 200, "RESOURCE_NOT_FOUND", Client, false),
            // A retry does not help if the limit depends on the message alone.
            Error::LimitExceeded { limit, .. } => row(1429, 200, "LIMIT_EXCEEDED", Client, !depends_on_message(limit)),
            Error::NoRoom { .. } => row(1529, 200, "OVERLOADED", Gateway, true),
            Error::Overloaded { .. } => row(1529, 200, "OVERLOADED", Gateway, true),
            Error::BackendUnavailable { sent, .. } => row(1503, 200, "BACKEND_UNAVAILABLE", Backend, !sent),
            Error::LoginNeeded { .. } => row(1407, 200, "LOGIN_NEEDED", Gateway, false),
            Error::Timeout { .. } => row(1504, 200, "TIMEOUT", Backend, false),
            Error::BackendProtocol { .. } => row(1502, 200, "BACKEND_PROTOCOL", Backend, false),
            Error::ClientUnavailable { .. } => row(1503, 200, "CLIENT_UNAVAILABLE", Client, false),
            Error::Unanswered { .. } => row(1504, 200, "TIMEOUT", Client, false),
            Error::Unfetched => row(1504, 200, "TIMEOUT", Client, false),
            Error::ShuttingDown => row(1500, 503, "SHUTTING_DOWN", Gateway, true),
            Error::Internal(_) => row(-32603, 200, "INTERNAL", Gateway, false),
        }
    }

    /// Returns the JSON-RPC error object.
    pub fn to_json(&self) -> String {
        self.json_with_code(self.class().code)
    }

    /// Returns the JSON-RPC error object for `resources/read`. Its code for a missing resource depends on the version
    /// (D5).
    pub fn to_json_for_read(&self, dialect: Dialect) -> String {
        match self {
            Error::ResourceNotFound { .. } => self.json_with_code(dialect.resource_not_found_code()),
            other => other.to_json(),
        }
    }

    fn json_with_code(&self, code: i64) -> String {
        let class = self.class();
        let mut members = vec![("code", quote(class.name))];
        members.extend(self.data());
        members.extend(class.retry.then(|| ("retryable", "true".to_owned())));
        let members: Vec<_> = members.iter().map(|(key, value)| format!(r#""{key}":{value}"#)).collect();
        format!(r#"{{"code":{code},"message":{},"data":{{{}}}}}"#, quote(&self.to_string()), members.join(","))
    }

    /// Returns the members of `data` that only some errors have, with their values as JSON.
    fn data(&self) -> Vec<(&'static str, String)> {
        match self {
            Error::ToolNotFound { name, candidates } | Error::PromptNotFound { name, candidates } => {
                [("name", quote(name))].into_iter().chain(candidates_member(candidates)).collect()
            }
            Error::ResourceNotFound { uri, candidates } => {
                [("uri", quote(uri))].into_iter().chain(candidates_member(candidates)).collect()
            }
            Error::LimitExceeded { limit, value } | Error::NoRoom { limit, value } => {
                vec![("limit", quote(limit)), ("value", value.to_string())]
            }
            Error::Overloaded { server }
            | Error::BackendUnavailable { server, .. }
            | Error::BackendProtocol { server, .. } => vec![("serverId", quote(server))],
            Error::LoginNeeded { server, command, .. } => {
                vec![("serverId", quote(server)), ("command", quote(command))]
            }
            Error::Timeout { server, method, .. } => vec![("serverId", quote(server)), ("method", quote(method))],
            Error::Unanswered { method, .. } => vec![("method", quote(method))],
            Error::MissingCapability { required } => vec![("requiredCapabilities", (*required).to_owned())],
            Error::UnsupportedVersion { requested } => {
                let supported = format!("[{}]", quote(Dialect::NEWEST.as_str()));
                vec![("supported", supported), ("requested", quote(requested))]
            }
            _ => Vec::new(),
        }
    }
}

/// Reports whether a limit depends on the message alone, so that the same message always exceeds it.
fn depends_on_message(limit: &str) -> bool {
    [Limit::JsonDepth, Limit::BatchMessages, Limit::ClientInfoBytes, Limit::MatchSteps]
        .iter()
        .any(|known| known.as_str() == limit)
}

fn candidates_note(candidates: &[String]) -> String {
    if candidates.is_empty() {
        String::new()
    } else {
        format!(" (several entries have this name: {})", candidates.join(", "))
    }
}

/// Returns the member of `data` that lists the candidates, if there are any.
fn candidates_member(candidates: &[String]) -> Option<(&'static str, String)> {
    let list: Vec<_> = candidates.iter().map(|candidate| quote(candidate)).collect();
    (!list.is_empty()).then(|| ("candidates", format!("[{}]", list.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Error> {
        let server = || "fs".to_owned();
        vec![
            Error::Parse("x".into()),
            Error::InvalidRequest("x".into()),
            Error::MethodNotFound("x".into()),
            Error::InvalidParams("x".into()),
            Error::InvalidCursor,
            Error::MissingMeta("x".into()),
            Error::HeaderMismatch("x".into()),
            Error::MissingCapability { required: r#"{"roots":{}}"# },
            Error::UnsupportedVersion { requested: "2099-01-01".into() },
            Error::StaleState,
            Error::ToolNotFound { name: "t".into(), candidates: vec!["a".into(), "b".into()] },
            Error::PromptNotFound { name: "p".into(), candidates: vec![] },
            Error::ResourceNotFound { uri: "u:".into(), candidates: vec![] },
            Error::LimitExceeded { limit: "maxInFlight", value: 64 },
            Error::LimitExceeded { limit: "jsonDepth", value: 512 },
            Error::NoRoom { limit: "maxMemory", value: 1024 },
            Error::Overloaded { server: server() },
            Error::BackendUnavailable { server: server(), reason: "it exited".into(), sent: true },
            Error::BackendUnavailable { server: server(), reason: "not connected".into(), sent: false },
            Error::LoginNeeded { server: server(), command: "goblin login fs".into(), lacks_permission: false },
            Error::Timeout { server: server(), method: "tools/call".into(), after: Duration::from_secs(60) },
            Error::BackendProtocol { server: server(), reason: "garbage".into() },
            Error::ClientUnavailable { reason: "it disconnected".into() },
            Error::Unanswered { method: "elicitation/create".into(), after: Duration::from_secs(300) },
            Error::Unfetched,
            Error::ShuttingDown,
            Error::Internal("bug".into()),
        ]
    }

    /// The published table. A change here is a change of the interface.
    #[test]
    fn the_error_table_matches_the_published_one() {
        let table: Vec<_> = one_of_each()
            .iter()
            .map(|error| {
                let class = error.class();
                format!("{} {} {} {:?} {}", class.name, class.code, class.status, class.fault, class.retry)
            })
            .collect();
        assert_eq!(
            table,
            [
                "PARSE_ERROR -32700 400 Client false",
                "INVALID_REQUEST -32600 400 Client false",
                "METHOD_NOT_FOUND -32601 200 Client false",
                "INVALID_PARAMS -32602 200 Client false",
                "INVALID_CURSOR -32602 200 Client false",
                "MISSING_META -32602 400 Client false",
                "HEADER_MISMATCH -32020 400 Client false",
                "MISSING_CAPABILITY -32021 400 Client false",
                "UNSUPPORTED_VERSION -32022 400 Client false",
                "STALE_STATE -32602 200 Client false",
                "TOOL_NOT_FOUND -32602 200 Client false",
                "PROMPT_NOT_FOUND -32602 200 Client false",
                "RESOURCE_NOT_FOUND -32602 200 Client false",
                "LIMIT_EXCEEDED 1429 200 Client true",
                "LIMIT_EXCEEDED 1429 200 Client false",
                "OVERLOADED 1529 200 Gateway true",
                "OVERLOADED 1529 200 Gateway true",
                "BACKEND_UNAVAILABLE 1503 200 Backend false",
                "BACKEND_UNAVAILABLE 1503 200 Backend true",
                "LOGIN_NEEDED 1407 200 Gateway false",
                "TIMEOUT 1504 200 Backend false",
                "BACKEND_PROTOCOL 1502 200 Backend false",
                "CLIENT_UNAVAILABLE 1503 200 Client false",
                "TIMEOUT 1504 200 Client false",
                "TIMEOUT 1504 200 Client false",
                "SHUTTING_DOWN 1500 503 Gateway true",
                "INTERNAL -32603 200 Gateway false",
            ]
        );
    }

    #[test]
    fn every_error_is_valid_json_with_its_name() {
        for error in one_of_each() {
            let value: serde_json::Value = serde_json::from_str(&error.to_json()).expect("valid JSON");
            assert_eq!(value["data"]["code"], error.class().name);
            assert_eq!(value["message"], error.to_string());
        }
    }

    #[test]
    fn members_of_data_have_a_fixed_order() {
        let texts: Vec<_> = one_of_each().iter().map(Error::to_json).collect();
        for expected in [
            r#""data":{"code":"TOOL_NOT_FOUND","name":"t","candidates":["a","b"]}}"#,
            r#""data":{"code":"PROMPT_NOT_FOUND","name":"p"}}"#,
            r#""data":{"code":"RESOURCE_NOT_FOUND","uri":"u:"}}"#,
            r#""data":{"code":"LIMIT_EXCEEDED","limit":"maxInFlight","value":64,"retryable":true}}"#,
            r#""data":{"code":"OVERLOADED","serverId":"fs","retryable":true}}"#,
            r#""data":{"code":"LOGIN_NEEDED","serverId":"fs","command":"goblin login fs"}}"#,
            r#""data":{"code":"TIMEOUT","serverId":"fs","method":"tools/call"}}"#,
            r#""data":{"code":"TIMEOUT","method":"elicitation/create"}}"#,
            r#""data":{"code":"MISSING_CAPABILITY","requiredCapabilities":{"roots":{}}}}"#,
            r#""data":{"code":"UNSUPPORTED_VERSION","supported":["2026-07-28"],"requested":"2099-01-01"}}"#,
            r#"{"code":-32603,"message":"internal error: bug","data":{"code":"INTERNAL"}}"#,
        ] {
            assert!(texts.iter().any(|text| text.ends_with(expected)), "{expected}: {texts:?}");
        }
    }

    #[test]
    fn codes_of_the_gateway_stay_outside_the_reserved_block() {
        for error in one_of_each() {
            let code = error.class().code;
            let standard = [-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022].contains(&code);
            assert!(standard || code > 0, "{error}: {code}");
        }
    }

    #[test]
    fn d5_the_code_of_a_missing_resource_depends_on_the_version() {
        let error = Error::ResourceNotFound { uri: "note:///x".into(), candidates: vec![] };
        assert!(error.to_json_for_read(Dialect::V2025_11_25).starts_with(r#"{"code":-32002,"#));
        assert!(error.to_json_for_read(Dialect::V2026_07_28).starts_with(r#"{"code":-32602,"#));
        assert!(error.to_json().starts_with(r#"{"code":-32602,"#));
    }
}
