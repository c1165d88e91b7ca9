//! The cached listings of servers (USE-4): the first lists after a start come from the run before.
//!
//! The server waits for a file before it answers, so a test decides when the server has started.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::client::{Client, NEWEST_LEGACY};
use crate::harness::{Gateway, Scratch, eventually, fixture_server, goblin, servers_only};
use crate::retry::status_of;
use crate::scripted_backend::Scripted;
use crate::support::{await_log, path_text, scripted_server};

const MAX_CACHE_BYTES: u64 = 64 << 20;
const CHANGED: &str = "notifications/tools/list_changed";

/// The home of one user, with a server `a` that starts when the file `gate` exists.
struct Home {
    scratch: Scratch,
    server: Value,
}

impl Home {
    fn new() -> Home {
        let scratch = Scratch::new();
        let [gate, more] = ["gate", "more"].map(|name| scratch.path().join(name));
        let script = format!(
            r#"while [ ! -e '{}' ]; do sleep 0.02; done; if [ -e '{}' ]; then exec "$@" --tools 1; else exec "$@"; fi"#,
            path_text(&gate),
            path_text(&more)
        );
        Home { server: scripted_server(&script, &[]), scratch }
    }

    fn open(&self) {
        self.scratch.write("gate", "");
    }

    fn close(&self) {
        std::fs::remove_file(self.scratch.path().join("gate")).expect("the gate is open");
    }

    fn config(&self, servers: &Value, gateway: Value) -> PathBuf {
        let config = json!({ "gateway": gateway, "mcpServers": servers });
        self.scratch.write("goblin.json", &servers_only(config).to_string())
    }

    async fn serve(&self, servers: &Value, gateway: Value) -> Gateway {
        self.serve_with(servers, gateway, &[]).await
    }

    async fn serve_with(&self, servers: &Value, gateway: Value, variables: &[(&str, &str)]) -> Gateway {
        let mut command = goblin(self.scratch.path());
        command.envs(variables.iter().copied());
        let config = self.config(servers, gateway);
        command.args(["serve", "--port", "0", "--log-level", "debug", "--config"]).arg(config);
        Gateway::of(command).await
    }

    /// Starts a gateway whose lists wait for servers.
    async fn start(&self) -> Gateway {
        self.serve(&json!({ "a": self.server }), json!({ "startWait": "10m" })).await
    }

    /// Runs a gateway until the listing of `a` is cached, and closes the gate.
    async fn fill(&self) -> PathBuf {
        self.open();
        let mut gateway = self.start().await;
        let path = self.cached(1).await.remove(0);
        gateway.terminate().await;
        self.close();
        path
    }

    fn directory(&self) -> PathBuf {
        self.scratch.path().join("cache/goblin/listings")
    }

    /// Returns the files of the cache without the key.
    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.directory()).into_iter().flatten().flatten().map(|entry| entry.path());
        files.filter(|path| path.extension().is_none() && !path.ends_with("key")).collect()
    }

    /// Waits until there are this many cached listings.
    async fn cached(&self, count: usize) -> Vec<PathBuf> {
        eventually(&format!("{count} listings are cached"), || async {
            let files = self.files();
            (files.len() == count).then_some(files)
        })
        .await
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the file exists").permissions().mode() & 0o777
}

async fn lists_echo(client: &Client) -> bool {
    client.tool_names().await.contains(&"a_echo".to_owned())
}

#[tokio::test]
async fn use4_the_first_list_is_complete_while_the_server_hangs_and_a_call_waits_for_it() {
    let home = Home::new();
    home.fill().await;
    let gateway = home.start().await;
    let client = gateway.client().await;
    assert!(lists_echo(&client).await, "the first list has the cached entries");
    let status = status_of(&gateway).await;
    assert_eq!((&status["state"], &status["stale"]), (&json!("starting"), &json!(true)), "{status}");
    let id = client.begin_call("a_echo", json!({ "text": "hi" })).await;
    home.open();
    let answer = client.answer_to(id).await;
    assert!(answer["result"]["content"].is_array(), "{answer}");
    eventually("the listing is current", || async { (status_of(&gateway).await["stale"] == false).then_some(()) })
        .await;
}

