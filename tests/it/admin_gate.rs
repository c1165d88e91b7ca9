//! Access control under `/api`, tested for every route of the table, and the conformance of responses to the OpenAPI
//! document.
//!
//! The tests iterate over the route table of the gateway, so a new route is covered automatically.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use goblin_admin::routes::{Access, ROUTES, ReadTarget, Route, RouteAction};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::admin_client::{admin_token, bearer, get_admin, open_admin_stream, record};
use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, goblin, servers_only};

/// A gateway and the directory of its files.
struct Stage {
    gateway: Gateway,
    client: Client,
    scratch: Scratch,
}

impl Stage {
    async fn new(config: Value) -> Stage {
        let scratch = Scratch::new();
        let path = scratch.write("goblin.json", &servers_only(config).to_string());
        let mut command = goblin(scratch.path());
        command.args(["serve", "--port", "0", "--config"]).arg(&path);
        let gateway = Gateway::of(command).await;
        let client = Client::new(gateway.address);
        Stage { gateway, client, scratch }
    }

    async fn record(&self) -> Value {
        record(self.gateway.address).await
    }

    async fn admin_address(&self) -> SocketAddr {
        let url = self.record().await["adminUrl"].as_str().expect("a URL").to_owned();
        url.strip_prefix("http://").expect("http").parse().expect("an address")
    }
}

/// Returns a concrete path of the route.
fn path(route: &Route) -> String {
    route.path.replace("{id}", "a")
}

/// Returns the status and headers of a request to this route. Streams are not read to their end.
async fn status(client: &Client, route: &Route, headers: &[(&str, &str)]) -> (StatusCode, http::HeaderMap) {
    if route.action == RouteAction::Read(ReadTarget::Events) {
        let (parts, _) = client.get(&path(route), headers).await;
        return (parts.status, parts.headers);
    }
    let answer = client.send(route.verb(), &path(route), headers, "").await;
    (answer.status, answer.headers)
}

/// Reports whether a request passed the gate and the router. It may have failed for another reason.
fn passed(status: StatusCode) -> bool {
    ![400, 401, 403, 405].contains(&status.as_u16())
}

#[tokio::test]
async fn foreign_hosts_and_origins_reach_only_the_probes() {
    let stage = Stage::new(json!({ "mcpServers": {} })).await;
    let bearer = bearer(stage.gateway.address).await;
    let walked = ROUTES.iter().filter(|route| route.path.starts_with("/api/")).count();
    assert!(walked > 10, "only {walked} routes");
    for route in ROUTES {
        let name = format!("{} {}", route.verb(), route.path);
        for evil in [("host", "evil.example"), ("origin", "http://evil.example"), ("origin", "null")] {
            let (status, headers) = status(&stage.client, route, &[evil, ("authorization", &bearer)]).await;
            match route.access {
                Access::Probe => assert!(status != StatusCode::FORBIDDEN, "{name}"),
                Access::Client | Access::Operator => assert_eq!(status, StatusCode::FORBIDDEN, "{name} {evil:?}"),
            }
            assert!(!headers.contains_key("access-control-allow-origin"), "{name} {evil:?}");
        }
        // Pages on other local ports are rejected too, because any program of the user may serve such a page.
        for local in ["http://localhost:5173", "http://localhost:6274", "http://127.0.0.1:6274"] {
            let headers = [("origin", local), ("authorization", bearer.as_str())];
            let (status, headers) = status(&stage.client, route, &headers).await;
            assert_eq!(status == StatusCode::FORBIDDEN, route.access != Access::Probe, "{name} {local}: {status}");
            assert!(!headers.contains_key("access-control-allow-origin"), "{name} {local}");
        }
    }
}

#[tokio::test]
async fn allowed_origins_may_use_the_api() {
    let config = json!({ "mcpServers": {}, "gateway": { "allowedOrigins": ["https://app.example"] } });
    let stage = Stage::new(config).await;
    let bearer = bearer(stage.gateway.address).await;
    for route in ROUTES {
        let page = [("origin", "https://app.example"), ("authorization", bearer.as_str())];
        let (status, _) = status(&stage.client, route, &page).await;
        assert!(passed(status), "{} {}: {status}", route.verb(), route.path);
    }
}

