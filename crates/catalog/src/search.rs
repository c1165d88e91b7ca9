//! Search over the catalog: finds the tool that an agent needs from the agent's own words.
//!
//! An [`Index`] belongs to one snapshot of the catalog. It is built once from all entries and never changes. It
//! identifies documents by number. The caller decides which documents a client may see. Results depend on the texts
//! alone: without clock, randomness or learning, the same query has the same result on every node.
//! `docs/reference/search.md` explains the ranking and why the gateway does not use a search engine.

pub(crate) mod actions;
pub(crate) mod dictionary;
pub(crate) mod distance;
pub mod document;
pub(crate) mod postings;
pub(crate) mod query;
pub(crate) mod stem;
pub(crate) mod synonyms;
pub(crate) mod words;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use crate::search::actions::ActionTable;
use crate::search::dictionary::Dictionary;
use crate::search::distance::distance;
use crate::search::postings::{Builder, DocumentField, Posting, Postings};
use crate::search::query::{Lexicon, Meaning, Term};

/// The maximum number of bytes read from each text. The purpose of a tool is usually at the beginning of its
/// description.
const MAX_DESCRIPTION: usize = 4 << 10;
const MAX_ARGUMENT: usize = 256;
const MAX_NAME: usize = 256;

/// The bonus that ranks exact names above names with a matching prefix, and those above all other matches. No sum of
/// weights reaches it.
const NAME_STEP: f32 = 1000.0;
/// The minimum number of words in the summary, even if the first sentence is shorter.
const MIN_SUMMARY_WORDS: usize = 12;

/// The fraction of its score that a document keeps if it covers almost nothing of the query.
const MIN_COVERAGE_FACTOR: f32 = 0.2;
/// The fraction of its score that a document keeps if its name has none of the query's terms.
const MIN_NAME_FACTOR: f32 = 0.75;
/// The maximum gain in score for a document from a server that the query names.
const SERVER_BONUS: f32 = 0.5;
/// The minimum confidence for a term to count as the name of the server.
const MIN_SERVER_CONFIDENCE: f32 = 0.7;

/// The texts by which a document can be found.
#[derive(Clone, Debug, Default)]
pub struct Document<'a> {
    /// The name that clients use.
    pub name: Cow<'a, str>,
    /// The name that the server uses.
    pub native: &'a str,
    pub title: Cow<'a, str>,
    pub description: Cow<'a, str>,
    /// Names and descriptions of the arguments.
    pub arguments: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub uri: &'a str,
    pub server: &'a str,
}

pub struct Index {
    words: Dictionary,
    postings: Postings,
    /// The synonyms of each concept.
    synonyms: HashMap<u32, Vec<u32>>,
    /// The kind of action of each document.
    actions: ActionTable,
    /// The names and URIs of documents, for queries that are a name or a URI.
    names: Dictionary,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The number of the document in the input of `build`.
    pub document: usize,
    pub score: f32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchResult {
    /// The best hits first, up to the requested limit.
    pub hits: Vec<Hit>,
    /// The number of documents that matched.
    pub total: usize,
}

/// The accumulated match of one document.
#[derive(Clone, Copy, Default)]
struct DocumentScore {
    score: f32,
    /// The sum of the rarities of the terms that the document has.
    covered: f32,
    /// The number of terms in the document's name, weighted by confidence.
    named: f32,
    /// The number of terms in the id of the document's server.
    served: f32,
    /// The match of the current term. It is stored here because both are accessed together.
    current: TermMatch,
}

/// The match of a document with the current term. Only the best meaning counts, not the number of meanings.
#[derive(Clone, Copy, Default)]
struct TermMatch {
    value: f32,
    confidence: f32,
    in_name: f32,
    in_server: f32,
}

impl Index {
    pub fn build<'a>(documents: impl IntoIterator<Item = Document<'a>>) -> Index {
        let mut builder = Builder::default();
        let mut actions = ActionTable::new(&mut builder);
        let mut names = Vec::new();
        for (number, document) in (0..).zip(documents) {
            read(&document, &mut builder);
            let name = if document.native.is_empty() { &*document.name } else { document.native };
            actions.add(words::cut(name, MAX_NAME), &mut builder);
            let keys =
                [&*document.name, document.native, document.uri].map(|name| words::key(words::cut(name, MAX_NAME)));
            names.extend(keys.into_iter().filter(|key| !key.is_empty()).map(|key| (key.into_boxed_str(), number)));
        }
        let mut synonyms: HashMap<u32, Vec<u32>> = HashMap::new();
        for group in synonyms::groups() {
            let concepts: Vec<u32> = group.iter().map(|word| builder.concept(word)).collect();
            for concept in &concepts {
                let others = concepts.iter().filter(|other| *other != concept);
                synonyms.entry(*concept).or_default().extend(others);
            }
        }
        let (words, postings) = builder.build();
        Index { words: Dictionary::build(words), postings, synonyms, actions, names: Dictionary::build(names) }
    }