#[tokio::test]
async fn use4_goblin_stdio_uses_the_cached_listing() {
    let home = Home::new();
    home.fill().await;
    let config = home.config(&json!({ "a": home.server }), json!({ "startWait": "10m" }));
    let mut command = goblin(home.scratch.path());
    command.args(["stdio", "--standalone", "--config"]).arg(config);
    let client = Client::run(command).connected(NEWEST_LEGACY).await;
    assert!(lists_echo(&client).await, "the first list has the cached entries");
}

#[tokio::test]
async fn use4_only_a_listing_that_differs_from_the_cached_one_is_announced() {
    for differs in [false, true] {
        let home = Home::new();
        home.fill().await;
        if differs {
            home.scratch.write("more", "");
        }
        let gateway = home.start().await;
        // The publication of the cached entries is a change for a client that connects earlier.
        gateway.client_seeing("a_echo").await;
        let client = Client::new(gateway.address).listening(json!({})).await;
        let cached = client.tool_names().await;
        home.open();
        if differs {
            client.notification(CHANGED).await;
            assert_eq!(client.tool_names().await.len(), cached.len() + 1);
            continue;
        }
        eventually("the listing is current", || async { (status_of(&gateway).await["stale"] == false).then_some(()) })
            .await;
        // A known change is the fence: its notification comes after one of an equal listing.
        client.call("a_change_tools", json!({})).await;
        client.notification(CHANGED).await;
        let messages = client.pending_messages().await;
        assert!(!messages.iter().any(|message| message["method"] == CHANGED), "{messages:?}");
        assert_eq!(client.tool_names().await.len(), cached.len() + 1);
    }
}

#[tokio::test]
async fn use4_d14_a_cached_list_is_stale_until_its_server_lists_again() {
    let home = Home::new();
    let is_broken = Arc::<AtomicBool>::default();
    let broken = Arc::clone(&is_broken);
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/list" if broken.load(Ordering::SeqCst) => {
            seen.error("200 OK", json!({ "code": -32603, "message": "no tools today" }))
        }
        _ => seen.legacy(),
    })
    .await;
    let entry = json!({ "url": format!("http://{}/mcp", server.address), "protocol": "legacy", "refresh": "1s" });
    let servers = json!({ "a": entry });
    let mut gateway = home.serve(&servers, json!({})).await;
    gateway.client_seeing("a_t").await;
    home.cached(1).await;
    gateway.terminate().await;
    is_broken.store(true, Ordering::SeqCst);
    let gateway = home.serve(&servers, json!({})).await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    client.await_tool("a_t").await;
    await_log(&gateway, &["no tools today"]).await;
    let status = eventually("the server is ready", || async {
        let status = status_of(&gateway).await;
        (status["state"] == "ready").then_some(status)
    })
    .await;
    assert_eq!((&status["entries"]["tools"], &status["stale"]), (&json!(1), &json!(true)), "{status}");
    is_broken.store(false, Ordering::SeqCst);
    eventually("the listing is current", || async { (status_of(&gateway).await["stale"] == false).then_some(()) })
        .await;
}

#[tokio::test]
async fn use4_another_value_of_an_inherited_variable_has_its_own_listing() {
    let mut home = Home::new();
    home.server["inherit"] = json!(["LOGIN"]);
    home.open();
    for (login, count) in [("one", 1), ("one", 1), ("two", 2)] {
        let mut gateway = home.serve_with(&json!({ "a": home.server }), json!({}), &[("LOGIN", login)]).await;
        gateway.client_seeing("a_echo").await;
        home.cached(count).await;
        gateway.terminate().await;
        assert_eq!(home.files().len(), count, "{login}");
    }
}

#[tokio::test]
async fn use4_a_damaged_or_foreign_file_is_ignored_and_replaced() {
    let home = Home::new();
    let path = home.fill().await;
    let good = std::fs::read(&path).expect("a file");
    let foreign = [&b"0".repeat(64)[..], b"\n", good.split(|byte| *byte == b'\n').nth(1).expect("a body")].concat();
    for bad in [Vec::new(), good[..good.len() / 2].to_vec(), foreign, b"\xff\n{}".to_vec()] {
        std::fs::write(&path, &bad).expect("the file can be written");
        let mut gateway = home.serve(&json!({ "a": home.server }), json!({ "startWait": "0s" })).await;
        let line = await_log(&gateway, &["cached listing", "server=\"a\""]).await;
        assert!(line.contains("DEBUG"), "{line}");
        assert!(!lists_echo(&gateway.client().await).await);
        home.open();
        eventually("the file is replaced", || async { (std::fs::read(&path).ok()? == good).then_some(()) }).await;
        gateway.terminate().await;
        home.close();
    }
}

