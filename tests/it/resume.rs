//! Streams that are cut and resumed by `Last-Event-ID`: of a call, of a session, and those that cannot be resumed.
//!
//! A resumed stream of a call continues without loss or repetition. An event id of another client reveals nothing.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::{Gateway, fixture_server};
use crate::scrape::scraped;

const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
const ELICIT: &str = "elicitation/create";

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    id: Option<String>,
    retry: bool,
    /// The original text; empty for an event without a message.
    pub data: String,
}

impl Event {
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_else(|| panic!("no id: {self:?}"))
    }

    pub fn message(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the number of the stream, which is the first part of the id.
    fn stream(&self) -> &str {
        self.id().split('-').next().expect("there is a first part")
    }

    fn method(&self) -> Option<String> {
        self.message()["method"].as_str().map(str::to_owned)
    }
}

async fn next(stream: &mut Listener) -> Option<Event> {
    let text = stream.next_event().await?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let data = field("data: ").unwrap_or_else(|| panic!("an event without data: {text}"));
    Some(Event { id: field("id: "), retry: field("retry: ").is_some(), data })
}

pub async fn event(stream: &mut Listener) -> Event {
    next(stream).await.expect("another event")
}

/// Returns all events until the end.
pub async fn rest(mut stream: Listener) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = next(&mut stream).await {
        events.push(event);
    }
    events
}

async fn gateway() -> Gateway {
    Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await
}

/// Returns a client with elicitation, after the backend is listed.
async fn client(gateway: &Gateway) -> Client {
    // A client that connects earlier would receive list changes.
    gateway.client_seeing("a_request").await;
    let mut client = Client::new(gateway.address);
    client.initialize_with("2025-11-25", json!({"elicitation": {}})).await;
    client
}

