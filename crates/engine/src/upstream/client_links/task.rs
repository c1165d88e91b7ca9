//! The task that owns one client's link: connects it on demand, serves it and reconnects it after a loss.
//!
//! Each client that has made a call has one keeper. It connects only for a call or a subscription, and no faster than
//! [`Health`] allows. When the client is gone or the backend stops, the keeper closes the link and ends. Nothing of the
//! link outlives it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_telemetry::Event;
use goblin_wire::{Error, Hello, Method};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use crate::client::caller::{Caller, SessionId};
use crate::client::mailbox::{EvictionGuard, Mailbox};
use crate::upstream::actor::{MIN_SESSION, stopped};
use crate::upstream::client_links::{ClientLink, ClientLinkState, ClientLinksInner, capabilities};
use crate::upstream::dial::DialParams;
use crate::upstream::era::LinkScope;
use crate::upstream::health::{self, Health};
use crate::upstream::inbound::{InboundHandler, LinkOwner};
use crate::upstream::link::{Link, LinkEnd};

/// The time that a call waits for the slot of a link that is closing.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);
/// Calls wait for a pause of at most this length before the next attempt. During a longer pause they fail at once.
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// The longest delay of a new link by the request that sets its log level.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The owner of one client's link.
pub(crate) struct ClientLinkTask {
    shared: Arc<ClientLinksInner>,
    session: SessionId,
    caller: Caller,
    mailbox: Arc<Mailbox>,
    own: Arc<ClientLink>,
    told: mpsc::Receiver<Bytes>,
    health: Health,
    /// The earliest time of the next attempt.
    pause_ends: Instant,
    failures: u64,
    /// The reason why the last attempt failed or the last link was lost.
    trouble: Option<String>,
    _alive: watch::Receiver<()>,
}

/// A connected link.
struct ConnectedLink {
    link: Arc<Link>,
    hello: Arc<Hello>,
    begin: Instant,
    _place: OwnedSemaphorePermit,
    _hold: EvictionGuard,
}

/// Releases waiting calls and the client's entry, however the keeper ends. The next call of the client starts a new
/// keeper.
impl Drop for ClientLinkTask {
    fn drop(&mut self) {
        self.own.standing.send_replace(ClientLinkState::Over);
        self.shared.clients().remove(&self.session);
        self.shared.kinds().retain(|_, session| *session != self.session);
        // A caller may have found this register just before. Close it, so that no subscription is added without a
        // keeper.
        self.own.register.close();
    }
}

impl ClientLinkTask {
    pub(crate) fn new(
        shared: &Arc<ClientLinksInner>,
        session: SessionId,
        client: LinkOwner,
        own: &Arc<ClientLink>,
        told: mpsc::Receiver<Bytes>,
    ) -> ClientLinkTask {
        ClientLinkTask {
            shared: Arc::clone(shared),
            session,
            caller: client.caller,
            mailbox: client.mailbox,
            own: Arc::clone(own),
            told,
            health: Health::default(),
            pause_ends: Instant::now(),
            failures: 0,
            trouble: None,
            _alive: shared.keepers.subscribe(),
        }
    }

    /// Waits for a call or a subscription, connects and serves the link, and repeats.
    pub(crate) async fn run(mut self) {
        let mut standing = self.own.standing.subscribe();
        loop {
            let over = self.over();
            let (register, pause_ends) = (Arc::clone(&self.own.register), self.pause_ends);
            let subscribed = async move {
                register.wanted().await;
                tokio::time::sleep_until(pause_ends.into()).await;
            };
            tokio::select! {
                biased;
                () = over => return,
                // `self` owns the sender, so the channel cannot close during the wait.
                _ = standing.wait_for(|standing| matches!(standing, ClientLinkState::Wanted { .. })) => {}
                // A subscribed client needs the link for updates, even if it makes no call.
                () = subscribed => self.own.want(),
            }
            match self.open().await {
                Ok(Some(open)) => {
                    if self.serve(open).await.is_over() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.failures += 1;
                    self.go_down(Some(error));
                }
            }
        }
    }

    /// Waits until the client is gone, its link is idle or the backend stops.
    fn over(&self) -> impl Future<Output = ()> + use<> {
        let (mut stop, mailbox, own) = (self.shared.stop.clone(), Arc::clone(&self.mailbox), Arc::clone(&self.own));
        async move {
            tokio::select! {
                () = stopped(&mut stop) => {}
                () = mailbox.closed() => {}
                () = own.unused() => {}
            }
        }
    }

