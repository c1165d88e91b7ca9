//! How words reach a person: colour on a terminal, none in a pipe.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::cli::BAD_CONFIGURATION;

/// Says why nothing was done.
pub fn tell(problem: &str) -> ExitCode {
    fail(problem);
    ExitCode::from(BAD_CONFIGURATION)
}

/// Says what went wrong.
pub fn fail(problem: &str) {
    say(&format!("{}: {problem}", paint("error", "1;31")));
}

pub fn warn(warning: &str) {
    say(&format!("{}: {warning}", paint("warning", "1;33")));
}

/// Says what is going on, where stdout belongs to the protocol.
pub fn note(text: &str) {
    say(&format!("goblin: {text}"));
}

/// On stderr. Where nobody reads it, nobody is told; that is no reason to end, as `eprintln!` would have it.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Prints for a reader; one that has had enough, as `head` has, is no error.
pub fn print(text: &str) -> std::io::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// A word as it can be pasted into a shell.
pub fn shell_word(word: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "/._-@:=+,%".contains(character);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// The columns of a terminal; nothing for a pipe.
pub fn width(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
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
