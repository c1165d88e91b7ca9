//! Keeps the last listing of each server in a file, for the first lists after the next start.
//!
//! The name of a file is a keyed hash of the server's connection, so that no secret can be guessed from it. A file is
//! parsed like a listing from the server, with the same limits, and starts with a keyed hash of its content. Any other
//! file is ignored, and the next listing replaces it. Servers with a connection per client, servers of type `files` and
//! gateways have no file.
//!
//! One task writes all files, the newest listing of a server at most once per [`WRITE_INTERVAL`]. At most one thread
//! waits for the disk, so a disk that hangs delays nothing else.

mod directory;
mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{constant_time, hmac};
use bytes::Bytes;
use goblin_catalog::listing::Listing;
use goblin_config::{Server, Transport};
use goblin_oauth::ServerLogin;
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::via::Via;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::upstream::listing_cache::directory::{Directory, ReadError, hex};

/// The longest delay of a start by a slow disk.
const LOAD_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest time between two writes of one file, and the pause after a failed write.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// The longest delay of an orderly stop by a slow disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The cached listings of all servers.
pub(crate) struct ListingCache {
    directory: Arc<Directory>,
    /// Held by the thread that accesses the directory.
    disk: Arc<Semaphore>,
    queue: Mutex<WriteQueue>,
    /// Notified when the queue changed.
    queued: Notify,
    /// Notified when a change was applied.
    applied: Notify,
}

/// The changes of files that are not applied yet. Each server has at most one, so that the newest listing wins.
#[derive(Default)]
struct WriteQueue {
    changes: HashMap<Arc<[u8]>, FileChange>,
    /// The times of the last writes, by the identity of the server.
    written: HashMap<Arc<[u8]>, Instant>,
    is_writing: bool,
    /// Whether the gateway stops. All changes are then due, and a failed one is not repeated.
    is_stopping: bool,
}

/// A change of one file.
struct FileChange {
    cached: Arc<CachedListing>,
    /// The listing to write. `None` removes the file.
    listing: Option<Arc<Listing>>,
    due: Instant,
}

/// The cached listing of one server.
pub(crate) struct CachedListing {
    cache: Arc<ListingCache>,
    server: String,
    observe: Arc<Observe>,
    /// The server's connection as bytes, with its secrets.
    identity: Arc<[u8]>,
    is_http: bool,
    state: Mutex<CachedState>,
    /// The login at the server, whose account the listing may depend on.
    login: Option<Arc<ServerLogin>>,
}

#[derive(Default)]
struct CachedState {
    /// The listing that is in the file or in the queue.
    stored: Option<Arc<Listing>>,
    /// Whether no listing of this server may be stored.
    is_forbidden: bool,
}

