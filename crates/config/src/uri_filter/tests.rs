use proptest::prelude::*;

use super::*;

fn filter(allow: &[&str], deny: &[&str]) -> UriFilter {
    let globs = |texts: &[&str]| texts.iter().map(|text| Glob::new(text).expect("a glob")).collect();
    UriFilter::new(Filter { allow: globs(allow), deny: globs(deny) })
}

fn check(allow: &[&str], deny: &[&str], admitted: &[&str], rejected: &[&str]) {
    let filter = filter(allow, deny);
    admitted.iter().for_each(|uri| assert!(filter.admits(uri), "{allow:?} but {deny:?} admits {uri}"));
    rejected.iter().for_each(|uri| assert!(!filter.admits(uri), "{allow:?} but {deny:?} rejects {uri}"));
}

#[test]
fn hard1_a_denied_uri_is_denied_in_every_spelling() {
    let spellings = [
        "file:///secret",
        "file:///s%65cret",
        "file:///s%2565cret",
        "FILE:///secret",
        "file:/secret",
        "file:secret",
        "file://localhost/secret",
        "file://elsewhere/secret",
        "file://secret",
        "file:////secret",
        "file:///public/../secret",
        "file:///public/%2e%2e/secret",
        "file:///public%2F..%2Fsecret",
        "file:///public\\..\\secret",
        "file:///x%2Fy/../secret",
        "file:///secret/",
        "file:///secret/.",
        "file:///secret?x",
        "file:///secret%3Fx",
        "file:///secret#",
        "file:///secret%23",
        "file:///secret;x",
        "file:///secret%00.md",
        "file:///secret%20",
        " file:///secret",
        "%66ile:///secret",
    ];
    check(&["*"], &["file:///secret"], &["file:///secrets", "file:///public/secret", "note:///secret"], &spellings);
    for pattern in
        ["FILE:///secret", "file:/secret", "file:///s%65cret", "file:///x/../secret", "file://localhost/secret"]
    {
        check(&["*"], &[pattern], &["file:///secrets"], &["file:///secret", "file:///%73ecret"]);
    }
    check(
        &["*"],
        &["file:///a%2Ab"],
        &["file:///axxb", "file:///ab"],
        &["file:///a%2Ab", "file:///a*b", "file:///a%2ab"],
    );
    check(&["*"], &["http://h/s"], &["http://h:81/s"], &["http://h:80/s", "http://u@h/s", "http://H/s", "http://h./s"]);
}

#[test]
fn hard1_an_allow_list_rejects_uris_that_lead_outside_it() {
    let detours = [
        "file:///public/../secret",
        "file:///public/%2e%2e/secret",
        "file:///public/..%2Fsecret",
        "file:///public/..\\secret",
        "file:///public/%252e%252e/secret",
        "file:///public/x%2Fy/../../../secret",
        "file:///public/?/../../secret",
        "file:///secret",
        "file:///public%2F",
    ];
    let admitted = [
        "file:///public/a%20b",
        "file:///public/caf%C3%A9",
        "file:///public/C%23.md",
        "file:///public/a?b#c",
        "file:///public/",
        "file:///public/x/../y",
        "file:///public/100%",
        "file:///public/{name}{?q}",
    ];
    check(&["file:///public/*"], &[], &admitted, &detours);
    check(&["note://public/*"], &[], &["note://public/a"], &["note://public/../secret"]);
    check(&["*.md"], &[], &["file:///a.md", "file:///a%20b.md"], &["file:///secret?.md", "file:///secret%23.md"]);
    check(&["*.md", "*#*.md"], &[], &["file:///C%23.md"], &["file:///C%23.rs"]);
    check(&["db://h/t?limit=*"], &[], &["db://h/t?limit=5"], &["db://h/t", "db://h/s?limit=5"]);
    check(&["file:///My%20Docs/*"], &[], &["file:///My%20Docs/a", "file:///My Docs/a"], &["file:///My/a"]);
    check(&["file:///a%2Ab"], &[], &[], &["file:///axb", "file:///a*b"]);
    check(&[], &[], &[], &["file:///a"]);
}

#[test]
fn hard1_a_filter_without_patterns_admits_everything() {
    check(&["*"], &[], &["file:///a%00", "../a", "", "file:///x%2Fy/../a"], &[]);
}

/// A plain URI as a scheme and path segments.
#[derive(Clone, Debug)]
struct Plain {
    scheme: &'static str,
    segments: Vec<String>,
}

impl Plain {
    fn any() -> impl Strategy<Value = Plain> {
        let scheme = prop::sample::select(vec!["file", "note", "fs+file"]);
        let segment = "[a-c]{1,2}|secret|a b|é|[A-C]\\.md";
        (scheme, prop::collection::vec(segment, 1..4)).prop_map(|(scheme, segments)| Plain { scheme, segments })
    }

