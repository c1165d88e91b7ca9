//! Connections: accepted within a bound, served until told to stop, then waited for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::sync::{Semaphore, watch};

use crate::app::listener::{Listener, Stream};
use crate::backend::actor::stopped;
use crate::front::attention::{Attended, Attention};
use crate::front::http;
use crate::front::io::Impatient;
use crate::worker;

/// Header bytes that one request may have.
const LARGEST_HEAD: usize = 16 * 1024;
/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may idle between two requests. It must outlast the pools of clients: one that reuses a connection
/// in the moment we close it loses its request.
const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// How often both are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After a failed accept, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until told to stop, then waits for those that have work.
pub async fn accept(
    listener: Listener,
    front: Arc<http::Front>,
    routes: axum::Router,
    most: usize,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let open = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept(&front.observe) => accepted,
        };
        let Ok(stream) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Beyond the bound connections are closed at once: a peer that sees it can try again later.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (front, routes, stop, open) = (Arc::clone(&front), routes.clone(), stop.clone(), open.subscribe());
        worker::spawn(async move {
            serve_connection(stream, front, routes, stop).await;
            drop((permit, open));
        });
    }
    drop(listener);
    open.closed().await;
}

async fn serve_connection(
    stream: Stream,
    front: Arc<http::Front>,
    routes: axum::Router,
    mut stop: watch::Receiver<bool>,
) {
    stream.set_options();
    let attention = Attention::new();
    let service = hyper::service::service_fn(|request| {
        let (front, routes, work) = (Arc::clone(&front), &routes, attention.begin_work());
        async move {
            let response = front.serve(request, routes).await;
            Ok::<_, Infallible>(response.map(|body| Attended { body, work }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(Impatient::new(stream, Arc::clone(&attention))), service);
    tokio::pin!(connection);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            biased;
            // What a peer does to its own connection is no concern of anybody else.
            _ = &mut connection => return,
            () = stopped(&mut stop) => break,
            _ = look.tick() => {
                if attention.is_lost(IDLE_PATIENCE, HEAD_PATIENCE) {
                    return;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
