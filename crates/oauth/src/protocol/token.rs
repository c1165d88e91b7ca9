//! Requests to the token endpoint and the revocation endpoint.

use std::time::Duration;

use goblin_config::mask;
use goblin_config::secret::Secret;
use http::StatusCode;
use serde_json::{Map, Value};

use crate::error::{FetchError, LoginError, Refusal};
use crate::protocol::authorize::AuthorizationCode;
use crate::protocol::challenge::{error_code, read_scopes};
use crate::protocol::client::{ClientIdentity, DEVICE_GRANT};
use crate::protocol::fetch::{Answer, FETCH_TIMEOUT, Fetcher, TOKEN_TIMEOUT};
use crate::protocol::form::Form;
use crate::protocol::metadata::AuthorizationServer;
use crate::protocol::url::shown;

/// The length limit of a token.
const MAX_TOKEN: usize = 16 << 10;
/// The longest lifetime that counts, in seconds: ten years.
const MAX_LIFETIME: f64 = 315_360_000.0;

/// The reason why an authorization server issues tokens.
pub(crate) enum TokenGrant<'a> {
    Code(&'a AuthorizationCode),
    Refresh(&'a Secret),
    /// The member has the scopes to ask for.
    ClientCredentials(&'a [String]),
    DeviceCode(&'a Secret),
}

#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub access: Secret,
    pub refresh: Option<Secret>,
    pub lifetime: Option<Duration>,
    /// `None` if the answer names none: then they are the requested ones.
    pub scopes: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// No usable answer. A retry may help.
    Fetch(FetchError),
    /// An OAuth error: `invalid_grant`, `authorization_pending`, `slow_down`, ….
    Rejected { code: String, error: LoginError },
    /// The answer or the key is not usable.
    Unusable(LoginError),
}

impl From<TokenError> for LoginError {
    fn from(error: TokenError) -> LoginError {
        match error {
            TokenError::Fetch(error) => error.into(),
            TokenError::Rejected { error, .. } | TokenError::Unusable(error) => error,
        }
    }
}

impl From<FetchError> for TokenError {
    fn from(error: FetchError) -> TokenError {
        TokenError::Fetch(error)
    }
}

impl From<LoginError> for TokenError {
    fn from(error: LoginError) -> TokenError {
        TokenError::Unusable(error)
    }
}

impl From<Refusal> for TokenError {
    fn from(refusal: Refusal) -> TokenError {
        TokenError::Unusable(refusal.into())
    }
}

impl TokenGrant<'_> {
    fn form(&self) -> Form {
        let form = Form::default();
        match self {
            TokenGrant::Code(code) => form
                .with("grant_type", "authorization_code")
                .with("code", &code.code)
                .with("redirect_uri", &code.redirect_uri)
                .with("code_verifier", &code.verifier),
            TokenGrant::Refresh(token) => {
                form.with("grant_type", "refresh_token").with("refresh_token", token.expose())
            }
            TokenGrant::ClientCredentials(scopes) => {
                let scope = (!scopes.is_empty()).then(|| scopes.join(" "));
                form.with("grant_type", "client_credentials").with_some("scope", scope.as_deref())
            }
            TokenGrant::DeviceCode(code) => form.with("grant_type", DEVICE_GRANT).with("device_code", code.expose()),
        }
    }

    /// Returns the secrets that the request contains.
    fn secrets(&self) -> Vec<&str> {
        match self {
            TokenGrant::Code(code) => vec![&code.code, &code.verifier],
            TokenGrant::Refresh(secret) | TokenGrant::DeviceCode(secret) => vec![secret.expose()],
            TokenGrant::ClientCredentials(_) => Vec::new(),
        }
    }
}

pub(crate) async fn request_tokens(
    fetcher: &Fetcher,
    server: &AuthorizationServer,
    client: &ClientIdentity,
    resource: Option<&str>,
    grant: TokenGrant<'_>,
) -> Result<Tokens, TokenError> {
    let url = fetcher.check("token endpoint", &server.token_endpoint)?;
    let payload = client.authenticate(grant.form().with_some("resource", resource), server)?;
    let answer = fetcher.post(&url, payload, TOKEN_TIMEOUT).await?;
    let mut secrets = grant.secrets();
    secrets.extend(client.secret().map(Secret::expose));
    check_rejection(&answer, server, &secrets)?;
    if !answer.status.is_success() {
        return Err(answer.status_fault().into());
    }
    let refused = |fault| Refusal::Answer { host: server.host().to_owned(), fault };
    Ok(read_tokens(&answer.object()?).map_err(refused)?)
}

/// Revokes a token (RFC 7009). `hint` is `refresh_token` or `access_token`.
pub(crate) async fn revoke(
    fetcher: &Fetcher,
    server: &AuthorizationServer,
    client: &ClientIdentity,
    token: &Secret,
    hint: &str,
) -> Result<(), TokenError> {
    let missing = || Refusal::NoEndpoint { host: server.host().to_owned(), name: "revocation endpoint" };
    let endpoint = server.revocation_endpoint.as_deref().ok_or_else(missing)?;
    let url = fetcher.check("revocation endpoint", endpoint)?;
    let form = Form::default().with("token", token.expose()).with("token_type_hint", hint);
    let answer = fetcher.post(&url, client.authenticate(form, server)?, FETCH_TIMEOUT).await?;
    let secrets: Vec<&str> = client.secret().into_iter().chain([token]).map(Secret::expose).collect();
    if answer.status.is_success() {
        return Ok(());
    }
    check_rejection(&answer, server, &secrets)?;
    Err(answer.status_fault().into())
}

/// Returns an error if the answer is an OAuth error. A server with a problem of its own has not rejected anything.
pub(crate) fn check_rejection(
    answer: &Answer,
    server: &AuthorizationServer,
    secrets: &[&str],
) -> Result<(), TokenError> {
    if answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS {
        return Err(answer.status_fault().into());
    }
    let object = answer.object().ok();
    match object.and_then(|object| rejection(&object, server.host(), secrets)) {
        Some((code, error)) => Err(TokenError::Rejected { code, error }),
        None => Ok(()),
    }
}

/// Reads an OAuth error. Leaves out a description that repeats a secret of the request.
pub(crate) fn rejection(object: &Map<String, Value>, host: &str, secrets: &[&str]) -> Option<(String, LoginError)> {
    let code = object.get("error")?.as_str().and_then(error_code)?;
    let is_telling = |text: &str| secrets.iter().any(|secret| !secret.is_empty() && text.contains(secret));
    if is_telling(&code) {
        return None;
    }
    let description = object.get("error_description").and_then(Value::as_str);
    let description = description.filter(|text| !text.is_empty() && !is_telling(text));
    let description = description.map(|text| shown(&mask::text(text)));
    let error = LoginError::Rejected { host: host.to_owned(), code: code.clone(), description };
    Some((code, error))
}

fn read_tokens(answer: &Map<String, Value>) -> Result<Tokens, &'static str> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let is_token = |token: &str| token.len() <= MAX_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic());
    let access = text("access_token").filter(|token| !token.is_empty()).ok_or("it has no access token")?;
    if !is_token(access) {
        return Err("its access token is too long or has characters that no token has");
    }
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("its token is not of the type Bearer");
    }
    let refresh = text("refresh_token").filter(|token| !token.is_empty());
    if refresh.is_some_and(|token| !is_token(token)) {
        return Err("its refresh token is too long or has characters that no token has");
    }
    let scopes = text("scope").map(read_scopes).filter(|scopes| !scopes.is_empty());
    let (access, refresh) = (Secret::new(access), refresh.map(Secret::new));
    Ok(Tokens { access, refresh, lifetime: answer.get("expires_in").and_then(lifetime), scopes })
}

