//! Reports changes of files to the gateway: a changed file as a resource update, a changed set of files as a list
//! change.
//!
//! Events of the system only indicate where to look. A report is the difference between the last seen and the current
//! state, so late, repeated or wrong events do no harm. After lost events the whole tree is checked. A look waits for
//! [`QUIET`] without events, at most for [`MAX_WAIT`]. An editor that saves by a rename thus causes one update.
//!
//! If the system cannot watch the tree, it is polled every [`POLL_EVERY`] from then on, and one event reports that. One
//! task owns all state and ends with the link. Disk access runs on a blocking thread, one look at a time. Each look is
//! followed by a rest of [`REST`] times its duration.

mod changes;
mod scan;
mod subscribed;
#[cfg_attr(target_os = "linux", path = "watch/inotify.rs")]
#[cfg_attr(not(target_os = "linux"), path = "watch/unwatched.rs")]
mod system;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use goblin_telemetry::{Event, worker};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::changes::{ChangedPaths, PathChange};
use self::scan::{ScanResult, TreeSnapshot};
use self::subscribed::FileSubscriptions;
use self::system::{ChangeHint, DirectoryWatch};
use crate::FilesState;
use crate::path::RelativePath;
use crate::tree::{StopFlag, TreeEntry};

const QUIET: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_millis(500);
const POLL_EVERY: Duration = Duration::from_secs(2);
/// The ratio of rest to look time, which limits the use of the processor.
const REST: u32 = 4;
/// The same ratio for polling, when no event indicates a change.
const POLL_REST: u32 = 20;

/// The handle of the watch task. Dropping it ends the task.
pub(crate) struct WatchTask(JoinHandle<()>);

impl WatchTask {
    pub(crate) fn start(served: Arc<FilesState>) -> WatchTask {
        let watcher = Watcher { served, system: None, seen: Arc::default(), changed: ChangedPaths::default() };
        WatchTask(worker::spawn(watcher.run()))
    }

