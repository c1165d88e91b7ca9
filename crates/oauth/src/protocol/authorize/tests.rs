use goblin_config::secret::Secret;

use super::*;
use crate::protocol::client::ClientCredential;
use crate::protocol::metadata::AuthorizationServer;

const REDIRECT: &str = "http://127.0.0.1:7000/callback";

fn discovery(endpoint: Option<&str>) -> Discovery {
    let server = AuthorizationServer {
        issuer: "https://as.example".to_owned(),
        token_endpoint: "https://as.example/token".to_owned(),
        authorization_endpoint: endpoint.map(str::to_owned),
        registration_endpoint: None,
        revocation_endpoint: None,
        device_authorization_endpoint: None,
        scopes_supported: Vec::new(),
        auth_methods: Vec::new(),
        accepts_client_documents: false,
        sends_issuer: true,
    };
    Discovery::new(server, Some("https://mcp.example/a?b=c".to_owned()), Vec::new(), true)
}

fn request(endpoint: Option<&str>, scopes: &[&str]) -> Result<AuthorizationRequest, LoginError> {
    let client = ClientIdentity { id: "a b&c".to_owned(), credential: ClientCredential::Post(Secret::new("s3cret")) };
    let scopes: Vec<String> = scopes.iter().map(|&scope| scope.to_owned()).collect();
    AuthorizationRequest::new(&discovery(endpoint), &client, REDIRECT, &scopes)
}

fn parameters(url: &str) -> Vec<(String, String)> {
    let query = url.split_once('?').expect("a query").1;
    let pairs = query.split('&').map(|pair| pair.split_once('=').expect("a pair"));
    pairs.map(|(name, value)| (decoded(name).expect("a name"), decoded(value).expect("a value"))).collect()
}

