//! What a client listens for without a session: one stream to it, over as many gateways as it takes.
//!
//! The client has its acknowledgement once. When the gateway is gone, even in good order, the stream is asked for again
//! until there is one, and the client is told once that all it listens for may have changed. A gateway that was just
//! started may not know all resources yet, and acknowledges what it knows; so the bridge has itself told when the list of
//! resources changes, and asks anew once there is more to be had. What the client is not told: that list, unless it asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use goblin_wire::listen::Filter;
use crate::bridge::keeper::{LASTING, Pace};
use crate::bridge::message::cancelled_id;
use crate::bridge::stream::is_passing;
use crate::bridge::visit::{Word, answer_to, failure, next_word};
use crate::bridge::wire::{Answers, Broken};
use crate::bridge::{ASIDE, Bridge, Output};
use goblin_wire::error::Error;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::method::Method;
use goblin_wire::modern::SUBSCRIPTION_ID;
use goblin_wire::{Notification, Outcome, Request, Response};

/// Tells the client what it listens for, until it has had enough or the gateway ends it for good.
pub async fn listen(bridge: Arc<Bridge>, request: Request, output: Output, cancelled: oneshot::Receiver<()>) {
    let mut listen = Listen { bridge: &bridge, request: &request, output: &output, honoured: None };
    let last = tokio::select! {
        biased;
        cancelled = cancelled => match cancelled {
            Ok(()) => return,
            // It was not the client that ended it.
            Err(_) => end(&request),
        },
        () = output.closed() => return,
        last = listen.run() => last,
    };
    let _ = output.send(last).await;
}

struct Listen<'a> {
    bridge: &'a Bridge,
    request: &'a Request,
    output: &'a Output,
    /// What the client was told that it will hear of; nothing before that.
    honoured: Option<Filter>,
}

/// How one stream ended.
enum End {
    Refused {
        answer: Bytes,
        may_pass: bool,
    },
    /// In good order, with this as the last word.
    Over(Bytes),
    /// It broke off, or could not be had.
    Lost(Error),
    /// There is more to be had by asking anew.
    Outgrown,
}

impl Listen<'_> {
    /// Gives the last word to the client.
    async fn run(&mut self) -> Bytes {
        let mut pace = Pace::default();
        let mut was_over = false;
        loop {
            let opened = Instant::now();
            let end = self.once().await;
            let lasted = opened.elapsed();
            match end {
                End::Refused { answer, may_pass } if !may_pass || self.honoured.is_none() => return answer,
                End::Lost(error) if self.honoured.is_none() => return failure(self.request, &error),
                // Whoever ends it again at once does not go away, but wants no such stream.
                End::Over(last) if self.honoured.is_none() || (was_over && lasted < LASTING) => return last,
                End::Outgrown => continue,
                End::Over(_) => was_over = true,
                End::Refused { .. } | End::Lost(_) => was_over = false,
            }
            tokio::time::sleep(pace.after(lasted)).await;
        }
    }

    /// One stream, from its opening to its end.
    async fn once(&mut self) -> End {
        let body = match &self.honoured {
            Some(honoured) if !honoured.uris.is_empty() => widened(self.request),
            _ => self.request.raw.bytes().clone(),
        };
        let mut answers = match self.open(&body).await {
            Ok(answers) => answers,
            Err(end) => return end,
        };
        let mut missing = BTreeSet::new();
        loop {
            let note = match next_word(&mut answers).await {
                Ok(Some(Word::Note(note))) => note,
                Ok(Some(Word::Answer(answer))) => return self.ended_by(&answer),
                Err(Broken::TooLarge) => {
                    tracing::warn!("the gateway said something too large; dropped");
                    continue;
                }
                Ok(None) | Err(Broken::Lost) => {
                    return End::Lost(self.bridge.unavailable("its stream was cut".to_owned(), false));
                }
            };
            match note.method {
                Method::Acknowledged => missing = self.acknowledge(&note).await,
                Method::ResourcesChanged if self.can_have_some(&missing).await => return End::Outgrown,
                Method::ResourcesChanged if !self.is_told_of_resources() => {}
                // Some end a stream so.
                Method::Cancelled if cancelled_id(&note).as_ref() == Some(&self.request.id) => {
                    return End::Over(note.raw.bytes().clone());
                }
                _ => self.tell(note.raw.bytes().clone()).await,
            }
        }
    }

    async fn open(&self, body: &Bytes) -> Result<Answers, End> {
        let response = self.bridge.post_visit(body, &self.bridge.headers_of(self.request)).await.map_err(End::Lost)?;
        let status = response.status();
        if status.is_success() {
            return Ok(Answers::new(response));
        }
        let refusal = self.bridge.refusal(response, std::slice::from_ref(&self.request.id)).await;
        let answer = refusal.map_err(End::Lost)?;
        Err(End::Refused { answer, may_pass: is_passing(status) })
    }

    fn ended_by(&self, answer: &Response) -> End {
        let last = answer_to(self.request, answer);
        match answer.outcome {
            Outcome::Result(_) => End::Over(last),
            Outcome::Error(error) => End::Refused { answer: last, may_pass: is_retryable(answer.raw.as_str(), error) },
        }
    }

    /// The first acknowledgement is the client's. A later one means that something may have been missed. Tells of which
    /// resources the client would not be told any more.
    async fn acknowledge(&mut self, note: &Notification) -> BTreeSet<Arc<str>> {
        let now = acknowledged(note);
        let Some(honoured) = &self.honoured else {
            self.honoured = Some(now);
            self.tell(note.raw.bytes().clone()).await;
            return BTreeSet::new();
        };
        for line in doubts(self.request, honoured, &now) {
            self.tell(line).await;
        }
        honoured.uris.difference(&now.uris).cloned().collect()
    }

    /// Whether the gateway would tell of some of these by now.
    async fn can_have_some(&self, missing: &BTreeSet<Arc<str>>) -> bool {
        if missing.is_empty() {
            return false;
        }
        let filter = Filter { uris: missing.clone(), ..Filter::default() };
        let Some(wanted) = wanted(self.request) else { return false };
        let mut edits = Splice::new();
        edits.replace(wanted, filter.to_json());
        let body = edits.apply(self.request.raw.bytes());
        let asked = async {
            let mut answers = self.open(&body).await.ok()?;
            match next_word(&mut answers).await {
                Ok(Some(Word::Note(note))) if note.method == Method::Acknowledged => Some(acknowledged(&note)),
                _ => None,
            }
        };
        let honoured = tokio::time::timeout(ASIDE, asked).await.ok().flatten();
        honoured.is_some_and(|honoured| !honoured.uris.is_empty())
    }

    fn is_told_of_resources(&self) -> bool {
        self.honoured.as_ref().is_some_and(|honoured| honoured.resources)
    }

    async fn tell(&self, line: Bytes) {
        // Where nobody reads, this ends with the rest.
        let _ = self.output.send(line).await;
    }
}

