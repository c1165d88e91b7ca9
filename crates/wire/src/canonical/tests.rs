use proptest::prelude::*;

use super::*;

#[test]
fn hard1_one_resource_has_one_canonical_form() {
    for (uri, expected) in [
        ("file:///a/b", "file:///a/b"),
        ("FILE:///a/B", "file:///a/B"),
        ("file:/a", "file:///a"),
        ("file:a", "file:///a"),
        ("file://localhost/a", "file:///a"),
        ("file://LocalHost/a", "file:///a"),
        ("file://127.0.0.1/a", "file:///a"),
        ("file:////a", "file:///a"),
        ("file://host/a", "file://host/a"),
        ("file:", "file:///"),
        ("file:///../../a", "file:///a"),
        ("file:///x/./y/../a/.", "file:///x/a/"),
        ("file:///x/..", "file:///"),
        ("file:///s%65cret", "file:///secret"),
        ("file:///s%252565cret", "file:///secret"),
        ("file:///%%36%35", "file:///e"),
        ("file:///a%2Fb", "file:///a/b"),
        ("file:///p%2F..%2Fa", "file:///a"),
        ("file:///p/%2e%2E/a", "file:///a"),
        ("file:///a%zz%", "file:///a%zz%"),
        ("file:///caf%C3%A9 b", "file:///café b"),
        ("file:///a%FFb", "file:///a\u{fffd}b"),
        ("%66ile:///a", "file:///a"),
        (" file:///a", "file:///a"),
        ("fs+FILE:/a//b", "fs+file:///a/b"),
        ("fs+:%66ile:///a", "fs+file:///a"),
        ("fs+:a/./b", "fs+:a/b"),
        ("fs+://a", "fs+:/a"),
        ("note:/a", "note:///a"),
        ("note:a/../b", "note:b"),
        ("note://Host/a", "note://host/a"),
        ("db://User@Host:5432/T?q=A%20b#C", "db://User@host:5432/T?q=A b#C"),
        ("ui://fs/w", "ui://fs/w"),
        ("urn:uuid:A", "urn:uuid:A"),
        ("a\\..\\b", "a\\..\\b"),
        ("no scheme", "no scheme"),
        ("", ""),
    ] {
        assert_eq!(canonical(uri).as_deref(), Ok(expected), "{uri}");
    }
}

#[test]
fn hard1_a_uri_that_servers_may_read_in_two_ways_is_ambiguous() {
    let deep = |rounds: usize| format!("file:///%{}41", "25".repeat(rounds - 1));
    assert_eq!(canonical(&deep(MAX_ROUNDS)).as_deref(), Ok("file:///A"));
    for (uri, expected) in [
        (deep(MAX_ROUNDS + 1).as_str(), Ambiguity::Rounds),
        ("file:///a%00.md", Ambiguity::Character),
        ("file:///a%250A", Ambiguity::Character),
        ("file:///%c0%ae%c0%ae/a", Ambiguity::Character),
        ("file:///%e0%80%ae/a", Ambiguity::Character),
        ("file:///x%2Fy/../a", Ambiguity::Order),
        ("file:///x/%2e%2e/../a", Ambiguity::Order),
        ("file:///x//../a", Ambiguity::Order),
        ("file:///x/..;/a", Ambiguity::Order),
        ("file:///x/..%3Fa", Ambiguity::Order),
        ("./file:///a", Ambiguity::Order),
        ("../a", Ambiguity::Above),
        ("note:a/../../b", Ambiguity::Above),
        ("note://public/../a", Ambiguity::Above),
        ("file://host/../a", Ambiguity::Above),
        ("file://../a", Ambiguity::Above),
    ] {
        assert_eq!(canonical(uri), Err(expected), "{uri}");
    }
    assert!(readings(&format!("a:b{}", "?".repeat(MAX_SEPARATORS))).is_ok());
    assert_eq!(readings(&format!("a:b{}", "?".repeat(MAX_SEPARATORS + 1))), Err(Ambiguity::Separators));
}

