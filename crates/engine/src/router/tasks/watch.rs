//! Task notifications on `subscriptions/listen` streams (`taskIds`).
//!
//! The gateway opens a stream at each backend with a wanted task, for as long as the client reads. A notification on it
//! is matched with its task in the table, and sent to the listeners of that task. A broken stream is reopened.
//! Notifications in between are lost, but a client can poll its tasks at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use goblin_wire::Era;
use goblin_wire::listen::ListenFilter;

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::Caller;
use crate::router::Router;
use crate::upstream::Backend;
use crate::upstream::link::LinkError;
use crate::upstream::listen::ListenHandle;
use crate::upstream::tasks::Task;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

impl Router {
    /// Returns those of a client's tasks for which it can receive notifications.
    pub(crate) fn watchable(&self, caller: &Caller, ids: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        ids.iter().filter(|id| self.find_watchable(caller, id).is_some()).cloned().collect()
    }

    /// Returns a task if its backend is modern. A legacy notification lacks the result, which the last notification
    /// must carry.
    fn find_watchable(&self, caller: &Caller, id: &str) -> Option<Arc<Task>> {
        self.tasks.find(id, caller, Instant::now()).filter(|task| task.native.era == Era::Modern)
    }

    /// Sends notifications of the tasks to `client` until it is closed.
    pub(crate) async fn watch_tasks(&self, call: &Arc<Call>, client: &Arc<Client>, ids: &BTreeSet<Arc<str>>) {
        let mut by_server: BTreeMap<String, (Arc<Backend>, ListenFilter)> = BTreeMap::new();
        for task in ids.iter().filter_map(|id| self.find_watchable(&call.caller, id)) {
            let Some(backend) = self.backend(&task.native.server) else { continue };
            task.listen(client);
            let server = by_server.entry(backend.id.to_string());
            let (_, filter) = server.or_insert_with(|| (backend, ListenFilter::default()));
            filter.tasks.insert(Arc::from(&*task.native.id));
        }
        let all = join_all(by_server.values().map(|(backend, filter)| watch(call, backend, filter)));
        tokio::select! {
            _ = all => {}
            () = client.closed() => {}
        }
    }
}

/// Keeps a stream open at the backend until the backend rejects it.
async fn watch(call: &Call, backend: &Backend, filter: &ListenFilter) {
    let mut pause = FIRST_PAUSE;
    loop {
        match backend.listen(call, filter).await {
            Ok(ListenHandle { ended, close_guard, .. }) => {
                pause = FIRST_PAUSE;
                // The stream is reopened after any kind of end.
                let _ = ended.await;
                drop(close_guard);
            }
            Err(LinkError::Rejected { .. }) => return,
            Err(_) => {}
        }
        tokio::time::sleep(pause).await;
        pause = MAX_PAUSE.min(pause * 2);
    }
}