    /// Returns the documents that match `query` and that `admits` accepts, best first. Ties are in document order. A
    /// query without words matches all documents, in document order.
    pub fn search(&self, query: &str, limit: usize, admits: impl Fn(usize) -> bool) -> SearchResult {
        let query = query::cut(query);
        let key = words::key(query);
        if key.is_empty() {
            let all: Vec<_> = (0..self.postings.documents()).filter(|document| admits(*document)).collect();
            let hits = all.iter().take(limit).map(|document| Hit { document: *document, score: 0.0 });
            return SearchResult { hits: hits.collect(), total: all.len() };
        }
        let lexicon = Lexicon { words: &self.words, postings: &self.postings, synonyms: &self.synonyms };
        let terms = lexicon.terms(query);
        let mut scores = self.score_terms(&terms);
        let requested = self.actions.requested(&terms);
        let all = terms.iter().map(|term| term.rarity).sum::<f32>().max(f32::MIN_POSITIVE);
        let score = |document: usize, document_score: &DocumentScore| {
            let share = |part: f32, length: u16| (part / f32::from(length.max(1))).min(1.0);
            let named = share(document_score.named, self.postings.name_length(document));
            let served = share(document_score.served, self.postings.server_length(document));
            let fit = at_least(MIN_COVERAGE_FACTOR, document_score.covered / all) * at_least(MIN_NAME_FACTOR, named);
            document_score.score * fit * (1.0 + SERVER_BONUS * served) * self.actions.fit(&requested, document)
        };
        let mut best = TopHits::new(limit);
        for (document, bonus) in self.name_bonuses(&key) {
            // The empty score excludes the document from the loop below.
            let document_score = std::mem::take(&mut scores[document]);
            if admits(document) {
                best.offer(Hit { document, score: bonus + score(document, &document_score) });
            }
        }
        for (document, document_score) in scores.iter().enumerate() {
            if document_score.score == 0.0 || !admits(document) {
                continue;
            }
            // Most documents cannot reach the current hits even with the maximum gain. Count them without computing
            // their score.
            match document_score.score * (1.0 + SERVER_BONUS) < best.minimum {
                true => best.total += 1,
                false => best.offer(Hit { document, score: score(document, document_score) }),
            }
        }
        best.finish()
    }

    /// Returns the documents with a name or URI that equals the query or begins with it, and their bonus.
    fn name_bonuses(&self, key: &str) -> HashMap<usize, f32> {
        let mut bonuses = HashMap::new();
        for (name, document) in self.names.starting_with(key) {
            let bonus = bonuses.entry(document as usize).or_insert(0.0);
            *bonus = f32::max(*bonus, if name.len() == key.len() { 2.0 * NAME_STEP } else { NAME_STEP });
        }
        bonuses
    }

    /// Returns the size of the index in bytes, without allocator overhead.
    pub fn size(&self) -> usize {
        let synonyms = self.synonyms.values().map(|others| size_of::<(u32, Vec<u32>)>() + size_of_val(&**others));
        self.words.size() + self.names.size() + self.postings.size() + self.actions.size() + synonyms.sum::<usize>()
    }

    /// Matches all documents with all terms.
    fn score_terms(&self, terms: &[Term]) -> Vec<DocumentScore> {
        let mut scores = vec![DocumentScore::default(); self.postings.documents()];
        let mut touched = Vec::new();
        for term in terms {
            let weight =
                |meaning: &Meaning| meaning.confidence * self.postings.rarity(meaning.concept).min(term.rarity);
            if let [only] = &term.meanings[..] {
                let weight = weight(only);
                for posting in self.postings.of(only.concept) {
                    scores[posting.document()].add(term, TermMatch::of(*posting, only.confidence, weight));
                }
                continue;
            }
            for meaning in &term.meanings {
                let weight = weight(meaning);
                for posting in self.postings.of(meaning.concept) {
                    let current = &mut scores[posting.document()].current;
                    if current.value == 0.0 {
                        touched.push(posting.document());
                    }
                    current.improve(TermMatch::of(*posting, meaning.confidence, weight));
                }
            }
            for document in touched.drain(..) {
                let document_score = &mut scores[document];
                let found = std::mem::take(&mut document_score.current);
                document_score.add(term, found);
            }
        }
        scores
    }
}

impl DocumentScore {
    fn add(&mut self, term: &Term, found: TermMatch) {
        self.score += found.value;
        self.covered += found.confidence * term.rarity;
        self.named += found.in_name;
        self.served += if found.in_server >= MIN_SERVER_CONFIDENCE { 1.0 } else { 0.0 };
    }
}

impl TermMatch {
    fn of(posting: Posting, confidence: f32, weight: f32) -> TermMatch {
        let confidence_if = |is_present: bool| if is_present { confidence } else { 0.0 };
        let (in_name, in_server) = (confidence_if(posting.is_in_name()), confidence_if(posting.is_in_server()));
        TermMatch { value: weight * posting.weight, confidence, in_name, in_server }
    }

    fn improve(&mut self, other: TermMatch) {
        if other.value > self.value {
            (self.value, self.confidence) = (other.value, other.confidence);
        }
        self.in_name = self.in_name.max(other.in_name);
        self.in_server = self.in_server.max(other.in_server);
    }
}

