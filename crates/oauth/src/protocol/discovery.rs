//! Finds the authorization server of a server, and checks the metadata of both.
//!
//! The order is that of the specification: the URL in the challenge, the well-known page of the server's path, that of
//! its root. A server without any of them follows the version of 2025-03-26, in which it is its own authorization
//! server.

use std::net::IpAddr;

use goblin_client::connect;
use goblin_config::oauth::ResourceIndicator;
use http::Uri;

use crate::LoginTarget;
use crate::error::{LoginError, Refusal, UrlFault};
use crate::protocol::challenge::Challenge;
use crate::protocol::fetch::Fetcher;
use crate::protocol::metadata::{AuthorizationServer, Document};
use crate::protocol::url::{is_safe_for_opener, shown_url};

pub(crate) use crate::protocol::probe::probe;

/// The authorization server of a server. Its URLs are checked.
#[derive(Clone)]
pub(crate) struct Discovery {
    pub server: AuthorizationServer,
    /// The resource indicator for each authorization and token request. `None` if the options omit it.
    pub resource: Option<String>,
    /// The scopes that the challenge names, else those of the resource metadata.
    pub scopes: Vec<String>,
    /// Whether a login with a code is protected by PKCE.
    pub has_pkce: bool,
}

/// The answer of a server to a request without a token.
pub(crate) struct Probe {
    /// `None` if the server answers without a login.
    pub challenge: Option<Challenge>,
    /// The address of the connection, if there is no proxy.
    pub peer: Option<IpAddr>,
}

impl Discovery {
    #[cfg(test)]
    pub(crate) fn new(
        server: AuthorizationServer,
        resource: Option<String>,
        scopes: Vec<String>,
        has_pkce: bool,
    ) -> Discovery {
        Discovery { server, resource, scopes, has_pkce }
    }

    /// Returns an error unless the authorization server offers PKCE with S256. Each login with a code needs it.
    pub(crate) fn check_pkce(&self) -> Result<(), Refusal> {
        let refused = || Refusal::NoChallengeMethod { host: self.server.host().to_owned() };
        if self.has_pkce { Ok(()) } else { Err(refused()) }
    }
}

/// Finds the authorization server of the target.
pub(crate) async fn discover(
    fetcher: &Fetcher,
    target: &LoginTarget,
    challenge: &Challenge,
) -> Result<Discovery, LoginError> {
    let resource = ResourceMetadata::fetch(fetcher, target, challenge).await?;
    let found = match &target.options.metadata_url {
        Some(url) => configured_metadata(fetcher, target, url).await?,
        None => match named_issuer(fetcher, target, resource.as_ref())? {
            Some(issuer) => issuer_metadata(fetcher, &issuer).await?,
            None => own_metadata(fetcher, target).await?,
        },
    };
    endpoints(fetcher, &found.server)?;
    let (named, supported) = resource.map(|it| (it.resource, it.scopes)).unwrap_or_default();
    let indicator = match target.options.resource {
        ResourceIndicator::Sent => Some(named.unwrap_or_else(|| canonical(&target.url))),
        ResourceIndicator::Omitted => None,
    };
    let scopes = if challenge.scopes.is_empty() { supported } else { challenge.scopes.clone() };
    Ok(Discovery { server: found.server, resource: indicator, scopes, has_pkce: found.has_pkce })
}

/// The metadata of a server (RFC 9728). It covers the server's URL.
struct ResourceMetadata {
    resource: Option<String>,
    issuers: Vec<String>,
    scopes: Vec<String>,
}

