//! The client of all tests: every transport and every protocol version, with access to the raw bytes.
//!
//! The client makes few checks of its own, so each test asserts exactly what it needs. Clones share the connection and
//! the received messages. The connection ends with the last clone.

pub mod http;
pub mod inbox;
pub mod modern;
mod process;

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ::http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::{ChildStderr, Command};
use tokio::task::JoinHandle;

use crate::client::http::{Answer, Connections, is_event_stream};
use crate::client::inbox::{Earlier, Inbox, Received, Way};
use crate::client::modern::{Draft, with_meta};
use crate::client::process::Process;
use crate::fixture_http::HttpFixture;
use crate::harness::{Scratch, TIMEOUT, eventually, fixture, goblin, servers_only};

pub const NEWEST_LEGACY: &str = "2025-11-25";

#[derive(Clone)]
enum Link {
    Http(Connections),
    /// HTTP+SSE. The endpoint is the path of the POSTs.
    Sse(Connections),
    Stdio(Arc<Process>),
}

/// The tasks that read streams. They end with the client.
#[derive(Default)]
struct Readers {
    all: Mutex<Vec<JoinHandle<()>>>,
    /// The reader of the session's stream. The next field is the id of its last event.
    session: Mutex<Option<JoinHandle<()>>>,
    last_event: Arc<Mutex<Option<String>>>,
}

impl Readers {
    fn add(&self, reader: JoinHandle<()>) {
        self.all.lock().expect("no test panics here").push(reader);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let all = self.all.get_mut().expect("no test panics here");
        let session = self.session.get_mut().expect("no test panics here");
        all.iter().chain(session.iter()).for_each(JoinHandle::abort);
    }
}

#[derive(Clone)]
pub struct Client {
    link: Link,
    inbox: Arc<Inbox>,
    readers: Arc<Readers>,
    /// Decides whether the client keeps or rejects messages that precede an awaited one.
    earlier: Earlier,
    /// The capabilities in each request of 2026-07-28. A client of an older version has none here.
    capabilities: Option<Value>,
    /// The address of the gateway. A client over stdio has none.
    pub address: SocketAddr,
    /// The address of the session's stream, if it uses a proxy.
    stream_address: Option<SocketAddr>,
    pub endpoint: String,
    pub session: Option<String>,
    pub version: Option<String>,
    next: Arc<AtomicU64>,
    /// A name for error messages.
    pub name: String,
}

/// Clients before the handshake.
impl Client {
    /// Returns a client over Streamable HTTP.
    pub fn new(address: SocketAddr) -> Client {
        Client::of(Link::Http(Connections::new()), address, "/mcp", Arc::default())
    }

    /// Returns a client of 2026-07-28 over Streamable HTTP, which needs no handshake.
    pub fn modern(address: SocketAddr, capabilities: Value) -> Client {
        Client::new(address).as_modern(capabilities)
    }

    /// Opens the stream of HTTP+SSE.
    pub async fn sse(address: SocketAddr) -> Client {
        let connections = Connections::new();
        let mut stream = Client::of(Link::Http(connections.clone()), address, "/sse", Arc::default()).listen().await;
        let path = stream.next_text().await.expect("the first event");
        let client = Client::of(Link::Sse(connections), address, &path, Arc::default());
        client.readers.add(client.read_session(stream));
        client
    }

    /// Starts a `goblin stdio` process.
    pub fn stdio(config: Value) -> Client {
        let scratch = Scratch::new();
        let path = scratch.write("goblin.json", &servers_only(config).to_string());
        let mut command = goblin(scratch.path());
        command.args(["stdio", "--config"]).arg(&path).stderr(Stdio::null());
        Client::with_process(command, Some(scratch))
    }

    /// Starts any command that implements the protocol.
    pub fn run(command: Command) -> Client {
        Client::with_process(command, None)
    }

    fn with_process(command: Command, scratch: Option<Scratch>) -> Client {
        let inbox = Arc::default();
        let (process, tasks) = Process::start(command, scratch, &inbox);
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let client = Client::of(Link::Stdio(Arc::new(process)), nowhere, "", inbox);
        tasks.into_iter().for_each(|task| client.readers.add(task));
        client
    }

