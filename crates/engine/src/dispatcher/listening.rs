//! `subscriptions/listen`: a stream of notifications for a client without a session.
//!
//! Each stream is a client of its own and takes a place among the sessions. Its subscriptions are registered like those
//! of sessions, so both receive the same updates. The acknowledgement lists the subscriptions that the catalog and the
//! backends accept. It waits at most [`ACKNOWLEDGE_TIMEOUT`] for the backends. If a backend answers later, the client
//! gets one update of each resource, because earlier changes were not reported.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use goblin_telemetry::worker;
use goblin_wire::json::{self, Pieces, Splice};
use goblin_wire::listen::ListenFilter;
use goblin_wire::modern::SUBSCRIPTION_ID;
use goblin_wire::{Error, Id, Message, Method, Notification, Request};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::Caller;
use crate::client::replay::Replay;
use crate::client::sessions::{Presence, SessionPermit};
use crate::client::stateless_clients::OpenStreamUse;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::stateless::StatelessClient;
use crate::router::Router;
use crate::router::tasks::check_declared;
use crate::upstream::links::ListenerGuard;

/// The number of subscribe requests that are sent at once for one stream.
const MAX_CONCURRENT_SUBSCRIBES: usize = 16;
/// The longest time that the acknowledgement waits for the backends.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_millis(250);

/// An open notification stream. Dropping it ends its subscriptions.
pub struct ListenSubscription {
    pub client: Arc<Client>,
    id: Id,
    accepted: ListenFilter,
    /// Receives the rejected URIs when all backends have answered. The acknowledgement closes it.
    settled: Option<oneshot::Receiver<Vec<Arc<str>>>>,
    /// The sender of the request, whose lists the stream watches.
    pub caller: Caller,
    /// The place among the sessions. `None` on a pipe, which limits its streams itself.
    _place: Option<SessionPermit>,
    /// Keeps the links that belong to the client alone.
    _links: Vec<ListenerGuard>,
    _presence: Presence,
    /// Counts the stream among those of clients with the same description.
    _open: Option<OpenStreamUse>,
}

impl Drop for ListenSubscription {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl ListenSubscription {
    /// Begins a stream: reads the filter, subscribes to its URIs and watches its tasks.
    pub(super) fn begin(
        dispatcher: &Arc<Dispatcher>,
        sender: &StatelessClient,
        caller: Caller,
        request: &Request,
    ) -> Result<ListenSubscription, Error> {
        let text = request.raw.as_str();
        let wanted = request.params.whole.and_then(|params| json::member(text, params, "notifications"));
        let wanted = wanted.filter(|wanted| wanted.get(text).starts_with('{'));
        let wanted = wanted.ok_or_else(|| Error::InvalidParams("notifications must be an object".to_owned()))?;
        let wanted = ListenFilter::read(text, wanted);
        if !wanted.tasks.is_empty() {
            check_declared(&caller)?;
        }
        Router::check_options(request)?;
        let place = match sender {
            StatelessClient::Http { .. } => Some(dispatcher.reserve()?),
            StatelessClient::Stdio(_) => None,
        };
        let versions = dispatcher.router.catalogs.versions_of(&caller);
        let session = dispatcher.sessions.new_id();
        let client = Client::new(caller.dialect, sender.introduction(&caller), versions, Replay::new(0));
        let client = Arc::new(client.with_session(session, caller.profile.clone()));
        if let Some(profile) = dispatcher.router.catalogs.live_profile(caller.profile.as_ref()) {
            client.confine(profile);
        }
        // A client on a pipe may have links of its own, which belong to the pipe.
        let own = match sender {
            StatelessClient::Stdio(client) => Arc::clone(client),
            StatelessClient::Http { .. } => Arc::clone(&client),
        };
        let call = Arc::new(Call::new(caller, own, request.clone(), None));
        let known = wanted.uris.iter().filter(|uri| dispatcher.router.can_subscribe(&call, uri)).cloned();
        // Subscriptions beyond the limit would be rejected, so do not acknowledge them.
        let known: BTreeSet<_> = known.take(dispatcher.policies.load().subscriptions.per_client).collect();
        let tasks = dispatcher.router.watchable(&call.caller, &wanted.tasks);
        let accepted = ListenFilter { uris: known, tasks, ..wanted };
        watch_tasks(dispatcher, &call, &client, &accepted);
        let links = if accepted.has_lists() { dispatcher.router.hold_own_links(&call) } else { Vec::new() };
        let settled = subscribe_all(dispatcher, &call, Arc::clone(&client), &accepted);
        Ok(ListenSubscription {
            _presence: dispatcher.sessions.open_listen_stream(&client),
            _open: sender.open_stream(&client),
            client,
            // The stream outlives the request, so it must not keep the request's buffer alive.
            id: request.id.detached(),
            accepted,
            settled,
            caller: call.caller.clone(),
            _links: links,
            _place: place,
        })
    }

