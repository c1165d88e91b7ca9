//! Opens a page in the browser of this desktop.
//!
//! No shell takes part: the URL is the only argument of one program. The URL is checked all the same, because some of
//! these programs are scripts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use crate::protocol::url::is_safe_for_opener;

/// The program that opens a URL with the user's browser.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
/// The length limit of a URL to open.
const MAX_URL: usize = 64 << 10;

/// Opens a URL in the user's browser, without a shell. Checks the URL: http or https, no control or shell character.
/// Does not wait for the browser.
pub fn open_browser(url: &str) -> io::Result<()> {
    open_with(&opener(std::env::var_os("BROWSER")), url)
}

/// Returns the program to start. `BROWSER` counts if it names one program; a list or a template needs a shell.
fn opener(browser: Option<OsString>) -> OsString {
    let is_program = |browser: &OsString| {
        let is_plain = |byte: &u8| !byte.is_ascii_whitespace() && !b"%:;\"'$`|&<>\\".contains(byte);
        !browser.is_empty()
            && !browser.as_encoded_bytes().starts_with(b"-")
            && browser.as_encoded_bytes().iter().all(is_plain)
    };
    browser.filter(is_program).unwrap_or_else(|| OPENER.into())
}

fn open_with(program: &OsStr, url: &str) -> io::Result<()> {
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    if !is_web || !is_safe_for_opener(url) || url.len() > MAX_URL {
        let reason = "the URL is not one that a browser can open safely (http or https, without special characters)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    // Some openers run as long as the browser, so only a thread can reap them.
    thread::Builder::new().name("browser".into()).spawn(move || child.wait())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn oauth1_a_hostile_url_opens_nothing() {
        let program = OsStr::new("/nonexistent/browser");
        let hostile = [
            "https://a.example/$(id)",
            "https://a.example/`id`",
            "https://a.example/;id",
            "https://a.example/|id",
            "https://a.example/<x",
            "https://a.example/>x",
            "https://a.example/\\x",
            "https://a.example/\"x",
            "https://a.example/'x",
            "https://a.example/ x",
            "https://a.example/\nx",
            "https://a.example/\u{0}x",
            "https://a.example/é",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "-h",
            "a.exe",
            "",
        ];
        for url in hostile {
            assert_eq!(open_with(program, url).expect_err(url).kind(), io::ErrorKind::InvalidInput, "{url}");
        }
        let missing = open_with(program, "https://a.example/").expect_err("no program");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn oauth1_only_a_program_replaces_the_opener() {
        for browser in ["firefox %s", "firefox:chromium", "sh -c 'x'", "$(id)", "a;b", "", "-x"] {
            assert_eq!(opener(Some(browser.into())), OsStr::new(OPENER), "{browser}");
        }
        assert_eq!(opener(None), OsStr::new(OPENER));
        assert_eq!(opener(Some("/usr/bin/firefox".into())), OsStr::new("/usr/bin/firefox"));
    }

    #[test]
    fn oauth1_the_url_is_the_only_argument_of_the_opener() {
        let directory = std::env::temp_dir().join(format!("goblin-browser-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let (script, pipe) = (directory.join("browser"), directory.join("pipe"));
        let listener = UnixListener::bind(&pipe).expect("a socket");
        let python = format!(
            "#!/usr/bin/env python3\nimport socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect({:?})\n\
             s.sendall(repr(sys.argv[1:]).encode())\n",
            pipe.display().to_string()
        );
        // Another process writes the script: a program that this process has open for writing cannot be started.
        let mut install = Command::new("install");
        install.args(["-m", "700", "/dev/stdin"]).arg(&script).stdin(Stdio::piped());
        let mut install = install.spawn().expect("install");
        install.stdin.take().expect("a pipe").write_all(python.as_bytes()).expect("a script");
        assert!(install.wait().expect("install").success());
        open_with(script.as_os_str(), "https://a.example/?a=b&c=(*)").expect("a browser");
        let mut arguments = String::new();
        listener.accept().expect("the browser").0.read_to_string(&mut arguments).expect("its arguments");
        std::fs::remove_dir_all(&directory).expect("an empty directory");
        assert_eq!(arguments, "['https://a.example/?a=b&c=(*)']");
    }
}
