//! The terminal of `goblin serve`: text, and below it live lines that change, one for each server that starts.
//!
//! One thread writes to the terminal. All others leave their text in a queue, so a terminal that nobody reads, or that is
//! gone, delays no other work. A full queue drops text, and a later line states how much. Without this thread, text is
//! written at once.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::{Condvar, Mutex};

use crate::style;

/// The time between two pictures of a spinner.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The pictures of a spinner. The last one belongs to a line that has ended.
const SPINNER: &str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ";
/// The limit of the text that waits for the terminal, in bytes.
const MAX_QUEUED: usize = 1024 * 1024;
/// The time for the terminal to take the last text when the gateway ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);

static TERMINAL: OnceLock<Terminal> = OnceLock::new();

/// The terminal of the process, shared with the thread that writes to it.
struct Terminal {
    state: Mutex<TerminalState>,
    changed: Condvar,
    /// Whether stderr is a terminal too, so that the log appears between the other text.
    has_log: bool,
}

#[derive(Default)]
struct TerminalState {
    queue: Vec<QueuedText>,
    queued_bytes: usize,
    /// The number of texts that the full queue dropped.
    dropped: usize,
    lines: BTreeMap<u64, LineText>,
    next_line: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Running,
    Ending,
    /// The thread has written everything. Later text is written at once.
    Ended,
    /// The terminal is gone. Text is dropped.
    Gone,
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Stdout,
    Stderr,
}

struct QueuedText {
    stream: Stream,
    bytes: Vec<u8>,
}

#[derive(Clone)]
struct LineText {
    server: String,
    message: String,
}

/// Starts the thread that writes to the terminal.
pub(crate) fn start() -> io::Result<()> {
    let has_log = io::IsTerminal::is_terminal(&io::stderr());
    let terminal = TERMINAL.get_or_init(|| Terminal { state: Mutex::default(), changed: Condvar::new(), has_log });
    std::thread::Builder::new().name("goblin-terminal".to_owned()).spawn(|| terminal.run()).map(drop)
}

/// Prints text to stdout above the live lines. A closed stdout is no error here.
pub(crate) fn print(text: &str) {
    if !TERMINAL.get().is_some_and(|terminal| terminal.queue(Stream::Stdout, text.as_bytes())) {
        let _ = style::print(text);
    }
}

/// Writes a log line to stderr, above the live lines if stderr is the terminal.
pub(crate) fn log(line: &[u8]) -> io::Result<()> {
    let terminal = TERMINAL.get().filter(|terminal| terminal.has_log);
    match terminal.is_some_and(|terminal| terminal.queue(Stream::Stderr, line)) {
        true => Ok(()),
        false => io::stderr().write_all(line),
    }
}

/// Erases all live lines and ends the thread. Waits for a limited time until the terminal has taken the queued text.
pub(crate) fn end() {
    let Some(terminal) = TERMINAL.get() else { return };
    let mut state = terminal.state.lock();
    state.lines.clear();
    if state.phase == Phase::Running {
        state.phase = Phase::Ending;
    }
    terminal.changed.notify_all();
    terminal.changed.wait_while_for(&mut state, |state| state.phase == Phase::Ending, END_TIMEOUT);
}

/// A live line below all text. Dropping it erases the line.
pub(crate) struct LiveLine(u64);

impl LiveLine {
    /// Adds a line for a server, below the others.
    pub(crate) fn new(server: String) -> LiveLine {
        let Some(terminal) = TERMINAL.get() else { return LiveLine(0) };
        let mut state = terminal.state.lock();
        let id = state.next_line;
        state.next_line += 1;
        if state.phase == Phase::Running {
            state.lines.insert(id, LineText { server, message: String::new() });
        }
        terminal.changed.notify_all();
        LiveLine(id)
    }

    pub(crate) fn show(&self, message: String) {
        let Some(terminal) = TERMINAL.get() else { return };
        if let Some(line) = terminal.state.lock().lines.get_mut(&self.0) {
            line.message = message;
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        let Some(terminal) = TERMINAL.get() else { return };
        terminal.state.lock().lines.remove(&self.0);
        terminal.changed.notify_all();
    }
}

impl Terminal {
    /// Leaves text for the thread. Returns `false` if the thread has ended.
    fn queue(&self, stream: Stream, text: &[u8]) -> bool {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Running | Phase::Ending => {}
            Phase::Ended => return false,
            Phase::Gone => return true,
        }
        if state.queued_bytes + text.len() > MAX_QUEUED {
            state.dropped += 1;
        } else {
            state.queued_bytes += text.len();
            state.queue.push(QueuedText { stream, bytes: text.to_vec() });
        }
        self.changed.notify_all();
        true
    }

    /// Writes to the terminal until the gateway ends or the terminal is gone.
    fn run(&self) {
        let mut drawn = DrawnLines::new();
        loop {
            let (texts, lines) = self.next_update(drawn.count());
            let is_shown = drawn.show(&texts, &lines).is_ok();
            if self.has_ended(is_shown, drawn.count()) {
                return;
            }
        }
    }

