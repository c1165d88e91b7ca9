//! A directory as a server: its files as resources and through tools.
//!
//! Resources, tools and completion obey the same rule about excluded files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually};

/// Creates a directory with these files.
fn tree(files: &[(&str, &str)]) -> Scratch {
    let scratch = Scratch::new();
    for (path, text) in files {
        scratch.write(path, text);
    }
    scratch
}

fn server(root: &Path, more: Value) -> Value {
    let mut server = json!({ "type": "files", "root": root.display().to_string() });
    for (key, value) in more.as_object().expect("an object") {
        server[key] = value.clone();
    }
    json!({ "f": server })
}

async fn serve(root: &Path, more: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(server(root, more)).await;
    let client = gateway.client_seeing("f_read").await;
    (gateway, client)
}

/// Returns the prefix of the root's URIs.
fn base(root: &Path) -> String {
    format!("f+file://{}", root.canonicalize().expect("the file exists").display())
}

fn texts(result: &Value) -> Vec<&str> {
    let blocks = result["content"].as_array().unwrap_or_else(|| panic!("{result}"));
    blocks.iter().filter_map(|block| block["text"].as_str()).collect()
}

fn paths(entries: &Value) -> Vec<&str> {
    let entries = entries.as_array().unwrap_or_else(|| panic!("no list: {entries}"));
    entries.iter().map(|entry| entry["path"].as_str().expect("a path")).collect()
}

async fn names_of_resources(client: &Client) -> Vec<String> {
    let resources = client.list("resources/list", "resources").await;
    resources.iter().map(|resource| resource["name"].as_str().expect("a name").to_owned()).collect()
}

/// Calls a tool and returns the text of its error.
async fn error_text(client: &Client, tool: &str, arguments: Value) -> String {
    let result = client.call(tool, arguments.clone()).await;
    assert_eq!(result["isError"], true, "{tool} {arguments}: {result}");
    texts(&result).concat()
}

#[tokio::test]
async fn files_are_listed_with_their_type_size_and_time() {
    let scratch = tree(&[("b.md", "# Words\n"), ("a dir/é [1].rs", "fn main() {}\n"), ("unknown", "")]);
    std::fs::File::open(scratch.path().join("b.md"))
        .and_then(|file| file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(951_782_400)))
        .expect("the test owns the file");
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let base = base(scratch.path());
    let resources = client.list("resources/list", "resources").await;
    let seen: Vec<_> =
        resources.iter().map(|entry| json!([entry["uri"], entry["name"], entry["mimeType"], entry["size"]])).collect();
    let expected = [
        json!([format!("{base}/a%20dir/%C3%A9%20%5B1%5D.rs"), "a dir/é [1].rs", "text/x-rust", 13]),
        json!([format!("{base}/b.md"), "b.md", "text/markdown", 8]),
        json!([format!("{base}/unknown"), "unknown", null, 0]),
    ];
    assert_eq!(seen, expected);
    assert_eq!(resources[1]["annotations"]["lastModified"], "2000-02-29T00:00:00Z");
    for (resource, text) in resources.iter().zip(["fn main() {}\n", "# Words\n", ""]) {
        let answer = client.request("resources/read", json!({"uri": resource["uri"]})).await;
        let content = &answer["result"]["contents"][0];
        assert_eq!((&content["uri"], &content["text"]), (&resource["uri"], &json!(text)), "{answer}");
    }
    let templates = client.list("resources/templates/list", "resourceTemplates").await;
    assert_eq!(templates[0]["uriTemplate"], format!("{base}/{{+path}}"));
}

#[tokio::test]
async fn the_instructions_describe_the_directory() {
    let scratch = tree(&[]);
    let (gateway, _client) = serve(scratch.path(), json!({})).await;
    let mut client = Client::new(gateway.address);
    let hello = client.initialize("2025-11-25").await;
    let instructions = hello["result"]["instructions"].as_str().unwrap_or_else(|| panic!("{hello}"));
    assert!(
        instructions.contains(&scratch.path().display().to_string()) && instructions.contains("search"),
        "{instructions}"
    );
    let answer = client.request("prompts/list", json!({})).await;
    assert_eq!(answer["result"]["prompts"], json!([]));
}

