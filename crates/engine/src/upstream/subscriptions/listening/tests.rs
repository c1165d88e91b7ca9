//! Tests against a simulated backend that keeps its streams, with a paused clock.

use goblin_subscriptions::SubscribeOutcome;
use goblin_telemetry::worker;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::upstream::http::HttpLink;
use crate::upstream::http::peer::HttpPeer;
use crate::upstream::link::{Link, LinkTransport};
use crate::upstream::subscriptions::plan::{MAX_DELTA_URIS, MERGE_AFTER};
use crate::upstream::subscriptions::tests::ManagerFixture;

/// A request for a stream.
struct StreamRequest {
    filter: ListenFilter,
    answer: oneshot::Sender<Result<ListenHandle, ListenError>>,
}

/// An open stream.
struct TestStream {
    filter: ListenFilter,
    end: Option<oneshot::Sender<ListenOutcome>>,
    held: oneshot::Receiver<()>,
}

struct ListeningFixture {
    subscriber: ManagerFixture,
    requests: mpsc::Receiver<StreamRequest>,
    streams: Mutex<Vec<TestStream>>,
    link_task: JoinHandle<()>,
}

impl Drop for ListeningFixture {
    fn drop(&mut self) {
        self.link_task.abort();
    }
}

impl ListeningFixture {
    /// Creates a manager over a link with a backend that announces changes of its tools.
    fn new() -> ListeningFixture {
        ListeningFixture::with_lists(ListenFilter { tools: true, ..ListenFilter::default() })
    }

    fn with_lists(lists: ListenFilter) -> ListeningFixture {
        let subscriber = ManagerFixture::new();
        let link = LinkTransport::Http(HttpLink::new(HttpPeer::example("127.0.0.1:9")));
        let link = Arc::new(Link::new(link));
        let (sender, requests) = mpsc::channel(9);
        subscriber.manager.link_up(true);
        let manager = Arc::clone(&subscriber.manager);
        let link_task = worker::spawn(async move {
            let opener: Opener<'_> = Box::new(move |filter| {
                let sender = sender.clone();
                Box::pin(async move {
                    let (answer, answered) = oneshot::channel();
                    sender
                        .send(StreamRequest { filter, answer })
                        .await
                        .unwrap_or_else(|_| panic!("the fixture is dropped"));
                    answered.await.unwrap_or_else(|_| panic!("no answer"))
                })
            });
            let streams = UpstreamStreams::new(&manager, lists, true, opener);
            match manager.keep_with(&link, true, Some(streams)).await {}
        });
        ListeningFixture { subscriber, requests, streams: Mutex::default(), link_task }
    }

    async fn next_request(&mut self) -> StreamRequest {
        let request = tokio::time::timeout(Duration::from_secs(60), self.requests.recv()).await;
        request.expect("a stream is requested").expect("the task runs")
    }

    /// Acknowledges the next requested stream except for the URIs in `omitted`. Returns the requested filter.
    async fn acknowledge(&mut self, omitted: &[&str]) -> String {
        let request = self.next_request().await;
        self.accept(request, omitted).await
    }

    async fn accept(&self, request: StreamRequest, omitted: &[&str]) -> String {
        let StreamRequest { filter, answer } = request;
        let text = filter.to_json();
        let mut acknowledged = filter;
        acknowledged.uris.retain(|uri| !omitted.contains(&&**uri));
        let ((end, ended), (close_guard, held)) = (oneshot::channel(), oneshot::channel());
        let stream = TestStream { filter: acknowledged.clone(), end: Some(end), held };
        self.streams.lock().push(stream);
        let listen = ListenHandle { acknowledged, ended, close_guard };
        answer.send(Ok(listen)).unwrap_or_else(|_| panic!("no task waits"));
        self.settle().await;
        text
    }

    /// Lets all tasks run until they are idle.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Returns the filters of the open streams.
    fn open(&self) -> Vec<String> {
        let mut streams = self.streams.lock();
        streams.retain_mut(|stream| stream.held.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        streams.iter().map(|stream| stream.filter.to_json()).collect()
    }

    fn end(&self, index: usize) {
        let end = self.streams.lock()[index].end.take();
        end.expect("the stream is open").send(ListenOutcome::Ended).expect("the handle is held");
    }

    fn subscribe(&self, native: &str) -> JoinHandle<SubscribeOutcome> {
        let (subscriber, native) = (self.subscriber.clone(), native.to_owned());
        worker::spawn(async move { subscriber.try_subscribe(&native, None).await })
    }

    fn marked(&self) -> Vec<List> {
        self.subscriber.manager.lists().take_marks()
    }
}

/// The longest time from the last unsubscribe to the close of the stream.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

const TOOLS: &str = r#"{"toolsListChanged":true}"#;

