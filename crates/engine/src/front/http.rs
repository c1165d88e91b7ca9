//! Streamable HTTP at `/mcp`: POST, GET and DELETE, with one session per client.
//!
//! An answer is plain JSON if no message precedes it. The answer becomes an event stream if a message comes first,
//! or after [`SLOW_AFTER`](crate::client::call::SLOW_AFTER), so that no proxy takes the connection for
//! dead.
//!
//! hyper serves the MCP endpoints directly, because the routing and the boxed bodies of axum cost measurable CPU time
//! per call. axum serves all other routes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use goblin_config::exposure::ProfileName;
use goblin_telemetry::{Event, Observe};
use goblin_wire::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID};
use goblin_wire::json::Pieces;
use goblin_wire::modern::is_stateless;
use goblin_wire::{Dialect, Era, Error, MalformedMessage, Message, Method, Request, error_reply, trace};
use http::header::{HeaderMap, HeaderName, ORIGIN, VARY};
use http::{HeaderValue, Method as Verb, Response, StatusCode};
use tokio::sync::watch;
use tower_service::Service;

use crate::admin::PROBES;
use crate::client::Client;
use crate::client::call::CallEvent;
use crate::client::caller::SessionId;
use crate::client::pending::PendingCall;
use crate::client::replay::{ReplayReader, ResumeGap, SESSION_STREAM, StreamResumeOutcome};
use crate::dispatcher::{Begun, Dispatcher};
use crate::front::body::{self, Body, empty, json, json_error};
use crate::front::gate::{Gate, RequestOrigin, is_repeated, reject_origin, single};
use crate::front::modern::{self, missing_meta};
use crate::front::request::{
    AcceptedTypes, HttpRequest, Rejection, check_accepts_stream, check_is_json, method_not_allowed, read_body,
};
use crate::front::sse::{MESSAGES, SSE, SseClients};
use crate::front::stream::{CallEvents, ListChanges, ResumedCall, SessionStream, into_events};
use crate::front::via::NamedGateways;
use crate::router::NotificationSender;

const MCP: &str = "/mcp";
/// The path segment between an endpoint and the name of a profile.
const PROFILE: &str = "/p/";
/// The longest session id or event id that a header may have.
const MAX_ID: usize = 256;

/// The HTTP front of one address.
#[derive(Clone)]
pub(crate) struct HttpFront {
    pub dispatcher: Arc<Dispatcher>,
    pub role: AddressRole,
    /// The profile of the clients, or `None` for the default endpoint.
    pub profile: Option<ProfileName>,
    pub gate: Arc<Gate>,
    pub observe: Arc<Observe>,
    pub max_body_size: usize,
    pub streams: Arc<SseClients>,
    pub stop: watch::Receiver<bool>,
}

/// The users of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressRole {
    Clients,
    /// Operators. MCP endpoints are not available here.
    Operators,
}

/// The MCP endpoints.
#[derive(Clone, Copy)]
enum McpEndpoint {
    Mcp,
    Sse,
    Messages,
}

/// Returns the endpoint at `path` and the profile name in it. Returns `None` for other routes.
fn endpoint_at(path: &str) -> Option<(McpEndpoint, Option<&str>)> {
    if let Some(endpoint) = [(MCP, McpEndpoint::Mcp), (SSE, McpEndpoint::Sse), (MESSAGES, McpEndpoint::Messages)]
        .iter()
        .find(|endpoint| endpoint.0 == path)
    {
        return Some((endpoint.1, None));
    }
    let profile_at = |endpoint| path.strip_prefix(endpoint)?.strip_prefix(PROFILE);
    profile_at(MCP)
        .map(|name| (McpEndpoint::Mcp, Some(name)))
        .or_else(|| profile_at(SSE).map(|name| (McpEndpoint::Sse, Some(name))))
}

/// Returns the fallback for unknown paths, into which the app merges the admin routes. [`HttpFront::serve`] handles the
/// MCP endpoints directly.
pub(crate) fn routes() -> axum::Router {
    axum::Router::new().fallback(async || {
        let error = Error::InvalidRequest("unknown path; the MCP endpoint is /mcp".to_owned());
        json_error(StatusCode::NOT_FOUND, None, &error)
    })
}

