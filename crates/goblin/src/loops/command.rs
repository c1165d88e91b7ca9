//! Finds the program that a command line runs in the end, behind wrappers of this machine.
//!
//! Only wrappers and bridges that are known here are looked through. Any other program may run its arguments on another
//! machine, or may be an agent that uses the gateway as a client.

use std::path::{Path, PathBuf};

/// Programs that connect their stdio to the URL in their arguments.
const BRIDGES: &[&str] = &["mcp-remote", "mcp-proxy", "supergateway"];
/// Programs that run a package by its name.
const RUNNERS: &[&str] = &["npx", "uvx"];
/// The options of [`RUNNERS`] with a value, which would pass for the package.
const RUNNER_VALUES: &[&str] = &["-p", "--package", "-c", "--from", "--with", "--python"];
/// Characters by which a shell text is more than commands in a row. Another program may then use the output of goblin.
const SHELL_OPERATORS: &[char] = &['|', '<', '>', '(', ')', '{', '}', '`', '$', '\\'];

/// A command of this machine, without wrappers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalCommand {
    pub words: Vec<String>,
    /// The variables that wrappers set, after those of the entry.
    pub variables: Vec<(String, String)>,
    pub cwd: PathBuf,
}

impl LocalCommand {
    /// Returns the commands that this one runs in a row: itself, or those behind wrappers. Empty if that is unclear.
    pub(super) fn unwrapped(mut self) -> Vec<LocalCommand> {
        loop {
            let Some((program, rest)) = self.words.split_first() else { return Vec::new() };
            let inner = match file_name(program) {
                "env" => self.behind_env(),
                "nice" => behind_nice(rest).map(|words| LocalCommand { words, ..self.clone() }),
                "exec" => Some(LocalCommand { words: rest.to_vec(), ..self.clone() }),
                "sh" | "bash" => return self.behind_shell(),
                _ => return vec![self],
            };
            match inner {
                Some(inner) => self = inner,
                None => return Vec::new(),
            }
        }
    }

    fn behind_env(&self) -> Option<LocalCommand> {
        let mut inner = self.clone();
        let mut words = self.words.iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "-i" | "-" | "--ignore-environment" => inner.variables.clear(),
                "-u" | "--unset" => {
                    let name = words.next()?;
                    inner.variables.retain(|(known, _)| known != name);
                }
                "-C" | "--chdir" => inner.cwd = inner.cwd.join(words.next()?),
                "--" => {}
                option if option.starts_with('-') => return None,
                word => match word.split_once('=') {
                    Some((name, value)) => inner.variables.push((name.to_owned(), value.to_owned())),
                    None => {
                        inner.words = std::iter::once(word.to_owned()).chain(words.cloned()).collect();
                        return Some(inner);
                    }
                },
            }
        }
        None
    }

    /// Returns the commands of a shell text without operators other than `;`, `&&` and line ends.
    fn behind_shell(&self) -> Vec<LocalCommand> {
        let is_text = |option: &&String| option.starts_with('-') && !option.starts_with("--") && option.ends_with('c');
        let at = self.words.iter().position(|word| is_text(&word));
        let Some(text) = at.and_then(|at| self.words.get(at + 1)) else { return Vec::new() };
        if text.contains(SHELL_OPERATORS) || text.replace("&&", "").contains('&') {
            return Vec::new();
        }
        let (mut cwd, mut commands) = (self.cwd.clone(), Vec::new());
        for command in text.replace("&&", ";").split([';', '\n']) {
            let words: Vec<_> = command.split_whitespace().map(|word| word.replace(['"', '\''], "")).collect();
            let assigned = words.iter().take_while(|word| is_assignment(word)).count();
            let assignments = words[..assigned].iter().filter_map(|word| word.split_once('='));
            let mut variables = self.variables.clone();
            variables.extend(assignments.map(|(name, value)| (name.to_owned(), value.to_owned())));
            match &words[assigned..] {
                [] => {}
                [cd, directory] if cd == "cd" => cwd = cwd.join(directory),
                words => {
                    let inner = LocalCommand { words: words.to_vec(), variables, cwd: cwd.clone() };
                    // One shell within another is unclear.
                    if !matches!(file_name(&inner.words[0]), "sh" | "bash") {
                        commands.extend(inner.unwrapped());
                    }
                }
            }
        }
        commands
    }

    /// Returns the arguments of `goblin`, if this command is that.
    pub(super) fn goblin_arguments(&self) -> Option<&[String]> {
        let (program, arguments) = self.words.split_first()?;
        is_goblin(program, &self.cwd).then_some(arguments)
    }

    /// Returns the arguments of a bridge that connects to a URL, if this command is one.
    pub(super) fn bridge_arguments(&self) -> Option<&[String]> {
        let (program, mut arguments) = self.words.split_first()?;
        if BRIDGES.contains(&file_name(program)) {
            return Some(arguments);
        }
        RUNNERS.contains(&file_name(program)).then_some(())?;
        loop {
            let (word, rest) = arguments.split_first()?;
            arguments = match word.as_str() {
                option if RUNNER_VALUES.contains(&option) => rest.get(1..)?,
                option if option.starts_with('-') => rest,
                package => {
                    let name = package.split(['@', '=']).next().unwrap_or_default();
                    return BRIDGES.contains(&name).then_some(rest);
                }
            };
        }
    }
}

fn behind_nice(mut words: &[String]) -> Option<Vec<String>> {
    loop {
        let (word, rest) = words.split_first()?;
        words = match word.as_str() {
            "-n" | "--adjustment" => rest.get(1..)?,
            option if option.starts_with('-') => rest,
            _ => return Some(words.to_vec()),
        };
    }
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && is_name(name))
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
}

/// Reports whether a command starts Goblin: a program of this name, or this executable.
fn is_goblin(program: &str, cwd: &Path) -> bool {
    let path = cwd.join(program);
    let is_this = || std::env::current_exe().and_then(|own| own.canonicalize()).ok() == path.canonicalize().ok();
    file_name(program) == "goblin" || program.contains('/') && path.exists() && is_this()
}
