//! The subscriptions over one link, and the way between them and the backend.
//!
//! [`Interests`] decides, this acts: what must be said upstream is said by [`keep`](Register::keep) for as long as a link
//! is there, [`MOST_JOBS`] at a time; what the backend says of a resource goes into the mailbox of everybody who wants to
//! know. A subscription outlives links. It ends with its client, or when the client says so.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::backend::inbox::Inbox;
use crate::backend::link::{Link, LinkError};
use crate::mailbox::tally::Place;
use crate::mailbox::updates::Update;
use crate::mailbox::{Holder, Mailbox};
use crate::observe::Event;
use crate::protocol::json::{self, Splice, quote};
use crate::protocol::method::Method;
use crate::protocol::{self, Notification, Outcome as Answer};
use crate::subscriptions::id::SubscriptionId;
use crate::subscriptions::{Entry, Interests, Job, Missed, Outcome, Reply, Standing, Subscription, Wish};

/// How many requests to subscribe or unsubscribe are on their way at once.
const MOST_JOBS: usize = 16;
/// How long a backend may take for one.
const JOB_PATIENCE: Duration = Duration::from_secs(30);
/// How long a request that broke waits for the word that the whole link did.
const LINK_PATIENCE: Duration = Duration::from_millis(200);

pub struct Register {
    inbox: Arc<Inbox>,
    interests: Mutex<Interests>,
    /// Rung when something is to be said upstream.
    bell: Notify,
}

/// A subscription, and how it stands.
pub struct Subscribed {
    pub subscription: Arc<Subscription>,
    pub outcome: Outcome,
}

impl Register {
    pub fn new(inbox: Arc<Inbox>) -> Register {
        Register { inbox, interests: Mutex::default(), bell: Notify::new() }
    }

    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Waits until somebody wants something. For whoever has no link to say it on.
    pub async fn wanted(&self) {
        while self.interests().is_empty() {
            self.bell.notified().await;
        }
    }

    /// Enters a wish and waits until it stands or falls. `place` is asked for room. Nothing when the client is gone.
    pub async fn subscribe<E>(
        self: &Arc<Register>,
        wish: Wish,
        place: impl FnOnce() -> Result<Place, E>,
    ) -> Result<Option<Subscribed>, E> {
        let (mailbox, native, pace) = (Arc::clone(&wish.mailbox), Arc::clone(&wish.native), wish.pace);
        let Entry { subscription, standing } = self.interests().subscribe(wish, place)?;
        // Dropped before it is answered, the client has cancelled it.
        let _waiter = Waiter { register: self, mailbox: &mailbox, native: &native };
        let holder: Arc<dyn Holder> = Arc::<Register>::clone(self);
        if !mailbox.hold_for(&holder) {
            self.interests().unsubscribe(&mailbox, &native);
            return Ok(None);
        }
        mailbox.set_pace(&subscription.name.exposed, pace);
        self.bell.notify_one();
        let outcome = match standing {
            Standing::Settled(outcome) => outcome,
            Standing::Asked(asked) => match asked.await {
                Ok(outcome) => outcome,
                Err(_) if mailbox.is_closed() => return Ok(None),
                // Its client ended it while the backend was asked, and waits for this answer too.
                Err(_) => Outcome::Subscribed,
            },
        };
        Ok(Some(Subscribed { subscription, outcome }))
    }

    /// Ends a client's subscription; tells whether there was one.
    pub fn unsubscribe(&self, mailbox: &Mailbox, native: &str) -> bool {
        let mut interests = self.interests();
        let Some(subscription) = interests.unsubscribe(mailbox, native) else { return false };
        let is_wanted = interests.wants_outer(mailbox, native);
        drop(interests);
        if !is_wanted {
            mailbox.updates.drop_pending(&subscription.name.exposed);
        }
        self.bell.notify_one();
        true
    }

    /// The same for what clients call `exposed`, whether it is offered or not.
    pub fn unsubscribe_exposed(&self, mailbox: &Mailbox, exposed: &str) -> bool {
        let native = self.native_of(mailbox, |subscription| &*subscription.name.exposed == exposed);
        native.is_some_and(|native| self.unsubscribe(mailbox, &native))
    }

    /// The same by the subscription's own name.
    pub fn unsubscribe_id(&self, mailbox: &Mailbox, id: SubscriptionId) -> bool {
        let native = self.native_of(mailbox, |subscription| subscription.id == id);
        native.is_some_and(|native| self.unsubscribe(mailbox, &native))
    }

    fn native_of(&self, mailbox: &Mailbox, is_meant: impl Fn(&Subscription) -> bool) -> Option<Arc<str>> {
        let interests = self.interests();
        let found = interests.of(mailbox).iter().find(|subscription| is_meant(subscription))?;
        Some(Arc::clone(&found.name.native))
    }

    /// All subscriptions, each with how it stands.
    pub fn all(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        self.interests().all().map(|(subscription, state)| (Arc::clone(subscription), state)).collect()
    }

