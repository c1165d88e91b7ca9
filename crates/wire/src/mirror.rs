//! Tool arguments that HTTP requests of 2026-07-28 repeat in headers, and the encoding of header values.
//!
//! A tool marks such a property of its input schema with `x-mcp-header`. The client repeats the argument in the header
//! `Mcp-Param-NAME` when it calls the tool over HTTP. The server compares header and argument. The gateway does both:
//! the first for backends, the second for clients. This module does no I/O.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::json::{self, Span, quote};

/// The prefix of the header names, in lower case like all header names here.
pub const PREFIX: &str = "mcp-param-";

const ANNOTATION: &str = "x-mcp-header";
const OPEN: &str = "=?base64?";
const CLOSE: &str = "?=";
/// The maximum nesting of a schema that is searched. Each level costs a walk through everything below it.
const MAX_LEVELS: usize = 64;
/// The largest integer that every JSON reader represents exactly.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Encodes `value` for a header. The result is plain if possible, otherwise marked base64. A value that itself looks
/// like marked base64 must be encoded too.
pub fn encode(value: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b'\t' | b' '..=b'~');
    let has_blank_ends = value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']);
    if value.bytes().all(is_plain) && !has_blank_ends && marked(value).is_none() {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{OPEN}{}{CLOSE}", STANDARD.encode(value)))
}

/// Decodes the value of a header. Ignores surrounding whitespace.
pub fn decode(value: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let value = std::str::from_utf8(value).map_err(|_| "is not UTF-8")?.trim_matches([' ', '\t']);
    let Some(inner) = marked(value) else { return Ok(Cow::Borrowed(value)) };
    let bytes = STANDARD.decode(inner).map_err(|_| "is not valid base64")?;
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| "is not UTF-8 after decoding")
}

/// Returns the base64 text between the markers, or `None` if the value is not marked.
fn marked(value: &str) -> Option<&str> {
    value.strip_prefix(OPEN)?.strip_suffix(CLOSE)
}

/// Decodes the header `name`, which must not be repeated. `values` are all values that the client sent under that name.
pub fn decode_single<'h>(
    name: &str,
    values: impl IntoIterator<Item = &'h [u8]>,
) -> Result<Option<Cow<'h, str>>, String> {
    let mut values = values.into_iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(format!("the header {name} occurs twice"));
    }
    decode(value).map(Some).map_err(|reason| format!("the header {name} {reason}"))
}

/// The arguments of one tool that headers repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors(Box<[Mirror]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mirror {
    /// The full name of the header, in lower case.
    header: Box<str>,
    /// The keys that lead from `arguments` to the value.
    path: Box<[Box<str>]>,
}

