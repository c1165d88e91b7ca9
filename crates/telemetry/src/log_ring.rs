//! A ring of log records with a limit in records and one in bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::feed::FeedRecord;

#[derive(Debug, Default)]
pub(super) struct LogRing {
    records: VecDeque<Arc<FeedRecord>>,
    bytes: usize,
    /// The number of removed records, and the sequence number of the newest of them.
    removed: u64,
    newest_removed: u64,
}

impl LogRing {
    /// Adds a record. Returns its size. The caller must trim the ring.
    pub(super) fn push(&mut self, record: &Arc<FeedRecord>) -> usize {
        let size = size(record);
        self.records.push_back(Arc::clone(record));
        self.bytes += size;
        size
    }

    /// Removes the oldest records beyond the limits. Returns their size.
    pub(super) fn trim(&mut self, max_records: usize, max_bytes: usize) -> usize {
        let before = self.bytes;
        while self.records.len() > max_records || self.bytes > max_bytes {
            let Some(oldest) = self.records.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.removed += 1;
            self.newest_removed = oldest.seq;
        }
        before - self.bytes
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the records with a number above `seq`, oldest first.
    pub(super) fn after(&self, seq: u64) -> Vec<Arc<FeedRecord>> {
        let skipped = self.records.partition_point(|record| record.seq <= seq);
        self.records.range(skipped..).cloned().collect()
    }

    /// Returns an upper bound of the number of removed records with a number above `seq`. Other rings use some of the
    /// numbers too.
    pub(super) fn missed_after(&self, seq: u64) -> u64 {
        self.newest_removed.saturating_sub(seq).min(self.removed)
    }
}

fn size(record: &FeedRecord) -> usize {
    let fields = record.fields.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    let names = [&record.server, &record.session].into_iter().flatten().map(String::len).sum::<usize>();
    size_of::<FeedRecord>() + record.time.len() + record.kind.len() + record.message.len() + names + fields
}
