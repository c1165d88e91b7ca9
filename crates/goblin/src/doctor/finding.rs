//! The findings of `goblin doctor`, each with a cure. These types also define the JSON document.

use std::fmt::Write as _;

use goblin_telemetry::clean;
use serde::Serialize;

use crate::style::{paint_if, plural};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Problem,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "32",
            Verdict::Warning => "1;33",
            Verdict::Problem => "1;31",
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    verdict: Verdict,
    /// The part of the system, for example a server.
    about: String,
    what: String,
    cure: Option<String>,
}

/// The JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorReport<'a> {
    ok: bool,
    problems: usize,
    warnings: usize,
    findings: &'a [Finding],
}

#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Finding>);

impl Findings {
    pub(crate) fn ok(&mut self, about: &str, what: impl AsRef<str>) {
        self.push(Verdict::Ok, about, what.as_ref(), None);
    }

    pub(crate) fn warning(&mut self, about: &str, what: impl AsRef<str>, cure: impl AsRef<str>) {
        self.push(Verdict::Warning, about, what.as_ref(), Some(cure.as_ref()));
    }

    pub(crate) fn problem(&mut self, about: &str, what: impl AsRef<str>, cure: impl AsRef<str>) {
        self.push(Verdict::Problem, about, what.as_ref(), Some(cure.as_ref()));
    }

    /// Adds a finding. Removes line ends and control characters, because the text may quote a server.
    fn push(&mut self, verdict: Verdict, about: &str, what: &str, cure: Option<&str>) {
        let line = |text: &str| clean(&text.replace('\n', "; "));
        let (about, what, cure) = (clean(about), line(what), cure.map(line));
        self.0.push(Finding { verdict, about, what, cure });
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn append(&mut self, mut others: Findings) {
        self.0.append(&mut others.0);
    }

    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|finding| finding.verdict == verdict).count()
    }

    pub(crate) fn document(&self) -> DoctorReport<'_> {
        let (problems, warnings) = (self.count(Verdict::Problem), self.count(Verdict::Warning));
        DoctorReport { ok: problems == 0, problems, warnings, findings: &self.0 }
    }

    pub(crate) fn text(&self, colourful: bool) -> String {
        let mut text = String::new();
        for Finding { verdict, about, what, cure } in &self.0 {
            let label = paint_if(colourful, &format!("{:7}", verdict.as_str()), verdict.colour());
            let _ = writeln!(text, "{label}  {about}: {what}");
            if let Some(cure) = cure {
                let _ = writeln!(text, "{:9}{cure}", "");
            }
        }
        let parts = [(Verdict::Problem, "problem"), (Verdict::Warning, "warning")];
        let counted = parts.map(|(verdict, noun)| (self.count(verdict), noun));
        let counted: Vec<_> =
            counted.iter().filter(|(count, _)| *count > 0).map(|(n, noun)| plural(*n, noun)).collect();
        let summary = if counted.is_empty() { "no problems".to_owned() } else { counted.join(", ") };
        let _ = writeln!(text, "\n{summary}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_one_line_and_its_cure_another() {
        let mut findings = Findings::default();
        findings.ok("a", "fine");
        assert_eq!(findings.text(false), "ok       a: fine\n\nno problems\n");
        findings.problem("b", "two\nlines\u{1b}", "fix it");
        findings.warning("c", "odd", "look");
        let expected = "ok       a: fine\nproblem  b: two; lines\n         fix it\nwarning  c: odd\n         look\n";
        assert_eq!(findings.text(false), format!("{expected}\n1 problem, 1 warning\n"));
        assert!(findings.text(true).contains("\x1b[1;31mproblem\x1b[0m  b"));
    }
}
