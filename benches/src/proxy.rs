//! The bare hyper proxy, which is the baseline. It reads a request, parses its envelope, forwards it on a pooled
//! connection, and returns the response after parsing its envelope too.
//!
//! The proxy does the minimum of any gateway that looks at its messages. It has no sessions, ids, name translation,
//! limits, timeouts, logs or metrics. It has no event streams either, because no measurement uses one through it.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::http::response;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;

use crate::envelope;
use crate::serve::{self, PROTOCOL_VERSION, Reply, SESSION_ID};

/// Forwards every POST and DELETE to `target`. Returns only on an error.
pub async fn run(listener: TcpListener, target: Uri) -> std::io::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let upstream = Upstream { client, target };
    serve::serve(listener, move |request| forward(upstream.clone(), request)).await
}

#[derive(Clone)]
struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    target: Uri,
}

async fn forward(upstream: Upstream, request: Request<Incoming>) -> Response<Reply> {
    let (parts, body) = request.into_parts();
    let answer = match parts.method {
        Method::POST => post(upstream, &parts.headers, body).await,
        Method::DELETE => upstream.send(Method::DELETE, &parts.headers, Bytes::new()).await,
        _ => Err(StatusCode::METHOD_NOT_ALLOWED),
    };
    match answer {
        Ok((parts, body)) => respond(&parts, body),
        Err(status) => serve::status(status),
    }
}

type Answer = Result<(response::Parts, Bytes), StatusCode>;

async fn post(upstream: Upstream, headers: &HeaderMap, body: Incoming) -> Answer {
    let body = body.collect().await.map_err(|_| StatusCode::BAD_REQUEST)?.to_bytes();
    let is_request = envelope::call(&body).ok_or(StatusCode::BAD_REQUEST)?.id.is_some();
    let (parts, answer) = upstream.send(Method::POST, headers, body).await?;
    if is_request && !envelope::is_answer(&answer) {
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok((parts, answer))
}

impl Upstream {
    async fn send(&self, method: Method, headers: &HeaderMap, body: Bytes) -> Answer {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone();
        copy(headers, request.headers_mut(), &[CONTENT_TYPE, ACCEPT, SESSION_ID, PROTOCOL_VERSION]);
        let response = self.client.request(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|_| StatusCode::BAD_GATEWAY)?.to_bytes();
        Ok((parts, body))
    }
}

fn respond(parts: &response::Parts, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::whole(body));
    *response.status_mut() = parts.status;
    copy(&parts.headers, response.headers_mut(), &[CONTENT_TYPE, SESSION_ID]);
    response
}

fn copy(from: &HeaderMap, to: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if let Some(value) = from.get(name) {
            to.insert(name, value.clone());
        }
    }
}
