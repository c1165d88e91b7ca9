//! Recognizes programs that cannot exist as written: `~/bin/server`, and a whole command line in `command`.
//!
//! No shell starts a server, so nothing expands `~` and nothing splits a line into words. Many users expect both. Each
//! fault has the exact text to write instead.

use std::path::Path;

use goblin_wire::json::quote;

use crate::expand::{ExpandedText, is_variable_name};
use crate::mask;
use crate::problem::Fault;

/// Checks the program of a stdio server. `key` is its name in the file, and `args` are the arguments beside it.
/// Relative paths start at `cwd`.
pub(crate) fn check(program: &ExpandedText, key: &str, args: &[ExpandedText], cwd: &Path) -> Result<(), Fault> {
    let written = program.written().trim();
    let words = split(written);
    let expanded = split(program.value());
    // A shell sets the variables before the program.
    let named = expanded.iter().find(|word| assignment(word).is_none());
    let is_line = words.len() > 1 && named.is_none_or(|named| is_line(program.value(), named, cwd));
    if !is_line {
        return check_home(written);
    }
    let args = args.iter().map(|argument| argument.written().to_owned());
    let words: Vec<String> = words.into_iter().chain(args).collect();
    Err(Fault::new("a whole command line is not a program").cure(cure(key, &words)).outside())
}

/// Returns the members to write instead of a command line, with masked secrets, because the text reaches the log.
fn cure(key: &str, words: &[String]) -> String {
    if words.iter().any(|word| is_operator(word)) {
        return format!("write \"{key}\": \"sh\", \"args\": [\"-c\", \"...\"] with the line instead of ...");
    }
    let is_variable = |word: &&String| assignment(word).is_some();
    let (variables, words) = words.split_at(words.iter().take_while(is_variable).count());
    let words = words.iter().map(|word| with_home(word).unwrap_or_else(|| word.clone())).collect::<Vec<_>>();
    let Some((program, args)) = words.split_first() else {
        return format!("write the program into \"{key}\", and the variables into \"env\"");
    };
    let args = mask::arguments(args.iter().map(String::as_str));
    let args: Vec<String> = args.iter().map(|argument| quote(argument)).collect();
    let member = |(name, value)| format!("{}: {}", quote(name), quote(&mask::value(value)));
    let variables: Vec<String> = variables.iter().filter_map(|word| assignment(word)).map(member).collect();
    let env = match variables.is_empty() {
        true => String::new(),
        false => format!(", \"env\": {{{}}}", variables.join(", ")),
    };
    format!("write \"{key}\": {}, \"args\": [{}]{env}", quote(&mask::text(program)), args.join(", "))
}

/// Reports whether only a shell understands this word.
fn is_operator(word: &str) -> bool {
    ["&&", "||", "|", ";", "&"].contains(&word) || word.starts_with(['>', '<']) || word.ends_with(';')
}

/// Returns the name and the value of a variable that a shell sets for one command.
fn assignment(word: &str) -> Option<(&str, &str)> {
    word.split_once('=').filter(|(name, _)| is_variable_name(name))
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
pub(crate) fn split(line: &str) -> Vec<String> {
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
                found.ends_with(&format!("a whole command line is not a program, write \"command\": {expected}")),
                "{found}"
            );
            assert!(!found.contains("hunter2"), "{found}");
        }
    }

    #[test]
    fn d16_a_command_line_for_a_shell_gets_a_shell_or_members() {
        let line = "a whole command line is not a program, write \"command\": ";
        for (command, expected) in [
            ("cd /srv && KEY=hunter2 node s.js", r#""sh", "args": ["-c", "..."] with the line instead of ..."#),
            ("DB=postgres://me:hunter2@db/x npx s", r#""npx", "args": ["s"], "env": {"DB": "***"}"#),
            (
                "API_KEY=hunter2 B=${B} npx -y s",
                r#""npx", "args": ["-y", "s"], "env": {"API_KEY": "***", "B": "${B}"}"#,
            ),
        ] {
            assert_eq!(cure(command, &[]), Some(format!("{line}{expected}")));
        }
        let found = cure("A=hunter2 B=1", &[]).unwrap_or_default();
        assert!(found.ends_with("write the program into \"command\", and the variables into \"env\""), "{found}");
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
