//! Runs one `subscriptions/listen` request of a client without a session, across restarts of the gateway.
//!
//! The client gets one acknowledgement. If the gateway ends the stream, the bridge opens it again and then notifies the
//! client that everything in its filter may have changed. A gateway that has just started acknowledges only the
//! resources it knows. The bridge therefore also subscribes to changes of the resource list, and opens the stream again
//! once more resources are available. Those list changes reach the client only if it requested them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::listen::ListenFilter;
use goblin_wire::modern::SUBSCRIPTION_ID;
use goblin_wire::{Error, Method, Notification, Outcome, Request, Response};
use tokio::sync::oneshot;

use crate::bridge::message::cancelled_id;
use crate::bridge::session::backoff;
use crate::bridge::stateless::{StreamMessage, answer_to, failure, next_stream_message};
use crate::bridge::wire::{BodyError, ResponseMessages};
use crate::bridge::{Bridge, ClientOutput, SIDE_TIMEOUT};
use crate::events::{STABLE_AFTER, is_temporary};

/// Forwards notifications to the client until the client cancels, stops reading, or the gateway ends the stream for
/// good.
pub(crate) async fn listen(
    bridge: Arc<Bridge>,
    request: Request,
    output: ClientOutput,
    cancelled: oneshot::Receiver<()>,
) {
    let mut listen = ListenRequest { bridge: &bridge, request: &request, output: &output, honoured: None };
    let last = tokio::select! {
        biased;
        cancelled = cancelled => match cancelled {
            Ok(()) => return,
            // The bridge shuts down; the client did not cancel.
            Err(_) => end(&request),
        },
        () = output.closed() => return,
        last = listen.run() => last,
    };
    let _ = output.send(last).await;
}

struct ListenRequest<'a> {
    bridge: &'a Bridge,
    request: &'a Request,
    output: &'a ClientOutput,
    /// The filter that the first acknowledgement confirmed to the client. `None` before it.
    honoured: Option<ListenFilter>,
}

/// The reason why one stream ended.
enum ListenEnd {
    Rejected {
        answer: Bytes,
        may_pass: bool,
    },
    /// The gateway ended the stream in good order, with this last message.
    Ended(Bytes),
    /// The stream broke off, or could not be opened.
    Lost(Error),
    /// Opening the stream again would cover more resources.
    Incomplete,
}

