//! Problems of a configuration, with their positions.
//!
//! Readers do not stop at the first fault. They add it to a `ProblemCollector` and continue with a default. A report with
//! problems yields no configuration. Positions are byte offsets until the end, and one pass over the text turns them
//! into lines and columns. A hostile file with a fault at every byte therefore costs no more than reading it.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// One problem, ready to print: `goblin.json:12:5: mcpServers.a.timeuot: unknown key, did you mean "timeout"?` All
/// problems of a text have a file, a line and a column. `goblin check` adds others and writes them as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    #[serde(serialize_with = "text_or_null")]
    pub file: Option<Arc<str>>,
    /// The line, counted from 1.
    pub line: Option<usize>,
    /// The column in characters, counted from 1.
    pub column: Option<usize>,
    /// The path of the key. Empty if the problem concerns the whole file.
    #[serde(serialize_with = "null_if_empty")]
    pub path: String,
    pub message: String,
    pub cure: Option<String>,
    /// Whether the cause is outside of the file: an unset variable, a missing file or a program that cannot exist.
    /// Inside one server's entry such a problem concerns that server alone.
    #[serde(skip)]
    pub outside: bool,
}

fn text_or_null<S: Serializer>(file: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    file.as_deref().serialize(serializer)
}

fn null_if_empty<S: Serializer>(path: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(path).filter(|path| !path.is_empty()).serialize(serializer)
}

impl Problem {
    /// Reports whether both are the same fault, ignoring their positions.
    pub(crate) fn is_like(&self, other: &Problem) -> bool {
        self.path == other.path && self.message == other.message
    }

    /// Returns the position in the file, like `goblin.json:12:5`.
    pub(crate) fn place(&self) -> Option<String> {
        let Problem { file, line, column, .. } = self;
        Some(format!("{}:{}:{}", file.as_ref()?, line.as_ref()?, column.as_ref()?))
    }

    /// Returns the message without a position, for text that is not in a file yet.
    pub(crate) fn without_place(&self) -> String {
        let cure = self.cure.iter().map(|cure| format!(", {cure}")).collect::<String>();
        format!("{}: {}{cure}", self.path, self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { path, message, cure, .. } = self;
        if let Some(place) = self.place() {
            write!(formatter, "{place}: ")?;
        }
        if !path.is_empty() {
            write!(formatter, "{path}: ")?;
        }
        formatter.write_str(message)?;
        match cure {
            Some(cure) => write!(formatter, ", {cure}"),
            None => Ok(()),
        }
    }
}

/// At least one problem, in the order of the file. Displayed one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            problem.fmt(formatter)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A fault without a position, as returned by the pure checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    message: String,
    cure: Option<String>,
    outside: bool,
}

impl Fault {
    pub(crate) fn new(message: impl Into<String>) -> Fault {
        Fault { message: message.into(), cure: None, outside: false }
    }

    pub(crate) fn cure(self, cure: impl Into<String>) -> Fault {
        Fault { cure: Some(cure.into()), ..self }
    }

    pub(crate) fn is_outside(&self) -> bool {
        self.outside
    }

    /// Marks the cause as outside of the file. See [`Problem::outside`].
    pub(crate) fn outside(self) -> Fault {
        Fault { outside: true, ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)?;
        self.cure.iter().try_for_each(|cure| write!(formatter, ", {cure}"))
    }
}

struct LocatedFault {
    offset: usize,
    path: String,
    fault: Fault,
    /// The only server that the fault concerns.
    server: Option<String>,
}

/// The findings in a text without a problem of the whole file.
pub(crate) struct CollectedFaults {
    pub(crate) warnings: Vec<Problem>,
    /// The problems that concern one server alone, each with the server's key.
    pub(crate) misconfigured: Vec<(String, Problem)>,
}

/// Collects faults. Readers share it by reference, so it uses cells. Each borrow lasts for one push.
#[derive(Default)]
pub(crate) struct ProblemCollector {
    problems: RefCell<Vec<LocatedFault>>,
    misconfigured: RefCell<Vec<LocatedFault>>,
    warnings: RefCell<Vec<LocatedFault>>,
}

impl ProblemCollector {
    pub(crate) fn problem(&self, offset: usize, path: &str, fault: Fault) {
        self.problems.borrow_mut().push(LocatedFault { offset, path: path.to_owned(), fault, server: None });
    }

    /// Adds a problem that concerns one server alone.
    pub(crate) fn server_problem(&self, offset: usize, path: &str, fault: Fault, server: &str) {
        let server = Some(server.to_owned());
        self.misconfigured.borrow_mut().push(LocatedFault { offset, path: path.to_owned(), fault, server });
    }

