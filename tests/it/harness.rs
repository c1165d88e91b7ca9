//! The harness of all tests: a gateway as a real process, and clients that exchange raw bytes.
//!
//! The clients make few checks of their own, so each test asserts exactly what it needs. Every wait has the timeout
//! [`PATIENCE`].

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HttpClient, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The timeout of every wait. It is large, because machines are slow; a wait ends when its condition holds.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

/// Disables the meta tools, unless the configuration defines its own exposure.
pub fn servers_only(mut config: Value) -> Value {
    if ["metaTools", "exposure", "profiles"].iter().all(|key| config.get(key).is_none()) {
        config["metaTools"] = json!(false);
    }
    config
}

/// Waits until `look` returns a value.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A deadline for a loop that cannot use [`eventually`].
pub struct Deadline(tokio::time::Instant);

impl Deadline {
    pub fn new() -> Deadline {
        Deadline(tokio::time::Instant::now() + PATIENCE)
    }

    /// Waits for one interval. Panics after the deadline.
    pub async fn pause(&self, what: &str) {
        assert!(tokio::time::Instant::now() < self.0, "waited in vain until {what}");
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

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        let mut file = std::fs::File::create(&path).expect("a scratch file");
        file.write_all(text.as_bytes()).expect("room for a scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a `goblin` command that uses no files outside of `home`.
pub fn goblin(home: &Path) -> Command {
    let mut command = Command::new(GOBLIN);
    for variable in ["GOBLIN_CONFIG", "GOBLIN_TOKEN", "GOBLIN_ADMIN_TOKEN"] {
        command.env_remove(variable);
    }
    command.env("XDG_RUNTIME_DIR", home).env("XDG_STATE_HOME", home).kill_on_drop(true);
    command
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
        let address = match tokio::time::timeout(PATIENCE, address).await {
            Ok(Ok(address)) => address,
            _ => panic!("goblin does not listen: {:?}", log.lock().expect("no test panics here")),
        };
        crate::operator::remember(address, &command);
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
        self.client_of("2025-11-25").await
    }

    pub async fn client_of(&self, version: &str) -> Client {
        let mut client = Client::new(self.address);
        let answer = client.initialize(version).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        client
    }

    /// Returns a client after the tool of this name is listed.
    pub async fn client_seeing(&self, tool: &str) -> Client {
        let client = self.client().await;
        client.await_tool(tool).await;
        client
    }

    /// Ends the gateway with SIGTERM and returns its exit status.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        let pid = self.child.id().expect("it runs");
        signal(pid, "TERM");
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").expect("it can be waited for")
    }
}

/// Sends a signal by name.
pub fn signal(pid: u32, name: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid}");
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
        eventually("every thread has stopped", || async { frozen.is_still().then_some(()) }).await;
        frozen
    }

    /// Reports whether every thread has stopped. A signal takes effect thread by thread.
    fn is_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0)).expect("the process lives");
        let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        tasks.flatten().all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(stopped))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill").args(["-CONT", &self.0.to_string()]).status();
    }
}

/// A raw HTTP response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// Returns the messages of the body, which is JSON or an event stream.
    pub fn messages(&self) -> Vec<String> {
        let kind = self.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("text/event-stream") {
            let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
            // An event without data only carries an id.
            return data.filter(|data| !data.is_empty()).map(str::to_owned).collect();
        }
        if self.body.is_empty() { Vec::new() } else { vec![self.body.clone()] }
    }

    /// Returns the last message, parsed.
    pub fn json(&self) -> Value {
        let last = self.messages().pop().unwrap_or_else(|| panic!("no message in {self:?}"));
        serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {last}"))
    }
}

/// A client over HTTP that sends and receives raw messages.
#[derive(Clone)]
pub struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    pub address: std::net::SocketAddr,
    pub endpoint: String,
    pub session: Option<String>,
    pub version: Option<String>,
    next: Arc<std::sync::atomic::AtomicU64>,
}

