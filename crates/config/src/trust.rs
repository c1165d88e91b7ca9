//! Checks that only the user and root can change a file: the configuration, or a file of the vault.
//!
//! An attacker with write access to the configuration, or to its path, runs commands as the user. The file and every
//! directory and symbolic link on its path must therefore belong to the user or to root. Others must not be able to
//! write them.
//!
//! Three cases are exempt: a sticky directory, a read-only mount, and a group with no other member than the user. Others
//! cannot replace the user's files in a sticky directory. [`check_node`] decides and is pure, [`examine`] accesses the disk.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, lgetxattr_query, statvfs};
use rustix::process::{getegid, geteuid};

use crate::bounded;
use crate::problem::Fault;

const STICKY: u32 = 0o1000;
const GROUP_WRITE: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// The limit of symbolic links, as in the kernel.
const MAX_LINKS: usize = 40;
/// The size limit for the databases of users and groups.
const MAX_DATABASE: u64 = 16 << 20;
/// The default owner id of files of users that are unknown in a user namespace.
const OVERFLOW_UID: u32 = 65534;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeKind {
    File,
    Directory,
    Link,
}

/// One file, directory or link on the path.
#[derive(Clone, Copy, Debug)]
struct PathNode {
    kind: NodeKind,
    owner: u32,
    group: u32,
    mode: u32,
    /// Whether the mount is read-only, which overrides the mode.
    is_read_only: bool,
    /// Whether the node has an access control list. The group bits then also cover the users and groups in the list.
    has_access_list: bool,
}

/// The user that the process runs as.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    /// The user's group, if it has no other member.
    private_group: Option<u32>,
    /// The owner that a user namespace shows for all unknown users, including root of the host.
    unknown_owner: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Owner(u32),
    Mode(u32),
}

/// The first node on the path to a file that another user can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrustedPath {
    path: PathBuf,
    kind: NodeKind,
    flaw: Flaw,
    uid: u32,
}

fn check_node(node: &PathNode, user: &User) -> Option<Flaw> {
    if node.is_read_only {
        return None;
    }
    let is_unknown = node.kind == NodeKind::Directory && user.unknown_owner == Some(node.owner);
    if node.owner != 0 && node.owner != user.uid && !is_unknown {
        return Some(Flaw::Owner(node.owner));
    }
    let is_sticky = node.kind == NodeKind::Directory && node.mode & STICKY != 0;
    if node.kind == NodeKind::Link || is_sticky {
        return None;
    }
    let is_private = user.private_group == Some(node.group) && !node.has_access_list;
    let forbidden = if is_private { OTHERS_WRITE } else { OTHERS_WRITE | GROUP_WRITE };
    (node.mode & forbidden != 0).then_some(Flaw::Mode(node.mode & 0o7777))
}

/// Returns the first flaw on the path to the file. The file may not exist yet. Returns an error if the path cannot be
/// examined.
pub fn examine(path: &Path) -> std::io::Result<Option<UntrustedPath>> {
    let user = User::current();
    let mut here = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = parts(&std::path::absolute(path)?);
    let mut links = 0;
    let untrusted_node = |path: &Path, node: &PathNode| {
        let flaw = check_node(node, &user)?;
        Some(UntrustedPath { path: path.to_owned(), kind: node.kind, flaw, uid: user.uid })
    };
    if let Some(untrusted) = untrusted_node(&here, &inspect(&here, &here)?) {
        return Ok(Some(untrusted));
    }
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        let node = match inspect(&next, &here) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        if let Some(untrusted) = untrusted_node(&next, &node) {
            return Ok(Some(untrusted));
        }
        if node.kind != NodeKind::Link {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = next.read_link()?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        let mut before = parts(&target);
        before.append(&mut rest);
        rest = before;
    }
    Ok(None)
}

/// Returns the names in a path, without the root and without `.`.
fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| part.as_os_str().to_owned()).collect()
}

