//! The HTTP client of a backend with a URL. Its errors state whether the backend may have received the request.
//!
//! Each backend has one [`HttpClient`]. It owns the route to one origin: a pool of HTTP/1.1 connections, TLS by rustls
//! with the system's roots and an optional CA, and the proxy from the environment. The time to connect is limited, from
//! the name lookup to the end of the TLS handshake; see [`dial`].
//!
//! The client deliberately omits some features:
//! - It follows no redirects and rejects a request for any origin but its own. A backend cannot redirect the gateway.
//! - It never repeats a request that may have been sent; [`RequestError`] distinguishes the two cases. It does replace
//!   an idle connection that was closed before a byte was written.
//! - It uses no proxy for loopback addresses. curl would, unless `NO_PROXY` excludes them. Backends often listen on the
//!   same machine, which a proxy cannot reach, and their traffic is private.
//! - It has no timeout for a response. Only the caller knows how long its request may take.
//!
//! The system's roots are read when the first `https` backend appears. All clients share them, because they cost time
//! and memory.

mod dial;
mod pool;
mod reach;
mod resolver;
mod socket;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{Either, ready};
use http::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use rustls_native_certs::load_native_certs;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::connect::dial::{DialRoute, Dialer, Origin, Tls};
use crate::connect::pool::{Pool, SendError};

pub use crate::connect::pool::{ResponseBody, WholeBodyError};
pub use crate::connect::reach::Reach;
pub use crate::connect::socket::Socket;

/// A client for one origin. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct HttpClient(Arc<Inner>);

/// The state that the clones of a client share.
struct Inner {
    pool: Pool,
    target: Uri,
    origin: Origin,
    host: HeaderValue,
    /// Whether requests go to a forwarding proxy. The proxy needs unencrypted requests with the absolute URI.
    is_forwarded: bool,
    proxy_authorization: Option<HeaderValue>,
    /// The origin as text, for errors.
    name: Arc<str>,
}

/// The reason why a configured URL cannot be used. The operator must fix it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Holds only scheme and host: the rest of a URL may contain secrets.
    #[error("the URL has scheme {scheme:?} and host {host:?}, but must look like https://host/mcp")]
    Url { scheme: String, host: String },
    #[error("cannot read the CA file {}: {source}", path.display())]
    CaUnreadable { path: PathBuf, source: io::Error },
    #[error("the CA file {} is not usable: {reason} (the file must contain PEM certificates)", path.display())]
    CaInvalid { path: PathBuf, reason: String },
    #[error("no trusted root certificates on this system{reason} (install ca-certificates or set SSL_CERT_FILE)")]
    NoRoots { reason: String },
    #[error(
        "{variable} does not name a proxy like http://host:3128 (other kinds are not supported; NO_PROXY makes exceptions)"
    )]
    Proxy { variable: &'static str },
    #[error(
        "the address {host} is more private than the server that names it (only a server in the same network may name \
         such an address)"
    )]
    OutOfReach { host: String },
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The reason why a request got no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RequestError {
    /// No byte of the request was sent, so a retry is safe.
    #[error("cannot connect to {origin}: {cause}")]
    NotSent { origin: Arc<str>, cause: String },
    /// The backend may have received the request and acted on it.
    #[error("lost the connection to {origin} before it answered: {cause}")]
    MaybeSent { origin: Arc<str>, cause: String },
    /// The backend rejected the token of the request, and there is no other one for now. A retry is safe.
    #[error("{origin} rejects the token of the login, and it cannot be refreshed: {cause}")]
    Unauthorized { origin: Arc<str>, cause: String },
}

impl HttpClient {
    /// Creates a client for the scheme, host and port of `target`. `ca` is a PEM file with roots that are trusted in
    /// addition to the system's; `http` ignores it.
    pub fn new(target: &Uri, ca: Option<&Path>, proxies: &ProxyEnvironment) -> Result<HttpClient, ConnectError> {
        HttpClient::build(target, ca, proxies, None)
    }

    /// Creates a client like [`HttpClient::new`] that connects only to addresses within `reach`. A proxy looks up names
    /// itself, so behind one the rule judges literal addresses alone.
    pub fn within(
        reach: Reach,
        target: &Uri,
        ca: Option<&Path>,
        proxies: &ProxyEnvironment,
    ) -> Result<HttpClient, ConnectError> {
        match target.host() {
            Some(host) if !reach.allows_host(host) => Err(ConnectError::OutOfReach { host: host.to_owned() }),
            _ => HttpClient::build(target, ca, proxies, Some(reach)),
        }
    }

