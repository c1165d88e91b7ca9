//! Hostile authorization servers. Each attack ends with a refusal: nothing is stored, nothing is executed, and no
//! connection to another address is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::harness::{Gateway, fixture_server, servers_only};
use crate::home::{Home, Ran};
use crate::login_server::address_of;
use crate::login_stdio::FakeOpener;
use crate::login_support::{RunningLogin, await_state, files_below};
use crate::raw_server::{Acceptor, read_request, response};
use crate::support::{is_alive, peak_memory};
use crate::terminal::Terminal;

const RESOURCE_METADATA: &str = "/.well-known/oauth-protected-resource/mcp";
const SERVER_METADATA: &str = "/.well-known/oauth-authorization-server";
const JSON: &str = "Content-Type: application/json\r\n";
/// The limit of resident memory of a process that reads an endless body, in KiB.
const MAX_MEMORY: u64 = 200 << 10;

/// The behaviour of a hostile server at one path.
#[derive(Clone)]
enum Trick {
    /// Changes a member of the honest JSON body. Null removes it.
    Member(&'static str, Value),
    /// Answers with these bytes.
    Bytes(Vec<u8>),
    /// Redirects to a path of the canary.
    Redirect(&'static str),
    /// Sends 1 GiB.
    Huge,
    /// Sends a byte at a time, without an end.
    Drip,
}

/// An MCP server and authorization server in one, honest except at one path.
struct HostileServer {
    acceptor: Acceptor,
    /// The address that nothing may connect to.
    canary: Acceptor,
    visits: Arc<AtomicUsize>,
}

impl HostileServer {
    async fn start(path: &'static str, trick: Trick) -> HostileServer {
        let visits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&visits);
        let canary = Acceptor::start(move |stream: TcpStream| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { drop(stream) }
        })
        .await;
        let elsewhere = format!("http://{}", canary.address);
        let acceptor = Acceptor::start(move |stream| serve(stream, path, trick.clone(), elsewhere.clone())).await;
        HostileServer { acceptor, canary, visits }
    }

    fn home(&self) -> Home {
        Home::new(&servers_only(json!({ "mcpServers": { "p": { "url": self.acceptor.url() } } })))
    }

    /// Asserts that nothing connected to the canary, and that the vault has no login.
    fn assert_harmless(&self, home: &Home, attack: &str) {
        assert_eq!(self.visits.load(Ordering::SeqCst), 0, "{attack}: {} was visited", self.canary.address);
        let stored = files_below(&home.scratch.path().join("goblin/vault"));
        let stored: Vec<_> = stored.iter().filter(|path| path.ends_with(".entry")).collect();
        assert!(stored.is_empty(), "{attack}: {stored:?}");
    }
}

async fn serve(mut stream: TcpStream, path: &str, trick: Trick, elsewhere: String) {
    let Some((head, body)) = read_request(&mut stream).await else { return };
    let target = head.split(' ').nth(1).unwrap_or_default();
    let asked = target.split('?').next().unwrap_or_default();
    let origin = format!("http://{}", stream.local_addr().expect("an address"));
    let honest = honest(asked, &origin, &body);
    let bytes = if asked != path {
        honest
    } else {
        match trick {
            Trick::Member(name, value) => changed(&honest, name, value, &elsewhere),
            Trick::Bytes(bytes) => bytes,
            Trick::Redirect(to) => response("307 Temporary Redirect", &format!("Location: {elsewhere}{to}\r\n"), ""),
            Trick::Huge => return flood(stream).await,
            Trick::Drip => return drip(stream).await,
        }
    };
    // A write error is expected, because some clients disconnect.
    let _ = stream.write_all(&bytes).await;
}

