//! Backend streams that end too early. The gateway resumes them, and no message is lost, delivered twice or sent twice.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::harness::{GOBLIN, Gateway, TIMEOUT, eventually};
use crate::raw_server::{Acceptor, read_request, response};
use crate::support::{assert_error, await_call, http_server};

/// A backend with one tool, `t`. The arguments of a call define its response and the response to each GET that resumes
/// it.
struct Cutter {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _acceptor: Acceptor,
}

#[derive(Default)]
struct State {
    /// The remaining responses. `$ID` in them is replaced by the id of the call.
    steps: VecDeque<String>,
    call: Value,
    /// The `Last-Event-ID` of each GET that resumes a call.
    resumed: Vec<String>,
    /// The `Last-Event-ID` of each GET of the session's stream, or an empty text. The event ids of that stream begin
    /// with `s`.
    opened_after: Vec<String>,
    /// The error statuses for the next GETs of the session's stream.
    refusals: VecDeque<&'static str>,
    session_stream: Option<TcpStream>,
    /// Every posted message, in order.
    posted: Vec<Value>,
    /// The head of the last GET.
    head: String,
    more_tools: bool,
}

impl Cutter {
    async fn start() -> Cutter {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let acceptor = Acceptor::start(move |stream| serve(stream, Arc::clone(&shared))).await;
        Cutter { address: acceptor.address, state, _acceptor: acceptor }
    }

    async fn behind_gateway(server: Value) -> (Cutter, Gateway, Client) {
        let cutter = Cutter::start().await;
        let mut entry = http_server(cutter.address);
        entry.as_object_mut().expect("an object").extend(server.as_object().expect("an object").clone());
        let gateway = Gateway::with_servers(json!({ "a": entry })).await;
        let client = gateway.client_seeing("a_t").await;
        cutter.await_opened(1).await;
        (cutter, gateway, client)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics here")
    }

    fn posted(&self, method: &str) -> usize {
        self.state().posted.iter().filter(|message| message["method"] == method).count()
    }

    /// Waits until the session's stream was opened this many times.
    async fn await_opened(&self, times: usize) {
        eventually(&format!("the session's stream was opened {times} times"), || async {
            let state = self.state();
            (state.opened_after.len() == times && state.session_stream.is_some()).then_some(())
        })
        .await;
    }

    /// Sends these events on the session's stream.
    async fn send_events(&self, events: &str) {
        let mut stream = self.state().session_stream.take().expect("the stream is open");
        stream.write_all(events.as_bytes()).await.expect("the gateway reads");
        self.state().session_stream = Some(stream);
    }

    fn hang_up(&self) {
        drop(self.state().session_stream.take().expect("the stream is open"));
    }

    /// Waits until the gateway has answered this ping.
    async fn answered(&self, ping: &str) {
        eventually(&format!("{ping} is answered"), || async { (self.answers(ping) > 0).then_some(()) }).await;
    }

    fn answers(&self, ping: &str) -> usize {
        self.state().posted.iter().filter(|message| message["id"] == ping && message["method"].is_null()).count()
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let Some((head, body)) = read_request(&mut stream).await else { return };
    let answer = {
        let mut state = state.lock().expect("no test panics here");
        if head.starts_with("GET") { state.get(head) } else { Some(state.post(&body)) }
    };
    // A write error is expected, because some tests disconnect.
    match answer {
        Some(answer) => drop(stream.write_all(&answer).await),
        None => {
            drop(stream.write_all(stream_of("id: s0\nretry: 500\ndata:\n\n").as_bytes()).await);
            state.lock().expect("no test panics here").session_stream = Some(stream);
        }
    }
}

impl State {
    /// Returns the response to a GET. Returns `None` if the session's stream should open.
    fn get(&mut self, head: String) -> Option<Vec<u8>> {
        let id =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("last-event-id: ").map(str::to_owned));
        let id = id.unwrap_or_default();
        self.head = head;
        if !id.is_empty() && !id.starts_with('s') {
            self.resumed.push(id);
            return Some(self.step());
        }
        self.opened_after.push(id);
        self.refusals.pop_front().map(|status| response(status, "", ""))
    }

