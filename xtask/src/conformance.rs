//! `cargo xtask conformance`: compares the official conformance suite directly and through the gateway.
//!
//! The servers use all official SDKs. `goblin-conformance compare` judges each run. This task selects the runs, prints
//! one line for each, and a table at the end. It fails if a difference has no explanation.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{cargo, run as run_command, show, target_directory};

/// The servers with the settings of `protocol` to try. Servers of one era have only one useful setting.
const SERVERS: [(&str, &str); 5] = [
    ("rust", "auto,legacy,modern"),
    ("ts1", "auto"),
    ("ts2", "auto,legacy,modern"),
    ("py1", "auto"),
    ("py2", "auto,legacy,modern"),
];

/// The runs of the suite: its release, the version, the options, and whether `--quick` includes the run.
const RUNS: [(&str, &str, &[&str], bool); 10] = [
    ("stable", "all", &["--stable"], true),
    ("stable", "2025-06-18", &["--stable", "--spec-version", "2025-06-18"], false),
    ("stable", "2025-11-25", &["--stable", "--spec-version", "2025-11-25"], false),
    ("newest", "2025-03-26", &["--spec-version", "2025-03-26"], false),
    ("newest", "2025-06-18", &["--spec-version", "2025-06-18"], false),
    ("newest", "2025-11-25", &["--spec-version", "2025-11-25"], true),
    ("newest", "2026-07-28", &["--spec-version", "2026-07-28"], true),
    ("newest", "required by 2025-11-25", &["--requirements", "2025-11-25"], false),
    ("newest", "required by 2026-07-28", &["--requirements", "2026-07-28"], false),
    ("newest", "all", &[], false),
];

const HEADS: [&str; 8] = ["server", "suite", "version", "protocol", "direct", "through", "explained", "unexplained"];

/// Returns whether there is a server with this name.
pub fn is_server(name: &str) -> bool {
    SERVERS.iter().any(|(server, _)| *server == name)
}

pub fn run(root: &Path, server: Option<&str>, quick: bool) -> Result<()> {
    run_command(&mut cargo(root, &["build", "--workspace", "--bins"]))?;
    let target = std::path::absolute(target_directory(root))?;
    let logs = target.join("conformance");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let mut rows = Vec::new();
    for (name, protocols) in SERVERS.into_iter().filter(|(name, _)| server.is_none_or(|server| server == *name)) {
        let protocols = if quick { "auto" } else { protocols };
        for (suite, version, options, _) in RUNS.into_iter().filter(|(.., is_quick)| !quick || *is_quick) {
            let start = Instant::now();
            let log = logs.join(format!("{name}-{suite}-{}.log", version.replace(' ', "-")));
            let findings = compare(&target, &log, &[&["--server", name, "--protocol", protocols], options].concat())?;
            eprintln!("{name} {suite} {version}: {} ({:.0} s)", findings.line(), start.elapsed().as_secs_f32());
            for through in &findings.through {
                let differences = through.unexplained.iter();
                differences.for_each(|line| eprintln!("  {}: {line}; log: {}", through.protocol, log.display()));
                rows.push(through.row([name, suite, version], &findings.direct));
            }
        }
    }
    let unexplained = rows.iter().filter(|row| row[HEADS.len() - 1] != "0").count();
    eprintln!("\n{}", table(&rows));
    ensure!(unexplained == 0, "{unexplained} runs have differences without an explanation");
    Ok(())
}

/// The output of `goblin-conformance compare --json`.
struct Findings {
    direct: Counts,
    through: Vec<Through>,
}

struct Counts {
    passed: u64,
    failed: u64,
}

struct Through {
    protocol: String,
    counts: Counts,
    explained: Vec<String>,
    unexplained: Vec<String>,
}