    /// Connects the link and sets its log level. Returns `None` if the keeper must end first.
    async fn open(&mut self) -> Result<Option<ConnectedLink>, Error> {
        let begin = Instant::now();
        let over = self.over();
        tokio::pin!(over);
        let place = tokio::select! {
            biased;
            () = &mut over => return Ok(None),
            place = self.place() => place?,
        };
        let (shared, caller, mailbox) = (&self.shared, &self.caller, &self.mailbox);
        let register = &self.own.register;
        let client = || LinkOwner { caller: caller.clone(), mailbox: Arc::clone(mailbox) };
        let greeting = DialParams {
            capabilities: &capabilities(&caller.abilities, shared.config.declare),
            inbound: || InboundHandler::own(Arc::clone(register), &shared.config, client(), shared.patience),
            whom: if caller.dialect.has_handshake() { LinkScope::WithHandshake } else { LinkScope::All },
            is_retry: self.trouble.is_some(),
        };
        let (link, hello) = match shared.dialler.dial(greeting, &mut over).await {
            Ok(Some(shaken)) => shaken,
            Ok(None) => return Ok(None),
            Err(reason) => return Err(self.on_failure(reason)),
        };
        let open = ConnectedLink { link, hello, begin: Instant::now(), _place: place, _hold: self.mailbox.hold() };
        self.health.connected(open.begin);
        self.trouble = None;
        let (server, session) = (self.shared.inbox.server(), &*self.session.short());
        self.emit(&Event::OwnLinkOpened { server, session, took: begin.elapsed() });
        tokio::select! {
            // `serve` checks the same condition again.
            () = &mut over => {}
            _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, self.set_level(&open)) => {}
        }
        Ok(Some(open))
    }

    /// Waits for the pause after earlier failures and for a free slot. Returns an error if the pause is long or no slot
    /// becomes free.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        let pause = self.pause_ends.saturating_duration_since(Instant::now());
        if pause > MAX_PAUSE {
            return Err(self.shared.unavailable(self.trouble.as_deref().unwrap_or("it fails too often")));
        }
        tokio::time::sleep(pause).await;
        let room = Arc::clone(&self.shared.room).acquire_owned();
        match tokio::time::timeout(SLOT_TIMEOUT, room).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Error::LimitExceeded { limit: "maxClients", value: self.shared.config.max_clients }),
        }
    }

    /// Publishes the link for calls and forwards the client's notifications, until the link or the client ends.
    async fn serve(&mut self, open: ConnectedLink) -> ServeEnd {
        let register = Arc::clone(&self.own.register);
        register.link_up(open.hello.capabilities.subscribe);
        self.own.standing.send_replace(ClientLinkState::Up(Arc::clone(&open.link)));
        let over = self.over();
        let left = tokio::select! {
            biased;
            () = over => ServeEnd::Over,
            end = open.link.closed() => ServeEnd::Lost(end),
            () = self.pass_on(&open) => ServeEnd::Over,
            never = register.keep(&open.link, &open.hello) => match never {},
        };
        register.link_down();
        match &left {
            ServeEnd::Over => {
                self.own.standing.send_replace(ClientLinkState::Over);
                let (server, session) = (self.shared.inbox.server(), &*self.session.short());
                self.emit(&Event::OwnLinkEnded { server, session });
            }
            ServeEnd::Lost(end) => self.on_loss(end, open.begin.elapsed()),
        }
        open.link.close().await;
        left
    }

    /// Forwards the client's notifications in order. Drops and counts those that the link rejects.
    async fn pass_on(&mut self, open: &ConnectedLink) {
        loop {
            let own = Arc::clone(&self.own);
            tokio::select! {
                biased;
                message = self.told.recv() => {
                    let Some(message) = message else { return };
                    // A version without a handshake has no state that a client's notification could change.
                    if open.hello.dialect.has_handshake() && open.link.notify(message).await.is_err() {
                        self.emit(&Event::AsideDropped { server: self.shared.inbox.server() });
                    }
                }
                () = own.level.notified() => {
                    // Later notifications wait meanwhile, to preserve the order.
                    let _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, self.set_level(open)).await;
                }
            }
        }
    }

    /// Sends the log level that the client requested, if the backend supports log levels.
    async fn set_level(&self, open: &ConnectedLink) {
        let can_set = open.hello.capabilities.logging && open.hello.dialect.has_handshake();
        let Some(level) = self.mailbox.asked_level().filter(|_| can_set) else { return };
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        // A rejection is harmless: the gateway filters log messages by the client's level in any case.
        let _ = open.link.ask(&Method::SetLevel, &params).await;
    }

    fn on_failure(&mut self, reason: String) -> Error {
        let (server, session, repeated) =
            (self.shared.inbox.server(), &*self.session.short(), self.trouble.as_deref() == Some(&*reason));
        self.emit(&Event::OwnLinkFailed { server, session, reason: &reason, repeated });
        let error = self.shared.unavailable(&reason);
        self.rest(reason);
        error
    }

    fn on_loss(&mut self, end: &LinkEnd, lasted: Duration) {
        let (reason, is_rest_due) = match end {
            LinkEnd::Lost(reason) => (reason.as_str(), true),
            // The backend is alive and only forgot the session, so no pause is due. Forgetting a new session at once
            // counts as a failure.
            LinkEnd::Forgotten => ("it forgot the session", lasted < MIN_SESSION),
        };
        let (server, session) = (self.shared.inbox.server(), &*self.session.short());
        self.emit(&Event::OwnLinkLost { server, session, reason });
        if is_rest_due {
            self.rest(reason.to_owned());
        }
        self.go_down(None);
    }

    /// Records a failure and computes the pause before the next attempt.
    fn rest(&mut self, reason: String) {
        let now = Instant::now();
        self.pause_ends = now + self.health.failed(now, health::jitter());
        self.trouble = Some(reason);
    }

    fn go_down(&mut self, error: Option<Error>) {
        // Queued notifications refer to the old connection, so drop them.
        while self.told.try_recv().is_ok() {}
        self.own.standing.send_replace(ClientLinkState::Down { failures: self.failures, error });
    }

    fn emit(&self, event: &Event<'_>) {
        self.shared.inbox.emit(event);
    }
}

/// The reason why `serve` ended.
enum ServeEnd {
    Over,
    Lost(LinkEnd),
}

impl ServeEnd {
    fn is_over(&self) -> bool {
        matches!(self, ServeEnd::Over)
    }
}
