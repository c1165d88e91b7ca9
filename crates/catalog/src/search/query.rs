//! A question as the index understands it: for each word, the concepts it may mean and how surely.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::search::dictionary::Dictionary;
use crate::search::postings::Postings;
use crate::search::stem::{may_order, stem};
use crate::search::words;

/// More of a question is not read.
const LONGEST_QUERY: usize = 2 << 10;
const MOST_TERMS: usize = 32;
/// Of one word.
const MOST_MEANINGS: usize = 48;
/// Words that one may begin.
const MOST_BEGINNINGS: usize = 24;

/// How surely a word means another than itself.
const SYNONYM: f32 = 0.5;
const BEGINNING: f32 = 0.8;
const SLIPPED: f32 = 0.8;

/// Shorter words begin too many others.
const LEAST_BEGINNING: usize = 3;
/// Slips are forgiven from here on, and two of them from there on.
const LEAST_FOR_ONE_SLIP: usize = 4;
const LEAST_FOR_TWO_SLIPS: usize = 8;
/// Of either of two words that may be one.
const LEAST_HALF: usize = 2;
/// Of either of two that one is taken for.
const LEAST_SPLIT: usize = 3;

/// One word of a question.
#[derive(Debug)]
pub struct Term {
    pub rarity: f32,
    /// Whether it may be what is to be done, if it is a verb.
    pub may_order: bool,
    pub meanings: SmallVec<[Meaning; 8]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meaning {
    pub concept: u32,
    /// At most 1.
    pub sureness: f32,
}

/// What questions are understood by.
pub struct Lexicon<'a> {
    pub words: &'a Dictionary,
    pub postings: &'a Postings,
    pub synonyms: &'a HashMap<u32, Vec<u32>>,
}

/// The part of a question that is read.
pub fn cut(query: &str) -> &str {
    words::cut(query, LONGEST_QUERY)
}

impl Lexicon<'_> {
    /// The terms of a question; words that nothing is known by have none.
    pub fn terms(&self, query: &str) -> Vec<Term> {
        let words = self.words_of(query);
        // Words that mean nothing count if there is no other, beside one that means something, and where two of them
        // are a word: `look up`, `to do`.
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
            if terms.len() == MOST_TERMS {
                break;
            }
        }
        terms
    }

    /// The words of a question. One that no document has as a whole is taken in parts.
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

    /// The concept of a word, where any document has it.
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

    /// A word that no document has, as two that some have: `timezone` for `time_zone`.
    fn halves(&self, word: &str) -> Option<Vec<String>> {
        if self.concept(word).is_some() || !word.is_ascii() || word.len() < 2 * LEAST_SPLIT {
            return None;
        }
        let split = (LEAST_SPLIT..=word.len() - LEAST_SPLIT).rev().map(|at| word.split_at(at));
        let mut known = split.filter(|(one, other)| self.known(one).is_some() && self.known(other).is_some());
        known.next().map(|(one, other)| vec![one.to_owned(), other.to_owned()])
    }

    /// Whether the last two of `words` mean nothing each and something together.
    fn ends_compound(&self, words: &[String]) -> bool {
        let [.., before, last] = words else { return false };
        words::is_stop_word(before) && self.words.find(&format!("{before}{last}")).is_some()
    }

    /// A word with what it may mean: itself, what it is part of with a neighbour, its synonyms, what it begins.
    fn term<'w>(&self, word: &str, pairs: impl Iterator<Item = (&'w str, &'w str)>) -> Option<Term> {
        let mut meanings = SmallVec::new();
        let concept = self.concept(word);
        let known = self.known(word);
        if let Some(concept) = known {
            self.mean(concept, 1.0, &mut meanings);
        }
        // Two words that documents write as one, or that mean another together: `time zone`, `set up`.
        let long_enough = |(one, other): &(&str, &str)| one.len() >= LEAST_HALF && other.len() >= LEAST_HALF;
        let compounds = pairs.filter(long_enough).filter_map(|(one, other)| self.words.find(&format!("{one}{other}")));
        for compound in compounds {
            self.mean(compound, 1.0, &mut meanings);
            self.mean_synonyms(compound, &mut meanings);
        }
        if let Some(concept) = concept {
            self.mean_synonyms(concept, &mut meanings);
        }
        if word.len() >= LEAST_BEGINNING && word.is_ascii() {
            for (_, longer) in self.words.starting_with(word).take(MOST_BEGINNINGS) {
                self.mean(longer, BEGINNING, &mut meanings);
            }
        }
        if meanings.is_empty() {
            self.mean_near(word, &mut meanings);
        }
        // As rare as itself, or as what it means most surely.
        let surest = meanings.iter().map(|meaning| meaning.sureness).fold(0.0, f32::max);
        let sure = meanings.iter().filter(|meaning| meaning.sureness == surest).map(|meaning| meaning.concept);
        let rarities = sure.map(|concept| self.postings.rarity(concept)).fold(0.0, f32::max);
        let rarity = known.map_or(rarities, |concept| self.postings.rarity(concept));
        (!meanings.is_empty()).then_some(Term { rarity, may_order: may_order(word), meanings })
    }

    /// Words that may have been meant where the one that was written is not known.
    fn mean_near(&self, word: &str, meanings: &mut SmallVec<[Meaning; 8]>) {
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            return;
        }
        let near = match word.chars().count() {
            LEAST_FOR_TWO_SLIPS.. => self.words.near::<2>(word),
            LEAST_FOR_ONE_SLIP.. => self.words.near::<1>(word),
            _ => return,
        };
        for concept in near.into_iter().take(MOST_MEANINGS) {
            self.mean(concept, SLIPPED, meanings);
        }
    }

    fn mean_synonyms(&self, concept: u32, meanings: &mut SmallVec<[Meaning; 8]>) {
        for other in self.synonyms.get(&concept).into_iter().flatten() {
            self.mean(*other, SYNONYM, meanings);
        }
    }

    fn mean(&self, concept: u32, sureness: f32, meanings: &mut SmallVec<[Meaning; 8]>) {
        if self.postings.of(concept).is_empty() {
            return;
        }
        if let Some(meaning) = meanings.iter_mut().find(|meaning| meaning.concept == concept) {
            meaning.sureness = meaning.sureness.max(sureness);
        } else if meanings.len() < MOST_MEANINGS {
            meanings.push(Meaning { concept, sureness });
        }
    }
}