    fn of(link: Link, address: SocketAddr, endpoint: &str, inbox: Arc<Inbox>) -> Client {
        Client {
            link,
            inbox,
            readers: Arc::default(),
            earlier: Earlier::Dropped,
            capabilities: None,
            address,
            stream_address: None,
            endpoint: endpoint.to_owned(),
            session: None,
            version: None,
            next: Arc::default(),
            name: String::new(),
        }
    }

    /// Returns the same client at another endpoint.
    pub fn at(self, endpoint: &str) -> Client {
        Client { endpoint: endpoint.to_owned(), ..self }
    }

    /// Returns the same client, with its POSTs to one address and the session's stream via another.
    pub fn via(self, address: SocketAddr, stream: SocketAddr) -> Client {
        Client { address, stream_address: Some(stream), ..self }
    }

    /// Returns the same connection with requests of 2026-07-28.
    pub fn as_modern(&self, capabilities: Value) -> Client {
        Client { capabilities: Some(capabilities), ..self.clone() }
    }
}

/// Handshakes.
impl Client {
    /// Returns the client after a handshake with this version.
    pub async fn connected(mut self, version: &str) -> Client {
        self.initialize(version).await;
        self
    }

    /// Returns the client after a handshake. It keeps all messages until a test waits for them. Over Streamable HTTP it
    /// opens the session's stream.
    pub async fn listening(mut self, capabilities: Value) -> Client {
        self.earlier = Earlier::Kept;
        let answer = self.initialize_with(NEWEST_LEGACY, capabilities).await;
        assert_eq!(answer["result"]["protocolVersion"], NEWEST_LEGACY, "{answer}");
        if let Link::Http(_) = self.link {
            self.listen_again().await;
        }
        self
    }

    /// Performs the handshake. The gateway must accept the version.
    pub async fn initialize(&mut self, version: &str) -> Value {
        let answer = self.initialize_with(version, json!({})).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        answer
    }

    pub async fn initialize_with(&mut self, version: &str, capabilities: Value) -> Value {
        let params = hello(version, capabilities);
        let body = match &self.link {
            Link::Http(_) => {
                let answer = self.post(request(json!(0), "initialize", params)).await;
                self.session = answer.headers.get("mcp-session-id").map(|id| id.to_str().expect("text").to_owned());
                answer.json()
            }
            Link::Sse(_) | Link::Stdio(_) => self.request("initialize", params).await,
        };
        self.version =
            body["result"]["protocolVersion"].as_str().filter(|version| *version >= "2025-06-18").map(str::to_owned);
        self.notify("notifications/initialized", json!({})).await;
        body
    }
}

/// Sending.
impl Client {
    /// Sends a message that has no response here: a notification, a response, or any text over HTTP+SSE and stdio.
    pub async fn write(&self, message: &str) {
        match &self.link {
            Link::Http(_) => {
                let answer = self.post(message.to_owned()).await;
                assert_eq!(answer.status, StatusCode::ACCEPTED, "{message}: {answer:?}");
            }
            Link::Sse(_) => {
                let answer = self.post(message.to_owned()).await;
                let response = (answer.status, answer.body.as_str());
                assert_eq!(response, (StatusCode::ACCEPTED, "Accepted"), "{message}: {answer:?}");
            }
            Link::Stdio(process) => process.write(format!("{message}\n").as_bytes()).await,
        }
    }

    pub async fn notify(&self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    pub async fn cancel(&self, id: impl Into<Value>) {
        self.notify("notifications/cancelled", json!({ "requestId": id.into() })).await;
    }

    /// Answers a server request. `outcome` is `"result":...` or `"error":...`.
    pub async fn reply(&self, request_message: &Received, outcome: &str) {
        self.write(&format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, request_message.raw("id"))).await;
    }

