//! The styles of the dashboard, with or without colours.

use ratatui::style::{Color, Modifier, Style};

use crate::state::table::Tone;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Colour,
    /// Uses only bold, underlined and reversed text. Words and symbols carry the meaning.
    Monochrome,
}

impl Theme {
    pub fn tone(self, tone: Tone) -> Style {
        let plain = Style::new();
        match (self, tone) {
            (_, Tone::Plain) => plain,
            (_, Tone::Dim) => self.dim(),
            (Theme::Colour, Tone::Good) => plain.fg(Color::Green),
            (Theme::Colour, Tone::Warn) => plain.fg(Color::Yellow),
            (Theme::Colour, Tone::Bad) => plain.fg(Color::Red),
            (Theme::Monochrome, Tone::Good) => plain,
            (Theme::Monochrome, Tone::Warn | Tone::Bad) => plain.add_modifier(Modifier::BOLD),
        }
    }

    pub fn dim(self) -> Style {
        match self {
            Theme::Colour => Style::new().fg(Color::DarkGray),
            Theme::Monochrome => Style::new(),
        }
    }

    pub fn title(self) -> Style {
        match self {
            Theme::Colour => Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD),
            Theme::Monochrome => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of a key in the footer and the help.
    pub fn key(self) -> Style {
        match self {
            Theme::Colour => Style::new().fg(Color::Cyan),
            Theme::Monochrome => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style of a search match.
    pub fn found(self) -> Style {
        match self {
            Theme::Colour => Style::new().fg(Color::Black).bg(Color::Yellow),
            Theme::Monochrome => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
        }
    }

    pub fn error(self) -> Style {
        self.tone(Tone::Bad).add_modifier(Modifier::BOLD)
    }
}
