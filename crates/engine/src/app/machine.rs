//! Reads the memory limit of the machine or of the process's control group.

use std::path::Path;

/// The upper limit of the default of `gateway.maxMemory`.
const MAX_DEFAULT: u64 = 4 * 1024 * 1024 * 1024;
/// The default of `gateway.maxMemory` if the memory is unknown.
const UNKNOWN_DEFAULT: u64 = 1024 * 1024 * 1024;

/// Returns the default of `gateway.maxMemory`: a quarter of the memory, at most `MAX_DEFAULT`.
pub(crate) fn default_max() -> usize {
    let read = |path: &str| std::fs::read_to_string(Path::new("/").join(path)).ok();
    let default = allowed(read).map_or(UNKNOWN_DEFAULT, |bytes| bytes / 4);
    usize::try_from(default.min(MAX_DEFAULT)).unwrap_or(usize::MAX)
}

/// Returns the minimum of the machine's memory and the limits of the control groups. Returns `None` if none is known.
fn allowed(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits_of(&read, line));
    limits.chain(read("proc/meminfo").and_then(|text| total(&text))).min()
}

fn total(text: &str) -> Option<u64> {
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kibibytes.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the limits from one line of `/proc/self/cgroup`: those of the group and of its ancestors.
fn limits_of(read: impl Fn(&str) -> Option<String>, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (mount, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    // In a container the mount may be the group itself, so the mount is always checked too.
    let groups = Path::new(group.trim_start_matches('/')).ancestors();
    let files = groups.filter_map(|group| Path::new(mount).join(group).join(file).to_str().map(str::to_owned));
    // A group without a limit contains `max`, which does not parse.
    files.filter_map(|file| read(&file)?.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        assert_eq!(allowed(read), expected, "{files:?}");
    }

    #[test]
    fn hard3_the_smallest_limit_of_machine_and_control_groups_counts() {
        let machine = ("proc/meminfo", "MemTotal:       8000 kB\nMemFree: 1 kB\n");
        check(&[], None);
        check(&[machine], Some(8_192_000));
        let unified = ("proc/self/cgroup", "0::/a/b\n");
        check(&[machine, unified], Some(8_192_000));
        check(&[machine, unified, ("sys/fs/cgroup/a/b/memory.max", "max\n")], Some(8_192_000));
        check(&[machine, unified, ("sys/fs/cgroup/a/b/memory.max", "500\n")], Some(500));
        check(&[machine, unified, ("sys/fs/cgroup/a/memory.max", "400\n")], Some(400));
        check(&[machine, unified, ("sys/fs/cgroup/memory.max", "300\n")], Some(300));
        let older = ("proc/self/cgroup", "12:cpu:/x\n5:hugetlb,memory:/a\n0::/\n");
        check(&[machine, older, ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "700\n")], Some(700));
        check(
            &[machine, older, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")],
            Some(8_192_000),
        );
    }

    #[test]
    fn hard3_the_default_is_never_more_than_four_gibibytes() {
        assert!((1..=usize::try_from(MAX_DEFAULT).expect("64 bits")).contains(&default_max()));
    }
}
