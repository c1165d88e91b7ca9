//! A connection that closes if its peer stops reading or disappears.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::front::activity::ConnectionActivity;

/// The time after which a connection closes if its peer does not read or has disappeared.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of unanswered keep-alive probes after which a peer counts as gone.
const PROBES: u32 = 3;
/// The smallest unit of the system's probe times.
const SECOND: Duration = Duration::from_secs(1);

/// Sets the socket options that close the connection after `timeout` if the peer disappears, as after a pulled cable.
///
/// Writes do not detect this, because the system's buffer accepts small messages for hours. Linux counts the time of
/// unacknowledged data. If no data is in flight, and on other systems, unanswered keep-alive probes detect it.
pub(crate) fn set_peer_timeout(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let (idle, pause) = (timeout / 2, timeout / 2 / PROBES);
    let probes = TcpKeepalive::new().with_time(idle.max(SECOND)).with_interval(pause.max(SECOND)).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(timeout))?;
    Ok(())
}

/// A stream that fails a write if the peer does not read for [`PEER_TIMEOUT`].
pub(crate) struct WriteTimeoutStream<T> {
    inner: T,
    activity: Arc<ConnectionActivity>,
    /// The timer of a blocked write.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeoutStream<T> {
    pub(crate) fn new(inner: T, activity: Arc<ConnectionActivity>) -> WriteTimeoutStream<T> {
        WriteTimeoutStream { inner, activity, waiting: None }
    }

    fn apply_timeout<R>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(PEER_TIMEOUT)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.record_bytes();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.apply_timeout(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.apply_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.apply_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.inner).poll_shutdown(context);
        self.apply_timeout(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_to_a_peer_that_does_not_read_times_out() {
        let (near, _far) = tokio::io::duplex(16);
        let mut near = WriteTimeoutStream::new(near, ConnectionActivity::new(std::time::Instant::now()));
        let begin = tokio::time::Instant::now();
        let error = near.write_all(&[0; 64]).await.expect_err("the peer does not read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), PEER_TIMEOUT);
    }

    /// Returns a connection with a far end that acknowledges nothing, because a socket filter drops all packets it
    /// receives.
    #[cfg(target_os = "linux")]
    async fn half_open() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let far = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("the listener accepts");
        let (near, _) = listener.accept().await.expect("a connection");
        let drop_all = socket2::SockFilter::new(6, 0, 0, 0);
        SockRef::from(&far).attach_filter(&[drop_all]).expect("a filter");
        (near, far)
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn sess2_a_connection_to_a_vanished_peer_times_out_with_or_without_pending_data() {
        for message in [&b": keep-alive"[..], b""] {
            let (mut near, _far) = half_open().await;
            set_peer_timeout(&near, 2 * SECOND).expect("the options exist");
            near.write_all(message).await.expect("the message fits the buffer");
            let error = near.read(&mut [0]).await.expect_err("the peer does not acknowledge");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{message:?}");
        }
    }
}
