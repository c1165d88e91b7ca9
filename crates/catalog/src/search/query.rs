//! Interprets a query: finds the concepts that each word may mean, and the confidence in each meaning. Meanings include
//! compounds, synonyms, prefixes and corrected typos. The limits here bound the cost of a query of any length.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::search::dictionary::Dictionary;
use crate::search::postings::Postings;
use crate::search::stem::{may_be_imperative, stem};
use crate::search::words;

/// The limits for one query: bytes and terms.
const MAX_QUERY: usize = 2 << 10;
const MAX_TERMS: usize = 32;
/// The maximum number of meanings of one word.
const MAX_MEANINGS: usize = 48;
/// The maximum number of longer words that one word may be the beginning of.
const MAX_PREFIX_MATCHES: usize = 24;

/// The confidence of a synonym, of a longer word with the same beginning, and of a corrected typo.
const SYNONYM: f32 = 0.5;
const BEGINNING: f32 = 0.8;
const TYPO: f32 = 0.8;

/// The minimum length for prefix matches. Shorter words begin too many others.
const MIN_PREFIX: usize = 3;
/// The minimum lengths for correcting one typo and two typos.
const MIN_FOR_ONE_TYPO: usize = 4;
const MIN_FOR_TWO_TYPOS: usize = 8;
/// The minimum length of each of two words that may be one compound.
const MIN_COMPOUND_PART: usize = 2;
/// The minimum length of each half when one word is split in two.
const MIN_SPLIT_PART: usize = 3;

/// A word of a query.
#[derive(Debug)]
pub(crate) struct Term {
    pub rarity: f32,
    /// True if the word is in imperative form, provided that it is a verb.
    pub may_be_imperative: bool,
    pub meanings: SmallVec<[Meaning; 8]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Meaning {
    pub concept: u32,
    /// The confidence in this meaning, at most 1.
    pub confidence: f32,
}

/// The tables for interpreting queries.
pub(crate) struct Lexicon<'a> {
    pub words: &'a Dictionary,
    pub postings: &'a Postings,
    pub synonyms: &'a HashMap<u32, Vec<u32>>,
}

/// Returns the part of a query that is read.
pub(crate) fn cut(query: &str) -> &str {
    words::cut(query, MAX_QUERY)
}

