//! Estimates response times from the buckets of a histogram.

use goblin_admin::api::Latency;
use goblin_telemetry::meter::{Meter, MethodLabel};

/// Returns the response times of all requests to a server.
pub(crate) fn latency(meter: &Meter) -> Latency {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut sum = 0.0;
    for method in MethodLabel::ALL {
        let durations = meter.durations(*method);
        sum += durations.sum();
        match buckets.is_empty() {
            true => buckets = durations.buckets(),
            false => buckets.iter_mut().zip(durations.buckets()).for_each(|(all, one)| all.1 += one.1),
        }
    }
    let count: u64 = buckets.iter().map(|(_, count)| count).sum();
    let milliseconds = |seconds: f64| (seconds * 1e6).round() / 1e3;
    let at = |part| quantile(&buckets, part).map(milliseconds);
    let mean = (count > 0).then(|| milliseconds(sum / count as f64));
    Latency { count, mean_ms: mean, p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
}

/// Returns the estimated quantile `part`, assuming an even distribution within each bucket. A bucket is an upper bound
/// with its own count. The last bucket has no bound, so its lower bound is returned. Returns `None` if all buckets are
/// empty.
pub(crate) fn quantile(buckets: &[(f64, u64)], part: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = part * total as f64;
    let (mut lower, mut below) = (0.0, 0);
    for (upper, count) in buckets {
        let reached = below + count;
        if *count > 0 && reached as f64 >= rank {
            let inside = (rank - below as f64) / *count as f64;
            return Some(if upper.is_finite() { lower + (upper - lower) * inside } else { lower });
        }
        (lower, below) = (*upper, reached);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quantiles_are_linear_within_a_bucket() {
        let check = |counts: [u64; 4], part: f64, expected: Option<f64>| {
            let buckets: Vec<_> = [1.0, 2.0, 4.0, f64::INFINITY].into_iter().zip(counts).collect();
            let found = quantile(&buckets, part);
            let is_near = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
                (found, expected) => found == expected,
            };
            assert!(is_near, "{counts:?} {part}: {found:?} is not {expected:?}");
        };
        check([0, 0, 0, 0], 0.5, None);
        check([10, 0, 0, 0], 0.5, Some(0.5));
        check([10, 0, 0, 0], 1.0, Some(1.0));
        check([10, 10, 0, 0], 0.5, Some(1.0));
        check([10, 10, 0, 0], 0.75, Some(1.5));
        check([0, 0, 4, 0], 0.5, Some(3.0));
        check([1, 0, 0, 1], 0.99, Some(4.0));
        check([0, 0, 0, 3], 0.5, Some(4.0));
        check([0, 3, 0, 0], 0.0, Some(1.0));
    }

    #[test]
    fn the_latency_combines_all_methods() {
        let meter = Meter::default();
        let nothing = Latency::default();
        assert_eq!(latency(&meter), nothing);
        meter.record_duration(MethodLabel::ToolsCall, Duration::from_millis(2));
        meter.record_duration(MethodLabel::ResourcesRead, Duration::from_millis(4));
        let Latency { count, mean_ms, p50_ms, p99_ms, .. } = latency(&meter);
        assert_eq!((count, mean_ms, p50_ms), (2, Some(3.0), Some(2.5)));
        assert!(p99_ms.is_some_and(|p99| p99 > 2.5 && p99 <= 5.0), "{p99_ms:?}");
    }
}
