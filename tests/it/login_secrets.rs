//! No token, code, verifier or secret appears anywhere except in the requests to its owner.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::client::modern::everything;
use crate::harness::{Gateway, eventually, servers_only};
use crate::home::Home;
use crate::login_browser::Browser;
use crate::login_server::{LoginServer, MACHINE_SECRET};
use crate::login_support::{LoginHome, RunningLogin, await_state, needs_login, post_admin, scopes};
use crate::support::children;

/// Everything that a person, a program or another user of the machine can see.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn add(&mut self, place: &str, text: impl Into<String>) {
        self.0.push((place.to_owned(), text.into()));
    }

    /// Adds the command lines of a process and its children.
    fn add_processes(&mut self, pid: u32) {
        for pid in children(pid).into_iter().chain([pid]) {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            self.add(&format!("the command line of {pid}"), String::from_utf8_lossy(&line));
        }
    }

    async fn add_commands(&mut self, home: &Home) {
        let config = home.config();
        for command in [
            &["status"][..],
            &["status", "--json"],
            &["check", "--connect"],
            &["check", "--json"],
            &["doctor"],
            &["tools", "list"],
        ] {
            let ran = home.run(&[command, &["--config", config]].concat()).await;
            assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{command:?} printed nothing");
            self.add(&format!("{command:?}"), String::from_utf8_lossy(&ran.stdout));
            self.add(&format!("{command:?}, stderr"), ran.stderr);
        }
    }

    async fn add_api(&mut self, gateway: &Gateway) {
        let client = Client::new(gateway.address);
        for path in [
            "/api/status",
            "/api/servers",
            "/api/servers/p",
            "/api/servers/p/login",
            "/api/servers/m",
            "/api/configuration",
            "/api/calls",
            "/metrics",
            "/readyz",
        ] {
            self.add(path, get_admin(&client, path).await.body);
        }
    }
}

/// The whole life of a login: begin, use, refresh, errors, more permissions, revocation, logout.
async fn live(home: &LoginHome, gateway: &Gateway, seen: &mut Seen) {
    let mut login: RunningLogin = home.begin(&[]).await;
    seen.add("the URL", login.url.clone());
    seen.add_processes(login.pid());
    let callback = Browser::default().callback_of(&login.url).await;
    login.paste(&callback).await;
    let ran = login.end().await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    seen.add("login", format!("{}{}", ran.text(), ran.stderr));
    await_state(gateway, "ready").await;
    let client = gateway.client_seeing("p_whoami").await;
    assert_eq!(scopes(&client).await, ["read"]);
    client.await_tool("m_whoami").await;
    let answer = client.try_call("m_whoami", json!({})).await;
    assert!(answer["error"].is_null(), "{answer}");
    home.server.expire_tokens().await;
    assert_eq!(scopes(&client).await, ["read"]);
    seen.add_processes(gateway.child.id().expect("the process runs"));
    seen.add("more permissions", needs_login(&client, "p_admin").await);
    home.server.set(json!({ "token": "500", "expireAll": true })).await;
    seen.add("a broken endpoint", client.try_call("p_whoami", json!({})).await.to_string());
    seen.add_commands(&home.home).await;
    seen.add_api(gateway).await;
    home.server.set(json!({ "token": null })).await;
    eventually("the token is refreshed", || async {
        client.try_call("p_whoami", json!({})).await["error"].is_null().then_some(())
    })
    .await;
    let modern = Client::modern(gateway.address, everything());
    seen.add("a listing", modern.request("tools/list", json!({})).await.to_string());
    home.server.revoke_tokens().await;
    seen.add("a revoked login", needs_login(&client, "p_whoami").await);
    let (_, body) = post_admin(gateway, "/api/servers/p/login", &json!({})).await;
    let url = body["attempt"]["url"].as_str().expect("a URL").to_owned();
    let page = Browser::default().visit(&url).await;
    seen.add("the last page", page.body);
    await_state(gateway, "ready").await;
    seen.add_api(gateway).await;
    let out = home.log_out().await;
    seen.add("logout", format!("{}{}", out.text(), out.stderr));
    seen.add_commands(&home.home).await;
}

#[tokio::test]
async fn oauth3_no_secret_of_a_login_appears_anywhere() {
    let server = LoginServer::start().await;
    let machine = json!({ "grant": "client_credentials", "clientId": "machine", "clientSecret": "${MACHINE_SECRET}", "scopes": "read" });
    let servers = json!({ "p": server.entry(), "m": { "url": server.url, "oauth": machine } });
    let home = LoginHome { home: Home::new(&servers_only(json!({ "mcpServers": servers }))), server };
    let mut command = home.home.serve(0);
    command.env("MACHINE_SECRET", MACHINE_SECRET);
    let mut gateway = Gateway::of(command).await;
    let mut seen = Seen::default();
    live(&home, &gateway, &mut seen).await;
    assert!(gateway.terminate().await.success());
    seen.add("the log", gateway.log().join("\n"));
    for (path, bytes) in home.all_files() {
        seen.add(&path, String::from_utf8_lossy(&bytes));
    }
    let secrets = home.server.recorded("secrets").await;
    let kinds: Vec<_> = secrets.iter().map(|secret| secret["kind"].as_str().expect("a kind")).collect();
    for kind in ["access_token", "refresh_token", "code", "code_verifier", "client_secret"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    assert!(seen.0.len() > 30, "{}", seen.0.len());
    for secret in &secrets {
        let (kind, value) = (&secret["kind"], secret["value"].as_str().expect("text"));
        for (place, text) in &seen.0 {
            assert!(!text.contains(value), "{place} has a secret of the kind {kind}");
        }
    }
    assert_only_access_tokens_reach_the_server(&home, &secrets).await;
}

/// The MCP server receives access tokens, in the header for them, and nothing else.
async fn assert_only_access_tokens_reach_the_server(home: &LoginHome, secrets: &[Value]) {
    let requests = home.server.recorded("requests").await;
    assert!(requests.len() > 10);
    let text = json!(requests).to_string();
    for secret in secrets.iter().filter(|secret| secret["kind"] != "access_token") {
        assert!(!text.contains(secret["value"].as_str().expect("text")), "the server received a {}", secret["kind"]);
    }
    for secret in secrets.iter().filter(|secret| secret["kind"] == "access_token") {
        let value = secret["value"].as_str().expect("text");
        let is_leaked = |request: &Value| request["line"].as_str().is_some_and(|line| line.contains(value));
        assert!(!requests.iter().any(is_leaked), "a token is in a URL");
        let bearer = format!("Bearer {value}");
        let occurrences = text.matches(value).count();
        assert_eq!(occurrences, text.matches(&bearer).count(), "a token is outside of its header");
    }
}
