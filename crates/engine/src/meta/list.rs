//! Lists of entries: all of them in pages, or those that match a query. Both see only what the caller sees, restricted
//! by server and MIME type.

use goblin_catalog::Cursor;
use goblin_catalog::listing::List;
use goblin_catalog::meta::MetaTool;

use crate::meta::arguments::{MetaArguments, read_cursor, write_cursor};
use crate::meta::cards::{EntrySummary, ObjectBuilder, card, text_of};
use crate::meta::{MetaCall, MetaResult};

impl MetaCall<'_> {
    /// Returns one page of all entries of a list.
    pub(crate) fn list_all(&self, list: List, arguments: &MetaArguments) -> Result<MetaResult, String> {
        let from = self.place_of(list, arguments.cursor.as_deref())?;
        let admitted: Vec<usize> =
            (0..self.catalog.count(list)).filter(|place| self.admits(list, *place, arguments)).collect();
        // The cursor is an index into all entries, so it does not depend on the requested server.
        let mut rest = admitted.iter().copied().skip_while(|place| *place < from);
        let cards: Vec<EntrySummary> =
            rest.by_ref().take(arguments.limit).map(|place| self.card(list, place)).collect();
        let cursor = |place| write_cursor(Cursor { version: self.catalog.version, list, page: place });
        let next = rest.next().map(cursor);
        Ok(ResultPage { parts: vec![(list, cards)], total: admitted.len(), next, note: arguments.note.clone() }
            .answer())
    }

    /// Returns the best matches in each of some lists.
    pub(crate) fn search(&self, lists: &[List], arguments: &MetaArguments) -> Result<MetaResult, String> {
        let (mut parts, mut total) = (Vec::new(), 0);
        for list in lists.iter().copied() {
            let admits = |place| self.admits(list, place, arguments);
            let found = self.catalog.index_of(list).search(&arguments.query, arguments.limit, admits);
            total += found.total;
            parts.push((list, found.hits.iter().map(|hit| self.card(list, hit.document)).collect()));
        }
        let none =
            || format!("nothing matches; other words may, and `{}` shows all there is", self.catalog_of(lists[0]));
        let note = if total == 0 { Some(none()) } else { None };
        let notes: Vec<String> = arguments.note.clone().into_iter().chain(note).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(ResultPage { parts, total, next: None, note }.answer())
    }

    /// Returns the name of the tool that lists all entries of a list.
    fn catalog_of(&self, list: List) -> String {
        self.catalog.meta.name(match list {
            List::Tools => MetaTool::CatalogTools,
            List::Prompts => MetaTool::CatalogPrompts,
            List::Resources => MetaTool::CatalogResources,
            List::Templates => MetaTool::CatalogTemplates,
        })
    }

    fn admits(&self, list: List, place: usize, arguments: &MetaArguments) -> bool {
        let shown = self.catalog.entry(list, place);
        let fits = |wanted: &str| text_of(shown.text(), "mimeType").is_some_and(|mime| is_of(&mime, wanted));
        arguments.server.as_deref().is_none_or(|server| shown.server == server)
            && arguments.mime.as_deref().is_none_or(fits)
    }

    fn card(&self, list: List, place: usize) -> EntrySummary {
        card(list, &self.catalog.entry(list, place))
    }

    /// Returns the index at which a list continues. Returns an error if the cursor belongs to another version of the
    /// catalog.
    fn place_of(&self, list: List, cursor: Option<&str>) -> Result<usize, String> {
        let Some(cursor) = cursor else { return Ok(0) };
        let known = read_cursor(cursor).filter(|cursor| cursor.list == list);
        let known =
            known.ok_or_else(|| format!("this is no cursor of `{}`: begin again without one", self.entry.name))?;
        if known.version != self.catalog.version {
            return Err("the catalog has changed since this cursor was given: begin again without one".to_owned());
        }
        Ok(known.page)
    }
}

/// The result of a list or search tool.
struct ResultPage {
    parts: Vec<(List, Vec<EntrySummary>)>,
    total: usize,
    next: Option<String>,
    note: Option<String>,
}

impl ResultPage {
    fn answer(self) -> MetaResult {
        let mut members = ObjectBuilder::default();
        for (list, cards) in &self.parts {
            let cards: Vec<_> = cards.iter().map(|card| card.json.as_str()).collect();
            members.raw(member(*list), Some(&format!("[{}]", cards.join(","))));
        }
        members.raw("total", Some(&self.total.to_string()));
        members.string("nextCursor", self.next.as_deref());
        members.string("note", self.note.as_deref());
        MetaResult { structured: members.object(), text: self.text() }
    }

    fn text(&self) -> String {
        let cards = self.parts.iter().flat_map(|(_, cards)| cards);
        let mut lines: Vec<String> = cards.map(|card| card.line.clone()).collect();
        let shown = lines.len();
        if let Some(next) = &self.next {
            lines.push(format!("[{shown} of {}; nextCursor: {next}]", self.total));
        } else if shown < self.total || shown == 0 {
            lines.push(format!("[{shown} of {}]", self.total));
        }
        lines.extend(self.note.iter().map(|note| format!("[{note}]")));
        lines.join("\n")
    }
}

/// Returns the name of the member that holds the entries of a list.
pub(crate) fn member(list: List) -> &'static str {
    match list {
        List::Tools => "tools",
        List::Prompts => "prompts",
        List::Resources => "resources",
        List::Templates => "templates",
    }
}

/// Reports whether a MIME type equals `wanted` or belongs to its category (`text/*`). Ignores parameters and case.
fn is_of(mime: &str, wanted: &str) -> bool {
    let bare = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (mime, wanted) = (bare(mime), bare(wanted));
    match wanted.strip_suffix("/*") {
        Some("*") => true,
        Some(kind) => mime.split_once('/').is_some_and(|(own, _)| own == kind),
        None => mime == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta3_mime_types_are_compared_without_parameters_and_by_kind() {
        for (mime, wanted, expected) in [
            ("text/plain", "text/plain", true),
            ("text/plain; charset=utf-8", "text/plain", true),
            ("text/plain", "Text/Plain;charset=ascii", true),
            ("text/markdown", "text/*", true),
            ("image/png", "text/*", false),
            ("text", "text/*", false),
            ("textual/plain", "text/*", false),
            ("image/png", "*/*", true),
            ("image/png", "image", false),
            ("text/plain", "", false),
        ] {
            assert_eq!(is_of(mime, wanted), expected, "{mime} {wanted}");
        }
    }
}
