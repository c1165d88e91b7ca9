//! The quality of the search on the labelled set of `tests/search`. It is measured on the half of the queries that was
//! not used for tuning, and compared with simple baselines.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use goblin_catalog::name;
use goblin_catalog::search::{Document, Index, document};
use goblin_config::{NamePolicy, Namespacing, ServerId};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The number of tools for the bar.
const BAR_ENTRIES: usize = 1000;
/// The bar in percent of the held-out half: the right tool first, and among the first five.
const BAR: (f64, f64) = (80.0, 95.0);

#[derive(Deserialize)]
struct Catalog {
    id: String,
    tools: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Labelled {
    query: String,
    answers: Vec<String>,
}

struct Tool {
    /// The name in the labels.
    label: String,
    exposed: String,
    native: String,
    server: String,
    definition: String,
}

impl Tool {
    fn document(&self) -> Document<'_> {
        document::tool(&self.definition, &self.exposed, &self.native, &self.server)
    }

    /// Returns all words of the tool as one text, for a simple search.
    fn text(&self) -> String {
        let Document { name, title, description, arguments, .. } = self.document();
        let arguments = arguments.iter().flat_map(|(name, about)| [&**name, &**about]);
        [&*name, &*title, &*description].into_iter().chain(arguments).collect::<Vec<_>>().join(" ").to_lowercase()
    }
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/search"))
}

fn all_tools() -> Vec<Tool> {
    let files = std::fs::read_dir(directory().join("catalogs")).expect("the catalogs are there");
    let mut tools: Vec<_> = files.flat_map(|file| tools_of(&file.expect("a file").path())).collect();
    tools.sort_by(|one, other| one.label.cmp(&other.label));
    tools
}

fn tools_of(path: &Path) -> Vec<Tool> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let text = std::fs::read_to_string(path).expect("a catalog");
    let Catalog { id, tools } = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let server = ServerId::new(&id).expect("an id");
    let tool = |definition: Box<RawValue>| {
        let Named { name: native } = serde_json::from_str(definition.get()).expect("a name");
        let exposed = name::claimed_names(NamePolicy::Prefix, &Namespacing::default(), &id, &server, &native).remove(0);
        let (label, definition) = (format!("{id}/{native}"), definition.get().to_owned());
        Tool { label, exposed, native, server: id.clone(), definition }
    };
    tools.into_iter().map(tool).collect()
}

fn queries() -> Vec<Labelled> {
    let text = std::fs::read_to_string(directory().join("queries.json")).expect("the queries are there");
    serde_json::from_str(&text).expect("queries")
}

/// Reports whether a query belongs to the held-out half.
fn is_held_out(query: &str) -> bool {
    Sha256::digest(query.as_bytes())[0] % 2 == 1
}

/// Returns `count` tools: all that answer a query, and others that a hash selects.
fn some_of(tools: Vec<Tool>, queries: &[Labelled], count: usize) -> Vec<Tool> {
    let answers: HashSet<&str> = queries.iter().flat_map(|query| query.answers.iter().map(String::as_str)).collect();
    let mut tools = tools;
    tools.sort_by_cached_key(|tool| (!answers.contains(tool.label.as_str()), Sha256::digest(&tool.label).to_vec()));
    assert!(answers.len() < count, "{} answers leave no room for others", answers.len());
    tools.truncate(count);
    tools.sort_by(|one, other| one.label.cmp(&other.label));
    tools
}

/// A search algorithm. It returns the indices of the results, best first.
type Way<'a> = (&'static str, Box<dyn Fn(&str) -> Vec<usize> + 'a>);

fn ways(tools: &[Tool]) -> [Way<'_>; 3] {
    let texts: Vec<_> = tools.iter().map(Tool::text).collect();
    let plain = Bm25::new(&texts);
    let index = Index::build(tools.iter().map(Tool::document));
    let substring = move |query: &str| {
        let query = query.to_lowercase();
        let words: Vec<_> = words(&query).collect();
        best(texts.iter().map(|text| words.iter().filter(|word| text.contains(*word)).count() as f64))
    };
    let index_search =
        move |query: &str| index.search(query, 5, |_| true).hits.iter().map(|hit| hit.document).collect();
    [
        ("substrings", Box::new(substring)),
        ("BM25, unweighted", Box::new(move |query| plain.search(query))),
        ("Goblin", Box::new(index_search)),
    ]
}

/// The usual formula over one field, without stems, stop words or weights.
struct Bm25 {
    postings: HashMap<String, Vec<(usize, f64)>>,
    lengths: Vec<f64>,
}

