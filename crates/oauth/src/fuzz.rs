//! Entry points of the fuzz targets. They are not part of the interface.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use crate::LoginTarget;
use crate::error::{CallbackFault, Refusal};
use crate::protocol::authorize::ExpectedCallback;
use crate::protocol::challenge::Challenge;
use crate::protocol::discovery::endpoints;
use crate::protocol::fetch::Fetcher;
use crate::protocol::metadata::{AuthorizationServer, Document};

/// The texts of a challenge: the URL of the metadata, the scopes and the error.
pub type ChallengeTexts = (Option<String>, Vec<String>, Option<String>);

/// Reads the first Bearer challenge. Each line of the input is the value of one header.
pub fn challenge(lines: &[u8]) -> ChallengeTexts {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(WWW_AUTHENTICATE, value);
        }
    }
    let Challenge { resource_metadata, scopes, error } = Challenge::read(&headers);
    (resource_metadata, scopes, error)
}

/// Reads the metadata of an authorization server that a server at a public URL names. Returns its checked endpoints.
/// Returns `None` if the input is no JSON object.
pub fn metadata(document: &[u8], target: &LoginTarget) -> Option<Result<Vec<String>, Refusal>> {
    let Ok(Value::Object(members)) = serde_json::from_slice(document) else { return None };
    let document = Document::new("https://as.example/.well-known/oauth-authorization-server", members);
    let fetcher = Fetcher::new(target, None);
    Some(AuthorizationServer::read(&document).and_then(|server| endpoints(&fetcher, &server)))
}

/// Reads the address to which a browser returned. Returns the code.
pub fn callback(callback: &str, state: &str, issuer: &str, needs_issuer: bool) -> Result<String, CallbackFault> {
    let (state, issuer) = (state.to_owned(), issuer.to_owned());
    ExpectedCallback { state, issuer, needs_issuer }.code(callback)
}
