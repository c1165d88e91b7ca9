//! No process of a stdio backend is left behind, whichever process dies, and its end is reported correctly.
//!
//! The tests use real processes and read `/proc`. They wait for conditions, with [`TIMEOUT`] as the only time limit.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use goblin_config::inherit::Inherit;
use goblin_engine::upstream::child::{self, Child, ChildCommand, Exit, SpawnError};
use goblin_engine::upstream::guard;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::harness::Scratch;

const GOBLIN: &str = env!("CARGO_BIN_EXE_goblin");
const TIMEOUT: Duration = Duration::from_secs(30);
/// Three processes: a shell that waits, like `npx`, and two children. The first line of output means that all of them
/// run.
const TREE: &str = "sleep 1000 & sleep 1001 & echo ready; wait";
const IGNORES_TERM: &str = "trap '' TERM; echo ready; while :; do sleep 1; done";
/// The variable that holds the script for the process that replaces the gateway.
const FAKE_PROGRAM: &str = "TEST_STAND_IN_SCRIPT";

#[tokio::test]
async fn bytes_pass_and_closing_stdin_ends_the_command() {
    let Child { mut stdin, mut stdout, mut process, .. } = spawn("cat");
    stdin.write_all(b"hello\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    stdout.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello\n");
    assert_eq!(within(process.wait()).await, Exit::Code(0));
    assert!(!Path::new(&format!("/proc/{}", process.id())).exists());
}

#[tokio::test]
async fn the_exit_status_is_the_commands_own() {
    for (script, expected, fragment) in [
        ("exit 0", Exit::Code(0), "exit code 0"),
        ("exit 3", Exit::Code(3), "exit code 3"),
        ("exit 255", Exit::Code(255), "exit code 255"),
        ("kill -9 $$", Exit::Signal(9), "signal 9"),
        ("kill -11 $$", Exit::Signal(11), "signal 11"),
    ] {
        let exit = within(spawn(script).process.wait()).await;
        assert_eq!(exit, expected, "{script}");
        assert_eq!(exit.to_string(), fragment);
    }
}

#[tokio::test]
async fn the_guard_keeps_no_pipe_open() {
    let mut child = spawn("exec 1>&- 2>&-; exec sleep 1000");
    let mut text = String::new();
    within(child.stdout.read_to_string(&mut text)).await.unwrap();
    within(child.stderr.read_to_string(&mut text)).await.unwrap();
    assert_eq!(text, "");
    assert_eq!(living_members(child.process.id()), 2);
}

#[tokio::test]
async fn killing_the_command_ends_its_group() {
    let (mut child, group) = ready(TREE).await;
    assert_eq!(living_members(group), 4);
    kill(command_of(group), Signal::KILL);
    assert_eq!(within(child.process.wait()).await, Exit::Signal(9));
    assert_eq!(members(group), []);
}

#[tokio::test]
async fn killing_the_guard_ends_the_group() {
    for script in [TREE, IGNORES_TERM] {
        let (mut child, group) = ready(script).await;
        kill(group, Signal::KILL);
        assert_eq!(within(child.process.wait()).await, Exit::Signal(9));
        until_dead(group).await;
    }
}

#[tokio::test]
async fn terminating_the_guard_ends_the_group() {
    let (mut child, group) = ready(TREE).await;
    kill(group, Signal::TERM);
    assert_eq!(within(child.process.wait()).await, Exit::Signal(15));
    assert_eq!(members(group), []);
}

#[tokio::test]
async fn killing_the_gateway_ends_the_group() {
    for script in [TREE, IGNORES_TERM] {
        let (mut gateway, group) = fake_program(script);
        gateway.kill().unwrap();
        gateway.wait().unwrap();
        until_dead(group).await;
    }
}

