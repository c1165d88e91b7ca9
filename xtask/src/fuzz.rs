//! `cargo xtask fuzz`: runs the fuzz targets, keeps their inputs and adds up the figures.
//!
//! The engine is libFuzzer by cargo-fuzz. The targets run under AddressSanitizer if a nightly toolchain is installed.
//! Otherwise they run on the toolchain of the workspace, which has no sanitizer. Inputs with new coverage collect in
//! `fuzz/target/corpus`. After each run a minimised copy replaces `fuzz/corpus`, which is committed; `cargo test` runs
//! it through the same functions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::figures::Figures;
use crate::process::{cargo, output_of, run as run_command, show};
use crate::tools;

/// The seconds that one input may take. A longer time is a finding.
const INPUT_TIMEOUT: u32 = 10;
/// The memory that a target may use, in MiB. More is a finding.
const MEMORY_LIMIT: u32 = 1024;
/// The longest input in bytes. Longer inputs find little that shorter ones do not.
const MAX_INPUT: u32 = 4096;

pub fn run(root: &Path, seconds: u32, wanted: &[String]) -> Result<()> {
    tools::install_cargo_tool(root, tools::CARGO_FUZZ)?;
    let engine = Engine::find(root);
    let known = output_of(&mut engine.fuzz(&["list"])).context("cargo fuzz list failed")?;
    let known: Vec<&str> = known.split_whitespace().collect();
    if let Some(unknown) = wanted.iter().find(|target| !known.contains(&target.as_str())) {
        bail!("there is no fuzz target {unknown}; the targets are {}", known.join(", "));
    }
    let targets: Vec<&str> =
        known.into_iter().filter(|name| wanted.is_empty() || wanted.iter().any(|w| w == name)).collect();
    if targets.is_empty() {
        bail!("fuzz/Cargo.toml has no targets");
    }
    run_command(&mut engine.fuzz(&["build", "--sanitizer", engine.sanitizer]))?;
    let mut failed = Vec::new();
    for target in &targets {
        eprintln!("==> fuzz {target}, {seconds} s, {}", engine.name());
        let outcome = engine.run(target, seconds)?;
        // Another run may have changed the figures in the meantime.
        let mut figures = Figures::read(root)?;
        figures.add(target, outcome.cpu_seconds, outcome.executions, u64::from(outcome.has_finding));
        figures.write(root)?;
        eprintln!("<== fuzz {target}: {} executions, {} CPU seconds", outcome.executions, outcome.cpu_seconds);
        if outcome.has_finding {
            failed.push(*target);
            eprintln!("{}", outcome.last_lines);
        } else {
            engine.minimise(target)?;
        }
    }
    if !failed.is_empty() {
        bail!(
            "findings in {}: fuzz/artifacts has the inputs; put each into fuzz/seeds/TARGET and fix the parser",
            failed.join(", ")
        );
    }
    eprintln!("fuzz: {} targets, no findings", targets.len());
    Ok(())
}

struct Engine<'a> {
    root: &'a Path,
    has_nightly: bool,
    sanitizer: &'static str,
}

struct Outcome {
    cpu_seconds: u64,
    executions: u64,
    has_finding: bool,
    last_lines: String,
}

