use super::*;

fn call() -> OpenCall {
    OpenCall::Call(Arc::new(Call::example()))
}

fn table() -> Arc<OpenCalls> {
    Arc::new(OpenCalls::new(&Arc::default()))
}

#[test]
fn the_number_of_open_calls_is_limited_and_a_guard_frees_its_place() {
    let calls = table();
    let mut guards: Vec<_> = (0..3).map(|id| calls.admit(Some(&Id::from(id)), call(), 3).ok()).collect();
    assert!(guards.iter().all(Option::is_some));
    assert!(matches!(calls.admit(Some(&Id::from(9)), call(), 3), Err(Error::LimitExceeded { .. })));
    guards.pop();
    assert!(calls.admit(Some(&Id::from(9)), call(), 3).is_ok());
}

#[tokio::test]
async fn a_closed_table_admits_no_call_and_cancels_its_open_calls() {
    let calls = table();
    let open = Arc::new(Call::example());
    let _guard = calls.admit(Some(&Id::from(1)), OpenCall::Call(Arc::clone(&open)), 9);
    calls.close("over");
    assert!(open.abort_reason().is_some());
    assert!(calls.admit(Some(&Id::from(2)), call(), 9).is_err());
}

#[test]
fn a_second_call_with_an_open_id_is_rejected_and_the_first_stays() {
    let calls = table();
    let guard = calls.admit(Some(&Id::from(1)), call(), 9);
    assert!(guard.is_ok());
    assert!(matches!(calls.admit(Some(&Id::from(1)), call(), 9), Err(Error::InvalidRequest(_))));
    assert_eq!(calls.len(), 1);
}

#[test]
fn a_withdrawn_id_can_be_reused_before_its_guard_is_dropped() {
    let (calls, id) = (table(), Id::from(1));
    let first = calls.admit(Some(&id), call(), 9).expect("room");
    assert!(calls.cancel_and_free(&id, "test") && !calls.cancel_and_free(&id, "test"));
    let _second = calls.admit(Some(&id), call(), 9).expect("the id is free");
    drop(first);
    assert_eq!((calls.len(), calls.count.as_ref().map(|count| count.open())), (1, Some(1)), "the second request stays");
}

/// Returns a call with a finished answer and `messages` before it.
fn answered(messages: u64, on_drop: OnDrop) -> PendingCall {
    let call = Arc::new(Call::example());
    (0..messages).for_each(|_| assert!(call.offer(Bytes::from_static(b"{}"))));
    call.finish();
    let reply = goblin_wire::reply(&call.request.id, "{}").into();
    PendingCall::new(call, std::future::ready(Some(reply)).boxed(), on_drop, &Arc::default())
}

#[tokio::test]
async fn all_messages_precede_the_answer_and_the_answer_is_returned_once() {
    let mut pending = answered(2, OnDrop::Cancel);
    for _ in 0..2 {
        assert!(matches!(pending.next().await, CallEvent::Message(_)));
        assert!(!pending.is_over());
    }
    assert!(matches!(pending.next().await, CallEvent::Done(Some(_))));
    assert!(pending.is_over());
    assert!(matches!(pending.next().await, CallEvent::Done(None)));
}

#[tokio::test]
async fn sess2_a_call_dropped_before_its_answer_is_finished_on_its_stream() {
    let mut pending = answered(2, OnDrop::Detach(None));
    let call = Arc::clone(&pending.call);
    let first = pending.begin_stream().expect("this version primes its streams");
    let stream = pending.stream().expect("the stream has begun");
    assert!(matches!(pending.next().await, CallEvent::Message(_)));
    drop(pending);
    let id = String::from_utf8_lossy(&first).lines().next().map(|line| line.replace("id: ", "")).expect("an id");
    let resumed = call.client.replay.resume(&id).expect("the stream is known");
    let crate::client::replay::StreamResumeOutcome::Reader(mut reader) = resumed else { panic!() };
    assert_eq!(reader.stream, stream);
    let mut events = String::new();
    while let Some(more) = call.client.replay.follow(&mut reader).await {
        events.push_str(&String::from_utf8_lossy(&more));
    }
    assert!(events.contains("result") && events.matches("event: ").count() == 2, "{events}");
    assert_eq!(call.abort_reason(), None);
}

#[tokio::test]
async fn a_call_dropped_before_its_answer_is_cancelled_and_polled_to_its_end() {
    let call = Arc::new(Call::example());
    let (done, ended) = oneshot::channel();
    let driven = Arc::clone(&call);
    let answer = async move {
        driven.ended().await;
        let _ = done.send(());
        None
    };
    drop(PendingCall::new(Arc::clone(&call), answer.boxed(), OnDrop::Cancel, &Arc::default()));
    ended.await.expect("the call is polled to its end");
    assert!(call.abort_reason().is_some());
}

#[tokio::test]
async fn a_suspended_call_keeps_its_answer_for_the_next_request() {
    let mut pending = answered(1, OnDrop::Cancel);
    assert!(matches!(pending.next().await, CallEvent::Message(_)));
    let mut suspended = pending.suspend();
    pending.reply_with(Reply::from(goblin_wire::reply(pending.id(), "{\"input\":1}")));
    let CallEvent::Done(Some(reply)) = pending.next().await else { panic!("the call is answered") };
    assert_eq!(reply.pieces.concat(), r#"{"jsonrpc":"2.0","id":1,"result":{"input":1}}"#);
    drop(pending);
    assert_eq!(suspended.call.abort_reason(), None, "the reader has nothing left to cancel");
    assert!(suspended.resume(&Id::from(2)).is_empty());
    let CallEvent::Done(Some(reply)) = suspended.next().await else { panic!("the call is answered") };
    assert_eq!(reply.pieces.concat(), r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
}
