//! The limits that protect the gateway, with a counter for each.
//!
//! Each limit has one name. Metrics use it as a label, errors as `data.limit`, and the documentation as the row title.

use std::sync::atomic::{AtomicU64, Ordering};

crate::labels! {
    /// A limit that counts how often it was reached.
    Limit {
        MaxSessions = "maxSessions",
        MaxConnections = "maxConnections",
        MaxMemory = "maxMemory",
        BodyBytes = "bodyBytes",
        ListBytes = "listBytes",
        ClientInfoBytes = "clientInfoBytes",
        KnownUriBytes = "knownUriBytes",
        BatchMessages = "batchMessages",
        JsonDepth = "jsonDepth",
        SchemaNodes = "schemaNodes",
        ValidationWork = "validationWork",
        Templates = "templates",
        MatchSteps = "matchSteps",
    }
}

/// The entries of one list of a backend.
pub const MAX_LIST_ENTRIES: usize = 100_000;

/// Counts how often each limit was reached.
#[derive(Debug)]
pub struct LimitCounts([AtomicU64; Limit::ALL.len()]);

impl Default for LimitCounts {
    fn default() -> LimitCounts {
        LimitCounts(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl LimitCounts {
    pub fn count(&self, limit: Limit) {
        self.0[limit as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns every limit with its count, also those that were never reached.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Limit::ALL.iter().map(|limit| limit.as_str()).zip(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_own_name_and_counter() {
        let counts = LimitCounts::default();
        counts.count(Limit::JsonDepth);
        counts.count(Limit::JsonDepth);
        let read = counts.read();
        let names: std::collections::HashSet<_> = read.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Limit::ALL.len());
        let reached: Vec<_> = read.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(reached, [&("jsonDepth", 2)]);
    }
}
