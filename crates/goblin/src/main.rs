//! The program `goblin`: arguments in, exit code out. Each command is one module.

mod admin_client;
mod banner;
mod catalog;
mod check;
mod cli;
mod control;
mod doctor;
mod edit;
mod endpoint;
mod follow;
mod generate;
mod history;
#[cfg(feature = "import")]
mod import;
mod live_lines;
mod load;
mod log;
mod login;
mod loops;
mod port;
mod progress;
mod prompts;
mod resources;
mod schema;
mod secret;
mod serve;
mod start_lines;
mod status;
mod stdio;
mod style;
mod subscriptions;
mod table;
mod tools;
#[cfg(feature = "tui")]
mod top;
mod vault;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use goblin_engine::upstream::guard;

use crate::cli::{Cli, CliError};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.nth(1) == Some(OsString::from("__guard")) {
        return ExitCode::from(u8::try_from(guard::run(arguments)).unwrap_or(1));
    }
    generate::answer_completion_script();
    let cli = Cli::parse_from(edit::command_line::with_separator(std::env::args_os().collect()));
    let ran = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let code = runtime.block_on(cli.run());
        // A read of stdin cannot be interrupted and must not delay the exit.
        runtime.shutdown_background();
        code
    });
    ran.unwrap_or_else(|error| {
        style::fail(&format!("{error:#}"));
        ExitCode::from(error.downcast_ref().map_or(1, CliError::code))
    })
}
