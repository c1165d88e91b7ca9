//! Tests of the state as tables of messages and expected values.

use std::time::Duration;

use goblin_admin::api::EventInfo;
use goblin_admin::routes::List;

use super::*;
use crate::example::{act, calls, state, status, write};
use crate::state::data::CatalogItem;
use crate::state::dialog::ResultDialog;
use crate::state::message::{Feed, GatewayCommand, PointerArea};
use crate::state::table::Tone;

fn ids(state: &State) -> Vec<&str> {
    state.rows().map(|row| row.id.as_str()).collect()
}

fn at(panel: Panel) -> State {
    let mut state = state();
    act(&mut state, Action::Show(panel));
    state
}

fn field(label: &'static str, value: &str) -> detail::Line {
    detail::Line::Field(label, value.to_owned(), Tone::Plain)
}

fn selected(state: &State) -> &str {
    state.row().map_or("", |row| row.id.as_str())
}

#[test]
fn keys_move_through_panels_and_rows() {
    let mut state = state();
    for (action, panel, row) in [
        (Action::NextPanel, Panel::Servers, "mail"),
        (Action::Down, Panel::Servers, "weather"),
        (Action::Last, Panel::Servers, "old"),
        (Action::Down, Panel::Servers, "old"),
        (Action::First, Panel::Servers, "mail"),
        (Action::Up, Panel::Servers, "mail"),
        (Action::PreviousPanel, Panel::Overview, "mail"),
        (Action::PreviousPanel, Panel::Events, "4 2026-11-16T15:00:04.250Z"),
        (Action::PreviousPanel, Panel::Calls, "8"),
        (Action::Show(Panel::Overview), Panel::Overview, "mail"),
        (Action::Show(Panel::Resources), Panel::Resources, "resources file:///srv/ops/project/README.md"),
        (Action::Last, Panel::Resources, "templates file:///srv/ops/project/{path}"),
        (Action::Show(Panel::Servers), Panel::Servers, "mail"),
    ] {
        act(&mut state, action);
        assert_eq!((state.panel, selected(&state)), (panel, row), "{action:?}");
    }
    state.update(UiEvent::Measured(Measures { rows: 4, ..Measures::default() }));
    act(&mut state, Action::HalfDown);
    assert_eq!(selected(&state), "notes", "half of four rows");
}

#[test]
fn the_mouse_selects_an_existing_row() {
    let mut state = at(Panel::Resources);
    for (section, row, expected) in [
        (0, 1, "resources file:///srv/ops/project/logo.png"),
        (1, 0, "templates file:///srv/ops/project/{path}"),
        (1, 9, "templates file:///srv/ops/project/{path}"),
    ] {
        state.update(UiEvent::Select { section, row });
        assert_eq!(selected(&state), expected, "{section} {row}");
    }
    state.update(UiEvent::Wheel { place: PointerArea::List, is_down: false });
    assert_eq!(selected(&state), "resources file:///srv/ops/project/logo.png");
}

#[test]
fn the_selection_stays_with_its_row() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Last);
    let last = selected(&state).to_owned();
    let mut items = state.data.items(List::Tools).to_vec();
    items.insert(0, CatalogItem { exposed: "new".to_owned(), ..CatalogItem::default() });
    state.update(UiEvent::Items(List::Tools, items.clone()));
    assert_eq!((selected(&state), state.selected()), (last.as_str(), 4));
    items.truncate(2);
    state.update(UiEvent::Items(List::Tools, items));
    assert_eq!(state.selected(), 1, "the row does not exist any longer");
    state.update(UiEvent::Items(List::Tools, Vec::new()));
    assert!(state.row().is_none());
    for action in [Action::Down, Action::Open, Action::Right, Action::Call, Action::Restart] {
        act(&mut state, action);
    }
    assert_eq!(state.pane, None);
}

