//! A pool of HTTP/1.1 connections to one origin. Each connection carries one request at a time.
//!
//! The pool of hyper-util supports many origins: it hashes the origin of a request three times and starts a task per
//! response to detect its end. Here the response body returns its connection, which saves several thousand instructions
//! per small call.
//!
//! The pool reuses the connection that was returned last, so surplus connections stay idle. It closes idle connections
//! after [`IDLE_TIMEOUT`], and never keeps more than [`MAX_IDLE`].

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
const SOON: Duration = Duration::from_millis(100);

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

    /// Sends a request on an idle connection or on a new one. If a connection is ready, the request is passed on before
    /// the future is returned. A future that holds the request would be moved together with it.
    pub(crate) fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, SendError>> {
        let Some(mut connection) = self.idle.take_ready() else {
            return Either::Right(Box::pin(self.send_late(request)));
        };
        Either::Left(connection.try_send_request(request).then(move |sent| match sent {
            Ok(response) => Either::Left(ready(Ok(self.received(response, connection)))),
            Err(mut error) => match error.take_message() {
                // The peer closed the connection while it was idle.
                Some(unsent) => Either::Right(Box::pin(self.send_late(unsent))),
                None => Either::Left(ready(Err(SendError::Sent(error.into_error())))),
            },
        }))
    }

    /// Sends a request for which no connection was ready at once.
    async fn send_late(&self, mut request: Request<Full<Bytes>>) -> Result<Response<ResponseBody>, SendError> {
        while let Some(mut connection) = self.idle.take() {
            if !is_ready_soon(&mut connection).await {
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
        IdlePool::keep_swept(&self.idle);
        Ok(connection)
    }

    fn received(&self, response: Response<Incoming>, connection: PooledConnection) -> Response<ResponseBody> {
        response.map(|body| {
            let mut received = ResponseBody { body, way_back: Some((connection, Arc::clone(&self.idle))) };
            if received.body.is_end_stream() {
                received.give_back();
            }
            received
        })
    }
}

/// Reports whether a returned connection becomes ready within [`SOON`]. It may not have processed the end of its
/// response yet. It never becomes ready if it is closed or if the peer answered before it read the whole request.
async fn is_ready_soon(connection: &mut PooledConnection) -> bool {
    matches!(tokio::time::timeout(SOON, connection.ready()).await, Ok(Ok(())))
}

/// Returns the connection unless it was idle for too long.
fn young(
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
        let mut shelf = self.0.lock();
        let place = shelf.waiting.iter().rposition(|(connection, _)| connection.is_ready())?;
        young(shelf.waiting.remove(place), &mut shelf.waiting)
    }

    fn take(&self) -> Option<PooledConnection> {
        let mut shelf = self.0.lock();
        let last = shelf.waiting.pop()?;
        young(last, &mut shelf.waiting)
    }

    fn put(&self, connection: PooledConnection) {
        let mut shelf = self.0.lock();
        if !connection.is_closed() && shelf.waiting.len() < MAX_IDLE {
            shelf.waiting.push((connection, Instant::now()));
        }
    }

    /// Starts the task that closes expired connections, unless it runs already. The task ends with the pool.
    fn keep_swept(idle: &Arc<IdlePool>) {
        if std::mem::replace(&mut idle.0.lock().is_swept, true) {
            return;
        }
        let idle = Arc::downgrade(idle);
        worker::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_TIMEOUT / 2).await;
                let Some(idle) = Weak::upgrade(&idle) else { return };
                let is_young = |(connection, since): &(PooledConnection, Instant)| {
                    !connection.is_closed() && since.elapsed() < IDLE_TIMEOUT
                };
                idle.0.lock().waiting.retain(is_young);
            }
        });
    }
}

/// The body of a response. Its connection goes back to the pool when the body ends or is dropped. A connection that
/// cannot be reused then closes by itself.
pub struct ResponseBody {
    body: Incoming,
    way_back: Option<(PooledConnection, Arc<IdlePool>)>,
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

    fn give_back(&mut self) {
        if let Some((connection, idle)) = self.way_back.take() {
            idle.put(connection);
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.give_back();
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
            self.give_back();
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
