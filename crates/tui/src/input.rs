//! Turns key and mouse events into messages. [`KEYS`] is the only list of keys: the help and the manual are generated
//! from it.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use crate::state::State;
use crate::state::dialog::Dialog;
use crate::state::message::{Action, Panel, PointerArea, UiEvent};
use crate::view::FrameLayout;

/// A key binding of the panels.
pub struct Binding {
    /// The panels in which the key works, as a heading of the help.
    pub group: &'static str,
    /// The keys, as the help and the manual write them.
    pub shown: &'static str,
    keys: &'static [KeyChord],
    pub action: Action,
    pub help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyChord(KeyModifiers, KeyCode);

const fn key(code: KeyCode) -> KeyChord {
    KeyChord(KeyModifiers::NONE, code)
}

const fn letter(character: char) -> KeyChord {
    key(KeyCode::Char(character))
}

const fn control(character: char) -> KeyChord {
    KeyChord(KeyModifiers::CONTROL, KeyCode::Char(character))
}

const fn bind(
    group: &'static str,
    shown: &'static str,
    keys: &'static [KeyChord],
    action: Action,
    help: &'static str,
) -> Binding {
    Binding { group, shown, keys, action, help }
}

const EVERYWHERE: &str = "Everywhere";
const LISTS: &str = "Lists";
const DETAILS: &str = "Details";
const SERVERS: &str = "Overview, Servers";
const ENTRIES: &str = "Tools, Prompts, Resources";
const HISTORY: &str = "Calls, Events";

pub const KEYS: [Binding; 33] = [
    bind(EVERYWHERE, "q, Ctrl-C", &[letter('q'), control('c')], Action::Quit, "quit; in a dialog q closes it"),
    bind(EVERYWHERE, "?, F1", &[letter('?'), key(KeyCode::F(1))], Action::Help, "this help; F1 while you type"),
    bind(EVERYWHERE, "1 … 9", &[], Action::Show(Panel::Overview), "go to a panel"),
    bind(EVERYWHERE, "Tab", &[key(KeyCode::Tab)], Action::NextPanel, "the next panel"),
    bind(EVERYWHERE, "Shift-Tab", &[key(KeyCode::BackTab)], Action::PreviousPanel, "the previous panel"),
    bind(EVERYWHERE, ":", &[letter(':')], Action::Jump, "jump to a panel, server, tool, prompt or resource by name"),
    bind(EVERYWHERE, "l", &[letter('l')], Action::Logs, "log of the row's server with its stderr, or of the gateway"),
    bind(
        EVERYWHERE,
        "y",
        &[letter('y')],
        Action::Copy,
        "copy the name, URI or error; in details or a result all of it",
    ),
    bind(EVERYWHERE, "e", &[letter('e')], Action::Edit, "edit the configuration in $VISUAL or $EDITOR, then reload"),
    bind(EVERYWHERE, "L", &[letter('L')], Action::Reload, "reload the configuration"),
    bind(LISTS, "j, ↓", &[letter('j'), key(KeyCode::Down)], Action::Down, "down"),
    bind(LISTS, "k, ↑", &[letter('k'), key(KeyCode::Up)], Action::Up, "up"),
    bind(LISTS, "Ctrl-D, PgDn", &[control('d'), key(KeyCode::PageDown)], Action::HalfDown, "half a page down"),
    bind(LISTS, "Ctrl-U, PgUp", &[control('u'), key(KeyCode::PageUp)], Action::HalfUp, "half a page up"),
    bind(
        LISTS,
        "g, Home",
        &[letter('g'), key(KeyCode::Home)],
        Action::First,
        "to the first; new calls and events are followed",
    ),
    bind(LISTS, "G, End", &[letter('G'), key(KeyCode::End)], Action::Last, "to the last"),
    bind(LISTS, "/", &[letter('/')], Action::Search, "search: hide rows that do not match"),
    bind(LISTS, "f", &[letter('f')], Action::Filter, "show one server only"),
    bind(LISTS, "s", &[letter('s')], Action::Sort, "sort by the next column"),
    bind(LISTS, "S", &[letter('S')], Action::Reverse, "reverse the order"),
    bind(DETAILS, "Enter", &[key(KeyCode::Enter)], Action::Open, "show details beside the list; again: go into them"),
    bind(DETAILS, "→", &[key(KeyCode::Right)], Action::Right, "go into the details, to scroll and copy them"),
    bind(DETAILS, "←, h", &[key(KeyCode::Left), letter('h')], Action::Left, "go back to the list"),
    bind(
        DETAILS,
        "Esc",
        &[key(KeyCode::Esc)],
        Action::Close,
        "leave the details, close them, then the search, then the filter",
    ),
    bind(SERVERS, "R", &[letter('R')], Action::Restart, "restart the selected server"),
    bind(SERVERS, "D", &[letter('D')], Action::Toggle, "disable or enable the selected server"),
    bind(SERVERS, "i", &[letter('i')], Action::LogIn, "log in to the selected server with a browser"),
    bind(SERVERS, "o", &[letter('o')], Action::LogOut, "log out of the selected server"),
    bind(ENTRIES, "c", &[letter('c')], Action::Call, "call the selected tool, or get the selected prompt"),
    bind(ENTRIES, "r", &[letter('r')], Action::Read, "read the selected resource or template"),
    bind(ENTRIES, "w", &[letter('w')], Action::Watch, "watch the selected resource, or stop watching"),
    bind(HISTORY, "F", &[letter('F')], Action::FailedOnly, "show failed calls only, or all calls"),
    bind(HISTORY, "v", &[letter('v')], Action::Level, "show events from the next level on: info, warn, error, all"),
];

/// Returns the message for an event, or `None` if it has no meaning on the current screen.
pub fn message(event: &Event, state: &State, drawn: &FrameLayout) -> Option<UiEvent> {
    match event {
        Event::Key(event) if event.kind != KeyEventKind::Release => on_key(*event, state),
        Event::Mouse(event) => on_mouse(*event, state, drawn),
        _ => None,
    }
}

fn on_key(event: KeyEvent, state: &State) -> Option<UiEvent> {
    // Terminals report letters with or without Shift, so Shift is ignored.
    let modifiers = match event.code {
        KeyCode::Char(_) | KeyCode::BackTab => event.modifiers - KeyModifiers::SHIFT,
        _ => event.modifiers,
    };
    let pressed = KeyChord(modifiers, event.code);
    if pressed == control('c') {
        return Some(UiEvent::Act(Action::Quit));
    }
    if state.help.is_some() {
        return while_choosing(pressed);
    }
    if pressed == key(KeyCode::F(1)) {
        return Some(UiEvent::Act(Action::Help));
    }
    match &state.dialog {
        Some(Dialog::Login(_)) if pressed == control('y') => Some(UiEvent::Act(Action::Copy)),
        Some(Dialog::Form(_) | Dialog::Jump(_) | Dialog::Login(_)) => while_writing(pressed),
        Some(Dialog::Confirm { .. }) => match pressed.1 {
            KeyCode::Char('y' | 'Y') => Some(UiEvent::Submit),
            KeyCode::Char('?') => Some(UiEvent::Act(Action::Help)),
            _ => Some(UiEvent::Cancel),
        },
        Some(Dialog::Logs(_)) if matches!(action(pressed), Some(Action::Logs | Action::Level)) => {
            action(pressed).map(UiEvent::Act)
        }
        Some(Dialog::Picker { .. } | Dialog::Reader(_) | Dialog::Logs(_)) if pressed == letter('?') => {
            Some(UiEvent::Act(Action::Help))
        }
        Some(Dialog::Picker { .. } | Dialog::Reader(_) | Dialog::Logs(_)) => while_choosing(pressed),
        None if state.is_searching => while_writing(pressed),
        None => action(pressed).map(UiEvent::Act),
    }
}

fn action(pressed: KeyChord) -> Option<Action> {
    if let KeyChord(KeyModifiers::NONE, KeyCode::Char(digit @ '1'..='9')) = pressed {
        return Panel::ALL.get(digit as usize - '1' as usize).map(|panel| Action::Show(*panel));
    }
    KEYS.iter().find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.action)
}

