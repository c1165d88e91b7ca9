//! The address of a gateway on the command line: an HTTP URL, or a Unix socket.
//!
//! `unix:SOCKET:PATH` names a path at a socket, in the notation of nginx: `unix:/run/user/1000/goblin.sock:/mcp`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use goblin_config::exposure::ProfileName;
use goblin_config::mask;
use http::Uri;

use crate::connect::{HttpClient, ProxyEnvironment};

const UNIX: &str = "unix:";
pub const ENDPOINT: &str = "/mcp";

/// Returns the address of a path at a socket.
pub fn of_socket(socket: &Path, path: &str) -> String {
    format!("{UNIX}{}:{path}", socket.display())
}

/// Reads the value of `--url`. Makes the path of a socket absolute, and adds the endpoint `/mcp` if the address has no
/// path.
pub fn parse(text: &str) -> Result<String, String> {
    let Some(rest) = text.strip_prefix(UNIX) else { return Ok(text.to_owned()) };
    let (socket, path) = split(rest).unwrap_or((rest, ENDPOINT));
    match std::path::absolute(socket) {
        Ok(socket) => Ok(of_socket(&socket, path)),
        Err(_) => Err("write a socket as unix:/path/to/goblin.sock".to_owned()),
    }
}

/// Returns the absolute path of the socket that an address names.
pub fn socket(text: &str) -> Option<PathBuf> {
    let rest = text.strip_prefix(UNIX)?;
    std::path::absolute(split(rest).map_or(rest, |(socket, _)| socket)).ok()
}

/// Creates a client for the gateway at `url`. Returns it with the URI that its requests must use.
pub fn client(url: &str, proxies: &ProxyEnvironment) -> Result<(HttpClient, Uri)> {
    let (socket, shown) = (url.strip_prefix(UNIX).and_then(split), mask::url(url));
    let target = socket.map(|(_, path)| format!("http://localhost{path}"));
    let uri = target.as_deref().unwrap_or(url).parse::<Uri>();
    let uri = uri.map_err(|error| anyhow!("the URL {shown:?} cannot be used: {error}"))?;
    let client = match socket {
        Some((socket, _)) => HttpClient::over_socket(Path::new(socket)),
        None => HttpClient::new(&uri, None, proxies)?,
    };
    Ok((client, uri))
}

/// Returns the index at which the query or the fragment of `url` begins, or its length. The path of a socket may
/// contain `?` and `#`; they do not count.
pub fn query_start(url: &str) -> usize {
    let path = url.strip_prefix(UNIX).and_then(split).map_or(url, |(_, path)| path);
    url.len() - path.len() + path.find(['?', '#']).unwrap_or(path.len())
}

/// Splits the part after `unix:` into the socket and the path. Returns `None` if there is no path.
fn split(rest: &str) -> Option<(&str, &str)> {
    let at = rest.rfind(":/").filter(|at| *at > 0)?;
    Some((&rest[..at], &rest[at + 1..]))
}

/// Returns the URL of a route, given the URL of the gateway, of its MCP endpoint or of a profile.
pub fn route(url: &str, path: &str) -> String {
    let url = url[..query_start(url)].trim_end_matches('/');
    let end = url.rfind("/p/").filter(|at| url[..*at].ends_with(ENDPOINT)).unwrap_or(url.len());
    let base = url[..end].strip_suffix(ENDPOINT).unwrap_or(url);
    format!("{base}{path}")
}

/// The endpoint of a profile, or that of all there is.
pub fn endpoint(url: &str, profile: Option<&ProfileName>) -> String {
    match profile {
        Some(name) => {
            let (path, rest) = url.split_at(query_start(url));
            format!("{}/p/{name}{rest}", path.trim_end_matches('/'))
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_address_is_completed_with_its_path() {
        for (text, expected) in [
            ("http://h:1/mcp", "http://h:1/mcp"),
            ("unix:/x/a.sock", "unix:/x/a.sock:/mcp"),
            ("unix:/x/a.sock:/mcp", "unix:/x/a.sock:/mcp"),
            ("unix:/x/a.sock:/mcp/p/review", "unix:/x/a.sock:/mcp/p/review"),
            ("unix:/x/a:b.sock", "unix:/x/a:b.sock:/mcp"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(expected), "{text}");
        }
        let relative = parse("unix:a.sock").expect("a path");
        assert!(relative.starts_with("unix:/") && relative.ends_with("/a.sock:/mcp"), "{relative}");
        assert!(parse("unix:").is_err());
    }

    #[test]
    fn a_query_starts_after_the_socket_path() {
        for (url, expected) in [
            ("http://h/mcp", "http://h/mcp"),
            ("http://h/mcp?a=b#c", "http://h/mcp"),
            ("unix:/x/a?b#c.sock:/mcp", "unix:/x/a?b#c.sock:/mcp"),
            ("unix:/x/a?b.sock:/mcp?q=1", "unix:/x/a?b.sock:/mcp"),
        ] {
            assert_eq!(&url[..query_start(url)], expected);
        }
    }
    #[test]
    fn a_route_replaces_the_mcp_path_of_the_url() {
        for (url, expected) in [
            ("http://h:1", "http://h:1/api/x"),
            ("http://h:1/", "http://h:1/api/x"),
            ("http://h:1/mcp", "http://h:1/api/x"),
            ("http://h:1/mcp/p/review", "http://h:1/api/x"),
            ("http://h:1/mcp/?key=a/b", "http://h:1/api/x"),
            ("https://h/goblin/mcp", "https://h/goblin/api/x"),
            ("unix:/x/a.sock:/mcp", "unix:/x/a.sock:/api/x"),
            ("unix:/x/a.sock:/", "unix:/x/a.sock:/api/x"),
        ] {
            assert_eq!(route(url, "/api/x"), expected, "{url}");
        }
    }
}
