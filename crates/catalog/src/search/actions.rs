//! The kind of action that a tool performs, derived from the verb in its name, and the kind that a query requests.
//!
//! A query for a list should not find a tool that deletes the list, even if all other words match. A document
//! with a different kind of action loses a part of its score. The loss grows with the distance between the two kinds:
//! changing is closer to reading than destroying is. The first verb of a query in imperative form counts. A query
//! without such a verb requests a read.

use std::collections::HashMap;

use crate::search::postings::Builder;
use crate::search::query::Term;
use crate::search::words;

/// The fraction of the score that remains for each step between the two kinds of action.
const KIND_PENALTY: f32 = 0.85;

/// The kinds of action, in the order of their impact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActionKind {
    Reads,
    Changes,
    Destroys,
}

/// Returns the verbs with their kinds. Each line has the verbs of one kind behind its name, in the order of the kinds.
fn verbs() -> impl Iterator<Item = (&'static str, ActionKind)> {
    let kinds = [ActionKind::Reads, ActionKind::Changes, ActionKind::Destroys];
    let lines = include_str!("verbs.txt").lines().zip(kinds);
    lines.flat_map(|(line, kind)| line.split(' ').skip(1).map(move |verb| (verb, kind)))
}

/// The fraction of its score that a document of each kind keeps.
pub(crate) struct ActionWeights([f32; 3]);

/// The verbs of an index by concept, and the kind of action of each document.
pub(crate) struct ActionTable {
    verbs: HashMap<u32, ActionKind>,
    /// `None` if the name has no known verb. The document may then do anything.
    documents: Vec<Option<ActionKind>>,
}

impl ActionTable {
    pub(crate) fn new(builder: &mut Builder) -> ActionTable {
        ActionTable {
            verbs: verbs().map(|(word, kind)| (builder.concept(word), kind)).collect(),
            documents: Vec::new(),
        }
    }

    /// Adds the next document by its name. The first verb of the name counts, but a destroying verb counts at any
    /// position.
    pub(crate) fn add(&mut self, name: &str, builder: &mut Builder) {
        let mut found = None;
        words::each_part(name, |word| {
            let kind = self.verbs.get(&builder.concept(word)).copied();
            found = if kind == Some(ActionKind::Destroys) { kind } else { found.or(kind) };
        });
        self.documents.push(found);
    }

    /// Returns the kind of action that a query asks for. Only the words themselves count, not their synonyms.
    pub(crate) fn requested(&self, terms: &[Term]) -> ActionWeights {
        let imperatives = terms.iter().filter(|term| term.may_be_imperative).filter_map(|term| term.meanings.first());
        let requested = imperatives.filter_map(|meaning| self.verbs.get(&meaning.concept)).next().copied();
        let requested = requested.unwrap_or(ActionKind::Reads);
        let fit = |kind: ActionKind| KIND_PENALTY.powi((requested as i32 - kind as i32).abs());
        ActionWeights([fit(ActionKind::Reads), fit(ActionKind::Changes), fit(ActionKind::Destroys)])
    }

    /// Returns the fraction of its score that a document keeps.
    pub(crate) fn fit(&self, requested: &ActionWeights, document: usize) -> f32 {
        self.documents[document].map_or(1.0, |kind| requested.0[kind as usize])
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.documents.capacity() * size_of::<Option<ActionKind>>() + self.verbs.len() * size_of::<(u32, ActionKind)>()
    }
}
