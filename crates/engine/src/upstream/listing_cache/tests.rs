//! Tests with a directory of their own. The clock is paused, except where the disk alone decides.

use std::fs;
use std::path::Path;

use goblin_config::file::ConfigOrigin;
use goblin_telemetry::worker;
use goblin_wire::Dialect;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::task::JoinHandle;

use super::directory::MAX_CACHE_BYTES;
use super::*;

/// The cache of one test, with its writer and one server.
struct CacheFixture {
    root: PathBuf,
    cache: Arc<ListingCache>,
    cached: Arc<CachedListing>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for CacheFixture {
    fn drop(&mut self) {
        self.writer.iter().for_each(JoinHandle::abort);
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl CacheFixture {
    fn new(name: &str) -> CacheFixture {
        let root = std::env::temp_dir().join(format!("goblin-listings-{name}-{}", std::process::id()));
        // A leftover of an earlier run.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("a directory");
        let cache = Arc::new(ListingCache::at(root.join("listings")));
        let file = r#"{"mcpServers":{"a":{"url":"http://127.0.0.1:9/mcp"}}}"#;
        let loaded = goblin_config::parse(file, &ConfigOrigin::new("goblin.json", "/"), &|_| None).expect("valid");
        let cached = CachedListing::new(&cache, "a", &loaded.config.servers[0], None, &Arc::default());
        CacheFixture { root, cache, cached: cached.expect("a server with a file"), writer: None }
    }

    fn start(mut self) -> CacheFixture {
        let cache = Arc::clone(&self.cache);
        self.writer = Some(worker::spawn(async move { cache.run().await }));
        self
    }

    fn store(&self, instructions: &str) {
        self.cached.store(Arc::new(listing(instructions)));
    }

    /// Returns the instructions in the file once all due changes are applied.
    async fn stored(&self) -> Option<String> {
        // The writer and the disk run before the paused clock moves on.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let listing = self.cached.load().await?;
        listing.hello.and_then(|hello| hello.instructions.clone())
    }
}

fn listing(instructions: &str) -> Listing {
    let hello = format!(r#"{{"capabilities":{{}},"instructions":"{instructions}"}}"#);
    let hello = goblin_wire::Hello::read(&hello, goblin_wire::json::whole(&hello), Dialect::NEWEST);
    Listing { hello: Some(Arc::new(hello)), ..Listing::default() }
}

#[tokio::test(start_paused = true)]
async fn use4_only_the_newest_of_many_listings_is_written_once_per_interval() {
    let fixture = CacheFixture::new("interval").start();
    fixture.store("first");
    assert_eq!(fixture.stored().await.as_deref(), Some("first"), "the first listing is written at once");
    for number in 0..1000 {
        fixture.store(&number.to_string());
    }
    tokio::time::sleep(WRITE_INTERVAL / 2).await;
    assert_eq!(fixture.stored().await.as_deref(), Some("first"));
    tokio::time::sleep(WRITE_INTERVAL / 2).await;
    assert_eq!(fixture.stored().await.as_deref(), Some("999"));
}

#[tokio::test(start_paused = true)]
async fn use4_an_orderly_stop_writes_the_newest_listing() {
    let fixture = CacheFixture::new("flush").start();
    fixture.store("first");
    assert_eq!(fixture.stored().await.as_deref(), Some("first"));
    fixture.store("last");
    fixture.cache.flush().await;
    assert_eq!(fixture.stored().await.as_deref(), Some("last"));
    // A disk that hangs delays the stop only for a while.
    let permit = fixture.cache.disk.acquire().await.expect("the disk is idle");
    fixture.store("never");
    let begin = Instant::now();
    fixture.cache.flush().await;
    assert_eq!(begin.elapsed().as_secs(), FLUSH_TIMEOUT.as_secs());
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn use4_a_failed_write_is_repeated() {
    let fixture = CacheFixture::new("full").start();
    let directory = fixture.root.join("listings");
    fs::write(&directory, "").expect("a file instead of the directory");
    fixture.store("first");
    assert_eq!(fixture.stored().await, None);
    fs::remove_file(&directory).expect("the file exists");
    tokio::time::sleep(WRITE_INTERVAL).await;
    assert_eq!(fixture.stored().await.as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn use4_no_queued_write_follows_the_removal_of_a_listing() {
    let fixture = CacheFixture::new("removed");
    fixture.store("secret");
    fixture.cached.forbid();
    let fixture = fixture.start();
    assert_eq!(fixture.stored().await, None);
    fixture.store("secret again");
    assert_eq!(fixture.stored().await, None);
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}

#[test]
fn use4_links_and_pipes_are_not_read_and_a_foreign_key_is_replaced() {
    let fixture = CacheFixture::new("foreign");
    let path = fixture.root.join("listings");
    let open = || Directory::new(path.clone());
    let key = || fs::read(path.join("key")).expect("a key");
    open().key().expect("a new key");
    let first = key();
    fs::copy(path.join("key"), path.join("other")).expect("a copy");
    open().key().expect("the key exists");
    assert_eq!(key(), first, "the key stays");
    std::os::unix::fs::symlink("other", path.join("link")).expect("a link");
    fifo(&path.join("pipe"));
    for name in ["link", "pipe"] {
        assert!(matches!(open().read(name), Err(ReadError::Foreign(_))), "{name}");
    }
    for replace in [|key: &Path| fs::write(key, "short").expect("the key is ours"), fifo] {
        fs::remove_file(path.join("key")).expect("the key exists");
        replace(&path.join("key"));
        open().key().expect("a new key");
        assert!(key().len() == first.len() && key() != first);
    }
    // A directory in place of the key stays.
    fs::remove_file(path.join("key")).expect("the key exists");
    fs::create_dir(path.join("key")).expect("a directory");
    assert!(open().key().is_err() && path.join("key").is_dir());
}

#[test]
fn use4_files_that_cannot_be_removed_count_towards_the_limit() {
    let fixture = CacheFixture::new("room");
    let (path, directory) = (fixture.root.join("listings"), Directory::new(fixture.root.join("listings")));
    directory.key().expect("a new key");
    fs::create_dir(path.join("directory")).expect("a directory");
    for number in 0..64_u64 {
        let file = fs::File::create(path.join(format!("{number:02}"))).expect("a file");
        file.set_len(1 << 20).expect("a sparse file");
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(number)).expect("the file is ours");
    }
    directory.write("new", &[&[0; 100]]).expect("there is room");
    let kept: Vec<_> = fs::read_dir(&path).expect("a directory").flatten().collect();
    let total: u64 = kept.iter().map(|entry| entry.metadata().map_or(0, |found| found.len())).sum();
    assert!(total <= MAX_CACHE_BYTES && path.join("new").exists(), "{total}");
    assert!(!path.join("00").exists() && path.join("01").exists() && path.join("directory").exists());
    let huge = vec![0; usize::try_from(MAX_CACHE_BYTES).expect("64 bits") + 1];
    assert!(directory.write("new", &[&huge]).is_err());
}
