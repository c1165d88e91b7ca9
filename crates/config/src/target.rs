//! Describes how a server is reached, without secrets.
//!
//! References such as `${TOKEN}` stay as written in the file, so values of variables never appear. Text that looks like
//! a secret is masked.

use std::fmt;
use std::path::Path;

use crate::consent::shell_word;
use crate::expand::ExpandedText;
use crate::{Transport, mask};

/// The command, the URL or the directory of a server, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A command line, quoted for a shell.
    Command(String),
    Url(String),
    Directory(String),
}

impl Target {
    pub fn of(transport: &Transport) -> Target {
        match transport {
            Transport::Stdio { command, args, .. } => {
                Target::command(command.written(), args.iter().map(ExpandedText::written))
            }
            Transport::Http { url, .. } => Target::url(url.written()),
            Transport::Files(files) => Target::directory(files.root_text.written()),
            Transport::Misconfigured(misconfiguration) => misconfiguration.target.clone(),
        }
    }

    pub(crate) fn command<'a>(command: &str, args: impl Iterator<Item = &'a str>) -> Target {
        let words = std::iter::once(mask::program(command)).chain(mask::arguments(args));
        let quoted = |word: String| if word == mask::HIDDEN { word } else { shell_word(&word) };
        Target::Command(words.map(quoted).collect::<Vec<_>>().join(" "))
    }

    pub(crate) fn url(written: &str) -> Target {
        let shown = mask::text(written);
        Target::Url(match shown.contains("://") {
            true => mask::url(&shown),
            // The beginning of the URL is the value of a variable.
            false => match shown.find(['?', '#']) {
                Some(at) => format!("{}{}", &shown[..=at], mask::HIDDEN),
                None => shown,
            },
        })
    }

    pub(crate) fn directory(written: &str) -> Target {
        Target::Directory(mask::text(written))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Target::Command(text) | Target::Url(text) | Target::Directory(text)) = self;
        formatter.write_str(text)
    }
}

/// Returns the text of a path for operators: as written if it has references, otherwise the complete path.
pub(crate) fn path_text(path: &Path, written: &str) -> ExpandedText {
    let complete = path.display().to_string();
    if written.contains("${") { ExpandedText::new(complete, written) } else { ExpandedText::from(&*complete) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Files;

    #[test]
    fn hard8_a_command_is_shown_without_its_secrets() {
        for (args, expected) in [
            (&["-y", "pkg@1.2.3"][..], "npx -y pkg@1.2.3"),
            (&["a b", ""], "npx 'a b' ''"),
            (&["--api-key", "hunter2", "x"], "npx --api-key *** x"),
            (&["--api-key=hunter2", "TOKEN=hunter2"], "npx '--api-key=***' 'TOKEN=***'"),
            (&["--verbose", "${KEY}", "1"], "npx --verbose ${KEY} 1"),
            (&["--api-key", "${KEY}"], "npx --api-key ${KEY}"),
            (&["--db=${DB}", "${KEY:-abc}"], "npx --db=${DB} '${KEY:-***}'"),
            (&["postgres://me:pw@db/x?password=pw"], "npx 'postgres://***@db/x?***'"),
            (&["--db=postgres://me:pw@db/x", "--token=a://b"], "npx '--db=postgres://***@db/x' '--token=***'"),
            (&["--header", "Authorization: Bearer hunter2"], "npx --header ***"),
            (&["-H", "Authorization: Bearer hunter2"], "npx -H 'Authorization: ***'"),
            (&["ghp_hunter2"], "npx ***"),
            (&["\u{1b}[31m"], r"npx '\u{1b}[31m'"),
        ] {
            assert_eq!(Target::command("npx", args.iter().copied()).to_string(), expected);
        }
        let line = Target::command("npx server --api-key hunter2", std::iter::empty()).to_string();
        assert_eq!(line, "'npx server --api-key ***'");
    }

    #[test]
    fn hard8_a_url_is_shown_without_its_secrets() {
        for (url, expected) in [
            ("https://search.example/mcp", "https://search.example/mcp"),
            ("https://me:pw@search.example:1/mcp?key=k", "https://***@search.example:1/mcp?***"),
            ("https://search.example/${KEY}/mcp", "https://search.example/${KEY}/mcp"),
            ("https://search.example/${KEY:-hunter2}/mcp", "https://search.example/${KEY:-***}/mcp"),
            ("https://search.example", "https://search.example"),
            ("${BASE}/mcp?key=hunter2", "${BASE}/mcp?***"),
            ("${BASE}", "${BASE}"),
            ("${SCHEME:-https}://me:pw@host/x?k=v", "${SCHEME:-https}://***@host/x?***"),
        ] {
            assert_eq!(Target::url(url).to_string(), expected);
        }
    }

    #[test]
    fn hard8_a_value_of_a_variable_is_shown_as_its_reference() {
        let mut files = Files::at("/srv/s3cret".into());
        assert_eq!(Target::of(&Transport::Files(files.clone())), Target::Directory("/srv/s3cret".to_owned()));
        files.root_text = path_text(&files.root, "${ROOT}");
        assert_eq!(Target::of(&Transport::Files(files)), Target::Directory("${ROOT}".to_owned()));
        assert_eq!(path_text(Path::new("/srv/x"), "x"), ExpandedText::from("/srv/x"));
    }
}
