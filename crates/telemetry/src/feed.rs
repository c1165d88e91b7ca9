//! The most recent events as records, for the admin API.
//!
//! The feed is a ring of [`MAX_RECORDS`] records and [`MAX_BYTES`], which count towards `gateway.maxMemory`. A slow reader
//! learns how many records it has missed. The feed keeps `info` and above always, `debug` only while somebody reads it
//! and for [`GRACE`] afterwards, and `trace` never.
//!
//! Each server also has its own ring ([`server_logs`](crate::server_logs)), so that a server with much output does not
//! displace the records of the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use goblin_config::LogLevel;
use goblin_wire::date;
use goblin_wire::memory::{BufferKind, Memory, Reservation};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::line::LogField;
use crate::log_ring::LogRing;
use crate::record::{LogRecord, LogValue};
use crate::server_logs::{ServerLogs, is_server_log};

/// The limits of the feed, in records and in bytes.
pub const MAX_RECORDS: usize = 1000;
pub const MAX_BYTES: usize = 1024 * 1024;
/// The time for which the feed keeps `debug` records after its last reader. A reader that repeats its request within
/// this time misses none.
pub const GRACE: Duration = Duration::from_secs(10);

/// One event, as the admin API sends it. Texts are on one line and safe for a terminal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedRecord {
    /// The sequence number. It starts at 1 and grows. A number that the feed lacks belongs to a record that only its
    /// server's log keeps.
    pub seq: u64,
    /// The time in ISO 8601 with milliseconds.
    pub time: String,
    pub level: LogLevel,
    /// The kind of event, as named in metrics.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The end of the session's id. It distinguishes sessions but is too short to use one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub message: String,
    /// The remaining fields of the event.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
    /// Whether the record exists only because somebody reads `debug` records.
    #[serde(skip)]
    pub is_detail: bool,
}

/// The result of one read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeedBatch {
    /// The records in order.
    pub records: Vec<Arc<FeedRecord>>,
    /// The number of records before these that were dropped unread.
    pub missed: u64,
}

/// The records after a sequence number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordsAfter {
    /// The newest sequence number.
    pub last: u64,
    /// The records in order.
    pub records: Vec<Arc<FeedRecord>>,
    /// An upper bound of the number of records after the number that were dropped.
    pub missed: u64,
}

#[derive(Debug)]
pub struct Feed {
    rings: Mutex<Rings>,
    /// Notified for each record.
    signal: watch::Sender<()>,
    detail: Arc<DetailReaders>,
}

/// The readers of `debug` records.
#[derive(Debug)]
struct DetailReaders {
    count: AtomicUsize,
    created: Instant,
    /// The end of [`GRACE`] after the last reader, in milliseconds since `created`.
    grace_end: AtomicU64,
}

/// Lets the feed keep `debug` records until this is dropped, and for [`GRACE`] afterwards.
#[derive(Debug)]
pub struct DetailGuard(Arc<DetailReaders>);

impl DetailReaders {
    fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 || {
            let end = self.grace_end.load(Ordering::Relaxed);
            end > 0 && self.created.elapsed() < Duration::from_millis(end)
        }
    }
}