fn call(id: u64, name: &str, arguments: Value) -> String {
    let params = json!({"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// Returns a call that sends a server request and ends after its response.
fn elicitation_call(id: u64) -> String {
    let params = json!({"message": format!("call {id}"), "requestedSchema": {"type": "object", "properties": {}}});
    call(id, "a_request", json!({"method": ELICIT, "params": params}))
}

pub async fn resume(client: &Client, last_event: &str) -> Listener {
    let (parts, stream) = client.get("/mcp", &[("last-event-id", last_event)]).await;
    assert_eq!(parts.status, StatusCode::OK);
    assert_eq!(parts.headers["content-type"], "text/event-stream");
    stream
}

async fn status_of(client: &Client, last_event: &str) -> StatusCode {
    client.get("/mcp", &[("last-event-id", last_event)]).await.0.status
}

async fn answer(client: &Client, server_request: &Event) {
    assert_eq!(server_request.method().as_deref(), Some(ELICIT), "{server_request:?}");
    let answer = json!({"jsonrpc": "2.0", "id": server_request.message()["id"], "result": {"action": "decline"}});
    assert_eq!(client.post(answer.to_string()).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn sess2_events_have_ids_and_only_the_newest_version_starts_with_an_empty_event() {
    let gateway = gateway().await;
    gateway.client_seeing("a_progress").await;
    for (version, primed) in [("2025-03-26", false), ("2025-06-18", false), ("2025-11-25", true), ("2024-11-05", false)]
    {
        let client = gateway.client_of(version).await;
        let (_, stream) = client.open(call(1, "a_progress", json!({"steps": 2}))).await;
        let mut events = rest(stream).await;
        if primed {
            let first = events.remove(0);
            assert_eq!((first.data.as_str(), first.retry), ("", true), "{version}");
            assert_eq!(first.stream(), "1", "{version}");
        }
        assert_eq!(events.len(), 3, "{version}: {events:?}");
        assert!(events.iter().all(|event| event.stream() == "1" && !event.retry), "{version}: {events:?}");
        let ids: std::collections::HashSet<_> = events.iter().map(Event::id).collect();
        assert_eq!(ids.len(), 3, "{version}: {events:?}");

        let mut stream = client.listen().await;
        client.call("a_change_tools", json!({})).await;
        let mut first = event(&mut stream).await;
        if primed {
            assert_eq!((first.data.as_str(), first.retry, first.stream()), ("", true, "0"), "{version}");
            first = event(&mut stream).await;
        }
        assert_eq!(first.stream(), "0", "{version}");
        assert!(first.method().is_some_and(|method| method.ends_with("list_changed")), "{version}: {first:?}");
    }
}

#[tokio::test]
async fn sess2_an_answer_without_other_messages_opens_no_stream() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let answer = client.post(call(1, "a_echo", json!({}))).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let (_, mut stream) = client.open(call(2, "a_progress", json!({}))).await;
    assert_eq!(event(&mut stream).await.stream(), "1", "the first that began");
}

#[tokio::test]
async fn sess2_a_resumed_call_stream_delivers_every_later_event_exactly_once() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(call(1, "a_progress", json!({"steps": 5, "delayMs": 50}))).await;
    let primed = event(&mut stream).await;
    let first = event(&mut stream).await;
    assert_eq!(first.message()["params"]["progress"], 1, "{first:?}");
    drop(stream);
    let events = rest(resume(&client, first.id()).await).await;
    let steps: Vec<_> = events.iter().map(|event| event.message()["params"]["progress"].clone()).collect();
    assert_eq!(steps, [json!(2), json!(3), json!(4), json!(5), Value::Null]);
    let answer = events.last().expect("the answer");
    assert_eq!((&answer.message()["id"], answer.message()["result"].is_object()), (&json!(1), true), "{answer:?}");
    // A second resumption from the beginning returns the same bytes.
    let again = rest(resume(&client, primed.id()).await).await;
    assert_eq!(again[0], first);
    assert_eq!(again[1..], events);
    assert_eq!(status_of(&client, answer.id()).await, StatusCode::NO_CONTENT, "nothing is left to resume");
    assert_eq!(client.call_text("a_call_count", json!({})).await, "2", "the backend received one call, and this one");
}

#[tokio::test]
async fn sess2_an_answer_that_arrives_without_a_reader_is_kept() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(elicitation_call(1)).await;
    let primed = event(&mut stream).await;
    let server_request = event(&mut stream).await;
    drop(stream);
    answer(&client, &server_request).await;
    scraped(&client, "goblin_requests_in_flight 0").await;
    let [answer] = &rest(resume(&client, server_request.id()).await).await[..] else { panic!("one event") };
    assert!(answer.message()["result"].is_object(), "{answer:?}");
    let [again, last] = &rest(resume(&client, primed.id()).await).await[..] else { panic!("two events") };
    assert_eq!((again, last), (&server_request, answer));
    scraped(&client, r#"goblin_events_total{kind="answer_without_reader"} 0"#).await;
}

#[tokio::test]
async fn sess2_a_server_request_of_a_cut_call_waits_for_the_client() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(elicitation_call(1)).await;
    let primed = event(&mut stream).await;
    drop(stream);
    let mut stream = resume(&client, primed.id()).await;
    let server_request = event(&mut stream).await;
    answer(&client, &server_request).await;
    let [answer] = &rest(stream).await[..] else { panic!("the answer alone") };
    assert!(answer.data.contains("decline"), "{answer:?}");
}

#[tokio::test]
async fn sess2_a_resumption_of_a_call_ends_the_stream_of_its_earlier_reader() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let mut session = client.listen().await;
    event(&mut session).await;
    let (_, mut post) = client.open(elicitation_call(1)).await;
    let primed = event(&mut post).await;
    let server_request = event(&mut post).await;
    let mut first = resume(&client, primed.id()).await;
    assert_eq!(event(&mut first).await, server_request);
    assert_eq!(rest(post).await, [], "the POST has ended, its call has not");
    let second = resume(&client, server_request.id()).await;
    assert_eq!(rest(first).await, []);
    answer(&client, &server_request).await;
    assert_eq!(rest(second).await.len(), 1, "the answer");
    // None of them has replaced the session's stream.
    client.call("a_change_tools", json!({})).await;
    session.await_method(TOOLS_CHANGED).await;
}

#[tokio::test]
async fn sess2_a_resumption_after_the_end_of_a_cancelled_call_returns_no_content() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(elicitation_call(1)).await;
    let primed = event(&mut stream).await;
    let server_request = event(&mut stream).await;
    client.notify("notifications/cancelled", json!({"requestId": 1})).await;
    // The server request is cancelled, and no other message follows.
    let events = rest(stream).await;
    assert!(events.iter().all(|event| event.method().is_some()), "{events:?}");
    let last = events.last().unwrap_or(&server_request);
    assert_eq!(status_of(&client, last.id()).await, StatusCode::NO_CONTENT);
    assert_eq!(rest(resume(&client, primed.id()).await).await.len(), 1 + events.len());
}

