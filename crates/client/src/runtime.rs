//! The gateways that run on this machine, one record file each.
//!
//! `serve` writes a record once it listens, and holds a lock on the file while it runs. A record without a lock is left
//! over from a killed gateway, and the reader removes it. The lock is more reliable than the pid, which another process
//! may have by now. The directory and the files must belong to the user alone; all others are ignored.
//!
//! Records are in the runtime directory of the login session, or in the user's state directory. MCP clients start
//! servers with few variables, so the runtime directory is also searched under its usual name.

pub mod identity;
pub mod inspect;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use goblin_config::Environment;
use goblin_config::lead::is_gateway_url;
use goblin_config::secret::Secret;
use http::header::ACCEPT;
use http_body_util::{BodyExt, Full, Limited};
use serde::{Deserialize, Serialize};

use crate::address::{self, ENDPOINT};
use crate::connect::ProxyEnvironment;
use crate::environment::{Variables, environment};
use crate::runtime::identity::{Fingerprints, Identity, hex};

/// The maximum size of a record. Real ones have a few hundred bytes.
const MAX_RECORD: u64 = 256 * 1024;
/// The timeout for the probe of a gateway.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE: usize = 64 * 1024;
const OTHERS: u32 = 0o077;

/// The description that a running gateway publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayRecord {
    /// The URL of the TCP listener, or the address of the socket if there is no TCP listener.
    pub url: String,
    /// The path of the Unix socket.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    pub pid: u32,
    /// The id of this run of the gateway.
    #[serde(default)]
    pub gateway_id: Option<String>,
    /// The start time in seconds since 1970.
    pub started: u64,
    pub version: String,
    #[serde(flatten)]
    pub identity: Identity,
    #[serde(flatten)]
    pub fingerprints: Fingerprints,
    /// The file with the client token. `None` if the gateway needs no token.
    pub token_file: Option<PathBuf>,
    /// The address of the admin API, without a path. `None` if the admin API is disabled.
    #[serde(default)]
    pub admin_url: Option<String>,
    /// The file with the admin token.
    #[serde(default)]
    pub admin_token_file: Option<PathBuf>,
    /// The file that the record was read from.
    #[serde(skip)]
    path: PathBuf,
}

impl GatewayRecord {
    pub fn new(url: String, identity: Identity, fingerprints: Fingerprints) -> GatewayRecord {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        GatewayRecord {
            url,
            socket: None,
            pid: std::process::id(),
            gateway_id: None,
            started,
            version,
            identity,
            fingerprints,
            token_file: None,
            admin_url: None,
            admin_token_file: None,
            path: PathBuf::new(),
        }
    }

    /// Returns the address that commands connect to: the socket if the gateway has one, else the URL.
    pub fn address(&self) -> String {
        let socket = self.socket.as_deref().filter(|socket| socket.exists());
        socket.map_or_else(|| self.url.clone(), |socket| address::of_socket(socket, ENDPOINT))
    }

    /// Reports whether `url` is an MCP endpoint of this gateway, in any spelling of the local host.
    pub fn is_endpoint(&self, url: &str) -> bool {
        let is_socket = |url: &str| address::socket(url).is_some_and(|socket| self.socket.as_deref() == Some(&socket));
        let uri = self.url.parse::<http::Uri>().ok();
        let tcp = uri.as_ref().and_then(|uri| Some((uri.host()?, uri.port_u16()?)));
        is_socket(url) || tcp.is_some_and(|(host, port)| is_gateway_url(url, host, port))
    }

    /// Reports whether the gateway that wrote the record still runs.
    pub fn is_alive(&self) -> bool {
        let lock = open_own(&self.path).map(|file| file.try_lock_shared());
        matches!(lock, Ok(Err(TryLockError::WouldBlock)))
    }

    /// Returns the client token. Returns `None` if the gateway needs none.
    pub fn token(&self) -> io::Result<Option<Secret>> {
        self.token_file.as_deref().map(read_token).transpose()
    }

    /// Returns the admin token. Returns `None` if the gateway has no admin API.
    pub fn admin_token(&self) -> io::Result<Option<Secret>> {
        self.admin_token_file.as_deref().filter(|_| self.admin_url.is_some()).map(read_token).transpose()
    }

    /// Reports whether a gateway answers at the address. Sends no token, because another program may listen there.
    pub async fn is_answering(&self) -> bool {
        let probe = async {
            let url = address::route(&self.address(), "/readyz");
            let (client, url) = address::client(&url, &ProxyEnvironment::default()).ok()?;
            let request = http::Request::get(url).header(ACCEPT, "application/json").body(Full::default()).ok()?;
            let body = client.request(request).await.ok()?.into_body();
            let body = Limited::new(body, MAX_RESPONSE).collect().await.ok()?.to_bytes();
            let answer: serde_json::Value = serde_json::from_slice(&body).ok()?;
            (answer["ready"].is_boolean() && answer["servers"].is_object()).then_some(())
        };
        matches!(tokio::time::timeout(PROBE_TIMEOUT, probe).await, Ok(Some(())))
    }
}

