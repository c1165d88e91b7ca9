//! A stdio backend's process, seen from the gateway: started through the [`guard`](super::guard), watched, ended.
//!
//! [`spawn`] gives the three pipes to whoever speaks the protocol and a [`Process`] to whoever decides how long it
//! lives. A task per process owns the guard: it notices the guard's end, however it came about, kills what is left of
//! the process group and takes the exit status, so that nothing depends on somebody waiting. Dropping the `Process`
//! ends the group as well.
//!
//! It does not restart anything, reads no output and knows no protocol.
//!
//! Invariant: a process group is signalled only while its guard is not yet reaped. Until then the kernel cannot give
//! the number to somebody else; hence the look with `WNOWAIT` before the wait that reaps.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, PipeWriter};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::upstream::{descriptors, guard};
use goblin_config::expand::Expanded;
use goblin_config::inherit::Inherit;
use goblin_config::{Transport, mask};
use goblin_telemetry::worker;

/// How long a command may take to end by itself after its stdin was closed.
pub const VOLUNTARY_GRACE: Duration = Duration::from_secs(1);
/// What the guard may need beyond its own graces before we end it too.
const GUARD_SLACK: Duration = Duration::from_secs(2);

/// Beginnings of ids and programs that say nothing about a server, and the shortest one that does.
const COMMON_WORDS: [&str; 9] = ["mcp", "server", "node", "npx", "npm", "python", "python3", "uvx", "docker"];
const SHORTEST_PREFIX: usize = 3;
/// How many variables a failure names.
const MAX_MISSED: usize = 3;
/// Where the C library looks when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// One guard is started at a time. Its end of the watch pipe must be inheritable for a moment, and where pipes cannot
/// be made close-on-exec in one step (macOS) so is ours: a second guard started in that moment would keep it open and
/// with it the first guard's group.
static STARTING: Mutex<()> = Mutex::new(());

/// A program with its arguments. The environment holds the variables of the gateway that `inherit` passes, then `env`, which wins. A
/// `program` with a slash is relative to `cwd`; one without is looked up in the `PATH` of that environment.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    pub program: Expanded,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub inherit: Inherit,
    pub cwd: PathBuf,
}

impl Command {
    /// Returns what a server of the configuration runs; nothing where the gateway starts no process for it.
    pub fn of(transport: &Transport) -> Option<Command> {
        let Transport::Stdio { command, args, env, inherit, cwd } = transport else { return None };
        Some(Command {
            program: command.clone(),
            args: args.iter().map(|argument| argument.value().to_owned()).collect(),
            env: env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
            inherit: inherit.clone(),
            cwd: cwd.clone(),
        })
    }

    /// Returns the gateway's variables that the command gets.
    fn inherited(&self) -> impl Iterator<Item = (OsString, OsString)> {
        std::env::vars_os().filter(|(name, _)| self.inherit.passes(name))
    }

    /// Returns variables that are set here, that the command does not get and that a server of this id may need: its last
    /// lines name them, or they begin like its id or its program.
    pub fn missed(&self, id: &str, last_lines: &[String]) -> Vec<String> {
        // A value that the command gets under another name is not missed.
        let given = |value: &OsString| self.env.iter().any(|(_, own)| own.as_str() == value.as_os_str());
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty() && !given(value));
        missed(self, id, last_lines, set.filter_map(|(name, _)| name.into_string().ok()))
    }
}

/// A started backend: its pipes and its life.
#[derive(Debug)]
pub struct Child {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
    pub process: Process,
}

/// The right to end a process group. Dropping it ends the group.
#[derive(Debug)]
pub struct Process {
    id: u32,
    /// Never sent to: to drop it is the order to end.
    leash: Option<oneshot::Sender<Infallible>>,
    exit: watch::Receiver<Option<Exit>>,
}

/// How the command ended. The guard passes a signal on as an exit code above [`guard::SIGNAL_OFFSET`], as shells do,
/// so a command that exits with such a code of its own is taken for signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// Why nothing was started. All but the last two are for the operator to mend; trying again does not help.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("command {command:?} not found (is it installed and on PATH? an absolute path always works)")]
    NotFound { command: String, path: OsString },
    #[error("{command} is not executable (chmod +x?)")]
    NotExecutable { command: String },
    #[error("working directory {}: {source} (check cwd in the configuration)", path.display())]
    WorkingDirectory { path: PathBuf, source: io::Error },
    #[error("cannot start the guard {}: {source}", path.display())]
    Guard { path: PathBuf, source: io::Error },
    #[error("cannot set up the pipes of the command: {0}")]
    Setup(#[from] io::Error),
}

