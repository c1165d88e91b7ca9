//! Requests to the endpoints of an authorization server, and its answers.

use std::time::Duration;

use goblin_config::secret::Secret;
use serde_json::{Value, json};

use super::{Received, Reply, Site, fetcher, metadata};
use crate::error::LoginError;
use crate::protocol::authorize::AuthorizationCode;
use crate::protocol::client::{ClientCredential, ClientIdentity, client_for};
use crate::protocol::device::authorize_device;
use crate::protocol::discovery::Discovery;
use crate::protocol::metadata::{AuthorizationServer, Document};
use crate::protocol::token::{TokenError, TokenGrant, Tokens, request_tokens, revoke};

const SECRET: &str = "s3cret-canary";

fn server(site: &Site) -> AuthorizationServer {
    let Value::Object(members) = metadata("https://as.example", &site.origin) else { panic!("no object") };
    AuthorizationServer::read(&Document::new("https://as.example/x", members)).expect("metadata")
}

fn public() -> ClientIdentity {
    ClientIdentity { id: "c1".to_owned(), credential: ClientCredential::None }
}

fn code() -> AuthorizationCode {
    let [code, verifier, redirect_uri] = ["a code", "a verifier", "http://127.0.0.1:1/callback"].map(str::to_owned);
    AuthorizationCode { code, verifier, redirect_uri }
}

/// Requests tokens from a site that answers each request alike.
async fn requested(reply: impl Fn() -> Reply + Send + Sync + 'static) -> (Site, Result<Tokens, TokenError>) {
    let site = Site::start(|_| move |_: &Received| reply()).await;
    let client = ClientIdentity { id: "c1".to_owned(), credential: ClientCredential::Post(Secret::new(SECRET)) };
    let refresh = Secret::new(format!("refresh-{SECRET}"));
    let grant = TokenGrant::Refresh(&refresh);
    let tokens =
        request_tokens(&fetcher(&site.origin), &server(&site), &client, Some("https://mcp.example"), grant).await;
    (site, tokens)
}

#[tokio::test]
async fn oauth1_each_grant_has_its_request() {
    let answer = json!({"access_token": "t", "token_type": "Bearer", "expires_in": "3600", "scope": "a"});
    let site = Site::start(|_| move |_: &Received| Reply::json(200, &answer)).await;
    let (refresh, device, scopes) = (Secret::new("r"), Secret::new("d"), ["a".to_owned(), "b".to_owned()]);
    let code = code();
    let grants = [
        (
            TokenGrant::Code(&code),
            "grant_type=authorization_code&code=a+code&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcallback&\
             code_verifier=a+verifier",
        ),
        (TokenGrant::Refresh(&refresh), "grant_type=refresh_token&refresh_token=r"),
        (TokenGrant::ClientCredentials(&scopes), "grant_type=client_credentials&scope=a+b"),
        (TokenGrant::ClientCredentials(&[]), "grant_type=client_credentials"),
        (
            TokenGrant::DeviceCode(&device),
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&device_code=d",
        ),
    ];
    for (grant, body) in grants {
        let resource = Some("https://mcp.example/mcp");
        let tokens = request_tokens(&fetcher(&site.origin), &server(&site), &public(), resource, grant).await;
        assert_eq!(tokens.expect("tokens").lifetime, Some(Duration::from_secs(3600)));
        let received = site.last();
        let resource = "resource=https%3A%2F%2Fmcp.example%2Fmcp&client_id=c1";
        assert_eq!(received.body, format!("{body}&{resource}"));
        assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/token"));
        let headers = received.headers.to_ascii_lowercase();
        assert!(headers.contains("content-type: application/x-www-form-urlencoded\r\n"), "{headers}");
        assert!(headers.contains("accept: application/json\r\n") && !headers.contains("authorization"), "{headers}");
    }
}

