//! The HTTP client of a backend with real sockets: plain, TLS, proxies, and its errors.
//!
//! Every error must report whether the request may have been sent, because only an unsent request can be repeated.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use goblin_client::connect::{ConnectError, HttpClient, ProxyEnvironment, RequestError};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::harness::Scratch;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
/// The URL for the process that trusts only the root certificates of its system.
const SYSTEM_ROOTS_URL: &str = "TEST_SYSTEM_ROOTS_URL";

#[tokio::test]
async fn plain_requests_share_a_connection() {
    let server = Server::plain(OK).await;
    let url = format!("http://{}/mcp", server.address);
    let client = client(&url, None, &[]);
    for _ in 0..3 {
        assert_eq!(post(&client, &url).await.unwrap(), (StatusCode::OK, "hello".into()));
    }
    let heads = server.heads();
    assert_eq!(heads.len(), 3);
    assert!(heads[0].starts_with("POST /mcp HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(heads[0].contains(&format!("\r\nhost: {}\r\n", server.address)));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn concurrent_requests_use_a_connection_each_and_later_requests_reuse_them() {
    const MANY: usize = 8;
    let met = Arc::new(Barrier::new(MANY));
    let server = Server::start(move |mut stream, seen| {
        let met = Arc::clone(&met);
        async move {
            while read_request(&mut stream, &seen).await {
                met.wait().await;
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let url = format!("http://{}/mcp", server.address);
    let client = client(&url, None, &[]);
    for _ in 0..3 {
        let answers = futures_util::future::join_all((0..MANY).map(|_| post(&client, &url))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    assert_eq!(server.connections() as usize, MANY);
}

#[tokio::test]
async fn a_connection_closed_by_its_peer_is_replaced_without_an_error() {
    let server = Server::plain("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello").await;
    let url = format!("http://{}/mcp", server.address);
    let client = client(&url, None, &[]);
    for count in 1..=5 {
        assert!(post(&client, &url).await.is_ok(), "request {count}");
        assert_eq!(server.connections(), count);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_read_to_its_end_does_not_block_the_next_request() {
    let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let server = Server::plain(endless).await;
    let url = format!("http://{}/mcp", server.address);
    let client = client(&url, None, &[]);
    for count in 1..=3 {
        let request = Request::post(&url).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        let mut body = client.request(request).await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        assert_eq!(server.connections(), count);
    }
}

/// The response arrives while the rest of the request is still being sent.
#[tokio::test]
async fn a_connection_that_is_still_writing_does_not_block_the_next_request() {
    let server = Server::start(|mut stream, seen| async move {
        read_request(&mut stream, &seen).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        std::future::pending().await
    })
    .await;
    let url = format!("http://{}/mcp", server.address);
    let client = client(&url, None, &[]);
    for count in 1..=2 {
        let large = Full::new(Bytes::from(vec![b' '; 32 << 20]));
        let response = client.request(Request::post(&url).body(large).unwrap()).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        assert_eq!(server.connections(), count);
    }
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let elsewhere = Server::plain(OK).await;
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
        elsewhere.address
    );
    let server = Server::plain(&answer).await;
    let url = format!("http://{}/mcp", server.address);
    let (status, _) = post(&client(&url, None, &[]), &url).await.unwrap();
    assert_eq!(status, StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(server.heads().len(), 1);
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_certificate_of_the_configured_ca_is_accepted() {
    let authority = Authority::new();
    let server = Server::tls(OK, authority.certify("127.0.0.1")).await;
    let url = format!("https://{}/mcp", server.address);
    let client = client(&url, Some(&authority.file), &[]);
    for _ in 0..2 {
        assert_eq!(post(&client, &url).await.unwrap().1, "hello");
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn the_system_roots_are_read_from_ssl_cert_file() {
    let authority = Authority::new();
    let server = Server::tls(OK, authority.certify("127.0.0.1")).await;
    // A test must not change the environment of its process, so this binary runs again with another one.
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("{module}::a_certificate_of_a_system_root_is_accepted"), "--exact"])
        .env("SSL_CERT_FILE", &authority.file)
        .env(SYSTEM_ROOTS_URL, format!("https://{}/mcp", server.address))
        .output();
    let output = child.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(server.heads().len(), 1);
}

/// The second half of the test above, not a test by itself.
#[tokio::test]
async fn a_certificate_of_a_system_root_is_accepted() {
    if let Ok(url) = std::env::var(SYSTEM_ROOTS_URL) {
        assert_eq!(post(&client(&url, None, &[]), &url).await.unwrap().1, "hello");
    }
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_rejected() {
    let server = Server::tls(OK, Authority::new().certify("127.0.0.1")).await;
    let other = Authority::new();
    let url = format!("https://{}/mcp", server.address);
    let error = post(&client(&url, Some(&other.file), &[]), &url).await.unwrap_err();
    let expected = format!(
        "cannot connect to https://{}: the certificate is signed by an unknown CA (if the CA is your own, name its PEM \
         file in the configuration)",
        server.address
    );
    assert_eq!(error.to_string(), expected);
    assert!(error.is_safe_to_retry());
    assert_eq!(server.heads().len(), 0);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_rejected() {
    let authority = Authority::new();
    let server = Server::tls(OK, authority.certify("other.example")).await;
    let url = format!("https://{}/mcp", server.address);
    let error = post(&client(&url, Some(&authority.file), &[]), &url).await.unwrap_err();
    assert!(error.is_safe_to_retry());
    assert!(error.to_string().contains("other.example"), "{error}");
}

#[tokio::test]
async fn http_requests_through_a_proxy_use_the_absolute_form() {
    let proxy = Server::plain(OK).await;
    let variable = format!("http://user:pass@{}", proxy.address);
    let url = "http://backend.example/mcp?x=1";
    let client = client(url, None, &[("HTTP_PROXY", &variable)]);
    assert_eq!(post(&client, url).await.unwrap().1, "hello");
    let head = &proxy.heads()[0];
    assert!(head.starts_with("POST http://backend.example/mcp?x=1 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nhost: backend.example\r\n"), "{head}");
    assert!(head.contains("\r\nproxy-authorization: Basic dXNlcjpwYXNz\r\n"), "{head}");
}

#[tokio::test]
async fn https_requests_use_the_tunnel_of_a_proxy() {
    let authority = Authority::new();
    let server = Server::tls(OK, authority.certify("backend.example")).await;
    let proxy = Server::tunnel(server.address).await;
    let variable = format!("http://user:pass@{}", proxy.address);
    let url = "https://backend.example/mcp";
    let client = client(url, Some(&authority.file), &[("ALL_PROXY", &variable)]);
    assert_eq!(post(&client, url).await.unwrap().1, "hello");

    let head = &proxy.heads()[0];
    assert!(head.starts_with("CONNECT backend.example:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{head}");
    let head = &server.heads()[0];
    assert!(head.starts_with("POST /mcp HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("proxy-"), "{head}");
}

#[tokio::test]
async fn a_proxy_that_rejects_the_tunnel_is_named_in_the_error() {
    let proxy_response = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
    let proxy = Server::plain(proxy_response).await;
    let variable = format!("http://user:pass@{}", proxy.address);
    let url = "https://backend.example/mcp";
    let authority = Authority::new();
    let client = client(url, Some(&authority.file), &[("https_proxy", &variable)]);
    let error = post(&client, url).await.unwrap_err();
    assert!(error.is_safe_to_retry());
    let expected = format!(
        "cannot connect to https://backend.example: proxy http://{}/: tunnel error: proxy authorization required",
        proxy.address
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn loopback_and_excepted_hosts_bypass_the_proxy() {
    let server = Server::plain(OK).await;
    let unreachable = format!("http://{}", refusing_address().await);
    let port = server.address.port();
    for (host, exceptions) in [("127.0.0.1", ""), ("localhost", ""), ("0.0.0.0", "0.0.0.0")] {
        let url = format!("http://{host}:{port}/mcp");
        let client = client(&url, None, &[("http_proxy", &unreachable), ("NO_PROXY", exceptions)]);
        assert_eq!(post(&client, &url).await.unwrap().1, "hello", "{host}");
    }
    // This validates the harness: without the exception the proxy is used.
    let url = format!("http://0.0.0.0:{port}/mcp");
    let error = post(&client(&url, None, &[("http_proxy", &unreachable)]), &url).await.unwrap_err();
    assert!(error.to_string().contains(&format!("proxy {unreachable}/: connection refused")), "{error}");
}

#[tokio::test]
async fn a_refused_connection_is_reported_as_not_sent() {
    let address = refusing_address().await;
    let url = format!("http://{address}/mcp");
    let error = post(&client(&url, None, &[]), &url).await.unwrap_err();
    assert!(matches!(error, RequestError::NotSent { .. }));
    assert_eq!(
        error.to_string(),
        format!("cannot connect to http://{address}: connection refused (is the server running, and on this port?)")
    );
}

#[tokio::test]
async fn a_connection_lost_after_the_request_is_reported_as_maybe_sent() {
    let server = Server::plain("").await;
    let url = format!("http://{}/mcp", server.address);
    let error = post(&client(&url, None, &[]), &url).await.unwrap_err();
    assert!(matches!(error, RequestError::MaybeSent { .. }), "{error}");
    assert!(!error.is_safe_to_retry());
    assert!(error.to_string().starts_with("lost the connection to http://127.0.0.1:"), "{error}");
    assert_eq!(server.connections(), 1);
}

/// The handshake is never answered. The paused clock advances as soon as all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_silent_server_times_out_after_ten_seconds_with_nothing_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/mcp", listener.local_addr().unwrap());
    let authority = Authority::new();
    let start = tokio::time::Instant::now();
    let error = post(&client(&url, Some(&authority.file), &[]), &url).await.unwrap_err();
    assert!(error.is_safe_to_retry(), "{error}");
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn a_client_connects_only_to_its_own_origin() {
    let elsewhere = Server::plain(OK).await;
    let client = client("http://127.0.0.1:9/mcp", None, &[]);
    for url in [format!("http://{}/mcp", elsewhere.address), format!("https://{}/mcp", elsewhere.address)] {
        let error = post(&client, &url).await.unwrap_err();
        assert!(error.is_safe_to_retry());
        assert!(error.to_string().contains("connects to one origin only"), "{error}");
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[test]
fn invalid_cas_urls_and_proxies_are_rejected_without_showing_secrets() {
    let scratch = Scratch::new();
    let empty = scratch.path().join("empty.pem");
    std::fs::write(&empty, "nothing here\n").unwrap();
    let broken = scratch.path().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let missing = scratch.path().join("missing.pem");

    for file in [&empty, &broken] {
        let error = connect_error("https://backend.example/", Some(file), &[]);
        assert!(matches!(error, ConnectError::CaInvalid { .. }), "{error}");
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    }
    let error = connect_error("https://backend.example/", Some(&missing), &[]);
    assert!(matches!(error, ConnectError::CaUnreadable { .. }), "{error}");
    for url in ["ftp://user:hunter2@backend.example/", "/hunter2", "backend.example:80"] {
        let error = connect_error(url, None, &[]);
        assert!(matches!(error, ConnectError::Url { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
    for value in ["socks5://user:hunter2@proxy:1080", "https://user:hunter2@proxy", "http://"] {
        let error = connect_error("http://backend.example/", None, &[("ALL_PROXY", value)]);
        assert!(error.to_string().starts_with("ALL_PROXY does not name a proxy"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

fn client(url: &str, ca: Option<&Path>, variables: &[(&str, &str)]) -> HttpClient {
    make(url, ca, variables).unwrap()
}

fn connect_error(url: &str, ca: Option<&Path>, variables: &[(&str, &str)]) -> ConnectError {
    make(url, ca, variables).err().unwrap()
}

fn make(url: &str, ca: Option<&Path>, variables: &[(&str, &str)]) -> Result<HttpClient, ConnectError> {
    let proxies = ProxyEnvironment::from_lookup(|name| {
        let variable = variables.iter().find(|(known, _)| *known == name);
        variable.map(|(_, value)| (*value).to_owned())
    });
    HttpClient::new(&url.parse::<Uri>().unwrap(), ca, &proxies)
}

async fn post(client: &HttpClient, url: &str) -> Result<(StatusCode, String), RequestError> {
    let request = Request::post(url).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    let response = client.request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Ok((status, String::from_utf8(body.to_vec()).unwrap()))
}

/// Returns an address without a listener.
async fn refusing_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// A server that returns the same response to every request, and records the requests.
struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    heads: Mutex<Vec<String>>,
    connections: AtomicU32,
}

impl Server {
    async fn plain(answer: &str) -> Server {
        let answer = answer.to_owned();
        Server::start(move |stream, seen| {
            let answer = answer.clone();
            async move { answer_all(stream, &seen, &answer).await }
        })
        .await
    }

    async fn tls(answer: &str, config: ServerConfig) -> Server {
        let answer = answer.to_owned();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Server::start(move |stream, seen| {
            let (answer, acceptor) = (answer.clone(), acceptor.clone());
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    answer_all(stream, &seen, &answer).await;
                }
            }
        })
        .await
    }

    /// Starts a proxy that connects every CONNECT to `target`.
    async fn tunnel(target: SocketAddr) -> Server {
        Server::start(move |mut stream, seen| async move {
            read_request(&mut stream, &seen).await;
            let mut onward = TcpStream::connect(target).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut onward).await;
        })
        .await
    }

    async fn start<F, R>(handle: F) -> Server
    where
        F: Fn(TcpStream, Arc<Seen>) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let server = Server { address, seen: Arc::clone(&seen) };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                seen.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(handle(stream, Arc::clone(&seen)));
            }
        });
        server
    }

    fn heads(&self) -> Vec<String> {
        self.seen.heads.lock().unwrap().clone()
    }

    fn connections(&self) -> u32 {
        self.seen.connections.load(Ordering::SeqCst)
    }
}

/// Answers all requests. An empty answer closes the connection after the first request.
async fn answer_all(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: &Seen, answer: &str) {
    while read_request(&mut stream, seen).await && !answer.is_empty() {
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
}

/// Reads a head and, if present, the two bytes of the body. Returns false at the end of the stream.
async fn read_request(stream: &mut (impl AsyncRead + Unpin), seen: &Seen) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    let head = String::from_utf8(head).unwrap();
    if head.contains("content-length: 2\r\n") {
        stream.read_u16().await.unwrap();
    }
    seen.heads.lock().unwrap().push(head);
    true
}

/// A CA and its certificate in a file.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
    _scratch: Scratch,
}

impl Authority {
    fn new() -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        let scratch = Scratch::new();
        let file = scratch.path().join("ca.pem");
        // The name is unique. Two CAs of the same name differ only in their signatures, which is another error.
        parameters.distinguished_name.push(DnType::CommonName, file.display().to_string());
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        std::fs::write(&file, certificate.pem()).unwrap();
        Authority { issuer: Issuer::new(parameters, key), file, _scratch: scratch }
    }

    fn certify(&self, name: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }
}
