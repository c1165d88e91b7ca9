//! Tells the gateway when files change: a file as an update of its resource, the set of files as a change of the list.
//!
//! Levels, not events. What the system says is a hint where to look; what is told is the difference between what was seen
//! and what is. So hints may be late, doubled, wrong or lost in a storm (then everything is looked at), and nothing is told
//! but what the tree serves. A look waits until it has been quiet for [`QUIET`], so that an editor's save by a second file
//! and a rename is one update; but no longer than [`LONGEST_WAIT`].
//!
//! Where the system does not watch for us, everything is looked at every [`POLL_EVERY`], for good and told once.
//!
//! One task owns it all and ends with the link. What touches the disk runs on a blocking thread, one look at a time, and
//! rests [`REST`] times as long as it took.

mod look;
mod subscribed;
#[cfg_attr(target_os = "linux", path = "watch/inotify.rs")]
#[cfg_attr(not(target_os = "linux"), path = "watch/unwatched.rs")]
mod system;
mod touched;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::look::{Looked, Seen};
use self::subscribed::Subscribed;
use self::system::{Hint, System};
use self::touched::{Touch, Touched};
use crate::path::Relative;
use crate::tree::{Spot, Stop};
use crate::{Served, StopOnDrop};
use goblin_telemetry::Event;
use goblin_telemetry::worker;

const QUIET: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
const POLL_EVERY: Duration = Duration::from_secs(2);
/// Looking takes at most one part of so many of a processor's time.
const REST: u32 = 4;
/// The same where nothing says that there is anything new.
const POLL_REST: u32 = 20;

/// Ends when this is dropped.
pub struct Watch(JoinHandle<()>);

impl Watch {
    pub fn start(served: Arc<Served>) -> Watch {
        let watcher = Watcher { served, system: None, seen: Arc::default(), touched: Touched::default() };
        Watch(worker::spawn(watcher.run()))
    }

    pub fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What requests and the watch know of each other.
#[derive(Default)]
pub struct Shared {
    pub subscribed: Subscribed,
    lists: Mutex<Lists>,
    /// Rung when there is a reason to look at everything.
    bell: Notify,
}

/// The list by its fingerprints: as the gateway has it, as it was seen last, and as it was when the gateway was told to
/// fetch it, until it does.
#[derive(Default)]
struct Lists {
    given: Option<u64>,
    seen: Option<u64>,
    told: Option<u64>,
}

impl Shared {
    /// The gateway was given this list. Where a look has seen another, one of the two is old: a further look tells.
    pub fn given(&self, fingerprint: u64) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.given = Some(fingerprint);
        lists.told = None;
        if lists.seen != lists.given {
            self.bell.notify_one();
        }
    }

    /// A look has seen this list; tells whether the gateway is to be told.
    fn seen(&self, fingerprint: u64) -> bool {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.seen = Some(fingerprint);
        let is_other = lists.given.is_some_and(|given| given != fingerprint);
        let is_news = is_other && lists.told != lists.seen;
        lists.told = if is_other { lists.seen } else { None };
        is_news
    }

    /// Somebody wants to hear of a file. Whether its directory is watched is seen by a look.
    pub fn subscribe(&self, path: Relative, spot: &Spot) {
        if self.subscribed.insert(path, spot) {
            self.bell.notify_one();
        }
    }
}

struct Watcher {
    served: Arc<Served>,
    /// Nothing where we have to look ourselves.
    system: Option<System>,
    seen: Arc<Seen>,
    touched: Touched,
}

impl Watcher {
    async fn run(mut self) {
        match System::open() {
            Ok(system) => self.system = Some(system),
            Err(error) => self.poll(&error),
        }
        self.touched.add_all(Instant::now());
        let mut rested = Instant::now();
        loop {
            self.wait(rested).await;
            let begin = Instant::now();
            self.look().await;
            let (took, rest) = (begin.elapsed(), if self.system.is_some() { REST } else { POLL_REST });
            rested = Instant::now() + took * rest;
            if self.system.is_none() {
                self.touched.add_all(rested.max(Instant::now() + POLL_EVERY));
            }
        }
    }

