//! The reasons why a login fails.
//!
//! Each text names the place and, if one exists, the cure. Texts of a remote server are cleaned and cut before
//! they enter an error. No error contains a token, a code or a secret.

/// The reason why a login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Refusal(#[from] Refusal),
    #[error(transparent)]
    Callback(#[from] CallbackFault),
    /// The authorization server rejected a request with an OAuth error.
    #[error("{host} rejected the request: {code}{}", description.as_ref().map(|it| format!(" ({it})")).unwrap_or_default())]
    Rejected { host: String, code: String, description: Option<String> },
    #[error(
        "{host} registers no clients by itself (register a client there, and set \"oauth\": {{\"clientId\": …}} at the \
         server)"
    )]
    NoClient { host: String },
    #[error("{host} offers no login with a code on another device (leave out --device)")]
    NoDeviceLogin { host: String },
    #[error("the server did not ask for a login: it answered without one")]
    NotNeeded,
    #[error(
        "a browser cannot return to {uri} (the address must be http on this machine, like http://127.0.0.1:8000/callback)"
    )]
    RedirectUri { uri: String },
    #[error("the login has no attempt that waits for this address (begin again)")]
    Ended,
    #[error("the login was not finished in time (begin again)")]
    Expired,
    #[error("the server still lacks a permission after {attempts} logins (its scopes may not be grantable)")]
    StepUps { attempts: u32 },
    #[error("the gateway logs in by itself at this server (\"grant\": \"client_credentials\")")]
    Automatic,
    #[error("cannot listen on {address} for the browser: {reason}")]
    Listener { address: String, reason: String },
    #[error("the private key is not usable: {0}")]
    Key(String),
    #[error("the login cannot be stored: {0}")]
    Vault(String),
}

/// The reason why a request to an authorization server, or to a page with metadata, got no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct FetchError {
    /// Masked and cleaned.
    pub url: String,
    pub reason: String,
    /// Whether the server may have handled the request.
    pub is_sent: bool,
}

/// The reason why the gateway does not trust the metadata or the answer of a server. All URLs are masked, cleaned and
/// cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the {name} {url} is not usable: {fault}")]
    Url { name: &'static str, url: String, fault: UrlFault },
    #[error("{url} redirects to {to} (a redirect may only lead to another page of the same site, at most three times)")]
    Redirect { url: String, to: String },
    #[error("{url} has no usable \"{member}\": it {fault} (the operator of that server must correct its metadata)")]
    Metadata { url: String, member: &'static str, fault: &'static str },
    #[error(
        "the metadata of the server is for {resource}, and the configured URL is {url} (configure the URL that the \
         operator of the server names)"
    )]
    Resource { resource: String, url: String },
    #[error(
        "{url} belongs to the issuer {found}, but the issuer {expected} was asked (the operator of that \
         server must correct its metadata)"
    )]
    Issuer { url: String, found: String, expected: String },
    #[error(
        "the server names {named} as its authorization servers, and \"oauth.issuer\" is {issuer} (correct \"issuer\" at \
         the server)"
    )]
    IssuerNotNamed { issuer: String, named: String },
    #[error(
        "the server names the authorization server {named}, and the last login was at {known} (if that is right, set \
         \"oauth\": {{\"issuer\": …}} at the server)"
    )]
    IssuerChanged { known: String, named: String },
    #[error(
        "{issuer} has no page with metadata (set \"oauth\": {{\"authServerMetadataUrl\": …}} at the server if it is \
         elsewhere)"
    )]
    NoMetadata { issuer: String },
    #[error("{host} does not offer PKCE with S256, so a login there is not safe (its operator must enable it)")]
    NoChallengeMethod { host: String },
    #[error("{host} has no {name}, which this kind of login needs")]
    NoEndpoint { host: String, name: &'static str },
    #[error(
        "{host} registered a client that is not usable: {fault} (set \"oauth\": {{\"clientId\": …}} at the server)"
    )]
    Registration { host: String, fault: &'static str },
    #[error("the answer of {host} is not usable: {fault}")]
    Answer { host: String, fault: &'static str },
}

/// The reason why a URL that a server names is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    #[error("it must look like https://host/path")]
    Form,
    #[error("it must begin with https:// (http:// is only for servers on this machine that name each other)")]
    Scheme,
    #[error("it contains a user name")]
    User,
    #[error("it contains a fragment (#)")]
    Fragment,
    #[error("it contains a query (?)")]
    Query,
    #[error("it contains a character that must not be in a URL")]
    Characters,
    #[error("its host is a number in an unusual form")]
    Host,
    #[error("it is too long")]
    Length,
    #[error(
        "its address is more private than the server that names it (only a server in the same network may name such an \
         address)"
    )]
    Private,
    #[error("it contains a character that a shell could act on")]
    Shell,
}

/// The reason why the address to which the browser returned is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallbackFault {
    #[error("this is not the address of the last page of a login (it contains \"code=\" and \"state=\")")]
    NotACallback,
    #[error("the address belongs to another login (paste the one at which the newest page of this login ended)")]
    State,
    #[error("the address comes from another authorization server than the one that was asked")]
    Issuer,
    #[error("the authorization server refused the login: {code}{}", description.as_ref().map(|it| format!(" ({it})")).unwrap_or_default())]
    Refused { code: String, description: Option<String> },
}
