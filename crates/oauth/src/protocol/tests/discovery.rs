//! The places of metadata, and the members that the gateway takes from them.

use goblin_config::oauth::ResourceIndicator;
use serde_json::{Value, json};

use super::{Received, Reply, Site, fetcher, metadata, target};
use crate::error::{LoginError, Refusal};
use crate::protocol::challenge::Challenge;
use crate::protocol::discovery::{Discovery, discover, probe};

const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const OAUTH: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

/// Starts a site that has pages at these paths.
async fn site(pages: impl FnOnce(&str) -> Vec<(String, Value)>) -> Site {
    Site::start(|origin| {
        let pages = pages(&origin);
        move |request: &Received| match pages.iter().find(|(path, _)| *path == request.path) {
            Some((_, page)) => Reply::json(200, page),
            None => Reply::status(404),
        }
    })
    .await
}

async fn discovered(site: &Site, challenge: &Challenge) -> Result<Discovery, LoginError> {
    let url = format!("{}/mcp", site.origin);
    discover(&fetcher(&url), &target(&url), challenge).await
}

fn resource(origin: &str, path: &str, issuer: &str) -> Value {
    json!({"resource": format!("{origin}{path}"), "authorization_servers": [issuer], "scopes_supported": ["a", "b"]})
}

#[tokio::test]
async fn oauth1_metadata_is_found_at_each_place() {
    // (place of the resource metadata, its resource, whether the challenge names it, path of the issuer, its metadata,
    // pages that are looked at in vain)
    let path = format!("{RESOURCE}/mcp");
    type Case<'a> = (&'a str, &'a str, bool, &'a str, String, Vec<String>);
    let cases: [Case<'_>; 5] = [
        (&path, "/mcp", true, "", OAUTH.to_owned(), vec![]),
        (&path, "/mcp", false, "", OPENID.to_owned(), vec![OAUTH.to_owned()]),
        (RESOURCE, "", false, "/tenant1", format!("{OAUTH}/tenant1"), vec![path.clone()]),
        (
            "/custom/x.json",
            "/mcp",
            true,
            "/t",
            format!("/t{OPENID}"),
            vec![format!("{OAUTH}/t"), format!("{OPENID}/t")],
        ),
        (&path, "/mcp", true, "/", OAUTH.to_owned(), vec![]),
    ];
    for (place, covered, is_named, tenant, page, missing) in cases {
        let site = site(|origin| {
            let issuer = format!("{origin}{tenant}");
            vec![(place.into(), resource(origin, covered, &issuer)), (page.clone(), metadata(&issuer, origin))]
        });
        let site = site.await;
        let named = is_named.then(|| format!("{}{place}", site.origin));
        let found = discovered(&site, &Challenge { resource_metadata: named, ..Challenge::default() }).await;
        let found = found.unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(found.server.issuer, format!("{}{tenant}", site.origin));
        assert_eq!(found.resource, Some(format!("{}{covered}", site.origin)));
        assert_eq!(found.scopes, ["a", "b"]);
        let mut expected: Vec<String> = missing.into_iter().chain([place.to_owned(), page]).collect();
        let mut paths: Vec<String> = site.received.lock().iter().map(|it| it.path.clone()).collect();
        expected.sort();
        paths.sort();
        assert_eq!(paths, expected);
    }
}

#[tokio::test]
async fn oauth1_a_server_of_2025_03_26_is_its_own_authorization_server() {
    for slash in ["", "/"] {
        let site =
            site(|origin| vec![(OAUTH.into(), metadata(&format!("{origin}{slash}"), &format!("{origin}/oauth")))]);
        let site = site.await;
        let challenge = Challenge { scopes: vec!["c".into()], ..Challenge::default() };
        let found = discovered(&site, &challenge).await.expect("metadata");
        assert_eq!(found.server.issuer, format!("{}{slash}", site.origin));
        assert_eq!(found.server.token_endpoint, format!("{}/oauth/token", site.origin));
        assert_eq!((found.resource, found.scopes), (Some(format!("{}/mcp", site.origin)), vec!["c".to_owned()]));
    }
    let site = site(|_| vec![]).await;
    let found = discovered(&site, &Challenge::default()).await.expect("the default endpoints");
    let origin = &site.origin;
    assert_eq!(found.server.authorization_endpoint, Some(format!("{origin}/authorize")));
    assert_eq!(found.server.token_endpoint, format!("{origin}/token"));
    assert_eq!(found.server.registration_endpoint, Some(format!("{origin}/register")));
    assert_eq!((found.server.issuer.as_str(), found.check_pkce()), (origin.as_str(), Ok(())));
    assert_eq!(
        site.paths(),
        [format!("GET {RESOURCE}/mcp"), format!("GET {RESOURCE}"), format!("GET {OAUTH}"), format!("GET {OPENID}")]
    );
}

