//! The table and bars of the cost of search.
//!
//! The bars apply to the largest catalog. The functions here only format and compare.

use super::{Bar, KIB, MIB, line, time};
use crate::search::{SIZES, Search};

const LARGEST: usize = SIZES[SIZES.len() - 1];
const QUERY_LIMIT_US: f64 = 1000.0;
const BUILD_LIMIT_US: f64 = 1e6;

pub fn table(searches: &[Search]) -> String {
    let mut text = String::new();
    if !searches.is_empty() {
        text += "\n| entries | of definitions | built in | a query | the slowest | memory | each |\n";
        text += "|--:|--:|--:|--:|--:|--:|--:|\n";
    }
    for search in searches {
        let (build, query, slowest) = (time(search.build_us), time(search.query_us), time(search.slowest_us));
        let definitions = search.bytes_of_definitions as f64 / KIB as f64;
        let (all, each) = (search.bytes as f64 / MIB as f64, search.bytes / search.entries);
        let entries = search.entries;
        line(
            &mut text,
            format_args!(
                "| {entries} | {definitions:.0} KiB | {build} | {query} | {slowest} | {all:.1} MiB | {each} B |"
            ),
        );
    }
    text
}

pub fn bars(searches: &[Search]) -> Vec<Bar> {
    let largest = searches.iter().filter(|search| search.entries == LARGEST);
    let bar = |what: &str, limit, measured| Bar {
        promise: format!("{what}, {LARGEST} entries"),
        limit: time(limit),
        measured: time(measured),
        kept: measured < limit,
    };
    let bars = largest.flat_map(|search| {
        let slowest = bar("CPU of the slowest query", QUERY_LIMIT_US, search.slowest_us);
        [slowest, bar("CPU to build the index", BUILD_LIMIT_US, search.build_us)]
    });
    bars.collect()
}

#[cfg(test)]
mod tests {
    use super::{LARGEST, bars, table};
    use crate::search::Search;

    #[test]
    fn search_is_held_against_its_bars() {
        let check = |entries, slowest_us, build_us, expected: &[bool]| {
            let search =
                Search { entries, bytes_of_definitions: 2048, build_us, query_us: 5.0, slowest_us, bytes: 1 << 20 };
            let kept: Vec<_> = bars(&[search]).iter().map(|bar| bar.kept).collect();
            assert_eq!(kept, expected, "{entries} {slowest_us} {build_us}");
        };
        check(LARGEST, 999.0, 999_999.0, &[true, true]);
        check(LARGEST, 1000.0, 1_000_000.0, &[false, false]);
        check(LARGEST - 1, 5000.0, 5_000_000.0, &[]);
        let search = Search {
            entries: 1024,
            bytes_of_definitions: 2048,
            build_us: 20_000.0,
            query_us: 5.0,
            slowest_us: 300.0,
            bytes: 1 << 20,
        };
        assert!(table(&[search]).ends_with("| 1024 | 2 KiB | 20.0 ms | 5.0 us | 300 us | 1.0 MiB | 1024 B |\n"));
        assert_eq!(table(&[]), "");
    }
}
