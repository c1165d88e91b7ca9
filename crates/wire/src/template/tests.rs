use proptest::{collection::vec, prelude::*, sample::select};

mod read;
mod reference;

use self::read::Bindings;
use super::TemplateValue as Value;
use super::expand::expand;
use super::{MAX_TEMPLATE_BYTES, MAX_URI_BYTES, MAX_VARIABLES, MatchBudget, Template, TemplateError, fit};

/// Checks a match. The reference must find the expected values, in the notation of `show`. `None` means no match.
#[track_caller]
fn check(template: &str, uri: &str, expected: impl Into<Option<&'static str>>) {
    let (template, expected) = (parse(template), expected.into());
    assert_eq!(template.matches(uri), expected.is_some(), "{} <- {uri}", template.as_str());
    let found = reference::find(&template.steps, uri);
    assert_eq!(found.as_ref().map(show).as_deref(), expected, "{} <- {uri}", template.as_str());
    if let Some(bindings) = found {
        assert_eq!(expand(&template.steps, &bindings), uri, "{}", template.as_str());
    }
}

/// Checks a match that may be wider at the end of the template.
#[track_caller]
fn check_lenient(template: &str, uri: &str, expected: impl Into<Option<&'static str>>) {
    let (template, expected) = (parse(template), expected.into());
    let matches = template.matches(uri) || widened(&template, uri);
    assert_eq!(matches, expected.is_some(), "{} <- {uri}", template.as_str());
    let wide = || reference::find(template.lenient_steps.as_deref()?, uri);
    let found = reference::find(&template.steps, uri).or_else(wide);
    assert_eq!(found.as_ref().map(show).as_deref(), expected, "{} <- {uri}", template.as_str());
}

fn widened(template: &Template, uri: &str) -> bool {
    template.matches_widened(uri, &mut MatchBudget::new(usize::MAX))
}

#[track_caller]
fn check_error(template: &str, expected: &str) {
    let error = Template::parse(template).expect_err(template);
    assert_eq!(error.to_string(), expected, "{template}");
}

#[track_caller]
fn parse(template: &str) -> Template {
    Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"))
}

/// Formats bindings in order, as `name: text`, `name: [a|b]` or `name: {key=value}`.
fn show(bindings: &Bindings) -> String {
    let shown = bindings.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}: {text}"),
        Value::List(list) => format!("{name}: [{}]", list.join("|")),
        Value::Map(map) => {
            let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("{name}: {{{}}}", pairs.join("|"))
        }
    });
    shown.collect::<Vec<_>>().join("; ")
}

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn list(texts: &[&str]) -> Value {
    Value::List(texts.iter().map(ToString::to_string).collect())
}

