//! The process of a stdio backend, seen from the gateway: started through the [`guard`](super::guard), watched and
//! ended.
//!
//! [`spawn`] returns the three pipes for the protocol and a [`ProcessGroup`] that controls the lifetime. Each process
//! has a task that owns the guard. The task notices the guard's end, kills the rest of the process group and reaps the
//! guard, so no caller has to wait for it. Dropping the `ProcessGroup` ends the group as well. This module restarts
//! nothing, reads no output and knows no protocol.
//!
//! Invariant: the gateway signals a process group only while its guard is not yet reaped. Until then the kernel cannot
//! reuse the number. For this reason `exited` uses `WNOWAIT`, before the wait that reaps.

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
use std::time::Duration;

use goblin_config::expand::ExpandedText;
use goblin_config::inherit::Inherit;
use goblin_config::{Transport, mask};
use goblin_telemetry::worker;
use parking_lot::Mutex;
use rustix::io::FdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::upstream::{descriptors, guard};

/// The time that a command has to end by itself after its stdin was closed.
pub const VOLUNTARY_GRACE: Duration = Duration::from_secs(1);
/// The time that the guard gets beyond its own grace periods before the gateway kills it.
const GUARD_SLACK: Duration = Duration::from_secs(2);

/// Words of ids and programs that do not identify a server. A variable's prefix must come from another word.
const COMMON_WORDS: [&str; 9] = ["mcp", "server", "node", "npx", "npm", "python", "python3", "uvx", "docker"];
/// A shorter word is not used as the prefix of a variable.
const MIN_PREFIX: usize = 3;
/// The number of variables that one failure names.
const MAX_MISSING: usize = 3;
/// The search path of the C library for an environment without `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Serializes the starts of guards. The guard's end of the watch pipe is inheritable for a moment. On macOS the
/// gateway's end is too, because pipes cannot be made close-on-exec in one step. A second guard that starts in that
/// moment would keep the pipe open, and with it the first guard's group.
static STARTING: Mutex<()> = Mutex::new(());

/// A program, its arguments and its environment. The environment holds the variables of the gateway that `inherit`
/// passes, then `env`, which takes precedence. A `program` with a slash is relative to `cwd`; one without a slash is
/// looked up in the `PATH` of that environment.
#[derive(Clone, PartialEq, Eq)]
pub struct ChildCommand {
    pub program: ExpandedText,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub inherit: Inherit,
    pub cwd: PathBuf,
}

impl ChildCommand {
    /// Returns the command of a server in the configuration. Returns `None` if the transport starts no process.
    pub fn of(transport: &Transport) -> Option<ChildCommand> {
        let Transport::Stdio { command, args, env, inherit, cwd } = transport else { return None };
        Some(ChildCommand {
            program: command.clone(),
            args: args.iter().map(|argument| argument.value().to_owned()).collect(),
            env: env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
            inherit: inherit.clone(),
            cwd: cwd.clone(),
        })
    }

    /// Sets a variable of the command, whatever the configuration says.
    pub(crate) fn with_variable(mut self, name: &str, value: String) -> ChildCommand {
        self.env.push((name.to_owned(), value));
        self
    }

    /// Returns the gateway's variables that the command inherits.
    fn inherited(&self) -> impl Iterator<Item = (OsString, OsString)> {
        std::env::vars_os().filter(|(name, _)| self.inherit.passes(name))
    }

    /// Returns names of variables that are set for the gateway, that the command does not get and that the server may
    /// need. A name qualifies if the server's last lines mention it, or if it begins like the server's id or program.
    pub fn missing_variables(&self, id: &str, last_lines: &[String]) -> Vec<String> {
        // A variable is not missing if the command gets the same value under another name.
        let is_passed = |value: &OsString| self.env.iter().any(|(_, own)| own.as_str() == value.as_os_str());
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty() && !is_passed(value));
        missing_variables(self, id, last_lines, set.filter_map(|(name, _)| name.into_string().ok()))
    }
}

/// A started command: its pipes and its process.
#[derive(Debug)]
pub struct Child {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
    pub process: ProcessGroup,
}

