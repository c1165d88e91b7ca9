mod tokens;

use goblin_client::connect::ProxyEnvironment;
use goblin_config::oauth::OAuthOptions;
use goblin_config::secret::Secret;

use super::*;
use crate::login::prepare::scopes;
use crate::login::storage::StoredLogin;
use crate::protocol::client::StoredClient;
use crate::protocol::discovery::Discovery;
use crate::protocol::metadata::AuthorizationServer;
use crate::protocol::token::Tokens;

fn server(scopes_supported: &[&str]) -> AuthorizationServer {
    AuthorizationServer {
        issuer: "https://login.example".to_owned(),
        token_endpoint: "https://login.example/token".to_owned(),
        authorization_endpoint: None,
        registration_endpoint: None,
        revocation_endpoint: None,
        device_authorization_endpoint: None,
        scopes_supported: owned(scopes_supported),
        auth_methods: Vec::new(),
        accepts_client_documents: false,
        sends_issuer: false,
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn target(name: &str, url: &str) -> LoginTarget {
    LoginTarget {
        name: name.to_owned(),
        url: url.parse().expect("a URL"),
        ca: None,
        proxies: ProxyEnvironment::default(),
        options: OAuthOptions::default(),
    }
}

fn stored(lifetime: Option<u64>, refresh: Option<&str>) -> StoredLogin {
    StoredLogin {
        format: 1,
        id: "one".to_owned(),
        url: "https://mcp.example/mcp".to_owned(),
        server: server(&[]),
        client: StoredClient { id: "client".to_owned(), secret: None, method: "none".to_owned() },
        resource: None,
        requested: owned(&["read"]),
        scopes: owned(&["read"]),
        peer: None,
        access: "access".to_owned(),
        refresh: refresh.map(str::to_owned),
        issued: 1_000_000,
        lifetime,
        ended: None,
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

#[test]
fn oauth1_scopes_come_from_the_configuration_or_the_server_and_grow_with_a_missing_one() {
    let discovery = |scopes: &[&str], supported: &[&str]| Discovery {
        server: server(supported),
        resource: None,
        scopes: owned(scopes),
        has_pkce: true,
    };
    let requested = |configured: Option<&[&str]>, named: &[&str], supported: &[&str], missing: &[&str]| {
        let options = OAuthOptions { scopes: configured.map(owned), ..OAuthOptions::default() };
        scopes(&options, &discovery(named, supported), &owned(&["old"]), &owned(missing)).join(" ")
    };
    assert_eq!(requested(None, &["read"], &[], &[]), "read");
    assert_eq!(requested(None, &[], &[], &[]), "");
    assert_eq!(requested(Some(&["mine"]), &["read"], &[], &[]), "mine");
    assert_eq!(requested(None, &["read"], &["read", "offline_access"], &[]), "read offline_access");
    assert_eq!(requested(None, &[], &["offline_access"], &[]), "", "the authorization server chooses");
    assert_eq!(requested(Some(&["mine"]), &[], &["offline_access"], &[]), "mine", "nothing is added to the choice");
    assert_eq!(requested(None, &["write"], &[], &["write"]), "write old");
    assert_eq!(requested(Some(&["mine"]), &["read"], &[], &["write", "old"]), "mine old write");
    let many: Vec<String> = (0..300).map(|number| format!("scope{number}")).collect();
    let options = OAuthOptions { scopes: Some(many.clone()), ..OAuthOptions::default() };
    assert_eq!(scopes(&options, &discovery(&[], &[]), &[], &many).len(), 100);
}

#[test]
fn oauth1_logins_for_missing_scopes_are_limited() {
    let challenge = |scope: &str| Challenge {
        scopes: owned(&[scope]),
        error: Some("insufficient_scope".to_owned()),
        ..Challenge::default()
    };
    let mut demand = Demand::default();
    demand.begin_step_up().expect("nothing is missing");
    for _ in 0..2 {
        for _ in 0..2 {
            demand.record_missing(challenge("admin"));
            demand.begin_step_up().expect("one of the first two");
        }
        demand.record_missing(challenge("admin"));
        assert_eq!(demand.begin_step_up(), Err(LoginError::StepUps { attempts: 2 }));
    }
    demand.record_missing(challenge("admin"));
    demand.begin_step_up().expect("a new series");
    demand.begin_step_up().expect("a new series");
    demand.record_missing(challenge("other"));
    for _ in 0..2 {
        demand.begin_step_up().expect("another scope begins a new series");
    }
    demand.begin_step_up().expect_err("two logins did not help");
}

#[test]
fn oauth1_a_login_long_after_others_for_the_same_scope_is_not_refused() {
    let mut demand = Demand::default();
    demand.record_missing(Challenge { scopes: owned(&["admin"]), ..Challenge::default() });
    for _ in 0..2 {
        demand.begin_step_up().expect("one of the first two");
    }
    demand.last_step_up = Instant::now().checked_sub(Duration::from_secs(3600));
    demand.begin_step_up().expect("a new series");
}

#[test]
fn oauth1_a_browser_returns_to_this_machine_only() {
    for uri in ["http://127.0.0.1:8000/callback", "http://localhost:1/callback", "http://[::1]:8000/callback"] {
        assert!(is_on_this_machine(uri), "{uri}");
    }
    let foreign = [
        "http://127.0.0.1/callback",
        "https://127.0.0.1:8000/callback",
        "http://127.0.0.1.evil.example:8000/callback",
        "http://127.0.0.1@evil.example:8000/callback",
        "http://evil.example:8000/callback",
        "http://127.0.0.2:8000/callback",
        "/callback",
        "",
    ];
    for uri in foreign {
        assert!(!is_on_this_machine(uri), "{uri}");
    }
}

#[test]
fn oauth3_tokens_are_due_late_in_their_life_and_idle_ones_once_a_day() {
    let hour = stored(Some(3600), Some("refresh"));
    assert!(!hour.is_due(at(2879)) && hour.is_due(at(2880)) && hour.is_due(at(9999)));
    assert!(!hour.is_idle(at(86_399)) && hour.is_idle(at(86_400)));
    assert!(!hour.is_due(SystemTime::UNIX_EPOCH), "a clock that goes back makes nothing due");
    let endless = stored(None, Some("refresh"));
    assert!(!endless.is_due(at(u64::from(u32::MAX))), "the server rejects the token when it ends");
    assert!(!endless.is_idle(at(86_400)));
}

#[test]
fn oauth3_a_response_without_a_refresh_token_keeps_the_old_one() {
    let tokens = |refresh: Option<&str>| Tokens {
        access: Secret::new("next"),
        refresh: refresh.map(Secret::new),
        lifetime: Some(Duration::from_secs(60)),
        scopes: None,
    };
    let kept = stored(None, Some("first")).with_tokens(&tokens(None), at(5));
    assert_eq!((kept.access.as_str(), kept.refresh.as_deref(), kept.issued), ("next", Some("first"), 1_000_005));
    let rotated = stored(None, Some("first")).with_tokens(&tokens(Some("second")), at(5));
    assert_eq!((rotated.refresh.as_deref(), rotated.lifetime), (Some("second"), Some(60)));
    assert_eq!((rotated.id.as_str(), rotated.scopes), ("one", owned(&["read"])));
    let ended = stored(None, Some("first")).ended("revoked".to_owned());
    assert!(ended.access.is_empty() && ended.refresh.is_none() && ended.header().is_none());
    assert_eq!(ended.state(), LoginState::Needed(LoginNeed::Ended("revoked".to_owned())));
}

#[test]
fn oauth3_a_login_belongs_to_the_name_and_the_url_of_its_server() {
    let name = |name, url| storage::entry_name(&target(name, url)).expect("a name").as_str().to_owned();
    let own = name("a", "https://mcp.example/mcp");
    assert_ne!(own, name("b", "https://mcp.example/mcp"));
    assert_ne!(own, name("a", "https://other.example/mcp"));
    assert_eq!(own, name("a", "https://mcp.example/mcp"));
    let text = Secret::new(serde_json::to_string(&stored(None, None)).expect("JSON"));
    let read = |target: &LoginTarget, text: &Secret| StoredLogin::read(text, target).map(|login| login.id);
    assert_eq!(read(&target("a", "https://mcp.example/mcp"), &text), Ok("one".to_owned()));
    assert_eq!(read(&target("a", "https://other.example/mcp"), &text), Err("it belongs to another URL".to_owned()));
    let newer = Secret::new(text.expose().replace(r#""format":1"#, r#""format":2"#));
    let error = read(&target("a", "https://mcp.example/mcp"), &newer).expect_err("a newer form");
    assert!(error.contains("another version of Goblin"), "{error}");
    let torn = Secret::new(&text.expose()[..20]);
    assert!(read(&target("a", "https://mcp.example/mcp"), &torn).expect_err("torn").contains("damaged"));
}

#[test]
fn oauth3_no_token_is_part_of_a_debug_output() {
    let stored = stored(None, Some("refresh"));
    let header = stored.header().expect("a header");
    assert!(!format!("{header:?}").contains("access"), "{header:?}");
}