#[tokio::test]
async fn sess2_a_resumed_session_stream_replays_events_and_continues() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let mut stream = client.listen().await;
    let primed = event(&mut stream).await;
    client.call("a_change_tools", json!({})).await;
    let notified = event(&mut stream).await;
    assert_eq!(notified.method().as_deref(), Some(TOOLS_CHANGED));
    let mut resumed = resume(&client, primed.id()).await;
    assert_eq!(event(&mut resumed).await, notified);
    assert_eq!(rest(stream).await, [], "the stream was replaced");
    drop(resumed);
    let mut resumed = resume(&client, notified.id()).await;
    client.call("a_change_prompts", json!({})).await;
    let next = event(&mut resumed).await;
    assert_eq!(next.method().as_deref(), Some("notifications/prompts/list_changed"), "and not the tools again");
}

#[tokio::test]
async fn sess2_a_stream_without_last_event_id_repeats_recent_notifications() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let mut stream = client.listen().await;
    client.call("a_change_tools", json!({})).await;
    stream.await_method(TOOLS_CHANGED).await;
    for _ in 0..2 {
        let mut stream = client.listen().await;
        assert_eq!(event(&mut stream).await.data, "", "the first event");
        assert_eq!(event(&mut stream).await.method().as_deref(), Some(TOOLS_CHANGED));
    }
}

