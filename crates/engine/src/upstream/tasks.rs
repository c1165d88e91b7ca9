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
    /// The client that has to be there for the task to stay.
    client_id: Option<ClientId>,
    made: Instant,
    known: Mutex<TaskState>,
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
    told: Option<Bytes>,
}

impl Task {
    /// Records the state that the backend reported, and the lifetime since the task was made.
    pub fn note(&self, life: Duration, last: Box<str>) {
        let mut known = self.known.lock();
        known.expires = self.made + life;
        known.last = last;
    }

    fn is_over(&self, now: Instant) -> bool {
        self.known.lock().expires <= now
    }

    /// Adds `client` to the listeners of the task.
    pub fn listen(&self, client: &Arc<Client>) {
        let mut known = self.known.lock();
        known.listeners.retain(|listener| listener.client.strong_count() > 0);
        known.listeners.push(TaskListener { client: Arc::downgrade(client), told: None });
    }

    /// Sends a notification to the listeners. Returns `false` if there are none.
    pub fn tell(&self, message: &Bytes) -> bool {
        let mut known = self.known.lock();
        let mut told = false;
        for listener in &mut known.listeners {
            let Some(client) = listener.client.upgrade() else { continue };
            told = true;
            if listener.told.as_ref() != Some(message) && client.post(message.clone()) {
                listener.told = Some(message.clone());
            }
        }
        told
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(input_relay) = self.input_relay.get() {
            input_relay.dismiss();
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
        if self.by_native.get(&task.native).is_some_and(|named| *named == task.id) {
            self.by_native.remove(&task.native);
        }
        self.free(task.owner);
        Some(task)
    }

    fn remove_all(&mut self, is_gone: impl Fn(&Task) -> bool) -> Vec<Arc<Task>> {
        let gone: Vec<_> = self.by_id.values().filter(|task| is_gone(task)).map(|task| task.id.clone()).collect();
        gone.iter().filter_map(|id| self.remove(id)).collect()
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
    fn has_room(&self, owner: TaskOwner) -> Result<(), Error> {
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
    book: Arc<TaskTable>,
    owner: TaskOwner,
    is_taken: bool,
}

impl Drop for TaskPermit {
    fn drop(&mut self) {
        if !self.is_taken {
            self.book.tasks.lock().free(self.owner);
        }
    }
}

/// A task that a backend has just made.
pub struct NewTask<'a> {
    pub native: NativeTask,
    pub era: Era,
    pub life: Duration,
    pub client: &'a Arc<Client>,
}

impl TaskTable {
    /// Reserves a place for a task that a call may make. Removes expired tasks if the table is full.
    pub fn reserve(self: &Arc<TaskTable>, owner: TaskOwner, now: Instant) -> Result<TaskPermit, Error> {
        let mut tasks = self.tasks.lock();
        let mut late = Vec::new();
        if tasks.has_room(owner).is_err() {
            late = tasks.remove_all(|task| task.is_over(now));
        }
        let room = tasks.has_room(owner);
        if room.is_ok() {
            tasks.count += 1;
            *tasks.counts.entry(owner).or_default() += 1;
        }
        drop(tasks);
        drop(late);
        room.map(|()| TaskPermit { book: Arc::clone(self), owner, is_taken: false })
    }

    /// Adds a task. If the backend reused an id, the older task is removed, because the id may now name another
    /// client's task.
    pub fn enter(self: &Arc<TaskTable>, mut place: TaskPermit, made: NewTask<'_>, now: Instant) -> Arc<Task> {
        let NewTask { native, era, life, client } = made;
        let owner = place.owner;
        let has_session = matches!(owner, TaskOwner::Session(_));
        let task = Arc::new(Task {
            id: mint(),
            native: native.clone(),
            owner,
            era,
            client: if has_session { Arc::downgrade(client) } else { Weak::new() },
            client_id: has_session.then_some(client.id),
            made: now,
            known: Mutex::new(TaskState { expires: now + life, last: Box::default(), listeners: Vec::new() }),
            input_relay: OnceLock::new(),
        });
        let mut tasks = self.tasks.lock();
        let before = tasks.by_native.get(&native).cloned().and_then(|before| tasks.remove(&before));
        tasks.by_native.insert(native, task.id.clone());
        tasks.by_id.insert(task.id.clone(), Arc::clone(&task));
        place.is_taken = true;
        drop(tasks);
        drop(before);
        let holder: Arc<dyn ClientRegistry> = Arc::<TaskTable>::clone(self);
        if has_session && !client.register(&holder) {
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
        (task.owner == TaskOwner::of(caller) && !task.is_over(now)).then_some(task)
    }

    /// Returns the task with this identity at its backend.
    pub fn named(&self, native: &NativeTask) -> Option<Arc<Task>> {
        let tasks = self.tasks.lock();
        tasks.by_native.get(native).and_then(|id| tasks.by_id.get(id)).cloned()
    }

    /// Returns the id at `server` of the task that clients know as `id`.
    pub fn native(&self, server: &ServerId, id: &str) -> Option<String> {
        let tasks = self.tasks.lock();
        tasks.by_id.get(id).filter(|task| task.native.server == *server).map(|task| task.native.id.to_string())
    }

    /// Returns the id that clients know of a task at `server`. `own` is the session of the client if the link is its own.
    pub fn shown(&self, server: &ServerId, own: Option<SessionId>, native: &str) -> Option<String> {
        // Only versions with sessions name a task inside other messages.
        let native = NativeTask { server: server.clone(), own, era: Era::Legacy, id: native.into() };
        self.named(&native).map(|task| task.id.to_string())
    }

    /// Handles a task notification of a backend. Returns `false` if no client receives it.
    pub(crate) fn hear(&self, inbox: &BackendEvents, own: Option<SessionId>, notification: &Notification) -> bool {
        let text = notification.raw.as_str();
        let Some(params) = notification.params.whole else { return false };
        let era = if notification.method == Method::TaskStatus { Era::Legacy } else { Era::Modern };
        let told = TaskDescription { text, task: params, era };
        let id = told.id().unwrap_or_default();
        let native = NativeTask { server: inbox.id().clone(), own, era, id: (*id).into() };
        let Some(task) = self.named(&native) else { return false };
        task.note(told.life(), told.kept(&task.id));
        let mut edits = told.edits(&task.id);
        edits.append(inlined(inbox, &told, task.era));
        let message = json::single_line(edits.apply(notification.raw.bytes()));
        match (era, task.era) {
            (Era::Modern, Era::Modern) => task.tell(&message),
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
        let mut own: Vec<_> = tasks.by_id.values().filter(|task| task.owner == owner && !task.is_over(now)).collect();
        own.sort_by(|one, other| (one.made, &one.id).cmp(&(other.made, &other.id)));
        own.iter().map(|task| task.known.lock().last.clone()).filter(|last| !last.is_empty()).collect()
    }

    /// Removes expired tasks.
    pub(crate) fn forget_late(&self, now: Instant) {
        let late = self.tasks.lock().remove_all(|task| task.is_over(now));
        drop(late);
    }
}

impl ClientRegistry for TaskTable {
    fn release(&self, client: &Client) {
        let gone = self.tasks.lock().remove_all(|task| task.client_id == Some(client.id));
        drop(gone);
    }

    fn queue_missed_updates(&self, _: &Client) {}
}

/// Returns the changes to the result or the input requests that a task includes.
pub(crate) fn inlined(inbox: &BackendEvents, told: &TaskDescription<'_>, client_era: Era) -> Splice {
    let mut edits = Splice::new();
    if (told.era, client_era) != (Era::Modern, Era::Modern) {
        return edits;
    }
    let (text, dialect) = (told.text, Dialect::NEWEST);
    let expose = |native: &str| inbox.expose(native);
    if let Some(result) = told.outcome("result") {
        edits.append(content::edits(dialect, &Method::ToolsCall, text, result, expose));
    }
    let asked = told.outcome("inputRequests").into_iter().flat_map(|asked| json::members(text, asked));
    for asked in asked.map(|member| member.value) {
        let method = json::member(text, asked, "method").and_then(|at| json::string(text, at));
        if let (Some(method), Some(params)) = (method, json::member(text, asked, "params")) {
            edits.append(content::ask_edits(dialect, &Method::parse(&method), text, params, expose));
        }
    }
    edits
}

/// Creates a request of the gateway about a task, on behalf of a call.
pub(crate) fn about(method: &Method, native: &str, more: &str) -> Request {
    let params = format!(r#"{{"taskId":{}{more}}}"#, quote(native));
    match Message::parse(goblin_wire::request(&Id::from(0), method, &params)) {
        Ok(Message::Request(request)) => request,
        _ => unreachable!("it was written as a request"),
    }
}

/// Returns a new random task id.
fn mint() -> Box<str> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    format!("task-{:032x}", u128::from_ne_bytes(bytes)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::call::Call;
    use crate::client::caller::RunId;

    const LIFE: Duration = Duration::from_secs(60);

    fn client() -> Arc<Client> {
        Arc::new(Client::stateless(Default::default()))
    }

    fn session() -> Caller {
        Caller { session: Some(SessionId::new(RunId::random())), ..Call::example().caller }
    }

    fn native(own: Option<SessionId>, id: &str) -> NativeTask {
        NativeTask { server: ServerId::new("a").expect("a valid id"), own, era: Era::Legacy, id: id.into() }
    }

    fn enter(
        book: &Arc<TaskTable>,
        caller: &Caller,
        client: &Arc<Client>,
        native: NativeTask,
        now: Instant,
    ) -> Arc<Task> {
        let place = book.reserve(TaskOwner::of(caller), now).expect("there is room");
        book.enter(place, NewTask { native, era: Era::Legacy, life: LIFE, client }, now)
    }

    #[test]
    fn task1_a_task_is_found_by_its_own_client_for_as_long_as_it_lives() {
        let (book, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other, client) = (session(), session(), client());
        let task = enter(&book, &one, &client, native(None, "1"), now);
        assert!(task.id.len() == 37 && task.id.starts_with("task-"), "{}", task.id);
        assert!(book.find(&task.id, &one, now).is_some());
        assert!(book.find(&task.id, &other, now).is_none());
        assert!(book.find("1", &one, now).is_none());
        assert!(book.find(&task.id, &one, now + LIFE).is_none());
        task.note(2 * LIFE, "{}".into());
        assert!(book.find(&task.id, &one, now + LIFE).is_some());
        book.forget_late(now + 2 * LIFE);
        assert!(
            book.tasks.lock().by_id.is_empty()
                && book.tasks.lock().by_native.is_empty()
                && book.tasks.lock().count == 0
        );
    }

    #[test]
    fn task1_tasks_go_with_their_session() {
        let (book, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other) = ((session(), client()), (session(), client()));
        let gone = enter(&book, &one.0, &one.1, native(None, "1"), now);
        let kept = enter(&book, &other.0, &other.1, native(None, "2"), now);
        one.1.close();
        assert!(book.find(&gone.id, &one.0, now).is_none());
        assert!(book.find(&kept.id, &other.0, now).is_some());
        let late = enter(&book, &one.0, &one.1, native(None, "3"), now);
        assert!(book.find(&late.id, &one.0, now).is_none(), "made while its session ended");
        assert_eq!(book.tasks.lock().count, 1);
    }

    #[test]
    fn task1_a_name_that_is_given_again_means_the_newer_task() {
        let (book, now) = (Arc::<TaskTable>::default(), Instant::now());
        let (one, other, client) = (session(), session(), client());
        let older = enter(&book, &one, &client, native(None, "1"), now);
        let newer = enter(&book, &other, &client, native(None, "1"), now);
        assert!(book.find(&older.id, &one, now).is_none());
        assert_eq!(book.named(&native(None, "1")).map(|task| task.id.clone()), Some(newer.id.clone()));
        let own = enter(&book, &one, &client, native(one.session, "1"), now);
        assert!(book.find(&newer.id, &other, now).is_some(), "over links of their own names do not meet");
        assert_eq!(book.named(&native(one.session, "1")).map(|task| task.id.clone()), Some(own.id.clone()));
    }

    #[test]
    fn task1_exactly_so_many_have_room() {
        let (book, now, client) = (Arc::<TaskTable>::default(), Instant::now(), client());
        let one = session();
        let mut places: Vec<_> =
            (0..MAX_TASKS_PER_CLIENT - 1).filter_map(|_| book.reserve(TaskOwner::of(&one), now).ok()).collect();
        enter(&book, &one, &client, native(None, "1"), now);
        assert_eq!(places.len(), MAX_TASKS_PER_CLIENT - 1);
        assert!(book.reserve(TaskOwner::of(&one), now).is_err());
        assert!(book.reserve(TaskOwner::of(&one), now + LIFE).is_ok(), "what is over makes room");
        places.pop();
        assert!(book.reserve(TaskOwner::of(&one), now).is_ok());
        drop(places);
        let all: Vec<_> = (0..=MAX_TASKS).map_while(|_| book.reserve(TaskOwner::of(&session()), now).ok()).collect();
        assert_eq!(all.len(), MAX_TASKS);
        drop(all);
        assert!(book.tasks.lock().counts.is_empty() && book.tasks.lock().count == 0);
    }
}
