//! Tests the meaning of `exposure`, `metaTools` and `profiles`, and the values that are rejected.

use super::problems::check;
use super::{FULL, accept, environment, origin};
use crate::exposure::{Exposure, ExposureMode, MetaTools, Profile};
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
fn they_are_read_whole() {
    let config = accept(FULL);
    assert_eq!(config.meta_tools, MetaTools { enabled: true, prefix: "goblin_".to_owned() });
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
fn what_is_left_out_is_the_default() {
    let config = accept(&file("\"exposure\": {}, \"metaTools\": {}, \"profiles\": {}"));
    let empty = Config::default();
    assert_eq!(
        (&config.exposure, &config.meta_tools, &config.profiles),
        (&empty.exposure, &empty.meta_tools, &empty.profiles)
    );
    assert_eq!((empty.exposure.mode, empty.exposure.auto_above, empty.exposure.reveal), (ExposureMode::All, 60, false));
    assert_eq!(empty.meta_tools, MetaTools { enabled: true, prefix: String::new() });
    assert_eq!(profile("{}"), Profile::default());
    assert_eq!(profile(r#"{ "servers": null, "tools": {}, "prompts": {}, "exposure": {} }"#), Profile::default());
}

#[test]
fn short_forms_mean_the_long_ones() {
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
    assert!(!meta_tools("false").enabled);
    for kind in ["tools", "prompts", "resources"] {
        let of = |value: &str| profile(&format!("{{ \"{kind}\": {value} }}"));
        assert_eq!(of(r#"["a*", "b"]"#), of(r#"{ "allow": ["a*", "b"], "deny": [] }"#), "{kind}");
        assert_ne!(of("[]"), Profile::default(), "{kind}");
    }
}

#[test]
fn a_profile_stands_over_the_gateway() {
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
fn modes_and_counts_are_checked() {
    for (members, expected) in [
        (r#""exposure": "serch""#, "13: exposure: unknown value \"serch\", did you mean \"search\"?"),
        (r#""exposure": "none""#, "13: exposure: unknown value \"none\", use \"all\" or \"search\" or \"auto\""),
        (r#""exposure": true"#, "13: exposure: must be a mode or an object, not true or false"),
        (r#""exposure": { "mode": 1 }"#, "23: exposure.mode: must be a string, not a number"),
        (r#""exposure": { "pined": [] }"#, "15: exposure.pined: unknown key, did you mean \"pinned\"?"),
        (r#""exposure": { "pinned": [""] }"#, "26: exposure.pinned[0]: a pattern must not be empty"),
        (r#""exposure": { "autoAbove": -1 }"#, "28: exposure.autoAbove: must be a whole number from 0 to 10000000"),
        (r#""metaTools": "no""#, "14: metaTools: must be true, false or an object, not a string"),
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
fn nothing_is_hidden_where_it_could_not_be_found() {
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
    assert!(!accept(&file(members)).meta_tools.enabled);
}

#[test]
fn profiles_are_named_for_a_path() {
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
fn servers_of_a_profile_are_those_of_the_file() {
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
fn a_pattern_without_servers_is_told() {
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
fn names_of_a_profile_obey_the_length_of_all() {
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