#[tokio::test]
async fn subx6_an_unknown_event_id_opens_a_fresh_stream_with_list_changed_for_all_lists() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let mut before = client.listen().await;
    let primed = event(&mut before).await;
    let (stream, epoch) = (primed.stream().to_owned(), primed.id().split('-').nth(1).expect("an epoch").to_owned());
    let wrong = ["x".to_owned(), format!("{stream}-{epoch}-999"), format!("77-{epoch}-1"), "0-0000000-0".to_owned()];
    for (count, wrong) in wrong.iter().enumerate() {
        let mut fresh = resume(&client, wrong).await;
        assert_eq!(rest(before).await, [], "{wrong}: the session's stream was replaced");
        assert_eq!(event(&mut fresh).await.data, "", "{wrong}");
        let mut notified = Vec::new();
        for _ in 0..3 {
            notified.push(event(&mut fresh).await.method().expect("a notification"));
        }
        let expected = ["tools", "prompts", "resources"].map(|list| format!("notifications/{list}/list_changed"));
        assert_eq!(notified, expected, "{wrong}");
        scraped(&client, &format!(r#"goblin_events_total{{kind="replay_gap"}} {}"#, count + 1)).await;
        before = fresh;
    }
    client.call("a_change_tools", json!({})).await;
    before.await_method(TOOLS_CHANGED).await;
}

#[tokio::test]
async fn sess2_an_event_id_of_another_client_is_a_gap_and_reveals_nothing() {
    let gateway = gateway().await;
    let (one, two) = (client(&gateway).await, client(&gateway).await);
    let mut ids = Vec::new();
    for client in [&one, &two] {
        let (_, mut stream) = client.open(elicitation_call(1)).await;
        let primed = event(&mut stream).await;
        let server_request = event(&mut stream).await;
        answer(client, &server_request).await;
        assert_eq!(rest(stream).await.len(), 1);
        let mut session = client.listen().await;
        ids.push([primed.id().to_owned(), server_request.id().to_owned(), event(&mut session).await.id().to_owned()]);
    }
    for id in &ids[0] {
        let mut stream = resume(&two, id).await;
        for expected in ["", "tools", "prompts", "resources"] {
            let event = event(&mut stream).await;
            assert_eq!(event.stream(), "0", "{id}: {event:?}");
            assert!(event.data.contains(&format!("{expected}/list_changed")) || event.data == expected, "{event:?}");
        }
    }
    assert_eq!(rest(resume(&one, &ids[0][0]).await).await.len(), 2, "its own client can still resume it");
}

#[tokio::test]
async fn sess2_an_ended_session_cannot_be_resumed() {
    let gateway = gateway().await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(elicitation_call(1)).await;
    let primed = event(&mut stream).await;
    let server_request = event(&mut stream).await;
    let resumed = resume(&client, server_request.id()).await;
    assert_eq!(client.send(Method::DELETE, "/mcp", &client.headers(), "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(rest(resumed).await, [], "the stream ends with the session");
    assert_eq!(status_of(&client, primed.id()).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn sess2_a_malformed_event_id_is_a_bad_request() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for id in ["two words", &"x".repeat(257)] {
        assert_eq!(status_of(&client, id).await, StatusCode::BAD_REQUEST, "{id}");
    }
}

#[tokio::test]
async fn sess2_a_cut_session_is_not_idle_while_its_call_runs_or_is_read() {
    let config = json!({"gateway": {"sessionIdleTimeout": "3s"}, "mcpServers": {"a": fixture_server(&[])}});
    let gateway = Gateway::start(config).await;
    let client = client(&gateway).await;
    let (_, mut stream) = client.open(elicitation_call(1)).await;
    let primed = event(&mut stream).await;
    drop(stream);
    // Another session expires meanwhile, which proves that the idle timeout has passed.
    drop(gateway.client().await);
    scraped(&client, "goblin_sessions_active 1").await;
    let mut stream = resume(&client, primed.id()).await;
    let server_request = event(&mut stream).await;
    answer(&client, &server_request).await;
    assert_eq!(rest(stream).await.len(), 1);
    scraped(&client, "goblin_sessions_active 0").await;
}

/// Sends a batch: one call with a server request, one with progress, and one that is answered at once.
async fn batch(client: &Client) -> (Event, Listener) {
    let batch = format!(
        "[{},{},{}]",
        elicitation_call(1),
        call(2, "a_progress", json!({"steps": 2})),
        r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#
    );
    let (parts, mut stream) = client.open(batch).await;
    assert_eq!(
        (parts.status, &parts.headers["content-type"]),
        (StatusCode::OK, &"text/event-stream".parse().expect("a header value"))
    );
    let first = event(&mut stream).await;
    assert_eq!(first.message()["id"], 3, "{first:?}");
    (first, stream)
}

async fn client_with_batches(gateway: &Gateway) -> Client {
    gateway.client_seeing("a_request").await;
    let mut client = Client::new(gateway.address);
    client.initialize_with("2025-03-26", json!({"elicitation": {}})).await;
    client
}

#[tokio::test]
async fn http3_messages_of_the_calls_of_a_batch_reach_the_client() {
    let gateway = gateway().await;
    let client = client_with_batches(&gateway).await;
    let (_, mut stream) = batch(&client).await;
    let (mut answered, mut progress) = (Vec::new(), 0);
    while let Some(event) = next(&mut stream).await {
        match event.method().as_deref() {
            Some(ELICIT) => answer(&client, &event).await,
            Some("notifications/progress") => progress += 1,
            _ => answered.push(event.message()["id"].as_u64().unwrap_or_else(|| panic!("{event:?}"))),
        }
    }
    answered.sort_unstable();
    assert_eq!((&answered[..], progress), (&[1, 2][..], 2));
}

#[tokio::test]
async fn sess2_a_cut_batch_is_resumed_as_a_whole() {
    let gateway = gateway().await;
    let client = client_with_batches(&gateway).await;
    let (first, stream) = batch(&client).await;
    drop(stream);
    let mut stream = resume(&client, first.id()).await;
    let mut answers = Vec::new();
    let mut last = first;
    while let Some(event) = next(&mut stream).await {
        match event.method().as_deref() {
            Some(ELICIT) => answer(&client, &event).await,
            Some(_) => {}
            None => answers.push(event.message()["id"].as_u64().expect("an id")),
        }
        last = event;
    }
    answers.sort_unstable();
    assert_eq!(answers, [1, 2]);
    assert_eq!(status_of(&client, last.id()).await, StatusCode::NO_CONTENT);
}
