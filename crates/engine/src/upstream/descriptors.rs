//! The limit on open descriptors: raised for the gateway, restored for the commands that it starts.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The gateway raises its soft limit up to this. Some programs close every descriptor up to the limit one by one, so a larger
/// limit has a price.
const MAX_DESCRIPTORS: u64 = 65_536;

/// The soft limit that this process had before [`raise`], if that changed it.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit to the hard limit, at most to [`MAX_DESCRIPTORS`]. Returns the limit in force, `None` if there is
/// none.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = raised(limit);
    // If the system refuses, the old limit stays and fewer clients have room.
    if wanted != limit.current && setrlimit(Resource::Nofile, Rlimit { current: wanted, ..limit }).is_ok() {
        limit.current.map(|current| INHERITED.get_or_init(|| current));
    }
    getrlimit(Resource::Nofile).current
}

/// Returns the soft limit that a gateway has after [`raise`].
pub fn raised(limit: Rlimit) -> Option<u64> {
    let target = limit.maximum.map_or(MAX_DESCRIPTORS, |maximum| maximum.min(MAX_DESCRIPTORS));
    limit.current.map(|current| current.max(target))
}

/// Returns the soft limit that commands get instead of the gateway's own.
pub fn inherited() -> Option<u64> {
    INHERITED.get().copied()
}

/// Sets the soft limit of this process back. The hard limit stays, so the command may raise it again.
pub fn restore(current: u64) {
    let limit = Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
    // A lower soft limit is always allowed; a command that keeps the higher one runs as well.
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
