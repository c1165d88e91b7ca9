//! The login at a server: the dialog of an attempt, and the logout.
//!
//! The gateway listens for the browser. A browser on another machine cannot return there, so the dialog also takes the
//! address of the page on which the browser ended.

use goblin_admin::login::{LoginAttempt, LoginStatus};
use goblin_config::visible::is_hidden;
use goblin_telemetry::clean;

use crate::state::State;
use crate::state::dialog::Dialog;
use crate::state::message::{Effect, GatewayCommand, StatusMessage};

/// The limit of a pasted address in bytes. The gateway accepts no longer one.
const MAX_PASTED: usize = 16 * 1024;

/// The dialog of one attempt to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginDialog {
    pub server: String,
    pub step: LoginStep,
    /// The address that the user enters.
    pub pasted: String,
    /// The outcome of the last pasted address.
    pub note: Option<StatusMessage>,
    pub scroll: usize,
    /// Whether the last report named another attempt. One such report may be older than this attempt.
    is_doubted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// The gateway asks the authorization server for the page.
    Beginning,
    /// A person confirms the login at this URL.
    Waiting {
        url: String,
        expires_in: u64,
    },
    Done,
    Failed {
        reason: String,
    },
}

impl LoginDialog {
    fn new(server: &str) -> LoginDialog {
        let step = LoginStep::Beginning;
        LoginDialog { server: server.to_owned(), step, pasted: String::new(), note: None, scroll: 0, is_doubted: false }
    }

    pub(super) fn write(&mut self, character: char) {
        let is_waiting = matches!(self.step, LoginStep::Waiting { .. });
        if is_waiting && self.pasted.len() < MAX_PASTED && !is_hidden(character) {
            self.pasted.push(character);
        }
    }

    pub(super) fn erase(&mut self) {
        self.pasted.pop();
    }

    /// Returns the URL to open, while the attempt waits.
    pub fn url(&self) -> Option<&str> {
        match &self.step {
            LoginStep::Waiting { url, .. } => Some(url),
            LoginStep::Beginning | LoginStep::Done | LoginStep::Failed { .. } => None,
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.step, LoginStep::Done | LoginStep::Failed { .. })
    }

    /// Updates the step from the attempt that began last. It may be one of another program.
    fn follow(&mut self, attempt: &LoginAttempt) {
        if self.url() == Some(&visible(&attempt.url)) {
            self.step = LoginStep::of(attempt);
            self.is_doubted = false;
        } else if self.url().is_some() && std::mem::replace(&mut self.is_doubted, true) {
            let reason = "another program has begun a login at this server".to_owned();
            self.step = LoginStep::Failed { reason };
        }
    }
}

impl LoginStep {
    fn of(attempt: &LoginAttempt) -> LoginStep {
        match attempt.state.as_str() {
            "waiting" => LoginStep::Waiting { url: visible(&attempt.url), expires_in: attempt.expires_in },
            "done" => LoginStep::Done,
            _ => LoginStep::Failed {
                reason: clean(attempt.reason.as_deref().unwrap_or("the gateway reports no reason")),
            },
        }
    }
}

/// Returns the URL without characters that a terminal obeys. It stays whole, because a cut one cannot be opened.
fn visible(url: &str) -> String {
    url.chars().filter(|character| !is_hidden(*character)).collect()
}

impl State {
    /// Returns the server whose login the user looks at.
    pub(super) fn login_shown(&self) -> Option<String> {
        match (&self.dialog, self.pane, self.selected_server()) {
            (Some(Dialog::Login(login)), _, _) => Some(login.server.clone()),
            (_, Some(_), Some(server)) => {
                let is_remote = server.url.as_deref().is_some_and(|url| url.starts_with("http"));
                is_remote.then(|| server.id.clone())
            }
            _ => None,
        }
    }

    /// Begins a login at the selected server.
    pub(super) fn log_in(&mut self) -> Vec<Effect> {
        let Some(server) = self.server_of_key() else { return Vec::new() };
        self.dialog = Some(Dialog::Login(LoginDialog::new(&server)));
        vec![Effect::Command(GatewayCommand::LogIn(server))]
    }

    /// Asks for confirmation of a logout at the selected server.
    pub(super) fn confirm_logout(&mut self) {
        if let Some(server) = self.server_of_key() {
            let question = format!("Log out of {}? No client can use it until the next login.", clean(&server));
            self.dialog = Some(Dialog::Confirm { question, command: GatewayCommand::LogOut(server) });
        }
    }

    fn server_of_key(&mut self) -> Option<String> {
        let server = self.selected_server().map(|server| server.id.clone());
        if server.is_none() {
            let hint = "this key needs a server: select one in the panel Servers (2)";
            self.notice = Some(StatusMessage::bad(hint));
        }
        server
    }

    /// Shows the page of a login that the gateway has begun, and opens it in a browser.
    pub(super) fn login_begun(&mut self, server: &str, begun: Result<LoginStatus, String>) -> Vec<Effect> {
        let Some(Dialog::Login(login)) = &mut self.dialog else { return Vec::new() };
        if login.server != server || login.step != LoginStep::Beginning {
            return Vec::new();
        }
        login.step = match begun.map(|status| status.attempt) {
            Ok(Some(attempt)) => LoginStep::of(&attempt),
            Ok(None) => LoginStep::Failed { reason: "the gateway began no login".to_owned() },
            Err(reason) => LoginStep::Failed { reason: clean(&reason) },
        };
        login.url().map(|url| Effect::OpenBrowser { url: url.to_owned() }).into_iter().collect()
    }

    /// Sends the address that the user entered. Closes the dialog of an attempt that is over.
    pub(super) fn submit_login(&mut self, mut login: LoginDialog) -> Vec<Effect> {
        if login.is_over() {
            return Vec::new();
        }
        let callback = std::mem::take(&mut login.pasted).trim().to_owned();
        let mut effects = Vec::new();
        if !callback.is_empty() {
            login.note = Some(StatusMessage::good("the gateway checks the address"));
            let server = login.server.clone();
            effects.push(Effect::Command(GatewayCommand::FinishLogin { server, callback }));
        }
        self.dialog = Some(Dialog::Login(login));
        effects
    }

    /// Handles the gateway's answer to a pasted address. After a wrong one the user may enter another.
    pub(super) fn login_finished(&mut self, server: &str, finished: Result<LoginStatus, String>) {
        let Some(Dialog::Login(login)) = &mut self.dialog else { return };
        if login.server != server {
            return;
        }
        match finished {
            Ok(LoginStatus { attempt: Some(attempt), .. }) => login.follow(&attempt),
            Ok(_) => {}
            Err(reason) => login.note = Some(StatusMessage::bad(reason)),
        }
    }

    /// Handles the login at a server as the gateway reports it. `None` means that the server has none.
    pub(super) fn login_read(&mut self, server: String, status: Option<LoginStatus>) {
        let attempt = status.as_ref().and_then(|status| status.attempt.as_ref());
        if let (Some(Dialog::Login(login)), Some(attempt)) = (&mut self.dialog, attempt)
            && login.server == server
        {
            login.follow(attempt);
        }
        self.data.set_login(server, status);
    }
}

#[cfg(test)]
mod tests;
