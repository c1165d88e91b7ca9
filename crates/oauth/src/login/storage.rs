//! The stored form of a login, and the vault's entry that holds it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use goblin_config::secret::Secret;
use goblin_telemetry::{Event, worker};
use goblin_vault::{EntryKind, EntryLock, EntryName, Version};
use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::LoginTarget;
use crate::login::{Credential, LoginNeed, LoginState, ServerLogin};
use crate::protocol::client::{ClientIdentity, StoredClient};
use crate::protocol::discovery::Discovery;
use crate::protocol::metadata::AuthorizationServer;
use crate::protocol::token::Tokens;

/// The version of the stored form.
const FORMAT: u32 = 1;
/// The number of bytes of a URL's hash in the name of an entry.
const HASH_LENGTH: usize = 16;
/// The part of a token's life after which it is refreshed on use.
const DUE: f64 = 0.8;
/// The age at which tokens are refreshed even if no request used them. Authorization servers end unused logins.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// The pause between two attempts to take a lock that another process holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(25);
/// The longest wait for another process, which may wait for a token request itself.
const LOCK_TIMEOUT: Duration = Duration::from_secs(90);

/// A login in the vault.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredLogin {
    pub format: u32,
    /// Identifies the login. Refreshed tokens keep it.
    pub id: String,
    /// The URL of the server that the tokens are for.
    pub url: String,
    pub server: AuthorizationServer,
    pub client: StoredClient,
    /// The resource indicator of each token request.
    pub resource: Option<String>,
    /// The scopes that were requested.
    pub requested: Vec<String>,
    /// The scopes that were granted.
    pub scopes: Vec<String>,
    /// The address of the server at the login. It decides which addresses the authorization server may have.
    pub peer: Option<IpAddr>,
    pub access: String,
    pub refresh: Option<String>,
    /// The time at which the access token was issued, in seconds since 1970.
    pub issued: u64,
    /// The life of the access token in seconds.
    pub lifetime: Option<u64>,
    /// The reason for which the authorization server has ended the login.
    pub ended: Option<String>,
}

impl StoredLogin {
    /// Returns a new login that has no tokens yet.
    pub(crate) fn new(
        url: String,
        discovery: &Discovery,
        client: &ClientIdentity,
        requested: Vec<String>,
    ) -> StoredLogin {
        StoredLogin {
            format: FORMAT,
            id: new_id(),
            url,
            server: discovery.server.clone(),
            client: client.to_stored(),
            resource: discovery.resource.clone(),
            scopes: requested.clone(),
            requested,
            peer: None,
            access: String::new(),
            refresh: None,
            issued: 0,
            lifetime: None,
            ended: None,
        }
    }

    /// Replaces the tokens. A response without a refresh token leaves the old one valid.
    pub(crate) fn with_tokens(self, tokens: &Tokens, now: SystemTime) -> StoredLogin {
        StoredLogin {
            access: tokens.access.expose().to_owned(),
            refresh: tokens.refresh.as_ref().map(|token| token.expose().to_owned()).or(self.refresh),
            issued: seconds(now),
            lifetime: tokens.lifetime.map(|lifetime| lifetime.as_secs()),
            scopes: tokens.scopes.clone().unwrap_or(self.scopes),
            ended: None,
            ..self
        }
    }

    /// Returns the login without its tokens.
    pub(crate) fn ended(self, reason: String) -> StoredLogin {
        StoredLogin { access: String::new(), refresh: None, ended: Some(reason), ..self }
    }

    /// Reports whether the next request should refresh the tokens.
    pub(crate) fn is_due(&self, now: SystemTime) -> bool {
        self.lifetime.is_some_and(|lifetime| self.age(now).as_secs_f64() >= DUE * lifetime as f64)
    }

    /// Reports whether the tokens must be refreshed although no request uses them.
    pub(crate) fn is_idle(&self, now: SystemTime) -> bool {
        self.age(now) >= IDLE && self.is_due(now)
    }

