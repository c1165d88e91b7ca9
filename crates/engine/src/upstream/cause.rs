//! Finds the line of a program's output that a person can act on.
//!
//! A program that ends writes more than its cause: the frames of a traceback, the path of a log file, the version of the
//! runtime. The functions here choose the line with the cause, and know a remedy for frequent causes.

/// The number of stderr lines that are examined.
pub(crate) const MAX_EXAMINED_LINES: usize = 40;
/// The number of lines that are quoted after the line with the cause.
const MAX_DETAILS: usize = 2;

/// Beginnings of lines that package runners write around a cause.
const RUNNERS: [&str; 3] = ["npm error ", "npm ERR! ", "error: "];
/// Beginnings of lines of a package runner that hold no cause.
const RUNNER_NOISE: [&str; 9] = [
    "code ",
    "404 Note",
    "404 tarball",
    "404 'You",
    "A complete log",
    "syscall ",
    "errno ",
    "path ",
    "enoent This is related",
];
/// Beginnings of lines that follow a cause and do not explain it.
const NOISE: [&str; 13] = [
    "+-",
    "at ",
    "code:",
    "requireStack",
    "url:",
    "}",
    "{",
    "Node.js v",
    "^",
    "npm ",
    "During handling of",
    "The above exception",
    TRACEBACK,
];
/// The first line of the frames of a Python exception.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// Texts of causes, each with its remedy.
const REMEDIES: [(&str, &str); 13] = [
    ("No module named", "install the module for the Python that the command runs"),
    ("Cannot find module", "does the file exist, and are the packages of the server installed?"),
    ("Cannot find package", "does the package exist, and are the packages of the server installed?"),
    ("is not in this registry", "is the name of the package right?"),
    ("404 Not Found", "is the name of the package right?"),
    ("not found in the package registry", "is the name of the package right?"),
    ("could not determine executable", "the package has no program; is it an MCP server?"),
    ("EADDRINUSE", "another process uses the port"),
    ("ddress already in use", "another process uses the port"),
    ("EAI_AGAIN", "check the network and the proxy settings"),
    ("ENOTFOUND", "check the network and the proxy settings"),
    ("ENOSPC", "free space on the disk"),
    ("ermission denied", "check the permissions of the file or directory"),
];

/// Returns the line with the cause and at most [`MAX_DETAILS`] lines that explain it. Returns `None` if no line looks
/// like a cause. The last cause counts: it ended the program.
pub(crate) fn cause(lines: &[String]) -> Option<Vec<&str>> {
    let line = |index: usize| without_frame(&lines[index]);
    let at = (0..lines.len()).rfind(|index| is_exception(line(*index)) || runner_cause(line(*index)).is_some());
    let traceback = (0..lines.len()).rfind(|index| line(*index).starts_with(TRACEBACK));
    let raised = traceback.and_then(|start| (start + 1..lines.len()).find(|index| is_class_of_any_name(line(*index))));
    let at = at.max(raised)?;
    let first = runner_cause(line(at)).unwrap_or(line(at));
    let is_detail = |line: &&str| !line.is_empty() && !NOISE.iter().any(|noise| line.starts_with(noise));
    let details = (at + 1..lines.len()).map(line).take_while(is_detail).take(MAX_DETAILS);
    Some(std::iter::once(first).chain(details).collect())
}

/// Returns a line without the bar that Python draws beside the errors of a group.
fn without_frame(line: &str) -> &str {
    line.strip_prefix('|').map_or(line, str::trim_start)
}

/// Returns the remedy for a cause.
pub(crate) fn remedy(cause: &str) -> Option<&'static str> {
    REMEDIES.iter().find(|(text, _)| cause.contains(text)).map(|(_, remedy)| *remedy)
}

/// Reports whether a line has the form `Name: text`, in which the name is that of an exception or error class.
fn is_exception(line: &str) -> bool {
    let line = line.strip_prefix("Uncaught ").unwrap_or(line);
    let name = line.split(':').next().unwrap_or_default();
    // Node appends its code: `Error [ERR_MODULE_NOT_FOUND]: Cannot find package`.
    let name = name.split(" [").next().unwrap_or_default();
    let is_class = ["Error", "Exception", "Interrupt", "Expired"].iter().any(|end| name.ends_with(end));
    is_class && name.chars().all(|character| character.is_alphanumeric() || "._".contains(character))
}

/// Reports whether a line below the frames of a traceback can be its exception: `requests.ConnectTimeout: text`.
fn is_class_of_any_name(line: &str) -> bool {
    let name = line.split_once(": ").map_or(line, |(name, _)| name);
    let class = name.rsplit('.').next().unwrap_or_default();
    class.starts_with(|first: char| first.is_uppercase())
        && class.contains(|character: char| character.is_lowercase())
        && name.chars().all(|character| character.is_alphanumeric() || "._".contains(character))
}