/// The directories for records. New records go to the first one that works; all of them are searched.
pub struct RecordDirectories(Vec<PathBuf>);

impl RecordDirectories {
    pub fn of(environment: Environment<'_>) -> RecordDirectories {
        let set = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || Some(PathBuf::from(format!("/run/user/{}", user()))).filter(|path| path.is_dir());
        let session = set("XDG_RUNTIME_DIR").or_else(usual).map(|directory| directory.join("goblin"));
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        RecordDirectories(session.into_iter().chain(state.map(|state| state.join("goblin/run"))).collect())
    }

    /// Writes the record to the first directory that works. Dropping the result removes it.
    pub fn publish(&self, mut record: GatewayRecord, tokens: Tokens<'_>) -> io::Result<PublishedRecord> {
        let mut failed = io::Error::other("none of XDG_RUNTIME_DIR, XDG_STATE_HOME and HOME is set");
        for directory in &self.0 {
            match prepare(directory).and_then(|()| write(directory, &mut record, tokens)) {
                Ok(published) => return Ok(published),
                Err(error) => failed = io::Error::new(error.kind(), format!("{}: {error}", directory.display())),
            }
        }
        Err(failed)
    }

    /// Returns the records of the running gateways, oldest first. Removes the records of killed ones.
    pub fn running(&self) -> Vec<GatewayRecord> {
        let (running, leftovers) = self.records();
        leftovers.iter().for_each(|path| remove(path));
        running
    }

    /// Returns the records of the running gateways, oldest first, and the files of those that were killed.
    fn records(&self) -> (Vec<GatewayRecord>, Vec<PathBuf>) {
        let (mut running, mut leftovers) = (Vec::new(), Vec::new());
        for path in self.0.iter().filter(|directory| is_own_directory(directory)).flat_map(|own| files(own)) {
            match peek(&path) {
                Some(Some(record)) => running.push(record),
                Some(None) => leftovers.push(path),
                None => {}
            }
        }
        running.sort_by_key(|record| (record.started, record.pid));
        (running, leftovers)
    }
}

/// The tokens that are written next to a record.
#[derive(Clone, Copy, Default)]
pub struct Tokens<'a> {
    /// The token of the clients.
    pub gateway: Option<&'a Secret>,
    /// The admin token. `None` if it is in another file.
    pub admin: Option<&'a Secret>,
}

/// A token in a file of the operator's choice. Dropping the value removes the file.
#[derive(Debug)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    pub fn write(path: &Path, token: &Secret) -> io::Result<TokenFile> {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let unfinished = PathBuf::from(name);
        // A gateway that was killed during this function may have left the file.
        let _ = std::fs::remove_file(&unfinished);
        create(&unfinished)?.write_all(token.expose().as_bytes())?;
        std::fs::rename(&unfinished, path)?;
        Ok(TokenFile(path.to_owned()))
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A missing file is fine.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A record on disk. Dropping the value removes it.
#[derive(Debug)]
pub struct PublishedRecord {
    path: PathBuf,
    /// The record file. Its lock shows that this gateway runs.
    file: File,
    record: GatewayRecord,
}

impl PublishedRecord {
    /// Returns the path of the admin token, if it was written.
    pub fn admin_token_file(&self) -> Option<&Path> {
        self.record.admin_token_file.as_deref()
    }

    /// Replaces the record after a reload with another configuration.
    pub fn replace(&mut self, identity: Identity, variables: &Variables) -> io::Result<()> {
        let fingerprints = self.record.fingerprints.of(variables);
        let record = GatewayRecord { identity, fingerprints, ..self.record.clone() };
        let unfinished = self.path.with_extension("new");
        // A failed attempt may have left the file.
        let _ = std::fs::remove_file(&unfinished);
        let mut file = create(&unfinished)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec_pretty(&record)?)?;
        std::fs::rename(&unfinished, &self.path)?;
        (self.file, self.record) = (file, record);
        Ok(())
    }
}

impl Drop for PublishedRecord {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// The reason why there is no gateway to connect to.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(
        "no gateway is running on this machine; start one (goblin serve), name one (--url URL), or \
             start the servers of a configuration (--config FILE)"
    )]
    None,
    #[error("{} gateways are running; choose one with --url URL:{}", .0.len(), list(.0))]
    Several(Vec<GatewayRecord>),
}

/// Chooses the gateway of a command: the only one, or the one with the configuration `preferred`.
pub fn choose(mut running: Vec<GatewayRecord>, preferred: Option<&Identity>) -> Result<GatewayRecord, FindError> {
    let is_preferred =
        |record: &GatewayRecord| preferred.is_some_and(|preferred| preferred.is_same_place(&record.identity));
    match running.len() {
        0 => Err(FindError::None),
        1 => Ok(running.remove(0)),
        _ => match running.iter().filter(|record| is_preferred(record)).collect::<Vec<_>>()[..] {
            [only] => Ok(only.clone()),
            _ => Err(FindError::Several(running)),
        },
    }
}