async fn route(routes: &axum::Router, request: HttpRequest) -> Response<Body> {
    match Box::pin(routes.clone().call(request)).await {
        Ok(response) => response.map(Body::from),
        Err(never) => match never {},
    }
}

fn preflight(requested_headers: Option<&HeaderValue>) -> Response<Body> {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, DELETE"));
    let default = HeaderValue::from_static(
        "content-type, accept, authorization, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, last-event-id",
    );
    headers.insert("access-control-allow-headers", requested_headers.cloned().unwrap_or(default));
    headers.insert("access-control-max-age", HeaderValue::from_static("600"));
    response
}

impl HttpFront {
    /// Serves one request on any route, after the gate has accepted it.
    pub(crate) async fn serve(&self, request: HttpRequest, routes: &axum::Router) -> Response<Body> {
        if PROBES.contains(&request.uri().path()) {
            return match self.gate.check_probe(request.headers()) {
                Ok(()) => route(routes, request).await,
                Err(rejected) => self.count_rejected(*rejected),
            };
        }
        let endpoint = endpoint_at(request.uri().path()).filter(|_| self.role == AddressRole::Clients);
        if let Err(rejected) = self.check_source(&request, endpoint.is_some()) {
            return self.count_rejected(*rejected);
        }
        let origin = request.headers().get(ORIGIN).cloned();
        // A preflight request carries no token.
        let response = match self.gate.check_token(request.uri().path(), request.headers()) {
            _ if request.method() == Verb::OPTIONS => {
                preflight(request.headers().get("access-control-request-headers"))
            }
            Err(rejected) => *rejected,
            Ok(()) => match endpoint {
                Some((endpoint, None)) => self.answer(endpoint, request).await,
                Some((endpoint, Some(name))) => match self.for_profile(name) {
                    // Box rare futures, because they would enlarge every request's future.
                    Some(front) => Box::pin(front.answer(endpoint, request)).await,
                    None => unknown_profile(name),
                },
                None => route(routes, request).await,
            },
        };
        let mut response = self.count_rejected(response);
        // A foreign origin gets 403 and must not read the response.
        if let Some(origin) = origin.filter(|_| response.status() != StatusCode::FORBIDDEN) {
            let headers = response.headers_mut();
            headers.insert("access-control-allow-origin", origin);
            headers
                .insert("access-control-expose-headers", HeaderValue::from_static("mcp-session-id, www-authenticate"));
            headers.insert(VARY, HeaderValue::from_static("origin"));
        }
        response
    }

    /// Checks the source of a request. The Inspector may only use the MCP endpoints.
    fn check_source(&self, request: &HttpRequest, is_mcp: bool) -> Result<(), Box<Response<Body>>> {
        match self.gate.check_source(request.uri(), request.headers())? {
            RequestOrigin::Inspector if !is_mcp => Err(reject_origin()),
            RequestOrigin::Inspector => {
                if self.gate.is_first_inspector() {
                    self.observe.emit(&Event::InspectorAllowed);
                }
                Ok(())
            }
            RequestOrigin::Program | RequestOrigin::OwnPage | RequestOrigin::AllowedPage => Ok(()),
        }
    }

    /// Counts a response that rejects its request.
    fn count_rejected(&self, response: Response<Body>) -> Response<Body> {
        if response.status().is_client_error() {
            self.observe.emit(&Event::RequestRejected { status: response.status().as_u16() });
        }
        response
    }

    /// Returns this front for the clients of a profile, or `None` if there is no such profile.
    fn for_profile(&self, name: &str) -> Option<HttpFront> {
        let name = ProfileName::new(name).filter(|name| self.dispatcher.router.catalogs.has_profile(name.as_str()))?;
        Some(HttpFront { profile: Some(name), ..self.clone() })
    }

    async fn answer(&self, endpoint: McpEndpoint, request: HttpRequest) -> Response<Body> {
        let handled = AssertUnwindSafe(self.handle(endpoint, request)).catch_unwind().await;
        match handled {
            Ok(Ok(response)) => response,
            Ok(Err(rejection)) => rejection.into_response(),
            Err(_) => {
                self.observe.emit(&Event::Panic { place: "http" });
                json_error(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    None,
                    &Error::Internal("see the gateway's log".to_owned()),
                )
            }
        }
    }

