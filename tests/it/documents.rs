//! Checks the documents: named tests, paths, links, keys and error codes exist, and the code follows the documented
//! module order.
//!
//! The tests search plain text. An unknown notation is not checked, so each test asserts that it found something.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use goblin_wire::Limit;

/// The crates in import order. Cargo enforces the order; the documents repeat it.
const CRATES: [&str; 13] = [
    "wire",
    "config",
    "vault",
    "telemetry",
    "catalog",
    "subscriptions",
    "files",
    "client",
    "oauth",
    "admin",
    "engine",
    "tui",
    "goblin",
];
/// The crates without tokio: they do no I/O, start no threads and read no clock.
const PURE: [&str; 4] = ["wire", "config", "catalog", "subscriptions"];
/// The module groups of the engine. A module may use the modules of its own group and of earlier groups.
const ORDER: [&[&str]; 7] = [
    &["client"],
    &["upstream"],
    &["catalog_store"],
    &["meta", "router"],
    &["dispatcher"],
    &["admin", "front"],
    &["app"],
];

fn root() -> &'static Path {
    Path::new(crate::harness::ROOT)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files under `directory` with this extension, relative to the root.
fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(directory)];
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for path in entries.map(|entry| entry.expect("a directory can be read").path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|known| known == extension) {
                found.push(path.strip_prefix(root()).expect("the path is under the root").to_owned());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "there is no .{extension} file under {directory}");
    found
}

fn documents() -> Vec<PathBuf> {
    let names =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"];
    let mut documents: Vec<_> = names.map(PathBuf::from).to_vec();
    documents.extend(files("docs", "md"));
    documents
}

fn text_of(path: &Path) -> String {
    read(path.to_str().expect("paths of the repository are UTF-8"))
}

/// Returns the texts between single backticks, outside of fenced blocks.
fn code_spans(text: &str) -> Vec<&str> {
    let mut in_fence = false;
    let mut spans = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            spans.extend(line.split('`').skip(1).step_by(2));
        }
    }
    spans
}

/// One id of docs/requirements.md and the tests in its rows.
#[derive(Debug, Default)]
struct Requirement {
    covered: bool,
    tests: Vec<String>,
}

/// Parses the tables. A row with an id begins a requirement, and a row without one continues it. Requirements after the
/// heading `Not yet` are not covered.
fn requirements(text: &str) -> Result<BTreeMap<String, Requirement>, String> {
    let mut requirements: BTreeMap<String, Requirement> = BTreeMap::new();
    let mut covered = true;
    let mut current = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            covered = !heading.starts_with("Not yet");
        }
        let Some(row) = line.strip_prefix('|') else { continue };
        let (id, rest) = row.split_once('|').ok_or_else(|| format!("no row: {line}"))?;
        let id = id.trim();
        if id == "id" || id.starts_with("---") {
            continue;
        }
        if !id.is_empty() {
            if requirements.insert(id.to_owned(), Requirement { covered, tests: Vec::new() }).is_some() {
                return Err(format!("{id} is listed twice"));
            }
            current = Some(id.to_owned());
        }
        let requirement = current.as_ref().and_then(|id| requirements.get_mut(id));
        let requirement = requirement.ok_or_else(|| format!("a row before the first id: {line}"))?;
        let tests = code_spans(rest).into_iter().filter(|span| span.contains("::"));
        requirement.tests.extend(tests.map(str::to_owned));
    }
    Ok(requirements)
}

/// Reports whether `module::name` is a test of the wire tests, or `crate::module::name` one of a crate. The path omits the
/// inner module `tests`.
fn is_test(path: &str) -> bool {
    let Some((module, name)) = path.rsplit_once("::") else { return false };
    let (krate, inner) = module.split_once("::").unwrap_or((module, ""));
    let place = Path::new("crates").join(krate).join("src").join(inner.replace("::", "/"));
    let place = place.to_str().expect("paths of the repository are UTF-8").trim_end_matches('/');
    let candidates = [
        format!("tests/it/{}.rs", module.replace("::", "/")),
        format!("{place}.rs"),
        format!("{place}/tests.rs"),
        format!("{place}/lib.rs"),
    ];
    candidates.iter().any(|file| std::fs::read_to_string(root().join(file)).is_ok_and(|text| has_test(&text, name)))
}

fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begins = |line: &str| {
        let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        rest.and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    lines.iter().enumerate().any(|(index, line)| {
        let attributes = lines[..index].iter().rev().take_while(|line| line.starts_with(['#', '/']));
        begins(line) && attributes.into_iter().any(|line| line.starts_with("#[test") || line.contains("::test"))
    })
}

#[test]
fn every_covered_requirement_names_tests_that_exist() {
    let requirements = requirements(&read("docs/requirements.md")).expect("each id is listed once");
    let covered: Vec<_> = requirements.iter().filter(|(_, requirement)| requirement.covered).collect();
    assert!(!covered.is_empty(), "no requirement is covered");
    assert!(covered.len() < requirements.len(), "the list of uncovered requirements is missing");
    for (id, requirement) in covered {
        assert!(!requirement.tests.is_empty(), "{id} names no test");
    }
    for (id, requirement) in &requirements {
        for test in &requirement.tests {
            assert!(is_test(test), "{id}: there is no test {test}");
        }
    }
}

#[test]
fn a_table_of_requirements_with_mistakes_is_rejected() {
    let table = "| id | what |\n|---|---|\n| A-1 | one |\n| | `m::t` |\n## Not yet\n| B-1 | two |\n";
    let read = requirements(table).expect("a good table");
    assert_eq!(read["A-1"].tests, ["m::t"]);
    assert!(read["A-1"].covered && !read["B-1"].covered);
    assert!(requirements(&format!("{table}| A-1 | again |\n")).is_err());
    assert!(requirements("| | `m::t` |\n").is_err());
    assert!(!is_test("documents::root") && !is_test("documents::absent") && !is_test("absent::absent"));
    assert!(is_test("documents::a_table_of_requirements_with_mistakes_is_rejected"));
}

#[test]
fn links_and_paths_point_to_existing_files() {
    let (mut links, mut paths) = (0, 0);
    for document in documents() {
        let text = text_of(&document);
        let shown = document.display();
        let directory = root().join(document.parent().expect("a document is in a directory"));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') {
                links += 1;
                assert!(directory.join(file).exists(), "{shown}: the link {target} leads nowhere");
            }
        }
        for span in code_spans(&text) {
            let is_path =
                ["crates/", "tests/", "benches/", "xtask/", "docs/"].iter().any(|start| span.starts_with(start));
            if is_path && !span.contains(['*', ' ']) {
                paths += 1;
                assert!(root().join(span).exists(), "{shown}: there is no {span}");
            }
        }
    }
    assert!(links > 0 && paths > 0, "{links} links, {paths} paths");
}

#[test]
fn constants_that_the_architecture_names_exist() {
    let sources: String = files("crates", "rs").iter().map(|path| text_of(path)).collect();
    let is_constant = |span: &&str| {
        span.contains('_')
            && span.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit())
    };
    let text = read("ARCHITECTURE.md");
    let constants: BTreeSet<_> = code_spans(&text).into_iter().filter(is_constant).collect();
    assert!(!constants.is_empty());
    for constant in constants {
        assert!(sources.contains(constant), "there is no {constant} in the sources");
    }
}

#[test]
fn modules_of_the_engine_use_only_their_own_and_earlier_groups() {
    let source = "crates/engine/src";
    let rank = |module: &str| ORDER.iter().position(|group| group.contains(&module));
    let mut uses = 0;
    for path in files(source, "rs") {
        let inner = path.strip_prefix(source).expect("the path is a source of the engine");
        let first = inner.iter().next().and_then(|part| part.to_str()).expect("a file has a name");
        let module = first.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} has no place in the order"));
        for (index, line) in text_of(&path).lines().enumerate() {
            for rest in line.split("crate::").skip(1) {
                let used = rest.split(|next: char| !next.is_ascii_alphanumeric() && next != '_').next();
                let used = used.filter(|used| !used.is_empty());
                let place = format!("{}:{}", path.display(), index + 1);
                let used = used.unwrap_or_else(|| panic!("{place}: one `use crate::module` per line"));
                let used_rank = rank(used).unwrap_or_else(|| panic!("{place}: {used} has no place in the order"));
                assert!(used_rank <= own, "{place}: {module} uses {used}, which is later in the order");
                uses += 1;
            }
        }
    }
    assert!(uses > 0, "no file of the engine uses another");
}

