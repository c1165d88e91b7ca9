//! The gateway that the dashboard shows, and its admin API.

use std::path::PathBuf;

use goblin_client::admin::AdminClient;
use goblin_client::bridge::wire::GatewayResponse;
use goblin_client::events::ResumePosition;
use goblin_client::runtime::GatewayRecord;
use goblin_config::mask;
use goblin_config::secret::Secret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::remote::read;

/// The gateway that the dashboard shows.
#[derive(Clone)]
pub enum GatewayAddress {
    Named {
        url: String,
        /// The client token, for calls and reads.
        token: Option<Secret>,
        admin_token: Option<Secret>,
    },
    /// A gateway on this machine.
    Recorded(Box<GatewayRecord>),
}

impl GatewayAddress {
    pub fn place(&self) -> String {
        match self {
            GatewayAddress::Named { url, .. } => mask::url(url),
            GatewayAddress::Recorded(record) => mask::url(&record.url),
        }
    }

    /// Returns the configuration file, if the gateway runs on this machine and has one.
    pub fn config_file(&self) -> Option<PathBuf> {
        match self {
            GatewayAddress::Named { .. } => None,
            GatewayAddress::Recorded(record) => record.identity.config.clone(),
        }
    }

    fn admin_client(&self) -> anyhow::Result<AdminClient> {
        match self {
            GatewayAddress::Named { url, admin_token, .. } => AdminClient::to_url(url, admin_token.as_ref()),
            GatewayAddress::Recorded(record) => AdminClient::to_record(GatewayRecord::clone(record)),
        }
    }
}

pub struct Api {
    client: AdminClient,
    /// The number of restarts so far. Event ids are only valid until the next restart.
    gateways: watch::Sender<u64>,
}

impl Api {
    pub fn new(gateway: &GatewayAddress) -> anyhow::Result<Api> {
        Ok(Api { client: gateway.admin_client()?, gateways: watch::Sender::new(0) })
    }

    /// Reports a restart of the gateway to the event stream.
    pub(crate) fn mark_restarted(&self) {
        self.gateways.send_modify(|gateways| *gateways += 1);
    }

    pub fn gateways(&self) -> watch::Receiver<u64> {
        self.gateways.subscribe()
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        read(path, &self.client.get(path).await?)
    }

    /// Works like [`get`](Self::get), but returns `None` if the gateway does not have the path.
    pub async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, String> {
        self.client.find(path).await?.map(|body| read(path, &body)).transpose()
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        read(path, &self.client.post(path).await?)
    }

    /// Sends a request with a JSON body.
    pub async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, String> {
        read(path, &self.client.post_json(path, body).await?)
    }

    /// Opens an event stream after this position.
    pub async fn stream(&self, path: &str, after: &ResumePosition) -> Result<GatewayResponse, String> {
        self.client.stream(path, after).await
    }
}
