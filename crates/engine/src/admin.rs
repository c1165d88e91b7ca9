//! The HTTP endpoints for operators: health, readiness, metrics and the admin API.
//!
//! [`PROBES`] are served to any host without a token, because a probe has none. They reveal only counts. `/metrics` is
//! behind the gate like all other routes. `/api` needs the admin token ([`permit`]). [`routes`] lists every route in
//! one table, and [`api`] defines the types of the responses.

pub(crate) mod changes;
pub(crate) mod configuration;
pub mod events;
mod history;
pub(crate) mod latency;
mod lists;
mod login;
pub mod permit;
pub(crate) mod process;
mod query;
pub mod readiness;
pub(crate) mod status;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::FutureExt;
use goblin_admin::api::{ErrorBody, ErrorResponse, Ready, ServerCounts, ServerList, ServerStatus};
use goblin_admin::routes::{ChangeTarget, ROUTES, ReadTarget, Route, RouteAction, RouteMatch};
use goblin_catalog::listing::List;
use goblin_client::admin::UNKNOWN_SERVER;
use goblin_config::ServerId;
use goblin_telemetry::metrics::{self, Histogram, Reading, ServerReading};
use goblin_telemetry::{Event, Observe, clean, worker};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::admin::changes::AdminCommand;
use crate::admin::configuration::Configuration;
use crate::admin::permit::AdminAccess;
use crate::admin::query::Query;
use crate::admin::readiness::{OverallState, Readiness};
use crate::dispatcher::Dispatcher;
use crate::meta::words::{MAX_QUOTED_INPUT, cut, did_you_mean};
use crate::upstream::Backend;
use crate::upstream::availability::Availability;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The prefix of the API's paths.
const API: &str = "/api/";

/// The paths that need no token.
pub(crate) const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// The state that the endpoints for operators read, and the sender of their commands.
pub struct Admin {
    pub dispatcher: Arc<Dispatcher>,
    pub observe: Arc<Observe>,
    pub readiness: watch::Receiver<Readiness>,
    pub configuration: watch::Receiver<Configuration>,
    /// The sender of commands to the application.
    pub(crate) commands: mpsc::Sender<AdminCommand>,
    pub permit: AdminAccess,
    pub started: SystemTime,
    /// Permits for the readers of events.
    pub readers: Arc<Semaphore>,
}

/// The status and message of a rejected request.
#[derive(Clone, Debug)]
pub(crate) struct AdminError {
    status: StatusCode,
    pub message: String,
}

impl AdminError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> AdminError {
        AdminError { status, message: message.into() }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let mut response = json(self.status, &ErrorResponse { error: ErrorBody { message: self.message } });
        match self.status {
            StatusCode::UNAUTHORIZED => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"))
            }
            _ => None,
        };
        response
    }
}

/// Returns the router with every route for operators.
pub fn routes(admin: &Arc<Admin>) -> axum::Router {
    let others = ROUTES.iter().map(|route| route.path).filter(|path| !path.starts_with(API));
    serving(admin, others.chain(["/api", "/api/", "/api/{*rest}"]))
}

/// Returns the router with the probes alone, for an address without the admin API.
pub fn probes(admin: &Arc<Admin>) -> axum::Router {
    serving(admin, PROBES.into_iter())
}

fn serving(admin: &Arc<Admin>, paths: impl Iterator<Item = &'static str>) -> axum::Router {
    let admin = Arc::clone(admin);
    let serve = any(move |request: Request| {
        let admin = Arc::clone(&admin);
        async move { admin.serve(request).await }
    });
    paths.fold(axum::Router::new(), |router, path| router.route(path, serve.clone()))
}

