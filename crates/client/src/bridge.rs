//! Connects one client on stdin and stdout to a gateway that already runs. Each line of the client becomes the body of
//! a POST, and each message of the response becomes a line.
//!
//! Invariant: a message is sent again only if the gateway certainly did not handle it. Responses and subscriptions are
//! the exceptions, because receiving them twice has no further effect.
//!
//! The bridge forwards nothing else until the gateway has answered `initialize`. It sends notifications and responses of the client
//! one after the other. Requests run concurrently, up to [`MAX_CALLS`]. All lines for the client pass one bounded
//! queue; if the client does not read, the bridge stops reading the gateway's streams. While the gateway is
//! unreachable, every request gets an error at once.
//!
//! [`session`] begins a new session after a restart, [`subscriptions`] restores its subscriptions, and [`stream`]
//! resumes broken streams. [`call`] runs requests and cancels them, and [`server_requests`] routes requests of the gateway.
//! [`stateless`] and [`listen`] run requests that carry their protocol version and need no session.

pub(crate) mod call;
pub(crate) mod listen;
pub mod message;
pub(crate) mod mirrors;
pub(crate) mod server_requests;
pub(crate) mod session;
pub(crate) mod stateless;
pub(crate) mod stream;
pub(crate) mod subscriptions;
pub mod wire;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use goblin_telemetry::worker;
use goblin_wire::framing::{Frame, LineDecoder};
use goblin_wire::json::single_line;
use goblin_wire::{Error, Id, Method, Request, units};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::bridge::call::SendProgress;
use crate::bridge::message::{ClientMessage, ClientMessageKind, GatewayMessage};
use crate::bridge::mirrors::MirrorCache;
use crate::bridge::server_requests::{OutputClosed, PendingServerRequests};
use crate::bridge::session::GatewaySession;
use crate::bridge::stream::ResponseStream;
use crate::bridge::subscriptions::RememberedSubscriptions;
use crate::bridge::wire::{BodyError, GatewayConnection, ResponseMessages};

/// The maximum number of open requests of the client.
const MAX_CALLS: usize = 256;
/// The maximum number of lines that wait for the client to read.
const OUTPUT_LINES: usize = 64;
/// The maximum size of one message. The gateway has smaller limits; this one bounds the buffer for a stream without
/// line ends.
pub const MAX_MESSAGE: usize = 64 << 20;
/// How often a message is sent before the bridge gives up because the gateway keeps losing the session.
const MAX_ATTEMPTS: usize = 3;
/// The timeout for messages that the client does not wait for, such as notifications and the end of the session.
const SIDE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long open requests may take after the input ended.
const GRACE: Duration = Duration::from_secs(10);

pub type ClientOutput = mpsc::Sender<Bytes>;

pub(crate) struct Bridge {
    wire: GatewayConnection,
    session: watch::Sender<GatewaySession>,
    /// The client's handshake. It is set once the gateway accepted it, and repeated for every later session.
    handshake: OnceLock<Handshake>,
    initialized: OnceLock<Bytes>,
    /// The client's last `logging/setLevel` request. Every later session receives it again.
    level: Mutex<Option<Bytes>>,
    server_requests: Mutex<PendingServerRequests>,
    subscriptions: Mutex<RememberedSubscriptions>,
    /// Wakes the subscription task if a missing subscription may succeed now.
    stale_subscriptions: Notify,
    /// The newest session generation that the gateway reported as unknown.
    lost: AtomicU64,
    /// Wakes the session task when the client finished its handshake or a message found its session unknown.
    wakeup: Notify,
    mirrors: MirrorCache,
}

struct Handshake {
    initialize_request: Bytes,
    version: String,
    /// Whether the client declared the extension of subscriptions.
    declares_subscriptions: bool,
}