#[tokio::test]
async fn hard7_every_route_of_the_api_needs_the_admin_token_on_loopback_too() {
    let stage = Stage::new(json!({ "mcpServers": {} })).await;
    let token = admin_token(stage.gateway.address).await;
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let file = stage.record().await["adminTokenFile"].as_str().expect("a file").to_owned();
    assert_eq!(std::fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
    for route in ROUTES {
        let name = format!("{} {}", route.verb(), route.path);
        for wrong in [None, Some("Bearer "), Some("Bearer 00"), Some(token.as_str())] {
            let wrong = wrong.map(|value| ("authorization", value));
            let (status, headers) = status(&stage.client, route, wrong.as_slice()).await;
            let is_rejected = status == StatusCode::UNAUTHORIZED;
            assert_eq!(is_rejected, route.access == Access::Operator, "{name}: {status}");
            assert_eq!(headers.contains_key("www-authenticate"), is_rejected, "{name}");
        }
        let right = format!("Bearer {token}");
        let (status, _) = status(&stage.client, route, &[("authorization", &right)]).await;
        assert!(passed(status), "{name}: {status}");
    }
    let rejected = stage.client.send(Method::POST, "/api/reload", &[], "").await;
    assert!(rejected.body.contains(&file) && !rejected.body.contains(&token), "{rejected:?}");
    let preflight =
        stage.client.send(Method::POST, "/api/reload", &[("authorization", &format!("Bearer {token}"))], "[]").await;
    assert_eq!(preflight.status, StatusCode::BAD_REQUEST, "{preflight:?}");
}

#[tokio::test]
async fn hard6_the_client_token_opens_no_operator_route_and_the_admin_token_no_client_route() {
    const ADMIN: &str = "0123456789abcdef";
    const CLIENT: &str = "s3cret-0123456789";
    for own in [None, Some(ADMIN)] {
        let admin = own.map_or(json!({}), |token| json!({ "token": token }));
        let stage = Stage::new(json!({ "mcpServers": {}, "gateway": { "token": CLIENT }, "admin": admin })).await;
        let token = admin_token(stage.gateway.address).await;
        assert!(own.is_none_or(|own| own == token) && token != CLIENT, "the runtime directory has {token}");
        let (client, operator) = (format!("Bearer {CLIENT}"), format!("Bearer {token}"));
        for route in ROUTES {
            let name = format!("{} {}", route.verb(), route.path);
            for (value, is_right) in [
                (None, false),
                (Some(&client), route.access == Access::Client),
                (Some(&operator), route.access == Access::Operator),
            ] {
                let header = value.map(|value| ("authorization", value.as_str()));
                let (status, _) = status(&stage.client, route, header.as_slice()).await;
                let is_rejected = status == StatusCode::UNAUTHORIZED;
                assert_eq!(is_rejected, route.access != Access::Probe && !is_right, "{name} {value:?}: {status}");
            }
        }
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let headers = [("authorization", operator.as_str()), ("content-type", "application/json")];
        let answer = stage.client.send(Method::POST, "/mcp", &headers, ping).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{answer:?}");
    }
}

#[tokio::test]
async fn other_methods_are_rejected_with_an_allow_header() {
    let stage = Stage::new(json!({ "mcpServers": {} })).await;
    let bearer = bearer(stage.gateway.address).await;
    for route in ROUTES {
        let others = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        let of_path = |verb: &Method| ROUTES.iter().any(|other| other.path == route.path && other.verb() == *verb);
        for verb in others.into_iter().filter(|verb| !of_path(verb)) {
            let headers = [("authorization", bearer.as_str())];
            let answer = stage.client.send(verb.clone(), &path(route), &headers, "").await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{verb} {}", route.path);
            let allowed = answer.headers["allow"].to_str().expect("text");
            assert!(allowed.split(", ").any(|allowed| route.verb().as_str() == allowed), "{} {allowed}", route.path);
        }
    }
}

#[tokio::test]
async fn a_disabled_api_leaves_only_the_probes() {
    let stage = Stage::new(json!({ "mcpServers": {}, "admin": { "enabled": false } })).await;
    for route in ROUTES {
        let (status, _) = status(&stage.client, route, &[]).await;
        let is_there = status != StatusCode::NOT_FOUND;
        assert_eq!(is_there, route.access == Access::Probe, "{} {}: {status}", route.verb(), route.path);
    }
    let record = stage.record().await;
    assert_eq!((&record["adminUrl"], &record["adminTokenFile"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn the_api_can_listen_on_its_own_address() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) }, "admin": { "listen": "127.0.0.1:0" } });
    let stage = Stage::new(config).await;
    let operators = Client::new(stage.admin_address().await);
    assert_ne!(operators.address, stage.client.address);
    for route in ROUTES {
        let name = format!("{} {}", route.verb(), route.path);
        let (at_admin, _) = status(&operators, route, &[]).await;
        assert!(at_admin != StatusCode::NOT_FOUND, "{name}: {at_admin}");
        let (at_main, _) = status(&stage.client, route, &[]).await;
        assert_eq!(at_main != StatusCode::NOT_FOUND, route.access == Access::Probe, "{name}: {at_main}");
    }
    for path in ["/mcp", "/sse", "/messages", "/mcp/p/x"] {
        let answer = operators.send(Method::POST, path, &[("content-type", "application/json")], "{}").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {answer:?}");
    }
    stage.gateway.client_seeing("a_echo").await;
}