/// Returns the text of a package runner's line that names a cause.
fn runner_cause(line: &str) -> Option<&str> {
    if let Some(text) = line.strip_prefix("╰─▶ ") {
        return Some(text);
    }
    let text = RUNNERS.iter().find_map(|prefix| line.strip_prefix(prefix))?.trim();
    let text = text.strip_prefix("404 ").filter(|rest| rest.contains("is not in this registry")).unwrap_or(text).trim();
    let is_noise = text == "404" || text.is_empty() || RUNNER_NOISE.iter().any(|noise| text.starts_with(noise));
    (!is_noise).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of real programs, without their indentation, and the expected quotation.
    const OUTPUTS: [(&str, &str, Option<&str>); 10] = [
        (
            "Traceback (most recent call last):\nFile \"/srv/a.py\", line 1, in <module>\nimport fastmcp\n\
             ModuleNotFoundError: No module named 'fastmcp'",
            "ModuleNotFoundError: No module named 'fastmcp'",
            Some("install the module for the Python that the command runs"),
        ),
        (
            "Traceback (most recent call last):\nFile \"/srv/a.py\", line 9, in <module>\nsettings = Settings()\n\
             pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings\napi_key\n\
             Field required [type=missing, input_value={}, input_type=dict]",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings|api_key|\
             Field required [type=missing, input_value={}, input_type=dict]",
            None,
        ),
        (
            "+ Exception Group Traceback (most recent call last):\n| File \"/srv/a.py\", line 9, in main\n\
             | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n+-+---------------- 1 ----------------\n\
             | Traceback (most recent call last):\n| ValueError: no such table\n+------------------------------------",
            "ValueError: no such table",
            None,
        ),
        (
            "Traceback (most recent call last):\nFile \"/srv/a.py\", line 1, in f\nraise MaxRetryError(pool)\n\
             urllib3.exceptions.MaxRetryError: no route\nDuring handling of the above exception, another exception occurred:\n\
             Traceback (most recent call last):\nFile \"/srv/a.py\", line 3, in main\nraise ConnectTimeout(e)\n\
             requests.exceptions.ConnectTimeout: no answer from host\nINFO: bye",
            "requests.exceptions.ConnectTimeout: no answer from host|INFO: bye",
            None,
        ),
        (
            "Traceback (most recent call last):\nFile \"/srv/a.py\", line 1, in f\nraise ValueError(1)\n\
             ValueError: 1\nThe above exception was the direct cause of the following exception:\n\
             Traceback (most recent call last):\nFile \"/srv/a.py\", line 3, in main\nraise NoLicence\napp.NoLicence",
            "app.NoLicence",
            None,
        ),
        (
            "node:internal/modules/cjs/loader:1228\nthrow err;\n^\nError: Cannot find module '/srv/server.js'\n\
             at Function._resolveFilename (node:internal/modules/cjs/loader:1225:15)\nat node:internal/main:36:49 {\n\
             code: 'MODULE_NOT_FOUND',\nrequireStack: []\n}\nNode.js v22.1.0",
            "Error: Cannot find module '/srv/server.js'",
            Some("does the file exist, and are the packages of the server installed?"),
        ),
        (
            "npm error code E404\nnpm error 404 Not Found - GET https://registry/no-such-server - Not found\nnpm error 404\n\
             npm error 404  'no-such-server@*' is not in this registry.\n\
             npm error 404 Note that you can also install from a\nnpm error 404 tarball, folder, http url, or git folder.\n\
             npm error A complete log of this run can be found in: /srv/.npm/_logs/x.log",
            "'no-such-server@*' is not in this registry.",
            Some("is the name of the package right?"),
        ),
        (
            "× No solution found when resolving tool dependencies:\n\
             ╰─▶ Because no-such-server was not found in the package registry and you require\n\
             no-such-server, we can conclude that your requirements are unsatisfiable.",
            "Because no-such-server was not found in the package registry and you require|\
             no-such-server, we can conclude that your requirements are unsatisfiable.",
            Some("is the name of the package right?"),
        ),
        (
            "Error: listen EADDRINUSE: address already in use :::3000\nat Server.setupListenHandle (node:net:1898:16)",
            "Error: listen EADDRINUSE: address already in use :::3000",
            Some("another process uses the port"),
        ),
        ("usage: server [--port PORT]\nserver: the following arguments are required: DIRECTORY", "", None),
    ];

    #[test]
    fn use16_the_cause_is_found_in_the_output_of_python_node_npm_and_uv() {
        for (output, expected, cure) in OUTPUTS {
            let lines: Vec<String> = output.lines().map(str::to_owned).collect();
            let found = cause(&lines).unwrap_or_default().join("|");
            assert_eq!(found, expected);
            assert_eq!(remedy(&found), cure, "{found}");
        }
    }
}
