//! Who may change something: whoever has the admin token, and comes from no web page that is not known.
//!
//! The gate has looked at the request before. It lets pages of this machine in, and on loopback anybody; a change wants
//! more.

use std::path::PathBuf;

use http::StatusCode;
use http::header::{HeaderMap, ORIGIN};

use crate::admin::Denied;
use crate::config::Gateway;
use crate::config::secret::Secret;
use crate::front::gate::{has_token, single};

/// Random bytes of a token that we make ourselves.
const TOKEN_BYTES: usize = 32;

#[derive(Clone, Debug)]
pub struct Permit {
    token: Secret,
    place: Place,
    /// As the configuration names them.
    origins: Vec<String>,
}

/// Where the admin token stands, for whoever needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is `gateway.token`.
    Configuration,
    File(PathBuf),
    /// Nobody was told.
    Nowhere,
}

impl Permit {
    /// The token of the configuration; where there is none, a new one.
    pub fn new(gateway: &Gateway) -> Permit {
        let (token, place) = match &gateway.token {
            Some(token) => (token.clone(), Place::Configuration),
            None => (random_token(), Place::Nowhere),
        };
        Permit { token, place, origins: gateway.allowed_origins.clone() }
    }

    /// The same, once the token can be read there.
    pub fn written_to(self, path: PathBuf) -> Permit {
        let place = if self.is_new() { Place::File(path) } else { self.place };
        Permit { place, ..self }
    }

    /// Whether the token is in no configuration, so that somebody has to be told.
    pub fn is_new(&self) -> bool {
        self.place != Place::Configuration
    }

    pub fn token(&self) -> &Secret {
        &self.token
    }

    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let origin = single(headers, &ORIGIN).map(str::to_ascii_lowercase);
        let is_known = origin.is_some_and(|origin| self.origins.contains(&origin));
        if headers.contains_key(ORIGIN) && !is_known {
            let message = "changes are not taken from this Origin (gateway.allowedOrigins)";
            return Err(Denied::new(StatusCode::FORBIDDEN, message));
        }
        if has_token(headers, &self.token) {
            return Ok(());
        }
        let place = match &self.place {
            Place::Configuration => "gateway.token".to_owned(),
            Place::File(path) => format!("the admin token, which stands in {}", path.display()),
            Place::Nowhere => {
                "the admin token, which could not be written anywhere; set gateway.token or admin.tokenFile".to_owned()
            }
        };
        Err(Denied::new(StatusCode::UNAUTHORIZED, format!("Authorization must be `Bearer` with {place}")))
    }
}

fn random_token() -> Secret {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    Secret::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(permit: &Permit, headers: &[(&'static str, &str)]) -> Result<(), (u16, String)> {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::try_from(*value).expect("a header value"))
        });
        permit.check(&headers.collect()).map_err(|denied| (denied.status.as_u16(), denied.message))
    }

    #[test]
    fn a_change_needs_the_token_and_no_page_that_is_not_known() {
        let gateway = Gateway { allowed_origins: vec!["https://app.example".to_owned()], ..Gateway::default() };
        let permit = Permit::new(&gateway).written_to("/run/x".into());
        let token = format!("Bearer {}", permit.token().expose());
        let status = |headers: &[(&'static str, &str)]| check(&permit, headers).map_err(|(status, _)| status);
        assert_eq!(status(&[("authorization", &token)]), Ok(()));
        assert_eq!(status(&[("authorization", &token), ("origin", "https://APP.example")]), Ok(()));
        assert_eq!(status(&[("authorization", &token), ("origin", "http://localhost:5173")]), Err(403));
        assert_eq!(status(&[("authorization", &token), ("origin", "null")]), Err(403));
        assert_eq!(status(&[("authorization", &token[..token.len() - 1])]), Err(401));
        let (_, message) = check(&permit, &[]).expect_err("it has no token");
        assert!(message.ends_with("/run/x") && !message.contains(permit.token().expose()), "{message}");
    }

    #[test]
    fn tokens_are_of_the_configuration_or_new_each_time() {
        let gateway = Gateway { token: Some(Secret::new("s3cret")), ..Gateway::default() };
        let configured = Permit::new(&gateway).written_to("/run/x".into());
        assert_eq!((configured.token().expose(), configured.is_new()), ("s3cret", false));
        assert!(check(&configured, &[]).expect_err("none").1.ends_with("gateway.token"));
        let (one, other) = (Permit::new(&Gateway::default()), Permit::new(&Gateway::default()));
        assert!(one.is_new() && one.token() != other.token());
        assert_eq!(one.token().expose().len(), 2 * TOKEN_BYTES);
    }
}
