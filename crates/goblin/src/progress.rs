//! The progress of a command: one line on stderr that changes.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::live_lines::TICK;

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
