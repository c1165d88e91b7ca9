//! Notifications of a files server: changes of subscribed files, and of the list.
//!
//! Every change is notified at least once, however the file is written. Excluded files cause no notification.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::{Gateway, Scratch, eventually, write_file};
use crate::support::await_log;

/// A file that is subscribed from the beginning. A notification about it proves that all earlier changes were notified.
const FENCE: &str = "fence";

/// A time above the resolution of file timestamps.
const CLOCK_STEPS: Duration = Duration::from_millis(50);

struct World {
    gateway: Gateway,
    client: Client,
    listener: Listener,
    root: PathBuf,
    /// The directory of all changes, also of those outside of the root.
    scratch: Scratch,
    fences: usize,
}

impl World {
    /// Starts a server of these files and the fence, in the directory `root`.
    async fn new(files: &[&str], more: Value) -> World {
        let scratch = Scratch::new();
        let root = scratch.path().canonicalize().expect("the file exists").join("root");
        for file in files.iter().chain(&[FENCE]) {
            write_file(&root.join(file), "first");
        }
        let mut server = json!({ "type": "files", "root": root.display().to_string() });
        for (key, value) in more.as_object().expect("an object") {
            server[key] = value.clone();
        }
        let gateway = Gateway::with_servers(json!({ "f": server })).await;
        let client = gateway.client_seeing("f_read").await;
        let listener = client.listen().await;
        // A file that was written just before its subscription cannot be distinguished from one that is written again.
        let last = fs::metadata(root.join(FENCE)).and_then(|facts| facts.modified()).expect("the file exists");
        let is_past = || async { last.elapsed().is_ok_and(|age| age > CLOCK_STEPS).then_some(()) };
        eventually("the files are older than a step of the clock", is_past).await;
        let world = World { gateway, client, listener, root, scratch, fences: 0 };
        world.subscribe(FENCE).await;
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn uri(&self, name: &str) -> String {
        format!("f+file://{}/{name}", self.root.display())
    }

    fn write(&self, name: &str, text: &str) {
        write_file(&self.path(name), text);
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).expect("the file can be renamed");
    }

    async fn request_for(&self, method: &str, name: &str) -> Value {
        self.client.request(method, json!({ "uri": self.uri(name) })).await
    }

    async fn subscribe(&self, name: &str) {
        let answer = self.request_for("resources/subscribe", name).await;
        assert!(answer["result"].is_object(), "{name}: {answer}");
    }

    /// Returns the name of the next file in a notification.
    async fn updated(&mut self) -> String {
        let update = self.listener.await_method("notifications/resources/updated").await;
        let uri = update["params"]["uri"].as_str().unwrap_or_else(|| panic!("{update}")).to_owned();
        uri.strip_prefix(&self.uri("")).unwrap_or_else(|| panic!("{update}")).to_owned()
    }

    /// Returns the name of the next file that is reported as deleted.
    async fn deleted(&mut self) -> String {
        loop {
            let update = self.listener.await_method("notifications/resources/updated").await;
            if update["params"]["_meta"]["dev.goblin/deleted"] == true {
                let uri = update["params"]["uri"].as_str().expect("a URI").to_owned();
                return uri.strip_prefix(&self.uri("")).expect("a served file").to_owned();
            }
        }
    }

    /// Returns the notifications for all changes so far.
    async fn updates(&mut self) -> Vec<String> {
        let mut updates = Vec::new();
        // One scan notifies in any order. After a second scan no notification of the first is left.
        for _ in 0..2 {
            self.fences += 1;
            self.write(FENCE, &self.fences.to_string());
            loop {
                match self.updated().await {
                    name if name == FENCE => break,
                    name => updates.push(name),
                }
            }
        }
        updates
    }

