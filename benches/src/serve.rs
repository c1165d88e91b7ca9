//! The HTTP code that the three server roles share: the accept loop, the response body, and a few prepared responses.
//!
//! It has no router, middleware or timeouts, because it measures the minimal cost of a server on hyper.

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::future::Future;
use std::hash::BuildHasher;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The text before the address that a role prints. The parent process waits for it.
pub const LISTENING: &str = "listening http://";

/// Binds a free port on loopback and prints the address.
pub async fn bind() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    writeln!(io::stdout(), "{LISTENING}{}/mcp", listener.local_addr()?)?;
    Ok(listener)
}

/// Accepts connections and answers each request with `handler`. Returns only on an error.
pub async fn serve<Handler, Answer>(listener: TcpListener, handler: Handler) -> io::Result<()>
where
    Handler: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Response<Reply>> + Send + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let handler = handler.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            // A client that disconnects ends its connection, which needs no report.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// A body of at most two pieces, so that an id can precede a large shared text without a copy.
pub struct Reply {
    head: Bytes,
    tail: Bytes,
    stays_open: bool,
}

impl Reply {
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    pub fn whole(body: Bytes) -> Self {
        Self { head: Bytes::new(), tail: body, stays_open: false }
    }

    pub fn pieces(head: Bytes, tail: Bytes) -> Self {
        Self { head, tail, stays_open: false }
    }

    /// Sends `head` and then keeps the body open until the client disconnects.
    pub fn open(head: Bytes) -> Self {
        Self { head, tail: Bytes::new(), stays_open: true }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let reply = self.get_mut();
        for piece in [&mut reply.head, &mut reply.tail] {
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(piece)))));
            }
        }
        // No waker is stored: hyper watches the connection and drops the body when it closes.
        if reply.stays_open { Poll::Pending } else { Poll::Ready(None) }
    }

    fn is_end_stream(&self) -> bool {
        !self.stays_open && self.head.is_empty() && self.tail.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.stays_open {
            SizeHint::default()
        } else {
            SizeHint::with_exact((self.head.len() + self.tail.len()) as u64)
        }
    }
}

pub fn json(reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

pub fn status(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    *response.status_mut() = status;
    response
}

/// Returns a response to `initialize` from the server `name`, with a fresh session id.
pub fn initialized(id: &str, name: &str) -> Response<Reply> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{"listChanged":true}}}},"serverInfo":{{"name":"{name}","version":"1.0.0"}}}}}}"#
    );
    let mut response = json(Reply::whole(body.into()));
    response.headers_mut().insert(SESSION_ID, session_id());
    response
}

/// Returns a unique session id. It is not secret: it hashes a counter with random keys of the process.
fn session_id() -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! { static KEYS: [RandomState; 2] = [RandomState::new(), RandomState::new()]; }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [high, low] = KEYS.with(|keys| [keys[0].hash_one(number), keys[1].hash_one(number)]);
    HeaderValue::try_from(format!("{high:016x}{low:016x}")).expect("hexadecimal digits are a header value")
}
