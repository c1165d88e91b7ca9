//! What operators and their machines ask over HTTP: is it alive, is it ready, how is it doing.
//!
//! `/healthz` and `/readyz` pass before the gate: a probe has no token and names any host, and they tell nothing but
//! counts. `/metrics` stands behind it like everything else.

pub mod process;
pub mod readiness;

use std::sync::Arc;
use std::time::SystemTime;

use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use tokio::sync::watch;

use crate::admin::readiness::{Readiness, Servers, Standing};
use crate::observe::Observe;
use crate::observe::metrics::{self, Reading, ServerReading};
use crate::session::desk::Desk;

/// The paths that answer anybody.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];

pub struct Admin {
    pub desk: Arc<Desk>,
    pub observe: Arc<Observe>,
    pub readiness: watch::Receiver<Readiness>,
    pub started: SystemTime,
}

/// The routes of this module. Verbs other than GET and HEAD are refused.
pub fn routes(admin: Admin) -> axum::Router {
    let admin = Arc::new(admin);
    let (probed, scraped) = (Arc::clone(&admin), admin);
    axum::Router::new()
        .route("/healthz", get(async || answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned())))
        .route("/readyz", get(async move || probed.readyz()))
        .route("/metrics", get(async move || scraped.metrics()))
}

impl Admin {
    fn readyz(&self) -> axum::response::Response {
        let is_ready = self.readiness.borrow().is_ready();
        let servers = Servers::count(&self.desk.router.directory.backends());
        let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        answer(status, "application/json", readyz_body(is_ready, servers))
    }

    fn metrics(&self) -> axum::response::Response {
        answer(StatusCode::OK, metrics::CONTENT_TYPE, self.reading().to_text())
    }

    fn reading(&self) -> Reading {
        let directory = &self.desk.router.directory;
        let catalog = directory.catalog();
        let server = |backend: &Arc<crate::backend::Backend>| ServerReading {
            id: backend.id.clone(),
            is_up: Standing::of(backend) == Standing::Ready,
            requests_in_flight: backend.calls_in_flight(),
            own_links: backend.own_links(),
            meter: Arc::clone(&backend.meter),
        };
        Reading {
            started: self.started,
            events: self.observe.counts(),
            sessions: self.desk.sessions.len(),
            streams: self.desk.sessions.open_streams(),
            requests_in_flight: self.desk.sessions.open_calls(),
            subscriptions: self.desk.router.subscriptions.count(),
            catalog: [
                ("tool", catalog.tools.entries.len()),
                ("prompt", catalog.prompts.entries.len()),
                ("resource", catalog.resources.entries.len()),
                ("template", catalog.resources.templates.len()),
            ],
            servers: directory.backends().iter().map(server).collect(),
            process: process::measure(),
        }
    }
}

fn readyz_body(is_ready: bool, servers: Servers) -> String {
    let Servers { ready, starting, failed } = servers;
    let total = servers.total();
    format!(
        r#"{{"ready":{is_ready},"servers":{{"total":{total},"ready":{ready},"starting":{starting},"failed":{failed}}}}}"#
    )
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> axum::response::Response {
    let headers =
        [(CONTENT_TYPE, HeaderValue::from_static(kind)), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use tower_service::Service;

    use super::*;
    use crate::config::ServerId;

    #[tokio::test]
    async fn sess2_it_is_ready_neither_before_the_start_is_over_nor_after_the_stop_began() {
        let readiness = watch::Sender::new(Readiness::Starting);
        let mut routes = routes(Admin {
            desk: Arc::new(Desk::example(9)),
            observe: Arc::default(),
            readiness: readiness.subscribe(),
            started: SystemTime::now(),
        });
        let waiting = vec![ServerId::new("late").expect("a valid id")];
        let ready = Readiness::Ready { took: std::time::Duration::ZERO, waiting };
        for (state, status) in [(Readiness::Starting, 503), (ready, 200), (Readiness::Stopping, 503)] {
            readiness.send_replace(state.clone());
            for (path, status) in [("/readyz", status), ("/healthz", 200)] {
                let request = http::Request::get(path).body(axum::body::Body::empty()).expect("a request");
                let response = routes.call(request).await.expect("it cannot fail");
                assert_eq!(response.status().as_u16(), status, "{path} {state:?}");
            }
        }
    }

    #[test]
    fn readyz_tells_counts_only() {
        let servers = Servers { ready: 9, starting: 1, failed: 0 };
        assert_eq!(
            readyz_body(true, servers),
            r#"{"ready":true,"servers":{"total":10,"ready":9,"starting":1,"failed":0}}"#
        );
    }
}
