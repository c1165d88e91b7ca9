//! Servers of the tests: each sends the bytes that its test names.

mod discovery;
mod hostile;
mod token;

use std::sync::Arc;

use futures_util::future::FutureExt;
use goblin_client::connect::ProxyEnvironment;
use goblin_config::oauth::OAuthOptions;
use goblin_telemetry::worker;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::LoginTarget;
use crate::protocol::fetch::Fetcher;

/// A request that a site received.
#[derive(Clone, Debug)]
struct Received {
    method: String,
    /// Includes the query.
    path: String,
    /// The lines of the head after the first one.
    headers: String,
    body: String,
}

enum Reply {
    /// Includes the lines of further headers.
    Full { status: u16, headers: String, body: String },
    /// Sends bytes until the client closes the connection.
    Endless,
    /// Sends one byte per second.
    Drip(Arc<Notify>),
    /// Closes the connection.
    Nothing,
}

impl Reply {
    fn json(status: u16, body: &Value) -> Reply {
        Reply::Full { status, headers: "content-type: application/json\r\n".into(), body: body.to_string() }
    }

    fn status(status: u16) -> Reply {
        Reply::Full { status, headers: String::new(), body: String::new() }
    }

    fn redirect(to: &str) -> Reply {
        Reply::Full { status: 302, headers: format!("location: {to}\r\n"), body: String::new() }
    }

    fn text(kind: &str, body: &str) -> Reply {
        Reply::Full { status: 200, headers: format!("content-type: {kind}\r\n"), body: body.into() }
    }
}

/// A server on this machine. It ends when it is dropped.
struct Site {
    origin: String,
    received: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

impl Site {
    /// Starts a server. `build` receives its origin and returns the function that answers a request.
    async fn start<F>(build: impl FnOnce(String) -> F) -> Site
    where
        F: Fn(&Received) -> Reply + Send + Sync + 'static,
    {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let origin = format!("http://{}", socket.local_addr().expect("an address"));
        let answer = Arc::new(build(origin.clone()));
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let all = Arc::clone(&received);
        let task = worker::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let (answer, all) = (Arc::clone(&answer), Arc::clone(&all));
                worker::spawn(async move {
                    let mut stream = stream;
                    let Some(request) = read_request(&mut stream).await else { return };
                    let reply = answer(&request);
                    all.lock().push(request);
                    send_reply(&mut stream, reply).await;
                });
            }
        });
        Site { origin, received, task }
    }

    /// Returns the received requests as method and path.
    fn paths(&self) -> Vec<String> {
        self.received.lock().iter().map(|it| format!("{} {}", it.method, it.path)).collect()
    }

    fn last(&self) -> Received {
        self.received.lock().last().cloned().expect("a request")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).expect("a head in ASCII").to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(0, |length| length.trim().parse().expect("a length"));
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let written = String::from_utf8(bytes[..head].to_vec()).expect("a head in ASCII");
    let (first, headers) = written.split_once("\r\n").expect("a line");
    let mut words = first.split(' ');
    let mut word = || words.next().expect("a word").to_owned();
    let (method, path) = (word(), word());
    let body = String::from_utf8(bytes[head..].to_vec()).expect("a body in UTF-8");
    Some(Received { method, path, headers: headers.to_owned(), body })
}

async fn send_reply(stream: &mut TcpStream, reply: Reply) {
    match reply {
        Reply::Full { status, headers, body } => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
        Reply::Endless => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1073741824\r\n\r\n";
            let _ = stream.write_all(head).await;
            while stream.write_all(&[b' '; 65536]).await.is_ok() {}
        }
        Reply::Drip(started) => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await;
            started.notify_one();
            while stream.write_all(b" ").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        }
        Reply::Nothing => {}
    }
}

/// A socket to which nothing may connect.
struct Canary {
    socket: TcpListener,
    origin: String,
}

impl Canary {
    async fn start() -> Canary {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let origin = format!("http://{}", socket.local_addr().expect("an address"));
        Canary { socket, origin }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().expect("an address").port()
    }

    /// Returns whether a connection waits.
    fn is_touched(&self) -> bool {
        self.socket.accept().now_or_never().is_some()
    }
}

fn target(url: &str) -> LoginTarget {
    LoginTarget {
        name: "test".to_owned(),
        url: url.parse().expect("a URL"),
        ca: None,
        proxies: ProxyEnvironment::default(),
        options: OAuthOptions::default(),
    }
}

fn fetcher(url: &str) -> Fetcher {
    Fetcher::new(&target(url), None)
}

/// Returns the metadata of an authorization server with its endpoints at `origin`.
fn metadata(issuer: &str, origin: &str) -> Value {
    json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{origin}/authorize"),
        "token_endpoint": format!("{origin}/token"),
        "registration_endpoint": format!("{origin}/register"),
        "revocation_endpoint": format!("{origin}/revoke"),
        "device_authorization_endpoint": format!("{origin}/device"),
        "code_challenge_methods_supported": ["S256"],
    })
}
