//! A backend as a child process, with one message per line on stdin and stdout.
//!
//! Each link has four tasks: the writer, the readers of stdout and stderr, and one that watches the process. Each
//! notification stream has one more (`listen`). The reader never waits for the writer, so the gateway still receives
//! messages of a child that stops reading.
//!
//! If the queue to the child is full, a request waits for [`QUEUE_TIMEOUT`] and then fails as overloaded. A response
//! to a server request waits as long and is then dropped. Other messages are dropped at once.

mod listen;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use goblin_config::visible::without_styles;
use goblin_telemetry::{Event, worker};
use goblin_wire::framing::{Frame, LineDecoder};
use goblin_wire::json::single_line;
use goblin_wire::{Message, Method, Response};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::call::Call;
use crate::upstream::cause::MAX_EXAMINED_LINES;
use crate::upstream::child::{self, ChildCommand, Exit, ProcessGroup, SpawnError};
use crate::upstream::guard;
use crate::upstream::inbound::{InboundHandler, ReplySink};
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::open_requests::LinkRequests;
use crate::upstream::problem::{BackendProblem, quotable};

/// The longest wait of a request for space in the queue to the child.
pub(crate) const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
const QUEUE_MESSAGES: usize = 1024;
/// The unit in which the queue counts bytes. [`QUEUE_UNITS`] is the limit.
const QUEUE_UNIT: usize = 1024;
const QUEUE_UNITS: u32 = 32 * 1024;
/// The writer combines messages up to this size into one system call.
const WRITE_BATCH: usize = 64 * 1024;
const MAX_STDERR_LINE: usize = 16 * 1024;
/// The number of bytes of an invalid line that are examined for quoting it.
const MAX_QUOTED_BYTES: usize = 4 * 1024;
/// The wait for the last output of a process that exited, and for the exit of a process that closed a pipe.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A link to a child process.
pub struct StdioLink {
    shared: Arc<StdioLinkInner>,
    /// The id of the guard that runs the process.
    guard: u32,
    /// Ends the process when it becomes `true` or is dropped. The task that watches the process holds the receiver.
    stop: watch::Sender<bool>,
}

struct StdioLinkInner {
    inbound: Arc<InboundHandler>,
    command: ChildCommand,
    queue: mpsc::Sender<QueuedLine>,
    capacity: Arc<Semaphore>,
    open: LinkRequests,
    is_retry: bool,
    /// Whether the process has sent a response and so is an MCP server.
    has_responded: AtomicBool,
    output: Mutex<ProcessOutput>,
}

/// Output of the process besides protocol messages. It helps to explain why the process ended.
#[derive(Default)]
struct ProcessOutput {
    /// The last lines on stderr.
    last_lines: VecDeque<String>,
    /// The first line on stdout that was not a message.
    stray_line: Option<String>,
}

type QueuedLine = (Bytes, OwnedSemaphorePermit);

impl StdioLink {
    /// Starts the process. `limit` is the largest size of a message. `is_retry` lowers the log level of stderr lines
    /// until the first response, because they repeat those of the previous attempt.
    pub fn start(
        exe: &Path,
        command: ChildCommand,
        limit: usize,
        inbound: Arc<InboundHandler>,
        is_retry: bool,
    ) -> Result<StdioLink, SpawnError> {
        let child = child::spawn(exe, &command)?;
        let (queue, queued) = mpsc::channel(QUEUE_MESSAGES);
        let shared = Arc::new(StdioLinkInner {
            open: LinkRequests::new(Arc::clone(&inbound)),
            inbound,
            command,
            queue,
            capacity: Arc::new(Semaphore::new(QUEUE_UNITS as usize)),
            is_retry,
            has_responded: AtomicBool::new(false),
            output: Mutex::default(),
        });
        let writer = worker::spawn(write(queued, child.stdin));
        let reader = worker::spawn(read(Arc::clone(&shared), child.stdout, limit));
        let stderr = worker::spawn(read_stderr(Arc::clone(&shared), child.stderr));
        let (stop, stopped) = watch::channel(false);
        let output = OutputTasks { stdout: reader, stderr };
        let guard = child.process.id();
        worker::spawn(watch_process(Arc::clone(&shared), child.process, writer, output, stopped));
        Ok(StdioLink { shared, guard, stop })
    }

    /// Sends a request and waits for its response. The caller limits the wait by dropping the future.
    pub async fn request(&self, id: u64, body: Bytes, call: Option<&Arc<Call>>) -> Result<Response, LinkError> {
        let (slot, answered) = self.shared.open.expect_answer(id, call)?;
        self.shared.send(body).await?;
        let answer = answered.await.unwrap_or_else(|_| Err(self.shared.open.lost_error(true)));
        drop(slot);
        answer
    }

