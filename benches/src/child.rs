//! The processes of a run. Each is identified by the address it prints, and killed when its handle is dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::serve::LISTENING;

/// The text before the address in the stderr of `goblin serve`.
const GOBLIN_LISTENING: &str = "listening on http://";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const KEPT_LINES: usize = 20;

/// A running server. Dropping it kills the process and waits for its end.
pub struct Child {
    process: process::Child,
    pub address: SocketAddr,
    last_lines: LastLines,
}

type LastLines = Arc<Mutex<VecDeque<String>>>;

impl Child {
    /// Starts another process of this binary in the role that `arguments` select.
    pub fn role(arguments: &[&str]) -> Result<Self> {
        let this = std::env::current_exe().context("cannot find the path of this binary")?;
        let mut process = Command::new(this)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start role {arguments:?}"))?;
        let output = process.stdout.take().expect("stdout is a pipe");
        Self::wait(process, output, LISTENING)
    }

    /// Starts `goblin serve` with its runtime files in `directory`.
    pub fn goblin(binary: &Path, config: &Path, directory: &Path) -> Result<Self> {
        let mut process = Command::new(binary)
            .args(["serve", "--config"])
            .arg(config)
            .env("XDG_RUNTIME_DIR", directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let output = process.stderr.take().expect("stderr is a pipe");
        Self::wait(process, output, GOBLIN_LISTENING)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Returns the last lines of the process's output, for an error message.
    pub fn last_lines(&self) -> String {
        joined(&self.last_lines)
    }

    fn wait(mut process: process::Child, output: impl Read + Send + 'static, marker: &'static str) -> Result<Self> {
        let last_lines = LastLines::default();
        let (sender, address) = mpsc::sync_channel(1);
        let lines = Arc::clone(&last_lines);
        // Reads until the process ends, so that the pipe never fills.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(address) = address_after(marker, &line) {
                    // Only the first address has a receiver; later ones are dropped.
                    let _ = sender.try_send(address);
                }
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == KEPT_LINES {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
        });
        match address.recv_timeout(START_TIMEOUT) {
            Ok(address) => Ok(Self { process, address, last_lines }),
            Err(_) => {
                end(&mut process);
                bail!("a server did not print `{marker}ADDRESS`; its last lines:\n{}", joined(&last_lines));
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Kills the process and waits for it. Both calls fail only if the process was already waited for.
fn end(process: &mut process::Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn joined(lines: &LastLines) -> String {
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

fn address_after(marker: &str, line: &str) -> Option<SocketAddr> {
    let rest = line.split_once(marker)?.1;
    rest.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{GOBLIN_LISTENING, LISTENING, address_after};

    #[test]
    fn the_address_is_found_inside_a_log_line() {
        let line = "2026-01-01T00:00:00Z  INFO goblin: listening on http://127.0.0.1:4711/mcp servers=1";
        assert_eq!(address_after(GOBLIN_LISTENING, line), "127.0.0.1:4711".parse().ok());
        assert_eq!(address_after(LISTENING, "listening http://127.0.0.1:80/mcp"), "127.0.0.1:80".parse().ok());
        assert_eq!(address_after(LISTENING, "listening http://127.0.0.1:80"), None);
        assert_eq!(address_after(LISTENING, "not yet"), None);
    }
}