impl Admin {
    async fn serve(self: &Arc<Admin>, request: Request) -> Response {
        match AssertUnwindSafe(self.handle(request)).catch_unwind().await {
            Ok(response) => response,
            Err(_) => {
                self.observe.emit(&Event::Panic { place: "admin" });
                AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "see the gateway's log").into_response()
            }
        }
    }

    async fn handle(self: &Arc<Admin>, request: Request) -> Response {
        if let Err(denied) = self.check_permit(&request) {
            return denied.into_response();
        }
        match goblin_admin::routes::find(request.method(), request.uri().path()) {
            RouteMatch::Route(route, id) => {
                let outcome = match route.action {
                    RouteAction::Read(target) => self.read_offloaded(route, target, id, request).await,
                    RouteAction::Change(change) => self.change(route, change, id, request).await,
                };
                outcome.unwrap_or_else(AdminError::into_response)
            }
            RouteMatch::OtherVerb(allowed) => {
                let message = format!("this route accepts only {allowed}");
                let mut response = AdminError::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response();
                let allowed = HeaderValue::try_from(allowed).expect("verbs are visible ASCII");
                response.headers_mut().insert(ALLOW, allowed);
                response
            }
            RouteMatch::Nothing(route) => {
                let message = format!("unknown route; the nearest is {} {}", route.verb(), route.path);
                AdminError::new(StatusCode::NOT_FOUND, message).into_response()
            }
        }
    }

    /// Rejects a request under `/api` without the admin token, even if the route does not exist.
    fn check_permit(&self, request: &Request) -> Result<(), AdminError> {
        let path = request.uri().path();
        if path != API.trim_end_matches('/') && !path.starts_with(API) {
            return Ok(());
        }
        let checked = self.permit.check(request.headers());
        checked.inspect_err(|denied| self.observe.emit(&Event::AdminRejected { status: denied.status.as_u16() }))
    }

    async fn change(
        &self,
        route: &Route,
        change: ChangeTarget,
        id: Option<String>,
        request: Request,
    ) -> Result<Response, AdminError> {
        Query::read(route, request.uri().query().unwrap_or_default())?;
        let id = id.unwrap_or_default();
        match change {
            ChangeTarget::Login => return self.begin_login(&id, request.into_body()).await,
            ChangeTarget::LoginCallback => return self.finish_login(&id, request.into_body()).await,
            ChangeTarget::Configuration | ChangeTarget::Server(_) | ChangeTarget::Logout => {}
        }
        changes::check_empty(request.into_body()).await?;
        match change {
            ChangeTarget::Configuration => self.reload().await,
            ChangeTarget::Server(action) => self.control_server(action, &id).await,
            ChangeTarget::Login | ChangeTarget::LoginCallback | ChangeTarget::Logout => self.log_out(&id).await,
        }
    }

    /// Builds a response outside of the worker threads, if clients and servers determine its size.
    async fn read_offloaded(
        self: &Arc<Admin>,
        route: &'static Route,
        target: ReadTarget,
        id: Option<String>,
        request: Request,
    ) -> Result<Response, AdminError> {
        let (parts, _) = request.into_parts();
        let query = Query::read(route, parts.uri.query().unwrap_or_default())?;
        self.await_history(target, &query).await?;
        if matches!(target, ReadTarget::Alive | ReadTarget::Ready | ReadTarget::Events | ReadTarget::OpenApi) {
            return self.read(target, id, &query, &parts);
        }
        let admin = Arc::clone(self);
        let outcome = worker::offload(move || admin.read(target, id, &query, &parts)).await;
        outcome.unwrap_or_else(|| Err(AdminError::new(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down")))
    }

    fn read(
        &self,
        target: ReadTarget,
        id: Option<String>,
        query: &Query,
        request: &Parts,
    ) -> Result<Response, AdminError> {
        Ok(match target {
            ReadTarget::Alive => answer(StatusCode::OK, TEXT, "ok\n".to_owned()),
            ReadTarget::Ready => self.ready(),
            ReadTarget::Metrics => answer(StatusCode::OK, metrics::CONTENT_TYPE, self.reading().to_text()),
            ReadTarget::Status => ok(&self.status()),
            ReadTarget::Servers => ok(&ServerList { servers: self.servers() }),
            ReadTarget::Server => ok(&self.server(&id.unwrap_or_default())?),
            ReadTarget::Login => self.login_status(&id.unwrap_or_default())?,
            ReadTarget::Entries(list) => {
                let server = query.get("server");
                self.check_server(server)?;
                ok(&self.entries(list, server))
            }
            ReadTarget::Subscriptions => ok(&self.dispatcher.router.subscriptions(query.get("uri"))),
            ReadTarget::Sessions => ok(&self.sessions()),
            ReadTarget::Events => self.events(&request.headers)?,
            ReadTarget::Logs => ok(&self.logs(query)?),
            ReadTarget::Calls => ok(&self.calls(query)?),
            ReadTarget::OpenApi => ok(&goblin_admin::openapi::document()),
        })
    }

    fn ready(&self) -> Response {
        let ready = self.readiness.borrow().is_ready();
        let servers = self.server_counts();
        let OverallState { state, summary } = self.overall_state(servers);
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json(status, &Ready { ready, state: state.to_owned(), summary, servers })
    }

    fn overall_state(&self, servers: ServerCounts) -> OverallState {
        let readiness = *self.readiness.borrow();
        OverallState::new(readiness, servers)
    }

    fn server_counts(&self) -> ServerCounts {
        let catalogs = &self.dispatcher.router.catalogs;
        let (backends, misconfigured) = (catalogs.backends(), catalogs.misconfigured());
        let stopped = misconfigured.iter().filter(|server| !server.is_running).map(|_| Availability::Misconfigured);
        readiness::count(backends.iter().map(|backend| Availability::of(backend)).chain(stopped))
    }

    fn server(&self, id: &str) -> Result<ServerStatus, AdminError> {
        self.servers().into_iter().find(|server| server.id == id).ok_or_else(|| self.unknown(id))
    }

    /// Returns an error if there is no such server.
    fn check_server(&self, id: Option<&str>) -> Result<(), AdminError> {
        let is_known = |id: &str| self.server_ids().iter().any(|known| known.as_str() == id);
        id.filter(|id| !is_known(id)).map_or(Ok(()), |id| Err(self.unknown(id)))
    }

    fn unknown(&self, id: &str) -> AdminError {
        let ids = self.server_ids();
        let near = did_you_mean(id, ids.iter().map(ServerId::as_str)).unwrap_or_default();
        AdminError::new(
            StatusCode::NOT_FOUND,
            format!("{UNKNOWN_SERVER} `{}`{near}", clean(&cut(id, MAX_QUOTED_INPUT))),
        )
    }

    fn reading(&self) -> Reading {
        let catalogs = &self.dispatcher.router.catalogs;
        let catalog = catalogs.catalog();
        let server = |backend: &Arc<Backend>| ServerReading {
            id: backend.id.clone(),
            state: Availability::of(backend).as_str(),
            requests_in_flight: backend.calls_in_flight(),
            client_links: backend.own_links(),
            refreshes: self.observe.refresh_counts(backend.id.as_str()),
            meter: Arc::clone(&backend.meter),
        };
        let misconfigured = catalogs.misconfigured();
        let stopped = misconfigured.iter().filter(|server| !server.is_running).map(|server| ServerReading {
            id: server.id.clone(),
            state: Availability::Misconfigured.as_str(),
            requests_in_flight: 0,
            client_links: None,
            refreshes: self.observe.refresh_counts(server.id.as_str()),
            meter: Arc::default(),
        });
        let totals = &self.dispatcher.router.subscriptions.totals;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Reading {
            limits: self.observe.limit_counts(),
            memory: self.observe.memory.read(),
            max_memory: self.observe.memory.max(),
            started: self.started,
            events: self.observe.counts(),
            sessions: self.dispatcher.sessions.len(),
            streams: self.dispatcher.sessions.open_streams(),
            requests_in_flight: self.dispatcher.sessions.open_calls(),
            subscriptions: self.dispatcher.router.subscriptions.count(),
            updates: [
                ("delivered", load(&totals.delivered)),
                ("coalesced", load(&totals.coalesced)),
                ("dropped", load(&totals.dropped)),
            ],
            updates_waiting: self.dispatcher.sessions.updates_waiting(),
            pages: [("ready", load(&catalogs.pages.ready)), ("made", load(&catalogs.pages.made))],
            overhead: Histogram::from(&self.observe.overhead),
            catalog: List::ALL.map(|list| (list.noun(), catalog.count(list))),
            servers: catalogs.backends().iter().map(server).chain(stopped).collect(),
            process: process::measure(),
        }
    }
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
mod tests;