fn while_writing(pressed: KeyChord) -> Option<UiEvent> {
    Some(match pressed {
        KeyChord(KeyModifiers::NONE, KeyCode::Char(character)) => UiEvent::Write(character),
        KeyChord(_, KeyCode::Backspace) | KeyChord(KeyModifiers::CONTROL, KeyCode::Char('h')) => UiEvent::Erase,
        KeyChord(_, KeyCode::Enter) => UiEvent::Submit,
        KeyChord(_, KeyCode::Esc) => UiEvent::Cancel,
        KeyChord(_, KeyCode::Tab | KeyCode::Down) => UiEvent::Go(1),
        KeyChord(_, KeyCode::BackTab | KeyCode::Up) => UiEvent::Go(-1),
        KeyChord(_, KeyCode::Right) => UiEvent::Choose(1),
        KeyChord(_, KeyCode::Left) => UiEvent::Choose(-1),
        _ => return None,
    })
}

fn while_choosing(pressed: KeyChord) -> Option<UiEvent> {
    const PAGE: isize = 10;
    Some(match action(pressed)? {
        Action::Down => UiEvent::Go(1),
        Action::Up => UiEvent::Go(-1),
        Action::HalfDown => UiEvent::Go(PAGE),
        Action::HalfUp => UiEvent::Go(-PAGE),
        Action::First => UiEvent::Go(isize::MIN),
        Action::Last => UiEvent::Go(isize::MAX),
        Action::Open => UiEvent::Submit,
        Action::Close | Action::Quit | Action::Help | Action::Filter | Action::Left => UiEvent::Cancel,
        Action::Copy => UiEvent::Act(Action::Copy),
        _ => return None,
    })
}