    /// Returns the first message of the stream, which lists the accepted part of the filter.
    pub async fn acknowledgement(&mut self) -> Bytes {
        if let Some(settled) = &mut self.settled {
            let in_time = tokio::time::timeout(ACKNOWLEDGE_TIMEOUT, &mut *settled).await;
            // The subscribing task learns from the closed channel that its result is too late.
            settled.close();
            let rejected = in_time.map_or_else(|_| settled.try_recv().ok(), Result::ok).unwrap_or_default();
            self.accepted.uris.retain(|uri| !rejected.contains(uri));
            self.settled = None;
        }
        let params = format!(r#"{{{},"notifications":{}}}"#, self.meta(), self.accepted.to_json());
        goblin_wire::notification(&Method::Acknowledged, Some(&params))
    }

    /// Adds the subscription id of this stream to a notification. Returns `None` if the client did not request that
    /// list.
    pub fn tag(&self, message: Bytes) -> Option<Bytes> {
        let Ok(Message::Notification(notification)) = Message::parse(message) else { return None };
        let is_wanted = match notification.method {
            Method::ToolsChanged => self.accepted.tools,
            Method::PromptsChanged => self.accepted.prompts,
            Method::ResourcesChanged => self.accepted.resources,
            _ => true,
        };
        is_wanted.then(|| self.with_subscription_id(&notification))
    }

    fn with_subscription_id(&self, notification: &Notification) -> Bytes {
        let text = notification.raw.as_str();
        let mut edits = Splice::new();
        match (notification.params.whole, notification.params.meta.filter(|meta| meta.get(text).starts_with('{'))) {
            (_, Some(meta)) => json::prepend(text, meta, &format!(r#""{SUBSCRIPTION_ID}":{}"#, self.id), &mut edits),
            (Some(params), None) => json::prepend(text, params, &self.meta(), &mut edits),
            (None, None) => {
                let whole = json::whole(text);
                edits.insert(whole.end - 1, format!(r#","params":{{{}}}"#, self.meta()));
            }
        }
        edits.apply(notification.raw.bytes())
    }

    /// Returns the answer to the request, for a stream that the gateway ends.
    pub fn end(&self) -> Pieces {
        goblin_wire::reply(&self.id, format!(r#"{{"resultType":"complete",{}}}"#, self.meta()))
    }

    pub fn id(&self) -> &Id {
        &self.id
    }

    fn meta(&self) -> String {
        format!(r#""_meta":{{"{SUBSCRIPTION_ID}":{}}}"#, self.id)
    }
}

/// Starts a task that reports the status of the wanted tasks until the client closes.
fn watch_tasks(dispatcher: &Arc<Dispatcher>, call: &Arc<Call>, client: &Arc<Client>, accepted: &ListenFilter) {
    if accepted.tasks.is_empty() {
        return;
    }
    let (dispatcher, call, client, tasks) =
        (Arc::clone(dispatcher), Arc::clone(call), Arc::clone(client), accepted.tasks.clone());
    worker::spawn(async move { dispatcher.router.watch_tasks(&call, &client, &tasks).await });
}

/// Starts a task that subscribes to all URIs. The receiver gets the rejected ones. Returns `None` if there are no URIs.
fn subscribe_all(
    dispatcher: &Arc<Dispatcher>,
    call: &Arc<Call>,
    client: Arc<Client>,
    accepted: &ListenFilter,
) -> Option<oneshot::Receiver<Vec<Arc<str>>>> {
    if accepted.uris.is_empty() {
        return None;
    }
    let (settle, settled) = oneshot::channel();
    let (dispatcher, call, uris) = (Arc::clone(dispatcher), Arc::clone(call), accepted.uris.clone());
    worker::spawn(async move {
        let (router, call, client) = (&dispatcher.router, &call, &client);
        let subscribe = |uri: Arc<str>| async move { (!router.listen_to(call, client, &uri).await).then_some(uri) };
        let all = futures_util::stream::iter(uris).map(subscribe).buffer_unordered(MAX_CONCURRENT_SUBSCRIBES);
        let all = all.filter_map(std::future::ready).collect::<Vec<_>>();
        let rejected = tokio::select! {
            rejected = all => rejected,
            () = client.closed() => return,
        };
        // The acknowledgement was already sent. The client may have missed updates, so send one for each resource.
        if settle.send(rejected).is_err() {
            client.queue_missed_updates();
        }
    });
    Some(settled)
}