/// Returns what an honest server answers.
fn honest(path: &str, origin: &str, body: &[u8]) -> Vec<u8> {
    let answer = match path {
        RESOURCE_METADATA => json!({ "resource": format!("{origin}/mcp"), "authorization_servers": [origin] }),
        SERVER_METADATA => json!({
            "issuer": origin, "authorization_endpoint": format!("{origin}/authorize"),
            "token_endpoint": format!("{origin}/token"), "registration_endpoint": format!("{origin}/register"),
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
        }),
        "/register" => {
            let mut client: Value = serde_json::from_slice(body).unwrap_or_default();
            client["client_id"] = json!("client-1");
            return response("201 Created", JSON, &client.to_string());
        }
        "/token" => json!({ "access_token": "canary-access", "token_type": "Bearer", "expires_in": 3600 }),
        "/mcp" => {
            let challenge = format!("WWW-Authenticate: Bearer resource_metadata=\"{origin}{RESOURCE_METADATA}\"\r\n");
            return response("401 Unauthorized", &challenge, "");
        }
        _ => return response("404 Not Found", "", ""),
    };
    response("200 OK", JSON, &answer.to_string())
}

/// Returns a response with a changed member of its body. `CANARY` in the value is the canary's origin.
fn changed(honest: &[u8], name: &str, value: Value, elsewhere: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(honest);
    let (head, body) = text.split_once("\r\n\r\n").expect("a response");
    let mut body: Value = serde_json::from_str(body).expect("JSON");
    let value: Value = serde_json::from_str(&value.to_string().replace("CANARY", elsewhere)).expect("JSON");
    match value {
        Value::Null => drop(body.as_object_mut().expect("an object").remove(name)),
        value => body[name] = value,
    }
    let status = head.lines().next().and_then(|line| line.split_once(' ')).expect("a status").1;
    response(status, JSON, &body.to_string())
}