    /// Waits until there is something to look at, and it is time.
    async fn wait(&mut self, rested: Instant) {
        loop {
            let due = self.touched.due().map(|due| due.max(rested));
            let Watcher { served, system, touched, .. } = self;
            let failed = tokio::select! {
                failed = hear(system.as_ref(), served, touched) => Some(failed),
                () = served.watch.bell.notified() => {
                    touched.add_all(Instant::now());
                    None
                }
                () = at(due) => return,
            };
            if let Some(Err(error)) = failed {
                self.poll(&error);
            }
        }
    }

    /// One look, on a blocking thread. What the system says meanwhile is for the next.
    async fn look(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        let (served, seen) = (Arc::clone(&self.served), Arc::clone(&self.seen));
        let handle = self.system.as_ref().map(System::handle);
        let stop = StopOnDrop(Stop::default());
        let stopped = stop.0.clone();
        let mut work =
            tokio::task::spawn_blocking(move || look::look(&served, &seen, touched, handle.as_ref(), &stopped));
        let looked = loop {
            let Watcher { served, system, touched, .. } = self;
            let failed = tokio::select! {
                looked = &mut work => break looked,
                failed = hear(system.as_ref(), served, touched) => failed,
            };
            if let Err(error) = failed {
                self.poll(&error);
            }
        };
        match looked {
            Ok(looked) => self.on_looked(looked),
            Err(_) => {
                self.served.host.emit(&Event::Panic { place: "files" });
                self.touched.add_all(Instant::now() + POLL_EVERY);
            }
        }
    }

    fn on_looked(&mut self, looked: Looked) {
        if let Some(seen) = looked.seen {
            self.seen = Arc::new(seen);
        }
        match (looked.watched, &mut self.system) {
            (Some(Ok(watched)), Some(system)) => {
                if system.adopt(watched) {
                    // Before it was watched, something may have happened there.
                    self.touched.add_all(Instant::now());
                }
            }
            (Some(Err(error)), Some(_)) => self.poll(&error),
            (_, None) | (None, _) => {}
        }
    }

    /// From now on we look ourselves.
    fn poll(&mut self, error: &io::Error) {
        self.system = None;
        self.touched.add_all(Instant::now());
        let host = &self.served.host;
        host.emit(&Event::FilesPolled { server: host.server(), reason: &error.to_string() });
    }
}

/// Waits for what the system says, and notes it. An error means that it says nothing any more.
async fn hear(system: Option<&System>, served: &Served, touched: &mut Touched) -> io::Result<()> {
    let Some(system) = system else { return std::future::pending().await };
    system.read(|hint| note(served, touched, hint)).await
}

/// Notes a hint, where it may be about something that is served.
fn note(served: &Served, touched: &mut Touched, hint: Hint<'_>) {
    let now = Instant::now();
    let Some((path, touch)) = hint else { return touched.add_all(now) };
    let (tree, subscribed) = (&served.tree, &served.watch.subscribed);
    if tree.rule.is_rules(path) {
        return touched.add_all(now);
    }
    let Some(path) = path.strip_prefix(tree.root.path()).ok().and_then(Relative::from_plain) else { return };
    let is_wanted = touch.named || subscribed.is_wanted(&path);
    if is_wanted && tree.rule.judge_names(path.as_path()).is_ok() {
        touched.add(path, touch, now);
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
        let shared = Shared::default();
        let is_rung = || shared.bell.notified().now_or_never().is_some();
        assert!(!shared.seen(1), "it was never asked for");
        shared.given(1);
        assert!(!is_rung() && !shared.seen(1));
        assert!(shared.seen(2) && !shared.seen(2), "once, until it is fetched");
        assert!(shared.seen(3) && shared.seen(2), "each that is another");
        shared.given(1);
        assert!(is_rung() && shared.seen(2), "fetched before it changed");
        shared.given(2);
        assert!(!is_rung() && !shared.seen(2));
        assert!(shared.seen(1) && !shared.seen(2), "it is back as it was");
        shared.given(1);
        assert!(is_rung() && shared.seen(2), "fetched in between");
    }
}
