//! The rule that decides which files exist, for lists, reads, searches and completions alike.
//!
//! `.git` is never served. Names that begin with a dot are served only with `hidden`. Names in `.gitignore` are served
//! only with `ignored`. The `.gitignore` files from the top of the repository down apply, the nearest first, then
//! `info/exclude`. The rules are read for each request, so an edit applies at once. If they cannot be read, no file
//! that they might exclude is served.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::Dir;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::OFlags;

use crate::tree;

const RULES: &str = ".gitignore";
/// The path of the exclude file below the top of a repository.
const EXCLUDE: &str = ".git/info/exclude";
/// The limit in bytes of all rule files that apply to one directory. More is an error: a pattern may need a thousand
/// times its length in memory, and the files are read for each request.
const MAX_RULE_BYTES: u64 = 128 << 10;
/// The longest glob of a client. The parser recurses for each brace, so this limits the stack as well.
const MAX_GLOB: usize = 512;

pub(crate) struct Rule {
    /// The absolute path of the root.
    root: PathBuf,
    hidden: bool,
    ignored: bool,
}

/// The reason why a file does not exist for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exclusion {
    Git,
    Hidden,
    Ignored,
}

/// The rule files that apply to one directory, the nearest last.
#[derive(Clone, Default)]
pub(crate) struct RuleLayers(Vec<Arc<RuleLayer>>);

struct RuleLayer {
    /// The absolute path of the directory to which the patterns are relative.
    at: PathBuf,
    patterns: Gitignore,
    /// The size of the rule file.
    size: u64,
}

impl Rule {
    pub(crate) fn new(root: PathBuf, hidden: bool, ignored: bool) -> Rule {
        Rule { root, hidden, ignored }
    }

    /// Checks the names of a path alone, without rule files.
    pub(crate) fn check_names(&self, path: &Path) -> Result<(), Exclusion> {
        path.iter().try_for_each(|name| self.check_name(name))
    }

    fn check_name(&self, name: &OsStr) -> Result<(), Exclusion> {
        if name.eq_ignore_ascii_case(".git") {
            return Err(Exclusion::Git);
        }
        if !self.hidden && name.as_bytes().starts_with(b".") { Err(Exclusion::Hidden) } else { Ok(()) }
    }

    /// Checks a path in a directory that is served. `layers` are the rules of that directory.
    pub(crate) fn check_path(&self, layers: &RuleLayers, path: &Path, is_directory: bool) -> Result<(), Exclusion> {
        if let Some(name) = path.file_name() {
            self.check_name(name)?;
        }
        let absolute = self.root.join(path);
        for layer in layers.0.iter().rev() {
            let Ok(relative) = absolute.strip_prefix(&layer.at) else { continue };
            match layer.patterns.matched(relative, is_directory) {
                Match::Ignore(_) => return Err(Exclusion::Ignored),
                Match::Whitelist(_) => return Ok(()),
                Match::None => {}
            }
        }
        Ok(())
    }

    /// Returns the rules from above the root: those of the repository that contains it.
    pub(crate) fn above(&self) -> io::Result<RuleLayers> {
        let mut layers = RuleLayers::default();
        let Some((top, between)) = self.repository() else { return Ok(layers) };
        layers.push(top, open(&top.join(EXCLUDE)))?;
        for directory in between {
            layers.push(directory, open(&directory.join(RULES)))?;
        }
        Ok(layers)
    }

    /// Returns the top of the repository that contains the root, and the directories from there to the root's parent.
    fn repository(&self) -> Option<(&Path, Vec<&Path>)> {
        let top = self.root.ancestors().find(|directory| directory.join(".git").symlink_metadata().is_ok());
        let top = top.filter(|_| !self.ignored)?;
        let mut between: Vec<_> = self.root.ancestors().skip(1).take_while(|above| above.starts_with(top)).collect();
        between.reverse();
        Some((top, between))
    }

