//! Detects commands that fetch a package without a fixed version.
//!
//! `npx some-server` fetches the newest version and runs it as the user. An attacker with control of the package then
//! controls the machine, and a bad release arrives without any change here. This module inspects the command lines of
//! package runners and names the unpinned package. It is pure, and ignores command lines that it does not understand.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::{mask, word_list};

/// A package that a command fetches without a fixed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnpinnedPackage {
    /// The program with its subcommand, such as `npx` or `docker run`.
    pub runner: String,
    pub package: String,
    /// The suggested spelling with a version.
    pub cure: String,
}

impl fmt::Display for UnpinnedPackage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnpinnedPackage { runner, package, cure } = self;
        write!(formatter, "{runner} fetches {package} without a fixed version, write {cure}")
    }
}

/// Returns the first package without a fixed version that this command line fetches.
pub fn unpinned<S: AsRef<str>>(command: &str, args: &[S]) -> Option<UnpinnedPackage> {
    let program = Path::new(command).file_name()?.to_str()?;
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    RUNNERS.iter().filter(|runner| runner.program == program).find_map(|runner| {
        let rest = runner.arguments(&args)?;
        let package = runner.packages(rest).into_iter().find(|package| !(runner.is_pinned)(package))?;
        let name = [&[runner.program], runner.subcommand].concat().join(" ");
        // The address of a package may contain a password.
        Some(UnpinnedPackage { runner: name, package: mask::text(package), cure: mask::text(&(runner.cure)(package)) })
    })
}

/// A program that fetches the package it runs.
struct Runner {
    program: &'static str,
    /// The subcommand that runs packages, such as `dlx` of `pnpm`. Empty if the program does nothing else.
    subcommand: &'static [&'static str],
    options: RunnerOptions,
    /// The options that name packages. If none is present, the first argument that is not an option is the package.
    package_options: &'static [&'static str],
    is_pinned: fn(&str) -> bool,
    cure: fn(&str) -> String,
}

/// The options with a value in the next argument, or the options without one. Each runner uses the shorter list.
enum RunnerOptions {
    WithValue(&'static str),
    Without(&'static str),
}

const NPM_OPTIONS: RunnerOptions = RunnerOptions::WithValue(include_str!("words/npm_options.txt"));
const PYTHON_OPTIONS: RunnerOptions = RunnerOptions::WithValue(include_str!("words/python_options.txt"));
const CONTAINER_OPTIONS: RunnerOptions = RunnerOptions::Without(include_str!("words/container_flags.txt"));

const fn npm(program: &'static str, subcommand: &'static [&'static str]) -> Runner {
    let package_options: &[&str] = &["-p", "--package"];
    Runner { program, subcommand, options: NPM_OPTIONS, package_options, is_pinned: is_npm_pinned, cure: npm_cure }
}

const fn python(program: &'static str, subcommand: &'static [&'static str]) -> Runner {
    let package_options: &[&str] = &["--from", "--spec"];
    Runner {
        program,
        subcommand,
        options: PYTHON_OPTIONS,
        package_options,
        is_pinned: is_python_pinned,
        cure: python_cure,
    }
}

const fn container(program: &'static str, subcommand: &'static [&'static str]) -> Runner {
    let (options, is_pinned) = (CONTAINER_OPTIONS, is_image_pinned);
    Runner { program, subcommand, options, package_options: &[], is_pinned, cure: image_cure }
}

const RUNNERS: [Runner; 16] = [
    npm("npx", &[]),
    npm("npm", &["exec"]),
    npm("npm", &["x"]),
    npm("pnpx", &[]),
    npm("pnpm", &["dlx"]),
    npm("yarn", &["dlx"]),
    npm("bunx", &[]),
    npm("bun", &["x"]),
    python("uvx", &[]),
    python("uv", &["tool", "run"]),
    python("uv", &["x"]),
    python("pipx", &["run"]),
    container("docker", &["run"]),
    container("docker", &["container", "run"]),
    container("podman", &["run"]),
    container("nerdctl", &["run"]),
];

impl Runner {
    /// Returns the arguments after the subcommand. Options of the program may precede the subcommand.
    fn arguments<'a, 'b>(&self, args: &'b [&'a str]) -> Option<&'b [&'a str]> {
        let mut rest = args;
        for name in self.subcommand {
            let at = rest.iter().position(|argument| !argument.starts_with('-'))?;
            if rest[at] != *name {
                return None;
            }
            rest = &rest[at + 1..];
        }
        Some(rest)
    }

    fn packages<'a>(&self, args: &[&'a str]) -> Vec<&'a str> {
        let mut named = Vec::new();
        let mut args = args.iter().copied();
        let mut first = None;
        while let Some(argument) = args.next() {
            if argument == "--" {
                first = args.next();
                break;
            }
            if !argument.starts_with('-') || argument == "-" {
                first = Some(argument);
                break;
            }
            let (option, attached) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (argument, None),
            };
            if self.package_options.contains(&option) {
                named.extend(attached.or_else(|| args.next()));
            } else if attached.is_none() && self.has_value(option) {
                args.next();
            }
        }
        if named.is_empty() { first.into_iter().collect() } else { named }
    }

    fn has_value(&self, option: &str) -> bool {
        let has = |list, option: &str| word_list::of(list).any(|known| known == option);
        match self.options {
            RunnerOptions::WithValue(known) => has(known, option),
            // Short options can be combined, as in `-it`. A value can be attached to its option, as in `-eNAME`.
            RunnerOptions::Without(known) if !option.starts_with("--") => {
                let is_flag = |letter: char| has(known, &format!("-{letter}"));
                option.chars().skip(1).position(|letter| !is_flag(letter)).is_some_and(|at| at + 2 == option.len())
            }
            RunnerOptions::Without(known) => !has(known, option),
        }
    }
}

