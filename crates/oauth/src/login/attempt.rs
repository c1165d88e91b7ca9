//! The attempts of persons to log in.
use crate::error::LoginError;
use std::time::Instant;

/// A login in a browser that has begun.
pub struct BrowserLogin;
impl BrowserLogin {
    pub fn url(&self) -> &str {
        todo!()
    }
    pub fn expires(&self) -> Instant {
        todo!()
    }
    /// Finishes the login with the address to which the browser returned. A wrong address changes nothing, so another call may follow; after a code was used the attempt has ended.
    pub async fn complete(&self, _callback: &str) -> Result<(), LoginError> {
        todo!()
    }
}

/// A login with a code on another device that has begun.
pub struct DeviceLogin;
impl DeviceLogin {
    pub fn url(&self) -> &str {
        todo!()
    }
    pub fn user_code(&self) -> &str {
        todo!()
    }
    pub fn expires(&self) -> Instant {
        todo!()
    }
    /// Polls until the person has entered the code.
    pub async fn wait(&self) -> Result<(), LoginError> {
        todo!()
    }
}
