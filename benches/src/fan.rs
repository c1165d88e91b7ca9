//! Fan-out: a hundred updates of one resource to the largest possible number of subscribed sessions, each with an open
//! stream. One session in a hundred does not read its stream.
//!
//! The next update is made after every reader received the previous one. Updates are therefore never merged, and both
//! servers write the same events. Every reader must receive every update in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::child::Child;
use crate::client::{Client, EventStream, Template};
use crate::feed::{NUMBER, TOUCH};
use crate::procfs;
use crate::scenario::Through;
use crate::workspace::{Workspace, wait_for_tools};

/// One session in this many does not read.
const ONE_UNREAD_IN: usize = 100;
const UPDATES: u64 = 100;
const WARM_UP: u64 = 10;
/// The number of sessions that are opened at a time.
const OPENERS: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_millis(100);
/// The resource's URI at the backend and in Goblin. The bare server uses the URI of Goblin, so that both write the same
/// bytes.
const NATIVE: &str = "note:///news";
const EXPOSED: &str = "feed+note:///news";

/// The cost of all updates for one server.
#[derive(Clone, Copy, Serialize)]
pub struct Fan {
    pub cpu: Duration,
    /// The time from the first update until the last reader received the last one.
    pub elapsed: Duration,
    /// The bytes of all updates that were read.
    pub bytes: u64,
    /// The growth of the resident memory.
    pub grown: u64,
}

/// The rounds of both servers, in pairs.
#[derive(Serialize)]
pub struct FanOut {
    pub sessions: usize,
    pub unread: usize,
    pub updates: u64,
    pub bare: Vec<Fan>,
    pub goblin: Vec<Fan>,
}

impl FanOut {
    /// Returns the number of events that were written, to reading and non-reading sessions.
    pub fn deliveries(&self) -> u64 {
        self.sessions as u64 * self.updates
    }
}

/// Measures both servers in turn. Returns `None` if Goblin is not measured.
pub async fn measure(workspace: &Workspace, sessions: usize, rounds: usize) -> Result<Option<FanOut>> {
    let unread = sessions / ONE_UNREAD_IN;
    let mut fan_out = FanOut { sessions, unread, updates: UPDATES, bare: Vec::new(), goblin: Vec::new() };
    for round in 0..rounds {
        let mut order = [Through::Bare, Through::Goblin];
        order.rotate_left(round % 2);
        for through in order {
            let what = || format!("fan-out through {}, {sessions} sessions", through.title());
            let Some(fan) = once(workspace, through, sessions).await.with_context(what)? else { return Ok(None) };
            match through {
                Through::Goblin => fan_out.goblin.push(fan),
                _ => fan_out.bare.push(fan),
            }
        }
        let bytes = |fans: &[Fan]| fans[round].bytes;
        let (bare, goblin) = (bytes(&fan_out.bare), bytes(&fan_out.goblin));
        ensure!(bare == goblin, "the bare server wrote {bare} bytes, goblin {goblin}");
        eprintln!("fan-out, {sessions} sessions: round {} of {rounds}", round + 1);
    }
    Ok(Some(fan_out))
}

/// Measures one fresh server with fresh sessions. Sessions of an earlier round would receive the updates too.
async fn once(workspace: &Workspace, through: Through, sessions: usize) -> Result<Option<Fan>> {
    let uri = if through == Through::Goblin { NATIVE } else { EXPOSED };
    let feed = Child::role(&["feed", "--uri", uri])?;
    if through != Through::Goblin {
        return fan(feed.address, (&feed).into(), sessions).await.map(Some);
    }
    let config = json!({
        "gateway": { "host": "127.0.0.1", "port": 0, "maxSessions": 2 * sessions },
        "metaTools": false,
        "mcpServers": { "feed": { "url": feed.url() } }
    });
    let Some(goblin) = workspace.goblin(&config)? else { return Ok(None) };
    wait_for_tools(&goblin, 1).await?;
    fan(feed.address, (&goblin).into(), sessions).await.map(Some)
}

/// The process under test.
#[derive(Clone, Copy)]
struct Server {
    address: SocketAddr,
    pid: u32,
}

impl From<&Child> for Server {
    fn from(child: &Child) -> Self {
        Self { address: child.address, pid: child.pid() }
    }
}

/// Measures the updates that `feed` makes for sessions at `server`.
async fn fan(feed: SocketAddr, server: Server, sessions: usize) -> Result<Fan> {
    let streams = open_all(server.address, sessions).await?;
    let tally = Arc::new(Tally::default());
    let (mut readers, mut unread) = (JoinSet::new(), Vec::new());
    for (number, stream) in streams.into_iter().enumerate() {
        match number % ONE_UNREAD_IN {
            0 if number > 0 => unread.push(stream),
            _ => drop(readers.spawn(read(stream, Arc::clone(&tally)))),
        }
    }
    let mut updater = Updater { client: Client::connect(feed).await?, readers, tally, updates: 0 };
    updater.touch(WARM_UP).await?;
    tokio::time::sleep(SETTLE).await;
    let (memory, cpu) = (procfs::memory(server.pid)?.rss, procfs::cpu(server.pid)?);
    let (start, before) = (Instant::now(), updater.bytes());
    updater.touch(UPDATES).await?;
    let elapsed = start.elapsed();
    tokio::time::sleep(SETTLE).await;
    let cpu = procfs::cpu(server.pid)?.since(&cpu);
    let grown = procfs::memory(server.pid)?.rss.saturating_sub(memory);
    Ok(Fan { cpu, elapsed, bytes: updater.bytes() - before, grown })
}