#[test]
fn a_selection_of_the_newest_event_follows_new_events() {
    let mut state = at(Panel::Events);
    let event = |seq| EventInfo { seq, ..EventInfo::default() };
    state.update(UiEvent::Event(event(5)));
    assert_eq!(selected(&state), "5 ");
    act(&mut state, Action::Down);
    state.update(UiEvent::Event(event(6)));
    assert!(selected(&state).starts_with("4 "), "the selection of an older event stays");
    state.update(UiEvent::Event(EventInfo { kind: "keep".to_owned(), ..event(7) }));
    for seq in 0..2000 {
        state.update(UiEvent::Event(EventInfo { level: "debug".to_owned(), ..event(seq) }));
    }
    assert_eq!(state.data.events.len(), data::MAX_EVENTS);
    assert!(state.data.events.iter().any(|event| event.kind == "keep"), "debug events are dropped first");
}

#[test]
fn tui2_the_filter_is_picked_from_the_servers_and_removed() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Filter);
    assert_eq!(state.dialog, Some(Dialog::Picker { at: 0 }));
    state.update(UiEvent::Go(2));
    state.update(UiEvent::Submit);
    assert_eq!(state.server.as_deref(), Some("git"));
    assert_eq!(ids(&state), ["tools git_commit", "tools git_log", "tools git_検索"]);
    for (panel, count) in [
        (Panel::Overview, 1),
        (Panel::Servers, 1),
        (Panel::Prompts, 1),
        (Panel::Resources, 1),
        (Panel::Subscriptions, 0),
        (Panel::Sessions, 3),
        (Panel::Calls, 4),
        (Panel::Events, 2),
    ] {
        act(&mut state, Action::Show(panel));
        assert_eq!(ids(&state).len(), count, "{panel:?}");
    }
    act(&mut state, Action::Close);
    assert_eq!((state.server.as_deref(), ids(&state).len()), (None, 4));
    act(&mut state, Action::Show(Panel::Servers));
    act(&mut state, Action::Last);
    act(&mut state, Action::Filter);
    assert_eq!(state.dialog, Some(Dialog::Picker { at: 6 }), "the selected server");
    state.update(UiEvent::Cancel);
    assert_eq!(state.server, None);
}

#[test]
fn tui3_a_search_hides_rows_without_a_match_as_it_is_typed() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Search);
    for (letter, expected) in [('c', 3), ('O', 2), ('m', 2), ('m', 2), ('i', 2), ('t', 2), ('!', 0)] {
        write(&mut state, &letter.to_string());
        assert_eq!(ids(&state).len(), expected, "{}", state.query);
    }
    state.update(UiEvent::Erase);
    state.update(UiEvent::Submit);
    assert_eq!((state.is_searching, state.query.as_str(), ids(&state).len()), (false, "cOmmit", 2));
    act(&mut state, Action::Close);
    assert_eq!((state.query.as_str(), ids(&state).len()), ("", 4));
    act(&mut state, Action::Search);
    write(&mut state, "x");
    state.update(UiEvent::Cancel);
    assert_eq!((state.is_searching, state.query.as_str()), (false, ""));
}

#[test]
fn rows_are_sorted_by_each_column_in_turn() {
    let mut state = at(Panel::Resources);
    let names =
        |state: &State| -> Vec<String> { state.sections[0].rows.iter().map(|row| row.cells[1].text.clone()).collect() };
    let as_is = names(&state);
    let mut orders = Vec::new();
    for _ in 0..RESOURCE_COLUMNS {
        act(&mut state, Action::Sort);
        orders.push(names(&state));
    }
    assert_eq!(orders[1], ["logo.png", "notes.txt", "README.md", "The newest commit"], "by name");
    assert_eq!(orders[3], ["The newest commit", "notes.txt", "README.md", "logo.png"], "by size, as a number");
    act(&mut state, Action::Sort);
    assert_eq!(names(&state), as_is, "behind the last column as the gateway has it");
    act(&mut state, Action::Reverse);
    assert_eq!(names(&state), as_is.iter().rev().cloned().collect::<Vec<_>>());
}

const RESOURCE_COLUMNS: usize = 5;

