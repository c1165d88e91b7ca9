//! Measures the search over a catalog: building the index, querying it, and its memory. It runs in this process with
//! Goblin's allocator and counts CPU time, so that other processes have no influence.
//!
//! The catalogs are synthetic: names of a verb and a thing, and descriptions and arguments of usual length. They have
//! as many different words as real catalogs, because the postings of common words and the number of words determine the
//! cost.

use std::fmt::Write;

use goblin_catalog::search::{Index, document};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

pub const SIZES: [usize; 3] = [100, 1000, 10_000];
/// The tools of one server.
const PER_SERVER: usize = 40;
/// The number of times that each query runs.
const RUNS_PER_ROUND: usize = 50;
/// The default limit of a search.
const LIMIT: usize = 10;

const VERBS: [&str; 16] = [
    "create", "list", "get", "update", "delete", "search", "send", "run", "stop", "move", "copy", "merge", "export",
    "convert", "validate", "publish",
];
const THINGS: [&str; 24] = [
    "issue",
    "pull_request",
    "repository",
    "branch",
    "file",
    "directory",
    "message",
    "channel",
    "user",
    "team",
    "project",
    "task",
    "calendar_event",
    "customer",
    "invoice",
    "database",
    "table",
    "query",
    "container",
    "deployment",
    "dashboard",
    "alert",
    "webhook",
    "document",
];
const OTHERS: [&str; 24] = [
    "given",
    "identifier",
    "optional",
    "filters",
    "returns",
    "matching",
    "results",
    "sorted",
    "creation",
    "date",
    "supports",
    "pagination",
    "cursor",
    "requires",
    "write",
    "access",
    "workspace",
    "the",
    "of",
    "and",
    "to",
    "with",
    "when",
    "only",
];

/// Queries from a name to a paragraph. The third has typos, and the fourth is a word of nearly every tool.
const QUERIES: [&str; 6] = [
    "create_issue",
    "how do I list all the open pull requests of a repository that need review",
    "databse conection strng",
    "returns",
    "rep",
    "remove the customer from the mailing list and send a notification to the team channel with a summary of the changes",
];

/// The figures of one catalog size.
#[derive(Serialize)]
pub struct Search {
    pub entries: usize,
    pub bytes_of_definitions: usize,
    /// The median of the rounds.
    pub build_us: f64,
    /// The median of all queries. The next field has the median of the most expensive one.
    pub query_us: f64,
    pub slowest_us: f64,
    pub bytes: usize,
}

pub fn measure(rounds: usize) -> Vec<Search> {
    SIZES.map(|entries| measure_size(entries, rounds)).into()
}

fn measure_size(entries: usize, rounds: usize) -> Search {
    let tools: Vec<Tool> = generate_tools(entries);
    let build = || {
        Index::build(
            tools.iter().map(|tool| document::tool(&tool.definition, &tool.exposed, &tool.native, &tool.server)),
        )
    };
    let index = build();
    let builds: Vec<f64> = (0..rounds).map(|_| timed(|| drop(build()))).collect();
    let query_times = QUERIES.map(|query| {
        let once = || timed(|| drop(std::hint::black_box(index.search(query, LIMIT, |_| true))));
        median((0..RUNS_PER_ROUND * rounds).map(|_| once()).collect())
    });
    eprintln!("search, {entries} entries: measured");
    Search {
        entries,
        bytes_of_definitions: tools.iter().map(|tool| tool.definition.len()).sum(),
        build_us: median(builds),
        query_us: median(query_times.to_vec()),
        slowest_us: query_times.into_iter().fold(0.0, f64::max),
        bytes: index.size(),
    }
}

struct Tool {
    server: String,
    native: String,
    exposed: String,
    definition: String,
}

/// Generates the same tools in each run.
fn generate_tools(count: usize) -> Vec<Tool> {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    (0..count)
        .map(|number| {
            let server = format!("server{}", number / PER_SERVER);
            let (verb, thing) = (dice.pick(&VERBS), dice.pick(&THINGS));
            let native = format!("{verb}_{thing}_{}", dice.below(100));
            let mut description = format!("{verb} a {} of {server}.", thing.replace('_', " "));
            for _ in 0..30 + dice.below(60) {
                // One word in four is specific to this server.
                let _ = match dice.below(4) {
                    0 => write!(
                        description,
                        " {}{}",
                        dice.pick(&THINGS),
                        spell(number / PER_SERVER * 20 + dice.below(50))
                    ),
                    _ => write!(description, " {}", dice.pick(&OTHERS)),
                };
            }
            let arguments: Vec<_> = (0..2 + dice.below(6))
                .map(|place| {
                    let (name, about) = (dice.pick(&THINGS), dice.pick(&THINGS));
                    format!(r#""{name}_{place}":{{"type":"string","description":"The {about} to {verb}"}}"#)
                })
                .collect();
            let schema = format!(r#"{{"type":"object","properties":{{{}}}}}"#, arguments.join(","));
            let definition = format!(r#"{{"name":"{native}","description":"{description}","inputSchema":{schema}}}"#);
            Tool { exposed: format!("{server}_{native}"), server, native, definition }
        })
        .collect()
}

/// Spells a number in letters. Digits would split a word into two.
fn spell(number: usize) -> String {
    format!("{number}").bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
}

/// Xorshift, a pseudo-random sequence that is the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % sides
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// Returns the CPU time of this thread in microseconds.
fn timed(action: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let before = now();
    action();
    now() - before
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::generate_tools;

    #[test]
    fn made_up_tools_are_json_and_the_same_each_time() {
        let (one, other) = (generate_tools(100), generate_tools(100));
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one.definition, other.definition);
            serde_json::from_str::<serde_json::Value>(&one.definition).unwrap();
        }
    }
}
