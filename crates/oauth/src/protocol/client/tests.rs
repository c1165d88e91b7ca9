use std::sync::Arc;

use goblin_config::oauth::PrivateKey;

use super::*;

fn server(methods: &[&str]) -> AuthorizationServer {
    AuthorizationServer {
        issuer: "https://as.example/t".to_owned(),
        token_endpoint: "https://as.example/token".to_owned(),
        authorization_endpoint: None,
        registration_endpoint: None,
        revocation_endpoint: None,
        device_authorization_endpoint: None,
        scopes_supported: Vec::new(),
        auth_methods: methods.iter().map(|&method| method.to_owned()).collect(),
        accepts_client_documents: false,
        sends_issuer: false,
    }
}

fn target(options: goblin_config::oauth::OAuthOptions) -> LoginTarget {
    LoginTarget {
        name: "test".to_owned(),
        url: "https://mcp.example/mcp".parse().expect("a URL"),
        ca: None,
        proxies: Default::default(),
        options,
    }
}

fn method(client: &ClientIdentity) -> String {
    client.to_stored().method
}

#[test]
fn oauth1_a_registration_names_a_method_that_the_server_has() {
    let cases: [(&[&str], &str); 5] = [
        (&[], "none"),
        (&["client_secret_basic", "none"], "none"),
        (&["client_secret_post", "client_secret_basic"], "client_secret_post"),
        (&["client_secret_post"], "client_secret_post"),
        (&["private_key_jwt"], "none"),
    ];
    for (methods, expected) in cases {
        let scopes = ["read".to_owned(), "write".to_owned()];
        let client = registration(&server(methods), Some("http://127.0.0.1:1/callback"), &scopes);
        assert_eq!(client["scope"], "read write", "a server may grant only the scopes of the registration");
        assert_eq!(client["token_endpoint_auth_method"], expected, "{methods:?}");
        assert_eq!(client["application_type"], "native");
        assert_eq!(client["redirect_uris"], json!(["http://127.0.0.1:1/callback"]));
        assert_eq!((&client["response_types"], &client["client_name"]), (&json!(["code"]), &json!("Goblin")));
        assert_eq!(client["grant_types"], json!(["authorization_code", "refresh_token"]));
    }
    let mut server = server(&[]);
    server.device_authorization_endpoint = Some("https://as.example/device".to_owned());
    let client = registration(&server, None, &[]);
    assert_eq!(client.get("scope"), None);
    server.scopes_supported = vec!["read".to_owned()];
    let registered = |scope: &str| registration(&server, None, &[scope.to_owned()]).get("scope").cloned();
    assert_eq!((registered("read"), registered("unknown")), (Some(json!("read")), None));
    assert_eq!(client["grant_types"], json!(["refresh_token", DEVICE_GRANT]));
    assert_eq!((&client["redirect_uris"], &client["response_types"]), (&json!([]), &json!([])));
}

