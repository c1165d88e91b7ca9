//! Requests that must reach no route: from foreign pages, for foreign hosts, or malformed on purpose. All are rejected,
//! and the gateway continues to work.

use std::net::SocketAddr;

use goblin_admin::routes::{Access, ROUTES};
use http::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::harness::{Gateway, TIMEOUT, fixture_server};
use crate::hostile::{Attack, HEALTHY};

/// The memory limit of the gateway under malformed requests, in MiB.
const CEILING: u64 = 128;

/// Writes bytes and reads until the gateway closes the connection.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the gateway listens");
    // The gateway may reject the head and close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("an end in time");
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

/// An attack by headers. `probes` is true if the probes reject it too.
struct Headers {
    lines: &'static str,
    probes: bool,
}

/// The attacks. Probes accept any host, because a supervisor may use any address of the gateway. Foreign pages get no
/// response.
const ATTACKS: &[Headers] = &[
    Headers { lines: "host: evil.example\r\n", probes: false },
    Headers { lines: "host: localhost:+80\r\n", probes: false },
    Headers { lines: "host: localhost:80:80\r\n", probes: false },
    Headers { lines: "host: localhost:0x50\r\n", probes: false },
    Headers { lines: "", probes: false },
    Headers { lines: "host: localhost\r\nhost: localhost\r\n", probes: false },
    Headers { lines: "host: localhost\r\nhost: evil.example\r\n", probes: false },
    Headers { lines: "host: localhost\r\norigin: http://evil.example\r\n", probes: false },
    Headers { lines: "host: localhost\r\norigin: null\r\n", probes: false },
    Headers { lines: "host: localhost\r\norigin: http://localhost:5173\r\n", probes: false },
    Headers { lines: "host: localhost\r\norigin: http://localhost\r\norigin: http://localhost\r\n", probes: false },
    Headers { lines: "host: localhost\r\nsec-fetch-site: cross-site\r\n", probes: true },
    Headers { lines: "host: localhost\r\nsec-fetch-site: same-site\r\n", probes: true },
    Headers { lines: "host: localhost\r\norigin: http://evil.example\r\nsec-fetch-site: cross-site\r\n", probes: true },
];

/// Returns every HTTP route: verb, path, and whether it is a probe.
fn routes() -> Vec<(String, String, bool)> {
    let mut routes: Vec<_> = ROUTES
        .iter()
        .map(|route| (route.verb().to_string(), route.path.replace("{id}", "a"), route.access == Access::Probe))
        .collect();
    let mcp = ["/mcp", "/mcp/p/work", "/sse", "/sse/p/work", "/messages?sessionId=x", "/", "/api", "/nowhere"];
    for path in mcp {
        for verb in ["GET", "POST", "DELETE", "OPTIONS", "PUT"] {
            routes.push((verb.to_owned(), path.to_owned(), false));
        }
    }
    routes
}

