//! The reasons why a login fails.
//!
//! Each text names the place and, where there is one, the cure. Texts of a remote server are cleaned and cut before they
//! enter an error. No error contains a token, a code or a secret.

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

/// The reason why the gateway does not trust what a server says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Placeholder(String),
    #[error(
        "the server names another authorization server than at the last login: {named} instead of {known} (if that is right, set \"oauth\": {{\"issuer\": {named:?}}} at the server)"
    )]
    IssuerChanged { known: String, named: String },
}

/// The reason why the address to which the browser returned is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallbackFault {
    #[error("this is not the address of the last page of a login (it contains \"code=\" and \"state=\")")]
    NotACallback,
    #[error("the address belongs to another login")]
    State,
    #[error("the address comes from another authorization server than the one that was asked")]
    Issuer,
    #[error("the authorization server refused the login: {code}{}", description.as_ref().map(|it| format!(" ({it})")).unwrap_or_default())]
    Refused { code: String, description: Option<String> },
}
