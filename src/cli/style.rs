//! How words reach a person: colour on a terminal, none in a pipe.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::cli::BAD_CONFIGURATION;

/// Says why nothing was done.
pub fn tell(problem: &str) -> ExitCode {
    eprintln!("{}: {problem}", paint("error", "1;31"));
    ExitCode::from(BAD_CONFIGURATION)
}

pub fn warn(warning: &str) {
    eprintln!("{}: {warning}", paint("warning", "1;33"));
}

/// Prints for a reader; one that has had enough, as `head` has, is no error.
pub fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// For stderr.
pub fn paint(text: &str, code: &str) -> String {
    paint_if(is_colourful(&std::io::stderr()), text, code)
}

/// Whether `stream` is a person's who did not ask for plain text.
pub fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub fn paint_if(colourful: bool, text: &str, code: &str) -> String {
    if colourful { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