    async fn handle(&self, endpoint: McpEndpoint, request: HttpRequest) -> Result<Response<Body>, Rejection> {
        if *self.stop.borrow() {
            return Err(Error::ShuttingDown.into());
        }
        match (endpoint, request.method()) {
            (McpEndpoint::Sse, _) => self.open_stream(&request),
            (McpEndpoint::Messages, _) => Box::pin(self.receive_message(request)).await,
            (McpEndpoint::Mcp, &Verb::POST) => self.post(request).await,
            (McpEndpoint::Mcp, &Verb::GET | &Verb::DELETE) if has_stateless_version(request.headers()) => {
                Ok(method_not_allowed("POST"))
            }
            (McpEndpoint::Mcp, &Verb::GET) => self.get(request.headers()),
            (McpEndpoint::Mcp, &Verb::DELETE) => {
                let session = self.session(request.headers())?;
                self.dispatcher.sessions.end(&session, "the client ended the session");
                Ok(empty(StatusCode::NO_CONTENT))
            }
            (McpEndpoint::Mcp, _) => Ok(method_not_allowed("GET, POST, DELETE")),
        }
    }

    fn get(&self, headers: &HeaderMap) -> Result<Response<Body>, Rejection> {
        check_accepts_stream(headers)?;
        let session = self.session(headers)?;
        let Some(last_event) = read_id(headers, &LAST_EVENT_ID)? else {
            let is_first = !session.had_stream();
            let stream = self.fresh_stream(&session);
            session.reannounce_recent();
            if !is_first {
                // The client does not state which events of the previous stream it received.
                session.queue_missed_updates();
            }
            return Ok(stream);
        };
        let report_gap = || self.observe.emit(&Event::ReplayGap { session: &session.session_name() });
        Ok(match session.replay.resume(last_event) {
            Ok(StreamResumeOutcome::Reader(reader)) if reader.stream == SESSION_STREAM => {
                self.stream_of(&session, reader, None)
            }
            Ok(StreamResumeOutcome::Reader(reader)) => {
                if reader.has_gap {
                    report_gap();
                }
                body::events(into_events(ResumedCall { presence: session.register_reader(), reader }))
            }
            // An `EventSource` does not reconnect after status 204.
            Ok(StreamResumeOutcome::Complete) => empty(StatusCode::NO_CONTENT),
            Ok(StreamResumeOutcome::Lost(requests)) => {
                report_gap();
                let error = Error::Unfetched.to_json();
                let answers = requests.into_iter().map(move |id| body::event(error_reply(Some(&id), &error)));
                body::events(futures_util::stream::iter(answers))
            }
            Err(ResumeGap) => {
                report_gap();
                let stream = self.fresh_stream(&session);
                session.reannounce_all();
                session.queue_missed_updates();
                stream
            }
        })
    }

    /// Opens a session stream that resumes from no event. Messages that become due after this call reach it, even those
    /// that the previous stream still takes from the session.
    fn fresh_stream(&self, session: &Arc<Client>) -> Response<Body> {
        let (reader, first) = session.replay.take_session();
        self.stream_of(session, reader, first.filter(|_| session.dialect.has_priming()))
    }

    fn stream_of(&self, session: &Arc<Client>, reader: ReplayReader, first: Option<Bytes>) -> Response<Body> {
        let presence = self.dispatcher.sessions.open_stream(session);
        body::events(into_events(SessionStream::new(presence, reader, first, self.changes(), self.stop.clone())))
    }

    /// Returns the list changes that the clients of this front see.
    pub(crate) fn changes(&self) -> ListChanges {
        ListChanges::new(&self.dispatcher.router.catalogs, self.profile.as_ref())
    }

