//! Computes the price of a conversation's tokens, and the number of tools from which a search is cheaper. This module
//! only does arithmetic.
//!
//! The model: a client sends the whole conversation with each request, and a request ends with one tool call or with
//! the last answer. Tokens that are sent for the first time cost the full price. Tokens that are sent again cost a part
//! of it: all of it if nothing is cached, little if it is cached, nothing if only the room in the context counts.

use serde::Serialize;

/// The parameters that differ between clients and models.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// The price of a repeated token, as a fraction of the full price.
    pub again: f64,
    /// The tokens before any tool: instructions and the question.
    pub begin: f64,
    /// The tokens of a tool's result.
    pub result: f64,
}

/// The tokens of finding and calling one tool, with arguments and results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Use {
    pub search: f64,
    pub describe: f64,
    /// The arguments of `call_tool` around the tool's own arguments.
    pub call: f64,
    /// A call by the tool's own name.
    pub direct: f64,
}

/// Returns the requests of a conversation without and with a search, including the last answer.
pub fn requests(uses: usize) -> (usize, usize) {
    (uses + 1, 3 * uses + 1)
}

/// Returns the smallest number of listed tools for which the search is cheaper. A listed tool costs `each` tokens and
/// the gateway's own tools cost `own`. Each use is of another tool, which is the worst case for the search.
pub fn break_even(terms: Terms, uses: usize, step: Use, own: f64, each: f64) -> usize {
    let searching = [step.search, step.describe, step.call + terms.result];
    let searched = paid(terms, terms.begin + own, (0..uses).flat_map(|_| searching));
    let direct = || (0..uses).map(|_| step.direct + terms.result);
    let unlisted = paid(terms, terms.begin, direct());
    let of_one = paid(terms, terms.begin + each, direct()) - unlisted;
    let least = ((searched - unlisted) / of_one).floor();
    least.max(0.0) as usize + 1
}

/// Returns the price of a whole conversation, from its first tokens and the tokens that each step adds.
fn paid(terms: Terms, begin: f64, steps: impl Iterator<Item = f64>) -> f64 {
    let (mut context, mut paid) = (begin, begin);
    for step in steps {
        paid += terms.again * context + step;
        context += step;
    }
    paid
}

#[cfg(test)]
mod tests {
    use super::{Terms, Use, break_even, paid, requests};

    const STEP: Use = Use { search: 100.0, describe: 50.0, call: 20.0, direct: 10.0 };

    fn terms(again: f64) -> Terms {
        Terms { again, begin: 0.0, result: 0.0 }
    }

    #[test]
    fn repeated_tokens_cost_a_fraction_of_the_price() {
        for (again, expected) in [(0.0, 130.0), (0.1, 130.0 + 10.0 + 11.0), (1.0, 100.0 + 110.0 + 130.0)] {
            assert!((paid(terms(again), 100.0, [10.0, 20.0].into_iter()) - expected).abs() < 1e-9, "{again}");
        }
    }

    #[test]
    fn the_break_even_of_a_search_depends_on_uses_and_repeated_tokens() {
        let own = 340.0;
        // Only room counts: own + uses * (100 + 50 + 20 - 10) tokens equal that many tools of 100 tokens, and one more
        // breaks even.
        for (uses, expected) in [(0, 4), (1, 6), (3, 9), (10, 20)] {
            assert_eq!(break_even(terms(0.0), uses, STEP, own, 100.0), expected, "{uses}");
        }
        // Nothing is cached, one use: 340 + 440 + 490 + 510 less 10. A tool costs 200 in two requests.
        assert_eq!(break_even(terms(1.0), 1, STEP, own, 100.0), 1770 / 200 + 1);
        // The search sends a long question two more times.
        let long = Terms { begin: 1000.0, ..terms(1.0) };
        assert_eq!(break_even(long, 1, STEP, own, 100.0), 3770 / 200 + 1);
        // The search also repeats the result of each tool before the last.
        let talkative = Terms { result: 1000.0, ..terms(1.0) };
        assert_eq!(break_even(talkative, 1, STEP, own, 100.0), break_even(terms(1.0), 1, STEP, own, 100.0));
        assert!(break_even(talkative, 2, STEP, own, 100.0) > break_even(terms(1.0), 2, STEP, own, 100.0));
    }

    #[test]
    fn a_search_is_cheaper_at_the_break_even_and_not_one_tool_before() {
        let terms = Terms { again: 0.1, begin: 2000.0, result: 300.0 };
        let (own, each) = (1234.0, 321.0);
        let listed = |tools: usize| paid(terms, terms.begin + each * tools as f64, std::iter::repeat_n(310.0, 3));
        let steps = (0..3).flat_map(|_| [100.0, 50.0, 320.0]);
        let searched = paid(terms, terms.begin + own, steps);
        let least = break_even(terms, 3, STEP, own, each);
        assert!(listed(least) > searched && listed(least - 1) <= searched, "{least}");
    }

    #[test]
    fn a_search_takes_three_requests_for_each_use() {
        assert_eq!(requests(1), (2, 4));
        assert_eq!(requests(10), (11, 31));
    }
}
