//! The sums of all fuzz runs, kept in `fuzz/hours.json` and shown as a table in `docs/security.md`.
//!
//! `cargo xtask fuzz` writes both files. `tidy` fails if they differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

const FILE: &str = "fuzz/hours.json";
pub const DOCUMENT: &str = "docs/security.md";
const BEGIN: &str = "<!-- figures of fuzz/hours.json, written by cargo xtask fuzz -->\n";
const END: &str = "<!-- end of the figures -->\n";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    cpu_seconds: u64,
    executions: u64,
    findings: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures(BTreeMap<String, Sum>);

impl Figures {
    pub fn read(root: &Path) -> Result<Figures> {
        let text = fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Figures::parse(&text)
    }

    fn parse(text: &str) -> Result<Figures> {
        let value: BTreeMap<String, Value> =
            serde_json::from_str(text).with_context(|| format!("{FILE} is not JSON"))?;
        let sums = value.into_iter().map(|(target, sum)| {
            let number = |name: &str| sum[name].as_u64().with_context(|| format!("{FILE}: {target} has no {name}"));
            let sum = Sum {
                cpu_seconds: number("cpuSeconds")?,
                executions: number("executions")?,
                findings: number("findings")?,
            };
            Ok((target.clone(), sum))
        });
        sums.collect::<Result<_>>().map(Figures)
    }

    pub fn add(&mut self, target: &str, cpu_seconds: u64, executions: u64, findings: u64) {
        let sum = self.0.entry(target.to_owned()).or_default();
        sum.cpu_seconds += cpu_seconds;
        sum.executions += executions;
        sum.findings += findings;
    }

    /// Writes the file and the table of the document.
    pub fn write(&self, root: &Path) -> Result<()> {
        let json = |sum: &Sum| json!({ "cpuSeconds": sum.cpu_seconds, "executions": sum.executions, "findings": sum.findings });
        let value: BTreeMap<&String, Value> = self.0.iter().map(|(target, sum)| (target, json(sum))).collect();
        let text = format!("{}\n", serde_json::to_string_pretty(&value).context("figures are JSON")?);
        fs::write(root.join(FILE), text).with_context(|| format!("cannot write {FILE}"))?;
        let path = root.join(DOCUMENT);
        let document = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
        fs::write(&path, self.put_into(&document)?).with_context(|| format!("cannot write {DOCUMENT}"))
    }

    /// Returns the document with its table replaced by these figures.
    fn put_into(&self, document: &str) -> Result<String> {
        let parts = document.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) = parts.with_context(|| format!("{DOCUMENT} has no place for the figures"))?;
        Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", self.table()))
    }

    fn table(&self) -> String {
        let mut table = "| Target | CPU time | Executions | Findings, all fixed |\n|---|--:|--:|--:|\n".to_owned();
        let mut total = Sum::default();
        let mut row = |target: &str, sum: &Sum| {
            let (hours, minutes) = (sum.cpu_seconds / 3600, sum.cpu_seconds / 60 % 60);
            let executions = grouped(sum.executions);
            writeln!(table, "| {target} | {hours} h {minutes:02} min | {executions} | {} |", sum.findings)
                .expect("writing to a String cannot fail");
        };
        for (target, sum) in &self.0 {
            row(&format!("`{target}`"), sum);
            total.cpu_seconds += sum.cpu_seconds;
            total.executions += sum.executions;
            total.findings += sum.findings;
        }
        row("all", &total);
        table
    }
}

/// Returns an error if the document shows other figures than the file has.
pub fn check(root: &Path, document: &str) -> Result<()> {
    let fresh = Figures::read(root)?.put_into(document)?;
    ensure!(fresh == document, "the fuzzing figures differ from {FILE}; cargo xtask fuzz writes both");
    Ok(())
}

/// Formats `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_add_up_and_are_shown() {
        let mut figures = Figures::parse(r#"{"lines":{"cpuSeconds":3599,"executions":1000000,"findings":1}}"#).unwrap();
        figures.add("lines", 61, 234_567, 0);
        figures.add("json", 5, 12, 2);
        let document = figures.put_into(&format!("a\n{BEGIN}old{END}b\n")).unwrap();
        assert!(document.contains("| `lines` | 1 h 01 min | 1,234,567 | 1 |"), "{document}");
        assert!(document.contains("| all | 1 h 01 min | 1,234,579 | 3 |"), "{document}");
        assert!(document.starts_with("a\n") && document.ends_with("b\n") && !document.contains("old"), "{document}");
        assert_eq!(figures.put_into(&document).unwrap(), document, "the table is stable");
        assert!(figures.put_into("no place").is_err());
    }

    #[test]
    fn a_missing_figure_is_an_error() {
        assert!(Figures::parse(r#"{"lines":{"cpuSeconds":1,"executions":1}}"#).is_err());
    }
}