    fn uri(&self) -> String {
        format!("{}:///{}", self.scheme, self.segments.join("/"))
    }

    fn directory(&self) -> String {
        format!("{}:///{}", self.scheme, self.segments[..self.segments.len() - 1].join("/"))
    }
}

/// A way to spell a plain URI. Each step uses one of the random numbers.
#[derive(Clone, Debug)]
struct Spelling {
    start: usize,
    detours: Vec<usize>,
    /// The number of times each byte is encoded.
    depths: Vec<usize>,
}

impl Spelling {
    fn any() -> impl Strategy<Value = Spelling> {
        let depth = prop_oneof![4 => Just(0usize), 2 => Just(1), 1 => 2..5usize];
        let (detours, depths) = (prop::collection::vec(0..9usize, 4), prop::collection::vec(depth, 60));
        (0..9usize, detours, depths).prop_map(|(start, detours, depths)| Spelling { start, detours, depths })
    }

    fn of(&self, plain: &Plain) -> String {
        let name = plain.scheme;
        let (upper, is_file) = (name.to_uppercase(), name.ends_with("file"));
        let starts = [
            format!("{name}:///"),
            format!("{upper}:///"),
            format!("{name}:/"),
            format!("{name}:////"),
            format!("{name}:{}", if is_file { "" } else { "/" }),
            format!("{name}://{}/", if is_file { "localhost" } else { "" }),
            format!("{upper}://{}/", if is_file { "LOCALHOST" } else { "" }),
            format!("{name}:///../"),
            format!(" {name}:/./"),
        ];
        let mut path = String::new();
        for (at, segment) in plain.segments.iter().enumerate() {
            if at > 0 {
                path.push('/');
            }
            // A slash at the start would turn the first segment into a host.
            let detour = if at == 0 && self.detours[at] == 5 { 0 } else { self.detours[at] };
            path.push_str(["", "", "", "./", "x/../", "/", "x/y/../../", ".//", "x\\..\\"][detour]);
            path.push_str(segment);
        }
        let encoded: String =
            path.bytes().zip(self.depths.iter().cycle()).map(|(byte, depth)| encode(byte, *depth)).collect();
        format!("{}{encoded}", starts[self.start])
    }
}

fn encode(byte: u8, depth: usize) -> String {
    match depth {
        // A byte of a multi-byte character is always encoded, because it is not a character by itself.
        0 if byte.is_ascii() => char::from(byte).to_string(),
        depth => format!("%{}{byte:02X}", "25".repeat(depth.max(1) - 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn hard1_no_spelling_is_admitted_where_the_plain_form_is_denied(
        plain in Plain::any(), spelling in Spelling::any(), kind in 0..6usize, ending in 0..9usize
    ) {
        let (uri, last) = (plain.uri(), plain.segments.last().expect("a segment"));
        let encoded: String = last.bytes().map(|byte| encode(byte, 1)).collect();
        let pattern = match kind {
            0 => uri.clone(),
            1 => format!("{}*", plain.directory()),
            2 => format!("*{last}"),
            3 => format!("{}*{encoded}", plain.directory()),
            4 => uri.replacen("file:///", "FILE://localhost/", 1),
            _ => format!("{uri}*"),
        };
        let filter = filter(&["*"], &[&pattern]);
        prop_assert!(!filter.admits(&uri), "{} is denied by {}", uri, pattern);
        let ending = ["", "", "/", "/.", "?x", "#x", "%3Fx", "%2523", "%20"][ending];
        let spelled = format!("{}{ending}", spelling.of(&plain));
        prop_assert!(!filter.admits(&spelled), "{} is admitted as {}, in spite of {}", uri, spelled, pattern);
    }

    #[test]
    fn hard1_no_spelling_is_admitted_where_the_plain_form_is_not_allowed(
        plain in Plain::any(), other in Plain::any(), spelling in Spelling::any(), kind in 0..5usize, has_query: bool
    ) {
        let pattern = match kind {
            0 => other.uri(),
            1 => format!("{}/*", other.directory()),
            2 => format!("*{}", other.segments[0]),
            3 => format!("{}*/{}", plain.directory(), other.segments[0]),
            _ => format!("{}:*/x/*", plain.scheme),
        };
        let filter = filter(&[&pattern], &[]);
        let mut spelled = spelling.of(&plain);
        if has_query {
            spelled.push_str(&format!("?{}", other.segments[0]));
        }
        prop_assert!(
            !filter.admits(&spelled) || filter.admits(&plain.uri()),
            "{} is admitted as {}, by {}", plain.uri(), spelled, pattern
        );
    }

    #[test]
    fn hard1_a_filter_does_not_panic_on_any_text(pattern in "\\PC{1,12}", uri in any::<String>()) {
        let filter = filter(&["*"], &[&pattern]);
        let _ = filter.admits(&uri);
    }
}
