//! A gateway never serves itself: loops over every transport, through another gateway, and by the command line.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::client::Client;
use crate::harness::{GOBLIN, Gateway, Scratch, eventually, fixture_server, signal};
use crate::home::Home;
use crate::hostile::counter;
use crate::scripted_backend::Scripted;
use crate::support::await_log;

const REASON: &str = "it is this gateway itself";
const VIA: &str = "dev.goblin/via";

/// The number of tools of the server beside the loop. A gateway that served itself once would list as many again, which
/// take almost twice [`MAX_LISTED`].
const TOOLS: usize = 2_000;
/// The bytes by which the lists of a gateway may grow: one response that a client still reads.
const MAX_LISTED: u64 = 2 << 20;
/// The limit in KiB by which the memory of the process may grow at its peak. The allocator returns memory late.
const MAX_PEAK_GROWTH: u64 = 30 * 1024;
/// The shortest first pause after a loop, in seconds.
const PAUSE: f64 = 4.0;
/// A time for which no list may wait.
const LONG: &str = "600s";

fn server() -> Value {
    fixture_server(&["--tools", &TOOLS.to_string()])
}

/// Returns the tool names with the prefix of a server.
async fn tools_of(client: &Client, server: &str) -> usize {
    let prefix = format!("{server}_");
    client.tool_names().await.iter().filter(|name| name.starts_with(&prefix)).count()
}

/// The memory of a gateway from a point in time.
struct Memory {
    client: Client,
    pid: u32,
    before: u64,
    listed: u64,
}

impl Memory {
    /// Resets the peak of the resident memory.
    async fn of(gateway: &Gateway) -> Memory {
        let pid = gateway.child.id().expect("the process runs");
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the peak is reset");
        let client = gateway.client().await;
        Memory { pid, before: kibibytes(pid, "VmRSS:"), listed: listed(&client).await, client }
    }

    async fn assert_flat(&self) {
        let grown = kibibytes(self.pid, "VmHWM:").saturating_sub(self.before);
        assert!(grown < MAX_PEAK_GROWTH, "{grown} KiB more than the {} KiB before", self.before);
        let is_flat = async || (listed(&self.client).await < self.listed + MAX_LISTED).then_some(());
        eventually("the lists are as before", is_flat).await;
    }
}

