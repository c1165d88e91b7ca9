//! One client on stdin and stdout: one message per line, one session, which ends with the input.
//!
//! Answers wait for room on the output; progress and log lines are dropped when there is none (see `lane`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::actor::stopped;
use crate::front::NOTIFY_INTERVAL;
use crate::front::stream::{Carried, Next};
use crate::observe::{Event, Observe};
use crate::protocol::error::Error;
use crate::protocol::framing::{Frame, Lines};
use crate::protocol::json::Pieces;
use crate::protocol::method::Method;
use crate::protocol::{self, Message, Notification, Request};
use crate::session::desk::{Begun, Desk};
use crate::session::{self, Session};

/// Answers that may wait for the client to read; beyond it their calls wait.
const OUTPUT_MESSAGES: usize = 64;

pub struct Front {
    pub desk: Arc<Desk>,
    pub observe: Arc<Observe>,
    pub max_message_size: usize,
    pub grace: Duration,
    pub stop: watch::Receiver<bool>,
}

type Output = mpsc::Sender<Pieces>;

/// Serves until the input ends or we are told to stop; calls still open then have `grace` to finish.
pub async fn serve(front: Front, input: impl AsyncRead + Unpin, output: impl AsyncWrite + Unpin + Send + 'static) {
    let (sender, receiver) = mpsc::channel(OUTPUT_MESSAGES);
    let writer = tokio::spawn(write(receiver, output));
    let grace = front.grace;
    let mut client = Client { front, output: sender, session: None, present: None, calls: JoinSet::new(), told: None };
    client.read(input).await;
    let Client { front, output, session, present, mut calls, told } = client;
    drop(output);
    front.observe.emit(&Event::ShuttingDown { open: calls.len(), grace });
    let finished = async { while calls.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        front.desk.tell_cut(&front.observe);
    }
    if let Some(told) = told {
        told.abort();
    }
    drop(present);
    if let Some(session) = session {
        front.desk.sessions.end(session.id, "end of input");
    }
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

struct Client {
    front: Front,
    output: Output,
    session: Option<Arc<Session>>,
    /// The client is there as long as its input is: its session is never idle.
    present: Option<session::Stream>,
    calls: JoinSet<()>,
    /// Tells the client what changed.
    told: Option<tokio::task::JoinHandle<()>>,
}

impl Client {
    async fn read(&mut self, mut input: impl AsyncRead + Unpin) {
        let mut lines = Lines::new(self.front.max_message_size);
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

    /// One frame; false when nobody reads our output any more.
    async fn on_frame(&mut self, frame: Frame<Bytes>) -> bool {
        let answer = match frame {
            Frame::Whole(line) => self.on_line(line).await,
            Frame::TooLong { .. } => {
                let limit = self.front.max_message_size;
                let error =
                    Error::InvalidRequest(format!("a line is longer than policies.maxMessageSize, {limit} bytes"));
                Some(protocol::error_reply(None, &error.to_json()))
            }
        };
        let Some(answer) = answer else { return true };
        let mut stop = self.front.stop.clone();
        tokio::select! {
            // A client that does not read must not keep us from stopping.
            () = stopped(&mut stop) => false,
            sent = self.output.send(answer) => sent.is_ok(),
        }
    }

    /// One line; tells what must be answered at once.
    async fn on_line(&mut self, line: Bytes) -> Option<Pieces> {
        if let Some(batch) = Message::split_batch(&line) {
            return self.on_batch(batch.map_err(|malformed| malformed.error)).await;
        }
        match Message::parse(line) {
            Ok(Message::Request(request)) => self.on_request(request),
            Ok(Message::Notification(notification)) => {
                self.on_notification(&notification);
                None
            }
            // Nothing is ever asked of a client yet, so nobody waits for this.
            Ok(Message::Response(_)) => None,
            Err(malformed) => Some(protocol::error_reply(malformed.id.as_ref(), &malformed.error.to_json())),
        }
    }

    fn on_notification(&mut self, notification: &Notification) {
        let Some(session) = &self.session else { return };
        self.front.desk.hear(session, notification);
        // Not before: until then a client need not expect anything but answers.
        if notification.method == Method::Initialized && self.told.is_none() {
            let versions = self.front.desk.router.directory.watch();
            self.told = Some(tokio::spawn(tell(Arc::clone(session), versions, self.output.downgrade())));
        }
    }

    fn on_request(&mut self, request: Request) -> Option<Pieces> {
        let Some(session) = self.session.clone() else { return Some(self.before_session(&request)) };
        match self.front.desk.begin(&session, request) {
            Begun::Ready(answer) => Some(answer),
            Begun::Pending(pending) => {
                let carried = Carried::new(pending, session, Arc::clone(&self.front.observe));
                self.calls.spawn(carry(carried, self.output.clone()));
                None
            }
        }
    }

    fn before_session(&mut self, request: &Request) -> Pieces {
        match request.method {
            Method::Initialize => match self.front.desk.initialize(request) {
                Ok((session, hello)) => {
                    self.present = Some(session.open_stream());
                    self.session = Some(session);
                    hello
                }
                Err(error) => protocol::error_reply(Some(&request.id), &error.to_json()),
            },
            Method::Ping => protocol::reply(&request.id, "{}"),
            _ => {
                let error = Error::InvalidRequest("the first request must be initialize".to_owned());
                protocol::error_reply(Some(&request.id), &error.to_json())
            }
        }
    }

    /// Several messages at once, as one version of the protocol allows; each is answered on its own line.
    async fn on_batch(&mut self, batch: Result<Vec<Bytes>, Error>) -> Option<Pieces> {
        let version = self.session.as_ref().map(|session| session.dialect);
        let batch = batch.and_then(|batch| match version {
            Some(dialect) if dialect.has_batches() && !batch.is_empty() => Ok(batch),
            Some(dialect) if !dialect.has_batches() => {
                Err(Error::InvalidRequest(format!("protocol version {dialect} has no batches")))
            }
            Some(_) => Err(Error::InvalidRequest("an empty batch".to_owned())),
            None => Err(Error::InvalidRequest("the first request must be initialize".to_owned())),
        });
        match batch {
            Ok(messages) => {
                for message in messages {
                    let answer = Box::pin(self.on_line(message)).await;
                    if let Some(answer) = answer {
                        self.output.send(answer).await.ok()?;
                    }
                }
                None
            }
            Err(error) => Some(protocol::error_reply(None, &error.to_json())),
        }
    }
}

async fn carry(mut carried: Carried, output: Output) {
    loop {
        match carried.next().await {
            Next::Message(message) => {
                // Progress may be dropped; an answer may not.
                let _ = output.try_send(message.into());
            }
            Next::Answer(Some(answer)) => return drop(output.send(answer).await),
            Next::Answer(None) => return,
            Next::Slow => {}
        }
    }
}

/// Tells the client of changed lists. It does not keep the output open.
async fn tell(
    session: Arc<Session>,
    mut versions: watch::Receiver<crate::mailbox::Versions>,
    output: mpsc::WeakSender<Pieces>,
) {
    loop {
        let now = *versions.borrow_and_update();
        for message in session.mailbox.take_due(now) {
            let Some(output) = output.upgrade() else { return };
            if output.send(message.into()).await.is_err() {
                return;
            }
        }
        tokio::time::sleep_until(Instant::now() + NOTIFY_INTERVAL).await;
        if versions.changed().await.is_err() {
            return;
        }
    }
}
