//! Starts programs in the workspace root. An error names the command, so that a developer can repeat it by hand.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools;

/// Runs a command and shows its output.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start: {shown}"))?;
    if !status.success() {
        bail!("{status}; to repeat: {shown}");
    }
    Ok(())
}

/// Runs a command and shows its output only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start: {shown}"))?;
    if !output.status.success() {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{}; to repeat: {shown}\n{stdout}{stderr}", output.status);
    }
    Ok(())
}

/// Returns the stdout of a command. Returns `None` if the command cannot be started or fails.
pub fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then_some(text)
}

/// Returns the cargo that started this program, so that a toolchain override also applies to the commands below it. Its
/// `PATH` includes the subcommands that `tools` installed.
pub fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root).args(arguments).env("PATH", tools::search_path(root));
    command
}

/// Returns the directory of cargo's build output.
pub fn target_directory(root: &Path) -> PathBuf {
    root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target")))
}

/// Formats a command so that a developer can repeat it by hand.
pub fn show(command: &Command) -> String {
    let mut parts = vec![match Path::new(command.get_program()).file_name() {
        Some(name) if name == "cargo" => "cargo".to_string(),
        _ => command.get_program().to_string_lossy().into_owned(),
    }];
    parts.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    parts.join(" ")
}
