//! `goblin add` and `goblin remove` change only the requested entries.
//!
//! Comments and formatting of the file are preserved. A rejected change leaves the file untouched.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{GOBLIN, Scratch};

struct Place {
    scratch: Scratch,
}

impl Place {
    fn new() -> Place {
        Place { scratch: Scratch::new() }
    }

    fn home(&self) -> PathBuf {
        self.scratch.path().canonicalize().expect("the file exists")
    }

    fn target(&self) -> PathBuf {
        self.home().join(".config/goblin/goblin.json")
    }

    fn put(&self, text: &str) {
        std::fs::create_dir_all(self.target().parent().expect("a parent")).expect("a directory");
        std::fs::write(self.target(), text).expect("a file");
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.target()).expect("the file exists")
    }

    /// Runs a command and returns its exit code, stdout and stderr.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(GOBLIN);
        command.args(arguments).env_clear().env("HOME", self.home()).current_dir(self.home()).stdin(Stdio::null());
        let output = command.output().expect("the command runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Asserts success and the first line of stdout. Returns stderr.
    fn assert_written(&self, arguments: &[&str], verb: &str) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        let first = stdout.lines().next();
        assert_eq!((code, first), (Some(0), Some(format!("{verb} {}", self.target().display()).as_str())), "{stderr}");
        stderr
    }

    /// Asserts that the command is rejected and the file is unchanged.
    fn assert_rejected(&self, arguments: &[&str], fragment: &str) {
        let before = std::fs::read(self.target()).ok();
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr.contains(fragment), "{arguments:?}: {stderr}");
        assert_eq!(std::fs::read(self.target()).ok(), before, "{arguments:?}");
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("the file exists").permissions().mode() & 0o777
}

#[test]
fn the_first_server_creates_the_file() {
    let place = Place::new();
    let stderr = place.assert_written(
        &["add", "files", "--env", "A=b=c", "--env", "TOKEN", "--cwd", "work", "--", "npx", "-y", "@a/b@1.2.3", "."],
        "added files in",
    );
    assert!(stderr.contains("variable TOKEN is not set"), "{stderr}");
    let expected = "{\n  \"mcpServers\": {\n    \"files\": {\n      \"command\": \"npx\",\n      \
                    \"args\": [\"-y\", \"@a/b@1.2.3\", \".\"],\n      \"env\": {\n        \"A\": \"b=c\",\n        \
                    \"TOKEN\": \"${TOKEN}\"\n      },\n      \"cwd\": \"@/work\"\n    }\n  }\n}\n";
    assert_eq!(
        place.text(),
        expected
            .replace('@', "\u{1}")
            .replace("\u{1}a/b\u{1}1", "@a/b@1")
            .replace('\u{1}', &place.home().display().to_string())
    );
    assert_eq!((mode(&place.target()), mode(place.target().parent().expect("a parent"))), (0o600, 0o700));
}

const OWN: &str = "// mine\n{\n\t\"log\": {},   // odd\n\t\"context_servers\": {\n\t\t/* one */ \"a\": {\"command\":\"x\"},\n\t\t\"b\": { \"command\": \"y\" }, // two\n\t},\n}\n";

#[test]
fn a_url_and_a_directory_can_be_added() {
    let place = Place::new();
    place.put(OWN);
    let stderr = place.assert_written(
        &["add", "web", "https://web.example/mcp", "--header", "Authorization: Bearer ${T:-x}", "--header", "X-A:b:c"],
        "added web in",
    );
    assert_eq!(stderr, "");
    place.assert_written(&["add", "here", "--files", "docs/."], "added here in");
    let added = "// two\n\t\t\"web\": {\n\t\t\t\"url\": \"https://web.example/mcp\",\n\t\t\t\"headers\": {\n\t\t\t\t\
                 \"Authorization\": \"Bearer ${T:-x}\",\n\t\t\t\t\"X-A\": \"b:c\",\n\t\t\t},\n\t\t},\n\t\t\"here\": {\n\t\t\t\
                 \"type\": \"files\",\n\t\t\t\"root\": \"@/docs\",\n\t\t},\n";
    assert_eq!(place.text(), OWN.replace("// two\n", &added.replace('@', &place.home().display().to_string())));
}

#[test]
fn a_server_is_replaced_only_by_force() {
    let place = Place::new();
    place.put(OWN);
    place.assert_rejected(&["add", "b", "--", "z"], "server b is in ");
    place.assert_written(&["add", "b", "--force", "--", "z"], "replaced b in");
    assert_eq!(place.text(), OWN.replace("{ \"command\": \"y\" }", "{\n\t\t\t\"command\": \"z\"\n\t\t}"));
}

