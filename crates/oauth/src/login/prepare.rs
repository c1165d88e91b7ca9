//! Prepares a login: finds the authorization server, the client and the scopes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use goblin_config::oauth::OAuthOptions;

use crate::error::{LoginError, Refusal};
use crate::login::{LoginState, ServerLogin};
use crate::protocol::challenge::Challenge;
use crate::protocol::client::{ClientIdentity, client_for};
use crate::protocol::discovery::{Discovery, Probe, discover, probe};
use crate::protocol::fetch::Fetcher;

/// The limit of logins in a row that ask for more scopes without success.
const MAX_STEP_UPS: u32 = 2;
/// The time after which another login for the same scopes begins a new series. The permission may have worked meanwhile.
const SERIES_ENDS_AFTER: Duration = Duration::from_secs(3600);
/// The limit of scopes in one request.
const MAX_SCOPES: usize = 100;
/// The scope with which some authorization servers issue refresh tokens.
const OFFLINE_ACCESS: &str = "offline_access";

/// The last demand of the server.
#[derive(Default)]
pub(super) struct Demand {
    challenge: Option<Challenge>,
    /// The scopes that the token lacked.
    missing: Vec<String>,
    /// The number of logins in a row that asked for missing scopes.
    step_ups: u32,
    /// The begin of the last one.
    pub last_step_up: Option<Instant>,
    /// The address of the last connection to the server.
    pub peer: Option<IpAddr>,
}

impl Demand {
    pub(super) fn record(&mut self, challenge: Challenge, peer: Option<IpAddr>) {
        self.challenge = Some(challenge);
        self.peer = peer.or(self.peer);
    }

    /// Records that the token lacks scopes. A scope that was not missing before begins a new series of logins.
    pub(super) fn record_missing(&mut self, challenge: Challenge) {
        if challenge.scopes.iter().any(|scope| !self.missing.contains(scope)) {
            self.step_ups = 0;
        }
        union(&mut self.missing, &challenge.scopes);
        self.challenge = Some(challenge);
    }

    /// Returns the last challenge, and the scopes that the token lacked.
    pub(super) fn demanded(&self) -> (Option<Challenge>, Vec<String>) {
        (self.challenge.clone(), self.missing.clone())
    }

    /// Counts a login for missing scopes. Returns an error after [`MAX_STEP_UPS`] of them; the one after that begins a
    /// new series, because a person may have been given the permission meanwhile.
    pub(super) fn begin_step_up(&mut self) -> Result<(), LoginError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let before = self.last_step_up.replace(Instant::now());
        if before.is_some_and(|at| at.elapsed() >= SERIES_ENDS_AFTER) {
            self.step_ups = 0;
        }
        if self.step_ups == MAX_STEP_UPS {
            self.step_ups = 0;
            return Err(LoginError::StepUps { attempts: MAX_STEP_UPS });
        }
        self.step_ups += 1;
        Ok(())
    }
}

/// The parts of a login that are known before a person confirms it.
pub(super) struct Prepared {
    pub fetcher: Fetcher,
    pub discovery: Discovery,
    pub client: ClientIdentity,
    pub scopes: Vec<String>,
    /// The address of the server.
    pub peer: Option<IpAddr>,
}

impl ServerLogin {
    /// Prepares the login of a person. `redirect_uri` is absent if no browser returns.
    pub(super) async fn prepare(&self, redirect_uri: Option<&str>) -> Result<Prepared, LoginError> {
        if self.is_automatic() {
            return Err(LoginError::Automatic);
        }
        let Probe { challenge, peer } = probe(&self.target).await?;
        let (challenge, missing) = {
            let mut demand = self.demand.lock();
            demand.peer = peer.or(demand.peer);
            let (recorded, missing) = demand.demanded();
            // A server may answer the first requests without a login. Its last rejection counts then.
            (challenge.or(recorded), missing)
        };
        let challenge = match challenge {
            Some(challenge) => challenge,
            // The login was needed before this gateway began.
            None if self.credential.load().is_some() => Challenge::default(),
            None if matches!(self.state(), LoginState::Needed(_)) => Challenge::default(),
            None => return Err(LoginError::NotNeeded),
        };
        let fetcher = self.fetcher(peer);
        let discovery = discover(&fetcher, &self.target, &challenge).await?;
        if redirect_uri.is_none() && discovery.server.device_authorization_endpoint.is_none() {
            return Err(LoginError::NoDeviceLogin { host: discovery.server.host().to_owned() });
        }
        self.check_issuer(&discovery).await?;
        self.demand.lock().begin_step_up()?;
        let scopes = scopes(&self.target.options, &discovery, &self.known_scopes(&discovery), &missing);
        let client = client_for(&fetcher, &self.target, &discovery, redirect_uri, &scopes).await?;
        Ok(Prepared { fetcher, discovery, client, scopes, peer })
    }

    /// Refuses another authorization server than that of the last login, if the configuration names a client but not
    /// where it is registered. The server could otherwise obtain the secret of that client.
    async fn check_issuer(&self, discovery: &Discovery) -> Result<(), LoginError> {
        let options = &self.target.options;
        let is_pinned = options.client_secret.is_some() && options.issuer.is_none();
        if !is_pinned {
            return Ok(());
        }
        let stored = match self.credential.load_full() {
            Some(credential) => Some(credential.stored.clone()),
            None => self.stored().await.map_err(LoginError::Vault)?.1,
        };
        match stored {
            Some(stored) if stored.server.issuer != discovery.server.issuer => {
                let (known, named) = (stored.server.issuer, discovery.server.issuer.clone());
                Err(Refusal::IssuerChanged { known, named }.into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the scopes of the login in force, if it is at the same authorization server.
    fn known_scopes(&self, discovery: &Discovery) -> Vec<String> {
        let Some(credential) = self.credential.load_full() else { return Vec::new() };
        let stored = &credential.stored;
        if stored.server.issuer != discovery.server.issuer {
            return Vec::new();
        }
        let mut known = stored.requested.clone();
        union(&mut known, &stored.scopes);
        known
    }

    /// Forgets the missing scopes that a login has brought.
    pub(super) fn record_granted(&self, granted: &[String]) {
        let mut demand = self.demand.lock();
        if demand.step_ups == 0 {
            demand.missing.retain(|scope| !granted.contains(scope));
        }
    }
}

/// Returns the scopes to request: the configured ones, or those that the server names. Scopes that the token lacked come
/// in addition, with those of the login before.
pub(super) fn scopes(
    options: &OAuthOptions,
    discovery: &Discovery,
    known: &[String],
    missing: &[String],
) -> Vec<String> {
    let mut scopes = options.scopes.clone().unwrap_or_else(|| discovery.scopes.clone());
    if !missing.is_empty() {
        union(&mut scopes, known);
        union(&mut scopes, missing);
    }
    // Without a scope the authorization server chooses. Configured scopes are exactly those that the operator wants.
    let is_offered = discovery.server.scopes_supported.iter().any(|scope| scope == OFFLINE_ACCESS);
    if options.scopes.is_none() && is_offered && !scopes.is_empty() {
        union(&mut scopes, &[OFFLINE_ACCESS.to_owned()]);
    }
    scopes.truncate(MAX_SCOPES);
    scopes
}

/// Adds the scopes that are absent.
fn union(scopes: &mut Vec<String>, more: &[String]) {
    for scope in more {
        if scopes.len() < MAX_SCOPES && !scopes.contains(scope) {
            scopes.push(scope.clone());
        }
    }
}