/// Scales `share` from 0..1 to `minimum`..1.
fn at_least(minimum: f32, share: f32) -> f32 {
    minimum + (1.0 - minimum) * share
}

/// The best hits so far.
struct TopHits {
    hits: Vec<Hit>,
    limit: usize,
    total: usize,
    /// The lowest score that can still become a hit.
    minimum: f32,
}

impl TopHits {
    fn new(limit: usize) -> TopHits {
        TopHits { hits: Vec::new(), limit, total: 0, minimum: 0.0 }
    }

    fn offer(&mut self, hit: Hit) {
        self.total += 1;
        if hit.score < self.minimum {
            return;
        }
        self.hits.push(hit);
        // Sort only after many hits have accumulated, which keeps the cost per hit low.
        if self.hits.len() > 2 * self.limit.max(8) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let order = |one: &Hit, other: &Hit| other.score.total_cmp(&one.score).then(one.document.cmp(&other.document));
        self.hits.sort_unstable_by(order);
        self.hits.truncate(self.limit);
        if self.hits.len() == self.limit {
            self.minimum = self.hits.last().map_or(f32::INFINITY, |last| last.score);
        }
    }

    fn finish(mut self) -> SearchResult {
        self.cut();
        SearchResult { hits: self.hits, total: self.total }
    }
}

/// Passes the words of a document to the builder.
fn read(document: &Document<'_>, builder: &mut Builder) {
    let description = words::cut(&document.description, MAX_DESCRIPTION);
    let (summary, rest) = description.split_at(end_of_summary(description));
    read_names(document, builder);
    let mut read = |text: &str, field| {
        let each = |word: &str| {
            if !words::is_stop_word(word) {
                builder.word(word, field);
            }
        };
        if field == DocumentField::Argument { words::each_part(text, each) } else { words::each_word(text, each) }
    };
    read(words::cut(&document.title, MAX_NAME), DocumentField::Title);
    read(summary, DocumentField::Summary);
    read(rest, DocumentField::Description);
    for (name, description) in &document.arguments {
        read(words::cut(name, MAX_NAME), DocumentField::Argument);
        read(words::cut(description, MAX_ARGUMENT), DocumentField::ArgumentDescription);
    }
    builder.end_document();
}

/// Reads the names of a document. An exposed name is usually the native name with a server prefix, and with a hash if
/// it is too long. Prefix and hash do not describe the document, so only the native name counts. An exposed name
/// without any word of the native name is an alias from the configuration, and it counts too.
fn read_names(document: &Document<'_>, builder: &mut Builder) {
    let collect = |text: &str| {
        let mut found = Vec::new();
        words::each_part(words::cut(text, MAX_NAME), |word| found.push(word.to_owned()));
        found
    };
    let (native, mut name, server) = (collect(document.native), collect(&document.name), collect(document.server));
    if name.iter().any(|word| native.contains(word)) {
        name.clear();
    }
    native.iter().chain(&name).for_each(|word| builder.word(word, DocumentField::Name));
    let uri = collect(document.uri);
    uri.iter().filter(|word| !server.contains(word)).for_each(|word| builder.word(word, DocumentField::Uri));
    server.iter().for_each(|word| builder.word(word, DocumentField::Server));
}

/// Returns the end of the first sentence or line, but at least the end of the first [`MIN_SUMMARY_WORDS`] words.
fn end_of_summary(description: &str) -> usize {
    let line = description.find('\n').unwrap_or(description.len());
    let sentence = description[..line].find(". ").map_or(line, |at| at + 1);
    let after = description.split_whitespace().nth(MIN_SUMMARY_WORDS);
    let words = after.map_or(description.len(), |word| word.as_ptr().addr() - description.as_ptr().addr());
    sentence.max(words)
}

/// Returns the names that are most similar to an unknown name, best first, for "did you mean".
pub fn nearest<'a>(unknown: &str, names: impl Iterator<Item = &'a str>, max: usize) -> Vec<&'a str> {
    let letters_of = |name: &str| words::cut(name, MAX_NAME).chars().flat_map(char::to_lowercase).collect::<Vec<_>>();
    let (letters, words) = (letters_of(unknown), words::key(words::cut(unknown, MAX_NAME)));
    let max_typos = (letters.len() / 3).max(1);
    let mut near: Vec<_> = names
        .filter_map(|name| {
            let typos = distance(&letters, &letters_of(name), max_typos);
            // The name may lack the prefix that the gateway adds, or be a part of the full name.
            let holds = || {
                (!words.is_empty() && format!(" {} ", words::key(name)).contains(&format!(" {words} ")))
                    .then_some(max_typos + 1)
            };
            typos.or_else(holds).map(|cost| (cost, name))
        })
        .collect();
    near.sort_by_key(|(cost, name)| (*cost, name.len(), Reverse(common_start(unknown, name)), *name));
    near.into_iter().take(max).map(|(_, name)| name).collect()
}

fn common_start(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests;
