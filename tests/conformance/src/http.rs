//! Streamable HTTP at `/mcp`, by `rmcp`. Ours is the listener, and a response whose stream the server can cut.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::server::Server;
use crate::world::World;

const PATH: &str = "/mcp";
/// How long a client should wait before it asks for the rest of a stream that was cut.
const RETRY: Duration = Duration::from_millis(200);

type Service = StreamableHttpService<Server, LocalSessionManager>;
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Serves until the process is ended.
pub async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr().context("the listener has no address")?;
    let mut stdout = io::stdout();
    writeln!(stdout, "listening http://{address}{PATH}").context("cannot say where the server listens")?;
    stdout.flush().context("cannot say where the server listens")?;
    let service = service();
    loop {
        let (connection, _) = listener.accept().await.context("cannot accept a connection")?;
        let service = service.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(&service, request));
            // A client that goes away is no concern of the others.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), answer).await;
        });
    }
}

fn service() -> Service {
    let world = Arc::new(World::default());
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.sse_retry = Some(RETRY);
    let config = StreamableHttpServerConfig::default()
        .with_sse_retry(Some(RETRY))
        .with_allowed_origins(["http://127.0.0.1:*", "http://localhost:*"]);
    StreamableHttpService::new(move || Ok(Server::new(Arc::clone(&world))), Arc::new(sessions), config)
}

async fn answer(service: &Service, mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.uri().path() != PATH {
        let mut response = Response::new(Empty::new().boxed());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let scissors = Scissors::default();
    request.extensions_mut().insert(scissors.clone());
    let response = service.handle(request).await;
    Ok(response.map(|body| CuttableBody::new(body, scissors).boxed()))
}

/// Cuts the stream of one response. It lies in the extensions of the HTTP request.
#[derive(Clone, Default)]
pub struct Scissors {
    asked: Arc<Notify>,
    gone: Arc<Notify>,
}

impl Scissors {
    /// Ends the stream behind what it has sent so far, and waits until it is gone.
    pub async fn cut(&self) {
        self.asked.notify_one();
        self.gone.notified().await;
    }
}

struct CuttableBody {
    inner: BoxBody<Bytes, Infallible>,
    asked: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    gone: Arc<Notify>,
}

impl CuttableBody {
    fn new(inner: BoxBody<Bytes, Infallible>, scissors: Scissors) -> CuttableBody {
        let Scissors { asked, gone } = scissors;
        CuttableBody { inner, asked: Box::pin(async move { asked.notified().await }), gone }
    }
}

impl Body for CuttableBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // What is there goes out first: without its first event nobody could ask for the rest of the stream.
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            return Poll::Ready(frame);
        }
        self.asked.as_mut().poll(context).map(|()| None)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for CuttableBody {
    fn drop(&mut self) {
        self.gone.notify_one();
    }
}