#[tokio::test]
async fn use4_only_the_user_can_read_the_cached_listings() {
    let home = Home::new();
    let path = home.fill().await;
    let directory = home.directory();
    assert_eq!([mode(&directory), mode(&path), mode(&directory.join("key"))], [0o700, 0o600, 0o600]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("the file is ours");
    let gateway = home.serve(&json!({ "a": home.server }), json!({ "startWait": "0s" })).await;
    await_log(&gateway, &["cached listing", "is not private"]).await;
    assert!(!lists_echo(&gateway.client().await).await);
}

#[tokio::test]
async fn use4_another_value_of_a_variable_has_its_own_listing() {
    let mut home = Home::new();
    home.server["env"] = json!({ "LOGIN": "one" });
    let first = home.fill().await;
    home.server["env"] = json!({ "LOGIN": "two" });
    let mut gateway = home.serve(&json!({ "a": home.server }), json!({ "startWait": "0s" })).await;
    assert!(!lists_echo(&gateway.client().await).await, "the listing of another login is not used");
    home.open();
    let both = home.cached(2).await;
    gateway.terminate().await;
    assert!(both.contains(&first), "{both:?}");
    for path in both {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    }
}

#[tokio::test]
async fn use4_the_oldest_listings_are_removed_above_the_limit() {
    let home = Home::new();
    let path = home.fill().await;
    std::fs::remove_file(&path).expect("the file exists");
    for number in 0..70 {
        let file = std::fs::File::create(home.directory().join(format!("{number:064}"))).expect("a file");
        file.set_len(1 << 20).expect("a sparse file");
        let age = std::time::Duration::from_secs(1000 - number);
        file.set_modified(std::time::SystemTime::now() - age).expect("the file is ours");
    }
    home.open();
    let _gateway = home.start().await;
    eventually("old files are removed", || async { (home.files().len() < 70).then_some(()) }).await;
    let total = || home.files().iter().map(|path| std::fs::metadata(path).map_or(0, |found| found.len())).sum::<u64>();
    eventually("the cache has its limit", || async { (total() <= MAX_CACHE_BYTES).then_some(()) }).await;
    eventually("the new listing is there", || async { path.exists().then_some(()) }).await;
    assert!(home.directory().join(format!("{:064}", 69)).exists(), "the newest of the others stays");
    assert!(!home.directory().join(format!("{:064}", 0)).exists(), "the oldest is removed first");
}

#[tokio::test]
async fn use4_the_private_lists_of_a_modern_server_are_cached_for_its_user() {
    let home = Home::new();
    let server = fixture_server(&["--era", "modern", "--cache-scope", "private"]);
    let gateway = home.serve(&json!({ "a": server }), json!({})).await;
    assert!(lists_echo(&gateway.client().await).await);
    let path = home.cached(1).await.remove(0);
    assert_eq!(mode(&path), 0o600);
}

#[tokio::test]
async fn use4_servers_of_one_client_and_files_are_not_cached_and_the_setting_turns_the_cache_off() {
    let home = Home::new();
    let mut own = fixture_server(&[]);
    own["session"] = json!("per-client");
    let servers = json!({
        "a": fixture_server(&[]), "own": own, "f": { "type": "files", "root": home.scratch.path() },
    });
    let mut gateway = home.serve(&servers, json!({ "listingCache": false, "startWait": "10m" })).await;
    assert!(lists_echo(&gateway.client().await).await);
    gateway.terminate().await;
    assert!(!home.directory().exists(), "the setting turns the cache off");
    let mut gateway = home.serve(&servers, json!({ "startWait": "10m" })).await;
    let client = gateway.client().await;
    for tool in ["a_echo", "own_echo", "f_read"] {
        client.await_tool(tool).await;
    }
    home.cached(1).await;
    gateway.terminate().await;
    assert_eq!(home.files().len(), 1, "only the listing of a is cached");
}
