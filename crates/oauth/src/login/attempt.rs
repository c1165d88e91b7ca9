//! The attempts of persons to log in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use goblin_telemetry::worker;

use crate::error::LoginError;
use crate::login::ServerLogin;
use crate::login::prepare::Prepared;
use crate::login::storage::{StoredLogin, url};
use crate::protocol::authorize::AuthorizationRequest;
use crate::protocol::device::{DeviceAuthorization, authorize_device};
use crate::protocol::token::{TokenError, TokenGrant, Tokens, request_tokens};

/// The time for a person to log in.
const BROWSER_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// The increment of the pause between two polls if the authorization server asks for it.
const SLOW_DOWN: Duration = Duration::from_secs(5);
/// The limit of that pause.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// A login in a browser that has begun.
pub struct BrowserLogin {
    attempt: Arc<Attempt>,
    request: AuthorizationRequest,
    expires: Instant,
    is_used: AtomicBool,
}

/// A login with a code on another device that has begun.
pub struct DeviceLogin {
    attempt: Arc<Attempt>,
    authorization: DeviceAuthorization,
    expires: Instant,
}

/// The parts that both kinds share.
struct Attempt {
    login: Arc<ServerLogin>,
    prepared: Prepared,
}

impl BrowserLogin {
    pub(super) fn new(
        login: Arc<ServerLogin>,
        prepared: Prepared,
        redirect_uri: &str,
    ) -> Result<BrowserLogin, LoginError> {
        let Prepared { discovery, client, scopes, .. } = &prepared;
        let request = AuthorizationRequest::new(discovery, client, redirect_uri, scopes)?;
        let expires = Instant::now() + BROWSER_LIFETIME;
        let attempt = Arc::new(Attempt { login, prepared });
        Ok(BrowserLogin { attempt, request, expires, is_used: AtomicBool::new(false) })
    }

    pub fn url(&self) -> &str {
        self.request.url()
    }

    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Finishes the login with the address to which the browser returned. A wrong address changes nothing, so another
    /// call may follow. After a code was used the attempt has ended.
    pub async fn complete(&self, callback: &str) -> Result<(), LoginError> {
        if Instant::now() >= self.expires {
            return Err(LoginError::Expired);
        }
        let code = self.request.read_callback(callback)?;
        if self.is_used.swap(true, Ordering::Relaxed) {
            return Err(LoginError::Ended);
        }
        let attempt = Arc::clone(&self.attempt);
        // A cancelled caller must not lose tokens that the authorization server has issued.
        let task = worker::spawn(async move {
            let tokens = attempt.request_tokens(TokenGrant::Code(&code)).await?;
            attempt.store(&tokens).await
        });
        task.await.unwrap_or(Err(LoginError::Ended))
    }
}

impl DeviceLogin {
    pub(super) async fn new(login: Arc<ServerLogin>, prepared: Prepared) -> Result<DeviceLogin, LoginError> {
        let Prepared { fetcher, discovery, client, scopes, .. } = &prepared;
        let authorization = authorize_device(fetcher, discovery, client, scopes).await?;
        let expires = Instant::now() + authorization.lifetime;
        Ok(DeviceLogin { attempt: Arc::new(Attempt { login, prepared }), authorization, expires })
    }

    pub fn url(&self) -> &str {
        &self.authorization.url
    }

    pub fn user_code(&self) -> &str {
        &self.authorization.user_code
    }

    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Polls until the person has entered the code.
    pub async fn wait(&self) -> Result<(), LoginError> {
        let mut interval = self.authorization.interval;
        loop {
            if Instant::now() + interval >= self.expires {
                return Err(LoginError::Expired);
            }
            tokio::time::sleep(interval).await;
            match self.poll().await {
                Ok(stored) => return stored,
                Err(TokenError::Rejected { code, .. }) if code == "authorization_pending" => {}
                Err(TokenError::Rejected { code, .. }) if code == "slow_down" => interval += SLOW_DOWN,
                Err(TokenError::Rejected { code, .. }) if code == "expired_token" => return Err(LoginError::Expired),
                // The authorization server may be back at the next poll.
                Err(TokenError::Fetch(_)) => interval *= 2,
                Err(error) => return Err(error.into()),
            }
            interval = interval.min(MAX_INTERVAL);
        }
    }

    /// Asks for the tokens once, and stores them.
    async fn poll(&self) -> Result<Result<(), LoginError>, TokenError> {
        let (attempt, code) = (Arc::clone(&self.attempt), self.authorization.device_code.clone());
        // The tokens are issued once, see `complete`.
        let task = worker::spawn(async move {
            let tokens = attempt.request_tokens(TokenGrant::DeviceCode(&code)).await?;
            Ok(attempt.store(&tokens).await)
        });
        task.await.unwrap_or(Err(LoginError::Ended.into()))
    }
}

impl Attempt {
    async fn request_tokens(&self, grant: TokenGrant<'_>) -> Result<Tokens, TokenError> {
        let Prepared { fetcher, discovery, client, .. } = &self.prepared;
        request_tokens(fetcher, &discovery.server, client, discovery.resource.as_deref(), grant).await
    }

    async fn store(&self, tokens: &Tokens) -> Result<(), LoginError> {
        let Prepared { discovery, client, scopes, peer, .. } = &self.prepared;
        let login = StoredLogin::new(url(self.login.target()), discovery, client, scopes.clone());
        let stored = StoredLogin { peer: *peer, ..login }.with_tokens(tokens, SystemTime::now());
        self.login.store_login(stored).await
    }
}