async fn open_all(address: SocketAddr, sessions: usize) -> Result<Vec<EventStream>> {
    let mut openers = JoinSet::new();
    for opener in 0..OPENERS {
        let share = (opener..sessions).step_by(OPENERS).len();
        openers.spawn(async move {
            let mut streams = Vec::with_capacity(share);
            for _ in 0..share {
                streams.push(open(address).await?);
            }
            anyhow::Ok(streams)
        });
    }
    let mut streams = Vec::with_capacity(sessions);
    while let Some(opened) = openers.join_next().await {
        streams.extend(opened??);
    }
    Ok(streams)
}

async fn open(address: SocketAddr) -> Result<EventStream> {
    let subscribe = Template {
        before: r#"{"jsonrpc":"2.0","id":"#.to_owned(),
        after: format!(r#","method":"resources/subscribe","params":{{"uri":"{EXPOSED}"}}}}"#),
        repeated: None,
    };
    let mut client = Client::connect(address).await?;
    client.learn_setup().await?;
    let (_, answer) = client.learn(&subscribe).await?;
    let text = String::from_utf8_lossy(&answer);
    ensure!(text.contains(r#""result""#), "the answer to the subscription is {text}");
    client.into_stream().await
}

/// The counts of all readers.
#[derive(Default)]
struct Tally {
    read: AtomicUsize,
    bytes: AtomicU64,
    /// The number of reads that completes the current update and rings the bell.
    goal: AtomicUsize,
    done: Notify,
}

/// The source of the updates, which are made one after the other.
struct Updater {
    client: Client,
    readers: JoinSet<Result<()>>,
    tally: Arc<Tally>,
    /// The number of updates so far.
    updates: u64,
}

impl Updater {
    fn bytes(&self) -> u64 {
        self.tally.bytes.load(Ordering::Relaxed)
    }

    async fn touch(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.updates += 1;
            self.tally.goal.fetch_add(self.readers.len(), Ordering::Relaxed);
            let params = json!({ "number": self.updates });
            let touch = json!({ "jsonrpc": "2.0", "method": TOUCH, "params": params });
            self.client.notify(touch.to_string().into()).await?;
            tokio::select! {
                () = self.tally.done.notified() => {}
                // A reader ends only after an error.
                Some(ended) = self.readers.join_next() => ended??,
                () = tokio::time::sleep(TIMEOUT) => {
                    let (read, goal) = (&self.tally.read, &self.tally.goal);
                    let missing = goal.load(Ordering::Relaxed) - read.load(Ordering::Relaxed);
                    bail!("{missing} readers did not receive update {} in {TIMEOUT:?}", self.updates);
                }
            }
        }
        Ok(())
    }
}

/// Reads updates and checks that all of them arrive in order.
async fn read(mut stream: EventStream, tally: Arc<Tally>) -> Result<()> {
    let (mut events, mut expected) = (Events::default(), 1);
    loop {
        let Some(data) = stream.next().await? else { bail!("a stream ended early") };
        events.buffer.extend_from_slice(&data);
        while let Some(event) = events.next() {
            let Some(number) = number(&event) else { continue };
            ensure!(number == expected, "received update {number} instead of {expected}");
            expected += 1;
            tally.bytes.fetch_add(event.len() as u64, Ordering::Relaxed);
            let read = tally.read.fetch_add(1, Ordering::Relaxed) + 1;
            if read == tally.goal.load(Ordering::Relaxed) {
                tally.done.notify_one();
            }
        }
    }
}

#[derive(Default)]
struct Events {
    buffer: BytesMut,
}

impl Events {
    fn next(&mut self) -> Option<Bytes> {
        let end = self.buffer.windows(2).position(|window| window == b"\n\n")?;
        let event = self.buffer.copy_to_bytes(end + 2);
        Some(event)
    }
}

/// Returns the number of an update. Returns `None` for other events.
fn number(event: &[u8]) -> Option<u64> {
    let event = std::str::from_utf8(event).ok()?;
    let digits = event.split_once(NUMBER)?.1;
    let end = digits.find(|character: char| !character.is_ascii_digit())?;
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::{EXPOSED, Events, Server, Tally, Updater, fan, number, open_all, read};
    use crate::client::Client;
    use crate::feed;

    async fn feed() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(feed::run(listener, EXPOSED.to_owned()));
        address
    }

    #[tokio::test]
    async fn every_reader_receives_every_update() {
        let address = feed().await;
        // The server runs in this process, so its CPU time is that of this process.
        let fan = fan(address, Server { address, pid: std::process::id() }, 101).await.unwrap();
        assert!(!fan.cpu.is_zero() && fan.bytes > 100 * 100 * 100);
    }

    #[tokio::test]
    async fn a_missing_update_fails_the_measurement() {
        let address = feed().await;
        let (tally, mut readers) = (Arc::new(Tally::default()), JoinSet::new());
        for stream in open_all(address, 3).await.unwrap() {
            readers.spawn(read(stream, Arc::clone(&tally)));
        }
        let client = Client::connect(address).await.unwrap();
        let mut updater = Updater { client, readers, tally, updates: 0 };
        updater.touch(2).await.unwrap();
        updater.updates += 1;
        let error = updater.touch(1).await.unwrap_err();
        assert_eq!(error.to_string(), "received update 4 instead of 3");
    }

    #[test]
    fn events_are_split_correctly_at_every_chunk_size() {
        let text = b"id: 1\nretry: 1000\ndata: \n\nid: 2\ndata: {\"number\":17}\n\n: keep-alive\n\n";
        for size in 1..=text.len() {
            let (mut events, mut numbers) = (Events::default(), Vec::new());
            for chunk in text.chunks(size) {
                events.buffer.extend_from_slice(chunk);
                while let Some(event) = events.next() {
                    numbers.push(number(&event));
                }
            }
            assert_eq!(numbers, [None, Some(17), None]);
        }
    }
}
