//! Recognizes programs that cannot exist as written: `~/bin/server`, and a whole command line in `command`.
//!
//! No shell starts a server, so nothing expands `~` and nothing splits a line into words. Many users expect both. Each
//! fault has the exact text to write instead.

use std::path::Path;

use goblin_wire::json::quote;

use crate::expand::ExpandedText;
use crate::mask;
use crate::problem::Fault;

/// Checks the program of a stdio server. `key` is its name in the file, and `args` are the arguments beside it.
/// Relative paths start at `cwd`.
pub(crate) fn check(program: &ExpandedText, key: &str, args: &[ExpandedText], cwd: &Path) -> Result<(), Fault> {
    let written = program.written().trim();
    let words = split(written);
    let expanded = split(program.value());
    let is_line = || is_line(program.value(), expanded.first().map_or("", String::as_str), cwd);
    let (first, rest) = match words.split_first() {
        Some((first, rest)) if !rest.is_empty() && is_line() => (first.as_str(), rest),
        _ => (written, &[][..]),
    };
    if rest.is_empty() {
        return check_home(first);
    }
    let in_home = |word: &str| with_home(word).unwrap_or_else(|| word.to_owned());
    let program = in_home(first);
    let rest: Vec<String> = rest.iter().map(|word| in_home(word)).collect();
    let args = rest.iter().map(String::as_str).chain(args.iter().map(ExpandedText::written));
    // The message reaches the log.
    let args: Vec<String> = mask::arguments(args).iter().map(|argument| quote(argument)).collect();
    let fault = Fault::new("is a whole command line, not a program");
    Err(fault.cure(format!("write \"{key}\": {}, \"args\": [{}]", quote(&program), args.join(", "))).outside())
}

/// Returns a fault if a path starts with `~`.
pub(crate) fn check_home(text: &str) -> Result<(), Fault> {
    let fault = || Fault::new("\"~\" is not expanded").outside();
    match with_home(text) {
        Some(path) => Err(fault().cure(format!("write {}", quote(&path)))),
        None if text.starts_with('~') => Err(fault().cure("write the absolute path")),
        None => Ok(()),
    }
}

/// Returns the path with `${HOME}` instead of `~`. Returns `None` if it does not start with the home directory.
pub(crate) fn with_home(text: &str) -> Option<String> {
    let rest = text.strip_prefix('~')?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("${{HOME}}{rest}"))
}

/// Reports whether a text with several words is a command line. A program with a space in its path exists as written.
fn is_line(text: &str, first: &str, cwd: &Path) -> bool {
    let is_file = |path: &str| cwd.join(path).is_file();
    match first.contains('/') && !first.starts_with('~') {
        true => !is_file(text) && is_file(first),
        false => !text.contains('/') || !is_file(text),
    }
}

/// Splits a line into words like a shell, with single and double quotes. A quote without an end lasts to the end.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cure(command: &str, args: &[&str]) -> Option<String> {
        let args: Vec<ExpandedText> = args.iter().map(|argument| ExpandedText::from(*argument)).collect();
        check(&ExpandedText::from(command), "command", &args, Path::new("/")).err().map(|fault| fault.to_string())
    }

    #[test]
    fn d16_a_command_line_is_recognized_and_split() {
        for (command, args, expected) in [
            ("npx -y server-x", &[][..], r#""npx", "args": ["-y", "server-x"]"#),
            ("npx -y server-x", &["--port", "1"], r#""npx", "args": ["-y", "server-x", "--port", "1"]"#),
            ("/bin/sh -c 'echo  a'", &[], r#""/bin/sh", "args": ["-c", "echo  a"]"#),
            ("node ~/s.js", &[], r#""node", "args": ["${HOME}/s.js"]"#),
            ("~/bin/s --x", &[], r#""${HOME}/bin/s", "args": ["--x"]"#),
            ("x --api-key hunter2", &[], r#""x", "args": ["--api-key", "***"]"#),
        ] {
            let found = cure(command, args).unwrap_or_default();
            assert!(
                found.ends_with(&format!("is a whole command line, not a program, write \"command\": {expected}")),
                "{found}"
            );
            assert!(!found.contains("hunter2"), "{found}");
        }
    }

    #[test]
    fn d16_a_command_line_keeps_its_references() {
        let program = ExpandedText::new("/bin/sh -x", "${BIN}/sh -x");
        let fault = check(&program, "command", &[], Path::new("/")).expect_err("a command line").to_string();
        assert!(fault.ends_with(r#"write "command": "${BIN}/sh", "args": ["-x"]"#), "{fault}");
    }

    #[test]
    fn d16_a_home_directory_gets_its_variable() {
        assert_eq!(cure("~/bin/s", &[]).as_deref(), Some("\"~\" is not expanded, write \"${HOME}/bin/s\""));
        assert_eq!(cure("~other/bin", &[]).as_deref(), Some("\"~\" is not expanded, write the absolute path"));
    }

    #[test]
    fn d16_a_program_is_no_command_line() {
        for command in ["npx", "/bin/sh", "./a b/no such file", " npx ", "${X}"] {
            assert_eq!(cure(command, &[]), None, "{command}");
        }
        let directory = std::env::temp_dir().join(format!("goblin line {}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("the server");
        std::fs::write(&program, "").unwrap();
        assert_eq!(cure(program.to_str().unwrap(), &[]), None);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
