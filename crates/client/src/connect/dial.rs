//! Opens a connection to an origin, or explains in words why that failed.
//!
//! This module runs the steps (TCP, the proxy's tunnel, TLS) in order, under one timeout. It decides nothing:
//! [`connect`](super) provides origin, route and TLS. It does not pool connections; `pool` does.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Intercept;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError};
use tower_service::Service;

use crate::connect::reach::Reach;
use crate::connect::resolver::{OutOfReach, Resolver};
use crate::connect::socket::Socket;

/// The timeout from the name lookup to the end of the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The idle time after which TCP probes the peer. The probes detect a peer that vanished while a stream is open and
/// silent.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// The interval between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of unanswered probes after which the connection fails.
const KEEPALIVE_PROBES: u32 = 3;

type TcpConnector = HttpConnector<Resolver>;

/// The scheme, host and port of a connection.
#[derive(PartialEq, Eq)]
pub(crate) struct Origin {
    pub is_https: bool,
    /// The host in lower case. An IPv6 address is in brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    pub(crate) fn of(uri: &Uri) -> Option<Origin> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Origin { is_https, host, port })
    }

    /// Returns the value of the `Host` header, without a default port.
    pub(crate) fn authority(&self) -> String {
        match (self.is_https, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

pub(crate) fn tcp_connector(reach: Option<Reach>) -> TcpConnector {
    let mut connector = HttpConnector::new_with_resolver(Resolver::new(reach));
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(TCP_KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    // The timeout is divided among the addresses of a name, so a dead first address leaves time for the second.
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector
}

/// Opens connections to one origin.
pub(crate) struct Dialer {
    /// A URI at the origin.
    target: Uri,
    tcp: TcpConnector,
    route: DialRoute,
    tls: Option<Tls>,
    /// The address of the last direct connection.
    last_peer: Mutex<Option<IpAddr>>,
}

/// The path of a connection.
pub(crate) enum DialRoute {
    Direct,
    /// To a proxy that reads the request, which is plain HTTP.
    Forward {
        proxy: Uri,
    },
    /// Through a proxy that learns only the name of the origin. The connection uses TLS.
    Tunnel {
        proxy: Uri,
        tunnel: Box<Tunnel<TcpConnector>>,
    },
    /// To a Unix socket of this machine.
    Socket {
        path: PathBuf,
    },
}

pub(crate) struct Tls {
    pub connector: TlsConnector,
    pub name: ServerName<'static>,
}

impl DialRoute {
    pub(crate) fn tunnel(proxy: &Intercept, tcp: &TcpConnector) -> DialRoute {
        let tunnel = Tunnel::new(proxy.uri().clone(), tcp.clone());
        DialRoute::Tunnel {
            proxy: proxy.uri().clone(),
            tunnel: Box::new(match proxy.basic_auth() {
                Some(authorization) => tunnel.with_auth(authorization.clone()),
                None => tunnel,
            }),
        }
    }

    fn proxy(&self) -> Option<&Uri> {
        match self {
            DialRoute::Direct | DialRoute::Socket { .. } => None,
            DialRoute::Forward { proxy } | DialRoute::Tunnel { proxy, .. } => Some(proxy),
        }
    }
}

/// The reason why a connection could not be opened. The message contains the whole cause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(
        "no connection within {} (can this machine reach the server? is there a firewall or proxy?)",
        goblin_wire::units::duration(CONNECT_TIMEOUT)
    )]
    TimedOut,
    #[error("{0}")]
    Direct(String),
    #[error("proxy {proxy}: {cause}")]
    Proxy { proxy: Uri, cause: String },
    #[error("TLS: {0}{cure}", cure = tls_cure(.0))]
    Tls(io::Error),
    #[error(
        "the certificate is signed by an unknown CA (if the CA is your own, name its PEM file in the configuration)"
    )]
    UnknownIssuer,
}

impl Dialer {
    pub(crate) fn new(target: Uri, tcp: TcpConnector, route: DialRoute, tls: Option<Tls>) -> Dialer {
        Dialer { target, tcp, route, tls, last_peer: Mutex::new(None) }
    }

    pub(crate) fn last_peer(&self) -> Option<IpAddr> {
        *self.last_peer.lock()
    }

    /// Opens a connection. Returns an error after [`CONNECT_TIMEOUT`].
    pub(crate) async fn dial(&self) -> Result<Socket, DialError> {
        timeout(CONNECT_TIMEOUT, self.connect()).await.unwrap_or(Err(DialError::TimedOut))
    }

