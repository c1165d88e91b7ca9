//! The encrypted state of a call that its client carries (`requestState`).
//!
//! A call that needs input is answered, and the client continues it with another request. The state identifies the
//! call: a suspended one ([`RequestState::Suspended`]), one with a state of its backend ([`RequestState::Native`]), or
//! one to begin again ([`RequestState::Restart`]). It is bound to the caller, the method, all arguments and an expiry
//! time. The key exists only in memory, so a restart makes all states invalid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use goblin_wire::{Error, Request, json};
use sha2::{Digest as _, Sha256};

use crate::client::caller::{Caller, Principal};

const KEY_LENGTH: usize = 32;
const NONCE_LENGTH: usize = 12;
/// The longest valid state. The message size limits the states of backends.
const MAX_STATE: usize = 1 << 20;

/// The call that a request continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// The suspended call with this id.
    Suspended(u128),
    /// A call with the state that this server gave.
    Native { server: String, state: String },
    /// A call that begins again.
    Restart,
}

/// Encrypts and decrypts request states. The key is random and exists only in this process.
pub struct RequestStateCipher {
    key: RandomizedNonceKey,
}

impl Default for RequestStateCipher {
    fn default() -> RequestStateCipher {
        let mut key = [0; KEY_LENGTH];
        getrandom::fill(&mut key).expect("the system has a random source");
        RequestStateCipher {
            key: RandomizedNonceKey::new(&AES_256_GCM, &key).expect("the key has the length of the algorithm"),
        }
    }
}

impl RequestStateCipher {
    /// Encrypts the state of `request` for its caller. It expires after `lifetime`.
    pub(crate) fn seal(&self, state: &RequestState, caller: &Caller, request: &Request, lifetime: Duration) -> String {
        let expires = now() + lifetime.as_secs();
        let mut sealed = expires.to_be_bytes().to_vec();
        match state {
            RequestState::Suspended(id) => {
                sealed.push(b'P');
                sealed.extend_from_slice(&id.to_be_bytes());
            }
            RequestState::Native { server, state } => {
                sealed.push(b'N');
                sealed.extend_from_slice(format!("{server}\n{state}").as_bytes());
            }
            RequestState::Restart => sealed.push(b'A'),
        }
        let nonce = self.key.seal_in_place_append_tag(Aad::from(binding_hash(caller, request)), &mut sealed);
        let nonce = nonce.expect("a state is far shorter than the algorithm's bound");
        let mut token = nonce.as_ref().to_vec();
        token.append(&mut sealed);
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Decrypts the state that `request` carries. Returns an error if it is expired, changed or of another call.
    pub fn open(&self, token: &str, caller: &Caller, request: &Request) -> Result<RequestState, Error> {
        self.open_at(token, caller, request, now()).ok_or(Error::StaleState)
    }

    /// Decrypts a state at the time `now`, in seconds. Tests use it to check the expiry.
    fn open_at(&self, token: &str, caller: &Caller, request: &Request, now: u64) -> Option<RequestState> {
        let token = Some(token).filter(|token| token.len() <= MAX_STATE)?;
        let mut token = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (nonce, sealed) = token.split_at_mut_checked(NONCE_LENGTH)?;
        let nonce = aws_lc_rs::aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = self.key.open_in_place(nonce, Aad::from(binding_hash(caller, request)), sealed).ok()?;
        let (expires, plain) = plain.split_first_chunk::<8>()?;
        if u64::from_be_bytes(*expires) < now {
            return None;
        }
        match plain.split_first()? {
            (b'P', id) => Some(RequestState::Suspended(u128::from_be_bytes(id.try_into().ok()?))),
            (b'N', rest) => {
                let (server, state) = std::str::from_utf8(rest).ok()?.split_once('\n')?;
                Some(RequestState::Native { server: server.to_owned(), state: state.to_owned() })
            }
            (b'A', []) => Some(RequestState::Restart),
            _ => None,
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns a hash of the caller, the method and the parameters, except those that change between rounds. It does not
/// depend on the order of the arguments.
fn binding_hash(caller: &Caller, request: &Request) -> [u8; 32] {
    let text = request.raw.as_str();
    let params = request.params.whole.into_iter().flat_map(|params| json::members(text, params));
    let mut params: Vec<_> = params
        .map(|member| (member.key(text), member.value.get(text)))
        .filter(|(key, _)| !matches!(&**key, "_meta" | "inputResponses" | "requestState"))
        .collect();
    params.sort_by(|one, other| one.0.cmp(&other.0));
    let principal = match caller.principal {
        Principal::Anonymous => "anonymous",
    };
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(principal);
    add(caller.profile.as_ref().map_or("", |profile| profile.as_str()));
    add(request.method.as_str());
    for (key, value) in params {
        add(&key);
        // A value that does not parse, such as a number too large for a double, is used as written.
        add(&serde_json::from_str::<serde_json::Value>(value)
            .map_or_else(|_| value.to_owned(), |value| value.to_string()));
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;
    use crate::client::call::Call;

    fn request(params: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        match Message::parse(text.into()) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    const LIFETIME: Duration = Duration::from_secs(60);

    #[test]
    fn a_request_state_is_valid_only_for_its_own_call() {
        let (states, caller) = (RequestStateCipher::default(), Call::example().caller);
        let first = request(r#"{"name":"t","arguments":{"a":1,"b":[2]},"_meta":{"x":1}}"#);
        for state in [
            RequestState::Suspended(7),
            RequestState::Native { server: "s".into(), state: "line\nbreak \u{e9}".into() },
            RequestState::Native { server: "s".into(), state: String::new() },
            RequestState::Restart,
        ] {
            let token = states.seal(&state, &caller, &first, LIFETIME);
            let retry = request(r#"{"inputResponses":{},"arguments":{"b":[2], "a":1},"name":"t","requestState":"x"}"#);
            assert_eq!(states.open(&token, &caller, &retry).ok(), Some(state));
            for other in [r#"{"name":"u","arguments":{"a":1,"b":[2]}}"#, r#"{"name":"t","arguments":{"a":2,"b":[2]}}"#]
            {
                assert!(states.open(&token, &caller, &request(other)).is_err(), "{other}");
            }
            assert!(RequestStateCipher::default().open(&token, &caller, &first).is_err(), "the key of another gateway");
            assert!(states.open_at(&token, &caller, &first, now() + 61).is_none(), "too late");
        }
    }

    #[test]
    fn a_modified_request_state_is_rejected() {
        let (states, caller, call) =
            (RequestStateCipher::default(), Call::example().caller, request(r#"{"name":"t"}"#));
        let token = states.seal(&RequestState::Suspended(7), &caller, &call, LIFETIME);
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let wrong = String::from_utf8(bytes).expect("ASCII");
            assert!(states.open(&wrong, &caller, &call).is_err(), "{at}");
        }
        for wrong in ["", "A", "!", &token[1..], &format!("{token}A")] {
            assert!(states.open(wrong, &caller, &call).is_err(), "{wrong}");
        }
    }
}