#[tokio::test]
async fn killing_the_whole_process_group_of_the_gateway_ends_the_group() {
    let (mut gateway, group) = fake_program(TREE);
    // A terminal signals the whole group. The guard must not be in the gateway's group, nor depend on it.
    let id = i32::try_from(gateway.id()).unwrap();
    rustix::process::kill_process_group(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
    gateway.wait().unwrap();
    until_dead(group).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killing_the_guard_of_a_stopped_gateway_ends_the_command() {
    let (mut gateway, group) = fake_program("trap '' TERM; echo ready; exec sleep 1000");
    // A stopped gateway cannot react to the guard's death.
    kill(gateway.id(), Signal::STOP);
    kill(group, Signal::KILL);
    until_dead(group).await;
    gateway.kill().unwrap();
    gateway.wait().unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_guard_process_is_named_after_its_command() {
    let (child, group) = ready("echo ready; sleep 1000").await;
    let name = std::fs::read_to_string(format!("/proc/{group}/comm")).unwrap();
    assert_eq!(name, "guard:sh\n");
    drop(child);
    until_dead(group).await;
}

#[tokio::test]
async fn an_orderly_end_sends_no_signal_to_a_command_that_exits_by_itself() {
    let script = "trap 'echo TERM' TERM; echo ready; while read -r line; do :; done; echo bye";
    let (child, group) = ready(script).await;
    let Child { stdin, mut stdout, process, .. } = child;
    drop(stdin);
    within(process.end()).await;
    assert_eq!(members(group), []);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "bye\n");
}

#[tokio::test]
async fn a_command_that_ignores_the_term_signal_is_killed_after_both_graces() {
    let (child, group) = ready(IGNORES_TERM).await;
    let Child { stdin, process, .. } = child;
    drop(stdin);
    let start = Instant::now();
    within(process.end()).await;
    assert!(start.elapsed() >= child::VOLUNTARY_GRACE + guard::TERM_GRACE);
    assert_eq!(members(group), []);
}

#[tokio::test]
async fn dropping_the_process_ends_the_group() {
    for script in [TREE, IGNORES_TERM] {
        let (child, group) = ready(script).await;
        drop(child.process);
        until_dead(group).await;
        until(|| members(group).is_empty()).await;
    }
}

#[tokio::test]
async fn the_children_of_a_command_end_with_it_and_its_exit_status_is_kept() {
    let stubborn = format!("({IGNORES_TERM}) & sleep 1000 & read -r line; exit 3");
    let (mut child, group) = ready(&stubborn).await;
    drop(child.stdin);
    assert_eq!(within(child.process.wait()).await, Exit::Code(3));
    assert_eq!(members(group), []);
}

#[tokio::test]
async fn ending_one_process_leaves_the_others_running() {
    let spawned: Vec<Child> = (0..16).map(|_| spawn(TREE)).collect();
    let mut children = Vec::new();
    for child in spawned {
        children.push(until_ready(child).await);
    }
    while let Some(child) = children.pop() {
        let group = child.process.id();
        drop(child.process);
        until_dead(group).await;
        for other in &children {
            assert_eq!(living_members(other.process.id()), 4);
        }
    }
}

#[tokio::test]
async fn an_unstartable_command_is_rejected_before_it_is_started() {
    let scratch = Scratch::new();
    let directory = scratch.path();
    let file = directory.join("plain.txt");
    std::fs::write(&file, "no program").unwrap();

    let error = spawn_error("no-such-program", directory);
    assert!(matches!(&error, SpawnError::NotFound { command, .. } if command == "no-such-program"));
    assert!(error.to_string().contains("is it installed and on PATH?"));
    assert!(matches!(spawn_error("", directory), SpawnError::NotFound { .. }));
    assert!(matches!(spawn_error("./nothing", directory), SpawnError::NotFound { .. }));
    let error = spawn_error("./plain.txt", directory);
    assert!(matches!(error, SpawnError::NotExecutable { .. }), "{error}");
    let error = spawn_error("sh", &directory.join("missing"));
    assert!(matches!(error, SpawnError::WorkingDirectory { .. }), "{error}");
    let error = spawn_error("sh", &file);
    assert!(matches!(error, SpawnError::WorkingDirectory { .. }), "{error}");
    let error = child::spawn(Path::new("/no/such/guard"), &command("exit 0")).unwrap_err();
    assert!(matches!(error, SpawnError::Guard { .. }), "{error}");
}

#[tokio::test]
async fn the_guard_names_a_command_it_cannot_start() {
    for (program, code, fragment) in [
        (
            "no-such-program",
            127,
            "goblin: cannot start \"no-such-program\": No such file or directory (is it installed and on PATH?)\n",
        ),
        ("/", 126, "goblin: cannot start \"/\": Permission denied (os error 13)\n"),
    ] {
        let mut guard = std::process::Command::new(GOBLIN);
        guard.args([guard::MODE, "0", "--", program]);
        let guard = guard.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut guard = guard.spawn().unwrap();
        let _open_until_the_end = guard.stdin.take();
        let output = guard.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), fragment);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[tokio::test]
async fn d19_a_command_gets_the_allow_list_and_its_own_variables() {
    let script = "echo \"${GOBLIN_SECRET-unset} ${TEST_PLAIN-unset} $LC_TEST $ADDED $PWD\"; echo ready; cat";
    let scratch = Scratch::new();
    let directory = scratch.path().canonicalize().unwrap();
    let mut gateway = fake_program_command(script);
    gateway.env("GOBLIN_SECRET", "x").env("TEST_PLAIN", "plain").env("LC_TEST", "passed");
    let mut gateway = gateway.current_dir(&directory).spawn().unwrap();
    let lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let expected = format!("unset unset passed added {}", directory.display());
    assert!(lines.map_while(Result::ok).any(|line| line == expected));
    gateway.kill().unwrap();
    gateway.wait().unwrap();
}

#[test]
fn the_debug_output_of_a_command_shows_no_secret() {
    let mut command = command("echo hunter2");
    command.env.push(("TOKEN".into(), "hunter2".into()));
    let text = format!("{command:?}");
    assert!(text.contains("TOKEN") && !text.contains("hunter2"), "{text}");
}

/// The process that replaces the gateway until it is killed, not a test by itself; [`fake_program`] starts this binary
/// again. It prints the command's first lines up to `ready`, then the group it has started.
#[tokio::test]
async fn gateway_stand_in() {
    let Ok(script) = std::env::var(FAKE_PROGRAM) else {
        return;
    };
    let mut child = spawn(&script);
    let mut lines = tokio::io::BufReader::new(&mut child.stdout).lines();
    let mut out = std::io::stdout();
    loop {
        let line = within(lines.next_line()).await.unwrap().unwrap();
        if line == "ready" {
            break;
        }
        writeln!(out, "\n{line}").unwrap();
    }
    writeln!(out, "\nready {}", child.process.id()).unwrap();
    child.process.wait().await;
}

/// Starts a process that runs `script` through the guard and can be killed. Returns it and the group it started.
fn fake_program(script: &str) -> (std::process::Child, u32) {
    let mut gateway = fake_program_command(script).spawn().unwrap();
    let lines = BufReader::new(gateway.stdout.take().unwrap()).lines();
    let group = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ready ")?.parse().ok());
    (gateway, group.expect("the fake program prints its group"))
}

fn fake_program_command(script: &str) -> std::process::Command {
    use std::os::unix::process::CommandExt;

    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("{module}::gateway_stand_in"), "--exact", "--nocapture"])
        .env(FAKE_PROGRAM, script)
        .process_group(0)
        .stdout(Stdio::piped());
    command
}