async fn flood(mut stream: TcpStream) {
    const SIZE: usize = 1 << 30;
    let head = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: {SIZE}\r\n\r\n{{\"a\":\"");
    let _ = stream.write_all(head.as_bytes()).await;
    let chunk = vec![b'a'; 1 << 20];
    for _ in 0..1024 {
        if stream.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

async fn drip(mut stream: TcpStream) {
    let head = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: 1000\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).await;
    while stream.write_all(b" ").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs `goblin login` on what looks like a desktop.
async fn log_in(home: &Home, opener: &FakeOpener) -> Ran {
    let mut command = home.goblin(&["login", "p", "--config", home.config()]);
    opener.apply(&mut command);
    let (code, stdout, stderr) = crate::harness::output(command).await;
    Ran { code, stdout: stdout.into_bytes(), stderr }
}

/// Returns a parameter in the query of a URL.
fn parameter(url: &str, name: &str) -> String {
    let query = url.split_once('?').expect("a query").1;
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let value = value.unwrap_or_else(|| panic!("no {name} in {url}"));
    percent_decode_str(value).decode_utf8().expect("text").into_owned()
}

/// The attacks that a login must refuse before it prints a URL, each with words of the refusal.
fn early_attacks() -> Vec<(&'static str, &'static str, Trick, &'static str)> {
    let html = response("200 OK", "Content-Type: text/html\r\n", "<html><script>alert(1)</script></html>");
    let escapes = "\u{1b}]0;owned\u{7}\u{1b}[31mred\r\nsecond: line\u{202e}";
    let described = json!({ "error": "invalid_client_metadata", "error_description": escapes }).to_string();
    let refused = response("400 Bad Request", JSON, &described);
    let member = |name: &'static str, value: Value| Trick::Member(name, value);
    vec![
        ("metadata redirects elsewhere", RESOURCE_METADATA, Trick::Redirect("/prm"), "redirect"),
        ("server metadata redirects elsewhere", SERVER_METADATA, Trick::Redirect("/as"), "redirect"),
        ("registration redirects elsewhere", "/register", Trick::Redirect("/register"), "redirects a POST request"),
        (
            "another resource",
            RESOURCE_METADATA,
            member("resource", json!("https://other.example/mcp")),
            "other.example",
        ),
        ("a resource of another path", RESOURCE_METADATA, member("resource", json!("CANARY/mcp")), "is for http"),
        ("another issuer", SERVER_METADATA, member("issuer", json!("https://other.example")), "belongs to the issuer"),
        ("no issuer", SERVER_METADATA, member("issuer", Value::Null), "issuer"),
        ("no S256", SERVER_METADATA, member("code_challenge_methods_supported", json!(["plain"])), "S256"),
        ("no PKCE", SERVER_METADATA, member("code_challenge_methods_supported", Value::Null), "S256"),
        ("a huge document", RESOURCE_METADATA, Trick::Huge, "1 MiB"),
        ("a huge server document", SERVER_METADATA, Trick::Huge, "1 MiB"),
        ("a huge registration", "/register", Trick::Huge, "1 MiB"),
        ("a document of HTML", SERVER_METADATA, Trick::Bytes(html.clone()), "JSON"),
        ("a registration of HTML", "/register", Trick::Bytes(html), "JSON"),
        (
            "javascript:",
            SERVER_METADATA,
            member("authorization_endpoint", json!("javascript:alert(1)")),
            "authorization",
        ),
        ("file:", SERVER_METADATA, member("authorization_endpoint", json!("file:///etc/passwd")), "authorization"),
        (
            "a plain foreign page",
            SERVER_METADATA,
            member("authorization_endpoint", json!("http://10.0.0.1/a")),
            "https",
        ),
        (
            "a plain foreign token endpoint",
            SERVER_METADATA,
            member("token_endpoint", json!("http://169.254.169.254/t")),
            "https",
        ),
        ("a file as token endpoint", SERVER_METADATA, member("token_endpoint", json!("file:///etc/passwd")), "token"),
        ("escape sequences", "/register", Trick::Bytes(refused), "invalid_client_metadata"),
        ("a client id with a line break", "/register", member("client_id", json!("a\r\nx: y")), "client"),
        ("no client id", "/register", member("client_id", Value::Null), "client"),
        (
            "a command in the page",
            SERVER_METADATA,
            member("authorization_endpoint", json!("http://127.0.0.1:1/$(touch owned)")),
            "is not usable",
        ),
        (
            "a quoted command",
            SERVER_METADATA,
            member("authorization_endpoint", json!("http://127.0.0.1:1/`touch owned`")),
            "is not usable",
        ),
        (
            "a long page",
            SERVER_METADATA,
            member("authorization_endpoint", json!(format!("https://x.example/{}", "a".repeat(70_000)))),
            "too long",
        ),
    ]
}

#[tokio::test]
async fn oauth1_a_hostile_authorization_server_is_refused() {
    let attacks = early_attacks();
    assert!(attacks.len() > 20);
    for (attack, path, trick, words) in attacks {
        let server = HostileServer::start(path, trick).await;
        let home = server.home();
        let opener = FakeOpener::new(&home);
        let ran = log_in(&home, &opener).await;
        assert_eq!(ran.code, Some(1), "{attack}: {ran:?}");
        assert!(ran.stderr.contains(words), "{attack}: {words} is not in {ran:?}");
        assert!(ran.stderr.len() < 2000, "{attack}: a long message: {}", ran.stderr.len());
        let is_clean = |text: &str| !text.chars().any(|it| it.is_control() && it != '\n') && !text.contains('\u{202e}');
        assert!(is_clean(&ran.stderr) && is_clean(ran.text()), "{attack}: {ran:?}");
        assert!(!ran.stderr.contains("second: line") || ran.stderr.lines().count() <= 2, "{attack}: {ran:?}");
        assert_eq!(opener.opened(), [""; 0], "{attack}");
        assert!(!home.scratch.path().join("owned").exists(), "{attack}: a command ran");
        server.assert_harmless(&home, attack);
    }
}

#[tokio::test]
async fn oauth1_a_dripping_answer_ends_in_time() {
    let server = HostileServer::start(SERVER_METADATA, Trick::Drip).await;
    let home = server.home();
    let begun = Instant::now();
    let ran = home.run(&["login", "p", "--no-browser", "--config", home.config()]).await;
    assert!(ran.code == Some(1) && begun.elapsed() < Duration::from_secs(30), "{:?}: {ran:?}", begun.elapsed());
    server.assert_harmless(&home, "drip");
}

/// Begins a login and opens the callback with this query. `STATE` and `ISSUER` stand for the right values.
async fn call_back(server: &HostileServer, home: &Home, query: &str) -> RunningLogin {
    let login = RunningLogin::start(home.goblin(&["login", "p", "--no-browser", "--config", home.config()])).await;
    let origin = format!("http://{}", server.acceptor.address);
    let query = query.replace("STATE", &parameter(&login.url, "state")).replace("ISSUER", &origin);
    let callback = parameter(&login.url, "redirect_uri");
    let path = format!("/{}?{query}", callback.splitn(4, '/').nth(3).unwrap_or_default());
    Client::new(address_of(&callback)).send(Method::GET, &path, &[], "").await;
    login
}

/// The attacks with the callback and the tokens, each with words of the refusal.
fn late_attacks() -> Vec<(&'static str, &'static str, Option<Trick>, &'static str)> {
    const GOOD: &str = "code=canary-code&state=STATE&iss=ISSUER";
    let token = |name: &'static str, value: Value| Some(Trick::Member(name, value));
    let html = response("200 OK", "Content-Type: text/html\r\n", "<html>busy</html>");
    vec![
        ("another issuer", "code=canary-code&state=STATE&iss=https://other.example", None, "authorization server"),
        ("no issuer", "code=canary-code&state=STATE", None, "authorization server"),
        (
            "an error of another issuer",
            "error=access_denied&error_description=OWNED&state=STATE&iss=https://o.example",
            None,
            "authorization server",
        ),
        (
            "a refusal",
            "error=access_denied&error_description=%1b%5b31mno&state=STATE&iss=ISSUER",
            None,
            "access_denied",
        ),
        ("a token with a line break", GOOD, token("access_token", json!("a\r\nx-owned: 1")), "token"),
        ("an empty token", GOOD, token("access_token", json!("")), "token"),
        ("no token", GOOD, token("access_token", Value::Null), "token"),
        ("a token of another type", GOOD, token("token_type", json!("mac")), "token"),
        ("a huge token", GOOD, token("access_token", json!("a".repeat(900_000))), "token"),
        ("a huge answer", GOOD, Some(Trick::Huge), "1 MiB"),
        ("an answer of HTML", GOOD, Some(Trick::Bytes(html)), "JSON"),
        ("a redirect", GOOD, Some(Trick::Redirect("/token")), "redirects a POST request"),
    ]
}

#[tokio::test]
async fn oauth1_a_hostile_callback_or_token_is_refused() {
    for (attack, query, trick, words) in late_attacks() {
        let (path, trick) = trick.map_or(("/none", Trick::Drip), |trick| ("/token", trick));
        let server = HostileServer::start(path, trick).await;
        let home = server.home();
        let ran = call_back(&server, &home, query).await.end().await;
        assert_eq!(ran.code, Some(1), "{attack}: {ran:?}");
        assert!(ran.stderr.contains(words), "{attack}: {words} is not in {ran:?}");
        for forbidden in ["OWNED", "canary-code", "canary-access", "\u{1b}", "x-owned"] {
            assert!(!ran.stderr.contains(forbidden), "{attack}: {forbidden} is in {ran:?}");
        }
        server.assert_harmless(&home, attack);
    }
}

#[tokio::test]
async fn oauth1_a_callback_of_another_login_changes_nothing() {
    let server = HostileServer::start("/none", Trick::Drip).await;
    let home = server.home();
    let mut login = call_back(&server, &home, "code=foreign&state=foreign&iss=ISSUER").await;
    assert!(login.is_running());
    server.assert_harmless(&home, "a foreign state");
    // The right answer still finishes the login.
    let callback = parameter(&login.url, "redirect_uri");
    let issuer = format!("http://{}", server.acceptor.address);
    login.paste(&format!("{callback}?code=x&state={}&iss={issuer}", parameter(&login.url, "state"))).await;
    let ran = login.end().await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn oauth1_an_endless_lifetime_does_no_harm() {
    for lifetime in [json!(u64::MAX), json!(1e300), json!(-1), json!("soon"), json!(0)] {
        let server = HostileServer::start("/token", Trick::Member("expires_in", lifetime.clone())).await;
        let home = server.home();
        let ran = call_back(&server, &home, "code=x&state=STATE&iss=ISSUER").await.end().await;
        assert!(matches!(ran.code, Some(0 | 1)), "{lifetime}: {ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{lifetime}: {ran:?}");
        let gateway = Gateway::of(home.serve(0)).await;
        // The server rejects the token of the fixture anyway.
        await_state(&gateway, "login_needed").await;
    }
}

/// On a desktop the command opens the page, which may contain characters of a shell.
#[tokio::test]
async fn oauth1_a_page_with_shell_characters_runs_nothing() {
    for page in ["/authorize;touch%20owned", "/$(touch${IFS}owned)", "/a?b=1&c=$(touch+owned)", "/a|touch|owned", "/-e"]
    {
        let login_page = Acceptor::start(|stream: TcpStream| async move { drop(stream) }).await;
        let endpoint = format!("http://{}{page}", login_page.address);
        let server =
            HostileServer::start(SERVER_METADATA, Trick::Member("authorization_endpoint", json!(endpoint))).await;
        let home = server.home();
        let opener = FakeOpener::new(&home);
        let mut command = home.goblin(&["login", "p", "--config", home.config()]);
        opener.apply(&mut command);
        let terminal = Terminal::of(&mut command).of_width(400).with_keyboard(&mut command);
        let mut child = command.spawn().expect("goblin starts");
        let pid = child.id().expect("the process runs");
        let shown = crate::harness::eventually("the command refuses or prints the page", || async {
            let shown = terminal.shown();
            let is_over = !is_alive(pid) || shown.contains("paste the address");
            is_over.then_some(shown)
        })
        .await;
        assert!(!home.scratch.path().join("owned").exists(), "{page}: {shown}");
        for opened in opener.opened() {
            // The page is one argument.
            assert!(opened.starts_with(&format!("http://{}", address_of(&endpoint))), "{page}: {opened}");
        }
        child.kill().await.expect("the process ends");
        server.assert_harmless(&home, page);
    }
}

#[tokio::test]
async fn oauth1_a_hostile_server_harms_no_other_server() {
    for (path, trick) in [(SERVER_METADATA, Trick::Huge), (RESOURCE_METADATA, Trick::Drip), ("/token", Trick::Huge)] {
        let server = HostileServer::start(path, trick).await;
        let servers = json!({ "p": { "url": server.acceptor.url() }, "a": fixture_server(&[]) });
        let home = Home::new(&servers_only(json!({ "mcpServers": servers })));
        let (gateway, client) = home.gateway("a_echo").await;
        let command = home.goblin(&["login", "p", "--no-browser", "--config", home.config()]);
        let mut child = { command }
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("goblin starts");
        for number in 0..50 {
            let text = client.call_text("a_echo", json!({ "n": number })).await;
            assert_eq!(text, json!({ "n": number }).to_string());
        }
        child.kill().await.expect("the process ends");
        let pid = gateway.child.id().expect("the process runs");
        assert!(peak_memory(pid) < MAX_MEMORY, "{path}: {} KiB", peak_memory(pid));
        server.assert_harmless(&home, path);
    }
}
