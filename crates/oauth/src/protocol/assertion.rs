//! Signs the assertion with which a client proves itself by a private key (RFC 7523).

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use goblin_config::oauth::PrivateKey;
use serde_json::json;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::error::LoginError;

/// The shortest RSA key, in bytes of its modulus.
const MIN_RSA: usize = 256;
/// The time for which an assertion is valid, in seconds.
const LIFETIME: u64 = 60;

/// A private key that signs assertions.
pub(crate) struct SigningKey {
    pair: KeyPair,
    id: Option<String>,
}

enum KeyPair {
    Rsa(Box<RsaKeyPair>),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// Reads a key in the form PKCS#8, PKCS#1 or SEC1.
    pub(crate) fn new(key: &PrivateKey) -> Result<SigningKey, LoginError> {
        let wrong = |reason: &str| LoginError::Key(reason.to_owned());
        let pem = PrivateKeyDer::from_pem_slice(key.pem.expose().as_bytes());
        let pem = pem.map_err(|_| wrong("it is no PEM text (it begins with \"-----BEGIN PRIVATE KEY-----\")"))?;
        let pair = match &pem {
            PrivateKeyDer::Pkcs8(der) => KeyPair::from_pkcs8(der.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()).ok().map(KeyPair::rsa),
            PrivateKeyDer::Sec1(der) => KeyPair::from_sec1(der.secret_sec1_der()),
            _ => None,
        };
        let kinds = "it is neither an RSA key of 2048 to 8192 bits, nor a key for ES256, ES384 or EdDSA";
        let pair = pair.filter(KeyPair::is_strong).ok_or_else(|| wrong(kinds))?;
        Ok(SigningKey { pair, id: key.id.clone() })
    }

    /// Returns a new assertion of a client for an authorization server.
    pub(crate) fn assertion(&self, client_id: &str, issuer: &str) -> Result<String, LoginError> {
        let failed = |reason: &str| LoginError::Key(reason.to_owned());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| failed("the clock is wrong"))?.as_secs();
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).expect("the system has a random source");
        let mut header = json!({"alg": self.pair.algorithm(), "typ": "JWT"});
        if let Some(id) = &self.id {
            header["kid"] = id.as_str().into();
        }
        let claims = json!({
            "iss": client_id, "sub": client_id, "aud": issuer, "iat": now, "exp": now + LIFETIME,
            "jti": BASE64.encode(nonce),
        });
        let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        let signature = self.pair.sign(signed.as_bytes()).ok_or_else(|| failed("it signs nothing"))?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }
}

impl KeyPair {
    fn rsa(pair: RsaKeyPair) -> KeyPair {
        KeyPair::Rsa(Box::new(pair))
    }

    fn from_pkcs8(der: &[u8]) -> Option<KeyPair> {
        let p256 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der).ok().map(KeyPair::P256);
        let p384 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, der).ok().map(KeyPair::P384);
        let ed25519 = || Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(KeyPair::Ed25519);
        let rsa = || RsaKeyPair::from_pkcs8(der).ok().map(KeyPair::rsa);
        p256().or_else(p384).or_else(ed25519).or_else(rsa)
    }

    fn from_sec1(der: &[u8]) -> Option<KeyPair> {
        let p256 = || EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der).ok();
        let p384 = || EcdsaKeyPair::from_private_key_der(&ECDSA_P384_SHA384_FIXED_SIGNING, der).ok();
        p256().map(KeyPair::P256).or_else(|| p384().map(KeyPair::P384))
    }

    fn is_strong(&self) -> bool {
        match self {
            KeyPair::Rsa(pair) => pair.public_modulus_len() >= MIN_RSA,
            KeyPair::P256(_) | KeyPair::P384(_) | KeyPair::Ed25519(_) => true,
        }
    }

    fn algorithm(&self) -> &'static str {
        match self {
            KeyPair::Rsa(_) => "RS256",
            KeyPair::P256(_) => "ES256",
            KeyPair::P384(_) => "ES384",
            KeyPair::Ed25519(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            KeyPair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
            KeyPair::P256(pair) | KeyPair::P384(pair) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
            KeyPair::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests;
