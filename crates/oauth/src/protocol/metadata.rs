//! The metadata of a server and of its authorization server: JSON objects, read member by member.
//!
//! A member with the value null counts as absent. A member of another type is an error, because the gateway would
//! otherwise act on half of a document.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Refusal;
use crate::protocol::challenge::is_scope;
use crate::protocol::url::{MAX_URL, shown_url};

/// The limit of entries that are read from a list.
pub(crate) const MAX_ENTRIES: usize = 100;

/// The metadata of an authorization server, as far as the gateway uses it. Part of the stored login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorizationServer {
    pub issuer: String,
    pub token_endpoint: String,
    pub authorization_endpoint: Option<String>,
    pub registration_endpoint: Option<String>,
    pub revocation_endpoint: Option<String>,
    pub device_authorization_endpoint: Option<String>,
    pub scopes_supported: Vec<String>,
    pub auth_methods: Vec<String>,
    pub accepts_client_documents: bool,
    pub sends_issuer: bool,
}

impl AuthorizationServer {
    /// The host of the issuer, for messages.
    pub(crate) fn host(&self) -> &str {
        let rest = self.issuer.split_once("://").map_or(self.issuer.as_str(), |(_, rest)| rest);
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        &rest[..end]
    }

    /// Reads the metadata of an authorization server. Does not check its URLs.
    pub(crate) fn read(document: &Document) -> Result<AuthorizationServer, Refusal> {
        let required = |member| document.text(member)?.ok_or_else(|| document.fault(member, "is missing"));
        Ok(AuthorizationServer {
            issuer: required("issuer")?,
            token_endpoint: required("token_endpoint")?,
            authorization_endpoint: document.text("authorization_endpoint")?,
            registration_endpoint: document.text("registration_endpoint")?,
            revocation_endpoint: document.text("revocation_endpoint")?,
            device_authorization_endpoint: document.text("device_authorization_endpoint")?,
            scopes_supported: document.scopes("scopes_supported")?,
            auth_methods: document.texts("token_endpoint_auth_methods_supported")?,
            accepts_client_documents: document.flag("client_id_metadata_document_supported")?,
            sends_issuer: document.flag("authorization_response_iss_parameter_supported")?,
        })
    }
}

/// A JSON object with metadata, and the URL it came from.
pub(crate) struct Document {
    url: String,
    members: Map<String, Value>,
}

impl Document {
    pub(crate) fn new(url: &str, members: Map<String, Value>) -> Document {
        Document { url: url.to_owned(), members }
    }

    /// Returns the URL for a message.
    pub(crate) fn shown_url(&self) -> String {
        shown_url(&self.url)
    }

    /// Returns the error for a member.
    pub(crate) fn fault(&self, member: &'static str, fault: &'static str) -> Refusal {
        Refusal::Metadata { url: self.shown_url(), member, fault }
    }

    /// Returns a text of 1 to [`MAX_URL`] bytes.
    pub(crate) fn text(&self, member: &'static str) -> Result<Option<String>, Refusal> {
        match self.members.get(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && text.len() <= MAX_URL => Ok(Some(text.clone())),
            Some(Value::String(_)) => Err(self.fault(member, "is empty or too long")),
            Some(_) => Err(self.fault(member, "is not a string")),
        }
    }

    /// Returns the texts of a list. Skips entries of other types and entries after the first [`MAX_ENTRIES`].
    pub(crate) fn texts(&self, member: &'static str) -> Result<Vec<String>, Refusal> {
        let entries = match self.members.get(member) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(self.fault(member, "is not a list")),
        };
        let texts = entries.iter().filter_map(Value::as_str).filter(|text| text.len() <= MAX_URL);
        Ok(texts.take(MAX_ENTRIES).map(str::to_owned).collect())
    }

    /// Returns the scopes of a list, each once.
    pub(crate) fn scopes(&self, member: &'static str) -> Result<Vec<String>, Refusal> {
        let mut scopes: Vec<String> = Vec::new();
        for scope in self.texts(member)? {
            if is_scope(&scope) && !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        Ok(scopes)
    }

    fn flag(&self, member: &'static str) -> Result<bool, Refusal> {
        match self.members.get(member) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.fault(member, "is neither true nor false")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(value: Value) -> Document {
        let Value::Object(members) = value else { panic!("{value} is no object") };
        Document::new("https://as.example/.well-known/oauth-authorization-server", members)
    }

    #[test]
    fn oauth1_the_metadata_of_an_authorization_server_is_read() {
        let server = AuthorizationServer::read(&document(json!({
            "issuer": "https://as.example:8443/t", "token_endpoint": "https://as.example/token",
            "registration_endpoint": null, "scopes_supported": ["a", "a", "b c", 7, "d\"", "e"],
            "token_endpoint_auth_methods_supported": ["none"], "authorization_response_iss_parameter_supported": true,
        })));
        let server = server.expect("metadata");
        assert_eq!((server.host(), server.registration_endpoint.as_deref()), ("as.example:8443", None));
        assert_eq!((server.scopes_supported, server.auth_methods), (vec!["a".into(), "e".into()], vec!["none".into()]));
        assert!(server.sends_issuer && !server.accepts_client_documents);
    }

    #[test]
    fn oauth1_a_member_of_another_type_is_refused() {
        let good = json!({"issuer": "https://as.example", "token_endpoint": "https://as.example/token"});
        assert!(AuthorizationServer::read(&document(good.clone())).is_ok());
        let cases = [
            ("issuer", json!(7), "is not a string"),
            ("issuer", json!(null), "is missing"),
            ("issuer", json!(""), "is empty or too long"),
            ("issuer", json!("x".repeat(MAX_URL + 1)), "is empty or too long"),
            ("token_endpoint", json!(null), "is missing"),
            ("authorization_endpoint", json!({}), "is not a string"),
            ("scopes_supported", json!("a b"), "is not a list"),
            ("client_id_metadata_document_supported", json!("yes"), "is neither true nor false"),
        ];
        for (member, value, fault) in cases {
            let mut members = good.clone();
            members[member] = value;
            let found = AuthorizationServer::read(&document(members)).expect_err(member);
            let url = "https://as.example/.well-known/oauth-authorization-server".to_owned();
            assert_eq!(found, Refusal::Metadata { url, member, fault });
        }
        let many: Vec<String> = (0..200).map(|index| format!("s{index}")).collect();
        let scopes = document(json!({"scopes_supported": many})).scopes("scopes_supported");
        assert_eq!(scopes.expect("scopes").len(), MAX_ENTRIES);
    }
}