    pub(crate) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for WatchTask {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state that requests and the watch task share.
#[derive(Default)]
pub(crate) struct WatchState {
    pub subscribed: FileSubscriptions,
    lists: Mutex<ListFingerprints>,
    /// Notified when there is a reason to check the whole tree.
    wakeup: Notify,
}

/// The fingerprints of the list: as the gateway has it, as the last look found it, and as it was last reported. The
/// last one is reset when the gateway fetches the list.
#[derive(Default)]
struct ListFingerprints {
    fetched: Option<u64>,
    seen: Option<u64>,
    notified: Option<u64>,
}

impl WatchState {
    /// Records the list that the gateway received. If the last look found another one, requests a look to find the
    /// current one.
    pub(crate) fn fetched(&self, fingerprint: u64) {
        let mut lists = self.lists.lock();
        lists.fetched = Some(fingerprint);
        lists.notified = None;
        if lists.seen != lists.fetched {
            self.wakeup.notify_one();
        }
    }

    /// Records the list that a look found. Returns whether the gateway must be notified.
    fn seen(&self, fingerprint: u64) -> bool {
        let mut lists = self.lists.lock();
        lists.seen = Some(fingerprint);
        let is_other = lists.fetched.is_some_and(|fetched| fetched != fingerprint);
        let is_new = is_other && lists.notified != lists.seen;
        lists.notified = if is_other { lists.seen } else { None };
        is_new
    }

    /// Adds a subscribed file and requests a look, which also watches the file's directory.
    pub(crate) fn subscribe(&self, path: RelativePath, spot: &TreeEntry) {
        if self.subscribed.insert(path, spot) {
            self.wakeup.notify_one();
        }
    }
}

struct Watcher {
    served: Arc<FilesState>,
    /// The system's watcher. `None` if the tree is polled.
    system: Option<DirectoryWatch>,
    seen: Arc<TreeSnapshot>,
    changed: ChangedPaths,
}

impl Watcher {
    async fn run(mut self) {
        match DirectoryWatch::open() {
            Ok(system) => self.system = Some(system),
            Err(error) => self.poll(&error),
        }
        self.changed.add_all(Instant::now());
        let mut rest_until = Instant::now();
        loop {
            self.wait(rest_until).await;
            let begin = Instant::now();
            self.scan().await;
            let (took, rest) = (begin.elapsed(), if self.system.is_some() { REST } else { POLL_REST });
            rest_until = Instant::now() + took * rest;
            if self.system.is_none() {
                self.changed.add_all(rest_until.max(Instant::now() + POLL_EVERY));
            }
        }
    }

    /// Waits until there is something to check and the rest after the last look is over.
    async fn wait(&mut self, rest_until: Instant) {
        loop {
            let due = self.changed.due().map(|due| due.max(rest_until));
            let Watcher { served, system, changed, .. } = self;
            let failed = tokio::select! {
                failed = read_hints(system.as_ref(), served, changed) => Some(failed),
                () = served.watch.wakeup.notified() => {
                    changed.add_all(Instant::now());
                    None
                }
                () = at(due) => return,
            };
            if let Some(Err(error)) = failed {
                self.poll(&error);
            }
        }
    }

    /// Runs one look on a blocking thread. Events during the look are kept for the next one.
    async fn scan(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let (served, seen) = (Arc::clone(&self.served), Arc::clone(&self.seen));
        let handle = self.system.as_ref().map(DirectoryWatch::handle);
        // The guard is dropped with this future, which stops the work.
        let guard = Arc::new(());
        let stop = StopFlag::new(&guard);
        let mut work = tokio::task::spawn_blocking(move || scan::scan(&served, &seen, changed, handle.as_ref(), &stop));
        let scanned = loop {
            let Watcher { served, system, changed, .. } = self;
            let failed = tokio::select! {
                scanned = &mut work => break scanned,
                failed = read_hints(system.as_ref(), served, changed) => failed,
            };
            if let Err(error) = failed {
                self.poll(&error);
            }
        };
        match scanned {
            Ok(scanned) => self.on_scanned(scanned),
            Err(_) => {
                self.served.host.emit(&Event::Panic { place: "files" });
                self.changed.add_all(Instant::now() + POLL_EVERY);
            }
        }
    }

    fn on_scanned(&mut self, scanned: ScanResult) {
        if let Some(seen) = scanned.seen {
            self.seen = Arc::new(seen);
        }
        match (scanned.watched, &mut self.system) {
            (Some(Ok(watched)), Some(system)) => {
                if system.adopt(watched) {
                    // Changes before the directory was watched caused no event, so look again.
                    self.changed.add_all(Instant::now());
                }
            }
            (Some(Err(error)), Some(_)) => self.poll(&error),
            (_, None) | (None, _) => {}
        }
    }

    /// Switches to polling and reports the reason.
    fn poll(&mut self, error: &io::Error) {
        self.system = None;
        self.changed.add_all(Instant::now());
        let host = &self.served.host;
        host.emit(&Event::FilesPolled { server: host.server(), reason: &error.to_string() });
    }
}

/// Waits for events and records them. Returns an error if the system's watcher failed.
async fn read_hints(
    system: Option<&DirectoryWatch>,
    served: &FilesState,
    changed: &mut ChangedPaths,
) -> io::Result<()> {
    let Some(system) = system else { return std::future::pending().await };
    system.read(|hint| note(served, changed, hint)).await
}

/// Records an event if it may concern a served file.
fn note(served: &FilesState, changed: &mut ChangedPaths, hint: ChangeHint<'_>) {
    let now = Instant::now();
    let Some((path, change)) = hint else { return changed.add_all(now) };
    let (tree, subscribed) = (&served.tree, &served.watch.subscribed);
    if tree.rule.is_rules(path) {
        return changed.add_all(now);
    }
    let Some(path) = path.strip_prefix(tree.root.path()).ok().and_then(RelativePath::from_plain) else { return };
    let is_wanted = change.named || subscribed.is_wanted(&path);
    if is_wanted && tree.rule.check_names(path.as_path()).is_ok() {
        changed.add(path, change, now);
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_list_is_told_once_and_again_when_what_was_fetched_is_old() {
        let shared = WatchState::default();
        let is_woken = || shared.wakeup.notified().now_or_never().is_some();
        assert!(!shared.seen(1), "it was never asked for");
        shared.fetched(1);
        assert!(!is_woken() && !shared.seen(1));
        assert!(shared.seen(2) && !shared.seen(2), "once, until it is fetched");
        assert!(shared.seen(3) && shared.seen(2), "each that is another");
        shared.fetched(1);
        assert!(is_woken() && shared.seen(2), "fetched before it changed");
        shared.fetched(2);
        assert!(!is_woken() && !shared.seen(2));
        assert!(shared.seen(1) && !shared.seen(2), "it is back as it was");
        shared.fetched(1);
        assert!(is_woken() && shared.seen(2), "fetched in between");
    }
}