#[tokio::test]
async fn definitions_and_results_obey_the_schemas() {
    let scratch = tree(&[("a.txt", "needle\n"), ("sub/b.bin", "\0")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let tools = client.list("tools/list", "tools").await;
    assert_eq!(client.tool_names().await, ["f_list", "f_read", "f_search"]);
    for tool in &tools {
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
        jsonschema::validator_for(&tool["inputSchema"]).expect("a good schema");
    }
    for (name, arguments) in [
        ("f_list", json!({})),
        ("f_list", json!({"glob": "*", "limit": 1})),
        ("f_search", json!({"query": "needle"})),
        ("f_search", json!({"query": "nowhere"})),
    ] {
        let tool = tools.iter().find(|tool| tool["name"] == name).expect("the entry is listed");
        jsonschema::validate(&tool["inputSchema"], &arguments).expect("good arguments");
        let result = client.call(name, arguments).await;
        jsonschema::validate(&tool["outputSchema"], &result["structuredContent"]).expect("a good result");
        assert!(!texts(&result).concat().is_empty());
    }
}

#[tokio::test]
async fn a_path_lists_one_directory_and_a_glob_lists_all_below_it() {
    let files = [("b.txt", "12"), ("a/c.txt", "1"), ("a/d/e.txt", ""), ("a.md", "")];
    let scratch = tree(&files);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    for (arguments, expected) in [
        (json!({}), vec!["a/", "a.md", "b.txt"]),
        (json!({"path": "a"}), vec!["a/c.txt", "a/d/"]),
        (json!({"path": scratch.path().join("a/d").display().to_string()}), vec!["a/d/e.txt"]),
        (json!({"glob": "*.txt"}), vec!["a/c.txt", "a/d/e.txt", "b.txt"]),
        (json!({"glob": "a/*.txt"}), vec!["a/c.txt"]),
        (json!({"path": "a", "glob": "**/e.txt"}), vec!["a/d/e.txt"]),
        (json!({"glob": "*.none"}), vec![]),
        (json!({"path": "b.txt"}), vec!["b.txt"]),
    ] {
        let listed = client.call("f_list", arguments.clone()).await;
        assert_eq!(paths(&listed["structuredContent"]["entries"]), expected, "{arguments}");
    }
    assert_eq!(client.call_text("f_list", json!({})).await, "a/\na.md (0)\nb.txt (2)");
}

#[tokio::test]
async fn a_long_list_continues_at_its_cursor_after_a_file_is_removed() {
    let scratch = tree(&[("a", ""), ("b%", ""), ("c/d", ""), ("c/e\u{301}\n", ""), ("c.d", ""), ("e", "")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let listed = client.call("f_list", json!({"glob": "*", "limit": 1, "cursor": cursor})).await;
        let page = paths(&listed["structuredContent"]["entries"]).into_iter().map(str::to_owned);
        seen.extend(page);
        match listed["structuredContent"]["nextCursor"].as_str() {
            Some(next) => {
                // An agent that reads only the text must be able to copy the cursor.
                assert!(texts(&listed).concat().contains(&format!("\"{next}\"")), "{listed}");
                cursor = Some(next.to_owned());
            }
            None => break,
        }
        if seen.len() == 2 {
            std::fs::remove_file(scratch.path().join("b%")).expect("the file exists");
        }
    }
    assert_eq!(seen, ["a", "b%", "c/d", "c/e\u{301}\n", "c.d", "e"]);
    assert!(error_text(&client, "f_list", json!({"cursor": "%"})).await.contains("begin again"));
}

#[tokio::test]
async fn odd_names_and_texts_pass_unchanged() {
    let name = "q\"uo\\te\n\u{1f600}\u{7f}\u{2028}.txt";
    let scratch = tree(&[(name, "x \"\\\u{1} 1.0e-7\n")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    assert_eq!(names_of_resources(&client).await, [name]);
    let listed = client.call("f_list", json!({})).await;
    assert_eq!(paths(&listed["structuredContent"]["entries"]), [name]);
    let found = client.call("f_search", json!({"query": "\"\\\u{1} 1.0e-7"})).await;
    let expected = json!([{"path": name, "line": 1, "text": "x \"\\\u{1} 1.0e-7"}]);
    assert_eq!(found["structuredContent"]["matches"], expected);
    assert_eq!(client.call_text("f_read", json!({"path": name})).await, "x \"\\\u{1} 1.0e-7\n");
}

#[tokio::test]
async fn a_name_that_is_not_utf8_is_shown_as_a_uri_that_can_be_read() {
    let scratch = tree(&[]);
    std::fs::write(scratch.path().join(OsStr::from_bytes(b"a\xff")), "needle").expect("a file");
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let uri = base(scratch.path()).replace("f+", "") + "/a%FF";
    let listed = client.call("f_list", json!({})).await;
    assert_eq!(paths(&listed["structuredContent"]["entries"]), [uri.as_str()]);
    let found = client.call("f_search", json!({"query": "needle"})).await;
    assert_eq!(paths(&found["structuredContent"]["matches"]), [uri.as_str()]);
    let found = client.call("f_search", json!({"query": "file:", "in": "names"})).await;
    assert_eq!(found["structuredContent"]["matches"], json!([]));
    assert_eq!(client.call_text("f_read", json!({"path": uri})).await, "needle");
}

#[tokio::test]
async fn a_list_reports_directories_that_cannot_be_read() {
    // Rules of parent directories count too: together they exceed the limit by one byte.
    let (own, above) = (format!("x\n{}", "#".repeat((100 << 10) - 1)), format!("x\n{}", "#".repeat((28 << 10) - 2)));
    let scratch = tree(&[("a", ""), (".gitignore", &above), ("sub/b", ""), ("sub/.gitignore", &own)]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    for (arguments, expected, complete) in [
        (json!({}), vec!["a", "sub/"], true),
        (json!({"glob": "*"}), vec!["a"], false),
        (json!({"path": "sub"}), vec![], false),
    ] {
        let listed = client.call("f_list", arguments.clone()).await;
        assert_eq!(paths(&listed["structuredContent"]["entries"]), expected, "{arguments}");
        assert_eq!(listed["structuredContent"]["complete"], complete, "{arguments}");
        assert_eq!(texts(&listed).concat().contains("could not be read"), !complete, "{arguments}");
    }
    std::fs::write(scratch.path().join("sub/.gitignore"), &own[..100 << 10]).expect("the test owns the file");
    let listed = client.call("f_list", json!({"path": "sub"})).await;
    assert_eq!(paths(&listed["structuredContent"]["entries"]), ["sub/b"]);
}

#[tokio::test]
async fn lines_and_bytes_of_a_file_are_read() {
    let scratch = tree(&[("t.txt", "one\ntwo\nthrée\nfour"), ("empty", "")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    for (arguments, expected) in [
        (json!({}), vec!["one\ntwo\nthrée\nfour"]),
        (json!({"startLine": 2, "endLine": 3}), vec!["two\nthrée\n"]),
        (json!({"startLine": 4}), vec!["four"]),
        (json!({"endLine": 1}), vec!["one\n"]),
        (json!({"startLine": 3, "endLine": 99}), vec!["thrée\nfour"]),
        (json!({"offset": 4, "length": 3}), vec!["two", "bytes 4 to 7 of 19; continue with offset 7"]),
        (json!({"offset": 15}), vec!["four", "bytes 15 to 19 of 19"]),
        // Both ends are inside a character and are moved to its boundary.
        (json!({"offset": 8, "length": 4}), vec!["thr", "bytes 8 to 11 of 19; continue with offset 11"]),
        (json!({"length": 1000}), vec!["one\ntwo\nthrée\nfour"]),
    ] {
        let mut request = arguments.clone();
        request["path"] = json!("t.txt");
        assert_eq!(texts(&client.call("f_read", request).await), expected, "{arguments}");
    }
    assert_eq!(texts(&client.call("f_read", json!({"path": "empty"})).await), ["", "empty is empty"]);
    for (arguments, fragment) in [
        (json!({"path": "t.txt", "startLine": 5}), "has only 4 lines"),
        (json!({"path": "t.txt", "startLine": 3, "endLine": 2}), "endLine is not before startLine"),
        (json!({"path": "t.txt", "startLine": 0}), "lines begin at 1"),
        (json!({"path": "t.txt", "startLine": 1, "offset": 1}), "cannot be requested together"),
        (json!({"path": "t.txt", "offset": 19}), "has only 19 bytes"),
        (json!({"path": "t.txt", "length": 0}), "length must be at least 1"),
        (json!({"path": "t.txt", "startLine": -1}), "invalid arguments"),
        (json!({"path": "t.txt", "lines": 1}), "unknown field `lines`"),
        (json!({}), "missing field `path`"),
    ] {
        assert!(error_text(&client, "f_read", arguments.clone()).await.contains(fragment), "{arguments}");
    }
}

#[tokio::test]
async fn a_large_file_is_read_in_parts_that_make_the_whole() {
    let text: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    let scratch = tree(&[("large.txt", &text)]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let (mut whole, mut parts, mut start) = (String::new(), 0, 1);
    loop {
        let result = client.call("f_read", json!({"path": "large.txt", "startLine": start})).await;
        let blocks = texts(&result);
        whole.push_str(blocks[0]);
        parts += 1;
        let Some(note) = blocks.get(1) else { break };
        start = note.rsplit_once("startLine ").and_then(|(_, line)| line.parse().ok()).expect("where to go on");
    }
    assert_eq!((whole == text, parts), (true, 3));
}

#[tokio::test]
async fn binary_files_are_blobs() {
    let scratch = tree(&[("a.png", "\0\u{1}"), ("b", "a\0"), ("fake.txt", "")]);
    std::fs::write(scratch.path().join("fake.txt"), [0xff, 0xfe, b'a']).expect("a file");
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let base = base(scratch.path());
    for (name, mime, blob) in
        [("a.png", "image/png", "AAE="), ("b", "application/octet-stream", "YQA="), ("fake.txt", "text/plain", "//5h")]
    {
        let uri = format!("{base}/{name}");
        let expected = json!({"uri": uri, "mimeType": mime, "blob": blob});
        let answer = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(answer["result"]["contents"], json!([expected]));
        let text = client.call_text("f_read", json!({"path": name})).await;
        assert!(text.contains("is binary: ") && text.contains(mime), "{text}");
        let bytes = client.call("f_read", json!({"path": name, "offset": 0})).await;
        assert_eq!(bytes["content"], json!([{"type": "resource", "resource": expected}]));
    }
}

#[tokio::test]
async fn texts_are_found_in_names_and_lines() {
    let scratch = tree(&[
        ("src/needle.rs", "fn main() {}\n"),
        ("src/lib.rs", "a\n// Needle here\nneedle needle\n"),
        ("notes.md", "ÄNDERUNG needle"),
        ("image.bin", "needle\0"),
    ]);
    std::fs::File::create(scratch.path().join("large.txt")).and_then(|file| file.set_len(5 << 20)).expect("a file");
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    for (arguments, expected) in [
        (json!({"query": "needle"}), "notes.md:1: ÄNDERUNG needle\nsrc/lib.rs:3: needle needle\nsrc/needle.rs"),
        (json!({"query": "needle", "in": "names"}), "src/needle.rs"),
        (json!({"query": "needle", "in": "text", "glob": "*.md"}), "notes.md:1: ÄNDERUNG needle"),
        (json!({"query": "NEEDLE", "path": "src"}), "nothing found"),
        (
            json!({"query": "NEEDLE", "path": "src", "ignoreCase": true}),
            "src/lib.rs:2: // Needle here\nsrc/lib.rs:3: needle needle\nsrc/needle.rs",
        ),
        (json!({"query": "änderung", "ignoreCase": true, "path": "notes.md"}), "notes.md:1: ÄNDERUNG needle"),
        (json!({"query": "fn m.*n"}), "nothing found"),
    ] {
        let text = client.call_text("f_search", arguments.clone()).await;
        let found: Vec<_> = text.lines().filter(|line| !line.starts_with("not searched")).collect();
        assert_eq!(found.join("\n"), expected, "{arguments}");
    }
    let found = client.call("f_search", json!({"query": "needle", "limit": 1})).await;
    let structure = &found["structuredContent"];
    assert_eq!((&structure["complete"], paths(&structure["matches"]).len()), (&json!(false), 1), "{found}");
    let found = client.call("f_search", json!({"query": "needle", "limit": 3})).await;
    let expected = json!({"binary": 1, "large": 1, "unreadable": 0});
    assert_eq!(found["structuredContent"]["skipped"], expected);
    assert_eq!(
        (&found["structuredContent"]["complete"], &found["structuredContent"]["searched"]),
        (&json!(true), &json!(3))
    );
    for (arguments, fragment) in [
        (json!({"query": ""}), "one line of text"),
        (json!({"query": "a\nb"}), "one line of text"),
        (json!({"query": "a", "limit": 0}), "limit must be from 1"),
        (json!({"query": "a", "glob": "!x"}), "write it like"),
        (json!({"query": "a", "in": "files"}), "unknown variant `files`"),
        (json!({"query": "a", "path": "scr"}), "did you mean src?"),
    ] {
        assert!(error_text(&client, "f_search", arguments.clone()).await.contains(fragment), "{arguments}");
    }
}

#[tokio::test]
async fn an_unknown_path_gets_the_nearest_one_as_a_suggestion() {
    let scratch = tree(&[
        ("src/main.rs", ""),
        ("docs/guide.md", ""),
        (".env", ""),
        (".gitignore", "secret.txt"),
        ("secret.txt", ""),
    ]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    for (path, fragment) in [
        ("src/mian.rs", "there is no src/mian.rs; did you mean src/main.rs?"),
        ("main.rs", "there is no main.rs; did you mean src/main.rs?"),
        ("source/main.rs", "there is no source/main.rs; did you mean src/main.rs?"),
        ("doc/guide.md", "there is no doc/guide.md; did you mean docs/guide.md?"),
        ("something else", "there is no something else; the tools list and search find files"),
        ("secrets.txt", "there is no secrets.txt; the tools list and search find files"),
    ] {
        assert_eq!(error_text(&client, "f_read", json!({"path": path})).await, fragment);
    }
}

#[tokio::test]
async fn the_template_is_completed_name_by_name() {
    let scratch = tree(&[("src/a b.rs", ""), ("src/a%[1].rs", ""), ("src/c/x", ""), ("setup", ""), (".src", "")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let base = base(scratch.path());
    let complete = async |name: &str, value: &str| {
        let reference = json!({"type": "ref/resource", "uri": format!("{base}/{{+path}}")});
        let params = json!({"ref": reference, "argument": {"name": name, "value": value}});
        client.request("completion/complete", params).await
    };
    for (value, expected) in [
        ("", vec!["setup", "src/"]),
        ("s", vec!["setup", "src/"]),
        ("sr", vec!["src/"]),
        ("src/", vec!["src/a b.rs", "src/a%25%5B1%5D.rs", "src/c/"]),
        ("src/a%", vec!["src/a%25%5B1%5D.rs"]),
        ("src/c/", vec!["src/c/x"]),
        ("nowhere/", vec![]),
        (".s", vec![]),
    ] {
        let answer = complete("path", value).await;
        let expected = json!({"values": expected, "total": expected.len(), "hasMore": false});
        assert_eq!(answer["result"]["completion"], expected, "{value}");
    }
    // The template expands this value to the file's URI.
    let answer = client.request("resources/read", json!({"uri": format!("{base}/src/a%25%5B1%5D.rs")})).await;
    assert_eq!(answer["result"]["contents"][0]["text"], "", "{answer}");
    assert_eq!(complete("other", "").await["error"]["code"], -32602);

    for number in 0..150 {
        std::fs::write(scratch.path().join(format!("many-{number:03}")), "").expect("a file");
    }
    let answer = complete("path", "many").await;
    let completion = &answer["result"]["completion"];
    assert_eq!((&completion["total"], &completion["hasMore"]), (&json!(150), &json!(true)), "{answer}");
    assert_eq!(completion["values"].as_array().map(Vec::len), Some(100));
}

#[tokio::test]
async fn files_beyond_the_limit_are_reached_by_template_and_tools() {
    let scratch = tree(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let (gateway, client) = serve(scratch.path(), json!({"maxFiles": 2})).await;
    assert_eq!(names_of_resources(&client).await, ["a", "b"]);
    let logged = gateway.log().iter().filter(|line| line.contains("more files than maxFiles")).count();
    assert_eq!(logged, 1);
    let templates = client.list("resources/templates/list", "resourceTemplates").await;
    assert!(templates[0]["description"].as_str().expect("a text").contains("At most 2"), "{}", templates[0]);
    let answer = client.request("resources/read", json!({"uri": format!("{}/c", base(scratch.path()))})).await;
    assert_eq!(answer["result"]["contents"][0]["text"], "3", "{answer}");
    assert_eq!(client.call_text("f_read", json!({"path": "c"})).await, "3");
}

#[tokio::test]
async fn resources_lists_and_reads_exclude_the_same_files() {
    let repository = tree(&[
        (".git/info/exclude", "by-exclude\n"),
        (".git/HEAD", ""),
        (".gitignore", "*.log\n/root/by-parent\n"),
        ("root/.gitignore", "!keep.log\nbuild/\n/only-here\n"),
        ("root/sub/.gitignore", "*\n!*.rs\n!.gitignore\n"),
        ("root/by-exclude", ""),
        ("root/by-parent", ""),
        ("root/x.log", ""),
        ("root/keep.log", ""),
        ("root/build/out", ""),
        ("root/only-here", ""),
        ("root/sub/only-here", ""),
        ("root/sub/a.rs", ""),
        ("root/sub/deeper/b.rs", ""),
        ("root/plain", ""),
        ("root/.hidden", ""),
        ("root/.config/x", ""),
        ("root/sub/.git/config", ""),
    ]);
    let ignored = ["build/out", "by-exclude", "by-parent", "only-here", "sub/deeper/b.rs", "sub/only-here", "x.log"];
    let hidden = [".config/x", ".gitignore", ".hidden", "sub/.gitignore"];
    let plain = ["keep.log", "plain", "sub/a.rs"];
    for (options, more) in [
        (json!({}), vec![]),
        (json!({"ignored": true}), ignored.to_vec()),
        (json!({"hidden": true}), hidden.to_vec()),
        (json!({"hidden": true, "ignored": true}), [&ignored[..], &hidden[..]].concat()),
    ] {
        let (_gateway, client) = serve(&repository.path().join("root"), options.clone()).await;
        let mut expected = [&plain[..], &more[..]].concat();
        expected.sort_unstable();
        let mut listed = names_of_resources(&client).await;
        listed.sort_unstable();
        assert_eq!(listed, expected, "{options}");
        let found = client.call("f_list", json!({"glob": "*"})).await;
        let mut found = paths(&found["structuredContent"]["entries"]);
        found.sort_unstable();
        assert_eq!(found, expected, "{options}");
        for path in [&ignored[..], &hidden[..], &plain[..]].concat() {
            let read = client.call("f_read", json!({"path": path})).await;
            assert_eq!(read["isError"] == true, !expected.contains(&path), "{options} {path}: {read}");
        }
    }
}

#[tokio::test]
async fn an_edit_of_the_ignore_rules_takes_effect_at_once() {
    let scratch = tree(&[("a.txt", "text")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    assert_eq!(client.call_text("f_read", json!({"path": "a.txt"})).await, "text");
    scratch.write(".gitignore", "*.txt");
    assert!(error_text(&client, "f_read", json!({"path": "a.txt"})).await.contains("\"ignored\""));
}

/// A directory with unreadable rules is closed, because the rules might exclude its files.
#[tokio::test]
async fn unreadable_ignore_rules_close_their_directory() {
    let scratch = tree(&[("sub/secret", "x"), ("sub/.gitignore", &"secret\n".repeat(200_000)), ("a", "x")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    assert_eq!(names_of_resources(&client).await, ["a"]);
    assert!(error_text(&client, "f_read", json!({"path": "sub/secret"})).await.contains("too large"));
    let found = client.call("f_search", json!({"query": "x"})).await;
    assert_eq!(paths(&found["structuredContent"]["matches"]), ["a"]);
    assert_eq!(found["structuredContent"]["complete"], false);
}

#[tokio::test]
async fn a_file_too_deep_for_a_search_is_read_by_its_path() {
    let deep = format!("{}needle", "d/".repeat(70));
    let scratch = tree(&[(&deep, "x")]);
    let (_gateway, client) = serve(scratch.path(), json!({})).await;
    let found = client.call("f_search", json!({"query": "needle"})).await;
    let structure = &found["structuredContent"];
    assert_eq!((paths(&structure["matches"]).len(), &structure["complete"]), (0, &json!(false)), "{found}");
    assert_eq!(client.call_text("f_read", json!({"path": deep})).await, "x");
}

#[tokio::test]
async fn a_missing_root_is_served_as_soon_as_it_exists() {
    let scratch = Scratch::new();
    let root = scratch.path().join("later");
    let gateway = Gateway::with_servers(server(&root, json!({}))).await;
    eventually("the log has the reason", || async {
        let logged = format!("the directory {} cannot be opened", root.display());
        gateway.log().iter().any(|line| line.contains(&logged)).then_some(())
    })
    .await;
    std::fs::create_dir(&root).expect("a directory");
    std::fs::write(root.join("a"), "there").expect("a file");
    let client = gateway.client_seeing("f_read").await;
    assert_eq!(client.call_text("f_read", json!({"path": "a"})).await, "there");
}

/// Each search would take minutes. Eight searches occupy all disk slots, so a ninth request proceeds only after one of
/// them has really ended.
#[tokio::test]
async fn a_cancelled_search_stops_and_frees_its_slot() {
    let scratch = tree(&[("d/0", &"É".repeat(2 << 20)), ("small", "words")]);
    for number in 1..20_000 {
        let path = |number: u32| scratch.path().join(format!("d/{number}"));
        std::fs::hard_link(path(0), path(number)).expect("another name");
    }
    let (_gateway, client) = serve(scratch.path(), json!({"maxFiles": 1})).await;
    let search = |id: String| {
        let arguments = json!({"query": "è", "ignoreCase": true, "in": "text"});
        let params = json!({"name": "f_search", "arguments": arguments});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let client = client.clone();
        async move { client.open(body.to_string()).await }
    };
    let searches = join_all((0..8).map(|number| search(format!("s{number}")))).await;
    let ninth = tokio::spawn({
        let client = client.clone();
        async move { client.call_text("f_read", json!({"path": "small"})).await }
    });
    // A request that needs no disk is answered meanwhile. The ninth one still waits.
    client.request("ping", json!({})).await;
    assert!(!ninth.is_finished());
    for number in 0..8 {
        client.notify("notifications/cancelled", json!({"requestId": format!("s{number}")})).await;
    }
    assert_eq!(ninth.await.expect("no panic"), "words");
    drop(searches);
}
