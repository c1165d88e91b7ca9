//! Sets of places in a URI. One operation moves all members at once, 64 to a word.
//!
//! Place 0 is before the first byte, place `end` after the last. The bits are in reverse order: place `end` is the
//! lowest bit. Moving back in the URI therefore moves bits up, and the carry of an addition moves back through a whole
//! run of bytes.

/// A set of places.
#[derive(Clone, Debug)]
pub(super) struct Places {
    end: usize,
    words: Vec<u64>,
}

/// A set of bytes of a URI. Each byte is represented by the place after it.
pub(super) type Bytes = Places;

impl Places {
    pub(super) fn none(end: usize) -> Places {
        Places { end, words: vec![0; end / 64 + 1] }
    }

    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    pub(super) fn insert(&mut self, place: usize) {
        let bit = self.end - place;
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    pub(super) fn contains(&self, place: usize) -> bool {
        let bit = self.end - place;
        self.words[bit / 64] >> (bit % 64) & 1 != 0
    }

    pub(super) fn or(mut self, other: &Places) -> Places {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self
    }

    pub(super) fn and(mut self, other: &Places) -> Places {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        self
    }

    pub(super) fn without(mut self, other: &Places) -> Places {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        self
    }

    /// Moves all places back by one byte, over bytes of the set.
    pub(super) fn back(mut self, bytes: &Bytes) -> Places {
        let mut carry = 0;
        for (word, bytes) in self.words.iter_mut().zip(&bytes.words) {
            let over = *word & bytes;
            *word = over << 1 | carry;
            carry = over >> 63;
        }
        self
    }

    /// Adds all places that are any number of bytes back, over bytes of the set.
    pub(super) fn back_through(mut self, bytes: &Bytes) -> Places {
        let mut carry = false;
        for (word, &bytes) in self.words.iter_mut().zip(&bytes.words) {
            let (sum, first_carry) = (*word & bytes).overflowing_add(bytes);
            let (sum, second_carry) = sum.overflowing_add(u64::from(carry));
            carry = first_carry || second_carry;
            *word |= sum ^ bytes;
        }
        self
    }

    /// Returns the places that are one to `limit` units back, over bytes of the set. `inside` has the places inside a
    /// unit.
    pub(super) fn back_up_to(&self, limit: u16, bytes: &Bytes, inside: &Places) -> Places {
        const UNREACHABLE: u32 = 1 << 31;
        let mut reached = Places::none(self.end);
        // The number of units from the current place to the nearest member.
        let mut distance = UNREACHABLE;
        for (index, word) in reached.words.iter_mut().enumerate() {
            let (members, bytes, inside) = (self.words[index], bytes.words[index], inside.words[index]);
            for bit in 0..64 {
                let is = |set: u64| set >> bit & 1 != 0;
                distance += u32::from(!is(inside));
                *word |= u64::from(distance <= u32::from(limit)) << bit;
                distance = if is(members) { 0 } else { distance };
                distance |= if is(bytes) { 0 } else { UNREACHABLE };
            }
        }
        reached.without(inside)
    }
}
