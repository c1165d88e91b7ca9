//! Rules for the lines of one file: registries, developers' paths, the length and name of sources.
//!
//! The functions are pure. The parent module reads the files.

use std::path::Path;

use super::Problem;

/// The limit for the lines of a source file, without its tests. A longer file should be split.
const MAX_SOURCE_LINES: usize = 600;

/// Hosts of package registries. The registry is a setting of the machine, so the repository must not name one. Each
/// name is written in two halves, because tidy checks this file too.
const REGISTRY_HOSTS: [&str; 6] = [
    concat!("registry.", "npmjs.org"),
    concat!("registry.", "yarnpkg.com"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
];

/// Prefixes of absolute paths that exist on one developer's machine only.
const DEVELOPER_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/tmp", "/h-")];

/// Captured catalogs of published servers. Their examples name such paths, and they are kept unchanged.
const CAPTURED: &str = "tests/search/catalogs";

pub fn check(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut report = |what: String| problems.push(Problem { line: index + 1, what });
        if let Some(host) = REGISTRY_HOSTS.iter().find(|host| line.contains(**host)) {
            report(format!("names the registry host {host}"));
        }
        if sets_registry(path, line) {
            report("sets a package registry".to_string());
        }
        if let Some(start) =
            DEVELOPER_PATHS.iter().find(|start| !path.starts_with(CAPTURED) && begins_path(line, start))
        {
            report(format!("names a path of a developer's machine, {start}..."));
        }
    }
    problems.extend(check_source(path, text));
    problems
}

fn check_source(path: &Path, text: &str) -> Option<Problem> {
    if path.file_name().is_some_and(|name| name == "mod.rs") {
        let what = "is a mod.rs; name it after its module, beside the directory".to_string();
        return Some(Problem { line: 1, what });
    }
    let is_source = path.extension().is_some_and(|extension| extension == "rs")
        && path.components().any(|component| component.as_os_str() == "src");
    let lines = lines_before_tests(text);
    (is_source && lines > MAX_SOURCE_LINES).then(|| Problem {
        line: MAX_SOURCE_LINES + 1,
        what: format!("has {lines} lines without its tests; the limit is {MAX_SOURCE_LINES}"),
    })
}

fn lines_before_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests"))
        .unwrap_or(lines.len())
}

/// Reports whether a configuration file selects a registry by any host name. This catches private mirrors.
fn sets_registry(path: &Path, line: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let line = line.trim_start();
    match name {
        "package-lock.json" => line.starts_with("\"resolved\":"),
        ".npmrc" => line.starts_with("registry") || line.contains(":registry"),
        "config.toml" => line.starts_with("[source") || line.starts_with("[registr") || line.starts_with("registry"),
        _ if name.starts_with("requirements") || name == "pip.conf" => {
            ["--index-url", "--extra-index-url", "--find-links", "-i ", "index-url", "extra-index-url"]
                .iter()
                .any(|option| line.starts_with(option))
        }
        _ => false,
    }
}

/// Reports whether the line contains a path that begins with `start`. No path begins at `/x/` in `build/x/` and
/// `file:///x/`: the first is relative, the second names no machine.
fn begins_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(index, _)| {
        let before = line[..index].chars().next_back();
        before.is_none_or(|character| !character.is_alphanumeric() && !"._-/~*})>\\".contains(character))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[&str]) {
        let found: Vec<String> = super::check(Path::new(path), text)
            .into_iter()
            .map(|problem| format!("{}: {}", problem.line, problem.what))
            .collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn a_named_registry_host_is_reported() {
        for host in REGISTRY_HOSTS {
            check("docs/a.md", &format!("ok\nsee https://{host}/x\n"), &["2: names the registry host"]);
        }
        check("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\"", &[]);
        check("README.md", "[crate](https://crates.io/crates/goblin-gateway)", &[]);
    }

    #[test]
    fn a_configured_package_registry_is_reported() {
        check("a/package-lock.json", "  \"resolved\": \"http://mirror.example/a.tgz\",", &["1: sets a package"]);
        check("a/.npmrc", "registry=http://mirror.example", &["1: sets a package"]);
        check("a/.npmrc", "omit-lockfile-registry-resolved=true", &[]);
        check("requirements-1.txt", "--index-url http://mirror.example", &["1: sets a package"]);
        check(".cargo/config.toml", "[source.mirror]", &["1: sets a package"]);
        check("docs/a.md", "registry=...", &[]);
    }

    #[test]
    fn a_named_developer_path_is_reported() {
        for start in DEVELOPER_PATHS {
            check("a.rs", &format!("let path = \"{start}x\";"), &["1: names a path"]);
            check("a.sh", &format!("{start}x"), &["1: names a path"]);
            check("a.md", &format!("build{start}x, ${{X}}{start}x, file://{start}x, ~{start}x"), &[]);
        }
    }

    #[test]
    fn a_long_source_or_a_mod_rs_is_reported() {
        let lines = |count| "let x = 1;\n".repeat(count);
        check("src/a.rs", &lines(MAX_SOURCE_LINES), &[]);
        check("src/a.rs", &lines(MAX_SOURCE_LINES + 1), &["601: has 601 lines"]);
        check("src/a.rs", &format!("{}#[cfg(test)]\nmod tests {{\n{}", lines(600), lines(600)), &[]);
        check("tests/a.rs", &lines(MAX_SOURCE_LINES + 1), &[]);
        check("src/a/mod.rs", "", &["1: is a mod.rs"]);
    }
}
