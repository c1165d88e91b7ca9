//! The login at a server, over the admin API.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::response::Response;
use goblin_admin::login::{LoginCallback, LoginRequest};
use goblin_oauth::LoginError;
use http::StatusCode;
use serde::de::DeserializeOwned;

use crate::admin::{Admin, AdminError, ok};
use crate::upstream::login::BackendLogin;

/// The size limit of a body. The callback of an authorization server may be long.
const MAX_BODY: usize = 32 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

impl Admin {
    pub(super) fn login_status(&self, id: &str) -> Result<Response, AdminError> {
        Ok(ok(&self.login_of(id)?.status()))
    }

    /// Begins a login with the body of a request.
    pub(super) async fn begin_login(&self, id: &str, body: Body) -> Result<Response, AdminError> {
        let login = self.login_of(id)?;
        let request: LoginRequest = read(body).await?;
        Arc::clone(&login).begin(request).await.map_err(refused)?;
        Ok(ok(&login.status()))
    }

    /// Finishes a login with the callback in the body of a request.
    pub(super) async fn finish_login(&self, id: &str, body: Body) -> Result<Response, AdminError> {
        let login = self.login_of(id)?;
        let LoginCallback { callback } = read(body).await?;
        login.finish(&callback).await.map_err(refused)?;
        Ok(ok(&login.status()))
    }

    pub(super) async fn log_out(&self, id: &str) -> Result<Response, AdminError> {
        Ok(ok(&self.login_of(id)?.log_out().await.map_err(refused)?))
    }

    /// Returns the login at a server. Returns an error if the server does not run or has no login.
    fn login_of(&self, id: &str) -> Result<Arc<BackendLogin>, AdminError> {
        self.check_server(Some(id))?;
        let backends = self.dispatcher.router.catalogs.backends();
        let conflict = |message: String| AdminError::new(StatusCode::CONFLICT, message);
        let backend = backends.iter().find(|backend| backend.id.as_str() == id);
        let backend = backend.ok_or_else(|| conflict(format!("{id} does not run; goblin status shows the reason")))?;
        backend.login().cloned().ok_or_else(|| {
            conflict(format!(
                "there is no login at {id}: it has no url, a header with a credential, or \"oauth\": false"
            ))
        })
    }
}

fn refused(error: LoginError) -> AdminError {
    AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
}

/// Reads a JSON body. An empty one is an empty object.
async fn read<T: DeserializeOwned>(body: Body) -> Result<T, AdminError> {
    let bad = |reason: String| AdminError::new(StatusCode::BAD_REQUEST, format!("the body is not usable: {reason}"));
    let whole = tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await;
    let text = whole.map_err(|_| bad("it is late".to_owned()))?.map_err(|error| bad(error.to_string()))?;
    let text = if text.trim_ascii().is_empty() { b"{}" } else { &*text };
    serde_json::from_slice(text).map_err(|error| bad(error.to_string()))
}
