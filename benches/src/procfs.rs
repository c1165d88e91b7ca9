//! Reads the CPU time and memory of a process from the kernel, and a description of the machine for the report.
//!
//! All values come from `/proc`, so the benchmark needs Linux and no cooperation of the measured process.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// The memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub rss: u64,
    pub pss: u64,
    pub private: u64,
}

/// The user and system time of a process so far. It combines two clocks, because neither is sufficient alone.
pub struct CpuTime {
    /// Nanoseconds by thread, from `schedstat`. The time of a thread is lost when it ends.
    threads: HashMap<u32, u64>,
    /// Whole ticks, including ended threads, from `stat`.
    process: Duration,
}

pub fn cpu(pid: u32) -> Result<CpuTime> {
    let text = read(&format!("/proc/{pid}/stat"))?;
    let process = stat_time(&text).with_context(|| format!("/proc/{pid}/stat does not match proc(5)"))?;
    Ok(CpuTime { threads: schedstat(pid).unwrap_or_default(), process })
}

impl CpuTime {
    /// Returns the time used from `before` to `self`. The result is exact unless threads ended in between and used more
    /// than the rounding error of the coarse clock.
    pub fn since(&self, before: &Self) -> Duration {
        let of_thread =
            |(thread, time): (&u32, &u64)| time.saturating_sub(before.threads.get(thread).copied().unwrap_or(0));
        let exact = Duration::from_nanos(self.threads.iter().map(of_thread).sum());
        let coarse = self.process.saturating_sub(before.process);
        if self.threads.is_empty() || coarse > exact + COARSE_ERROR { coarse } else { exact }
    }
}

const TICK: Duration = Duration::from_millis(10);
/// The rounding error: user and system time are each rounded to a tick.
const COARSE_ERROR: Duration = Duration::from_millis(20);

pub fn memory(pid: u32) -> Result<Memory> {
    let status = read(&format!("/proc/{pid}/status"))?;
    let rollup = read(&format!("/proc/{pid}/smaps_rollup"))?;
    let rss = field(&status, "VmRSS:").context("VmRSS is missing from /proc/PID/status")?;
    let pss = field(&rollup, "Pss:").context("Pss is missing from smaps_rollup")?;
    let private = [field(&rollup, "Private_Clean:"), field(&rollup, "Private_Dirty:")];
    Ok(Memory { rss, pss, private: private.into_iter().flatten().sum() })
}

/// Returns one line about the processor, kernel, memory and load of the machine. Unknown values get a placeholder.
pub fn machine() -> String {
    let line = |path: &str, key: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = line("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemTotal:")).unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{model}, {cores} cores, {} GiB, Linux {}, load {load} at the start", memory >> 30, kernel.trim())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

/// Reads the time of each thread. Returns `None` if the kernel has no `schedstat`.
fn schedstat(pid: u32) -> Option<HashMap<u32, u64>> {
    let mut threads = HashMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let task = task.ok()?;
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let thread = task.file_name().to_str()?.parse().ok()?;
        threads.insert(thread, text.split(' ').next()?.parse().ok()?);
    }
    Some(threads)
}

/// Returns the sum of fields 14 and 15. The second field, the name, may contain spaces and parentheses.
fn stat_time(text: &str) -> Option<Duration> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * (user + system))
}

fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{CpuTime, cpu, field, memory, stat_time};

    #[test]
    fn stat_survives_a_strange_name() {
        let text = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 0 0 20 0 1 0 5 1 1";
        assert_eq!(stat_time(text), Some(Duration::from_millis(420)));
    }

    #[test]
    fn fields_are_bytes() {
        assert_eq!(field("VmHWM:\t 9 kB\nVmRSS:\t    1200 kB\n", "VmRSS:"), Some(1200 * 1024));
        assert_eq!(field("VmHWM:\t 9 kB\n", "VmRSS:"), None);
    }

    fn check(before: (&[(u32, u64)], u64), after: (&[(u32, u64)], u64), milliseconds: u64) {
        let time = |(threads, process): (&[(u32, u64)], u64)| CpuTime {
            threads: threads.iter().map(|(thread, time)| (*thread, time * 1_000_000)).collect(),
            process: Duration::from_millis(process),
        };
        assert_eq!(time(after).since(&time(before)), Duration::from_millis(milliseconds));
    }

    #[test]
    fn threads_that_end_do_not_make_time_run_backwards() {
        check((&[(1, 100), (2, 7)], 100), (&[(1, 155), (2, 9)], 150), 57);
        check((&[(1, 100), (2, 900)], 1000), (&[(1, 155)], 1060), 55);
        check((&[(1, 100), (2, 900)], 1000), (&[(1, 155)], 1400), 400);
        check((&[], 100), (&[], 110), 10);
    }

    #[test]
    fn the_work_of_an_ended_thread_counts() {
        let pid = std::process::id();
        let before = cpu(pid).unwrap();
        // The time of this thread alone, since other tests run in the same process.
        let on_cpu = || {
            let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
        };
        std::thread::spawn(move || while on_cpu() < Duration::from_millis(100) {}).join().unwrap();
        assert!(cpu(pid).unwrap().since(&before) >= Duration::from_millis(80));
        assert!(memory(pid).unwrap().rss > 0);
    }
}