#[tokio::test]
async fn a_public_admin_address_requires_the_token() {
    let stage = Stage::new(json!({ "mcpServers": {}, "admin": { "listen": "0.0.0.0:0" } })).await;
    let operators = Client::new(stage.admin_address().await);
    let bearer = bearer(stage.gateway.address).await;
    for route in ROUTES {
        let name = format!("{} {}", route.verb(), route.path);
        let (without, _) = status(&operators, route, &[]).await;
        assert_eq!(without == StatusCode::UNAUTHORIZED, route.access != Access::Probe, "{name}: {without}");
        let (with, _) = status(&operators, route, &[("authorization", &bearer)]).await;
        assert!(passed(with), "{name}: {with}");
    }
}

#[tokio::test]
async fn the_admin_token_is_written_to_the_configured_file_and_removed_at_exit() {
    let mut stage = Stage::new(json!({ "mcpServers": {}, "admin": { "tokenFile": "secret.token" } })).await;
    let file: PathBuf = stage.scratch.path().join("secret.token");
    assert_eq!(stage.record().await["adminTokenFile"].as_str().map(Path::new), Some(file.as_path()));
    assert_eq!(std::fs::metadata(&file).expect("the file exists").permissions().mode() & 0o777, 0o600);
    let bearer = format!("Bearer {}", std::fs::read_to_string(&file).expect("the test owns the file"));
    let answer = stage.client.send(Method::POST, "/api/reload", &[("authorization", &bearer)], "{}").await;
    assert!(passed(answer.status), "{answer:?}");
    assert!(stage.gateway.terminate().await.success());
    assert!(!file.exists());
}

#[tokio::test]
async fn routes_answer_as_the_openapi_document_describes() {
    let backend = HttpFixture::start(&[]).await;
    let servers = json!({
        "a": backend.server(),
        "broken": { "command": "no-such-program" },
        "off": { "command": "x", "enabled": false },
    });
    let stage = Stage::new(json!({ "mcpServers": servers })).await;
    let client = stage.gateway.client_seeing("a_echo").await;
    client.call("a_echo", json!({})).await;
    client.request("resources/subscribe", json!({ "uri": "a+note:///alpha" })).await;
    eventually("the start is over", || async {
        let ready = client.send(Method::GET, "/readyz", &[], "").await;
        (ready.status == StatusCode::OK).then_some(())
    })
    .await;
    let document = get_admin(&client, "/api/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let described: usize =
        document["paths"].as_object().expect("paths").values().map(|it| it.as_object().expect("verbs").len()).sum();
    assert_eq!(described, ROUTES.len());
    let valid = |schema: &Value, value: &Value, name: &str| {
        assert!(!schema.is_null(), "{name} has no schema");
        let schema = json!({ "allOf": [schema], "components": document["components"] });
        let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        let problems: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?} in {value}");
    };
    let bearer = bearer(stage.gateway.address).await;
    for route in ROUTES {
        let name = format!("{} {}", route.verb(), route.path);
        let operation = &document["paths"][route.path][route.verb().as_str().to_lowercase()];
        let content = |status: StatusCode| operation["responses"][status.as_str()]["content"].clone();
        let described = content(StatusCode::OK);
        match described.as_object().and_then(|kinds| kinds.keys().next()).map_or("", String::as_str) {
            "application/json" => {
                // Changes are rejected here, and the rejection has a schema too.
                let headers = [("authorization", bearer.as_str())];
                let headers = if route.verb() == Method::GET { &headers[..] } else { &[] };
                let answer = client.send(route.verb(), &path(route), headers, "").await;
                assert_eq!(answer.status == StatusCode::OK, route.verb() == Method::GET, "{name}: {answer:?}");
                valid(&content(answer.status)["application/json"]["schema"], &answer.json(), &name);
            }
            "text/event-stream" => {
                let (_, mut listener) = open_admin_stream(&client, &path(route), &[]).await;
                let event = listener.next().await.expect("an event");
                valid(&content(StatusCode::OK)["text/event-stream"]["x-events"]["message"], &event, &name);
            }
            kind => {
                let answer = client.send(route.verb(), &path(route), &[], "").await;
                assert_eq!(answer.headers["content-type"], kind, "{name}");
                assert!(!content(answer.status)[kind].is_null(), "{name}");
            }
        }
    }
}

