//! Tests of the login dialog as messages and expected values.

use std::time::Duration;

use goblin_admin::login::{LoginAttempt, LoginStatus};

use super::*;
use crate::example::{act, needs_login, state, write};
use crate::state::detail;
use crate::state::message::{Action, Panel, UiEvent};
use crate::state::table::Tone;

fn status_of_login(state: &str, reason: Option<&str>, url: &str) -> LoginStatus {
    let attempt = LoginAttempt {
        state: state.to_owned(),
        reason: reason.map(str::to_owned),
        url: url.to_owned(),
        expires_in: 600,
        ..LoginAttempt::default()
    };
    LoginStatus { login: "needed".to_owned(), attempt: Some(attempt), ..LoginStatus::default() }
}

/// Returns the dashboard with a selected server that needs a login.
fn without_login() -> State {
    let mut state = state();
    act(&mut state, Action::Show(Panel::Servers));
    let status = Box::new(needs_login());
    state.update(UiEvent::Status { at: Duration::from_secs(12), status });
    state.select_id("linear");
    state
}

fn login(state: &State) -> &LoginDialog {
    let Some(Dialog::Login(login)) = &state.dialog else { panic!("{:?}", state.dialog) };
    login
}

const LOGIN_URL: &str = "https://auth.example/authorize?state=1";

fn begun(url: &str) -> UiEvent {
    UiEvent::LoginBegun { server: "linear".to_owned(), begun: Ok(status_of_login("waiting", None, url)) }
}

fn reported(status: LoginStatus) -> UiEvent {
    UiEvent::Login { server: "linear".to_owned(), status: Some(status) }
}

#[test]
fn oauth2_a_login_begins_opens_a_browser_and_follows_the_gateway() {
    for (last, expected) in [
        (("done", None), LoginStep::Done),
        (("failed", Some("refused")), LoginStep::Failed { reason: "refused".to_owned() }),
    ] {
        let mut state = without_login();
        let command = GatewayCommand::LogIn("linear".to_owned());
        assert_eq!(state.update(UiEvent::Act(Action::LogIn)), [Effect::Command(command)]);
        assert_eq!(login(&state).step, LoginStep::Beginning);
        assert_eq!(state.interest().login_of.as_deref(), Some("linear"));
        write(&mut state, "too early");
        let url = format!("{LOGIN_URL}{}", "&scope=x".repeat(500));
        let hostile = format!("{url}\u{1b}\u{202e}");
        assert_eq!(state.update(begun(&hostile)), [Effect::OpenBrowser { url: url.clone() }]);
        let label = "the address of the login".to_owned();
        assert_eq!(state.update(UiEvent::Act(Action::Copy)), [Effect::Copy { label, text: url.clone() }], "all of it");
        assert!(login(&state).pasted.is_empty());
        assert!(state.update(begun(&hostile)).is_empty(), "the browser opens once");
        state.update(reported(status_of_login(last.0, last.1, &hostile)));
        assert_eq!(login(&state).step, expected);
        assert!(state.update(UiEvent::Submit).is_empty() && state.dialog.is_none(), "Enter closes it");
    }
}

#[test]
fn oauth2_a_pasted_address_finishes_a_login_and_a_wrong_one_can_be_replaced() {
    let mut state = without_login();
    act(&mut state, Action::LogIn);
    state.update(begun(LOGIN_URL));
    assert!(state.update(UiEvent::Submit).is_empty(), "there is no address yet");
    for (pasted, answer) in [("wrong", Err("the address belongs to another login".to_owned())), ("right", Ok("done"))] {
        write(&mut state, &format!(" http://127.0.0.1:5/{pasted}x"));
        state.update(UiEvent::Erase);
        let (server, callback) = ("linear".to_owned(), format!("http://127.0.0.1:5/{pasted}"));
        let finish = GatewayCommand::FinishLogin { server: server.clone(), callback };
        assert_eq!(state.update(UiEvent::Submit), [Effect::Command(finish)]);
        assert!(login(&state).pasted.is_empty());
        let finished = answer.map(|word| status_of_login(word, None, LOGIN_URL));
        state.update(UiEvent::LoginFinished { server, finished });
        let is_error = login(&state).note.as_ref().is_some_and(|note| note.is_error);
        assert_eq!((login(&state).url().is_some(), is_error), (pasted == "wrong", pasted == "wrong"));
    }
    assert_eq!(login(&state).step, LoginStep::Done);
}