    /// Sends the text of a request. Its response arrives like any other message.
    pub async fn begin_text(&self, message: &str) {
        let Link::Http(connections) = &self.link else { return self.write(message).await };
        let (connections, inbox) = (connections.clone(), Arc::clone(&self.inbox));
        let (address, endpoint, draft) = (self.address, self.endpoint.clone(), self.draft_of(message.to_owned()));
        self.readers.add(tokio::spawn(async move {
            let opened = connections.open(Method::POST, (address, &endpoint), draft.pairs(), draft.body.clone().into());
            let (parts, mut stream) = opened.await.expect("an answer");
            if is_event_stream(&parts.headers) {
                while let Some(text) = stream.read_message().await {
                    inbox.push(Way::Post, text);
                }
            } else {
                inbox.push(Way::Post, stream.rest().await);
            }
        }));
    }

    /// Sends a request with a fresh id and returns the id.
    pub async fn begin(&self, method: &str, params: impl Display) -> u64 {
        let id = self.fresh_id();
        self.begin_text(&self.request_text(id, method, params)).await;
        id
    }

    /// Sends a request with this id.
    pub async fn begin_as(&self, id: impl Into<Value>, method: &str, params: impl Display) {
        self.begin_text(&self.request_text(id, method, params)).await;
    }

    /// Starts a tool call. The arguments are JSON or its text.
    pub async fn begin_call(&self, tool: &str, arguments: impl Display) -> u64 {
        self.begin("tools/call", call_params(tool, arguments)).await
    }

    fn fresh_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a request of this client's era.
    fn request_text(&self, id: impl Into<Value>, method: &str, params: impl Display) -> String {
        match &self.capabilities {
            Some(capabilities) => {
                let params = serde_json::from_str(&params.to_string()).expect("params of JSON");
                request(id.into(), method, with_meta(params, capabilities))
            }
            None => request(id.into(), method, params),
        }
    }

    /// Returns a message with the headers of its POST.
    pub fn draft_of(&self, body: String) -> Draft {
        match self.capabilities {
            Some(_) => Draft::of(&serde_json::from_str(&body).expect("JSON")),
            None => {
                let headers = self.headers().into_iter();
                let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                Draft { headers, body }
            }
        }
    }
}

/// Receiving.
impl Client {
    /// Returns the text of the next message, or `None` at the end of the stream.
    pub async fn line(&self) -> Option<String> {
        let next = self.inbox.take(self.earlier, |_| true);
        tokio::time::timeout(TIMEOUT, next).await.expect("a line in time").map(|received| received.text)
    }

    /// Returns the next message.
    pub async fn message(&self) -> Value {
        let line = self.line().await.expect("another message");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Returns the oldest message that satisfies `wanted`.
    pub async fn receive(&self, description: &str, wanted: impl Fn(&Value) -> bool) -> Received {
        let found = self.inbox.take(self.earlier, |received| wanted(&received.json()));
        match tokio::time::timeout(TIMEOUT, found).await {
            Ok(Some(received)) => received,
            Ok(None) => {
                panic!("{}: the stream ended before {description}; received {:?}", self.name, self.inbox.drain())
            }
            Err(_) => panic!("{}: timed out before {description}; received {:?}", self.name, self.inbox.drain()),
        }
    }

    /// Returns the next message that is not a notification.
    pub async fn answer(&self) -> Value {
        self.receive("an answer", |message| message["method"].is_null()).await.json()
    }

    /// Returns the next server request of this method.
    pub async fn server_request(&self, method: &str) -> Received {
        self.receive(method, |message| message["method"] == method && !message["id"].is_null()).await
    }

    /// Returns the next notification of this method.
    pub async fn notification(&self, method: &str) -> Received {
        self.receive(method, |message| message["method"] == method && message["id"].is_null()).await
    }

    /// Returns the response to a request of this client.
    pub async fn answer_to(&self, id: impl Into<Value>) -> Value {
        let id = id.into();
        self.receive(&format!("the answer to {id}"), |message| message["method"].is_null() && message["id"] == id)
            .await
            .json()
    }

    /// Returns the text of a call's result.
    pub async fn text_of(&self, id: u64) -> String {
        text_of(&self.answer_to(id).await)
    }

    /// Returns all pending messages. A ping ensures that all earlier messages have arrived.
    pub async fn pending_messages(&self) -> Vec<Value> {
        self.request("ping", json!({})).await;
        self.drain()
    }

    /// Returns all messages that arrived during other waits.
    pub fn drain(&self) -> Vec<Value> {
        self.inbox.drain().iter().map(Received::json).collect()
    }

    /// Returns the server requests among the pending messages.
    pub async fn pending_server_requests(&self) -> Vec<Value> {
        let mut others = self.pending_messages().await;
        others.retain(|message| !message["method"].is_null() && !message["id"].is_null());
        others
    }
}

/// Requests with their responses.
impl Client {
    /// Sends a request with a fresh id and returns the whole response. The params are JSON or its text.
    pub async fn request(&self, method: &str, params: impl Display) -> Value {
        let id = self.fresh_id();
        let message = self.request_text(id, method, params);
        match &self.link {
            Link::Http(_) => self.exchange(id, message).await,
            Link::Sse(_) | Link::Stdio(_) => {
                self.write(&message).await;
                self.answer_to(id).await
            }
        }
    }