impl Drop for DetailGuard {
    fn drop(&mut self) {
        let end = (self.0.created.elapsed() + GRACE).as_millis();
        self.0.grace_end.fetch_max(u64::try_from(end).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Rings {
    /// The newest sequence number.
    last: u64,
    feed: LogRing,
    reserved: Reservation,
    servers: ServerLogs,
}

impl Feed {
    pub fn new(memory: &Arc<Memory>) -> Feed {
        let (feed, reserved) = (LogRing::default(), memory.hold(BufferKind::Logs, 0));
        let rings = Rings { last: 0, feed, reserved, servers: ServerLogs::new(memory) };
        let (count, created, grace_end) = (AtomicUsize::new(0), Instant::now(), AtomicU64::new(0));
        let detail = Arc::new(DetailReaders { count, created, grace_end });
        Feed { rings: Mutex::new(rings), signal: watch::Sender::new(()), detail }
    }

    /// Keeps logs for exactly these servers. Drops the logs of all others.
    pub fn set_servers<'a>(&self, servers: impl ExactSizeIterator<Item = &'a str>) {
        self.rings.lock().servers.set(servers);
    }

    /// Returns the records of the feed, or of the log of one server, with a number above `seq`. Returns all kept records
    /// if `seq` is from an earlier run of the gateway and therefore above the newest number.
    pub fn read_after(&self, server: Option<&str>, seq: u64) -> RecordsAfter {
        let rings = self.rings.lock();
        let last = rings.last;
        let ring = match server {
            Some(server) => rings.servers.get(server),
            None => Some(&rings.feed),
        };
        let Some(ring) = ring else { return RecordsAfter { last, ..RecordsAfter::default() } };
        let start = if seq > last { 0 } else { seq };
        RecordsAfter { last, records: ring.after(start), missed: ring.missed_after(start) }
    }

    /// Returns the size of the feed, without the logs of servers.
    pub fn bytes(&self) -> usize {
        self.rings.lock().feed.bytes()
    }

    /// Returns a receiver that is notified for each record.
    pub fn watch(&self) -> watch::Receiver<()> {
        self.signal.subscribe()
    }

    /// Returns the records from `seq` on, with an upper bound of the number of missed ones. Returns all kept records if
    /// `seq` is 0, or is from an earlier run of the gateway and therefore beyond the next number.
    pub fn read_from(&self, seq: u64) -> FeedBatch {
        let RecordsAfter { last, records, missed } = self.read_after(None, seq.saturating_sub(1));
        let is_start = seq == 0 || seq > last + 1;
        FeedBatch { records, missed: if is_start { 0 } else { missed } }
    }

    /// Returns a reader that starts at `seq` like [`Feed::read_from`], and that reads `debug` records.
    pub fn reader(self: &Arc<Feed>, seq: u64) -> FeedReader {
        let (feed, signal) = (Arc::clone(self), self.signal.subscribe());
        FeedReader { feed, signal, next: seq, _detail: self.keep_detail() }
    }

    /// Lets the feed keep `debug` records.
    pub fn keep_detail(&self) -> DetailGuard {
        self.detail.count.fetch_add(1, Ordering::Relaxed);
        DetailGuard(Arc::clone(&self.detail))
    }

    pub(super) fn wants(&self, level: LogLevel) -> bool {
        match level {
            LogLevel::Error | LogLevel::Warn | LogLevel::Info => true,
            LogLevel::Debug => self.detail.is_any(),
            LogLevel::Trace => false,
        }
    }

    /// Adds a record to the feed and to the log of its server, as far as they want it.
    pub(super) fn push(&self, log_record: &LogRecord<'_>) {
        let (for_feed, is_server_log) = (self.wants(log_record.level), is_server_log(log_record.kind));
        if !for_feed && !is_server_log {
            return;
        }
        let mut record = FeedRecord::of(log_record);
        record.is_detail = log_record.level == LogLevel::Debug && !is_server_log;
        let mut locked = self.rings.lock();
        let rings = &mut *locked;
        rings.last += 1;
        record.seq = rings.last;
        let record = Arc::new(record);
        rings.servers.push(&record);
        if for_feed {
            rings.reserved.add(rings.feed.push(&record));
            rings.reserved.shrink(rings.feed.trim(MAX_RECORDS, MAX_BYTES));
        }
        drop(locked);
        self.signal.send_replace(());
    }
}

/// A reader of the feed, with its `debug` records.
#[derive(Debug)]
pub struct FeedReader {
    feed: Arc<Feed>,
    signal: watch::Receiver<()>,
    next: u64,
    _detail: DetailGuard,
}

impl FeedReader {
    /// Waits for unread records. This method is cancel safe: no record is lost if the future is dropped.
    pub async fn next(&mut self) -> FeedBatch {
        loop {
            self.signal.mark_unchanged();
            let batch = self.feed.read_from(self.next);
            if let Some(last) = batch.records.last() {
                self.next = last.seq + 1;
                return batch;
            }
            // This cannot fail, because the reader keeps the feed and its sender alive.
            let _ = self.signal.changed().await;
        }
    }
}

impl FeedRecord {
    /// Builds a record without its sequence number.
    fn of(log_record: &LogRecord<'_>) -> FeedRecord {
        let mut record = FeedRecord {
            seq: 0,
            time: now(),
            level: log_record.level,
            kind: log_record.kind.as_str().to_owned(),
            server: None,
            session: None,
            message: log_record.message.clone().into_owned(),
            fields: BTreeMap::new(),
            is_detail: false,
        };
        for (field, value) in &log_record.fields {
            match (field, value) {
                (LogField::Server, LogValue::Text(server)) => record.server = Some(server.clone().into_owned()),
                (LogField::Session, LogValue::Text(session)) => record.session = Some(session.clone().into_owned()),
                _ => drop(record.fields.insert(camel_case(field.as_str()), value.to_text())),
            }
        }
        record
    }
}

impl LogValue<'_> {
    fn to_text(&self) -> String {
        match self {
            LogValue::Text(text) => text.to_string(),
            LogValue::Number(number) => number.to_string(),
            LogValue::Duration(duration) => goblin_wire::units::duration(*duration),
        }
    }
}

fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let iso = date::iso(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    format!("{}.{:03}Z", iso.trim_end_matches('Z'), since.subsec_millis())
}

fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |camel, part| {
        let (initial, rest) = part.split_at(1);
        camel + &initial.to_ascii_uppercase() + rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Observe};

