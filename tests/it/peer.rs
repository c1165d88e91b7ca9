//! A client of any transport that receives server requests. It stores all messages in order of arrival, and sends
//! messages in the given spelling.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{Method, StatusCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fixture_http::HttpFixture;
use crate::harness::{Client, Listener, PATIENCE, Scratch, StdioClient, eventually, field, fixture};
use crate::sse_client::{SseClient, post};

/// The number of messages that may wait for the test. If it is full, the streams are not read.
const UNREAD: usize = 1024;

/// The stream of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The response to the POST of a request.
    Post,
    /// The session's stream. HTTP+SSE and stdio have no other one.
    Session,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub way: Way,
    pub text: String,
}

impl Heard {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Returns the original text of a member of the message.
    pub fn raw(&self, name: &str) -> String {
        raw_member(&self.text, name).unwrap_or_else(|| panic!("no {name} in {}", self.text))
    }
}

/// Returns the original text of a member of an object.
pub fn raw_member(object: &str, name: &str) -> Option<String> {
    let mut members: HashMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    members.remove(name).map(|value| value.get().to_owned())
}

enum Line {
    /// Streamable HTTP. The address is that of the session's stream, which may use a proxy.
    Http(Client, SocketAddr),
    /// HTTP+SSE: the client for its POSTs, and their path.
    Sse(Client, String),
    Stdio {
        input: Option<ChildStdin>,
        child: Box<Child>,
        _scratch: Option<Scratch>,
    },
}

pub struct Peer {
    line: Line,
    heard: mpsc::Receiver<Heard>,
    teller: mpsc::Sender<Heard>,
    /// Messages that no test has waited for yet.
    kept: VecDeque<Heard>,
    readers: Vec<JoinHandle<()>>,
    /// The reader of the session's stream. The next field is the id of its last event.
    listener: Option<JoinHandle<()>>,
    last_event: Arc<Mutex<Option<String>>>,
    next: u64,
    /// A name for error messages.
    pub name: String,
}

impl Peer {
    /// Completes the handshake over Streamable HTTP with these capabilities, and opens the session's stream.
    pub async fn over_http(address: SocketAddr, capabilities: Value) -> Peer {
        Peer::over_http_via(address, address, capabilities).await
    }

    /// Completes the handshake like `over_http`, with the session's stream `via` another address.
    pub async fn over_http_via(via: SocketAddr, address: SocketAddr, capabilities: Value) -> Peer {
        let mut client = Client::new(address);
        let answer = client.initialize_with("2025-11-25", capabilities).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        let mut peer = Peer::of(Line::Http(client, via));
        peer.listen_again().await;
        peer
    }

    pub async fn over_sse(address: SocketAddr, capabilities: Value) -> Peer {
        Peer::over_sse_via(address, address, capabilities).await
    }

    /// Completes the handshake like `over_sse`, with the stream `via` another address.
    pub async fn over_sse_via(via: SocketAddr, address: SocketAddr, capabilities: Value) -> Peer {
        let SseClient { mut http, path, stream, .. } = SseClient::open(via).await;
        http.address = address;
        let mut peer = Peer::of(Line::Sse(http, path));
        peer.read(stream);
        peer.request("initialize", hello(capabilities)).await;
        peer.initialized().await
    }

    pub async fn over_stdio(client: StdioClient, capabilities: Value) -> Peer {
        let (input, mut output, child, scratch) = client.into_parts();
        let mut peer = Peer::of(Line::Stdio { input: Some(input), child: Box::new(child), _scratch: scratch });
        let teller = peer.teller.clone();
        peer.readers.push(tokio::spawn(async move {
            while let Ok(Some(text)) = output.next_line().await {
                // An error means that the test is over.
                let _ = teller.send(Heard { way: Way::Session, text }).await;
            }
        }));
        peer.request("initialize", hello(capabilities)).await;
        peer.initialized().await
    }

    fn of(line: Line) -> Peer {
        let (teller, heard) = mpsc::channel(UNREAD);
        Peer {
            line,
            heard,
            teller,
            kept: VecDeque::new(),
            readers: Vec::new(),
            listener: None,
            last_event: Arc::default(),
            next: 0,
            name: String::new(),
        }
    }

    /// Opens the session's stream of Streamable HTTP again, without an event id.
    pub async fn listen_again(&mut self) {
        self.open_stream(&[]).await;
    }

