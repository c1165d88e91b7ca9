//! Compares frames with text files. `GOBLIN_BLESS=1` writes the files.

use std::path::Path;

use goblin_admin::login::{LoginAttempt, LoginStatus};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;

use super::*;
use crate::example::{act, needs_login, state, write};
use crate::state::dialog::Dialog;
use crate::state::message::{Action, Feed, LinkStatus, StatusMessage, UiEvent};

fn buffer(state: &mut State, columns: u16, rows: u16, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal of memory");
    let mut drawn = FrameLayout::default();
    terminal.draw(|frame| drawn = draw(frame, state, theme)).expect("memory can be drawn on");
    state.update(UiEvent::Measured(drawn.measures));
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in 0..buffer.area.height {
        let mut line = String::new();
        let mut column = 0;
        while column < buffer.area.width {
            let symbol = buffer[(column, row)].symbol();
            line.push_str(symbol);
            // A wide character also occupies the next cell.
            column += u16::try_from(super::text::width(symbol).max(1)).expect("narrow");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Compares a frame with its file.
fn check(name: &str, state: &mut State, columns: u16, rows: u16) {
    let frame = text(&buffer(state, columns, rows, Theme::Colour));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/frames/{name}-{columns}x{rows}.txt"));
    if std::env::var_os("GOBLIN_BLESS").is_some() {
        std::fs::write(&path, &frame).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(frame == kept, "{name} differs from {} (GOBLIN_BLESS=1 writes the file):\n{frame}", path.display());
}

fn check_both(name: &str, mut state: State) {
    check(name, &mut state, 80, 24);
    check(name, &mut state, 140, 40);
}

fn at(panel: Panel) -> State {
    let mut state = state();
    act(&mut state, Action::Show(panel));
    state
}

#[test]
fn every_panel_matches_its_expected_frame() {
    for panel in Panel::ALL.iter().copied() {
        check_both(&panel.as_str().to_lowercase(), at(panel));
    }
}

#[test]
fn tui1_resources_show_uri_name_type_and_size() {
    let frame = text(&buffer(&mut at(Panel::Resources), 120, 30, Theme::Monochrome));
    let line = frame.lines().find(|line| line.contains("README.md")).expect("a row");
    for text_part in ["file:///srv/ops/project/README.md", " README.md ", "text/markdown", "4.2 KiB"] {
        assert!(line.contains(text_part), "{text_part} in {line}");
    }
}

#[test]
fn tui2_a_server_filter_shows_only_entries_of_the_server() {
    for panel in [Panel::Overview, Panel::Servers, Panel::Tools, Panel::Resources, Panel::Events] {
        let mut state = at(panel);
        state.update(UiEvent::Act(Action::Filter));
        state.update(UiEvent::Go(isize::MIN));
        state.update(UiEvent::Go(2));
        check_filter_picker(&mut state);
        state.update(UiEvent::Submit);
        let frame = text(&buffer(&mut state, 120, 40, Theme::Monochrome));
        assert!(frame.contains("server git"), "{frame}");
        assert!(!frame.contains("weather") && !frame.contains("file:///"), "{frame}");
    }
}

fn check_filter_picker(state: &mut State) {
    let frame = text(&buffer(state, 80, 24, Theme::Monochrome));
    assert!(frame.contains("> git") && frame.contains("all servers") && frame.contains("✗ failed"), "{frame}");
}

#[test]
fn tui3_a_search_highlights_matches_and_hides_the_rest() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Search);
    write(&mut state, "COMM");
    for theme in [Theme::Colour, Theme::Monochrome] {
        let buffer = buffer(&mut state, 80, 24, theme);
        let frame = text(&buffer);
        assert!(frame.contains("git_commit") && !frame.contains("files_search"), "{frame}");
        let found: Vec<_> = buffer.content.iter().filter(|cell| cell.style() != Default::default()).collect();
        let marked = theme.found();
        let is_marked = |style: ratatui::style::Style| {
            style.bg == marked.bg.or(style.bg) && style.add_modifier.contains(marked.add_modifier)
        };
        let marked: String = found
            .iter()
            .filter(|cell| match theme {
                Theme::Colour => cell.style().bg == theme.found().bg,
                Theme::Monochrome => cell.modifier.contains(Modifier::UNDERLINED) && is_marked(cell.style()),
            })
            .map(|cell| cell.symbol())
            .collect();
        assert_eq!(marked, "commcomm", "in the name of one and in the description of another");
    }
    check_both("search", state);
}

#[test]
fn tui4_details_are_shown_beside_the_list() {
    let mut resource = at(Panel::Resources);
    act(&mut resource, Action::Open);
    check_both("resource-details", resource);
    let mut tool = at(Panel::Tools);
    act(&mut tool, Action::Down);
    act(&mut tool, Action::Right);
    check_both("tool-details", tool);
    let mut call = at(Panel::Calls);
    act(&mut call, Action::Open);
    check_both("call-details", call);
    let mut server = at(Panel::Servers);
    server.update(UiEvent::Select { section: 1, row: 2 });
    act(&mut server, Action::Open);
    check_both("server-details", server);
}

#[test]
fn details_can_be_scrolled_to_their_end_and_no_further() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Down);
    act(&mut state, Action::Right);
    let top = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
    assert!(top.contains("↓ more: j") && !top.contains("destructiveHint"), "{top}");
    act(&mut state, Action::Last);
    let end = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
    assert!(end.contains("destructiveHint"), "{end}");
    act(&mut state, Action::Up);
    let before_end = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
    assert_ne!(before_end, end, "the end is not overshot");
}