    fn build(
        target: &Uri,
        ca: Option<&Path>,
        proxies: &ProxyEnvironment,
        reach: Option<Reach>,
    ) -> Result<HttpClient, ConnectError> {
        let wrong = || ConnectError::Url {
            scheme: target.scheme_str().unwrap_or_default().to_owned(),
            host: target.host().unwrap_or_default().to_owned(),
        };
        let origin = Origin::of(target).ok_or_else(wrong)?;
        let host = HeaderValue::try_from(origin.authority()).map_err(|_| wrong())?;
        let tls = match origin.is_https {
            true => Some(Tls {
                connector: TlsConnector::from(Arc::new(tls_config(ca)?)),
                name: ServerName::try_from(unbracketed(&origin.host).to_owned()).map_err(|_| wrong())?,
            }),
            false => None,
        };
        let proxy = proxies.proxy_for(target, &origin)?;
        let tcp = dial::tcp_connector(if proxy.is_none() { reach } else { None });
        let is_forwarded = proxy.is_some() && !origin.is_https;
        let (route, proxy_authorization) = match &proxy {
            None => (DialRoute::Direct, None),
            Some(proxy) if origin.is_https => (DialRoute::tunnel(proxy, &tcp), None),
            Some(proxy) => (DialRoute::Forward { proxy: proxy.uri().clone() }, proxy.basic_auth().cloned()),
        };
        let (name, target) = (Arc::from(origin.to_string()), target.clone());
        let pool = Pool::new(Dialer::new(target.clone(), tcp, route, tls));
        Ok(HttpClient(Arc::new(Inner { pool, target, origin, host, is_forwarded, proxy_authorization, name })))
    }

    /// Creates a client for a gateway on a Unix socket. Its requests go to `http://localhost`.
    pub(crate) fn over_socket(socket: &Path) -> HttpClient {
        let target = Uri::from_static("http://localhost/");
        let origin = Origin { is_https: false, host: "localhost".to_owned(), port: 80 };
        let route = DialRoute::Socket { path: socket.to_owned() };
        let pool = Pool::new(Dialer::new(target.clone(), dial::tcp_connector(None), route, None));
        let (host, name) = (HeaderValue::from_static("localhost"), Arc::from(format!("unix:{}", socket.display())));
        let (is_forwarded, proxy_authorization) = (false, None);
        HttpClient(Arc::new(Inner { pool, target, origin, host, is_forwarded, proxy_authorization, name }))
    }

    /// Sends a request with an absolute URI. Returns redirects like any other response. Returns an error if the URI has
    /// another origin.
    pub fn request(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, RequestError>> {
        let Inner { pool, host, is_forwarded, proxy_authorization, name, .. } = &*self.0;
        if let Err(error) = self.check_origin(request.uri()) {
            return Either::Left(ready(Err(error)));
        }
        if !is_forwarded {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        }
        let headers = request.headers_mut();
        headers.entry(HOST).or_insert_with(|| host.clone());
        if let Some(authorization) = proxy_authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        Either::Right(pool.send(request).map_err(|error| RequestError::new(name, error)))
    }

    /// Returns the address of the last connection that was opened without a proxy. It tells loopback, private and public
    /// servers apart.
    pub fn last_peer(&self) -> Option<IpAddr> {
        self.0.pool.last_peer()
    }

    /// Returns the error for a token that was rejected and cannot be replaced for now.
    pub(crate) fn unauthorized(&self, cause: String) -> RequestError {
        RequestError::Unauthorized { origin: Arc::clone(&self.0.name), cause }
    }

    fn check_origin(&self, uri: &Uri) -> Result<(), RequestError> {
        let Inner { target, origin, name, .. } = &*self.0;
        let is_as_written = uri.authority() == target.authority() && uri.scheme() == target.scheme();
        if is_as_written || Origin::of(uri).as_ref() == Some(origin) {
            return Ok(());
        }
        let host = uri.host().unwrap_or_default();
        let cause = format!("the request names host {host:?}, and this client connects to one origin only");
        Err(RequestError::NotSent { origin: Arc::clone(name), cause })
    }
}

impl RequestError {
    fn new(origin: &Arc<str>, failed: SendError) -> RequestError {
        let origin = Arc::clone(origin);
        let describe = |error: hyper::Error| {
            let hint =
                if error.is_parse() { " (does the server use HTTP? a TLS server needs https: in the url)" } else { "" };
            format!("{}{hint}", dial::chain(&error))
        };
        match failed {
            SendError::Dial(error) => RequestError::NotSent { origin, cause: error.to_string() },
            SendError::Unsent(error) => RequestError::NotSent { origin, cause: describe(error) },
            SendError::Sent(error) => RequestError::MaybeSent { origin, cause: describe(error) },
        }
    }

