//! `resources/subscribe` and `resources/unsubscribe`.
//!
//! A plain request means what the protocol says. What a client may ask for beyond it stands in `_meta` under `dev.goblin/`;
//! what is not known there is refused by name, so that nobody waits for what will not come.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::register::{Register, Subscribed};
use crate::backend::{Backend, CallEnd};
use crate::catalog::resources::Owner;
use crate::lane::Call;
use crate::mailbox::tally::{Full, Place};
use crate::mailbox::updates::Pace;
use crate::observe::Event;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Pieces, Span, Splice, quote};
use crate::protocol::params::required;
use crate::protocol::{self, Outcome as Answer, Request, Response};
use crate::router::{Router, find_resource};
use crate::subscriptions::id::SubscriptionId;
use crate::subscriptions::{Outcome, Wish};

const PREFIX: &str = "dev.goblin/";
/// Longer waits than this make no sense for something that says "look again".
const LONGEST_WAIT: u64 = 3_600_000;

impl Router {
    pub(super) async fn subscribe(&self, call: &Arc<Call>) -> Result<Pieces, CallEnd> {
        let request = &call.request;
        let uri = required(request.raw.as_str(), request.params.uri, "uri")?;
        let pace = read_pace(request)?;
        let (catalog, Owner { source, native, .. }) =
            self.look_up(|view| find_resource(view, &uri), &call.caller).await?;
        let exposed: Arc<str> = catalog.resources.expose(&catalog.sources, source, &native).into();
        let backend = &catalog.source(source).backend;
        let Some(client) = call.caller.session else {
            return Err(Error::InvalidRequest("a subscription needs a session".to_owned()).into());
        };
        let register = tokio::select! {
            register = backend.register_for(call) => register?,
            _ = call.ended() => return Err(CallEnd::Cancelled),
        };
        let mailbox = Arc::clone(&call.mailbox);
        let wish = Wish { client, mailbox, native: native.into(), exposed: Arc::clone(&exposed), pace };
        let place = || self.place(call);
        let subscribed = tokio::select! {
            subscribed = register.subscribe(wish, place) => subscribed?,
            _ = call.ended() => return Err(CallEnd::Cancelled),
        };
        let Some(Subscribed { subscription, outcome }) = subscribed else { return Err(CallEnd::Cancelled) };
        let state = match outcome {
            Outcome::Subscribed => "subscribed",
            Outcome::Tracked => "tracked",
            Outcome::Pending => "pending",
            Outcome::Refused(response) => return Ok(refusal(request, &response)),
            Outcome::Failed(reason) => {
                let (server, reason) = (backend.id.to_string(), reason.to_string());
                return Err(Error::BackendUnavailable { server, reason, sent: true }.into());
            }
        };
        let (server, session) = (backend.id.as_str(), &*client.short());
        self.observe.emit(&Event::Subscribed { server, uri: &exposed, session, state });
        let state = if state == "pending" { r#","dev.goblin/state":"pending""# } else { "" };
        let id = subscription.id;
        let names = format!(r#""{PREFIX}uri":{},"{PREFIX}server":{}"#, quote(&exposed), quote(server));
        let meta = format!(r#"{{"{PREFIX}subscriptionId":"{id}",{names}{state}}}"#);
        Ok(protocol::reply(&request.id, format!(r#"{{"_meta":{meta}}}"#)))
    }

    fn place(&self, call: &Call) -> Result<Place, Error> {
        let limits = self.policies.subscriptions;
        let own = (&call.mailbox.subscriptions, limits.per_client);
        Place::new(own, (&self.subscriptions, limits.total)).map_err(|full| match full {
            Full::Client => Error::LimitExceeded { limit: "subscriptions.maxPerClient", value: limits.per_client },
            Full::All => Error::LimitExceeded { limit: "subscriptions.maxTotal", value: limits.total },
        })
    }

    /// What is not subscribed, or not known, is no error: it is as the client wants it.
    pub(super) fn unsubscribe(&self, call: &Call) -> Result<Pieces, Error> {
        let request = &call.request;
        let uri = required(request.raw.as_str(), request.params.uri, "uri")?;
        let (session, mailbox) = (call.caller.session, &*call.mailbox);
        let ended = match uri.parse::<SubscriptionId>() {
            Ok(id) => self.unsubscribe_known(call, |register| register.unsubscribe_id(mailbox, id)),
            // As it is offered now; or else as it was when it was subscribed.
            Err(()) => self
                .unsubscribe_offered(call, &uri)
                .or_else(|| self.unsubscribe_known(call, |register| register.unsubscribe_exposed(mailbox, &uri))),
        };
        if let (Some(backend), Some(session)) = (ended, session) {
            self.observe.emit(&Event::Unsubscribed { server: backend.id.as_str(), session: &session.short() });
        }
        Ok(protocol::reply(&request.id, "{}"))
    }

    /// The backend at which `end` found what to end.
    fn unsubscribe_known(&self, call: &Call, end: impl Fn(&Register) -> bool) -> Option<Arc<Backend>> {
        let has_ended = |register: Arc<Register>| end(&register);
        let backends = self.directory.backends();
        backends.iter().find(|backend| backend.known_register(call.caller.session).is_some_and(has_ended)).cloned()
    }

    fn unsubscribe_offered(&self, call: &Call, uri: &str) -> Option<Arc<Backend>> {
        let catalog = Arc::clone(&self.directory.catalog());
        let owner = find_resource(catalog.view(&call.caller), uri).ok()?;
        let backend = &catalog.source(owner.source).backend;
        let register = backend.known_register(call.caller.session)?;
        register.unsubscribe(&call.mailbox, &owner.native).then(|| Arc::clone(backend))
    }
}

/// The backend's own error. One without data says what it is about.
fn refusal(request: &Request, response: &Response) -> Pieces {
    let text = response.raw.as_str();
    let mut edits = Splice::new();
    if let Answer::Error(error) = response.outcome
        && json::member(text, error, "data").is_none()
        && error.get(text).ends_with('}')
    {
        let comma = if json::members(text, error).next().is_some() { "," } else { "" };
        edits.insert(error.end - 1, format!(r#"{comma}"data":{{"code":"SUBSCRIPTION_FAILED"}}"#));
    }
    response.rekeyed(&request.id, edits)
}

/// How the client wants to be told.
fn read_pace(request: &Request) -> Result<Pace, Error> {
    let text = request.raw.as_str();
    let mut pace = Pace::default();
    let Some(meta) = request.params.meta else { return Ok(pace) };
    for member in json::members(text, meta) {
        let key = member.key(text);
        let Some(option) = key.strip_prefix(PREFIX) else { continue };
        match option {
            "minIntervalMs" => pace.min_interval = millis(text, member.value, &key)?,
            "batchMs" => pace.batch = millis(text, member.value, &key)?,
            "priority" => pace.priority = priority(text, member.value, &key)?,
            _ => return Err(Error::InvalidParams(format!("_meta has the unknown option {}", quote(&key)))),
        }
    }
    Ok(pace)
}

fn millis(text: &str, at: Span, key: &str) -> Result<Duration, Error> {
    let millis = at.get(text).parse().ok().filter(|millis| *millis <= LONGEST_WAIT);
    let wrong = || Error::InvalidParams(format!("{key} must be an integer from 0 to {LONGEST_WAIT}"));
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

fn priority(text: &str, at: Span, key: &str) -> Result<i8, Error> {
    let priority = at.get(text).parse().ok().filter(|priority| (-10..=10).contains(priority));
    priority.ok_or_else(|| Error::InvalidParams(format!("{key} must be an integer from -10 to 10")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;

    fn read(meta: &str) -> Result<Pace, String> {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{{"uri":"a:b","_meta":{meta}}}}}"#
        );
        match Message::parse(text.into()) {
            Ok(Message::Request(request)) => read_pace(&request).map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn subx3_subx4_options_are_read_and_others_refused_by_name() {
        assert_eq!(read(r#"{"other/thing":1,"progressToken":1}"#), Ok(Pace::default()));
        let all = r#"{"dev.goblin/minIntervalMs":250,"dev.goblin/batchMs":0,"dev.goblin/priority":-10}"#;
        let expected = Pace { min_interval: Duration::from_millis(250), batch: Duration::ZERO, priority: -10 };
        assert_eq!(read(all), Ok(expected));
        for (wrong, word) in [
            (r#"{"dev.goblin/minIntervalMs":-1}"#, "minIntervalMs"),
            (r#"{"dev.goblin/minIntervalMs":1.5}"#, "minIntervalMs"),
            (r#"{"dev.goblin/batchMs":"1"}"#, "batchMs"),
            (r#"{"dev.goblin/batchMs":3600001}"#, "3600000"),
            (r#"{"dev.goblin/priority":11}"#, "priority"),
            (r#"{"dev.goblin/whatever":1}"#, "dev.goblin/whatever"),
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}
