//! Listens on this machine for the browser that returns from a login page.
//!
//! Any page in the browser can send requests here. The listener therefore only hands addresses over, and the login that
//! waits for one checks it. A page shows nothing of its address.
//!
//! An address is handed over after its page was sent: the command that waits for it may end at once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goblin_config::oauth::{Callback, CallbackHost};
use goblin_telemetry::worker;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::LoginError;
use crate::protocol::authorize::MAX_CALLBACK;

/// Makes a page without scripts, links and styles.
macro_rules! page {
    ($title:literal, $text:literal) => {
        concat!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Goblin</title>\n<h1>",
            $title,
            "</h1>\n<p>",
            $text,
            "</p>\n</html>\n"
        )
    };
}

const PATH: &str = "/callback";
const MAX_CONNECTIONS: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of a request's head. It has room for the longest address and for the cookies of other local servers.
const MAX_HEAD: usize = 2 * MAX_CALLBACK;
const MAX_HEADERS: usize = 64;
/// The number of addresses that wait to be read. Further ones are refused.
const MAX_WAITING: usize = 8;
/// How often the listener looks for a port that is free for both versions of IP.
const PORT_ATTEMPTS: usize = 10;
/// The pause after an accept that failed, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const DONE: &str = page!("The browser has done its part", "You can close this window and return to Goblin.");
const NOTHING: &str = page!("This is not the end of a login", "Goblin waits here for a browser that returns from one.");
const BUSY: &str = page!("Too many pages at once", "Begin the login again.");

/// A server for the callbacks of browsers. It ends when it is dropped.
pub struct CallbackListener {
    redirect_uri: String,
    queue: Arc<CallbackQueue>,
    tasks: Vec<JoinHandle<()>>,
}

/// The addresses that browsers opened and no login has read.
struct CallbackQueue {
    waiting: Mutex<VecDeque<PendingCallback>>,
    arrived: Notify,
    places: Arc<Semaphore>,
}

/// An address with its place in the queue.
struct PendingCallback {
    address: String,
    _place: OwnedSemaphorePermit,
}

impl CallbackListener {
    /// Listens on the address of the options. `localhost` listens with both versions of IP.
    pub async fn bind(callback: Callback) -> Result<CallbackListener, LoginError> {
        let port = callback.port.unwrap_or(0);
        let (host, sockets) = match callback.host {
            CallbackHost::Address => ("127.0.0.1", bind_address(port).await),
            CallbackHost::Localhost => ("localhost", bind_localhost(port).await),
        };
        let failed = |error: io::Error| {
            let address = callback.port.map_or(host.to_owned(), |port| format!("{host}:{port}"));
            LoginError::Listener { address, reason: error.to_string() }
        };
        let sockets = sockets.map_err(failed)?;
        let port = sockets[0].local_addr().map_err(failed)?.port();
        let authority: Arc<str> = format!("{host}:{port}").into();
        let queue = Arc::new(CallbackQueue::new());
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let run = |socket| {
            let connections = Connections { authority: Arc::clone(&authority), queue: Arc::clone(&queue) };
            worker::spawn(connections.accept(socket, Arc::clone(&slots)))
        };
        let tasks = sockets.into_iter().map(run).collect();
        Ok(CallbackListener { redirect_uri: format!("http://{authority}{PATH}"), queue, tasks })
    }

    /// Returns the URL of the listener.
    pub fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Returns the address of the next page that the browser opens here with an answer of an authorization server. The
    /// browser shows that it can be closed. Cancel-safe.
    pub async fn next(&self) -> String {
        loop {
            let arrived = self.queue.arrived.notified();
            if let Some(callback) = self.queue.waiting.lock().pop_front() {
                return callback.address;
            }
            arrived.await;
        }
    }
}

impl Drop for CallbackListener {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn bind_address(port: u16) -> io::Result<Vec<TcpListener>> {
    Ok(vec![TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)).await?])
}