    /// Returns the id of the process. Returns `None` if the process has ended.
    pub(crate) fn process_id(&self) -> Option<u32> {
        guard::command_of(self.guard)
    }

    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        self.shared.send(body).await
    }

    /// Returns the first line on stdout that was not a message, if any.
    pub fn stray_line(&self) -> Option<String> {
        self.shared.output.lock().stray_line.clone()
    }

    pub async fn closed(&self) -> LinkEnd {
        self.shared.open.closed().await
    }

    /// Ends the process and waits for its end.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        // A panic of the task was already reported. The guard ends the process group in either case.
        self.stop.closed().await;
    }
}

impl StdioLinkInner {
    /// Reports a line of stderr and keeps the last ones.
    fn on_stderr_line(&self, line: &str) {
        let repeated = self.is_retry && !self.has_responded.load(Ordering::Relaxed);
        // Many programs colour their log, even if no terminal reads it.
        let line = without_styles(line);
        self.inbound.emit(&Event::BackendStderr { server: self.inbound.server(), line: &line, repeated });
        let line = quotable(&line);
        let mut output = self.output.lock();
        if !line.is_empty() {
            output.last_lines.push_back(line);
        }
        if output.last_lines.len() > MAX_EXAMINED_LINES {
            output.last_lines.pop_front();
        }
    }

    /// Returns an explanation for the end of the process.
    fn explain_exit(&self, exit: Exit) -> String {
        let (last_lines, stray_line) = {
            let output = self.output.lock();
            (output.last_lines.iter().cloned().collect::<Vec<_>>(), output.stray_line.clone())
        };
        let stray_line = stray_line.as_deref().filter(|_| !self.has_responded.load(Ordering::Relaxed));
        let missing = self.command.missing_variables(self.inbound.server(), &last_lines);
        BackendProblem::Ended { exit, last_lines: &last_lines, stray_line, missing: &missing }.to_string()
    }

    /// Queues a message and waits for space for at most [`QUEUE_TIMEOUT`].
    async fn send(&self, body: Bytes) -> Result<(), LinkError> {
        match self.try_send(&body) {
            Err(LinkError::Overloaded) => {}
            outcome => return outcome,
        }
        let waited = tokio::time::timeout(QUEUE_TIMEOUT, async {
            let permit = Arc::clone(&self.capacity).acquire_many_owned(units(&body)).await.ok()?;
            self.queue.send((single_line(body), permit)).await.ok()
        });
        match waited.await {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(self.open.lost_error(false)),
            Err(_) => Err(LinkError::Overloaded),
        }
    }

    /// Queues a message without waiting.
    fn try_send(&self, body: &Bytes) -> Result<(), LinkError> {
        let permit =
            Arc::clone(&self.capacity).try_acquire_many_owned(units(body)).map_err(|_| LinkError::Overloaded)?;
        self.queue.try_send((single_line(body.clone()), permit)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LinkError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => self.open.lost_error(false),
        })
    }

    /// Handles one line of stdout.
    fn on_line(self: &Arc<StdioLinkInner>, line: Bytes) {
        let quoted = (!self.has_responded.load(Ordering::Relaxed)).then(|| line.clone());
        match Message::parse(self.inbound.charge(line)) {
            Ok(Message::Response(response)) => {
                self.has_responded.store(true, Ordering::Relaxed);
                self.open.on_response(response);
            }
            Ok(Message::Notification(notification)) => {
                if !self.open.on_stream_notification(&notification) {
                    self.open.on_notification(&notification, || self.open.attribution());
                }
            }
            Ok(Message::Request(request)) if quoted.is_some() && is_handshake(&request.method) => {
                self.open.close(LinkEnd::Lost(BackendProblem::Echo.to_string()));
            }
            Ok(Message::Request(request)) => {
                self.inbound.on_request(request, self.open.attribution(), Arc::clone(self) as _)
            }
            Err(malformed) => {
                let mut reason = malformed.error.to_string();
                if let Some(line) = quoted {
                    let line = quotable(&String::from_utf8_lossy(&line[..line.len().min(MAX_QUOTED_BYTES)]));
                    let _ = write!(reason, ": {line:?}");
                    self.output.lock().stray_line.get_or_insert(line);
                }
                self.open.on_malformed(&malformed, &reason);
            }
        }
    }
}

