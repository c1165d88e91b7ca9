use serde_json::Value;

use super::*;

fn set(prefix: &str) -> Arc<MetaSet> {
    MetaSet::new(&MetaTools { prefix: prefix.to_owned(), ..MetaTools::default() })
}

fn parsed(entry: &MetaEntry) -> Value {
    serde_json::from_slice(&entry.definition).expect("JSON")
}

#[test]
fn meta5_definitions_name_their_tools_under_any_prefix() {
    for prefix in ["", "goblin_"] {
        let set = set(prefix);
        assert_eq!(set.entries.len(), MetaTool::ALL.len());
        for entry in &set.entries {
            let definition = parsed(entry);
            assert_eq!(definition["name"], *entry.name);
            assert_eq!(definition["name"], format!("{prefix}{}", entry.tool.as_str()));
            assert_eq!(definition["_meta"]["dev.goblin/meta"], entry.tool.as_str());
            assert_eq!(set.find(&entry.name).map(|found| found.tool), Some(entry.tool));
            let is_call = entry.tool == MetaTool::CallTool;
            assert_eq!(definition["annotations"]["readOnlyHint"], !is_call, "{definition}");
            assert_eq!(set.is_call(&entry.name), is_call);
            assert!(!definition.to_string().contains('@'), "{definition}");
        }
    }
    let described = parsed(&set("goblin_").entries[0])["description"].to_string();
    assert!(described.contains("goblin_describe_tool") && described.contains("goblin_call_tool"), "{described}");
}

#[test]
fn schemas_state_the_limits_of_results() {
    for entry in &set("").entries {
        let limit = &parsed(entry)["inputSchema"]["properties"]["limit"];
        let expected =
            if entry.tool.as_str().starts_with("search") { ResultLimit::SEARCH } else { ResultLimit::CATALOG };
        if !limit.is_null() {
            assert_eq!((&limit["default"], &limit["maximum"]), (&expected.default.into(), &expected.max.into()));
        }
    }
    // All three searches and all four catalogs have a limit.
    let limited = set("").entries.iter().filter(|entry| parsed(entry).to_string().contains("\"limit\"")).count();
    assert_eq!(limited, 7);
}

#[test]
fn meta5_schemas_compile_and_are_closed() {
    for entry in &set("").entries {
        let definition = parsed(entry);
        let input = &definition["inputSchema"];
        assert_eq!((&input["type"], &input["additionalProperties"]), (&"object".into(), &false.into()), "{input}");
        for schema in [Some(input), definition.get("outputSchema")].into_iter().flatten() {
            assert!(jsonschema::meta::is_valid(schema), "{schema}");
            let required = schema["required"].as_array().into_iter().flatten();
            for key in required.map(|key| key.as_str().expect("a string")) {
                assert!(
                    schema["properties"].get(key).is_some(),
                    "{} requires {key}, which it does not describe",
                    entry.name
                );
            }
        }
        assert_eq!(definition.get("outputSchema").is_some(), entry.tool != MetaTool::CallTool);
    }
}

#[test]
fn meta5_all_definitions_fit_the_context_budget() {
    /// The limits for the complete definitions, and for the parts that clients pass to their models.
    const MAX_BYTES: usize = 8 * 1024;
    const MAX_MODEL_BYTES: usize = 4 * 1024;
    let set = set("");
    let bytes: usize = set.entries.iter().map(|entry| entry.definition.len()).sum();
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
    let model = |entry: &MetaEntry| {
        let definition = parsed(entry);
        ["name", "description", "inputSchema"].map(|key| definition[key].to_string().len()).iter().sum::<usize>()
    };
    let bytes: usize = set.entries.iter().map(model).sum();
    assert!(bytes <= MAX_MODEL_BYTES, "{bytes} bytes");
}
