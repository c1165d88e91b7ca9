//! Reads the configuration again while the gateway runs: after its file or one of its secrets changed, and on SIGHUP. A gateway with a terminal
//! does not reload on SIGHUP, because the signal then means that the terminal was closed.
//!
//! The task checks the file once per second instead of using a file system watch. A watch misses a file that is
//! replaced by another, a file behind a symbolic link, and a file on a network disk.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use goblin_admin::api::Reloaded;
use goblin_client::runtime::PublishedRecord;
use goblin_config::Config;
use goblin_engine::app::operate::{ConfigSource, NewConfig};
use goblin_telemetry::{clean, worker};
use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::live_lines;
use crate::load::{self, ConfigLocation};
use crate::vault::UsedSecrets;

const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The published record of this gateway, or `None` if it could not be written.
pub(crate) type SharedRecord = Arc<Mutex<Option<PublishedRecord>>>;

/// The output of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Stdin or stdout is a terminal. Closing it stops the gateway.
    Terminal {
        /// Whether the terminal shows a line for each server, and for each reload.
        has_lines: bool,
    },
    Unattended,
}

/// Applies the flags of the command line to a configuration.
pub(crate) type ConfigOverride = Arc<dyn Fn(&mut Config) + Send + Sync>;

/// Starts to follow the configuration file. Returns the source for reloads. Dropping the second value stops the task.
pub(crate) fn follow(
    flag: Option<&Path>,
    from: &ConfigLocation,
    secrets: UsedSecrets,
    apply_flags: ConfigOverride,
    record: SharedRecord,
    output: Output,
) -> Result<(ConfigSource, FollowTask)> {
    let changed = Arc::<Notify>::default();
    let flag = flag.map(Path::to_owned);
    let used = secrets.clone();
    let read = Arc::new(move || {
        let newer = UsedSecrets::default();
        let read = read(flag.as_deref(), &newer, &apply_flags, &record, output);
        used.replace(&newer);
        read
    });
    let hangup = match output {
        Output::Unattended => Some(signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?),
        Output::Terminal { .. } => None,
    };
    let path = match from {
        ConfigLocation::File(path) => Some(path.clone()),
        ConfigLocation::Directory(_) => None,
    };
    let following = worker::spawn(watch(path, secrets, hangup, Arc::clone(&changed)));
    Ok((ConfigSource { read, changed }, FollowTask(following)))
}

/// A task that follows a file. Dropping it aborts the task.
pub(crate) struct FollowTask(JoinHandle<()>);

impl Drop for FollowTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn read(
    flag: Option<&Path>,
    secrets: &UsedSecrets,
    apply_flags: &ConfigOverride,
    record: &SharedRecord,
    output: Output,
) -> Result<NewConfig, String> {
    let mut given =
        load::find(flag).and_then(|found| found.parse_with(secrets.clone())).map_err(|error| error.to_string())?;
    apply_flags(&mut given.config);
    let record = Arc::clone(record);
    let warnings = given.warnings.iter().map(ToString::to_string).collect();
    let (config, identity, variables) = (given.config, given.identity, given.variables);
    let on_applied = Box::new(move |reloaded: &Reloaded| {
        if let Output::Terminal { has_lines: true } = output {
            live_lines::print(&format!("  reloaded: {}\n", clean(&reloaded.summary())));
        }
        let mut record = record.lock();
        // A failure is harmless: a bridge considers this gateway outdated and starts its own.
        let _ = record.as_mut().map(|published| published.replace(identity, &variables));
    });
    Ok(NewConfig { config, warnings, on_applied })
}

/// The metadata that reveals a changed file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    node: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileStamp {
    /// Returns `None` if the file does not exist.
    fn at(path: &Path) -> Option<FileStamp> {
        let found = std::fs::metadata(path).ok()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Some(FileStamp { device: found.dev(), node: found.ino(), size: found.size(), modified })
    }
}

/// Waits for a signal. Never returns if there is no signal to wait for.
pub(crate) async fn next(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Notifies `changed` on SIGHUP, after a secret changed, and after the file changed and then stayed the same for one more
/// check. A file that is read because of a signal causes no second notification.
async fn watch(path: Option<PathBuf>, secrets: UsedSecrets, mut hangup: Option<Signal>, changed: Arc<Notify>) {
    let mut reported = path.as_deref().and_then(FileStamp::at);
    let mut before = reported;
    // The versions of the secrets that the last notification was for.
    let mut reported_secrets = None;
    loop {
        let is_signalled = tokio::select! {
            signal = next(&mut hangup) => match signal {
                Some(()) => true,
                None => return,
            },
            () = tokio::time::sleep(POLL_INTERVAL) => false,
        };
        // A disk that does not respond must block only this task. The stamp is older than the text that is read after
        // the notification, so no later change is missed.
        let (path, secrets) = (path.clone(), secrets.clone());
        let examine = move || (path.as_deref().and_then(FileStamp::at), secrets.changed());
        let (now, changed_secrets) = tokio::task::spawn_blocking(examine).await.unwrap_or((before, None));
        let is_secret_changed = changed_secrets.is_some() && changed_secrets != reported_secrets;
        if is_signalled || is_secret_changed || now != reported && now == before {
            reported = now;
            changed.notify_one();
        }
        reported_secrets = changed_secrets;
        before = now;
    }
}
