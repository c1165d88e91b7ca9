//! Access to the gateway over HTTP: hosts, origins and the token, on every route.
//!
//! A rejected request reaches no route.

use http::{Method, StatusCode};
use serde_json::json;

use crate::client::Client;
use crate::client::http::Answer;
use crate::harness::Gateway;

const ROUTES: [&str; 6] = ["/mcp", "/", "/sse", "/messages?sessionId=x", "/metrics", "/api/status?x=1"];
const VERBS: [Method; 4] = [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS];

fn allowed_origin(answer: &Answer) -> Option<&str> {
    answer.headers.get("access-control-allow-origin").map(|origin| origin.to_str().expect("text"))
}

fn ping() -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string()
}

#[tokio::test]
async fn web1_a_foreign_host_reaches_no_route() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:80", "localhost:evil", "0.0.0.0", "[::]"] {
        for route in ROUTES {
            for verb in VERBS {
                let mut headers = client.headers();
                headers.push(("host", host));
                let answer = client.send(verb.clone(), route, &headers, ping()).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{verb} {route} {host}: {answer:?}");
                assert_eq!(answer.json()["error"]["code"], -32600, "{answer:?}");
            }
        }
    }
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn web1_a_foreign_origin_reaches_no_route() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let evil = [
        "http://evil.example",
        "null",
        "file://",
        "http://localhost@evil.example",
        "http://localhost/evil",
        "localhost",
        "",
    ];
    for origin in evil {
        for route in ROUTES {
            for verb in VERBS {
                let mut headers = client.headers();
                headers.push(("origin", origin));
                let answer = client.send(verb.clone(), route, &headers, ping()).await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{verb} {route} {origin}: {answer:?}");
                assert_eq!(allowed_origin(&answer), None, "{verb} {route} {origin}: {answer:?}");
            }
        }
    }
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn web1_two_host_or_origin_headers_are_rejected() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    // Two origins are a malformed request, even if each were allowed.
    for (name, value, status) in [("host", "localhost", 403), ("origin", "http://localhost", 400)] {
        let mut headers = client.headers();
        headers.extend([(name, value), (name, value)]);
        let answer = client.send(Method::POST, "/mcp", &headers, ping()).await;
        assert_eq!(answer.status.as_u16(), status, "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn web1_hosts_and_origins_can_be_allowed() {
    let config = json!({
        "gateway": { "allowedHosts": ["gw.example"], "allowedOrigins": ["https://app.example"] },
        "mcpServers": {},
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    // A page on another localhost port is another site to the user. Only the gateway's own page needs no entry.
    for origin in ["https://app.example", "https://gw.example:8443"] {
        let mut headers = client.headers();
        headers.extend([("host", "gw.example:8443"), ("origin", origin)]);
        let answer = client.send(Method::POST, "/mcp", &headers, ping()).await;
        assert_eq!(answer.status, StatusCode::OK, "{origin}: {answer:?}");
        assert_eq!(allowed_origin(&answer), Some(origin));
        assert!(answer.headers["access-control-expose-headers"].to_str().expect("text").contains("mcp-session-id"));
    }
}

#[tokio::test]
async fn web1_a_preflight_from_an_allowed_origin_is_answered() {
    // Other localhost ports need `allowedOrigins` like any other page.
    let config = json!({ "gateway": { "allowedOrigins": ["http://localhost:5173"] }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let requested = "content-type, mcp-session-id, mcp-param-region";
    let headers = [
        ("origin", "http://localhost:5173"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", requested),
    ];
    let answer = Client::new(gateway.address).send(Method::OPTIONS, "/mcp", &headers, "").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{answer:?}");
    assert_eq!(allowed_origin(&answer), Some("http://localhost:5173"));
    assert_eq!(answer.headers["access-control-allow-headers"], requested);
    for verb in ["GET", "POST", "DELETE"] {
        assert!(answer.headers["access-control-allow-methods"].to_str().expect("text").contains(verb));
    }
}

#[tokio::test]
async fn web1_every_route_requires_the_configured_token() {
    let config = json!({ "gateway": { "token": "s3cret-0123456789" }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address);
    for value in [
        None,
        Some("Bearer wrong"),
        Some("Bearer s3cret-01234567892"),
        Some("s3cret-0123456789"),
        Some("Basic s3cret-0123456789"),
        Some(""),
    ] {
        for route in ROUTES {
            let mut headers = client.headers();
            headers.extend(value.map(|value| ("authorization", value)));
            let answer = client.send(Method::POST, route, &headers, ping()).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{route} {value:?}: {answer:?}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
            assert!(!answer.body.contains("s3cret-0123456789"), "{answer:?}");
        }
    }
    let mut headers = client.headers();
    headers.push(("authorization", "Bearer s3cret-0123456789"));
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}});
    let answer = client.send(Method::POST, "/mcp", &headers, hello.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    // A session id is not an authentication: without the token it gives no access.
    let session = answer.headers["mcp-session-id"].to_str().expect("text").to_owned();
    let headers: Vec<_> = client.headers().into_iter().chain([("mcp-session-id", &*session)]).collect();
    let answer = client.send(Method::POST, "/mcp", &headers, ping()).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
}

#[tokio::test]
async fn web1_a_preflight_needs_no_token() {
    let config = json!({ "gateway": { "token": "s3cret-0123456789" }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address);
    let own = format!("http://{}", gateway.address);
    let headers = [("origin", own.as_str()), ("access-control-request-method", "POST")];
    assert_eq!(client.send(Method::OPTIONS, "/mcp", &headers, "").await.status, StatusCode::NO_CONTENT);
    let headers = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    assert_eq!(client.send(Method::OPTIONS, "/mcp", &headers, "").await.status, StatusCode::FORBIDDEN);
}