/// Examines one node. `directory` is its parent, which determines the mount of a symbolic link.
fn inspect(path: &Path, directory: &Path) -> std::io::Result<PathNode> {
    let found = path.symlink_metadata()?;
    let kind = match found.file_type() {
        kind if kind.is_symlink() => NodeKind::Link,
        kind if kind.is_dir() => NodeKind::Directory,
        _ => NodeKind::File,
    };
    let mounted = if kind == NodeKind::Link { directory } else { path };
    let is_read_only = statvfs(mounted).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    let has_access_list = lgetxattr_query(path, "system.posix_acl_access").is_ok();
    Ok(PathNode { kind, owner: found.uid(), group: found.gid(), mode: found.mode(), is_read_only, has_access_list })
}

impl User {
    fn current() -> User {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let text = |path: &str| bounded::read_open(Path::new(path), MAX_DATABASE).map(|(bytes, _)| bytes);
        let text = |path: &str| text(path).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let is_private = is_private(gid, uid, &text("/etc/passwd"), &text("/etc/group"));
        let known = text("/proc/self/uid_map");
        let is_namespace = !known.is_empty() && known.split_whitespace().ne(["0", "0", "4294967295"]);
        let overflow = || text("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW_UID);
        User { uid, private_group: is_private.then_some(gid), unknown_owner: is_namespace.then(overflow) }
    }
}

/// Reports whether the group has no member besides the user and root. Returns `false` for a group that the local files
/// do not list, because it may have other members.
fn is_private(gid: u32, uid: u32, passwd: &str, group: &str) -> bool {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let number = |fields: &[String], at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok());
    let users: Vec<_> = passwd.lines().map(fields).collect();
    let is_own = |user: &[String]| matches!(number(user, 2), Some(id) if id == uid || id == 0);
    let is_shared = users.iter().any(|user| number(user, 3) == Some(gid) && !is_own(user));
    let own_names: Vec<&String> = users.iter().filter(|user| is_own(user)).filter_map(|user| user.first()).collect();
    let Some(entry) = group.lines().map(fields).find(|entry| number(entry, 2) == Some(gid)) else { return false };
    let members = entry.get(3).map_or("", String::as_str).split(',').filter(|member| !member.is_empty());
    !is_shared && members.into_iter().all(|member| own_names.iter().any(|own| *own == member))
}

impl UntrustedPath {
    pub(crate) fn fault(&self) -> Fault {
        let (flaw, cure) = self.flaw_and_cure();
        Fault::new(format!("the file names commands to run and {flaw}")).cure(cure)
    }

    /// Returns the flaw and the commands that cure it. The flaw names a directory or link, but not the file itself.
    pub fn flaw_and_cure(&self) -> (String, String) {
        let (place, uid) = (self.path.display(), self.uid);
        let quoted = shell_path(&self.path.display().to_string());
        let write = format!("chmod go-w {quoted}");
        let chown = format!("or as root: chown {uid} {quoted}");
        match (self.kind, self.flaw) {
            (NodeKind::File, Flaw::Mode(mode)) => (format!("others can change it (mode {mode:03o})"), write),
            (_, Flaw::Mode(mode)) => (format!("others can write {place} (mode {mode:03o})"), write),
            (NodeKind::File, Flaw::Owner(owner)) => {
                (format!("belongs to another user ({owner})"), format!("copy it, {chown}"))
            }
            (NodeKind::Directory, Flaw::Owner(owner)) => {
                (format!("{place} belongs to another user ({owner})"), format!("use your own directory, {chown}"))
            }
            (NodeKind::Link, Flaw::Owner(owner)) => {
                let cure = format!("name the file itself, or as root: chown -h {uid} {quoted}");
                (format!("the link {place} belongs to user {owner}"), cure)
            }
        }
    }
}

