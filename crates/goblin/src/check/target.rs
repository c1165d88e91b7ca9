//! Describes how a server is reached, without secrets. The value of a variable is replaced by the variable's name, and
//! anything that looks like a secret is masked.

use goblin_client::environment::Variables;
use goblin_config::{Transport, mask};
use goblin_telemetry::clean;

use crate::style::shell_word;

/// The minimum length of a value that is replaced. A shorter one occurs in too many unrelated words.
const MIN_REPLACED_LENGTH: usize = 4;

pub(crate) fn of(transport: &Transport, variables: &Variables) -> String {
    let shown = match transport {
        Transport::Stdio { command, args, .. } => {
            // Replace values before quoting, because quoting may change them.
            let args: Vec<_> = args.iter().map(|argument| with_variables(argument.written(), variables)).collect();
            let mut arguments = vec![mask::text(&with_variables(command.written(), variables))];
            arguments.extend(mask::arguments(args.iter().map(String::as_str)));
            let quoted =
                |argument: &String| if argument == mask::HIDDEN { argument.clone() } else { shell_word(argument) };
            arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
        }
        Transport::Http { url, .. } => mask::url(&with_variables(url, variables)),
        Transport::Files(files) => with_variables(&files.root.display().to_string(), variables),
    };
    clean(&shown)
}

fn with_variables(text: &str, variables: &Variables) -> String {
    let set = variables.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let mut known: Vec<_> = set.filter(|(_, value)| value.len() >= MIN_REPLACED_LENGTH).collect();
    // Replace long values first, because one value may be part of another.
    known.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(value.as_str(), &format!("${{{name}}}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use goblin_config::HttpKind;
    use goblin_config::expand::ExpandedText;
    use goblin_config::inherit::Inherit;

    use super::*;

    #[test]
    fn a_command_is_shown_without_its_secrets() {
        let variables = [("KEY".to_owned(), Some("s3c'ret".to_owned())), ("N".to_owned(), Some("1".to_owned()))].into();
        for (args, expected) in [
            (&["-y", "pkg@1.2.3"][..], "npx -y pkg@1.2.3"),
            (&["a b", ""], "npx 'a b' ''"),
            (&["--api-key", "hunter2", "x"], "npx --api-key *** x"),
            (&["--api-key=hunter2", "TOKEN=hunter2"], "npx '--api-key=***' 'TOKEN=***'"),
            (&["--verbose", "s3c'ret", "1"], "npx --verbose '${KEY}' 1"),
            (&["--api-key", "s3c'ret"], "npx --api-key '${KEY}'"),
            (&["postgres://me:pw@db/x?password=pw"], "npx 'postgres://***@db/x?***'"),
            (&["--db=postgres://me:pw@db/x", "--token=a://b"], "npx '--db=postgres://***@db/x' '--token=***'"),
            (&["--header", "Authorization: Bearer hunter2"], "npx --header ***"),
            (&["-H", "Authorization: Bearer hunter2"], "npx -H 'Authorization: ***'"),
            (&["ghp_hunter2"], "npx ***"),
            (&["\u{1b}[31m"], "npx '[31m'"),
        ] {
            let args = args.iter().map(|argument| ExpandedText::from(*argument)).collect();
            let (env, inherit) = (BTreeMap::new(), Inherit::default());
            let transport = Transport::Stdio { command: "npx".into(), args, env, inherit, cwd: "/".into() };
            assert_eq!(of(&transport, &variables), expected);
        }
    }

    #[test]
    fn hard7_a_command_is_shown_as_it_was_written() {
        let args = vec![ExpandedText::new("--db=pw", "--db=${DB}"), ExpandedText::new("abc", "${KEY:-abc}")];
        let (command, env, inherit) = (ExpandedText::new("/bin/x", "${TOOLS}/x"), BTreeMap::new(), Inherit::default());
        let transport = Transport::Stdio { command, args, env, inherit, cwd: "/".into() };
        assert_eq!(of(&transport, &Variables::new()), "'${TOOLS}/x' '--db=${DB}' '${KEY:-***}'");
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let variables = [("KEY".to_owned(), Some("s3cret".to_owned()))].into();
        for (url, expected) in [
            ("https://search.example/mcp", "https://search.example/mcp"),
            ("https://me:pw@search.example:1/mcp?key=k", "https://***@search.example:1/mcp?***"),
            ("https://search.example/s3cret/mcp", "https://search.example/${KEY}/mcp"),
            ("https://search.example", "https://search.example"),
        ] {
            let transport =
                Transport::Http { kind: HttpKind::Unspecified, url: url.to_owned(), headers: Vec::new(), ca: None };
            assert_eq!(of(&transport, &variables), expected);
        }
    }
}
