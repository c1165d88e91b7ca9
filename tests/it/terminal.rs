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

impl Terminal {
    /// Connects `command`'s stdout and stderr to a new terminal.
    pub fn of(command: &mut Command) -> Terminal {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("the terminal can be granted");
        unlockpt(&keyboard).expect("open");
        let name = ptsname(&keyboard, Vec::new()).expect("a name").into_string().expect("text");
        let screen = File::options().read(true).write(true).open(name).expect("the other side");
        command.stdout(screen.try_clone().expect("another")).stderr(screen.try_clone().expect("another"));
        let written = Arc::new(Mutex::new(String::new()));
        let keyboard = File::from(keyboard);
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

    pub async fn await_text(&self, text: &str) -> String {
        eventually(&format!("the terminal shows {text:?}"), || async {
            let written = self.written.lock().expect("no test panics here").clone();
            written.contains(text).then_some(written)
        })
        .await
    }
}
