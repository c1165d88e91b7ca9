//! The Unix socket of the gateway.
//!
//! Only the gateway's user can reach the socket: its directory has mode 0700 and the socket has mode 0600. The gateway
//! also checks the uid of each peer, because a mount or a later `chmod` can open the directory.
//!
//! A killed gateway leaves its socket file behind. The next one removes a file only if it is a socket of the same user
//! without a server. A lock on the directory keeps two starting gateways from taking the socket from each other.

use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use goblin_telemetry::{Event, Observe};
use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

const ROOT: u32 = 0;
/// The mode bits that give access to other users.
const OTHERS: u32 = 0o077;
/// The umask that gives a new socket the mode 0600.
const SOCKET_UMASK: u32 = 0o177;

/// The reason why the gateway cannot listen on a Unix socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{} has no directory; write gateway.socket as an absolute path", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not a directory; choose another gateway.socket", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} belongs to another user; choose a directory of your own for gateway.socket", .0.display())]
    ForeignDirectory(PathBuf),
    #[error(
        "other users can enter {} (mode {mode:03o}), so the socket is not safe there; make it private (chmod 700 {}) \
         or choose another gateway.socket", directory.display(), directory.display()
    )]
    OpenDirectory { directory: PathBuf, mode: u32 },
    #[error("{} exists and is not a socket; remove it or choose another gateway.socket", .0.display())]
    NotASocket(PathBuf),
    #[error("the socket {} belongs to another user; choose another gateway.socket", .0.display())]
    ForeignSocket(PathBuf),
    #[error("another gateway serves at {}; end it or choose another gateway.socket", .0.display())]
    Served(PathBuf),
    #[error("cannot {action} {}: {error}; choose another gateway.socket", path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
}

/// The state of a path on which a gateway can listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketPathState {
    /// There is no file.
    Vacant,
    /// There is a socket of this user without a server.
    Dead,
}

/// A listening socket. Dropping it removes its file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// The device and inode of the file. The open listener keeps the system from reusing the inode.
    file: (u64, u64),
    has_rejected: AtomicBool,
}

impl SocketListener {
    /// Listens on a Unix socket. Creates its directory with mode 0700 if it is missing.
    ///
    /// The umask applies to the whole process, so the caller must not start other work before this returns.
    pub fn bind(path: &Path) -> Result<SocketListener, SocketError> {
        let failed = |action, error| SocketError::Io { action, path: path.to_owned(), error };
        let directory = parent(path)?;
        check_directory(directory)?;
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(directory) {
            let action = "create the directory";
            return Err(SocketError::Io { action, path: directory.to_owned(), error });
        }
        let lock = File::open(directory).map_err(|error| failed("lock the directory of", error))?;
        lock.lock().map_err(|error| failed("lock the directory of", error))?;
        if examine(path)? == SocketPathState::Dead {
            std::fs::remove_file(path).map_err(|error| failed("remove the dead socket", error))?;
        }
        let before = umask(Mode::from_raw_mode(SOCKET_UMASK));
        let bound = std::os::unix::net::UnixListener::bind(path);
        umask(before);
        let listener = bound.map_err(|error| failed("listen on", error))?;
        let file = std::fs::symlink_metadata(path).map_err(|error| failed("read", error))?;
        listener.set_nonblocking(true).map_err(|error| failed("listen on", error))?;
        let listener = UnixListener::from_std(listener).map_err(|error| failed("listen on", error))?;
        Ok(SocketListener {
            listener,
            path: path.to_owned(),
            file: file_id(&file),
            has_rejected: AtomicBool::default(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a connection of the same user or of root. Closes connections of other users at once.
    pub async fn accept(&self, observe: &Observe) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred().map(|peer| peer.uid());
            if uid.as_ref().is_ok_and(|uid| is_permitted(*uid, geteuid().as_raw())) {
                return Ok(stream);
            }
            let reason = uid.map_or_else(
                |error| format!("the uid of the process is unknown: {error}"),
                |uid| format!("the uid of the process is {uid}"),
            );
            let repeated = self.has_rejected.swap(true, Ordering::Relaxed);
            observe.emit(&Event::PeerRejected { reason: &reason, repeated });
        }
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        let lock = self.path.parent().and_then(|directory| File::open(directory).ok());
        // Another gateway holds the lock because it is starting. Keep the file, and the next start removes it.
        if lock.as_ref().is_some_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock))) {
            return;
        }
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| file_id(&found) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Checks whether a gateway can listen on this path, without changes. Returns an error with a remedy if it cannot.
pub fn examine(path: &Path) -> Result<SocketPathState, SocketError> {
    check_directory(parent(path)?)?;
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SocketPathState::Vacant),
        Err(error) => return Err(SocketError::Io { action: "read", path: path.to_owned(), error }),
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(SocketError::ForeignSocket(path.to_owned()));
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(SocketPathState::Dead),
        // A server with a full queue of connections is alive as well.
        Ok(()) => Err(SocketError::Served(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketError::Served(path.to_owned())),
        Err(error) => Err(SocketError::Io { action: "connect to", path: path.to_owned(), error }),
    }
}

/// Returns an error unless the directory is private or missing.
fn check_directory(directory: &Path) -> Result<(), SocketError> {
    let found = match std::fs::symlink_metadata(directory) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(SocketError::Io { action: "read", path: directory.to_owned(), error }),
    };
    let directory = directory.to_owned();
    match found.mode() & OTHERS {
        _ if !found.is_dir() => Err(SocketError::NotADirectory(directory)),
        _ if found.uid() != geteuid().as_raw() => Err(SocketError::ForeignDirectory(directory)),
        0 => Ok(()),
        _ => Err(SocketError::OpenDirectory { directory, mode: found.mode() & 0o777 }),
    }
}

/// Connects without waiting for a server that does not accept.
fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

fn parent(path: &Path) -> Result<&Path, SocketError> {
    path.parent().filter(|parent| parent.is_absolute()).ok_or_else(|| SocketError::NoDirectory(path.to_owned()))
}

fn file_id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Reports whether a process with this uid may use the socket of a gateway with the uid `own`.
fn is_permitted(uid: u32, own: u32) -> bool {
    uid == own || uid == ROOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard10_only_the_own_user_and_root_may_connect() {
        for (uid, own, expected) in
            [(1000, 1000, true), (0, 1000, true), (0, 0, true), (1001, 1000, false), (1000, 0, false)]
        {
            assert_eq!(is_permitted(uid, own), expected, "uid {uid} at a gateway of {own}");
        }
    }
}