impl ReplySink for StdioLinkInner {
    fn send_or_drop(&self, message: Bytes) {
        if self.try_send(&message).is_err() {
            self.inbound.emit(&Event::ReplyDropped { server: self.inbound.server() });
        }
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(LinkError::Overloaded) = self.send(message).await {
                self.inbound.emit(&Event::ReplyDropped { server: self.inbound.server() });
            }
        })
    }
}

/// Reports whether only clients send this request. A program that returns it repeats its input.
fn is_handshake(method: &Method) -> bool {
    matches!(method, Method::Initialize | Method::Discover)
}

/// Returns the queue units of a message. A message of any size fits into an empty queue.
fn units(body: &Bytes) -> u32 {
    u32::try_from(body.len() / QUEUE_UNIT + 1).unwrap_or(QUEUE_UNITS).min(QUEUE_UNITS)
}

/// Writes queued messages to the child's stdin in batches.
async fn write(mut queued: mpsc::Receiver<QueuedLine>, mut stdin: ChildStdin) {
    let mut batch = BytesMut::new();
    let mut permits = Vec::new();
    while let Some(first) = queued.recv().await {
        let mut next = Some(first);
        while let Some((message, permit)) = next {
            batch.extend_from_slice(&message);
            batch.extend_from_slice(b"\n");
            permits.push(permit);
            next = if batch.len() < WRITE_BATCH { queued.try_recv().ok() } else { None };
        }
        if stdin.write_all(&batch).await.is_err() {
            // The process closed its stdin, which ends the link.
            return;
        }
        batch.clear();
        permits.clear();
    }
}

async fn read(shared: Arc<StdioLinkInner>, stdout: ChildStdout, limit: usize) {
    each_line(stdout, limit, |frame| match frame {
        Frame::Whole(line) => shared.on_line(line),
        Frame::TooLong { head } => shared.open.on_too_long(&head),
    })
    .await;
}

async fn read_stderr(shared: Arc<StdioLinkInner>, stderr: ChildStderr) {
    each_line(stderr, MAX_STDERR_LINE, |frame| {
        let (Frame::Whole(line) | Frame::TooLong { head: line }) = frame;
        shared.on_stderr_line(&String::from_utf8_lossy(&line));
    })
    .await;
}

async fn each_line(mut source: impl AsyncRead + Unpin, limit: usize, mut on_line: impl FnMut(Frame<Bytes>)) {
    let mut lines = LineDecoder::new(limit);
    while let Ok(1..) = source.read_buf(lines.buffer()).await {
        while let Some(frame) = lines.take() {
            on_line(frame);
        }
    }
}

/// Watches the process until it ends, closes a pipe or is stopped. Then closes the link and ends the process.
async fn watch_process(
    shared: Arc<StdioLinkInner>,
    mut process: ProcessGroup,
    mut writer: JoinHandle<()>,
    mut output: OutputTasks,
    mut stopped: watch::Receiver<bool>,
) {
    let reason = tokio::select! {
        exit = process.wait() => {
            output.drain().await;
            shared.explain_exit(exit)
        }
        _ = &mut output.stdout => {
            let exit = exit_of(&mut process).await;
            // A process that ended has closed both pipes.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, &mut output.stderr).await;
            exit.map_or_else(|| "it closed its stdout".to_owned(), |exit| shared.explain_exit(exit))
        }
        _ = &mut writer => {
            let exit = exit_of(&mut process).await;
            output.drain().await;
            exit.map_or_else(|| "it closed its stdin".to_owned(), |exit| shared.explain_exit(exit))
        }
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
            "the gateway closed the connection".to_owned()
        }
    };
    shared.open.close(LinkEnd::Lost(reason));
    // A closed stdin is the protocol's request to exit.
    writer.abort();
    if !writer.is_finished() {
        let _ = writer.await;
    }
    process.end().await;
    output.stdout.abort();
}

/// The tasks that read the output of a process.
struct OutputTasks {
    stdout: JoinHandle<()>,
    stderr: JoinHandle<()>,
}

impl OutputTasks {
    /// Waits until all remaining output is read, for at most [`DRAIN_TIMEOUT`].
    async fn drain(&mut self) {
        let both = async { tokio::join!(&mut self.stdout, &mut self.stderr) };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, both).await;
    }
}

/// Waits briefly for the exit of a process that closed a pipe. A process that ends closes its pipes first, and its exit
/// status is the better explanation.
async fn exit_of(process: &mut ProcessGroup) -> Option<Exit> {
    tokio::time::timeout(DRAIN_TIMEOUT, process.wait()).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_never_needs_more_than_the_whole_queue() {
        assert_eq!(units(&Bytes::new()), 1);
        assert_eq!(units(&Bytes::from(vec![0; 64 * 1024 * 1024])), QUEUE_UNITS);
    }
}