/// The wishes in a request.
fn wanted(request: &Request) -> Option<Span> {
    let text = request.raw.as_str();
    let wanted = json::member(text, request.params.whole?, "notifications");
    wanted.filter(|wanted| wanted.get(text).starts_with('{'))
}

/// The request with the wish to be told when the list of resources changes.
fn widened(request: &Request) -> Bytes {
    let text = request.raw.as_str();
    let mut edits = Splice::new();
    if let Some(wanted) = wanted(request) {
        match json::member(text, wanted, "resourcesListChanged") {
            Some(at) => edits.replace(at, "true"),
            None => json::prepend(text, wanted, r#""resourcesListChanged":true"#, &mut edits),
        }
    }
    edits.apply(request.raw.bytes())
}

/// What an acknowledgement says will be told.
fn acknowledged(note: &Notification) -> Filter {
    let text = note.raw.as_str();
    let told = note.params.whole.and_then(|params| json::member(text, params, "notifications"));
    told.map(|told| Filter::read(text, told)).unwrap_or_default()
}

/// What tells the client that all it listens for may have changed: of what it was promised, as far as it is told of `now`.
fn doubts(request: &Request, honoured: &Filter, now: &Filter) -> Vec<Bytes> {
    let meta = meta(request);
    let lists = [
        (honoured.tools, Method::ToolsChanged),
        (honoured.prompts, Method::PromptsChanged),
        (honoured.resources, Method::ResourcesChanged),
    ];
    let lists = lists.into_iter().filter(|(is_told, _)| *is_told);
    let lists = lists.map(|(_, method)| goblin_wire::notification(&method, Some(&format!("{{{meta}}}"))));
    let updates = honoured.uris.intersection(&now.uris).map(|uri| {
        let params = format!(r#"{{{meta},"uri":{}}}"#, quote(uri));
        goblin_wire::notification(&Method::ResourceUpdated, Some(&params))
    });
    lists.chain(updates).collect()
}

/// The end in good order, where the gateway cannot say it.
fn end(request: &Request) -> Bytes {
    let result = format!(r#"{{"resultType":"complete",{}}}"#, meta(request));
    goblin_wire::reply(&request.id_as_written(), result).concat()
}

fn meta(request: &Request) -> String {
    format!(r#""_meta":{{"{SUBSCRIPTION_ID}":{}}}"#, request.id_as_written())
}

/// Whether an error says that the same may go well later.
fn is_retryable(text: &str, error: Span) -> bool {
    let retryable = json::member(text, error, "data").and_then(|data| json::member(text, data, "retryable"));
    retryable.is_some_and(|retryable| retryable.get(text) == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use goblin_wire::Message;

    fn request(notifications: &str) -> Request {
        let params = format!(r#"{{"notifications":{notifications},"x":1}}"#);
        let line = format!(r#"{{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{params}}}"#);
        let Ok(Message::Request(request)) = Message::parse(line.into()) else { panic!("a request") };
        request
    }

    fn filter(text: &str) -> Filter {
        Filter::read(text, json::whole(text))
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
            assert_eq!(widened(&request(before)), request(after).raw.bytes(), "{before}");
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
        assert_eq!(doubts(&request("{}"), &honoured, &now), expected);
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
