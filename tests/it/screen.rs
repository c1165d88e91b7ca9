//! A terminal emulator: tests read the screen like a user and type keys.
//!
//! The tests of the dashboard use it. A frame is shown only when it is complete.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::sync::{Arc, Mutex};

use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tokio::process::{Child, Command};

use crate::harness::{TIMEOUT, eventually};
use crate::terminal::pair;

pub struct Screen {
    parser: Arc<Mutex<vt100::Parser>>,
    keyboard: File,
    far: File,
    pub child: Child,
}

/// Returns the number of bytes that can be shown. A frame counts only after its end, like in real terminals.
fn whole_frames(bytes: &[u8]) -> usize {
    let last = |mark: &[u8]| bytes.windows(mark.len()).rposition(|window| window == mark);
    match (last(b"\x1b[?2026h"), last(b"\x1b[?2026l")) {
        (Some(begin), Some(end)) if end > begin => bytes.len(),
        (Some(begin), _) => begin,
        (None, _) => bytes.len(),
    }
}

fn size(count: u16) -> NonZero<u16> {
    NonZero::new(count).expect("a terminal has a size")
}

impl Screen {
    /// Runs `command` on a terminal of this size.
    pub fn run(mut command: Command, columns: u16, rows: u16) -> Screen {
        let (keyboard, far) = pair();
        tcsetwinsize(&far, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        let end = || far.try_clone().expect("another");
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let parser = Arc::new(Mutex::new(vt100::Parser::new(size(rows), size(columns), 0)));
        let (mut reader, kept) = (keyboard.try_clone().expect("another"), Arc::clone(&parser));
        std::thread::spawn(move || {
            let (mut buffer, mut unseen) = ([0; 4096], Vec::new());
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                unseen.extend_from_slice(&buffer[..count]);
                let whole = whole_frames(&unseen);
                kept.lock().expect("no test panics here").process(&unseen[..whole]);
                unseen.drain(..whole);
            }
        });
        let child = command.spawn().expect("the process starts");
        Screen { parser, keyboard, far, child }
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the stream is open");
    }

    pub fn text(&self) -> String {
        self.parser.lock().expect("no test panics here").screen().contents()
    }

    /// Returns the text with this background colour, from the top.
    pub fn painted(&self, background: vt100::Color) -> String {
        let parser = self.parser.lock().expect("no test panics here");
        let screen = parser.screen();
        let (rows, columns) = screen.size();
        let cells = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        let cells = cells.filter_map(|(row, column)| screen.cell(row, column));
        cells.filter(|cell| cell.bgcolor() == background).map(|cell| cell.contents().to_owned()).collect()
    }

    /// Waits until the screen satisfies `is_so`.
    pub async fn wait(&self, condition: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(tokio::time::Instant::now() < deadline, "timed out before {condition}; the screen is\n{text}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub async fn shows(&self, text: &str) -> String {
        self.wait(&format!("{text:?} is shown"), |screen| screen.contains(text)).await
    }

    pub async fn hides(&self, text: &str) -> String {
        self.wait(&format!("{text:?} is hidden"), |screen| !screen.contains(text)).await
    }

    /// Waits for the end of the program and for the restored terminal. Returns the exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .expect("the process ends")
            .expect("the exit status is known");
        eventually("the terminal is restored", || async { self.is_restored().then_some(()) }).await;
        status.code()
    }

    pub fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.far).expect("a terminal has modes").local_modes;
        let is_cooked = modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        let parser = self.parser.lock().expect("no test panics here");
        let screen = parser.screen();
        let is_free = screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None;
        is_cooked && is_free && !screen.alternate_screen() && !screen.hide_cursor()
    }
}