    /// Reports whether the backend cannot have received the request.
    pub fn is_safe_to_retry(&self) -> bool {
        match self {
            RequestError::NotSent { .. } | RequestError::Unauthorized { .. } => true,
            RequestError::MaybeSent { .. } => false,
        }
    }
}

/// The proxies from the environment: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`. The lower-case form takes
/// precedence over the upper-case one. The values may contain passwords, so the type implements no `Debug`.
#[derive(Clone, Default)]
pub struct ProxyEnvironment {
    http: Option<ProxyVariable>,
    https: Option<ProxyVariable>,
    exceptions: String,
}

#[derive(Clone)]
struct ProxyVariable {
    name: &'static str,
    value: String,
}

impl ProxyEnvironment {
    /// Reads the environment of this process.
    pub fn from_process() -> ProxyEnvironment {
        ProxyEnvironment::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the variables through `lookup`, so that tests can pass their own.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> ProxyEnvironment {
        let first = |names: [&'static str; 4]| {
            names.into_iter().find_map(|name| {
                let value = lookup(name).filter(|value| !value.is_empty())?;
                Some(ProxyVariable { name, value })
            })
        };
        ProxyEnvironment {
            http: first(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            https: first(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            exceptions: lookup("no_proxy").or_else(|| lookup("NO_PROXY")).unwrap_or_default(),
        }
    }

    /// Returns the proxy for an origin. Returns an error if the variable does not name an HTTP proxy.
    fn proxy_for(&self, target: &Uri, origin: &Origin) -> Result<Option<Intercept>, ConnectError> {
        let variable = match origin.is_https {
            true => &self.https,
            false => &self.http,
        };
        let Some(ProxyVariable { name, value }) = variable else {
            return Ok(None);
        };
        // The matcher treats a proxy that it cannot parse as no proxy, so check the exceptions first.
        let any = Matcher::builder().all("http://proxy.invalid");
        let is_exception = any.no(self.exceptions.as_str()).build().intercept(target).is_none();
        if is_exception || is_loopback(&origin.host) {
            return Ok(None);
        }
        let proxy = Matcher::builder().all(value.as_str()).build().intercept(target);
        match proxy.filter(|proxy| proxy.uri().scheme_str() == Some("http")) {
            Some(proxy) => Ok(Some(proxy)),
            None => Err(ConnectError::Proxy { variable: name }),
        }
    }
}

/// Returns scheme, host and port of a URL in a form for messages and comparisons.
pub fn origin(url: &Uri) -> Option<String> {
    Origin::of(url).map(|origin| origin.to_string())
}

fn is_loopback(host: &str) -> bool {
    let name = unbracketed(host).trim_end_matches('.').to_ascii_lowercase();
    match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

fn unbracketed(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

fn tls_config(ca: Option<&Path>) -> Result<ClientConfig, ConnectError> {
    let roots = match ca {
        None => system_roots()?,
        Some(path) => {
            let system = system_roots().map(|roots| (*roots).clone());
            let mut roots = system.unwrap_or_else(|_| RootCertStore::empty());
            add_own_roots(&mut roots, path)?;
            Arc::new(roots)
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn system_roots() -> Result<Arc<RootCertStore>, ConnectError> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = SYSTEM.get() {
        return Ok(Arc::clone(roots));
    }
    let found = load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map(|error| format!(": {error}"));
        let reason = reason.unwrap_or_default();
        return Err(ConnectError::NoRoots { reason });
    }
    Ok(Arc::clone(SYSTEM.get_or_init(|| Arc::new(roots))))
}

fn add_own_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), ConnectError> {
    let text = std::fs::read(path).map_err(|source| ConnectError::CaUnreadable { path: path.to_owned(), source })?;
    let invalid = |reason: String| ConnectError::CaInvalid { path: path.to_owned(), reason };
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        count += 1;
    }
    match count {
        0 => Err(invalid("the file contains no certificate".into())),
        _ => Ok(()),
    }
}
