//! The features of a client and a server together, and their verdicts. `tests/clients/features.json` defines a feature
//! by its steps and their expected outcomes. The clients of other languages play the steps themselves and print a
//! verdict. This module plays them for the Rust SDK.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

static SCRIPTS: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../clients/features.json")).expect("the file of the features is JSON")
});

pub const FEATURES: [&str; 15] = [
    "tools",
    "prompts",
    "resources",
    "templates",
    "completion",
    "elicitation",
    "sampling",
    "roots",
    "subscription",
    "list_changed",
    "logging",
    "progress",
    "cancellation",
    "tasks",
    "not_found",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    pub const ALL: [Era; 2] = [Era::Legacy, Era::Modern];

    pub fn name(self) -> &'static str {
        match self {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Works,
    /// An SDK does not support the feature.
    Skipped(String),
    Fails(String),
}

impl Verdict {
    fn of(line: &Value) -> Verdict {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        match (text("skipped"), line["ok"].as_bool()) {
            (Some(reason), _) => Verdict::Skipped(reason),
            (None, Some(true)) => Verdict::Works,
            _ => Verdict::Fails(text("detail").unwrap_or_else(|| line.to_string())),
        }
    }
}

/// The verdict on each feature.
pub type Verdicts = BTreeMap<&'static str, Verdict>;

/// Parses the lines that a client prints. A feature without a line has failed with the message `otherwise`.
pub fn read(lines: &str, otherwise: &str) -> Verdicts {
    let lines: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let verdict = |feature| match lines.iter().find(|line| line["feature"] == feature) {
        Some(line) => Verdict::of(line),
        None => Verdict::Fails(otherwise.to_owned()),
    };
    FEATURES.into_iter().map(|feature| (feature, verdict(feature))).collect()
}

/// Returns the steps of a feature, with this mark in them.
pub fn script(feature: &str, era: Era, mark: &str) -> Vec<Value> {
    let steps = match &SCRIPTS[feature] {
        steps @ Value::Array(_) => steps.clone(),
        eras => eras[era.name()].clone(),
    };
    serde_json::from_str(&steps.to_string().replace("$MARK", mark)).unwrap_or_else(|error| panic!("{feature}: {error}"))
}

/// Returns the problem with the outcome of a step, or `None` if it is correct.
pub fn judge(step: &Value, outcome: &Value) -> Option<String> {
    let empty = Map::new();
    let expected = step["expect"].as_object().unwrap_or(&empty);
    let (ok, yes) = ("/ok".to_owned(), json!(true));
    let must_work = (!expected.keys().any(|pointer| pointer.starts_with("/error"))).then_some((&ok, &yes));
    must_work.into_iter().chain(expected).find_map(|(pointer, value)| {
        let found = outcome.pointer(pointer).unwrap_or(&Value::Null);
        (!same(found, value)).then(|| format!("{pointer} is {found}, not {value}, in {outcome}"))
    })
}

/// Compares two values. Numbers compare by value, not by spelling.
fn same(found: &Value, value: &Value) -> bool {
    found == value || found.as_f64().zip(value.as_f64()).is_some_and(|(found, value)| found == value)
}

#[test]
fn every_feature_has_a_script_for_each_era() {
    let named: Vec<&String> = SCRIPTS.as_object().expect("an object").keys().collect();
    assert_eq!(named.len(), FEATURES.len(), "{named:?}");
    for feature in FEATURES {
        for era in Era::ALL {
            assert!(!script(feature, era, "x").is_empty(), "{feature} {}", era.name());
        }
    }
}

#[test]
fn a_step_is_judged_by_its_expectations() {
    let check = |expect: Value, outcome: Value, problem: Option<&str>| {
        let found = judge(&json!({ "expect": expect }), &outcome);
        assert_eq!(found.as_deref().map(|found| found.split(", ").next().unwrap_or_default()), problem);
    };
    check(json!({}), json!({"ok": true}), None);
    check(json!({}), json!({"ok": false}), Some("/ok is false"));
    check(json!({"/result/0": 1}), json!({"ok": true, "result": [1.0]}), None);
    check(json!({"/result/0": 1}), json!({"ok": true, "result": []}), Some("/result/0 is null"));
    check(json!({"/error/code": -1}), json!({"ok": false, "error": {"code": -1}}), None);
    check(json!({"/error/code": -1}), json!({"ok": true}), Some("/error/code is null"));
}