impl Client {
    pub fn new(address: std::net::SocketAddr) -> Client {
        // The gateway also closes idle connections, and a request on a closing connection would be lost.
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(3))
            .build(HttpConnector::new());
        Client { http, address, endpoint: "/mcp".to_owned(), session: None, version: None, next: Arc::default() }
    }

    /// Sends a request with exactly these headers and `Host`.
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a valid request");
        let response = tokio::time::timeout(PATIENCE, self.http.request(request)).await.expect("an answer in time");
        let (parts, body) = response.expect("an answer").into_parts();
        let body = tokio::time::timeout(PATIENCE, body.collect()).await.expect("a body in time").expect("a whole body");
        let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
        headers.extend(self.session.as_deref().map(|session| ("mcp-session-id", session)));
        headers.extend(self.version.as_deref().map(|version| ("mcp-protocol-version", version)));
        headers
    }

    /// Returns the same client at another endpoint.
    pub fn at(self, endpoint: &str) -> Client {
        Client { endpoint: endpoint.to_owned(), ..self }
    }

    /// POSTs these bytes to the endpoint in this session.
    pub async fn post(&self, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, &self.endpoint, &self.headers(), body).await
    }

    /// POSTs these bytes and returns as soon as the head of the response arrives.
    pub async fn open(&self, body: impl Into<Bytes>) -> (Parts, Listener) {
        self.open_with(&self.headers(), body).await
    }

    /// POSTs with exactly these headers and `Host`.
    pub async fn open_with(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> (Parts, Listener) {
        let mut request =
            Request::builder().method(Method::POST).uri(format!("http://{}{}", self.address, self.endpoint));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a valid request");
        let response = tokio::time::timeout(PATIENCE, self.http.request(request)).await.expect("an answer in time");
        let (parts, body) = response.expect("an answer").into_parts();
        (parts, Listener { body, buffer: String::new() })
    }

    pub async fn initialize(&mut self, version: &str) -> Value {
        self.initialize_with(version, json!({})).await
    }

    pub async fn initialize_with(&mut self, version: &str, capabilities: Value) -> Value {
        let client = json!({"name": "test", "version": "0"});
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
        let answer =
            self.post(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()).await;
        self.session = answer.headers.get("mcp-session-id").map(|id| id.to_str().expect("text").to_owned());
        let body = answer.json();
        self.version =
            body["result"]["protocolVersion"].as_str().filter(|version| *version >= "2025-06-18").map(str::to_owned);
        self.notify("notifications/initialized", json!({})).await;
        body
    }

    pub async fn notify(&self, method: &str, params: Value) {
        let answer = self.post(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{answer:?}");
    }

    /// Sends a request with a fresh id and returns the whole response.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let answer =
            self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        let message = answer.json();
        assert_eq!(message["id"], id, "{answer:?}");
        message
    }

    /// Calls a tool and returns its result. Panics on an error.
    pub async fn call(&self, name: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": name, "arguments": arguments})).await;
        assert!(answer["error"].is_null(), "{name}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool and returns the text of its first content block.
    pub async fn call_text(&self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments).await;
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{name}: {result}")).to_owned()
    }

    /// Returns all entries of a list, page by page.
    pub async fn list(&self, method: &str, member: &str) -> Vec<Value> {
        let mut entries = Vec::new();
        let mut params = json!({});
        loop {
            let answer = self.request(method, params).await;
            let result = &answer["result"];
            entries.extend(result[member].as_array().unwrap_or_else(|| panic!("{answer}")).iter().cloned());
            match result["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return entries,
            }
        }
    }

    pub async fn tool_names(&self) -> Vec<String> {
        let tools = self.list("tools/list", "tools").await;
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    pub async fn await_tool(&self, name: &str) {
        eventually(&format!("the tool {name} is listed"), || async {
            self.tool_names().await.iter().any(|known| known == name).then_some(())
        })
        .await;
    }

    /// Opens the GET stream.
    pub async fn listen(&self) -> Listener {
        self.listen_at(&self.endpoint).await
    }

    pub async fn listen_at(&self, path: &str) -> Listener {
        let (parts, listener) = self.get(path, &[]).await;
        assert_eq!(parts.status, StatusCode::OK);
        listener
    }

    /// Sends a GET in this session with these additional headers, and returns as soon as the head of the response
    /// arrives.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (Parts, Listener) {
        self.try_get(path, headers).await.expect("an answer")
    }

    /// Sends a GET over a connection that may be cut.
    pub async fn try_get(&self, path: &str, headers: &[(&str, &str)]) -> Result<(Parts, Listener), HttpError> {
        let mut request = Request::builder().method(Method::GET).uri(format!("http://{}{path}", self.address));
        let own = self.headers().into_iter().filter(|(name, _)| *name != "content-type");
        for (name, value) in own.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let request = request.body(Full::default()).expect("a valid request");
        let response = tokio::time::timeout(PATIENCE, self.http.request(request)).await.expect("an answer in time");
        response.map(|response| {
            let (parts, body) = response.into_parts();
            (parts, Listener { body, buffer: String::new() })
        })
    }
}

/// An open event stream.
pub struct Listener {
    body: hyper::body::Incoming,
    buffer: String,
}

impl Listener {
    /// Returns the next message, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        self.next_text().await.map(|message| serde_json::from_str(&message).expect("a message"))
    }

    /// Returns the original text of the next message. Keep-alives do not extend the timeout.
    pub async fn next_text(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.read_message()).await.expect("a message in time")
    }

    /// Returns the next message without a timeout.
    pub async fn read_message(&mut self) -> Option<String> {
        loop {
            let event = self.read_event().await?;
            // An event without data only carries an id.
            if let Some(data) = field(&event, "data").filter(|data| !data.is_empty()) {
                return Some(data.to_owned());
            }
        }
    }

    /// Returns the original text of the next event, or `None` at the end of the stream.
    pub async fn next_event(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.read_event()).await.expect("an event in time")
    }

    /// Returns the next event without a timeout.
    pub async fn read_event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let event = event.to_owned();
                self.buffer = rest.to_owned();
                return Some(event);
            }
            let data = self.body.frame().await?.ok()?.into_data().ok()?;
            self.buffer.push_str(std::str::from_utf8(&data).expect("text"));
        }
    }

    /// Returns the body of a response that is not an event stream.
    pub async fn rest(self) -> String {
        let body = tokio::time::timeout(PATIENCE, self.body.collect()).await.expect("a body in time");
        String::from_utf8(body.expect("a whole body").to_bytes().to_vec()).expect("text")
    }

    /// Reads until a notification of this method arrives.
    pub async fn await_method(&mut self, method: &str) -> Value {
        loop {
            let message = self.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
            if message["method"] == method {
                return message;
            }
        }
    }
}

