use super::*;

fn compile(schema: &str) -> Result<InputSchema, ValidationSkip> {
    InputSchema::compile(format!(r#"{{"name":"t","inputSchema":{schema}}}"#).as_bytes())
}

#[track_caller]
fn check(schema: &str, arguments: &str, expected: Result<Option<&str>, ValidationSkip>) {
    let problem = compile(schema).and_then(|schema| schema.problem(arguments));
    match (&problem, expected) {
        (Ok(Some(problem)), Ok(Some(part))) => assert!(problem.contains(part), "{problem}"),
        (problem, expected) => assert_eq!(problem.clone(), expected.map(|part| part.map(str::to_owned)), "{schema}"),
    }
}

/// Returns a schema with definitions that each refer to the next one twice.
fn doubling(count: usize) -> String {
    let definitions: Vec<_> = (0..count)
        .map(|at| {
            let next = format!(r##"{{"$ref":"#/$defs/d{}"}}"##, at + 1);
            format!(r#""d{at}":{{"anyOf":[{next},{next}]}}"#)
        })
        .collect();
    let last = format!(r#""d{count}":{{"type":"integer"}}"#);
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},{last}}}}}"##, definitions.join(","))
}

#[test]
fn route5_a_validation_problem_names_its_path() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"object","properties":{"n":{"type":"integer"}}}},"required":["a"]}"#;
    check(schema, r#"{"a":{"n":1}}"#, Ok(None));
    check(schema, r#"{"a":{"n":"x"}}"#, Ok(Some("/a/n: ")));
    check(schema, "{}", Ok(Some("\"a\" is a required property")));
}

#[test]
fn route5_a_remote_reference_is_never_fetched() {
    check(r#"{"$ref":"http://127.0.0.1:9/schema.json"}"#, "{}", Err(ValidationSkip::Unusable));
    check(r#"{"$ref":"file:///etc/hostname"}"#, "{}", Err(ValidationSkip::Unusable));
    let named = r##"{"properties":{"a":{"$id":"http://x/","$ref":"#/b","b":{}}}}"##;
    check(named, "{}", Err(ValidationSkip::Unusable));
}

#[test]
fn hard4_a_schema_is_counted_with_its_references_expanded() {
    let size = |schema: &str| compile(schema).expect(schema).size;
    assert_eq!(size("{}").nodes, 1);
    // The root, and each definition with its two references.
    assert_eq!(size(&doubling(1)).nodes, 6);
    assert_eq!(size(&doubling(2)).nodes, 14);
    assert!(!size(&doubling(2)).is_recursive());
    assert_eq!(size(r#"{"enum":[1,2,3],"pattern":"a"}"#).nodes, 104);
    let anchored = r##"{"properties":{"a":{"$ref":"#b"}},"$defs":{"b":{"$anchor":"b","items":{}}}}"##;
    assert_eq!(size(anchored).nodes, 5);
}

#[test]
fn hard4_a_schema_with_doubling_references_is_too_large() {
    assert!(compile(&doubling(9)).is_ok());
    for count in [12, 30, 120] {
        check(&doubling(count), "1", Err(ValidationSkip::TooLarge));
    }
    // The last definition refers back to the first.
    let circle = doubling(30).replace(r#"{"type":"integer"}"#, r##"{"$ref":"#/$defs/d0"}"##);
    check(&circle, "1", Err(ValidationSkip::TooLarge));
    let chain: Vec<_> = (0..500).map(|at| format!(r##""d{at}":{{"$ref":"#/$defs/d{}"}}"##, at + 1)).collect();
    let chain = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d500":{{}}}}}}"##, chain.join(","));
    check(&chain, "1", Err(ValidationSkip::TooLarge));
}

#[test]
fn hard4_a_recursive_schema_still_validates() {
    let tree = r##"{"type":"object","properties":{"value":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#"}}}}"##;
    let nested = |value: &str| {
        let leaf = format!(r#"{{"value":{value}}}"#);
        (0..10).fold(leaf, |inner, _| format!(r#"{{"value":1,"children":[{inner}]}}"#))
    };
    check(tree, &nested("2"), Ok(None));
    let place = format!("{}/value: ", "/children/0".repeat(10));
    check(tree, &nested("\"x\""), Ok(Some(&place)));
}

/// Both alternatives refer to the same schema. A validator without a cache would take time exponential in the depth.
#[test]
fn hard4_recursion_in_two_alternatives_stays_linear() {
    let schema = r##"{"type":"object","properties":{"a":{"oneOf":[{"$ref":"#"},{"$ref":"#"},{"type":"integer"}]}}}"##;
    let nested = |leaf: &str| (0..60).fold(leaf.to_owned(), |inner, _| format!(r#"{{"a":{inner}}}"#));
    check(schema, &nested("1"), Ok(Some("arguments: not valid for the input schema")));
    check(schema, &nested("{}"), Ok(Some("arguments: not valid for the input schema")));
}

#[test]
fn hard4_a_problem_of_many_alternatives_is_reported_without_its_path() {
    let alternatives = vec![r#"{"items":{"type":"integer"}}"#; 100].join(",");
    let schema = format!(r#"{{"properties":{{"a":{{"anyOf":[{alternatives}]}}}}}}"#);
    let arguments = |count: usize| format!(r#"{{"a":[{}]}}"#, vec![r#""x""#; count].join(","));
    check(&schema, &arguments(2), Ok(Some("/a: ")));
    check(&schema, &arguments(2_000), Ok(Some("arguments: not valid for the input schema")));
}

#[test]
fn hard4_patterns_run_on_the_linear_engine_and_are_limited_in_size() {
    let pattern = |pattern: &str| format!(r#"{{"properties":{{"a":{{"pattern":"{pattern}"}}}}}}"#);
    let long = format!(r#"{{"a":"{}!"}}"#, "a".repeat(20_000));
    check(&pattern("^(a+)+$"), &long, Ok(Some("/a: ")));
    check(&pattern("^.{1,255}$"), &long, Ok(Some("/a: ")));
    check(&pattern("(?:a{1,1000}){1,1000}"), "{}", Err(ValidationSkip::Unusable));
    // Only backtracking engines support these patterns.
    check(&pattern("(?=a)b"), "{}", Err(ValidationSkip::Unusable));
    let many: Vec<_> = (0..300).map(|at| format!(r#""a{at}":{{"pattern":"b"}}"#)).collect();
    check(&format!(r#"{{"properties":{{{}}}}}"#, many.join(",")), "{}", Err(ValidationSkip::TooLarge));
}

#[test]
fn hard4_long_or_deep_arguments_are_left_to_the_backend() {
    let enumerated = format!(r#"{{"items":{{"enum":[{}]}}}}"#, vec!["1"; 5_000].join(","));
    let schema = compile(&enumerated).expect("a small schema");
    assert!(schema.is_quick(9) && !schema.is_quick(100));
    assert_eq!(schema.problem(&format!("[{}]", vec!["1"; 100].join(","))), Ok(None));
    assert_eq!(schema.problem(&format!("[{}]", vec!["1"; 20_000].join(","))), Err(ValidationSkip::TooMuchWork));
    // Each level of the arguments uses all levels of the schema, and each level uses stack space.
    let deep = (0..50)
        .fold(r##"{"properties":{"a":{"$ref":"#"}}}"##.to_owned(), |inner, _| format!(r#"{{"allOf":[{inner}]}}"#));
    let schema = compile(&deep).expect("a small schema");
    assert!(!schema.is_quick(1));
    let nested = |depth: usize| (0..depth).fold("1".to_owned(), |inner, _| format!(r#"{{"a":{inner}}}"#));
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        let max = MAX_LEVELS / schema.size.levels - 1;
        assert_eq!(schema.problem(&nested(max)), Ok(None));
        assert_eq!(schema.problem(&nested(max + 1)), Err(ValidationSkip::TooMuchWork));
    });
    thread.expect("a thread").join().expect("the stack suffices");
}