impl ListenRequest<'_> {
    /// Runs streams until one ends for good. Returns the last message for the client.
    async fn run(&mut self) -> Bytes {
        let mut backoff = backoff();
        let mut had_ended = false;
        loop {
            let opened = Instant::now();
            let end = self.run_once().await;
            let lasted = opened.elapsed();
            match end {
                ListenEnd::Rejected { answer, may_pass } if !may_pass || self.honoured.is_none() => return answer,
                ListenEnd::Lost(error) if self.honoured.is_none() => return failure(self.request, &error),
                // A gateway that shuts down ends the stream once. One that ends the next stream at once does not want
                // it.
                ListenEnd::Ended(last) if self.honoured.is_none() || (had_ended && lasted < STABLE_AFTER) => {
                    return last;
                }
                ListenEnd::Incomplete => continue,
                ListenEnd::Ended(_) => had_ended = true,
                ListenEnd::Rejected { .. } | ListenEnd::Lost(_) => had_ended = false,
            }
            tokio::time::sleep(backoff.after(lasted)).await;
        }
    }

    /// Runs one stream, from its opening to its end.
    async fn run_once(&mut self) -> ListenEnd {
        let body = match &self.honoured {
            Some(honoured) if !honoured.uris.is_empty() => with_resource_list(self.request),
            _ => self.request.raw.bytes().clone(),
        };
        let mut answers = match self.open(&body).await {
            Ok(answers) => answers,
            Err(end) => return end,
        };
        let mut missing = BTreeSet::new();
        loop {
            let note = match next_stream_message(&mut answers).await {
                Ok(Some(StreamMessage::Notification(note))) => note,
                Ok(Some(StreamMessage::Answer(answer))) => return self.ended_by(&answer),
                Err(BodyError::TooLarge) => {
                    tracing::warn!("the gateway sent a message that is too large; dropped");
                    continue;
                }
                Ok(None) | Err(BodyError::Lost) => {
                    return ListenEnd::Lost(self.bridge.unavailable("the stream was cut".to_owned(), false));
                }
            };
            match note.method {
                Method::Acknowledged => missing = self.acknowledge(&note).await,
                Method::ResourcesChanged if self.can_resubscribe(&missing).await => return ListenEnd::Incomplete,
                Method::ResourcesChanged if !self.has_resource_list() => {}
                // Some gateways end a stream with a cancellation.
                Method::Cancelled if cancelled_id(&note).as_ref() == Some(&self.request.id) => {
                    return ListenEnd::Ended(note.raw.bytes().clone());
                }
                _ => self.deliver(note.raw.bytes().clone()).await,
            }
        }
    }

    async fn open(&self, body: &Bytes) -> Result<ResponseMessages, ListenEnd> {
        let response =
            self.bridge.post_stateless(body, &self.bridge.headers_of(self.request)).await.map_err(ListenEnd::Lost)?;
        let status = response.status();
        if status.is_success() {
            return Ok(ResponseMessages::new(response));
        }
        let rejection = self.bridge.rejection(response, std::slice::from_ref(&self.request.id)).await;
        let answer = rejection.map_err(ListenEnd::Lost)?;
        Err(ListenEnd::Rejected { answer, may_pass: is_temporary(status) })
    }

    fn ended_by(&self, answer: &Response) -> ListenEnd {
        let last = answer_to(self.request, answer);
        match answer.outcome {
            Outcome::Result(_) => ListenEnd::Ended(last),
            Outcome::Error(error) => {
                ListenEnd::Rejected { answer: last, may_pass: is_retryable(answer.raw.as_str(), error) }
            }
        }
    }

    /// Handles an acknowledgement. The first one is forwarded. After a later one the client may have missed changes, so
    /// it gets notifications for everything. Returns the confirmed resources that this stream does not cover.
    async fn acknowledge(&mut self, note: &Notification) -> BTreeSet<Arc<str>> {
        let now = acknowledged(note);
        let Some(honoured) = &self.honoured else {
            self.honoured = Some(now);
            self.deliver(note.raw.bytes().clone()).await;
            return BTreeSet::new();
        };
        for line in catch_up_notifications(self.request, honoured, &now) {
            self.deliver(line).await;
        }
        honoured.uris.difference(&now.uris).cloned().collect()
    }

    /// Reports whether the gateway now accepts a subscription to some of these resources.
    async fn can_resubscribe(&self, missing: &BTreeSet<Arc<str>>) -> bool {
        if missing.is_empty() {
            return false;
        }
        let filter = ListenFilter { uris: missing.clone(), ..ListenFilter::default() };
        let Some(filter_span) = filter_span(self.request) else { return false };
        let mut edits = Splice::new();
        edits.replace(filter_span, filter.to_json());
        let body = edits.apply(self.request.raw.bytes());
        let probe = async {
            let mut answers = self.open(&body).await.ok()?;
            match next_stream_message(&mut answers).await {
                Ok(Some(StreamMessage::Notification(note))) if note.method == Method::Acknowledged => {
                    Some(acknowledged(&note))
                }
                _ => None,
            }
        };
        let honoured = tokio::time::timeout(SIDE_TIMEOUT, probe).await.ok().flatten();
        honoured.is_some_and(|honoured| !honoured.uris.is_empty())
    }

    fn has_resource_list(&self) -> bool {
        self.honoured.as_ref().is_some_and(|honoured| honoured.resources)
    }

    async fn deliver(&self, line: Bytes) {
        // If the client does not read, this task ends together with the bridge.
        let _ = self.output.send(line).await;
    }
}

/// Returns the filter in a request.
fn filter_span(request: &Request) -> Option<Span> {
    let text = request.raw.as_str();
    let filter_span = json::member(text, request.params.whole?, "notifications");
    filter_span.filter(|filter_span| filter_span.get(text).starts_with('{'))
}

