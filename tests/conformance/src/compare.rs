//! Compares two reports of the suite: one of a server, and one of the same server through the gateway.
//!
//! A check that passes directly must pass through the gateway. If a scenario has no failure directly, it must have none
//! through the gateway. The lists of expected failures explain the exceptions.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::report::{Check, Outcome, Report};
use crate::servers::Sdk;

const EXPECTED: &str = include_str!("../expected-failures.txt");
/// The expected failures of 2026-07-28 clients with a 2025-11-25 server.
const EXPECTED_NEW_TO_OLD: &str = include_str!("../expected-failures-new-to-old.txt");

/// The checks that may differ through the gateway, one line each: `SCENARIO CHECK`. The line starts with `absent ` if
/// the check neither passes nor fails.
pub struct Expected {
    lines: BTreeSet<&'static str>,
}

impl Expected {
    /// Returns the lines that apply to a server.
    pub fn of(sdk: Sdk) -> Expected {
        Expected { lines: applying(EXPECTED, sdk).collect() }
    }

    /// Returns the lines that apply if clients of 2026-07-28 meet a server with sessions.
    pub fn new_to_old(sdk: Sdk) -> Expected {
        Expected { lines: applying(EXPECTED, sdk).chain(applying(EXPECTED_NEW_TO_OLD, sdk)).collect() }
    }
}

/// Returns the lines of a list for a server, without the names of servers in front.
fn applying(text: &'static str, sdk: Sdk) -> impl Iterator<Item = &'static str> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(move |line| match line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
        Some((names, line)) => names.split(' ').any(|name| name == sdk.name()).then_some(line),
        None => Some(line),
    })
}

/// The result of a comparison.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The differences without an explanation, written as in the lists, with the suite's message.
    pub unexplained: Vec<String>,
    /// The lines of the lists that explain a difference.
    pub explained: Vec<String>,
    /// The lines of the lists with a failure that does not occur any more.
    pub needless: Vec<String>,
}

pub fn compare(direct: &Report, through: &Report, expected: &Expected) -> Comparison {
    let passed_directly = names(direct, |outcome| &outcome.passed);
    let passed = names(through, |outcome| &outcome.passed);
    let failed = names(through, |outcome| &outcome.failed);
    // A scenario that fails directly may fail in another place through the gateway.
    let is_excused = |name: &String| !passed_directly.contains(name) && fails(direct, name);
    let failing = failed.iter().filter(|name| !is_excused(name)).cloned();
    let absent = passed_directly.iter().filter(|name| !passed.contains(*name) && !failed.contains(*name));
    let differences = failing.chain(absent.map(|name| format!("absent {name}")));
    let (explained, unexplained): (Vec<_>, Vec<_>) =
        differences.partition(|line| expected.lines.contains(line.as_str()));
    // An absent check may pass at times, because the gateway opens a stream if an answer takes long.
    let is_needless = |line: &&&str| passed.contains(**line);
    Comparison {
        unexplained: unexplained.iter().map(|line| with_message(line, through)).collect(),
        explained,
        needless: expected.lines.iter().filter(is_needless).map(ToString::to_string).collect(),
    }
}

/// Returns whether the scenario of a check has a failed check.
fn fails(report: &Report, name: &str) -> bool {
    let scenario = name.split(' ').next().and_then(|scenario| report.scenarios.get(scenario));
    scenario.is_some_and(|outcome| !outcome.failed.is_empty())
}

/// Returns the checks of one kind as `SCENARIO CHECK`. Repeated checks are numbered.
fn names(report: &Report, kind: fn(&Outcome) -> &Vec<Check>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (scenario, outcome) in &report.scenarios {
        for check in kind(outcome) {
            let plain = format!("{scenario} {}", short(check));
            let numbered = (2..).map(|number| format!("{plain} #{number}"));
            let free = std::iter::once(plain.clone()).chain(numbered).find(|name| !found.contains(name));
            found.extend(free);
        }
    }
    found
}

/// Returns the name of a check without its id.
fn short(check: &Check) -> &str {
    check.check.rsplit('/').next().unwrap_or_default()
}

/// Adds the message of the suite to a difference, if there is one.
fn with_message(line: &str, through: &Report) -> String {
    let plain = line.trim_start_matches("absent ");
    let mut words = plain.split(' ');
    let (scenario, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let outcome = through.scenarios.get(scenario);
    let mut checks = outcome.into_iter().flat_map(|outcome| outcome.failed.iter().chain(&outcome.warned));
    let message = checks.find(|check| short(check) == name).and_then(|check| check.message.as_deref());
    message.map_or_else(|| line.to_owned(), |message| format!("{line}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a report of the scenario `s`. Each list has the names of checks.
    fn report(passed: &[&str], failed: &[&str], warned: &[&str]) -> Report {
        let checks = |names: &[&str]| {
            let check = |name: &&str| Check { check: format!("id/{name}"), message: Some(format!("about {name}")) };
            names.iter().map(check).collect()
        };
        let outcome = Outcome { passed: checks(passed), failed: checks(failed), warned: checks(warned) };
        Report { accepted: failed.is_empty(), scenarios: [("s".to_owned(), outcome)].into() }
    }

    #[test]
    fn differences_need_an_explanation() {
        let direct = report(&["A", "A", "B", "C"], &[], &[]);
        let check = |through: &Report, lines: &[&'static str], unexplained: &[&str], explained: &[&str]| {
            let expected = Expected { lines: lines.iter().copied().collect() };
            let found = compare(&direct, through, &expected);
            assert_eq!((found.unexplained, found.explained), (owned(unexplained), owned(explained)), "{lines:?}");
        };
        check(&report(&["A", "A", "B", "C", "D", "E"], &[], &[]), &[], &[], &[]);
        check(&report(&["A", "B", "C"], &[], &[]), &[], &["absent s A #2"], &[]);
        let worse = report(&["A", "A"], &["B", "E"], &["C"]);
        check(&worse, &[], &["s B: about B", "s E: about E", "absent s C: about C"], &[]);
        check(&worse, &["s B", "absent s C"], &["s E: about E"], &["s B", "absent s C"]);
    }

    #[test]
    fn a_scenario_that_fails_directly_may_fail_elsewhere() {
        let direct = report(&["A", "B"], &["C"], &[]);
        let through = report(&["A"], &["B", "D"], &[]);
        let found = compare(&direct, &through, &Expected { lines: BTreeSet::new() });
        assert_eq!(found.unexplained, owned(&["s B: about B"]));
    }

    #[test]
    fn a_line_can_name_its_servers() {
        let text = "# a comment\n\ns A\n[rust py1] absent s B\n";
        assert_eq!(applying(text, Sdk::Py1).collect::<Vec<_>>(), ["s A", "absent s B"]);
        assert_eq!(applying(text, Sdk::Ts1).collect::<Vec<_>>(), ["s A"]);
    }

    #[test]
    fn a_line_for_the_failure_of_a_passing_check_is_needless() {
        let expected = Expected { lines: ["s A", "absent s B", "s C"].into() };
        let both = report(&["A", "B"], &[], &[]);
        assert_eq!(compare(&both, &both, &expected).needless, owned(&["s A"]));
    }

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }
}