impl ListingCache {
    /// Returns the cache in the user's cache directory. Returns `None` if no variable names that directory.
    pub(crate) fn of(environment: impl Fn(&str) -> Option<String>) -> Option<ListingCache> {
        let set = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        let directory = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(usual)))?;
        Some(ListingCache::at(directory.join("goblin/listings")))
    }

    fn at(directory: PathBuf) -> ListingCache {
        ListingCache {
            directory: Arc::new(Directory::new(directory)),
            disk: Arc::new(Semaphore::new(1)),
            queue: Mutex::default(),
            queued: Notify::new(),
            applied: Notify::new(),
        }
    }

    /// Writes and removes files. Never returns.
    pub(crate) async fn run(&self) {
        loop {
            match self.next_change() {
                Ok(change) => self.apply(change).await,
                Err(due) => tokio::select! {
                    () = self.queued.notified() => {}
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                },
            }
        }
    }

    /// Applies the changes that wait for their time. Called at an orderly stop, after the last listing.
    pub(crate) async fn flush(&self) {
        self.queue.lock().is_stopping = true;
        self.queued.notify_one();
        let flushed = async {
            while !self.is_idle() {
                self.applied.notified().await;
            }
        };
        // A cache that is not up to date is harmless.
        let _ = timeout(FLUSH_TIMEOUT, flushed).await;
    }

    fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.changes.is_empty() && !queue.is_writing
    }

    /// Queues a change, in place of an earlier one of the same file. Only a write waits for the interval.
    fn enqueue(&self, cached: &Arc<CachedListing>, listing: Option<Arc<Listing>>) {
        let mut queue = self.queue.lock();
        let last = queue.written.get(&cached.identity).filter(|_| listing.is_some());
        let due = last.map_or_else(Instant::now, |last| *last + WRITE_INTERVAL);
        let change = FileChange { cached: Arc::clone(cached), listing, due };
        let replaced = queue.changes.insert(Arc::clone(&cached.identity), change);
        drop(queue);
        // Freeing a long listing takes time, so this happens after the lock is released.
        drop(replaced);
        self.queued.notify_one();
    }

    /// Removes and returns the change that is due. If none is due, returns the time of the next one as an error.
    fn next_change(&self) -> Result<FileChange, Option<Instant>> {
        let (mut queue, now) = (self.queue.lock(), Instant::now());
        queue.written.retain(|_, written| *written + WRITE_INTERVAL > now);
        let first = queue.changes.iter().min_by_key(|(_, change)| change.due);
        let (identity, due) = first.map(|(identity, change)| (Arc::clone(identity), change.due)).ok_or(None)?;
        if due > now && !queue.is_stopping {
            return Err(Some(due));
        }
        queue.is_writing = true;
        queue.changes.remove(&identity).ok_or(None)
    }

    async fn apply(&self, change: FileChange) {
        let FileChange { cached, listing, .. } = &change;
        let (writer, content) = (Arc::clone(cached), listing.clone());
        let applied = self.on_disk(move |directory| match content {
            Some(listing) => writer.write(directory, &listing),
            None => directory.remove(&writer.name(directory)?),
        });
        let applied = applied.await;
        let mut queue = self.queue.lock();
        queue.is_writing = false;
        match applied {
            Some(Err(error)) => {
                cached.report(&error.to_string());
                let is_running = Arc::strong_count(cached) > 1;
                if is_running && !queue.is_stopping {
                    let identity = Arc::clone(&cached.identity);
                    let due = Instant::now() + WRITE_INTERVAL;
                    queue.changes.entry(identity).or_insert(FileChange { due, ..change });
                }
            }
            Some(Ok(())) => drop(queue.written.insert(Arc::clone(&cached.identity), Instant::now())),
            // The runtime shuts down.
            None => {}
        }
        drop(queue);
        self.applied.notify_one();
    }

    /// Runs `work` on a thread of its own, after the earlier accesses to the directory. Returns `None` if the runtime
    /// shuts down.
    async fn on_disk<T: Send + 'static>(&self, work: impl FnOnce(&Directory) -> T + Send + 'static) -> Option<T> {
        let permit = Arc::clone(&self.disk).acquire_owned().await.ok()?;
        let directory = Arc::clone(&self.directory);
        // The work keeps the permit, even if the caller stops waiting.
        let work = move || {
            let _permit = permit;
            work(&directory)
        };
        worker::offload(work).await
    }
}

impl CachedListing {
    /// Returns `None` if the listing of this server is not cached.
    pub(crate) fn new(
        cache: &Arc<ListingCache>,
        server: &str,
        config: &Server,
        login: Option<Arc<ServerLogin>>,
        observe: &Arc<Observe>,
    ) -> Option<Arc<CachedListing>> {
        Some(Arc::new(CachedListing {
            login,
            cache: Arc::clone(cache),
            server: server.to_owned(),
            observe: Arc::clone(observe),
            identity: format::identity(server, config, std::env::vars_os())?.into(),
            is_http: matches!(config.transport, Transport::Http { .. }),
            state: Mutex::default(),
        }))
    }

