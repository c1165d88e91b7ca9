//! Connections: accepted within a bound, served until told to stop, then waited for.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use crate::app::connections::Connections;
use crate::app::listener::{Listener, Stream};
use crate::upstream::actor::stopped;
use crate::front::attention::{Attended, Attention};
use crate::front::http;
use crate::front::io::Impatient;
use goblin_telemetry::worker;

/// Header bytes that one request may have.
const LARGEST_HEAD: usize = 16 * 1024;
/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may idle between two requests. It must outlast the pools of clients: one that reuses a connection
/// in the moment we close it loses its request.
const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// How often both are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after a failed accept, for instance for want of descriptors: the next one would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until told to stop, then waits for those that have work.
pub async fn accept(
    listener: Listener,
    front: Arc<http::Front>,
    routes: axum::Router,
    connections: Arc<Connections>,
    mut stop: watch::Receiver<bool>,
) {
    let open = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept(&front.observe) => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            // The peer has left already.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                connections.evict();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // If every connection is in use, the new one is closed at once: its peer can try again later.
        let Some(connection) = connections.admit().await else { continue };
        let (front, routes, stop, open) = (Arc::clone(&front), routes.clone(), stop.clone(), open.subscribe());
        worker::spawn(async move {
            serve_connection(stream, &connection.attention, front, routes, stop).await;
            drop((connection, open));
        });
    }
    drop(listener);
    open.closed().await;
}

async fn serve_connection(
    stream: Stream,
    attention: &Arc<Attention>,
    front: Arc<http::Front>,
    routes: axum::Router,
    mut stop: watch::Receiver<bool>,
) {
    stream.set_options();
    let service = hyper::service::service_fn(|request| {
        let (front, routes, work) = (Arc::clone(&front), &routes, attention.begin_work());
        async move {
            let response = front.serve(request, routes).await;
            Ok::<_, Infallible>(response.map(|body| Attended { body, work }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(Impatient::new(stream, Arc::clone(attention))), service);
    tokio::pin!(connection);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            biased;
            // What a peer does to its own connection is no concern of anybody else.
            _ = &mut connection => return,
            () = stopped(&mut stop) => break,
            () = attention.evicted() => {
                if attention.idle_since().is_some() {
                    return;
                }
            }
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