#[test]
fn tui5_templates_have_a_section_of_their_own() {
    let frame = text(&buffer(&mut at(Panel::Resources), 100, 30, Theme::Monochrome));
    let lines: Vec<_> = frame.lines().collect();
    let row = |fragment: &str| {
        lines.iter().position(|line| line.contains(fragment)).unwrap_or_else(|| panic!("{fragment}: {frame}"))
    };
    assert!(row("Resources 4") < row("Templates 1"), "{frame}");
    assert!(row("PATTERN") < row("file:///srv/ops/project/{path}"), "{frame}");
    assert!(lines[row("{path}")].contains("Any file of the project"), "{frame}");
}

#[test]
fn dialogs_are_shown_in_front() {
    let mut help = at(Panel::Overview);
    act(&mut help, Action::Help);
    check_both("help", help);
    let mut form = at(Panel::Tools);
    act(&mut form, Action::Down);
    act(&mut form, Action::Call);
    write(&mut form, "x");
    form.update(UiEvent::Go(-1));
    write(&mut form, "many");
    form.update(UiEvent::Submit);
    check("form", &mut form, 80, 24);
    let mut answer = at(Panel::Resources);
    act(&mut answer, Action::Read);
    check("reader-waiting", &mut answer, 80, 24);
    answer.update(UiEvent::Answered { ticket: 1, text: "# Read me\n\ta\u{1b}[2J tab".to_owned(), is_error: false });
    check("reader", &mut answer, 80, 24);
    let mut sure = at(Panel::Servers);
    sure.update(UiEvent::Select { section: 1, row: 2 });
    act(&mut sure, Action::Restart);
    check("confirm", &mut sure, 80, 24);
    let mut prompt = at(Panel::Prompts);
    act(&mut prompt, Action::Call);
    prompt.update(UiEvent::Choose(1));
    prompt.update(UiEvent::Suggested { ticket: 1, values: vec!["main".to_owned(), "next".to_owned()] });
    prompt.update(UiEvent::Choose(1));
    check("prompt-form", &mut prompt, 80, 24);
    let mut template = at(Panel::Resources);
    act(&mut template, Action::Last);
    act(&mut template, Action::Read);
    write(&mut template, "docs/日本.md");
    check("template-form", &mut template, 80, 24);
    let mut logs = at(Panel::Servers);
    logs.update(UiEvent::Select { section: 1, row: 2 });
    act(&mut logs, Action::Logs);
    check("logs", &mut logs, 80, 24);
    let mut jump = at(Panel::Overview);
    act(&mut jump, Action::Jump);
    write(&mut jump, "gi");
    check("jump", &mut jump, 80, 24);
}

#[test]
fn use14_a_small_terminal_shows_failures_and_the_overall_state_first() {
    let mut state = at(Panel::Overview);
    let buffer = buffer(&mut state, 80, 24, Theme::Colour);
    let frame = text(&buffer);
    let lines: Vec<_> = frame.lines().collect();
    assert!(lines[0].ends_with("✗ degraded: 2 failed"), "{frame}");
    assert_eq!(buffer[(78, 0)].style().fg, Some(ratatui::style::Color::Red));
    assert!(lines[4].contains("✗ misconfigured") && lines[4].contains("MAIL_TOKEN is not set"), "{frame}");
    assert!(lines[5].contains("✗ failed") && lines[5].contains("No such file or directory"), "{frame}");
}

/// Returns a panel in which a server that needs a login is selected.
fn without_login(panel: Panel) -> State {
    let mut state = at(panel);
    let status = Box::new(needs_login());
    state.update(UiEvent::Status { at: std::time::Duration::from_secs(12), status });
    act(&mut state, Action::First);
    state
}

