//! Reads `oauth`: the options of the login at a server with a URL.

use crate::field::{Field, Section};
use crate::network;
use crate::problem::Fault;
use crate::schema::ObjectKeys;
use crate::secret::Secret;
use crate::visible::shell_word;

/// The limit of scopes in one list.
pub(crate) const MAX_SCOPES: usize = 100;
/// The length limit of a client id, a scope and a key id.
const MAX_TEXT_LENGTH: usize = 2048;

/// The options of the login at one server. The defaults suit a server that registers clients by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuthOptions {
    /// The id of a registered client, or the URL of a client metadata document.
    pub client_id: Option<String>,
    pub client_secret: Option<Secret>,
    /// The authorization server at which the client is registered.
    pub issuer: Option<String>,
    /// The URL of the authorization server's metadata, instead of the discovered one.
    pub metadata_url: Option<String>,
    /// The scopes to request, instead of those that the server names.
    pub scopes: Option<Vec<String>>,
    pub resource: ResourceIndicator,
    pub callback: Callback,
    pub grant: Grant,
}

/// Whether the requests for tokens name the server that the token is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceIndicator {
    #[default]
    Sent,
    Omitted,
}

/// The address on this machine to which the browser returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Callback {
    pub host: CallbackHost,
    /// `None` uses any free port.
    pub port: Option<u16>,
}

/// The host in the URL of the callback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallbackHost {
    #[default]
    Address,
    Localhost,
}

/// The kind of login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// A person logs in with a browser.
    #[default]
    AuthorizationCode,
    /// The gateway logs in by itself, with its client secret or with a private key.
    ClientCredentials(Option<PrivateKey>),
}

/// The key that signs the gateway's assertions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateKey {
    /// The key in PEM form.
    pub pem: Secret,
    /// The id under which the authorization server knows the key.
    pub id: Option<String>,
}

#[derive(Clone, Copy)]
pub(crate) enum GrantName {
    AuthorizationCode,
    ClientCredentials,
}

pub(crate) const GRANTS: [(&str, GrantName); 2] =
    [("authorization_code", GrantName::AuthorizationCode), ("client_credentials", GrantName::ClientCredentials)];
pub(crate) const CALLBACK_HOSTS: [(&str, CallbackHost); 2] =
    [("127.0.0.1", CallbackHost::Address), ("localhost", CallbackHost::Localhost)];

/// Returns the command that performs a login at a server.
pub fn login_command(server: &str) -> String {
    let separator = if server.starts_with('-') { "-- " } else { "" };
    format!("goblin login {separator}{}", shell_word(server))
}

/// Returns the options of the login. Returns `None` if the gateway must not log in: the file forbids it, or the server
/// has a header with a credential.
pub(crate) fn oauth(section: &Section<'_>, headers: &[(String, Secret)]) -> Option<OAuthOptions> {
    let Some(field) = section.get("oauth") else {
        let has_credential = headers.iter().any(|(name, _)| network::is_secret_header(name));
        return (!has_credential).then(OAuthOptions::default);
    };
    if field.is_flag() {
        return field.flag().filter(|is_allowed| *is_allowed).map(|_| OAuthOptions::default());
    }
    let options = options(&field);
    if headers.iter().any(|(name, _)| name == "authorization") {
        let fault = Fault::new("the server has a header Authorization, so there is nothing to log in for");
        field.key_problem(fault.cure("keep \"oauth\" or the header"));
    }
    options
}

