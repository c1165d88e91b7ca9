//! The types of the routes that log in at a server.
//!
//! A login begins with `POST /api/servers/{id}/login`. A person then confirms it in a browser. With a `redirectUri`, the
//! browser returns to the program that began the login, which passes the URL of the callback on. Without one, the
//! browser returns to the gateway. No token is part of the API.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of `POST /api/servers/{id}/login`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoginRequest {
    /// The URL to which the browser returns. If absent, the gateway listens itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect_uri: Option<String>,
    /// Log in with a code on another device, instead of a callback.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub device: bool,
}

/// The body of `POST /api/servers/{id}/login/callback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoginCallback {
    /// The URL to which the browser returned, or its query.
    pub callback: String,
}

/// The login at a server, and the attempt that began last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LoginStatus {
    /// The login: `none`, `logged_in` or `needed`.
    pub login: String,
    /// The reason why a login is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the gateway logs in by itself, without a person.
    pub automatic: bool,
    /// The host to which a browser must return.
    pub callback_host: String,
    /// The port to which a browser must return. If absent, any port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_port: Option<u16>,
    /// The attempt that began last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<LoginAttempt>,
}

/// One attempt to log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LoginAttempt {
    /// The state: `waiting`, `done` or `failed`.
    pub state: String,
    /// The reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The URL that a person opens in a browser.
    pub url: String,
    /// The code that a person enters there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_code: Option<String>,
    /// The number of seconds until the attempt expires.
    pub expires_in: u64,
}

/// The response of `POST /api/servers/{id}/logout`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LogoutStatus {
    /// Whether there was a login.
    pub was_logged_in: bool,
    /// Whether the authorization server revoked the tokens.
    pub revoked: bool,
    /// The reason why it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
