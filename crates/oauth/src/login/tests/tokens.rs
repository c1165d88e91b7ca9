//! Tokens that the server rejects, against an authorization server that always issues the same one.

use std::path::PathBuf;

use bytes::Bytes;
use goblin_config::oauth::Grant;
use goblin_telemetry::worker;
use goblin_vault::EntryKind;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A login at an authorization server on this machine, which reports each request.
struct Place {
    login: Arc<ServerLogin>,
    vault: Arc<Vault>,
    url: String,
    tokens: mpsc::Receiver<()>,
    revocations: mpsc::Receiver<()>,
    /// Each permit lets one revocation end.
    revoked: Arc<Semaphore>,
    directory: PathBuf,
}

impl Place {
    async fn new(name: &str) -> Place {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let url = format!("http://{}", socket.local_addr().expect("the socket is bound"));
        let (asked, tokens) = mpsc::channel(16);
        let (revoking, revocations) = mpsc::channel(16);
        let revoked = Arc::new(Semaphore::new(0));
        let permits = Arc::clone(&revoked);
        let serve = move |path: String| {
            let (asked, revoking, permits) = (asked.clone(), revoking.clone(), Arc::clone(&permits));
            async move {
                if path.starts_with("/.well-known/") {
                    let missing = Response::builder().status(StatusCode::NOT_FOUND).body(Full::default());
                    return Ok(missing.expect("a response"));
                }
                let (sender, is_revocation) = if path == "/revoke" { (revoking, true) } else { (asked, false) };
                sender.send(()).await.expect("the test runs");
                if is_revocation {
                    permits.acquire().await.expect("the semaphore is open").forget();
                }
                let tokens = r#"{"access_token":"access","token_type":"Bearer","refresh_token":"next"}"#;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(tokens.as_bytes()))))
            }
        };
        worker::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let service =
                    service_fn(|request: Request<hyper::body::Incoming>| serve(request.uri().path().to_owned()));
                // The test sees a failure of its request.
                let _ = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await;
            }
        });
        let directory = std::env::temp_dir().join(format!("goblin-login-{name}-{}", std::process::id()));
        let vault = Arc::new(Vault::new(directory.join("vault"), &|_| None));
        let login = ServerLogin::new(target("a", &format!("{url}/mcp")), Arc::clone(&vault), Arc::default());
        Place { login, vault, url, tokens, revocations, revoked, directory }
    }

    /// Returns a login here.
    fn stored(&self, lifetime: Option<u64>, refresh: Option<&str>) -> StoredLogin {
        let mut stored = stored(lifetime, refresh);
        stored.url = format!("{}/mcp", self.url);
        stored.server.token_endpoint = format!("{}/token", self.url);
        stored.server.revocation_endpoint = Some(format!("{}/revoke", self.url));
        stored
    }

    async fn rejected(&self) -> Result<Option<HeaderValue>, String> {
        self.login.replace_rejected(self.login.current_header(), Challenge::default(), None).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn rejected() -> LoginState {
    LoginState::Needed(LoginNeed::Rejected)
}

#[tokio::test]
async fn oauth3_a_rejected_token_that_is_issued_again_is_not_requested_for_each_call() {
    let mut place = Place::new("again").await;
    place.login.store_login(place.stored(None, Some("refresh"))).await.expect("the vault is usable");
    for _ in 0..3 {
        assert_eq!(place.rejected().await, Ok(None));
        assert_eq!(place.login.state(), rejected());
    }
    place.tokens.try_recv().expect("one refresh");
    place.tokens.try_recv().expect_err("one refresh");
}

#[tokio::test]
async fn oauth2_a_rejected_login_that_is_tried_again_is_reported_once() {
    let place = Place::new("reported").await;
    let stored = place.stored(None, Some("refresh"));
    let count = |event: &str| {
        let counts = place.login.observe.counts();
        counts.iter().find(|(name, _)| *name == event).map_or(0, |(_, count)| *count)
    };
    place.login.publish(LoginState::Needed(LoginNeed::Never));
    place.login.store_login(stored.clone()).await.expect("the vault is usable");
    assert_eq!((count("login_needed"), count("login_done")), (1, 1));
    for _ in 0..3 {
        assert_eq!(place.rejected().await, Ok(None));
        assert_eq!(place.login.state(), rejected());
        place.login.failures.lock().rejected = Instant::now().checked_sub(REJECTED_PAUSE);
        place.login.retry_rejected();
        assert_eq!(place.login.state(), stored.state());
    }
    assert_eq!((count("login_needed"), count("login_done")), (2, 1));
    let another = StoredLogin { id: "two".to_owned(), access: "other".to_owned(), ..stored };
    place.login.publish(rejected());
    place.login.store_login(another).await.expect("the vault is usable");
    assert_eq!((count("login_needed"), count("login_done")), (2, 2));
}

#[tokio::test]
async fn oauth3_a_token_without_a_refresh_token_is_tried_again_until_it_expires() {
    for (lifetime, is_over) in [(None, false), (Some(3600), true)] {
        let place = Place::new("retry").await;
        let stored = place.stored(lifetime, None);
        place.login.store_login(stored.clone()).await.expect("the vault is usable");
        assert_eq!(place.rejected().await, Ok(None));
        let expected = if is_over { LoginState::Needed(LoginNeed::Expired) } else { rejected() };
        assert_eq!(place.login.state(), expected);
        place.login.retry_rejected();
        assert_eq!(place.login.state(), expected, "the pause has begun");
        let retry = place.login.failures.lock().rejected.take();
        assert_eq!(retry.is_none(), is_over, "{lifetime:?}");
        let Some(at) = retry else { continue };
        place.login.failures.lock().rejected = at.checked_sub(REJECTED_PAUSE);
        place.login.retry_rejected();
        assert_eq!(place.login.state(), stored.state());
    }
}

#[tokio::test]
async fn oauth3_an_expired_token_is_refreshed_before_a_request_carries_it() {
    let mut place = Place::new("stale").await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let fresh = StoredLogin { access: "old".to_owned(), issued: now, ..place.stored(Some(3600), Some("refresh")) };
    place.login.store_login(fresh.clone()).await.expect("the vault is usable");
    assert!(!place.login.is_stale());
    for (stale, is_stale) in [
        (StoredLogin { refresh: None, issued: now - 3600, ..fresh.clone() }, false),
        (StoredLogin { issued: now - 3600, ..fresh }, true),
    ] {
        place.login.store_login(stale).await.expect("the vault is usable");
        assert_eq!(place.login.is_stale(), is_stale, "without a refresh token the server decides");
    }
    place.login.renew().await.expect("the authorization server runs");
    place.tokens.try_recv().expect("one refresh");
    assert!(!place.login.is_stale());
    assert_eq!(place.login.header(), Some(HeaderValue::from_static("Bearer access")));
}

#[tokio::test]
async fn oauth3_a_refresh_that_waited_leaves_another_login_as_it_is() {
    let mut place = Place::new("waited").await;
    let old = place.stored(None, Some("refresh"));
    let new = StoredLogin { id: "two".to_owned(), access: "other".to_owned(), ..old.clone() };
    let credential = Credential::unsaved(old.clone());
    place.login.replace(Some(Arc::clone(&credential)), old.state());
    let entry = place.login.entry().expect("the name is short");
    let lock = place.vault.lock(EntryKind::Login, &entry).expect("the vault is usable");
    let login = Arc::clone(&place.login);
    let waiting =
        worker::spawn(async move { login.replace_rejected(login.current_header(), Challenge::default(), None).await });
    // The references: the login, the test, the rejected request, and the refresh that waits for the lock.
    let begun = async {
        while Arc::strong_count(&credential) < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, begun).await.expect("the refresh begins");
    place.login.replace(Some(Credential::unsaved(new.clone())), new.state());
    drop(lock);
    let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("an end in time").expect("no panic");
    assert_eq!(next, Ok(new.header()));
    assert_eq!(place.login.identity().as_deref(), Some("two"));
    place.tokens.try_recv().expect_err("the old token is not refreshed");
}

#[tokio::test]
async fn oauth2_a_logout_whose_caller_is_gone_removes_the_login() {
    let mut place = Place::new("logout").await;
    place.login.store_login(place.stored(None, None)).await.expect("the vault is usable");
    let mut changes = place.login.changes();
    {
        let logout = place.login.logout();
        tokio::pin!(logout);
        tokio::select! {
            outcome = &mut logout => panic!("the revocation has not ended: {outcome:?}"),
            asked = place.revocations.recv() => asked.expect("the authorization server runs"),
        }
    }
    place.revoked.add_permits(1);
    let ended = changes.wait_for(|state| *state == LoginState::NoLogin);
    tokio::time::timeout(TIMEOUT, ended).await.expect("an end in time").expect("the login exists");
    let entry = place.login.entry().expect("the name is short");
    assert!(place.vault.read(EntryKind::Login, &entry).expect("the vault is usable").is_none());
}

#[tokio::test]
async fn oauth3_an_unreadable_login_is_reported_once() {
    let place = Place::new("unreadable").await;
    place.login.store_login(place.stored(None, None)).await.expect("the vault is usable");
    let entry = place.login.entry().expect("the name is short");
    place.vault.write(EntryKind::Login, &entry, &Secret::new("torn")).expect("the vault is usable");
    for _ in 0..3 {
        place.login.load().await;
    }
    let counts = place.login.observe.counts();
    let count = counts.iter().find(|(name, _)| *name == "login_vault_failed").map(|(_, count)| *count);
    assert_eq!(count, Some(1), "{counts:?}");
}

#[tokio::test]
async fn oauth4_a_server_cannot_lead_the_secret_of_a_machine_to_another_authorization_server() {
    let mut place = Place::new("machine").await;
    let mut target = target("a", &format!("{}/mcp", place.url));
    target.options.grant = Grant::ClientCredentials(None);
    target.options.client_id = Some("machine".to_owned());
    target.options.client_secret = Some(Secret::new("secret"));
    let new = || ServerLogin::new(target.clone(), Arc::clone(&place.vault), Arc::default());
    let login = new();
    let next = login.replace_rejected(None, Challenge::default(), None).await;
    assert!(next.is_ok_and(|header| header.is_some()));
    place.tokens.try_recv().expect("a token");
    assert_eq!(login.machine_issuer.get(), Some(&place.url));
    // Another authorization server accepted this client before.
    let login = new();
    login.machine_issuer.set("https://known.example".to_owned()).expect("a new login");
    let reason = login.replace_rejected(None, Challenge::default(), None).await.expect_err("another issuer");
    assert!(reason.contains("the last login was at https://known.example"), "{reason}");
    place.tokens.try_recv().expect_err("nobody gets the secret");
}