impl Mirrors {
    /// Reads the annotations from the definition of a tool. Returns a readable reason if an annotation is invalid.
    pub fn read(definition: &str) -> Result<Mirrors, String> {
        if memchr::memmem::find(definition.as_bytes(), ANNOTATION.as_bytes()).is_none() {
            return Ok(Mirrors::default());
        }
        let Some(schema) = json::member(definition, json::whole(definition), "inputSchema") else {
            return Ok(Mirrors::default());
        };
        let mut search = MirrorSearch { text: definition, found: Vec::new(), names: HashSet::new() };
        search.schema(schema, 0, Some(&[]))?;
        Ok(Mirrors(search.found.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the headers for a call with these `arguments`: names in lower case, and encoded values.
    pub fn headers<'a>(&'a self, text: &'a str, arguments: Option<Span>) -> impl Iterator<Item = (&'a str, String)> {
        self.0.iter().filter_map(move |Mirror { header, path }| {
            let value = header_text(text, find(text, arguments, path)?)?;
            Some((&**header, encode(&value).into_owned()))
        })
    }

    /// Checks that the headers of a call repeat its `arguments`. `get` returns all values sent under a name. Returns a
    /// readable reason if a header is missing, unexpected or different.
    pub fn check<'h, I: IntoIterator<Item = &'h [u8]>>(
        &self,
        text: &str,
        arguments: Option<Span>,
        get: impl Fn(&str) -> I,
    ) -> Result<(), String> {
        for Mirror { header, path } in &self.0 {
            let value = find(text, arguments, path);
            let sent = decode_single(header, get(header))?;
            let matches = match (&sent, value.and_then(|value| header_text(text, value))) {
                (Some(sent), Some(argument)) if is_number(text, value) => is_same_number(sent, &argument),
                (Some(sent), Some(argument)) => *sent == argument,
                (None, None) => true,
                (None, Some(_)) => return Err(format!("the header {header} is missing")),
                (Some(_), None) => return Err(format!("the header {header} matches no argument")),
            };
            if !matches {
                return Err(format!("the header {header} differs from the argument {}", quote(&path.join("."))));
            }
        }
        Ok(())
    }
}

fn find(text: &str, arguments: Option<Span>, path: &[Box<str>]) -> Option<Span> {
    path.iter().try_fold(arguments?, |value, key| json::member(text, value, key))
}

/// Converts an argument to header text. Returns `None` for null, arrays and objects, which no header can repeat.
fn header_text(text: &str, value: Span) -> Option<Cow<'_, str>> {
    let token = value.get(text);
    match token.as_bytes().first()? {
        b'"' => json::string(text, value),
        b't' | b'f' => Some(Cow::Borrowed(token)),
        b'-' | b'0'..=b'9' => {
            Some(whole_number(token).map_or(Cow::Borrowed(token), |number| Cow::Owned(number.to_string())))
        }
        _ => None,
    }
}

fn is_number(text: &str, value: Option<Span>) -> bool {
    value.is_some_and(|value| matches!(text.as_bytes().get(value.range().start), Some(b'-' | b'0'..=b'9')))
}

fn is_same_number(sent: &str, argument: &str) -> bool {
    sent == argument || whole_number(sent).is_some_and(|sent| Some(sent) == whole_number(argument))
}

/// Returns the value of an integer in any spelling. `1e2` and `100.0` are both 100.
fn whole_number(token: &str) -> Option<i64> {
    let number = token.parse().ok().or_else(|| {
        let number: f64 = token.parse().ok()?;
        (number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER as f64).then_some(number as i64)
    });
    number.filter(|number: &i64| (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(number))
}

/// A walk through a schema, at most [`MAX_LEVELS`] deep.
struct MirrorSearch<'a> {
    text: &'a str,
    found: Vec<Mirror>,
    names: HashSet<String>,
}

impl MirrorSearch<'_> {
    /// Searches a schema or an array of schemas, as under `anyOf`. `path` has the keys that lead to it through
    /// `properties` alone. It is `None` elsewhere, because annotations are invalid there.
    fn schema(&mut self, span: Span, level: usize, path: Option<&[Box<str>]>) -> Result<(), String> {
        if level > MAX_LEVELS {
            return Err(format!("a schema with {ANNOTATION} has at most {MAX_LEVELS} levels"));
        }
        for element in json::elements(self.text, span) {
            self.schema(element, level + 1, None)?;
        }
        for member in json::members(self.text, span) {
            match &*member.key(self.text) {
                ANNOTATION => self.annotation(member.value, span, path)?,
                "properties" => self.map(member.value, level + 1, path)?,
                "$defs" | "definitions" | "dependentSchemas" | "patternProperties" => {
                    self.map(member.value, level + 1, None)?;
                }
                // These keywords hold values, not schemas.
                "default" | "const" | "enum" | "examples" => {}
                _ => self.schema(member.value, level + 1, None)?,
            }
        }
        Ok(())
    }

    /// Searches an object that maps names to schemas.
    fn map(&mut self, span: Span, level: usize, path: Option<&[Box<str>]>) -> Result<(), String> {
        for member in json::members(self.text, span) {
            let path = path.map(|path| [path, &[member.key(self.text).into()]].concat());
            self.schema(member.value, level + 1, path.as_deref())?;
        }
        Ok(())
    }

    fn annotation(&mut self, value: Span, schema: Span, path: Option<&[Box<str>]>) -> Result<(), String> {
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Err(format!("{ANNOTATION} is allowed only on a property that is reached through properties alone"));
        };
        let property = quote(&path.join("."));
        let name = json::string(self.text, value).unwrap_or_default();
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("{ANNOTATION} of {property} is not a valid header name"));
        }
        let kind = json::member(self.text, schema, "type").and_then(|at| json::string(self.text, at));
        if !matches!(kind.as_deref(), Some("string" | "integer" | "boolean")) {
            return Err(format!("{ANNOTATION} of {property} needs the type string, integer or boolean"));
        }
        let header = format!("{PREFIX}{}", name.to_ascii_lowercase());
        if !self.names.insert(header.clone()) {
            return Err(format!("{ANNOTATION} {} occurs twice", quote(&name)));
        }
        self.found.push(Mirror { header: header.into(), path: path.into() });
        Ok(())
    }
}

