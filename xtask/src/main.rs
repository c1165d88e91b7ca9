//! Goblin's development tasks: `cargo xtask TASK`.
//!
//! This file turns arguments into a [`Task`] and an outcome into an exit code. Each task is one file with one public
//! function; [`process`] is how they all start programs. Whatever CI checks, `cargo xtask test` checks.

mod bench;
mod fuzz;
mod process;
mod suite;
mod tidy;
mod tools;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  test                   everything CI checks: tools, tidy, fmt, clippy, deny, build, test
  tools                  install the MCP clients and servers the tests run against into target/tools
  tidy                   check the files themselves: hosts, paths, lengths, links
  bench [ARGUMENTS...]   build for release and run goblin-bench, passing the arguments on
  fuzz-smoke [SECONDS]   run each fuzz target for a short while (10 s), where cargo-fuzz and nightly are installed";

enum Task {
    Test,
    Tools,
    Tidy,
    Bench { arguments: Vec<String> },
    FuzzSmoke { seconds: u32 },
    Help,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let task = match parse(&arguments) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("xtask: {error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(task, workspace_root()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Result<Task> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Ok(match arguments.as_slice() {
        ["test"] => Task::Test,
        ["tools"] => Task::Tools,
        ["tidy"] => Task::Tidy,
        ["bench", rest @ ..] => Task::Bench { arguments: rest.iter().map(ToString::to_string).collect() },
        ["fuzz-smoke"] => Task::FuzzSmoke { seconds: 10 },
        ["fuzz-smoke", seconds] => match seconds.parse() {
            Ok(seconds) => Task::FuzzSmoke { seconds },
            Err(_) => bail!("fuzz-smoke wants a number of seconds, not {seconds}"),
        },
        ["help" | "--help" | "-h"] => Task::Help,
        [] => bail!("no task given"),
        [task, ..] => bail!("unknown task or arguments: {task}"),
    })
}

fn run(task: Task, root: &Path) -> Result<()> {
    match task {
        Task::Test => suite::run(root),
        Task::Tools => tools::install(root),
        Task::Tidy => tidy::check(root),
        Task::Bench { arguments } => bench::run(root, &arguments),
        Task::FuzzSmoke { seconds } => fuzz::smoke(root, seconds),
        Task::Help => {
            eprintln!("{USAGE}");
            Ok(())
        }
    }
}

fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the workspace")
}