#[test]
fn servers_are_removed_and_the_rest_stays() {
    let place = Place::new();
    place.put(OWN);
    place.assert_rejected(&["remove", "a", "absent"], "there is no server absent in ");
    place.put(&OWN.replace("\"b\"", "\"branch\""));
    place.assert_rejected(&["remove", "brunch"], "did you mean branch?");
    place.put(OWN);
    place.put(&OWN.replacen('{', "{ \"profiles\": { \"p\": { \"servers\": [\"b\"] } },", 1));
    place.assert_rejected(&["remove", "b"], "profiles.p.servers[0]: there is no server \"b\"");
    place.put(OWN);
    place.assert_written(&["remove", "b"], "removed b from");
    assert_eq!(place.text(), OWN.replace("\t\t\"b\": { \"command\": \"y\" }, // two\n", ""));
    place.put(OWN);
    place.assert_written(&["remove", "b", "a"], "removed b, a from");
    assert!(!place.text().contains("command"), "{}", place.text());
    place.assert_rejected(&["remove", "a"], "there is no server a in ");
}

#[test]
fn an_invalid_change_is_rejected_and_not_written() {
    let place = Place::new();
    place.put(OWN);
    for (arguments, fragment) in [
        (&["add", "c", "https://x y/mcp"][..], "must be a complete http or https URL"),
        (&["add", "c", "npx"], "goblin add c -- npx"),
        (&["add", "c"], "server c needs a command"),
        (&["add", "A", "--", "x"], "give one of them another id"),
        (&["add", "", "--", "x"], "must not be empty"),
        (&["add", "c", "https://x/mcp", "--header", "Host: x"], "the gateway sets this header itself"),
        (&["add", "c", "https://x/mcp", "--header", "x"], "'NAME: VALUE'"),
        (&["add", "c", "--env", "A B=${", "--", "x"], "is not closed"),
        (&["add", "c", "https://x/mcp", "--", "x"], "server c needs a command"),
        (&["add", "c", "https://x/mcp", "--files", "."], "cannot be used with"),
    ] {
        place.assert_rejected(arguments, fragment);
    }
    place.put(&OWN.replace("\"log\"", "\"lug\""));
    place.assert_rejected(&["add", "c", "--", "x"], "goblin.json:3:2: lug: unknown key");
    place.put("{ \"mcpServers\": ");
    place.assert_rejected(&["add", "c", "--", "x"], "fix its problems first");
}

#[test]
fn use15_a_command_without_a_separator_and_a_whole_command_line_are_added() {
    let place = Place::new();
    place.assert_written(&["add", "a", "npx", "-y", "some-server@1.2.3"], "added a in");
    let separated = place.text();
    place.assert_written(&["add", "--force", "a", "npx -y some-server@1.2.3"], "replaced a in");
    assert_eq!(place.text(), separated);
    assert!(separated.contains("\"command\": \"npx\"") && separated.contains("\"-y\""), "{separated}");
    place.assert_rejected(&["add", "b", "sh -c 'a | b'"], "goblin add b -- sh -c 'a | b'");
}

#[test]
fn packages_without_a_version_and_relative_paths_cause_a_warning() {
    let place = Place::new();
    let stderr = place.assert_written(&["add", "a", "--", "npx", "-y", "some-server"], "added a in");
    assert_eq!(
        stderr,
        "warning: server a: npx fetches some-server without a fixed version, write some-server@VERSION\n"
    );
    let stderr = place.assert_written(&["add", "b", "--", "./bin/x", "./data"], "added b in");
    assert!(stderr.starts_with("warning: server b starts in ") && stderr.contains("./data"), "{stderr}");
    assert!(place.text().contains(&format!("\"command\": \"{}/bin/x\"", place.home().display())), "{}", place.text());
}

#[test]
fn a_symbolic_link_stays_and_its_target_is_replaced() {
    let place = Place::new();
    let real = place.home().join("dotfiles.json");
    std::fs::write(&real, OWN).expect("a file");
    std::fs::set_permissions(&real, PermissionsExt::from_mode(0o644)).expect("permissions");
    std::fs::create_dir_all(place.target().parent().expect("a parent")).expect("a directory");
    std::os::unix::fs::symlink(&real, place.target()).expect("a link");
    let (code, stdout, _) = place.run(&["remove", "b"]);
    assert_eq!((code, stdout), (Some(0), format!("removed b from {}\n", real.display())));
    assert!(place.target().is_symlink());
    assert!(!std::fs::read_to_string(&real).expect("the file exists").contains("\"b\""));
    assert_eq!(mode(&real), 0o644);
}

#[test]
fn the_config_flag_selects_the_file() {
    let place = Place::new();
    let path = place.home().join("other.json").display().to_string();
    let (code, stdout, _) = place.run(&["add", "a", "--config", &path, "--", "x"]);
    assert_eq!((code, stdout), (Some(0), format!("added a in {path}\n  runs x\n")));
    assert!(!place.target().exists());
}