#[test]
fn oauth2_a_login_reports_a_refusal_and_another_attempt() {
    let mut state = without_login();
    act(&mut state, Action::LogIn);
    let begun_with = |begun| UiEvent::LoginBegun { server: "linear".to_owned(), begun };
    assert!(state.update(begun_with(Err("it registers no clients".to_owned()))).is_empty());
    assert_eq!(login(&state).step, LoginStep::Failed { reason: "it registers no clients".to_owned() });
    state.update(UiEvent::Cancel);
    assert!(state.update(begun(LOGIN_URL)).is_empty() && state.dialog.is_none(), "a closed dialog opens no browser");
    act(&mut state, Action::LogIn);
    state.update(begun(LOGIN_URL));
    let other = || reported(status_of_login("waiting", None, "https://auth.example/other"));
    state.update(other());
    assert!(login(&state).url().is_some(), "the report may be older than the attempt");
    state.update(other());
    assert!(matches!(&login(&state).step, LoginStep::Failed { reason } if reason.contains("another program")));
    write(&mut state, "x");
    assert!(login(&state).pasted.is_empty(), "nothing waits for an address");
}

#[test]
fn oauth2_a_pasted_address_is_bounded() {
    let mut state = without_login();
    act(&mut state, Action::LogIn);
    state.update(begun(LOGIN_URL));
    write(&mut state, &"x".repeat(20_000));
    state.update(UiEvent::Write('\u{7}'));
    assert_eq!(login(&state).pasted.len(), 16 * 1024);
}

#[test]
fn oauth2_a_logout_is_confirmed() {
    let mut state = without_login();
    assert!(state.update(UiEvent::Act(Action::LogOut)).is_empty());
    let question = "Log out of linear? No client can use it until the next login.";
    assert!(matches!(&state.dialog, Some(Dialog::Confirm { question: asked, .. }) if asked == question));
    let command = GatewayCommand::LogOut("linear".to_owned());
    assert_eq!(state.update(UiEvent::Submit), [Effect::Command(command)]);
    let mut elsewhere = crate::example::state();
    act(&mut elsewhere, Action::Show(Panel::Tools));
    for action in [Action::LogIn, Action::LogOut] {
        assert!(elsewhere.update(UiEvent::Act(action)).is_empty() && elsewhere.dialog.is_none());
        assert!(elsewhere.notice.as_ref().is_some_and(|notice| notice.is_error));
    }
}

#[test]
fn oauth2_a_server_without_a_login_is_the_first_of_the_failed_ones() {
    let mut state = without_login();
    let failed: Vec<_> = state.sections[0].rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(failed, ["linear", "mail", "weather"]);
    act(&mut state, Action::Open);
    assert_eq!(state.interest().login_of.as_deref(), Some("linear"), "details show the account");
    let cure = "press i, or run goblin login linear".to_owned();
    let cure = detail::Line::Field("cure", cure, Tone::Plain);
    let lines = |state: &State| state.detail().expect("a row is selected").lines;
    assert!(lines(&state).contains(&cure), "{:?}", lines(&state));
    let revoked = LoginStatus { reason: Some("it was revoked".to_owned()), ..status_of_login("failed", None, "") };
    state.update(reported(revoked.clone()));
    let line = |label, value: &str, tone| detail::Line::Field(label, value.to_owned(), tone);
    for expected in [line("account", "needed", Tone::Warn), line("cause", "it was revoked", Tone::Warn)] {
        assert!(lines(&state).contains(&expected), "{expected:?} in {:?}", lines(&state));
    }
    state.update(reported(LoginStatus { automatic: true, ..revoked }));
    assert!(!lines(&state).iter().any(|line| matches!(line, detail::Line::Field("cure", ..))), "no person helps");
    state.select_id("files");
    assert_eq!(state.interest().login_of, None, "a directory has no login");
}