    /// The backend says that a resource changed.
    pub fn hear(&self, notification: &Notification) {
        let text = notification.raw.as_str();
        let Some(at) = notification.params.uri else { return };
        let Some(native) = json::string(text, at) else { return };
        let interests = self.interests();
        let affected = interests.affected(&native);
        let Some(first) = affected.first() else { return };
        // What it is about is what most of them asked for, more often than not.
        let exposed: Arc<str> = match affected.iter().find(|subscription| *subscription.name.native == *native) {
            Some(exact) => Arc::clone(&exact.name.exposed),
            None => Arc::from(self.inbox.expose(&native)),
        };
        let mut edits = Splice::new();
        edits.replace(at, quote(&exposed));
        let message = json::single_line(edits.apply(notification.raw.bytes()));
        let instead = |subscription: &Subscription| updated(&subscription.name.exposed);
        let count = affected.len();
        for subscription in &affected {
            let is_inside = *subscription.name.native != *native;
            let whole = if is_inside { instead(subscription) } else { Bytes::new() };
            subscription.mailbox.update(&Update {
                uri: &exposed,
                message: &message,
                pace: subscription.pace(),
                receipt: &subscription.receipt,
                inside: is_inside.then_some((&subscription.name.exposed, &whole)),
            });
        }
        let uri = &first.name.exposed;
        self.inbox.emit(&Event::UpdateHeard { server: self.inbox.server(), uri, count });
    }

    /// Whatever may have been missed is told as an update.
    fn tell(&self, missed: &Missed) {
        for subscription in missed {
            subscription.mailbox.update(&Update {
                uri: &subscription.name.exposed,
                message: &updated(&subscription.name.exposed),
                pace: subscription.pace(),
                receipt: &subscription.receipt,
                inside: None,
            });
        }
    }

    /// A link is there. To be called before anybody else can know of it: who subscribes then shall not be told otherwise.
    pub fn link_up(&self, can_subscribe: bool) {
        let missed = self.interests().link_up(can_subscribe);
        self.tell(&missed);
    }

    /// Says upstream what is wanted, for as long as this is polled: as long as the link is there.
    pub async fn keep(&self, link: &Arc<Link>) -> Infallible {
        let mut jobs = FuturesUnordered::new();
        loop {
            while jobs.len() < MOST_JOBS {
                let Some(job) = self.interests().next_job() else { break };
                jobs.push(async move { (say(link, &job).await, job) });
            }
            tokio::select! {
                Some((reply, job)) = jobs.next(), if !jobs.is_empty() => {
                    let Some(reply) = reply else { continue };
                    let missed = self.interests().answered(&job, reply);
                    self.tell(&missed);
                }
                () = self.bell.notified() => {}
            }
        }
    }

    pub fn link_down(&self) {
        self.interests().link_down();
    }

    /// No code that holds this lock is meant to panic.
    fn interests(&self) -> MutexGuard<'_, Interests> {
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who waits for how a wish stands.
struct Waiter<'a> {
    register: &'a Register,
    mailbox: &'a Mailbox,
    native: &'a str,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.register.interests().withdraw(self.mailbox, self.native);
        self.register.bell.notify_one();
    }
}

impl Holder for Register {
    fn release(&self, mailbox: &Mailbox) {
        let ended = self.interests().release(mailbox);
        self.bell.notify_one();
        self.inbox.emit(&Event::SubscriptionsReleased { server: self.inbox.server(), count: ended.len() });
    }

    fn tell_missed(&self, mailbox: &Mailbox) {
        let missed = self.interests().of(mailbox).to_vec();
        self.tell(&missed);
    }
}

/// What the backend makes of a job; nothing when the link is over, which ends all jobs.
async fn say(link: &Arc<Link>, job: &Job) -> Option<Reply> {
    let method = if job.subscribes { Method::Subscribe } else { Method::Unsubscribe };
    let params = format!(r#"{{"uri":{}}}"#, quote(&job.native));
    let answer = match tokio::time::timeout(JOB_PATIENCE, link.ask(&method, &params)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(LinkError::SessionLost)) => return None,
        Ok(Err(error)) => {
            let is_over = tokio::time::timeout(LINK_PATIENCE, link.closed()).await.is_ok();
            return (!is_over).then(|| Reply::Failed(error.to_string().into()));
        }
        Err(_) => return Some(Reply::Failed(format!("it did not answer {method} in {JOB_PATIENCE:?}").into())),
    };
    Some(match answer.outcome {
        Answer::Result(_) => Reply::Done,
        Answer::Error(error) => {
            let text = answer.raw.as_str();
            let code = json::member(text, error, "code").map(|code| code.get(text));
            if code == Some("-32601") { Reply::Unknown } else { Reply::Refused(Arc::new(answer)) }
        }
    })
}

/// An update of our own.
fn updated(exposed: &str) -> Bytes {
    protocol::notification(&Method::ResourceUpdated, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}
