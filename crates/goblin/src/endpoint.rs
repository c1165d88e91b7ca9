//! The gateway that a command talks to: a running one, or one of its own.
//!
//! The command is a client like any other, over a pipe in memory (see [`goblin_client::peer`]). Behind the pipe is
//! either the bridge of `goblin stdio`, which resumes cut streams and frames messages, or an [`App`] without
//! a listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use futures_util::future::join_all;
use goblin_client::bridge::wire::GatewayConnection;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::gateway::PIPE_BYTES;
use goblin_client::lineage::{self, Lineage};
use goblin_client::peer::Peer;
use goblin_client::runtime::FindError;
use goblin_client::{address, gateway, runtime};
use goblin_config::exposure::ProfileName;
use goblin_config::{Log, mask};
use goblin_engine::app::App;
use goblin_engine::upstream::child::own_executable;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tracing::Level;

use crate::log::LogFlags;
use crate::{load, log, stdio};

/// How long the command waits for its own servers to list what they offer.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The flags that select a gateway.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EndpointArgs {
    /// Start the servers of this configuration instead of using a running gateway
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
    /// Use the gateway at this URL, or at unix:SOCKET, instead of the one that runs on this machine
    #[arg(long, value_name = "URL", value_parser = address::parse)]
    pub url: Option<String>,
    /// Read the token of the gateway at --url from this file (default: the variable GOBLIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
}

/// The gateway at the other end of the pipe.
pub(crate) enum Endpoint {
    Running(GatewayConnection),
    Own { app: Box<App>, profile: Option<ProfileName>, place: String },
}

/// The reason why no gateway is available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// All problems of the configuration.
    #[error("{0}")]
    Configuration(String),
    #[error(transparent)]
    Find(#[from] FindError),
    /// A problem with a flag or a token file.
    #[error("{0:#}")]
    Flags(anyhow::Error),
    #[error("{0:#}")]
    Other(anyhow::Error),
}

impl Endpoint {
    /// Finds or starts the gateway, and starts the log with its settings.
    pub(crate) async fn open(
        reach: &EndpointArgs,
        profile: Option<&ProfileName>,
        flags: &LogFlags,
    ) -> Result<Endpoint, EndpointError> {
        if let Some(file) = &reach.config {
            return Endpoint::of_configuration(file, profile, flags);
        }
        log::start(Level::WARN, &Log::default(), flags);
        Endpoint::to_running(reach, profile).await
    }

    /// Finds a gateway that already runs.
    pub(crate) async fn to_running(
        reach: &EndpointArgs,
        profile: Option<&ProfileName>,
    ) -> Result<Endpoint, EndpointError> {
        if let Some(url) = &reach.url {
            let token = stdio::token(reach.token_file.as_deref()).map_err(EndpointError::Flags)?;
            return gateway::to_url(url, token.as_ref(), profile).map(Endpoint::Running).map_err(EndpointError::Flags);
        }
        let own = load::find(None).ok().map(|found| found.identity());
        let record = runtime::find(own.as_ref()).await?;
        gateway::to_record(record, profile, |_| true).map(Endpoint::Running).map_err(EndpointError::Other)
    }

    /// Starts a gateway for this configuration within the command.
    fn of_configuration(
        file: &Path,
        profile: Option<&ProfileName>,
        flags: &LogFlags,
    ) -> Result<Endpoint, EndpointError> {
        let given = load::load(Some(file)).map_err(EndpointError::Configuration)?;
        stdio::check_profile(&given.config, profile).map_err(EndpointError::Configuration)?;
        log::start(Level::WARN, &given.config.log, flags);
        let place = given.identity.place();
        let exe = own_executable().map_err(|error| EndpointError::Other(error.into()))?;
        lineage::check_depth().map_err(EndpointError::Configuration)?;
        let lineage = Lineage::of_process(Some(&given.identity));
        let app = App::start_as(lineage, given.config, exe, ProxyEnvironment::from_process(), Arc::default());
        Ok(Endpoint::Own { app: Box::new(app), profile: profile.cloned(), place })
    }

    /// Returns the address of the gateway or the path of its configuration, for messages.
    pub(crate) fn place(&self) -> String {
        match self {
            Endpoint::Running(wire) => mask::url(&wire.url()),
            Endpoint::Own { place, .. } => place.clone(),
        }
    }

    /// Runs `work` as the client at one end of a pipe to the gateway. The first signal sets the receiver that `work`
    /// gets. The second one ends the command at once.
    pub(crate) async fn run_peer<T>(
        self,
        mut terminated: impl AsyncFnMut(),
        work: impl AsyncFnOnce(Peer, watch::Receiver<bool>) -> T,
    ) -> Result<T> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (stop, stopped) = watch::channel(false);
        let signals = async {
            terminated().await;
            stop.send_replace(true);
            terminated().await;
        };
        let mut stopped_early = stopped.clone();
        let worked = async {
            tokio::select! {
                () = self.settle() => {}
                _ = stopped_early.wait_for(|stopped| *stopped) => {}
            }
            tokio::join!(work(Peer::new(near), stopped), self.carry(far))
        };
        tokio::select! {
            (worked, carried) = worked => carried.map(|()| worked),
            () = signals => bail!("ended at once by a second signal"),
        }
    }

    /// Waits until the command's own servers have started or failed. Before that, their tools are not listed.
    async fn settle(&self) {
        let Endpoint::Own { app, .. } = self else { return };
        let backends = app.backends();
        let all = join_all(backends.iter().map(|backend| backend.settled()));
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, all).await;
    }

    /// Connects the pipe to the gateway until the command drops its end.
    pub(crate) async fn carry(self, far: DuplexStream) -> Result<()> {
        match self {
            Endpoint::Running(wire) => {
                gateway::carry(wire, far).await;
                Ok(())
            }
            Endpoint::Own { app, profile, .. } => {
                let (input, output) = tokio::io::split(far);
                app.serve_stdio(profile, input, output, async || std::future::pending().await).await
            }
        }
    }
}
