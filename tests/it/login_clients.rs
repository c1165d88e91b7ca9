//! Clients of a server that needs a login: the URL in their own protocol, or the command. Their tokens stay here.

use std::net::SocketAddr;

use http::Method;
use serde_json::{Value, json};

use crate::client::modern::everything;
use crate::client::{Client, request};
use crate::harness::{Gateway, eventually, servers_only};
use crate::home::Home;
use crate::login_browser::Browser;
use crate::login_server::{LoginServer, address_of};
use crate::login_support::{LoginHome, assert_login_needed, await_state, needs_login, scopes_of};
use crate::suspended_calls::{required, retry};

/// The error code of 2025-11-25 for a call that needs a URL first.
const URL_ELICITATION_REQUIRED: i64 = -32042;

fn with_url() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} } })
}

/// Returns a gateway whose listed server needs a login again.
async fn revoked(home: &LoginHome) -> Gateway {
    let (gateway, client) = home.ready_gateway().await;
    home.server.revoke_tokens().await;
    needs_login(&client, "p_whoami").await;
    await_state(&gateway, "login_needed").await;
    gateway
}

#[tokio::test]
async fn oauth2_a_client_of_2025_11_25_receives_the_url_and_the_end_of_the_login() {
    let home = LoginHome::logged_in().await;
    let gateway = revoked(&home).await;
    let client = Client::new(gateway.address).listening(with_url()).await;
    let answer = client.try_call("p_whoami", json!({})).await;
    assert_eq!(answer["error"]["code"], URL_ELICITATION_REQUIRED, "{answer}");
    let elicitations = answer["error"]["data"]["elicitations"].as_array().expect("a list");
    let [elicitation] = elicitations.as_slice() else { panic!("{answer}") };
    assert_eq!(elicitation["mode"], "url", "{answer}");
    let url = elicitation["url"].as_str().expect("a URL");
    assert_eq!(address_of(url), address_of(&home.server.issuer), "{answer}");
    Browser::default().visit(url).await;
    let done = client.notification("notifications/elicitation/complete").await.json();
    assert_eq!(done["params"]["elicitationId"], elicitation["elicitationId"], "{done}");
    await_state(&gateway, "ready").await;
    assert_eq!(scopes_of(&client.try_call("p_whoami", json!({})).await), ["read"]);
}

#[tokio::test]
async fn oauth2_a_client_of_2026_07_28_receives_the_url_and_repeats_its_call() {
    let home = LoginHome::logged_in().await;
    let gateway = revoked(&home).await;
    let client = Client::modern(gateway.address, everything());
    let call = json!({ "name": "p_whoami", "arguments": {} });
    let answer = client.request("tools/call", &call).await;
    let (requests, state) = required(&answer);
    let (key, elicitation) = requests.iter().next().expect("one request");
    let params = &elicitation["params"];
    assert_eq!((&elicitation["method"], &params["mode"]), (&json!("elicitation/create"), &json!("url")), "{answer}");
    Browser::default().visit(params["url"].as_str().expect("a URL")).await;
    await_state(&gateway, "ready").await;
    let responses = json!({ key: { "action": "accept" } });
    let answer = client.request("tools/call", retry(&call, responses, &state)).await;
    assert_eq!(scopes_of(&answer), ["read"]);
}

#[tokio::test]
async fn oauth2_all_clients_share_one_login() {
    let home = LoginHome::logged_in().await;
    let gateway = revoked(&home).await;
    let before = home.server.count("registrations").await;
    let mut urls = Vec::new();
    for _ in 0..4 {
        let client = Client::new(gateway.address).listening(with_url()).await;
        let answer = client.try_call("p_whoami", json!({})).await;
        urls.push(answer["error"]["data"]["elicitations"][0]["url"].as_str().expect("a URL").to_owned());
    }
    assert!(urls.windows(2).all(|pair| pair[0] == pair[1]), "{urls:?}");
    assert!(home.server.count("registrations").await <= before + 1);
}