impl Lexicon<'_> {
    /// Returns the terms of a query. Words without any meaning in the index have no term.
    pub(crate) fn terms(&self, query: &str) -> Vec<Term> {
        let words = self.words_of(query);
        // A stop word has a term in two cases: the query has no other words, or the word forms a compound with the stop
        // word before it, as in `look up` or `to do`.
        let only_stop_words = words.iter().all(|word| words::is_stop_word(word));
        let mut terms = Vec::new();
        for (index, word) in words.iter().enumerate() {
            if words[..index].contains(word) {
                continue;
            }
            if words::is_stop_word(word) && !only_stop_words && !self.ends_compound(&words[..=index]) {
                continue;
            }
            let before = words[..index].last().map(|before| (before.as_str(), word.as_str()));
            let after = words.get(index + 1).map(|after| (word.as_str(), after.as_str()));
            terms.extend(self.term(word, before.into_iter().chain(after)));
            if terms.len() == MAX_TERMS {
                break;
            }
        }
        terms
    }

    /// Returns the words of a query. A word that no document has as a whole is split into its parts.
    fn words_of(&self, query: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut word = String::new();
        for run in words::runs(query) {
            words::fold(run, &mut word);
            if words::parts(run).len() == 1 || self.known(&word).is_some() {
                found.extend(self.halves(&word).unwrap_or_else(|| vec![word.clone()]));
            } else {
                words::each_part(run, |part| found.push(part.to_owned()));
            }
        }
        found
    }

    /// Returns the concept of a word if any document has it.
    fn known(&self, word: &str) -> Option<u32> {
        self.concept(word).filter(|concept| !self.postings.of(*concept).is_empty())
    }

    fn concept(&self, word: &str) -> Option<u32> {
        self.words.find(word).or_else(|| {
            let mut form = word.to_owned();
            stem(&mut form);
            self.words.find(&form)
        })
    }

    /// Splits a word that no document has into two words that documents have: `timezone` for `time_zone`.
    fn halves(&self, word: &str) -> Option<Vec<String>> {
        if self.concept(word).is_some() || !word.is_ascii() || word.len() < 2 * MIN_SPLIT_PART {
            return None;
        }
        let split = (MIN_SPLIT_PART..=word.len() - MIN_SPLIT_PART).rev().map(|at| word.split_at(at));
        let mut known = split.filter(|(one, other)| self.known(one).is_some() && self.known(other).is_some());
        known.next().map(|(one, other)| vec![one.to_owned(), other.to_owned()])
    }

    /// Reports whether the last two words are a compound in the index and the first of them is a stop word.
    fn ends_compound(&self, words: &[String]) -> bool {
        let [.., before, last] = words else { return false };
        words::is_stop_word(before) && self.words.find(&format!("{before}{last}")).is_some()
    }

    /// Returns a word with its meanings: the word itself, compounds with a neighbour, synonyms, and longer words that
    /// it begins. If there are none, similar words are tried.
    fn term<'w>(&self, word: &str, pairs: impl Iterator<Item = (&'w str, &'w str)>) -> Option<Term> {
        let mut meanings = SmallVec::new();
        let concept = self.concept(word);
        let known = self.known(word);
        if let Some(concept) = known {
            self.add_meaning(concept, 1.0, &mut meanings);
        }
        // Documents may write the two words as one, or the two may have their own meaning: `time zone`, `set up`.
        let long_enough =
            |(one, other): &(&str, &str)| one.len() >= MIN_COMPOUND_PART && other.len() >= MIN_COMPOUND_PART;
        let compounds = pairs.filter(long_enough).filter_map(|(one, other)| self.words.find(&format!("{one}{other}")));
        for compound in compounds {
            self.add_meaning(compound, 1.0, &mut meanings);
            self.add_synonyms(compound, &mut meanings);
        }
        if let Some(concept) = concept {
            self.add_synonyms(concept, &mut meanings);
        }
        if word.len() >= MIN_PREFIX && word.is_ascii() {
            for (_, longer) in self.words.starting_with(word).take(MAX_PREFIX_MATCHES) {
                self.add_meaning(longer, BEGINNING, &mut meanings);
            }
        }
        if meanings.is_empty() {
            self.add_similar(word, &mut meanings);
        }
        // The rarity of an unknown word is that of its most confident meanings.
        let most_confident = meanings.iter().map(|meaning| meaning.confidence).fold(0.0, f32::max);
        let best =
            meanings.iter().filter(|meaning| meaning.confidence == most_confident).map(|meaning| meaning.concept);
        let rarities = best.map(|concept| self.postings.rarity(concept)).fold(0.0, f32::max);
        let rarity = known.map_or(rarities, |concept| self.postings.rarity(concept));
        (!meanings.is_empty()).then_some(Term { rarity, may_be_imperative: may_be_imperative(word), meanings })
    }

    /// Adds the words that an unknown word may be a typo of.
    fn add_similar(&self, word: &str, meanings: &mut SmallVec<[Meaning; 8]>) {
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            return;
        }
        let near = match word.chars().count() {
            MIN_FOR_TWO_TYPOS.. => self.words.near::<2>(word),
            MIN_FOR_ONE_TYPO.. => self.words.near::<1>(word),
            _ => return,
        };
        for concept in near.into_iter().take(MAX_MEANINGS) {
            self.add_meaning(concept, TYPO, meanings);
        }
    }

    fn add_synonyms(&self, concept: u32, meanings: &mut SmallVec<[Meaning; 8]>) {
        for other in self.synonyms.get(&concept).into_iter().flatten() {
            self.add_meaning(*other, SYNONYM, meanings);
        }
    }

    /// Adds a meaning if any document has the concept. Keeps the highest confidence of a repeated concept.
    fn add_meaning(&self, concept: u32, confidence: f32, meanings: &mut SmallVec<[Meaning; 8]>) {
        if self.postings.of(concept).is_empty() {
            return;
        }
        if let Some(meaning) = meanings.iter_mut().find(|meaning| meaning.concept == concept) {
            meaning.confidence = meaning.confidence.max(confidence);
        } else if meanings.len() < MAX_MEANINGS {
            meanings.push(Meaning { concept, confidence });
        }
    }
}