    /// Ends the thread if the terminal is gone, or if the gateway ends and nothing is left to show.
    fn has_ended(&self, is_shown: bool, drawn: usize) -> bool {
        let mut state = self.state.lock();
        let is_empty = state.queue.is_empty() && state.dropped == 0 && state.lines.is_empty() && drawn == 0;
        let phase = match is_shown {
            false => Phase::Gone,
            true if state.phase == Phase::Ending && is_empty => Phase::Ended,
            true => return false,
        };
        *state = TerminalState { phase, ..TerminalState::default() };
        self.changed.notify_all();
        true
    }

    /// Waits for text, for other lines or for the next picture of the `drawn` lines. Returns the text and the lines.
    fn next_update(&self, drawn: usize) -> (Vec<QueuedText>, BTreeMap<u64, LineText>) {
        let mut state = self.state.lock();
        let is_unchanged = |state: &mut TerminalState| {
            state.queue.is_empty() && state.lines.len() == drawn && state.phase == Phase::Running
        };
        if drawn == 0 {
            self.changed.wait_while(&mut state, is_unchanged);
        } else {
            self.changed.wait_while_for(&mut state, is_unchanged, TICK);
        }
        state.queued_bytes = 0;
        let mut texts = std::mem::take(&mut state.queue);
        let dropped = std::mem::take(&mut state.dropped);
        if dropped > 0 {
            let bytes = format!("  {dropped} texts are missing, because nobody read the terminal\n").into_bytes();
            texts.push(QueuedText { stream: Stream::Stdout, bytes });
        }
        (texts, state.lines.clone())
    }
}

/// The lines on the terminal.
struct DrawnLines {
    terminal: MultiProgress,
    bars: BTreeMap<u64, ProgressBar>,
}

impl DrawnLines {
    fn new() -> DrawnLines {
        let terminal = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        DrawnLines { terminal, bars: BTreeMap::new() }
    }

    fn count(&self) -> usize {
        self.bars.len()
    }

    /// Writes texts above the lines, and draws the lines. Returns an error if the terminal is gone.
    fn show(&mut self, texts: &[QueuedText], lines: &BTreeMap<u64, LineText>) -> io::Result<()> {
        self.bars.retain(|id, bar| {
            let is_shown = lines.contains_key(id);
            if !is_shown {
                bar.finish_and_clear();
            }
            is_shown
        });
        if !texts.is_empty() {
            self.terminal.clear()?;
            texts.iter().try_for_each(QueuedText::write)?;
        }
        for (id, LineText { server, message }) in lines {
            let bar = self.bars.entry(*id).or_insert_with(|| self.terminal.add(spinner(server.clone())));
            bar.set_message(message.clone());
            bar.tick();
        }
        Ok(())
    }
}

fn spinner(server: String) -> ProgressBar {
    let style = ProgressStyle::with_template("  {spinner} {prefix}  {wide_msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars(SPINNER);
    ProgressBar::new_spinner().with_style(style).with_prefix(server)
}

impl QueuedText {
    /// Returns an error if stdout is gone.
    fn write(&self) -> io::Result<()> {
        let written = match self.stream {
            Stream::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&self.bytes).and_then(|()| stdout.flush())
            }
            Stream::Stderr => {
                // Stderr may be another terminal, which is gone without this one.
                let _ = io::stderr().write_all(&self.bytes);
                Ok(())
            }
        };
        // Another program may have made the terminal non-blocking.
        written.or_else(|error| if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use2_a_full_queue_drops_text_and_states_how_much() {
        let terminal = Terminal { state: Mutex::default(), changed: Condvar::new(), has_log: true };
        let large = vec![b'x'; MAX_QUEUED - 1];
        for text in [&large[..], b"ab", b"c", b"de"] {
            assert!(terminal.queue(Stream::Stderr, text));
        }
        let written = || {
            let (texts, _) = terminal.next_update(0);
            texts.into_iter().map(|text| String::from_utf8_lossy(&text.bytes).into_owned()).collect::<Vec<_>>()
        };
        let texts = written();
        assert_eq!((texts.len(), texts[0].len(), texts[1].as_str()), (3, MAX_QUEUED - 1, "c"));
        assert!(texts[2].contains("2 texts are missing"), "{}", texts[2]);
        assert!(terminal.queue(Stream::Stdout, b"later"));
        assert_eq!(written(), ["later"]);
    }

    #[test]
    fn use2_text_after_the_end_is_written_at_once_or_dropped_with_the_terminal() {
        let terminal = Terminal { state: Mutex::default(), changed: Condvar::new(), has_log: false };
        assert!(!terminal.has_ended(true, 0), "the gateway runs");
        terminal.state.lock().phase = Phase::Ending;
        assert!(terminal.queue(Stream::Stdout, b"last") && !terminal.has_ended(true, 0), "the text waits");
        drop(terminal.next_update(0));
        assert!(!terminal.has_ended(true, 1), "a line is drawn");
        assert!(terminal.has_ended(true, 0) && !terminal.queue(Stream::Stdout, b"direct"));
        assert!(terminal.has_ended(false, 0) && terminal.queue(Stream::Stdout, b"dropped"));
    }
}