/// Sends a command with the valid token.
async fn change(stage: &Stage, path: &str, expected: u16) -> Value {
    let bearer = bearer(stage.gateway.address).await;
    let answer = stage.client.send(Method::POST, path, &[("authorization", &bearer)], "{}").await;
    assert_eq!(answer.status.as_u16(), expected, "{path}: {answer:?}");
    answer.json()
}

#[tokio::test]
async fn the_api_enables_disables_and_restarts_servers_and_reloads_the_file() {
    let servers = json!({ "a": fixture_server(&[]), "off": { "command": "no-such-program", "enabled": false } });
    let stage = Stage::new(json!({ "mcpServers": servers })).await;
    let client = stage.gateway.client_seeing("a_echo").await;
    client.call("a_echo", json!({})).await;
    assert_eq!(change(&stage, "/api/servers/a/disable", 200).await["state"], "disabled");
    let servers = get_admin(&client, "/api/servers").await.json()["servers"].clone();
    assert_eq!((&servers[0]["id"], &servers[0]["state"]), (&json!("a"), &json!("disabled")), "{servers}");
    eventually("the tools of the server are removed", || async { client.tool_names().await.is_empty().then_some(()) })
        .await;
    assert_ne!(change(&stage, "/api/servers/a/enable", 200).await["state"], "disabled");
    client.await_tool("a_echo").await;
    let servers = get_admin(&client, "/api/servers").await.json()["servers"].clone();
    assert_eq!((&servers[0]["id"], &servers[1]["id"]), (&json!("a"), &json!("off")), "in the order of the file");
    assert_eq!(servers[0]["calls"]["ok"], 1, "the counter continues");
    assert_eq!(change(&stage, "/api/servers/a/restart", 200).await["id"], "a");
    let conflict = change(&stage, "/api/servers/off/restart", 409).await;
    assert!(conflict["error"]["message"].as_str().is_some_and(|it| it.contains("enable")), "{conflict}");
    let unknown = change(&stage, "/api/servers/of/enable", 404).await;
    assert!(unknown["error"]["message"].as_str().is_some_and(|it| it.contains("off")), "{unknown}");
    let reloaded = change(&stage, "/api/reload", 200).await;
    assert_eq!((&reloaded["started"], &reloaded["stopped"]), (&json!([]), &json!([])), "{reloaded}");
    stage.scratch.write("goblin.json", "{");
    change(&stage, "/api/reload", 422).await;
    let status = get_admin(&client, "/api/status").await.json();
    assert!(status["configuration"]["problem"].is_string(), "{status}");
    assert!(status["configuration"]["source"].as_str().is_some_and(|it| it.ends_with("goblin.json")), "{status}");
}

#[test]
fn the_admin_page_documents_exactly_the_existing_routes() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/admin.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let documented: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    let routes: Vec<_> = ROUTES.iter().map(|route| format!("{} {}", route.verb(), route.path)).collect();
    assert_eq!(documented, routes.iter().map(String::as_str).collect());
}
