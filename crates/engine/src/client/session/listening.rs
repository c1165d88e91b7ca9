//! `subscriptions/listen`: what a client without a session wants to be told of, for as long as it reads.
//!
//! Each has a mailbox of its own, and is one more client to everybody else: it takes a place among the sessions, its
//! subscriptions are entered where those of sessions are, and one update reaches both alike. It is acknowledged from what
//! the catalog knows, once the backends have agreed; but they are not waited for longer than a moment. Who is acknowledged
//! before them is told once when they have, since what changed in between is not told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::oneshot;

use goblin_wire::listen::Filter;
use crate::client::caller::{Caller, Introduction, SessionId};
use crate::client::lane::Call;
use crate::client::mailbox::Mailbox;
use crate::client::mailbox::replay::Replay;
use goblin_wire::error::Error;
use goblin_wire::json::{self, Pieces, Splice};
use goblin_wire::method::Method;
use goblin_wire::modern::SUBSCRIPTION_ID;
use goblin_wire::{Id, Message, Notification, Request};
use crate::router::Router;
use crate::router::subscribe::Listener;
use crate::router::tasks::check_declared;
use crate::client::session::desk::Desk;
use crate::client::session::visit::Guest;
use crate::client::session::{Counted, Place};
use goblin_telemetry::worker;

/// How many backends are asked at once for the sake of one client.
const MOST_ASKED: usize = 16;
/// How long they are waited for before it is acknowledged.
const PATIENCE: Duration = Duration::from_millis(250);

/// A stream of what a client listens for. Its drop ends it.
pub struct Listening {
    pub mailbox: Arc<Mailbox>,
    pub session: SessionId,
    id: Id,
    honoured: Filter,
    /// Resolves with what was refused, once all subscriptions stand or fall. Closed when it is acknowledged.
    settled: Option<oneshot::Receiver<Vec<Arc<str>>>>,
    /// Among the sessions; one that comes over a pipe is bounded there.
    _place: Option<Place>,
    _counted: Counted,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

impl Listening {
    pub(super) fn begin(
        desk: &Arc<Desk>,
        guest: &Guest,
        caller: Caller,
        request: &Request,
    ) -> Result<Listening, Error> {
        let text = request.raw.as_str();
        let wanted = request.params.whole.and_then(|params| json::member(text, params, "notifications"));
        let wanted = wanted.filter(|wanted| wanted.get(text).starts_with('{'));
        let wanted = wanted.ok_or_else(|| Error::InvalidParams("notifications must be an object".to_owned()))?;
        let wanted = Filter::read(text, wanted);
        if !wanted.tasks.is_empty() {
            check_declared(&caller)?;
        }
        Router::check_options(request)?;
        let place = match guest {
            Guest::Passing(_) => Some(desk.reserve()?),
            Guest::Known { .. } => None,
        };
        let introduction = Introduction { abilities: Arc::clone(&caller.abilities), ..Introduction::default() };
        let versions = *desk.router.directory.watch_of(caller.profile.as_ref()).borrow();
        let session = desk.sessions.mint();
        let mailbox = Arc::new(Mailbox::new(introduction, versions, Replay::new(0)).of_session(session));
        if let Some(profile) = desk.router.directory.profile(caller.profile.as_ref()) {
            mailbox.confine(profile);
        }
        // Where the client has links of its own, what it listens to is told there.
        let own = match guest {
            Guest::Known { mailbox, .. } => Arc::clone(mailbox),
            Guest::Passing(_) => Arc::clone(&mailbox),
        };
        let call = Arc::new(Call::new(caller, own, request.clone(), None));
        let known = wanted.uris.iter().filter(|uri| desk.router.can_subscribe(&call, uri)).cloned();
        // What is acknowledged shall be told: more has no room.
        let known: BTreeSet<_> = known.take(desk.policies.subscriptions.per_client).collect();
        let tasks = desk.router.watchable(&call.caller, &wanted.tasks);
        let honoured = Filter { uris: known, tasks, ..wanted };
        let listener = Listener { client: session, mailbox: Arc::clone(&mailbox) };
        watch_tasks(desk, &call, &mailbox, &honoured);
        let settled = subscribe_all(desk, &call, listener, &honoured);
        Ok(Listening {
            mailbox,
            session,
            // The stream lives longer than the request, whose bytes it must not keep.
            id: request.id.detached(),
            honoured,
            settled,
            _place: place,
            _counted: desk.sessions.count_stream(),
        })
    }

    /// What comes first: the part of its wishes that will be told.
    pub async fn acknowledgement(&mut self) -> Bytes {
        if let Some(settled) = &mut self.settled {
            let in_time = tokio::time::timeout(PATIENCE, &mut *settled).await;
            // From here on whoever settles it knows that it was too late.
            settled.close();
            let refused = in_time.map_or_else(|_| settled.try_recv().ok(), Result::ok).unwrap_or_default();
            self.honoured.uris.retain(|uri| !refused.contains(uri));
            self.settled = None;
        }
        let params = format!(r#"{{{},"notifications":{}}}"#, self.meta(), self.honoured.to_json());
        goblin_wire::notification(&Method::Acknowledged, Some(&params))
    }

    /// What is told, under the name of this stream; nothing for a list that was not asked for.
    pub fn told(&self, message: Bytes) -> Option<Bytes> {
        let Ok(Message::Notification(notification)) = Message::parse(message) else { return None };
        let is_wanted = match notification.method {
            Method::ToolsChanged => self.honoured.tools,
            Method::PromptsChanged => self.honoured.prompts,
            Method::ResourcesChanged => self.honoured.resources,
            _ => true,
        };
        is_wanted.then(|| self.named(&notification))
    }

    fn named(&self, notification: &Notification) -> Bytes {
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

    /// The answer, when we end it.
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

/// Has tasks told of, until nobody listens any more.
fn watch_tasks(desk: &Arc<Desk>, call: &Arc<Call>, mailbox: &Arc<Mailbox>, honoured: &Filter) {
    if honoured.tasks.is_empty() {
        return;
    }
    let (desk, call, mailbox, tasks) =
        (Arc::clone(desk), Arc::clone(call), Arc::clone(mailbox), honoured.tasks.clone());
    worker::spawn(async move { desk.router.watch_tasks(&call, &mailbox, &tasks).await });
}

/// Enters the subscriptions, until all stand or fall or nobody listens any more; tells which fell.
fn subscribe_all(
    desk: &Arc<Desk>,
    call: &Arc<Call>,
    listener: Listener,
    honoured: &Filter,
) -> Option<oneshot::Receiver<Vec<Arc<str>>>> {
    if honoured.uris.is_empty() {
        return None;
    }
    let (settle, settled) = oneshot::channel();
    let (desk, call, uris) = (Arc::clone(desk), Arc::clone(call), honoured.uris.clone());
    worker::spawn(async move {
        let (router, call, listener) = (&desk.router, &call, &listener);
        let enter = |uri: Arc<str>| async move { (!router.listen_to(call, listener, &uri).await).then_some(uri) };
        let all = futures_util::stream::iter(uris).map(enter).buffer_unordered(MOST_ASKED);
        let all = all.filter_map(std::future::ready).collect::<Vec<_>>();
        let refused = tokio::select! {
            refused = all => refused,
            () = listener.mailbox.closed() => return,
        };
        // Who was acknowledged before does not wait for it any more.
        if settle.send(refused).is_err() {
            listener.mailbox.tell_missed();
        }
    });
    Some(settled)
}
