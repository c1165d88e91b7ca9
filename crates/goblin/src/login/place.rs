//! The place of a login: a running gateway, or this command.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_admin::api::{Entries, ServerStatus};
use goblin_admin::login::{LoginCallback, LoginRequest, LoginStatus, LogoutStatus};
use goblin_client::admin::AdminClient;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_config::ServerId;
use goblin_engine::upstream::login::BackendLogin;
use goblin_telemetry::clean;
use goblin_vault::Vault;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::admin_client::{self, GatewayArgs};
use crate::cli::CliError;
use crate::history::refused;
use crate::{load, style};

/// The longest wait for the server after a login.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The wait for a server that still needs a login, or offers nothing. It then has rejected the new login, or has nothing.
const UNCHANGED_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const NO_GATEWAY: &str = "No gateway of this configuration runs. The next one uses the login.\n";

/// Reports whether the argument names an endpoint instead of a server of the configuration.
pub(super) fn is_url(server: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| server.starts_with(scheme))
}

pub(super) enum LoginPlace {
    Gateway { client: AdminClient, path: String },
    Own(Arc<BackendLogin>),
}

impl LoginPlace {
    /// Returns the running gateway of the configuration. If none runs, the command logs in itself.
    pub(super) async fn find(server: &str, arguments: &GatewayArgs) -> Result<LoginPlace, CliError> {
        if is_url(server) {
            let login = BackendLogin::at_url(server, &ProxyEnvironment::from_process());
            let login = login.ok_or_else(|| CliError::Usage("the URL cannot be used".to_owned()))?;
            login.login.load().await;
            return Ok(LoginPlace::Own(login));
        }
        match admin_client::find(arguments).await {
            Ok(client) => {
                let path = format!("/api/servers/{}", utf8_percent_encode(server, NON_ALPHANUMERIC));
                Ok(LoginPlace::Gateway { client, path })
            }
            Err(CliError::Unavailable(_)) if arguments.url.is_none() => LoginPlace::own(server, arguments).await,
            Err(error) => Err(error),
        }
    }

    async fn own(server: &str, arguments: &GatewayArgs) -> Result<LoginPlace, CliError> {
        let loaded = load::load(arguments.config.as_deref()).map_err(CliError::Usage)?;
        let id = ServerId::new(server).ok();
        let config = id.as_ref().and_then(|id| loaded.config.servers.get(id));
        let config = config.ok_or_else(|| {
            let place = loaded.identity.place();
            CliError::Usage(format!("there is no server {} in {place} (goblin check lists them)", clean(server)))
        })?;
        let vault = Vault::default_directory(&environment).map(|path| Arc::new(Vault::new(path, &environment)));
        let vault = vault.ok_or_else(|| {
            CliError::Usage("there is no place for the login (set XDG_STATE_HOME or HOME)".to_owned())
        })?;
        let login = BackendLogin::of(server, config, &vault, &ProxyEnvironment::from_process(), &Arc::default());
        let login = login.ok_or_else(|| {
            CliError::Usage(format!(
                "there is no login at {}: it has no url, a header with a credential, or \"oauth\": false",
                clean(server)
            ))
        })?;
        login.login.load().await;
        Ok(LoginPlace::Own(login))
    }

    pub(super) async fn status(&self) -> Result<LoginStatus, CliError> {
        match self {
            LoginPlace::Gateway { client, path } => {
                let answer = client.get(&format!("{path}/login")).await;
                answered(client, path, answer, CliError::Usage).await
            }
            LoginPlace::Own(login) => Ok(login.status()),
        }
    }

    pub(super) async fn begin(&self, request: LoginRequest) -> Result<LoginStatus, CliError> {
        match self {
            LoginPlace::Gateway { client, path } => {
                let answer = client.post_json(&format!("{path}/login"), &request).await;
                answered(client, path, answer, CliError::Refused).await
            }
            LoginPlace::Own(login) => {
                let begun = Arc::clone(login).begin(request).await;
                begun.map(|()| login.status()).map_err(|error| CliError::Refused(error.to_string()))
            }
        }
    }

    pub(super) async fn finish(&self, callback: &str) -> Result<LoginStatus, CliError> {
        match self {
            LoginPlace::Gateway { client, path } => {
                let callback = LoginCallback { callback: callback.to_owned() };
                let answer = client.post_json(&format!("{path}/login/callback"), &callback).await;
                answered(client, path, answer, CliError::Refused).await
            }
            LoginPlace::Own(login) => {
                let finished = login.finish(callback).await;
                finished.map(|()| login.status()).map_err(|error| CliError::Refused(error.to_string()))
            }
        }
    }

    pub(super) async fn log_out(&self) -> Result<LogoutStatus, CliError> {
        match self {
            LoginPlace::Gateway { client, path } => {
                // A server without a login is an error of its own kind.
                self.status().await?;
                let answer = client.post(&format!("{path}/logout")).await;
                answered(client, path, answer, CliError::Refused).await
            }
            LoginPlace::Own(login) => login.log_out().await.map_err(|error| CliError::Refused(error.to_string())),
        }
    }

    /// Returns the line after a login: the state of the server, after the gateway has connected to it. Without a
    /// gateway, the line tells who uses the login. Returns `None` for a URL, and if the gateway is gone.
    pub(super) async fn next_line(&self, is_url: bool) -> Option<String> {
        let LoginPlace::Gateway { client, path } = self else {
            return (!is_url).then(|| NO_GATEWAY.to_owned());
        };
        let begun = Instant::now();
        loop {
            let body = client.get(path).await.ok()?;
            let server: ServerStatus = serde_json::from_slice(&body).ok()?;
            let is_settled = match server.state.as_str() {
                "starting" => false,
                "login_needed" => begun.elapsed() >= UNCHANGED_TIMEOUT,
                // The catalog has the new lists a moment after the server is ready.
                "ready" if server.entries == Entries::default() => begun.elapsed() >= UNCHANGED_TIMEOUT,
                _ => true,
            };
            if is_settled || begun.elapsed() >= SETTLE_TIMEOUT {
                return Some(line(&server));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

fn line(server: &ServerStatus) -> String {
    let (id, state) = (clean(&server.id), clean(&server.state).replace('_', " "));
    match (&server.reason, server.state.as_str()) {
        (_, "ready") => format!("{id} is ready: {}.\n", style::plural(server.entries.tools, "tool")),
        (Some(reason), _) => format!("{id} is in the state {state}: {}\n", clean(reason)),
        (None, _) => format!("{id} is in the state {state}.\n"),
    }
}

/// Reads the answer of a gateway. A rejection is a `fault` if the gateway has the server, so that scripts can
/// distinguish it from a gateway that cannot be reached.
async fn answered<T: DeserializeOwned>(
    client: &AdminClient,
    path: &str,
    answer: Result<Bytes, String>,
    fault: fn(String) -> CliError,
) -> Result<T, CliError> {
    let body = match answer {
        Ok(body) => body,
        Err(message) if client.get(path).await.is_ok() => return Err(fault(message)),
        Err(message) => return Err(refused(message)),
    };
    let unexpected = |error| CliError::Unavailable(format!("{} sent an unexpected response: {error}", client.place()));
    serde_json::from_slice(&body).map_err(unexpected)
}
