//! Spawns tasks, watches the worker threads, and moves long computations off them.
//!
//! A worker thread that computes for long delays every task behind it. [`spawn`] wraps each task, so the [`Activity`]
//! of a thread shows the task it polls. [`Watchdog`] is a separate thread that samples these activities. It reports a
//! poll that uses more than [`BUSY_AFTER`] of processor time, while the poll still runs. A poll costs two stores. The
//! watchdog reads a clock only if a sample finds the thread inside a poll.
//!
//! The watchdog compares processor time, because a loaded machine may suspend a thread for longer than that. It uses
//! the wall clock on systems without processor time per thread.
//!
//! Work with a size chosen by a client or a backend must leave the worker threads. [`offload`] moves work for backends
//! and operators. [`compute`] moves work for clients, of which only [`MAX_COMPUTATIONS`] run at once.

use std::cell::OnceCell;
use std::panic::{Location, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use pin_project_lite::pin_project;
use tokio::sync::Semaphore;

use crate::{Event, Observe};

/// The processor time above which a poll is reported. Unoptimized builds compute several times slower.
pub(crate) const BUSY_AFTER: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 100 });
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// The number of computations that run at once. A computation cannot be stopped, so further ones wait. The system's
/// scheduler shares the processors between them and the worker threads.
pub(crate) const MAX_COMPUTATIONS: usize = 4;
static COMPUTATIONS: Semaphore = Semaphore::const_new(MAX_COMPUTATIONS);

/// The low bit of [`Activity::poll`], set while the thread is inside a poll.
const POLLING: u64 = 1;
const SITE_BITS: u32 = 16;
const NEXT_POLL: u64 = 1 << (SITE_BITS + 1);

/// Spawns a task and lets the watchdog observe its polls.
#[track_caller]
pub fn spawn<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(watched(future))
}

/// Wraps a task for a `JoinSet`, which spawns tasks itself.
#[track_caller]
pub fn watched<F: Future>(future: F) -> MonitoredTask<F> {
    MonitoredTask { future, site: site(Location::caller()) }
}

/// Runs `work` on a thread outside of the worker threads. Returns `None` if the runtime shuts down before it starts. A
/// panic of `work` resumes here.
///
/// Dropping the future does not stop the work, so `work` must not depend on its caller.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => Some(value),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => None,
        },
    }
}

/// Runs work of a client like [`offload`], but waits while [`MAX_COMPUTATIONS`] others run. A caller with a deadline
/// drops the future. Work that has started keeps its permit until it ends.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let permit = COMPUTATIONS.acquire().await.ok()?;
    offload(move || {
        let _permit = permit;
        work()
    })
    .await
}

pin_project! {
    /// A task with polls that the watchdog observes.
    pub struct MonitoredTask<F> {
        #[pin]
        future: F,
        site: u16,
    }
}

impl<F: Future> Future for MonitoredTask<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _polling = Polling::enter(*this.site);
        this.future.poll(context)
    }
}

/// Marks this thread as polling until dropped, even if the task panics.
struct Polling;

impl Polling {
    fn enter(site: u16) -> Polling {
        with_activity(|activity| {
            let last = activity.poll.load(Ordering::Relaxed);
            let next = (last | (NEXT_POLL - 1)).wrapping_add(1) | u64::from(site) << 1 | POLLING;
            activity.poll.store(next, Ordering::Relaxed);
        });
        Polling
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        with_activity(|activity| {
            activity.poll.store(activity.poll.load(Ordering::Relaxed) & !POLLING, Ordering::Relaxed);
        });
    }
}

/// The current activity of a thread. The thread writes it, and the watchdog reads it.
struct Activity {
    /// The number of the poll, the site that spawned its task, and [`POLLING`].
    poll: AtomicU64,
    clock: ThreadClock,
}

static WATCHED: RwLock<Watched> = RwLock::new(Watched { activities: Vec::new(), sites: Vec::new() });

struct Watched {
    activities: Vec<Weak<Activity>>,
    /// The source locations that spawn tasks. A site is an index into this list.
    sites: Vec<&'static Location<'static>>,
}

fn with_activity(action: impl FnOnce(&Activity)) {
    thread_local! {
        static ACTIVITY: OnceCell<Arc<Activity>> = const { OnceCell::new() };
    }
    // A task may be dropped during the thread's exit, when the thread-local is gone. That poll needs no record.
    let _ = ACTIVITY.try_with(|activity| {
        action(activity.get_or_init(|| {
            let activity = Arc::new(Activity { poll: AtomicU64::new(0), clock: ThreadClock::of_this_thread() });
            let activities = &mut WATCHED.write().activities;
            activities.retain(|activity| activity.strong_count() > 0);
            activities.push(Arc::downgrade(&activity));
            activity
        }));
    });
}

