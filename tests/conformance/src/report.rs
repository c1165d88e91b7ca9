//! The outcome of a run, read from the suite's files: one directory per scenario with a `checks.json`. The console
//! output is not used, because it changes from release to release.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

/// The length of the time at the end of a directory's name. The name is a prefix, the scenario and its start time.
const TIME_LENGTH: usize = "-2026-07-28T12-00-00-000Z".len();

#[derive(Debug, Default, PartialEq)]
pub struct Report {
    /// The suite's own verdict, from its exit code. In scenarios that judge clients, a warning and a failed or hanging
    /// client also count as failures.
    pub accepted: bool,
    pub scenarios: BTreeMap<String, Outcome>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    pub passed: Vec<Check>,
    pub failed: Vec<Check>,
    pub warned: Vec<Check>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Check {
    /// The id and the name. Many checks of a scenario share an id.
    pub check: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Report {
    pub fn read(directory: &Path, prefix: &str, accepted: bool) -> Result<Report> {
        let mut report = Report { accepted, ..Report::default() };
        report.add(directory, prefix, "")?;
        Ok(report)
    }

    /// Adds the scenarios in a directory. A scenario with a `/` in its name has a directory in another one, and `group`
    /// is the name of that one.
    fn add(&mut self, directory: &Path, prefix: &str, group: &str) -> Result<()> {
        let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", directory.display()))?;
            let (name, path) = (entry.file_name(), entry.path());
            let Some(name) = name.to_str() else { bail!("not the results of a scenario: {}", path.display()) };
            match scenario_of(prefix, name) {
                Some(scenario) => {
                    self.scenarios.insert(format!("{group}{scenario}"), Outcome::read(&path.join("checks.json"))?);
                }
                None if group.is_empty() && path.is_dir() => self.add(&path, "", &format!("{name}/"))?,
                None => bail!("not the results of a scenario: {}", path.display()),
            }
        }
        Ok(())
    }

    /// Removes all failed checks.
    pub fn forget_failures(&mut self) {
        self.scenarios.values_mut().for_each(|outcome| outcome.failed.clear());
    }

    pub fn passed(&self) -> usize {
        self.scenarios.values().map(|outcome| outcome.passed.len()).sum()
    }

    pub fn failed(&self) -> usize {
        self.scenarios.values().map(|outcome| outcome.failed.len()).sum()
    }

    pub fn warned(&self) -> usize {
        self.scenarios.values().map(|outcome| outcome.warned.len()).sum()
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut report = serializer.serialize_struct("Report", 5)?;
        report.serialize_field("accepted", &self.accepted)?;
        report.serialize_field("passed", &self.passed())?;
        report.serialize_field("failed", &self.failed())?;
        report.serialize_field("warned", &self.warned())?;
        report.serialize_field("scenarios", &self.scenarios)?;
        report.end()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scenario, outcome) in &self.scenarios {
            let Outcome { passed, failed, warned } = outcome;
            writeln!(formatter, "{scenario}: {} passed, {} failed", passed.len(), failed.len())?;
            let worth_reading = failed.iter().map(|check| ("failed", check));
            for (label, check) in worth_reading.chain(warned.iter().map(|check| ("warned", check))) {
                writeln!(formatter, "  {label}: {}: {}", check.check, check.message.as_deref().unwrap_or("no reason"))?;
            }
        }
        let scenarios = self.scenarios.len();
        let (passed, failed, warned) = (self.passed(), self.failed(), self.warned());
        let verdict = if self.accepted { "accepted" } else { "not accepted" };
        write!(
            formatter,
            "{scenarios} scenarios: {passed} checks passed, {failed} failed, {warned} warnings; {verdict}"
        )
    }
}

impl Outcome {
    /// Reads the checks of a scenario. A scenario without a file of them is broken.
    fn read(path: &Path) -> Result<Outcome> {
        if !path.exists() {
            return Ok(Outcome::broken());
        }
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Outcome::parse(&text).with_context(|| format!("{} holds no checks", path.display()))
    }

    fn parse(text: &str) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for record in serde_json::from_str::<Vec<Record>>(text)? {
            let check = Check { check: format!("{}/{}", record.id, record.name), message: record.error_message };
            match record.status {
                Status::Success => outcome.passed.push(check),
                Status::Failure => outcome.failed.push(check),
                Status::Warning => outcome.warned.push(check),
                Status::Info | Status::Skipped => {}
            }
        }
        Ok(outcome)
    }

    /// Returns the outcome of a scenario that threw an exception instead of judging.
    fn broken() -> Outcome {
        let message = "the scenario has no checks: it failed, or this version does not have it".to_owned();
        Outcome {
            failed: vec![Check { check: "scenario/NoChecks".to_owned(), message: Some(message) }],
            ..Outcome::default()
        }
    }
}

/// A check in the suite's file format.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    id: String,
    name: String,
    status: Status,
    error_message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Status {
    Success,
    Failure,
    Warning,
    Info,
    Skipped,
}

fn scenario_of<'a>(prefix: &str, directory: &'a str) -> Option<&'a str> {
    let name = directory.strip_prefix(prefix)?;
    let (scenario, time) = name.split_at_checked(name.len().checked_sub(TIME_LENGTH)?)?;
    (!scenario.is_empty() && time.starts_with('-') && time.ends_with('Z')).then_some(scenario)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_names_its_scenario() {
        let check = |directory, expected| assert_eq!(scenario_of("server-", directory), expected, "{directory}");
        check("server-tools-list-2026-11-16T00-13-58-123Z", Some("tools-list"));
        check("server-ping-2026-11-16T00-13-58-123Z", Some("ping"));
        check("server--2026-11-16T00-13-58-123Z", None);
        check("tools-list-2026-11-16T00-13-58-123Z", None);
        check("server-ping", None);
        assert_eq!(scenario_of("", "sse-retry-2026-11-16T00-13-58-123Z"), Some("sse-retry"));
    }

    #[test]
    fn checks_are_grouped_by_their_status() {
        let text = r#"[
            {"id": "a", "name": "One", "status": "SUCCESS", "details": {}},
            {"id": "a", "name": "Two", "status": "FAILURE", "errorMessage": "no"},
            {"id": "b", "name": "Three", "status": "WARNING", "errorMessage": "hm"},
            {"id": "c", "name": "Four", "status": "INFO"},
            {"id": "d", "name": "Five", "status": "SKIPPED"}
        ]"#;
        let check = |check: &str, message: Option<&str>| {
            vec![Check { check: check.to_owned(), message: message.map(str::to_owned) }]
        };
        let expected = Outcome {
            passed: check("a/One", None),
            failed: check("a/Two", Some("no")),
            warned: check("b/Three", Some("hm")),
        };
        assert_eq!(Outcome::parse(text).unwrap(), expected);
        assert!(Outcome::parse(r#"[{"id": "a", "name": "One", "status": "MAYBE"}]"#).is_err());
    }
}