#[test]
fn tui4_details_show_all_metadata_of_the_selected_resource() {
    let mut state = at(Panel::Resources);
    let lines = state.detail().expect("a row is selected").lines;
    for expected in [
        field("URI", "file:///srv/ops/project/README.md"),
        field("MIME type", "text/markdown"),
        field("size", "4.2 KiB (4321 bytes)"),
        detail::Line::Text("What it is".to_owned(), Tone::Plain),
        detail::Line::Heading("Metadata".to_owned()),
        detail::Line::Text(r#"  "dev.goblin/id": "files_file_home_me_project_README.md""#.to_owned(), Tone::Plain),
    ] {
        assert!(lines.contains(&expected), "{expected:?} in {lines:?}");
    }
    act(&mut state, Action::Open);
    act(&mut state, Action::Right);
    state.update(UiEvent::Measured(Measures { details: 3, ..Measures::default() }));
    act(&mut state, Action::Last);
    assert_eq!(state.pane, Some(Pane { scroll: 3, is_focused: true }));
    act(&mut state, Action::Left);
    act(&mut state, Action::Down);
    assert_eq!(state.pane, Some(Pane::default()), "another row begins at its top");
    act(&mut state, Action::Close);
    assert_eq!(state.pane, None);
}

#[test]
fn a_tool_is_called_with_the_arguments_of_its_form() {
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Call);
    assert!(state.update(UiEvent::Submit).is_empty(), "the query is needed");
    assert!(matches!(state.dialog, Some(Dialog::Form(_))));
    write(&mut state, "goblins");
    let effects = state.update(UiEvent::Submit);
    let arguments = r#"{"query":"goblins"}"#.to_owned();
    assert_eq!(effects, [Effect::Call { ticket: 1, tool: "files_search".to_owned(), arguments }]);
    state.update(UiEvent::Answered { ticket: 9, text: "of another".to_owned(), is_error: false });
    state.update(UiEvent::Answered { ticket: 1, text: r#"{"a":1}"#.to_owned(), is_error: true });
    let Some(Dialog::Reader(reader)) = &state.dialog else { panic!("{:?}", state.dialog) };
    assert_eq!((reader.lines.join("\n").as_str(), reader.is_error), ("{\n  \"a\": 1\n}", true));
    assert!(state.update(UiEvent::Cancel).is_empty());
    act(&mut state, Action::Show(Panel::Servers));
    act(&mut state, Action::Call);
    assert!(state.notice.as_ref().is_some_and(|notice| notice.is_error));
}

#[test]
fn a_resource_is_read_and_a_closed_reader_ignores_the_answer() {
    let mut state = at(Panel::Resources);
    let uri = "file:///srv/ops/project/README.md".to_owned();
    assert_eq!(state.update(UiEvent::Act(Action::Read)), [Effect::Read { ticket: 1, uri }]);
    assert_eq!(state.update(UiEvent::Submit), [Effect::Forget { ticket: 1 }], "Enter closes it too");
    state.update(UiEvent::Answered { ticket: 1, text: "late".to_owned(), is_error: false });
    assert_eq!(state.dialog, None);
}

#[test]
fn a_watched_resource_counts_its_updates() {
    let mut state = at(Panel::Resources);
    let uri = "file:///srv/ops/project/README.md".to_owned();
    assert_eq!(state.update(UiEvent::Act(Action::Watch)), [Effect::Watch { uri: uri.clone() }]);
    let shown = |state: &State| state.sections[0].rows[0].cells[4].text.clone();
    state.update(UiEvent::Watching { uri: uri.clone(), is_on: true });
    assert_eq!(shown(&state), "watching");
    state.update(UiEvent::Updated { uri: uri.clone(), time: "12:00:01".to_owned(), is_deleted: false });
    state.update(UiEvent::Updated { uri: uri.clone(), time: "12:00:02".to_owned(), is_deleted: true });
    assert_eq!(shown(&state), "2 at 12:00:02");
    assert!(state.notice.as_ref().is_some_and(|notice| notice.text.ends_with("is deleted")));
    assert_eq!(state.update(UiEvent::Act(Action::Watch)), [Effect::Unwatch { uri: uri.clone() }]);
    state.update(UiEvent::Watching { uri, is_on: false });
    assert_eq!(shown(&state), "");
}

#[test]
fn a_server_is_changed_only_after_confirmation() {
    for (server, action, expected) in [
        (1, Action::Restart, GatewayCommand::Server(ServerAction::Restart, "files".to_owned())),
        (2, Action::Toggle, GatewayCommand::Server(ServerAction::Disable, "git".to_owned())),
        (3, Action::Toggle, GatewayCommand::Server(ServerAction::Enable, "old".to_owned())),
    ] {
        let mut state = at(Panel::Servers);
        state.update(UiEvent::Select { section: 1, row: server });
        assert!(state.update(UiEvent::Act(action)).is_empty());
        assert!(state.update(UiEvent::Cancel).is_empty(), "a no");
        state.update(UiEvent::Act(action));
        assert_eq!(state.update(UiEvent::Submit), [Effect::Command(expected)]);
    }
    let mut state = at(Panel::Tools);
    state.update(UiEvent::Act(Action::Restart));
    assert!(state.dialog.is_none() && state.notice.is_some(), "no server is selected");
    assert_eq!(state.update(UiEvent::Act(Action::Reload)), [Effect::Command(GatewayCommand::Reload)]);
    assert_eq!(state.update(UiEvent::Act(Action::Quit)), [Effect::Quit]);
}

#[test]
fn rates_restart_when_the_gateway_reconnects() {
    let mut state = state();
    assert!(state.rates.total.calls > 0.0);
    state.update(UiEvent::Link(LinkStatus::Lost { reason: "gone".to_owned(), retry_in: Duration::from_secs(1) }));
    assert!(state.data.status.is_some(), "what was known stays");
    state.update(UiEvent::Link(LinkStatus::Live));
    assert_eq!((state.rates.total.calls, state.rates.history.len()), (0.0, 0));
}

#[test]
fn use14_failed_and_misconfigured_servers_are_first_with_their_reason() {
    for panel in [Panel::Overview, Panel::Servers] {
        let state = at(panel);
        assert_eq!(ids(&state), ["mail", "weather", "notes", "files", "git", "old"], "{panel:?}");
        let reasons: Vec<_> = state.sections[0].rows.iter().map(|row| row.cells[2].text.as_str()).collect();
        assert_eq!(reasons, ["its variable MAIL_TOKEN is not set", "spawn weather-mcp: No such file or directory"]);
    }
    let mut state = at(Panel::Servers);
    let mut recovered = status(0);
    recovered.servers.retain(|server| !table::has_failed(server));
    state.update(UiEvent::Status { at: Duration::from_secs(99), status: Box::new(recovered) });
    assert_eq!((state.sections.len(), ids(&state)), (1, vec!["notes", "files", "git", "old"]));
    assert_eq!(state.sections[0].rows[2].cells[1].text, "● ready, stale");
}

#[test]
fn use14_server_details_have_command_pid_log_instructions_and_last_error() {
    let mut state = at(Panel::Servers);
    state.select_id("git");
    assert_eq!(state.interest().logs_of, None, "the log is read only while it is visible");
    act(&mut state, Action::Open);
    assert_eq!(state.interest().logs_of.as_deref(), Some("git"));
    let lines = state.detail().expect("a row is selected").lines;
    let text = |text: &str, tone| detail::Line::Text(text.to_owned(), tone);
    for expected in [
        field("command", "git-mcp --root /srv/ops/project"),
        field("pid", "4720"),
        field("failed at", "2026-11-16T14:58:00Z"),
        field("restarts", "1"),
        detail::Line::Field("last error", "its process ended: exit status 1".to_owned(), Tone::Warn),
        text("15:00:01 stderr git-mcp 2.1 [1mlistening", Tone::Plain),
        text("15:00:03 warn   a list failed", Tone::Warn),
        text("Commit small changes.", Tone::Plain),
        text("its list of templates failed", Tone::Warn),
    ] {
        assert!(lines.contains(&expected), "{expected:?} in {lines:?}");
    }
    state.update(UiEvent::Unreadable { feed: Feed::Logs, reason: "the gateway is older".to_owned() });
    state.select_id("weather");
    let lines = state.detail().expect("a row is selected").lines;
    for expected in [
        text("the gateway is older", Tone::Warn),
        text("15:00:03 error  cannot connect reason=No such file or directory", Tone::Bad),
    ] {
        assert!(lines.contains(&expected), "the events serve instead of the log: {lines:?}");
    }
}

#[test]
fn use14_a_prompt_is_got_with_the_arguments_of_its_form() {
    let mut state = at(Panel::Prompts);
    assert!(state.update(UiEvent::Act(Action::Call)).is_empty());
    let Some(Dialog::Form(form)) = &state.dialog else { panic!("{:?}", state.dialog) };
    let fields: Vec<_> =
        form.fields.iter().map(|field| (field.label(), field.is_required, field.hint.as_str())).collect();
    let expected = [("branch", true, "The branch to review"), ("depth", false, "")];
    assert_eq!(fields, expected.map(|(label, is_required, hint)| (label.to_owned(), is_required, hint)));
    assert!(state.update(UiEvent::Submit).is_empty(), "the branch is required");
    write(&mut state, "ma");
    let effects = state.update(UiEvent::Choose(1));
    let params = r#"{"argument":{"name":"branch","value":"ma"},"context":{"arguments":{}},"ref":{"name":"git_review","type":"ref/prompt"}}"#;
    let [Effect::Complete { ticket: 1, params: sent }] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(serde_json::from_str::<serde_json::Value>(sent).ok(), serde_json::from_str(params).ok());
    assert!(matches!(&state.dialog, Some(Dialog::Form(form)) if form.fields[0].error.is_none()));
    state.update(UiEvent::Suggested { ticket: 9, values: vec!["of another request".to_owned()] });
    state.update(UiEvent::Suggested { ticket: 1, values: vec!["main".to_owned(), "master".to_owned()] });
    for (by, expected) in [(1, "main"), (1, "master"), (1, "main"), (-1, "master")] {
        assert!(state.update(UiEvent::Choose(by)).is_empty());
        let Some(Dialog::Form(form)) = &state.dialog else { panic!("{:?}", state.dialog) };
        assert_eq!(form.fields[0].shown(), expected);
    }
    let (prompt, arguments) = ("git_review".to_owned(), r#"{"branch":"master"}"#.to_owned());
    assert_eq!(state.update(UiEvent::Submit), [Effect::GetPrompt { ticket: 2, prompt, arguments }]);
    state.update(UiEvent::Answered { ticket: 2, text: "user:\nReview master".to_owned(), is_error: false });
    let Some(Dialog::Reader(reader)) = &state.dialog else { panic!("{:?}", state.dialog) };
    assert_eq!(reader.lines, ["user:", "Review master"]);
}

#[test]
fn use14_the_mouse_reaches_nothing_behind_the_help() {
    let mut state = at(Panel::Tools);
    state.update(UiEvent::Measured(Measures { help: 10, ..Measures::default() }));
    act(&mut state, Action::Help);
    state.update(UiEvent::Wheel { place: PointerArea::List, is_down: true });
    state.update(UiEvent::Select { section: 0, row: 2 });
    assert_eq!((state.selected(), state.help), (0, Some(3)));
    state.update(UiEvent::Cancel);
    state.update(UiEvent::Select { section: 0, row: 2 });
    assert_eq!((state.selected(), state.help), (2, None));
}

#[test]
fn use14_a_template_is_read_with_its_variables() {
    let mut state = at(Panel::Resources);
    act(&mut state, Action::Last);
    assert!(state.update(UiEvent::Act(Action::Read)).is_empty());
    assert!(state.update(UiEvent::Submit).is_empty(), "the variable is required");
    write(&mut state, "a b/ü");
    let Some(Dialog::Form(form)) = &state.dialog else { panic!("{:?}", state.dialog) };
    let uri = "file:///srv/ops/project/a%20b%2F%C3%BC".to_owned();
    assert_eq!(form.uri().as_ref(), Some(&uri), "the form shows the URI");
    assert_eq!(state.update(UiEvent::Submit), [Effect::Read { ticket: 1, uri }]);
    let mut items = state.data.items(List::Templates).to_vec();
    items[0].exposed = "broken{".to_owned();
    state.update(UiEvent::Cancel);
    state.update(UiEvent::Items(List::Templates, items));
    act(&mut state, Action::Last);
    act(&mut state, Action::Read);
    assert!(state.dialog.is_none() && state.notice.is_some_and(|notice| notice.text.contains("never closed")));
}

#[test]
fn use14_calls_are_filtered_and_the_selection_stays() {
    let mut state = at(Panel::Calls);
    assert_eq!((ids(&state), selected(&state)), (vec!["8", "7", "6", "5", "4"], "8"));
    state.update(UiEvent::Calls(calls(9)));
    assert_eq!(selected(&state), "9", "the newest call is followed");
    act(&mut state, Action::Open);
    state.update(UiEvent::Calls(calls(10)));
    assert_eq!(selected(&state), "9", "open details stay");
    act(&mut state, Action::Close);
    act(&mut state, Action::Down);
    let before = selected(&state).to_owned();
    state.update(UiEvent::Calls(calls(11)));
    assert_eq!(selected(&state), before);
    act(&mut state, Action::FailedOnly);
    assert_eq!(ids(&state), ["9", "8"]);
    assert!(state.sections[0].title.starts_with("Failed calls"));
    act(&mut state, Action::Search);
    write(&mut state, "weather");
    assert_eq!(ids(&state), ["9"]);
    act(&mut state, Action::Open);
    let error = "backend weather is not available: spawn weather-mcp: No such file or directory";
    let lines = state.detail().expect("a row is selected").lines;
    assert!(lines.contains(&detail::Line::Text(error.to_owned(), Tone::Bad)), "{lines:?}");
    let label = "the error of weather_today".to_owned();
    assert_eq!(state.update(UiEvent::Act(Action::Copy)), [Effect::Copy { label, text: error.to_owned() }]);
    let mut state = at(Panel::Tools);
    act(&mut state, Action::FailedOnly);
    assert_eq!((state.panel, state.failed_only), (Panel::Calls, true), "F goes to the failed calls");
}

#[test]
fn use14_events_hide_debug_and_a_key_cycles_the_level() {
    let mut state = at(Panel::Events);
    for (count, level) in [(4, "info and above"), (2, "warn and above"), (1, "errors only"), (5, "all levels")] {
        assert_eq!((ids(&state).len(), state.level.describe()), (count, level));
        act(&mut state, Action::Level);
    }
    assert_eq!(state.level, Level::Info);
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Level);
    assert!(state.level == Level::Info && state.notice.is_some());
}

#[test]
fn use14_clients_without_a_session_are_listed() {
    let state = at(Panel::Sessions);
    assert_eq!(ids(&state), ["9f3c", "77ab", "stateless batch 1.2"]);
    let cells: Vec<_> = state.sections[0].rows[2].cells.iter().map(|cell| cell.text.as_str()).collect();
    assert_eq!(cells[..4], ["stateless", "batch 1.2", "2026-07-28", "1234"]);
}

#[test]
fn use14_a_jump_finds_panels_servers_and_entries() {
    for (query, panel, row) in [
        ("even", Panel::Events, "4 2026-11-16T15:00:04.250Z"),
        ("weather", Panel::Servers, "weather"),
        ("gco", Panel::Tools, "tools git_commit"),
        ("logo", Panel::Resources, "resources file:///srv/ops/project/logo.png"),
    ] {
        let mut state = at(Panel::Overview);
        state.server = Some("notes".to_owned());
        act(&mut state, Action::Jump);
        write(&mut state, query);
        state.update(UiEvent::Submit);
        assert_eq!((state.panel, selected(&state), &state.server), (panel, row, &None), "{query}");
    }
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Jump);
    write(&mut state, "zzzz");
    assert!(state.update(UiEvent::Submit).is_empty() && state.panel == Panel::Tools);
}

#[test]
fn use14_logs_show_the_server_of_the_row_or_all_events() {
    let mut state = at(Panel::Servers);
    state.select_id("git");
    act(&mut state, Action::Logs);
    let Some(Dialog::Logs(view)) = &state.dialog else { panic!("{:?}", state.dialog) };
    let sources: Vec<_> = view.lines(&state.data, state.level).into_iter().map(|line| line.source).collect();
    assert_eq!(sources, ["stderr", "info", "warn", "stderr"]);
    assert_eq!(state.interest().logs_of.as_deref(), Some("git"));
    act(&mut state, Action::Level);
    let Some(Dialog::Logs(view)) = &state.dialog else { panic!("{:?}", state.dialog) };
    assert_eq!(view.lines(&state.data, state.level).len(), 1);
    act(&mut state, Action::Logs);
    assert_eq!(state.dialog, None);
    act(&mut state, Action::Show(Panel::Sessions));
    act(&mut state, Action::Logs);
    let Some(Dialog::Logs(view)) = &state.dialog else { panic!("{:?}", state.dialog) };
    assert_eq!((&view.server, view.lines(&state.data, Level::Debug).len()), (&None, 5));
}

#[test]
fn use14_copy_takes_the_name_the_definition_or_the_result_without_control_characters() {
    let copied = |state: &mut State| match state.update(UiEvent::Act(Action::Copy)).as_slice() {
        [Effect::Copy { text, .. }] => text.clone(),
        other => format!("{other:?}"),
    };
    for (panel, expected) in [
        (Panel::Servers, "its variable MAIL_TOKEN is not set"),
        (Panel::Tools, "files_search"),
        (Panel::Resources, "file:///srv/ops/project/README.md"),
        (Panel::Sessions, "9f3c"),
        (Panel::Events, "a list failed list=templates"),
    ] {
        assert_eq!(copied(&mut at(panel)), expected, "{panel:?}");
    }
    let mut state = at(Panel::Tools);
    act(&mut state, Action::Right);
    assert!(copied(&mut state).starts_with('{'), "the definition");
    act(&mut state, Action::Show(Panel::Resources));
    act(&mut state, Action::Read);
    state.update(UiEvent::Answered { ticket: 1, text: "a\u{1b}[2J\n\tb".to_owned(), is_error: false });
    assert_eq!(copied(&mut state), "a[2J\n\tb");
    state.update(UiEvent::Cancel);
    state.dialog = Some(Dialog::Reader(ResultDialog::report("big", &"x".repeat(70_000))));
    assert!(state.update(UiEvent::Act(Action::Copy)).is_empty());
    assert!(state.notice.is_some_and(|notice| notice.is_error));
}

#[test]
fn use14_only_an_existing_local_file_is_edited_and_a_change_is_reloaded() {
    let mut remote = at(Panel::Servers);
    assert!(remote.update(UiEvent::Act(Action::Edit)).is_empty());
    assert!(remote.notice.as_ref().is_some_and(|notice| notice.is_error));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut local = State::new(String::new(), Some(path.clone()));
    assert_eq!(local.update(UiEvent::Act(Action::Edit)), [Effect::Edit { path }]);
    assert!(local.update(UiEvent::Edited(Ok(false))).is_empty());
    assert_eq!(local.update(UiEvent::Edited(Ok(true))), [Effect::Command(GatewayCommand::Reload)]);
    local.update(UiEvent::Report { title: "no".to_owned(), text: "line 1\nline 2".to_owned() });
    assert!(matches!(&local.dialog, Some(Dialog::Reader(reader)) if reader.is_error && reader.lines.len() == 2));
    let mut gone = State::new(String::new(), Some(PathBuf::from("/nowhere/goblin.json")));
    assert!(gone.update(UiEvent::Act(Action::Edit)).is_empty());
}

#[test]
fn use14_a_confirmation_names_the_open_calls() {
    for (row, action, expected) in [
        ("git", Action::Restart, "Restart git? Its 3 open calls fail."),
        ("files", Action::Restart, "Restart files? It has no open calls."),
        ("git", Action::Toggle, "Disable git? Clients lose its tools and resources. Its 3 open calls fail."),
    ] {
        let mut state = at(Panel::Servers);
        state.select_id(row);
        act(&mut state, action);
        assert!(
            matches!(&state.dialog, Some(Dialog::Confirm { question, .. }) if question == expected),
            "{:?}",
            state.dialog
        );
    }
}