#[tokio::test]
async fn hard11_no_route_answers_a_foreign_page_or_host() {
    let config = json!({
        "gateway": { "token": "a-token-of-the-tests" },
        "profiles": { "work": {} },
        "mcpServers": { HEALTHY: fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let routes = routes();
    assert!(routes.len() > 50, "only {} routes", routes.len());
    for (verb, path, is_probe) in &routes {
        for Headers { lines, probes } in ATTACKS {
            let request = format!(
                "{verb} {path} HTTP/1.1\r\n{lines}authorization: Bearer a-token-of-the-tests\r\n\
                 accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\
                 connection: close\r\ncontent-length: 2\r\n\r\n{{}}"
            );
            let answer = exchange(gateway.address, request.as_bytes()).await;
            let name = format!("{verb} {path} with {lines:?}: {answer}");
            assert_eq!(matches!(status(&answer), 400 | 403), !is_probe || *probes, "{name}");
            assert!(!answer.contains("access-control-allow"), "{name}");
        }
    }
    let bearer = [("authorization", "bearer a-token-of-the-tests"), ("content-type", "application/json")];
    let answer = Client::new(gateway.address).send(Method::POST, "/mcp", &bearer, "{}").await;
    assert_eq!(
        answer.status,
        StatusCode::BAD_REQUEST,
        "the gate lets a program in, and `{{}}` is no message: {answer:?}"
    );
}

#[tokio::test]
async fn hard11_the_inspector_reaches_only_the_mcp_endpoints_and_is_logged_once() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    for origin in ["http://localhost:6274", "http://127.0.0.1:6274"] {
        for site in ["same-site", "cross-site"] {
            let page = [("origin", origin), ("sec-fetch-site", site)];
            let headers = [&client.headers()[..], &page].concat();
            let answer = client.send(Method::POST, "/mcp", &headers, body.clone()).await;
            assert_eq!(answer.status, StatusCode::OK, "{origin} {site}: {answer:?}");
            assert_eq!(answer.headers["access-control-allow-origin"], origin);
            let preflight = [&page[..], &[("access-control-request-method", "POST")]].concat();
            let answer = client.send(Method::OPTIONS, "/mcp", &preflight, "").await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT, "{origin} {site}: {answer:?}");
            assert_eq!(answer.headers["access-control-allow-origin"], origin);
            for path in ["/api/status", "/metrics", "/nowhere"] {
                for verb in [Method::GET, Method::OPTIONS] {
                    let answer = client.send(verb.clone(), path, &page, "").await;
                    assert_eq!(answer.status, StatusCode::FORBIDDEN, "{verb} {path} {origin}: {answer:?}");
                    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
                }
            }
        }
    }
    let mentioned = gateway.log().iter().filter(|line| line.contains("gateway.allowedOrigins")).count();
    assert_eq!(mentioned, 1, "{:?}", gateway.log());
}

#[tokio::test]
async fn hard11_allowed_origins_replace_the_inspector_and_serve_other_sites() {
    let config = json!({ "gateway": { "allowedOrigins": ["http://localhost:5173"] }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    for (origin, expected) in [("http://localhost:5173", 200), ("http://localhost:6274", 403)] {
        let headers = [&client.headers()[..], &[("origin", origin), ("sec-fetch-site", "same-site")]].concat();
        let answer = client.send(Method::POST, "/mcp", &headers, body.clone()).await;
        assert_eq!(answer.status.as_u16(), expected, "{origin}: {answer:?}");
    }
    let probe = [("origin", "http://localhost:5173"), ("sec-fetch-site", "same-site")];
    assert_eq!(client.send(Method::GET, "/healthz", &probe, "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn hard11_a_repeated_header_is_a_bad_request() {
    let gateway = Gateway::with_servers(json!({})).await;
    let (client, other) = (gateway.client().await, gateway.client().await);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let own = format!("http://{}", gateway.address);
    let second = other.session.as_deref().expect("a session");
    for (name, first, second) in [
        ("mcp-session-id", None, second),
        ("mcp-protocol-version", None, "2025-11-25"),
        ("last-event-id", Some("1"), "2"),
        ("authorization", Some("Bearer a"), "Bearer b"),
        ("origin", Some(own.as_str()), own.as_str()),
    ] {
        let mut headers = client.headers();
        headers.extend(first.map(|first| (name, first)));
        headers.push((name, second));
        for verb in [Method::POST, Method::GET, Method::DELETE] {
            let answer = client.send(verb.clone(), "/mcp", &headers, body.clone()).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{verb} {name}: {answer:?}");
        }
    }
    for client in [client, other] {
        assert_eq!(client.request("ping", json!({})).await["result"], json!({}), "no session was ended");
    }
}

#[tokio::test]
async fn hard11_malformed_requests_are_rejected_and_the_gateway_continues_to_work() {
    let gateway = Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]) })).await;
    let attack = Attack::begin("malformed requests", &gateway).await;
    let post = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let many: String = (0..2000).map(|number| format!("x-{number}: y\r\n")).collect();
    let large = format!("x: {}\r\n", "y".repeat(17 * 1024));
    for (name, request) in [
        ("two lengths", format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}x")),
        ("a length with a sign", format!("{post}content-length: +2\r\n\r\n{{}}")),
        ("a length that is none", format!("{post}content-length: 2, 3\r\n\r\n{{}}")),
        ("a chunk size that is none", format!("{post}transfer-encoding: chunked\r\n\r\nxyz\r\n{{}}\r\n0\r\n\r\n")),
        (
            "a chunk size that is too large",
            format!("{post}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{{}}"),
        ),
        ("a chunk without an end", format!("{post}transfer-encoding: chunked\r\n\r\n2\r\n{{}}xx0\r\n\r\n")),
        ("chunked but not at last", format!("{post}transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n")),
        ("a folded header", format!("{post}x: y\r\n z\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("a space before the colon", format!("{post}content-length : 2\r\n\r\n{{}}")),
        ("a zero in a header", format!("{post}x: \0\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("a bare carriage return", format!("{post}x: y\rz: 1\r\ncontent-length: 2\r\n\r\n{{}}")),
        ("too many headers", format!("{post}{many}content-length: 2\r\n\r\n{{}}")),
        ("too large a header", format!("{post}{large}content-length: 2\r\n\r\n{{}}")),
        ("no HTTP", "\x16\x03\x01 this is TLS\r\n\r\n".to_owned()),
        ("another version of HTTP", "GET /healthz HTTP/9.9\r\nhost: localhost\r\n\r\n".to_owned()),
    ] {
        let answer = exchange(gateway.address, request.as_bytes()).await;
        assert!((400..500).contains(&status(&answer)), "{name}: {answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{name} is one request at most: {answer}");
        assert!(answer.len() < 4096, "{name}: {answer}");
    }
    attack.end(CEILING).await;
}

/// A request with both kinds of length: the chunks count, as the standard requires, and the following bytes are not a
/// second request.
#[tokio::test]
async fn hard11_a_request_with_two_kinds_of_length_smuggles_nothing() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let session = client.session.as_deref().expect("a session");
    let smuggled = format!("DELETE /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-session-id: {session}\r\n\r\n");
    for lengths in
        ["content-length: {}\r\ntransfer-encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: {}\r\n"]
    {
        let body = format!("0\r\n\r\n{smuggled}");
        let lengths = lengths.replace("{}", &body.len().to_string());
        let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let answer = exchange(gateway.address, format!("{head}{lengths}\r\n{body}").as_bytes()).await;
        assert_eq!((status(&answer), answer.matches("HTTP/1.").count()), (400, 1), "{answer}");
        assert_eq!(client.request("ping", json!({})).await["result"], json!({}), "the session was not ended");
    }
}
