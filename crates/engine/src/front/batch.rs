//! Batches: several messages in one POST, which only one version of the protocol allows.
//!
//! The answers are one JSON array if no message precedes the last of them. Otherwise they are one event stream, which
//! the client can resume as a whole.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{join_all, select_all};
use goblin_wire::json::Pieces;
use goblin_wire::{Error, Message, error_reply, trace};
use http::header::HeaderMap;
use http::{Response, StatusCode};

use crate::client::Client;
use crate::client::call::CallEvent;
use crate::client::pending::PendingCall;
use crate::client::replay::{Replay, ReplayEventKind};
use crate::dispatcher::{Begun, Dispatcher};
use crate::front::body::{self, Body, empty, json};
use crate::front::http::HttpFront;
use crate::front::request::{AcceptedTypes, Rejection};
use crate::front::stream::{CallEvents, into_events};

impl HttpFront {
    pub(super) async fn batch(
        &self,
        headers: &HeaderMap,
        accepted: AcceptedTypes,
        batch: Vec<Bytes>,
    ) -> Result<Response<Body>, Rejection> {
        let session = self.session(headers)?;
        if !session.dialect.has_batches() {
            let reason = format!("protocol version {} has no batches", session.dialect);
            return Err(Error::InvalidRequest(reason).into());
        }
        if batch.is_empty() {
            return Err(Error::InvalidRequest("a batch must not be empty".to_owned()).into());
        }
        let mut batch = self.begin_batch(headers, &session, batch);
        if !accepted.stream {
            batch.end().await;
        } else if !accepted.json || !batch.settle().await {
            return Ok(batch.into_events(&self.dispatcher, &session.replay));
        }
        Ok(batch.into_json())
    }

    fn begin_batch(&self, headers: &HeaderMap, session: &Arc<Client>, messages: Vec<Bytes>) -> Batch {
        let mut batch = Batch::default();
        for raw in messages {
            match Message::parse(raw) {
                Ok(Message::Request(mut request)) => {
                    trace::take_headers(&mut request, headers);
                    match self.dispatcher.begin(session, request) {
                        Begun::Ready(reply) => batch.answers.push(reply.pieces),
                        Begun::Pending(pending) => batch.calls.push(pending),
                    }
                }
                Ok(Message::Notification(notification)) => self.dispatcher.handle_notification(session, &notification),
                Ok(Message::Response(response)) => self.dispatcher.handle_response(session, response),
                Err(malformed) => {
                    self.observe.count_limit(&malformed.error);
                    batch.answers.push(error_reply(malformed.id.as_ref(), &malformed.error.to_json()));
                }
            }
        }
        batch
    }
}

/// The open calls and the finished answers of one batch.
#[derive(Default)]
struct Batch {
    calls: Vec<PendingCall>,
    answers: Vec<Pieces>,
}

impl Batch {
    /// Waits until all calls are answered. Returns `false` earlier if a call is slow or has a message before its
    /// answer.
    async fn settle(&mut self) -> bool {
        while !self.calls.is_empty() {
            let (next, index, _) = select_all(self.calls.iter_mut().map(|call| Box::pin(call.next()))).await;
            match next {
                CallEvent::Done(answer) => {
                    self.calls.remove(index);
                    self.answers.extend(answer.map(|answer| answer.pieces));
                }
                CallEvent::Slow => return false,
                event @ (CallEvent::Message(_) | CallEvent::Request(_)) => {
                    self.calls[index].put_back(event);
                    return false;
                }
            }
        }
        true
    }

    /// Waits for the answers alone. Other messages of the calls cannot be sent here.
    async fn end(&mut self) {
        let replies = join_all(self.calls.iter_mut().map(PendingCall::answer)).await;
        self.answers.extend(replies.into_iter().flatten().map(|reply| reply.pieces));
    }

    fn into_json(self) -> Response<Body> {
        if self.answers.is_empty() {
            return empty(StatusCode::ACCEPTED);
        }
        let mut array = Pieces::new();
        for (index, answer) in self.answers.into_iter().enumerate() {
            array.push(Bytes::from_static(if index == 0 { b"[" } else { b"," }));
            for piece in answer {
                array.push(piece);
            }
        }
        array.push(Bytes::from_static(b"]"));
        json(StatusCode::OK, array)
    }

    fn into_events(self, dispatcher: &Arc<Dispatcher>, replay: &Replay) -> Response<Body> {
        let Batch { calls, answers } = self;
        match (calls.is_empty(), answers.is_empty()) {
            (true, true) => return empty(StatusCode::ACCEPTED),
            // All answers are ready, so the client has no reason to resume this stream.
            (true, false) => return body::events(futures_util::stream::iter(answers.into_iter().map(body::event))),
            (false, _) => {}
        }
        let stream = replay.begin(calls.iter().map(PendingCall::id));
        let answers: Vec<_> =
            answers.into_iter().map(|answer| replay.event(stream, ReplayEventKind::Answer, answer)).collect();
        let calls = calls.into_iter().map(|call| {
            let (dispatcher, pending) = (Arc::clone(dispatcher), call.on_stream(stream));
            Box::pin(into_events(CallEvents { dispatcher, pending }))
        });
        body::events(futures_util::stream::iter(answers).chain(futures_util::stream::select_all(calls)))
    }
}
