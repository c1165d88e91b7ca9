//! The number of typos between two words. [`distance`] handles any words, [`BitPattern`] is faster for short ASCII
//! words, and [`letters`] excludes most words without a comparison.

/// The maximum length of a word. Longer words are not compared. Names are shorter.
const MAX_WORD_LENGTH: usize = 128;

/// Returns the number of inserted, deleted, changed or swapped letters. Returns `None` if it exceeds `max`.
pub(crate) fn distance(one: &[char], other: &[char], max: usize) -> Option<usize> {
    if one.len().abs_diff(other.len()) > max || one.len().max(other.len()) > MAX_WORD_LENGTH {
        return None;
    }
    // Three rows of the table are enough, because a swap refers to the row before the previous one.
    let width = other.len() + 1;
    let mut rows = [[0_u8; MAX_WORD_LENGTH + 1]; 3];
    for (column, cell) in rows[0][..width].iter_mut().enumerate() {
        *cell = column as u8;
    }
    for (index, letter) in one.iter().enumerate() {
        let (here, before, earlier) = ((index + 1) % 3, index % 3, (index + 2) % 3);
        rows[here][0] = index as u8 + 1;
        let mut lowest = rows[here][0];
        for column in 1..width {
            let same = *letter == other[column - 1];
            let replaced = rows[before][column - 1] + u8::from(!same);
            let mut cost = replaced.min(rows[before][column] + 1).min(rows[here][column - 1] + 1);
            if index > 0 && column > 1 && *letter == other[column - 2] && one[index - 1] == other[column - 1] {
                cost = cost.min(rows[earlier][column - 2] + 1);
            }
            rows[here][column] = cost;
            lowest = lowest.min(cost);
        }
        if usize::from(lowest) > max {
            return None;
        }
    }
    let cost = usize::from(rows[one.len() % 3][width - 1]);
    (cost <= max).then_some(cost)
}

/// A short ASCII word that is compared with many others. One bit per letter computes a column of the table at a time
/// (Hyyrö, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances", 2003).
pub(crate) struct BitPattern {
    length: u32,
    /// The positions of each letter in the word, as bits.
    positions: [u64; 128],
}

impl BitPattern {
    /// Returns `None` if the word is empty, longer than 64 bytes or not ASCII.
    pub(crate) fn new(word: &str) -> Option<BitPattern> {
        let length = u32::try_from(word.len()).ok().filter(|length| word.is_ascii() && (1..=64).contains(length))?;
        let mut positions = [0; 128];
        for (position, letter) in word.bytes().enumerate() {
            positions[usize::from(letter)] |= 1 << position;
        }
        Some(BitPattern { length, positions })
    }

    /// Returns the same number as [`distance`]. Returns `None` if `other` is not ASCII.
    pub(crate) fn typos(&self, other: &str) -> Option<usize> {
        // The differences between neighbours in a column: one more, one less.
        let (mut more, mut less) = (!0_u64, 0_u64);
        let (mut diagonal, mut before) = (0_u64, 0_u64);
        let (mut cost, last) = (self.length as usize, self.length - 1);
        for letter in other.bytes() {
            let here = *self.positions.get(usize::from(letter))?;
            let swapped = ((!diagonal & here) << 1) & before;
            diagonal = ((here & more).wrapping_add(more) ^ more) | here | less | swapped;
            let (row_more, row_less) = (less | !(diagonal | more), diagonal & more);
            cost += (row_more >> last & 1) as usize;
            cost -= (row_less >> last & 1) as usize;
            let (row_more, row_less) = (row_more << 1 | 1, row_less << 1);
            more = row_less | !(diagonal | row_more);
            less = row_more & diagonal;
            before = here;
        }
        Some(cost)
    }
}

/// Returns the set of letters of a word, as bits. One typo sets at most one bit and clears at most one. Comparing the
/// sets therefore excludes most words quickly.
pub(crate) fn letters(word: &str) -> u32 {
    word.chars().fold(0, |letters, letter| {
        let bit =
            if letter.is_ascii_lowercase() { u32::from(letter) - u32::from('a') } else { 26 + u32::from(letter) % 6 };
        letters | 1 << bit
    })
}

/// Reports whether the letters of two words permit at most `MAX` typos.
pub(crate) fn may_be_near<const MAX: usize>(one: u32, other: u32) -> bool {
    has_at_most::<MAX>(one & !other) && has_at_most::<MAX>(other & !one)
}

/// Reports whether at most `MAX` bits are set. Clearing bits is faster than counting them on processors without a
/// count instruction.
fn has_at_most<const MAX: usize>(bits: u32) -> bool {
    (0..MAX).fold(bits, |bits, _| bits & bits.wrapping_sub(1)) == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn between(one: &str, other: &str, max: usize) -> Option<usize> {
        distance(&one.chars().collect::<Vec<_>>(), &other.chars().collect::<Vec<_>>(), max)
    }

    #[test]
    fn the_distance_counts_typos_up_to_a_limit() {
        let check = |one: &str, other: &str, max, expected| {
            assert_eq!(between(one, other, max), expected, "{one} {other}");
            assert_eq!(between(other, one, max), expected, "{other} {one}");
        };
        check("issue", "issue", 0, Some(0));
        check("isue", "issue", 1, Some(1));
        check("isseu", "issue", 1, Some(1));
        check("isxue", "issue", 1, Some(1));
        check("repositry", "repository", 2, Some(1));
        check("reposotiry", "repository", 2, Some(2));
        check("create", "delete", 2, None);
        check("a", "abcd", 2, None);
        check("", "ab", 2, Some(2));
        check(&"x".repeat(1000), &"x".repeat(1000), 2, None);
    }

    proptest! {
        #[test]
        fn the_distance_agrees_with_a_plain_one_and_the_letter_filter_drops_no_match(one in "[a-f0-9é]{0,9}", other in "[a-f0-9é]{0,9}", max in 0_usize..4) {
            let plain = strsim::osa_distance(&one, &other);
            prop_assert_eq!(between(&one, &other, max), (plain <= max).then_some(plain));
            let typos = BitPattern::new(&one).and_then(|pattern| pattern.typos(&other));
            prop_assert_eq!(typos, (one.is_ascii() && other.is_ascii() && !one.is_empty()).then_some(plain));
            let (one, other) = (letters(&one), letters(&other));
            prop_assert!(plain > 1 || may_be_near::<1>(one, other));
            prop_assert!(plain > 2 || may_be_near::<2>(one, other));
        }
    }
}