#[tokio::test(start_paused = true)]
async fn sub2_concurrent_subscriptions_share_one_listen_and_succeed_when_acknowledged() {
    let mut fixture = ListeningFixture::new();
    assert_eq!(fixture.acknowledge(&[]).await, TOOLS);
    assert_eq!(fixture.marked(), [List::Tools], "the tools may have changed before");
    let first = fixture.subscribe("a:1");
    fixture.settle().await;
    let rest: Vec<_> = ["a:2", "a:3"].into_iter().map(|uri| fixture.subscribe(uri)).collect();
    fixture.settle().await;
    assert!(!first.is_finished());
    assert_eq!(fixture.acknowledge(&[]).await, r#"{"resourceSubscriptions":["a:1"]}"#);
    assert!(matches!(first.await, Ok(SubscribeOutcome::Subscribed)));
    assert!(rest.iter().all(|subscribe| !subscribe.is_finished()));
    let all = r#"{"resourceSubscriptions":["a:1","a:2","a:3"]}"#;
    assert_eq!(fixture.acknowledge(&["a:3"]).await, all);
    let [second, third] = rest.try_into().expect("two");
    assert!(matches!(second.await, Ok(SubscribeOutcome::Subscribed)));
    let Ok(SubscribeOutcome::Rejected(error)) = third.await else { panic!("the URI was omitted") };
    assert!(error.raw.as_str().contains(r#""uri":"a:3""#), "{}", error.raw.as_str());
    assert_eq!(fixture.open(), [TOOLS, r#"{"resourceSubscriptions":["a:1","a:2"]}"#]);
    // No event happens while time passes.
    let merged = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2"]}"#;
    assert_eq!(fixture.acknowledge(&[]).await, merged);
    assert_eq!(fixture.open(), [merged]);
    assert!(fixture.marked().is_empty(), "no change was missed");
    fixture.subscriber.manager.unsubscribe(&fixture.subscriber.client, "a:1");
    let started = tokio::time::Instant::now();
    let remaining = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:2"]}"#;
    assert_eq!(fixture.acknowledge(&["a:2"]).await, remaining);
    assert!(started.elapsed() <= MERGE_AFTER + Duration::from_secs(1));
    assert_eq!(fixture.open(), [TOOLS]);
    assert!(fixture.subscriber.received().is_empty());
    assert_eq!(fixture.subscriber.manager.all()[0].1, "rejected", "the backend now omits the URI");
}

#[tokio::test(start_paused = true)]
async fn sub2_the_end_of_the_last_subscription_closes_its_stream_within_two_seconds() {
    for lists in [ListenFilter::default(), ListenFilter { tools: true, ..ListenFilter::default() }] {
        let has_lists = !lists.is_empty();
        let mut fixture = ListeningFixture::with_lists(lists);
        if has_lists {
            fixture.acknowledge(&[]).await;
        }
        let subscribed = fixture.subscribe("a:1");
        fixture.acknowledge(&[]).await;
        assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Subscribed)));
        fixture.subscriber.manager.unsubscribe(&fixture.subscriber.client, "a:1");
        let started = tokio::time::Instant::now();
        if has_lists {
            assert_eq!(fixture.acknowledge(&[]).await, TOOLS);
            assert!(started.elapsed() <= CLOSED_WITHIN);
            assert_eq!(fixture.open(), [TOOLS]);
        } else {
            tokio::time::sleep(CLOSED_WITHIN).await;
            assert!(fixture.open().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sub2_a_failed_or_late_successor_keeps_no_unwanted_stream() {
    for fails in [true, false] {
        let mut fixture = ListeningFixture::new();
        fixture.acknowledge(&[]).await;
        let subscribed = fixture.subscribe("a:1");
        fixture.acknowledge(&[]).await;
        assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Subscribed)));
        fixture.marked();
        fixture.subscriber.manager.unsubscribe(&fixture.subscriber.client, "a:1");
        let closed_at = tokio::time::Instant::now() + CLOSED_WITHIN;
        let request = fixture.next_request().await;
        assert_eq!(request.filter.to_json(), TOOLS);
        let late = match fails {
            true => {
                request.answer.send(Err(ListenError::Failed("no".into()))).unwrap_or_else(|_| panic!("no task waits"));
                None
            }
            false => Some(request),
        };
        tokio::time::sleep_until(closed_at).await;
        assert!(fixture.open().is_empty(), "the streams with the URI are closed");
        match late {
            Some(request) => fixture.accept(request, &[]).await,
            None => fixture.acknowledge(&[]).await,
        };
        assert_eq!(fixture.open(), [TOOLS]);
        assert_eq!(fixture.marked(), List::ALL, "changes may have been missed meanwhile");
    }
}

#[tokio::test(start_paused = true)]
async fn sub2_many_subscriptions_replace_the_base_stream() {
    let mut fixture = ListeningFixture::new();
    fixture.acknowledge(&[]).await;
    let all: Vec<_> = (0..MAX_DELTA_URIS).map(|number| fixture.subscribe(&format!("a:{number}"))).collect();
    let text = fixture.acknowledge(&[]).await;
    let mut requested = ListenFilter::read(&text, goblin_wire::json::whole(&text));
    if !requested.tools {
        // The first subscription got a stream of its own before the others arrived.
        let text = fixture.acknowledge(&[]).await;
        requested = ListenFilter::read(&text, goblin_wire::json::whole(&text));
    }
    assert!(requested.tools && requested.uris.len() == MAX_DELTA_URIS, "{requested:?}");
    for one in all {
        assert!(matches!(one.await, Ok(SubscribeOutcome::Subscribed)));
    }
    assert_eq!(fixture.open().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sub14_after_a_gap_all_uris_are_subscribed_again_and_notified_once() {
    let mut fixture = ListeningFixture::new();
    fixture.acknowledge(&[]).await;
    for uri in ["a:1", "a:2"] {
        let subscribed = fixture.subscribe(uri);
        fixture.acknowledge(&[]).await;
        assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Subscribed)));
    }
    fixture.marked();
    fixture.end(0);
    fixture.settle().await;
    assert!(fixture.open().is_empty() && fixture.subscriber.received().is_empty() && fixture.marked().is_empty());
    let meanwhile = fixture.subscribe("a:3");
    assert!(matches!(meanwhile.await, Ok(SubscribeOutcome::Pending)));
    let all = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2","a:3"]}"#;
    assert_eq!(fixture.acknowledge(&[]).await, all);
    assert_eq!(fixture.open(), [all]);
    assert_eq!(fixture.marked(), List::ALL);
    let mut received = fixture.subscriber.received();
    received.sort();
    assert_eq!(received, [r#"{"uri":"a+a:1"}"#, r#"{"uri":"a+a:2"}"#, r#"{"uri":"a+a:3"}"#]);
    tokio::time::sleep(MERGE_AFTER * 9).await;
    assert!(fixture.requests.try_recv().is_err(), "no request is left");
}

#[tokio::test(start_paused = true)]
async fn sub14_a_backend_that_ends_every_stream_is_retried_with_backoff() {
    let mut fixture = ListeningFixture::new();
    let started = tokio::time::Instant::now();
    for _ in 0..20 {
        fixture.acknowledge(&[]).await;
        fixture.open();
        fixture.end(0);
        fixture.settle().await;
    }
    assert!(started.elapsed() > Duration::from_secs(300), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn sub2_a_backend_without_listen_receives_no_second_listen() {
    let mut fixture = ListeningFixture::new();
    let subscribed = fixture.subscribe("a:1");
    fixture.settle().await;
    let StreamRequest { answer, .. } = fixture.next_request().await;
    answer.send(Err(ListenError::Unknown)).unwrap_or_else(|_| panic!("no task waits"));
    assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Tracked)));
    assert!(matches!(fixture.subscribe("a:2").await, Ok(SubscribeOutcome::Tracked)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.requests.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn sub2_a_failed_stream_fails_only_the_waiting_subscriptions() {
    let fail = |request: StreamRequest| {
        let answer = request.answer.send(Err(ListenError::Failed("no".into())));
        answer.unwrap_or_else(|_| panic!("no task waits"));
        request.filter.to_json()
    };
    let is_failed = |outcome| matches!(outcome, Ok(SubscribeOutcome::Failed(reason)) if &*reason == "no");
    let mut silent = ListeningFixture::with_lists(ListenFilter::default());
    let fails = silent.subscribe("a:1");
    let request = silent.next_request().await;
    assert_eq!(fail(request), r#"{"resourceSubscriptions":["a:1"]}"#);
    assert!(is_failed(fails.await) && silent.subscriber.manager.all().is_empty());

    let mut fixture = ListeningFixture::new();
    fixture.acknowledge(&[]).await;
    let subscribed = fixture.subscribe("a:1");
    fixture.acknowledge(&[]).await;
    assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Subscribed)));
    let fails = fixture.subscribe("a:2");
    let request = fixture.next_request().await;
    assert_eq!(fail(request), r#"{"resourceSubscriptions":["a:1","a:2"]}"#);
    assert!(is_failed(fails.await));
    let both = [TOOLS, r#"{"resourceSubscriptions":["a:1"]}"#];
    assert_eq!(fixture.open(), both);
    // The merge also fails and is repeated.
    let merged = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1"]}"#;
    let request = fixture.next_request().await;
    assert_eq!(fail(request), merged);
    fixture.settle().await;
    assert_eq!(fixture.open(), both);
    assert_eq!(fixture.acknowledge(&[]).await, merged);
    assert_eq!(fixture.open(), [merged]);
    assert!(fixture.subscriber.received().is_empty());
    // All streams end, and the first attempt to reopen them fails.
    fixture.end(0);
    let request = fixture.next_request().await;
    assert_eq!(fail(request), merged);
    fixture.settle().await;
    assert!(fixture.subscriber.received().is_empty());
    assert_eq!(fixture.acknowledge(&[]).await, merged);
    assert_eq!(fixture.subscriber.received(), [r#"{"uri":"a+a:1"}"#]);
}
