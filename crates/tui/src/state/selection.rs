//! The rows of the panel, the selected one, and the positions that keys and the mouse move.

use crate::state::detail::Detail;
use crate::state::message::{Measures, Panel, PointerArea};
use crate::state::table::{self, Row, Sort, TableInput};
use crate::state::{Pane, State, scroll};

/// The number of rows that one step of the mouse wheel moves.
const WHEEL_ROWS: isize = 3;

/// The selection of a panel. It follows its row by id when other rows change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowSelection {
    pub(super) id: String,
    at: usize,
}

impl State {
    /// Sorts by the next column. After the last column the order is the gateway's.
    pub(super) fn sort(&mut self) {
        let count = self.sections.iter().map(|section| section.columns.len()).max().unwrap_or(0);
        let sort = &mut self.sorts[self.panel.number()];
        sort.column = match sort.column {
            None => Some(0),
            Some(column) => Some(column + 1).filter(|column| *column < count),
        };
        self.rebuild_list();
    }

    pub(super) fn reverse(&mut self) {
        let sort = &mut self.sorts[self.panel.number()];
        sort.is_reversed = !sort.is_reversed;
        self.rebuild_list();
    }

    pub fn sorted(&self) -> Sort {
        self.sorts[self.panel.number()]
    }

    /// Reports whether the selection moves to each new row: the newest row is selected and its details are closed.
    pub fn follows_newest(&self) -> bool {
        matches!(self.panel, Panel::Events | Panel::Calls)
            && self.selected() == 0
            && self.pane.is_none()
            && self.sorted() == Sort::default()
    }

    /// Rebuilds the rows of the panel. The selection stays on its row.
    pub(super) fn rebuild_list(&mut self) {
        let input = TableInput {
            data: &self.data,
            rates: &self.rates,
            watched: &self.watched,
            server: self.server.as_deref(),
            query: &self.query,
            failed_only: self.failed_only,
            level: self.level,
            sort: self.sorted(),
        };
        self.sections = table::sections(self.panel, &input);
        let cursor = &self.cursors[self.panel.number()];
        let found = self.rows().position(|row| row.id == cursor.id).filter(|_| !self.follows_newest());
        self.select(found.unwrap_or(cursor.at));
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    pub(super) fn select(&mut self, at: usize) {
        let at = at.min(self.rows().count().saturating_sub(1));
        let id = self.rows().nth(at).map(|row| row.id.clone()).unwrap_or_default();
        let cursor = &mut self.cursors[self.panel.number()];
        let has_moved = cursor.id != id;
        *cursor = RowSelection { id, at };
        if let Some(pane) = &mut self.pane
            && has_moved
        {
            pane.scroll = 0;
        }
    }

    /// Selects the row with this id, if the panel shows it.
    pub(super) fn select_id(&mut self, id: &str) {
        let found = self.rows().position(|row| row.id == id);
        if let Some(at) = found {
            self.select(at);
        }
    }

    /// Returns the index of the selected row, counted through all sections.
    pub fn selected(&self) -> usize {
        self.cursors[self.panel.number()].at
    }

    pub fn row(&self) -> Option<&Row> {
        self.rows().nth(self.selected())
    }

    pub fn detail(&self) -> Option<Detail> {
        Detail::of(self.row()?.what, &self.data)
    }

    pub(super) fn select_at(&mut self, section: usize, row: usize) {
        let is_covered = self.dialog.is_some() || self.help.is_some();
        if !is_covered && self.sections.get(section).is_some_and(|section| row < section.rows.len()) {
            let before: usize = self.sections[..section].iter().map(|section| section.rows.len()).sum();
            self.select(before + row);
        }
    }

    pub(super) fn half_page(&self) -> isize {
        (self.measures.rows / 2).max(1).cast_signed()
    }

    /// Moves the selection, or scrolls the side panel if that has the focus.
    pub(super) fn step(&mut self, by: isize) {
        match &mut self.pane {
            Some(pane) if pane.is_focused => scroll(&mut pane.scroll, by, self.measures.details),
            _ => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    pub(super) fn wheel(&mut self, place: PointerArea, is_down: bool) {
        let by = if is_down { WHEEL_ROWS } else { -WHEEL_ROWS };
        if let Some(position) = &mut self.help {
            return scroll(position, by, self.measures.help);
        }
        match (&mut self.dialog, &mut self.pane, place) {
            (Some(dialog), _, _) => dialog.scroll(by, self.measures.dialog),
            (None, Some(pane), PointerArea::Details) => scroll(&mut pane.scroll, by, self.measures.details),
            _ => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    pub(super) fn measure(&mut self, measures: Measures) {
        self.measures = measures;
        if let Some(pane) = &mut self.pane {
            scroll(&mut pane.scroll, 0, measures.details);
        }
        if let Some(dialog) = &mut self.dialog {
            dialog.scroll(0, measures.dialog);
        }
        if let Some(position) = &mut self.help {
            scroll(position, 0, measures.help);
        }
    }

    pub(super) fn focus_details(&mut self, is_focused: bool) {
        if is_focused && self.pane.is_none() && self.row().is_some() {
            self.pane = Some(Pane::default());
        }
        if let Some(pane) = &mut self.pane {
            pane.is_focused = is_focused;
        }
    }
}