fn site(location: &'static Location<'static>) -> u16 {
    let find = |sites: &[&Location<'_>]| sites.iter().position(|known| *known == location);
    let known = find(&WATCHED.read().sites);
    let index = known.unwrap_or_else(|| {
        let sites = &mut WATCHED.write().sites;
        find(sites).unwrap_or_else(|| {
            sites.push(location);
            sites.len() - 1
        })
    });
    u16::try_from(index).unwrap_or(u16::MAX)
}

/// The processor time of one thread.
struct ThreadClock {
    /// A system file that starts with the thread's processor time in nanoseconds.
    path: String,
    begin: Instant,
}

impl ThreadClock {
    fn of_this_thread() -> ThreadClock {
        #[cfg(target_os = "linux")]
        let path = format!("/proc/self/task/{}/schedstat", rustix::thread::gettid().as_raw_nonzero());
        #[cfg(not(target_os = "linux"))]
        let path = String::new();
        ThreadClock { path, begin: Instant::now() }
    }

    fn now(&self) -> Duration {
        let text = std::fs::read_to_string(&self.path).ok();
        let nanoseconds = text.as_deref().and_then(|text| text.split(' ').next()?.parse().ok());
        nanoseconds.map_or_else(|| self.begin.elapsed(), Duration::from_nanos)
    }
}

/// A thread that samples the worker threads until this is dropped.
pub struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watchdog. Returns `None` if the system cannot start another thread. The gateway works without a
    /// watchdog.
    pub fn start(observe: Arc<Observe>) -> Option<Watchdog> {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("goblin-watchdog".to_owned()).spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(SAMPLE_INTERVAL);
                sample(&mut samples, |place, busy| observe.emit(&Event::WorkerBusy { place, busy }));
            }
        });
        Some(Watchdog { stop, thread: Some(thread.ok()?) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A poll that a sample found running.
struct Sample {
    activity: Arc<Activity>,
    poll: u64,
    /// The processor time of the thread when the poll was first seen.
    begin: Duration,
    reported: bool,
}

/// Compares the threads with the previous samples. Reports each long poll once.
fn sample(samples: &mut Vec<Sample>, mut report: impl FnMut(&str, Duration)) {
    let is_current = |sample: &Sample| sample.activity.poll.load(Ordering::Relaxed) == sample.poll;
    samples.retain(is_current);
    let activities: Vec<_> = WATCHED.read().activities.iter().filter_map(Weak::upgrade).collect();
    for activity in activities {
        let poll = activity.poll.load(Ordering::Relaxed);
        if poll & POLLING == 0 {
            continue;
        }
        let now = activity.clock.now();
        let Some(sample) = samples.iter_mut().find(|sample| Arc::ptr_eq(&sample.activity, &activity)) else {
            samples.push(Sample { activity, poll, begin: now, reported: false });
            continue;
        };
        let busy = now.saturating_sub(sample.begin);
        // The poll may have ended while the clock was read. The time would then cover several polls.
        if busy >= BUSY_AFTER && !sample.reported && is_current(sample) {
            sample.reported = true;
            report(&source_location(poll), busy);
        }
    }
}

/// Returns the source location that spawned the task of this poll.
fn source_location(poll: u64) -> String {
    let index = usize::try_from(poll >> 1 & ((1 << SITE_BITS) - 1)).unwrap_or(usize::MAX);
    let sites = &WATCHED.read().sites;
    sites.get(index).map_or_else(|| "unknown".to_owned(), |site| format!("{}:{}", site.file(), site.line()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes until the thread has used `duration` of processor time.
    fn spin(duration: Duration) {
        let clock = ThreadClock::of_this_thread();
        let begin = clock.now();
        while clock.now() - begin < duration {
            std::hint::spin_loop();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn hard4_a_long_poll_is_reported_once_with_its_place() {
        let observe = Arc::<Observe>::default();
        let watchdog = Watchdog::start(Arc::clone(&observe)).expect("a thread");
        let busy = || observe.counts().into_iter().find(|(kind, _)| *kind == "worker_busy").map(|(_, count)| count);
        spawn(async {
            spin(BUSY_AFTER * 3);
            tokio::task::yield_now().await;
        })
        .await
        .expect("no panic");
        assert_eq!(busy(), Some(1));
        spawn(async {
            for _ in 0..100 {
                spin(BUSY_AFTER / 50);
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("no panic");
        assert_eq!(busy(), Some(1), "many short polls are no long one");
        drop(watchdog);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn hard4_computations_are_bounded_and_keep_their_place_without_a_waiting_caller() {
        let (started, mut start_signals) = tokio::sync::mpsc::channel(16);
        let release = Arc::new(std::sync::Barrier::new(MAX_COMPUTATIONS + 1));
        let mut waiting = Vec::new();
        for _ in 0..MAX_COMPUTATIONS {
            let (started, release) = (started.clone(), Arc::clone(&release));
            waiting.push(tokio::spawn(compute(move || {
                started.blocking_send(()).expect("the test waits");
                release.wait();
            })));
        }
        for _ in 0..MAX_COMPUTATIONS {
            start_signals.recv().await.expect("a computation starts");
        }
        // The callers leave, and their work continues.
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        let late = tokio::time::timeout(Duration::from_millis(50), compute(|| ())).await;
        assert!(late.is_err(), "no permit is free while the work runs");
        tokio::task::spawn_blocking(move || release.wait()).await.expect("no panic");
        assert_eq!(compute(|| 7).await, Some(7));
    }

    #[test]
    fn a_poll_names_the_place_of_its_spawn() {
        let watched = watched(async {});
        assert!(source_location(u64::from(watched.site) << 1 | POLLING).contains("src/worker.rs:"));
    }

    #[tokio::test]
    async fn a_panicking_task_leaves_its_thread_idle() {
        let ended = spawn(async { panic!("on purpose") }).await;
        assert!(ended.is_err());
        with_activity(|activity| assert_eq!(activity.poll.load(Ordering::Relaxed) & POLLING, 0));
    }
}
