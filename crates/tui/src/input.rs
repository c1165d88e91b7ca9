//! Turns key and mouse events into messages. [`KEYS`] is the only list of keys: the help and the manual are generated
//! from it.

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use crate::state::dialog::Dialog;
use crate::state::{Action, Message, Panel, Place, State};
use crate::view::Drawn;

/// A key binding of the panels.
pub struct Binding {
    /// The keys, as the help and the manual write them.
    pub shown: &'static str,
    keys: &'static [Key],
    pub action: Action,
    pub help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(KeyModifiers, KeyCode);

const fn key(code: KeyCode) -> Key {
    Key(KeyModifiers::NONE, code)
}

const fn letter(character: char) -> Key {
    key(KeyCode::Char(character))
}

const fn control(character: char) -> Key {
    Key(KeyModifiers::CONTROL, KeyCode::Char(character))
}

const fn bind(shown: &'static str, keys: &'static [Key], action: Action, help: &'static str) -> Binding {
    Binding { shown, keys, action, help }
}

pub const KEYS: [Binding; 25] = [
    bind("q, Ctrl-C", &[letter('q'), control('c')], Action::Quit, "quit"),
    bind("?", &[letter('?'), key(KeyCode::F(1))], Action::Help, "this help"),
    bind("Tab", &[key(KeyCode::Tab)], Action::NextPanel, "the next panel"),
    bind("Shift-Tab", &[key(KeyCode::BackTab)], Action::PreviousPanel, "the panel before"),
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
    bind("/", &[letter('/')], Action::Search, "search: what does not match is hidden"),
    bind("f", &[letter('f')], Action::Filter, "show one server only"),
    bind("s", &[letter('s')], Action::Sort, "sort by the next column"),
    bind("S", &[letter('S')], Action::Reverse, "turn the order around"),
    bind("c", &[letter('c')], Action::Call, "call the selected tool"),
    bind("r", &[letter('r')], Action::Read, "read the selected resource"),
    bind("w", &[letter('w')], Action::Watch, "watch the selected resource, or stop it"),
    bind("R", &[letter('R')], Action::Restart, "restart the selected server"),
    bind("D", &[letter('D')], Action::Toggle, "disable or enable the selected server"),
    bind("L", &[letter('L')], Action::Reload, "read the configuration anew"),
    bind("1 … 8", &[], Action::Show(Panel::Overview), "go to a panel"),
];

/// Returns the message for an event, or `None` if it has no meaning on the current screen.
pub fn message(event: &Event, state: &State, drawn: &Drawn) -> Option<Message> {
    match event {
        Event::Key(event) if event.kind != KeyEventKind::Release => on_key(*event, state),
        Event::Mouse(event) => on_mouse(*event, state, drawn),
        _ => None,
    }
}

fn on_key(event: KeyEvent, state: &State) -> Option<Message> {
    // Terminals report letters with or without Shift, so Shift is ignored.
    let modifiers = match event.code {
        KeyCode::Char(_) | KeyCode::BackTab => event.modifiers - KeyModifiers::SHIFT,
        _ => event.modifiers,
    };
    let pressed = Key(modifiers, event.code);
    if pressed == control('c') {
        return Some(Message::Act(Action::Quit));
    }
    match &state.dialog {
        Some(Dialog::Form(_)) => while_writing(pressed),
        Some(Dialog::Confirm { .. }) => match pressed.1 {
            KeyCode::Char('y' | 'Y') => Some(Message::Submit),
            _ => Some(Message::Cancel),
        },
        Some(Dialog::Picker { .. } | Dialog::Help { .. } | Dialog::Reader(_)) => while_choosing(pressed),
        None if state.is_searching => while_writing(pressed),
        None => action(pressed).map(Message::Act),
    }
}

fn action(pressed: Key) -> Option<Action> {
    if let Key(KeyModifiers::NONE, KeyCode::Char(digit @ '1'..='8')) = pressed {
        return Panel::ALL.get(digit as usize - '1' as usize).map(|panel| Action::Show(*panel));
    }
    KEYS.iter().find(|binding| binding.keys.contains(&pressed)).map(|binding| binding.action)
}

fn while_writing(pressed: Key) -> Option<Message> {
    Some(match pressed {
        Key(KeyModifiers::NONE, KeyCode::Char(character)) => Message::Write(character),
        Key(_, KeyCode::Backspace) => Message::Erase,
        Key(_, KeyCode::Enter) => Message::Submit,
        Key(_, KeyCode::Esc) => Message::Cancel,
        Key(_, KeyCode::Tab | KeyCode::Down) => Message::Go(1),
        Key(_, KeyCode::BackTab | KeyCode::Up) => Message::Go(-1),
        Key(_, KeyCode::Right) => Message::Choose(1),
        Key(_, KeyCode::Left) => Message::Choose(-1),
        _ => return None,
    })
}

fn while_choosing(pressed: Key) -> Option<Message> {
    const PAGE: isize = 10;
    Some(match action(pressed)? {
        Action::Down => Message::Go(1),
        Action::Up => Message::Go(-1),
        Action::HalfDown => Message::Go(PAGE),
        Action::HalfUp => Message::Go(-PAGE),
        Action::First => Message::Go(isize::MIN),
        Action::Last => Message::Go(isize::MAX),
        Action::Open => Message::Submit,
        Action::Close | Action::Quit | Action::Help | Action::Filter => Message::Cancel,
        _ => return None,
    })
}

fn on_mouse(event: MouseEvent, state: &State, drawn: &Drawn) -> Option<Message> {
    let at = Position::new(event.column, event.row);
    let in_details = drawn.details.is_some_and(|area| area.contains(at));
    let place = if in_details { Place::Details } else { Place::List };
    match event.kind {
        MouseEventKind::ScrollDown => Some(Message::Wheel { place, is_down: true }),
        MouseEventKind::ScrollUp => Some(Message::Wheel { place, is_down: false }),
        MouseEventKind::Down(MouseButton::Left) if state.dialog.is_none() => {
            if let Some((_, panel)) = drawn.tabs.iter().find(|(area, _)| area.contains(at)) {
                return Some(Message::Act(Action::Show(*panel)));
            }
            let rows = drawn.rows.iter().find(|rows| rows.area.contains(at))?;
            let row = rows.first + usize::from(at.y - rows.area.y);
            Some(Message::Select { section: rows.section, row })
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

    fn means(event: &Event, state: &State, drawn: &Drawn) -> String {
        message(event, state, drawn).map_or_else(String::new, |message| format!("{message:?}"))
    }

    #[test]
    fn a_key_means_what_the_list_of_keys_says() {
        let state = State::new(String::new());
        let check = |code, modifiers, expected: &str| {
            assert_eq!(means(&press(code, modifiers), &state, &Drawn::default()), expected, "{code:?}");
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
        state.update(Message::Act(Action::Search));
        for (code, expected) in [
            (KeyCode::Char('q'), "Write('q')"),
            (KeyCode::Backspace, "Erase"),
            (KeyCode::Enter, "Submit"),
            (KeyCode::Esc, "Cancel"),
            (KeyCode::Down, "Go(1)"),
        ] {
            assert_eq!(means(&press(code, KeyModifiers::NONE), &state, &Drawn::default()), expected);
        }
        assert_eq!(means(&press(KeyCode::Char('c'), KeyModifiers::CONTROL), &state, &Drawn::default()), "Act(Quit)");
    }

    #[test]
    fn the_mouse_finds_tabs_rows_and_details() {
        let state = State::new(String::new());
        let drawn = Drawn {
            tabs: vec![(Rect::new(10, 1, 8, 1), Panel::Tools)],
            rows: vec![Rows { area: Rect::new(0, 4, 40, 10), section: 1, first: 20 }],
            details: Some(Rect::new(40, 4, 40, 10)),
            ..Drawn::default()
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