    /// Returns the directories outside the root with rule files that apply to it.
    pub(crate) fn places(&self) -> Vec<PathBuf> {
        let Some((top, between)) = self.repository() else { return Vec::new() };
        let exclude = top.join(EXCLUDE);
        exclude.parent().into_iter().chain(between).map(Path::to_owned).collect()
    }

    /// Reports whether a change of this path may change which files are served.
    pub(crate) fn is_rules(&self, absolute: &Path) -> bool {
        let is_named = |name: &str| absolute.file_name().is_some_and(|known| known == name);
        !self.ignored && (is_named(RULES) || is_named(".git") || absolute.ends_with(EXCLUDE))
    }

    /// Adds the rules of a directory below the root.
    pub(crate) fn enter(&self, layers: &mut RuleLayers, directory: &Dir, path: &Path) -> io::Result<()> {
        if self.ignored {
            return Ok(());
        }
        layers.push(&self.root.join(path), tree::open_file(directory, OsStr::new(RULES)))
    }

    /// Removes the rules that [`enter`](Rule::enter) added for the directory.
    pub(crate) fn leave(&self, layers: &mut RuleLayers, path: &Path) {
        let at = self.root.join(path);
        layers.0.pop_if(|layer| layer.at == at);
    }
}

impl RuleLayers {
    /// Adds the rules in `file`. Ignores a missing file and one that is not regular, as git does.
    fn push(&mut self, at: &Path, file: io::Result<File>) -> io::Result<()> {
        let file = match file {
            Ok(file) => file,
            Err(error) if tree::is_absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let room = MAX_RULE_BYTES.saturating_sub(self.0.iter().map(|layer| layer.size).sum());
        let mut text = Vec::new();
        let size = file.take(room + 1).read_to_end(&mut text)? as u64;
        if size > room {
            return Err(io::Error::other(format!("the {RULES} of {} is too large", at.display())));
        }
        let patterns = patterns(&String::from_utf8_lossy(&text)).map_err(io::Error::other)?;
        if !patterns.is_empty() {
            self.0.push(Arc::new(RuleLayer { at: at.to_owned(), patterns, size }));
        }
        Ok(())
    }
}

/// Parses a rule file. Ignores invalid lines, as git does.
fn patterns(text: &str) -> Result<Gitignore, ignore::Error> {
    let mut builder = builder();
    for line in text.trim_start_matches('\u{feff}').lines() {
        let _ = builder.add_line(None, &without_alternatives(line));
    }
    builder.build()
}

/// Returns a builder for patterns without a base directory, because callers pass relative paths.
fn builder() -> GitignoreBuilder {
    let mut builder = GitignoreBuilder::new(".");
    // Git ignores case on macOS, because another case opens the same file there.
    let _ = builder.case_insensitive(cfg!(target_os = "macos"));
    builder
}

/// Escapes braces, which git treats as plain characters. The parser recurses for each brace, so a line with many would
/// overflow the stack.
fn without_alternatives(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut is_escaped = false;
    for character in line.chars() {
        if matches!(character, '{' | '}') && !is_escaped {
            plain.push('\\');
        }
        is_escaped = character == '\\' && !is_escaped;
        plain.push(character);
    }
    plain
}

/// Opens a rule file outside the root. Does not block if the path is a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(tree::not_regular()) }
}

/// A pattern of a client in the syntax of `.gitignore`, with `{one,other}` in addition.
pub(crate) struct FileGlob(Gitignore);

impl FileGlob {
    pub(crate) fn new(text: &str) -> Result<FileGlob, String> {
        let problem = |reason: &str| format!("glob {text:?} cannot be used: {reason}");
        if text.len() > MAX_GLOB {
            return Err(format!("a glob must not be longer than {MAX_GLOB} bytes"));
        }
        if text.is_empty() || text.starts_with(['!', '#']) {
            return Err(problem("write it like *.rs or src/**/*.rs"));
        }
        let mut builder = builder();
        builder.add_line(None, text).map_err(|error| problem(&error.to_string()))?;
        builder.build().map(FileGlob).map_err(|error| problem(&error.to_string()))
    }