    async fn connect(&self) -> Result<Socket, DialError> {
        let target = self.target.clone();
        let tcp = match &self.route {
            DialRoute::Direct => call(self.tcp.clone(), target).await,
            DialRoute::Forward { proxy } => call(self.tcp.clone(), proxy.clone()).await,
            DialRoute::Tunnel { tunnel, .. } => call(Tunnel::clone(tunnel), target).await,
            DialRoute::Socket { path } => {
                return connect_socket(path).await.map(Socket::Unix).map_err(DialError::Direct);
            }
        };
        let tcp = tcp.map_err(|cause| match self.route.proxy().cloned() {
            Some(proxy) => DialError::Proxy { proxy, cause },
            None => DialError::Direct(cause),
        })?;
        let tcp = tcp.into_inner();
        let peer = match self.route {
            DialRoute::Direct => tcp.peer_addr().ok().map(|address| address.ip()),
            DialRoute::Forward { .. } | DialRoute::Tunnel { .. } | DialRoute::Socket { .. } => None,
        };
        let socket = match &self.tls {
            None => Socket::Tcp(tcp),
            Some(Tls { connector, name }) => match connector.connect(name.clone(), tcp).await {
                Ok(tls) => Socket::Tls(Box::new(tls)),
                Err(error) if is_unknown_issuer(&error) => return Err(DialError::UnknownIssuer),
                Err(error) => return Err(DialError::Tls(error)),
            },
        };
        // Over TLS the peer has proved its name by now.
        *self.last_peer.lock() = peer;
        Ok(socket)
    }
}

/// Connects to a Unix socket and checks that this user or root serves it. Another user that
/// places a socket there must not receive requests.
async fn connect_socket(path: &Path) -> Result<UnixStream, String> {
    let connected = UnixStream::connect(path).await.and_then(|stream| Ok((stream.peer_cred()?.uid(), stream)));
    let own = rustix::process::geteuid().as_raw();
    match connected {
        Ok((uid, stream)) if uid == own || uid == 0 || own == 0 => Ok(stream),
        Ok((uid, _)) => Err(format!("the gateway there belongs to the user with uid {uid}, not to you")),
        Err(error) => {
            let cure = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => " (is the gateway running?)",
                io::ErrorKind::PermissionDenied => " (does the socket belong to another user?)",
                _ => "",
            };
            Err(format!("{}{cure}", plain(&error)))
        }
    }
}

fn is_unknown_issuer(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(error, Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)))
}

/// Waits until a service is ready and calls it. Returns an error as text.
async fn call<S>(mut service: S, destination: Uri) -> Result<S::Response, String>
where
    S: Service<Uri, Error: Error + 'static>,
{
    let outcome = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(destination).await,
        Err(error) => Err(error),
    };
    outcome.map_err(|error| format!("{}{}", innermost(&error), cure(&error)))
}

/// Returns advice for a failed connection, or an empty text.
fn cure(error: &(dyn Error + 'static)) -> &'static str {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<io::Error>().and_then(io::Error::get_ref).is_some_and(|it| it.is::<OutOfReach>()) {
            return "";
        }
        // hyper does not export the type of this error.
        if error.to_string() == "dns error" {
            return " (is the host name in the url right?)";
        }
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if kind == Some(io::ErrorKind::ConnectionRefused) {
            return " (is the server running, and on this port?)";
        }
        next = error.source();
    }
    ""
}

fn tls_cure(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|it| it.downcast_ref()) {
        Some(rustls::Error::InvalidMessage(_)) => " (does the server use TLS? if not, write http: in the url)",
        Some(rustls::Error::InvalidCertificate(_)) => " (is the certificate valid for the host in the url?)",
        _ => "",
    }
}

/// Returns the innermost cause of an error ("connection refused"). The outer ones only name the place.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    plain(error)
}

/// Returns all causes of an error, outermost first.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = plain(error);
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {}", plain(error));
        next = error.source();
    }
    text
}

/// Returns an error of the operating system without its number and its capital letter.
fn plain(error: &(dyn Error + 'static)) -> String {
    let text = error.to_string();
    let Some((text, _)) = text.split_once(" (os error ") else {
        return text;
    };
    let mut text = text.to_owned();
    if let Some(initial) = text.get_mut(..1) {
        initial.make_ascii_lowercase();
    }
    text
}
