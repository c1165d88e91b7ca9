//! The table of tasks. It maps the id that a client knows to the id that the backend knows.
//!
//! The ids for clients are random, so a client cannot guess the task of another, nor learn the ids of backends. A task
//! belongs to the session that made it and is removed with it. A task of a client without a session belongs to the
//! client's principal. Every task is removed when its time to live has passed. A call that may make a task reserves a
//! place before it is sent, and is rejected if there is none. A backend that returns an id again has forgotten the
//! older task, so the older entry is removed.
//!
//! Lock order: the table comes before the state of a single task.

pub(crate) mod description;
pub(crate) mod input_relay;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_catalog::content;
use goblin_config::ServerId;
use goblin_subscriptions::ClientId;
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::{Dialect, Era, Error, Id, Message, Method, Notification, Request};
use parking_lot::Mutex;

use crate::client::caller::{Caller, Principal, SessionId};
use crate::client::{Client, ClientRegistry};
use crate::upstream::events::BackendEvents;
use crate::upstream::tasks::description::TaskDescription;
use crate::upstream::tasks::input_relay::TaskInputRelay;

/// The limits of tasks per client and in total.
pub(crate) const MAX_TASKS_PER_CLIENT: usize = 1000;
const MAX_TASKS: usize = 10_000;
/// The longest time that a task is kept here, even if its backend keeps it longer.
pub(crate) const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The owner of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskOwner {
    Session(SessionId),
    Principal(Principal),
}

impl TaskOwner {
    pub fn of(caller: &Caller) -> TaskOwner {
        caller.session.map_or(TaskOwner::Principal(caller.principal), TaskOwner::Session)
    }
}

/// The identity of a task at its backend. The same id may name different tasks on links of different clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NativeTask {
    pub server: ServerId,
    /// The session with its own link to the backend, if the task was made over such a link.
    pub own: Option<SessionId>,
    /// The protocol of the task. A backend that supports both protocols may use the same id in each.
    pub era: Era,
    pub id: Box<str>,
}

/// A task of a client.
pub struct Task {
    /// The id that the client knows.
    pub id: Box<str>,
    pub native: NativeTask,
    pub owner: TaskOwner,
    /// The protocol of the client.
    pub era: Era,
    /// The client of its session, for notifications.
    pub client: Weak<Client>,
    /// The client with which the task is removed.
    client_id: Option<ClientId>,
    created: Instant,
    state: Mutex<TaskState>,
    /// The collector of the task's server requests, if its client needs one.
    pub input_relay: OnceLock<Arc<TaskInputRelay>>,
}

/// The last known state of a task.
struct TaskState {
    expires: Instant,
    /// The task as JSON in the form of versions with `tasks/list`.
    last: Box<str>,
    listeners: Vec<TaskListener>,
}

/// A stream that receives notifications of a task.
struct TaskListener {
    client: Weak<Client>,
    /// The last notification sent. Two streams of one client make the backend notify twice.
    last_sent: Option<Bytes>,
}

impl Task {
    /// Records the state that the backend reported, and the lifetime since the task was made.
    pub fn record(&self, lifetime: Duration, last: Box<str>) {
        let mut state = self.state.lock();
        state.expires = self.created + lifetime;
        state.last = last;
    }

    fn has_expired(&self, now: Instant) -> bool {
        self.state.lock().expires <= now
    }

    /// Adds `client` to the listeners of the task.
    pub fn listen(&self, client: &Arc<Client>) {
        let mut state = self.state.lock();
        state.listeners.retain(|listener| listener.client.strong_count() > 0);
        state.listeners.push(TaskListener { client: Arc::downgrade(client), last_sent: None });
    }

    /// Sends a notification to the listeners. Returns `false` if there are none.
    pub fn notify(&self, message: &Bytes) -> bool {
        let mut state = self.state.lock();
        let mut has_listener = false;
        for listener in &mut state.listeners {
            let Some(client) = listener.client.upgrade() else { continue };
            has_listener = true;
            if listener.last_sent.as_ref() != Some(message) && client.post(message.clone()) {
                listener.last_sent = Some(message.clone());
            }
        }
        has_listener
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(input_relay) = self.input_relay.get() {
            input_relay.close();
        }
    }
}

/// The table of all tasks.
#[derive(Default)]
pub struct TaskTable {
    tasks: Mutex<TaskIndex>,
}

#[derive(Default)]
struct TaskIndex {
    by_id: HashMap<Box<str>, Arc<Task>>,
    by_native: HashMap<NativeTask, Box<str>>,
    /// The number of tasks by owner, including reserved places.
    counts: HashMap<TaskOwner, usize>,
    count: usize,
}

