//! Controls the terminal of the dashboard. Dropping [`Terminal`] and a panic both restore its previous state.

use std::io::{Stdout, Write, stdout};
use std::sync::Once;
use std::thread;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{TerminalOptions, Viewport};

use crate::state::State;
use crate::view::theme::Theme;
use crate::view::{self, FrameLayout, MIN_COLUMNS, MIN_ROWS};

pub(crate) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Stdout>>,
    theme: Theme,
}

impl Terminal {
    pub(crate) fn open(theme: Theme) -> std::io::Result<Terminal> {
        restore_on_panic();
        let options = TerminalOptions { viewport: Viewport::Fixed(size()) };
        let inner = ratatui::Terminal::with_options(CrosstermBackend::new(stdout()), options)?;
        // From here on, dropping `terminal` restores the state, also if the next step fails.
        let terminal = Terminal { inner, theme };
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)?;
        Ok(terminal)
    }

    pub(crate) fn draw(&mut self, state: &State) -> std::io::Result<FrameLayout> {
        let mut drawn = FrameLayout::default();
        let size = size();
        if self.inner.get_frame().area() != size {
            self.inner.resize(size)?;
        }
        // Terminals with synchronized updates show only whole frames. Others ignore the sequence.
        queue!(self.inner.backend_mut(), BeginSynchronizedUpdate)?;
        self.inner.draw(|frame| drawn = view::draw(frame, state, self.theme))?;
        execute!(self.inner.backend_mut(), EndSynchronizedUpdate)?;
        Ok(drawn)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns the size of the terminal on stdout, which need not be the controlling terminal of the process.
fn size() -> Rect {
    let (columns, rows) = match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (MIN_COLUMNS, MIN_ROWS),
    };
    Rect::new(0, 0, columns, rows)
}

/// Restores the terminal. May run twice. Errors are ignored, because the terminal may be gone.
fn restore() {
    let mut stdout = stdout();
    let _ = execute!(stdout, EndSynchronizedUpdate, Show, DisableMouseCapture, LeaveAlternateScreen);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}

/// Installs a panic hook that restores the terminal before the message is printed. A panic of another thread belongs to
/// a gateway in the same process, which survives it. Its message would damage the screen, so it is dropped.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let ours = thread::current().id();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().id() == ours {
                restore();
                before(panic);
            }
        }));
    });
}