/// The handle of a process group. Dropping it ends the group.
#[derive(Debug)]
pub struct ProcessGroup {
    id: u32,
    /// Never sent to. Dropping the sender makes the supervising task end the group.
    keep_alive: Option<oneshot::Sender<Infallible>>,
    exit: watch::Receiver<Option<Exit>>,
}

/// The way a command ended. Like a shell, the guard reports a signal as an exit code above [`guard::SIGNAL_OFFSET`]. A
/// command that exits with such a code itself is therefore reported as signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

/// The reason why no process was started. The operator must fix all but the last two; a retry does not help.
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
pub fn spawn(guard_exe: &Path, command: &ChildCommand) -> Result<Child, SpawnError> {
    check(command)?;
    // Install the handler before the guard starts, so that no exit is missed.
    let exits = signal(SignalKind::child())?;
    let (mut guard, pipe) = start_guard(guard_exe, command)?;
    let stdin = guard.stdin.take().expect("stdin is a pipe");
    let stdout = guard.stdout.take().expect("stdout is a pipe");
    let stderr = guard.stderr.take().expect("stderr is a pipe");

    let id = guard.id();
    let (keep_alive, dropped) = oneshot::channel();
    let (report, exit) = watch::channel(None);
    worker::spawn(async move {
        let exit = supervise(guard, exits, pipe, dropped).await;
        report.send_replace(Some(exit));
    });
    // From here on, an early return drops `process` and so ends the group.
    let process = ProcessGroup { id, keep_alive: Some(keep_alive), exit };
    Ok(Child {
        stdin: ChildStdin::from_std(stdin)?,
        stdout: ChildStdout::from_std(stdout)?,
        stderr: ChildStderr::from_std(stderr)?,
        process,
    })
}

/// Returns the path of this program for [`spawn`]. On Linux the path keeps naming the running version after the file is
/// replaced.
pub fn own_executable() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

impl ProcessGroup {
    /// Returns the guard's process id, which is also the id of the process group.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Waits until the command and its whole group have ended. Cancel safe: a later call continues the wait.
    pub async fn wait(&mut self) -> Exit {
        match self.exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.expect("the wait ends with an exit"),
            // The task is gone because the runtime shuts down. That closes the watch pipe, so the guard kills the
            // group.
            Err(_) => Exit::Signal(Signal::KILL.as_raw()),
        }
    }

    /// Ends the group in order. The caller must have closed stdin, which MCP defines as the signal to shut down. After
    /// [`VOLUNTARY_GRACE`] the guard sends SIGTERM, and after [`guard::TERM_GRACE`] SIGKILL. Returns when all processes
    /// are gone, or after the sum of the grace periods.
    pub async fn end(mut self) {
        if timeout(VOLUNTARY_GRACE, self.wait()).await.is_ok() {
            return;
        }
        self.keep_alive = None;
        // Longer than the task waits for the guard. Only a process stuck in the kernel takes longer.
        let _ = timeout(guard_timeout() + GUARD_SLACK, self.wait()).await;
    }
}

/// Owns the guard until it is reaped. Runs independently of any waiting caller.
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
            if timeout(guard_timeout(), exited(id, &mut exits)).await.is_err() {
                // The guard leaves the group before it ends it, so the guard must be killed by its own id.
                let _ = rustix::process::kill_process(id, Signal::KILL);
                exited(id, &mut exits).await;
            }
        }
    }
    // A guard that was killed could not end its group.
    let _ = rustix::process::kill_process_group(id, Signal::KILL);
    match guard.wait() {
        Ok(status) => Exit::from(status),
        // Another part of the process reaped the guard, so the status is lost.
        Err(_) => Exit::Signal(Signal::KILL.as_raw()),
    }
}

fn guard_timeout() -> Duration {
    guard::TERM_GRACE + guard::KILL_GRACE + GUARD_SLACK
}

/// Waits until the guard has exited, without reaping it.
async fn exited(guard: Pid, exits: &mut SignalStream) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = rustix::process::waitid(WaitId::Pid(guard), options) {
        exits.recv().await;
    }
}