/// Finds the gateway on this machine that a command should use. Ignores gateways that do not answer.
pub async fn find(preferred: Option<&Identity>) -> Result<GatewayRecord, FindError> {
    choose(answering().await, preferred)
}

/// Finds the gateway on this machine with the configuration at `place`.
pub async fn find_at(place: &Identity) -> Option<GatewayRecord> {
    answering().await.into_iter().find(|record| record.identity.is_same_place(place))
}

/// Returns the records of the gateways on this machine that answer.
async fn answering() -> Vec<GatewayRecord> {
    let running = RecordDirectories::of(&environment).running();
    let answers = futures_util::future::join_all(running.iter().map(GatewayRecord::is_answering)).await;
    running.into_iter().zip(answers).filter(|(_, is_answering)| *is_answering).map(|(record, _)| record).collect()
}

/// Returns the admin token of this user's gateway with the admin API at `url`.
pub fn admin_token_at(url: &str) -> Option<Secret> {
    RecordDirectories::of(&environment).running().into_iter().find(|record| serves(record, url))?.admin_token().ok()?
}

/// Reports whether `url` belongs to the admin API of this gateway. A gateway with a socket serves it there and at its
/// TCP URL.
fn serves(record: &GatewayRecord, url: &str) -> bool {
    let is_at = |base: &str| {
        let rest = url.strip_prefix(base.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']))
    };
    let Some(admin_url) = record.admin_url.as_deref() else { return false };
    is_at(admin_url) || admin_url.starts_with("unix:") && is_at(record.url.trim_end_matches("/mcp"))
}

fn list(running: &[GatewayRecord]) -> String {
    running
        .iter()
        .map(|record| format!("\n  {} (pid {}, {})", record.url, record.pid, record.identity.place()))
        .collect()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn prepare(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    match is_own_directory(directory) {
        true => Ok(()),
        false => Err(io::Error::other("the directory is not private (chmod 700)")),
    }
}

/// Reports whether only this user can read and write the directory.
fn is_own_directory(directory: &Path) -> bool {
    std::fs::symlink_metadata(directory)
        .is_ok_and(|found| found.is_dir() && found.uid() == user() && found.mode() & OTHERS == 0)
}

fn write(directory: &Path, record: &mut GatewayRecord, tokens: Tokens<'_>) -> io::Result<PublishedRecord> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let path = directory.join(format!("{}-{}.json", record.pid, hex(&random)));
    let unfinished = path.with_extension("new");
    let file = create(&unfinished)?;
    // From here on, every early return drops `published`, which removes all files.
    let mut published = PublishedRecord { path, file, record: record.clone() };
    // Lock the file before it gets its final name. A reader would remove an unlocked record.
    published.file.lock()?;
    let beside = |extension: &str, token: &Secret| -> io::Result<PathBuf> {
        let file = published.path.with_extension(extension);
        create(&file)?.write_all(token.expose().as_bytes())?;
        Ok(file)
    };
    if let Some(token) = tokens.gateway {
        record.token_file = Some(beside("token", token)?);
    }
    if let Some(token) = tokens.admin {
        record.admin_token_file = Some(beside("admin", token)?);
    }
    published.file.write_all(&serde_json::to_vec_pretty(record)?)?;
    std::fs::rename(&unfinished, &published.path)?;
    published.record = record.clone();
    Ok(published)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a file that only this user can read and write. Returns an error for any other file.
fn open_own(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() && metadata.uid() == user() && metadata.mode() & OTHERS == 0 {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is not private (chmod 600)", path.display()))),
    }
}

fn read_token(path: &Path) -> io::Result<Secret> {
    let mut text = String::new();
    open_own(path)?.take(MAX_RECORD).read_to_string(&mut text)?;
    Ok(Secret::new(text.trim_end()))
}

/// Returns the files in a directory that may be records.
fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|is| is == "json"))
}

/// Reads a record. Returns `Some(None)` for the record of a gateway that was killed, and `None` for any other file.
fn peek(path: &Path) -> Option<Option<GatewayRecord>> {
    let file = open_own(path).ok()?;
    match file.try_lock_shared() {
        // The writer lives: it holds the lock until its process ends.
        Err(TryLockError::WouldBlock) => {}
        Ok(()) => return Some(None),
        Err(TryLockError::Error(_)) => return None,
    }
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
    let record = serde_json::from_slice(&text).ok()?;
    Some(Some(GatewayRecord { path: path.to_owned(), ..record }))
}

fn remove(record: &Path) {
    // A missing file is fine.
    let _ = std::fs::remove_file(record);
    for extension in ["token", "admin", "new"] {
        let _ = std::fs::remove_file(record.with_extension(extension));
    }
}

#[cfg(test)]
mod tests;
