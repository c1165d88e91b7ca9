//! A pool of HTTP/1.1 connections to one origin. Each connection carries one request at a time.
//!
//! The pool of hyper-util supports many origins: it hashes the origin of a request three times and starts a task per
//! response to detect its end. Here the response body returns its connection, which saves several thousand instructions
//! per small call.
//!
//! The pool reuses the connection that was returned last, so surplus connections stay idle. It closes idle connections
//! after [`IDLE_TIMEOUT`], and never keeps more than [`MAX_IDLE`].

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{Either, ready};
use goblin_telemetry::worker;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use crate::connect::dial::{DialError, Dialer};

const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_IDLE: usize = 256;
/// The time to wait for a returned connection to become ready.
const READY_TIMEOUT: Duration = Duration::from_millis(100);

/// The sending side of one connection.
type PooledConnection = SendRequest<Full<Bytes>>;

/// The connections to one origin, and the dialer for new ones.
pub(crate) struct Pool {
    dialer: Dialer,
    idle: Arc<IdlePool>,
}

/// The reason why a request got no response.
pub(crate) enum SendError {
    Dial(DialError),
    /// No byte of the request was written.
    Unsent(hyper::Error),
    Sent(hyper::Error),
}

impl Pool {
    pub(crate) fn new(dialer: Dialer) -> Pool {
        Pool { dialer, idle: Arc::default() }
    }

    pub(crate) fn last_peer(&self) -> Option<IpAddr> {
        self.dialer.last_peer()
    }

    /// Sends a request on an idle connection or on a new one. A ready connection takes the
    /// request at once, so the returned future is small and cheap to move.
    pub(crate) fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> {
        let Some(mut connection) = self.idle.take_ready() else {
            return Either::Right(Box::pin(self.send_or_dial(request)));
        };
        Either::Left(connection.try_send_request(request).then(move |sent| match sent {
            Ok(response) => Either::Left(ready(Ok(self.received(response, connection)))),
            Err(mut error) => match error.take_message() {
                // The peer closed the connection while it was idle.
                Some(unsent) => Either::Right(Box::pin(self.send_or_dial(unsent))),
                None => Either::Left(ready(Err(SendError::Sent(error.into_error())))),
            },
        }))
    }

    /// Sends a request for which no connection was ready at once.
    async fn send_or_dial(&self, mut request: Request<Full<Bytes>>) -> Result<Response<ResponseBody>, SendError> {
        while let Some(mut connection) = self.idle.take() {
            if !becomes_ready(&mut connection).await {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(self.received(response, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Sent(error.into_error())),
                },
            }
        }
        let mut connection = self.dial().await?;
        match connection.try_send_request(request).await {
            Ok(response) => Ok(self.received(response, connection)),
            Err(mut error) => Err(match error.take_message() {
                Some(_) => SendError::Unsent(error.into_error()),
                None => SendError::Sent(error.into_error()),
            }),
        }
    }

    async fn dial(&self) -> Result<PooledConnection, SendError> {
        let stream = self.dialer.dial().await.map_err(SendError::Dial)?;
        let (mut connection, driver) = handshake(TokioIo::new(stream)).await.map_err(SendError::Unsent)?;
        // The sender receives the connection's errors, so the driver's result is ignored.
        worker::spawn(async move { drop(driver.await) });
        connection.ready().await.map_err(SendError::Unsent)?;
        IdlePool::start_sweeper(&self.idle);
        Ok(connection)
    }

    fn received(&self, response: Response<Incoming>, connection: PooledConnection) -> Response<ResponseBody> {
        response.map(|body| {
            let mut received = ResponseBody { body, return_to: Some((connection, Arc::clone(&self.idle))) };
            if received.body.is_end_stream() {
                received.return_connection();
            }
            received
        })
    }
}