/// Starts `command` in a process group of its own, led by a guard run from `guard_exe` (see [`own_executable`]).
///
/// Must be called within a Tokio runtime that drives I/O and time.
pub fn spawn(guard_exe: &Path, command: &Command) -> Result<Child, SpawnError> {
    check(command)?;
    // Before the guard starts, so that no exit is missed.
    let exits = signal(SignalKind::child())?;
    let (mut guard, pipe) = start_guard(guard_exe, command)?;
    let stdin = guard.stdin.take().expect("stdin was asked for as a pipe");
    let stdout = guard.stdout.take().expect("stdout was asked for as a pipe");
    let stderr = guard.stderr.take().expect("stderr was asked for as a pipe");

    let id = guard.id();
    let (leash, dropped) = oneshot::channel();
    let (report, exit) = watch::channel(None);
    worker::spawn(async move {
        let exit = supervise(guard, exits, pipe, dropped).await;
        report.send_replace(Some(exit));
    });
    // From here on an early return ends the group.
    let process = Process { id, leash: Some(leash), exit };
    Ok(Child {
        stdin: ChildStdin::from_std(stdin)?,
        stdout: ChildStdout::from_std(stdout)?,
        stderr: ChildStderr::from_std(stderr)?,
        process,
    })
}

/// The path of this program for [`spawn`]. On Linux it stays the version that is running when the file is replaced.
pub fn own_executable() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl Process {
    /// The guard's process id, which is the id of the process group.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the command has ended and nothing of its group is left. May be cancelled and called again.
    pub async fn wait(&mut self) -> Exit {
        match self.exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.expect("waited for an exit"),
            // The task is gone because the runtime is going; the guard kills the group now.
            Err(_) => Exit::Signal(Signal::KILL.as_raw()),
        }
    }

    /// Ends the group in order. The caller has closed stdin, which is MCP's way to say goodbye; after
    /// [`VOLUNTARY_GRACE`] the guard sends SIGTERM, after [`guard::TERM_GRACE`] SIGKILL. Returns when all are gone,
    /// and in any case after the sum of the graces.
    pub async fn end(mut self) {
        if timeout(VOLUNTARY_GRACE, self.wait()).await.is_ok() {
            return;
        }
        self.leash = None;
        // Longer than the task's own patience with the guard. Only a process stuck in the kernel outlasts it.
        let _ = timeout(guard_patience() + GUARD_SLACK, self.wait()).await;
    }
}

/// Owns the guard until it is reaped. Runs whether or not anybody waits.
async fn supervise(
    mut guard: std::process::Child,
    mut exits: SignalStream,
    pipe: PipeWriter,
    dropped: oneshot::Receiver<Infallible>,
) -> Exit {
    let id = Pid::from_child(&guard);
    tokio::select! {
        biased;
        () = exited(id, &mut exits) => {}
        _ = dropped => {
            drop(pipe);
            if timeout(guard_patience(), exited(id, &mut exits)).await.is_err() {
                // While it ends the group, the guard is not a member of it.
                let _ = rustix::process::kill_process(id, Signal::KILL);
                exited(id, &mut exits).await;
            }
        }
    }
    // What the guard could not end because it was killed itself.
    let _ = rustix::process::kill_process_group(id, Signal::KILL);
    match guard.wait() {
        Ok(status) => Exit::from(status),
        // Somebody else reaped it; there is no status to be had.
        Err(_) => Exit::Signal(Signal::KILL.as_raw()),
    }
}

fn guard_patience() -> Duration {
    guard::TERM_GRACE + guard::KILL_GRACE + GUARD_SLACK
}

async fn exited(guard: Pid, exits: &mut SignalStream) {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = rustix::process::waitid(WaitId::Pid(guard), look) {
        exits.recv().await;
    }
}

