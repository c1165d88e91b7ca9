//! What operators and their machines ask over HTTP: is it alive, is it ready, how is it doing.
//!
//! `/healthz` and `/readyz` pass before the gate: a probe has no token and names any host, and they tell nothing but
//! counts. `/metrics` and `/api` stand behind it like everything else.

pub mod api;
pub mod command;
pub mod process;
pub mod readiness;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::RawQuery;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::sync::watch;

use crate::admin::readiness::{Readiness, Servers};
use crate::backend::standing::Standing;
use crate::observe::Observe;
use crate::observe::metrics::{self, Reading, ServerReading};
use crate::protocol::error::Error;
use crate::session::desk::Desk;

const JSON: &str = "application/json";

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
    let (probed, scraped, listed) = (Arc::clone(&admin), Arc::clone(&admin), admin);
    axum::Router::new()
        .route("/healthz", get(async || answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned())))
        .route("/readyz", get(async move || probed.readyz()))
        .route("/metrics", get(async move || scraped.metrics()))
        .route("/api/subscriptions", get(async move |RawQuery(query)| listed.subscriptions(query.as_deref())))
}

impl Admin {
    fn readyz(&self) -> axum::response::Response {
        let is_ready = self.readiness.borrow().is_ready();
        let servers = Servers::count(&self.desk.router.directory.backends());
        let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        answer(status, JSON, readyz_body(is_ready, servers))
    }

    fn metrics(&self) -> axum::response::Response {
        answer(StatusCode::OK, metrics::CONTENT_TYPE, self.reading().to_text())
    }

    fn subscriptions(&self, query: Option<&str>) -> axum::response::Response {
        let uri = match read_uri(query.unwrap_or_default()) {
            Ok(uri) => uri,
            Err(trouble) => {
                let error = Error::InvalidParams(trouble).to_json();
                return answer(StatusCode::BAD_REQUEST, JSON, format!(r#"{{"error":{error}}}"#));
            }
        };
        let list = self.desk.router.subscriptions(uri.as_deref());
        let body = serde_json::to_string(&list).expect("all its keys are strings");
        answer(StatusCode::OK, JSON, body)
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

/// The one parameter that is known here. Others are refused: whoever misspells it would take all for a few.
fn read_uri(query: &str) -> Result<Option<String>, String> {
    let mut uri = None;
    for (key, value) in
        query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
    {
        if key != "uri" || value.is_empty() || uri.is_some() {
            return Err(
                "the query may have one uri=URI and nothing else; & and % in it are written as %26 and %25".to_owned()
            );
        }
        let decoded = percent_decode_str(value).decode_utf8().map_err(|_| "uri is not UTF-8".to_owned())?;
        uri = Some(decoded.into_owned());
    }
    Ok(uri)
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
    fn sub15_the_query_has_one_uri_or_none() {
        for (query, expected) in [
            ("", Ok(None)),
            ("uri=a+note:///b", Ok(Some("a+note:///b"))),
            ("uri=a%2Bb%26c=d?e", Ok(Some("a+b&c=d?e"))),
            ("uri=", Err("nothing else")),
            ("uri", Err("nothing else")),
            ("uri=a&uri=b", Err("nothing else")),
            ("url=a", Err("nothing else")),
            ("uri=%ff", Err("UTF-8")),
        ] {
            let read = read_uri(query);
            match (&read, expected) {
                (Ok(uri), Ok(expected)) => assert_eq!(uri.as_deref(), expected, "{query}"),
                (Err(trouble), Err(words)) => assert!(trouble.contains(words), "{query}: {trouble}"),
                _ => panic!("{query}: {read:?}"),
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