#[tokio::test]
async fn oauth3_an_answer_of_the_token_endpoint_says_whether_to_retry() {
    let rejected = |code: &str| json!({"error": code, "error_description": format!("the token {SECRET} is bad")});
    for (status, body) in [(400, rejected("invalid_grant")), (401, rejected("invalid_client")), (200, rejected("x"))] {
        let expected = body["error"].as_str().expect("a code").to_owned();
        let (_site, tokens) = requested(move || Reply::json(status, &body)).await;
        let error = tokens.map(|_| ()).expect_err("a rejection");
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        let TokenError::Rejected { code, error } = error else { panic!("{status}: {error:?}") };
        let host = "as.example".to_owned();
        assert_eq!((error, code), (LoginError::Rejected { host, code: expected.clone(), description: None }, expected));
    }
    let object = json!({"error": "temporarily_unavailable"});
    type Case = (fn(&Value) -> Reply, bool);
    let cases: [Case; 10] = [
        (|it| Reply::json(500, it), true),
        (|it| Reply::json(503, it), true),
        (|it| Reply::json(429, it), false),
        (|_| Reply::status(400), true),
        (|_| Reply::status(404), true),
        (|_| Reply::redirect("/token2"), true),
        (|_| Reply::text("text/html", "<html>"), true),
        (|_| Reply::text("application/json", "[]"), true),
        (|_| Reply::Endless, true),
        (|_| Reply::Nothing, true),
    ];
    for (index, (reply, is_sent)) in cases.into_iter().enumerate() {
        let object = object.clone();
        let (site, tokens) = requested(move || reply(&object)).await;
        let error = tokens.map(|_| ()).expect_err("no tokens");
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        let TokenError::Fetch(error) = error else { panic!("{index}: {error:?}") };
        assert_eq!((error.is_sent, site.paths()), (is_sent, vec!["POST /token".to_owned()]), "{index}");
    }
    for answer in [json!({}), json!({"access_token": format!("{SECRET}\n"), "token_type": "Bearer"})] {
        let (_site, tokens) = requested(move || Reply::json(200, &answer)).await;
        let error = tokens.map(|_| ()).expect_err("no token");
        assert!(matches!(error, TokenError::Unusable(_)) && !format!("{error:?}").contains(SECRET), "{error:?}");
    }
}

#[tokio::test]
async fn oauth3_a_request_that_was_not_sent_is_known() {
    let site = Site::start(|_| |_: &Received| Reply::Nothing).await;
    let (server, fetcher) = (server(&site), fetcher(&site.origin));
    let origin = site.origin.trim_start_matches("http://").to_owned();
    drop(site);
    // The socket closes when the aborted task is polled.
    while tokio::net::TcpStream::connect(&origin).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let refresh = Secret::new(SECRET);
    let tokens = request_tokens(&fetcher, &server, &public(), None, TokenGrant::Refresh(&refresh)).await;
    let error = tokens.map(|_| ()).expect_err("no connection");
    assert!(matches!(&error, TokenError::Fetch(error) if !error.is_sent), "{error:?}");
}

#[tokio::test]
async fn oauth1_a_client_is_registered_where_the_server_allows_it() {
    async fn registered(reply: fn() -> Reply) -> (Site, Result<ClientIdentity, LoginError>) {
        let site = Site::start(|_| move |_: &Received| reply()).await;
        let discovery = Discovery::new(server(&site), None, Vec::new(), true);
        let target = super::target(&site.origin);
        let client =
            client_for(&fetcher(&site.origin), &target, &discovery, Some("http://127.0.0.1:1/callback"), &[]).await;
        (site, client)
    }
    let (site, client) = registered(|| Reply::json(201, &json!({"client_id": "new"}))).await;
    assert_eq!((client.expect("a client").id.as_str(), site.paths()), ("new", vec!["POST /register".to_owned()]));
    let body: Value = serde_json::from_str(&site.last().body).expect("JSON");
    assert_eq!(body["application_type"], "native");
    for reply in [(|| Reply::status(404)) as fn() -> Reply, || Reply::status(403), || Reply::text("text/html", "x")] {
        let (_site, client) = registered(reply).await;
        let error = client.map(|_| ()).expect_err("no client");
        assert!(matches!(error, LoginError::NoClient { .. } | LoginError::Fetch(_)), "{error}");
    }
    let (_site, client) = registered(|| Reply::json(400, &json!({"error": "invalid_redirect_uri"}))).await;
    let error = client.map(|_| ()).expect_err("no client").to_string();
    assert_eq!(error, "as.example rejected the request: invalid_redirect_uri");
}

