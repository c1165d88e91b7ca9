//! A directory as an MCP server inside the process, without a child process or a socket.
//!
//! It exchanges encoded messages with the gateway like every backend, so no other part treats it specially. Disk access
//! runs on blocking threads, a few at a time. It stops when no caller waits for it any more. `rule` decides which files
//! exist, `tree` reaches them and `path` spells their names. Answers are not cached between requests. Nothing is ever
//! written.

mod content;
mod list;
mod path;
mod read;
mod resources;
mod rule;
mod search;
mod tools;
mod tree;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use goblin_config::Files;
use goblin_telemetry::Event;
use goblin_wire::json::quote;
use goblin_wire::params::required;
use goblin_wire::{Dialect, Error, MAX_LIST_ENTRIES, Message, Method, Notification, Request, Response};
use tokio::sync::Semaphore;

use self::resources::NamedFile;
use self::rule::Exclusion;
use self::tree::{FileTree, LookupError, StopFlag};
use self::watch::WatchTask;

/// The largest number of requests that access the disk at once. Waiting requests hold a slot of the backend, which
/// limits them.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// The gateway around the server: receives its notifications and events. Calls return at once.
pub trait Host: Send + Sync {
    /// Returns the id of the server in the configuration.
    fn server(&self) -> &str;

    fn emit(&self, event: &Event<'_>);

    /// Takes `notifications/resources/list_changed`.
    fn resources_changed(&self);

    /// Takes `notifications/resources/updated`.
    fn updated(&self, notification: &Notification);

    /// Takes the URI of a subscribed file that is gone or no longer served.
    fn ended(&self, uri: &str);
}

pub struct FilesServer {
    permits: Arc<Semaphore>,
    served: Arc<FilesState>,
    watch: WatchTask,
}

/// The state that the blocking threads share.
struct FilesState {
    tree: FileTree,
    max_listed: usize,
    host: Arc<dyn Host>,
    limit_reported: AtomicBool,
    watch: watch::WatchState,
}

/// The reason why the directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("the directory {} cannot be opened: {reason}", root.display())]
    Root { root: PathBuf, reason: io::Error },
}

/// An error response to a request.
enum RequestFailure {
    Error(Error),
    NotFound {
        uri: String,
        hint: String,
    },
    /// The file exists, but the system does not allow reading it.
    Unreadable(String),
}

impl RequestFailure {
    fn to_json(&self) -> String {
        match self {
            RequestFailure::Error(error) => error.to_json(),
            RequestFailure::Unreadable(reason) => format!(r#"{{"code":-32603,"message":{}}}"#, quote(reason)),
            RequestFailure::NotFound { uri, hint } => {
                let hint = if hint.is_empty() { String::new() } else { format!(" ({hint})") };
                let message = quote(&format!("Resource not found: {uri}{hint}"));
                let code = Dialect::NEWEST_WITH_HANDSHAKE.resource_not_found_code();
                format!(r#"{{"code":{code},"message":{message},"data":{{"uri":{}}}}}"#, quote(uri))
            }
        }
    }
}

impl FilesServer {
    pub fn open(files: &Files, host: Arc<dyn Host>) -> Result<FilesServer, FilesError> {
        let tree = FileTree::open(&files.root, files.hidden, files.ignored)
            .map_err(|reason| FilesError::Root { root: files.root.clone(), reason })?;
        let max_listed = files.max_files.min(MAX_LIST_ENTRIES);
        let (limit_reported, watch) = (AtomicBool::new(false), watch::WatchState::default());
        let served = Arc::new(FilesState { tree, max_listed, host, limit_reported, watch });
        let watch = WatchTask::start(Arc::clone(&served));
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
        Ok(FilesServer { permits, served, watch })
    }

    /// Answers a request. Returns the reason if the bytes are no request.
    pub async fn request(&self, body: Bytes) -> Result<Response, &'static str> {
        let Ok(Message::Request(request)) = Message::parse(body) else {
            return Err("the gateway did not send a request");
        };
        let request = Arc::new(request);
        let answer = match self.answer(&request).await {
            Ok(result) => goblin_wire::reply(&request.id, result),
            Err(failure) => goblin_wire::error_reply(Some(&request.id), &failure.to_json()),
        };
        match Message::parse(answer.concat()) {
            Ok(Message::Response(response)) => Ok(response),
            _ => Err("the answer is not a valid response"),
        }
    }

    pub fn close(&self) {
        self.watch.stop();
    }

    async fn answer(&self, request: &Arc<Request>) -> Result<String, RequestFailure> {
        match request.method {
            Method::Initialize => Ok(self.served.hello()),
            Method::Ping => Ok("{}".to_owned()),
            Method::ToolsList => Ok(tools::definitions()),
            Method::TemplatesList => Ok(resources::templates(&self.served.tree, self.served.max_listed)),
            Method::ToolsCall
            | Method::ResourcesList
            | Method::ResourcesRead
            | Method::Subscribe
            | Method::Unsubscribe
            | Method::Complete => self.work(request).await,
            ref other => Err(RequestFailure::Error(Error::MethodNotFound(other.to_string()))),
        }
    }

    /// Answers on a blocking thread. The place is freed when the thread ends, even if the caller no longer waits.
    async fn work(&self, request: &Arc<Request>) -> Result<String, RequestFailure> {
        let broken = |reason: &str| RequestFailure::Error(Error::Internal(reason.to_owned()));
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| broken("the link is closed"))?;
        let (served, request) = (Arc::clone(&self.served), Arc::clone(request));
        // The guard is dropped with this future, which stops the work.
        let guard = Arc::new(());
        let stop = StopFlag::new(&guard);
        let work = tokio::task::spawn_blocking(move || {
            let answer = served.answer(&request, &stop);
            drop(permit);
            answer
        });
        work.await.unwrap_or_else(|_| {
            self.served.host.emit(&Event::Panic { place: "files" });
            Err(broken("see the gateway's log"))
        })
    }
}