impl TaskIndex {
    fn remove(&mut self, id: &str) -> Option<Arc<Task>> {
        let task = self.by_id.remove(id)?;
        if self.by_native.get(&task.native).is_some_and(|id| *id == task.id) {
            self.by_native.remove(&task.native);
        }
        self.free(task.owner);
        Some(task)
    }

    fn remove_all(&mut self, is_removed: impl Fn(&Task) -> bool) -> Vec<Arc<Task>> {
        let removed: Vec<_> = self.by_id.values().filter(|task| is_removed(task)).map(|task| task.id.clone()).collect();
        removed.iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Frees a place. An owner without places is removed from the counts.
    fn free(&mut self, owner: TaskOwner) {
        self.count -= 1;
        if let Some(count) = self.counts.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&owner);
            }
        }
    }

    /// Returns an error if the owner or all owners together have reached the limit.
    fn check_capacity(&self, owner: TaskOwner) -> Result<(), Error> {
        let full = |value| Err(Error::LimitExceeded { limit: "tasks", value });
        match (self.counts.get(&owner), self.count) {
            (Some(MAX_TASKS_PER_CLIENT..), _) => full(MAX_TASKS_PER_CLIENT),
            (_, MAX_TASKS..) => full(MAX_TASKS),
            _ => Ok(()),
        }
    }
}

/// A reserved place for one task. Dropping it frees the place.
pub struct TaskPermit {
    table: Arc<TaskTable>,
    owner: TaskOwner,
    is_used: bool,
}

impl Drop for TaskPermit {
    fn drop(&mut self) {
        if !self.is_used {
            self.table.tasks.lock().free(self.owner);
        }
    }
}

/// A task that a backend has just made.
pub struct NewTask<'a> {
    pub native: NativeTask,
    pub era: Era,
    pub lifetime: Duration,
    pub client: &'a Arc<Client>,
}

impl TaskTable {
    /// Reserves a place for a task that a call may make. Removes expired tasks if the table is full.
    pub fn reserve(self: &Arc<TaskTable>, owner: TaskOwner, now: Instant) -> Result<TaskPermit, Error> {
        let mut tasks = self.tasks.lock();
        let mut expired = Vec::new();
        if tasks.check_capacity(owner).is_err() {
            expired = tasks.remove_all(|task| task.has_expired(now));
        }
        let capacity = tasks.check_capacity(owner);
        if capacity.is_ok() {
            tasks.count += 1;
            *tasks.counts.entry(owner).or_default() += 1;
        }
        drop(tasks);
        drop(expired);
        capacity.map(|()| TaskPermit { table: Arc::clone(self), owner, is_used: false })
    }

    /// Adds a task. If the backend reused an id, the older task is removed, because the id may now name another
    /// client's task.
    pub fn insert(self: &Arc<TaskTable>, mut permit: TaskPermit, new: NewTask<'_>, now: Instant) -> Arc<Task> {
        let NewTask { native, era, lifetime, client } = new;
        let owner = permit.owner;
        let has_session = matches!(owner, TaskOwner::Session(_));
        let task = Arc::new(Task {
            id: new_id(),
            native: native.clone(),
            owner,
            era,
            client: if has_session { Arc::downgrade(client) } else { Weak::new() },
            client_id: has_session.then_some(client.id),
            created: now,
            state: Mutex::new(TaskState { expires: now + lifetime, last: Box::default(), listeners: Vec::new() }),
            input_relay: OnceLock::new(),
        });
        let mut tasks = self.tasks.lock();
        let replaced = tasks.by_native.get(&native).cloned().and_then(|id| tasks.remove(&id));
        tasks.by_native.insert(native, task.id.clone());
        tasks.by_id.insert(task.id.clone(), Arc::clone(&task));
        permit.is_used = true;
        drop(tasks);
        drop(replaced);
        let registry: Arc<dyn ClientRegistry> = Arc::<TaskTable>::clone(self);
        if has_session && !client.register(&registry) {
            self.release(client);
        }
        task
    }

    /// Reports whether a session has tasks, or calls that may become tasks.
    pub(crate) fn has_tasks_of(&self, session: SessionId) -> bool {
        self.tasks.lock().counts.contains_key(&TaskOwner::Session(session))
    }

    /// Returns a task of this client. Returns `None` if it is unknown, expired or of another client.
    pub fn find(&self, id: &str, caller: &Caller, now: Instant) -> Option<Arc<Task>> {
        let task = self.tasks.lock().by_id.get(id).cloned()?;
        (task.owner == TaskOwner::of(caller) && !task.has_expired(now)).then_some(task)
    }