#[test]
fn hard1_readings_are_the_interpretations_of_a_uri_by_other_servers() {
    let check = |uri: &str, forms: &[&str], stems: &[&str], rare: &[&str]| {
        let readings = readings(uri).unwrap_or_else(|ambiguity| panic!("{uri}: {ambiguity}"));
        assert_eq!((readings.forms, readings.stems, readings.rare), (owned(forms), owned(stems), owned(rare)), "{uri}");
    };
    check("file:///a/b", &["file:///a/b"], &[], &[]);
    check("file:///a%3Fb", &["file:///a?b"], &["file:///a"], &[]);
    check("file:///a/?b#c", &["file:///a/?b#c"], &["file:///a/", "file:///a", "file:///a/?b"], &[]);
    check("file:///p?/../a", &["file:///a"], &["file:///p"], &[]);
    check("file:///a/.", &["file:///a/"], &["file:///a"], &[]);
    check("file:///a%20", &["file:///a "], &["file:///a"], &[]);
    check("file:///a;b", &["file:///a;b"], &[], &["file:///a"]);
    check("file:///p\\..\\a", &["file:///p\\..\\a", "file:///a"], &[], &[]);
    check("file://h/a", &["file://h/a"], &[], &["file:///a", "file:///h/a"]);
    check("http://u@h:80/a", &["http://u@h:80/a"], &[], &["http://h/a"]);
    check("https://h./", &["https://h./"], &["https://h."], &["https://h/", "https://h"]);
    check("file:///", &["file:///"], &[], &[]);
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn hard1_the_worst_uris_take_little_time() {
    const LENGTH: usize = 8 * 1024;
    for part in
        ["%", "%25", "%2525252525252525", "/", "/.", "/..", "a/../", "%2e%2e%2f", "\\..", "?", "a+:", "+", ";", "%5c.."]
    {
        for start in ["", "file:///", "a+file://h/x/"] {
            let uri = format!("{start}{}", part.repeat(LENGTH / part.len()));
            // A quadratic algorithm would take minutes in this loop. The result does not matter.
            for _ in 0..4 {
                let _ = readings(&uri);
            }
        }
    }
}

/// Generates URIs that combine many of the characters and segments with special rules.
fn dense() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "file",
        "FILE",
        "note",
        "fs+",
        "a",
        "Secret",
        ":",
        "/",
        "//",
        ".",
        "..",
        "%2e",
        "%2F",
        "%25",
        "%252e",
        "%",
        "%C3",
        "%A9",
        "%FF",
        "%00",
        "\\",
        "%5C",
        "?",
        "#",
        ";",
        " ",
        "@",
        "localhost",
        "é",
        "+",
        "\u{fffd}",
        "%3A",
        "[::1]",
    ]);
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn hard1_the_canonical_form_of_a_canonical_form_is_itself(uri in prop_oneof![any::<String>(), dense()]) {
        if let Ok(form) = canonical(&uri) {
            let again = canonical(&form);
            prop_assert_eq!(again.as_deref(), Ok(&*form), "{}", uri);
        }
    }

    #[test]
    fn hard1_readings_begin_with_the_canonical_form(uri in prop_oneof![any::<String>(), dense()]) {
        if let Ok(readings) = readings(&uri) {
            let form = canonical(&uri);
            prop_assert_eq!(form.as_deref(), Ok(readings.forms[0].as_str()));
        }
    }

    #[test]
    fn hard1_a_plain_uri_is_its_only_reading(uri in prop_oneof![dense(), "[a-z+.-]{1,4}://[a-z.-]{0,3}/[a-zA-Z./ {}+-]{0,9}"]) {
        if is_plain(&uri) {
            let only = Readings { forms: vec![uri.clone()], ..Readings::default() };
            prop_assert_eq!(readings(&uri), Ok(only));
        }
    }
}