fn start_guard(guard_exe: &Path, command: &Command) -> Result<(std::process::Child, PipeWriter), SpawnError> {
    let in_guard = |source| SpawnError::Guard { path: guard_exe.to_owned(), source };
    // A relative path would be looked up in the command's working directory.
    let mut guard = std::process::Command::new(std::path::absolute(guard_exe).map_err(in_guard)?);

    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let (reader, writer) = io::pipe()?;
    rustix::io::fcntl_setfd(&reader, FdFlags::empty()).map_err(io::Error::from)?;
    let guard = guard
        .args([guard::MODE, &reader.as_raw_fd().to_string()])
        .args(descriptors::inherited().map(|limit| limit.to_string()))
        .arg("--")
        .arg(command.program.value())
        .args(&command.args)
        // The guard runs with the command's environment: others can read it while the guard lives.
        .env_clear()
        .envs(command.inherited())
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&command.cwd)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(in_guard)?;
    drop((reader, starting));
    Ok((guard, writer))
}

/// Says beforehand what the guard could only say by an exit code.
pub fn check(command: &Command) -> Result<(), SpawnError> {
    let is_directory = std::fs::metadata(&command.cwd).and_then(|it| match it.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    is_directory.map_err(|source| SpawnError::WorkingDirectory { path: command.cwd.clone(), source })?;

    let own_path = command.env.iter().rfind(|(name, _)| name == "PATH");
    let path = match own_path {
        Some((_, path)) => OsString::from(path),
        None => std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()),
    };
    let program = command.program.value();
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![command.cwd.join(program)]
    } else if program.is_empty() {
        Vec::new()
    } else {
        std::env::split_paths(&path).map(|directory| command.cwd.join(directory).join(program)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(file) if !file.is_file() => {}
            Ok(file) if file.permissions().mode() & 0o111 != 0 => return Ok(()),
            Ok(_) => refused = Some(candidate),
            Err(_) => {}
        }
    }
    // As it was written: the value may hold a secret.
    let written = mask::text(command.program.written());
    Err(match refused {
        Some(path) if program == written => SpawnError::NotExecutable { command: path.display().to_string() },
        Some(_) => SpawnError::NotExecutable { command: written },
        None => SpawnError::NotFound { command: written, path },
    })
}

fn missed(command: &Command, id: &str, last_lines: &[String], set: impl Iterator<Item = String>) -> Vec<String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let named: BTreeSet<&str> = last_lines.iter().flat_map(|line| line.split(|letter| !is_letter(letter))).collect();
    let program = Path::new(command.program.value()).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let words = id.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words = words.chain(program.split(|letter: char| !letter.is_ascii_alphanumeric()));
    let words = words.filter(|word| word.len() >= SHORTEST_PREFIX && !COMMON_WORDS.contains(word));
    let prefixes: Vec<String> = words.map(|word| format!("{}_", word.to_ascii_uppercase())).collect();
    let is_wanted = |name: &str| named.contains(name) || prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_given =
        |name: &str| command.inherit.passes(OsStr::new(name)) || command.env.iter().any(|(own, _)| own == name);
    let names = set.filter(|name| is_wanted(name) && !is_given(name) && command.inherit.may_name(name));
    let names: BTreeSet<String> = names.collect();
    names.into_iter().take(MAX_MISSED).collect()
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
        match (status.code(), status.signal()) {
            (Some(code), _) if SIGNALS.contains(&(code - guard::SIGNAL_OFFSET)) => {
                Exit::Signal(code - guard::SIGNAL_OFFSET)
            }
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(Signal::KILL.as_raw())),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

/// Without the values of arguments and variables: those are where secrets are.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Command")
            .field("program", &self.program)
            .field("args", &format_args!("{} of them", self.args.len()))
            .field("env", &names)
            .field("cwd", &self.cwd)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d19_variables_that_a_failed_server_may_need_are_named() {
        let command = Command {
            program: "/usr/bin/acme-mcp".into(),
            args: Vec::new(),
            env: vec![("GIT_HUB".to_owned(), "x".to_owned())],
            inherit: Inherit::default(),
            cwd: "/".into(),
        };
        let set =
            ["GITHUB_TOKEN", "ACME_KEY", "PLAIN", "GOBLIN_TOKEN", "PATH", "GIT_HUB", "MCP_X", "OTHER", "bad name"];
        let lines = ["error: PLAIN is not set, nor GOBLIN_TOKEN, PATH, GIT_HUB".to_owned()];
        let missed = |id, lines: &[String]| missed(&command, id, lines, set.into_iter().map(str::to_owned));
        assert_eq!(missed("my-github", &lines), ["ACME_KEY", "GITHUB_TOKEN", "PLAIN"]);
        assert_eq!(missed("x", &[]), ["ACME_KEY"]);
        assert_eq!(missed("x", &["no PLAINER".to_owned()]), ["ACME_KEY"]);
    }
}