/// Binds one port for both versions of IP. A machine without IPv6 gets one socket.
async fn bind_localhost(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut attempts = if port == 0 { PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let mut sockets = bind_address(port).await?;
        let address = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), sockets[0].local_addr()?.port());
        match TcpListener::bind(address).await {
            Ok(socket) => sockets.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => continue,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            Err(_) => {}
        }
        return Ok(sockets);
    }
}

/// The connections of one socket.
#[derive(Clone)]
struct Connections {
    /// Host and port of the listener, as the browser knows them.
    authority: Arc<str>,
    queue: Arc<CallbackQueue>,
}

impl Connections {
    async fn accept(self, socket: TcpListener, slots: Arc<Semaphore>) {
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
            match socket.accept().await {
                Ok((stream, _)) => {
                    let connections = self.clone();
                    worker::spawn(async move {
                        connections.serve(stream).await;
                        drop(slot);
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    async fn serve(&self, stream: TcpStream) {
        let arrived: Mutex<Option<PendingCallback>> = Mutex::default();
        let service = service_fn(|request| {
            let response = self.respond(&request, &arrived);
            async move { Ok::<_, Infallible>(response) }
        });
        let mut builder = http1::Builder::new();
        builder.keep_alive(false).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
        builder.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIMEOUT);
        // The browser shows the failure of its connection.
        let _ = timeout(CONNECTION_TIMEOUT, builder.serve_connection(TokioIo::new(stream), service)).await;
        if let Some(callback) = arrived.lock().take() {
            self.queue.put(callback);
        }
    }

    /// Returns the page for a request. Stores the address of a callback in `arrived`.
    fn respond(&self, request: &Request<Incoming>, arrived: &Mutex<Option<PendingCallback>>) -> Response<Full<Bytes>> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        // A page of another site may resolve its name to this machine (DNS rebinding).
        if hosts.next().is_some() || !host.eq_ignore_ascii_case(&self.authority) {
            return response(StatusCode::BAD_REQUEST, NOTHING);
        }
        if request.uri().path() != PATH {
            return response(StatusCode::NOT_FOUND, NOTHING);
        }
        if request.method() != Method::GET {
            return response(StatusCode::METHOD_NOT_ALLOWED, NOTHING);
        }
        let Some(query) = request.uri().query().filter(|query| is_answer(query)) else {
            return response(StatusCode::BAD_REQUEST, NOTHING);
        };
        match self.queue.pending(format!("http://{}{PATH}?{query}", self.authority)) {
            None => response(StatusCode::SERVICE_UNAVAILABLE, BUSY),
            Some(callback) => {
                *arrived.lock() = Some(callback);
                response(StatusCode::OK, DONE)
            }
        }
    }
}

impl CallbackQueue {
    fn new() -> CallbackQueue {
        let places = Arc::new(Semaphore::new(MAX_WAITING));
        CallbackQueue { waiting: Mutex::default(), arrived: Notify::new(), places }
    }

    /// Reserves a place for an address. Returns `None` if the queue is full.
    fn pending(&self, address: String) -> Option<PendingCallback> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        (address.len() <= MAX_CALLBACK).then_some(PendingCallback { address, _place: place })
    }

    fn put(&self, callback: PendingCallback) {
        self.waiting.lock().push_back(callback);
        self.arrived.notify_one();
    }
}

/// Reports whether a query has the answer of an authorization server.
fn is_answer(query: &str) -> bool {
    query.split('&').any(|pair| pair.starts_with("code=") || pair.starts_with("error="))
}

fn response(status: StatusCode, page: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(page.as_bytes())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let mut insert = |name, value| headers.insert(name, HeaderValue::from_static(value));
    insert(CONTENT_TYPE, "text/html; charset=utf-8");
    insert(CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    insert(REFERRER_POLICY, "no-referrer");
    insert(X_CONTENT_TYPE_OPTIONS, "nosniff");
    insert(CACHE_CONTROL, "no-store");
    if status == StatusCode::METHOD_NOT_ALLOWED {
        insert(http::header::ALLOW, "GET");
    }
    response
}

#[cfg(test)]
mod tests;
