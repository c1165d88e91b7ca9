//! Remembers the client's subscriptions, so that every new session gets them again.
//!
//! A subscription belongs to one session. In a new session the bridge repeats the client's request. It then sends the
//! client one `updated`, because changes may have been missed. Subscribing twice has the same effect as once, so a
//! broken attempt is repeated. A rejected one is repeated whenever the resource list changes: a gateway that has just
//! started may not know every resource. Requests in a batch are not tracked.
//!
//! The names of a subscription are in `_meta` of its result, which the gateway adds only for clients that use the
//! extension. For all other clients the bridge sends an option that changes nothing else, and removes the `_meta`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use goblin_telemetry::clean;
use goblin_wire::extensions::{META_PREFIX, has_option};
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::{Id, Message, Method, Outcome, Request, Response};
use http::StatusCode;
use parking_lot::MutexGuard;

use crate::bridge::message::{ClientMessage, ClientMessageKind, GatewayMessage, response};
use crate::bridge::session::{GatewaySession, backoff};
use crate::bridge::wire::ResponseMessages;
use crate::bridge::{Bridge, ClientOutput};

/// The maximum number of remembered subscriptions. Those above it end with their session; the gateway has its own
/// limit.
const MAX_SUBSCRIPTIONS: usize = 10_000;
/// The maximum number of concurrent requests to subscribe again.
const MAX_CONCURRENT: usize = 8;
/// The timeout for one such request. The gateway may have to ask a backend.
const RESUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(60);
/// An option at its default value. It requests the names of the subscription and changes nothing else.
const DEFAULT_OPTION: &str = r#""dev.goblin/priority":0"#;

#[derive(Default)]
pub(crate) struct RememberedSubscriptions {
    /// The subscriptions, by the URI that the client used.
    active: HashMap<String, ActiveSubscription>,
    /// The subscribe requests without a response.
    open: HashMap<Id, UnansweredSubscribe>,
}

struct UnansweredSubscribe {
    uri: String,
    body: Bytes,
    /// Whether the client did not ask for the names in the result.
    hides_names: bool,
}

struct ActiveSubscription {
    body: Bytes,
    /// The names from the gateway's response to the client: its spelling of the URI, and an id.
    names: SubscriptionKeys,
    /// The session that has the subscription.
    session: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct SubscriptionKeys {
    uri: Option<String>,
    id: Option<String>,
}

/// A subscription that the current session does not have.
struct StaleSubscription {
    uri: String,
    body: Bytes,
}

/// The result of subscribing again.
#[derive(Debug, PartialEq, Eq)]
enum ResubscribeOutcome {
    Done,
    /// The gateway rejected the request. It may accept it after the resource list changed.
    Rejected,
    Broken,
}

impl RememberedSubscriptions {
    /// Tracks an outgoing subscribe or unsubscribe request. A subscribe without an option gets one if the client did not
    /// declare the extension. An unsubscribe that names a subscription id gets the URI instead: the id may belong to an
    /// earlier session.
    pub(crate) fn observe(&mut self, outgoing: &mut ClientMessage, is_declared: bool) {
        match &outgoing.kind {
            ClientMessageKind::Request(id, Method::Subscribe) => {
                let Some((request, uri)) = subject(&outgoing.body) else { return };
                let with_option = if is_declared { None } else { with_option(&request) };
                let (hides_names, body) = (with_option.is_some(), request.raw.bytes().clone());
                outgoing.body = with_option.unwrap_or_else(|| body.clone());
                self.open.insert(id.clone(), UnansweredSubscribe { uri, body, hides_names });
            }
            ClientMessageKind::Request(_, Method::Unsubscribe) => {
                let Some((request, named)) = subject(&outgoing.body) else { return };
                let Some(uri) = self.find(&named) else { return };
                self.active.remove(&uri);
                if let Some(at) = request.params.uri.filter(|_| named != uri) {
                    let mut edits = Splice::new();
                    edits.replace(at, quote(&uri));
                    outgoing.body = edits.apply(request.raw.bytes());
                }
            }
            _ => {}
        }
    }

    fn find(&self, named: &str) -> Option<String> {
        let matches_name = |(uri, active): &(&String, &ActiveSubscription)| {
            let names = &active.names;
            *uri == named || [&names.uri, &names.id].into_iter().flatten().any(|name| name == named)
        };
        self.active.iter().find(matches_name).map(|(uri, _)| uri.clone())
    }