    /// POSTs a request and reads its stream to the end, so that the connection can be used again.
    async fn exchange(&self, id: u64, message: String) -> Value {
        let draft = self.draft_of(message);
        let (parts, mut stream) = self.open_draft(&draft).await;
        assert!(self.capabilities.is_none() || parts.headers.get("mcp-session-id").is_none(), "{parts:?}");
        let mut answer = None;
        if is_event_stream(&parts.headers) {
            while let Some(text) = stream.next_text().await {
                assert!(answer.is_none(), "{text} after {answer:?}");
                let message: Value = serde_json::from_str(&text).expect("a message");
                if message["method"].is_null() {
                    answer = Some(message);
                } else if self.earlier == Earlier::Kept {
                    self.inbox.push(Way::Post, text);
                }
            }
        } else {
            let whole = Answer { status: parts.status, headers: parts.headers.clone(), body: stream.rest().await };
            answer = Some(whole.json());
        }
        let answer = answer.unwrap_or_else(|| panic!("no answer to {}: {parts:?}", draft.body));
        assert_eq!(answer["id"], id, "{answer} {parts:?}");
        answer
    }

    /// Calls a tool and returns the whole response, which may be an error.
    pub async fn try_call(&self, tool: &str, arguments: impl Display) -> Value {
        self.request("tools/call", call_params(tool, arguments)).await
    }

    /// Calls a tool and returns its result. Panics on an error.
    pub async fn call(&self, tool: &str, arguments: impl Display) -> Value {
        let answer = self.try_call(tool, arguments).await;
        assert!(answer["error"].is_null(), "{} {tool}: {answer}", self.name);
        answer["result"].clone()
    }

    /// Calls a tool and returns the text of its first content block.
    pub async fn call_text(&self, tool: &str, arguments: impl Display) -> String {
        text_of(&self.try_call(tool, arguments).await)
    }

    /// Asserts that the connection still works.
    pub async fn works(&self) {
        assert_eq!(self.request("ping", json!({})).await["result"], json!({}));
    }

    /// Returns all entries of a list, page by page.
    pub async fn list(&self, method: &str, member: &str) -> Vec<Value> {
        self.try_list(method, member).await.unwrap_or_else(|answer| panic!("{answer}"))
    }

    /// Returns all entries of a list, or the response without one.
    async fn try_list(&self, method: &str, member: &str) -> Result<Vec<Value>, Value> {
        let mut entries = Vec::new();
        let mut params = json!({});
        loop {
            let answer = self.request(method, params).await;
            let result = &answer["result"];
            let Some(page) = result[member].as_array() else { return Err(answer) };
            entries.extend(page.iter().cloned());
            match result["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return Ok(entries),
            }
        }
    }

    pub async fn tool_names(&self) -> Vec<String> {
        let tools = self.list("tools/list", "tools").await;
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until a tool is listed. A bridge may report errors before.
    pub async fn await_tool(&self, name: &str) {
        eventually(&format!("the tool {name} is listed"), || async {
            let tools = self.try_list("tools/list", "tools").await.ok()?;
            tools.iter().any(|tool| tool["name"] == name).then_some(())
        })
        .await;
    }
}

/// The process of a client over stdio, and the end.
impl Client {
    fn process(&self) -> &Process {
        match &self.link {
            Link::Stdio(process) => process,
            Link::Http(_) | Link::Sse(_) => panic!("a client over HTTP has no process"),
        }
    }

