//! Checks the source of every request before any route: `Host`, `Origin`, `Sec-Fetch-Site` and token.
//!
//! A web page in the user's browser can reach a loopback port. DNS rebinding even lets it appear as its own origin. A
//! request must therefore name a host that the gateway serves. If a page sent it, the configuration must allow the
//! page's origin. Probes accept any host, but reject pages of other sites.

use std::sync::atomic::{AtomicBool, Ordering};

use goblin_config::Gateway;
use goblin_config::secret::Secret;
use goblin_wire::Error;
use goblin_wire::headers::{LAST_EVENT_ID, SESSION_ID};
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode, Uri};
use subtle::ConstantTimeEq;

use crate::front::body::{Body, json_error};

/// The default origins of the MCP Inspector. They may use the MCP endpoints unless `gateway.allowedOrigins` is set.
const INSPECTOR_ORIGINS: [&str; 2] = ["http://localhost:6274", "http://127.0.0.1:6274"];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The headers that may occur only once. Headers that repeat a part of the body are compared with the body instead.
const SINGLE_HEADERS: [HeaderName; 4] = [AUTHORIZATION, ORIGIN, LAST_EVENT_ID, SESSION_ID];

pub(crate) struct Gate {
    /// The host names without a port. They match any port, since other ports are other programs on the same machine.
    hosts: Vec<String>,
    /// The host names with a port, which must match.
    hosts_with_port: Vec<String>,
    origins: Vec<String>,
    /// An Inspector has sent a request before.
    inspector_seen: AtomicBool,
    /// The token that every request needs, and its name in error messages.
    token: Option<(Secret, &'static str)>,
}

/// The sender of a request, as far as its headers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    /// A program: the request has no `Origin`.
    Program,
    /// A page of the gateway's own host and port.
    OwnPage,
    /// A page with an origin in `gateway.allowedOrigins`.
    AllowedPage,
    /// A page of the MCP Inspector.
    Inspector,
}

impl Gate {
    pub(crate) fn new(gateway: &Gateway) -> Gate {
        let token = gateway.token.clone().map(|token| (token, "gateway.token"));
        let mut hosts: Vec<String> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
        let own =
            if gateway.host.contains(':') { format!("[{}]", gateway.host) } else { gateway.host.to_ascii_lowercase() };
        if !matches!(gateway.host.as_str(), "0.0.0.0" | "::") {
            hosts.push(own);
        }
        let (with_port, without): (Vec<_>, Vec<_>) = gateway
            .allowed_hosts
            .iter()
            .map(|host| host.to_ascii_lowercase())
            .partition(|host| split_port(host).1.is_some());
        hosts.extend(without);
        let origins = gateway.allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect();
        Gate { hosts, hosts_with_port: with_port, origins, inspector_seen: AtomicBool::new(false), token }
    }

    /// Returns the gate of the Unix socket. It needs no token, because the system reports the uid of each peer.
    pub(crate) fn without_token(gateway: &Gateway) -> Gate {
        Gate { token: None, ..Gate::new(gateway) }
    }

    /// Returns the gate of an admin address that other machines can reach. Every request needs the admin token.
    pub(crate) fn with_admin_token(gateway: &Gateway, token: Secret) -> Gate {
        Gate { token: Some((token, "the admin token")), ..Gate::new(gateway) }
    }

