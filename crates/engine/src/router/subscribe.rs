//! Handles `resources/subscribe` and `resources/unsubscribe`.
//!
//! Clients set options beyond the protocol in `_meta` under `dev.goblin/`. An unknown option there is rejected by name,
//! so that no client relies on an option without effect.

use std::sync::Arc;
use std::time::Duration;

use goblin_catalog::resources::UriOwner;
use goblin_subscriptions::count::{LimitReached, SubscriptionPermit};
use goblin_subscriptions::glob::UriGlob;
use goblin_subscriptions::id::SubscriptionId;
use goblin_subscriptions::pattern::Pattern;
use goblin_subscriptions::selection::Selection;
use goblin_subscriptions::updates::DeliveryOptions;
use goblin_subscriptions::{SubscribeOutcome, SubscriptionOptions};
use goblin_telemetry::Event;
use goblin_wire::extensions::META_PREFIX as PREFIX;
use goblin_wire::json::{self, Pieces, Span, Splice, quote};
use goblin_wire::params::required;
use goblin_wire::{Error, Outcome as Answer, Request, Response};

use crate::catalog_store::View;
use crate::client::Client;
use crate::client::call::Call;
use crate::client::subscriptions::{SubscribeRequest, Subscription};
use crate::router::{Router, find_resource};
use crate::upstream::problem::public;
use crate::upstream::subscriptions::{SubscribeError, SubscribeResult, SubscriptionManager};
use crate::upstream::{Backend, CallEnd};

/// The longest interval in milliseconds that a client can set.
const MAX_INTERVAL_MS: u64 = 3_600_000;

