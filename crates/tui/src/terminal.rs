//! Controls the terminal of the dashboard. Dropping [`Terminal`] and a panic both restore its previous state.

use std::io::{Stdout, Write, stdout};
use std::sync::Once;
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crossterm::cursor::{Hide, Show};
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};
use goblin_client::environment::environment;
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
        // From here on, dropping `terminal` restores the state, also if the next step fails.
        let terminal = Terminal { inner: new_screen()?, theme };
        take()?;
        Ok(terminal)
    }

    /// Gives the terminal to another program.
    pub(crate) fn suspend(&mut self) {
        restore();
    }

    /// Takes the terminal back. The next frame is drawn completely.
    pub(crate) fn resume(&mut self) -> std::io::Result<()> {
        take()?;
        execute!(stdout(), Clear(ClearType::All))?;
        // A new screen knows nothing of the last frame.
        self.inner = new_screen()?;
        Ok(())
    }

    /// Copies a text to the clipboard by OSC 52, which also works over SSH. Some terminals ignore the sequence, and the
    /// program cannot detect that.
    pub(crate) fn copy(&mut self, text: &str) -> std::io::Result<()> {
        let mut stdout = stdout();
        write!(stdout, "\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text))?;
        stdout.flush()
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

/// Returns the end of the message about a copied text. Only some terminals are known to support OSC 52.
pub(crate) fn clipboard_note() -> &'static str {
    let is_known = |name: &str, known: &[&str]| {
        environment(name).is_some_and(|value| known.iter().any(|known| value.to_lowercase().contains(known)))
    };
    let programs = ["iterm", "wezterm", "ghostty", "vscode", "kitty", "tabby", "rio"];
    let terminals = ["kitty", "alacritty", "foot", "ghostty", "wezterm", "contour"];
    match is_known("TERM_PROGRAM", &programs) || is_known("TERM", &terminals) {
        true => "to the clipboard",
        false => "to the clipboard, if this terminal supports OSC 52",
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

fn new_screen() -> std::io::Result<ratatui::Terminal<CrosstermBackend<Stdout>>> {
    let options = TerminalOptions { viewport: Viewport::Fixed(size()) };
    ratatui::Terminal::with_options(CrosstermBackend::new(stdout()), options)
}

fn take() -> std::io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, EnableMouseCapture, Hide)
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