/// Returns the bytes that all lists of a gateway take.
async fn listed(client: &Client) -> u64 {
    counter(client, "goblin_memory_reserved_bytes", r#"kind="listings""#).await
}

/// Returns a line of the process's status, a number of KiB.
fn kibibytes(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux reports the memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Returns the log lines about the server that leads back.
fn drops(gateway: &Gateway) -> Vec<String> {
    let is_drop = |line: &String| line.contains(r#"server="self""#) && line.contains(REASON);
    gateway.log().into_iter().filter(is_drop).collect()
}

/// Returns the time of a log line in seconds of its day.
fn seconds(line: &str) -> f64 {
    let time = line.split('T').nth(1).and_then(|rest| rest.split('Z').next()).unwrap_or_default();
    time.split(':').fold(0.0, |sum, part| 60.0 * sum + part.parse::<f64>().expect("a number"))
}

/// Returns the number of connections that a gateway made to the server that leads back before it dropped the server.
fn connections(gateway: &Gateway) -> usize {
    let is_own = |line: &String| line.contains(r#"server="self""#);
    let log = gateway.log();
    let until = log.iter().position(|line| is_own(line) && line.contains(REASON)).unwrap_or(log.len());
    log[..until].iter().filter(|line| is_own(line) && line.contains("backend ready")).count()
}

/// A gateway with a configuration that changes while it runs.
struct Looped {
    home: Home,
    gateway: Gateway,
    client: Client,
}

impl Looped {
    async fn start() -> Looped {
        let home = Home::new(&config(json!({ "a": server() })));
        let (gateway, client) = home.gateway("a_echo").await;
        Looped { home, gateway, client }
    }

    /// Adds a server to the configuration, which the gateway follows.
    fn add(&self, entry: Value) {
        self.home.scratch.write("goblin.json", &config(json!({ "a": server(), "self": entry })).to_string());
    }

    /// Asserts that no client got a connection of its own to the server that leads back.
    fn assert_no_client_links(&self) {
        let is_link = |line: &String| line.contains(r#"server="self""#) && line.contains("one client");
        assert_eq!(self.gateway.log().into_iter().filter(is_link).collect::<Vec<_>>(), Vec::<String>::new());
    }

    /// Adds a server that leads back to the gateway. The gateway rejects itself at the handshake, before any list, status
    /// shows the reason, and the memory stays.
    async fn assert_dropped(&self, entry: Value) {
        let (before, memory) = (self.client.tool_names().await.len(), Memory::of(&self.gateway).await);
        self.add(entry);
        await_log(&self.gateway, &[r#"server="self""#, REASON]).await;
        assert_eq!(connections(&self.gateway), 0);
        assert_eq!(self.client.tool_names().await.len(), before);
        memory.assert_flat().await;
        let status = self.home.run(&["status"]).await;
        assert!(status.text().replace(char::is_whitespace, "").contains(&REASON.replace(' ', "")), "{status:?}");
    }
}

fn config(servers: Value) -> Value {
    json!({ "metaTools": false, "profiles": { "review": { "servers": ["*"] } }, "mcpServers": servers })
}

#[tokio::test]
async fn use1_a_gateway_in_front_of_itself_over_http_is_dropped() {
    let looped = Looped::start().await;
    looped.assert_dropped(json!({ "url": looped.gateway.url() })).await;
}

#[tokio::test]
async fn use1_a_call_and_a_list_do_not_wake_a_dropped_server() {
    let looped = Looped::start().await;
    looped.assert_dropped(json!({ "url": looped.gateway.url() })).await;
    let [first, second] = loop {
        assert!(looped.client.try_call("self_a_echo", "{}").await["error"].is_object());
        looped.client.tool_names().await;
        if let [first, second, ..] = &drops(&looped.gateway)[..] {
            break [first.clone(), second.clone()];
        }
        tokio::task::yield_now().await;
    };
    let paused = (seconds(&second) - seconds(&first)).rem_euclid(86_400.0);
    assert!(paused >= PAUSE, "{paused} s: {first} {second}");
    assert_eq!(connections(&looped.gateway), 0);
}

#[tokio::test]
async fn use1_a_loop_of_links_of_single_clients_stops_at_the_first_link() {
    let looped = Looped::start().await;
    looped.assert_dropped(json!({ "url": looped.gateway.url(), "session": "per-client" })).await;
    for _ in 0..10 {
        assert_eq!(tools_of(&looped.client, "self").await, 0);
    }
    looped.assert_no_client_links();
}

#[tokio::test]
async fn use1_a_loop_through_bridges_of_single_clients_stops_at_the_first_bridge() {
    let looped = Looped::start().await;
    let args = ["stdio", "--url", &looped.gateway.url()];
    looped.assert_dropped(json!({ "command": GOBLIN, "args": args, "session": "per-client" })).await;
    assert_eq!(tools_of(&looped.client, "self").await, 0);
    looped.assert_no_client_links();
}

/// A bridge without the variables of the gateway passes no id on. The shared link still finds the loop, by its lists,
/// before any client gets a link of its own.
#[tokio::test]
async fn use1_a_loop_through_an_unknown_proxy_is_found_by_one_link() {
    let looped = Looped::start().await;
    let args = ["-i", GOBLIN, "stdio", "--url", &looped.gateway.url()];
    looped.add(json!({ "command": "env", "args": args, "session": "per-client" }));
    await_log(&looped.gateway, &[r#"server="self""#, REASON]).await;
    assert_eq!(tools_of(&looped.client, "self").await, 0);
    looped.assert_no_client_links();
    assert!(connections(&looped.gateway) <= 1);
}

/// A port that only a gateway can use meanwhile.
fn reserved_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("the option is set");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let port = socket.local_addr().expect("a bound socket").port();
    (socket, port)
}

/// Starts a gateway with first lists that would wait very long for a server that does not settle.
async fn start_with(port: u16, servers: Value) -> (Home, Gateway) {
    let mut config = config(servers);
    config["gateway"] = json!({ "startWait": LONG });
    let home = Home::new(&config);
    let gateway = Gateway::of(home.serve(port)).await;
    (home, gateway)
}

#[tokio::test]
async fn use1_a_gateway_that_starts_in_front_of_itself_drops_itself_and_delays_no_list() {
    let (_socket, port) = reserved_port();
    let (_plain_home, plain) = start_with(0, json!({ "a": server() })).await;
    let url = format!("http://localhost:{port}/mcp");
    let (_home, gateway) = start_with(port, json!({ "a": server(), "self": { "url": url } })).await;
    let tools = plain.client().await.tool_names().await.len();
    let client = gateway.client().await;
    assert_eq!(client.tool_names().await.len(), tools, "the first list waits for the other server only");
    await_log(&gateway, &[r#"server="self""#, REASON]).await;
    assert_eq!(connections(&gateway), 0);
    let memory = Memory { pid: gateway.child.id().expect("it runs"), client, ..Memory::of(&plain).await };
    memory.assert_flat().await;
}

#[tokio::test]
async fn use1_gateways_that_start_in_front_of_each_other_do_not_wait_for_each_other() {
    let ((_socket, port), (_other_socket, other_port)) = (reserved_port(), reserved_port());
    let url = |port| json!({ "url": format!("http://localhost:{port}/mcp") });
    let (first, second) = tokio::join!(
        start_with(port, json!({ "a": server(), "self": url(other_port) })),
        start_with(other_port, json!({ "b": server(), "self": url(port) })),
    );
    for (name, (_, gateway)) in [("a_", &first), ("b_", &second)] {
        let names = gateway.client().await.tool_names().await;
        assert!(names.iter().filter(|tool| tool.starts_with(name)).count() >= TOOLS, "{name}: {}", names.len());
    }
}

#[tokio::test]
async fn use1_a_gateway_in_front_of_its_own_profile_is_dropped() {
    let looped = Looped::start().await;
    looped.assert_dropped(json!({ "url": format!("{}/p/review", looped.gateway.url()) })).await;
}

#[tokio::test]
async fn use1_a_gateway_in_front_of_itself_over_sse_is_dropped() {
    let looped = Looped::start().await;
    let url = format!("http://{}/sse", looped.gateway.address);
    looped.assert_dropped(json!({ "type": "sse", "url": url })).await;
}

#[tokio::test]
async fn use1_a_gateway_in_front_of_its_own_bridge_is_dropped() {
    let looped = Looped::start().await;
    let args = ["stdio", "--url", &looped.gateway.url()];
    looped.assert_dropped(json!({ "command": GOBLIN, "args": args })).await;
}

#[tokio::test]
async fn use1_a_server_that_starts_goblin_with_the_same_configuration_is_dropped() {
    let looped = Looped::start().await;
    let args = ["stdio", "--standalone", "--config", looped.home.config()];
    looped.assert_dropped(json!({ "command": GOBLIN, "args": args })).await;
}

#[tokio::test]
async fn use1_goblin_behind_a_shell_is_dropped() {
    let looped = Looped::start().await;
    let shell = format!("cd /; {GOBLIN} stdio --config {}; exit $?", looped.home.config());
    looped.assert_dropped(json!({ "command": "sh", "args": ["-c", shell] })).await;
}

#[tokio::test]
async fn use1_two_gateways_in_front_of_each_other_converge_to_a_chain() {
    let looped = Looped::start().await;
    let other = Gateway::with_servers(json!({ "b": server(), "first": { "url": looped.gateway.url() } })).await;
    let outer = other.client_seeing("first_a_echo").await;
    let (before, memory) = (outer.tool_names().await.len(), Memory::of(&looped.gateway).await);
    looped.add(json!({ "url": other.url() }));
    await_log(&looped.gateway, &[r#"server="self""#, REASON]).await;
    eventually("one link is cut", async || {
        let (inner, outer) = (looped.client.tool_names().await, outer.tool_names().await);
        (outer.len() == before && inner.iter().all(|name| name.starts_with("a_"))).then_some(())
    })
    .await;
    assert!(connections(&looped.gateway) <= 1, "the first lists end the connection");
    assert!(!other.log().iter().any(|line| line.contains(REASON)), "only the older gateway cuts its link");
    assert!(!outer.call_text("first_a_echo", r#"{"text":"hello"}"#).await.is_empty(), "the chain works");
    memory.assert_flat().await;
}

#[tokio::test]
async fn use1_a_ring_of_three_gateways_keeps_two_connections() {
    let homes = [(); 3].map(|()| Home::new(&config(json!({ "a": fixture_server(&[]) }))));
    let mut gateways = Vec::new();
    for home in &homes {
        gateways.push(home.gateway("a_echo").await);
    }
    let own = gateways[0].1.tool_names().await.len();
    for (index, home) in homes.iter().enumerate() {
        let next = json!({ "url": gateways[(index + 1) % 3].0.url() });
        let servers = json!({ "a": fixture_server(&[]), "self": next });
        home.scratch.write("goblin.json", &config(servers).to_string());
    }
    eventually("a gateway has cut the ring", async || {
        gateways.iter().any(|(gateway, _)| !drops(gateway).is_empty()).then_some(())
    })
    .await;
    eventually("one connection is cut and two are there", async || {
        let mut counts = Vec::new();
        for (_, client) in &gateways {
            counts.push(client.tool_names().await.len());
        }
        counts.sort();
        (counts == [own, 2 * own, 3 * own]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn use1_the_memory_of_a_removed_server_is_freed() {
    let home = Home::new(&config(json!({ "a": fixture_server(&[]) })));
    let (gateway, client) = home.gateway("a_echo").await;
    let (before, memory) = (listed(&client).await, Memory::of(&gateway).await);
    let large = fixture_server(&["--tools", &(10 * TOOLS).to_string()]);
    home.scratch.write("goblin.json", &config(json!({ "a": fixture_server(&[]), "large": large })).to_string());
    eventually("its lists are there", async || (listed(&client).await > 10 * MAX_LISTED).then_some(())).await;
    let grown = kibibytes(memory.pid, "VmRSS:");
    home.scratch.write("goblin.json", &config(json!({ "a": fixture_server(&[]) })).to_string());
    eventually("its lists are gone", async || (listed(&client).await == before).then_some(())).await;
    // The allocator returns memory to the system while the process works.
    let is_freed = async || {
        listed(&client).await;
        (kibibytes(memory.pid, "VmRSS:") < memory.before.midpoint(grown)).then_some(())
    };
    eventually("the process returned the memory", is_freed).await;
}

/// A server with another list of gateways each time.
async fn restless_server(ids: impl Fn(usize) -> Vec<String> + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |seen, number| match seen.method() {
        "tools/list" => seen.result(json!({
            "tools": [{ "name": "t", "inputSchema": { "type": "object" } }], "_meta": { VIA: ids(number) },
        })),
        _ => seen.legacy(),
    })
    .await
}

#[tokio::test]
async fn use1_a_server_with_too_many_gateways_behind_it_is_dropped() {
    let ids = |count: u64| (0..count).map(|number| format!("{number:032x}")).collect::<Vec<_>>();
    let (most, more) = (restless_server(move |_| ids(63)).await, restless_server(move |_| ids(65)).await);
    let url = |server: &Scripted| json!({ "url": format!("http://{}/mcp", server.address) });
    let gateway = Gateway::with_servers(json!({ "most": url(&most), "more": url(&more) })).await;
    await_log(&gateway, &[r#"server="more""#, "its lists name more than 64 gateways"]).await;
    let client = gateway.client_seeing("most_t").await;
    assert_eq!(client.tool_names().await, ["most_t"]);
    let page = client.request("tools/list", "{}").await;
    let listed = page["result"]["_meta"][VIA].as_array().cloned().expect("the ids");
    assert_eq!((listed.len(), listed[1].as_str()), (64, Some(&*format!("{:032x}", 0))), "the own id comes first");
}

#[tokio::test]
async fn d14_a_server_behind_another_gateway_changes_the_list_without_a_notification() {
    let server = restless_server(|number| vec![format!("{number:032x}")]).await;
    let url = format!("http://{}/mcp", server.address);
    let servers = json!({ "s": { "url": url, "refresh": "1s" }, "a": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    gateway.client_seeing("s_t").await.await_tool("a_echo").await;
    let client = gateway.client().await;
    let mut listener = client.listen().await;
    let ids = async || client.request("tools/list", "{}").await["result"]["_meta"][VIA].to_string();
    for _ in 0..2 {
        let last = ids().await;
        eventually("the list has other gateways", async || (ids().await != last).then_some(())).await;
    }
    client.call("a_change_prompts", json!({})).await;
    let first = listener.next().await.expect("a message");
    assert_eq!(first["method"], "notifications/prompts/list_changed", "{first}");
}

#[tokio::test]
async fn use1_a_chain_of_gateways_lists_their_ids_on_every_page() {
    let inner = Gateway::with_servers(json!({ "a": server() })).await;
    let outer = Gateway::with_servers(json!({ "inner": { "url": inner.url() } })).await;
    let ids = async |client: &Client, method: &str| {
        let page = client.request(method, "{}").await;
        page["result"]["_meta"][VIA].as_array().cloned().unwrap_or_else(|| panic!("{method}: {page}"))
    };
    let inner_id = ids(&inner.client_seeing("a_echo").await, "tools/list").await;
    assert_eq!(inner_id.len(), 1);
    let client = outer.client_seeing("inner_a_echo").await;
    assert_eq!(tools_of(&client, "inner").await, inner.client().await.tool_names().await.len());
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        let all = ids(&client, method).await;
        assert!(all.len() == 2 && all[1] == inner_id[0], "{method}: {all:?}");
        let modern = ids(&Client::modern(outer.address, json!({})), method).await;
        assert_eq!(modern, all, "{method}");
    }
}

#[tokio::test]
async fn use1_an_agent_that_is_a_server_and_a_client_of_the_gateway_works() {
    // The agent starts a bridge as a child process. Its environment is that of a server.
    let looped = Looped::start().await;
    let (out, config) = (looped.home.scratch.path().join("agent"), looped.home.config());
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": crate::client::hello("2025-11-25", json!({})) });
    let fixture = crate::harness::fixture();
    let script = format!(
        "(printf '%s\\n' '{hello}' '{list}'; until grep -q a_echo {out}; do sleep 0.1; done) \
         | {GOBLIN} stdio --config {config} > {out} 2> {out}.err & exec {fixture}",
        out = out.display()
    );
    looped.add(json!({ "command": "sh", "args": ["-c", script] }));
    looped.client.await_tool("self_echo").await;
    eventually("the agent lists the tools of the gateway", async || {
        std::fs::read_to_string(&out).is_ok_and(|text| text.contains("a_echo")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn use1_import_add_and_check_reject_a_running_gateway_of_the_same_file() {
    let looped = Looped::start().await;
    let (home, url) = (&looped.home, looped.gateway.url());
    let spelled = url.replace("127.0.0.1", "localhost").replace("/mcp", "/sse");
    let block = json!({ "mcpServers": { "me": { "url": spelled }, "cmd": { "command": GOBLIN, "args": ["stdio", "--config", home.config()] } } });
    let from = home.scratch.write("client.json", &block.to_string());
    let from = from.to_str().expect("text");
    let imported = home.run(&["import", "--from", from, "--yes", "--config", home.config()]).await;
    assert_eq!(imported.text().matches("left out: the entry is goblin itself").count(), 2, "{imported:?}");
    let added = home.run(&["add", "me", &spelled, "--config", home.config()]).await;
    assert!(added.code == Some(2) && added.stderr.contains("to itself"), "{added:?}");
    let written = config(json!({ "me": { "url": spelled } })).to_string();
    let copy = home.scratch.write("goblin.json", &written);
    let checked = home.run(&["check", "--config", copy.to_str().expect("text")]).await;
    assert!(checked.code == Some(1) && checked.text().contains(REASON), "{checked:?}");
}

#[tokio::test]
async fn use1_agents_and_commands_on_other_machines_are_accepted() {
    let looped = Looped::start().await;
    let (home, url, config_path) = (&looped.home, looped.gateway.url(), looped.home.config());
    let agent = ["my-agent", "--mcp", &url];
    let block = json!({ "mcpServers": {
        "agent": { "command": agent[0], "args": agent[1..] },
        "ssh": { "command": "ssh", "args": ["devbox", "goblin", "stdio", "--config", config_path] },
    } });
    let from = home.scratch.write("client.json", &block.to_string());
    let imported =
        home.run(&["import", "--from", from.to_str().expect("text"), "--yes", "--config", config_path]).await;
    assert!(imported.code == Some(0) && !imported.text().contains("left out"), "{imported:?}");
    let add = async |name: &str, flags: &[&str], command: &[&str]| {
        home.run(&[&["add", name, "--config", config_path], flags, &["--"], command].concat()).await
    };
    let added = add("agent2", &[], &agent).await;
    assert!(added.code == Some(0) && added.stderr.contains("the running gateway drops it"), "{added:?}");
    let docker = ["docker", "exec", "-i", "box", "goblin", "stdio", "--config", config_path];
    assert_eq!(add("box", &[], &docker).await.code, Some(0));
    let own = [GOBLIN, "stdio", "--config", config_path];
    assert_eq!(add("own", &[], &own).await.code, Some(2));
    assert_eq!(add("own", &["--force"], &own).await.code, Some(0), "the user decides");
    let checked = home.run(&["check", "--config", config_path]).await;
    let failed = checked.text().lines().filter(|line| line.contains(REASON)).count();
    assert!(checked.code == Some(1) && failed == 1, "only the gateway itself fails: {checked:?}");
}

/// Returns the processes with this text in their command lines.
fn processes(text: &str) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").expect("Linux lists processes").flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_text = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    ids.filter(has_text).collect()
}

#[tokio::test]
async fn use1_gateways_without_their_environment_start_each_other_a_limited_number_of_times() {
    let scratch = Scratch::new();
    let config = scratch.path().join("goblin.json");
    let (config, home) = (config.to_str().expect("text"), scratch.path().display());
    let start = format!("exec env -i HOME={home} {GOBLIN} stdio --standalone --config {config} 2>> {home}/log");
    let servers = json!({ "next": { "command": "sh", "args": ["-c", start], "protocol": "legacy" } });
    scratch.write("goblin.json", &json!({ "mcpServers": servers }).to_string());
    let mut command = crate::harness::goblin(scratch.path());
    command.args(["stdio", "--standalone", "--config", config]).stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(Stdio::null());
    let mut root = command.spawn().expect("goblin starts");
    eventually("the last gateway refuses to start", async || {
        let log = std::fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
        log.contains("8 goblin processes have started each other").then_some(())
    })
    .await;
    let gateways = || processes(config).into_iter().filter(|id| is_gateway(*id)).count();
    assert!(gateways() <= 9, "at most 8 run, and one is about to refuse");
    signal(root.id().expect("the process runs"), "KILL");
    root.wait().await.expect("the exit status is known");
    eventually("all processes end", async || processes(config).is_empty().then_some(())).await;
}

/// Reports whether a process is `goblin stdio`, and no guard.
fn is_gateway(id: u32) -> bool {
    let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1).is_some_and(|argument| argument == b"stdio")
}
