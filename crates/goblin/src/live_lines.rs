//! Lines of a terminal that change: one for each server that starts, or one for the progress of a command.
//!
//! All other text of `goblin serve` goes through [`print`] or [`suspended`], so that it does not tear these lines. In a
//! pipe there are no such lines.

use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The live lines of the servers. They exist before the first of them shows, so that a log line that is being written
/// at that moment ends first.
static LINES: LazyLock<MultiProgress> = LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stdout()));

/// The time between two pictures of a spinner.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The pictures of a spinner. The last one belongs to a line that has ended.
const SPINNER: &str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ";

/// Adds a live line for a server, below the others. It shows only on a terminal.
pub(crate) fn add(server: String) -> ProgressBar {
    let style = ProgressStyle::with_template("  {spinner} {prefix}  {wide_msg}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner()).tick_chars(SPINNER);
    LINES.add(ProgressBar::new_spinner().with_style(style).with_prefix(server))
}

/// Prints text to stdout above the live lines. A closed stdout is no error here.
pub(crate) fn print(text: &str) {
    let _ = suspended(|| crate::style::print(text));
}

/// Runs `write` while the live lines are erased, then draws them again.
pub(crate) fn suspended<T>(write: impl FnOnce() -> T) -> T {
    LINES.suspend(write)
}

/// Erases all live lines.
pub(crate) fn clear() {
    // A closed terminal is no error here.
    let _ = LINES.clear();
}

/// One line on stderr that shows the progress of a command. It shows only on a terminal, and is erased when it is
/// dropped.
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(crate) fn new() -> ProgressLine {
        let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        line.set_style(style);
        line.enable_steady_tick(TICK);
        ProgressLine(line)
    }

    pub(crate) fn show(&self, text: String) {
        self.0.set_message(text);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