fn map(pairs: &[(&str, &str)]) -> Value {
    Value::Map(pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
}

#[test]
fn templates_of_real_mcp_servers_match() {
    check("file:///{path}", "file:///notes.txt", "path: notes.txt");
    check("demo://resource/dynamic/text/{resourceId}", "demo://resource/dynamic/text/42", "resourceId: 42");
    check("db://{table}/{id}", "db://users/7", "table: users; id: 7");
    check("db+mcp://database/{table}/{id}", "db+mcp://database/users/7", "table: users; id: 7");
    check("search://docs{?q,limit}", "search://docs", "");
    check("search://docs{?q,limit}", "search://docs?q=a%20b&limit=3", "q: a b; limit: 3");
    check("search://docs{?q,limit}", "search://docs?limit=3", "limit: 3");
    check("users://{id}/profile", "users://bob/profile", "id: bob");
    check("users://{id}/profile", "users:///profile", "");
    let repository = "repo://{owner}/{repo}/contents{/path*}";
    check(repository, "repo://me/it/contents", "owner: me; repo: it");
    check(repository, "repo://me/it/contents/src/lib.rs", "owner: me; repo: it; path: [src|lib.rs]");
    check("git://{+path}", "git://a/b%20c?d#e", "path: a/b c?d#e");
    check("x://{a}bb", "x://abbb", "a: ab");
    check("test://template/{id}/data", "test://template/123/data", "id: 123");
}

#[test]
fn a_uri_that_is_no_expansion_does_not_match() {
    check("file:///{path}", "file:///a/b", None);
    check("file:///{path}", "file://a", None);
    check("demo://text/{id}", "demo://text/42/more", None);
    check("demo://text/{id}", "demo://blob/42", None);
    check("demo://text/{id}", "Demo://text/42", None);
    check("db://{table}/{id}", "db://users", None);
    check("search://docs{?q,limit}", "search://docs?evil=3", None);
    check("search://docs{?q,limit}", "search://docs?q=1&evil=3", None);
    check("search://docs{?q,limit}", "search://docs?limit=3&q=1", None);
    check("search://docs{?q,limit}", "search://docs?q", None);
    check("search://docs{?q,limit}", "search://docs?", None);
    check("search://docs{?q,limit}", "search://docs&q=1", None);
    check("users://{id}/profile", "users://a/b/profile", None);
    check("repo://{owner}{/path*}", "repo://me?x", None);
    check("x://{a}bb", "x://ab", None);
    check("x://{a}", "x://a b", None);
    check("x://{a}", "x://é", None);
    check("x://{+a}", "x://a{b}", None);
    check("x://é{a}", "x://éb", None);
    check("", "x", None);
}

#[test]
fn only_the_canonical_encoding_matches() {
    check("x://{a}", "x://%2F%C3%A9%F0%9D%84%9E", "a: /é𝄞");
    check("x://{a}", "x://%2f", None);
    check("x://{a}", "x://%41", None);
    check("x://{a}", "x://%FF", None);
    check("x://{a}", "x://%C3", None);
    check("x://{a}", "x://%", None);
    check("x://{a}", "x://%2", None);
    check("x://{a}", "x://%252F", "a: %2F");
    // Reserved expansion lets triplets pass. The value keeps the triplets that decoding would lose.
    check("x://{+a}", "x://%2f%41%FF%C3%25%20%C3%A9", "a: %2f%41%FF%C3%25 é");
    check("x://{+a}", "x://%", None);
    // No step ends inside a character.
    check("%C3{+a}", "%C3a", "a: a");
    check("%C3{+a}", "%C3%A9", None);
    check("{+a}%A9", "%C3%A9", None);
}

#[test]
fn all_operators_and_modifiers_are_matched() {
    check("{a,b}", "1,2", "a: 1; b: 2");
    check("{a,b}", "1,2,3", "a: 1; b: [2|3]");
    check("{a}", "1,2", "a: [1|2]");
    check("{a*}", "k=1,l=2", "a: {k=1|l=2}");
    check("{a}", "k=1", None);
    check("{+a,b}", "/x,y=z", "a: /x; b: y=z");
    check("{+a*}", "/x,y", "a: [/x|y]");
    check("{#a}", "#x/y", "a: x/y");
    check("{#a}", "x", None);
    check("www{.a,b}", "www.x.y", "a: x; b: y");
    check("www{.a*}", "www.x.y", "a: [x|y]");
    check("www{.a*}", "www.k.l=1.m=2", "a: {k.l=1|m=2}");
    check("www{.a*}", "www.k=1=2", None);
    check("{/a,b:2}", "/xyz/xy", "a: xyz; b: xy");
    check("{/a:2}", "/xyz", None);
    check("{/a:2}", "/%C3%A9%F0%9D%84%9E", "a: é𝄞");
    check("{/a}", "/x,y", "a: [x|y]");
    check("{/a*}", "/x,y", None);
    check("{/a*}", "//x/", "a: [|x|]");
    check("{/a*}", "/k=1/l=", "a: {k=1|l=}");
    check("{/a*}", "/k=1/l", None);
    check("{;a,b}", ";a=1;b", "a: 1; b: ");
    check("{;a}", ";a=", None);
    check("{;a}", ";a=,", "a: [|]");
    check("{;a:3}", ";a=123", "a: 123");
    check("{;a:3}", ";a=1234", None);
    check("{;a:3}", ";a", "a: ");
    check("{;a*}", ";a=1;a;a=2", "a: [1||2]");
    check("{;a*}", ";k=1;l;m=2", "a: {k=1|l=|m=2}");
    check("{;a*}", ";k=", None);
    check("{;a*}", ";k=1=2", None);
    check("{?a*}", "?a=1&a=2", "a: [1|2]");
    check("{?a*}", "?a=1&b=2", "a: {a=1|b=2}");
    check("{?a*}", "?a=1&b", None);
    check("{?a*}", "?a=1&&b=2", None);
    check("{?a,b}", "?b=", "b: ");
    check("{?a}", "?a=1,2", "a: [1|2]");
    check("?x=1{&a,b}", "?x=1&b=2", "b: 2");
    check("{?last.name,Stra%C3%9Fe}", "?last.name=x&Stra%C3%9Fe=y", "last.name: x; Stra%C3%9Fe: y");
    check("é/{a}", "%C3%A9/1", "a: 1");
    check("{a:9999}", "x", "a: x");
}

#[test]
fn adjacent_expressions_share_the_text_between_them() {
    check("{?a,b}{&keys*}", "?a=1&b=2&c=3", "a: 1; b: 2; keys: {c=3}");
    check("{/path*}{/file}", "/a/b", "path: [a]; file: b");
    check("{/path*}{?q}{#f}", "/a/b?q=1#f", "path: [a|b]; q: 1; f: f");
    check("{+path}{?q}", "a/b?q=1", "path: a/b; q: 1");
    check("{+path}{?q}", "a/b?r=1", "path: a/b?r=1");
    check("{name}{.extension}", "note.txt", "name: note; extension: txt");
    check("{name}{.extension}", "note", "name: note");
    check("{a}{b}", "xyz", "a: x; b: yz");
    check("{a:1}{b:1}{c:1}", "xyz", "a: x; b: y; c: z");
    check("{a:1}{b:1}{c:1}", "vxyz", None);
    check("{a}-{b}", "x-y-z", "a: x; b: y-z");
    check("{keys*}={a}", "k=1=2", "keys: {k=1}; a: 2");
}

#[test]
fn each_occurrence_of_a_variable_matches_on_its_own() {
    let check = |template: &str, uri: &str, expected: bool| {
        assert_eq!(parse(template).matches(uri), expected, "{template} <- {uri}");
    };
    check("{/a,a}", "/x/x", true);
    check("{/a,a}", "/x/y", true);
    check("{/a:1,a}", "/v/value", true);
    check("{/a:1,a}", "/vw/value", false);
    check("{a}/{a}{?a}", "x%20/x%20?a=x%20", true);
    check("{a}/{a}{?a}", "x/x?b=x", false);
    check("{a:2}-{a:3}", "xy-zyx", true);
    check("{?a}{&a}", "?a=1", true);
}

#[test]
fn a_lenient_match_lets_a_trailing_variable_span_a_path() {
    check_lenient("file:///{path}", "file:///a", "path: a");
    check_lenient("file:///{path}", "file:///a,b", "path: [a|b]");
    check_lenient("file:///{path}", "file:///a/@b/[c]%20(d)%2fe", "path: a/@b/[c] (d)%2fe");
    check_lenient("file:///{path}", "file:///a/b?c", None);
    check_lenient("file:///{path}", "file:///a/b#c", None);
    check_lenient("file:///{path}", "file:///a/b c", None);
    check_lenient("{host}/{path}", "h/a/b", "host: h; path: a/b");
    check_lenient("{host}/{path}", "h:1/a", None);
    check_lenient("x://{path}/end", "x://a/b/end", None);
    check_lenient("x://{a,b}", "x://a/b", None);
    check_lenient("x://{a:9}", "x://a/b", None);
    check_lenient("x://{a*}", "x://a/b", None);
    check_lenient("x://{.a}", "x://.a/b", None);
    check_lenient("search://docs{?q}", "search://docs?q=a/b", None);

    let template = parse("file:///{path}");
    let bindings = reference::find(template.lenient_steps.as_deref().expect("lenient"), "file:///a/b%20c");
    let reserved = parse("file:///{+path}");
    assert_eq!(expand(&reserved.steps, &bindings.expect("a match")), "file:///a/b%20c");
}

#[test]
fn a_malformed_template_is_rejected_with_its_position() {
    check_error("x://{a", "opening brace at byte 4 is never closed");
    check_error("x://a}", "closing brace at byte 5 was never opened");
    check_error("{a{b}}", "variable name \"a{b\" at byte 1 is not valid");
    check_error("{}", "variable name \"\" at byte 1 is not valid");
    check_error("{a,}", "variable name \"\" at byte 3 is not valid");
    check_error("{+}", "variable name \"\" at byte 2 is not valid");
    check_error("{a b}", "variable name \"a b\" at byte 1 is not valid");
    check_error("{a-b}", "variable name \"a-b\" at byte 1 is not valid");
    check_error("{é}", "variable name \"é\" at byte 1 is not valid");
    check_error("{a.}", "variable name \"a.\" at byte 1 is not valid");
    check_error("{a%4}", "variable name \"a%4\" at byte 1 is not valid");
    check_error("{a:3*}", "variable name \"a:3\" at byte 1 is not valid");
    check_error("{a**}", "variable name \"a*\" at byte 1 is not valid");
    check_error("é{@a}", "operator '@' at byte 3 is reserved");
    check_error("{?a,b:x}", "prefix length \"x\" at byte 6 is not a number from 1 to 9999");
    check_error("{a:+1}", "prefix length \"+1\" at byte 3 is not a number from 1 to 9999");
    check_error("{a:00001}", "prefix length \"00001\" at byte 3 is not a number from 1 to 9999");
    check_error("x://a b", "character ' ' at byte 5 is not allowed in a template");
    check_error("x://\u{85}", "character '\\u{85}' at byte 4 is not allowed in a template");
    check_error("x://\u{FFFF}", "character '\\u{ffff}' at byte 4 is not allowed in a template");
    check_error("x://50%", "percent sign at byte 6 is not followed by two hex digits");
}

#[test]
fn the_size_of_templates_and_uris_is_limited() {
    let full = "a".repeat(MAX_TEMPLATE_BYTES);
    assert!(parse(&full).matches(&full));
    let length = MAX_TEMPLATE_BYTES + 1;
    assert_eq!(Template::parse(&"a".repeat(length)).err(), Some(TemplateError::TooLong { length }));

    parse(&"{a}".repeat(MAX_VARIABLES));
    let error = Template::parse(&"{a}".repeat(MAX_VARIABLES + 1)).err();
    assert_eq!(error, Some(TemplateError::TooManyVariables));

    assert!(parse("{a}").matches(&"a".repeat(MAX_URI_BYTES)));
    assert!(!parse("{a}").matches(&"a".repeat(MAX_URI_BYTES + 1)));
}

#[test]
fn literal_bytes_count_the_encoded_literal_text() {
    assert_eq!(parse("db://{table}/{id}").literal_bytes(), 6);
    assert_eq!(parse("é{?name}").literal_bytes(), "%C3%A9".len());
    assert_eq!(parse("é{?name}").as_str(), "é{?name}");
}

#[test]
fn each_kind_of_value_is_expanded() {
    let values: Bindings = [
        ("text", string("a/é %20")),
        ("empty", string("")),
        ("list", list(&["x", "", "y z"])),
        ("none", list(&[])),
        ("map", map(&[("k", "1"), ("l", ""), ("m,", "=")])),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();
    for (template, expected) in [
        ("<{text}>", "a%2F%C3%A9%20%2520"),
        ("<{+text}>", "a/%C3%A9%20%20"),
        ("<{text:3}>", "a%2F%C3%A9"),
        ("<{+text:5}>", "a/%C3%A9%20%20"),
        ("<{empty,none,unknown,empty}>", ","),
        ("<{list}>", "x,,y%20z"),
        ("<{list:2}>", ""),
        ("<{/list*}>", "/x//y%20z"),
        ("<{map}>", "k,1,l,,m%2C,%3D"),
        ("<{+map*}>", "k=1,l=,m,=="),
        ("<{;map*,list*,empty}>", ";k=1;l;m%2C=%3D;list=x;list;list=y%20z;empty"),
        ("<{?map*,list*,empty}>", "?k=1&l=&m%2C=%3D&list=x&list=&list=y%20z&empty="),
        ("<{?none,unknown,none*}>", ""),
    ] {
        let template = template.replace(['<', '>'], "!");
        assert_eq!(expand(&parse(&template).steps, &values), format!("!{expected}!"), "{template}");
    }
}

/// Checks that the counted work per byte is limited for every template, and that a URI of double length takes at most
/// double the work.
#[test]
fn work_is_linear_in_the_uri() {
    const MAX_WORK_PER_BYTE: usize = 100;
    let numbered = |shape: &str, tail: &str| {
        let shapes: String = (1..MAX_VARIABLES).map(|number| shape.replace('N', &number.to_string())).collect();
        shapes + tail
    };
    let templates = [
        numbered("{aN}", "{/b}"),
        numbered("{aN}a", "!"),
        numbered("{+aN}", "!"),
        numbered("{/aN*}", "{?b}"),
        numbered("{/a*}", ""),
        numbered("{/a*}", "!{b}"),
        numbered("{a}", "{b}"),
        numbered("{.aN*}", "{/b}"),
        numbered("{;aN*}", "!{b}"),
        numbered("{aN:9999}", "!{b}"),
        numbered("{+aN:7}", "{b}"),
        format!("{{?{}}}", vec!["a*"; MAX_VARIABLES].join(",")),
        format!("{{+a}}{}{{+b}}", "a".repeat(2000)),
        "{a}{b}{a}{b}{+c}!{a}".to_owned(),
        "{+a}{+b}{+c}{a}{b}{c}".to_owned(),
        "{a:1}{a:2}{a:3}{a:4}{b}{a}{b}".to_owned(),
    ];
    let pieces = ["a", "/a", "//", ".a=b", ";a=b", "&a=", "%C3%A9"];
    for template in &templates {
        let steps = parse(template).steps;
        for piece in pieces {
            let work = |count: usize| fit::fits(&steps, &piece.repeat(count), 0).1;
            let count = MAX_URI_BYTES / 2 / piece.len();
            let (half, whole) = (work(count), work(2 * count));
            let case = format!("{template} <- {piece}...: {half}, {whole}");
            assert!(whole <= MAX_WORK_PER_BYTE * MAX_URI_BYTES, "{case}");
            assert!(whole <= 2 * half, "{case}");
        }
    }
}

const NAMES: [&str; 8] = ["a", "b", "ab", "k", "a.b", "k%C3%A9", "_1", "20"];

/// Generates templates. Their variables take their names from `names` in turn.
fn templates(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    let literals = ["a", "b", "x://", "/", "?", "&", ";", "=", ",", ".", "#", "%20", "%2f", "é", "-", "a=", "?a="];
    let variable = prop_oneof![Just(String::new()), Just("*".to_owned()), (1..4_u16).prop_map(|n| format!(":{n}"))];
    let expression = (select(vec!["", "+", "#", ".", "/", ";", "?", "&"]), vec(variable, 1..4));
    let part = prop_oneof![
        select(literals.to_vec()).prop_map(|literal| (literal, None)),
        expression.prop_map(|(operator, variables)| (operator, Some(variables))),
    ];
    vec(part, 0..6).prop_map(move |parts| {
        let mut names = names.iter();
        let mut template = String::new();
        for (text, variables) in parts {
            let Some(variables) = variables else {
                template.push_str(text);
                continue;
            };
            let named: Vec<_> = variables.iter().zip(&mut names).map(|(rest, name)| format!("{name}{rest}")).collect();
            if !named.is_empty() {
                template.push_str(&format!("{{{text}{}}}", named.join(",")));
            }
        }
        template
    })
}

fn values() -> impl Strategy<Value = Bindings> {
    let characters = "ab20CF%/?&=,.;# ~é€𝄞".chars().collect::<Vec<_>>();
    let text = || vec(select(characters.clone()), 0..5).prop_map(String::from_iter);
    let value = prop_oneof![
        3 => text().prop_map(Value::String),
        1 => vec(text(), 0..4).prop_map(Value::List),
        1 => vec((text(), text()), 0..4).prop_map(Value::Map),
    ];
    vec(proptest::option::weighted(0.8, value), NAMES.len()).prop_map(|values| {
        let named = NAMES.iter().zip(values);
        named.filter_map(|(name, value)| Some(((*name).to_owned(), value?))).collect()
    })
}

fn uris() -> impl Strategy<Value = String> {
    let pieces = [
        "a", "b", "k", "2", "x://", "/", "?", "&", ";", "=", ",", ".", "#", "%20", "%2f", "%C3", "%A9", "%C3%A9", "%",
        "é",
    ];
    vec(select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_expansion_of_a_template_matches_it(template in templates(&NAMES), values in values()) {
        let template = parse(&template);
        let uri = expand(&template.steps, &values);
        prop_assert!(template.matches(&uri), "{} <- {}", template.as_str(), uri);
    }

    /// The two matchers implement the grammar separately. They must agree if no variable occurs twice.
    #[test]
    fn both_matchers_agree(template in templates(&NAMES), uri in uris()) {
        let template = parse(&template);
        prop_assert_eq!(template.matches(&uri), reference::find(&template.steps, &uri).is_some());
        let wide = template.lenient_steps.as_deref().and_then(|steps| reference::find(steps, &uri));
        prop_assert_eq!(widened(&template, &uri), wide.is_some());
    }

    #[test]
    fn every_match_is_an_expansion_of_the_template(template in templates(&NAMES), uri in uris()) {
        let template = parse(&template);
        if template.matches(&uri) {
            let bindings = reference::find(&template.steps, &uri).expect("values");
            prop_assert_eq!(expand(&template.steps, &bindings), uri);
        }
    }

    #[test]
    fn a_strict_match_is_a_lenient_one(template in templates(&NAMES), uri in uris()) {
        let template = parse(&template);
        if template.lenient_steps.is_some() && template.matches(&uri) {
            prop_assert!(widened(&template, &uri));
        }
    }

    #[test]
    fn parsing_and_matching_any_text_does_not_panic(template in "[a{}:*,+#./;?&=%0-9é ]{0,20}", uri in "[a-c/?&=.,;#%0-9AFé ]{0,30}") {
        if let Ok(template) = Template::parse(&template) {
            template.matches(&uri);
            widened(&template, &uri);
        }
    }
}

#[test]
fn variables_are_listed_once_in_the_order_of_the_template() {
    let template = parse("db://{table}{/path*}{?id,table:2}");
    let variables: Vec<_> =
        template.variables().into_iter().map(|known| (known.name, known.is_list, known.is_optional)).collect();
    assert_eq!(variables, [("table", false, false), ("path", true, true), ("id", false, true)]);
    let values = [("table", string("a b")), ("path", list(&["x", "y/z"]))];
    assert_eq!(template.expand(&values.map(|(name, value)| (name.to_owned(), value))), "db://a%20b/x/y%2Fz?table=a%20");
}