    /// Reports whether the path of a file, or of a directory that contains it, matches.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        self.0.matched_path_or_any_parents(path, false).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_alone_decide_what_is_hidden() {
        let (strict, open) = (Rule::new("/r".into(), false, false), Rule::new("/r".into(), true, true));
        for (path, by_default, when_hidden) in [
            ("a/b", Ok(()), Ok(())),
            (".env", Err(Exclusion::Hidden), Ok(())),
            ("a/.b/c", Err(Exclusion::Hidden), Ok(())),
            (".git", Err(Exclusion::Git), Err(Exclusion::Git)),
            ("a/.Git/config", Err(Exclusion::Git), Err(Exclusion::Git)),
            (".gitignore", Err(Exclusion::Hidden), Ok(())),
            ("", Ok(()), Ok(())),
        ] {
            assert_eq!(strict.check_names(Path::new(path)), by_default, "{path}");
            assert_eq!(open.check_names(Path::new(path)), when_hidden, "{path}");
        }
    }

    #[test]
    fn the_nearest_rules_come_first() {
        let rule = Rule::new("/repo/root".into(), false, false);
        let mut layers = RuleLayers::default();
        for (at, text) in [
            ("/repo", "*.log\n/root/top\nroot/deep/*.tmp\nbuild/\n"),
            ("/repo/root", "\u{feff}# words\n!keep.log\n/here\n\\!odd\n[\n*.{a,b}\n\\{c\\}\n"),
            ("/repo/root/sub", "*\n!*.rs\n"),
        ] {
            let patterns = patterns(text).expect("good patterns");
            layers.0.push(Arc::new(RuleLayer { at: at.into(), patterns, size: 0 }));
        }
        for (path, is_directory, served) in [
            ("a.log", false, false),
            ("keep.log", false, true),
            ("top", false, false),
            ("x/top", false, true),
            ("deep/a.tmp", false, false),
            ("here", false, false),
            ("x/here", false, true),
            ("!odd", false, false),
            ("x.a", false, true),
            ("x.{a,b}", false, false),
            ("{c}", false, false),
            ("build", true, false),
            ("build", false, true),
            ("sub/a.txt", false, false),
            ("sub/a.rs", false, true),
            ("subway/a.txt", false, true),
        ] {
            assert_eq!(rule.check_path(&layers, Path::new(path), is_directory).is_ok(), served, "{path}");
        }
    }

    #[test]
    fn globs_are_those_of_gitignore() {
        for (glob, path, expected) in [
            ("*.rs", "src/a.rs", true),
            ("/*.rs", "src/a.rs", false),
            ("src/**/*.rs", "src/x/y/a.rs", true),
            ("src/*.rs", "src/x/a.rs", false),
            ("src", "src/x/a.rs", true),
            ("src/", "src/a.rs", true),
            ("*.{md,rs}", "a.md", true),
            ("[ab].rs", "b.rs", true),
        ] {
            assert_eq!(FileGlob::new(glob).expect(glob).matches(Path::new(path)), expected, "{glob} on {path}");
        }
        let deep = format!("{}a{}", "{".repeat(MAX_GLOB / 2), "}".repeat(MAX_GLOB / 2));
        for glob in ["", "!a", "#a", &deep, &deep[..MAX_GLOB]] {
            assert!(FileGlob::new(glob).is_err(), "{glob}");
        }
    }

    #[test]
    fn a_line_of_braces_is_a_name_like_any_other() {
        let line = format!("{}a{}", "{".repeat(100_000), "}".repeat(100_000));
        let patterns = patterns(&format!("{line}\nb\n")).expect("no line breaks the others");
        assert!(patterns.matched("b", false).is_ignore());
    }
}