impl FilesState {
    fn hello(&self) -> String {
        let root = self.tree.root.path().display();
        let instructions = quote(&format!(
            "The files below {root}. Find them with the tools list (by directory or glob) and search (by name or text), read \
             them with read, in parts if they are large. Paths are relative to that directory. At most {} files are \
             listed as resources; the tools and the template {} reach all.",
            self.max_listed,
            self.tree.root.template(),
        ));
        format!(
            r#"{{"protocolVersion":"{}","capabilities":{{"tools":{{}},"resources":{{"subscribe":true,"listChanged":true}},"completions":{{}}}},"serverInfo":{{"name":"goblin-files","version":"{}"}},"instructions":{instructions}}}"#,
            Dialect::NEWEST_WITH_HANDSHAKE,
            env!("CARGO_PKG_VERSION"),
        )
    }

    fn answer(&self, request: &Request, stop: &StopFlag) -> Result<String, RequestFailure> {
        match request.method {
            Method::ToolsCall => tools::call(&self.tree, request, stop),
            Method::ResourcesRead => resources::read(&self.tree, request),
            Method::Subscribe => self.subscribe(request),
            Method::Unsubscribe => self.unsubscribe(request),
            Method::Complete => resources::complete(&self.tree, request, stop),
            _ => self.list(stop),
        }
    }

    fn subscribe(&self, request: &Request) -> Result<String, RequestFailure> {
        let NamedFile { path, entry, .. } = resources::named(&self.tree, request)?;
        self.watch.subscribe(path, &entry);
        Ok("{}".to_owned())
    }

    /// Ends a subscription. A file that is not subscribed or does not exist any more is no error.
    fn unsubscribe(&self, request: &Request) -> Result<String, RequestFailure> {
        let uri = required(request.raw.as_str(), request.params.uri, "uri").map_err(RequestFailure::Error)?;
        if let Ok(path) = self.tree.root.canonical_uri_of(&uri) {
            self.watch.subscribed.remove(&path);
        }
        Ok("{}".to_owned())
    }

    fn list(&self, stop: &StopFlag) -> Result<String, RequestFailure> {
        let (listed, listing) = resources::list(&self.tree, self.max_listed, stop)?;
        if !stop.is_set() {
            self.watch.fetched(listing.fingerprint);
        }
        if listing.is_cut && !self.limit_reported.swap(true, Ordering::Relaxed) {
            self.host.emit(&Event::FilesLimited { server: self.host.server(), listed: self.max_listed });
        }
        Ok(listed)
    }
}

/// Returns a sentence that explains why `subject` is not available.
fn explain(subject: &str, error: &LookupError) -> String {
    match error {
        LookupError::NotFound => format!("{subject} does not exist"),
        LookupError::Excluded(Exclusion::Git) => "files in .git are never served".to_owned(),
        LookupError::Excluded(Exclusion::Hidden) => {
            "names that begin with a dot are served only with \"hidden\": true in the gateway's configuration"
                .to_owned()
        }
        LookupError::Excluded(Exclusion::Ignored) => {
            "files that .gitignore excludes are served only with \"ignored\": true in the gateway's configuration"
                .to_owned()
        }
        LookupError::Outside => format!("{subject} is a link to a place outside of the root, and is not followed"),
        LookupError::Failed(error) => format!("{subject} cannot be reached: {error}"),
    }
}

/// Serializes a structure of this module.
fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("our structures have string keys only")
}
