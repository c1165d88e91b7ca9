//! The documents that contain a word, and the weight of the word in each: BM25F.
//!
//! An occurrence counts by the weight of its field and is normalized by the length of the field. The sum saturates, so
//! a description does not gain by repeating a word. The builder computes all weights in advance. A posting is a
//! document and one number, and a query only adds these numbers.

use std::collections::HashMap;

use crate::search::stem::stem;

/// The part of a document that contains a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DocumentField {
    Name,
    Title,
    /// The beginning of the description. It usually states the purpose, and the rest explains the usage.
    Summary,
    Description,
    Argument,
    ArgumentDescription,
    Uri,
    Server,
}

const FIELDS: usize = 8;

/// The weight of each field, in the order of [`DocumentField`]. Name, title, summary and server identify a document, so
/// they have the same weight.
const FIELD_WEIGHTS: [f32; FIELDS] = [5.0, 5.0, 5.0, 0.3, 0.5, 0.2, 2.0, 5.0];

/// The influence of the length of a field (BM25's `b`).
const BY_LENGTH: f32 = 0.8;

/// The saturation of repeated words (BM25's `k1`).
const SATURATION: f32 = 2.0;

/// The exponent for the rarity of words. Lower values reduce the advantage of rare words.
const RARITY: f32 = 0.75;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    /// The document number, with one bit for the name and one for the server. The packing keeps postings small.
    packed: u32,
    /// The weight, between 0 and 1.
    pub weight: f32,
}

const IN_NAME: u32 = 1 << 31;
const IN_SERVER: u32 = 1 << 30;

impl Posting {
    pub(crate) fn document(self) -> usize {
        (self.packed & !(IN_NAME | IN_SERVER)) as usize
    }

    /// Reports whether the name has the word.
    pub(crate) fn is_in_name(self) -> bool {
        self.packed & IN_NAME != 0
    }

    /// Reports whether the server's id has the word.
    pub(crate) fn is_in_server(self) -> bool {
        self.packed & IN_SERVER != 0
    }
}

/// The postings of each concept. A concept is the set of all words with the same stem.
#[derive(Debug)]
pub(crate) struct Postings {
    /// The number of distinct words in the name of each document and in the id of its server.
    lengths: Vec<(u16, u16)>,
    /// The start of the postings of each concept, followed by the end of the last.
    starts: Vec<u32>,
    postings: Vec<Posting>,
    /// The rarity of each concept.
    rarities: Vec<f32>,
}

impl Postings {
    pub(crate) fn documents(&self) -> usize {
        self.lengths.len()
    }

    /// Returns the number of distinct words in the name of a document.
    pub(crate) fn name_length(&self, document: usize) -> u16 {
        self.lengths[document].0
    }

    pub(crate) fn server_length(&self, document: usize) -> u16 {
        self.lengths[document].1
    }

    /// Returns the postings of a concept, in document order.
    pub(crate) fn of(&self, concept: u32) -> &[Posting] {
        let concept = concept as usize;
        &self.postings[self.starts[concept] as usize..self.starts[concept + 1] as usize]
    }

    /// Returns the rarity of a concept. Rare concepts distinguish documents better.
    pub(crate) fn rarity(&self, concept: u32) -> f32 {
        self.rarities[concept as usize]
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        let lengths = self.lengths.capacity() * size_of::<(u16, u16)>();
        let rarities = self.rarities.capacity() * size_of::<f32>();
        lengths + rarities + self.starts.capacity() * size_of::<u32>() + self.postings.capacity() * size_of::<Posting>()
    }
}

/// Collects the words of all documents for an index.
#[derive(Default)]
pub(crate) struct Builder {
    words: HashMap<Box<str>, u32>,
    stems: HashMap<Box<str>, u32>,
    documents: u32,
    /// The words of the current document.
    current: Vec<(u32, DocumentField)>,
    /// The occurrences of all finished documents, in document order.
    occurrences: Vec<Occurrence>,
    lengths: Vec<[u16; FIELDS]>,
}

#[derive(Clone, Copy)]
struct Occurrence {
    concept: u32,
    document: u32,
    count: u16,
    field: DocumentField,
}