/// Returns a login that waits for the browser, with a URL of this many further characters.
fn waiting_login(more: usize) -> State {
    let mut state = without_login(Panel::Servers);
    act(&mut state, Action::LogIn);
    let url = "https://auth.linear.example/authorize?response_type=code&client_id=f3b1c7&code_challenge_method=S256\
               &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM&state=af0ifjsldkj\
               &redirect_uri=http%3A%2F%2F127.0.0.1%3A41234%2Fcallback";
    let url = format!("{url}{}", "x".repeat(more));
    let attempt = LoginAttempt { state: "waiting".to_owned(), url, expires_in: 600, ..LoginAttempt::default() };
    let begun = LoginStatus { login: "needed".to_owned(), attempt: Some(attempt), ..LoginStatus::default() };
    state.update(UiEvent::LoginBegun { server: "linear".to_owned(), begun: Ok(begun) });
    state
}

#[test]
fn oauth2_a_needed_login_is_the_first_line_with_its_command() {
    for panel in [Panel::Overview, Panel::Servers] {
        let mut state = without_login(panel);
        let frame = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
        let lines: Vec<_> = frame.lines().collect();
        assert!(lines[0].ends_with("degraded: 2 failed, 1 without login"), "{frame}");
        assert!(lines[4].contains("linear") && lines[4].contains("○ login needed"), "{frame}");
        assert!(lines[4].contains("press i, or run goblin login linear"), "{frame}");
        assert!(footer(&mut state, 80).contains("i log in"), "{frame}");
    }
    check_both("login-overview", without_login(Panel::Overview));
    let mut details = without_login(Panel::Servers);
    act(&mut details, Action::Open);
    check_both("login-details", details);
}

#[test]
fn oauth2_the_page_of_a_login_is_shown_whole_and_without_a_border() {
    check_both("login", waiting_login(0));
    let mut state = waiting_login(3000);
    let frame = text(&buffer(&mut state, 140, 40, Theme::Monochrome));
    let lines = frame.lines().skip_while(|line| !line.starts_with("https://"));
    let shown: String = lines.take_while(|line| !line.is_empty()).collect();
    let Some(Dialog::Login(login)) = &state.dialog else { panic!("{:?}", state.dialog) };
    assert_eq!(Some(shown.as_str()), login.url());
    let small = |state: &mut State| text(&buffer(state, 80, 24, Theme::Monochrome));
    assert!(small(&mut state).contains("↓ more: ↓") && !small(&mut state).contains(" > "));
    state.update(UiEvent::Go(isize::MAX));
    assert!(small(&mut state).contains("paste the address"), "{}", small(&mut state));
}

#[test]
fn oauth2_the_end_of_a_login_and_a_wrong_address_are_shown() {
    let mut state = waiting_login(0);
    write(&mut state, "http://127.0.0.1:1/callback?code=abc");
    state.update(UiEvent::Submit);
    let finished = Err("the address belongs to another login".to_owned());
    state.update(UiEvent::LoginFinished { server: "linear".to_owned(), finished });
    check("login-wrong-address", &mut state, 80, 24);
    let mut refused = without_login(Panel::Servers);
    act(&mut refused, Action::LogIn);
    assert!(text(&buffer(&mut refused, 80, 24, Theme::Colour)).contains("asks for the login page"));
    let begun = Err("auth.example registers no clients by itself".to_owned());
    refused.update(UiEvent::LoginBegun { server: "linear".to_owned(), begun });
    let frame = text(&buffer(&mut refused, 80, 24, Theme::Colour));
    assert!(frame.contains("✗ auth.example registers no clients by itself"), "{frame}");
    let mut logout = without_login(Panel::Servers);
    act(&mut logout, Action::LogOut);
    check("logout", &mut logout, 80, 24);
}

