//! Resolves the `endpoint` event of an HTTP+SSE session to the URL for messages, which must have the same origin.

use goblin_client::connect::origin;
use http::Uri;
use http::uri::PathAndQuery;

use crate::upstream::problem::{BackendProblem, quotable};

const MAX_ENDPOINT_URL: usize = 8 * 1024;

/// Resolves `reference` against `base`. Returns an error for another origin, which would receive the configured headers
/// and the clients' messages.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Result<Uri, String> {
    let invalid = || BackendProblem::BadEndpoint(&quotable(reference)).to_string();
    let reference = reference.trim();
    let reference = reference.split('#').next().unwrap_or(reference);
    if reference.is_empty() || reference.len() > MAX_ENDPOINT_URL {
        return Err(invalid());
    }
    let scheme = base.scheme_str().unwrap_or_default();
    let (path, foreign) = if has_scheme(reference) {
        split_origin(reference).ok_or_else(invalid)?
    } else if reference.starts_with("//") {
        split_origin(&format!("{scheme}:{reference}")).ok_or_else(invalid)?
    } else {
        (merge(base, reference), None)
    };
    let own = origin(base).unwrap_or_default();
    if let Some(foreign) = foreign.filter(|foreign| *foreign != own) {
        return Err(BackendProblem::ForeignEndpoint { endpoint: &foreign, url: &own }.to_string());
    }
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(without_dots(&path)).map_err(|_| invalid())?);
    Uri::from_parts(parts).map_err(|_| invalid())
}

fn has_scheme(reference: &str) -> bool {
    let end = reference.find(|character: char| !character.is_ascii_alphanumeric() && !"+-.".contains(character));
    end.is_some_and(|end| end > 0 && reference[end..].starts_with(':'))
}

/// Returns the path with query, and the origin, of an absolute URL.
fn split_origin(absolute: &str) -> Option<(String, Option<String>)> {
    let uri: Uri = absolute.parse().ok()?;
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    Some((path, Some(origin(&uri)?)))
}

fn merge(base: &Uri, reference: &str) -> String {
    let path = base.path();
    match reference.as_bytes().first() {
        Some(b'/') => reference.to_owned(),
        Some(b'?') => format!("{path}{reference}"),
        _ => format!("{}/{reference}", path.rsplit_once('/').map_or("", |(directory, _)| directory)),
    }
}

/// Removes `.` and `..` from the path. Leaves the query unchanged.
fn without_dots(path_and_query: &str) -> String {
    let at = path_and_query.find('?').unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(at);
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let is_directory = path.ends_with("/.") || path.ends_with("/..");
    format!("/{}{}{query}", kept.join("/"), if is_directory && !kept.is_empty() { "/" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(base: &str, reference: &str, expected: &str) {
        let resolved = resolve(&base.parse().expect("a url"), reference).map(|uri| uri.to_string());
        assert_eq!(resolved.as_deref(), Ok(expected), "{reference} relative to {base}");
    }

    #[test]
    fn an_endpoint_is_resolved_against_the_url() {
        let base = "http://x:8000/a/sse?key=1";
        check(base, "/messages/?session_id=ea2e", "http://x:8000/messages/?session_id=ea2e");
        check(base, " /m?a=/../b#c ", "http://x:8000/m?a=/../b");
        check(base, "messages?s=1", "http://x:8000/a/messages?s=1");
        check(base, "../m/./n/..", "http://x:8000/m/");
        check(base, "../../..", "http://x:8000/");
        check(base, "?s=1", "http://x:8000/a/sse?s=1");
        check(base, "http://X:8000/m", "http://x:8000/m");
        check(base, "//x:8000/m?s=1", "http://x:8000/m?s=1");
        check("https://x/sse", "https://x:443/m", "https://x/m");
        check("https://x", "m", "https://x/m");
        check("http://[::1]:1/sse", "http://[::1]:1/m", "http://[::1]:1/m");
    }

    #[test]
    fn an_invalid_endpoint_or_one_of_another_origin_is_rejected() {
        let base: Uri = "https://x.example/sse".parse().expect("a url");
        let reject = |reference: &str| resolve(&base, reference).expect_err(reference);
        for (reference, origin) in [
            ("http://x.example/m", "http://x.example"),
            ("https://x.example:8443/m", "https://x.example:8443"),
            ("https://y.example/m", "https://y.example"),
            ("//y.example/m", "https://y.example"),
            ("https://x.example@y.example/m", "https://y.example"),
        ] {
            let reason = reject(reference);
            assert!(
                reason.starts_with(&format!("its endpoint is at {origin}, but the url is at https://x.example (")),
                "{reason}"
            );
        }
        for reference in
            ["", "#a", "/a b", "/\u{1b}[31m", "ftp://x.example/m", "https://", &"/".repeat(MAX_ENDPOINT_URL + 1)]
        {
            let reason = reject(reference);
            assert!(reason.starts_with("its endpoint event is not a url; details: \""), "{reason}");
            assert!(reason.len() < 1000 && !reason.contains('\u{1b}'), "{reason}");
        }
    }
}
