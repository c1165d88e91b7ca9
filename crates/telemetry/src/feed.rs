//! The most recent events as records, for the admin API.
//!
//! The feed is a ring of [`MAX_RECORDS`] records, so its size is bounded. A slow reader learns how many records it has
//! missed. The feed keeps `info` and above always, `debug` only while a reader exists, and `trace` never.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use goblin_config::LogLevel;
use goblin_wire::date;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::line::LogField;
use crate::record::{LogRecord, LogValue};

/// The maximum number of records.
pub const MAX_RECORDS: usize = 1000;

/// One event, as the admin API sends it. Texts are on one line and safe for a terminal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FeedRecord {
    /// The sequence number. It starts at 1 and has no gaps.
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
}

/// The result of one read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeedBatch {
    /// The records in order.
    pub records: Vec<Arc<FeedRecord>>,
    /// The number of records before these that were dropped unread.
    pub missed: u64,
}

#[derive(Debug)]
pub struct Feed {
    ring: Mutex<VecDeque<Arc<FeedRecord>>>,
    /// Notified for each record.
    signal: watch::Sender<()>,
    readers: AtomicUsize,
}

impl Default for Feed {
    fn default() -> Feed {
        Feed { ring: Mutex::default(), signal: watch::Sender::new(()), readers: AtomicUsize::new(0) }
    }
}

impl Feed {
    /// Returns the records from `seq` on. Returns all kept records if `seq` is 0, or is from an earlier run of the
    /// gateway and therefore beyond the next number.
    pub fn read_from(&self, seq: u64) -> FeedBatch {
        let ring = self.ring.lock();
        let (Some(oldest), Some(newest)) = (ring.front(), ring.back()) else { return FeedBatch::default() };
        if seq == newest.seq + 1 {
            return FeedBatch::default();
        }
        let from = if seq > newest.seq { 0 } else { seq };
        let missed = if from == 0 { 0 } else { oldest.seq.saturating_sub(from) };
        let skipped = usize::try_from(from.saturating_sub(oldest.seq)).unwrap_or(usize::MAX);
        FeedBatch { records: ring.iter().skip(skipped).cloned().collect(), missed }
    }

    /// Returns a reader that starts at `seq` like [`Feed::read_from`]. The feed keeps `debug` records while a reader
    /// exists.
    pub fn reader(self: &Arc<Feed>, seq: u64) -> FeedReader {
        self.readers.fetch_add(1, Ordering::Relaxed);
        FeedReader { feed: Arc::clone(self), signal: self.signal.subscribe(), next: seq }
    }

    pub(super) fn wants(&self, level: LogLevel) -> bool {
        match level {
            LogLevel::Error | LogLevel::Warn | LogLevel::Info => true,
            LogLevel::Debug => self.readers.load(Ordering::Relaxed) > 0,
            LogLevel::Trace => false,
        }
    }

    pub(super) fn push(&self, log_record: &LogRecord<'_>) {
        let mut record = FeedRecord::of(log_record);
        let mut ring = self.ring.lock();
        record.seq = ring.back().map_or(0, |newest| newest.seq) + 1;
        if ring.len() == MAX_RECORDS {
            ring.pop_front();
        }
        ring.push_back(Arc::new(record));
        drop(ring);
        self.signal.send_replace(());
    }
}

/// A reader of the feed. It is counted until dropped.
#[derive(Debug)]
pub struct FeedReader {
    feed: Arc<Feed>,
    signal: watch::Receiver<()>,
    next: u64,
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

impl Drop for FeedReader {
    fn drop(&mut self) {
        self.feed.readers.fetch_sub(1, Ordering::Relaxed);
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
            LogValue::Duration(duration) => format!("{duration:?}"),
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
    fn detailed_records_are_kept_only_while_a_reader_exists() {
        let observe = Observe::default();
        let (debug, trace) =
            (Event::ProgressDropped { server: "a" }, Event::BackendNotification { server: "a", method: "b" });
        observe.emit(&debug);
        let reader = observe.feed().reader(0);
        observe.emit(&debug);
        observe.emit(&trace);
        drop(reader);
        observe.emit(&debug);
        observe.emit(&Event::BackendFailed { server: "a", reason: "", retry_in: Default::default(), repeated: true });
        let kinds: Vec<_> = observe.feed().read_from(0).records.iter().map(|record| record.kind.clone()).collect();
        assert_eq!(kinds, ["progress_dropped"]);
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
            "message": "cannot connect to backend", "fields": {"reason": "ended [2Jx", "retryIn": "1.5s"},
        });
        assert_eq!(json, expected);
        assert_eq!(records[1].message, "[31mred");
    }
}