/// Returns the request with changes of the resource list added to its filter.
fn with_resource_list(request: &Request) -> Bytes {
    let text = request.raw.as_str();
    let mut edits = Splice::new();
    if let Some(filter_span) = filter_span(request) {
        match json::member(text, filter_span, "resourcesListChanged") {
            Some(at) => edits.replace(at, "true"),
            None => json::prepend(text, filter_span, r#""resourcesListChanged":true"#, &mut edits),
        }
    }
    edits.apply(request.raw.bytes())
}

/// Returns the filter that an acknowledgement confirms.
fn acknowledged(note: &Notification) -> ListenFilter {
    let text = note.raw.as_str();
    let filter = note.params.whole.and_then(|params| json::member(text, params, "notifications"));
    filter.map(|filter| ListenFilter::read(text, filter)).unwrap_or_default()
}

/// Returns notifications that everything in `honoured` may have changed. Resources that are not in `now` are left out.
fn catch_up_notifications(request: &Request, honoured: &ListenFilter, now: &ListenFilter) -> Vec<Bytes> {
    let meta = meta(request);
    let lists = [
        (honoured.tools, Method::ToolsChanged),
        (honoured.prompts, Method::PromptsChanged),
        (honoured.resources, Method::ResourcesChanged),
    ];
    let lists = lists.into_iter().filter(|(is_honoured, _)| *is_honoured);
    let lists = lists.map(|(_, method)| goblin_wire::notification(&method, Some(&format!("{{{meta}}}"))));
    let updates = honoured.uris.intersection(&now.uris).map(|uri| {
        let params = format!(r#"{{{meta},"uri":{}}}"#, quote(uri));
        goblin_wire::notification(&Method::ResourceUpdated, Some(&params))
    });
    lists.chain(updates).collect()
}

/// Returns the result that ends a stream in good order, for use without a gateway.
fn end(request: &Request) -> Bytes {
    let result = format!(r#"{{"resultType":"complete",{}}}"#, meta(request));
    goblin_wire::reply(&request.id_as_written(), result).concat()
}

fn meta(request: &Request) -> String {
    format!(r#""_meta":{{"{SUBSCRIPTION_ID}":{}}}"#, request.id_as_written())
}

/// Reports whether an error allows a retry.
fn is_retryable(text: &str, error: Span) -> bool {
    let retryable = json::member(text, error, "data").and_then(|data| json::member(text, data, "retryable"));
    retryable.is_some_and(|retryable| retryable.get(text) == "true")
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn request(notifications: &str) -> Request {
        let params = format!(r#"{{"notifications":{notifications},"x":1}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{params}}}"#);
        let Ok(Message::Request(request)) = Message::parse(line.into()) else { panic!("a request") };
        request
    }

    fn filter(text: &str) -> ListenFilter {
        ListenFilter::read(text, json::whole(text))
    }

    #[test]
    fn a_stream_that_is_asked_for_again_has_one_more_wish_and_all_the_others() {
        for (before, after) in [
            (
                r#"{"resourceSubscriptions":["a:b"]}"#,
                r#"{"resourcesListChanged":true,"resourceSubscriptions":["a:b"]}"#,
            ),
            (r#"{"taskIds":["7"],"resourcesListChanged":false}"#, r#"{"taskIds":["7"],"resourcesListChanged":true}"#),
            ("{}", r#"{"resourcesListChanged":true}"#),
            ("7", "7"),
        ] {
            assert_eq!(with_resource_list(&request(before)), request(after).raw.bytes(), "{before}");
        }
    }

    #[test]
    fn what_was_promised_is_doubted_as_far_as_it_is_told_again() {
        let honoured = filter(r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b","c:\"d"]}"#);
        let now = filter(
            r#"{"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["c:\"d","e:f"]}"#,
        );
        let meta = r#""_meta":{"io.modelcontextprotocol/subscriptionId":"l"}"#;
        let expected = [
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{{{meta}}}}}"#),
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{{meta},"uri":"c:\"d"}}}}"#
            ),
        ];
        assert_eq!(catch_up_notifications(&request("{}"), &honoured, &now), expected);
    }

    #[test]
    fn an_error_may_pass_only_where_it_says_so() {
        for (error, expected) in [
            (r#"{"code":1,"data":{"retryable":true}}"#, true),
            (r#"{"code":1,"data":{"retryable":"true"}}"#, false),
            (r#"{"code":1,"data":true}"#, false),
            (r#"{"code":1}"#, false),
        ] {
            assert_eq!(is_retryable(error, json::whole(error)), expected, "{error}");
        }
    }
}
