//! Tests of the `oauth` member of a server.

use super::problems::check_server;
use super::{accept_server, environment};
use crate::Transport;
use crate::oauth::{Grant, MAX_SCOPES, OAuthOptions};

const URL: &str = r#""url": "https://a.example/mcp""#;

fn accept(members: &str) -> Option<OAuthOptions> {
    match accept_server(&format!("{URL}, {members}")).transport {
        Transport::Http { oauth, .. } => oauth,
        other => panic!("{other:?}"),
    }
}

#[test]
fn oauth1_a_server_with_a_credential_in_its_headers_needs_no_login() {
    let defaults = Some(OAuthOptions::default());
    for (members, expected) in [
        (r#""headers": {}"#, defaults.clone()),
        (r#""headers": { "X-Region": "eu" }"#, defaults.clone()),
        (r#""oauth": true"#, defaults.clone()),
        (r#""oauth": {}"#, defaults.clone()),
        (r#""headers": { "X-API-Key": "k" }, "oauth": true"#, defaults),
        (r#""headers": { "X-API-Key": "k" }"#, None),
        (r#""headers": { "authorization": "Bearer ${TOKEN}" }"#, None),
        (r#""oauth": false"#, None),
    ] {
        assert_eq!(accept(members), expected, "{members}");
    }
}

#[test]
fn oauth1_scopes_are_an_array_or_one_text() {
    let scopes = |value: &str| accept(&format!(r#""oauth": {{ "scopes": {value} }}"#)).expect("a login").scopes;
    let expected = Some(vec!["a".to_owned(), "https://x/b:c".to_owned()]);
    assert_eq!(scopes(r#"["a", "https://x/b:c"]"#), expected);
    assert_eq!(scopes(r#""a  https://x/b:c""#), expected);
    assert_eq!(scopes("[]"), Some(Vec::new()), "no scope at all");
}

#[test]
fn oauth4_a_login_without_a_person_has_a_credential() {
    let options = accept(r#""oauth": { "grant": "client_credentials", "clientId": "a", "clientSecret": "${TOKEN}" }"#);
    let options = options.expect("a login");
    assert_eq!(options.grant, Grant::ClientCredentials(None));
    let shown = format!("{options:?}");
    assert!(!shown.contains(&environment("TOKEN").expect("it is set")), "{shown}");
}

#[test]
fn oauth1_problems_of_the_login_name_the_member_and_the_cure() {
    let many = format!(r#""scopes": "{}""#, "s ".repeat(MAX_SCOPES + 1));
    for (members, at, problem) in [
        (
            r#""grant": "password""#,
            r#""password""#,
            r#"grant: unknown value "password", use "authorization_code" or "client_credentials""#,
        ),
        (r#""clientId": """#, r#""" }"#, "clientId: must be 1 to 2048 visible ASCII characters"),
        (r#""clientSecret": " ""#, r#"" ""#, "clientSecret: must not be empty"),
        (r#""callbackPort": 0"#, "0", "callbackPort: must be a whole number from 1 to 65535"),
        (
            r#""issuer": "id.example""#,
            r#""id."#,
            r#"issuer: must be a complete http or https URL, write it like "https://host/mcp""#,
        ),
        (
            r#""scopes": ["a b"]"#,
            "[\"a b",
            "scopes: must be at most 100 scopes of visible ASCII characters, without quotes",
        ),
        (&many, "\"s s", "scopes: must be at most 100 scopes of visible ASCII characters, without quotes"),
        (r#""keyId": "k""#, r#""keyId"#, r#"keyId: names no key, add "privateKey""#),
        (
            r#""privateKey": "k""#,
            r#""privateKey"#,
            r#"privateKey: only a login without a person has a private key, add "grant": "client_credentials""#,
        ),
        (
            r#""grant": "client_credentials", "clientId": "a""#,
            r#""grant"#,
            "grant: a login without a person needs a client id and a credential, \
             add \"clientId\" and \"clientSecret\" or \"privateKey\"",
        ),
    ] {
        let entry = format!(r#"{URL}, "oauth": {{ {members} }}"#);
        let place = format!("3:{}", entry.find(at).expect("the place") + 1);
        check_server(&entry, &[(&place, &format!("a.oauth.{problem}"))]);
    }
    check_server(
        &format!(r#"{URL}, "headers": {{ "Authorization": "x" }}, "oauth": {{}}"#),
        &[(
            "3:70",
            "a.oauth: the server has a header Authorization, so there is nothing to log in for, \
             keep \"oauth\" or the header",
        )],
    );
    check_server(
        r#""command": "x", "oauth": {}"#,
        &[("3:17", "a.oauth: does not belong to a server of type stdio, remove it")],
    );
}