    fn post(&mut self, body: &[u8]) -> Vec<u8> {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        self.posted.push(message.clone());
        let mut tools = vec![json!({ "name": "t", "inputSchema": { "type": "object" } })];
        if self.more_tools {
            tools.push(json!({ "name": "u", "inputSchema": { "type": "object" } }));
        }
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "cutter", "version": "0" },
            }),
            "tools/list" => json!({ "tools": tools }),
            "tools/call" => {
                let steps = message["params"]["arguments"]["steps"].as_array().cloned().unwrap_or_default();
                self.steps = steps.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                self.call = message["id"].clone();
                return self.step();
            }
            _ => return response("202 Accepted", "", ""),
        };
        let body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string();
        response("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: one\r\n", &body)
    }

    fn step(&mut self) -> Vec<u8> {
        let step = self.steps.pop_front().unwrap_or_else(|| stream_of(&answer("end", "ok")));
        step.replace("$ID", &self.call.to_string()).into_bytes()
    }
}

/// Returns a stream that ends with the connection.
fn stream_of(events: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{events}")
}

/// Returns a stream that ends in the middle, like after a cut cable.
fn cut_stream(events: &str) -> String {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{events}\r\n", events.len())
}

fn rejection(status: &str) -> String {
    String::from_utf8(response(status, "", "no")).expect("text")
}

fn prime(id: &str) -> String {
    format!("id: {id}\nretry: 500\ndata: \n\n")
}