#[test]
fn oauth1_the_answer_to_a_registration_chooses_the_proof() {
    let cases: [(Value, &[&str], Option<&str>); 16] = [
        (json!({"client_id": "a"}), &[], Some("none")),
        (json!({"client_id": "a", "client_secret": null, "token_endpoint_auth_method": "none"}), &[], Some("none")),
        (json!({"client_id": "a", "client_secret": ""}), &["client_secret_post"], Some("none")),
        (json!({"client_id": "a", "client_secret": "s"}), &["none"], Some("none")),
        (json!({"client_id": "a", "client_secret": "s"}), &["none", "client_secret_post"], Some("client_secret_post")),
        (json!({"client_id": "a", "client_secret": "s"}), &[], Some("client_secret_basic")),
        (json!({"client_id": "a", "client_secret": "s"}), &["private_key_jwt"], Some("client_secret_basic")),
        (
            json!({"client_id": "a", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"}),
            &["client_secret_basic"],
            Some("client_secret_post"),
        ),
        (json!({"client_id": "a", "token_endpoint_auth_method": "client_secret_basic"}), &[], None),
        (json!({"client_id": "a", "token_endpoint_auth_method": "private_key_jwt"}), &[], None),
        (json!({}), &[], None),
        (json!({"client_id": ""}), &[], None),
        (json!({"client_id": 7}), &[], None),
        (json!({"client_id": "a\nb"}), &[], None),
        (json!({"client_id": "a", "client_secret": "é"}), &[], None),
        (json!({"client_id": "a".repeat(MAX_TEXT + 1)}), &[], None),
    ];
    for (answer, methods, expected) in cases {
        let Value::Object(members) = answer.clone() else { panic!("{answer}") };
        let client = registered(&members, &server(methods));
        assert_eq!(client.as_ref().ok().map(method).as_deref(), expected, "{answer} {methods:?}");
    }
}

#[test]
fn oauth1_the_configuration_names_the_client() {
    let mut options = goblin_config::oauth::OAuthOptions::default();
    let found = |options: &goblin_config::oauth::OAuthOptions, server: &AuthorizationServer| {
        let client = configured(&target(options.clone()), server).expect("a usable client");
        client.map(|client| (client.id.clone(), method(&client)))
    };
    let client = |id: &str, method: &str| Some((id.to_owned(), method.to_owned()));
    assert_eq!(found(&options, &server(&[])), None);
    options.client_id = Some("https://client.example/client.json".to_owned());
    assert_eq!(found(&options, &server(&[])), None);
    let documents = AuthorizationServer { accepts_client_documents: true, ..server(&[]) };
    assert_eq!(found(&options, &documents), client("https://client.example/client.json", "none"));
    options.client_id = Some("a".to_owned());
    assert_eq!(found(&options, &server(&[])), client("a", "none"));
    options.client_secret = Some(Secret::new("s"));
    assert_eq!(found(&options, &server(&[])), client("a", "client_secret_basic"));
    assert_eq!(found(&options, &server(&["client_secret_post"])), client("a", "client_secret_post"));
    options.grant = Grant::ClientCredentials(Some(PrivateKey { pem: Secret::new("s3cret"), id: None }));
    let error = configured(&target(options), &server(&[])).map(|_| ()).expect_err("no key");
    assert!(matches!(&error, LoginError::Key(_)) && !error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn oauth1_a_client_proves_itself_by_its_method() {
    let secret = || Secret::new("p:w d%&é");
    let form = |credential| {
        let client = ClientIdentity { id: "a:b c".to_owned(), credential };
        match client.authenticate(Form::default().with("x", "y"), &server(&[])).expect("a request") {
            Payload::Form(form, header) => (form, header.map(|header| header.to_str().expect("text").to_owned())),
            Payload::Json(value) => panic!("{value}"),
        }
    };
    assert_eq!(form(ClientCredential::None), ("x=y&client_id=a%3Ab+c".to_owned(), None));
    let encoded = "client_secret=p%3Aw+d%25%26%C3%A9";
    assert_eq!(form(ClientCredential::Post(secret())), (format!("x=y&client_id=a%3Ab+c&{encoded}"), None));
    let header = format!("Basic {}", BASE64_STANDARD.encode("a%3Ab+c:p%3Aw+d%25%26%C3%A9"));
    assert_eq!(form(ClientCredential::Basic(secret())), ("x=y&client_id=a%3Ab+c".to_owned(), Some(header)));
    let pair = aws_lc_rs::signature::Ed25519KeyPair::generate().expect("a key").to_pkcs8().expect("a key");
    let pem =
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", BASE64_STANDARD.encode(pair.as_ref()));
    let key = SigningKey::new(&PrivateKey { pem: Secret::new(pem), id: None }).expect("a key");
    let (form, header) = form(ClientCredential::PrivateKey(Arc::new(key)));
    let start = "x=y&client_id=a%3Ab+c&client_assertion_type=\
                 urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer&client_assertion=ey";
    assert!(form.starts_with(start) && header.is_none(), "{form}");
}

#[test]
fn oauth1_a_client_survives_its_storage() {
    for (credential, expected) in [
        (ClientCredential::None, true),
        (ClientCredential::Basic(Secret::new("s")), true),
        (ClientCredential::Post(Secret::new("s")), true),
    ] {
        let client = ClientIdentity { id: "a".to_owned(), credential };
        let text = serde_json::to_string(&client.to_stored()).expect("JSON");
        let again = ClientIdentity::from_stored(serde_json::from_str(&text).expect("JSON"));
        assert_eq!(again.map(|again| (again.id.clone(), method(&again), again.secret().cloned())).is_some(), expected);
    }
    for (method, secret) in [("private_key_jwt", None), ("none", Some("s")), ("client_secret_basic", None), ("x", None)]
    {
        let secret = secret.map(str::to_owned);
        let stored = StoredClient { id: "a".to_owned(), secret, method: method.to_owned() };
        assert!(ClientIdentity::from_stored(stored).is_none(), "{method}");
    }
}