fn is_npm_pinned(package: &str) -> bool {
    if is_local(package) {
        return true;
    }
    if let Some((_, reference)) = package.split_once('#') {
        return is_fixed_reference(reference);
    }
    let (name, version) = npm_parts(package);
    match version {
        // An alias of a package, such as `mine@npm:theirs@1.2.3`.
        Some(version) if version.starts_with("npm:") => is_npm_pinned(&version["npm:".len()..]),
        Some(version) => is_exact(version),
        // A repository without `#` is not pinned. An archive is one version.
        None => name.contains("://") && !name.starts_with("git") && !name.ends_with(".git"),
    }
}

/// Splits a package into name and version. The leading `@` of a scoped name belongs to the name.
fn npm_parts(package: &str) -> (&str, Option<&str>) {
    if package.contains("://") {
        return (package, None);
    }
    let first = package.chars().next().map_or(0, char::len_utf8);
    match package[first..].split_once('@') {
        Some((name, version)) => (&package[..first + name.len()], Some(version)),
        None => (package, None),
    }
}

fn npm_cure(package: &str) -> String {
    let (name, _) = npm_parts(package);
    let is_repository = name.contains(':') || (name.contains('/') && !name.starts_with('@'));
    if is_repository || package.contains('#') {
        return format!("{}#COMMIT", package.split('#').next().unwrap_or(package));
    }
    format!("{name}@VERSION")
}

