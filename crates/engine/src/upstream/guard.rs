//! The guard: a hidden mode of the gateway's binary that runs between the gateway and the command of a stdio backend.
//!
//! [`child`](super::child) starts `goblin __guard FD [DESCRIPTORS] -- COMMAND ARGS...` as the leader of a process
//! group. The guard passes its stdin, stdout and stderr to the command and closes its own copies. It then waits until
//! the command ends, the pipe `FD` closes, or the guard receives a stop signal. Only the gateway holds the write end of
//! `FD`, so the pipe also closes when the gateway dies by any signal. Finally the guard ends the whole group (SIGTERM,
//! [`TERM_GRACE`], SIGKILL) and exits with the command's status.
//!
//! On Linux the guard also ends processes that left the group (`setsid`). It is a subreaper, so the kernel makes
//! orphans its children. Killing children until none is left therefore reaches every descendant. On other systems such
//! processes survive. The guard does not read or write a byte of the protocol and restarts nothing.
//!
//! A separate process is necessary because the gateway cannot clean up after `kill -9`. Signalling only the direct
//! child would leave the grandchildren of wrappers like `npx` alive. A process group and a pipe solve both on every
//! Unix without `unsafe`.
//!
//! Three details that look odd:
//! - The guard leads the group, so the gateway can end everything by the guard's process id if the guard itself is
//!   killed. Before it ends the group, the guard moves into the gateway's group. Otherwise its own SIGKILL would hit
//!   it, and it would count itself as a member of the group. If the gateway is gone, the guard cannot move. It then
//!   kills its children one by one or, if it cannot list them, dies with its group.
//! - On Linux a second hidden step, `__guard exec PARENT -- COMMAND ARGS...`, starts the command. It asks the kernel
//!   for SIGKILL when its parent dies and then becomes the command. This covers the one case that the pipe cannot:
//!   gateway and guard are killed in the same instant. The kernel ties the signal to the parent *thread*; the guard
//!   starts the command from its main thread, which ends last. The guard also renames itself to `guard:COMMAND`. The
//!   name shows an operator its purpose and protects it from `killall -9 goblin`.
//! - The descriptor `FD` stays open and the command inherits it, because closing a descriptor by its number is
//!   `unsafe`. It is the read end of a pipe without data, so it keeps nothing alive.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::process::{Child, Command};
use std::time::Duration;

use goblin_client::lineage::GUARD_VARIABLE;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::upstream::descriptors;

/// The first argument that selects this mode.
pub const MODE: &str = "__guard";
/// The time that the group has to react to SIGTERM.
pub const TERM_GRACE: Duration = Duration::from_secs(2);
/// The time that the guard waits for the kernel to complete SIGKILL.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(1);
/// Added to a signal's number to make an exit code, as in shells.
pub(crate) const SIGNAL_OFFSET: i32 = 128;

/// The interval at which the guard checks whether the group is gone. Orphans of the group need not be children of the
/// guard, so no event reports their end.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const EXEC_STEP: &str = "exec";

/// Runs the hidden mode with the arguments after [`MODE`] and returns the exit code.
///
/// Call this function first in `main`: every backend has a guard, so the guard should load as little as possible.
pub fn run(arguments: impl Iterator<Item = OsString>) -> i32 {
    let outcome = GuardMode::parse(arguments).and_then(|mode| match mode {
        GuardMode::Guard { watch, descriptors, command } => guard(watch, descriptors, &command),
        GuardMode::Exec { parent, command } => Err(become_command(parent, &command)),
    });
    outcome.unwrap_or_else(|failure| {
        // If stderr is closed, the failure can be reported only by the exit code.
        let _ = writeln!(io::stderr(), "goblin: {failure}");
        failure.exit_code()
    })
}

