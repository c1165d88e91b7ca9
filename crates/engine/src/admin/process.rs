//! Measures this process through `/proc`. Returns no values on systems other than Linux.

use goblin_telemetry::metrics::ProcessReading;

pub(crate) fn measure() -> ProcessReading {
    let statm = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = statm.as_deref().and_then(resident_pages);
    let page_size = u64::try_from(rustix::param::page_size()).ok();
    // The directory being read is one of the descriptors.
    let descriptors = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1));
    ProcessReading {
        resident_bytes: pages.zip(page_size).map(|(pages, size)| pages.saturating_mul(size)),
        open_descriptors: descriptors.and_then(|count| u64::try_from(count).ok()),
    }
}

fn resident_pages(statm: &str) -> Option<u64> {
    statm.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_statm_is_the_resident_size() {
        assert_eq!(resident_pages("100 42 7 1 0 20 0\n"), Some(42));
        assert_eq!(resident_pages(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_reports_memory_and_descriptors() {
        let ProcessReading { resident_bytes, open_descriptors } = measure();
        assert!(resident_bytes.is_some_and(|bytes| bytes > 100_000), "{resident_bytes:?}");
        assert!(open_descriptors.is_some_and(|count| count >= 3), "{open_descriptors:?}");
    }
}
