//! The client with which the gateway appears at an authorization server.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use goblin_config::oauth::Grant;
use goblin_config::secret::Secret;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::LoginTarget;
use crate::error::{LoginError, Refusal};
use crate::protocol::discovery::Discovery;
use crate::protocol::fetch::{Answer, FETCH_TIMEOUT, Fetcher, Payload};
use crate::protocol::form::{Form, encoded};
use crate::protocol::metadata::AuthorizationServer;
use crate::protocol::token::rejection;

pub(crate) use crate::protocol::assertion::SigningKey;

const NONE: &str = "none";
const BASIC: &str = "client_secret_basic";
const POST: &str = "client_secret_post";
const PRIVATE_KEY: &str = "private_key_jwt";
pub(crate) const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// The length limit of a client id and of a client secret.
const MAX_TEXT: usize = 4096;

/// A client at one authorization server. Part of the stored login.
#[derive(Clone)]
pub(crate) struct ClientIdentity {
    pub id: String,
    pub credential: ClientCredential,
}

/// How the client proves itself at the token endpoint.
#[derive(Clone)]
pub(crate) enum ClientCredential {
    None,
    Basic(Secret),
    Post(Secret),
    PrivateKey(Arc<SigningKey>),
}

/// The stored form of an identity. A private key comes from the configuration and is not stored.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredClient {
    pub id: String,
    pub secret: Option<String>,
    pub method: String,
}

impl ClientIdentity {
    pub(crate) fn to_stored(&self) -> StoredClient {
        let (method, secret) = match &self.credential {
            ClientCredential::None => (NONE, None),
            ClientCredential::Basic(secret) => (BASIC, Some(secret)),
            ClientCredential::Post(secret) => (POST, Some(secret)),
            ClientCredential::PrivateKey(_) => (PRIVATE_KEY, None),
        };
        let secret = secret.map(|secret| secret.expose().to_owned());
        StoredClient { id: self.id.clone(), secret, method: method.to_owned() }
    }

    pub(crate) fn from_stored(stored: StoredClient) -> Option<ClientIdentity> {
        let credential = match (stored.method.as_str(), stored.secret) {
            (NONE, None) => ClientCredential::None,
            (BASIC, Some(secret)) => ClientCredential::Basic(Secret::new(secret)),
            (POST, Some(secret)) => ClientCredential::Post(Secret::new(secret)),
            _ => return None,
        };
        Some(ClientIdentity { id: stored.id, credential })
    }

    /// Adds the proof of the client to a request to an authorization server.
    pub(crate) fn authenticate(&self, form: Form, server: &AuthorizationServer) -> Result<Payload, LoginError> {
        let (form, header) = match &self.credential {
            ClientCredential::None => (form.with("client_id", &self.id), None),
            // Servers made with the Python SDK look the client up by the id in the form.
            ClientCredential::Basic(secret) => (form.with("client_id", &self.id), Some(basic(&self.id, secret))),
            ClientCredential::Post(secret) => {
                (form.with("client_id", &self.id).with("client_secret", secret.expose()), None)
            }
            ClientCredential::PrivateKey(key) => {
                let assertion = key.assertion(&self.id, &server.issuer)?;
                let form = form.with("client_id", &self.id).with("client_assertion_type", ASSERTION_TYPE);
                (form.with("client_assertion", &assertion), None)
            }
        };
        Ok(Payload::Form(form.into_text(), header))
    }

    /// Returns the secret that requests of the client contain.
    pub(crate) fn secret(&self) -> Option<&Secret> {
        match &self.credential {
            ClientCredential::Basic(secret) | ClientCredential::Post(secret) => Some(secret),
            ClientCredential::None | ClientCredential::PrivateKey(_) => None,
        }
    }
}

fn basic(id: &str, secret: &Secret) -> HeaderValue {
    let pair = format!("{}:{}", encoded(id), encoded(secret.expose()));
    let header = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair)));
    let mut header = header.expect("base64 is valid in a header");
    header.set_sensitive(true);
    header
}

/// Finds the client: a configured one (bound to its issuer), a client metadata document, or a new registration.
/// `redirect_uri` is the address to which the browser returns, if the login needs a browser here.
pub(crate) async fn client_for(
    fetcher: &Fetcher,
    target: &LoginTarget,
    discovery: &Discovery,
    redirect_uri: Option<&str>,
    scopes: &[String],
) -> Result<ClientIdentity, LoginError> {
    if redirect_uri.is_some() {
        // A login that is refused later must not leave a registration behind.
        discovery.check_pkce()?;
    }
    match configured(target, &discovery.server)? {
        Some(client) => Ok(client),
        None => register(fetcher, &discovery.server, redirect_uri, scopes).await,
    }
}

