//! Turns key and mouse events into messages. [`KEYS`] is the only list of keys: the help and the manual are generated
//! from it.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use crate::state::dialog::Dialog;
use crate::state::{Action, Panel, PointerArea, State, UiEvent};
use crate::view::FrameLayout;

/// A key binding of the panels.
pub struct Binding {
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

const fn bind(shown: &'static str, keys: &'static [KeyChord], action: Action, help: &'static str) -> Binding {
    Binding { shown, keys, action, help }
}

pub const KEYS: [Binding; 25] = [
    bind("q, Ctrl-C", &[letter('q'), control('c')], Action::Quit, "quit"),
    bind("?", &[letter('?'), key(KeyCode::F(1))], Action::Help, "this help"),
    bind("Tab", &[key(KeyCode::Tab)], Action::NextPanel, "the next panel"),
    bind("Shift-Tab", &[key(KeyCode::BackTab)], Action::PreviousPanel, "the previous panel"),
    bind("j, ↓", &[letter('j'), key(KeyCode::Down)], Action::Down, "down"),
    bind("k, ↑", &[letter('k'), key(KeyCode::Up)], Action::Up, "up"),
    bind("Ctrl-D, PgDn", &[control('d'), key(KeyCode::PageDown)], Action::HalfDown, "half a page down"),
    bind("Ctrl-U, PgUp", &[control('u'), key(KeyCode::PageUp)], Action::HalfUp, "half a page up"),
    bind("g, Home", &[letter('g'), key(KeyCode::Home)], Action::First, "to the first"),
    bind("G, End", &[letter('G'), key(KeyCode::End)], Action::Last, "to the last"),
    bind("Enter", &[key(KeyCode::Enter)], Action::Open, "show details beside the list"),
    bind("l, →", &[letter('l'), key(KeyCode::Right)], Action::Right, "go into the details, to scroll them"),
    bind("h, ←", &[letter('h'), key(KeyCode::Left)], Action::Left, "go back to the list"),
    bind("Esc", &[key(KeyCode::Esc)], Action::Close, "close the details, then the search, then the filter"),
    bind("/", &[letter('/')], Action::Search, "search: hide rows that do not match"),
    bind("f", &[letter('f')], Action::Filter, "show one server only"),
    bind("s", &[letter('s')], Action::Sort, "sort by the next column"),
    bind("S", &[letter('S')], Action::Reverse, "reverse the order"),
    bind("c", &[letter('c')], Action::Call, "call the selected tool"),
    bind("r", &[letter('r')], Action::Read, "read the selected resource"),
    bind("w", &[letter('w')], Action::Watch, "watch the selected resource, or stop watching"),
    bind("R", &[letter('R')], Action::Restart, "restart the selected server"),
    bind("D", &[letter('D')], Action::Toggle, "disable or enable the selected server"),
    bind("L", &[letter('L')], Action::Reload, "reload the configuration"),
    bind("1 … 8", &[], Action::Show(Panel::Overview), "go to a panel"),
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
    match &state.dialog {
        Some(Dialog::Form(_)) => while_writing(pressed),
        Some(Dialog::Confirm { .. }) => match pressed.1 {
            KeyCode::Char('y' | 'Y') => Some(UiEvent::Submit),
            _ => Some(UiEvent::Cancel),
        },
        Some(Dialog::Picker { .. } | Dialog::Help { .. } | Dialog::Reader(_)) => while_choosing(pressed),
        None if state.is_searching => while_writing(pressed),
        None => action(pressed).map(UiEvent::Act),
    }
}

fn action(pressed: KeyChord) -> Option<Action> {
    if let KeyChord(KeyModifiers::NONE, KeyCode::Char(digit @ '1'..='8')) = pressed {
        return Panel::ALL.get(digit as usize - '1' as usize).map(|panel| Action::Show(*panel));
    }
    KEYS.iter().find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.action)
}

fn while_writing(pressed: KeyChord) -> Option<UiEvent> {
    Some(match pressed {
        KeyChord(KeyModifiers::NONE, KeyCode::Char(character)) => UiEvent::Write(character),
        KeyChord(_, KeyCode::Backspace) => UiEvent::Erase,
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
        Action::Close | Action::Quit | Action::Help | Action::Filter => UiEvent::Cancel,
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
        MouseEventKind::Down(MouseButton::Left) if state.dialog.is_none() => {
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
    fn a_key_means_what_the_list_of_keys_says() {
        let state = State::new(String::new());
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
        check(KeyCode::Char('9'), KeyModifiers::NONE, "");
        check(KeyCode::BackTab, KeyModifiers::SHIFT, "Act(PreviousPanel)");
    }

    #[test]
    fn no_key_means_two_things() {
        let keys: Vec<_> = KEYS.iter().flat_map(|binding| binding.keys).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(key), "{:?}", key.1);
        }
    }

    #[test]
    fn letters_are_written_while_something_is_searched() {
        let mut state = State::new(String::new());
        state.update(UiEvent::Act(Action::Search));
        for (code, expected) in [
            (KeyCode::Char('q'), "Write('q')"),
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
        let state = State::new(String::new());
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