/// Forwards messages of the client until the input ends or `shutdown` resolves. Open requests may then finish within a
/// grace period, unless `shutdown` resolves a second time.
pub async fn run(
    wire: GatewayConnection,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    mut shutdown: impl AsyncFnMut(),
) {
    let (sender, receiver) = mpsc::channel(OUTPUT_LINES);
    let writer = worker::spawn(write(receiver, output));
    let bridge = Arc::new(Bridge {
        wire,
        session: watch::Sender::default(),
        handshake: OnceLock::new(),
        initialized: OnceLock::new(),
        level: Mutex::default(),
        server_requests: Mutex::default(),
        subscriptions: Mutex::default(),
        stale_subscriptions: Notify::new(),
        lost: Default::default(),
        wakeup: Notify::new(),
        mirrors: MirrorCache::default(),
    });
    let mut client = ClientReader {
        bridge: Arc::clone(&bridge),
        output: sender,
        calls: JoinSet::new(),
        open: HashMap::new(),
        stateless_calls: HashMap::new(),
        session_task: None,
    };
    tokio::select! {
        () = client.read(input) => {}
        () = shutdown() => {}
    }
    tokio::select! {
        () = finish(client, bridge, writer) => {}
        () = shutdown() => {}
    }
}

/// Waits for open requests, then ends the session.
async fn finish(client: ClientReader, bridge: Arc<Bridge>, writer: JoinHandle<()>) {
    let ClientReader { output, mut calls, stateless_calls, session_task, .. } = client;
    drop(output);
    // Ends `subscriptions/listen` streams, which would not end on their own. Other requests may still finish.
    drop(stateless_calls);
    let finished = async {
        bridge.reject_open_server_requests().await;
        while calls.join_next().await.is_some() {}
    };
    let _ = tokio::time::timeout(GRACE, finished).await;
    calls.shutdown().await;
    if let Some(session_task) = session_task {
        session_task.abort();
        let _ = session_task.await;
    }
    bridge.end().await;
    let _ = tokio::time::timeout(GRACE, writer).await;
}

