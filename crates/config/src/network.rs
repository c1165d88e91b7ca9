//! Checks the values that become part of HTTP: hosts, URLs, headers and origins.
//!
//! All checks are pure. No message repeats a URL or a header value, because both may contain an expanded secret.

use std::net::IpAddr;
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, Uri};

use crate::problem::{Fault, quoted};

/// The maximum length of a Unix socket path in bytes. macOS has the smallest limit.
pub(crate) const MAX_SOCKET_PATH: usize = 104;

/// Headers of the protocol and the connection, which the gateway sets itself.
const OURS: [&str; 11] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// The prefix of further headers that the gateway sets itself.
const OUR_PREFIX: &str = "mcp-param-";

/// Headers with a value that is always a secret.
const SECRET_HEADERS: [&str; 5] = ["api-key", "authorization", "cookie", "proxy-authorization", "x-api-key"];

/// The minimum length of a token. Clients can try tokens without a rate limit, so a short token could be guessed.
pub(crate) const MIN_TOKEN_LENGTH: usize = 16;

/// Reports whether only this machine can connect to the host.
pub(crate) fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// Checks a host to listen on.
pub(crate) fn check_host(text: &str) -> Result<String, Fault> {
    if text.parse::<IpAddr>().is_ok() || is_host_name(text) {
        return Ok(text.to_owned());
    }
    Err(Fault::new("must be an IP address without brackets or a host name").cure("set the port in gateway.port"))
}

/// Checks that a path fits into a Unix socket address.
pub(crate) fn check_socket(path: PathBuf) -> Result<PathBuf, Fault> {
    let bytes = path.as_os_str().len();
    if bytes <= MAX_SOCKET_PATH {
        return Ok(path);
    }
    let fault =
        Fault::new(format!("the path of a socket has at most {MAX_SOCKET_PATH} bytes, and this one has {bytes}"));
    Err(fault.cure("choose a directory with a shorter path"))
}

/// Checks the URL of a server.
pub(crate) fn check_url(text: &str) -> Result<(), Fault> {
    // Check this first, because `Uri` silently drops a fragment.
    if text.contains('#') {
        return Err(Fault::new("must not contain a fragment").cure("remove \"#\" and the text after it"));
    }
    let uri: Uri = text.parse().map_err(|_| not_a_url())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(not_a_url());
    }
    let authority = uri.authority().ok_or_else(not_a_url)?;
    if authority.as_str().contains('@') {
        return Err(Fault::new("must not contain a user name or password").cure("put them in headers.Authorization"));
    }
    let host = authority.host();
    if !is_bracketed_address(host) && !is_host_name(host) {
        return Err(Fault::new("the host is not a host name or an address"));
    }
    if authority.as_str() != host && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(Fault::new("the port must be a number from 1 to 65535"));
    }
    Ok(())
}

fn not_a_url() -> Fault {
    Fault::new("must be a complete http or https URL").cure("write it like \"https://host/mcp\"")
}

/// Returns the header name in lower case. Returns an error if it is invalid or set by the gateway.
pub(crate) fn check_header_name(text: &str) -> Result<String, Fault> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| Fault::new("is not a header name"))?;
    if is_own_header(name.as_str()) {
        return Err(Fault::new("the gateway sets this header itself").cure("remove it"));
    }
    Ok(name.as_str().to_owned())
}

/// Reports whether the gateway sets this header itself.
pub(crate) fn is_own_header(text: &str) -> bool {
    let name = text.to_ascii_lowercase();
    OURS.contains(&name.as_str()) || name.starts_with(OUR_PREFIX)
}

/// Reports whether the URL is an endpoint of a gateway that listens at `host` and `port`. All names of this machine's
/// loopback addresses are equal.
pub(crate) fn is_gateway_url(url: &str, host: &str, port: u16) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let (named, own) = (bare(uri.host().unwrap_or_default()), bare(host));
    let is_local = |host: &str| is_loopback(host) || matches!(host, "0.0.0.0" | "::");
    let is_path = |endpoint: &str| {
        let rest = uri.path().strip_prefix(endpoint);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    uri.scheme_str() == Some("http")
        && (named == own || is_local(&named) && is_local(&own))
        && uri.port_u16().unwrap_or(80) == port
        && (is_path("/mcp") || is_path("/sse"))
}

pub(crate) fn check_header_value(text: &str) -> Result<(), Fault> {
    // `from_str` also accepts non-ASCII bytes, which servers interpret differently.
    match HeaderValue::from_str(text) {
        Ok(value) if value.to_str().is_ok() => Ok(()),
        _ => Err(Fault::new("cannot be sent as a header value, which may contain only visible ASCII")),
    }
}

pub(crate) fn is_secret_header(name: &str) -> bool {
    SECRET_HEADERS.contains(&name)
}

/// Returns an error if the text cannot follow `Authorization: Bearer`, or is short enough to be guessed.
pub(crate) fn check_token(text: &str) -> Result<(), Fault> {
    if text.len() >= MIN_TOKEN_LENGTH && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let fault = Fault::new(format!("must be at least {MIN_TOKEN_LENGTH} visible ASCII characters, without spaces"));
    Err(fault.cure("generate one with: openssl rand -hex 16"))
}

/// Checks an allowed `Host` header: `host` or `host:port`.
pub(crate) fn check_allowed_host(text: &str) -> Result<String, Fault> {
    let lower = text.to_ascii_lowercase();
    let (host, port) = split_port(&lower);
    if (is_bracketed_address(host) || is_host_name(host)) && port.is_none_or(is_port) {
        return Ok(lower);
    }
    let fault = Fault::new(format!("{} is not a host", quoted(text)));
    Err(fault.cure("write it like \"goblin.example\" or \"goblin.example:3000\""))
}

