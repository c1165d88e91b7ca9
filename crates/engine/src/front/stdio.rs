//! One client on stdin and stdout, with one message per line. Its session ends with the input.
//!
//! Answers wait for room on the output. Progress and log messages are dropped if there is none.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use goblin_config::exposure::ProfileName;
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::framing::{Frame, LineDecoder};
use goblin_wire::json::Pieces;
use goblin_wire::memory::{BufferKind, ReservationError, SMALL};
use goblin_wire::{Error, Message};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::client::call::CallEvent;
use crate::client::pending::{OpenCallGuard, PendingCall};
use crate::dispatcher::Dispatcher;
use crate::front::duplex::{DuplexClient, MessageOutcome, error_reply};
use crate::front::stream::{ListChanges, ListenStream, next_unsolicited};
use crate::upstream::supervisor::stopped;

/// The number of messages that wait for the client to read. If the queue is full, calls wait before they send their
/// answer.
const OUTPUT_MESSAGES: usize = 64;

pub(crate) struct StdioFront {
    pub dispatcher: Arc<Dispatcher>,
    pub profile: Option<ProfileName>,
    pub observe: Arc<Observe>,
    pub max_message_size: usize,
    pub grace: Duration,
    pub stop: watch::Receiver<bool>,
}

type StdioOutput = mpsc::Sender<Pieces>;

/// Serves the client until the input ends or the gateway stops. Open calls then have `grace` to finish.
pub(crate) async fn serve(
    front: StdioFront,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) {
    let (sender, receiver) = mpsc::channel(OUTPUT_MESSAGES);
    let writer = worker::spawn(write(receiver, output));
    let grace = front.grace;
    let duplex = DuplexClient::of_both_eras(&front.dispatcher, &front.observe, front.profile.clone())
        .expect("maxSessions is at least 1 and this is the only client");
    let mut client = StdioClient { front, output: sender, duplex, calls: JoinSet::new(), notifier: None };
    client.read(input).await;
    let StdioClient { front, output, duplex, mut calls, notifier } = client;
    drop(output);
    // The client can send no more responses, so calls must not wait for them.
    if let Some(session) = duplex.session() {
        session.close_requests();
    }
    if let Some(stateless) = &duplex.stateless {
        stateless.calls.end_listening();
    }
    front.observe.emit(&Event::ShuttingDown { open: calls.len(), grace });
    let finished = async { while calls.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        front.dispatcher.log_cut_calls(&front.observe);
    }
    if let Some(notifier) = notifier {
        notifier.abort();
    }
    duplex.end("end of input");
    calls.shutdown().await;
    let _ = tokio::time::timeout(grace, writer).await;
}

async fn write(mut queued: mpsc::Receiver<Pieces>, mut output: impl AsyncWrite + Unpin) {
    let mut batch = BytesMut::new();
    while let Some(first) = queued.recv().await {
        let mut next = Some(first);
        while let Some(message) = next {
            for piece in message.into_line() {
                batch.extend_from_slice(&piece);
            }
            batch.extend_from_slice(b"\n");
            next = queued.try_recv().ok();
        }
        let written = async {
            output.write_all(&batch).await?;
            output.flush().await
        };
        if written.await.is_err() {
            return;
        }
        batch.clear();
    }
}

struct StdioClient {
    front: StdioFront,
    output: StdioOutput,
    duplex: DuplexClient,
    calls: JoinSet<()>,
    /// The task that sends the messages of no call.
    notifier: Option<tokio::task::JoinHandle<()>>,
}

impl StdioClient {
    async fn read(&mut self, mut input: impl AsyncRead + Unpin) {
        let mut lines = LineDecoder::new(self.front.max_message_size);
        let mut stop = self.front.stop.clone();
        loop {
            let read = tokio::select! {
                () = stopped(&mut stop) => return,
                read = input.read_buf(lines.buffer()) => read,
            };
            if !matches!(read, Ok(1..)) {
                break;
            }
            while let Some(frame) = lines.take() {
                if !self.on_frame(frame).await {
                    return;
                }
            }
            while self.calls.try_join_next().is_some() {}
        }
        if let Some(frame) = lines.finish() {
            self.on_frame(frame).await;
        }
    }

    /// Handles one frame. Returns `false` if the gateway stops or the client does not read its output any more.
    async fn on_frame(&mut self, frame: Frame<Bytes>) -> bool {
        match frame {
            Frame::Whole(line) => self.on_line(line).await,
            Frame::TooLong { .. } => {
                let limit = self.front.max_message_size;
                let error = Error::InvalidRequest(format!(
                    "a line is longer than policies.maxMessageSize, {}",
                    goblin_wire::units::bytes(limit as u64)
                ));
                self.send(goblin_wire::error_reply(None, &error.to_json())).await
            }
        }
    }

    async fn on_line(&mut self, line: Bytes) -> bool {
        if line.len() < SMALL {
            return self.on_reserved(line).await;
        }
        let memory = &self.front.observe.memory;
        match memory.reserve(BufferKind::Bodies, line.len()) {
            Ok(reservation) => self.on_reserved(reservation.keep(line)).await,
            Err(full) => Box::pin(self.on_full(line, full)).await,
        }
    }

    /// Rejects a message because the memory limit is reached. A response belongs to an accepted call, so it passes.
    async fn on_full(&mut self, line: Bytes, full: ReservationError) -> bool {
        let id = match Message::parse(line.clone()) {
            Ok(Message::Response(_)) => {
                let line = self.front.observe.memory.hold_message(BufferKind::Bodies, line);
                return self.on_reserved(line).await;
            }
            Ok(Message::Request(request)) => Some(request.id),
            Ok(Message::Notification(_)) => {
                self.front.observe.limit_hit(full.limit);
                return true;
            }
            Err(malformed) => malformed.id,
        };
        self.front.observe.limit_hit(full.limit);
        self.send(goblin_wire::error_reply(id.as_ref(), &Error::from(full).to_json())).await
    }

