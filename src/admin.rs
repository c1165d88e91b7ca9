//! What operators and their machines ask over HTTP: is it alive, is it ready, how is it doing.
//!
//! `/healthz` and `/readyz` pass before the gate: a probe has no token and names any host, and they tell nothing but
//! counts. `/metrics` and `/api` stand behind it like everything else. Which routes there are is said in one table
//! ([`routes`]); what they say, in types ([`api`]).

pub mod api;
pub mod command;
pub mod configuration;
pub mod latency;
mod lists;
pub mod openapi;
pub mod process;
pub mod readiness;
pub mod routes;
mod status;

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::watch;

use crate::admin::api::{Ready, Refused, ServerList, ServerStatus, Trouble};
use crate::admin::configuration::Configuration;
use crate::admin::readiness::{Readiness, Servers};
use crate::admin::routes::{Action, Found, Parameter, Route};
use crate::backend::standing::Standing;
use crate::config::ServerId;
use crate::meta::words::{LONGEST_PROBLEM, cut, did_you_mean};
use crate::observe::metrics::{self, Reading, ServerReading};
use crate::observe::{Observe, clean};
use crate::session::desk::Desk;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The paths that answer anybody.
pub const PROBES: [&str; 2] = ["/healthz", "/readyz"];

pub struct Admin {
    pub desk: Arc<Desk>,
    pub observe: Arc<Observe>,
    pub readiness: watch::Receiver<Readiness>,
    pub configuration: watch::Receiver<Configuration>,
    pub started: SystemTime,
}

/// Why a request is not served.
struct Denied {
    status: StatusCode,
    message: String,
}

impl Denied {
    fn new(status: StatusCode, message: impl Into<String>) -> Denied {
        Denied { status, message: message.into() }
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        json(self.status, &Refused { error: Trouble { message: self.message } })
    }
}

/// The routes of this module, and all of `/api`.
pub fn routes(admin: Admin) -> axum::Router {
    let admin = Arc::new(admin);
    let serve = any(async move |request: Request| admin.serve(&request));
    let others = routes::ROUTES.iter().map(|route| route.path).filter(|path| !path.starts_with("/api/"));
    let paths = others.chain(["/api", "/api/", "/api/{*rest}"]);
    paths.fold(axum::Router::new(), |router, path| router.route(path, serve.clone()))
}

impl Admin {
    fn serve(&self, request: &Request) -> Response {
        match routes::find(request.method(), request.uri().path()) {
            Found::Route(route, id) => {
                let asked = read_query(route, request.uri().query().unwrap_or_default());
                let done = asked.and_then(|asked| self.act(route.action, id.or(asked).as_deref()));
                done.unwrap_or_else(Denied::into_response)
            }
            Found::OtherVerb(allowed) => {
                let message = format!("this route takes {allowed} only");
                let mut response = Denied::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response();
                let allowed = HeaderValue::try_from(allowed).expect("verbs are visible ASCII");
                response.headers_mut().insert(ALLOW, allowed);
                response
            }
            Found::Nothing(route) => {
                let message = format!("there is no such route; the nearest is {} {}", route.verb(), route.path);
                Denied::new(StatusCode::NOT_FOUND, message).into_response()
            }
        }
    }

    /// `asked` is the id in the path, or the parameter of the query.
    fn act(&self, action: Action, asked: Option<&str>) -> Result<Response, Denied> {
        Ok(match action {
            Action::Alive => answer(StatusCode::OK, TEXT, "ok\n".to_owned()),
            Action::Ready => self.ready(),
            Action::Metrics => answer(StatusCode::OK, metrics::CONTENT_TYPE, self.reading().to_text()),
            Action::Status => ok(&self.status()),
            Action::Servers => ok(&ServerList { servers: self.servers() }),
            Action::Server => ok(&self.server(asked.unwrap_or_default())?),
            Action::Entries(list) => {
                asked.map(|id| self.known(id)).transpose()?;
                ok(&self.entries(list, asked))
            }
            Action::Subscriptions => ok(&self.desk.router.subscriptions(asked)),
            Action::Sessions => ok(&self.sessions()),
            Action::OpenApi => ok(&openapi::document()),
        })
    }

    fn ready(&self) -> Response {
        let ready = self.readiness.borrow().is_ready();
        let servers = Servers::count(&self.desk.router.directory.backends());
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json(status, &Ready { ready, servers: servers.into() })
    }

    fn server(&self, id: &str) -> Result<ServerStatus, Denied> {
        self.servers().into_iter().find(|server| server.id == id).ok_or_else(|| self.unknown(id))
    }

    /// The server of this id, running or not.
    fn known(&self, id: &str) -> Result<ServerId, Denied> {
        self.server_ids().into_iter().find(|known| known.as_str() == id).ok_or_else(|| self.unknown(id))
    }

    fn unknown(&self, id: &str) -> Denied {
        let ids = self.server_ids();
        let near = did_you_mean(id, ids.iter().map(ServerId::as_str)).unwrap_or_default();
        Denied::new(StatusCode::NOT_FOUND, format!("there is no server `{}`{near}", clean(&cut(id, LONGEST_PROBLEM))))
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

/// The value of the one parameter that a route has. Others are refused: whoever misspells it would take all for a few.
/// Those who probe and scrape may add what they like, and some do.
fn read_query(route: &Route, query: &str) -> Result<Option<String>, Denied> {
    let denied = |message: String| Denied::new(StatusCode::BAD_REQUEST, message);
    let mut parts = query.split('&').filter(|part| !part.is_empty());
    let Some(part) = parts.next().filter(|_| route.path.starts_with("/api/")) else { return Ok(None) };
    let Some(Parameter { name, .. }) = route.parameter else {
        return Err(denied("this route takes no query".to_owned()));
    };
    let value = part.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).filter(|value| !value.is_empty());
    let (Some(value), None) = (value, parts.next()) else {
        let word = name.to_ascii_uppercase();
        return Err(denied(format!(
            "the query may have one {name}={word} and nothing else; & and % in it are written as %26 and %25"
        )));
    };
    let decoded = percent_decode_str(value).decode_utf8().map_err(|_| denied(format!("{name} is not UTF-8")))?;
    Ok(Some(decoded.into_owned()))
}

fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    answer(status, JSON, serde_json::to_string(body).expect("all keys are strings"))
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers =
        [(CONTENT_TYPE, HeaderValue::from_static(kind)), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (status, headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use tower_service::Service;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn sess2_it_is_ready_neither_before_the_start_is_over_nor_after_the_stop_began() {
        let readiness = watch::Sender::new(Readiness::Starting);
        let mut routes = routes(Admin {
            desk: Arc::new(Desk::example(9)),
            observe: Arc::default(),
            readiness: readiness.subscribe(),
            configuration: watch::Sender::new(Configuration::new(String::new(), &Config::empty())).subscribe(),
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
            let Found::Route(route, _) = routes::find(&http::Method::GET, "/api/subscriptions") else { panic!("none") };
            match (read_query(route, query), expected) {
                (Ok(uri), Ok(expected)) => assert_eq!(uri.as_deref(), expected, "{query}"),
                (Err(denied), Err(words)) => assert!(denied.message.contains(words), "{query}: {}", denied.message),
                (Ok(uri), Err(_)) => panic!("{query}: {uri:?}"),
                (Err(denied), Ok(_)) => panic!("{query}: {}", denied.message),
            }
        }
    }
}
