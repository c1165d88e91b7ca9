//! Requests of 2026-07-28 at `/mcp`: one POST each, without a session, and with headers that repeat parts of the body.
//!
//! The body decides which protocol version applies, and the headers must match it. The order of the checks is fixed:
//! required `_meta`, matching version, supported version, matching method, name and arguments, known method. The code
//! of a later error decides its status, usually 200.

use std::borrow::Cow;

use goblin_wire::headers::{METHOD, NAME, PROTOCOL_VERSION};
use goblin_wire::json as text_json;
use goblin_wire::{Error, Id, Method, Request, mirror};
use http::header::{HeaderMap, HeaderName};
use http::{Response, StatusCode};

use crate::dispatcher::Begun;
use crate::dispatcher::stateless::{StatelessClient, check_meta, check_version};
use crate::front::body::{self, Body};
use crate::front::http::{HttpFront, ready_response};
use crate::front::request::{AcceptedTypes, Rejection};
use crate::front::stream::{ListenStream, into_events};

impl HttpFront {
    /// Handles a request without a session.
    pub(crate) async fn handle_stateless(
        &self,
        headers: &HeaderMap,
        request: Request,
        accepted: AcceptedTypes,
    ) -> Result<Response<Body>, Rejection> {
        check(headers, &request).map_err(|error| Rejection::from(error).for_request(&request))?;
        self.check_arguments(headers, &request).map_err(|error| Rejection::from(error).for_request(&request))?;
        let name_header = name_header(headers, &request).map(Box::from);
        let is_gateway = !self.check_gateways(headers, &request)?.is_empty();
        let (text, client_info) = (request.raw.as_str(), request.params.known_meta.client_info);
        let recent = self.dispatcher.sessions.stateless_clients.count_request(text, client_info);
        let sender = StatelessClient::Http { profile: self.profile.clone(), name_header, recent, is_gateway };
        if request.method == Method::Listen {
            if !accepted.stream {
                let rejection = Rejection::status(StatusCode::NOT_ACCEPTABLE, "Accept must allow text/event-stream");
                return Err(rejection.for_request(&request));
            }
            return Ok(match self.dispatcher.listen(&sender, &request) {
                Ok(listening) => {
                    let catalogs = &self.dispatcher.router.catalogs;
                    body::events(into_events(ListenStream::new(catalogs, listening, self.stop.clone())))
                }
                Err(error) => error_response(&request.id, &error, accepted),
            });
        }
        let id = request.id.clone();
        Ok(match self.dispatcher.begin_stateless(&sender, request) {
            Ok(Begun::Ready(reply)) => ready_response(status(reply.code), reply.pieces, accepted),
            Ok(Begun::Pending(pending)) => self.respond(pending, accepted).await,
            Err(error) => error_response(&id, &error, accepted),
        })
    }
}

impl HttpFront {
    /// Checks that headers repeat the arguments that the tool's schema requires to be repeated.
    fn check_arguments(&self, headers: &HeaderMap, request: &Request) -> Result<(), Error> {
        let text = request.raw.as_str();
        let tool = request.params.name.filter(|_| request.method == Method::ToolsCall);
        let Some(tool) = tool.and_then(|at| text_json::string(text, at)) else { return Ok(()) };
        let catalog = self.dispatcher.router.catalogs.profile_catalog(self.profile.as_ref());
        let Some(mirrors) = catalog.mirrors(&tool).filter(|mirrors| !mirrors.is_empty()) else { return Ok(()) };
        let get = |name: &str| headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect::<Vec<_>>();
        mirrors.check(text, request.params.arguments, get).map_err(Error::HeaderMismatch)
    }
}

/// Returns the error for a request with a version without sessions in its header, but not in `_meta`.
pub(crate) fn missing_meta() -> Error {
    Error::MissingMeta("_meta must have io.modelcontextprotocol/protocolVersion, as in the header".to_owned())
}

fn check(headers: &HeaderMap, request: &Request) -> Result<(), Error> {
    let text = request.raw.as_str();
    check_meta(request)?;
    let version = request.params.known_meta.version.and_then(|at| text_json::string(text, at)).unwrap_or_default();
    check_equal(headers, &PROTOCOL_VERSION, Some(&version))?;
    check_version(request)?;
    check_equal(headers, &METHOD, Some(request.method.as_str()))?;
    let named = match request.method {
        Method::ToolsCall | Method::PromptsGet => request.params.name,
        Method::ResourcesRead => request.params.uri,
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => request.params.task_id,
        _ => return Ok(()),
    };
    let named = named.and_then(|at| text_json::string(text, at));
    // A request without a name has nothing to repeat. A later check reports the missing name.
    match named {
        None if !headers.contains_key(NAME) => Ok(()),
        named => check_equal(headers, &NAME, named.as_deref()),
    }
}

/// Returns the name in the header of a request with an unknown method. Nothing states which member it repeats, so the
/// gateway neither checks nor derives the header. A server behind it may require it.
fn name_header<'a>(headers: &'a HeaderMap, request: &Request) -> Option<Cow<'a, str>> {
    let is_unknown = matches!(request.method, Method::Other(_));
    let values = headers.get_all(NAME).iter().map(http::HeaderValue::as_bytes).filter(|_| is_unknown);
    mirror::decode_single(NAME.as_str(), values).ok().flatten()
}

/// Checks that a header occurs once and equals the body's value. Only `Mcp-Name` may be base64 encoded.
fn check_equal(headers: &HeaderMap, name: &HeaderName, expected: Option<&str>) -> Result<(), Error> {
    let values = || headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    let mut all = values();
    // This is the usual case. A value that starts with `=` may begin with the base64 marker, so it is decoded below.
    if let (Some(value), None, Some(expected)) = (all.next(), all.next(), expected)
        && value == expected.as_bytes()
        && !expected.starts_with('=')
    {
        return Ok(());
    }
    let plain = headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim_ascii);
    let decoded = mirror::decode_single(name.as_str(), values()).map_err(Error::HeaderMismatch)?;
    match decoded.filter(|value| *name == NAME || Some(&**value) == plain) {
        None => Err(Error::HeaderMismatch(format!("the header {name} is missing"))),
        Some(value) if Some(&*value) == expected => Ok(()),
        Some(_) => Err(Error::HeaderMismatch(format!("the header {name} does not match the body"))),
    }
}

fn error_response(id: &Id, error: &Error, accepted: AcceptedTypes) -> Response<Body> {
    ready_response(status(Some(error.class().code)), goblin_wire::error_reply(Some(id), &error.to_json()), accepted)
}

/// Returns the HTTP status of an answer with this error code.
pub(super) fn status(code: Option<i64>) -> StatusCode {
    match code {
        Some(-32022..=-32020 | -32600 | -32700) => StatusCode::BAD_REQUEST,
        Some(-32601) => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}
