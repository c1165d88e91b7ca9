//! The listeners of the gateway: a TCP port, a Unix socket, or both.

use std::io;

use goblin_client::connect::Socket;
use goblin_telemetry::Observe;
use tokio::net::TcpListener;

use crate::app::socket::SocketListener;
use crate::front::peer_timeout::{PEER_TIMEOUT, set_peer_timeout};

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
    pub async fn accept(&self, observe: &Observe) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Socket::Tcp(stream)),
            Listener::Socket(listener) => listener.accept(observe).await.map(Socket::Unix),
        }
    }
}

/// Sets the options of a TCP connection. The connection works without them, so errors are ignored: small answers are
/// slower, or a dead connection stays open longer.
pub(crate) fn set_options(socket: &Socket) {
    let Socket::Tcp(stream) = socket else { return };
    // Nagle's algorithm would delay small answers until an acknowledgement arrives.
    let _ = stream.set_nodelay(true);
    // The default timeouts keep a stream to a vanished peer open for a quarter of an hour, or forever.
    let _ = set_peer_timeout(stream, PEER_TIMEOUT);
}