    /// Resumes the session's stream after the last received event.
    pub async fn resume(&mut self) {
        self.hang_up().await;
        let last = self.last_event.lock().expect("no panic").clone();
        let headers: Vec<_> = last.iter().map(|last| ("last-event-id", last.as_str())).collect();
        self.open_stream(&headers).await;
    }

    /// Stops the reader. Messages that have arrived are kept, and later ones are lost.
    async fn hang_up(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.abort();
            // The task was aborted, or had ended before.
            let _ = listener.await;
        }
    }

    async fn open_stream(&mut self, headers: &[(&str, &str)]) {
        self.hang_up().await;
        let Line::Http(client, via) = &self.line else { panic!("there is one stream only") };
        // A new connection is used, because an earlier one may have been cut.
        let mut listening = Client::new(*via);
        (listening.session, listening.version) = (client.session.clone(), client.version.clone());
        // A bad line may need several attempts.
        let (parts, stream) =
            eventually("there is a stream", || async { listening.try_get("/mcp", headers).await.ok() }).await;
        assert_eq!(parts.status, StatusCode::OK, "{headers:?}");
        self.read(stream);
    }

    async fn initialized(mut self) -> Peer {
        self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        self
    }

    /// Reads the session's stream in a task.
    fn read(&mut self, mut stream: Listener) {
        let (teller, last_event) = (self.teller.clone(), Arc::clone(&self.last_event));
        self.listener = Some(tokio::spawn(async move {
            while let Some(event) = stream.read_event().await {
                if let Some(text) = field(&event, "data").filter(|data| !data.is_empty()) {
                    // An error means that the test is over.
                    let _ = teller.send(Heard { way: Way::Session, text: text.to_owned() }).await;
                }
                if let Some(id) = field(&event, "id") {
                    *last_event.lock().expect("no panic") = Some(id.to_owned());
                }
            }
        }));
    }

    /// Sends a notification or response, which must be accepted.
    pub async fn say(&mut self, message: &str) {
        match &mut self.line {
            Line::Http(client, _) => {
                let answer = client.post(message.to_owned()).await;
                assert_eq!(answer.status, StatusCode::ACCEPTED, "{message}: {answer:?}");
            }
            Line::Sse(client, path) => {
                let answer = post(client, path, message).await;
                assert_eq!(answer.status, StatusCode::ACCEPTED, "{message}: {answer:?}");
            }
            Line::Stdio { input, .. } => {
                let input = input.as_mut().expect("the input is open");
                input.write_all(format!("{message}\n").as_bytes()).await.expect("goblin reads");
            }
        }
    }

    /// Sends the text of a request. Its response arrives like any other message.
    pub async fn begin_text(&mut self, message: &str) {
        match &mut self.line {
            Line::Http(client, _) => {
                let (client, message, teller) = (client.clone(), message.to_owned(), self.teller.clone());
                self.readers.push(tokio::spawn(async move {
                    let (parts, mut stream) = client.open(message).await;
                    let kind = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok());
                    if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
                        while let Some(text) = stream.read_message().await {
                            let _ = teller.send(Heard { way: Way::Post, text }).await;
                        }
                    } else {
                        let _ = teller.send(Heard { way: Way::Post, text: stream.rest().await }).await;
                    }
                }));
            }
            Line::Sse(..) | Line::Stdio { .. } => self.say(message).await,
        }
    }

    /// Sends a request with a fresh id and returns the id.
    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.begin_text(&request(self.next, method, params)).await;
        self.next
    }

    /// Starts a tool call with these arguments as text.
    pub async fn begin_call(&mut self, tool: &str, arguments: &str) -> u64 {
        self.next += 1;
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        let id = self.next;
        self.begin_text(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)).await;
        id
    }

    /// Returns the oldest pending message that satisfies `wanted`.
    pub async fn hear(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Heard {
        if let Some(index) = self.kept.iter().position(|heard| wanted(&heard.json())) {
            return self.kept.remove(index).expect("it was there");
        }
        let waiting = async {
            loop {
                let heard = self.heard.recv().await.expect("we hold a sender");
                if wanted(&heard.json()) {
                    return heard;
                }
                self.kept.push_back(heard);
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(heard) => heard,
            Err(_) => panic!("{}: waited in vain for {what}; heard {:?}", self.name, self.kept),
        }
    }

    /// Returns the next server request of this method.
    pub async fn asked(&mut self, method: &str) -> Heard {
        self.hear(method, |message| message["method"] == method && !message["id"].is_null()).await
    }

    pub async fn told(&mut self, method: &str) -> Heard {
        self.hear(method, |message| message["method"] == method && message["id"].is_null()).await
    }

    /// Returns the response to a request of this client.
    pub async fn answer_to(&mut self, id: u64) -> Value {
        self.hear(&format!("the answer to {id}"), |message| message["method"].is_null() && message["id"] == id)
            .await
            .json()
    }

    /// Returns the text of a call's result.
    pub async fn text_of(&mut self, id: u64) -> String {
        let answer = self.answer_to(id).await;
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer_to(id).await
    }

    pub async fn call_text(&mut self, tool: &str, arguments: &str) -> String {
        let id = self.begin_call(tool, arguments).await;
        self.text_of(id).await
    }

    /// Answers a server request. `outcome` is `"result":...` or `"error":...`.
    pub async fn answer(&mut self, ask: &Heard, outcome: &str) {
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, ask.raw("id"))).await;
    }

    pub async fn cancel(&mut self, id: u64) {
        let params = format!(r#"{{"requestId":{id}}}"#);
        self.say(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)).await;
    }

    pub async fn await_tool(&mut self, name: &str) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.request("tools/list", json!({})).await;
            if answer["result"]["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name)) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "the tool {name} is not listed");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Returns all pending messages. A ping ensures that all earlier messages have arrived.
    pub async fn others(&mut self) -> Vec<Value> {
        self.request("ping", json!({})).await;
        self.meanwhile()
    }

    /// Returns all messages that arrived during other waits.
    pub fn meanwhile(&mut self) -> Vec<Value> {
        self.kept.drain(..).map(|heard| heard.json()).collect()
    }

    /// Returns the server requests among the pending messages.
    pub async fn stray_asks(&mut self) -> Vec<Value> {
        let mut others = self.others().await;
        others.retain(|message| !message["method"].is_null() && !message["id"].is_null());
        others
    }

    /// Disconnects for good: a DELETE, the end of the stream, or the end of the input.
    pub async fn leave(mut self) {
        match &mut self.line {
            Line::Http(client, _) => {
                let answer = client.send(Method::DELETE, "/mcp", &client.headers(), "").await;
                assert!(answer.status.is_success(), "{answer:?}");
            }
            // The stream ends with its reader.
            Line::Sse(..) => {}
            Line::Stdio { input, child, .. } => {
                drop(input.take());
                tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").expect("it can be waited for");
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.readers.iter().chain(&self.listener).for_each(JoinHandle::abort);
    }
}

fn request(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn hello(capabilities: Value) -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "0"},
    })
}

