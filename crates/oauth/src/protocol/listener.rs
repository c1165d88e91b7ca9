//! Listens on this machine for the browser that returns from a login page.
use crate::error::LoginError;
use goblin_config::oauth::Callback;

pub struct CallbackListener;

impl CallbackListener {
    pub async fn bind(_callback: Callback) -> Result<CallbackListener, LoginError> {
        todo!()
    }
    pub fn redirect_uri(&self) -> &str {
        todo!()
    }
    /// Returns the address of the next page that the browser opens here with an answer of an authorization server. The browser shows that it can be closed.
    /// Cancel-safe.
    pub async fn next(&self) -> String {
        todo!()
    }
}
