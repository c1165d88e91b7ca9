//! A terminal that a program writes to and optionally reads from.
//!
//! Unlike `screen`, it stores the raw output and interprets no escape sequences.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::Command;

use crate::harness::eventually;

pub struct Terminal {
    written: Arc<Mutex<String>>,
    keyboard: File,
    screen: File,
}

/// Connects all streams of `command` to a new terminal that nobody reads. Dropping the result closes the terminal.
pub fn unread(command: &mut Command) -> File {
    let (near, far) = pair();
    let end = || far.try_clone().expect("another");
    command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
    near
}

/// Writes to the terminal of `near` until a further write would block.
pub fn fill(near: &File) {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK;
    let mut far = File::from(open(name_of(near), flags, Mode::empty()).expect("the other side"));
    while far.write(&[b' '; 4096]).is_ok() {}
}

/// Returns both sides of a new terminal.
pub fn pair() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&near).expect("the terminal can be granted");
    unlockpt(&near).expect("open");
    let near = File::from(near);
    let far = File::options().read(true).write(true).open(name_of(&near)).expect("the other side");
    (near, far)
}

fn name_of(near: &File) -> String {
    rustix::pty::ptsname(near, Vec::new()).expect("a name").into_string().expect("text")
}

impl Terminal {
    /// Connects `command`'s stdout and stderr to a new terminal.
    pub fn of(command: &mut Command) -> Terminal {
        let (keyboard, screen) = pair();
        command.stdout(screen.try_clone().expect("another")).stderr(screen.try_clone().expect("another"));
        let written = Arc::new(Mutex::new(String::new()));
        let (mut reader, kept) = (keyboard.try_clone().expect("another"), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                kept.lock().expect("no test panics here").push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Terminal { written, keyboard, screen }
    }

    /// Connects `command`'s stdin to the terminal too.
    pub fn with_keyboard(self, command: &mut Command) -> Terminal {
        command.stdin(self.screen.try_clone().expect("another"));
        self
    }

    pub fn of_width(self, columns: u16) -> Terminal {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.screen, size).expect("the terminal has a size");
        self
    }

    pub fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the stream is open");
    }

    /// Returns everything that was written.
    pub fn shown(&self) -> String {
        self.written.lock().expect("no test panics here").clone()
    }

    pub async fn await_text(&self, text: &str) -> String {
        eventually(&format!("the terminal shows {text:?}"), || async {
            let written = self.shown();
            written.contains(text).then_some(written)
        })
        .await
    }
}
