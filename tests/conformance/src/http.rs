//! Streamable HTTP at `/mcp` by `rmcp`. This module adds the listener and the cutting of streams.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;

use crate::cut::{Awaited, CuttableBody, Scissors, session_of};
use crate::server::Server;
use crate::world::World;

const PATH: &str = "/mcp";
/// The delay that a cut stream requests from its client.
const RETRY: Duration = Duration::from_millis(200);

type Service = StreamableHttpService<Server, LocalSessionManager>;
type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Serves until the process is killed.
pub async fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr().context("the listener has no address")?;
    let mut stdout = io::stdout();
    writeln!(stdout, "listening http://{address}{PATH}").context("cannot print the address of the server")?;
    stdout.flush().context("cannot print the address of the server")?;
    let service = service();
    let awaited = Arc::new(Awaited::default());
    loop {
        let (connection, _) = listener.accept().await.context("cannot accept a connection")?;
        let (service, awaited) = (service.clone(), Arc::clone(&awaited));
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(&service, &awaited, request));
            // A client that disconnects does not affect the others.
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

async fn answer(
    service: &Service,
    awaited: &Arc<Awaited>,
    mut request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    if request.uri().path() != PATH {
        let mut response = Response::new(Empty::new().boxed());
        *response.status_mut() = StatusCode::NOT_FOUND;
        return Ok(response);
    }
    let resumes = request.method() == Method::GET && request.headers().contains_key("last-event-id");
    let session = session_of(request.headers()).map(str::to_owned).filter(|_| resumes);
    let scissors = Scissors::new(Arc::clone(awaited));
    request.extensions_mut().insert(scissors.clone());
    let response = service.handle(request).await;
    if let Some(session) = session {
        awaited.is_back(&session);
    }
    Ok(response.map(|body| CuttableBody::new(body, scissors).boxed()))
}
