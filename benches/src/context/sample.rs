//! The tools and queries of a measurement, chosen from published servers. Every run chooses the same ones.
//!
//! Smaller choices are subsets of larger ones. The servers take turns, so that no large server dominates.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;

const SEED: u64 = 20_260_728;

/// A published server with its tools in a pseudo-random order. A choice takes the first of them.
pub struct Published {
    pub id: String,
    pub tools: Vec<Tool>,
}

#[derive(Clone)]
pub struct Tool {
    pub name: String,
    pub definition: Box<RawValue>,
}

/// A search query and the tools that answer it, as `server/name`.
#[derive(Deserialize)]
pub struct Query {
    pub query: String,
    pub answers: Vec<String>,
}

/// The members of a catalog file that are used.
#[derive(Deserialize)]
struct Catalog {
    id: String,
    tools: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Returns all published servers in a pseudo-random order.
pub fn published() -> Result<Vec<Published>> {
    let directory = data().join("catalogs");
    let files = fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut servers = files.map(|file| read_server(&file?.path())).collect::<Result<Vec<_>>>()?;
    ensure!(!servers.is_empty(), "no catalogs in {}", directory.display());
    servers.sort_by_cached_key(|server| (chance(&server.id), server.id.clone()));
    Ok(servers)
}

/// Returns the server with this id.
pub fn server(id: &str) -> Result<Published> {
    read_server(&data().join("catalogs").join(format!("{id}.json")))
}

fn read_server(file: &Path) -> Result<Published> {
    let Catalog { id, tools } = read(file)?;
    let mut tools = tools.into_iter().map(Tool::new).collect::<Result<Vec<_>>>()?;
    tools.sort_by_cached_key(|tool| (chance(&format!("{id}/{}", tool.name)), tool.name.clone()));
    Ok(Published { id, tools })
}

impl Tool {
    fn new(definition: Box<RawValue>) -> Result<Self> {
        let Named { name } = serde_json::from_str(definition.get())?;
        Ok(Self { name, definition })
    }
}

/// Chooses `count` tools in rounds: one of each server, then a second one of each, until there are enough.
pub fn choose(servers: &[Published], count: usize) -> Vec<Published> {
    let mut chosen: BTreeMap<usize, Vec<Tool>> = BTreeMap::new();
    let longest = servers.iter().map(|server| server.tools.len()).max().unwrap_or(0);
    let in_turns = (0..longest).flat_map(|turn| {
        let of_turn = move |(place, server): (usize, &Published)| Some((place, server.tools.get(turn)?.clone()));
        servers.iter().enumerate().filter_map(of_turn)
    });
    for (place, tool) in in_turns.take(count) {
        chosen.entry(place).or_default().push(tool);
    }
    chosen.into_iter().map(|(place, tools)| Published { id: servers[place].id.clone(), tools }).collect()
}

/// Returns `count` of the queries that a tool of `servers` answers.
pub fn queries(servers: &[Published], count: usize) -> Result<Vec<Query>> {
    let mut queries: Vec<Query> = read(&data().join("queries.json"))?;
    let is_there = |answer: &String| {
        let (id, name) = answer.split_once('/').unwrap_or_default();
        servers.iter().any(|server| server.id == id && server.tools.iter().any(|tool| tool.name == name))
    };
    queries.iter_mut().for_each(|query| query.answers.retain(is_there));
    queries.retain(|query| !query.answers.is_empty());
    queries.sort_by_cached_key(|query| (chance(&query.query), query.query.clone()));
    ensure!(queries.len() >= count, "only {} queries are about the chosen tools, {count} are needed", queries.len());
    queries.truncate(count);
    Ok(queries)
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/search")
}

fn read<Content: for<'a> Deserialize<'a>>(file: &Path) -> Result<Content> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} has unexpected content", file.display()))
}

/// Returns a pseudo-random number that is the same on every machine and with every compiler: FNV-1a with mixed bits.
fn chance(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ SEED, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests {
    use super::{Published, choose, published, queries};

    fn names(servers: &[Published]) -> Vec<String> {
        let of_server =
            |server: &Published| server.tools.iter().map(|tool| format!("{}/{}", server.id, tool.name)).collect();
        servers.iter().flat_map::<Vec<_>, _>(of_server).collect()
    }

    #[test]
    fn choices_are_spread_over_servers_and_part_of_larger_ones() {
        let all = published().unwrap();
        let [few, more, many] = [10, 100, 1000].map(|count| choose(&all, count));
        assert_eq!([&few, &more, &many].map(|chosen| names(chosen).len()), [10, 100, 1000]);
        assert_eq!((few.len(), more.len()), (10, all.len()));
        assert!(names(&few).iter().all(|name| names(&more).contains(name)));
        assert!(names(&more).iter().all(|name| names(&many).contains(name)));
        assert_eq!(names(&few), names(&choose(&published().unwrap(), 10)), "the same each time");
    }

    #[test]
    fn queries_are_about_tools_that_were_chosen() {
        let chosen = choose(&published().unwrap(), 1000);
        let there = names(&chosen);
        let queries = queries(&chosen, 30).unwrap();
        assert_eq!(queries.len(), 30);
        for query in &queries {
            assert!(!query.answers.is_empty() && query.answers.iter().all(|answer| there.contains(answer)));
        }
    }
}