/// Plays one run. The log gets the messages of the gateways.
fn compare(target: &Path, log: &Path, options: &[&str]) -> Result<Findings> {
    let binaries = target.join("debug");
    let mut command = Command::new(binaries.join("goblin-conformance"));
    command.args(["compare", "--json", "--gateway"]).arg(binaries.join("goblin")).args(options);
    let stderr = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let output = command.stdin(Stdio::null()).stderr(stderr).output().context("cannot start goblin-conformance")?;
    match serde_json::from_slice(&output.stdout) {
        Ok(value) => Findings::read(&value).context("goblin-conformance prints other members than expected"),
        Err(_) => bail!("{}; see {}; to repeat: {}", output.status, log.display(), show(&command)),
    }
}

impl Findings {
    fn read(value: &Value) -> Option<Findings> {
        let through = value["through"].as_array()?.iter().map(Through::read).collect::<Option<_>>()?;
        Some(Findings { direct: Counts::read(&value["direct"])?, through })
    }

    /// Returns the counts in one line.
    fn line(&self) -> String {
        let through = self.through.iter().map(|through| format!("{} {}", through.protocol, through.counts.shown()));
        let parts: Vec<_> = std::iter::once(format!("direct {}", self.direct.shown())).chain(through).collect();
        parts.join(", ")
    }
}

impl Counts {
    fn read(value: &Value) -> Option<Counts> {
        Some(Counts { passed: value["passed"].as_u64()?, failed: value["failed"].as_u64()? })
    }

    /// Returns the numbers of passed and failed checks.
    fn shown(&self) -> String {
        format!("{}/{}", self.passed, self.failed)
    }
}

impl Through {
    fn read(value: &Value) -> Option<Through> {
        let lines = |member: &str| -> Option<Vec<String>> {
            value[member].as_array()?.iter().map(|line| line.as_str().map(str::to_owned)).collect()
        };
        Some(Through {
            protocol: value["protocol"].as_str()?.to_owned(),
            counts: Counts::read(value)?,
            explained: lines("explained")?,
            unexplained: lines("unexplained")?,
        })
    }

    fn row(&self, [server, suite, version]: [&str; 3], direct: &Counts) -> [String; HEADS.len()] {
        let [direct, through] = [direct, &self.counts].map(Counts::shown);
        let [explained, unexplained] = [self.explained.len(), self.unexplained.len()].map(|count| count.to_string());
        let [server, suite, version] = [server, suite, version].map(str::to_owned);
        [server, suite, version, self.protocol.clone(), direct, through, explained, unexplained]
    }
}

/// Renders a Markdown table, so that documents can quote it.
fn table(rows: &[[String; HEADS.len()]]) -> String {
    let heads = HEADS.map(str::to_owned);
    let all: Vec<_> = std::iter::once(&heads).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let line = |row: &[String; HEADS.len()]| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!(" {cell:width$} ", width = width(column)));
        format!("|{}|", cells.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<_> = (0..HEADS.len()).map(|column| "-".repeat(width(column) + 2)).collect();
    let mut lines = vec![line(&heads), format!("|{}|", rule.join("|"))];
    lines.extend(rows.iter().map(line));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_become_a_line_and_a_row() {
        let text = r#"{"direct": {"passed": 47, "failed": 0, "warned": 0, "accepted": true}, "through": [{
            "protocol": "auto", "passed": 43, "failed": 1, "warned": 0, "accepted": false,
            "explained": ["absent a B", "absent a C"], "unexplained": ["d E"], "needless": []}]}"#;
        let findings = Findings::read(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(findings.line(), "direct 47/0, auto 43/1");
        let row = findings.through[0].row(["rust", "stable", "all"], &findings.direct);
        assert_eq!(row, ["rust", "stable", "all", "auto", "47/0", "43/1", "2", "1"]);
        let lines = [
            "| server | suite  | version | protocol | direct | through | explained | unexplained |",
            "|--------|--------|---------|----------|--------|---------|-----------|-------------|",
            "| rust   | stable | all     | auto     | 47/0   | 43/1    | 2         | 1           |",
        ];
        assert_eq!(table(&[row]), lines.join("\n"));
    }
}
