//! Checks the admin token, which every route under `/api` needs, even on loopback.
//!
//! The API shows the stderr of servers, and starts and stops them. The token is `admin.token`, or a random one for each
//! start. Commands of the same user read it from the runtime directory. `gateway.token` gives no access to the API,
//! because clients know it. A web page needs an `Origin` that the configuration allows.

use std::path::PathBuf;

use goblin_config::Gateway;
use goblin_config::admin::AdminSettings;
use goblin_config::secret::Secret;
use http::StatusCode;
use http::header::{HeaderMap, ORIGIN};

use crate::admin::AdminError;
use crate::client::caller::random_bits;
use crate::front::gate::{has_token, single};

#[derive(Clone, Debug)]
pub struct AdminAccess {
    token: Secret,
    /// The location of the token, for error messages.
    place: String,
    is_generated: bool,
    /// The allowed origins of the configuration.
    origins: Vec<String>,
}

impl AdminAccess {
    /// Returns a permit with the configured token, or with a new random one.
    pub fn new(gateway: &Gateway, admin: &AdminSettings) -> AdminAccess {
        let (token, place) = match &admin.token {
            Some(token) => (token.clone(), "admin.token"),
            None => {
                let random = Secret::new(format!("{:032x}{:032x}", random_bits(), random_bits()));
                let place = "the admin token, which could not be written to a file; set admin.token or admin.tokenFile";
                (random, place)
            }
        };
        let (place, is_generated) = (place.to_owned(), admin.token.is_none());
        AdminAccess { token, place, is_generated, origins: gateway.allowed_origins.clone() }
    }

    /// Records the file that contains a generated token.
    pub fn written_to(mut self, path: PathBuf) -> AdminAccess {
        if self.is_generated {
            self.place = format!("the admin token, which is in {}", path.display());
        }
        self
    }

    pub fn token(&self) -> &Secret {
        &self.token
    }

    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), AdminError> {
        let origin = single(headers, &ORIGIN).map(str::to_ascii_lowercase);
        let is_known = origin.is_some_and(|origin| self.origins.contains(&origin));
        if headers.contains_key(ORIGIN) && !is_known {
            let message = "the admin API does not accept this Origin (gateway.allowedOrigins)";
            return Err(AdminError::new(StatusCode::FORBIDDEN, message));
        }
        if has_token(headers, &self.token) {
            return Ok(());
        }
        let message = format!("Authorization must be `Bearer` with {}", self.place);
        Err(AdminError::new(StatusCode::UNAUTHORIZED, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(permit: &AdminAccess, headers: &[(&'static str, &str)]) -> Result<(), (u16, String)> {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), http::HeaderValue::try_from(*value).expect("a header value"))
        });
        permit.check(&headers.collect()).map_err(|denied| (denied.status.as_u16(), denied.message))
    }

    #[test]
    fn the_admin_api_requires_the_token_and_an_allowed_origin() {
        let gateway = Gateway { allowed_origins: vec!["https://app.example".to_owned()], ..Gateway::default() };
        let permit = AdminAccess::new(&gateway, &AdminSettings::default()).written_to("/run/x".into());
        let token = format!("Bearer {}", permit.token().expose());
        let status = |headers: &[(&'static str, &str)]| check(&permit, headers).map_err(|(status, _)| status);
        assert_eq!(status(&[("authorization", &token)]), Ok(()));
        assert_eq!(status(&[("authorization", &token), ("origin", "https://APP.example")]), Ok(()));
        assert_eq!(status(&[("authorization", &token), ("origin", "http://localhost:5173")]), Err(403));
        assert_eq!(status(&[("authorization", &token), ("origin", "null")]), Err(403));
        assert_eq!(status(&[("authorization", &token[..token.len() - 1])]), Err(401));
        let (_, message) = check(&permit, &[]).expect_err("the request has no token");
        assert!(message.ends_with("/run/x") && !message.contains(permit.token().expose()), "{message}");
    }

    #[test]
    fn hard6_the_admin_token_is_configured_or_random_and_never_the_client_token() {
        let gateway = Gateway { token: Some(Secret::new("client")), ..Gateway::default() };
        let admin = AdminSettings { token: Some(Secret::new("s3cret")), ..AdminSettings::default() };
        let configured = AdminAccess::new(&gateway, &admin).written_to("/run/x".into());
        assert_eq!(configured.token().expose(), "s3cret");
        assert!(check(&configured, &[]).expect_err("none").1.ends_with("admin.token"));
        assert!(check(&configured, &[("authorization", "Bearer client")]).is_err());
        let random = || AdminAccess::new(&gateway, &AdminSettings::default());
        assert!(random().token() != random().token());
        assert_eq!(random().token().expose().len(), 64);
    }
}
