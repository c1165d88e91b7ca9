//! How words reach a person: colour on a terminal, none in a pipe.

use std::io::IsTerminal;
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