impl Bm25 {
    fn new(texts: &[String]) -> Bm25 {
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        for (place, text) in texts.iter().enumerate() {
            for word in words(text) {
                let places = postings.entry(word.to_owned()).or_default();
                match places.last_mut().filter(|(last, _)| *last == place) {
                    Some((_, count)) => *count += 1.0,
                    None => places.push((place, 1.0)),
                }
            }
        }
        Bm25 { postings, lengths: texts.iter().map(|text| words(text).count() as f64).collect() }
    }

    fn search(&self, query: &str) -> Vec<usize> {
        const K1: f64 = 1.2;
        const B: f64 = 0.75;
        let all = self.lengths.len() as f64;
        let usual = self.lengths.iter().sum::<f64>() / all;
        let mut scores = vec![0.0; self.lengths.len()];
        for places in words(&query.to_lowercase()).filter_map(|word| self.postings.get(word)) {
            let with = places.len() as f64;
            let rarity = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
            for (place, count) in places {
                let length = 1.0 - B + B * self.lengths[*place] / usual;
                scores[*place] += rarity * count * (K1 + 1.0) / (count + K1 * length);
            }
        }
        best(scores.into_iter())
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty())
}

fn best(scores: impl Iterator<Item = f64>) -> Vec<usize> {
    let mut scored: Vec<_> = scores.enumerate().filter(|(_, score)| *score > 0.0).collect();
    scored.sort_by(|one, other| other.1.total_cmp(&one.1));
    scored.into_iter().take(5).map(|(place, _)| place).collect()
}

/// Returns the percentages of queries with the right tool first, and among the first five.
fn measure(tools: &[Tool], queries: &[&Labelled], search: &dyn Fn(&str) -> Vec<usize>) -> (f64, f64) {
    let (mut first, mut five) = (0, 0);
    for labelled in queries {
        let found = search(&labelled.query);
        let rank = found.iter().take(5).position(|place| labelled.answers.contains(&tools[*place].label));
        first += usize::from(rank == Some(0));
        five += usize::from(rank.is_some());
    }
    let percent = |count: usize| 100.0 * count as f64 / queries.len() as f64;
    (percent(first), percent(five))
}

#[test]
fn meta5_search_reaches_its_accuracy_and_the_documented_figures_are_current() {
    let queries = queries();
    let (held_out, tuning): (Vec<_>, Vec<_>) = queries.iter().partition(|labelled| is_held_out(&labelled.query));
    assert!(queries.len() >= 200 && held_out.len() >= 100, "{} queries", queries.len());
    let all = all_tools();
    assert!(all.len() >= BAR_ENTRIES, "{} tools", all.len());
    let corpora = [some_of(all_tools(), &queries, BAR_ENTRIES), all];
    let mut table = "| tools | search | held-out half: first | among five | tuning half: first | among five |\n\
                     |--:|---|--:|--:|--:|--:|\n"
        .to_owned();
    let mut figures = Vec::new();
    for tools in &corpora {
        for (name, search) in &ways(tools) {
            let (first, five) = measure(tools, &held_out, search);
            let (tuned_first, tuned_five) = measure(tools, &tuning, search);
            let count = tools.len();
            table += &format!(
                "| {count} | {name} | {first:.1} % | {five:.1} % | {tuned_first:.1} % | {tuned_five:.1} % |\n"
            );
            figures.push((first, five));
        }
    }
    check_page(&table);
    for (place, corpus) in figures.chunks(3).enumerate() {
        let [_, plain, index_search] = corpus else { panic!("three ways") };
        assert!(
            index_search.0 > plain.0 && index_search.1 > plain.1,
            "{place}: {index_search:?} is no better than {plain:?}"
        );
    }
    let index_search = figures[2];
    assert!(
        index_search.0 >= BAR.0 && index_search.1 >= BAR.1,
        "the bar is {BAR:?}, and this is {index_search:?}\n{table}"
    );
}

/// Asserts that the page contains this table between the marks.
fn check_page(table: &str) {
    const MARKS: (&str, &str) = ("<!-- quality -->\n", "<!-- end of quality -->");
    let path = directory().join("../../docs/reference/search.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(MARKS.0).expect("the first mark");
    let (written, after) = rest.split_once(MARKS.1).expect("the second mark");
    if std::env::var_os("GOBLIN_BLESS").is_some() {
        let page = format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1);
        return std::fs::write(&path, page).expect("the page can be written");
    }
    assert!(
        written == table,
        "docs/reference/search.md is stale, run: GOBLIN_BLESS=1 cargo test --test it search_quality\n{table}"
    );
}