/// Returns a path as an argument for a shell command, quoted if necessary.
pub fn shell_path(path: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-".contains(character);
    if path.chars().all(plain) && !path.starts_with('-') {
        path.to_owned()
    } else {
        format!("-- '{}'", path.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: User = User { uid: 1000, private_group: Some(1000), unknown_owner: None };
    const FILE: PathNode = PathNode {
        kind: NodeKind::File,
        owner: 1000,
        group: 1000,
        mode: 0o100_600,
        is_read_only: false,
        has_access_list: false,
    };
    const DIRECTORY: PathNode = PathNode { kind: NodeKind::Directory, mode: 0o040_755, ..FILE };
    const LINK: PathNode = PathNode { kind: NodeKind::Link, mode: 0o120_777, ..FILE };

    #[test]
    fn hard9_only_the_user_and_root_are_trusted_owners() {
        for node in [FILE, DIRECTORY, LINK] {
            assert_eq!(check_node(&node, &USER), None);
            assert_eq!(check_node(&PathNode { owner: 0, ..node }, &USER), None);
            assert_eq!(check_node(&PathNode { owner: 1001, ..node }, &USER), Some(Flaw::Owner(1001)));
            // Root does not trust other users either.
            let root = User { uid: 0, private_group: Some(0), unknown_owner: None };
            assert_eq!(check_node(&node, &root), Some(Flaw::Owner(1000)));
            assert_eq!(check_node(&PathNode { owner: 1001, is_read_only: true, ..node }, &USER), None);
        }
        // The owner of a sticky directory can replace the files in it.
        assert_eq!(check_node(&PathNode { owner: 1001, mode: 0o041_777, ..DIRECTORY }, &USER), Some(Flaw::Owner(1001)));
    }

    #[test]
    fn hard9_a_path_that_others_can_write_is_not_trusted() {
        let check = |node: PathNode, expected: Option<u32>| {
            assert_eq!(check_node(&node, &USER), expected.map(Flaw::Mode), "{node:?}");
        };
        check(PathNode { mode: 0o100_644, ..FILE }, None);
        check(PathNode { mode: 0o100_602, ..FILE }, Some(0o602));
        check(PathNode { mode: 0o040_777, ..DIRECTORY }, Some(0o777));
        check(PathNode { mode: 0o041_777, ..DIRECTORY }, None);
        // The sticky bit of a file protects nothing.
        check(PathNode { mode: 0o101_666, ..FILE }, Some(0o1666));
        check(PathNode { mode: 0o100_666, is_read_only: true, ..FILE }, None);
        check(PathNode { mode: 0o100_660, ..FILE }, None);
        check(PathNode { mode: 0o100_660, group: 100, ..FILE }, Some(0o660));
        check(PathNode { mode: 0o040_775, group: 100, ..DIRECTORY }, Some(0o775));
        check(PathNode { mode: 0o100_660, has_access_list: true, ..FILE }, Some(0o660));
    }

    #[test]
    fn hard9_directories_above_a_user_namespace_are_trusted_unless_others_can_write_them() {
        let user = User { unknown_owner: Some(OVERFLOW_UID), ..USER };
        let outside = PathNode { owner: OVERFLOW_UID, group: OVERFLOW_UID, ..DIRECTORY };
        assert_eq!(check_node(&outside, &user), None);
        assert_eq!(check_node(&outside, &USER), Some(Flaw::Owner(OVERFLOW_UID)));
        assert_eq!(check_node(&PathNode { mode: 0o040_777, ..outside }, &user), Some(Flaw::Mode(0o777)));
        assert_eq!(check_node(&PathNode { kind: NodeKind::File, ..outside }, &user), Some(Flaw::Owner(OVERFLOW_UID)));
    }

    #[test]
    fn hard9_a_group_is_private_if_it_has_no_other_member() {
        let passwd = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/:/bin/sh\nyou:x:1001:100::/:/bin/sh\n";
        let check = |gid: u32, group: &str, expected: bool| {
            assert_eq!(is_private(gid, 1000, passwd, group), expected, "{gid} {group}");
        };
        check(1000, "me:x:1000:\n", true);
        check(1000, "root:x:0:\nteam:x:1000:me,root\n", true);
        check(1000, "me:x:1000:you\n", false);
        check(1000, "me:x:1000:me,stranger\n", false);
        // The primary group of another user. The member list does not repeat that user.
        check(100, "users:x:100:\n", false);
        // Containers often run a user without a name in the group of root.
        assert!(is_private(0, 4711, passwd, "root:x:0:\n"));
        // Groups of a directory service have members that these files do not list.
        check(1000, "root:x:0:\n", false);
        check(1000, "", false);
    }

    #[test]
    fn a_shell_path_is_quoted_where_necessary() {
        assert_eq!(shell_path("/etc/goblin.json"), "/etc/goblin.json");
        assert_eq!(shell_path("my file's"), r"-- 'my file'\''s'");
        assert_eq!(shell_path("-x"), "-- '-x'");
    }
}