    fn numbers(batch: &FeedBatch) -> (Option<u64>, Option<u64>, u64) {
        (batch.records.first().map(|record| record.seq), batch.records.last().map(|record| record.seq), batch.missed)
    }

    #[test]
    fn the_feed_keeps_the_newest_records_and_counts_missed_ones() {
        let observe = Observe::default();
        assert_eq!(observe.feed().read_from(1), FeedBatch::default());
        for _ in 0..MAX_RECORDS + 5 {
            observe.emit(&Event::ConnectionsCut);
        }
        let last = MAX_RECORDS as u64 + 5;
        for (from, expected) in [
            (0, (Some(6), Some(last), 0)),
            (1, (Some(6), Some(last), 5)),
            (6, (Some(6), Some(last), 0)),
            (last, (Some(last), Some(last), 0)),
            (last + 1, (None, None, 0)),
            (last + 2, (Some(6), Some(last), 0)),
        ] {
            assert_eq!(numbers(&observe.feed().read_from(from)), expected, "from {from}");
        }
    }

    #[test]
    fn use7_detailed_records_are_kept_while_a_reader_exists_and_shortly_afterwards() {
        let observe = Observe::default();
        let (debug, trace) =
            (Event::ProgressDropped { server: "a" }, Event::BackendNotification { server: "a", method: "b" });
        observe.emit(&debug);
        let reader = observe.feed().reader(0);
        observe.emit(&debug);
        observe.emit(&trace);
        drop(reader);
        let detail = &observe.feed().detail;
        assert!(detail.grace_end.load(Ordering::Relaxed) >= GRACE.as_millis() as u64);
        assert!(detail.is_any(), "a reader between two requests misses nothing");
        detail.grace_end.store(0, Ordering::Relaxed);
        observe.emit(&debug);
        observe.emit(&Event::BackendFailed { server: "a", reason: "", retry_in: Default::default(), repeated: true });
        let kinds: Vec<_> = observe.feed().read_from(0).records.iter().map(|record| record.kind.clone()).collect();
        assert_eq!(kinds, ["progress_dropped"]);
    }

    #[test]
    fn hard2_the_bytes_of_the_feed_are_bounded_and_counted() {
        let observe = Observe::default();
        let reason = "x".repeat(MAX_BYTES / 600);
        for _ in 0..MAX_RECORDS {
            observe.emit(&Event::BackendFailed { server: "a", reason: &reason, retry_in: GRACE, repeated: false });
        }
        let (kept, bytes) = (observe.feed().read_after(None, 0), observe.feed().bytes());
        assert!((MAX_BYTES / 2..=MAX_BYTES).contains(&bytes), "{bytes}");
        assert_eq!(kept.missed, (MAX_RECORDS - kept.records.len()) as u64);
        assert!((300..600).contains(&kept.records.len()), "{}", kept.records.len());
        assert_eq!(observe.memory.read().iter().map(|(_, bytes)| bytes).sum::<usize>(), bytes);
    }

    #[tokio::test]
    async fn a_reader_gets_each_record_once_and_waits_for_more() {
        let observe = Arc::new(Observe::default());
        let mut reader = observe.feed().reader(0);
        observe.emit(&Event::ConnectionsCut);
        observe.emit(&Event::ConnectionsCut);
        assert_eq!(numbers(&reader.next().await), (Some(1), Some(2), 0));
        let later = tokio::spawn(async move { numbers(&reader.next().await) });
        tokio::task::yield_now().await;
        observe.emit(&Event::ConnectionsCut);
        assert_eq!(later.await.expect("no panic"), (Some(3), Some(3), 0));
    }

    #[test]
    fn a_record_contains_no_control_characters() {
        let observe = Observe::default();
        let retry_in = std::time::Duration::from_millis(1500);
        let reason = "ended\n\u{1b}[2J\u{202e}x";
        observe.emit(&Event::BackendFailed { server: "a", reason, retry_in, repeated: false });
        observe.emit(&Event::BackendStderr { server: "a", line: "\u{1b}[31mred", repeated: false });
        let records = observe.feed().read_from(0).records;
        let json = serde_json::to_value(&*records[0]).expect("valid JSON");
        let time = json["time"].as_str().expect("a string").to_owned();
        assert_eq!((time.len(), &time[10..11], &time[19..20], &time[23..]), (24, "T", ".", "Z"));
        let expected = serde_json::json!({
            "seq": 1, "time": time, "level": "warn", "kind": "backend_failed", "server": "a",
            "message": "cannot connect to backend", "fields": {"reason": "ended [2Jx", "retryIn": "1.5 s"},
        });
        assert_eq!(json, expected);
        assert_eq!(records[1].message, "[31mred");
    }
}