/// Reports whether a returned connection becomes ready within [`READY_TIMEOUT`]. It may not have processed the end of its
/// response yet. It never becomes ready if it is closed or if the peer answered before it read the whole request.
async fn becomes_ready(connection: &mut PooledConnection) -> bool {
    matches!(tokio::time::timeout(READY_TIMEOUT, connection.ready()).await, Ok(Ok(())))
}

/// Returns the connection unless it was idle for too long.
fn unless_expired(
    (connection, since): (PooledConnection, Instant),
    waiting: &mut Vec<(PooledConnection, Instant)>,
) -> Option<PooledConnection> {
    if since.elapsed() < IDLE_TIMEOUT {
        return Some(connection);
    }
    // All others are older or closed.
    waiting.clear();
    None
}

/// The idle connections. Shared with response bodies, which return their connections here.
#[derive(Default)]
struct IdlePool(Mutex<IdleConnections>);

#[derive(Default)]
struct IdleConnections {
    waiting: Vec<(PooledConnection, Instant)>,
    is_swept: bool,
}

impl IdlePool {
    /// Returns the last returned connection that is ready now.
    fn take_ready(&self) -> Option<PooledConnection> {
        let mut connections = self.0.lock();
        let place = connections.waiting.iter().rposition(|(connection, _)| connection.is_ready())?;
        unless_expired(connections.waiting.remove(place), &mut connections.waiting)
    }

    fn take(&self) -> Option<PooledConnection> {
        let mut connections = self.0.lock();
        let last = connections.waiting.pop()?;
        unless_expired(last, &mut connections.waiting)
    }

    fn put(&self, connection: PooledConnection) {
        let mut connections = self.0.lock();
        if !connection.is_closed() && connections.waiting.len() < MAX_IDLE {
            connections.waiting.push((connection, Instant::now()));
        }
    }

    /// Starts the task that closes expired connections, unless it runs already. The task ends with the pool.
    fn start_sweeper(idle: &Arc<IdlePool>) {
        if std::mem::replace(&mut idle.0.lock().is_swept, true) {
            return;
        }
        let idle = Arc::downgrade(idle);
        worker::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_TIMEOUT / 2).await;
                let Some(idle) = Weak::upgrade(&idle) else { return };
                let is_fresh = |(connection, since): &(PooledConnection, Instant)| {
                    !connection.is_closed() && since.elapsed() < IDLE_TIMEOUT
                };
                idle.0.lock().waiting.retain(is_fresh);
            }
        });
    }
}

/// The body of a response. Its connection goes back to the pool when the body ends or is dropped. A connection that
/// cannot be reused then closes by itself.
pub struct ResponseBody {
    body: Incoming,
    return_to: Option<(PooledConnection, Arc<IdlePool>)>,
}

/// The reason why a body could not be read as a whole.
#[derive(Debug)]
pub enum WholeBodyError {
    Broken(hyper::Error),
    TooLong,
}

impl ResponseBody {
    /// Reads the rest of the body. Returns an error if it has more than `limit` bytes.
    pub async fn whole(&mut self, limit: usize) -> Result<Bytes, WholeBodyError> {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(frame) = self.frame().await {
            let Ok(data) = frame.map_err(WholeBodyError::Broken)?.into_data() else { continue };
            if first.len() + rest.len() + data.len() > limit {
                return Err(WholeBodyError::TooLong);
            }
            // Most bodies arrive in one piece, which is not copied.
            if first.is_empty() && rest.is_empty() {
                let expected = self.size_hint().lower().min(limit as u64) as usize;
                if expected == 0 {
                    first = data;
                } else {
                    rest.reserve(data.len() + expected);
                    rest.extend_from_slice(&data);
                }
            } else {
                if rest.is_empty() {
                    rest.extend_from_slice(&first);
                    first = Bytes::new();
                }
                rest.extend_from_slice(&data);
            }
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    }

    fn return_connection(&mut self) {
        if let Some((connection, idle)) = self.return_to.take() {
            idle.put(connection);
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.return_connection();
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.return_connection();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
