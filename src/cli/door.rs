//! The gateway that a command speaks to: one that runs already, or one of its own.
//!
//! The command is a client like any other, over a pipe in memory (see [`crate::cli::peer`]). Behind the pipe is either the
//! bridge that `goblin stdio` uses, so that cut streams go on and messages are framed once and for all, or an [`App`] that
//! listens nowhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use futures_util::future::join_all;
use tokio::io::DuplexStream;

use crate::app::App;
use crate::backend::child::own_executable;
use goblin_client::connect::ProxyEnvironment;
use crate::cli::bridge::wire::{Target, Wire};
use crate::cli::load::environment;
use crate::cli::log::LogFlags;
use crate::cli::runtime::identity::Identity;
use crate::cli::runtime::{FindError, Places, Record};
use crate::cli::{address, bridge, load, log, runtime, stdio};
use goblin_config::exposure::ProfileName;
use goblin_config::secret::Secret;
use goblin_config::{Log, mask};

/// What may be between a command and the gateway behind the pipe; beyond it whoever writes waits.
pub const PIPE_BYTES: usize = 64 * 1024;

/// How long servers of our own may take to list what they offer.
const SETTLING_PATIENCE: Duration = Duration::from_secs(120);

/// Which gateway is meant.
#[derive(Clone, Debug, Default, Args)]
pub struct Reach {
    /// Start the servers of this configuration instead of asking a gateway that runs
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
    /// Ask the gateway at this URL, or at unix:SOCKET, instead of the one that runs on this machine
    #[arg(long, value_name = "URL", value_parser = address::parse)]
    pub url: Option<String>,
    /// Read the token of the gateway at --url from this file (otherwise from the variable GOBLIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
}

/// What is behind the pipe.
pub enum Door {
    Running(Wire),
    Own { app: Box<App>, profile: Option<ProfileName>, place: String },
}

/// Why there is no gateway to speak to.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// All that is wrong with the configuration.
    #[error("{0}")]
    Configuration(String),
    #[error(transparent)]
    Find(#[from] FindError),
    /// Of what was given by flags.
    #[error("{0:#}")]
    Flags(anyhow::Error),
    #[error("{0:#}")]
    Other(anyhow::Error),
}

impl Door {
    /// Finds the gateway and starts the log as it fits.
    pub async fn open(reach: &Reach, profile: Option<&ProfileName>, flags: &LogFlags) -> Result<Door, Closed> {
        if let Some(file) = &reach.config {
            return Door::of_configuration(file, profile, flags);
        }
        log::start_below_banner(&Log::default(), flags);
        Door::to_running(reach, profile).await
    }

    /// The gateway that runs already.
    pub async fn to_running(reach: &Reach, profile: Option<&ProfileName>) -> Result<Door, Closed> {
        if let Some(url) = &reach.url {
            let token = stdio::token(reach.token_file.as_deref()).map_err(Closed::Flags)?;
            return Door::to_url(url, token.as_ref(), profile).map_err(Closed::Flags);
        }
        let own = load::find(None).ok().map(|found| found.identity());
        let record = runtime::find(own.as_ref()).await?;
        Door::to_record(record, profile).map_err(Closed::Other)
    }

    pub fn to_url(url: &str, token: Option<&Secret>, profile: Option<&ProfileName>) -> Result<Door> {
        let target = Target::new(&stdio::endpoint(url, profile), token, &ProxyEnvironment::from_process())?;
        Ok(Door::Running(Wire::to(target)))
    }

    /// The gateway of this record, and the one that takes its place.
    pub fn to_record(record: Record, profile: Option<&ProfileName>) -> Result<Door> {
        let identity = record.identity.clone();
        let target = target_of(record, profile)?;
        let profile = profile.cloned();
        Ok(Door::Running(Wire::to_successors(target, move || successor(&identity, profile.as_ref()))))
    }

    /// A gateway of its own.
    fn of_configuration(file: &Path, profile: Option<&ProfileName>, flags: &LogFlags) -> Result<Door, Closed> {
        let given = load::load(Some(file)).map_err(Closed::Configuration)?;
        stdio::check_profile(&given.config, profile).map_err(Closed::Configuration)?;
        log::start_below_banner(&given.config.log, flags);
        let place = given.identity.place();
        let exe = own_executable().map_err(|error| Closed::Other(error.into()))?;
        let app = App::start(given.config, exe, ProxyEnvironment::from_process(), Arc::default());
        Ok(Door::Own { app: Box::new(app), profile: profile.cloned(), place })
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        match self {
            Door::Running(wire) => mask::url(&wire.url()),
            Door::Own { place, .. } => place.clone(),
        }
    }

    /// Waits for servers that are starting: what they offer is not there before.
    pub async fn settle(&self) {
        let Door::Own { app, .. } = self else { return };
        let backends = app.backends();
        let all = join_all(backends.iter().map(|backend| backend.settled()));
        let _ = tokio::time::timeout(SETTLING_PATIENCE, all).await;
    }

    /// Carries what is said over the pipe until its other end is dropped.
    pub async fn carry(self, far: DuplexStream) -> Result<()> {
        let (input, output) = tokio::io::split(far);
        let never = async || std::future::pending().await;
        match self {
            Door::Running(wire) => {
                bridge::run(wire, input, output, never).await;
                Ok(())
            }
            Door::Own { app, profile, .. } => app.serve_stdio(profile, input, output, never).await,
        }
    }
}

/// The gateway that was started in place of the one that ended, whatever its configuration says by now.
fn successor(own: &Identity, profile: Option<&ProfileName>) -> Option<Target> {
    let is_successor = |record: &Record| record.identity.is_same_place(own);
    let record = Places::of(&environment).running().into_iter().find(is_successor)?;
    target_of(record, profile).ok()
}

fn target_of(record: Record, profile: Option<&ProfileName>) -> Result<Target> {
    let token = record.token().with_context(|| format!("cannot read the token of the gateway at {}", record.url))?;
    let url = stdio::endpoint(&record.address(), profile);
    Target::of_record(&url, record, token.as_ref(), &ProxyEnvironment::from_process())
}