#[tokio::test]
async fn oauth1_the_configuration_chooses_the_issuer_and_its_metadata() {
    let site = site(|origin| {
        let (first, second) = (format!("{origin}/one"), format!("{origin}/two"));
        let both = json!({"resource": origin, "authorization_servers": ["https://0x1/", first, second]});
        let own = metadata("https://own.example", origin);
        vec![
            (RESOURCE.into(), both),
            (format!("{OAUTH}/one"), metadata(&first, origin)),
            (format!("{OAUTH}/two"), metadata(&second, origin)),
            ("/own".into(), own),
        ]
    });
    let site = site.await;
    let url = format!("{}/mcp", site.origin);
    let mut target = target(&url);
    let found = discovered(&site, &Challenge::default()).await.expect("the first usable issuer");
    assert_eq!(found.server.issuer, format!("{}/one", site.origin));
    target.options.issuer = Some(format!("{}/two", site.origin));
    target.options.resource = ResourceIndicator::Omitted;
    let found = discover(&fetcher(&url), &target, &Challenge::default()).await.expect("the configured issuer");
    assert_eq!((found.server.issuer, found.resource), (format!("{}/two", site.origin), None));
    target.options.issuer = Some(format!("{}/three", site.origin));
    let error = discover(&fetcher(&url), &target, &Challenge::default()).await.map(|_| ()).expect_err("another issuer");
    assert!(matches!(error, LoginError::Refusal(Refusal::IssuerNotNamed { .. })), "{error}");
    target.options.issuer = None;
    target.options.metadata_url = Some(format!("{}/own", site.origin));
    let found = discover(&fetcher(&url), &target, &Challenge::default()).await.expect("the configured metadata");
    assert_eq!(found.server.issuer, "https://own.example");
    target.options.metadata_url = Some(format!("{}/missing", site.origin));
    let error = discover(&fetcher(&url), &target, &Challenge::default()).await.map(|_| ()).expect_err("no metadata");
    assert!(matches!(error, LoginError::Refusal(Refusal::NoMetadata { .. })), "{error}");
}

#[tokio::test]
async fn oauth1_a_lying_server_is_refused() {
    type Change = fn(&mut Value, &mut Value);
    let cases: [(Change, &str); 16] = [
        (|it, _| it["resource"] = json!("https://evil.example/mcp"), "the metadata of the server is for"),
        (|it, _| it["resource"] = json!(7), "has no usable \"resource\""),
        (|it, _| it["authorization_servers"] = json!("x"), "has no usable \"authorization_servers\""),
        (|it, _| it["authorization_servers"] = json!(["http://as.example"]), "must begin with https://"),
        (|it, _| it["authorization_servers"] = json!(["https://u@as.example"]), "contains a user name"),
        (|it, _| it["authorization_servers"] = json!(["https://as.example?x"]), "contains a query"),
        (|_, it| it["issuer"] = json!("https://attacker.example"), "belongs to the issuer https://attacker.example"),
        (|_, it| it["issuer"] = json!(format!("{}/", it["issuer"].as_str().unwrap())), "belongs to the issuer"),
        (|_, it| it["issuer"] = json!(null), "has no usable \"issuer\""),
        (|_, it| it["token_endpoint"] = json!("http://as.example/token"), "the token endpoint"),
        (|_, it| it["authorization_endpoint"] = json!("https://as.example/$(id)"), "a shell could act on"),
        (|_, it| it["authorization_endpoint"] = json!("https://as.example/`id`"), "must not be in a URL"),
        (|_, it| it["authorization_endpoint"] = json!("https://as.example/\u{1b}[31m\n"), "must not be in a URL"),
        (|_, it| it["authorization_endpoint"] = json!("javascript:alert(1)"), "must look like https://"),
        (|_, it| it["registration_endpoint"] = json!("https://as.example/#x"), "contains a fragment"),
        (|_, it| it["device_authorization_endpoint"] = json!("https://127.1/"), "a number in an unusual form"),
    ];
    for (change, expected) in cases {
        let site = site(|origin| {
            let mut pages = (resource(origin, "/mcp", origin), metadata(origin, origin));
            change(&mut pages.0, &mut pages.1);
            vec![(format!("{RESOURCE}/mcp"), pages.0), (OAUTH.into(), pages.1)]
        });
        let site = site.await;
        let error = discovered(&site, &Challenge::default()).await.map(|_| ()).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.chars().all(|letter| !letter.is_control()), "{error:?}");
        assert!(site.paths().iter().all(|path| path.starts_with("GET ")), "{:?}", site.paths());
    }
}