async fn write(mut lines: mpsc::Receiver<Bytes>, mut output: impl AsyncWrite + Unpin) {
    while let Some(line) = lines.recv().await {
        let written = async {
            output.write_all(&single_line(line)).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

/// The reading side of the client: parses its lines and starts its requests.
struct ClientReader {
    bridge: Arc<Bridge>,
    output: ClientOutput,
    calls: JoinSet<()>,
    /// The open requests. Sending the client's cancellation to a request's channel gives it up.
    open: HashMap<Id, oneshot::Sender<ClientMessage>>,
    /// The open requests without a session. The gateway does not know them by id, so dropping the POST cancels them.
    stateless_calls: HashMap<Id, oneshot::Sender<()>>,
    session_task: Option<JoinHandle<()>>,
}

impl ClientReader {
    async fn read(&mut self, mut input: impl AsyncRead + Unpin) {
        let mut lines = LineDecoder::new(MAX_MESSAGE);
        let output = self.output.clone();
        loop {
            let read = tokio::select! {
                // The client does not read its output any more.
                () = output.closed() => return,
                read = input.read_buf(lines.buffer()) => read,
            };
            let ended = !matches!(read, Ok(1..));
            while let Some(frame) = if ended { lines.finish() } else { lines.take() } {
                self.on_frame(frame).await;
            }
            if ended {
                return;
            }
        }
    }

    async fn on_frame(&mut self, frame: Frame<Bytes>) {
        match frame {
            Frame::Whole(line) => {
                for outgoing in ClientMessage::unpack(line) {
                    self.on_message(outgoing).await;
                }
            }
            Frame::TooLong { .. } => {
                let reason = format!("a line is longer than {}", units::bytes(MAX_MESSAGE as u64));
                self.reject(None, &Error::InvalidRequest(reason)).await;
            }
        }
    }

    async fn on_message(&mut self, outgoing: ClientMessage) {
        match &outgoing.kind {
            ClientMessageKind::Request(id, Method::Initialize) if self.bridge.handshake.get().is_none() => {
                if let Err(error) = self.initialize(&outgoing).await {
                    self.reject(Some(id), &error).await;
                }
            }
            // A batch without requests keeps its place among the notifications.
            ClientMessageKind::Batch(ids) if ids.is_empty() => {
                self.bridge.forward_with_timeout(&outgoing, &self.output).await
            }
            ClientMessageKind::Request(..) | ClientMessageKind::Batch(_) => self.begin(outgoing).await,
            ClientMessageKind::Stateless(request) => self.call_stateless(request).await,
            ClientMessageKind::Notification { cancels: Some(id) } => {
                if self.stateless_calls.remove(id).is_some_and(|open| open.send(()).is_ok()) {
                    return;
                }
                let kept = match self.open.remove(id) {
                    Some(open) => open.send(outgoing).err(),
                    None => Some(outgoing),
                };
                // The gateway may know a request that the bridge does not track, for example one from a batch.
                if let Some(outgoing) = kept {
                    self.bridge.forward_with_timeout(&outgoing, &self.output).await;
                }
            }
            ClientMessageKind::Initialized => {
                self.bridge.forward_with_timeout(&outgoing, &self.output).await;
                self.bridge.initialized.get_or_init(|| outgoing.body.clone());
                self.bridge.wakeup.notify_one();
            }
            ClientMessageKind::Answer(Some(id)) => self.bridge.answer(&outgoing, id, &self.output).await,
            ClientMessageKind::Notification { cancels: None }
            | ClientMessageKind::Answer(None)
            | ClientMessageKind::Broken => {
                self.bridge.forward_with_timeout(&outgoing, &self.output).await;
            }
        }
    }

    async fn reject(&self, id: Option<&Id>, error: &Error) {
        let _ = self.output.send(goblin_wire::error_reply(id, &error.to_json()).concat()).await;
    }

    async fn initialize(&mut self, outgoing: &ClientMessage) -> Result<(), Error> {
        let bridge = &self.bridge;
        let (headers, answer, version) = bridge.exchange_handshake(&outgoing.body, &self.output).await?;
        if let Some(version) = version {
            let initialize_request = outgoing.body.clone();
            let declares_subscriptions = message::declares_subscriptions(&initialize_request);
            bridge.handshake.get_or_init(|| Handshake { initialize_request, version, declares_subscriptions });
            bridge.session.send_modify(|session| *session = session.next(headers));
            let session = session::maintain(Arc::clone(bridge), self.output.clone());
            let subscriptions = subscriptions::maintain(Arc::clone(bridge), self.output.clone());
            self.session_task = Some(worker::spawn(async {
                tokio::join!(session, subscriptions);
            }));
        }
        let _ = self.output.send(answer).await;
        Ok(())
    }

    /// Starts a request that carries its protocol version.
    async fn call_stateless(&mut self, request: &Request) {
        self.stateless_calls.retain(|_, open| !open.is_closed());
        let admitted = match self.stateless_calls.contains_key(&request.id) {
            true => Err(Error::InvalidRequest(format!("a request with the id {} is in flight", request.id))),
            false => self.check_room(),
        };
        if let Err(error) = admitted {
            return self.reject(Some(&request.id_as_written()), &error).await;
        }
        let (cancel, cancelled) = oneshot::channel();
        self.stateless_calls.insert(request.id.detached(), cancel);
        let (bridge, request, output) = (Arc::clone(&self.bridge), request.clone(), self.output.clone());
        match request.method {
            Method::Listen => self.calls.spawn(worker::watched(listen::listen(bridge, request, output, cancelled))),
            _ => self.calls.spawn(worker::watched(stateless::call_stateless(bridge, request, output, cancelled))),
        };
    }

    fn check_room(&mut self) -> Result<(), Error> {
        while self.calls.try_join_next().is_some() {}
        match self.calls.len() < MAX_CALLS {
            true => Ok(()),
            false => Err(Error::LimitExceeded { limit: "open requests of one client", value: MAX_CALLS }),
        }
    }

    async fn begin(&mut self, mut outgoing: ClientMessage) {
        if let Err(error) = self.check_room() {
            for id in outgoing.waiting() {
                self.reject(Some(&id), &error).await;
            }
            return;
        }
        if let ClientMessageKind::Request(_, Method::SetLevel) = outgoing.kind {
            *self.bridge.level.lock() = Some(outgoing.body.clone());
        }
        let is_declared = self.bridge.handshake.get().is_some_and(|handshake| handshake.declares_subscriptions);
        self.bridge.subscriptions().observe(&mut outgoing, is_declared);
        let (cancel, cancelled) = oneshot::channel();
        if let ClientMessageKind::Request(id, _) = &outgoing.kind {
            self.open.retain(|_, open| !open.is_closed());
            self.open.insert(id.clone(), cancel);
        }
        self.calls.spawn(worker::watched(call::call(
            Arc::clone(&self.bridge),
            outgoing,
            self.output.clone(),
            cancelled,
        )));
    }
}

impl Bridge {
    /// Sends a message and forwards the responses. Removes every answered id from `waiting`.
    async fn forward(
        &self,
        outgoing: &ClientMessage,
        output: &ClientOutput,
        waiting: &mut Vec<Id>,
        progress: &SendProgress,
    ) -> Result<(), Error> {
        for _ in 0..MAX_ATTEMPTS {
            if progress.is_cancelled() {
                return Ok(());
            }
            let session = self.session.borrow().clone();
            let response = self.wire.post(outgoing.body.clone(), &session.headers).await;
            let response = response.map_err(|error| self.unreachable(&error))?;
            match response.status() {
                // The gateway does not know the session, so it did not handle the message. Sending it again is safe.
                StatusCode::NOT_FOUND if session.exists() => self.renewed(&session).await?,
                status if status.is_success() => {
                    progress.arrive();
                    return self
                        .forward_answers(ResponseMessages::new(response), &session, output, waiting, progress)
                        .await;
                }
                _ => return self.forward_rejection(response, output, waiting).await,
            }
        }
        Err(self.unavailable(format!("the gateway lost the session {MAX_ATTEMPTS} times in a row"), false))
    }

    /// Sends a message that the client does not wait for. Failures are only logged.
    async fn forward_with_timeout(&self, outgoing: &ClientMessage, output: &ClientOutput) {
        let forwarded = tokio::time::timeout(
            SIDE_TIMEOUT,
            self.forward(outgoing, output, &mut Vec::new(), &SendProgress::default()),
        )
        .await;
        match forwarded {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the gateway did not accept a message"),
            Err(_) => tracing::debug!("the gateway did not accept a message in time"),
        }
    }

    /// Forwards the messages of a response until every id in `waiting` is answered. Resumes a stream that breaks
    /// earlier.
    async fn forward_answers(
        &self,
        answers: ResponseMessages,
        session: &GatewaySession,
        output: &ClientOutput,
        waiting: &mut Vec<Id>,
        progress: &SendProgress,
    ) -> Result<(), Error> {
        let awaits_some = !waiting.is_empty();
        let mut stream = ResponseStream::new(answers, session);
        loop {
            let next = stream.next();
            let next = match awaits_some && waiting.is_empty() {
                // Every request is answered. Read the rest of the stream for a short time only.
                true => tokio::time::timeout(SIDE_TIMEOUT, next).await.unwrap_or(Ok(None)),
                false => next.await,
            };
            let message = match next {
                Ok(Some(message)) => message,
                Ok(None) | Err(BodyError::Lost) if waiting.is_empty() => return Ok(()),
                Ok(None) => {
                    stream.resume(self, "the answer ended early").await?;
                    continue;
                }
                Err(lost @ BodyError::Lost) => {
                    stream.resume(self, &lost.to_string()).await?;
                    continue;
                }
                Err(error @ BodyError::TooLarge) => return Err(self.unavailable(error.to_string(), true)),
            };
            let Ok(messages) = GatewayMessage::read(message, waiting) else {
                tracing::debug!("the gateway sent data that is not a message; dropped");
                continue;
            };
            for message in messages {
                if progress.is_cancelled() {
                    continue;
                }
                let message = match message {
                    GatewayMessage::Answer(answer) => GatewayMessage::Answer(self.settle_subscription(answer, session)),
                    other => other,
                };
                if let Err(OutputClosed) = self.deliver(message, session, output).await {
                    return Ok(());
                }
            }
        }
    }

    /// Forwards the error of a response with a failing HTTP status.
    async fn forward_rejection(
        &self,
        response: wire::GatewayResponse,
        output: &ClientOutput,
        waiting: &mut Vec<Id>,
    ) -> Result<(), Error> {
        let answer = self.rejection(response, waiting).await?;
        waiting.clear();
        let _ = output.send(answer).await;
        Ok(())
    }

    /// Returns the JSON-RPC error of a response with a failing HTTP status, under the id that the client waits for.
    /// Returns an error if the body has no such error.
    async fn rejection(&self, response: wire::GatewayResponse, waiting: &[Id]) -> Result<Bytes, Error> {
        let status = response.status();
        let body = ResponseMessages::new(response).next_message().await.ok().flatten().unwrap_or_default();
        let is_ours = !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        message::rejection(body, waiting).filter(|_| is_ours).ok_or_else(|| self.wire.rejection_error(status, None))
    }

    /// Sends `initialize` with these bytes. Returns the headers of the new session, the response, and the negotiated
    /// version. The version is `None` if the response is an error.
    async fn exchange_handshake(
        &self,
        initialize_request: &Bytes,
        output: &ClientOutput,
    ) -> Result<(HeaderMap, Bytes, Option<String>), Error> {
        let exchange = async {
            let response = self.wire.post(initialize_request.clone(), &HeaderMap::new()).await;
            let response = response.map_err(|error| self.unreachable(&error))?;
            let (status, session) = (response.status(), GatewayConnection::session_of(&response));
            let new_session = self.session.borrow().next(GatewayConnection::session_headers(session.clone(), None));
            let lost = |error: BodyError| self.unavailable(error.to_string(), true);
            let mut answers = ResponseMessages::new(response);
            loop {
                let answer = answers.next_message().await.map_err(lost)?;
                let Some(answer) = answer else { return Err(self.wire.rejection_error(status, None)) };
                let response = message::response(&answer);
                if !status.is_success() {
                    return Err(self
                        .wire
                        .rejection_error(status, response.as_ref().and_then(message::error_message).as_deref()));
                }
                if let Some(response) = response {
                    let version = message::version(&response);
                    return Ok((GatewayConnection::session_headers(session, version.as_deref()), answer, version));
                }
                for message in GatewayMessage::read(answer, &mut Vec::new()).unwrap_or_default() {
                    let _ = self.deliver(message, &new_session, output).await;
                }
            }
        };
        let timed_out = || self.unavailable("the gateway did not answer the handshake in time".to_owned(), false);
        tokio::time::timeout(session::HANDSHAKE_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Deletes the session at the gateway.
    async fn end(&self) {
        let session = self.session.borrow().clone();
        if session.exists() {
            let _ = tokio::time::timeout(SIDE_TIMEOUT, self.wire.delete(&session.headers)).await;
        }
    }

    fn unreachable(&self, error: &crate::connect::RequestError) -> Error {
        let sent = !error.is_safe_to_retry();
        let cure = match self.handshake.get() {
            Some(_) => "start the gateway again (goblin serve), then this client continues",
            None => "start the gateway first (goblin serve)",
        };
        self.unavailable(format!("{error}; {cure}"), sent)
    }

    fn unavailable(&self, reason: String, sent: bool) -> Error {
        Error::BackendUnavailable { server: self.wire.url(), reason, sent }
    }
}
