//! How a server is reached, as it may be shown: what came out of a variable is shown as that variable, and what looks like a
//! secret is not shown at all.

use crate::cli::load::Variables;
use crate::cli::style::shell_word;
use crate::config::Transport;
use crate::observe::clean;

const HIDDEN: &str = "***";
/// A shorter value stands in too many words to be told apart.
const SHORTEST_VALUE: usize = 4;
/// Parts of the names of options whose value is nobody's business.
const SECRET_WORDS: [&str; 6] = ["token", "secret", "password", "passwd", "key", "auth"];

pub fn of(transport: &Transport, variables: &Variables) -> String {
    let shown = match transport {
        Transport::Stdio { command, args, .. } => {
            let mut words = vec![shell_word(&with_variables(command, variables))];
            let mut hide_next = false;
            for argument in args {
                let is_option = argument.starts_with('-');
                words.push(match hide_next && !is_option {
                    true => HIDDEN.to_owned(),
                    // Before it is quoted: a value may hold what quoting changes.
                    false => shell_word(&with_variables(&without_secret(argument), variables)),
                });
                hide_next = is_option && !argument.contains('=') && names_secret(argument);
            }
            words.join(" ")
        }
        Transport::Http { url, .. } => with_variables(&without_query(url), variables),
        Transport::Files(files) => with_variables(&files.root.display().to_string(), variables),
    };
    clean(&shown)
}

fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn without_secret(argument: &str) -> String {
    match argument.split_once('=') {
        Some((name, _)) if names_secret(name) && !name.contains("://") => format!("{name}={HIDDEN}"),
        _ if argument.contains("://") => without_query(argument),
        _ => argument.to_owned(),
    }
}

/// Passwords stand before the host or behind the question mark.
fn without_query(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, ""), |(base, _)| (base, "?***"));
    let shown = match base.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{}", path.map(|path| format!("/{path}")).unwrap_or_default())
        }
        None => base.to_owned(),
    };
    shown + query
}

fn with_variables(text: &str, variables: &Variables) -> String {
    let set = variables.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let mut known: Vec<_> = set.filter(|(_, value)| value.len() >= SHORTEST_VALUE).collect();
    // A value may be part of another.
    known.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(value.as_str(), &format!("${{{name}}}")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::HttpKind;

    #[test]
    fn a_command_is_shown_without_its_secrets() {
        let variables = [("KEY".to_owned(), Some("s3c'ret".to_owned())), ("N".to_owned(), Some("1".to_owned()))].into();
        for (args, expected) in [
            (&["-y", "pkg@1.2.3"][..], "npx -y pkg@1.2.3"),
            (&["a b", ""], "npx 'a b' ''"),
            (&["--api-key", "hunter2", "x"], "npx --api-key *** x"),
            (&["--api-key=hunter2", "TOKEN=hunter2"], "npx '--api-key=***' 'TOKEN=***'"),
            (&["--verbose", "s3c'ret", "1"], "npx --verbose '${KEY}' 1"),
            (&["postgres://me:pw@db/x?password=pw"], "npx 'postgres://db/x?***'"),
            (&["--db=postgres://me:pw@db/x", "--token=a://b"], "npx --db=postgres://db/x '--token=***'"),
            (&["\u{1b}[31m"], "npx '[31m'"),
        ] {
            let args = args.iter().map(|argument| (*argument).to_owned()).collect();
            let command = "npx".to_owned();
            let transport = Transport::Stdio { command, args, env: BTreeMap::new(), cwd: "/".into() };
            assert_eq!(of(&transport, &variables), expected);
        }
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        let variables = [("KEY".to_owned(), Some("s3cret".to_owned()))].into();
        for (url, expected) in [
            ("https://search.example/mcp", "https://search.example/mcp"),
            ("https://me:pw@search.example:1/mcp?key=k", "https://search.example:1/mcp?***"),
            ("https://search.example/s3cret/mcp", "https://search.example/${KEY}/mcp"),
            ("https://search.example", "https://search.example"),
        ] {
            let transport =
                Transport::Http { kind: HttpKind::Unsaid, url: url.to_owned(), headers: Vec::new(), ca: None };
            assert_eq!(of(&transport, &variables), expected);
        }
    }
}
