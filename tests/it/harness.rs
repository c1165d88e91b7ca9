//! The harness of all tests: a gateway as a real process, scratch directories, signals and waits.
//!
//! Every wait has the timeout [`TIMEOUT`].

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::{Client, NEWEST_LEGACY};

/// The timeout of every wait. It is large, because machines are slow; a wait ends when its condition holds.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const GOBLIN: &str = env!("CARGO_BIN_EXE_goblin");
/// The root of the workspace.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the path of the fixture server.
pub fn fixture() -> String {
    goblin_fixture::program().display().to_string()
}

/// Returns a stdio server entry of the configuration: the fixture with `arguments`.
pub fn fixture_server(arguments: &[&str]) -> Value {
    json!({ "command": fixture(), "args": arguments })
}

/// Disables the meta tools, or lists all of them if the configuration defines its own exposure. A configuration with
/// `metaTools` stays as it is.
pub fn servers_only(mut config: Value) -> Value {
    if config.get("metaTools").is_none() {
        config["metaTools"] = json!(["exposure", "profiles"].iter().any(|key| config.get(key).is_some()));
    }
    config
}

/// Waits until `probe` returns a value.
pub async fn eventually<T, F: Future<Output = Option<T>>>(condition: &str, mut probe: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "timed out before {condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A deadline for a loop that cannot use [`eventually`].
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    pub fn new() -> Deadline {
        Deadline(tokio::time::Instant::now() + TIMEOUT)
    }

    /// Waits for one interval. Panics after the deadline.
    pub async fn pause(&self, condition: &str) {
        assert!(tokio::time::Instant::now() < self.0, "timed out before {condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A directory that is removed with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("goblin-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and creates its directories.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        write_file(&path, text);
        path
    }
}

/// Writes a file and creates its directories.
pub fn write_file(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("the file has a parent directory")).expect("a directory");
    std::fs::write(path, text).expect("a file");
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a `goblin` command that uses no files outside of `home`.
pub fn goblin(home: &Path) -> Command {
    let mut command = Command::new(GOBLIN);
    for variable in ["GOBLIN_CONFIG", "GOBLIN_TOKEN", "GOBLIN_ADMIN_TOKEN", "GOBLIN_KEY_FILE", "CREDENTIALS_DIRECTORY"]
    {
        command.env_remove(variable);
    }
    command
        .env("XDG_RUNTIME_DIR", home)
        .env("XDG_STATE_HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .kill_on_drop(true);
    command
}

/// Runs a command to its end. Returns the exit code, stdout and stderr.
pub async fn output(mut command: Command) -> (Option<i32>, String, String) {
    let output =
        tokio::time::timeout(TIMEOUT, command.output()).await.expect("the process ends").expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A `goblin serve` process on a free port.
pub struct Gateway {
    pub address: std::net::SocketAddr,
    pub child: Child,
    log: Arc<Mutex<Vec<String>>>,
    _scratch: Option<Scratch>,
}

impl Gateway {
    /// Starts a gateway with these `mcpServers` and defaults otherwise.
    pub async fn with_servers(servers: Value) -> Gateway {
        Gateway::start(json!({ "mcpServers": servers })).await
    }

    pub async fn start(config: Value) -> Gateway {
        let scratch = Scratch::new();
        let path = scratch.write("goblin.json", &servers_only(config).to_string());
        let mut command = goblin(scratch.path());
        command.args(["serve", "--port", "0", "--log-level", "debug", "--config"]).arg(&path);
        Gateway { _scratch: Some(scratch), ..Gateway::of(command).await }
    }

    /// Starts a gateway with any command that serves.
    pub async fn of(mut command: Command) -> Gateway {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("goblin starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let (found, address) = tokio::sync::oneshot::channel();
        let kept = Arc::clone(&log);
        tokio::spawn(async move {
            let mut found = Some(found);
            while let Ok(Some(line)) = lines.next_line().await {
                let address = line.split("listening on http://").nth(1).and_then(|rest| rest.split('/').next());
                if let Some(address) = address
                    && let Some(found) = found.take()
                {
                    let _ = found.send(address.parse().expect("an address"));
                }
                kept.lock().expect("no test panics here").push(line);
            }
        });
        let address = match tokio::time::timeout(TIMEOUT, address).await {
            Ok(Ok(address)) => address,
            _ => panic!("goblin does not listen: {:?}", log.lock().expect("no test panics here")),
        };
        crate::admin_client::remember(address, &command);
        Gateway { address, child, log, _scratch: None }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("no test panics here").clone()
    }

    /// Returns a client with a session of the newest legacy version.
    pub async fn client(&self) -> Client {
        self.client_of(NEWEST_LEGACY).await
    }

    pub async fn client_of(&self, version: &str) -> Client {
        Client::new(self.address).connected(version).await
    }

    /// Returns a client after the tool of this name is listed.
    pub async fn client_seeing(&self, tool: &str) -> Client {
        let client = self.client().await;
        client.await_tool(tool).await;
        client
    }

    /// Ends the gateway with SIGTERM and returns its exit status.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        let pid = self.child.id().expect("the process runs");
        signal(pid, "TERM");
        tokio::time::timeout(TIMEOUT, self.child.wait())
            .await
            .expect("the process ends")
            .expect("the exit status is known")
    }
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    try_signal(pid, name).unwrap_or_else(|error| panic!("{name} to {pid}: {error}"));
}

fn try_signal(pid: u32, name: &str) -> rustix::io::Result<()> {
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        _ => panic!("no test sends {name}"),
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal)
}

/// A stopped backend process. Requests to it wait, so a response proves that the backend was not asked.
pub struct Frozen(u32);

impl Frozen {
    /// Stops the process that wrote its pid into this file.
    pub async fn new(pid_file: &Path) -> Frozen {
        let pid = eventually("the pid file is written", || async {
            std::fs::read_to_string(pid_file).ok()?.trim().parse().ok()
        });
        let frozen = Frozen(pid.await);
        signal(frozen.0, "STOP");
        eventually("every thread has stopped", || async { frozen.is_stopped().then_some(()) }).await;
        frozen
    }

    /// Reports whether every thread has stopped. A signal takes effect thread by thread.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0)).expect("the process runs");
        let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        tasks.flatten().all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(stopped))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = try_signal(self.0, "CONT");
    }
}
