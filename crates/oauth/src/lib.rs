//! The OAuth client: logs in to remote servers and keeps the logins valid.
//!
//! `protocol/` talks to authorization servers and has no state. `login/` keeps the login at one server: its state, its
//! stored credential, the refresh of its tokens, and the attempts of persons.

mod error;
#[doc(hidden)]
pub mod fuzz;
mod login;
mod protocol;

use std::path::PathBuf;

use goblin_client::connect::ProxyEnvironment;
use goblin_config::oauth::OAuthOptions;
use http::Uri;

pub use error::{CallbackFault, FetchError, LoginError, Refusal, UrlFault};
pub use login::attempt::{BrowserLogin, DeviceLogin};
pub use login::{LoginNeed, LoginState, LogoutOutcome, ServerLogin};
pub use protocol::browser::open_browser;
pub use protocol::listener::CallbackListener;

/// A server to log in to.
#[derive(Clone)]
pub struct LoginTarget {
    /// The name of the server. Empty for a URL that is in no configuration.
    pub name: String,
    pub url: Uri,
    /// A PEM file with roots that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
    pub proxies: ProxyEnvironment,
    pub options: OAuthOptions,
}