    /// Reports whether a problem concerns this server alone.
    pub(crate) fn is_misconfigured(&self, server: &str) -> bool {
        self.misconfigured.borrow().iter().any(|found| found.server.as_deref() == Some(server))
    }

    pub(crate) fn warning(&self, offset: usize, path: &str, fault: Fault) {
        self.warnings.borrow_mut().push(LocatedFault { offset, path: path.to_owned(), fault, server: None });
    }

    /// Returns the findings if no problem concerns the whole file. Returns all problems otherwise.
    pub(crate) fn finish(self, text: &str, file: &str) -> Result<CollectedFaults, Problems> {
        let (mut problems, misconfigured) = (self.problems.into_inner(), self.misconfigured.into_inner());
        if !problems.is_empty() {
            problems.extend(misconfigured);
            return Err(Problems(place(problems, text, file).map(|(_, problem)| problem).collect()));
        }
        let misconfigured = place(misconfigured, text, file);
        let misconfigured = misconfigured.filter_map(|(server, problem)| Some((server?, problem))).collect();
        let warnings = place(self.warnings.into_inner(), text, file).map(|(_, problem)| problem).collect();
        Ok(CollectedFaults { warnings, misconfigured })
    }
}

/// Turns offsets into lines and columns. A lone carriage return ends a line, as in the parser. Returns each problem
/// with the server that it concerns alone.
fn place(
    mut findings: Vec<LocatedFault>,
    text: &str,
    file: &str,
) -> impl Iterator<Item = (Option<String>, Problem)> + use<> {
    findings.sort_by_key(|finding| finding.offset);
    let file: Arc<str> = Arc::from(file);
    let mut characters = text.char_indices().peekable();
    let (mut line, mut column) = (1, 1);
    let mut problems = Vec::with_capacity(findings.len());
    for LocatedFault { offset, path, fault, server } in findings {
        while let Some((_, character)) = characters.next_if(|(index, _)| *index < offset) {
            let ends_line = match character {
                '\n' => true,
                '\r' => characters.peek().is_none_or(|(_, next)| *next != '\n'),
                _ => false,
            };
            (line, column) = if ends_line { (line + 1, 1) } else { (line, column + 1) };
        }
        let Fault { message, cure, outside } = fault;
        let (file, line, column) = (Some(Arc::clone(&file)), Some(line), Some(column));
        problems.push((server, Problem { file, line, column, path, message, cure, outside }));
    }
    problems.into_iter()
}

/// Quotes, escapes and shortens a text of the file for use in a message.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_SHOWN: usize = 60;
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, ProblemCollector, quoted};

    fn check(text: &str, offset: usize, expected: &str) {
        let report = ProblemCollector::default();
        report.problem(offset, "", Fault::new("x"));
        let problems = report.finish(text, "f").err().unwrap();
        assert_eq!(problems.to_string(), format!("f:{expected}: x"));
    }

    #[test]
    fn offsets_become_lines_and_columns() {
        check("", 0, "1:1");
        check("abc", 2, "1:3");
        check("a\nbc", 3, "2:2");
        check("a\r\nbc", 3, "2:1");
        check("a\rbc", 2, "2:1");
        check("é\u{1F600}x", 6, "1:3");
        check("ab", 99, "1:3");
    }

    #[test]
    fn problems_are_printed_in_the_order_of_the_file() {
        let report = ProblemCollector::default();
        report.problem(3, "b", Fault::new("second").cure("mend it"));
        report.problem(0, "a", Fault::new("first"));
        report.warning(0, "a", Fault::new("not shown"));
        let problems = report.finish("x\n\nyz", "f").err().unwrap();
        assert_eq!(problems.to_string(), "f:1:1: a: first\nf:3:1: b: second, mend it");
        assert_eq!(problems.iter().count(), 2);
    }

    #[test]
    fn warnings_are_returned_if_no_problem_exists() {
        let report = ProblemCollector::default();
        report.warning(0, "a", Fault::new("careful"));
        let warnings = report.finish("", "f").ok().unwrap().warnings;
        assert_eq!(warnings[0].to_string(), "f:1:1: a: careful");
    }

    #[test]
    fn quoted_text_is_short_and_escaped() {
        assert_eq!(quoted("a\u{1b}[31m\""), r#""a\u{1b}[31m\"""#);
        assert_eq!(quoted(&"é".repeat(100)), format!("{:?}...", "é".repeat(60)));
    }
}
