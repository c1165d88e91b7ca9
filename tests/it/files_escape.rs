//! Attempts to escape the root of a files server, or to read excluded files. Every excluded file contains a sentinel.
//! It must be in no response, and every attempt must receive one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, PATIENCE, Scratch};

const SENTINEL: &str = "SENTINEL-7f3a";

/// The required outcome of an attempt.
enum Outcome {
    /// The file is served with this text.
    Served(&'static str),
    /// The attempt is rejected with this text.
    Refused(&'static str),
}

use Outcome::{Refused, Served};

struct World {
    gateway: Gateway,
    client: Client,
    root: PathBuf,
    _scratch: Scratch,
    _socket: UnixListener,
}

impl World {
    async fn new() -> World {
        let scratch = Scratch::new();
        let root = scratch.path().canonicalize().expect("it is there").join("root");
        let socket = build(&root);
        let server = json!({ "type": "files", "root": root.display().to_string() });
        let gateway = Gateway::with_servers(json!({ "f": server })).await;
        let client = gateway.client_seeing("f_read").await;
        World { gateway, client, root, _scratch: scratch, _socket: socket }
    }

    /// Sends a request and returns its response, which must not contain the sentinel.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.client.request(method, params.clone()).await;
        assert!(!answer.to_string().contains(SENTINEL), "{method} {params} tells the secret: {answer}");
        answer
    }

    async fn tool(&self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": format!("f_{name}"), "arguments": arguments})).await["result"].clone()
    }

    async fn check_path(&self, path: &str, outcome: &Outcome) {
        let result = self.tool("read", json!({ "path": path })).await;
        let said = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{path}: {result}"));
        let (refused, words) = match outcome {
            Served(words) => (false, words),
            Refused(words) => (true, words),
        };
        assert_eq!((result["isError"] == true, said.contains(words)), (refused, true), "{path:?}: {result}");
        self.tool("list", json!({ "path": path })).await;
        self.tool("list", json!({ "path": path, "glob": "*" })).await;
        self.tool("search", json!({ "path": path, "query": &SENTINEL[..4] })).await;
    }

    async fn check_uri(&self, uri: &str, outcome: &Outcome) {
        let answer = self.ask("resources/read", json!({ "uri": uri })).await;
        match outcome {
            Served(words) => assert_eq!(answer["result"]["contents"][0]["text"], *words, "{uri}: {answer}"),
            Refused(words) => {
                let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{uri}: {answer}"));
                assert!(message.contains(words), "{uri}: {answer}");
            }
        }
        // The tool accepts more spellings. It must respond, without the sentinel.
        self.tool("read", json!({ "path": uri.trim_start_matches("f+") })).await;
    }
}

/// Creates the root with every kind of entry that may be misused.
fn build(root: &Path) -> UnixListener {
    let outside = root.with_file_name("outside");
    for directory in [".git/info", ".hidden", "sub", "built", "flip"] {
        std::fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    std::fs::create_dir(&outside).expect("a directory");
    let write = |path: PathBuf, text: &str| std::fs::write(path, text).expect("a file");
    for secret in
        [".env", ".git/config", ".hidden/x.txt", "excluded.txt", "ignored.txt", "built/x.txt", "sub/local.txt"]
    {
        write(root.join(secret), SENTINEL);
    }
    write(outside.join("secret.txt"), SENTINEL);
    write(outside.join("inner.txt"), SENTINEL);
    write(outside.join("shared.txt"), "hard linked");
    write(root.join("plain.txt"), "plain");
    write(root.join("a%2Fb"), "percent");
    write(root.join("..."), SENTINEL);
    write(root.join("sub/inner.txt"), "inner");
    write(root.join("flip/inner.txt"), "harmless");
    write(root.join(OsStr::from_bytes(b"caf\xe9.txt")), "not UTF-8");
    write(root.join(".gitignore"), "ignored.txt\nbuilt/\nnot-there.txt\n");
    write(root.join("sub/.gitignore"), "local.txt\n");
    write(root.join(".git/info/exclude"), "excluded.txt\n");
    write(root.join("locked.txt"), "locked");
    std::fs::set_permissions(root.join("locked.txt"), PermissionsExt::from_mode(0o000)).expect("it is ours");
    std::fs::File::create(root.join("huge.txt")).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
    std::fs::hard_link(outside.join("shared.txt"), root.join("hard.txt")).expect("a hard link");
    let absolute = |path: PathBuf| path.display().to_string();
    for (name, target) in [
        ("out-file", "../outside/secret.txt".to_owned()),
        ("out-dir", "../outside".to_owned()),
        ("out-absolute", absolute(outside.join("secret.txt"))),
        ("in-absolute", absolute(root.join("plain.txt"))),
        ("out-and-in", "../root/plain.txt".to_owned()),
        ("chain-1", "chain-2".to_owned()),
        ("chain-2", "sub/../out-file".to_owned()),
        ("loop-1", "loop-2".to_owned()),
        ("loop-2", "loop-1".to_owned()),
        ("self", "self".to_owned()),
        ("up", "..".to_owned()),
        ("slash", "/".to_owned()),
        ("here", ".".to_owned()),
        ("dangling", "nowhere".to_owned()),
        ("to-hidden", ".env".to_owned()),
        ("to-git", ".git".to_owned()),
        ("to-ignored", "ignored.txt".to_owned()),
        ("to-local", "sub/local.txt".to_owned()),
        ("environ", "/proc/self/environ".to_owned()),
        ("zero", "/dev/zero".to_owned()),
        ("stdin", "/dev/stdin".to_owned()),
        ("in-file", "sub/inner.txt".to_owned()),
        ("in-dir", "sub".to_owned()),
    ] {
        symlink(target, root.join(name)).expect("a link");
    }
    let made = std::process::Command::new("mkfifo").arg(root.join("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    UnixListener::bind(root.join("socket")).expect("a socket")
}

#[tokio::test]
async fn no_path_leads_out() {
    let world = World::new().await;
    let root = world.root.display().to_string();
    let parent = world.root.parent().expect("it has one").display().to_string();
    let huge_name = "n".repeat(300);
    let nothing = Refused("there is no");
    let (outside, hidden, ignored) =
        (|| Refused("outside of the root"), || Refused("\"hidden\""), || Refused("\"ignored\""));
    for (path, outcome) in [
        ("plain.txt".to_owned(), Served("plain")),
        // Paths that lead up and out.
        ("..".to_owned(), outside()),
        ("../outside/secret.txt".to_owned(), outside()),
        ("sub/../../outside/secret.txt".to_owned(), outside()),
        ("./././../outside/secret.txt".to_owned(), outside()),
        (format!("{root}/../outside/secret.txt"), outside()),
        (format!("{parent}/outside/secret.txt"), outside()),
        (format!("{root}-not/secret.txt"), outside()),
        ("/etc/passwd".to_owned(), outside()),
        ("/proc/self/environ".to_owned(), outside()),
        ("/dev/zero".to_owned(), outside()),
        ("/dev/stdin".to_owned(), outside()),
        ("/".to_owned(), outside()),
        // Ordinary characters in a path.
        ("..\\outside\\secret.txt".to_owned(), Refused("\"hidden\"")),
        ("sub\\..\\..\\outside\\secret.txt".to_owned(), Refused("there is no")),
        ("%2e%2e/outside/secret.txt".to_owned(), Refused("there is no")),
        ("a%2Fb".to_owned(), Served("percent")),
        ("...".to_owned(), hidden()),
        // Symbolic links.
        ("out-file".to_owned(), outside()),
        ("out-dir/secret.txt".to_owned(), outside()),
        ("out-absolute".to_owned(), outside()),
        ("in-absolute".to_owned(), outside()),
        ("out-and-in".to_owned(), outside()),
        ("chain-1".to_owned(), outside()),
        ("up/outside/secret.txt".to_owned(), outside()),
        ("slash/etc/passwd".to_owned(), outside()),
        ("environ".to_owned(), outside()),
        ("zero".to_owned(), outside()),
        ("stdin".to_owned(), outside()),
        ("loop-1".to_owned(), Refused("cannot be reached")),
        ("self".to_owned(), Refused("cannot be reached")),
        ("self/x".to_owned(), Refused("cannot be reached")),
        ("dangling".to_owned(), Refused("there is no")),
        ("here/here/here/plain.txt".to_owned(), Served("plain")),
        ("in-file".to_owned(), Served("inner")),
        ("in-dir/inner.txt".to_owned(), Served("inner")),
        // A hard link cannot be distinguished from a regular file.
        ("hard.txt".to_owned(), Served("hard linked")),
        // Excluded files, existing or not.
        (".env".to_owned(), hidden()),
        (".not-there".to_owned(), hidden()),
        (".hidden/x.txt".to_owned(), hidden()),
        ("here/.env".to_owned(), hidden()),
        ("to-hidden".to_owned(), hidden()),
        (".git/config".to_owned(), Refused("never served")),
        (".GIT/config".to_owned(), Refused("never served")),
        ("to-git/config".to_owned(), Refused("never served")),
        ("ignored.txt".to_owned(), ignored()),
        ("not-there.txt".to_owned(), ignored()),
        ("built".to_owned(), ignored()),
        ("built/x.txt".to_owned(), ignored()),
        ("built/not-there".to_owned(), ignored()),
        ("excluded.txt".to_owned(), ignored()),
        ("sub/local.txt".to_owned(), ignored()),
        ("in-dir/local.txt".to_owned(), ignored()),
        ("to-ignored".to_owned(), ignored()),
        ("to-local".to_owned(), ignored()),
        // Entries that are not regular files.
        ("pipe".to_owned(), Refused("not a regular file")),
        ("socket".to_owned(), Refused("not a regular file")),
        ("sub".to_owned(), Refused("is a directory")),
        (".".to_owned(), Refused("is a directory")),
        (root.clone(), Refused("is a directory")),
        // Unusual names.
        ("PLAIN.TXT".to_owned(), Refused("there is no")),
        ("plain.txt/".to_owned(), Served("plain")),
        ("plain.txt/.".to_owned(), Served("plain")),
        ("plain.txt.".to_owned(), Refused("did you mean plain.txt?")),
        ("plain.txt ".to_owned(), Refused("did you mean plain.txt?")),
        ("plain.txt/inner".to_owned(), Refused("there is no")),
        ("plain.txt\0.png".to_owned(), Refused("NUL")),
        ("plain.txt\n".to_owned(), Refused("did you mean plain.txt?")),
        ("\u{202e}plain.txt".to_owned(), Refused("did you mean plain.txt?")),
        ("~/plain.txt".to_owned(), Refused("did you mean plain.txt?")),
        ("$HOME".to_owned(), Refused("there is no")),
        (String::new(), Refused("must not be empty")),
        (huge_name, nothing),
        ("d/".repeat(2049), Refused("longer than")),
        ("huge.txt".to_owned(), Served("binary: 1099511627776 bytes")),
    ] {
        world.check_path(&path, &outcome).await;
    }
}

#[tokio::test]
async fn no_uri_leads_out() {
    let world = World::new().await;
    let base = format!("f+file://{}", world.root.display());
    let missing = || Refused("Resource not found");
    for (tail, outcome) in [
        ("/plain.txt", Served("plain")),
        ("/a%252Fb", Served("percent")),
        ("/caf%E9.txt", Served("not UTF-8")),
        ("/in-file", Served("inner")),
        ("/hard.txt", Served("hard linked")),
        ("/../outside/secret.txt", Refused("segments . and ..")),
        ("/sub/../../outside/secret.txt", Refused("segments . and ..")),
        ("/%2e%2e/outside/secret.txt", Refused("segments . and ..")),
        ("/%2E%2E/outside/secret.txt", Refused("segments . and ..")),
        ("/.%2e/outside/secret.txt", Refused("segments . and ..")),
        ("/%2e%2e%2foutside%2fsecret.txt", Refused("%2F")),
        ("/..%2Foutside%2Fsecret.txt", Refused("%2F")),
        ("/%252e%252e/outside/secret.txt", missing()),
        ("/%c0%ae%c0%ae/outside/secret.txt", Refused("not in canonical form")),
        ("/%C0%AE%C0%AE/outside/secret.txt", missing()),
        ("/..%5Coutside%5Csecret.txt", Refused("\"hidden\"")),
        ("/%5C..%5Coutside", missing()),
        ("/sub%2Finner.txt", Refused("%2F")),
        ("//plain.txt", Refused("not in canonical form")),
        ("/plain.txt/", Refused("not in canonical form")),
        ("/plain%2Etxt", Refused("not in canonical form")),
        ("/caf%e9.txt", Served("not UTF-8")),
        ("/plain.txt%00", Refused("NUL")),
        ("/plain.txt%", missing()),
        ("/plain.txt%zz", missing()),
        ("/out-file", Refused("outside of the root")),
        ("/out-dir/secret.txt", Refused("outside of the root")),
        ("/chain-1", Refused("outside of the root")),
        ("/loop-1", Refused("cannot be read")),
        ("/environ", Refused("outside of the root")),
        ("/zero", Refused("outside of the root")),
        ("/pipe", Refused("not a regular file")),
        ("/socket", Refused("not a regular file")),
        ("/sub", Refused("is a directory")),
        ("/", Refused("is a directory")),
        ("", missing()),
        ("/.env", Refused("\"hidden\"")),
        ("/.not-there", Refused("\"hidden\"")),
        ("/%2Eenv", Refused("not in canonical form")),
        ("/to-hidden", Refused("\"hidden\"")),
        ("/.git/config", Refused("never served")),
        ("/ignored.txt", Refused("\"ignored\"")),
        ("/not-there.txt", Refused("\"ignored\"")),
        ("/huge.txt", Refused("the tool read returns parts")),
        ("/not-there-either.txt", missing()),
    ] {
        world.check_uri(&format!("{base}{tail}"), &outcome).await;
    }
    for uri in [
        "f+file:///etc/passwd",
        "f+file:///proc/self/environ",
        "f+file:///dev/zero",
        "f+file:relative",
        "f+file:plain.txt",
        "f+FILE:///etc/passwd",
        "f+file://host/etc/passwd",
        "f+http://127.0.0.1/",
        "f+:plain.txt",
    ] {
        world.check_uri(uri, &missing()).await;
    }
    for host in ["host", "localhost", "127.0.0.1"] {
        world.check_uri(&format!("{}/plain.txt", base.replace("file://", &format!("file://{host}"))), &missing()).await;
    }
    // The gateway accepts other spellings of a listed resource.
    for uri in [format!("{}/plain.txt", base.replace("file:", "FILE:")), format!("{base}/sub/../plain.txt")] {
        world.check_uri(&uri, &Served("plain")).await;
    }
    for tail in ["?x", "#x"] {
        world.check_uri(&format!("{base}/plain.txt{tail}"), &Refused("query or a fragment")).await;
    }
    world.check_uri(&format!("{base}/{}", "n".repeat(9000)), &Refused("longer than")).await;
}

#[tokio::test]
async fn nothing_that_is_left_out_is_listed_searched_or_completed() {
    let world = World::new().await;
    let resources = world.client.list("resources/list", "resources").await;
    let mut names: Vec<_> = resources.iter().map(|resource| resource["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    let expected = [
        "a%2Fb",
        "caf\u{fffd}.txt",
        "flip/inner.txt",
        "hard.txt",
        "huge.txt",
        "locked.txt",
        "plain.txt",
        "sub/inner.txt",
    ];
    assert_eq!(names, expected);
    for path in ["pipe", "socket"] {
        let listed = world.tool("list", json!({ "path": path })).await;
        assert_eq!(listed["structuredContent"]["entries"], json!([]), "{listed}");
    }
    let found = world.tool("search", json!({ "query": "e", "ignoreCase": true, "limit": 1000 })).await;
    let no_text = format!("file://{}/caf%E9.txt", world.root.display());
    for hit in found["structuredContent"]["matches"].as_array().expect("matches") {
        let path = hit["path"].as_str().expect("a path");
        assert!(expected.contains(&path) || path == no_text, "{hit}");
    }
    let template = format!("f+file://{}/{{+path}}", world.root.display());
    for value in
        ["", ".", "..", "../", "/", "/etc/", ".git/", "built/", "out-dir/", "up/", "slash/", "%2e%2e/", "%", "%zz/"]
    {
        let params =
            json!({"ref": {"type": "ref/resource", "uri": template}, "argument": {"name": "path", "value": value}});
        let answer = world.ask("completion/complete", params).await;
        let values = answer["result"]["completion"]["values"].as_array().unwrap_or_else(|| panic!("{value}: {answer}"));
        let served = ["a%252Fb", "caf%E9.txt", "flip/", "hard.txt", "huge.txt", "locked.txt", "plain.txt", "sub/"];
        assert_eq!(*values, if value.is_empty() { served.to_vec() } else { Vec::new() }, "{value}");
    }
}

/// The root user may read any file, so nothing is rejected for it.
#[tokio::test]
async fn a_file_that_may_not_be_read_says_so() {
    let world = World::new().await;
    let may = rustix::process::geteuid().is_root();
    let outcome = || if may { Served("locked") } else { Refused("ermission denied") };
    world.check_path("locked.txt", &outcome()).await;
    world.check_uri(&format!("f+file://{}/locked.txt", world.root.display()), &outcome()).await;
    let found = world.tool("search", json!({ "query": "locked", "in": "text" })).await;
    let skipped = &found["structuredContent"]["skipped"]["unreadable"];
    assert_eq!(*skipped, i32::from(!may), "{found}");
}

/// A thread exchanges a directory with a link to the secret as fast as possible, while all kinds of requests read the
/// files.
#[tokio::test]
async fn a_race_of_a_directory_with_a_link_is_lost() {
    let world = World::new().await;
    let (flip, link) = (world.root.join("flip"), world.root.join("flop"));
    symlink("../outside", &link).expect("a link");
    let done = Arc::new(AtomicBool::new(false));
    let swaps = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut swaps = 0_u64;
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &flip, CWD, &link, RenameFlags::EXCHANGE).expect("both are there");
                swaps += 1;
            }
            swaps
        }
    });
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let (mut served, mut refused, mut rounds) = (0, 0, 0);
    let uri = format!("f+file://{}/flip/inner.txt", world.root.display());
    while served == 0 || refused == 0 || rounds < 100 {
        assert!(tokio::time::Instant::now() < deadline, "served {served}, refused {refused} of {rounds}");
        let read = world.tool("read", json!({ "path": "flip/inner.txt" })).await;
        let is_refused = read["isError"] == true;
        assert!(is_refused || read["content"][0]["text"] == "harmless", "{read}");
        (served, refused) = (served + i32::from(!is_refused), refused + i32::from(is_refused));
        world.ask("resources/read", json!({ "uri": uri })).await;
        world.tool("search", json!({ "query": &SENTINEL[..4] })).await;
        world.tool("search", json!({ "query": &SENTINEL[..4], "path": "flip" })).await;
        world.tool("list", json!({ "glob": "secret.txt" })).await;
        rounds += 1;
    }
    done.store(true, Ordering::Relaxed);
    assert!(swaps.join().expect("no panic") > 100);
    assert!(!world.gateway.log().concat().contains(SENTINEL));
}
