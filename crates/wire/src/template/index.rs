//! Finds the templates that may match a URI by the literal text at their beginning.
//!
//! The prefixes are sorted. Each prefix links to the longest shorter one that it begins with. Every text that sorts
//! between a prefix and a URI with that prefix also begins with that prefix. The longest prefix of a URI is therefore
//! the last prefix that sorts before the URI, or one on its chain of links. A lookup takes one binary search and one
//! walk along the links.

use std::collections::BTreeMap;
use std::iter;

use super::Template;

/// The templates of one backend by their literal prefix.
#[derive(Debug, Default)]
pub struct TemplateIndex {
    /// All prefixes, sorted by text.
    prefixes: Vec<Prefix>,
}

#[derive(Debug)]
struct Prefix {
    text: Box<str>,
    /// The longest other prefix that this one begins with.
    shorter: Option<usize>,
    /// The numbers of the templates with this prefix.
    templates: Vec<usize>,
}

impl TemplateIndex {
    /// Builds the index. The numbers identify the templates for the caller.
    pub fn new<'a>(templates: impl Iterator<Item = (usize, &'a Template)>) -> TemplateIndex {
        let mut by_prefix: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, template) in templates {
            by_prefix.entry(template.literal_prefix()).or_default().push(number);
        }
        let mut prefixes: Vec<Prefix> = Vec::with_capacity(by_prefix.len());
        for (text, templates) in by_prefix {
            let shorter = longest_prefix(&prefixes, prefixes.len().checked_sub(1), text);
            prefixes.push(Prefix { text: text.into(), shorter, templates });
        }
        TemplateIndex { prefixes }
    }

    /// Returns the numbers of the templates with a literal prefix that the URI begins with. The longest prefixes come
    /// first.
    pub fn candidates<'a>(&'a self, uri: &str) -> impl Iterator<Item = usize> + use<'a> {
        let after = self.prefixes.partition_point(|prefix| *prefix.text <= *uri);
        let longest = longest_prefix(&self.prefixes, after.checked_sub(1), uri);
        let fitting = iter::successors(longest, |at| self.prefixes[*at].shorter);
        fitting.flat_map(|at| self.prefixes[at].templates.iter().copied())
    }
}

/// Returns the first prefix of `text` on the chain of links that starts at `at`.
fn longest_prefix(prefixes: &[Prefix], mut at: Option<usize>, text: &str) -> Option<usize> {
    while let Some(place) = at
        && !text.starts_with(&*prefixes[place].text)
    {
        at = prefixes[place].shorter;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(texts: &[String]) -> (Vec<Template>, TemplateIndex) {
        let templates: Vec<_> = texts.iter().map(|text| Template::parse(text).expect(text)).collect();
        let index = TemplateIndex::new(templates.iter().enumerate());
        (templates, index)
    }

    #[test]
    fn hard4_only_templates_with_a_matching_literal_prefix_are_candidates() {
        let texts = ["a://x/{b}", "a://{b}", "{+all}", "a://x/y{b}", "c:{d}", "a://x/", "{?q}"].map(String::from);
        let (_, index) = index(&texts);
        let candidates = |uri: &str| index.candidates(uri).map(|number| &*texts[number]).collect::<Vec<_>>();
        assert_eq!(candidates("a://x/y1"), ["a://x/y{b}", "a://x/{b}", "a://x/", "a://{b}", "{+all}", "{?q}"]);
        assert_eq!(candidates("a://z"), ["a://{b}", "{+all}", "{?q}"]);
        assert_eq!(candidates("c:1"), ["c:{d}", "{+all}", "{?q}"]);
        assert_eq!(candidates(""), ["{+all}", "{?q}"]);
        assert_eq!(TemplateIndex::default().candidates("a").count(), 0);
    }

    proptest! {
        #[test]
        fn hard4_candidates_are_all_templates_with_a_fitting_prefix(
            prefixes in prop::collection::vec("[ab/]{0,5}", 0..12),
            uri in "[ab/]{0,8}",
        ) {
            let texts: Vec<_> = prefixes.iter().map(|prefix| format!("{prefix}{{x}}")).collect();
            let (templates, index) = index(&texts);
            let mut found: Vec<_> = index.candidates(&uri).collect();
            found.sort_unstable();
            let fits = |(_, template): &(usize, &Template)| uri.starts_with(template.literal_prefix());
            let expected: Vec<_> = templates.iter().enumerate().filter(fits).map(|(number, _)| number).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