    async fn on_reserved(&mut self, line: Bytes) -> bool {
        match self.duplex.split_batch(&line) {
            None => self.on_message(line).await,
            // Each request of the batch is answered on its own line.
            Some(Ok(batch)) => {
                for message in batch {
                    if !self.on_message(message).await {
                        return false;
                    }
                }
                true
            }
            Some(Err(malformed)) => self.send(error_reply(&malformed)).await,
        }
    }

    async fn on_message(&mut self, raw: Bytes) -> bool {
        match self.duplex.handle_message(raw) {
            Ok(MessageOutcome::Nothing) => true,
            Ok(MessageOutcome::Initialized(session)) => {
                if self.notifier.is_none() {
                    let changes = self.changes();
                    self.notifier = Some(worker::spawn(send_unsolicited(session, changes, self.output.downgrade())));
                }
                true
            }
            Ok(MessageOutcome::Answer(answer)) => self.send(answer).await,
            Ok(MessageOutcome::Call(pending, guard)) => {
                let dispatcher = Arc::clone(&self.front.dispatcher);
                self.calls.spawn(worker::watched(send_call_events(dispatcher, pending, guard, self.output.clone())));
                true
            }
            Ok(MessageOutcome::Listening(listening, guard)) => {
                let catalogs = &self.front.dispatcher.router.catalogs;
                let stream = ListenStream::new(catalogs, listening, self.front.stop.clone());
                self.calls.spawn(worker::watched(send_notifications(stream, guard, self.output.clone())));
                true
            }
            Err(malformed) => self.send(error_reply(&malformed)).await,
        }
    }

    fn changes(&self) -> ListChanges {
        ListChanges::new(&self.front.dispatcher.router.catalogs, self.front.profile.as_ref())
    }

    async fn send(&self, answer: Pieces) -> bool {
        let mut stop = self.front.stop.clone();
        tokio::select! {
            // A client that does not read must not delay the shutdown.
            () = stopped(&mut stop) => false,
            sent = self.output.send(answer) => sent.is_ok(),
        }
    }
}

/// Sends the messages and the answer of a call.
async fn send_call_events(
    dispatcher: Arc<Dispatcher>,
    mut pending: PendingCall,
    guard: Option<OpenCallGuard>,
    output: StdioOutput,
) {
    loop {
        match dispatcher.next_event(&mut pending).await {
            // A server request must not be dropped, so it waits for room.
            CallEvent::Request(message) => {
                if output.send(message.into()).await.is_err() {
                    return;
                }
            }
            CallEvent::Message(message) => {
                if output.try_send(message.into()).is_err() {
                    pending.report_dropped();
                }
            }
            CallEvent::Slow => {}
            CallEvent::Done(answer) => {
                // The client may reuse the id as soon as it reads the answer, so free it first.
                drop(guard);
                if let Some(answer) = answer {
                    let _ = output.send(answer.pieces).await;
                }
                return;
            }
        }
    }
}

/// Sends the notifications of a `subscriptions/listen` stream.
async fn send_notifications(
    mut stream: ListenStream,
    (_guard, mut cancelled): (OpenCallGuard, oneshot::Receiver<String>),
    output: StdioOutput,
) {
    loop {
        let messages = tokio::select! {
            biased;
            cancelled = &mut cancelled => match cancelled {
                Ok(_) => return,
                // The gateway ended the stream, so the request gets its answer.
                Err(_) => {
                    if let Some(answer) = stream.end() {
                        let _ = output.send(answer).await;
                    }
                    return;
                }
            },
            messages = stream.next_messages() => messages,
        };
        let Some(messages) = messages else { return };
        for message in messages {
            if output.send(message.into()).await.is_err() {
                return;
            }
        }
    }
}

/// Sends the messages of no call to the client. It holds only a weak sender, so that it does not keep the output open.
async fn send_unsolicited(session: Arc<Client>, mut changes: ListChanges, output: mpsc::WeakSender<Pieces>) {
    while let Some(messages) = next_unsolicited(&session, &mut changes).await {
        for message in messages {
            let Some(output) = output.upgrade() else { return };
            if output.send(message.into()).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: &str = r#"{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{},"_meta":
        {"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;

    /// The answer waits for room on the output when a second reason to end the stream occurs.
    #[tokio::test]
    async fn a_listen_stream_with_two_reasons_to_end_has_one_answer() {
        let dispatcher = Arc::new(Dispatcher::example(1));
        let duplex = DuplexClient::of_both_eras(&dispatcher, &Arc::default(), None).expect("there is room");
        let Ok(MessageOutcome::Listening(listening, guard)) =
            duplex.handle_message(Bytes::from_static(LISTEN.as_bytes()))
        else {
            panic!("the client listens")
        };
        let stop = watch::Sender::new(false);
        let stream = ListenStream::new(&dispatcher.router.catalogs, listening, stop.subscribe());
        let (output, mut read) = mpsc::channel(1);
        let sending = tokio::spawn(send_notifications(stream, guard, output));
        while read.is_empty() {
            tokio::task::yield_now().await;
        }
        stop.send_replace(true);
        // One scheduler turn is enough for the task to see the stop.
        tokio::task::yield_now().await;
        duplex.stateless.as_ref().expect("both eras").calls.end_listening();
        read.recv().await.expect("an acknowledgement");
        assert!(read.recv().await.is_some_and(|answer| answer.concat().starts_with(br#"{"jsonrpc":"2.0","id":7"#)));
        assert!(read.recv().await.is_none(), "one answer");
        sending.await.expect("no panic");
    }
}