    /// Checks the source of a request and returns it. Returns the response to send as an error if the source is not
    /// allowed.
    pub(crate) fn check_source(&self, uri: &Uri, headers: &HeaderMap) -> Result<RequestOrigin, Box<Response<Body>>> {
        let Some(host) = self.own_host(uri, headers) else {
            return Err(reject(StatusCode::FORBIDDEN, "Host is not allowed (gateway.allowedHosts)"));
        };
        check_repeated(headers)?;
        let source = match headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
            None => RequestOrigin::Program,
            Some(origin) => self.page(origin, host).ok_or_else(reject_origin)?,
        };
        let is_allowed = matches!(source, RequestOrigin::AllowedPage | RequestOrigin::Inspector);
        if is_allowed || !is_from_other_site(headers) { Ok(source) } else { Err(reject_site()) }
    }

    /// Checks the source of a probe. It may name any host, but pages of other sites are rejected.
    pub(crate) fn check_probe(&self, headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
        let is_allowed = || single(headers, &ORIGIN).is_some_and(|origin| self.is_allowed_origin(origin));
        if !is_from_other_site(headers) || is_allowed() { Ok(()) } else { Err(reject_site()) }
    }

    /// Checks the token that a path needs. The admin API checks its own token.
    pub(crate) fn check_token(&self, path: &str, headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
        let Some((token, name)) = &self.token else { return Ok(()) };
        if is_admin_path(path) || has_token(headers, token) {
            return Ok(());
        }
        let mut response = reject(StatusCode::UNAUTHORIZED, &format!("Authorization must be `Bearer` with {name}"));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Err(response)
    }

    /// Returns `true` on the first call only.
    pub(crate) fn is_first_inspector(&self) -> bool {
        !self.inspector_seen.swap(true, Ordering::Relaxed)
    }

    /// Returns the host that a request names. Returns `None` if it names none, or if the URI or the `Host` header names
    /// a host that the gateway does not serve.
    fn own_host<'a>(&self, uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
        let authority = uri.authority().map(http::uri::Authority::as_str);
        let named = match headers.contains_key(HOST) {
            true => Some(single(headers, &HOST)?),
            false => None,
        };
        let is_own = |host: &Option<&str>| host.is_none_or(|host| self.is_our_host(host));
        if is_own(&authority) && is_own(&named) { authority.or(named) } else { None }
    }

    fn is_our_host(&self, host: &str) -> bool {
        let (name, port) = split_port(host);
        let known = |hosts: &[String], host: &str| hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
        port.is_none_or(is_port) && (known(&self.hosts, name) || known(&self.hosts_with_port, host))
    }

    /// Classifies an `Origin`. Returns `None` if its pages must not send requests.
    fn page(&self, origin: &str, host: &str) -> Option<RequestOrigin> {
        if self.is_allowed_origin(origin) {
            return Some(RequestOrigin::AllowedPage);
        }
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))?;
        if rest.eq_ignore_ascii_case(host) {
            return Some(RequestOrigin::OwnPage);
        }
        (self.origins.is_empty() && INSPECTOR_ORIGINS.contains(&origin)).then_some(RequestOrigin::Inspector)
    }

    fn is_allowed_origin(&self, origin: &str) -> bool {
        self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}

/// Reports whether a path belongs to the admin API, which checks its own token (`admin::permit`).
fn is_admin_path(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Rejects a request that repeats a header of [`SINGLE_HEADERS`], because two readers could use different values.
fn check_repeated(headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
    if headers.len() == headers.keys_len() {
        return Ok(());
    }
    match SINGLE_HEADERS.iter().find(|name| is_repeated(headers, name)) {
        Some(name) => Err(reject(StatusCode::BAD_REQUEST, &format!("the header {name} must not be repeated"))),
        None => Ok(()),
    }
}

pub(crate) fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get_all(name).iter().nth(1).is_some()
}

/// Reports whether a browser sent the request for a page of another site, or of another port of this host.
fn is_from_other_site(headers: &HeaderMap) -> bool {
    let is_own = |value: &HeaderValue| [&b"same-origin"[..], b"none"].contains(&value.as_bytes().trim_ascii());
    headers.get_all(SEC_FETCH_SITE).iter().any(|value| !is_own(value))
}

/// Reports whether a request carries `token`. The comparison takes constant time.
pub(crate) fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let given = single(headers, &AUTHORIZATION).and_then(bearer);
    given.is_some_and(|given| given.as_bytes().ct_eq(token.expose().as_bytes()).into())
}

/// Returns the token of `Bearer TOKEN`. The case of the scheme does not matter.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// Returns the only value of a header. Returns `None` if it is missing, repeated or not visible ASCII.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.next().is_some() { None } else { first.to_str().ok() }
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    }
}

