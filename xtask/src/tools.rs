//! `cargo xtask tools`: installs the MCP clients and servers that the tests run against.
//!
//! Five bundles go to `target/tools`, where the tests look for them: npm packages (`node_modules`), the Python SDK 1.x
//! (`py1`) and 2.x (`py2`), the conformance suite (`conformance`) with the Node it needs, and AI clients
//! (`ai-clients`). Their sources are committed in `tests/clients`, `tests/conformance` and `tests/ai-clients`. Each
//! bundle has a stamp file with a copy of its inputs, written after the installation succeeded. A bundle is installed
//! again only if its inputs differ from the stamp.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, thread};

use anyhow::{Context, Result, anyhow, bail};

use crate::process::{cargo, output_of, run_quietly};

const NODE_MINIMUM: Version = Version { major: 20, minor: 0 };
const PYTHON_MINIMUM: Version = Version { major: 3, minor: 11 };

const NODE_CURE: &str =
    "install Node.js 20 or newer with npm, for example `apt install nodejs npm` or `brew install node`";
const PYTHON_CURE: &str = "install Python 3.11 or newer with venv, for example `apt install python3 python3-venv` or \
                           `brew install python3`";

pub fn install(root: &Path) -> Result<()> {
    let sources = root.join("tests/clients");
    let suite = root.join("tests/conformance");
    let ai_clients = root.join("tests/ai-clients");
    let tools = root.join("target/tools");
    fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
    // Two runs at once would install into the same directories. The lock is held until the end, and the system releases
    // it after a crash.
    let lock = File::create(tools.join(".lock")).context("cannot create the lock file of target/tools")?;
    lock.lock().context("cannot lock target/tools")?;

    require_program("node", NODE_MINIMUM, NODE_CURE)?;
    require_program("npm", Version { major: 7, minor: 0 }, NODE_CURE)?;
    let python = require_program("python3", PYTHON_MINIMUM, PYTHON_CURE)?;
    let bundles = [
        npm("npm packages", &sources, &tools)?,
        npm("conformance suite", &suite, &tools.join("conformance"))?,
        npm("AI clients", &ai_clients, &tools.join("ai-clients"))?,
        python_environment(&sources, &tools, "1", python)?,
        python_environment(&sources, &tools, "2", python)?,
    ];
    // The installers run in parallel, because they spend most of their time on the network.
    let outcomes = thread::scope(|scope| {
        let threads = bundles.map(|bundle| scope.spawn(move || bundle.ensure()));
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("an installer panicked"))))
    });
    outcomes.into_iter().collect()
}

/// A cargo subcommand that a task needs.
#[derive(Clone, Copy)]
pub struct CargoTool {
    name: &'static str,
    /// The version to install if none is present.
    version: &'static str,
    /// The oldest version that is accepted.
    minimum: Version,
}

pub const CARGO_DENY: CargoTool =
    CargoTool { name: "deny", version: "0.20.2", minimum: Version { major: 0, minor: 18 } };
pub const CARGO_FUZZ: CargoTool =
    CargoTool { name: "fuzz", version: "0.13.2", minimum: Version { major: 0, minor: 12 } };

