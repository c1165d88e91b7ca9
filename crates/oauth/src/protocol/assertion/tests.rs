use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, KeyPair as _, RSA_PKCS1_2048_8192_SHA256,
    UnparsedPublicKey, VerificationAlgorithm,
};
use base64::prelude::BASE64_STANDARD;
use goblin_config::secret::Secret;
use serde_json::Value;

use super::*;

/// An RSA key of 1024 bits, which is too short.
const WEAK: &str = "\
        MIICXgIBAAKBgQCn2zWqDh94WPg3qnRMj+HWFssBNcFl4NIDjfb8Mu/VwiXFVmjtLYC2XhnFkEWg6dz3I2QT1ueMsaiNSScPuBSA\
        xk3aVjxibboXFw7StrsV9iWHtSicIIZEPdaLysvpZLCPykT+Vi5uqO6pad/RuMAJqdWkM7aiJn5f4AdsqDk8RQIDAQABAoGASIOS\
        s1xWjA8jbCjfBRRDY9GE8Yjfe7ub/p0dzeXTZmzxFEc4HP5DVIVibM7exZ1CMCHB4jA857L4NdEcZtYHRMdDaSg4MQKv6YzWw7xS\
        pXolyhPEIuZFrDM25xjDq2iz7l7LZNLaQ9/XHzZfU1eg/jjBA5jPbchZTfFH4GtX5CECQQDTMNEgZ/8awadWheW46zdMVEUXGtPZ\
        3rQW2w0aXphBl4pm5mLjvn90YXaTrlrKJM6YvyOyZygRE2heqZK4ASETAkEAy3icT388honLk67lute8+77ZNWYLmYwgBa3tzTEq\
        1NXUGiYUVnN9i4uwJY9XnqKOYgoqVeGJo1nWpBul06SwRwJBAIFhyNzHmZv0w+XYBhKx16Dlh6ZOAzfYng/ahz5+cVzN0DaWMkNA\
        M6lDBHgZOvnYbtFZWC81z3AWqbxEuuQLnQ0CQQCd/aEh+WI99XEl04B+fFY6BA8U74/CQpP61Pr5gVwIt6BiTX8tQbASUv0LrSoT\
        +5Uje1E0LlR5iqCn/O/eTtqxAkEAuiXM53F6KhPtCnGwBT1oONGUY6KxVnpJCKhfR1CcO6WA6lM3/e/RaacYzv+J7NE3N6baELuq\
        /HITsaYCTezbCw==";

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64_STANDARD.encode(der))
}

fn key(pem: String, id: Option<&str>) -> Result<SigningKey, LoginError> {
    SigningKey::new(&PrivateKey { pem: Secret::new(pem), id: id.map(str::to_owned) })
}

fn part(text: &str) -> Value {
    serde_json::from_slice(&BASE64.decode(text).expect("base64")).expect("JSON")
}

#[test]
fn oauth4_an_assertion_is_signed_with_every_kind_of_key() {
    let p256 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).expect("a key");
    let ed25519 = Ed25519KeyPair::generate().expect("a key");
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
    let rsa_pkcs8 = rsa.as_der().expect("a key").as_ref().to_vec();
    let sec1 = p256.private_key().as_der().expect("a key").as_ref().to_vec();
    let pkcs8 = |document: aws_lc_rs::pkcs8::Document| pem("PRIVATE KEY", document.as_ref());
    let public = |key: &[u8]| key.to_vec();
    let cases: [(String, &str, Vec<u8>, &dyn VerificationAlgorithm); 7] = [
        (
            pkcs8(p256.to_pkcs8v1().expect("a key")),
            "ES256",
            public(p256.public_key().as_ref()),
            &ECDSA_P256_SHA256_FIXED,
        ),
        (pem("EC PRIVATE KEY", &sec1), "ES256", public(p256.public_key().as_ref()), &ECDSA_P256_SHA256_FIXED),
        (
            pkcs8(p384.to_pkcs8v1().expect("a key")),
            "ES384",
            public(p384.public_key().as_ref()),
            &ECDSA_P384_SHA384_FIXED,
        ),
        (pkcs8(ed25519.to_pkcs8v1().expect("a key")), "EdDSA", public(ed25519.public_key().as_ref()), &ED25519),
        (pkcs8(ed25519.to_pkcs8().expect("a key")), "EdDSA", public(ed25519.public_key().as_ref()), &ED25519),
        (pem("PRIVATE KEY", &rsa_pkcs8), "RS256", public(rsa.public_key().as_ref()), &RSA_PKCS1_2048_8192_SHA256),
        // The form PKCS#8 of such a key begins with 26 bytes around the form PKCS#1.
        (
            pem("RSA PRIVATE KEY", &rsa_pkcs8[26..]),
            "RS256",
            public(rsa.public_key().as_ref()),
            &RSA_PKCS1_2048_8192_SHA256,
        ),
    ];
    for (pem, algorithm, public, verification) in cases {
        let key = key(pem, Some("k1")).unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        let assertion = key.assertion("client", "https://as.example").expect("an assertion");
        let (signed, signature) = assertion.rsplit_once('.').expect("three parts");
        let (header, claims) = signed.split_once('.').expect("three parts");
        assert_eq!(part(header), json!({"alg": algorithm, "typ": "JWT", "kid": "k1"}));
        let claims = part(claims);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
        assert_eq!((claims["iss"].as_str(), claims["sub"].as_str()), (Some("client"), Some("client")));
        assert_eq!(claims["aud"].as_str(), Some("https://as.example"));
        let expires = claims["exp"].as_u64().expect("a time");
        assert!((now..=now + LIFETIME).contains(&expires), "{claims}");
        assert_eq!(claims["jti"].as_str().map(str::len), Some(22));
        let signature = BASE64.decode(signature).expect("base64");
        UnparsedPublicKey::new(verification, public).verify(signed.as_bytes(), &signature).expect("a good signature");
        assert_ne!(key.assertion("client", "https://as.example").expect("an assertion"), assertion);
    }
}

#[test]
fn oauth4_an_unusable_key_is_named() {
    let weak = BASE64_STANDARD.decode(WEAK).expect("base64");
    let cases = [
        (String::new(), "it is no PEM text"),
        ("s3cret".to_owned(), "it is no PEM text"),
        (pem("CERTIFICATE", b"x"), "it is no PEM text"),
        (pem("PRIVATE KEY", b"s3cret"), "it is neither an RSA key"),
        (pem("EC PRIVATE KEY", b"s3cret"), "it is neither an RSA key"),
        (pem("RSA PRIVATE KEY", b"s3cret"), "it is neither an RSA key"),
        (pem("RSA PRIVATE KEY", &weak), "it is neither an RSA key"),
    ];
    for (pem, expected) in cases {
        let error = key(pem.clone(), None).map(|_| ()).expect_err(expected).to_string();
        assert!(error.contains(expected) && !error.contains("s3cret"), "{pem}: {error}");
    }
    let key =
        key(pem("PRIVATE KEY", Ed25519KeyPair::generate().expect("a key").to_pkcs8().expect("a key").as_ref()), None);
    let assertion = key.expect("a key").assertion("c", "i").expect("an assertion");
    assert_eq!(part(assertion.split('.').next().expect("a part")), json!({"alg": "EdDSA", "typ": "JWT"}));
}