#[tokio::test]
async fn oauth2_a_client_that_cannot_open_a_url_receives_the_command() {
    let home = LoginHome::logged_in().await;
    let gateway = revoked(&home).await;
    for capabilities in [json!({}), json!({ "elicitation": {} }), json!({ "elicitation": { "form": {} } })] {
        let client = Client::new(gateway.address).listening(capabilities.clone()).await;
        assert_login_needed(&client.try_call("p_whoami", json!({})).await);
        let modern = Client::modern(gateway.address, capabilities);
        assert_login_needed(&modern.try_call("p_whoami", json!({})).await);
    }
    // The mode is of 2025-11-25.
    let mut old = Client::new(gateway.address);
    old.initialize_with("2025-06-18", with_url()).await;
    assert_login_needed(&old.try_call("p_whoami", json!({})).await);
}

#[tokio::test]
async fn oauth2_a_shared_gateway_never_sends_the_url() {
    let token = "a-token-of-the-shared-gateway";
    let gateways = [
        json!({ "port": 0, "allowedHosts": ["gateway.example"] }),
        json!({ "port": 0, "host": "0.0.0.0", "token": token }),
    ];
    for gateway in gateways {
        let server = LoginServer::start().await;
        let config = servers_only(json!({ "gateway": gateway, "mcpServers": { "p": server.entry() } }));
        let home = LoginHome { home: Home::new(&config), server };
        home.log_in().await;
        let gateway = home.gateway().await;
        let address = SocketAddr::from(([127, 0, 0, 1], gateway.address.port()));
        let bearer = format!("Bearer {token}");
        let call = |client: Client| {
            let draft = client.draft("tools/call", json!({ "name": "p_whoami", "arguments": {} }));
            let draft = draft.with("authorization", &bearer);
            async move { client.send_draft(&draft).await }
        };
        eventually("the call succeeds", || async {
            let answer = call(Client::modern(address, everything())).await;
            answer.json()["error"].is_null().then_some(())
        })
        .await;
        home.server.revoke_tokens().await;
        for capabilities in [everything(), with_url()] {
            let answer = call(Client::modern(address, capabilities)).await;
            assert_login_needed(&answer.json());
            assert!(!answer.body.contains(&home.server.issuer), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn oauth6_the_token_of_a_client_never_reaches_a_server() {
    const CANARY: &str = "canary-of-the-client-0123456789";
    let server = LoginServer::start().await;
    let open = crate::fixture_http::HttpFixture::start(&[]).await;
    let entry = server.entry();
    let config = servers_only(json!({
        "gateway": { "token": CANARY },
        "mcpServers": { "p": entry, "open": crate::support::http_server(open.address) },
    }));
    let home = LoginHome { home: Home::new(&config), server };
    home.log_in().await;
    let gateway = home.gateway().await;
    await_state(&gateway, "ready").await;
    let client = Client::new(gateway.address);
    let bearer = format!("Bearer {CANARY}");
    let own = |version: &str| {
        let mut headers = vec![("authorization".to_owned(), bearer.clone())];
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        headers.push(("accept".to_owned(), "application/json, text/event-stream".to_owned()));
        headers.push(("mcp-protocol-version".to_owned(), version.to_owned()));
        headers
    };
    // A session of the legacy era.
    let hello = request(json!(0), "initialize", crate::client::hello("2025-11-25", json!({})));
    let mut headers = own("2025-11-25");
    let answer = client.send(Method::POST, "/mcp", &pairs(&headers), hello).await;
    let session = answer.headers["mcp-session-id"].to_str().expect("text").to_owned();
    headers.push(("mcp-session-id".to_owned(), session));
    for tool in ["p_whoami", "p_admin"] {
        let call = crate::client::call(1, tool, "{}");
        let answer = client.send(Method::POST, "/mcp", &pairs(&headers), call).await;
        assert!(answer.status.is_success(), "{answer:?}");
    }
    // A call of 2026-07-28, and one to a server without a login, which would need no token.
    let modern = Client::modern(gateway.address, everything());
    for tool in ["p_whoami", "open_headers", "open_echo"] {
        let draft = modern.draft("tools/call", json!({ "name": tool, "arguments": {} }));
        let answer = modern.send_draft(&draft.with("authorization", &bearer)).await;
        assert!(!answer.body.contains(CANARY), "{answer:?}");
    }
    let requests = home.server.recorded("requests").await;
    assert!(requests.len() > 4, "{requests:?}");
    assert!(!json!(requests).to_string().contains(CANARY), "{requests:?}");
    assert!(home.server.calls("whoami").await >= 2);
}

fn pairs(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