/// The reason why the command does not run. The exit codes are those of `env` and `timeout`.
#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("{MODE} is started by the gateway, not by hand: {0}")]
    Usage(&'static str),
    #[error("cannot watch the gateway through descriptor {descriptor}: {source} (does /dev/fd exist?)")]
    Watch { descriptor: u32, source: io::Error },
    #[error("cannot set up the guard: {0}")]
    Setup(#[from] io::Error),
    #[error("cannot start {program:?}: No such file or directory (is it installed and on PATH?)")]
    NotFound { program: OsString },
    #[error("cannot start {program:?}: {source}")]
    Start { program: OsString, source: io::Error },
}

impl GuardError {
    fn start(program: &OsStr, source: io::Error) -> GuardError {
        let program = program.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => GuardError::NotFound { program },
            _ => GuardError::Start { program, source },
        }
    }

    fn exit_code(&self) -> i32 {
        match self {
            GuardError::Usage(_) | GuardError::Watch { .. } | GuardError::Setup(_) => 125,
            GuardError::Start { .. } => 126,
            GuardError::NotFound { .. } => 127,
        }
    }
}

/// The parsed arguments.
enum GuardMode {
    /// `descriptors` is the soft limit for the command, if it differs from the gateway's limit.
    Guard {
        watch: u32,
        descriptors: Option<u64>,
        command: CommandLine,
    },
    Exec {
        parent: u32,
        command: CommandLine,
    },
}

struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

impl GuardMode {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<GuardMode, GuardError> {
        let mut number = arguments.next();
        let is_exec = number.as_deref() == Some(OsStr::new(EXEC_STEP));
        if is_exec {
            number = arguments.next();
        }
        let number =
            number.and_then(|number| number.to_str()?.parse().ok()).ok_or(GuardError::Usage("a number is missing"))?;
        let mut next = arguments.next();
        let descriptors = next.as_ref().and_then(|limit| limit.to_str()?.parse().ok());
        if descriptors.is_some() {
            next = arguments.next();
        }
        if next.as_deref() != Some(OsStr::new("--")) {
            return Err(GuardError::Usage("-- is missing"));
        }
        let program = arguments.next().ok_or(GuardError::Usage("a command is missing"))?;
        let command = CommandLine { program, arguments: arguments.collect() };
        Ok(match is_exec {
            true => GuardMode::Exec { parent: number, command },
            false => GuardMode::Guard { watch: number, descriptors, command },
        })
    }
}

/// Runs the command until it exits, the gateway is gone or the guard receives a stop signal. Then ends the group.
fn guard(watch: u32, descriptors: Option<u64>, command: &CommandLine) -> Result<i32, GuardError> {
    if let Some(limit) = descriptors {
        descriptors::restore(limit);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Do everything that can fail before the command starts. The signal handlers come first too: without them the
        // guard would die of the SIGTERM that it sends to its own group.
        let mut watch = open_watch(watch)?;
        let mut stop_signals =
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
        let mut exits = signal(SignalKind::child())?;
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        prepare(command);

        let gateway_group = rustix::process::getppid().and_then(|parent| rustix::process::getpgid(Some(parent)).ok());
        let mut group = Group::new(gateway_group, &start(command)?);
        release_stdio(&null)?;

        let [terminate, interrupt, hangup] = &mut stop_signals;
        tokio::select! {
            biased;
            () = group.command_exited(&mut exits) => {}
            () = closed(&mut watch) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        group.end().await;
        Ok(group.status.unwrap_or(SIGNAL_OFFSET + Signal::KILL.as_raw()))
    })
}

/// Opens the watch pipe. Opening a descriptor again by its name is the safe way to take it over.
fn open_watch(descriptor: u32) -> Result<pipe::Receiver, GuardError> {
    File::open(format!("/dev/fd/{descriptor}"))
        .and_then(pipe::Receiver::from_file)
        .map_err(|source| GuardError::Watch { descriptor, source })
}