#[tokio::test]
async fn oauth1_nothing_is_registered_for_a_login_that_is_refused() {
    let site = Site::start(|_| |_: &Received| Reply::status(500)).await;
    let discovery = Discovery::new(server(&site), None, Vec::new(), false);
    let target = super::target(&site.origin);
    let client =
        client_for(&fetcher(&site.origin), &target, &discovery, Some("http://127.0.0.1:1/callback"), &[]).await;
    assert!(matches!(client.map(|_| ()), Err(LoginError::Refusal(_))));
    assert_eq!(site.paths(), Vec::<String>::new());
}

#[tokio::test]
async fn oauth1_a_device_gets_a_code_to_enter() {
    let good = json!({
        "device_code": SECRET, "user_code": "ABCD-EFGH", "verification_uri": "https://as.example/device",
        "verification_uri_complete": "https://as.example/device?user_code=ABCD-EFGH", "expires_in": 9e9, "interval": 0,
    });
    async fn started(answer: Value) -> (Site, Result<crate::protocol::device::DeviceAuthorization, LoginError>) {
        let status = if answer.get("error").is_some() { 400 } else { 200 };
        let site = Site::start(|_| move |_: &Received| Reply::json(status, &answer)).await;
        let discovery = Discovery::new(server(&site), Some("https://mcp.example".into()), Vec::new(), true);
        let started = authorize_device(&fetcher(&site.origin), &discovery, &public(), &["a".to_owned()]).await;
        (site, started)
    }
    let (site, device) = started(good.clone()).await;
    let device = device.expect("a code");
    assert_eq!(
        (device.url.as_str(), device.user_code.as_str()),
        ("https://as.example/device?user_code=ABCD-EFGH", "ABCD-EFGH")
    );
    assert_eq!((device.lifetime, device.interval), (Duration::from_secs(3600), Duration::from_secs(1)));
    assert_eq!(device.device_code.expose(), SECRET);
    assert_eq!(site.last().body, "scope=a&resource=https%3A%2F%2Fmcp.example&client_id=c1");
    for (member, value) in [
        ("device_code", json!(null)),
        ("device_code", json!("a\nb")),
        ("user_code", json!("a\u{1b}b")),
        ("user_code", json!("x".repeat(65))),
        ("verification_uri_complete", json!("https://as.example/$(id)")),
        ("verification_uri_complete", json!("http://as.example/")),
        ("error", json!("invalid_scope")),
    ] {
        let mut answer = good.clone();
        answer[member] = value.clone();
        let error = started(answer).await.1.map(|_| ()).expect_err("no code");
        assert!(!error.to_string().contains(SECRET), "{member} {value}: {error}");
    }
    let mut short = good;
    for member in ["verification_uri_complete", "expires_in", "interval"] {
        short[member] = json!(null);
    }
    let device = started(short).await.1.expect("a code");
    assert_eq!((device.url.as_str(), device.interval), ("https://as.example/device", Duration::from_secs(5)));
}

#[tokio::test]
async fn oauth1_a_token_is_revoked() {
    let site = Site::start(|_| |_: &Received| Reply::status(200)).await;
    let (token, mut server) = (Secret::new(SECRET), server(&site));
    revoke(&fetcher(&site.origin), &server, &public(), &token, "refresh_token").await.expect("a revocation");
    assert_eq!(site.last().body, format!("token={SECRET}&token_type_hint=refresh_token&client_id=c1"));
    server.revocation_endpoint = None;
    let missing = revoke(&fetcher(&site.origin), &server, &public(), &token, "refresh_token").await;
    assert!(matches!(missing, Err(TokenError::Unusable(LoginError::Refusal(_)))));
    let site = Site::start(|_| |_: &Received| Reply::json(400, &json!({"error": "unsupported_token_type"}))).await;
    server.revocation_endpoint = Some(format!("{}/revoke", site.origin));
    let rejected = revoke(&fetcher(&site.origin), &server, &public(), &token, "refresh_token").await;
    assert!(matches!(rejected, Err(TokenError::Rejected { .. })));
}
