//! Output for the user: colours on a terminal, plain text in a pipe.

use std::io::{IsTerminal, Write};

use goblin_config::visible::escaped_json;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The state of a server that needs a login, in words.
pub(crate) const LOGIN_NEEDED: &str = "login needed";

/// Prints an error on stderr.
pub(crate) fn fail(problem: &str) {
    print_line(&format!("{}: {problem}", paint("error", "1;31")));
}

pub(crate) fn warn(warning: &str) {
    print_line(&format!("{}: {warning}", paint("warning", "1;33")));
}

/// Prints information on stderr, for commands that need stdout for the protocol.
pub(crate) fn note(text: &str) {
    print_line(&format!("goblin: {text}"));
}

/// Writes a line to stderr. Ignores errors: a closed stderr must not end the process, as `eprintln!` would.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Prints to stdout. A reader that closed the pipe early, such as `head`, is no error.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    write(text.as_bytes()).map(drop)
}

/// Writes to stdout. Returns `false` if the reader closed the pipe.
pub(crate) fn write(bytes: &[u8]) -> std::io::Result<bool> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// The minimum number of columns of a line after its indentation.
const MIN_COLUMNS: usize = 20;

/// Returns `text` after `before`, wrapped at the width of a terminal and indented by the width of `before`. A terminal
/// would wrap at the left edge, where hostile text could pass for another line. A word that does not fit moves to the next
/// line, unless it is longer than a line. Nothing is left out.
pub(crate) fn wrap(before: &str, text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return format!("{before}{text}\n") };
    // Characters of ambiguous width count as wide, so that the terminal never wraps a line itself.
    let indent = before.width_cjk();
    let (mut wrapped, indent) = match indent + MIN_COLUMNS <= width {
        true => (before.to_owned(), indent),
        false => (format!("{}\n    ", before.trim_end()), 4),
    };
    let (width, mut column) = (width.max(indent + MIN_COLUMNS), indent);
    for word in text.split_inclusive(' ') {
        let whole = word.trim_end_matches(' ').width_cjk();
        // The columns that must fit for the first letter: the whole word, if a line has room for it.
        let mut needed = if indent + whole <= width { whole } else { 0 };
        for letter in word.chars() {
            let columns = letter.width_cjk().unwrap_or(0);
            if column > indent && column + columns.max(std::mem::take(&mut needed)) > width {
                wrapped.push('\n');
                wrapped.push_str(&" ".repeat(indent));
                column = indent;
            }
            wrapped.push(letter);
            column += columns;
        }
    }
    wrapped.push('\n');
    wrapped
}

/// Prints JSON. On a terminal, control characters are replaced by escapes. In a pipe every byte is unchanged.
pub(crate) fn print_json(text: &str) -> std::io::Result<()> {
    match std::io::stdout().is_terminal() {
        true => print(&(escaped_json(text) + "\n")),
        false => print(&format!("{text}\n")),
    }
}

/// Returns the columns of a terminal, or `None` for a pipe.
pub(crate) fn width(stream: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Paints text for stderr.
pub(crate) fn paint(text: &str, code: &str) -> String {
    paint_if(is_colourful(&std::io::stderr()), text, code)
}

/// Reports whether `stream` is a terminal and the user did not disable colours by `NO_COLOR`.
pub(crate) fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(crate) fn paint_if(colourful: bool, text: &str, code: &str) -> String {
    if colourful { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn a_long_line_is_wrapped_without_loss() {
        assert_eq!(wrap("a  ", "bcd", None), "a  bcd\n");
        assert_eq!(wrap("a  ", "bcd", Some(30)), "a  bcd\n");
        let text = "0123456789".repeat(4);
        assert_eq!(wrap("a  ", &text, Some(30)), format!("a  {}\n   {}\n", &text[..27], &text[27..]));
        // A word stays whole if a line has room for it.
        let (words, spaces) = ("0123456789 0123456789 0123456789", " ".repeat(40));
        assert_eq!(wrap("a  ", words, Some(30)), "a  0123456789 0123456789 \n   0123456789\n");
        assert_eq!(wrap("a  ", &spaces, Some(30)), format!("a  {}\n   {}\n", &spaces[..27], &spaces[27..]));
        // Wide characters count as two columns.
        assert_eq!(wrap("a  ", &"日".repeat(14), Some(30)), format!("a  {}\n   日\n", "日".repeat(13)));
        // If the names leave too little room, the text has its own lines.
        let before = format!("{}  ", "n".repeat(20));
        assert_eq!(
            wrap(&before, &text, Some(30)),
            format!("{}\n    {}\n    {}\n", before.trim_end(), &text[..26], &text[26..])
        );
    }
}
