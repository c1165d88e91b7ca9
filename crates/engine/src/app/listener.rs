//! The listeners of the gateway: a TCP port, a Unix socket, or both.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use goblin_telemetry::Observe;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::app::socket::SocketListener;
use crate::front::io::{WRITE_TIMEOUT, give_up_the_vanished};

/// The listeners for clients.
#[derive(Debug, Default)]
pub struct Listeners {
    pub tcp: Option<TcpListener>,
    pub socket: Option<SocketListener>,
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Listeners {
        Listeners { tcp: Some(listener), socket: None }
    }
}

/// One listener of either kind.
pub enum Listener {
    Tcp(TcpListener),
    Socket(SocketListener),
}

impl Listener {
    pub async fn accept(&self, observe: &Observe) -> io::Result<ClientSocket> {
        match self {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| ClientSocket::Tcp(stream)),
            Listener::Socket(listener) => listener.accept(observe).await.map(ClientSocket::Socket),
        }
    }
}

/// A client connection of either kind.
pub enum ClientSocket {
    Tcp(TcpStream),
    Socket(UnixStream),
}

impl ClientSocket {
    /// Sets the options of a TCP connection. The connection works without them, so errors are ignored: small answers
    /// are slower, or a dead connection stays open longer.
    pub(crate) fn set_options(&self) {
        let ClientSocket::Tcp(stream) = self else { return };
        // Nagle's algorithm would delay small answers until an acknowledgement arrives.
        let _ = stream.set_nodelay(true);
        // The default timeouts keep a stream to a vanished peer open for a quarter of an hour, or forever.
        let _ = give_up_the_vanished(stream, WRITE_TIMEOUT);
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientSocket::Socket(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientSocket::Socket(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ClientSocket::Socket(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ClientSocket::Tcp(stream) => stream.is_write_vectored(),
            ClientSocket::Socket(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_flush(context),
            ClientSocket::Socket(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            ClientSocket::Socket(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