    /// Returns the task with this identity at its backend.
    pub fn find_native(&self, native: &NativeTask) -> Option<Arc<Task>> {
        let tasks = self.tasks.lock();
        tasks.by_native.get(native).and_then(|id| tasks.by_id.get(id)).cloned()
    }

    /// Returns the id at `server` of the task that clients know as `id`.
    pub fn native_id(&self, server: &ServerId, id: &str) -> Option<String> {
        let tasks = self.tasks.lock();
        tasks.by_id.get(id).filter(|task| task.native.server == *server).map(|task| task.native.id.to_string())
    }

    /// Returns the id that clients know of a task at `server`. `own` is the session of the client if the link is its
    /// own.
    pub fn exposed_id(&self, server: &ServerId, own: Option<SessionId>, native: &str) -> Option<String> {
        // Only versions with sessions name a task inside other messages.
        let native = NativeTask { server: server.clone(), own, era: Era::Legacy, id: native.into() };
        self.find_native(&native).map(|task| task.id.to_string())
    }

    /// Handles a task notification of a backend. Returns `false` if no client receives it.
    pub(crate) fn on_notification(
        &self,
        events: &BackendEvents,
        own: Option<SessionId>,
        notification: &Notification,
    ) -> bool {
        let text = notification.raw.as_str();
        let Some(params) = notification.params.whole else { return false };
        let era = if notification.method == Method::TaskStatus { Era::Legacy } else { Era::Modern };
        let description = TaskDescription { text, task: params, era };
        let id = description.id().unwrap_or_default();
        let native = NativeTask { server: events.id().clone(), own, era, id: (*id).into() };
        let Some(task) = self.find_native(&native) else { return false };
        task.record(description.lifetime(), description.summary(&task.id));
        let mut edits = description.edits(&task.id);
        edits.append(included_edits(events, &description, task.era));
        let message = json::single_line(edits.apply(notification.raw.bytes()));
        match (era, task.era) {
            (Era::Modern, Era::Modern) => task.notify(&message),
            (Era::Legacy, Era::Legacy) => {
                let client = task.client.upgrade().filter(|client| client.has_stream());
                client.is_some_and(|client| client.post(message))
            }
            // A client of another protocol than its backend polls its tasks.
            (Era::Legacy, Era::Modern) | (Era::Modern, Era::Legacy) => false,
        }
    }

    /// Returns the last known state of each task of this client, the oldest first.
    pub fn list(&self, caller: &Caller, now: Instant) -> Vec<Box<str>> {
        let owner = TaskOwner::of(caller);
        let tasks = self.tasks.lock();
        let mut own: Vec<_> =
            tasks.by_id.values().filter(|task| task.owner == owner && !task.has_expired(now)).collect();
        own.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        own.iter().map(|task| task.state.lock().last.clone()).filter(|last| !last.is_empty()).collect()
    }

    /// Removes expired tasks.
    pub(crate) fn remove_expired(&self, now: Instant) {
        let expired = self.tasks.lock().remove_all(|task| task.has_expired(now));
        drop(expired);
    }
}

impl ClientRegistry for TaskTable {
    fn release(&self, client: &Client) {
        let removed = self.tasks.lock().remove_all(|task| task.client_id == Some(client.id));
        drop(removed);
    }

    fn queue_missed_updates(&self, _: &Client) {}
}

/// Returns the changes to the result or the input requests that a task includes.
pub(crate) fn included_edits(events: &BackendEvents, description: &TaskDescription<'_>, client_era: Era) -> Splice {
    let mut edits = Splice::new();
    if (description.era, client_era) != (Era::Modern, Era::Modern) {
        return edits;
    }
    let (text, dialect) = (description.text, Dialect::NEWEST);
    let expose = |native: &str| events.expose(native);
    if let Some(result) = description.outcome("result") {
        edits.append(content::edits(dialect, &Method::ToolsCall, text, result, expose));
    }
    let requests = description.outcome("inputRequests").into_iter().flat_map(|requests| json::members(text, requests));
    for request in requests.map(|member| member.value) {
        let method = json::member(text, request, "method").and_then(|at| json::string(text, at));
        if let (Some(method), Some(params)) = (method, json::member(text, request, "params")) {
            edits.append(content::server_request_edits(dialect, &Method::parse(&method), text, params, expose));
        }
    }
    edits
}

