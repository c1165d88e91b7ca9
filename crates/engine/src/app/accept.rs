//! Accepts connections up to a limit and serves HTTP on them. On shutdown it waits for the open ones.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use goblin_client::connect::Socket;
use goblin_telemetry::worker;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use crate::app::connections::Connections;
use crate::app::listener::{Listener, set_options};
use crate::front::activity::ConnectionActivity;
use crate::front::http;
use crate::front::peer_timeout::WriteTimeoutStream;
use crate::upstream::supervisor::stopped;

/// The limit in bytes of the head of a request.
const MAX_HEAD: usize = 16 * 1024;
/// The longest time that a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest idle time of a connection. It must be longer than that of client connection pools: a request that is
/// sent while the gateway closes the connection is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The interval at which both times are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a failed accept, such as for lack of descriptors. The next attempt would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the gateway stops, then waits for those with open requests.
pub(crate) async fn accept(
    listener: Listener,
    front: Arc<http::HttpFront>,
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
            // The peer closed the connection before it was accepted.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(_) => {
                connections.evict();
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // If every connection is in use, the new one is closed at once. Its peer can retry later.
        let Some(connection) = connections.admit().await else { continue };
        let (front, routes, stop, open) = (Arc::clone(&front), routes.clone(), stop.clone(), open.subscribe());
        worker::spawn(async move {
            serve_connection(stream, &connection.activity, front, routes, stop).await;
            drop((connection, open));
        });
    }
    drop(listener);
    open.closed().await;
}

async fn serve_connection(
    stream: Socket,
    activity: &Arc<ConnectionActivity>,
    front: Arc<http::HttpFront>,
    routes: axum::Router,
    mut stop: watch::Receiver<bool>,
) {
    set_options(&stream);
    let service = hyper::service::service_fn(|request| {
        let (front, routes, work) = (Arc::clone(&front), &routes, activity.begin_work());
        async move {
            let mut response = front.serve(request, routes).await;
            response.body_mut().busy = Some(work);
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, Arc::clone(activity))), service);
    tokio::pin!(connection);
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            biased;
            // An error of one connection concerns only its peer.
            _ = &mut connection => return,
            () = stopped(&mut stop) => break,
            () = activity.evicted() => {
                if activity.idle_since().is_some() {
                    return;
                }
            }
            _ = check.tick() => {
                if activity.is_timed_out(IDLE_TIMEOUT, HEAD_TIMEOUT) {
                    return;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