impl Engine<'_> {
    fn find(root: &Path) -> Engine<'_> {
        let has_nightly = output_of(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])).is_some();
        Engine { root, has_nightly, sanitizer: if has_nightly { "address" } else { "none" } }
    }

    fn name(&self) -> &'static str {
        if self.has_nightly { "nightly with AddressSanitizer" } else { "the toolchain of the workspace, no sanitizer" }
    }

    /// Returns a `cargo fuzz` command. The nightly cargo is started by rustup, because the cargo that started this
    /// program belongs to another toolchain.
    fn fuzz(&self, arguments: &[&str]) -> Command {
        let mut command = if self.has_nightly {
            let mut command = Command::new("rustup");
            command.current_dir(self.root).args(["run", "nightly", "cargo"]).env("PATH", tools::search_path(self.root));
            command
        } else {
            cargo(self.root, &[])
        };
        command.arg("fuzz").args(arguments);
        command
    }

    /// Runs one target. The shell's `times` prints the CPU time of the target after it ends.
    fn run(&self, target: &str, seconds: u32) -> Result<Outcome> {
        let working = self.working_corpus(target)?;
        let log = self.root.join(format!("fuzz/target/{target}.log"));
        let limits = [
            format!("-max_total_time={seconds}"),
            format!("-timeout={INPUT_TIMEOUT}"),
            format!("-rss_limit_mb={MEMORY_LIMIT}"),
            format!("-max_len={MAX_INPUT}"),
            "-print_final_stats=1".to_owned(),
        ];
        let mut fuzz = self.fuzz(&["run", target, "--sanitizer", self.sanitizer]);
        fuzz.arg(&working).args(self.committed(target)).arg("--").args(limits);
        let mut command = Command::new("sh");
        command.args(["-c", r#""$@"; code=$?; times; exit $code"#, "sh"]);
        command.arg(fuzz.get_program()).args(fuzz.get_args()).current_dir(self.root);
        command.env("PATH", tools::search_path(self.root));
        let stderr = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let output = command.stdin(Stdio::null()).stderr(stderr).output();
        let output = output.with_context(|| format!("cannot start: {}", show(&fuzz)))?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        let Some(executions) = executions(&text) else {
            bail!("{target} did not run; to repeat: {}\n{}", show(&fuzz), last_lines(&text));
        };
        let cpu_seconds = cpu_seconds(&String::from_utf8_lossy(&output.stdout)).unwrap_or(u64::from(seconds));
        let has_finding = !output.status.success();
        Ok(Outcome { cpu_seconds, executions, has_finding, last_lines: last_lines(&text) })
    }

    /// Replaces the committed corpus by the smallest set of inputs with the same coverage.
    fn minimise(&self, target: &str) -> Result<()> {
        let minimised = self.root.join(format!("fuzz/target/minimised/{target}"));
        if minimised.exists() {
            fs::remove_dir_all(&minimised).with_context(|| format!("cannot remove {}", minimised.display()))?;
        }
        create(&minimised)?;
        let mut merge = self.fuzz(&["run", target, "--sanitizer", self.sanitizer]);
        merge.arg(&minimised).arg(self.working_corpus(target)?).args(self.committed(target));
        // One input for each branch is enough, so the counters of branches are off.
        merge.args(["--", "-merge=1", "-use_counters=0"]).arg(format!("-max_len={MAX_INPUT}"));
        crate::process::run_quietly(&mut merge)?;
        let corpus = self.root.join("fuzz/corpus").join(target);
        fs::remove_dir_all(&corpus).with_context(|| format!("cannot remove {}", corpus.display()))?;
        create(&corpus)?;
        for entry in fs::read_dir(&minimised)? {
            let entry = entry?;
            fs::copy(entry.path(), corpus.join(entry.file_name()))?;
        }
        Ok(())
    }

    fn working_corpus(&self, target: &str) -> Result<PathBuf> {
        let working = self.root.join("fuzz/target/corpus").join(target);
        create(&working)?;
        create(&self.root.join("fuzz/corpus").join(target))?;
        Ok(working)
    }

    fn committed(&self, target: &str) -> [String; 2] {
        [format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}")]
    }
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}

/// Returns the number of executions from the statistics that libFuzzer prints at the end, also after a crash.
fn executions(log: &str) -> Option<u64> {
    log.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok())
}

/// Parses the output of the shell's `times`: a line for the shell, then a line for its children, each as `0m1.20s
/// 0m0.30s`.
fn cpu_seconds(times: &str) -> Option<u64> {
    let seconds = |time: &str| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let children = times.lines().last()?;
    let sum: Option<f64> = children.split_whitespace().map(seconds).sum();
    Some(sum?.round() as u64)
}

fn last_lines(log: &str) -> String {
    const SHOWN: usize = 30;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_and_cpu_time_are_read() {
        let log = "INFO: seed\n#7 DONE\nstat::number_of_executed_units: 1234\nstat::peak_rss_mb: 40\n";
        assert_eq!(executions(log), Some(1234));
        assert_eq!(executions("error: could not compile"), None);
        assert_eq!(cpu_seconds("0m0.00s 0m0.00s\n1m2.40s 0m0.30s\n"), Some(63));
        assert_eq!(cpu_seconds(""), None);
    }
}
