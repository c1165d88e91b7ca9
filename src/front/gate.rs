//! Who may speak to the gateway at all: `Host`, `Origin` and token, checked before every route but the probes.
//!
//! A page in the user's browser can reach a loopback port, and with a rebound name even as its own origin. So a request
//! must name a host we serve under and, when it comes from a page, an origin we know.

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode, Uri};
use subtle::ConstantTimeEq;

use crate::config::Gateway;
use crate::config::secret::Secret;
use crate::front::body::{Body, json_error};
use crate::protocol::error::Error;

pub struct Gate {
    /// Host names without port; any port will do, since other ports are other programs of the same machine.
    hosts: Vec<String>,
    /// Hosts with a port that must match.
    hosts_with_port: Vec<String>,
    origins: Vec<String>,
    /// What everybody must have, and what it is called.
    token: Option<(Secret, &'static str)>,
}

impl Gate {
    pub fn new(gateway: &Gateway) -> Gate {
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
        Gate { hosts, hosts_with_port: with_port, origins, token }
    }

    /// For an address of operators, where other machines reach it: nobody reads anything without the admin token.
    pub fn with_admin_token(gateway: &Gateway, token: Secret) -> Gate {
        Gate { token: Some((token, "the admin token")), ..Gate::new(gateway) }
    }

    /// Refuses a request that no route may see.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => single(headers, &HOST),
        };
        if !host.is_some_and(|host| self.is_our_host(host)) {
            return Err(refuse(StatusCode::FORBIDDEN, "Host is not allowed (gateway.allowedHosts)"));
        }
        if headers.contains_key(ORIGIN) && !single(headers, &ORIGIN).is_some_and(|origin| self.is_known_origin(origin))
        {
            return Err(refuse(StatusCode::FORBIDDEN, "Origin is not allowed (gateway.allowedOrigins)"));
        }
        if is_of_operators(uri.path()) { Ok(()) } else { self.check_token(headers) }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Box<Response<Body>>> {
        let Some((token, name)) = &self.token else { return Ok(()) };
        if has_token(headers, token) {
            return Ok(());
        }
        let mut response = refuse(StatusCode::UNAUTHORIZED, &format!("Authorization must be `Bearer` with {name}"));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Err(response)
    }

    fn is_our_host(&self, host: &str) -> bool {
        let (name, port) = split_port(host);
        let sane_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
        let known = |hosts: &[String], host: &str| hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
        sane_port && (known(&self.hosts, name) || known(&self.hosts_with_port, host))
    }

    fn is_known_origin(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self.origins.contains(&origin) {
            return true;
        }
        let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        rest.is_some_and(|authority| !authority.contains('/') && self.is_our_host(authority))
    }
}

/// Returns whether a path belongs to the admin API, which has a token of its own (`admin::permit`).
fn is_of_operators(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Whether a request shows this token. How long that takes does not tell how much of it is right.
pub fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let given = single(headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    given.trim().as_bytes().ct_eq(token.expose().as_bytes()).into()
}

/// The only value of a header; two are as bad as none.
pub fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
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

fn refuse(status: StatusCode, reason: &str) -> Box<Response<Body>> {
    Box::new(json_error(status, None, &Error::InvalidRequest(reason.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(gateway: &Gateway, headers: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = http::HeaderName::try_from(*name).expect("a header name");
            map.append(name, value.parse().expect("a header value"));
        }
        match Gate::new(gateway).check(&Uri::from_static("/mcp"), &map) {
            Ok(()) => 200,
            Err(response) => response.status().as_u16(),
        }
    }

    #[test]
    fn hosts_and_origins() {
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
            (&[("host", "")], 403),
            (&[], 403),
            (&[("host", "localhost"), ("host", "localhost")], 403),
            (&[("host", "localhost"), ("origin", "http://localhost:5173")], 200),
            (&[("host", "localhost"), ("origin", "https://app.example")], 200),
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
    fn the_token_must_match() {
        let gateway = Gateway { token: Some(Secret::new("s3cret")), ..Gateway::default() };
        for (given, status) in [("Bearer s3cret", 200), ("Bearer s3cre", 401), ("Bearer ", 401), ("s3cret", 401)] {
            assert_eq!(check(&gateway, &[("host", "localhost"), ("authorization", given)]), status, "{given}");
        }
        assert_eq!(check(&gateway, &[("host", "localhost")]), 401);
    }
}