/// Returns the client in the configuration. Returns `None` if there is none that the authorization server accepts.
fn configured(target: &LoginTarget, server: &AuthorizationServer) -> Result<Option<ClientIdentity>, LoginError> {
    let options = &target.options;
    let Some(id) = options.client_id.clone() else { return Ok(None) };
    let credential = match (&options.grant, &options.client_secret) {
        (Grant::ClientCredentials(Some(key)), _) => ClientCredential::PrivateKey(Arc::new(SigningKey::new(key)?)),
        (_, Some(secret)) => credential(Some(secret.clone()), None, server),
        (_, None) if id.starts_with("https://") && !server.accepts_client_documents => return Ok(None),
        (_, None) => ClientCredential::None,
    };
    Ok(Some(ClientIdentity { id, credential }))
}

/// Returns how a client with this secret proves itself. `method` is the one that the authorization server chose.
fn credential(secret: Option<Secret>, method: Option<&str>, server: &AuthorizationServer) -> ClientCredential {
    let Some(secret) = secret else { return ClientCredential::None };
    let is_listed = |method: &str| server.auth_methods.iter().any(|listed| listed == method);
    let listed = [BASIC, POST, NONE].into_iter().find(|method| is_listed(method));
    match method.or(listed) {
        Some(POST) => ClientCredential::Post(secret),
        // The server issued a secret and accepts none.
        Some(NONE) => ClientCredential::None,
        _ => ClientCredential::Basic(secret),
    }
}

/// Registers a client (RFC 7591).
async fn register(
    fetcher: &Fetcher,
    server: &AuthorizationServer,
    redirect_uri: Option<&str>,
    scopes: &[String],
) -> Result<ClientIdentity, LoginError> {
    let no_client = || LoginError::NoClient { host: server.host().to_owned() };
    let endpoint = server.registration_endpoint.as_deref().ok_or_else(no_client)?;
    let url = fetcher.check("registration endpoint", endpoint)?;
    let payload = Payload::Json(registration(server, redirect_uri, scopes));
    let answer: Answer = fetcher.post(&url, payload, FETCH_TIMEOUT).await?;
    match answer.status {
        StatusCode::OK | StatusCode::CREATED => registered(&answer.object()?, server),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(answer.status_fault().into()),
        status if status.is_client_error() => {
            let rejected = answer.object().ok().and_then(|object| rejection(&object, server.host(), &[]));
            Err(rejected.map_or_else(no_client, |(_, error)| error))
        }
        _ => Err(answer.status_fault().into()),
    }
}

/// Returns the metadata of the client to register.
fn registration(server: &AuthorizationServer, redirect_uri: Option<&str>, scopes: &[String]) -> Value {
    let is_listed = |method: &str| server.auth_methods.iter().any(|listed| listed == method);
    // Servers made with the Python SDK revoke only with a secret in the form.
    let method = [NONE, POST, BASIC].into_iter().find(|method| is_listed(method)).unwrap_or(NONE);
    let mut grants = vec!["refresh_token"];
    if redirect_uri.is_some() {
        grants.insert(0, "authorization_code");
    }
    if server.device_authorization_endpoint.is_some() {
        grants.push(DEVICE_GRANT);
    }
    let mut client = json!({
        "client_name": "Goblin",
        "application_type": "native",
        "grant_types": grants,
        "token_endpoint_auth_method": method,
    });
    client["redirect_uris"] = redirect_uri.into_iter().collect();
    client["response_types"] = redirect_uri.map(|_| "code").into_iter().collect();
    // Some servers grant only the scopes of the registration, and some refuse a registration with others than theirs.
    let is_known = |scope: &&String| server.scopes_supported.is_empty() || server.scopes_supported.contains(scope);
    let known: Vec<&str> = scopes.iter().filter(is_known).map(String::as_str).collect();
    if !known.is_empty() {
        client["scope"] = known.join(" ").into();
    }
    client
}

/// Reads the answer to a registration.
fn registered(answer: &Map<String, Value>, server: &AuthorizationServer) -> Result<ClientIdentity, LoginError> {
    let refused = |fault| Refusal::Registration { host: server.host().to_owned(), fault };
    let text = |name| match answer.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if is_visible(text) => Ok(Some(text.clone())),
        Some(_) => Err(refused("its id, its secret or its method has a form that the protocol does not allow")),
    };
    let id = text("client_id")?.ok_or_else(|| refused("it has no id"))?;
    let method = text("token_endpoint_auth_method")?;
    let secret = text("client_secret")?.map(Secret::new);
    let credential = match method.as_deref() {
        None | Some(NONE | BASIC | POST) => credential(secret, method.as_deref(), server),
        Some(_) => return Err(refused("it must prove itself with a method that the gateway does not know").into()),
    };
    if matches!(method.as_deref(), Some(BASIC | POST)) && matches!(credential, ClientCredential::None) {
        return Err(refused("it must prove itself with a secret, and it got none").into());
    }
    Ok(ClientIdentity { id, credential })
}

fn is_visible(text: &str) -> bool {
    text.len() <= MAX_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

#[cfg(test)]
mod tests;