    /// Handles a response of the gateway in `session`. Returns the response for the client, and `true` if it confirmed
    /// a subscription. A rejection changes nothing: an existing subscription to the same URI stays.
    fn settle(&mut self, answer: Response, session: u64) -> (Response, bool) {
        let Some(open) = answer.id.as_ref().and_then(|id| self.open.remove(id)) else { return (answer, false) };
        let Some(names) = SubscriptionKeys::read(&answer) else { return (answer, false) };
        let answer = if open.hides_names { without_names(answer) } else { answer };
        if self.active.len() >= MAX_SUBSCRIPTIONS && !self.active.contains_key(&open.uri) {
            tracing::warn!(limit = MAX_SUBSCRIPTIONS, "a subscription will be lost if the gateway restarts");
            return (answer, false);
        }
        self.active.insert(open.uri, ActiveSubscription { body: open.body, names, session });
        (answer, true)
    }

    /// Stops tracking a request that ended without a response.
    pub(crate) fn close(&mut self, outgoing: &ClientMessage) {
        if let ClientMessageKind::Request(id, Method::Subscribe) = &outgoing.kind {
            self.open.remove(id);
        }
    }

    /// Marks all subscriptions as missing, because updates may have been lost.
    pub(crate) fn mark_stale(&mut self) {
        self.active.values_mut().for_each(|active| active.session = 0);
    }

    fn stale(&self, session: u64) -> Vec<StaleSubscription> {
        let stale = self.active.iter().filter(|(_, active)| active.session != session);
        stale.map(|(uri, active)| StaleSubscription { uri: uri.clone(), body: active.body.clone() }).collect()
    }