    async fn post(&self, request: HttpRequest) -> Result<Response<Body>, Rejection> {
        let (parts, body) = request.into_parts();
        check_is_json(&parts.headers)?;
        let accepted = AcceptedTypes::read(&parts.headers);
        if !accepted.json && !accepted.stream {
            return Err(Rejection::status(
                StatusCode::NOT_ACCEPTABLE,
                "Accept must allow application/json and text/event-stream",
            ));
        }
        let raw = read_body(body, self.max_body_size, &self.observe).await?;
        let count_limit = |malformed: MalformedMessage| {
            self.observe.count_limit(&malformed.error);
            malformed
        };
        if let Some(batch) = Message::split_batch(&raw) {
            // Box rare futures, because a request's future is moved with all it holds.
            return Box::pin(self.batch(&parts.headers, accepted, batch.map_err(count_limit)?)).await;
        }
        match Message::parse(raw).map_err(count_limit)? {
            Message::Request(mut request) => {
                trace::take_headers(&mut request, &parts.headers);
                let headers = &parts.headers;
                if is_stateless(&request) {
                    return self.handle_stateless(headers, request, accepted).await;
                }
                if has_stateless_version(headers) {
                    return Err(Rejection::from(missing_meta()).for_request(&request));
                }
                if request.method == Method::Initialize && !headers.contains_key(SESSION_ID) {
                    check_version_once(headers).map_err(|rejection| rejection.for_request(&request))?;
                    return self.initialize(headers, &request);
                }
                let session = self.session(headers).map_err(|rejection| rejection.for_request(&request))?;
                Ok(match self.dispatcher.begin(&session, request) {
                    Begun::Ready(reply) => ready_response(StatusCode::OK, reply.pieces, accepted),
                    Begun::Pending(pending) => self.respond(pending, accepted).await,
                })
            }
            // Versions without sessions define no client notifications over HTTP. An unknown one may belong to an
            // extension. All others are ignored.
            Message::Notification(notification)
                if has_stateless_version(&parts.headers) || !parts.headers.contains_key(SESSION_ID) =>
            {
                let sender = NotificationSender { session: None, profile: self.profile.as_ref(), era: Era::Modern };
                self.dispatcher.router.forward_notification(sender, &notification);
                Ok(empty(StatusCode::ACCEPTED))
            }
            Message::Notification(notification) => {
                let session = self.session(&parts.headers)?;
                self.dispatcher.handle_notification(&session, &notification);
                Ok(empty(StatusCode::ACCEPTED))
            }
            Message::Response(response) => {
                let session = self.session(&parts.headers)?;
                self.dispatcher.handle_response(&session, response);
                Ok(empty(StatusCode::ACCEPTED))
            }
        }
    }