impl Builder {
    /// Returns the concept of a word, which must be in lower case.
    pub(crate) fn concept(&mut self, word: &str) -> u32 {
        if let Some(concept) = self.words.get(word) {
            return *concept;
        }
        let mut form = word.to_owned();
        stem(&mut form);
        let next = self.stems.len() as u32;
        let concept = *self.stems.entry(form.into_boxed_str()).or_insert(next);
        self.words.insert(word.into(), concept);
        concept
    }

    /// Adds a word to a field of the current document.
    pub(crate) fn word(&mut self, word: &str, field: DocumentField) {
        let concept = self.concept(word);
        self.current.push((concept, field));
    }

    /// Finishes the current document.
    pub(crate) fn end_document(&mut self) {
        let mut lengths = [0_u16; FIELDS];
        self.current.sort_unstable();
        for same in self.current.chunk_by(|one, other| one == other) {
            let (concept, field) = same[0];
            let count = u16::try_from(same.len()).unwrap_or(u16::MAX);
            lengths[field as usize] = lengths[field as usize].saturating_add(count);
            self.occurrences.push(Occurrence { concept, document: self.documents, count, field });
        }
        self.current.clear();
        self.lengths.push(lengths);
        self.documents += 1;
    }

    /// Returns all words with their concepts, and the postings. The words include the stems, so a query also finds a
    /// stem by a form of the word that no document has.
    pub(crate) fn build(mut self) -> (Vec<(Box<str>, u32)>, Postings) {
        // The sort must be stable to keep the documents of a concept in order.
        self.occurrences.sort_by_key(|occurrence| occurrence.concept);
        let average = average_lengths(&self.lengths);
        let mut starts = Vec::with_capacity(self.stems.len() + 1);
        let mut postings: Vec<Posting> = Vec::new();
        let mut lengths = vec![(0_u16, 0_u16); self.lengths.len()];
        let is_same_entry =
            |one: &Occurrence, other: &Occurrence| (one.concept, one.document) == (other.concept, other.document);
        for occurrences in self.occurrences.chunk_by(is_same_entry) {
            let Occurrence { concept, document, .. } = occurrences[0];
            starts.resize(starts.len().max(concept as usize + 1), postings.len() as u32);
            let sum = occurrences.iter().map(|one| one.weight(&self.lengths[document as usize], &average)).sum::<f32>();
            let is_in = |field| occurrences.iter().any(|one| one.field == field);
            let (name, server) = &mut lengths[document as usize];
            *name += u16::from(is_in(DocumentField::Name));
            *server += u16::from(is_in(DocumentField::Server));
            let in_name = if is_in(DocumentField::Name) { IN_NAME } else { 0 };
            let in_server = if is_in(DocumentField::Server) { IN_SERVER } else { 0 };
            postings.push(Posting { packed: document | in_name | in_server, weight: sum / (sum + SATURATION) });
        }
        starts.resize(self.stems.len() + 1, postings.len() as u32);
        postings.shrink_to_fit();
        let rarities = starts.windows(2).map(|pair| rarity(lengths.len(), pair[1] - pair[0])).collect();
        for (stem, concept) in self.stems {
            self.words.entry(stem).or_insert(concept);
        }
        (self.words.into_iter().collect(), Postings { lengths, starts, postings, rarities })
    }
}

/// Returns the rarity of a concept that `with` of `all` documents have.
fn rarity(all: usize, with: u32) -> f32 {
    let (all, with) = (all as f32, with as f32);
    (1.0 + (all - with + 0.5) / (with + 0.5)).ln().powf(RARITY)
}

impl Occurrence {
    fn weight(&self, lengths: &[u16; FIELDS], average: &[f32; FIELDS]) -> f32 {
        let field = self.field as usize;
        let length = 1.0 - BY_LENGTH + BY_LENGTH * f32::from(lengths[field]) / average[field];
        FIELD_WEIGHTS[field] * f32::from(self.count) / length
    }
}

/// Returns the average length of each field over the documents that have it.
fn average_lengths(lengths: &[[u16; FIELDS]]) -> [f32; FIELDS] {
    std::array::from_fn(|field| {
        let of_field = lengths.iter().map(|lengths| f32::from(lengths[field])).filter(|length| *length > 0.0);
        let (sum, count) = of_field.fold((0.0, 0.0), |(sum, count), length| (sum + length, count + 1.0));
        if count > 0.0 { sum / count } else { 1.0 }
    })
}