/// Builds a cargo subcommand into `target/tools/cargo`, unless a sufficient version is installed already.
pub fn install_cargo_tool(root: &Path, tool: CargoTool) -> Result<()> {
    let version = output_of(&mut cargo(root, &[tool.name, "--version"])).as_deref().and_then(Version::parse);
    if version.is_some_and(|version| version >= tool.minimum) {
        return Ok(());
    }
    let CargoTool { name, version, .. } = tool;
    eprintln!("tools: cargo-{name} {version}: installing, which takes some minutes ...");
    let start = Instant::now();
    let mut install = cargo(root, &["install", "--locked", "--force", "--version", version, &format!("cargo-{name}")]);
    // A separate build directory, because the dependencies have other features here than in the workspace.
    install.arg("--root").arg(cargo_tools(root)).arg("--target-dir").arg(root.join("target/tools/build"));
    run_quietly(&mut install).with_context(|| format!("cannot install cargo-{name}"))?;
    eprintln!("tools: cargo-{name} {version}: installed, {:.1} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// Returns `PATH` with the directory of the installed cargo subcommands at the end.
pub fn search_path(root: &Path) -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(cargo_tools(root).join("bin"));
    path
}

fn cargo_tools(root: &Path) -> PathBuf {
    root.join("target/tools/cargo")
}

fn npm(name: &'static str, sources: &Path, directory: &Path) -> Result<Bundle> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let manifest = read(&sources.join("package.json"))?;
    let lock = read(&sources.join("package-lock.json"))?;
    let mut install = Command::new("npm");
    install.current_dir(directory);
    install.args(["ci", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", "--loglevel=error"]);
    Ok(Bundle {
        name,
        inputs: format!("{manifest}{lock}"),
        stamp: directory.join("node_modules.stamp"),
        directory: directory.join("node_modules"),
        files: vec![(directory.join("package.json"), manifest), (directory.join("package-lock.json"), lock)],
        commands: vec![install],
    })
}

fn python_environment(sources: &Path, tools: &Path, major: &str, python: Version) -> Result<Bundle> {
    let requirements = sources.join(format!("requirements-{major}.txt"));
    let directory = tools.join(format!("py{major}"));
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&directory);
    let mut install = Command::new(directory.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--requirement"]);
    install.arg(&requirements);
    Ok(Bundle {
        name: if major == "1" { "python sdk 1.x" } else { "python sdk 2.x" },
        // A virtual environment works only with the Python that created it.
        inputs: format!("{}.{}\n{}", python.major, python.minor, read(&requirements)?),
        stamp: tools.join(format!("py{major}.stamp")),
        directory,
        files: Vec::new(),
        commands: vec![create, install],
    })
}

/// A set of packages that is installed as a whole.
struct Bundle {
    name: &'static str,
    /// Every input that determines the result of the installation.
    inputs: String,
    /// The file with the inputs of the present installation.
    stamp: PathBuf,
    directory: PathBuf,
    files: Vec<(PathBuf, String)>,
    commands: Vec<Command>,
}

impl Bundle {
    fn ensure(mut self) -> Result<()> {
        let stamp = fs::read_to_string(&self.stamp).ok();
        if self.directory.is_dir() && stamp.as_deref() == Some(self.inputs.as_str()) {
            eprintln!("tools: {}: up to date", self.name);
            return Ok(());
        }
        eprintln!("tools: {}: installing ...", self.name);
        let start = Instant::now();
        self.install().with_context(|| format!("cannot install the {}", self.name))?;
        eprintln!("tools: {}: installed, {:.1} s", self.name, start.elapsed().as_secs_f32());
        Ok(())
    }

    fn install(&mut self) -> Result<()> {
        if self.stamp.exists() {
            fs::remove_file(&self.stamp).with_context(|| format!("cannot remove {}", self.stamp.display()))?;
        }
        for (path, text) in &self.files {
            write(path, text)?;
        }
        for command in &mut self.commands {
            run_quietly(command)?;
        }
        write(&self.stamp, &self.inputs)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    /// Parses versions such as `v20.20.2`, `11.19.1` and `Python 3.11.7`.
    fn parse(text: &str) -> Option<Version> {
        let digits = text.trim().trim_start_matches(|character: char| !character.is_ascii_digit());
        let mut parts = digits.split('.');
        Some(Version { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

fn require_program(program: &str, minimum: Version, cure: &str) -> Result<Version> {
    let Some(text) = output_of(Command::new(program).arg("--version")) else {
        bail!("{program} is missing; {cure}");
    };
    match Version::parse(&text) {
        Some(version) if version >= minimum => Ok(version),
        _ => bail!("{program} is too old ({}); {cure}", text.trim()),
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_program_output() {
        let check = |text, major, minor| assert_eq!(Version::parse(text), Some(Version { major, minor }));
        check("v20.20.2\n", 20, 20);
        check("11.19.1\n", 11, 19);
        check("Python 3.11.7\n", 3, 11);
        assert_eq!(Version::parse("none"), None);
        assert!(Version { major: 3, minor: 9 } < PYTHON_MINIMUM);
    }

    #[test]
    fn a_bundle_is_installed_only_when_its_inputs_change() {
        let directory = std::env::temp_dir().join(format!("goblin-xtask-bundle-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let log = directory.join("log");
        let ensure = |inputs: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("LOG", &log);
            Bundle {
                name: "test bundle",
                inputs: inputs.to_string(),
                stamp: directory.join("stamp"),
                directory: directory.clone(),
                files: Vec::new(),
                commands: vec![command],
            }
            .ensure()
        };
        let work = "echo installed >> \"$LOG\"";
        ensure("one", work).unwrap();
        ensure("one", work).unwrap();
        ensure("two", work).unwrap();
        let error = ensure("three", "echo no network; exit 3").unwrap_err();
        ensure("two", work).unwrap(); // the failed installation left no stamp

        assert_eq!(fs::read_to_string(&log).unwrap(), "installed\n".repeat(3));
        assert!(format!("{error:#}").contains("no network"), "{error:#}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
