//! Finds the command of `goblin add NAME COMMAND ARGS...` if the user left out the separator `--`.

use std::ffi::OsString;

/// The options of `goblin add` that have a value in the next argument.
const WITH_VALUE: [&str; 6] = ["--files", "--env", "--cwd", "--header", "--config", "-c"];
const SWITCHES: [&str; 3] = ["--force", "--help", "-h"];

/// Returns the arguments of the process with `--` before the command, if they unambiguously have a command without it.
/// A whole command line in one argument becomes its words, unless a shell would do more than split it.
pub(crate) fn with_separator(arguments: Vec<OsString>) -> Vec<OsString> {
    match command(&arguments) {
        None => arguments,
        Some(at) => {
            let (before, after) = arguments.split_at(at);
            let (first, rest) = (after[0].to_string_lossy(), &after[1..]);
            let words = first.split_whitespace().map(OsString::from);
            before.iter().cloned().chain([OsString::from("--")]).chain(words).chain(rest.iter().cloned()).collect()
        }
    }
}

/// Returns the position of a command that has no `--` before it.
fn command(arguments: &[OsString]) -> Option<usize> {
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str());
    if text(1) != Some("add") || arguments.iter().any(|argument| argument == "--") {
        return None;
    }
    let (mut at, mut names) = (2, 0);
    loop {
        match text(at)? {
            option if WITH_VALUE.contains(&option) => at += 1,
            option if option.starts_with('-') => {}
            _ if names == 0 => names += 1,
            _ => break,
        }
        at += 1;
    }
    let (word, next) = (text(at)?, text(at + 1));
    let is_own = |option: &str| WITH_VALUE.iter().chain(&SWITCHES).any(|own| option.split('=').next() == Some(*own));
    let is_line =
        word.contains(char::is_whitespace) && !word.contains(['"', '\'', '\\', '$', '`', '|', '&', ';', '<', '>']);
    let has_arguments = !word.contains(char::is_whitespace) && next.is_some_and(|next| !is_own(next));
    (!word.contains("://") && (is_line || has_arguments)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use15_a_command_needs_no_separator_if_it_is_unambiguous() {
        for (given, expected) in [
            ("add fs npx -y @a/b", "add fs -- npx -y @a/b"),
            ("add --env A=B fs npx -y", "add --env A=B fs -- npx -y"),
            ("add --force fs uvx x --config y", "add --force fs -- uvx x --config y"),
            ("add fs -- npx -y", "add fs -- npx -y"),
            ("add fs https://a/mcp --header x", "add fs https://a/mcp --header x"),
            ("add fs npx --env A=B", "add fs npx --env A=B"),
            ("add fs npx", "add fs npx"),
            ("add fs", "add fs"),
            ("tools call x y z", "tools call x y z"),
        ] {
            let arguments = format!("goblin {given}").split(' ').map(OsString::from).collect();
            let found: Vec<_> =
                with_separator(arguments).into_iter().skip(1).map(|word| word.into_string().expect("UTF-8")).collect();
            assert_eq!(found.join(" "), expected, "{given}");
        }
        let add = |line: &str| with_separator(["goblin", "add", "x", line].map(OsString::from).to_vec());
        assert_eq!(add("npx -y server")[3..], ["--", "npx", "-y", "server"].map(OsString::from));
        assert_eq!(add("sh -c 'a | b'")[3..], [OsString::from("sh -c 'a | b'")]);
    }
}