fn start_guard(guard_exe: &Path, command: &ChildCommand) -> Result<(std::process::Child, PipeWriter), SpawnError> {
    let guard_error = |source| SpawnError::Guard { path: guard_exe.to_owned(), source };
    // The new process resolves a relative path in the command's working directory.
    let mut guard = std::process::Command::new(std::path::absolute(guard_exe).map_err(guard_error)?);

    let starting = STARTING.lock();
    let (reader, writer) = io::pipe()?;
    rustix::io::fcntl_setfd(&reader, FdFlags::empty()).map_err(io::Error::from)?;
    let guard = guard
        .args([guard::MODE, &reader.as_raw_fd().to_string()])
        .args(descriptors::inherited().map(|limit| limit.to_string()))
        .arg("--")
        .arg(command.program.value())
        .args(&command.args)
        // Other processes of the user can read the guard's environment, so it gets only the command's variables.
        .env_clear()
        .envs(command.inherited())
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&command.cwd)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(guard_error)?;
    drop((reader, starting));
    Ok((guard, writer))
}

/// Checks the working directory and the program before the start, because the guard could report a failure only as an
/// exit code.
pub fn check(command: &ChildCommand) -> Result<(), SpawnError> {
    let is_directory = std::fs::metadata(&command.cwd).and_then(|metadata| match metadata.is_dir() {
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
    let mut not_executable = None;
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(file) if !file.is_file() => {}
            Ok(file) if file.permissions().mode() & 0o111 != 0 => return Ok(()),
            Ok(_) => not_executable = Some(candidate),
            Err(_) => {}
        }
    }
    // Report the text as written in the configuration: the expanded value may hold a secret.
    let written = mask::program(command.program.written());
    Err(match not_executable {
        Some(path) if program == written => SpawnError::NotExecutable { command: path.display().to_string() },
        Some(_) => SpawnError::NotExecutable { command: written },
        None => SpawnError::NotFound { command: written, path },
    })
}

fn missing_variables(
    command: &ChildCommand,
    id: &str,
    last_lines: &[String],
    set: impl Iterator<Item = String>,
) -> Vec<String> {
    let is_name_character = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mentioned: BTreeSet<&str> =
        last_lines.iter().flat_map(|line| line.split(|character| !is_name_character(character))).collect();
    let program = Path::new(command.program.value()).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let words = id.split(|character: char| !character.is_ascii_alphanumeric());
    let words = words.chain(program.split(|character: char| !character.is_ascii_alphanumeric()));
    let words = words.filter(|word| word.len() >= MIN_PREFIX && !COMMON_WORDS.contains(word));
    let prefixes: Vec<String> = words.map(|word| format!("{}_", word.to_ascii_uppercase())).collect();
    let is_wanted = |name: &str| mentioned.contains(name) || prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_passed =
        |name: &str| command.inherit.passes(OsStr::new(name)) || command.env.iter().any(|(own, _)| own == name);
    let names = set.filter(|name| is_wanted(name) && !is_passed(name) && command.inherit.may_name(name));
    let names: BTreeSet<String> = names.collect();
    names.into_iter().take(MAX_MISSING).collect()
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
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Omits the values of arguments and variables, which may hold secrets.
impl fmt::Debug for ChildCommand {
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
        let command = ChildCommand {
            program: "/usr/bin/acme-mcp".into(),
            args: Vec::new(),
            env: vec![("GIT_HUB".to_owned(), "x".to_owned())],
            inherit: Inherit::default(),
            cwd: "/".into(),
        };
        let set =
            ["GITHUB_TOKEN", "ACME_KEY", "PLAIN", "GOBLIN_TOKEN", "PATH", "GIT_HUB", "MCP_X", "OTHER", "bad name"];
        let lines = ["error: PLAIN is not set, nor GOBLIN_TOKEN, PATH, GIT_HUB".to_owned()];
        let missing = |id, lines: &[String]| missing_variables(&command, id, lines, set.into_iter().map(str::to_owned));
        assert_eq!(missing("my-github", &lines), ["ACME_KEY", "GITHUB_TOKEN", "PLAIN"]);
        assert_eq!(missing("x", &[]), ["ACME_KEY"]);
        assert_eq!(missing("x", &["no PLAINER".to_owned()]), ["ACME_KEY"]);
    }
}
