//! Tests the meaning of `exposure`, `metaTools` and `profiles`, and the values that are rejected.

use super::problems::check;
use super::{FULL, accept, environment, origin};
use crate::exposure::{Exposure, ExposureMode, MetaListing, MetaTools, Profile};
use crate::{Config, parse};

/// Returns a file with these members and two servers.
fn file(members: &str) -> String {
    format!(
        "{{ \"mcpServers\": {{ \"git\": {{ \"command\": \"x\" }}, \"gitlab\": {{ \"root\": \".\" }} }},\n{members} }}"
    )
}

fn exposure(members: &str) -> Exposure {
    accept(&file(members)).exposure
}

fn profile(members: &str) -> Profile {
    let config = accept(&file(&format!("\"profiles\": {{ \"p\": {members} }}")));
    Profile::clone(&config.profiles["p"])
}

/// Checks the problems of a file. `expected` omits the file and the line, which is always 2.
fn check_rejected(members: &str, expected: &[&str]) {
    let lines: Vec<String> = expected.iter().map(|text| format!("goblin.json:2:{text}")).collect();
    check(&file(members), &lines.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn exposure_meta_tools_and_profiles_are_read_completely() {
    let config = accept(FULL);
    assert_eq!(config.meta_tools, MetaTools { enabled: MetaListing::Always, prefix: "goblin_".to_owned() });
    let texts = |exposure: &Exposure| exposure.pinned.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&config.exposure), ["local_*"]);
    assert_eq!(
        (config.exposure.mode, config.exposure.auto_above, config.exposure.reveal),
        (ExposureMode::Auto, 0, true)
    );

    assert_eq!(config.profiles.keys().map(|name| name.path()).collect::<Vec<_>>(), ["/mcp/p/all", "/mcp/p/review"]);
    let review = &config.profiles["review"];
    assert_eq!(review.servers.iter().map(ToString::to_string).collect::<Vec<_>>(), ["local", "re*"]);
    assert!(review.tools.filter.admits("seek") && !review.tools.filter.admits("seek_x"));
    assert_eq!(
        (review.tools.rename["seek"].as_str(), review.tools.describe["seek"].as_str()),
        ("find", "Finds.\nAll.")
    );
    assert!(review.prompts.admits("local_p") && !review.prompts.admits("p"));
    assert!(!review.resources.admits("docs://a") && review.resources.admits("docs://b"));
    // The mode is the profile's own, the rest is inherited from the gateway.
    assert_eq!((review.exposure.mode, review.exposure.auto_above), (ExposureMode::Search, 0));
    assert_eq!((texts(&review.exposure), review.exposure.reveal), (vec!["local_*".to_owned()], true));

    let all = &config.profiles["all"];
    assert_eq!(**all, Profile { exposure: config.exposure.clone(), ..Profile::default() });
}

