//! The start of the gateway, as far as lists are concerned.
//!
//! Many clients list once, right after the start. Until every server has settled or has a cached listing, lists wait, at
//! most `gateway.startWait` after the start. The handshake never waits for a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use goblin_config::exposure::ProfileName;
use tokio::time::Instant;

use crate::catalog_store::CatalogStore;
use crate::upstream::Backend;

/// The longest wait for the publication of lists that are known.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after the start in which lists wait for servers.
pub(super) struct StartPhase {
    ends: Instant,
    is_over: AtomicBool,
}

impl StartPhase {
    pub(super) fn new(start_wait: Duration) -> StartPhase {
        StartPhase { ends: Instant::now() + start_wait, is_over: AtomicBool::new(false) }
    }
}

impl CatalogStore {
    /// Reports whether lists still wait for servers.
    pub(crate) fn is_starting(&self) -> bool {
        !self.start.is_over.load(Ordering::Acquire)
    }

    /// Waits until the catalog contains all configured servers, with the lists that they have so far. No server can
    /// delay this.
    pub(crate) async fn opened(&self) {
        // A timeout is harmless: the client gets the lists that are known.
        let _ = tokio::time::timeout(PUBLISH_TIMEOUT, self.caught_up()).await;
    }

    /// Waits until the catalog has the lists of all servers that the clients of a profile see, at most until the start
    /// is over.
    pub(crate) async fn started(&self, profile: Option<&ProfileName>) {
        let sources = Arc::clone(&self.profile_catalog(profile));
        self.settled(sources.sources.iter().map(|source| &source.backend)).await;
        let is_over = Instant::now() >= self.start.ends;
        if is_over || self.backends().iter().all(|backend| backend.has_settled()) {
            self.start.is_over.store(true, Ordering::Release);
        }
    }

    /// Waits until the catalog has the lists of `backends`, at most until the start is over.
    pub(crate) async fn settled(&self, backends: impl Iterator<Item = &Arc<Backend>>) {
        let settled = async {
            for backend in backends {
                backend.listed().await;
            }
        };
        let _ = tokio::time::timeout_at(self.start.ends, settled).await;
        self.opened().await;
    }
}