    async fn listed(&self) -> BTreeSet<String> {
        let resources = self.client.list("resources/list", "resources").await;
        resources.iter().map(|resource| resource["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until these files and the fence are listed.
    async fn lists(&self, names: &[&str]) {
        let expected: BTreeSet<String> = names.iter().chain(&[FENCE]).map(|name| (*name).to_owned()).collect();
        eventually(&format!("{names:?} are listed"), || async { (self.listed().await == expected).then_some(()) })
            .await;
    }

    /// Returns the number of published catalogs.
    fn published(&self) -> usize {
        self.gateway.log().iter().filter(|line| line.contains("catalog published")).count()
    }

    /// Returns the number of directories that the gateway watches with inotify.
    fn watches(&self) -> usize {
        let pid = self.gateway.child.id().expect("the process runs");
        let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process runs");
        let texts = files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
        texts.map(|text| text.lines().filter(|line| line.starts_with("inotify ")).count()).sum()
    }
}

#[tokio::test]
async fn exactly_the_readable_files_can_be_subscribed() {
    let mut world = World::new(&["a", ".hidden", "sub/b"], json!({})).await;
    for name in ["none", ".hidden", "sub"] {
        let (subscribe, read) =
            (world.request_for("resources/subscribe", name).await, world.request_for("resources/read", name).await);
        assert!(read["error"].is_object(), "{name}: {read}");
        for part in ["code", "message"] {
            assert_eq!(subscribe["error"][part], read["error"][part], "{name}");
        }
    }
    for name in ["a", "sub/b"] {
        world.subscribe(name).await;
        world.write(name, "second");
        assert_eq!(world.updated().await, name);
        assert!(world.request_for("resources/unsubscribe", name).await["result"].is_object());
        world.write(name, "third");
        assert_eq!(world.updates().await, [""; 0]);
    }
}

#[tokio::test]
async fn every_kind_of_file_change_is_notified() {
    let mut world = World::new(&["sub/a"], json!({})).await;
    world.subscribe("sub/a").await;
    let path = world.path("sub/a");
    let open = || fs::File::options().append(true).open(&path).expect("the file exists");
    let looks_the_same = || {
        let time = open().metadata().and_then(|facts| facts.modified()).expect("the file exists");
        write_file(&path, "third");
        open().set_modified(time).expect("the test owns the file");
    };
    let changes: [(&str, &dyn Fn()); 6] = [
        ("of the same size and time", &looks_the_same),
        ("written anew", &|| write_file(&path, "other")),
        ("longer", &|| std::io::Write::write_all(&mut open(), b"more").expect("room")),
        ("shorter", &|| open().set_len(1).expect("the test owns the file")),
        ("of another time", &|| {
            open().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(9)).expect("the test owns the file")
        }),
        ("readable to others", &|| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).expect("the test owns the file");
        }),
    ];
    for (case, change) in changes {
        change();
        let updates = world.updates().await;
        assert!(!updates.is_empty() && updates.iter().all(|name| name == "sub/a"), "{case}: {updates:?}");
    }
    fs::remove_file(&path).expect("the file existed");
    assert_eq!(world.deleted().await, "sub/a");
    write_file(&path, "back");
    assert_eq!(world.updated().await, "sub/a");
}

#[tokio::test]
async fn a_save_through_a_temporary_file_causes_one_update_and_no_list_change() {
    let mut world = World::new(&["a", "b"], json!({})).await;
    world.subscribe("a").await;
    world.lists(&["a", "b"]).await;
    world.updates().await;
    let before = world.published();
    for round in 0..8 {
        world.write(".a.swp", &"x".repeat(round + 10));
        world.rename(".a.swp", "a");
        assert_eq!(world.updates().await, ["a"]);
    }
    world.write("c", "");
    world.lists(&["a", "b", "c"]).await;
    eventually("the catalog is published", || async { (world.published() > before).then_some(()) }).await;
    assert_eq!(world.published(), before + 1);
    // On a slow machine the temporary file, which is not hidden, may be seen in between.
    world.write("a.tmp", "saved");
    world.rename("a.tmp", "a");
    let updates = world.updates().await;
    assert!(!updates.is_empty() && updates.iter().all(|name| name == "a"), "{updates:?}");
    world.lists(&["a", "b", "c"]).await;
}

#[tokio::test]
async fn added_moved_and_removed_files_change_the_list() {
    let mut world = World::new(&["a", "b"], json!({})).await;
    world.subscribe("a").await;
    world.write("c", "new");
    world.listener.await_method("notifications/resources/list_changed").await;
    world.lists(&["a", "b", "c"]).await;
    fs::remove_file(world.path("b")).expect("the file existed");
    world.lists(&["a", "c"]).await;
    world.rename("a", "d");
    world.lists(&["c", "d"]).await;
    assert_eq!(world.deleted().await, "a");
    world.write("new/deep/e", "");
    world.lists(&["c", "d", "new/deep/e"]).await;
    world.subscribe("new/deep/e").await;
    world.write("new/deep/e", "second");
    assert_eq!(world.updated().await, "new/deep/e");
    fs::remove_dir_all(world.path("new")).expect("the file existed");
    world.lists(&["c", "d"]).await;
    assert_eq!(world.deleted().await, "new/deep/e");
}

#[tokio::test]
async fn a_moved_directory_and_its_replacement_are_both_watched() {
    let mut world = World::new(&["d/sub/a", "d/b"], json!({})).await;
    for name in ["d/sub/a", "d/b"] {
        world.subscribe(name).await;
    }
    world.updates().await;
    world.rename("d", "e");
    world.write("d/sub/a", "another");
    world.lists(&["d/sub/a", "e/b", "e/sub/a"]).await;
    let mut updates = BTreeSet::new();
    while updates.len() < 2 {
        updates.insert(world.updated().await);
    }
    assert_eq!(updates, BTreeSet::from(["d/b", "d/sub/a"].map(str::to_owned)));
    world.subscribe("e/sub/a").await;
    world.updates().await;
    for name in ["d/sub/a", "e/sub/a", "d/b"] {
        world.write(name, "third");
        while world.updated().await != name {}
    }
    world.write("e/new", "");
    world.lists(&["d/b", "d/sub/a", "e/b", "e/new", "e/sub/a"]).await;
}