impl ResourceMetadata {
    /// Fetches the metadata of the target. Returns `None` if it has none.
    async fn fetch(
        fetcher: &Fetcher,
        target: &LoginTarget,
        challenge: &Challenge,
    ) -> Result<Option<ResourceMetadata>, LoginError> {
        const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
        let origin = connect::origin(&target.url).unwrap_or_default();
        let path = target.url.path().trim_end_matches('/');
        let mut candidates: Vec<String> = challenge.resource_metadata.iter().cloned().collect();
        for candidate in [format!("{origin}{WELL_KNOWN}{path}"), format!("{origin}{WELL_KNOWN}")] {
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        for candidate in candidates {
            let url = fetcher.check("URL of the metadata", &candidate)?;
            if let Some(document) = fetcher.document(&url).await? {
                return Ok(Some(ResourceMetadata::read(&document, &target.url)?));
            }
        }
        Ok(None)
    }

    fn read(document: &Document, url: &Uri) -> Result<ResourceMetadata, Refusal> {
        let resource = document.text("resource")?;
        if let Some(resource) = resource.as_ref().filter(|resource| !covers(resource, url)) {
            return Err(Refusal::Resource { resource: shown_url(resource), url: shown_url(&canonical(url)) });
        }
        let issuers = document.texts("authorization_servers")?;
        Ok(ResourceMetadata { resource, issuers, scopes: document.scopes("scopes_supported")? })
    }
}

/// Reports whether a resource is the server or contains it: the same origin, and a path that begins the server's path.
fn covers(resource: &str, url: &Uri) -> bool {
    let Ok(uri) = resource.parse::<Uri>() else { return false };
    let is_plain =
        !resource.contains('#') && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    let rest = url.path().strip_prefix(uri.path().trim_end_matches('/'));
    let is_path = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_query = uri.query().is_none() || uri.query() == url.query();
    let origin = connect::origin(&uri);
    is_plain && is_path && is_query && origin.is_some() && origin == connect::origin(url)
}

/// Returns the URL of a server without its query, which may contain a secret.
fn canonical(url: &Uri) -> String {
    format!("{}{}", connect::origin(url).unwrap_or_default(), url.path().trim_end_matches('/'))
}

/// Returns the issuer to ask: the configured one, or the first usable one that the server names. Returns `None` if
/// there is neither.
fn named_issuer(
    fetcher: &Fetcher,
    target: &LoginTarget,
    resource: Option<&ResourceMetadata>,
) -> Result<Option<String>, Refusal> {
    let named = resource.map(|resource| resource.issuers.as_slice()).unwrap_or_default();
    if let Some(issuer) = &target.options.issuer {
        if !named.is_empty() && !named.contains(issuer) {
            let named = named.iter().take(3).map(|issuer| shown_url(issuer)).collect::<Vec<_>>().join(", ");
            return Err(Refusal::IssuerNotNamed { issuer: shown_url(issuer), named });
        }
        return check_issuer(fetcher, issuer).map(|()| Some(issuer.clone()));
    }
    let mut first = None;
    for issuer in named {
        match check_issuer(fetcher, issuer) {
            Ok(()) => return Ok(Some(issuer.clone())),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    first.map_or(Ok(None), Err)
}

fn check_issuer(fetcher: &Fetcher, issuer: &str) -> Result<(), Refusal> {
    let checked = fetcher.check("issuer", issuer)?;
    match checked.uri().query() {
        Some(_) => Err(Refusal::Url { name: "issuer", url: shown_url(issuer), fault: UrlFault::Query }),
        None => Ok(()),
    }
}

/// The metadata of an authorization server, and whether it offers PKCE.
struct Found {
    server: AuthorizationServer,
    has_pkce: bool,
}

impl Found {
    /// Reads metadata of one of the given issuers.
    fn read(document: &Document, issuers: &[&str]) -> Result<Found, Refusal> {
        let server = AuthorizationServer::read(document)?;
        if let Some(expected) = issuers.first().filter(|_| !issuers.contains(&server.issuer.as_str())) {
            let (found, expected) = (shown_url(&server.issuer), shown_url(expected));
            return Err(Refusal::Issuer { url: document.shown_url(), found, expected });
        }
        let has_pkce = document.texts("code_challenge_methods_supported")?.iter().any(|method| method == "S256");
        Ok(Found { server, has_pkce })
    }
}

/// Fetches the metadata at the URL that the configuration names.
async fn configured_metadata(fetcher: &Fetcher, target: &LoginTarget, url: &str) -> Result<Found, LoginError> {
    let checked = fetcher.check("URL of the metadata", url)?;
    let document = fetcher.document(&checked).await?;
    let document = document.ok_or_else(|| Refusal::NoMetadata { issuer: shown_url(url) })?;
    let issuers: Vec<&str> = target.options.issuer.as_deref().into_iter().collect();
    let found = Found::read(&document, &issuers)?;
    check_issuer(fetcher, &found.server.issuer)?;
    Ok(found)
}

async fn issuer_metadata(fetcher: &Fetcher, issuer: &str) -> Result<Found, LoginError> {
    match first_document(fetcher, issuer).await? {
        Some(document) => Ok(Found::read(&document, &[issuer])?),
        None => Err(Refusal::NoMetadata { issuer: shown_url(issuer) }.into()),
    }
}

/// Returns the metadata of a server that is its own authorization server. The endpoints of 2025-03-26 replace missing
/// metadata.
async fn own_metadata(fetcher: &Fetcher, target: &LoginTarget) -> Result<Found, LoginError> {
    let origin = connect::origin(&target.url).unwrap_or_default();
    if let Some(document) = first_document(fetcher, &origin).await? {
        // The gateway made this issuer up, so both ways to write it are right.
        return Ok(Found::read(&document, &[&origin, &format!("{origin}/")])?);
    }
    let server = AuthorizationServer {
        token_endpoint: format!("{origin}/token"),
        authorization_endpoint: Some(format!("{origin}/authorize")),
        registration_endpoint: Some(format!("{origin}/register")),
        issuer: origin,
        revocation_endpoint: None,
        device_authorization_endpoint: None,
        scopes_supported: Vec::new(),
        auth_methods: Vec::new(),
        accepts_client_documents: false,
        sends_issuer: false,
    };
    Ok(Found { server, has_pkce: true })
}

/// Fetches the first page with metadata of an issuer.
async fn first_document(fetcher: &Fetcher, issuer: &str) -> Result<Option<Document>, LoginError> {
    for candidate in metadata_urls(issuer) {
        let url = fetcher.check("URL of the metadata", &candidate)?;
        if let Some(document) = fetcher.document(&url).await? {
            return Ok(Some(document));
        }
    }
    Ok(None)
}

/// Returns the URLs at which an issuer may have its metadata.
fn metadata_urls(issuer: &str) -> Vec<String> {
    const OAUTH: &str = "/.well-known/oauth-authorization-server";
    const OPENID: &str = "/.well-known/openid-configuration";
    let start = issuer.find("://").map_or(0, |at| at + 3);
    let (origin, path) = issuer.split_at(issuer[start..].find('/').map_or(issuer.len(), |at| start + at));
    match path.trim_end_matches('/') {
        "" => vec![format!("{origin}{OAUTH}"), format!("{origin}{OPENID}")],
        path => {
            vec![format!("{origin}{OAUTH}{path}"), format!("{origin}{OPENID}{path}"), format!("{origin}{path}{OPENID}")]
        }
    }
}

/// Checks each URL in the metadata of an authorization server, and returns them.
pub(crate) fn endpoints(fetcher: &Fetcher, server: &AuthorizationServer) -> Result<Vec<String>, Refusal> {
    let endpoints = [
        ("token endpoint", Some(&server.token_endpoint)),
        ("authorization endpoint", server.authorization_endpoint.as_ref()),
        ("registration endpoint", server.registration_endpoint.as_ref()),
        ("revocation endpoint", server.revocation_endpoint.as_ref()),
        ("device authorization endpoint", server.device_authorization_endpoint.as_ref()),
    ];
    let mut checked = Vec::new();
    for (name, url) in endpoints {
        let Some(url) = url else { continue };
        fetcher.check(name, url)?;
        if !is_safe_for_opener(url) {
            return Err(Refusal::Url { name, url: shown_url(url), fault: UrlFault::Shell });
        }
        checked.push(url.clone());
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oauth1_a_resource_covers_its_path_on_segment_borders() {
        let url: Uri = "https://mcp.example/a/b?key=x".parse().expect("a URL");
        let good =
            ["https://mcp.example/a/b", "https://MCP.example:443/a", "https://mcp.example", "https://mcp.example/"];
        let also_good = ["https://mcp.example/a/", "https://mcp.example/a/b?key=x"];
        for resource in good.into_iter().chain(also_good) {
            assert!(covers(resource, &url), "{resource}");
        }
        let bad = [
            "https://mcp.example/a/bc",
            "https://mcp.example/a/b/c",
            "https://mcp.example/A",
            "http://mcp.example/a",
            "https://mcp.example:8443/a",
            "https://evil.example/a",
            "https://mcp.example/a/b?key=y",
            "/a",
            "",
            "urn:x",
            "https://mcp.example/a#x",
            "https://x@mcp.example/a",
            "https://mcp.example.evil/a",
            "https://mcp.example/%61",
        ];
        for resource in bad {
            assert!(!covers(resource, &url), "{resource}");
        }
        assert_eq!(canonical(&url), "https://mcp.example/a/b");
    }

    #[test]
    fn oauth1_an_issuer_has_its_metadata_at_the_places_of_the_specification() {
        let oauth = "/.well-known/oauth-authorization-server";
        let openid = "/.well-known/openid-configuration";
        for issuer in ["https://as.example:8", "https://as.example:8/"] {
            let expected = [oauth, openid].map(|path| format!("https://as.example:8{path}"));
            assert_eq!(metadata_urls(issuer), expected, "{issuer}");
        }
        for issuer in ["https://as.example/t/u", "https://as.example/t/u/"] {
            let expected = [format!("{oauth}/t/u"), format!("{openid}/t/u"), format!("/t/u{openid}")];
            assert_eq!(metadata_urls(issuer), expected.map(|path| format!("https://as.example{path}")), "{issuer}");
        }
    }
}
