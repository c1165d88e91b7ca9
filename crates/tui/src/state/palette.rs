//! The jump dialog: finds a panel, a server or an entry by a part of its name.

use goblin_admin::routes::List;
use goblin_telemetry::clean;

use crate::state::data::DashboardData;
use crate::state::message::Panel;
use crate::state::scroll;

/// The maximum number of matches.
const MAX_MATCHES: usize = 50;

/// A place to jump to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JumpTarget {
    /// The kind of the place, such as `tool`.
    pub kind: &'static str,
    pub name: String,
    pub panel: Panel,
    /// The id of the row. Empty for a panel.
    pub row: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Palette {
    pub query: String,
    /// The index of the selected match.
    pub at: usize,
    /// The best matches, best first.
    pub matches: Vec<JumpTarget>,
    targets: Vec<JumpTarget>,
}

impl Palette {
    pub fn new(data: &DashboardData) -> Palette {
        let mut targets: Vec<JumpTarget> = Vec::new();
        for panel in Panel::ALL.iter().copied() {
            targets.push(JumpTarget { kind: "panel", name: panel.as_str().to_owned(), panel, row: String::new() });
        }
        for server in data.servers() {
            let (name, row) = (clean(&server.id), server.id.clone());
            targets.push(JumpTarget { kind: "server", name, panel: Panel::Servers, row });
        }
        for list in List::ALL {
            let panel = match list {
                List::Tools => Panel::Tools,
                List::Prompts => Panel::Prompts,
                List::Resources | List::Templates => Panel::Resources,
            };
            targets.extend(data.items(list).iter().map(|item| JumpTarget {
                kind: list.noun(),
                name: clean(&item.exposed),
                panel,
                row: item.row_id(list),
            }));
        }
        let mut palette = Palette { query: String::new(), at: 0, matches: Vec::new(), targets };
        palette.search();
        palette
    }

    pub fn write(&mut self, character: char) {
        self.query.push(character);
        self.search();
    }

    pub fn erase(&mut self) {
        self.query.pop();
        self.search();
    }

    pub fn go(&mut self, by: isize) {
        scroll(&mut self.at, by, self.matches.len().saturating_sub(1));
    }

    pub fn chosen(&self) -> Option<&JumpTarget> {
        self.matches.get(self.at)
    }

    fn search(&mut self) {
        self.at = 0;
        let scored =
            self.targets.iter().enumerate().filter_map(|(at, target)| Some((score(&target.name, &self.query)?, at)));
        let mut scored: Vec<_> = scored.collect();
        // The lowest score is the best. Equal scores keep the order of the targets.
        scored.sort_unstable();
        self.matches = scored.iter().take(MAX_MATCHES).map(|(_, at)| self.targets[*at].clone()).collect();
    }
}

/// Returns the cost of a match, or `None` if the letters of `query` do not occur in this order. Spaces in the query are
/// ignored. Letters that follow each other or begin a word cost nothing.
fn score(name: &str, query: &str) -> Option<usize> {
    let fold = |text: &str| -> Vec<char> { text.chars().flat_map(char::to_lowercase).collect() };
    let (name, query) = (fold(name), fold(query));
    let query: Vec<char> = query.into_iter().filter(|character| !character.is_whitespace()).collect();
    if query.is_empty() {
        return Some(0);
    }
    let is_start = |at: usize| at == 0 || !name[at - 1].is_alphanumeric();
    // A whole match beats letters that are spread over the name.
    if let Some(at) = name.windows(query.len()).position(|window| window == query.as_slice()) {
        return Some(if is_start(at) { at.min(1) } else { 2 } + name.len() / 16);
    }
    let (mut at, mut cost) = (0, 10);
    for wanted in query {
        let gap = name[at..].iter().position(|found| *found == wanted)?;
        cost += if gap == 0 || is_start(at + gap) { 0 } else { gap };
        at += gap + 1;
    }
    Some(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use14_letters_in_order_match_and_whole_words_are_better() {
        for (name, query, matches) in [
            ("git_commit", "gco", true),
            ("git_commit", "commit", true),
            ("git_commit", "tig", false),
            ("git_commit", "", true),
            ("Größe", "GRÖ", true),
            ("a", "aa", false),
        ] {
            assert_eq!(score(name, query).is_some(), matches, "{query} in {name}");
        }
        let best = |query: &str| {
            let mut names = ["files_search", "Servers", "git_log", "search"];
            names.sort_by_key(|name| score(name, query).unwrap_or(usize::MAX));
            names[0]
        };
        assert_eq!((best("se"), best("sea"), best("gl"), best("fs")), ("Servers", "search", "git_log", "files_search"));
    }
}