fn options(field: &Field<'_>) -> Option<OAuthOptions> {
    let section = field.section_or("true, false", ObjectKeys::OAuth)?;
    let mut options = OAuthOptions::default();
    section.set(&mut options.client_id, "clientId", |field| visible(field).map(Some));
    section.set(&mut options.client_secret, "clientSecret", |field| secret(field).map(Some));
    section.set(&mut options.issuer, "issuer", |field| url(field).map(Some));
    section.set(&mut options.metadata_url, "authServerMetadataUrl", |field| url(field).map(Some));
    section.set(&mut options.scopes, "scopes", |field| scopes(field).map(Some));
    section.set(&mut options.resource, "resource", |field| {
        field.flag().map(|is_sent| if is_sent { ResourceIndicator::Sent } else { ResourceIndicator::Omitted })
    });
    section.set(&mut options.callback.host, "callbackHost", |field| field.choice(&CALLBACK_HOSTS));
    section.set(&mut options.callback.port, "callbackPort", |field| field.whole(1..=65535).map(Some));
    options.grant = grant(&section, &options)?;
    Some(options)
}

/// Reads `grant` and the members that only one kind of login has.
fn grant(section: &Section<'_>, options: &OAuthOptions) -> Option<Grant> {
    let (mut name, mut pem, mut id) = (GrantName::AuthorizationCode, None, None);
    section.set(&mut name, "grant", |field| field.choice(&GRANTS));
    section.set(&mut pem, "privateKey", |field| secret(field).map(Some));
    section.set(&mut id, "keyId", |field| visible(field).map(Some));
    let is_given = |member| section.get(member).is_some();
    let misplaced = |member: &str, fault: Fault| {
        section.get(member).inspect(|field| field.key_problem(fault));
    };
    if !is_given("privateKey") {
        misplaced("keyId", Fault::new("names no key").cure("add \"privateKey\""));
    }
    let GrantName::ClientCredentials = name else {
        let fault = Fault::new("only a login without a person has a private key");
        misplaced("privateKey", fault.cure("add \"grant\": \"client_credentials\""));
        return Some(Grant::AuthorizationCode);
    };
    if is_given("privateKey") {
        misplaced("clientSecret", Fault::new("the private key replaces the client secret").cure("keep one"));
    }
    let has_credential = is_given("clientSecret") || is_given("privateKey");
    if !is_given("clientId") || !has_credential {
        let fault = Fault::new("a login without a person needs a client id and a credential");
        misplaced("grant", fault.cure("add \"clientId\" and \"clientSecret\" or \"privateKey\""));
        return None;
    }
    let is_read = options.client_id.is_some() && (options.client_secret.is_some() || pem.is_some());
    is_read.then(|| Grant::ClientCredentials(pem.map(|pem| PrivateKey { pem, id })))
}

fn secret(field: &Field<'_>) -> Option<Secret> {
    let text = field.expanded()?;
    field.warn_if_literal_secret();
    let is_empty = || Fault::new("must not be empty");
    field.accept(if text.trim().is_empty() { Err(is_empty()) } else { Ok(Secret::new(text)) })
}

fn visible(field: &Field<'_>) -> Option<String> {
    let text = field.expanded()?;
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    let wrong = || Fault::new(format!("must be 1 to {MAX_TEXT_LENGTH} visible ASCII characters"));
    let is_good = is_visible && (1..=MAX_TEXT_LENGTH).contains(&text.len());
    field.accept(if is_good { Ok(text) } else { Err(wrong()) })
}

fn url(field: &Field<'_>) -> Option<String> {
    let text = field.expanded()?;
    field.accept(network::check_url(&text)).map(|()| text)
}

/// Reads scopes: an array, or one string that separates them by spaces.
fn scopes(field: &Field<'_>) -> Option<Vec<String>> {
    let scopes: Vec<String> = match field.is_array() {
        true => field.list(|field| field.text().map(str::to_owned))?,
        false => field.text()?.split(' ').filter(|scope| !scope.is_empty()).map(str::to_owned).collect(),
    };
    let is_scope = |scope: &String| {
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        (1..=MAX_TEXT_LENGTH).contains(&scope.len()) && scope.bytes().all(is_allowed)
    };
    if scopes.len() > MAX_SCOPES || !scopes.iter().all(is_scope) {
        let fault = format!("must be at most {MAX_SCOPES} scopes of visible ASCII characters, without quotes");
        return field.accept(Err(Fault::new(fault)));
    }
    Some(scopes)
}
