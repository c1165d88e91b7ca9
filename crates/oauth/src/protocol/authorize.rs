//! The authorization request, which a browser performs, and the callback that ends it.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

use crate::error::{CallbackFault, LoginError, Refusal, UrlFault};
use crate::protocol::challenge::error_code;
use crate::protocol::client::ClientIdentity;
use crate::protocol::discovery::Discovery;
use crate::protocol::form::{Form, decoded};
use crate::protocol::url::{is_safe_for_opener, shown, shown_url};

/// The scope that asks for a refresh token.
const OFFLINE_ACCESS: &str = "offline_access";
/// The length limit of an address to which the browser returns.
pub(crate) const MAX_CALLBACK: usize = 16 << 10;
const MAX_PARAMETERS: usize = 64;
/// The parameters that have a meaning. Each may occur once.
const KNOWN: [&str; 5] = ["state", "iss", "error", "error_description", "code"];

/// An authorization request with its state and its PKCE verifier.
pub(crate) struct AuthorizationRequest {
    url: String,
    redirect_uri: String,
    verifier: String,
    expected: ExpectedCallback,
}

/// The code that a callback delivers.
pub(crate) struct AuthorizationCode {
    pub code: String,
    pub verifier: String,
    pub redirect_uri: String,
}

impl AuthorizationRequest {
    /// Creates a request with a new state and a new verifier.
    pub(crate) fn new(
        discovery: &Discovery,
        client: &ClientIdentity,
        redirect_uri: &str,
        scopes: &[String],
    ) -> Result<AuthorizationRequest, LoginError> {
        let server = &discovery.server;
        discovery.check_pkce()?;
        let no_endpoint = || Refusal::NoEndpoint { host: server.host().to_owned(), name: "authorization endpoint" };
        let endpoint = server.authorization_endpoint.as_deref().ok_or_else(no_endpoint)?;
        let (state, verifier) = (random(), random());
        let challenge = BASE64.encode(digest(&SHA256, verifier.as_bytes()));
        let scope = (!scopes.is_empty()).then(|| scopes.join(" "));
        // OpenID Connect issues a refresh token only if it asks the person.
        let prompt = scopes.iter().any(|scope| scope == OFFLINE_ACCESS).then_some("consent");
        let query = Form::default()
            .with("response_type", "code")
            .with("client_id", &client.id)
            .with("redirect_uri", redirect_uri)
            .with("code_challenge", &challenge)
            .with("code_challenge_method", "S256")
            .with("state", &state)
            .with_some("scope", scope.as_deref())
            .with_some("resource", discovery.resource.as_deref())
            .with_some("prompt", prompt);
        // The plus sign of a form means a space only there, so write the space as an escape.
        let query = query.into_text().replace('+', "%20");
        let separator = match endpoint.split_once('?') {
            None => "?",
            Some((_, "")) => "",
            Some(_) => "&",
        };
        let url = format!("{endpoint}{separator}{query}");
        if !is_safe_for_opener(&url) {
            let (name, url) = ("authorization endpoint", shown_url(endpoint));
            return Err(Refusal::Url { name, url, fault: UrlFault::Shell }.into());
        }
        let expected = ExpectedCallback { state, issuer: server.issuer.clone(), needs_issuer: server.sends_issuer };
        Ok(AuthorizationRequest { url, redirect_uri: redirect_uri.to_owned(), verifier, expected })
    }

    /// The URL for the browser. It has no control, space or shell character.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Reads the address to which the browser returned, whole or from its path on. Checks `state` first, then `iss`,
    /// then `error`.
    pub(crate) fn read_callback(&self, callback: &str) -> Result<AuthorizationCode, LoginError> {
        let code = self.expected.code(callback)?;
        Ok(AuthorizationCode { code, verifier: self.verifier.clone(), redirect_uri: self.redirect_uri.clone() })
    }
}

/// The members that a callback must contain.
pub(crate) struct ExpectedCallback {
    pub state: String,
    pub issuer: String,
    /// Whether the metadata promises the issuer in each callback (RFC 9207).
    pub needs_issuer: bool,
}

impl ExpectedCallback {
    /// Returns the code of a callback. No text of the callback gets into an error before state and issuer are right.
    pub(crate) fn code(&self, callback: &str) -> Result<String, CallbackFault> {
        let Parameters([state, issuer, error, description, code]) =
            Parameters::read(callback).ok_or(CallbackFault::NotACallback)?;
        if state.is_none() && code.is_none() && error.is_none() {
            return Err(CallbackFault::NotACallback);
        }
        let state = state.unwrap_or_default();
        verify_slices_are_equal(state.as_bytes(), self.state.as_bytes()).map_err(|_| CallbackFault::State)?;
        // A plain comparison: the standards forbid to normalize issuers.
        if issuer.map_or(self.needs_issuer, |issuer| issuer != self.issuer) {
            return Err(CallbackFault::Issuer);
        }
        if let Some(error) = error {
            let description = description.map(|text| shown(&text)).filter(|text| !text.is_empty());
            return Err(CallbackFault::Refused {
                code: error_code(&error).unwrap_or_else(|| "unknown".into()),
                description,
            });
        }
        let is_code =
            |code: &String| !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        code.filter(is_code).ok_or(CallbackFault::NotACallback)
    }
}

/// The values of the [`KNOWN`] parameters.
struct Parameters([Option<String>; KNOWN.len()]);

impl Parameters {
    /// Reads a URL, a path with a query, or a query. Returns `None` for any other text, and if a parameter occurs
    /// twice.
    fn read(callback: &str) -> Option<Parameters> {
        if callback.len() > MAX_CALLBACK {
            return None;
        }
        let callback = callback.trim();
        let callback = callback.split_once('#').map_or(callback, |(before, _)| before);
        let query = match callback.find(['?', '=']) {
            Some(at) if callback[at..].starts_with('?') => &callback[at + 1..],
            // A value of a query may contain a question mark.
            Some(at) if !callback[..at].contains('/') => callback,
            _ => return None,
        };
        let mut found = Parameters([const { None }; KNOWN.len()]);
        for (count, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            let place = KNOWN.iter().position(|known| *known == name);
            let is_again = place.is_some_and(|place| found.0[place].is_some());
            if count >= MAX_PARAMETERS || is_again {
                return None;
            }
            if let Some(place) = place {
                found.0[place] = Some(value);
            }
        }
        Some(found)
    }
}

/// Returns 256 random bits as text.
fn random() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    BASE64.encode(bytes)
}

#[cfg(test)]
mod tests;
