//! `cargo xtask tidy`: checks that need nothing but the files.
//!
//! The task reads every file that is in the repository or could be added to it, and reports all problems at once. The
//! rules are functions from a text to its problems. Only this file accesses the disk.

mod links;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::figures;
use crate::process::output_of;

/// An untidy place. Lines count from 1.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    line: usize,
    what: String,
}

pub fn check(root: &Path) -> Result<()> {
    let files = read_files(root)?;
    if files.is_empty() {
        bail!("found no files to check in {}", root.display());
    }
    let mut count = 0;
    for (path, text) in &files {
        for problem in problems_of(root, &files, path, text) {
            eprintln!("{}:{}: {}", path.display(), problem.line, problem.what);
            count += 1;
        }
    }
    if count > 0 {
        bail!("{count} problems");
    }
    eprintln!("tidy: {} files, ok", files.len());
    Ok(())
}

fn problems_of(root: &Path, files: &BTreeMap<PathBuf, String>, path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = text::check(path, text);
    if path.extension().is_some_and(|extension| extension == "md") {
        for link in links::find(text) {
            if let Some(what) = broken_link(root, files, path, &link.target) {
                problems.push(Problem { line: link.line, what });
            }
        }
    }
    if path == Path::new(figures::DOCUMENT)
        && let Err(error) = figures::check(root, text)
    {
        problems.push(Problem { line: 1, what: format!("{error:#}") });
    }
    problems
}

/// Returns the problem of a link in the document at `path`, or `None` if the link is fine.
fn broken_link(root: &Path, files: &BTreeMap<PathBuf, String>, path: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let linked = if file.is_empty() {
        path.to_path_buf()
    } else {
        let Some(linked) = resolve(path, file) else {
            return Some(format!("link leaves the repository: {target}"));
        };
        if !root.join(&linked).exists() {
            return Some(format!("link to a file that does not exist: {target}"));
        }
        linked
    };
    let is_document = linked.extension().is_some_and(|extension| extension == "md");
    if anchor.is_empty() || !is_document {
        return None;
    }
    let headings = links::anchors(files.get(&linked)?);
    (!headings.iter().any(|heading| heading == anchor))
        .then(|| format!("link to a heading that does not exist: {target}"))
}

/// Returns the path of `file` from the root, for a link in the document at `path`. Returns `None` if the path leaves
/// the root.
fn resolve(path: &Path, file: &str) -> Option<PathBuf> {
    let from_root = match file.strip_prefix('/') {
        Some(absolute) => PathBuf::from(absolute),
        None => path.parent()?.join(file),
    };
    let mut resolved = PathBuf::new();
    for component in from_root.components() {
        match component {
            Component::ParentDir if !resolved.pop() => return None,
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    Some(resolved)
}

/// Reads the text files of the repository, by their path from the root. Files that are not UTF-8 are skipped.
fn read_files(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for path in list_files(root)? {
        let absolute = root.join(&path);
        if absolute.is_file() {
            let bytes = fs::read(&absolute).with_context(|| format!("cannot read {}", absolute.display()))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.insert(path, text);
            }
        }
    }
    Ok(files)
}

fn list_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    match output_of(&mut git) {
        Some(list) => Ok(list.split_terminator('\0').map(PathBuf::from).collect()),
        None => {
            eprintln!("tidy: no git repository here, checking all files");
            let mut paths = Vec::new();
            walk(root, Path::new(""), &mut paths)?;
            Ok(paths)
        }
    }
}

/// Lists the files of a checkout without git, such as an unpacked release.
fn walk(root: &Path, directory: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let absolute = root.join(directory);
    for entry in fs::read_dir(&absolute).with_context(|| format!("cannot list {}", absolute.display()))? {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        let name = entry.file_name();
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if name != "target" && name != "node_modules" && name != ".git" {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, target: &str, expected: Option<&str>) {
        let files = BTreeMap::from([
            (PathBuf::from("docs/guide.md"), "# The guide\n\n## Set-up, quickly\n".to_string()),
            (PathBuf::from("README.md"), "# Goblin\n".to_string()),
        ]);
        // The package directory serves as the repository: `src` and `Cargo.toml` exist in it.
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = broken_link(root, &files, Path::new(path), target);
        assert_eq!(found.as_deref().map(|what| what.split(": ").next().unwrap()), expected, "{target}");
    }

    #[test]
    fn links_are_resolved_from_their_document() {
        check("README.md", "Cargo.toml", None);
        check("README.md", "src/", None);
        check("README.md", "src/main.rs#L3", None);
        check("docs/guide.md", "../src/main.rs", None);
        check("docs/guide.md", "/src/main.rs", None);
        check("docs/guide.md", "src/main.rs", Some("link to a file that does not exist"));
        check("docs/guide.md", "../../elsewhere.md", Some("link leaves the repository"));
        check("docs/guide.md", "#set-up-quickly", None);
        check("docs/guide.md", "#set-up", Some("link to a heading that does not exist"));
    }

    #[test]
    fn files_are_found_without_git_too() {
        let mut paths = Vec::new();
        walk(Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(""), &mut paths).unwrap();
        assert!(paths.contains(&PathBuf::from("src/tidy.rs")), "{paths:?}");
    }
}