/// Reports whether `port` is a port of one to five digits. Number parsers accept a sign as well.
fn is_port(port: &str) -> bool {
    (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Returns the response to a page with an `Origin` that must not use the route.
pub(crate) fn reject_origin() -> Box<Response<Body>> {
    reject(StatusCode::FORBIDDEN, "Origin is not allowed (gateway.allowedOrigins)")
}

fn reject_site() -> Box<Response<Body>> {
    reject(StatusCode::FORBIDDEN, "Sec-Fetch-Site is not allowed without an allowed Origin (gateway.allowedOrigins)")
}

fn reject(status: StatusCode, reason: &str) -> Box<Response<Body>> {
    Box::new(json_error(status, None, &Error::InvalidRequest(reason.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(gateway: &Gateway, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::try_from(*name).expect("a header name");
            map.append(name, value.parse().expect("a header value"));
        }
        let gate = Gate::new(gateway);
        let checked = gate.check_source(&Uri::from_static("/mcp"), &map).and_then(|_| gate.check_token("/mcp", &map));
        checked.map_or_else(|response| response.status().as_u16(), |()| 200)
    }

    #[test]
    fn only_allowed_hosts_and_origins_are_accepted() {
        let gateway = Gateway {
            allowed_hosts: vec!["gw.example".to_owned(), "other.example:8443".to_owned()],
            allowed_origins: vec!["https://app.example".to_owned()],
            ..Gateway::default()
        };
        for (headers, status) in [
            (&[("host", "127.0.0.1:3000")][..], 200),
            (&[("host", "localhost")], 200),
            (&[("host", "LOCALHOST:99")], 200),
            (&[("host", "[::1]:3000")], 200),
            (&[("host", "gw.example:1")], 200),
            (&[("host", "other.example:8443")], 200),
            (&[("host", "other.example")], 403),
            (&[("host", "other.example:1")], 403),
            (&[("host", "evil.example")], 403),
            (&[("host", "localhost.evil.example")], 403),
            (&[("host", "localhost:evil")], 403),
            (&[("host", "localhost:+80")], 403),
            (&[("host", "localhost:-80")], 403),
            (&[("host", "localhost: 80")], 403),
            (&[("host", "localhost:")], 403),
            (&[("host", "localhost:000080")], 403),
            (&[("host", "localhost:65536")], 403),
            (&[("host", "")], 403),
            (&[], 403),
            (&[("host", "localhost"), ("host", "localhost")], 403),
            (&[("host", "localhost"), ("origin", "https://app.example")], 200),
            (&[("host", "localhost:3000"), ("origin", "http://localhost:3000")], 200),
            (&[("host", "gw.example"), ("origin", "https://gw.example")], 200),
            (&[("host", "localhost:3000"), ("origin", "http://localhost:5173")], 403),
            (&[("host", "localhost:3000"), ("origin", "http://127.0.0.1:3000")], 403),
            (&[("host", "localhost:3000"), ("origin", "http://localhost:6274")], 403),
            (&[("host", "localhost"), ("origin", "http://evil.example")], 403),
            (&[("host", "localhost"), ("origin", "http://localhost/evil")], 403),
            (&[("host", "localhost"), ("origin", "http://localhost@evil.example")], 403),
            (&[("host", "localhost"), ("origin", "null")], 403),
            (&[("host", "localhost"), ("origin", "file://")], 403),
        ] {
            assert_eq!(check(&gateway, headers), status, "{headers:?}");
        }
    }

    #[test]
    fn hard11_a_cross_site_request_needs_an_allowed_origin() {
        let gateway = Gateway { allowed_origins: vec!["https://app.example".to_owned()], ..Gateway::default() };
        let host = ("host", "localhost:3000");
        for (headers, status) in [
            (&[("sec-fetch-site", "same-origin")][..], 200),
            (&[("sec-fetch-site", "none")], 200),
            (&[("sec-fetch-site", "cross-site")], 403),
            (&[("sec-fetch-site", "same-site")], 403),
            (&[("sec-fetch-site", "")], 403),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], 403),
            (&[("sec-fetch-site", "cross-site"), ("origin", "https://app.example")], 200),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://localhost:3000")], 403),
        ] {
            let headers: Vec<_> = headers.iter().copied().chain([host]).collect();
            assert_eq!(check(&gateway, &headers), status, "{headers:?}");
        }
    }

    #[test]
    fn hard11_the_inspector_needs_no_configuration_until_origins_are_configured() {
        let own = |allowed: &[&str]| Gateway {
            allowed_origins: allowed.iter().map(|&origin| origin.to_owned()).collect(),
            ..Gateway::default()
        };
        for origin in INSPECTOR_ORIGINS {
            let headers = [("host", "127.0.0.1:3000"), ("origin", origin), ("sec-fetch-site", "cross-site")];
            assert_eq!(check(&own(&[]), &headers), 200, "{origin}");
            assert_eq!(check(&own(&["https://app.example"]), &headers), 403, "{origin}");
        }
        let gate = Gate::new(&Gateway::default());
        assert!(gate.is_first_inspector() && !gate.is_first_inspector());
    }

    #[test]
    fn hard11_a_repeated_security_header_is_rejected() {
        for (name, status) in
            [("mcp-session-id", 400), ("last-event-id", 400), ("authorization", 400), ("origin", 400), ("accept", 200)]
        {
            let headers = [("host", "localhost"), (name, "http://localhost"), (name, "http://localhost")];
            assert_eq!(check(&Gateway::default(), &headers), status, "{name}");
        }
    }

    #[test]
    fn the_token_must_match() {
        let gateway = Gateway { token: Some(Secret::new("s3cret")), ..Gateway::default() };
        for (given, status) in [
            ("Bearer s3cret", 200),
            ("bearer s3cret", 200),
            ("BEARER   s3cret", 200),
            ("Bearer s3cre", 401),
            ("Bearer ", 401),
            ("Bearer", 401),
            ("Bearers3cret", 401),
            ("Bearer\ts3cret", 401),
            ("Basic s3cret", 401),
            ("s3cret", 401),
        ] {
            assert_eq!(check(&gateway, &[("host", "localhost"), ("authorization", given)]), status, "{given}");
        }
        assert_eq!(check(&gateway, &[("host", "localhost")]), 401);
    }
}
