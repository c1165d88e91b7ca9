//! `goblin login` and `goblin logout`: the login at a server that needs one.
//!
//! A running gateway performs the login, so its vault key and its network apply. Without one, the command performs it,
//! and the next gateway uses the result. The browser returns to a listener of this command in both cases, because it
//! runs on the machine of this command.

mod place;

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap_complete::ArgValueCompleter;
use goblin_admin::login::{LoginAttempt, LoginRequest, LoginStatus, LogoutStatus};
use goblin_config::oauth::{Callback, CallbackHost};
use goblin_config::visible::is_hidden;
use goblin_oauth::{CallbackListener, open_browser};
use goblin_telemetry::clean;
use tokio::sync::mpsc;

use crate::admin_client::GatewayArgs;
use crate::catalog::complete;
use crate::cli::CliError;
use crate::login::place::LoginPlace;
use crate::style::{note, print, warn};

/// The interval at which the state of a login is read.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// The limit of pasted lines that are not handled yet.
const MAX_LINES: usize = 16;
/// The longest line that is read.
const MAX_LINE: u64 = 64 * 1024;

pub(crate) const LONG_ABOUT: &str = "\
Log in to a server with a browser.

The command prints the URL of the login page and opens it. The browser then returns to this command. If the browser runs \
on another machine, it ends on a page that cannot be shown: paste the address of that page here. With --device, a code \
replaces the return of the browser.

The login is stored encrypted. All gateways of this user share it and keep it valid.";

#[derive(Debug, Args)]
pub(crate) struct Login {
    /// The server, by its name in the configuration, or a URL for `goblin stdio --url`
    #[arg(add = ArgValueCompleter::new(complete::configured_servers))]
    pub server: String,
    /// Log in with a code on another device, if the server offers that
    #[arg(long)]
    pub device: bool,
    /// Print the URL without opening a browser
    #[arg(long)]
    pub no_browser: bool,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// The server, by its name in the configuration, or a URL for `goblin stdio --url`
    #[arg(add = ArgValueCompleter::new(complete::configured_servers))]
    pub server: String,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(crate) async fn log_in(arguments: Login) -> Result<ExitCode> {
    let place = LoginPlace::find(&arguments.server, &arguments.gateway).await?;
    let status = place.status().await?;
    if status.automatic {
        return Err(CliError::Usage(format!(
            "{} has \"grant\": \"client_credentials\", so the gateway logs in by itself",
            arguments.server
        ))
        .into());
    }
    match arguments.device {
        true => on_device(&place, &arguments).await?,
        false => in_browser(&place, &status, &arguments).await?,
    }
    print(&format!("Logged in to {}.\n", clean(&arguments.server)))?;
    if let Some(line) = place.next_line(place::is_url(&arguments.server)).await {
        print(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn log_out(arguments: Logout) -> Result<ExitCode> {
    let place = LoginPlace::find(&arguments.server, &arguments.gateway).await?;
    let LogoutStatus { was_logged_in, revoked, reason } = place.log_out().await?;
    let server = clean(&arguments.server);
    print(&match (was_logged_in, revoked) {
        (false, _) => format!("There is no login at {server}.\n"),
        (true, true) => format!("Logged out of {server}. The authorization server has revoked the tokens.\n"),
        (true, false) => format!("Logged out of {server}. The tokens are removed here.\n"),
    })?;
    if let Some(reason) = reason {
        warn(&format!("the tokens are not revoked: {reason}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Logs in with a browser that returns to this machine, or whose last address is pasted.
async fn in_browser(place: &LoginPlace, status: &LoginStatus, arguments: &Login) -> Result<(), CliError> {
    let host = match status.callback_host.as_str() {
        "localhost" => CallbackHost::Localhost,
        _ => CallbackHost::Address,
    };
    let listener = CallbackListener::bind(Callback { host, port: status.callback_port }).await;
    let listener = listener.map_err(|error| CliError::Unavailable(error.to_string()))?;
    let request = LoginRequest { redirect_uri: Some(listener.redirect_uri().to_owned()), device: false };
    let attempt = begun(place.begin(request).await?)?;
    present(&attempt, arguments)?;
    let mut pasted = lines();
    if std::io::stdin().is_terminal() {
        note("if the browser shows an error, paste the address of its page here");
    }
    loop {
        let callback = tokio::select! {
            callback = listener.next() => callback,
            Some(line) = pasted.recv() => line,
            () = tokio::time::sleep(Duration::from_secs(attempt.expires_in)) => {
                return Err(CliError::Refused("the login was not finished in time; begin again".to_owned()));
            }
        };
        match place.finish(&callback).await {
            Ok(_) => return Ok(()),
            // Another address may still be the right one.
            Err(error) if is_waiting(&place.status().await?) => warn(&error.to_string()),
            Err(error) => return Err(error),
        }
    }
}

/// Logs in with a code that a person enters on another device.
async fn on_device(place: &LoginPlace, arguments: &Login) -> Result<(), CliError> {
    let attempt = begun(place.begin(LoginRequest { redirect_uri: None, device: true }).await?)?;
    present(&attempt, arguments)?;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let attempt = begun(place.status().await?)?;
        match attempt.state.as_str() {
            "waiting" => {}
            "done" => return Ok(()),
            _ => return Err(CliError::Refused(attempt.reason.unwrap_or_else(|| "the login failed".to_owned()))),
        }
    }
}

fn begun(status: LoginStatus) -> Result<LoginAttempt, CliError> {
    status.attempt.ok_or_else(|| CliError::Unavailable("the gateway began no login".to_owned()))
}

fn is_waiting(status: &LoginStatus) -> bool {
    status.attempt.as_ref().is_some_and(|attempt| attempt.state == "waiting")
}

/// Prints the URL, and opens it if a person is at a desktop.
fn present(attempt: &LoginAttempt, arguments: &Login) -> Result<(), CliError> {
    note(&format!("open this page to log in to {}:", clean(&arguments.server)));
    // The URL stays whole, because a cut one cannot be opened.
    print(&format!("{}\n", attempt.url.replace(is_hidden, "")))?;
    if let Some(code) = &attempt.user_code {
        note(&format!("the code is {}", clean(code)));
    }
    if !arguments.no_browser
        && std::io::stderr().is_terminal()
        && let Err(error) = open_on_desktop(&attempt.url)
    {
        note(&format!("the browser did not open: {error}"));
    }
    Ok(())
}

/// Opens a page in the browser of this desktop. Does nothing if there is no desktop.
pub(crate) fn open_on_desktop(url: &str) -> std::io::Result<()> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_desktop = cfg!(target_os = "macos") || ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(is_set);
    if has_desktop { open_browser(url) } else { Ok(()) }
}

/// Returns the lines of stdin. A thread reads them, because a read cannot be interrupted.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(MAX_LINES);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let read = std::io::Read::take(&mut stdin, MAX_LINE).read_until(b'\n', &mut line);
            if !read.is_ok_and(|length| length > 0) {
                return;
            }
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if !line.is_empty() && sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