    /// Reports whether the access token has reached the end of its life.
    pub(crate) fn has_expired(&self, now: SystemTime) -> bool {
        self.lifetime.is_some_and(|lifetime| self.age(now).as_secs() >= lifetime)
    }

    fn age(&self, now: SystemTime) -> Duration {
        Duration::from_secs(seconds(now).saturating_sub(self.issued))
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        if self.ended.is_some() {
            return None;
        }
        let mut header = HeaderValue::try_from(format!("Bearer {}", self.access)).ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    pub(crate) fn state(&self) -> LoginState {
        match &self.ended {
            Some(reason) => LoginState::Needed(LoginNeed::Ended(reason.clone())),
            None => LoginState::LoggedIn { scopes: self.scopes.clone() },
        }
    }

    fn to_secret(&self) -> Secret {
        Secret::new(serde_json::to_string(self).expect("a login has no map with other keys than strings"))
    }

    pub(super) fn read(text: &Secret, target: &LoginTarget) -> Result<StoredLogin, String> {
        /// The member that each format has.
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let damaged = |error: serde_json::Error| format!("its content is damaged at column {}", error.column());
        let Head { format } = serde_json::from_str(text.expose()).map_err(damaged)?;
        if format != FORMAT {
            return Err(format!("another version of Goblin wrote it (format {format}, this version reads {FORMAT})"));
        }
        let stored: StoredLogin = serde_json::from_str(text.expose()).map_err(damaged)?;
        match stored.url == url(target) {
            true => Ok(stored),
            false => Err("it belongs to another URL".to_owned()),
        }
    }
}

impl Credential {
    pub(crate) fn saved(stored: StoredLogin) -> Arc<Credential> {
        Arc::new(Credential { header: stored.header(), stored, is_unsaved: false })
    }

    pub(crate) fn unsaved(stored: StoredLogin) -> Arc<Credential> {
        Arc::new(Credential { header: stored.header(), stored, is_unsaved: true })
    }
}

/// Returns a new random id of a login.
fn new_id() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system has a random source");
    format!("{:032x}", u128::from_be_bytes(random))
}

/// Returns the name of a login in the vault. Both the server's name and its URL are part of it: two accounts at one URL
/// have two entries, and a server with a new URL does not get the tokens of the old one.
pub(super) fn entry_name(target: &LoginTarget) -> Option<EntryName> {
    let hash = digest(&SHA256, url(target).as_bytes());
    let hash: String = hash.as_ref()[..HASH_LENGTH].iter().map(|byte| format!("{byte:02x}")).collect();
    EntryName::new(&format!("{} {hash}", target.name)).ok()
}