#[test]
fn absent_members_get_their_defaults() {
    let config = accept(&file("\"exposure\": {}, \"metaTools\": {}, \"profiles\": {}"));
    let empty = Config::default();
    assert_eq!(
        (&config.exposure, &config.meta_tools, &config.profiles),
        (&empty.exposure, &empty.meta_tools, &empty.profiles)
    );
    assert_eq!((empty.exposure.mode, empty.exposure.auto_above, empty.exposure.reveal), (ExposureMode::All, 60, false));
    assert_eq!(empty.meta_tools, MetaTools { enabled: MetaListing::Auto, prefix: String::new() });
    assert_eq!(profile("{}"), Profile::default());
    assert_eq!(profile(r#"{ "servers": null, "tools": {}, "prompts": {}, "exposure": {} }"#), Profile::default());
}

#[test]
fn short_forms_equal_the_long_forms() {
    for (short, long) in [
        (r#""exposure": "all""#, r#""exposure": { "mode": "all" }"#),
        (r#""exposure": "search""#, r#""exposure": { "mode": "search" }"#),
        (r#""exposure": "auto""#, r#""exposure": { "mode": "auto", "autoAbove": 60 }"#),
    ] {
        assert_eq!(exposure(short), exposure(long), "{short}");
    }
    let meta_tools = |value: &str| accept(&file(&format!("\"metaTools\": {value}"))).meta_tools;
    assert_eq!(meta_tools("true"), meta_tools(r#"{ "enabled": true }"#));
    assert_eq!(meta_tools("false"), meta_tools(r#"{ "enabled": false, "prefix": "" }"#));
    assert_eq!(meta_tools("\"auto\""), meta_tools(r#"{ "enabled": "auto" }"#));
    let read = ["false", "true", "\"auto\"", "null"].map(|value| meta_tools(value).enabled);
    assert_eq!(read, [MetaListing::Never, MetaListing::Always, MetaListing::Auto, MetaListing::Auto]);
    for kind in ["tools", "prompts", "resources"] {
        let of = |value: &str| profile(&format!("{{ \"{kind}\": {value} }}"));
        assert_eq!(of(r#"["a*", "b"]"#), of(r#"{ "allow": ["a*", "b"], "deny": [] }"#), "{kind}");
        assert_ne!(of("[]"), Profile::default(), "{kind}");
    }
}

#[test]
fn the_exposure_of_a_profile_overrides_that_of_the_gateway() {
    let of = |own: &str| {
        let gateway = r#""exposure": { "mode": "auto", "pinned": ["a"], "autoAbove": 5, "reveal": true }"#;
        let config = accept(&file(&format!("{gateway}, \"profiles\": {{ \"p\": {{ \"exposure\": {own} }} }}")));
        let exposure = &config.profiles["p"].exposure;
        (exposure.mode, exposure.pinned.len(), exposure.auto_above, exposure.reveal)
    };
    assert_eq!(of("null"), (ExposureMode::Auto, 1, 5, true));
    assert_eq!(of("\"all\""), (ExposureMode::All, 1, 5, true));
    assert_eq!(of(r#"{ "pinned": [], "autoAbove": 6 }"#), (ExposureMode::Auto, 0, 6, true));
    assert_eq!(of(r#"{ "mode": "search", "reveal": false }"#), (ExposureMode::Search, 1, 5, false));
}

#[test]
fn use12_rules_for_clients_override_members_and_exact_names_come_first() {
    let config = accept(FULL);
    let of = |exposure: &Exposure| {
        let rule = |rule| {
            let Exposure { mode, pinned, auto_above, reveal, .. } = exposure.for_clients(rule);
            (rule.client.to_string(), mode, pinned.len(), auto_above, reveal)
        };
        exposure.clients.iter().map(rule).collect::<Vec<_>>()
    };
    let expected = [
        ("claude-code".to_owned(), ExposureMode::All, 1, 0, true),
        ("cur*".to_owned(), ExposureMode::Search, 0, 1, false),
    ];
    assert_eq!(of(&config.exposure), expected);
    // A profile inherits the rules. Its own members apply where a rule has none.
    let gateway = r#""exposure": { "clients": { "x": { "reveal": true } } }"#;
    let config = accept(&file(&format!(
        r#"{gateway}, "profiles": {{ "p": {{ "exposure": "search" }}, "q": {{ "exposure": {{ "clients": {{}} }} }} }}"#
    )));
    assert_eq!(of(&config.exposure), [("x".to_owned(), ExposureMode::All, 0, 60, true)]);
    assert_eq!(of(&config.profiles["p"].exposure), [("x".to_owned(), ExposureMode::Search, 0, 60, true)]);
    assert!(config.profiles["q"].exposure.clients.is_empty());
    for (members, expected) in [
        (r#""exposure": { "clients": { "": "all" } }"#, "28: exposure.clients.\"\": a pattern must not be empty"),
        (
            r#""exposure": { "clients": { "A": "all", "a": "auto" } }"#,
            "40: exposure.clients.a: two keys name the same clients, keep one; case does not matter",
        ),
        (
            r#""exposure": { "clients": { "a": 1 } }"#,
            "33: exposure.clients.a: must be a mode or an object, not a number",
        ),
        (r#""exposure": { "clients": { "a": { "clients": {} } } }"#, "35: exposure.clients.a.clients: unknown key"),
        (
            r#""metaTools": false, "exposure": { "clients": { "a": "search" } }"#,
            "53: exposure.clients.a: clients find unlisted tools with the meta tools, and metaTools is not enabled, \
             use \"all\" or enable metaTools",
        ),
    ] {
        check_rejected(members, &[expected]);
    }
    let many = |count: usize| {
        let rules: Vec<_> = (0..count).map(|number| format!("\"c{number}\": \"all\"")).collect();
        format!("\"exposure\": {{ \"clients\": {{ {} }} }}", rules.join(", "))
    };
    check_rejected(&many(51), &["26: exposure.clients: has 51 clients, at most 50 are allowed"]);
    assert_eq!(accept(&file(&many(50))).exposure.clients.len(), 50);
}

#[test]
fn invalid_exposure_and_meta_tools_are_rejected() {
    for (members, expected) in [
        (r#""exposure": "serch""#, "13: exposure: unknown value \"serch\", did you mean \"search\"?"),
        (r#""exposure": "none""#, "13: exposure: unknown value \"none\", use \"all\" or \"search\" or \"auto\""),
        (r#""exposure": true"#, "13: exposure: must be a mode or an object, not true or false"),
        (r#""exposure": { "mode": 1 }"#, "23: exposure.mode: must be a string, not a number"),
        (r#""exposure": { "pined": [] }"#, "15: exposure.pined: unknown key, did you mean \"pinned\"?"),
        (r#""exposure": { "pinned": [""] }"#, "26: exposure.pinned[0]: a pattern must not be empty"),
        (r#""exposure": { "autoAbove": -1 }"#, "28: exposure.autoAbove: must be a whole number from 0 to 10000000"),
        (r#""metaTools": "no""#, "14: metaTools: must be true, false or \"auto\", not a string"),
        (r#""metaTools": 7"#, "14: metaTools: must be true, false, \"auto\" or an object, not a number"),
        (r#""metaTools": { "enabled": 1 }"#, "27: metaTools.enabled: must be true, false or \"auto\", not a number"),
        (
            r#""metaTools": { "prefix": "a.b" }"#,
            "26: metaTools.prefix: may contain only letters, digits, \"_\" and \"-\"",
        ),
    ] {
        check_rejected(members, &[expected]);
    }
    let prefix = |length: usize| format!("\"metaTools\": {{ \"prefix\": \"{}\" }}", "p".repeat(length));
    check_rejected(&prefix(33), &["26: metaTools.prefix: must have at most 32 characters"]);
    assert_eq!(accept(&file(&prefix(32))).meta_tools.prefix.len(), 32);
}

#[test]
fn search_exposure_requires_the_meta_tools() {
    let unreachable = "clients find unlisted tools with the meta tools, and metaTools is not enabled, \
                use \"all\" or enable metaTools";
    for (members, expected) in [
        (r#""metaTools": false, "exposure": "search""#, vec![format!("33: exposure: {unreachable}")]),
        (
            r#""exposure": { "mode": "auto" }, "metaTools": { "enabled": false }"#,
            vec![format!("23: exposure.mode: {unreachable}")],
        ),
        (
            r#""metaTools": false, "profiles": { "p": { "exposure": "auto" }, "q": { "exposure": { "mode": "search" } } }"#,
            vec![
                format!("54: profiles.p.exposure: {unreachable}"),
                format!("93: profiles.q.exposure.mode: {unreachable}"),
            ],
        ),
        // The problem is reported once, at the gateway's setting, and not for each profile that inherits it.
        (
            r#""metaTools": false, "exposure": "auto", "profiles": { "p": { "exposure": { "reveal": true } } }"#,
            vec![format!("33: exposure: {unreachable}")],
        ),
    ] {
        check_rejected(members, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let members = r#""metaTools": false, "exposure": { "pinned": ["a"] }, "profiles": { "p": { "exposure": "all" } }"#;
    assert_eq!(accept(&file(members)).meta_tools.enabled, MetaListing::Never);
}

#[test]
fn profile_names_and_their_number_are_checked() {
    let name = "the name of a profile is 1 to 64 letters, digits, \"_\" or \"-\"";
    check_rejected(
        r#""profiles": { "": {}, "a/b": {}, "é": { "tool": [] } }"#,
        &[
            &format!("15: profiles.\"\": {name}"),
            &format!("23: profiles.\"a/b\": {name}"),
            &format!("34: profiles.\"é\": {name}"),
            "41: profiles.\"é\".tool: unknown key, did you mean \"tools\"?",
        ],
    );
    check_rejected(r#""profiles": { "p": null }"#, &["20: profiles.p: must be an object, not null"]);
    let many = |count: usize| {
        let profiles: Vec<String> = (0..count).map(|index| format!("\"p{index}\": {{}}")).collect();
        format!("\"profiles\": {{ {} }}", profiles.join(", "))
    };
    check_rejected(&many(101), &["13: profiles: has 101 profiles, at most 100 are allowed"]);
    assert_eq!(accept(&file(&many(100))).profiles.len(), 100);
}

#[test]
fn a_profile_names_only_servers_of_the_file() {
    check_rejected(
        r#""profiles": { "p": { "servers": ["git", "gti", "search", "*"] } }"#,
        &[
            "41: profiles.p.servers[1]: there is no server \"gti\", did you mean \"git\"?",
            "48: profiles.p.servers[2]: there is no server \"search\", use an id of mcpServers, or a pattern like \"*\"",
        ],
    );
    assert_eq!(profile(r#"{ "servers": ["git", "g*", "gi?lab"] }"#).servers.len(), 3);
    // A server with a problem of its own still counts as known.
    check(
        r#"{ "mcpServers": { "a": { "command": "" } }, "profiles": { "p": { "servers": ["a"] } } }"#,
        &["goblin.json:1:37: mcpServers.a.command: must not be empty"],
    );
    check(
        r#"{ "mcpServers": 1, "profiles": { "p": { "servers": ["a"] } } }"#,
        &["goblin.json:1:17: mcpServers: must be an object, not a number"],
    );
}

#[test]
fn a_profile_pattern_without_servers_gives_a_warning() {
    let text = file(r#""profiles": { "p": { "servers": ["git*", "hub*"] } }"#);
    let loaded = parse(&text, &origin(), &environment).unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["goblin.json:2:42: profiles.p.servers[1]: \"hub*\" matches no server of this file"]);
}

#[test]
fn names_and_descriptions_of_a_profile_are_checked() {
    for (tools, expected) in [
        (
            r#"{ "rename": { "a": "b.c" } }"#,
            "50: profiles.p.tools.rename.a: an exposed name is 1 to 48 letters, digits, \"_\" or \"-\"",
        ),
        (
            r#"{ "rename": { "a": "n", "b": "n" } }"#,
            "60: profiles.p.tools.rename.b: \"a\" and \"b\" are both renamed to \"n\", use two names",
        ),
        (r#"{ "describe": { "a": " " } }"#, "52: profiles.p.tools.describe.a: must not be empty"),
        (r#"{ "describe": { "a": 1 } }"#, "52: profiles.p.tools.describe.a: must be a string, not a number"),
        (r#"{ "timeouts": {} }"#, "33: profiles.p.tools.timeouts: unknown key"),
        (r#""git_*""#, "31: profiles.p.tools: must be an array or an object, not a string"),
        (r#"["a", 1]"#, "37: profiles.p.tools[1]: must be a string, not a number"),
    ] {
        check_rejected(&format!("\"profiles\": {{ \"p\": {{ \"tools\": {tools} }} }}"), &[expected]);
    }
    check_rejected(
        r#""profiles": { "p": { "prompts": { "rename": {} } } }"#,
        &["35: profiles.p.prompts.rename: unknown key"],
    );
    let describe =
        |length: usize| format!("{{ \"tools\": {{ \"describe\": {{ \"a\": \"{}\" }} }} }}", "d".repeat(length));
    assert_eq!(profile(&describe(16 << 10)).tools.describe["a"].len(), 16 << 10);
    check_rejected(
        &format!("\"profiles\": {{ \"p\": {} }}", describe((16 << 10) + 1)),
        &["52: profiles.p.tools.describe.a: must have at most 16384 bytes"],
    );
}

#[test]
fn names_of_a_profile_obey_the_global_maximum_length() {
    let target = "n".repeat(60);
    let members = |length: usize| {
        format!(
            "\"namespacing\": {{ \"maxLength\": {length} }}, \
             \"profiles\": {{ \"p\": {{ \"tools\": {{ \"rename\": {{ \"x\": \"{target}\" }} }} }} }}"
        )
    };
    let expected = "86: profiles.p.tools.rename.x: an exposed name is 1 to 59 letters, digits, \"_\" or \"-\"";
    check_rejected(&members(59), &[expected]);
    accept(&file(&members(60)));
}
