//! Goblin's development tasks: `cargo xtask TASK`.
//!
//! This file turns arguments into a [`Task`] and an outcome into an exit code. Each task is one file with one public
//! function. All tasks start programs through [`process`]. `cargo xtask test` runs every check of CI.

mod attack;
mod bench;
mod conformance;
mod figures;
mod fuzz;
mod process;
mod soak;
mod suite;
mod tidy;
mod tools;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  test                   everything CI checks: tools, tidy, fmt, clippy, features, deny, build, test
  tools                  install the MCP clients and servers the tests run against into target/tools
  tidy                   check the files themselves: hosts, paths, lengths, links, figures
  bench [ARGUMENTS...]   build for release and run goblin-bench, passing the arguments on
  attack [FILTER]        run the hostile tests against the release build and print the cost of each attack
  soak                   run the tests of shared logins with full counts: kills and refreshes at once
  conformance [--server NAME] [--quick]
                         run the conformance suite against all SDKs directly and through the gateway, and compare
  fuzz [--seconds N] [TARGET...]
                         fuzz each target for N seconds (60), keep the corpus and add up the figures";

/// The seconds that `fuzz` runs each target by default.
const FUZZ_SECONDS: u32 = 60;

#[derive(Debug, PartialEq, Eq)]
enum Task {
    Test,
    Tools,
    Tidy,
    Bench { arguments: Vec<String> },
    Attack { filter: Option<String> },
    Soak,
    Conformance { server: Option<String>, quick: bool },
    Fuzz { seconds: u32, targets: Vec<String> },
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
        ["attack"] => Task::Attack { filter: None },
        ["attack", filter] => Task::Attack { filter: Some(filter.to_string()) },
        ["soak"] => Task::Soak,
        ["conformance", options @ ..] => conformance_task(options)?,
        ["fuzz", "--seconds", seconds, targets @ ..] => match seconds.parse() {
            Ok(seconds) => Task::Fuzz { seconds, targets: targets.iter().map(ToString::to_string).collect() },
            Err(_) => bail!("--seconds needs a number of seconds, not {seconds}"),
        },
        ["fuzz", "--seconds"] => bail!("--seconds needs a number of seconds"),
        ["fuzz", targets @ ..] => {
            Task::Fuzz { seconds: FUZZ_SECONDS, targets: targets.iter().map(ToString::to_string).collect() }
        }
        ["help" | "--help" | "-h"] => Task::Help,
        [] => bail!("no task given"),
        [task, ..] => bail!("unknown task or arguments: {task}"),
    })
}

fn conformance_task(mut options: &[&str]) -> Result<Task> {
    let (mut server, mut quick) = (None, false);
    loop {
        match options {
            [] => return Ok(Task::Conformance { server, quick }),
            ["--quick", rest @ ..] => (quick, options) = (true, rest),
            ["--server", name, rest @ ..] if conformance::is_server(name) => {
                (server, options) = (Some(name.to_string()), rest);
            }
            [option, ..] => bail!("conformance has no such option or server: {option}"),
        }
    }
}

fn run(task: Task, root: &Path) -> Result<()> {
    match task {
        Task::Test => suite::run(root),
        Task::Tools => tools::install(root),
        Task::Tidy => tidy::check(root),
        Task::Bench { arguments } => bench::run(root, &arguments),
        Task::Attack { filter } => attack::run(root, filter.as_deref()),
        Task::Soak => soak::run(root),
        Task::Conformance { server, quick } => conformance::run(root, server.as_deref(), quick),
        Task::Fuzz { seconds, targets } => fuzz::run(root, seconds, &targets),
        Task::Help => {
            eprintln!("{USAGE}");
            Ok(())
        }
    }
}

fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the workspace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_a_task() {
        let parse = |line: &str| super::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).ok();
        let fuzz = |seconds, targets: &[&str]| {
            Some(Task::Fuzz { seconds, targets: targets.iter().map(ToString::to_string).collect() })
        };
        assert_eq!(parse("fuzz"), fuzz(FUZZ_SECONDS, &[]));
        assert_eq!(parse("fuzz --seconds 5 lines json"), fuzz(5, &["lines", "json"]));
        assert_eq!(parse("fuzz --seconds many"), None);
        assert_eq!(parse("attack hostile_bytes"), Some(Task::Attack { filter: Some("hostile_bytes".to_owned()) }));
        assert_eq!(parse("attack a b"), None);
        assert_eq!(parse("soak"), Some(Task::Soak));
        let conformance =
            |server: Option<&str>, quick| Some(Task::Conformance { server: server.map(str::to_owned), quick });
        assert_eq!(parse("conformance"), conformance(None, false));
        assert_eq!(parse("conformance --server ts1 --quick"), conformance(Some("ts1"), true));
        assert_eq!(parse("conformance --server cobol"), None);
    }
}