#[tokio::test]
async fn oauth1_a_login_with_a_code_needs_s256() {
    for methods in [json!(null), json!([]), json!(["plain"]), json!(["s256"])] {
        let site = site(|origin| {
            let mut page = metadata(origin, origin);
            page["code_challenge_methods_supported"] = methods.clone();
            vec![(OAUTH.into(), page)]
        });
        let site = site.await;
        let found = discovered(&site, &Challenge::default()).await.expect("metadata");
        assert!(matches!(found.check_pkce(), Err(Refusal::NoChallengeMethod { .. })), "{methods}");
    }
}

#[tokio::test]
async fn oauth1_a_probe_finds_the_challenge_of_every_kind_of_server() {
    type Answer = fn(&Received) -> Reply;
    fn challenged(status: u16, challenge: &str) -> Reply {
        Reply::Full { status, headers: format!("www-authenticate: {challenge}\r\n"), body: String::new() }
    }
    fn opened() -> Reply {
        Reply::Full { status: 200, headers: "mcp-session-id: s1\r\n".into(), body: "{}".into() }
    }
    type Case = (Answer, Option<&'static [&'static str]>, &'static [&'static str]);
    let cases: [Case; 8] = [
        (|_| challenged(401, "Bearer scope=\"a\""), Some(&["a"]), &["POST"]),
        (|_| Reply::status(401), Some(&[]), &["POST"]),
        (|_| challenged(403, "Bearer scope=\"a\""), Some(&["a"]), &["POST"]),
        (|_| challenged(403, "Basic"), None, &["POST", "POST"]),
        (|_| opened(), None, &["POST", "POST", "DELETE"]),
        (
            |it| if it.body.contains("initialize") { opened() } else { challenged(401, "Bearer scope=b") },
            Some(&["b"]),
            &["POST", "POST", "DELETE"],
        ),
        (
            |it| if it.method == "GET" { challenged(401, "Bearer scope=c") } else { Reply::status(405) },
            Some(&["c"]),
            &["POST", "GET"],
        ),
        (|_| Reply::status(400), None, &["POST", "POST"]),
    ];
    for (answer, scopes, methods) in cases {
        let site = Site::start(|_| answer).await;
        let probe = probe(&target(&format!("{}/mcp", site.origin))).await.expect("an answer");
        assert_eq!(probe.peer, Some("127.0.0.1".parse().expect("an address")));
        let expected = scopes.map(|scopes| scopes.iter().map(|&scope| scope.to_owned()).collect::<Vec<_>>());
        assert_eq!(probe.challenge.map(|challenge| challenge.scopes), expected);
        assert_eq!(site.received.lock().iter().map(|it| it.method.clone()).collect::<Vec<_>>(), methods);
        assert!(site.received.lock().iter().all(|it| !it.headers.to_lowercase().contains("authorization")));
    }
    for answer in [(|_: &Received| Reply::status(503)) as Answer, |_| Reply::redirect("/x"), |_| Reply::Nothing] {
        let site = Site::start(|_| answer).await;
        let error = probe(&target(&format!("{}/mcp", site.origin))).await.map(|_| ()).expect_err("no answer");
        assert!(matches!(error, LoginError::Fetch(_)), "{error}");
    }
}