impl Router {
    /// Subscribes the session of a call. The answer to a client that uses the extension has the subscription's id and
    /// its canonical URI in `_meta`. Others get `{}`, because strict SDKs reject members in an empty result.
    pub(crate) async fn subscribe(&self, call: &Arc<Call>) -> Result<Pieces, CallEnd> {
        let request = &call.request;
        let uri = required(request.raw.as_str(), request.params.uri, "uri")?;
        let SubscribeOptions { pattern, delivery, selection, is_extended } = SubscribeOptions::read(request)?;
        let (catalog, found) = self.look_up(|view| find(view, &uri, pattern), call).await?;
        let backend = &catalog.source(found.source).backend;
        if call.caller.session.is_none() {
            return Err(Error::InvalidRequest("a subscription needs a session".to_owned()).into());
        }
        let options = SubscriptionOptions::new(delivery, selection);
        let SubscribeResult { subscription, outcome } = tokio::select! {
            subscribed = self.register(call, &call.client, backend, found, options) => subscribed?,
            _ = call.ended() => return Err(CallEnd::Cancelled),
        };
        let state = match outcome {
            SubscribeOutcome::Subscribed => "subscribed",
            SubscribeOutcome::Tracked => "tracked",
            SubscribeOutcome::Pending => "pending",
            SubscribeOutcome::Rejected(response) => return Ok(rejection(request, &response, &subscription)),
            SubscribeOutcome::Failed(reason) => {
                let (server, reason) = (backend.id.to_string(), public(&reason));
                return Err(Error::BackendUnavailable { server, reason, sent: true }.into());
            }
            SubscribeOutcome::Late(after) => {
                let (server, method) = (backend.id.to_string(), request.method.to_string());
                return Err(Error::Timeout { server, method, after }.into());
            }
        };
        let (server, session) = (backend.id.as_str(), &*call.client.session_name());
        // Use the name of the subscription, because updates carry it. It may be older than the request.
        let uri = &*subscription.name.exposed;
        self.observe.emit(&Event::Subscribed { server, uri, session, state });
        if !is_extended && !call.client.declares_subscriptions() {
            return Ok(goblin_wire::reply(&request.id, "{}"));
        }
        let state = if state == "pending" { r#","dev.goblin/state":"pending""# } else { "" };
        let id = subscription.id;
        let names = format!(r#""{PREFIX}uri":{},"{PREFIX}server":{}"#, quote(uri), quote(server));
        let meta = format!(r#"{{"{PREFIX}subscriptionId":"{id}",{names}{state}}}"#);
        Ok(goblin_wire::reply(&request.id, format!(r#"{{"_meta":{meta}}}"#)))
    }

    /// Registers a subscription at its backend and waits for the backend's answer.
    async fn register(
        &self,
        call: &Arc<Call>,
        client: &Arc<Client>,
        backend: &Backend,
        found: SubscribeTarget,
        options: SubscriptionOptions,
    ) -> Result<SubscribeResult, CallEnd> {
        let manager = backend.manager_for(call).await?;
        let request = SubscribeRequest {
            subscriber: Arc::clone(client),
            native: found.native,
            exposed: found.exposed,
            pattern: found.pattern,
            is_forwarded: found.is_forwarded,
            options,
        };
        let subscribed = manager.subscribe(request, || self.reserve_place(client)).await;
        subscribed.map_err(|error| self.subscribe_error(error, backend))
    }

    /// Returns an error if an option in `_meta` is unknown or not valid.
    pub(crate) fn check_options(request: &Request) -> Result<(), Error> {
        SubscribeOptions::read(request).map(drop)
    }

    /// Reports whether the catalog has a backend that can notify of changes of this URI.
    pub fn can_subscribe(&self, call: &Call, uri: &str) -> bool {
        let Ok(SubscribeOptions { pattern, .. }) = SubscribeOptions::read(&call.request) else { return false };
        let catalog = self.catalogs.catalog_of(&call.caller);
        let found = find(catalog.view(call.caller.dialect), uri, pattern);
        found.is_ok_and(|found| catalog.source(found.source).backend.can_notify())
    }

    /// Subscribes a `subscriptions/listen` stream to a URI. Returns `false` if the backend does not accept it.
    pub async fn listen_to(&self, call: &Arc<Call>, client: &Arc<Client>, uri: &str) -> bool {
        let subscribing = async {
            let SubscribeOptions { pattern, delivery, selection, .. } = SubscribeOptions::read(&call.request)?;
            let (catalog, found) = self.look_up(|view| find(view, uri, pattern), call).await?;
            let backend = &catalog.source(found.source).backend;
            let subscribed =
                self.register(call, client, backend, found, SubscriptionOptions::new(delivery, selection)).await?;
            Ok::<_, CallEnd>((backend.id.clone(), subscribed))
        };
        let Ok((server, subscribed)) = subscribing.await else { return false };
        let state = match subscribed.outcome {
            SubscribeOutcome::Subscribed => "subscribed",
            SubscribeOutcome::Tracked => "tracked",
            SubscribeOutcome::Pending => "pending",
            SubscribeOutcome::Rejected(_) | SubscribeOutcome::Failed(_) | SubscribeOutcome::Late(_) => "rejected",
        };
        let (server, session) = (server.as_str(), &*client.session_name());
        self.observe.emit(&Event::Subscribed { server, uri, session, state });
        state != "rejected"
    }

    /// Returns the error for a subscription that the backend did not accept.
    fn subscribe_error(&self, error: SubscribeError, backend: &Backend) -> CallEnd {
        let limits = self.policies.load().subscriptions;
        let (limit, value) = match error {
            SubscribeError::Disconnected => return CallEnd::Cancelled,
            SubscribeError::Closed => {
                let reason = "the configuration of the server has just changed".to_owned();
                return Error::BackendUnavailable { server: backend.id.to_string(), reason, sent: false }.into();
            }
            SubscribeError::Full(LimitReached::Client) => ("subscriptions.maxPerClient", limits.per_client),
            SubscribeError::Full(LimitReached::All) => ("subscriptions.maxTotal", limits.total),
            SubscribeError::Full(LimitReached::Upstream) => ("subscriptions.maxUpstream", limits.upstream),
        };
        Error::LimitExceeded { limit, value }.into()
    }

    /// Counts one more subscription of the client. Returns the limit that was reached as an error.
    fn reserve_place(&self, client: &Client) -> Result<SubscriptionPermit, LimitReached> {
        let limits = self.policies.load().subscriptions;
        SubscriptionPermit::new((&client.subscriptions, limits.per_client), (&self.subscriptions, limits.total))
    }

    /// Ends a subscription. An unknown or unsubscribed URI is no error, because the client gets the state it wants.
    pub(crate) fn unsubscribe(&self, call: &Call) -> Result<Pieces, Error> {
        let request = &call.request;
        let uri = required(request.raw.as_str(), request.params.uri, "uri")?;
        let (session, client) = (call.caller.session, &*call.client);
        let ended = match uri.parse::<SubscriptionId>() {
            Ok(id) => self.unsubscribe_known(call, |manager| manager.unsubscribe_id(client, id)),
            // The URI may have the current exposed name, or the one at the time of the subscription.
            Err(()) => self
                .unsubscribe_offered(call, &uri)
                .or_else(|| self.unsubscribe_known(call, |manager| manager.unsubscribe_exposed(client, &uri)))
                .or_else(|| self.unsubscribe_pattern(call, &uri)),
        };
        if let (Some(backend), Some(session)) = (ended, session) {
            self.observe.emit(&Event::Unsubscribed { server: backend.id.as_str(), session: &session.short() });
        }
        Ok(goblin_wire::reply(&request.id, "{}"))
    }

    /// Calls `end` for each backend's subscriptions until it returns `true`. Returns that backend.
    fn unsubscribe_known(&self, call: &Call, end: impl Fn(&SubscriptionManager) -> bool) -> Option<Arc<Backend>> {
        let has_ended = |manager: Arc<SubscriptionManager>| end(&manager);
        let backends = self.catalogs.backends();
        backends.iter().find(|backend| backend.existing_manager(call.caller.session).is_some_and(has_ended)).cloned()
    }

    /// Ends a pattern subscription with a URI that has another exposed form by now.
    fn unsubscribe_pattern(&self, call: &Call, uri: &str) -> Option<Arc<Backend>> {
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        [PatternKind::Template, PatternKind::Glob].into_iter().find_map(|kind| {
            let found = find(catalog.view(call.caller.dialect), uri, Some(kind)).ok()?;
            let backend = &catalog.source(found.source).backend;
            let manager = backend.existing_manager(call.caller.session)?;
            manager.unsubscribe_pattern(&call.client, &found.native).then(|| Arc::clone(backend))
        })
    }

    /// Ends the subscription to a URI that the catalog currently offers.
    fn unsubscribe_offered(&self, call: &Call, uri: &str) -> Option<Arc<Backend>> {
        let catalog = Arc::clone(&self.catalogs.catalog_of(&call.caller));
        let owner = find_resource(catalog.view(call.caller.dialect), uri).ok()?;
        let backend = &catalog.source(owner.source).backend;
        let manager = backend.existing_manager(call.caller.session)?;
        manager.unsubscribe(&call.client, &owner.native).then(|| Arc::clone(backend))
    }
}

/// Returns the backend's error with the exposed URI. Adds a code to an error without data.
fn rejection(request: &Request, response: &Response, subscription: &Subscription) -> Pieces {
    let text = response.raw.as_str();
    let mut edits = Splice::new();
    let Answer::Error(error) = response.outcome else { return response.rekeyed(&request.id, edits) };
    match json::member(text, error, "data") {
        Some(data) => {
            let uri = json::member(text, data, "uri");
            let is_native = |at: &Span| json::string(text, *at).is_some_and(|uri| *uri == *subscription.name.native);
            if let Some(at) = uri.filter(is_native) {
                edits.replace(at, quote(&subscription.name.exposed));
            }
        }
        None if error.get(text).ends_with('}') => {
            let comma = if json::members(text, error).next().is_some() { "," } else { "" };
            edits.insert(error.end - 1, format!(r#"{comma}"data":{{"code":"SUBSCRIPTION_FAILED"}}"#));
        }
        None => {}
    }
    response.rekeyed(&request.id, edits)
}

/// The resource or pattern to subscribe to, and its backend.
struct SubscribeTarget {
    source: usize,
    native: Arc<str>,
    exposed: Arc<str>,
    pattern: Option<Arc<Pattern>>,
    /// Whether the backend receives the URI although it does not offer it.
    is_forwarded: bool,
}

/// Looks up a URI, a template or a glob in the catalog. A glob need not match a listed resource.
fn find(view: View<'_>, uri: &str, kind: Option<PatternKind>) -> Result<SubscribeTarget, Error> {
    let resources = &view.catalog.resources;
    match kind {
        None => {
            let UriOwner { source, native, is_forwarded, .. } = find_resource(view, uri)?;
            let exposed = resources.expose(source, &native).into();
            Ok(SubscribeTarget { source, native: native.into(), exposed, pattern: None, is_forwarded })
        }
        Some(PatternKind::Template) => {
            let missing = || Error::ResourceNotFound { uri: uri.to_owned(), candidates: Vec::new() };
            let entry = resources.find_template(uri).ok_or_else(missing)?;
            let unusable = || Error::InvalidParams(format!("the template {} is not an RFC 6570 template", quote(uri)));
            let template = entry.template.clone().ok_or_else(unusable)?;
            let (native, exposed) = (Arc::from(&*entry.native), Arc::from(&*entry.exposed));
            Ok(SubscribeTarget {
                source: entry.source,
                native,
                exposed,
                pattern: Some(Arc::new(Pattern::Template(template))),
                is_forwarded: false,
            })
        }
        Some(PatternKind::Glob) => {
            let (source, native) = resources.find_server(uri)?;
            let glob = UriGlob::parse(&native)
                .map_err(|error| Error::InvalidParams(format!("uri is not a valid glob: {error}")))?;
            let exposed = resources.expose(source, &native).into();
            let pattern = Some(Arc::new(Pattern::Glob(glob)));
            Ok(SubscribeTarget { source, native: native.into(), exposed, pattern, is_forwarded: false })
        }
    }
}

/// The options that a client can set in `_meta`.
#[derive(Debug, Default, PartialEq)]
struct SubscribeOptions {
    pattern: Option<PatternKind>,
    delivery: DeliveryOptions,
    selection: Option<Selection>,
    /// Whether the client set any option, so that it expects the members of the extension.
    is_extended: bool,
}

/// The kind of a pattern subscription.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PatternKind {
    Glob,
    Template,
}

impl SubscribeOptions {
    /// Reads the options under `dev.goblin/`. Ignores all other members of `_meta`.
    fn read(request: &Request) -> Result<SubscribeOptions, Error> {
        let text = request.raw.as_str();
        let mut options = SubscribeOptions::default();
        let Some(meta) = request.params.meta else { return Ok(options) };
        for member in json::members(text, meta) {
            let (key, value) = (member.key(text), member.value);
            let Some(option) = key.strip_prefix(PREFIX) else { continue };
            options.is_extended = true;
            match option {
                "minIntervalMs" => options.delivery.min_interval = millis(text, value, &key)?,
                "batchMs" => options.delivery.batch = millis(text, value, &key)?,
                "priority" => options.delivery.priority = priority(text, value, &key)?,
                "pattern" => options.pattern = Some(kind(text, value, &key)?),
                "fields" => options.selection = Some(fields(text, value, &key)?),
                _ => return Err(Error::InvalidParams(format!("_meta has the unknown option {}", quote(&key)))),
            }
        }
        Ok(options)
    }
}

fn kind(text: &str, at: Span, key: &str) -> Result<PatternKind, Error> {
    match json::string(text, at).as_deref() {
        Some("glob") => Ok(PatternKind::Glob),
        Some("template") => Ok(PatternKind::Template),
        _ => Err(Error::InvalidParams(format!("{key} must be \"glob\" or \"template\""))),
    }
}

fn fields(text: &str, at: Span, key: &str) -> Result<Selection, Error> {
    Selection::parse(text, at).map_err(|wrong| Error::InvalidParams(format!("{key} {wrong}")))
}

fn millis(text: &str, at: Span, key: &str) -> Result<Duration, Error> {
    let millis = at.get(text).parse().ok().filter(|millis| *millis <= MAX_INTERVAL_MS);
    let wrong = || Error::InvalidParams(format!("{key} must be an integer from 0 to {MAX_INTERVAL_MS}"));
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

fn priority(text: &str, at: Span, key: &str) -> Result<i8, Error> {
    let priority = at.get(text).parse().ok().filter(|priority| (-10..=10).contains(priority));
    priority.ok_or_else(|| Error::InvalidParams(format!("{key} must be an integer from -10 to 10")))
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn read(meta: &str) -> Result<SubscribeOptions, String> {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{{"uri":"a:b","_meta":{meta}}}}}"#
        );
        match Message::parse(text.into()) {
            Ok(Message::Request(request)) => SubscribeOptions::read(&request).map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn subx3_subx4_options_are_read_and_invalid_ones_are_rejected_by_name() {
        assert_eq!(read(r#"{"other/thing":1,"progressToken":1}"#), Ok(SubscribeOptions::default()));
        let all = r#"{"dev.goblin/minIntervalMs":250,"dev.goblin/batchMs":0,"dev.goblin/priority":-10}"#;
        let delivery =
            DeliveryOptions { min_interval: Duration::from_millis(250), batch: Duration::ZERO, priority: -10 };
        let extended = || SubscribeOptions { is_extended: true, ..SubscribeOptions::default() };
        assert_eq!(read(all), Ok(SubscribeOptions { delivery, ..extended() }));
        assert_eq!(read(r#"{"dev.goblin/priority":0}"#), Ok(extended()), "the default changes nothing else");
        let glob = SubscribeOptions { pattern: Some(PatternKind::Glob), ..extended() };
        assert_eq!(read(r#"{"dev.goblin/pattern":"glob"}"#), Ok(glob));
        let fields = r#"{"dev.goblin/pattern":"template","dev.goblin/fields":["size"]}"#;
        assert!(
            read(fields)
                .is_ok_and(|options| options.pattern == Some(PatternKind::Template) && options.selection.is_some())
        );
        for (wrong, expected) in [
            (r#"{"dev.goblin/minIntervalMs":-1}"#, "minIntervalMs"),
            (r#"{"dev.goblin/minIntervalMs":1.5}"#, "minIntervalMs"),
            (r#"{"dev.goblin/batchMs":"1"}"#, "batchMs"),
            (r#"{"dev.goblin/batchMs":3600001}"#, "3600000"),
            (r#"{"dev.goblin/priority":11}"#, "priority"),
            (r#"{"dev.goblin/whatever":1}"#, "dev.goblin/whatever"),
            (r#"{"dev.goblin/pattern":"regex"}"#, "dev.goblin/pattern must be \"glob\""),
            (r#"{"dev.goblin/pattern":true}"#, "dev.goblin/pattern"),
            (r#"{"dev.goblin/fields":[]}"#, "dev.goblin/fields must be an array"),
            (r#"{"dev.goblin/fields":["a..b"]}"#, "dev.goblin/fields has the path"),
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
