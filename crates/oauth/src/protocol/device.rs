//! The device flow (RFC 8628): a person enters a code in a browser on any device.

use std::time::Duration;

use goblin_config::secret::Secret;
use serde_json::{Map, Value};

use crate::error::{LoginError, Refusal, UrlFault};
use crate::protocol::client::ClientIdentity;
use crate::protocol::discovery::Discovery;
use crate::protocol::fetch::{FETCH_TIMEOUT, Fetcher};
use crate::protocol::form::Form;
use crate::protocol::token::{check_rejection, lifetime};
use crate::protocol::url::{is_safe_for_opener, shown_url};

/// The length limit of the code that the gateway keeps.
const MAX_DEVICE_CODE: usize = 4096;
/// The length limit of the code that a person enters.
const MAX_USER_CODE: usize = 64;
const DEFAULT_LIFETIME: Duration = Duration::from_secs(600);
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct DeviceAuthorization {
    pub device_code: Secret,
    pub user_code: String,
    /// The complete URL if there is one.
    pub url: String,
    pub lifetime: Duration,
    pub interval: Duration,
}

/// Asks the authorization server for a code that a person can enter.
pub(crate) async fn authorize_device(
    fetcher: &Fetcher,
    discovery: &Discovery,
    client: &ClientIdentity,
    scopes: &[String],
) -> Result<DeviceAuthorization, LoginError> {
    let server = &discovery.server;
    let no_endpoint = || LoginError::NoDeviceLogin { host: server.host().to_owned() };
    let endpoint = server.device_authorization_endpoint.as_deref().ok_or_else(no_endpoint)?;
    let url = fetcher.check("device authorization endpoint", endpoint)?;
    let scope = (!scopes.is_empty()).then(|| scopes.join(" "));
    let form =
        Form::default().with_some("scope", scope.as_deref()).with_some("resource", discovery.resource.as_deref());
    // The form has the id of the client for each kind of proof, as RFC 8628 requires in section 3.1.
    let answer = fetcher.post(&url, client.authenticate(form, server)?, FETCH_TIMEOUT).await?;
    let secrets: Vec<&str> = client.secret().into_iter().map(Secret::expose).collect();
    check_rejection(&answer, server, &secrets)?;
    if !answer.status.is_success() {
        return Err(answer.status_fault().into());
    }
    read(&answer.object()?, fetcher, server.host())
}

/// Reads the answer of the device authorization endpoint.
fn read(answer: &Map<String, Value>, fetcher: &Fetcher, host: &str) -> Result<DeviceAuthorization, LoginError> {
    let refused = |fault| Refusal::Answer { host: host.to_owned(), fault };
    let text = |name: &str| answer.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_short = |text: &&str, limit| text.len() <= limit && text.bytes().all(|byte| byte.is_ascii_graphic());
    let device_code = text("device_code").filter(|code| is_short(code, MAX_DEVICE_CODE));
    let device_code = device_code.ok_or_else(|| refused("it has no usable device code"))?;
    let user_code = text("user_code").filter(|code| is_short(code, MAX_USER_CODE));
    let user_code = user_code.ok_or_else(|| refused("it has no usable code to enter"))?;
    // Google writes `verification_url`.
    let url = ["verification_uri_complete", "verification_uri", "verification_url"].into_iter().find_map(text);
    let url = url.ok_or_else(|| refused("it names no page for the code"))?;
    const NAME: &str = "page for the code";
    fetcher.check(NAME, url)?;
    if !is_safe_for_opener(url) {
        return Err(Refusal::Url { name: NAME, url: shown_url(url), fault: UrlFault::Shell }.into());
    }
    let seconds = |name: &str| answer.get(name).and_then(lifetime);
    Ok(DeviceAuthorization {
        device_code: Secret::new(device_code),
        user_code: user_code.to_owned(),
        url: url.to_owned(),
        lifetime: seconds("expires_in").unwrap_or(DEFAULT_LIFETIME).min(MAX_LIFETIME),
        interval: seconds("interval").unwrap_or(DEFAULT_INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL),
    })
}