/// Returns the crates of the workspace that the manifest of a crate names, and whether it names tokio.
fn dependencies(krate: &str) -> (Vec<String>, bool) {
    let manifest = read(&format!("crates/{krate}/Cargo.toml"));
    let tables = manifest.split_once("[dependencies]").map_or("", |(_, rest)| rest);
    let table = tables.split("\n[").next().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once([' ', '.', '=']).map(|(name, _)| name));
    let names: Vec<_> = names.collect();
    let own = names.iter().filter_map(|name| name.strip_prefix("goblin-")).map(str::to_owned).collect();
    (own, names.contains(&"tokio"))
}

#[test]
fn crates_depend_only_on_earlier_crates() {
    let rank = |krate: &str| CRATES.iter().position(|known| *known == krate);
    let mut all: Vec<_> = std::fs::read_dir(root().join("crates")).expect("the crates").collect();
    all.retain(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir()));
    assert_eq!(all.len(), CRATES.len(), "a crate has no place in the order");
    for krate in CRATES {
        let (uses, has_tokio) = dependencies(krate);
        assert!(!has_tokio || !PURE.contains(&krate), "{krate} does no I/O, but it depends on tokio");
        for used in uses {
            assert!(rank(&used) < rank(krate), "{krate} uses {used}, which is later in the order");
        }
    }
    assert!(dependencies("engine").0.len() > 3 && dependencies("engine").1, "the manifest is not read");
    let documented = CRATES.map(|krate| format!("`{krate}`")).join(" < ");
    let text = read("ARCHITECTURE.md").replace('\n', " ");
    assert!(text.contains(&documented), "ARCHITECTURE.md does not have: {documented}");
    let group = |group: &&[&str]| group.iter().map(|module| format!("`{module}`")).collect::<Vec<_>>().join(", ");
    let documented = ORDER.iter().map(group).collect::<Vec<_>>().join(" < ");
    assert!(text.contains(&documented), "ARCHITECTURE.md does not have: {documented}");
}

#[test]
fn every_limit_is_on_the_security_page() {
    let page = read("docs/security.md");
    assert!(!Limit::ALL.is_empty());
    for limit in Limit::ALL {
        let row = format!("\n| `{}` | ", limit.as_str());
        assert!(page.contains(&row), "docs/security.md has no row for the limit {}", limit.as_str());
    }
}

/// The watchdog of the worker threads does not see tasks that are spawned in another way.
#[test]
fn hard4_every_task_is_spawned_under_the_watchdog() {
    let mut spawned = 0;
    for path in files("crates", "rs") {
        let text = text_of(&path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        spawned += code.matches("worker::spawn(").count();
        let is_worker = path.ends_with("src/worker.rs");
        assert!(is_worker || !code.contains("tokio::spawn("), "{}: use worker::spawn", path.display());
    }
    assert!(spawned > 0, "no crate spawns a task");
}

/// The dashboard is a client. It may use only the information of the admin API and MCP.
#[test]
fn the_dashboard_depends_only_on_the_crates_of_a_client() {
    assert_eq!(dependencies("tui").0, ["admin", "client", "config", "telemetry", "wire"]);
}

#[test]
fn every_error_has_a_row_on_the_errors_page() {
    let (source, page) = (read("crates/wire/src/error.rs"), read("docs/reference/errors.md"));
    let rows: Vec<_> = source.split("=> row(").skip(1).filter_map(|rest| rest.split_once(')')).collect();
    assert!(!rows.is_empty());
    for (row, _) in rows {
        let parts: Vec<_> = row.split(',').map(|part| part.trim().trim_matches('"')).collect();
        let expected = format!("| `{}` | {} | {} |", parts[2], parts[0], parts[1]);
        assert!(page.contains(&expected), "docs/reference/errors.md lacks: {expected}");
    }
}

#[test]
fn every_key_of_the_configuration_is_described() {
    let page = read("docs/reference/configuration.md");
    let keys = goblin_config::schema::keys();
    assert!(!keys.is_empty());
    for key in keys {
        assert!(page.contains(&format!("`{key}`")), "docs/reference/configuration.md does not describe {key}");
    }
}