/// Reports whether the version has three numbers, such as `1.2.3-beta`. npm treats fewer numbers as a range.
fn is_exact(version: &str) -> bool {
    let version = version.strip_prefix(['v', '=']).unwrap_or(version);
    let core = version.split(['-', '+']).next().unwrap_or(version);
    let parts: Vec<&str> = core.split('.').collect();
    parts.len() == 3 && parts.iter().all(|part| is_number(part))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_python_pinned(package: &str) -> bool {
    if let Some((_, url)) = package.split_once("git+") {
        let path = url.split_once("://").map_or(url, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
        let path = path.split('#').next().unwrap_or(path);
        return path.rsplit_once('@').is_some_and(|(_, reference)| is_fixed_reference(reference));
    }
    if is_local(package) || package.contains("://") {
        return true;
    }
    if let Some((_, version)) = package.split_once("==") {
        return !version.contains(['*', ',']);
    }
    // Python treats `1.2` as one version, not as a range.
    package.split_once('@').is_some_and(|(_, version)| version.trim().starts_with(|first: char| first.is_ascii_digit()))
}

fn python_cure(package: &str) -> String {
    if let Some((start, path)) = package.split_once("://").filter(|_| package.contains("git+")) {
        let path = path
            .split_once('/')
            .map_or(path, |(host, rest)| &path[..host.len() + 1 + rest.split(['@', '#']).next().unwrap_or(rest).len()]);
        return format!("{start}://{path}@COMMIT");
    }
    let name = package.split(['@', '=', '<', '>', '~', '!']).next().unwrap_or(package).trim();
    format!("{name}==VERSION")
}

/// Reports whether a git reference is a commit or a version. A branch can move.
fn is_fixed_reference(reference: &str) -> bool {
    let is_commit = (7..=64).contains(&reference.len()) && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit || is_exact(reference)
}

/// Reports whether the package is a local path, which no registry can change.
fn is_local(package: &str) -> bool {
    package.starts_with(['.', '/', '~']) || package.starts_with("file:")
}

fn is_image_pinned(image: &str) -> bool {
    image.contains('@') || image_parts(image).1.is_some_and(|tag| tag != "latest")
}

/// Splits an image into name and tag. A colon before the last slash belongs to the port of a registry.
fn image_parts(image: &str) -> (&str, Option<&str>) {
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (image, None),
    }
}

fn image_cure(image: &str) -> String {
    let (name, _) = image_parts(image);
    format!("{name}:TAG or {name}@sha256:DIGEST")
}

#[cfg(test)]
mod tests {
    use super::unpinned;

    /// Checks the package that is reported as unpinned, and its suggested spelling.
    fn check(line: &str, expected: Option<(&str, &str)>) {
        let arguments: Vec<&str> = line.split(' ').collect();
        let found = unpinned(arguments[0], &arguments[1..]);
        let found = found.as_ref().map(|unpinned| (unpinned.package.as_str(), unpinned.cure.as_str()));
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn packages_of_npm() {
        for line in [
            "npx -y @modelcontextprotocol/server-filesystem@2025.8.21 .",
            "npx some-server@1.2.3",
            "npx some-server@1.2.3-beta.1+build",
            "npx --yes --package=some-server@1.2.3 binary",
            "npx -p some-server@1.2.3 -p other@4.5.6 binary",
            "npx ./local",
            "npx mine@npm:theirs@1.2.3",
            "npx github:user/repository#0123456789abcdef0123456789abcdef01234567",
            "npx git+https://host/repository.git#v1.2.3",
            "npx https://host/some-server-1.2.3.tgz",
            "/usr/local/bin/npx -y some-server@1.2.3",
            "npm exec -- some-server@1.2.3",
            "pnpm dlx some-server@1.2.3",
            "pnpm install some-server",
            "yarn dlx @a/b@1.2.3",
            "bunx --bun @a/b@1.2.3",
            "npm run start",
            "npx",
            "npx -y",
        ] {
            check(line, None);
        }
        let (plain, scoped) = (("some-server", "some-server@VERSION"), ("@a/b", "@a/b@VERSION"));
        for (line, expected) in [
            ("npx some-server", plain),
            ("npx -y some-server 1.2.3", plain),
            ("npx --registry https://host some-server", plain),
            ("npx -y @a/b", scoped),
            ("npx -y @a/b .", scoped),
            ("npx some-server@latest", ("some-server@latest", "some-server@VERSION")),
            ("npx @a/b@latest", ("@a/b@latest", "@a/b@VERSION")),
            ("npx some-server@^1.2.3", ("some-server@^1.2.3", "some-server@VERSION")),
            ("npx some-server@1", ("some-server@1", "some-server@VERSION")),
            ("npx --package=some-server binary@1.2.3", plain),
            ("npx -p other@1.2.3 -p some-server binary", plain),
            ("npx mine@npm:theirs", ("mine@npm:theirs", "mine@VERSION")),
            ("npx github:user/repository", ("github:user/repository", "github:user/repository#COMMIT")),
            ("npx user/repository#main", ("user/repository#main", "user/repository#COMMIT")),
            ("npx git+https://u:p@host/x", ("git+https://***@host/x", "git+https://***@host/x#COMMIT")),
            ("npx git+https://host/x.git", ("git+https://host/x.git", "git+https://host/x.git#COMMIT")),
            ("npm exec some-server", plain),
            ("npx é", ("é", "é@VERSION")),
            ("npm x -- some-server", plain),
            ("pnpm dlx some-server", plain),
            ("pnpm --silent dlx some-server", plain),
            ("yarn dlx some-server", plain),
            ("bunx some-server", plain),
            ("bun x @a/b", scoped),
        ] {
            check(line, Some(expected));
        }
    }

    #[test]
    fn packages_of_python() {
        for line in [
            "uvx mcp-server-git==2025.7.1",
            "uvx mcp-server-git@1.2",
            "uvx --from mcp-server-git==1.2 binary",
            "uvx --from=mcp[cli]==1.2 binary",
            "uvx --python 3.12 mcp-server-git==1.2",
            "uvx --from git+https://host/a/b@0123456789abcdef0123456789abcdef01234567 binary",
            "uvx --from git+https://host/a/b@v1.2.3#subdirectory=x binary",
            "uvx --from ./here binary",
            "uv tool run mcp-server-git==1.2",
            "uv run server.py",
            "pipx run --spec mcp==1.2 mcp",
            "python -m server",
        ] {
            check(line, None);
        }
        let git = ("mcp-server-git", "mcp-server-git==VERSION");
        for (line, expected) in [
            ("uvx mcp-server-git", git),
            ("uvx mcp-server-git --repository .", git),
            ("uvx --with extra==1.2 mcp-server-git", git),
            ("uvx mcp-server-git@latest", ("mcp-server-git@latest", "mcp-server-git==VERSION")),
            ("uvx --from mcp-server-git>=1.2 binary", ("mcp-server-git>=1.2", "mcp-server-git==VERSION")),
            ("uvx --from mcp-server-git==1.* binary", ("mcp-server-git==1.*", "mcp-server-git==VERSION")),
            ("uvx --from git+https://host/a/b binary", ("git+https://host/a/b", "git+https://host/a/b@COMMIT")),
            (
                "uvx --from git+ssh://git@host/a/b@main#x binary",
                ("git+ssh://git@host/a/b@main#x", "git+ssh://git@host/a/b@COMMIT"),
            ),
            ("uv tool run mcp-server-git", git),
            ("pipx run mcp-server-git", git),
        ] {
            check(line, Some(expected));
        }
    }

    #[test]
    fn images() {
        for line in [
            "docker run -i --rm -e TOKEN mcp/github:1.2.3",
            "docker run -it --rm --env=A=b host:5000/mcp/github:stable stdio",
            "docker run mcp/github@sha256:0123",
            "docker compose up",
            "docker ps",
            "podman run --pull always mcp/github:1",
            "docker run",
        ] {
            check(line, None);
        }
        let cure = "mcp/github:TAG or mcp/github@sha256:DIGEST";
        for (line, package) in [
            ("docker run -i --rm -e TOKEN mcp/github", "mcp/github"),
            ("docker run -i --rm -eTOKEN -v /a:/b:ro mcp/github stdio:1", "mcp/github"),
            ("docker run --mount type=bind,src=/a,dst=/b mcp/github", "mcp/github"),
            ("docker run -ie TOKEN mcp/github", "mcp/github"),
            ("docker container run mcp/github:latest", "mcp/github:latest"),
            ("podman run mcp/github", "mcp/github"),
        ] {
            check(line, Some((package, cure)));
        }
        check("docker run host:5000/x", Some(("host:5000/x", "host:5000/x:TAG or host:5000/x@sha256:DIGEST")));
    }

    #[test]
    fn it_is_told_in_a_sentence() {
        let found = unpinned("npx", &["-y", "some-server"]).unwrap().to_string();
        assert_eq!(found, "npx fetches some-server without a fixed version, write some-server@VERSION");
        let found = unpinned("uv", &["tool", "run", "x"]).unwrap().to_string();
        assert_eq!(found, "uv tool run fetches x without a fixed version, write x==VERSION");
    }
}