fn on_mouse(event: MouseEvent, state: &State, drawn: &FrameLayout) -> Option<UiEvent> {
    let at = Position::new(event.column, event.row);
    let in_details = drawn.details.is_some_and(|area| area.contains(at));
    let place = if in_details { PointerArea::Details } else { PointerArea::List };
    match event.kind {
        MouseEventKind::ScrollDown => Some(UiEvent::Wheel { place, is_down: true }),
        MouseEventKind::ScrollUp => Some(UiEvent::Wheel { place, is_down: false }),
        MouseEventKind::Down(MouseButton::Left) if state.dialog.is_none() && state.help.is_none() => {
            if let Some((_, panel)) = drawn.tabs.iter().find(|(area, _)| area.contains(at)) {
                return Some(UiEvent::Act(Action::Show(*panel)));
            }
            let rows = drawn.rows.iter().find(|rows| rows.area.contains(at))?;
            let row = rows.first + usize::from(at.y - rows.area.y);
            Some(UiEvent::Select { section: rows.section, row })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;

    use super::*;
    use crate::view::Rows;

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    fn means(event: &Event, state: &State, drawn: &FrameLayout) -> String {
        message(event, state, drawn).map_or_else(String::new, |message| format!("{message:?}"))
    }

    #[test]
    fn a_key_triggers_its_listed_action() {
        let state = State::new(String::new(), None);
        let check = |code, modifiers, expected: &str| {
            assert_eq!(means(&press(code, modifiers), &state, &FrameLayout::default()), expected, "{code:?}");
        };
        check(KeyCode::Char('j'), KeyModifiers::NONE, "Act(Down)");
        check(KeyCode::Char('G'), KeyModifiers::SHIFT, "Act(Last)");
        check(KeyCode::Char('S'), KeyModifiers::NONE, "Act(Reverse)");
        check(KeyCode::Char('d'), KeyModifiers::CONTROL, "Act(HalfDown)");
        check(KeyCode::Char('c'), KeyModifiers::CONTROL, "Act(Quit)");
        check(KeyCode::Char('c'), KeyModifiers::NONE, "Act(Call)");
        check(KeyCode::Char('5'), KeyModifiers::NONE, "Act(Show(Resources))");
        check(KeyCode::Char('9'), KeyModifiers::NONE, "Act(Show(Events))");
        check(KeyCode::Char('0'), KeyModifiers::NONE, "");
        check(KeyCode::Char('l'), KeyModifiers::NONE, "Act(Logs)");
        check(KeyCode::Char(':'), KeyModifiers::SHIFT, "Act(Jump)");
        check(KeyCode::BackTab, KeyModifiers::SHIFT, "Act(PreviousPanel)");
    }

    #[test]
    fn no_key_has_two_actions() {
        let keys: Vec<_> = KEYS.iter().flat_map(|binding| binding.keys).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(key), "{:?}", key.1);
        }
    }

    #[test]
    fn a_log_has_keys_for_its_level_and_for_copying() {
        let mut state = State::new(String::new(), None);
        state.update(UiEvent::Act(Action::Logs));
        for (code, expected) in [
            (KeyCode::Char('v'), "Act(Level)"),
            (KeyCode::Char('y'), "Act(Copy)"),
            (KeyCode::Char('l'), "Act(Logs)"),
            (KeyCode::Char('q'), "Cancel"),
            (KeyCode::Char('?'), "Act(Help)"),
            (KeyCode::Char('G'), "Go(9223372036854775807)"),
            (KeyCode::Char('R'), ""),
        ] {
            assert_eq!(means(&press(code, KeyModifiers::NONE), &state, &FrameLayout::default()), expected, "{code:?}");
        }
    }

    #[test]
    fn oauth2_letters_are_part_of_a_pasted_address_during_a_login() {
        let mut state = crate::example::state();
        crate::example::act(&mut state, Action::Show(Panel::Servers));
        state.update(UiEvent::Act(Action::LogIn));
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), KeyModifiers::NONE, "Write('q')"),
            (KeyCode::Char('y'), KeyModifiers::CONTROL, "Act(Copy)"),
            (KeyCode::Enter, KeyModifiers::NONE, "Submit"),
            (KeyCode::Esc, KeyModifiers::NONE, "Cancel"),
            (KeyCode::F(1), KeyModifiers::NONE, "Act(Help)"),
            (KeyCode::Down, KeyModifiers::NONE, "Go(1)"),
        ] {
            assert_eq!(means(&press(code, modifiers), &state, &FrameLayout::default()), expected, "{code:?}");
        }
    }

    #[test]
    fn letters_are_written_to_the_query_during_a_search() {
        let mut state = State::new(String::new(), None);
        state.update(UiEvent::Act(Action::Search));
        for (code, expected) in [
            (KeyCode::Char('q'), "Write('q')"),
            (KeyCode::Char('?'), "Write('?')"),
            (KeyCode::F(1), "Act(Help)"),
            (KeyCode::Backspace, "Erase"),
            (KeyCode::Enter, "Submit"),
            (KeyCode::Esc, "Cancel"),
            (KeyCode::Down, "Go(1)"),
        ] {
            assert_eq!(means(&press(code, KeyModifiers::NONE), &state, &FrameLayout::default()), expected);
        }
        assert_eq!(
            means(&press(KeyCode::Char('c'), KeyModifiers::CONTROL), &state, &FrameLayout::default()),
            "Act(Quit)"
        );
    }

    #[test]
    fn the_mouse_finds_tabs_rows_and_details() {
        let state = State::new(String::new(), None);
        let drawn = FrameLayout {
            tabs: vec![(Rect::new(10, 1, 8, 1), Panel::Tools)],
            rows: vec![Rows { area: Rect::new(0, 4, 40, 10), section: 1, first: 20 }],
            details: Some(Rect::new(40, 4, 40, 10)),
            ..FrameLayout::default()
        };
        let check = |kind, column, row, expected: &str| {
            let event = Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
            assert_eq!(means(&event, &state, &drawn), expected, "{kind:?} {column} {row}");
        };
        let click = MouseEventKind::Down(MouseButton::Left);
        check(click, 12, 1, "Act(Show(Tools))");
        check(click, 5, 6, "Select { section: 1, row: 22 }");
        check(click, 50, 6, "");
        check(MouseEventKind::ScrollDown, 50, 6, "Wheel { place: Details, is_down: true }");
        check(MouseEventKind::ScrollUp, 5, 6, "Wheel { place: List, is_down: false }");
    }
}