/// Creates a request of the gateway about a task, on behalf of a call.
pub(crate) fn task_request(method: &Method, native: &str, more: &str) -> Request {
    let params = format!(r#"{{"taskId":{}{more}}}"#, quote(native));
    match Message::parse(goblin_wire::request(&Id::from(0), method, &params)) {
        Ok(Message::Request(request)) => request,
        _ => unreachable!("the text is a request"),
    }
}

/// Returns a new random task id.
fn new_id() -> Box<str> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    format!("task-{:032x}", u128::from_ne_bytes(bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::call::Call;
    use crate::client::caller::RunId;

    const LIFETIME: Duration = Duration::from_secs(60);

    fn client() -> Arc<Client> {
        Arc::new(Client::stateless(Default::default()))
    }

    fn session() -> Caller {
        Caller { session: Some(SessionId::new(RunId::random())), ..Call::example().caller }
    }

    fn native(own: Option<SessionId>, id: &str) -> NativeTask {
        NativeTask { server: ServerId::new("a").expect("a valid id"), own, era: Era::Legacy, id: id.into() }
    }

    fn insert(
        table: &Arc<TaskTable>,
        caller: &Caller,
        client: &Arc<Client>,
        native: NativeTask,
        now: Instant,
    ) -> Arc<Task> {
        let permit = table.reserve(TaskOwner::of(caller), now).expect("the table has capacity");
        table.insert(permit, NewTask { native, era: Era::Legacy, lifetime: LIFETIME, client }, now)
    }

    #[test]
    fn task1_a_task_is_found_only_by_its_client_until_its_ttl_expires() {
        let (table, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other, client) = (session(), session(), client());
        let task = insert(&table, &one, &client, native(None, "1"), now);
        assert!(task.id.len() == 37 && task.id.starts_with("task-"), "{}", task.id);
        assert!(table.find(&task.id, &one, now).is_some());
        assert!(table.find(&task.id, &other, now).is_none());
        assert!(table.find("1", &one, now).is_none());
        assert!(table.find(&task.id, &one, now + LIFETIME).is_none());
        task.record(2 * LIFETIME, "{}".into());
        assert!(table.find(&task.id, &one, now + LIFETIME).is_some());
        table.remove_expired(now + 2 * LIFETIME);
        assert!(
            table.tasks.lock().by_id.is_empty()
                && table.tasks.lock().by_native.is_empty()
                && table.tasks.lock().count == 0
        );
    }

    #[test]
    fn task1_tasks_end_with_their_session() {
        let (table, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other) = ((session(), client()), (session(), client()));
        let removed = insert(&table, &one.0, &one.1, native(None, "1"), now);
        let kept = insert(&table, &other.0, &other.1, native(None, "2"), now);
        one.1.close();
        assert!(table.find(&removed.id, &one.0, now).is_none());
        assert!(table.find(&kept.id, &other.0, now).is_some());
        let after_close = insert(&table, &one.0, &one.1, native(None, "3"), now);
        assert!(table.find(&after_close.id, &one.0, now).is_none(), "created while its session ended");
        assert_eq!(table.tasks.lock().count, 1);
    }

    #[test]
    fn task1_a_reused_native_id_names_the_newer_task() {
        let (table, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other, client) = (session(), session(), client());
        let older = insert(&table, &one, &client, native(None, "1"), now);
        let newer = insert(&table, &other, &client, native(None, "1"), now);
        assert!(table.find(&older.id, &one, now).is_none());
        assert_eq!(table.find_native(&native(None, "1")).map(|task| task.id.clone()), Some(newer.id.clone()));
        let own = insert(&table, &one, &client, native(one.session, "1"), now);
        assert!(table.find(&newer.id, &other, now).is_some(), "ids on a client's own link are separate");
        assert_eq!(table.find_native(&native(one.session, "1")).map(|task| task.id.clone()), Some(own.id.clone()));
    }

    #[test]
    fn task1_tasks_are_limited_per_client_and_in_total() {
        let (table, now, client) = (Arc::<TaskTable>::default(), Instant::now(), client());
        let one = session();
        let mut permits: Vec<_> =
            (0..MAX_TASKS_PER_CLIENT - 1).filter_map(|_| table.reserve(TaskOwner::of(&one), now).ok()).collect();
        insert(&table, &one, &client, native(None, "1"), now);
        assert_eq!(permits.len(), MAX_TASKS_PER_CLIENT - 1);
        assert!(table.reserve(TaskOwner::of(&one), now).is_err());
        assert!(table.reserve(TaskOwner::of(&one), now + LIFETIME).is_ok(), "expired tasks are removed");
        permits.pop();
        assert!(table.reserve(TaskOwner::of(&one), now).is_ok());
        drop(permits);
        let all: Vec<_> = (0..=MAX_TASKS).map_while(|_| table.reserve(TaskOwner::of(&session()), now).ok()).collect();
        assert_eq!(all.len(), MAX_TASKS);
        drop(all);
        assert!(table.tasks.lock().counts.is_empty() && table.tasks.lock().count == 0);
    }
}