/// Reports whether a byte may occur in a header name.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tool(properties: &str) -> String {
        format!(r#"{{"name":"t","inputSchema":{{"type":"object","properties":{properties}}}}}"#)
    }

    #[test]
    fn srv2_header_values_are_encoded_only_where_necessary() {
        let check = |value: &str, expected: &str| assert_eq!(encode(value), expected, "{value:?}");
        check("", "");
        check("eu west\t1", "eu west\t1");
        check(" a", "=?base64?IGE=?=");
        check("a\t", "=?base64?YQk=?=");
        check("é", "=?base64?w6k=?=");
        check("a\nb", "=?base64?YQpi?=");
        check("\u{7f}", "=?base64?fw==?=");
        check("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?=");
        check("=?base64?YQ==", "=?base64?YQ==");
    }

    #[test]
    fn srv2_base64_header_values_are_decoded_strictly() {
        let check = |value: &str, expected: Result<&str, ()>| {
            let read = decode(value.as_bytes());
            assert_eq!(read.as_deref().map_err(|_| ()), expected, "{value:?}");
        };
        check(" plain ", Ok("plain"));
        check("=?base64?YQ==?=", Ok("a"));
        check("=?base64??=", Ok(""));
        check("=?base64?YQ==", Ok("=?base64?YQ=="));
        check("=?BASE64?YQ==?=", Ok("=?BASE64?YQ==?="));
        check("=?base64?YQ?=", Err(()));
        check("=?base64?YR==?=", Err(()));
        check("=?base64?Y-==?=", Err(()));
        check("=?base64?/w==?=", Err(()));
        assert_eq!(decode(b"\xff"), Err("is not UTF-8"));
    }

    #[test]
    fn srv2_header_annotations_are_read_and_invalid_ones_are_rejected() {
        let check = |properties: &str, expected: &str| {
            let read = match Mirrors::read(&tool(properties)) {
                Ok(Mirrors(found)) => {
                    let mut found: Vec<_> =
                        found.iter().map(|mirror| format!("{}={}", mirror.header, mirror.path.join("."))).collect();
                    found.sort();
                    found.join(" ")
                }
                Err(reason) => reason,
            };
            assert!(read.contains(expected) && read.is_empty() == expected.is_empty(), "{properties}: {read}");
        };
        check("{}", "");
        check(r#"{"a":{"type":"number"}}"#, "");
        check(r#"{"a":{"type":"string","x-mcp-header":"Region"}}"#, "mcp-param-region=a");
        check(r#"{"a":{"properties":{"b":{"type":"integer","x-mcp-header":"B"}}}}"#, "mcp-param-b=a.b");
        check(r#"{"a":{"properties":{"x-mcp-header":{"type":"string"}}}}"#, "");
        check(r#"{"a":{"default":{"x-mcp-header":1}}}"#, "");
        for wrong in [r#""""#, "1", r#""a b""#, r#""ä""#, r#""a:""#, "null"] {
            check(&format!(r#"{{"a":{{"type":"string","x-mcp-header":{wrong}}}}}"#), "not a valid header name");
        }
        for kind in [r#""number""#, r#""object""#, r#""array""#, r#""null""#, r#"["string","null"]"#, "1"] {
            check(&format!(r#"{{"a":{{"type":{kind},"x-mcp-header":"A"}}}}"#), "needs the type string");
        }
        let annotated = r#"{"type":"string","x-mcp-header":"A"}"#;
        check(&format!(r#"{{"a":{annotated},"b":{}}}"#, annotated.replace('A', "a")), "occurs twice");
        for keyword in ["items", "not", "additionalProperties"] {
            check(&format!(r#"{{"a":{{"{keyword}":{annotated}}}}}"#), "through properties alone");
        }
        for keyword in ["oneOf", "anyOf", "allOf"] {
            check(&format!(r#"{{"a":{{"{keyword}":[{{}},{annotated}]}}}}"#), "through properties alone");
        }
        check(&format!(r#"{{"a":{{"$defs":{{"x":{annotated}}}}}}}"#), "through properties alone");
        let root = r#"{"name":"t","inputSchema":{"x-mcp-header":"A","type":"string"}}"#;
        assert!(Mirrors::read(root).is_err_and(|reason| reason.contains("through properties alone")));
        let deep = format!("{}{annotated}{}", r#"{"not":"#.repeat(9_999), "}".repeat(9_999));
        check(&format!(r#"{{"a":{deep}}}"#), "levels");
    }

    fn mirrors() -> Mirrors {
        let properties = r#"{"s":{"type":"string","x-mcp-header":"S"},"i":{"type":"integer","x-mcp-header":"I"},
            "o":{"properties":{"b":{"type":"boolean","x-mcp-header":"B"}}}}"#;
        Mirrors::read(&tool(properties)).expect("a valid definition")
    }

    #[test]
    fn srv2_arguments_become_headers() {
        let check = |arguments: &str, expected: &str| {
            let mirrors = mirrors();
            let mut headers: Vec<_> = mirrors
                .headers(arguments, Some(json::whole(arguments)))
                .map(|(name, value)| format!("{name}: {value}"))
                .collect();
            headers.sort();
            assert_eq!(headers.join(", "), expected, "{arguments}");
        };
        check("{}", "");
        check("null", "");
        check(r#"{"s":null,"i":null,"o":{"b":null},"x":1}"#, "");
        check(r#"{"s":"","i":-7,"o":{"b":true}}"#, "mcp-param-b: true, mcp-param-i: -7, mcp-param-s: ");
        check(r#"{"s":"\u00e9","i":1e2}"#, "mcp-param-i: 100, mcp-param-s: =?base64?w6k=?=");
        check(r#"{"i":1.5}"#, "mcp-param-i: 1.5");
        check(r#"{"s":[],"i":{},"o":{"b":[1]}}"#, "");
        assert_eq!(mirrors().headers("{}", None).count(), 0);
    }

    #[test]
    fn srv2_headers_must_repeat_the_arguments() {
        let check = |arguments: &str, headers: &[(&str, &str)], expected: &str| {
            let get = |name: &str| {
                let named = headers.iter().filter(|(key, _)| *key == name);
                named.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>()
            };
            let result = mirrors().check(arguments, Some(json::whole(arguments)), get);
            let error = result.err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{arguments}: {error}");
        };
        check("{}", &[("mcp-param-other", "x")], "");
        check(r#"{"s":"a","i":1}"#, &[("mcp-param-s", " a"), ("mcp-param-i", "1.0")], "");
        check(r#"{"s":"é"}"#, &[("mcp-param-s", "=?base64?w6k=?=")], "");
        check(r#"{"s":"a"}"#, &[], "mcp-param-s is missing");
        check(r#"{"s":"a"}"#, &[("mcp-param-s", "A")], "differs from the argument \"s\"");
        check(r#"{"s":"1"}"#, &[("mcp-param-s", "1.0")], "differs from");
        check(r#"{"i":1}"#, &[("mcp-param-i", "2")], "differs from");
        check(r#"{"i":9007199254740993}"#, &[("mcp-param-i", "9007199254740992")], "differs from");
        check(r#"{"o":{"b":true}}"#, &[("mcp-param-b", "1")], "the argument \"o.b\"");
        check(r#"{"s":null}"#, &[("mcp-param-s", "")], "matches no argument");
        check(r#"{"s":"a"}"#, &[("mcp-param-s", "a"), ("mcp-param-s", "a")], "occurs twice");
        check(r#"{"s":"a"}"#, &[("mcp-param-s", "=?base64?YQ?=")], "not valid base64");
    }

    proptest! {
        #[test]
        fn srv2_every_value_round_trips_through_a_header(value in any::<String>()) {
            let sent = encode(&value);
            prop_assert!(sent.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')));
            prop_assert_eq!(decode(sent.as_bytes()).expect("an encoded value"), value.as_str());
        }

        #[test]
        fn srv2_headers_of_any_arguments_pass_the_check(text in any::<String>(), number in any::<i64>(), flag in any::<bool>()) {
            let arguments = format!(r#"{{"s":{},"i":{number},"o":{{"b":{flag}}}}}"#, quote(&text));
            let (mirrors, span) = (mirrors(), Some(json::whole(&arguments)));
            let headers: Vec<_> = mirrors.headers(&arguments, span).collect();
            prop_assert_eq!(headers.len(), 3);
            let get = |name: &str| {
                let named = headers.iter().filter(|(key, _)| *key == name);
                named.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>()
            };
            prop_assert_eq!(mirrors.check(&arguments, span, get), Ok(()));
        }

        #[test]
        fn srv2_no_definition_makes_the_annotation_search_panic(definition in any::<String>()) {
            let _ = Mirrors::read(&format!(r#"{{"inputSchema":{}, "x-mcp-header":1}}"#, quote(&definition)));
        }
    }
}