    /// Reads the listing of an earlier run. Returns `None` if there is none that can be used.
    pub(crate) async fn load(self: &Arc<CachedListing>) -> Option<Listing> {
        let reader = Arc::clone(self);
        let read = self.cache.on_disk(move |directory| reader.read(directory));
        let parsed = match timeout(LOAD_TIMEOUT, read).await.ok()?? {
            Ok(body) => {
                let (body, memory, is_http) = (body?, Arc::clone(&self.observe.memory), self.is_http);
                worker::offload(move || format::parse(body, &memory, is_http)).await?
            }
            Err(reason) => Err(reason),
        };
        parsed.inspect_err(|reason| self.report(reason)).ok()
    }

    /// Records that the file has this listing.
    pub(crate) fn set_stored(&self, listing: Arc<Listing>) {
        self.state.lock().stored = Some(listing);
    }

    /// Removes the file and stores no further listing, because the server is a gateway.
    pub(crate) fn forbid(self: &Arc<CachedListing>) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_forbidden, true) {
            self.cache.enqueue(self, None);
        }
        let stored = state.stored.take();
        drop(state);
        // A large listing takes time to free.
        drop(stored);
    }

    /// Writes a listing in the background, unless the file has it.
    pub(crate) fn store(self: &Arc<CachedListing>, listing: Arc<Listing>) {
        // Only a current listing of a gateway shows whether it leads back to this one.
        if listing.via != Via::default() {
            return self.forbid();
        }
        let is_stored = |stored: &Arc<Listing>| Arc::ptr_eq(stored, &listing);
        // The lock covers the queue, so that no write follows `forbid`.
        let mut state = self.state.lock();
        if state.is_forbidden || state.stored.as_ref().is_some_and(is_stored) {
            return;
        }
        state.stored = Some(Arc::clone(&listing));
        self.cache.enqueue(self, Some(listing));
    }

    fn report(&self, reason: &str) {
        self.observe.emit(&Event::ListingCacheFailed { server: &self.server, reason });
    }

    /// Returns the name of the file.
    fn name(&self, directory: &Directory) -> io::Result<String> {
        Ok(hex(hmac::sign(directory.key()?, &self.identity).as_ref()))
    }

    /// Reads the file. Returns `None` if there is none.
    fn read(&self, directory: &Directory) -> Result<Option<Bytes>, String> {
        let name = self.name(directory).map_err(|error| error.to_string())?;
        let mut content = match directory.read(&name) {
            Ok(content) => Bytes::from(content),
            Err(ReadError::Missing) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let key = directory.key().map_err(|error| error.to_string())?;
        let end = content.iter().position(|byte| *byte == b'\n').ok_or("the file has no first line")?;
        let head = content.split_to(end);
        let body = content.slice(1..);
        let expected = hex(self.seal(key, &body).as_ref());
        constant_time::verify_slices_are_equal(&head, expected.as_bytes())
            .map_err(|_| "the file is damaged, or belongs to another server or login")?;
        Ok(Some(body))
    }

    fn write(&self, directory: &Directory, listing: &Listing) -> io::Result<()> {
        let Some(body) = format::body(listing) else { return Ok(()) };
        let head = format!("{}\n", hex(self.seal(directory.key()?, body.as_bytes()).as_ref()));
        directory.write(&self.name(directory)?, &[head.as_bytes(), body.as_bytes()])
    }

    /// Returns the hash of a file's content. It covers the connection and the account, so that no file can stand for
    /// another server or login.
    fn seal(&self, key: &hmac::Key, body: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(key);
        context.update(b"content");
        context.update(&(self.identity.len() as u64).to_be_bytes());
        context.update(&self.identity);
        let login = self.login.as_ref().and_then(|login| login.identity()).unwrap_or_default();
        context.update(&(login.len() as u64).to_be_bytes());
        context.update(login.as_bytes());
        context.update(body);
        context.sign()
    }
}