#[tokio::test]
async fn edited_ignore_rules_take_effect_at_once_also_above_the_root() {
    let mut world = World::new(&["a.log", "sub/b.log", "c"], json!({})).await;
    world.subscribe("a.log").await;
    fs::create_dir_all(world.scratch.path().join(".git/info")).expect("a directory");
    // A new repository above the root is noticed with the next change of the tree.
    world.write("sub/.gitignore", "# nothing\n");
    world.write("c", "second");
    let above = world.scratch.path().join(".gitignore");
    let exclude = world.scratch.path().join(".git/info/exclude");
    for rules in [world.path(".gitignore"), above, exclude] {
        world.lists(&["a.log", "c", "sub/b.log"]).await;
        world.updates().await;
        write_file(&rules, "*.log\n");
        world.lists(&["c"]).await;
        assert_eq!(world.deleted().await, "a.log", "{}", rules.display());
        world.write("a.log", "ignored");
        assert_eq!(world.updates().await, [""; 0], "{}", rules.display());
        fs::remove_file(&rules).expect("the file existed");
        world.lists(&["a.log", "c", "sub/b.log"]).await;
        assert_eq!(world.updated().await, "a.log", "{}", rules.display());
    }
}

#[tokio::test]
async fn excluded_files_cause_no_notification() {
    let mut world = World::new(&["a", ".env", ".git/config", "target/x"], json!({})).await;
    world.write(".gitignore", "/target/\n*.log\n");
    world.lists(&["a"]).await;
    world.updates().await;
    let before = world.published();
    for round in 0..5 {
        for name in [".env", ".git/config", ".cache/deep/x", "target/x", "target/sub/y", "b.log"] {
            world.write(name, &"x".repeat(round));
        }
        fs::remove_file(world.path("b.log")).expect("the file existed");
        assert_eq!(world.updates().await, [""; 0]);
    }
    assert_eq!(world.watches(), 1);
    world.write("b", "");
    world.lists(&["a", "b"]).await;
    eventually("the catalog is published", || async { (world.published() > before).then_some(()) }).await;
    assert_eq!(world.published(), before + 1);
}

#[tokio::test]
async fn exactly_the_served_directories_are_watched() {
    let world = World::new(&["a/b/c", "ignored/d/e", ".hidden/f"], json!({})).await;
    let watches = async |count: usize| {
        eventually(&format!("{count} are watched"), || async { (world.watches() == count).then_some(()) }).await;
    };
    watches(5).await;
    world.write(".gitignore", "ignored\n");
    watches(3).await;
    for number in 0..50 {
        world.write(&format!("many/{number}/x"), "");
    }
    watches(54).await;
    world.rename("many", "moved");
    let moved: Vec<_> = (0..50).map(|number| format!("moved/{number}/x")).collect();
    let names: Vec<_> = moved.iter().map(String::as_str).chain(["a/b/c"]).collect();
    world.lists(&names).await;
    watches(54).await;
    fs::remove_dir_all(world.path("moved")).expect("the file existed");
    watches(3).await;
}

#[tokio::test]
async fn a_storm_of_writes_causes_few_updates_and_the_last_is_delivered() {
    const WRITES: usize = 10_000;
    let mut world = World::new(&["a"], json!({})).await;
    world.subscribe("a").await;
    let path = world.path("a");
    let storm = tokio::task::spawn_blocking(move || {
        for number in 1..=WRITES {
            fs::write(&path, number.to_string()).expect("room");
        }
    });
    let (mut updates, last) = (0, WRITES.to_string());
    loop {
        assert_eq!(world.updated().await, "a");
        updates += 1;
        let read = world.request_for("resources/read", "a").await;
        if read["result"]["contents"][0]["text"] == last {
            break;
        }
    }
    storm.await.expect("the storm ends");
    assert!(updates <= WRITES / 10, "{updates} updates");
}