/// Returns the URL of a server as the stored login has it.
pub(super) fn url(target: &LoginTarget) -> String {
    target.url.to_string()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl ServerLogin {
    /// Returns the name of the entry.
    pub(super) fn entry(&self) -> Result<EntryName, String> {
        self.entry.clone().ok_or_else(|| "the name of the server is too long for the vault".to_owned())
    }

    /// Reads the entry and puts its login in force.
    pub(super) async fn read_entry(&self) -> Result<(), String> {
        let (version, stored) = self.stored().await?;
        self.adopt(version, stored);
        Ok(())
    }

    /// Reads the entry.
    pub(super) async fn stored(&self) -> Result<(Version, Option<StoredLogin>), String> {
        let (vault, entry) = (Arc::clone(&self.vault), self.entry()?);
        let work = worker::offload(move || {
            // A write after this line leads to another version, and to another read.
            let version = vault.version(EntryKind::Login, &entry);
            vault.read(EntryKind::Login, &entry).map(|text| (version, text))
        });
        let read = work.await.ok_or("the gateway stops")?;
        let (version, text) = read.map_err(|error| error.to_string())?;
        let stored = text.map(|text| StoredLogin::read(&text, &self.target)).transpose()?;
        Ok((version, stored))
    }

    /// Puts a stored login in force, unless it is in force already.
    pub(super) fn adopt(&self, version: Version, stored: Option<StoredLogin>) {
        *self.seen.lock() = version;
        let Some(stored) = stored else {
            let had_login = self.credential.load().as_ref().is_some_and(|credential| !credential.is_unsaved);
            if had_login {
                self.replace(None, LoginState::NoLogin);
            }
            return;
        };
        let is_in_force = self.credential.load().as_ref().is_some_and(|credential| {
            let known = &credential.stored;
            known.id == stored.id && known.access == stored.access && known.ended == stored.ended
        });
        if !is_in_force {
            let state = stored.state();
            self.replace(Some(Credential::saved(stored)), state);
        }
    }

    /// Reports whether the entry differs from the one that was read or written last.
    pub(super) async fn is_entry_changed(&self) -> bool {
        let (vault, Ok(entry)) = (Arc::clone(&self.vault), self.entry()) else { return false };
        let version = worker::offload(move || vault.version(EntryKind::Login, &entry)).await;
        version.is_some_and(|version| version != *self.seen.lock())
    }

    /// Stores a login and puts it in force. If the vault cannot be written, the login is in force all the same, because
    /// the authorization server has replaced the old tokens. The write is then repeated.
    pub(super) async fn store(&self, stored: StoredLogin, _lock: &EntryLock) {
        let state = stored.state();
        let credential = match self.write(&stored).await {
            Ok(version) => {
                *self.seen.lock() = version;
                Credential::saved(stored)
            }
            Err(reason) => {
                self.observe.emit(&Event::LoginVaultFailed { server: &self.label, reason: &reason });
                Credential::unsaved(stored)
            }
        };
        self.replace(Some(credential), state);
    }

    /// Repeats a write that failed.
    pub(super) async fn save_again(&self, credential: &Arc<Credential>) {
        let Ok(entry) = self.entry() else { return };
        let Ok(_lock) = self.lock(&entry).await else { return };
        let is_in_force = self.credential.load().as_ref().is_some_and(|it| Arc::ptr_eq(it, credential));
        // Another process may have logged in since. Its login wins.
        if !is_in_force || self.is_entry_changed().await {
            return;
        }
        if let Ok(version) = self.write(&credential.stored).await {
            *self.seen.lock() = version;
            self.credential.store(Some(Credential::saved(credential.stored.clone())));
        }
    }

    async fn write(&self, stored: &StoredLogin) -> Result<Version, String> {
        let (vault, entry, text) = (Arc::clone(&self.vault), self.entry()?, stored.to_secret());
        let work = worker::offload(move || {
            vault.write(EntryKind::Login, &entry, &text)?;
            Ok::<_, goblin_vault::VaultError>(vault.version(EntryKind::Login, &entry))
        });
        work.await.ok_or("the gateway stops")?.map_err(|error| error.to_string())
    }

    /// Removes the entry.
    pub(super) async fn remove(&self, _lock: &EntryLock) -> Result<bool, String> {
        let (vault, entry) = (Arc::clone(&self.vault), self.entry()?);
        let work = worker::offload(move || vault.remove(EntryKind::Login, &entry));
        work.await.ok_or("the gateway stops")?.map_err(|error| error.to_string())
    }

    /// Takes the lock of an entry. Another process holds it while it requests tokens. The wait blocks no thread, so a
    /// process that hangs keeps no gateway from stopping.
    pub(super) async fn lock(&self, entry: &EntryName) -> Result<EntryLock, String> {
        let taken = async {
            loop {
                let (vault, entry) = (Arc::clone(&self.vault), entry.clone());
                let work = worker::offload(move || vault.try_lock(EntryKind::Login, &entry));
                let attempt = work.await.ok_or("the gateway stops")?.map_err(|error| error.to_string())?;
                if let Some(lock) = attempt {
                    return Ok(lock);
                }
                tokio::time::sleep(LOCK_INTERVAL).await;
            }
        };
        tokio::time::timeout(LOCK_TIMEOUT, taken)
            .await
            .unwrap_or_else(|_| Err("another process holds the lock of the login for too long".to_owned()))
    }
}