fn progress(id: &str, number: u64) -> String {
    let params = format!(r#"{{"progressToken":$ID,"progress":{number}}}"#);
    format!("id: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{params}}}\n\n")
}

fn ping(event: &str, id: &str) -> String {
    format!("id: {event}\ndata: {{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"ping\"}}\n\n")
}

fn answer(id: &str, text: &str) -> String {
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    format!("id: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{result}}}\n\n")
}

fn call(id: u64, steps: &[String]) -> String {
    let params = json!({"name": "a_t", "arguments": {"steps": steps}, "_meta": {"progressToken": "mine"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// Returns a log line that does not name its call.
fn log(id: &str, text: &str) -> String {
    let params = format!(r#"{{"level":"error","data":"{text}"}}"#);
    format!("id: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{params}}}\n\n")
}

/// The outcome of a call: the event ids it was resumed from, its progress, and its response.
struct Outcome {
    resumed: Vec<String>,
    progress: Vec<u64>,
    answer: Value,
}

async fn outcome(cutter: &Cutter, client: &Client, steps: &[String]) -> Outcome {
    let calls = cutter.posted("tools/call");
    cutter.state().resumed.clear();
    let messages: Vec<Value> = client
        .post(call(7, steps))
        .await
        .messages()
        .iter()
        .map(|message| serde_json::from_str(message).expect("a message"))
        .collect();
    let (answer, before) = messages.split_last().expect("an answer");
    assert_eq!(cutter.posted("tools/call"), calls + 1, "nothing is sent again");
    let progress = before.iter().filter_map(|message| message["params"]["progress"].as_u64()).collect();
    Outcome { resumed: cutter.state().resumed.clone(), progress, answer: answer.clone() }
}

#[tokio::test]
async fn http3_a_call_stream_that_ends_early_is_resumed_and_answered() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let check = async |case: &str, steps: &[String], resumed: &[&str], progress: &[u64]| {
        let outcome = outcome(&cutter, &client, steps).await;
        assert_eq!(outcome.answer["result"]["content"][0]["text"], "yes", "{case}: {}", outcome.answer);
        assert_eq!(
            (outcome.resumed, &outcome.progress[..]),
            (resumed.iter().map(ToString::to_string).collect(), progress),
            "{case}"
        );
    };
    let yes = || answer("9", "yes");
    check("after the priming event", &[stream_of(&prime("0")), stream_of(&yes())], &["0"], &[]).await;
    let half = format!("{}{}id: 2\ndata: {{\"jsonrpc\"", prime("0"), progress("1", 1));
    check("in an event", &[cut_stream(&half), stream_of(&(progress("2", 2) + &yes()))], &["1"], &[1, 2]).await;
    let twice = [
        stream_of(&(prime("0") + &progress("1", 1))),
        cut_stream(&progress("2", 2)),
        stream_of(&(progress("3", 3) + &yes())),
    ];
    check("twice", &twice, &["1", "2"], &[1, 2, 3]).await;
    let again = [
        stream_of(&(prime("0") + &progress("1", 1) + &progress("2", 2))),
        stream_of(&(progress("2", 2) + &progress("3", 3))),
        stream_of(&(progress("1", 1) + &progress("2", 2) + &progress("3", 3) + &progress("4", 4) + &yes())),
    ];
    check("repeated events", &again, &["2", "3"], &[1, 2, 3, 4]).await;
    // Some servers replay events of other calls.
    let foreign = progress("3", 7).replace("$ID", "424242") + &answer("4", "no").replace("$ID", "424242");
    let mixed = [stream_of(&(prime("0") + &progress("1", 1))), stream_of(&(foreign + &progress("5", 2) + &yes()))];
    check("with events of others", &mixed, &["1"], &[1, 2]).await;
    let busy =
        [stream_of(&prime("0")), rejection("503 Service Unavailable"), rejection("409 Conflict"), stream_of(&yes())];
    check("rejected for now", &busy, &["0", "0", "0"], &[]).await;
    let poll: Vec<_> = (0..5).map(|number| stream_of(&prime(&number.to_string()))).chain([stream_of(&yes())]).collect();
    check("polled", &poll, &["0", "1", "2", "3", "4"], &[]).await;
    assert!(cutter.state().head.to_ascii_lowercase().contains("mcp-protocol-version: 2025-11-25\r\n"));
    assert!(cutter.state().head.to_ascii_lowercase().contains("mcp-session-id: one\r\n"));
    assert_eq!(cutter.state().opened_after, [""], "the session's stream stays open");
}

#[tokio::test]
async fn p1_an_ambiguous_log_line_on_a_resumed_stream_reaches_no_client() {
    let (cutter, gateway, client) = Cutter::behind_gateway(json!({})).await;
    // Another call is open, so the log line is ambiguous.
    let (_, mut other) = gateway.client().await.open(call(7, &delayed())).await;
    other.await_method("notifications/progress").await;
    let steps = [
        stream_of(&(prime("0") + &log("1", "mine"))),
        stream_of(&(log("2", "ambiguous") + &progress("3", 1) + &answer("9", "yes"))),
    ];
    let answer = client.post(call(8, &steps)).await;
    assert_eq!(answer.json()["result"]["content"][0]["text"], "yes", "{answer:?}");
    assert!(answer.body.contains("mine") && !answer.body.contains("ambiguous"), "{answer:?}");
    assert_eq!(cutter.state().resumed, ["1"]);
}

#[tokio::test]
async fn http3_a_call_with_an_unresumable_stream_fails_with_the_cause() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let check = async |steps: &[String], resumed: usize, fragment: &str| {
        let outcome = outcome(&cutter, &client, steps).await;
        let data = assert_error(&outcome.answer, 1503, "BACKEND_UNAVAILABLE");
        assert!(data["retryable"].is_null(), "the call was sent: {data}");
        let message = outcome.answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(fragment), "{message}");
        assert_eq!(outcome.resumed.len(), resumed, "{fragment}");
    };
    let no_id = stream_of(&progress("1", 1).replace("id: 1\n", ""));
    check(&[no_id], 0, "its stream ended without an answer").await;
    let primed = || stream_of(&prime("0"));
    check(&[primed(), rejection("405 Method Not Allowed")], 1, "could not be resumed: it answered HTTP 405").await;
    check(&[primed(), rejection("400 Bad Request")], 1, "could not be resumed: it answered HTTP 400").await;
    check(&[primed(), rejection("200 OK")], 1, "could not be resumed: it answered HTTP 200").await;
    let nothing = || stream_of("");
    check(&[primed(), nothing(), nothing(), nothing()], 3, "could not be resumed: its stream ended").await;
}

#[tokio::test]
async fn p3_an_open_call_of_a_lost_session_is_not_sent_again() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let outcome = outcome(&cutter, &client, &[stream_of(&prime("0")), rejection("404 Not Found")]).await;
    assert!(assert_error(&outcome.answer, 1503, "BACKEND_UNAVAILABLE")["retryable"].is_null());
    assert_eq!(outcome.resumed, ["0"]);
    // The session is gone, but the backend still runs.
    eventually("there is another session", || async { (cutter.posted("initialize") == 2).then_some(()) }).await;
    await_call(&client, "a_t").await;
}

/// Returns a stream with a long retry delay.
fn delayed() -> Vec<String> {
    vec![stream_of(&(prime("0").replace("500", "30000") + &progress("1", 1)))]
}

#[tokio::test]
async fn route3_a_call_that_waits_for_a_resumption_times_out() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({ "timeout": "2s" })).await;
    let outcome = outcome(&cutter, &client, &delayed()).await;
    assert_error(&outcome.answer, 1504, "TIMEOUT");
    assert_eq!((outcome.resumed.len(), outcome.progress), (0, vec![1]));
    eventually("the backend received the cancellation", || async {
        (cutter.posted("notifications/cancelled") == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn http3_a_call_that_waits_for_a_resumption_can_be_cancelled() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let (_, mut stream) = client.open(call(7, &delayed())).await;
    stream.await_method("notifications/progress").await;
    client.notify("notifications/cancelled", json!({ "requestId": 7 })).await;
    eventually("the backend received the cancellation", || async {
        (cutter.posted("notifications/cancelled") == 1).then_some(())
    })
    .await;
    let posted = cutter.state().posted.last().cloned().expect("a message");
    assert_eq!(posted["params"]["requestId"], cutter.state().call);
    assert!(cutter.state().resumed.is_empty());
    // The id and the slot of the call are free.
    assert!(client.try_call("a_t", json!({})).await["error"].is_null());
}

#[tokio::test]
async fn http3_the_session_stream_is_resumed_and_no_message_is_handled_twice() {
    let (cutter, _gateway, _client) = Cutter::behind_gateway(json!({})).await;
    cutter.send_events(&ping("s1", "one")).await;
    cutter.answered("one").await;
    // A server that has not noticed the cut yet is asked again.
    cutter.state().refusals.push_back("409 Conflict");
    cutter.hang_up();
    cutter.await_opened(3).await;
    cutter.send_events(&(ping("s1", "one") + &ping("s2", "two"))).await;
    cutter.answered("two").await;
    assert_eq!(cutter.answers("one"), 1);
    assert_eq!(cutter.state().opened_after, ["", "s1", "s1"]);
    // A server that does not know the event any more is asked for a new stream.
    cutter.state().refusals.push_back("400 Bad Request");
    cutter.hang_up();
    cutter.await_opened(5).await;
    assert_eq!(cutter.state().opened_after[3..], ["s2", ""]);
}

/// A progress notification names its call by its token. Some servers send it on the session's stream.
#[tokio::test]
async fn p2_progress_on_the_session_stream_reaches_its_call_with_the_token_of_the_client() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let (_, mut stream) = client.open(call(7, &delayed())).await;
    stream.await_method("notifications/progress").await;
    let id = cutter.state().call.to_string();
    cutter.send_events(&(progress("s1", 2).replace("$ID", "424242") + &progress("s2", 3).replace("$ID", &id))).await;
    let progress_message = stream.await_method("notifications/progress").await;
    assert_eq!(
        (&progress_message["params"]["progressToken"], &progress_message["params"]["progress"]),
        (&json!("mine"), &json!(3)),
        "{progress_message}"
    );
}

#[tokio::test]
async fn reg3_list_changed_with_a_repeated_event_id_is_handled() {
    let (cutter, _gateway, client) = Cutter::behind_gateway(json!({})).await;
    let changed = "id: s1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    let listed = async |times: usize| {
        eventually(&format!("the tools were listed {times} times"), || async {
            (cutter.posted("tools/list") == times).then_some(())
        })
        .await;
    };
    cutter.send_events(changed).await;
    listed(2).await;
    cutter.hang_up();
    cutter.await_opened(2).await;
    // The gateway lists again, because it may have missed a change in the gap.
    listed(3).await;
    cutter.state().more_tools = true;
    cutter.send_events(changed).await;
    client.await_tool("a_u").await;
}

/// The server of the conformance suite, which uses the official Rust SDK.
struct Conformance {
    address: SocketAddr,
    _child: Child,
}

impl Conformance {
    async fn start() -> Conformance {
        let output = Path::new(GOBLIN).parent().expect("a program lies in a directory");
        let target = output.parent().expect("a profile's directory lies in the target directory");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "goblin-conformance", "--target-dir"]).arg(target);
        let status = build.current_dir(crate::harness::ROOT).status().await.expect("cargo can be run");
        assert!(status.success(), "goblin-conformance did not build: {status}");
        let mut command = Command::new(target.join("debug/goblin-conformance"));
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line in time");
        let line = line.expect("text").expect("the server prints its address");
        let address = line.trim_start_matches("listening http://").trim_end_matches("/mcp");
        Conformance { address: address.parse().expect("an address"), _child: child }
    }
}

#[tokio::test]
async fn http3_a_stream_cut_by_a_rust_sdk_server_is_resumed() {
    let server = Conformance::start().await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    let client = gateway.client_seeing("a_test_reconnection").await;
    for _ in 0..2 {
        let text = client.call_text("a_test_reconnection", json!({})).await;
        assert_eq!(text, "answered after the stream was cut");
    }
}
