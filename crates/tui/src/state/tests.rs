//! Tests of the state as tables of messages and expected values.

use super::*;
use crate::example::{act, state, write};

fn ids(state: &State) -> Vec<&str> {
    state.rows().map(|row| row.id.as_str()).collect()
}

fn at(panel: Panel) -> State {
    let mut state = state();
    act(&mut state, Action::Show(panel));
    state
}

fn selected(state: &State) -> &str {
    state.row().map_or("", |row| row.id.as_str())
}

#[test]
fn keys_walk_through_panels_and_rows() {
    let mut state = state();
    for (action, panel, row) in [
        (Action::NextPanel, Panel::Servers, "files"),
        (Action::Down, Panel::Servers, "git"),
        (Action::Last, Panel::Servers, "old"),
        (Action::Down, Panel::Servers, "old"),
        (Action::First, Panel::Servers, "files"),
        (Action::Up, Panel::Servers, "files"),
        (Action::PreviousPanel, Panel::Overview, "files"),
        (Action::PreviousPanel, Panel::Events, "4 2026-11-16T15:00:04.250Z"),
        (Action::NextPanel, Panel::Overview, "files"),
        (Action::Show(Panel::Resources), Panel::Resources, "resources file:///srv/ops/project/README.md"),
        (Action::Last, Panel::Resources, "templates file:///srv/ops/project/{path}"),
        (Action::Show(Panel::Servers), Panel::Servers, "files"),
    ] {
        act(&mut state, action);
        assert_eq!((state.panel, selected(&state)), (panel, row), "{action:?}");
    }
    state.update(UiEvent::Measured(Measures { rows: 4, ..Measures::default() }));
    act(&mut state, Action::HalfDown);
    assert_eq!(selected(&state), "weather", "half of four rows");
}

#[test]
fn the_mouse_selects_what_is_there() {
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
    assert_eq!(state.selected(), 1, "its row is gone");
    state.update(UiEvent::Items(List::Tools, Vec::new()));
    assert!(state.row().is_none());
    for action in [Action::Down, Action::Open, Action::Right, Action::Call, Action::Restart] {
        act(&mut state, action);
    }
    assert_eq!(state.pane, None);
}

#[test]
fn whoever_looks_at_the_newest_event_sees_the_next() {
    let mut state = at(Panel::Events);
    let event = |seq| EventInfo { seq, ..EventInfo::default() };
    state.update(UiEvent::Event(event(5)));
    assert_eq!(selected(&state), "5 ");
    act(&mut state, Action::Down);
    state.update(UiEvent::Event(event(6)));
    assert!(selected(&state).starts_with("4 "), "who went back stays there");
    for seq in 0..2000 {
        state.update(UiEvent::Event(event(seq)));
    }
    assert_eq!(state.data.events.len(), data::MAX_EVENTS);
}

#[test]
fn tui2_the_filter_is_picked_from_the_servers_and_taken_back() {
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
        (Panel::Sessions, 2),
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
    assert_eq!(state.dialog, Some(Dialog::Picker { at: 5 }), "the selected server");
    state.update(UiEvent::Cancel);
    assert_eq!(state.server, None);
}

#[test]
fn tui3_a_search_hides_what_does_not_match_as_it_is_written() {
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
fn tui4_details_tell_all_that_is_known() {
    let mut state = at(Panel::Resources);
    let lines = state.detail().expect("a row is selected").lines;
    for expected in [
        detail::Line::Field("URI", "file:///srv/ops/project/README.md".to_owned()),
        detail::Line::Field("MIME type", "text/markdown".to_owned()),
        detail::Line::Field("size", "4.3 kB (4321 bytes)".to_owned()),
        detail::Line::Text("What it is".to_owned()),
        detail::Line::Heading("Metadata".to_owned()),
        detail::Line::Text(r#"  "dev.goblin/id": "files_file_home_me_project_README.md""#.to_owned()),
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
fn a_tool_is_called_with_what_its_form_holds() {
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
fn a_resource_is_read_and_nobody_waits_for_what_was_closed() {
    let mut state = at(Panel::Resources);
    let uri = "file:///srv/ops/project/README.md".to_owned();
    assert_eq!(state.update(UiEvent::Act(Action::Read)), [Effect::Read { ticket: 1, uri }]);
    assert_eq!(state.update(UiEvent::Submit), [Effect::Forget { ticket: 1 }], "Enter closes it too");
    state.update(UiEvent::Answered { ticket: 1, text: "late".to_owned(), is_error: false });
    assert_eq!(state.dialog, None);
    act(&mut state, Action::Last);
    assert!(state.update(UiEvent::Act(Action::Read)).is_empty(), "a template cannot be read");
}

#[test]
fn what_is_watched_counts_its_updates() {
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
fn a_server_is_changed_only_after_a_yes() {
    for (server, action, expected) in [
        (0, Action::Restart, GatewayCommand::Server(ServerAction::Restart, "files".to_owned())),
        (1, Action::Toggle, GatewayCommand::Server(ServerAction::Disable, "git".to_owned())),
        (4, Action::Toggle, GatewayCommand::Server(ServerAction::Enable, "old".to_owned())),
    ] {
        let mut state = at(Panel::Servers);
        state.update(UiEvent::Select { section: 0, row: server });
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
fn a_gateway_that_comes_back_is_counted_anew() {
    let mut state = state();
    assert!(state.rates.total.calls > 0.0);
    state.update(UiEvent::Link(LinkStatus::Lost { reason: "gone".to_owned(), retry_in: Duration::from_secs(1) }));
    assert!(state.data.status.is_some(), "what was known stays");
    state.update(UiEvent::Link(LinkStatus::Live));
    assert_eq!((state.rates.total.calls, state.rates.history.len()), (0.0, 0));
}
