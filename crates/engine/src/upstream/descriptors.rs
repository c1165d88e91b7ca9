//! The limit on open file descriptors. The gateway raises its own limit and restores the old one for the commands that
//! it starts.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest soft limit that the gateway sets for itself. Some programs close every descriptor up to the limit one by
/// one, so a higher limit makes them slow to start.
const MAX_DESCRIPTORS: u64 = 65_536;

/// The soft limit of this process before [`raise`]. Empty if `raise` changed nothing.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit to the hard limit, up to [`MAX_DESCRIPTORS`]. Returns the limit in force. Returns `None` if
/// there is no limit.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = raised(limit);
    // If the system refuses, the old limit stays and the gateway accepts fewer clients.
    if wanted != limit.current && setrlimit(Resource::Nofile, Rlimit { current: wanted, ..limit }).is_ok() {
        limit.current.map(|current| INHERITED.get_or_init(|| current));
    }
    getrlimit(Resource::Nofile).current
}

/// Returns the soft limit that [`raise`] sets for `limit`.
pub fn raised(limit: Rlimit) -> Option<u64> {
    let target = limit.maximum.map_or(MAX_DESCRIPTORS, |maximum| maximum.min(MAX_DESCRIPTORS));
    limit.current.map(|current| current.max(target))
}

/// Returns the soft limit for commands. Returns `None` if they inherit the gateway's limit unchanged.
pub(crate) fn inherited() -> Option<u64> {
    INHERITED.get().copied()
}

/// Sets the soft limit of this process. The hard limit stays, so the command may raise the soft limit again.
pub fn restore(current: u64) {
    let limit = Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
    // The system always allows a lower soft limit. If it failed, the command would merely keep the higher one.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard5_the_soft_limit_rises_to_the_hard_one_within_a_bound_and_never_falls() {
        for (current, maximum, expected) in [
            (Some(1024), Some(4096), Some(4096)),
            (Some(1024), Some(1_048_576), Some(MAX_DESCRIPTORS)),
            (Some(1024), None, Some(MAX_DESCRIPTORS)),
            (Some(100_000), None, Some(100_000)),
            (Some(256), Some(256), Some(256)),
            (None, None, None),
        ] {
            assert_eq!(raised(Rlimit { current, maximum }), expected, "{current:?} of {maximum:?}");
        }
    }
}
