//! Which documents have a word, and how much it says about them: BM25F.
//!
//! A word counts in each field by the field's weight and against the field's length; the sum saturates, so that a
//! description cannot win by saying a word ten times. All of that is known when the index is built, so a posting is a
//! document and one number, and a query only adds them up.

use std::collections::HashMap;

use crate::search::stem::stem;

/// Where a word stands, in the order of `WEIGHTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    Name,
    Title,
    /// The beginning of the description says what the thing does; what follows, how it is used.
    Summary,
    Description,
    Argument,
    ArgumentDescription,
    Uri,
    Server,
}

const FIELDS: usize = 8;

/// How much a field counts: all that names a thing is as good.
const WEIGHTS: [f32; FIELDS] = [5.0, 5.0, 5.0, 0.3, 0.5, 0.2, 2.0, 5.0];

/// How much less each word of a long field counts (BM25's `b`).
const BY_LENGTH: f32 = 0.8;

/// How soon saying it again counts no more (BM25's `k1`).
const SATURATION: f32 = 2.0;

/// How much rare words count for more than common ones.
const RARITY: f32 = 0.75;

#[derive(Clone, Copy, Debug)]
pub struct Posting {
    /// With a bit for what stands in the name and one for the server's, so that a posting stays small.
    place: u32,
    /// Between 0 and 1.
    pub weight: f32,
}

const IN_NAME: u32 = 1 << 31;
const IN_SERVER: u32 = 1 << 30;

impl Posting {
    pub fn document(self) -> usize {
        (self.place & !(IN_NAME | IN_SERVER)) as usize
    }

    /// Whether the name has it.
    pub fn is_in_name(self) -> bool {
        self.place & IN_NAME != 0
    }

    /// Whether the server's id has it.
    pub fn is_in_server(self) -> bool {
        self.place & IN_SERVER != 0
    }
}

/// The postings of each concept: of all words with one stem.
#[derive(Debug)]
pub struct Postings {
    /// How many different words the name of each document has, and the id of its server.
    lengths: Vec<(u16, u16)>,
    /// Where the postings of each concept begin, and behind the last where they end.
    starts: Vec<u32>,
    postings: Vec<Posting>,
    /// Of each concept.
    rarities: Vec<f32>,
}

impl Postings {
    pub fn documents(&self) -> usize {
        self.lengths.len()
    }

    /// How many different words the name of a document has.
    pub fn name_length(&self, document: usize) -> u16 {
        self.lengths[document].0
    }

    pub fn server_length(&self, document: usize) -> u16 {
        self.lengths[document].1
    }

    /// In the order of documents.
    pub fn of(&self, concept: u32) -> &[Posting] {
        let concept = concept as usize;
        &self.postings[self.starts[concept] as usize..self.starts[concept + 1] as usize]
    }

    /// How much it tells that a document has the concept.
    pub fn rarity(&self, concept: u32) -> f32 {
        self.rarities[concept as usize]
    }

    /// The bytes it holds.
    pub fn size(&self) -> usize {
        let lengths = self.lengths.capacity() * size_of::<(u16, u16)>();
        let rarities = self.rarities.capacity() * size_of::<f32>();
        lengths + rarities + self.starts.capacity() * size_of::<u32>() + self.postings.capacity() * size_of::<Posting>()
    }
}

/// Words on their way into an index.
#[derive(Default)]
pub struct Builder {
    words: HashMap<Box<str>, u32>,
    stems: HashMap<Box<str>, u32>,
    documents: u32,
    /// Of the document at hand.
    at_hand: Vec<(u32, Field)>,
    /// In the order of documents.
    occurrences: Vec<Occurrence>,
    lengths: Vec<[u16; FIELDS]>,
}

#[derive(Clone, Copy)]
struct Occurrence {
    concept: u32,
    document: u32,
    count: u16,
    field: Field,
}

impl Builder {
    /// The concept of a word in lower case.
    pub fn concept(&mut self, word: &str) -> u32 {
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

    /// The document at hand has the word in the field.
    pub fn word(&mut self, word: &str, field: Field) {
        let concept = self.concept(word);
        self.at_hand.push((concept, field));
    }

    /// The document at hand has no more words.
    pub fn end_document(&mut self) {
        let mut lengths = [0_u16; FIELDS];
        self.at_hand.sort_unstable();
        for same in self.at_hand.chunk_by(|one, other| one == other) {
            let (concept, field) = same[0];
            let count = u16::try_from(same.len()).unwrap_or(u16::MAX);
            lengths[field as usize] = lengths[field as usize].saturating_add(count);
            self.occurrences.push(Occurrence { concept, document: self.documents, count, field });
        }
        self.at_hand.clear();
        self.lengths.push(lengths);
        self.documents += 1;
    }

    /// The words with their concepts, stems among them: who asks with an ending that no document has finds the stem.
    pub fn build(mut self) -> (Vec<(Box<str>, u32)>, Postings) {
        // Stable, so that the documents of a concept stay in order.
        self.occurrences.sort_by_key(|occurrence| occurrence.concept);
        let usual = usual_lengths(&self.lengths);
        let mut starts = Vec::with_capacity(self.stems.len() + 1);
        let mut postings: Vec<Posting> = Vec::new();
        let mut lengths = vec![(0_u16, 0_u16); self.lengths.len()];
        let same_place =
            |one: &Occurrence, other: &Occurrence| (one.concept, one.document) == (other.concept, other.document);
        for occurrences in self.occurrences.chunk_by(same_place) {
            let Occurrence { concept, document, .. } = occurrences[0];
            starts.resize(starts.len().max(concept as usize + 1), postings.len() as u32);
            let sum = occurrences.iter().map(|one| one.weight(&self.lengths[document as usize], &usual)).sum::<f32>();
            let is_in = |field| occurrences.iter().any(|one| one.field == field);
            let (name, server) = &mut lengths[document as usize];
            *name += u16::from(is_in(Field::Name));
            *server += u16::from(is_in(Field::Server));
            let in_name = if is_in(Field::Name) { IN_NAME } else { 0 };
            let in_server = if is_in(Field::Server) { IN_SERVER } else { 0 };
            postings.push(Posting { place: document | in_name | in_server, weight: sum / (sum + SATURATION) });
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

/// Of what `with` of `all` documents have.
fn rarity(all: usize, with: u32) -> f32 {
    let (all, with) = (all as f32, with as f32);
    (1.0 + (all - with + 0.5) / (with + 0.5)).ln().powf(RARITY)
}

impl Occurrence {
    fn weight(&self, lengths: &[u16; FIELDS], usual: &[f32; FIELDS]) -> f32 {
        let field = self.field as usize;
        let length = 1.0 - BY_LENGTH + BY_LENGTH * f32::from(lengths[field]) / usual[field];
        WEIGHTS[field] * f32::from(self.count) / length
    }
}

/// The average of each field over the documents that have it.
fn usual_lengths(lengths: &[[u16; FIELDS]]) -> [f32; FIELDS] {
    std::array::from_fn(|field| {
        let of_field = lengths.iter().map(|lengths| f32::from(lengths[field])).filter(|length| *length > 0.0);
        let (sum, count) = of_field.fold((0.0, 0.0), |(sum, count), length| (sum + length, count + 1.0));
        if count > 0.0 { sum / count } else { 1.0 }
    })
}