    /// Marks a subscription as held by `session`. Returns its URI as the client knows it, or `None` if the client
    /// unsubscribed.
    fn renew(&mut self, uri: &str, session: u64) -> Option<String> {
        let active = self.active.get_mut(uri)?;
        active.session = session;
        Some(active.names.uri.clone().unwrap_or_else(|| uri.to_owned()))
    }
}

impl SubscriptionKeys {
    /// Reads the names in a response. Returns `None` if the response is an error.
    fn read(answer: &Response) -> Option<SubscriptionKeys> {
        let Outcome::Result(result) = answer.outcome else { return None };
        let text = answer.raw.as_str();
        let name = |key| {
            let name = json::member(text, json::member(text, result, "_meta")?, key)?;
            json::string(text, name).map(|name| name.into_owned())
        };
        Some(SubscriptionKeys { uri: name("dev.goblin/uri"), id: name("dev.goblin/subscriptionId") })
    }
}

/// Returns the request with an option. Returns `None` if the request has one, or no place for it.
fn with_option(request: &Request) -> Option<Bytes> {
    let (text, mut edits) = (request.raw.as_str(), Splice::new());
    match request.params.meta {
        Some(meta) if has_option(text, meta) || !meta.get(text).starts_with('{') => return None,
        Some(meta) => json::prepend(text, meta, DEFAULT_OPTION, &mut edits),
        None => {
            let at = request.params.whole?;
            json::prepend(text, at, &format!(r#""_meta":{{{DEFAULT_OPTION}}}"#), &mut edits);
        }
    }
    Some(edits.apply(request.raw.bytes()))
}

/// Removes the gateway's members from `_meta` of a result, and a `_meta` that is then empty.
fn without_names(answer: Response) -> Response {
    let (text, result) = (answer.raw.as_str(), answer.outcome.span());
    let Some(meta) = json::member(text, result, "_meta") else { return answer };
    let mut edits = Splice::new();
    if json::cut_members(text, meta, |key| key.starts_with(META_PREFIX), &mut edits) == 0 {
        edits = Splice::new();
        json::cut_members(text, result, |key| key == "_meta", &mut edits);
    }
    response(&edits.apply(answer.raw.bytes())).unwrap_or(answer)
}

/// Returns the request in `body` and its URI.
fn subject(body: &Bytes) -> Option<(Request, String)> {
    let Ok(Message::Request(request)) = Message::parse(body.clone()) else { return None };
    let uri = json::string(request.raw.as_str(), request.params.uri?)?.into_owned();
    Some((request, uri))
}

/// Subscribes again in every new session, until the task is aborted.
pub(crate) async fn maintain(bridge: Arc<Bridge>, output: ClientOutput) {
    let mut backoff = backoff();
    let mut sessions = bridge.session.subscribe();
    loop {
        let session = sessions.borrow_and_update().clone();
        let stale = bridge.subscriptions().stale(session.generation);
        let again = stale.into_iter().map(|stale| bridge.subscribe_again(stale, &session, &output));
        let outcomes: Vec<ResubscribeOutcome> = stream::iter(again).buffer_unordered(MAX_CONCURRENT).collect().await;
        let is_broken = outcomes.contains(&ResubscribeOutcome::Broken);
        tokio::select! {
            _ = sessions.changed() => {}
            () = bridge.stale_subscriptions.notified() => {}
            () = tokio::time::sleep(backoff.pause()), if is_broken => {}
        }
    }
}

impl Bridge {
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, RememberedSubscriptions> {
        self.subscriptions.lock()
    }

    /// Records the response to a subscribe request. Returns the response for the client.
    pub(crate) fn settle_subscription(&self, answer: Response, session: &GatewaySession) -> Response {
        let (answer, is_confirmed) = self.subscriptions().settle(answer, session.generation);
        if is_confirmed {
            self.stale_subscriptions.notify_one();
        }
        answer
    }

    async fn subscribe_again(
        &self,
        stale: StaleSubscription,
        session: &GatewaySession,
        output: &ClientOutput,
    ) -> ResubscribeOutcome {
        let answer = tokio::time::timeout(RESUBSCRIBE_TIMEOUT, self.answer_to(stale.body, session, output)).await;
        let Some(answer) = answer.ok().flatten() else { return ResubscribeOutcome::Broken };
        if let Outcome::Error(error) = answer.outcome {
            let (uri, error) = (clean(&stale.uri), clean(answer.raw.get(error)));
            tracing::info!(uri, error, "the gateway rejected a subscription after its restart");
            return ResubscribeOutcome::Rejected;
        }
        let known = self.subscriptions().renew(&stale.uri, session.generation);
        if let Some(known) = known {
            let params = format!(r#"{{"uri":{}}}"#, quote(&known));
            let _ = output.send(goblin_wire::notification(&Method::ResourceUpdated, Some(&params))).await;
        }
        ResubscribeOutcome::Done
    }

    async fn answer_to(&self, body: Bytes, session: &GatewaySession, output: &ClientOutput) -> Option<Response> {
        let response = self.wire.post(body, &session.headers).await.ok()?;
        match response.status() {
            StatusCode::NOT_FOUND => {
                self.mark_lost(session);
                return None;
            }
            status if status.is_server_error() => return None,
            _ => {}
        }
        let mut answers = ResponseMessages::new(response);
        loop {
            let message = answers.next_message().await.ok().flatten()?;
            for message in GatewayMessage::read(message, &mut Vec::new()).unwrap_or_default() {
                match message {
                    GatewayMessage::Answer(answer) => return Some(answer),
                    other => self.deliver(other, session, output).await.ok()?,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, id: u64, uri: &str) -> ClientMessage {
        let params = format!(r#"{{"uri":{}}}"#, quote(uri));
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{params}}}"#);
        ClientMessage::unpack(line.into()).remove(0)
    }

    fn answer(id: u64, rest: &str) -> Response {
        match Message::parse(format!(r#"{{"jsonrpc":"2.0","id":{id},{rest}}}"#).into()) {
            Ok(Message::Response(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn subscribed(uri: &str, rest: &str) -> RememberedSubscriptions {
        let mut subscriptions = RememberedSubscriptions::default();
        subscriptions.observe(&mut request("subscribe", 1, uri), false);
        subscriptions.settle(answer(1, rest), 1);
        subscriptions
    }

    fn stale(subscriptions: &RememberedSubscriptions, session: u64) -> Vec<String> {
        subscriptions.stale(session).into_iter().map(|stale| stale.uri).collect()
    }

    #[test]
    fn an_accepted_subscription_is_renewed_in_the_next_session() {
        let mut subscriptions = subscribed("a:b", r#""result":{}"#);
        assert!(stale(&subscriptions, 1).is_empty());
        assert_eq!(stale(&subscriptions, 2), ["a:b"]);
        assert_eq!(subscriptions.renew("a:b", 2).as_deref(), Some("a:b"));
        assert!(stale(&subscriptions, 2).is_empty());
        subscriptions.mark_stale();
        assert_eq!(stale(&subscriptions, 2), ["a:b"]);
    }

    #[test]
    fn a_rejected_or_unanswered_subscription_is_not_renewed() {
        assert!(stale(&subscribed("a:b", r#""error":{"code":1,"message":"no"}"#), 2).is_empty());
        let mut subscriptions = RememberedSubscriptions::default();
        let mut subscribe = request("subscribe", 1, "a:b");
        subscriptions.observe(&mut subscribe, false);
        subscriptions.close(&subscribe);
        subscriptions.settle(answer(1, r#""result":{}"#), 1);
        assert!(stale(&subscriptions, 2).is_empty());
    }

    #[test]
    fn a_rejected_change_keeps_the_earlier_subscription() {
        let mut subscriptions = subscribed("a:b", r#""result":{}"#);
        subscriptions.observe(&mut request("subscribe", 2, "a:b"), false);
        subscriptions.settle(answer(2, r#""error":{"code":1,"message":"no"}"#), 1);
        assert_eq!(stale(&subscriptions, 2), ["a:b"]);
    }

    #[test]
    fn an_unsubscribe_by_any_name_ends_the_subscription_and_sends_its_uri() {
        let meta = r#"{"dev.goblin/uri":"s+a:b","dev.goblin/subscriptionId":"urn:uuid:1"}"#;
        for (named, expected, is_left) in
            [("a:b", "a:b", false), ("s+a:b", "a:b", false), ("urn:uuid:1", "a:b", false), ("x:y", "x:y", true)]
        {
            let mut subscriptions = subscribed("a:b", &format!(r#""result":{{"_meta":{meta}}}"#));
            let mut ending = request("unsubscribe", 2, named);
            subscriptions.observe(&mut ending, false);
            assert_eq!(ending.body, request("unsubscribe", 2, expected).body, "{named}");
            assert_eq!(!stale(&subscriptions, 2).is_empty(), is_left, "{named}");
        }
    }

    #[test]
    fn d22_a_client_that_did_not_ask_for_names_gets_an_empty_result() {
        let names = r#""dev.goblin/uri":"s+a:b","dev.goblin/subscriptionId":"urn:uuid:1""#;
        let check = |params: &str, is_declared, sent: &str, received: &str| {
            let line = |params: &str| {
                let head = r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":"#;
                format!("{head}{params}}}")
            };
            let mut subscriptions = RememberedSubscriptions::default();
            let mut outgoing = ClientMessage::unpack(line(params).into()).remove(0);
            subscriptions.observe(&mut outgoing, is_declared);
            assert_eq!(String::from_utf8_lossy(&outgoing.body), line(sent));
            let result = format!(r#""result":{{"_meta":{{{names}}}}}"#);
            let (answer, is_confirmed) = subscriptions.settle(answer(1, &result), 1);
            assert!(is_confirmed);
            assert_eq!(answer.raw.get(answer.outcome.span()), received, "{params}");
            assert_eq!(subscriptions.find("urn:uuid:1").as_deref(), Some("a:b"), "the bridge knows the id");
            let again = subscriptions.stale(2).remove(0).body;
            assert_eq!(String::from_utf8_lossy(&again), line(params), "the client's own request is repeated");
        };
        let kept = format!(r#"{{"_meta":{{{names}}}}}"#);
        let bare = r#"{"uri":"a:b"}"#;
        check(bare, false, r#"{"_meta":{"dev.goblin/priority":0},"uri":"a:b"}"#, "{}");
        check(bare, true, bare, &kept);
        let other = r#"{"uri":"a:b","_meta":{"x":1}}"#;
        check(other, false, r#"{"uri":"a:b","_meta":{"dev.goblin/priority":0,"x":1}}"#, "{}");
        let asked = r#"{"uri":"a:b","_meta":{"dev.goblin/batchMs":0}}"#;
        check(asked, false, asked, &kept);
    }

    #[test]
    fn d22_only_the_members_of_the_gateway_are_removed() {
        let check = |result: &str, expected: &str| {
            let answer = without_names(answer(1, &format!(r#""result":{result}"#)));
            assert_eq!(answer.raw.get(answer.outcome.span()), expected);
        };
        check("{}", "{}");
        check(r#"{"_meta":{"dev.goblin/uri":"a","x":1}}"#, r#"{"_meta":{"x":1}}"#);
        check(r#"{"a":1,"_meta":{"dev.goblin/uri":"a"},"b":2}"#, r#"{"a":1,"b":2}"#);
    }
}
