//! The static server: it reads and parses like the bare proxy, and returns the same bytes for every request.
//!
//! It is the baseline for `tools/list`. It also answers `initialize` itself, which makes it the lower bound for session
//! set-up.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use crate::envelope;
use crate::serve::{self, Reply};

/// Answers every request except `initialize` with `body`. Returns only on an error.
pub async fn run(listener: TcpListener, body: Bytes) -> std::io::Result<()> {
    serve::serve(listener, move |request| answer(body.clone(), request)).await
}

async fn answer(fixed: Bytes, request: Request<Incoming>) -> Response<Reply> {
    match *request.method() {
        Method::POST => {}
        Method::DELETE => return serve::status(StatusCode::OK),
        _ => return serve::status(StatusCode::METHOD_NOT_ALLOWED),
    }
    let Ok(body) = request.into_body().collect().await else {
        return serve::status(StatusCode::BAD_REQUEST);
    };
    let body = body.to_bytes();
    let Some(call) = envelope::call(&body) else {
        return serve::status(StatusCode::BAD_REQUEST);
    };
    match (call.id, call.method()) {
        (None, _) => serve::status(StatusCode::ACCEPTED),
        (Some(id), envelope::Method::Initialize) => serve::initialized(id.get(), "static"),
        (Some(_), _) => serve::json(Reply::whole(fixed)),
    }
}