    fn initialize(&self, headers: &HeaderMap, request: &Request) -> Result<Response<Body>, Rejection> {
        let gateways = self.check_gateways(headers, request)?;
        let place = || self.dispatcher.reserve();
        let (session, hello) =
            self.dispatcher.initialize(request, self.profile.as_ref(), place).map_err(|error| match error {
                Error::LimitExceeded { limit: "maxSessions", .. } => {
                    Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error, id: Some(request.id.clone()) }
                }
                error => Rejection { status: StatusCode::OK, error, id: Some(request.id.clone()) },
            })?;
        if !gateways.is_empty() {
            session.mark_as_gateway();
        }
        let mut response = json(StatusCode::OK, hello);
        if let Some(id) = session.session {
            let id = HeaderValue::try_from(id.to_string()).expect("a UUID is a header value");
            response.headers_mut().insert(SESSION_ID, id);
        }
        Ok(response)
    }

    /// Returns the gateways that send a request. Returns an error if this gateway is one of them.
    pub(super) fn check_gateways(&self, headers: &HeaderMap, request: &Request) -> Result<NamedGateways, Rejection> {
        let gateways = NamedGateways::of_request(headers, request);
        let checked = gateways.check_request(&self.dispatcher.router.catalogs.gateway, request);
        checked.map_err(|error| Rejection::from(error).for_request(request))?;
        Ok(gateways)
    }

    /// Returns the reply of a call as JSON if no message precedes it, otherwise the event stream of the call.
    pub(super) async fn respond(&self, mut pending: PendingCall, accepted: AcceptedTypes) -> Response<Body> {
        let is_legacy = pending.call.caller.dialect.has_handshake();
        loop {
            if !accepted.json {
                return self.call_stream(pending);
            }
            if is_legacy && !accepted.stream {
                let reply = pending.answer().await;
                return reply.map_or_else(|| empty(StatusCode::NO_CONTENT), |reply| json(StatusCode::OK, reply.pieces));
            }
            match self.dispatcher.next_event(&mut pending).await {
                CallEvent::Done(Some(reply)) if is_legacy => return json(StatusCode::OK, reply.pieces),
                CallEvent::Done(Some(reply)) => return json(modern::status(reply.code), reply.pieces),
                // The call was cancelled. The protocol sends no answer, but HTTP needs a response.
                CallEvent::Done(None) => return body::events(futures_util::stream::empty()),
                CallEvent::Slow if !accepted.stream => {}
                // The client accepts no stream, so the message is dropped.
                _ if !accepted.stream => pending.report_dropped(),
                CallEvent::Slow => return self.call_stream(pending),
                event => {
                    pending.put_back(event);
                    return self.call_stream(pending);
                }
            }
        }
    }

    fn call_stream(&self, pending: PendingCall) -> Response<Body> {
        body::events(into_events(CallEvents { dispatcher: Arc::clone(&self.dispatcher), pending }))
    }

    /// Returns the session that a request names. Returns an error if the id or the protocol version is not valid.
    pub(crate) fn session(&self, headers: &HeaderMap) -> Result<Arc<Client>, Rejection> {
        check_version_once(headers)?;
        let version = headers.get(PROTOCOL_VERSION).map(|version| version.to_str().unwrap_or_default());
        let unknown = |version: &&str| Dialect::parse(version).is_none_or(|dialect| dialect.era() != Era::Legacy);
        if let Some(version) = version.filter(unknown) {
            let reason = format!("MCP-Protocol-Version {} is not supported", goblin_wire::json::quote(version));
            return Err(Rejection::status(StatusCode::BAD_REQUEST, &reason));
        }
        let id = headers.get(SESSION_ID).and_then(|id| id.to_str().ok()).and_then(|id| id.parse::<SessionId>().ok());
        if id.is_none() && read_id(headers, &SESSION_ID)?.is_none() {
            return Err(Rejection::status(StatusCode::BAD_REQUEST, "Mcp-Session-Id is missing; begin with initialize"));
        }
        // A session of another profile is unknown at this endpoint.
        let session =
            id.and_then(|id| self.dispatcher.sessions.find(id)).filter(|session| session.profile == self.profile);
        session.ok_or_else(|| Rejection::status(StatusCode::NOT_FOUND, "unknown session; begin with initialize"))
    }
}

fn unknown_profile(name: &str) -> Response<Body> {
    let name = goblin_wire::json::quote(name);
    let error =
        Error::InvalidRequest(format!("unknown profile {name}; \"profiles\" in the configuration lists all profiles"));
    json_error(StatusCode::NOT_FOUND, None, &error)
}

fn check_version_once(headers: &HeaderMap) -> Result<(), Rejection> {
    match is_repeated(headers, &PROTOCOL_VERSION) {
        true => Err(Rejection::status(StatusCode::BAD_REQUEST, "the header mcp-protocol-version must not be repeated")),
        false => Ok(()),
    }
}

/// Reports whether the header names a protocol version without sessions.
fn has_stateless_version(headers: &HeaderMap) -> bool {
    single(headers, &PROTOCOL_VERSION).is_some_and(Dialect::is_stateless)
}

/// Returns the value of an id header, or `None` if it is missing or empty. Returns an error if it is not visible ASCII
/// or too long.
fn read_id<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Rejection> {
    let Some(value) = headers.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let is_visible = value.len() <= MAX_ID && value.as_bytes().iter().all(u8::is_ascii_graphic);
    match value.to_str() {
        Ok(text) if is_visible => Ok(Some(text)),
        _ => Err(Rejection::status(
            StatusCode::BAD_REQUEST,
            &format!("{name} must be visible ASCII of at most {MAX_ID} characters"),
        )),
    }
}

/// Returns an answer that was ready at once.
pub(super) fn ready_response(status: StatusCode, answer: Pieces, accepted: AcceptedTypes) -> Response<Body> {
    match accepted.json {
        true => json(status, answer),
        false => body::events(futures_util::stream::iter([body::event(answer)])),
    }
}