/// Returns the last line of a frame.
fn footer(state: &mut State, columns: u16) -> String {
    text(&buffer(state, columns, 24, Theme::Monochrome)).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn use14_every_footer_has_the_keys_for_help_and_quit() {
    for panel in Panel::ALL.iter().copied() {
        for (is_open, columns) in [(false, 80), (true, 80), (false, 160)] {
            let mut state = at(panel);
            if is_open {
                act(&mut state, Action::Right);
            }
            let last = footer(&mut state, columns);
            assert!(last.contains("? help") && last.contains("q quit"), "{panel:?}: {last}");
        }
    }
}

#[test]
fn use14_footers_of_dialogs_and_messages_have_the_keys_for_help_and_quit() {
    for (panel, action, expected) in [
        (Panel::Overview, Action::Filter, ["? help", "q close"]),
        (Panel::Overview, Action::Logs, ["? help", "q close"]),
        (Panel::Servers, Action::Restart, ["? help", "q close"]),
        (Panel::Resources, Action::Read, ["? help", "q close"]),
        (Panel::Overview, Action::Jump, ["F1 help", "Ctrl-C quit"]),
        (Panel::Overview, Action::Search, ["F1 help", "Ctrl-C quit"]),
        (Panel::Tools, Action::Call, ["F1 help", "Ctrl-C quit"]),
        (Panel::Prompts, Action::Call, ["F1 help", "Ctrl-C quit"]),
    ] {
        let mut state = at(panel);
        if action == Action::Restart {
            state.update(UiEvent::Select { section: 1, row: 2 });
        }
        act(&mut state, action);
        let last = footer(&mut state, 80);
        assert!(expected.iter().all(|hint| last.contains(hint)), "{panel:?} {action:?}: {last}");
        // The help covers the dialog and gives it back.
        let before = state.dialog.clone();
        act(&mut state, Action::Help);
        assert!(text(&buffer(&mut state, 80, 24, Theme::Monochrome)).contains("Keys (Esc closes)"));
        state.update(UiEvent::Cancel);
        assert!(state.help.is_none() && state.dialog == before, "{panel:?} {action:?}");
    }
    let mut state = at(Panel::Overview);
    state.update(UiEvent::Notice(StatusMessage::bad("long ".repeat(50))));
    let last = footer(&mut state, 80);
    assert!(last.contains("✗ long") && last.contains("? help") && last.contains("q quit"), "{last}");
    state.update(UiEvent::Link(LinkStatus::Lost {
        reason: "gone ".repeat(50),
        retry_in: std::time::Duration::from_secs(4),
    }));
    act(&mut state, Action::First);
    let last = footer(&mut state, 80);
    assert!(last.contains("retry in") && last.contains("? help") && last.contains("q quit"), "{last}");
}

#[test]
fn use14_an_older_gateway_is_named_in_the_panel_that_needs_a_newer_one() {
    let mut state = State::new(String::new(), None);
    act(&mut state, Action::Show(Panel::Calls));
    let reason = "the gateway is older than this dashboard: it has no /api/calls".to_owned();
    state.update(UiEvent::Unreadable { feed: Feed::Calls, reason: reason.clone() });
    let frame = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
    assert!(frame.contains(&reason), "{frame}");
    state.update(UiEvent::Calls(crate::example::calls(8)));
    let frame = text(&buffer(&mut state, 80, 24, Theme::Monochrome));
    assert!(!frame.contains(&reason) && frame.contains("tool error"), "{frame}");
}

#[test]
fn use14_no_size_panics_with_any_dialog() {
    for (columns, rows) in [(40, 10), (1, 1), (80, 24), (81, 25), (300, 100)] {
        for action in
            [Action::Help, Action::Filter, Action::Jump, Action::Logs, Action::Call, Action::Restart, Action::LogIn]
        {
            for panel in Panel::ALL.iter().copied() {
                let mut state = at(panel);
                act(&mut state, Action::Open);
                act(&mut state, action);
                let frame = text(&buffer(&mut state, columns, rows, Theme::Colour));
                assert!(columns != 40 || frame.contains("Enlarge the window"), "{frame}");
            }
        }
    }
}

#[test]
fn a_lost_gateway_is_reported_and_the_known_data_stays() {
    let mut state = state();
    let retry_in = std::time::Duration::from_secs(4);
    let reason = "the gateway at http://127.0.0.1:7777/mcp is no longer running".to_owned();
    state.update(UiEvent::Link(LinkStatus::Lost { reason, retry_in }));
    check("lost", &mut state, 80, 24);
    state.update(UiEvent::Notice(StatusMessage::bad("no")));
    assert!(text(&buffer(&mut state, 80, 24, Theme::Colour)).contains("✗ no"));
}

#[test]
fn a_too_small_terminal_shows_the_required_size() {
    for (columns, rows) in [(79, 24), (80, 23), (20, 5), (1, 1)] {
        let frame = text(&buffer(&mut state(), columns, rows, Theme::Colour));
        assert!(columns < 60 || frame.contains("needs 80x24"), "{frame}");
    }
}

#[test]
fn no_frame_needs_colour_or_contains_control_characters_of_servers() {
    for panel in Panel::ALL.iter().copied() {
        let mut state = at(panel);
        act(&mut state, Action::Open);
        let plain = buffer(&mut state, 100, 30, Theme::Monochrome);
        assert!(plain.content.iter().all(|cell| cell.style().fg == Some(ratatui::style::Color::Reset)), "{panel:?}");
        assert_eq!(text(&plain), text(&buffer(&mut state, 100, 30, Theme::Colour)), "{panel:?}");
        assert!(text(&plain).lines().any(|line| line.contains("> ")), "{panel:?}: the selection is a sign too");
        assert!(!text(&plain).contains(['\u{1b}', '\u{202e}']), "{panel:?}");
    }
}
