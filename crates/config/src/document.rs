//! Parses JSON with comments and trailing commas into a tree with positions.
//!
//! The parser's looser options (unquoted keys, single quotes, missing commas, hexadecimal) are off. Other programs read
//! the same file and must understand it the same way. A duplicate key in one object is a problem, because JSON readers
//! disagree on which value counts.

use std::collections::HashSet;

use jsonc_parser::ast::Value;
use jsonc_parser::common::Ranged;
use jsonc_parser::errors::ParseErrorKind;
use jsonc_parser::{CollectOptions, ParseOptions, ParseStringErrorKind, parse_to_ast};

use crate::problem::{Fault, ProblemCollector, quoted};

/// The longest name that a path shows without quotes.
const MAX_PLAIN_NAME: usize = 64;

pub(crate) const STRICT: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Returns the tree. Returns `None` after reporting the reason.
pub(crate) fn parse<'a>(text: &'a str, report: &ProblemCollector) -> Option<Value<'a>> {
    match parse_to_ast(text, &CollectOptions::default(), &STRICT) {
        Ok(parsed) => {
            if parsed.value.is_none() {
                report.problem(0, "", empty_file());
            }
            parsed.value.inspect(|value| find_duplicates(value, "", report))
        }
        Err(error) => {
            report.problem(error.range().start, "", syntax_fault(error.kind()));
            None
        }
    }
}

fn empty_file() -> Fault {
    Fault::new("the file is empty").cure(r#"write at least { "mcpServers": {} }"#)
}

/// Returns the fault for a syntax error. Common mistakes get a clearer message than the parser's.
fn syntax_fault(kind: &ParseErrorKind) -> Fault {
    match kind {
        ParseErrorKind::ExpectedComma => Fault::new("a comma is missing here"),
        ParseErrorKind::UnterminatedObject => Fault::new(r#"this "{" is never closed"#),
        ParseErrorKind::UnterminatedArray => Fault::new(r#"this "[" is never closed"#),
        ParseErrorKind::UnterminatedCommentBlock => Fault::new("this comment is never closed"),
        ParseErrorKind::String(ParseStringErrorKind::UnterminatedStringLiteral) => {
            Fault::new("this string is never closed")
        }
        ParseErrorKind::SingleQuotedStringsNotAllowed
        | ParseErrorKind::ExpectedStringObjectProperty
        | ParseErrorKind::UnexpectedWord => Fault::new("unexpected word").cure("put strings and keys in double quotes"),
        ParseErrorKind::MultipleRootJsonValues => {
            Fault::new("there is text after the end of the configuration").cure("remove the rest")
        }
        other => Fault::new(lower_first(&other.to_string())),
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}

/// Reports duplicate keys. Recursion is safe, because the parser limits the depth.
fn find_duplicates(value: &Value<'_>, path: &str, report: &ProblemCollector) {
    match value {
        Value::Object(object) => {
            let mut seen = HashSet::new();
            for property in &object.properties {
                let path = member_path(path, property.name.as_str());
                if !seen.insert(property.name.as_str()) {
                    let fault = Fault::new("duplicate key").cure("remove one of the two");
                    report.problem(property.name.start(), &path, fault);
                }
                find_duplicates(&property.value, &path, report);
            }
        }
        Value::Array(array) => {
            for (index, element) in array.elements.iter().enumerate() {
                find_duplicates(element, &item_path(path, index), report);
            }
        }
        Value::StringLit(_) | Value::NumberLit(_) | Value::BooleanLit(_) | Value::NullKeyword(_) => {}
    }
}

/// Returns `parent.name`. Quotes a long name and a name with other than word characters, to keep the path readable.
pub(crate) fn member_path(parent: &str, name: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '$');
    let name = if (1..=MAX_PLAIN_NAME).contains(&name.len()) && name.chars().all(plain) {
        name.to_owned()
    } else {
        quoted(name)
    };
    if parent.is_empty() { name } else { format!("{parent}.{name}") }
}

pub(crate) fn item_path(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

#[cfg(test)]
mod tests {
    use super::{member_path, parse};
    use crate::problem::ProblemCollector;

    fn check(text: &str, expected: &str) {
        let report = ProblemCollector::default();
        parse(text, &report);
        let found = match report.finish(text, "f") {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn comments_and_trailing_commas_are_fine() {
        check("// a\n{ /* b */ \"c\": [1, 2,], } // d", "");
        check("", "f:1:1: the file is empty, write at least { \"mcpServers\": {} }");
        check(" // nothing", "f:1:1: the file is empty, write at least { \"mcpServers\": {} }");
    }

    #[test]
    fn syntax_errors_have_a_place() {
        for (text, expected) in [
            ("{\n  \"a\": 1\n  \"b\": 2\n}", "f:2:9: a comma is missing here"),
            ("{\r\n  \"a\": {", "f:2:8: this \"{\" is never closed"),
            ("[1,", "f:1:1: this \"[\" is never closed"),
            ("{ /* x", "f:1:3: this comment is never closed"),
            ("{ a: 1 }", "f:1:3: unexpected word, put strings and keys in double quotes"),
            ("{ \"a\": 'b' }", "f:1:8: unexpected word, put strings and keys in double quotes"),
            ("{ \"a\": yes }", "f:1:8: unexpected word, put strings and keys in double quotes"),
            ("{} {}", "f:1:4: there is text after the end of the configuration, remove the rest"),
            ("{ \"a\": 0x10 }", "f:1:8: hexadecimal numbers are not allowed"),
            ("{ \"a\": \"b\n", "f:1:8: this string is never closed"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        check(
            "{ \"a\": [{ \"b\": 1,\n \"b\": 2 }],\n \"\\u0061\": 3 }",
            "f:2:2: a[0].b: duplicate key, remove one of the two\n\
             f:3:2: a: duplicate key, remove one of the two",
        );
    }

    #[test]
    fn depth_is_bounded() {
        let text = "[".repeat(100_000);
        check(&text, "f:1:513: maximum nesting depth exceeded");
    }

    #[test]
    fn paths_quote_odd_names() {
        assert_eq!(member_path("", "$schema"), "$schema");
        assert_eq!(member_path("servers", "my-server_1"), "servers.my-server_1");
        assert_eq!(member_path("servers", "a.b c"), "servers.\"a.b c\"");
        assert_eq!(member_path("servers", ""), "servers.\"\"");
    }
}
