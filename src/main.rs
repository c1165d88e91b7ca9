//! The entry point: parses the arguments, runs the command and returns the exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use goblin::backend::guard;
use goblin::cli::{Cli, generate, style};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.nth(1) == Some(OsString::from("__guard")) {
        return ExitCode::from(u8::try_from(guard::run(arguments)).unwrap_or(1));
    }
    generate::answer_completion_script();
    let cli = Cli::parse();
    let ran = tokio::runtime::Runtime::new().map_err(anyhow::Error::from).and_then(|runtime| {
        let code = runtime.block_on(cli.run());
        // A read of stdin cannot be interrupted and must not delay the exit.
        runtime.shutdown_background();
        code
    });
    ran.unwrap_or_else(|error| {
        style::fail(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