fn command(script: &str) -> ChildCommand {
    ChildCommand {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("ADDED".into(), "added".into())],
        inherit: Inherit::default(),
        cwd: PathBuf::from("."),
    }
}

fn spawn(script: &str) -> Child {
    child::spawn(Path::new(GOBLIN), &command(script)).unwrap()
}

fn spawn_error(program: &str, cwd: &Path) -> SpawnError {
    let (args, env, inherit) = (Vec::new(), Vec::new(), Inherit::default());
    let command = ChildCommand { program: program.into(), args, env, inherit, cwd: cwd.to_owned() };
    child::spawn(Path::new(GOBLIN), &command).unwrap_err()
}

/// Starts `script`, waits for its line `ready`, and returns its group.
async fn ready(script: &str) -> (Child, u32) {
    let child = until_ready(spawn(script)).await;
    let group = child.process.id();
    (child, group)
}

async fn until_ready(mut child: Child) -> Child {
    let mut line = [0; 6];
    within(child.stdout.read_exact(&mut line)).await.unwrap();
    assert_eq!(&line, b"ready\n");
    child
}

fn kill(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    kill_process(process.unwrap(), signal).unwrap();
}

/// Returns the id, parent and state of every process of a group, including zombies.
fn members(group: u32) -> Vec<(u32, u32, char)> {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.filter_map(|entry| member(&entry.unwrap().path(), group)).collect()
}

fn member(process: &Path, group: u32) -> Option<(u32, u32, char)> {
    let id = process.file_name()?.to_str()?.parse().ok()?;
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name, in brackets, may contain any character.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    let is_member = fields.next()?.parse() == Ok(group);
    is_member.then_some((id, parent, state))
}

fn living_members(group: u32) -> usize {
    members(group).iter().filter(|(_, _, state)| *state != 'Z').count()
}

/// Returns the process that the guard has started.
fn command_of(group: u32) -> u32 {
    let members = members(group);
    members.iter().find(|(_, parent, _)| *parent == group).unwrap().0
}

/// Waits until no process of the group lives. If the gateway is dead too, process 1 reaps the zombies.
async fn until_dead(group: u32) {
    until(|| living_members(group) == 0).await;
}

async fn until(condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIMEOUT, future).await.expect("the future completes in time")
}