/// Returns a field of an event.
pub fn field<'event>(event: &'event str, name: &str) -> Option<&'event str> {
    event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// A `goblin stdio` process and its pipes.
pub struct StdioClient {
    pub child: Child,
    pub input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    next: u64,
    _scratch: Option<Scratch>,
}

impl StdioClient {
    /// Starts the process without a handshake.
    pub fn start(config: Value) -> StdioClient {
        let scratch = Scratch::new();
        let path = scratch.write("goblin.json", &servers_only(config).to_string());
        let mut command = goblin(scratch.path());
        command.args(["stdio", "--config"]).arg(&path).stderr(Stdio::null());
        StdioClient { _scratch: Some(scratch), ..StdioClient::of(command) }
    }

    /// Starts any command that implements the protocol.
    pub fn of(mut command: Command) -> StdioClient {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("goblin starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        StdioClient { child, input, output, next: 0, _scratch: None }
    }

    pub async fn initialized(config: Value, version: &str) -> StdioClient {
        let mut client = StdioClient::start(config);
        client.initialize(version).await;
        client
    }

    pub async fn initialize(&mut self, version: &str) -> Value {
        let params =
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
        let answer = self.request("initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        self.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        answer
    }

    /// Writes one line.
    pub async fn write(&mut self, line: &str) {
        self.write_bytes(format!("{line}\n").as_bytes()).await;
    }

    pub async fn write_bytes(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("the input is open");
        input.write_all(bytes).await.expect("goblin reads");
        input.flush().await.expect("goblin reads");
    }

    /// Returns the next line, or `None` at the end of the output.
    pub async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.output.next_line()).await.expect("a line in time").expect("text")
    }

    pub async fn message(&mut self) -> Value {
        let line = self.line().await.expect("another message");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends a request with a fresh id and returns its response. Skips notifications.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        loop {
            let message = self.message().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    pub async fn await_tool(&mut self, name: &str) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.request("tools/list", json!({})).await;
            let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_default();
            if tools.iter().any(|tool| tool["name"] == name) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "the tool {name} is not listed");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Splits the client for concurrent reads and writes.
    pub fn into_parts(self) -> (ChildStdin, Lines<BufReader<ChildStdout>>, Child, Option<Scratch>) {
        (self.input.expect("the input is open"), self.output, self.child, self._scratch)
    }

    /// Closes the input and returns the exit status of the process.
    pub async fn close(mut self) -> std::process::ExitStatus {
        drop(self.input.take());
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").expect("it can be waited for")
    }
}