#[tokio::test]
async fn a_storm_of_new_files_is_listed_in_the_end_and_hides_no_update() {
    let mut world = World::new(&["a"], json!({})).await;
    world.subscribe("a").await;
    for number in 0..3000 {
        world.write(&format!("many/{}/{number}", number % 7), "");
    }
    world.write("a", "second");
    let updates = world.updates().await;
    assert!(!updates.is_empty() && updates.iter().all(|name| name == "a"), "{updates:?}");
    eventually("all are listed", || async { (world.listed().await.len() == 3002).then_some(()) }).await;
    for number in (0..3000).filter(|number| number % 7 != 0) {
        fs::remove_file(world.path(&format!("many/{}/{number}", number % 7))).expect("the file existed");
    }
    eventually("the rest is listed", || async { (world.listed().await.len() == 431).then_some(()) }).await;
    world.write("many/0/0", "second");
    world.subscribe("many/0/0").await;
    world.write("many/0/0", "third");
    // The other file may be notified again, because a file that is seen in the moment of its change is checked twice.
    while world.updated().await != "many/0/0" {}
}

#[tokio::test]
async fn a_symbolic_link_is_notified_when_its_file_or_its_target_changes() {
    let mut world = World::new(&["a", "b", "deep/c"], json!({})).await;
    let outside = world.scratch.path().join("outside");
    write_file(&outside, "secret");
    let root = world.root.clone();
    let point = |to: &Path| {
        let second = root.join(".second");
        symlink(to, &second).and_then(|()| fs::rename(&second, root.join("link"))).expect("a link");
    };
    point(Path::new("a"));
    world.subscribe("link").await;
    let changes: [(&str, &dyn Fn()); 3] = [
        ("its file", &|| write_file(&root.join("a"), "second")),
        ("led elsewhere", &|| point(Path::new("deep/c"))),
        ("its new file", &|| write_file(&root.join("deep/c"), "second")),
    ];
    for (case, change) in changes {
        change();
        let updates = world.updates().await;
        assert!(!updates.is_empty() && updates.iter().all(|name| name == "link"), "{case}: {updates:?}");
    }
    point(&outside);
    assert_eq!(world.deleted().await, "link");
    write_file(&outside, "another secret");
    assert_eq!(world.updates().await, [""; 0]);
    symlink(&outside, root.join("out")).expect("a link");
    let answer = world.request_for("resources/subscribe", "out").await;
    assert_eq!(answer["error"]["code"], -32002, "{answer}");
}

#[tokio::test]
async fn a_subscribed_file_beyond_the_list_limit_is_notified() {
    let files = ["a", "b", "c", "d", "e", "x/y/1", "x/y/2", "z/3"];
    let mut world = World::new(&files, json!({ "maxFiles": 5 })).await;
    symlink("a", world.path("0")).expect("a link");
    for name in ["x/y/2", "0"] {
        // Only the template covers this file.
        world.subscribe(name).await;
        world.updates().await;
    }
    assert_eq!(world.watches(), 3, "the root, x and x/y");
    let root = world.root.clone();
    let changes: [(&str, &str, &dyn Fn()); 3] = [
        ("x/y/2", "written", &|| write_file(&root.join("x/y/2"), "second")),
        ("0", "led elsewhere", &|| {
            symlink("z/3", root.join(".0")).and_then(|()| fs::rename(root.join(".0"), root.join("0"))).expect("a link");
        }),
        ("0", "written there", &|| write_file(&root.join("z/3"), "second")),
    ];
    for (name, case, change) in changes {
        change();
        let updates = world.updates().await;
        assert!(!updates.is_empty() && updates.iter().all(|other| other == name), "{name} {case}: {updates:?}");
    }
    world.rename("x", "gone");
    assert_eq!(world.deleted().await, "x/y/2");
    world.rename("gone", "x");
    assert_eq!(world.updated().await, "x/y/2");
}

#[tokio::test]
async fn directories_that_cannot_be_watched_are_polled() {
    // More directories than `maxFiles` are not watched.
    let files = ["a/1", "b/2", "c/3", "d/4", "e/5", "f/6"];
    let mut world = World::new(&files, json!({ "maxFiles": 4 })).await;
    await_log(&world.gateway, &["WARN", "cannot be watched", "more directories than maxFiles"]).await;
    assert_eq!(world.watches(), 0);
    for name in ["a/1", "f/6"] {
        world.subscribe(name).await;
        world.write(name, "changed");
        assert_eq!(world.updated().await, name);
    }
    world.write("a/0", "new");
    let listed = |names: [&'static str; 4]| BTreeSet::from(names.map(str::to_owned));
    let lists = async |names| {
        eventually("the files are listed", || async { (world.listed().await == listed(names)).then_some(()) }).await;
    };
    lists(["a/0", "a/1", "b/2", "c/3"]).await;
    fs::remove_file(world.path("a/1")).expect("the file existed");
    lists(["a/0", "b/2", "c/3", "d/4"]).await;
    assert_eq!(world.updated().await, "a/1");
    let lines = world.gateway.log();
    assert_eq!(lines.iter().filter(|line| line.contains("cannot be watched")).count(), 1);
}
