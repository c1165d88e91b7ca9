//! The processes above this one, on Linux. Other systems report none.

/// The limit of processes to look at. Process ids may be reused while this module reads them.
#[cfg(target_os = "linux")]
const MAX_PROCESSES: usize = 256;
/// The beginning of the name of a guard. A guard is the same program as a gateway, but starts no servers.
#[cfg(target_os = "linux")]
const GUARD: &str = "guard:";

/// Returns the number of gateways among the parent of this process, the parent of the parent, and so on.
#[cfg(target_os = "linux")]
pub(super) fn gateways_above() -> usize {
    let own = std::fs::metadata("/proc/self/exe").ok();
    let mut next = Some(std::os::unix::process::parent_id());
    let parents = std::iter::from_fn(|| {
        let process = Process::read(next.filter(|id| *id > 1)?)?;
        next = Some(process.parent);
        Some(process)
    });
    parents.take(MAX_PROCESSES).filter(|process| process.is_gateway(own.as_ref())).count()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn gateways_above() -> usize {
    0
}

/// A line of `/proc/PID/stat`.
#[cfg(target_os = "linux")]
#[derive(Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    name: String,
}

#[cfg(target_os = "linux")]
impl Process {
    fn read(id: u32) -> Option<Process> {
        Process::parse(id, &std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// Reads the name and the parent. The name, in parentheses, may contain any character.
    fn parse(id: u32, stat: &str) -> Option<Process> {
        let (head, rest) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let parent = rest.split(' ').nth(1)?.parse().ok()?;
        Some(Process { id, parent, name })
    }

    /// Reports whether the process runs Goblin and is not a guard. `own` is the file of this program, which may have
    /// another name. A process of another user hides its file, so its name decides.
    fn is_gateway(&self, own: Option<&std::fs::Metadata>) -> bool {
        use std::os::unix::fs::MetadataExt;

        let file = std::fs::metadata(format!("/proc/{}/exe", self.id)).ok();
        let is_own =
            |(file, own): (std::fs::Metadata, &std::fs::Metadata)| (file.dev(), file.ino()) == (own.dev(), own.ino());
        !self.name.starts_with(GUARD) && (self.name == "goblin" || file.zip(own).is_some_and(is_own))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn use1_the_parent_of_a_process_with_any_name_is_found() {
        let check = |stat: &str, parent, name: &str| {
            assert_eq!(Process::parse(7, stat), Some(Process { id: 7, parent, name: name.to_owned() }));
        };
        check("7 (goblin) S 5 7 7 0", 5, "goblin");
        check("7 (a) R 9 (b) S 5 7 7 0", 5, "a) R 9 (b");
        assert_eq!(Process::parse(7, ""), None);
        let parent = Process::read(std::os::unix::process::parent_id()).expect("the parent runs");
        assert!(!parent.is_gateway(None), "{parent:?}");
        let own = Process::read(std::process::id()).expect("this process runs");
        assert!(own.is_gateway(std::fs::metadata("/proc/self/exe").ok().as_ref()), "{own:?}");
        assert!(gateways_above() < 8);
    }
}