/// A test of the harness: without a gateway every message keeps the fixture's spelling.
#[tokio::test]
async fn a_peer_hears_asks_and_answers_them() {
    const PARAMS: &str = r#"{"n":1.0,"x":"\u00e9\/"}"#;
    let web = HttpFixture::start(&[]).await;
    let mut command = tokio::process::Command::new(fixture());
    command.stderr(std::process::Stdio::null()).kill_on_drop(true);
    let peers = [
        (Peer::over_http(web.address, json!({"sampling": {}})).await, "post", Way::Post),
        (Peer::over_http(web.address, json!({"sampling": {}})).await, "get", Way::Session),
        (Peer::over_stdio(StdioClient::of(command), json!({"sampling": {}})).await, "post", Way::Session),
    ];
    for (mut peer, via, way) in peers {
        let ask = format!(r#"{{"method":"a/b","params":{PARAMS},"via":"{via}","id":"x"}}"#);
        let call = peer.begin_call("ask", &ask).await;
        let asked = peer.asked("a/b").await;
        assert_eq!((asked.way, asked.raw("params").as_str(), asked.raw("id").as_str()), (way, PARAMS, r#""x""#));
        peer.answer(&asked, r#""result":{"n":1e2}"#).await;
        assert_eq!(peer.text_of(call).await, r#"{"result":{"n":1e2}}"#);
        assert!(peer.call_text("hello", "{}").await.starts_with(r#"{"capabilities":{"sampling":{}},"#));
        peer.call_text("tell", &format!(r#"{{"method":"vendor/thing","via":"{via}"}}"#)).await;
        assert_eq!(peer.told("vendor/thing").await.way, way);
        assert_eq!(peer.others().await, Vec::<Value>::new());
        peer.leave().await;
    }
}