/// Checks an allowed `Origin` header: `scheme://host` or `scheme://host:port`.
pub(crate) fn check_allowed_origin(text: &str) -> Result<String, Fault> {
    let lower = text.to_ascii_lowercase();
    if let Some((scheme, authority)) = lower.split_once("://") {
        let (host, port) = split_port(authority);
        let host_is_fine = is_bracketed_address(host) || is_host_name(host);
        if is_scheme(scheme) && host_is_fine && port.is_none_or(is_port) {
            return Ok(lower);
        }
    }
    let fault = Fault::new(format!("{} is not an origin", quoted(text)));
    Err(fault.cure("write it like \"https://app.example\", without a path"))
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_bracketed_address(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Reports whether the text is a host name. Allows `_`, which is common in container networks but invalid in DNS host
/// names.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

/// Reports whether the text is the scheme of a URI, without the colon.
pub(crate) fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::{
        check_allowed_host, check_allowed_origin, check_header_name, check_header_value, check_host, check_token,
        check_url, is_loopback,
    };

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        for host in ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost", "::ffff:127.0.0.1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", "128.0.0.1"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_host_is_an_address_without_brackets_or_a_host_name() {
        for text in ["127.0.0.1", "::1", "0.0.0.0", "localhost", "goblin.example", "my_box", "a.b."] {
            assert_eq!(check_host(text).as_deref(), Ok(text));
        }
        for text in ["", "[::1]", "a b", "http://x", "x:80", ".", "a..b", "${HOST}", "é"] {
            assert!(check_host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_is_a_complete_http_url_without_credentials_or_fragment() {
        for text in [
            "http://localhost",
            "https://search.example/mcp?x=1&y=a%20b",
            "http://[::1]:8080/mcp",
            "HTTPS://EXAMPLE.com:443/",
            "http://10.0.0.1:1/x",
            "http://my_service:8000/mcp/",
        ] {
            assert_eq!(check_url(text), Ok(()), "{text}");
        }
        let not_complete = "must be a complete http or https URL, write it like \"https://host/mcp\"";
        let bad_host = "the host is not a host name or an address";
        let bad_port = "the port must be a number from 1 to 65535";
        for (text, expected) in [
            ("", not_complete),
            ("/mcp", not_complete),
            ("example.com", not_complete),
            ("example.com/mcp", not_complete),
            ("ftp://example.com", not_complete),
            ("https://", not_complete),
            ("https:///mcp", not_complete),
            ("https://exa mple.com", not_complete),
            ("https://example.com/a b", not_complete),
            ("https://example.com/\n", not_complete),
            ("https://example.com:99999/", bad_port),
            ("https://example.com:0/", bad_port),
            ("https://example.com:/", bad_port),
            ("https://a..b/", bad_host),
            (
                "https://user:pw@example.com/",
                "must not contain a user name or password, put them in headers.Authorization",
            ),
            ("https://example.com/#top", "must not contain a fragment, remove \"#\" and the text after it"),
        ] {
            let found = check_url(text).map_err(|fault| fault.to_string());
            assert_eq!(found, Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn headers_set_by_the_gateway_and_invalid_headers_are_rejected() {
        assert_eq!(check_header_name("X-Api-Key").as_deref(), Ok("x-api-key"));
        for name in [
            "Mcp-Session-Id",
            "MCP-Protocol-Version",
            "Content-Type",
            "Accept",
            "Content-Length",
            "Host",
            "Connection",
            "Transfer-Encoding",
            "Mcp-Param-Region",
        ] {
            let found = check_header_name(name).map_err(|fault| fault.to_string());
            assert_eq!(found, Err("the gateway sets this header itself, remove it".to_owned()), "{name}");
        }
        for name in ["", "a b", "a:b", "é"] {
            assert!(check_header_name(name).is_err(), "{name}");
        }
        assert!(check_header_value("Bearer abc").is_ok());
        for value in ["a\r\nX-Evil: 1", "é", "a\0"] {
            assert!(check_header_value(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn a_token_has_at_least_16_visible_ascii_characters() {
        assert!(check_token("abc.DEF-123_~+/=").is_ok());
        for token in ["", "abc.DEF-123_~+/", "abc.DEF 123_~+/=", "abc.DEF-123_~+/=\n", "abc.DEF-123_~+/=é"] {
            assert!(check_token(token).is_err(), "{token:?}");
        }
    }

    #[test]
    fn invalid_allowed_hosts_and_origins_are_rejected() {
        for text in ["goblin.example", "goblin.example:3000", "[::1]", "[::1]:3000", "10.0.0.1:80"] {
            assert_eq!(check_allowed_host(text).as_deref(), Ok(text));
        }
        for text in ["", "*", "http://x", "x:", "x:0", "x:+1", "x/y", "::1"] {
            assert!(check_allowed_host(text).is_err(), "{text}");
        }
        assert_eq!(check_allowed_origin("HTTPS://App.example").as_deref(), Ok("https://app.example"));
        for text in ["http://localhost:6274", "vscode-webview://abc", "http://[::1]:80"] {
            assert_eq!(check_allowed_origin(text).as_deref(), Ok(text));
        }
        for text in ["", "*", "null", "app.example", "https://app.example/", "https://a@b", "://x", "https://x:y"] {
            assert!(check_allowed_origin(text).is_err(), "{text}");
        }
    }
}
