//! Lists of entries: all of them in pages, or those that match a query. Both see only what the caller sees, restricted
//! by server and MIME type.

use goblin_catalog::Cursor;
use goblin_catalog::indexes::VisibleEntry;
use goblin_catalog::listing::List;
use goblin_catalog::meta::MetaTool;

use crate::meta::arguments::{MetaArguments, read_cursor, write_cursor};
use crate::meta::cards::{EntrySummary, ObjectBuilder, card, text_of};
use crate::meta::{MetaCall, MetaResult};

impl MetaCall<'_> {
    /// Returns one page of all entries of a list.
    pub(crate) fn list_all(&self, list: List, arguments: &MetaArguments) -> Result<MetaResult, String> {
        let from = self.start_index(list, arguments.cursor.as_deref())?;
        let entries = self.catalog.entries(list).enumerate();
        let admitted: Vec<_> = entries.filter(|(_, entry)| admits(arguments, entry)).collect();
        // The cursor is an index into all entries, so it does not depend on the requested server.
        let mut rest = admitted.iter().skip_while(|(place, _)| *place < from);
        let cards = rest.by_ref().take(arguments.limit).map(|(_, entry)| card(list, entry)).collect();
        let cursor = |page| write_cursor(Cursor { version: self.catalog.version, list, page });
        let next = rest.next().map(|(place, _)| cursor(*place));
        Ok(page(&[(list, cards)], admitted.len(), next.as_deref(), arguments.note.as_deref()))
    }

    /// Returns the best matches in each of some lists.
    pub(crate) fn search(&self, lists: &[List], arguments: &MetaArguments) -> MetaResult {
        let (mut parts, mut total) = (Vec::new(), 0);
        for list in lists.iter().copied() {
            let is_admitted = |place| admits(arguments, &self.catalog.shown(list, place));
            let found = self.catalog.index_of(list).search(&arguments.query, arguments.limit, is_admitted);
            total += found.total;
            let cards = found.hits.iter().map(|hit| card(list, &self.catalog.shown(list, hit.document)));
            parts.push((list, cards.collect()));
        }
        let all = self.catalog.meta.name(match lists[0] {
            List::Tools => MetaTool::CatalogTools,
            List::Prompts => MetaTool::CatalogPrompts,
            List::Resources => MetaTool::CatalogResources,
            List::Templates => MetaTool::CatalogTemplates,
        });
        let none = (total == 0).then(|| format!("nothing matches; try other words, or list everything with `{all}`"));
        let notes: Vec<String> = arguments.note.clone().into_iter().chain(none).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        page(&parts, total, None, note.as_deref())
    }

    /// Returns the index at which a list continues. Returns an error if the cursor belongs to another version of the
    /// catalog.
    fn start_index(&self, list: List, cursor: Option<&str>) -> Result<usize, String> {
        let Some(cursor) = cursor else { return Ok(0) };
        let known = read_cursor(cursor).filter(|cursor| cursor.list == list);
        let known =
            known.ok_or_else(|| format!("this is not a cursor of `{}`: begin again without one", self.entry.name))?;
        if known.version != self.catalog.version {
            return Err("the catalog has changed since this cursor was given: begin again without one".to_owned());
        }
        Ok(known.page)
    }
}

/// Reports whether the arguments restrict the result to entries such as this one.
fn admits(arguments: &MetaArguments, entry: &VisibleEntry<'_>) -> bool {
    let fits = |wanted: &str| text_of(entry.definition, "mimeType").is_some_and(|mime| is_of(&mime, wanted));
    arguments.server_id.as_deref().is_none_or(|server| entry.server == server)
        && arguments.mime_type.as_deref().is_none_or(fits)
}

/// Returns the result of a list or search tool: cards by list, and the number of entries that there are in total.
fn page(parts: &[(List, Vec<EntrySummary>)], total: usize, next: Option<&str>, note: Option<&str>) -> MetaResult {
    let (mut members, mut lines) = (ObjectBuilder::default(), Vec::new());
    for (list, cards) in parts {
        let (json, text): (Vec<_>, Vec<_>) = cards.iter().map(|card| (card.json.clone(), card.line.clone())).unzip();
        members = members.array(&format!("{}s", list.noun()), &json);
        lines.extend(text);
    }
    let shown = lines.len();
    if let Some(next) = next {
        lines.push(format!("[{shown} of {total}; nextCursor: {next}]"));
    } else if shown < total || shown == 0 {
        lines.push(format!("[{shown} of {total}]"));
    }
    lines.extend(note.map(|note| format!("[{note}]")));
    let members = members.raw("total", Some(total)).string("nextCursor", next).string("note", note);
    MetaResult { structured: members.object(), text: lines.join("\n") }
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
    fn meta3_mime_types_match_without_parameters_and_with_wildcards() {
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
