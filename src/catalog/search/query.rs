//! A question as the index understands it: for each word, the concepts it may mean and how surely.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::catalog::search::dictionary::Dictionary;
use crate::catalog::search::postings::Postings;
use crate::catalog::search::stem::stem;
use crate::catalog::search::words;

/// More of a question is not read.
const LONGEST_QUERY: usize = 2 << 10;
const MOST_TERMS: usize = 32;
/// Of one word, and of its beginnings that are looked at for them.
const MOST_MEANINGS: usize = 24;

/// How surely a word means another than itself.
const SYNONYM: f32 = 0.5;
const BEGINNING: f32 = 0.4;
/// Of a word that nothing has.
const BEGINNING_OF_UNKNOWN: f32 = 0.8;
const ABBREVIATION: f32 = 0.2;
const ONE_SLIP: f32 = 0.8;
const TWO_SLIPS: f32 = 0.6;

/// Shorter words begin too many others.
const LEAST_BEGINNING: usize = 3;
/// Slips are forgiven from here on, and two of them from there on.
const LEAST_FOR_ONE_SLIP: usize = 4;
const LEAST_FOR_TWO_SLIPS: usize = 8;
/// Of a word that is written as two, and of either of two that are written as one.
const LEAST_HALF: usize = 3;
/// From this length on a word may be meant by its beginning: `environment` by `env`.
const LEAST_ABBREVIATED: usize = 7;

/// One word of a question.
#[derive(Debug)]
pub struct Term {
    pub rarity: f32,
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
        // Words that mean nothing count if there is no other, and beside one that means something: `look up`.
        let only_stop_words = words.iter().all(|word| words::is_stop_word(word));
        let mut terms = Vec::new();
        for (index, word) in words.iter().enumerate() {
            if words[..index].contains(word) || (words::is_stop_word(word) && !only_stop_words) {
                continue;
            }
            let mut meanings = self.meanings(word);
            let before = words[..index].last().map(|before| format!("{before}{word}"));
            let after = words.get(index + 1).map(|after| format!("{word}{after}"));
            for compound in before.into_iter().chain(after) {
                self.mean_compound(&compound, &mut meanings);
            }
            terms.extend(self.term(meanings));
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

    /// Two words that documents write as one, or that mean another together.
    fn mean_compound(&self, compound: &str, meanings: &mut SmallVec<[Meaning; 8]>) {
        if compound.len() >= 2 * LEAST_HALF
            && let Some(concept) = self.words.find(compound)
        {
            self.mean(concept, 1.0, meanings);
            self.mean_synonyms(concept, meanings);
        }
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
        if self.concept(word).is_some() || !word.is_ascii() || word.len() < 2 * LEAST_HALF {
            return None;
        }
        let split = (LEAST_HALF..=word.len() - LEAST_HALF).rev().map(|at| word.split_at(at));
        let mut known = split.filter(|(one, other)| self.known(one).is_some() && self.known(other).is_some());
        known.next().map(|(one, other)| vec![one.to_owned(), other.to_owned()])
    }

    fn meanings(&self, word: &str) -> SmallVec<[Meaning; 8]> {
        let mut meanings = SmallVec::new();
        let concept = self.concept(word);
        let known = concept.filter(|concept| !self.postings.of(*concept).is_empty());
        if let Some(concept) = known {
            self.mean(concept, 1.0, &mut meanings);
        }
        if let Some(concept) = concept {
            self.mean_synonyms(concept, &mut meanings);
        }
        if word.len() >= LEAST_BEGINNING && word.is_ascii() {
            let sureness = if known.is_some() { BEGINNING } else { BEGINNING_OF_UNKNOWN };
            for (_, longer) in self.words.starting_with(word).take(MOST_MEANINGS) {
                self.mean(longer, sureness, &mut meanings);
            }
        }
        if meanings.is_empty() {
            self.mean_near(word, &mut meanings);
        }
        if word.len() >= LEAST_ABBREVIATED && word.is_ascii() {
            for length in LEAST_BEGINNING..word.len() - 2 {
                if let Some(shorter) = self.words.find(&word[..length]) {
                    self.mean(shorter, ABBREVIATION, &mut meanings);
                }
            }
        }
        meanings
    }

    /// Words that may have been meant where the one that was written is not known.
    fn mean_near(&self, word: &str, meanings: &mut SmallVec<[Meaning; 8]>) {
        let most = match word.chars().count() {
            LEAST_FOR_TWO_SLIPS.. => 2,
            LEAST_FOR_ONE_SLIP.. => 1,
            _ => return,
        };
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            return;
        }
        for (slips, concept) in self.words.near(word, most).into_iter().take(MOST_MEANINGS) {
            self.mean(concept, if slips == 1 { ONE_SLIP } else { TWO_SLIPS }, meanings);
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

    /// A word is as rare as what it means most surely.
    fn term(&self, meanings: SmallVec<[Meaning; 8]>) -> Option<Term> {
        let surest = meanings.iter().map(|meaning| meaning.sureness).fold(0.0, f32::max);
        let rarities = meanings.iter().filter(|meaning| meaning.sureness == surest);
        let rarity = rarities.map(|meaning| self.postings.rarity(meaning.concept)).fold(0.0, f32::max);
        (!meanings.is_empty()).then_some(Term { rarity, meanings })
    }
}