/// Waits until the last write end is closed.
async fn closed(watch: &mut pipe::Receiver) {
    let mut byte = [0];
    while watch.readable().await.is_ok() {
        match watch.try_read(&mut byte) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Replaces the guard's stdio with `/dev/null`. The command has its own copies. If the guard kept these, neither side
/// would notice that the other closed its end.
fn release_stdio(null: &File) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

/// The processes of the command: those in the group that the guard leads, and on Linux the guard's other descendants.
struct Group {
    id: Pid,
    /// The gateway's process group, into which the guard moves before it ends its own group.
    gateway_group: Option<Pid>,
    /// Whether the guard has moved out of the group.
    is_outside: bool,
    command: Pid,
    /// The command's exit code, once it has exited.
    status: Option<i32>,
    /// The children outside of the group that have received SIGTERM.
    terminated: HashSet<Pid>,
}

impl Group {
    fn new(gateway_group: Option<Pid>, command: &Child) -> Group {
        Group {
            id: rustix::process::getpid(),
            gateway_group,
            is_outside: false,
            command: Pid::from_child(command),
            status: None,
            terminated: HashSet::new(),
        }
    }

    async fn command_exited(&mut self, exits: &mut SignalStream) {
        loop {
            self.reap();
            if self.status.is_some() {
                return;
            }
            exits.recv().await;
        }
    }

    /// Reaps every child that has ended, including orphans that the guard adopted on Linux.
    fn reap(&mut self) {
        while let Ok(Some((process, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if process == self.command {
                self.status = Some(exit_code(status));
            }
        }
    }

    /// Ends all processes: SIGTERM, then SIGKILL after [`TERM_GRACE`].
    async fn end(&mut self) {
        self.is_outside =
            self.gateway_group.is_some_and(|gateway_group| rustix::process::setpgid(None, Some(gateway_group)).is_ok());
        if self.has_ended() {
            return;
        }
        self.signal(Signal::TERM);
        if self.ends_within(TERM_GRACE, Group::terminate_escaped).await {
            return;
        }
        // Inside of the group, this signal would also kill the guard, before it has killed the processes that left the
        // group.
        if self.is_outside || children().is_none() {
            self.signal(Signal::KILL);
        }
        self.ends_within(KILL_GRACE, Group::kill_children).await;
    }

    /// Sends SIGTERM once to each child that left the group. The others received the signal with the group.
    fn terminate_escaped(&mut self) {
        for child in children().unwrap_or_default() {
            let has_escaped = rustix::process::getpgid(Some(child)).is_ok_and(|group| group != self.id);
            if has_escaped && self.terminated.insert(child) {
                let _ = rustix::process::kill_process(child, Signal::TERM);
            }
        }
    }

    /// Kills every child. Their children become children of the guard, and the next round kills them. The kernel does
    /// not reuse a child's id before the guard has reaped it.
    fn kill_children(&mut self) {
        for child in children().unwrap_or_default() {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails only if the group has no members left.
        let _ = rustix::process::kill_process_group(self.id, signal);
    }

    fn has_ended(&mut self) -> bool {
        self.reap();
        let is_group_empty = || rustix::process::test_kill_process_group(self.id).is_err();
        match children() {
            // While the guard is inside of the group, the group is never empty.
            Some(children) => children.is_empty() && (!self.is_outside || is_group_empty()),
            None => is_group_empty(),
        }
    }

    /// Waits until all processes are gone and calls `act` in each round. Returns `false` if the grace period ends
    /// first.
    async fn ends_within(&mut self, grace: Duration, act: fn(&mut Group)) -> bool {
        let deadline = Instant::now() + grace;
        while !self.has_ended() {
            act(self);
            if Instant::now() >= deadline {
                return false;
            }
            sleep(CHECK_INTERVAL).await;
        }
        true
    }
}

/// Returns the guard's children, including adopted ones and zombies. Returns `None` if the system does not list them.
fn children() -> Option<Vec<Pid>> {
    children_of(std::process::id())
}

/// Returns the id of the command that the guard `guard` runs. Returns `None` if the command has ended. If the system does
/// not list processes, returns the guard's id, which is that of the process group.
pub(crate) fn command_of(guard: u32) -> Option<u32> {
    let Some(children) = children_of(guard) else { return Some(guard) };
    // The command is the guard's first child. Adopted children follow it.
    children.first()?.as_raw_nonzero().get().try_into().ok()
}

#[cfg(target_os = "linux")]
fn children_of(parent_id: u32) -> Option<Vec<Pid>> {
    let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    // The guard has a single thread, so this file lists all children. Some kernels lack it.
    if let Ok(list) = std::fs::read_to_string(format!("/proc/{parent_id}/task/{parent_id}/children")) {
        return Some(list.split_whitespace().filter_map(pid).collect());
    }
    let parent = |name: &str| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
        // The program's name, in parentheses, may contain any character, so search from the end.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Some(processes.filter(|name| parent(name) == Some(parent_id)).filter_map(|name| pid(&name)).collect())
}

#[cfg(not(target_os = "linux"))]
fn children_of(_parent: u32) -> Option<Vec<Pid>> {
    None
}

fn exit_code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => SIGNAL_OFFSET + signal,
        (None, None) => SIGNAL_OFFSET,
    }
}

/// Makes the guard a subreaper and renames it. The guard reaps orphans at once; a gateway that is process 1 of a
/// container would leave them as zombies. Errors are ignored because the command runs without either.
#[cfg(target_os = "linux")]
fn prepare(command: &CommandLine) {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let program = std::path::Path::new(&command.program);
    let mut name = b"guard:".to_vec();
    name.extend(program.file_name().unwrap_or_default().as_encoded_bytes());
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

#[cfg(not(target_os = "linux"))]
fn prepare(_command: &CommandLine) {}

/// Starts the command through [`become_command`]. `/proc/self/exe` names the running binary even after the file was
/// replaced.
#[cfg(target_os = "linux")]
fn start(command: &CommandLine) -> Result<Child, GuardError> {
    Command::new("/proc/self/exe")
        .args([MODE, EXEC_STEP, &std::process::id().to_string(), "--"])
        .arg(&command.program)
        .args(&command.arguments)
        .env(GUARD_VARIABLE, std::process::id().to_string())
        .spawn()
        .map_err(GuardError::Setup)
}

#[cfg(not(target_os = "linux"))]
fn start(command: &CommandLine) -> Result<Child, GuardError> {
    Command::new(&command.program)
        .args(&command.arguments)
        .env(GUARD_VARIABLE, std::process::id().to_string())
        .spawn()
        .map_err(|source| GuardError::start(&command.program, source))
}

/// Requests SIGKILL for the parent's death, a setting that survives `exec`, and becomes the command. Returns only if
/// that fails.
#[cfg(target_os = "linux")]
fn become_command(parent: u32, command: &CommandLine) -> GuardError {
    use std::os::unix::process::CommandExt;

    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return GuardError::Setup(error.into());
    }
    // If the parent died before the request, the kernel sends no signal.
    if std::os::unix::process::parent_id() != parent {
        return GuardError::Setup(io::Error::other("the guard ended before its command started"));
    }
    let error = Command::new(&command.program).args(&command.arguments).exec();
    GuardError::start(&command.program, error)
}

#[cfg(not(target_os = "linux"))]
fn become_command(_parent: u32, _command: &CommandLine) -> GuardError {
    GuardError::Usage("this step exists on Linux only")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn use14_an_ended_command_has_no_process_id() {
        // `sleep` has no child, like a guard after the end of its command.
        let mut guard = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let (id, before) = (guard.id(), command_of(guard.id()));
        guard.kill().expect("the process can be killed");
        guard.wait().expect("the process ends");
        assert_eq!((before, command_of(id)), (None, None));
    }
}
