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
    over: Option<oneshot::Sender<ListenOutcome>>,
    held: oneshot::Receiver<()>,
}

struct ListeningFixture {
    dispatcher: ManagerFixture,
    asked: mpsc::Receiver<StreamRequest>,
    streams: Mutex<Vec<TestStream>>,
    link_task: JoinHandle<()>,
}

impl Drop for ListeningFixture {
    fn drop(&mut self) {
        self.link_task.abort();
    }
}

impl ListeningFixture {
    /// Creates a register over a link with a backend that announces changes of its tools.
    fn new() -> ListeningFixture {
        ListeningFixture::telling(ListenFilter { tools: true, ..ListenFilter::default() })
    }

    fn telling(lists: ListenFilter) -> ListeningFixture {
        let dispatcher = ManagerFixture::new();
        let link = LinkTransport::Http(HttpLink::new(HttpPeer::example("127.0.0.1:9")));
        let link = Arc::new(Link::new(link));
        let (wanted, asked) = mpsc::channel(9);
        dispatcher.register.link_up(true);
        let register = Arc::clone(&dispatcher.register);
        let link_task = worker::spawn(async move {
            let opener: Opener<'_> = Box::new(move |filter| {
                let wanted = wanted.clone();
                Box::pin(async move {
                    let (answer, answered) = oneshot::channel();
                    wanted.send(StreamRequest { filter, answer }).await.unwrap_or_else(|_| panic!("nobody is asked"));
                    answered.await.unwrap_or_else(|_| panic!("no answer"))
                })
            });
            let listening = UpstreamStreams::new(&register, lists, true, opener);
            match register.keep_with(&link, true, Some(listening)).await {}
        });
        ListeningFixture { dispatcher, asked, streams: Mutex::default(), link_task }
    }

    async fn asked(&mut self) -> StreamRequest {
        let asked = tokio::time::timeout(Duration::from_secs(60), self.asked.recv()).await;
        asked.expect("a stream is asked for").expect("the task runs")
    }

    /// Acknowledges the next requested stream except for the URIs in `left_out`. Returns the requested filter.
    async fn acknowledge(&mut self, left_out: &[&str]) -> String {
        let StreamRequest { filter, answer } = self.asked().await;
        let text = filter.to_json();
        let mut honoured = filter;
        honoured.uris.retain(|uri| !left_out.contains(&&**uri));
        let ((over, is_over), (hold, held)) = (oneshot::channel(), oneshot::channel());
        let stream = TestStream { filter: honoured.clone(), over: Some(over), held };
        self.streams.lock().push(stream);
        let listen = ListenHandle { honoured, over: is_over, hold };
        answer.send(Ok(listen)).unwrap_or_else(|_| panic!("nobody waits"));
        self.rest().await;
        text
    }

    /// Lets all tasks run until they are idle.
    async fn rest(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Returns the filters of the open streams.
    fn open(&self) -> Vec<String> {
        let mut streams = self.streams.lock();
        streams.retain_mut(|stream| stream.held.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        streams.iter().map(|stream| stream.filter.to_json()).collect()
    }

    fn end(&self, which: usize) {
        let over = self.streams.lock()[which].over.take();
        over.expect("it is open").send(ListenOutcome::Ended).expect("somebody holds it");
    }

    fn subscribe(&self, native: &str) -> JoinHandle<SubscribeOutcome> {
        let (dispatcher, native) = (self.dispatcher.clone(), native.to_owned());
        worker::spawn(async move { dispatcher.enter(&native, None).await })
    }

    fn marked(&self) -> Vec<List> {
        self.dispatcher.register.inbox().take_changes()
    }
}

const TOOLS: &str = r#"{"toolsListChanged":true}"#;

#[tokio::test(start_paused = true)]
async fn sub2_what_is_wanted_meanwhile_is_gathered_and_stands_when_it_is_acknowledged() {
    let mut stage = ListeningFixture::new();
    assert_eq!(stage.acknowledge(&[]).await, TOOLS);
    assert_eq!(stage.marked(), [List::Tools], "they may have changed before");
    let first = stage.subscribe("a:1");
    stage.rest().await;
    let rest: Vec<_> = ["a:2", "a:3"].into_iter().map(|uri| stage.subscribe(uri)).collect();
    stage.rest().await;
    assert!(!first.is_finished());
    assert_eq!(stage.acknowledge(&[]).await, r#"{"resourceSubscriptions":["a:1"]}"#);
    assert!(matches!(first.await, Ok(SubscribeOutcome::Subscribed)));
    assert!(rest.iter().all(|waits| !waits.is_finished()));
    let all = r#"{"resourceSubscriptions":["a:1","a:2","a:3"]}"#;
    assert_eq!(stage.acknowledge(&["a:3"]).await, all);
    let [second, third] = rest.try_into().expect("two");
    assert!(matches!(second.await, Ok(SubscribeOutcome::Subscribed)));
    let Ok(SubscribeOutcome::Rejected(refusal)) = third.await else { panic!("it was left out") };
    assert!(refusal.raw.as_str().contains(r#""uri":"a:3""#), "{}", refusal.raw.as_str());
    assert_eq!(stage.open(), [TOOLS, r#"{"resourceSubscriptions":["a:1","a:2"]}"#]);
    // No event happens while time passes.
    let merged = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2"]}"#;
    assert_eq!(stage.acknowledge(&[]).await, merged);
    assert_eq!(stage.open(), [merged]);
    assert!(stage.marked().is_empty(), "nothing was missed");
    stage.dispatcher.register.unsubscribe(&stage.dispatcher.client, "a:1");
    let begin = tokio::time::Instant::now();
    let left = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:2"]}"#;
    assert_eq!(stage.acknowledge(&["a:2"]).await, left);
    assert!(begin.elapsed() <= MERGE_AFTER + Duration::from_secs(1));
    assert_eq!(stage.open(), [TOOLS]);
    assert!(stage.dispatcher.told().is_empty());
    assert_eq!(stage.dispatcher.register.all()[0].1, "refused", "the backend has changed its mind");
}

#[tokio::test(start_paused = true)]
async fn sub2_so_many_are_a_new_base() {
    let mut stage = ListeningFixture::new();
    stage.acknowledge(&[]).await;
    let all: Vec<_> = (0..MAX_DELTA_URIS).map(|number| stage.subscribe(&format!("a:{number}"))).collect();
    let text = stage.acknowledge(&[]).await;
    let mut asked = ListenFilter::read(&text, goblin_wire::json::whole(&text));
    if !asked.tools {
        // The first subscription got a stream of its own before the others arrived.
        let text = stage.acknowledge(&[]).await;
        asked = ListenFilter::read(&text, goblin_wire::json::whole(&text));
    }
    assert!(asked.tools && asked.uris.len() == MAX_DELTA_URIS, "{asked:?}");
    for one in all {
        assert!(matches!(one.await, Ok(SubscribeOutcome::Subscribed)));
    }
    assert_eq!(stage.open().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sub14_behind_a_gap_all_is_asked_for_again_and_told_once() {
    let mut stage = ListeningFixture::new();
    stage.acknowledge(&[]).await;
    for uri in ["a:1", "a:2"] {
        let subscribed = stage.subscribe(uri);
        stage.acknowledge(&[]).await;
        assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Subscribed)));
    }
    stage.marked();
    stage.end(0);
    stage.rest().await;
    assert!(stage.open().is_empty() && stage.dispatcher.told().is_empty() && stage.marked().is_empty());
    let meanwhile = stage.subscribe("a:3");
    assert!(matches!(meanwhile.await, Ok(SubscribeOutcome::Pending)));
    let all = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1","a:2","a:3"]}"#;
    assert_eq!(stage.acknowledge(&[]).await, all);
    assert_eq!(stage.open(), [all]);
    assert_eq!(stage.marked(), List::ALL);
    let mut told = stage.dispatcher.told();
    told.sort();
    assert_eq!(told, [r#"{"uri":"a+a:1"}"#, r#"{"uri":"a+a:2"}"#, r#"{"uri":"a+a:3"}"#]);
    tokio::time::sleep(MERGE_AFTER * 9).await;
    assert!(stage.asked.try_recv().is_err(), "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn sub14_a_backend_that_ends_every_stream_is_asked_ever_more_seldom() {
    let mut stage = ListeningFixture::new();
    let begin = tokio::time::Instant::now();
    for _ in 0..20 {
        stage.acknowledge(&[]).await;
        stage.open();
        stage.end(0);
        stage.rest().await;
    }
    assert!(begin.elapsed() > Duration::from_secs(300), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn sub2_a_backend_that_knows_no_streams_is_not_asked_again() {
    let mut stage = ListeningFixture::new();
    let subscribed = stage.subscribe("a:1");
    stage.rest().await;
    let StreamRequest { answer, .. } = stage.asked().await;
    answer.send(Err(ListenError::Unknown)).unwrap_or_else(|_| panic!("nobody waits"));
    assert!(matches!(subscribed.await, Ok(SubscribeOutcome::Tracked)));
    assert!(matches!(stage.subscribe("a:2").await, Ok(SubscribeOutcome::Tracked)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(stage.asked.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn sub2_a_stream_that_cannot_be_opened_fails_who_waits_and_nobody_else() {
    let fail = |asked: StreamRequest| {
        let answer = asked.answer.send(Err(ListenError::Failed("no".into())));
        answer.unwrap_or_else(|_| panic!("nobody waits"));
        asked.filter.to_json()
    };
    let is_failed = |outcome| matches!(outcome, Ok(SubscribeOutcome::Failed(reason)) if &*reason == "no");
    let mut silent = ListeningFixture::telling(ListenFilter::default());
    let fails = silent.subscribe("a:1");
    let asked = silent.asked().await;
    assert_eq!(fail(asked), r#"{"resourceSubscriptions":["a:1"]}"#);
    assert!(is_failed(fails.await) && silent.dispatcher.register.all().is_empty());

    let mut stage = ListeningFixture::new();
    stage.acknowledge(&[]).await;
    let stands = stage.subscribe("a:1");
    stage.acknowledge(&[]).await;
    assert!(matches!(stands.await, Ok(SubscribeOutcome::Subscribed)));
    let fails = stage.subscribe("a:2");
    let asked = stage.asked().await;
    assert_eq!(fail(asked), r#"{"resourceSubscriptions":["a:1","a:2"]}"#);
    assert!(is_failed(fails.await));
    let both = [TOOLS, r#"{"resourceSubscriptions":["a:1"]}"#];
    assert_eq!(stage.open(), both);
    // The merge also fails and is repeated.
    let merged = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:1"]}"#;
    let asked = stage.asked().await;
    assert_eq!(fail(asked), merged);
    stage.rest().await;
    assert_eq!(stage.open(), both);
    assert_eq!(stage.acknowledge(&[]).await, merged);
    assert_eq!(stage.open(), [merged]);
    assert!(stage.dispatcher.told().is_empty());
    // All streams end, and the first attempt to reopen them fails.
    stage.end(0);
    let asked = stage.asked().await;
    assert_eq!(fail(asked), merged);
    stage.rest().await;
    assert!(stage.dispatcher.told().is_empty());
    assert_eq!(stage.acknowledge(&[]).await, merged);
    assert_eq!(stage.dispatcher.told(), [r#"{"uri":"a+a:1"}"#]);
}
