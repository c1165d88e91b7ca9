//! `cargo xtask attack`: runs every hostile test against the release build and prints the cost of each attack.
//!
//! The tests assert that the neighbour's calls succeed. This task adds the table of their times, which only a release
//! build shows well. One attack runs at a time, so that no attack slows the neighbour of another.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{cargo, run as run_command, target_directory};

pub fn run(root: &Path, filter: Option<&str>) -> Result<()> {
    let report = std::path::absolute(target_directory(root).join("attacks.jsonl"))?;
    if report.exists() {
        fs::remove_file(&report).with_context(|| format!("cannot remove {}", report.display()))?;
    }
    // Some of the tests start helper programs of the workspace.
    run_command(&mut cargo(root, &["build", "--release", "--bins", "--package", "goblin-fixture"]))?;
    let filter = filter.unwrap_or("hostile_");
    let arguments =
        ["test", "--release", "--package", "goblin-gateway", "--test", "it", filter, "--", "--test-threads=1"];
    let outcome = run_command(cargo(root, &arguments).env("GOBLIN_ATTACK_REPORT", &report));
    let lines = fs::read_to_string(&report).unwrap_or_default();
    eprintln!("\n{}", table(&lines)?);
    outcome?;
    ensure!(!lines.is_empty(), "no test matches {filter}");
    Ok(())
}

/// Renders the lines of the report.
fn table(lines: &str) -> Result<String> {
    let heads = ["attack", "neighbour calls", "p99", "peak"].map(str::to_owned);
    let mut rows = vec![heads];
    for line in lines.lines() {
        let attack: Value = serde_json::from_str(line).with_context(|| format!("the report has the line {line}"))?;
        let number = |name: &str| attack[name].as_u64().with_context(|| format!("the report has no {name}: {line}"));
        let name = attack["attack"].as_str().unwrap_or_default().to_owned();
        let p99 = format!("{:.1} ms", number("p99_us")? as f64 / 1000.0);
        rows.push([name, number("calls")?.to_string(), p99, format!("{} MiB", number("peak_mib")?)]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3].map(width);
    let lines = rows.iter().map(|[name, calls, p99, peak]| {
        let [first, second, third, fourth] = widths;
        format!("{name:first$}  {calls:>second$}  {p99:>third$}  {peak:>fourth$}")
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_becomes_a_table() {
        let line = r#"{"attack":"deep JSON","calls":25,"p99_us":1234,"peak_mib":41}"#;
        let expected = "attack     neighbour calls     p99    peak\ndeep JSON               25  1.2 ms  41 MiB";
        assert_eq!(table(line).unwrap(), expected);
        assert!(table("nonsense").is_err());
    }
}