/// Returns the seconds in a number, or in a text with a number. Returns `None` for a value that is no time.
pub(crate) fn lifetime(value: &Value) -> Option<Duration> {
    let seconds = match value {
        Value::String(text) => text.parse().ok()?,
        value => value.as_f64()?,
    };
    (seconds >= 0.0).then(|| Duration::from_secs(seconds.min(MAX_LIFETIME) as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(members) = value else { panic!("{value} is no object") };
        members
    }

    #[test]
    fn oauth1_the_answer_with_tokens_is_read() {
        let good = json!({
            "access_token": "abc", "token_type": "bEARER", "refresh_token": "def", "expires_in": 3600, "scope": "a b a",
        });
        let tokens = read_tokens(&object(good.clone())).expect("tokens");
        assert_eq!((tokens.access.expose(), tokens.lifetime), ("abc", Some(Duration::from_secs(3600))));
        assert_eq!(tokens.refresh.as_ref().map(Secret::expose), Some("def"));
        assert_eq!(tokens.scopes, Some(vec!["a".to_owned(), "b".to_owned()]));
        let bare = read_tokens(&object(json!({"access_token": "abc", "token_type": "Bearer", "scope": ""})));
        let bare = bare.expect("tokens");
        assert!(bare.refresh.is_none() && bare.lifetime.is_none() && bare.scopes.is_none());
        for (member, value) in [
            ("access_token", json!(null)),
            ("access_token", json!("")),
            ("access_token", json!(7)),
            ("access_token", json!("a b")),
            ("access_token", json!("a\nb")),
            ("access_token", json!("é")),
            ("access_token", json!("x".repeat(MAX_TOKEN + 1))),
            ("token_type", json!(null)),
            ("token_type", json!("DPoP")),
            ("refresh_token", json!("a\u{0}b")),
            ("refresh_token", json!("x".repeat(MAX_TOKEN + 1))),
        ] {
            let mut answer = good.clone();
            answer[member] = value.clone();
            assert!(read_tokens(&object(answer)).is_err(), "{member} {value}");
        }
    }

    #[test]
    fn oauth1_a_lifetime_is_bounded() {
        let cases = [
            (json!(60), Some(60)),
            (json!("60"), Some(60)),
            (json!(59.9), Some(59)),
            (json!(0), Some(0)),
            (json!(1e300), Some(315_360_000)),
            (json!("inf"), Some(315_360_000)),
            (json!(-1), None),
            (json!("NaN"), None),
            (json!("soon"), None),
            (json!(null), None),
            (json!([60]), None),
        ];
        for (value, seconds) in cases {
            assert_eq!(lifetime(&value), seconds.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn oauth1_an_oauth_error_repeats_no_secret() {
        let read = |value| rejection(&object(value), "as.example", &["s3cret", ""]);
        let error = |code: &str, description: Option<&str>| {
            let description = description.map(str::to_owned);
            let error = LoginError::Rejected { host: "as.example".to_owned(), code: code.to_owned(), description };
            Some((code.to_owned(), error))
        };
        let cases = [
            (json!({"error": "invalid_grant"}), error("invalid_grant", None)),
            (json!({"error": "a", "error_description": "no\u{1b}[31m\nway"}), error("a", Some("no[31m way"))),
            (json!({"error": "a", "error_description": "token s3cret is bad"}), error("a", None)),
            (json!({"error": "s3cret"}), None),
            (json!({"error": "a b"}), None),
            (json!({"error": {"message": "x"}}), None),
            (json!({"message": "x"}), None),
        ];
        for (value, expected) in cases {
            assert_eq!(read(value.clone()), expected, "{value}");
        }
        let long = read(json!({"error": "a", "error_description": "é ".repeat(5000)})).expect("an error").1;
        assert!(long.to_string().len() < 1000);
    }
}