#[test]
fn oauth1_the_authorization_request_has_every_parameter() {
    let request = request(Some("https://as.example/authorize?tenant=x"), &["mcp:$(id)", "offline_access"]);
    let request = request.expect("a request");
    let (url, state) = (request.url(), request.expected.state.as_str());
    assert!(url.starts_with("https://as.example/authorize?tenant=x&response_type=code&"), "{url}");
    let query = url.split_once('?').expect("a query").1;
    assert!(query.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%&=".contains(&byte)), "{query}");
    let challenge = BASE64.encode(digest(&SHA256, request.verifier.as_bytes()));
    let expected = [
        ("tenant", "x"),
        ("response_type", "code"),
        ("client_id", "a b&c"),
        ("redirect_uri", REDIRECT),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
        ("state", state),
        ("scope", "mcp:$(id) offline_access"),
        ("resource", "https://mcp.example/a?b=c"),
        ("prompt", "consent"),
    ];
    assert_eq!(parameters(url), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!((state.len(), request.verifier.len()), (43, 43));
    assert!(!url.contains("s3cret") && !url.contains(&request.verifier));
}

#[test]
fn oauth1_two_authorization_requests_share_nothing() {
    let (first, second) = (request(Some("https://as.example/a"), &[]), request(Some("https://as.example/a?"), &[]));
    let (first, second) = (first.expect("a request"), second.expect("a request"));
    assert!(first.expected.state != second.expected.state && first.verifier != second.verifier);
    assert!(second.url().starts_with("https://as.example/a?response_type="), "{}", second.url());
    let names = |url| parameters(url).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert!(!names(first.url()).iter().any(|name| name == "scope" || name == "prompt"));
    for endpoint in [None, Some("https://as.example/$x"), Some("https://as.example/\u{1b}")] {
        let error = request(endpoint, &[]).map(|_| ()).expect_err("no request");
        assert!(matches!(error, LoginError::Refusal(_)), "{error}");
    }
}

fn expected(needs_issuer: bool) -> ExpectedCallback {
    ExpectedCallback { state: "s1".to_owned(), issuer: "https://as.example".to_owned(), needs_issuer }
}

#[test]
fn oauth1_a_callback_is_read_in_each_form() {
    let request = request(Some("https://as.example/a"), &[]).expect("a request");
    let query = format!("code=c%2F1&state={}&iss=https%3A%2F%2Fas.example&x=y&x=z", request.expected.state);
    let forms = [
        format!("{REDIRECT}?{query}"),
        format!("/callback?{query}"),
        format!("?{query}"),
        query.clone(),
        format!("  {REDIRECT}?{query}#fragment\n"),
    ];
    for form in forms {
        let code = request.read_callback(&form).unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!((code.code.as_str(), code.redirect_uri.as_str()), ("c/1", REDIRECT));
        assert_eq!(code.verifier, request.verifier);
    }
}

#[test]
fn oauth1_a_wrong_callback_is_refused() {
    let refused = |code: &str, description: Option<&str>| {
        Err(CallbackFault::Refused { code: code.to_owned(), description: description.map(str::to_owned) })
    };
    let good = "iss=https://as.example";
    let cases = [
        ("code=c&state=s1&iss=https://as.example", Ok("c".to_owned())),
        ("code=a?b=c&state=s1&iss=https://as.example", Ok("a?b=c".to_owned())),
        ("", Err(CallbackFault::NotACallback)),
        ("http://127.0.0.1:7000/callback/code=c&state=s1", Err(CallbackFault::NotACallback)),
        ("hello", Err(CallbackFault::NotACallback)),
        ("http://127.0.0.1:7000/callback", Err(CallbackFault::NotACallback)),
        ("code=c&code=d&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=c&state=s1&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=c&state=s1&iss=https://as.example&iss=x", Err(CallbackFault::NotACallback)),
        ("code=c&co%64e=d&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=%&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=%ff&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=%00&state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("state=s1&iss=https://as.example", Err(CallbackFault::NotACallback)),
        ("code=c&iss=https://as.example", Err(CallbackFault::State)),
        ("code=c&state=&iss=https://as.example", Err(CallbackFault::State)),
        ("code=c&state=s2&iss=https://evil.example", Err(CallbackFault::State)),
        ("error=x&state=s2", Err(CallbackFault::State)),
        ("code=c&state=s1", Err(CallbackFault::Issuer)),
        ("code=c&state=s1&iss=", Err(CallbackFault::Issuer)),
        ("code=c&state=s1&iss=https://as.example/", Err(CallbackFault::Issuer)),
        ("code=c&state=s1&iss=HTTPS://as.example", Err(CallbackFault::Issuer)),
        ("code=c&state=s1&iss=https://as.example:443", Err(CallbackFault::Issuer)),
        ("error=x&error_description=evil&state=s1&iss=https://evil.example", Err(CallbackFault::Issuer)),
        ("error=access_denied&state=s1&iss=https://as.example", refused("access_denied", None)),
        ("error=a&code=c&state=s1&iss=https://as.example", refused("a", None)),
        ("error=a+b&error_description=n%1b%5b31mo&state=s1&iss=https://as.example", refused("unknown", Some("n[31mo"))),
    ];
    for (callback, code) in cases {
        assert_eq!(expected(true).code(callback), code, "{callback}");
    }
    assert_eq!(expected(false).code("code=c&state=s1"), Ok("c".to_owned()));
    assert_eq!(expected(false).code(&format!("code=c&state=s1&{good}")), Ok("c".to_owned()));
    assert_eq!(expected(false).code("code=c&state=s1&iss=https://evil.example"), Err(CallbackFault::Issuer));
}

#[test]
fn oauth1_a_callback_is_bounded() {
    let callback = format!("code={}&state=s1", "c".repeat(MAX_CALLBACK));
    assert_eq!(expected(false).code(&callback), Err(CallbackFault::NotACallback));
    let fits = format!("code={}&state=s1", "c".repeat(MAX_CALLBACK - 14));
    assert_eq!(expected(false).code(&fits).map(|code| code.len()), Ok(MAX_CALLBACK - 14));
    let many = format!("{}code=c&state=s1", "x=y&".repeat(MAX_PARAMETERS - 1));
    assert_eq!(expected(false).code(&many), Err(CallbackFault::NotACallback));
    assert_eq!(expected(false).code(&many[4..]), Ok("c".to_owned()));
}
