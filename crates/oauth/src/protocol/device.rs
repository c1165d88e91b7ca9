//! The device flow (RFC 8628).
use crate::error::LoginError;
use crate::protocol::client::ClientIdentity;
use crate::protocol::discovery::Discovery;
use crate::protocol::fetch::Fetcher;
use goblin_config::secret::Secret;
use std::time::Duration;

pub(crate) struct DeviceAuthorization {
    pub device_code: Secret,
    pub user_code: String,
    /// The complete URL if there is one.
    pub url: String,
    pub lifetime: Duration,
    pub interval: Duration,
}

pub(crate) async fn authorize_device(
    _fetcher: &Fetcher,
    _discovery: &Discovery,
    _client: &ClientIdentity,
    _scopes: &[String],
) -> Result<DeviceAuthorization, LoginError> {
    todo!()
}