    pub fn is_process(&self) -> bool {
        matches!(self.link, Link::Stdio(_))
    }

    pub fn pid(&self) -> u32 {
        self.process().pid
    }

    pub async fn write_bytes(&self, bytes: &[u8]) {
        self.process().write(bytes).await;
    }

    pub fn close_input(&self) {
        self.process().close_input();
    }

    /// Returns the pipe of the error output, once.
    pub fn stderr(&self) -> ChildStderr {
        self.process().stderr()
    }

    /// Waits for the end of the process.
    pub async fn ended(&self) -> ExitStatus {
        self.process().ended().await
    }

    /// Returns the exit status if the process has ended.
    pub fn try_ended(&self) -> Option<ExitStatus> {
        self.process().try_ended()
    }

    /// Closes the input and returns the exit status of the process.
    pub async fn close(self) -> ExitStatus {
        self.close_input();
        self.ended().await
    }

    /// Disconnects for good: a DELETE, the end of the stream, or the end of the input.
    pub async fn disconnect(self) {
        match &self.link {
            Link::Http(_) => {
                let answer = self.send(Method::DELETE, &self.endpoint, &self.headers(), "").await;
                assert!(answer.status.is_success(), "{answer:?}");
            }
            // The stream ends with its reader.
            Link::Sse(_) => {}
            Link::Stdio(_) => drop(self.close().await),
        }
    }
}

/// Returns a request. The params are JSON or its text.
pub fn request(id: Value, method: &str, params: impl Display) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{},"params":{params}}}"#, json!(method))
}

/// Returns a tool call. The arguments are JSON or its text.
pub fn call(id: impl Into<Value>, tool: &str, arguments: impl Display) -> String {
    request(id.into(), "tools/call", call_params(tool, arguments))
}

fn call_params(tool: &str, arguments: impl Display) -> String {
    format!(r#"{{"name":{},"arguments":{arguments}}}"#, json!(tool))
}

/// Returns the params of a handshake.
pub fn hello(version: &str, capabilities: Value) -> Value {
    json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "test", "version": "0"}})
}

/// Returns the text of the first block of a tool result.
pub fn text_of(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
}

/// A test of the harness: without a gateway every message keeps the fixture's spelling.
#[tokio::test]
async fn the_test_client_receives_and_answers_server_requests() {
    const PARAMS: &str = r#"{"n":1.0,"x":"\u00e9\/"}"#;
    let web = HttpFixture::start(&[]).await;
    let mut command = Command::new(fixture());
    command.stderr(Stdio::null()).kill_on_drop(true);
    let clients = [
        (Client::new(web.address), "post", Way::Post),
        (Client::new(web.address), "get", Way::Session),
        (Client::run(command), "post", Way::Session),
    ];
    for (client, via, way) in clients {
        let client = client.listening(json!({"sampling": {}})).await;
        let request_message = format!(r#"{{"method":"a/b","params":{PARAMS},"via":"{via}","id":"x"}}"#);
        let call = client.begin_call("request", &request_message).await;
        let received_request = client.server_request("a/b").await;
        assert_eq!(
            (received_request.way, received_request.raw("params").as_str(), received_request.raw("id").as_str()),
            (way, PARAMS, r#""x""#)
        );
        client.reply(&received_request, r#""result":{"n":1e2}"#).await;
        assert_eq!(client.text_of(call).await, r#"{"result":{"n":1e2}}"#);
        assert!(client.call_text("hello", "{}").await.starts_with(r#"{"capabilities":{"sampling":{}},"#));
        client.call_text("notify", &format!(r#"{{"method":"vendor/thing","via":"{via}"}}"#)).await;
        assert_eq!(client.notification("vendor/thing").await.way, way);
        assert_eq!(client.pending_messages().await, Vec::<Value>::new());
        client.disconnect().await;
    }
}
