//! Streams the event feed as server-sent events.
//!
//! Readers poll a ring buffer, so a slow reader delays nothing. It receives the number of events that it missed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use goblin_admin::api::Missed;
use goblin_telemetry::feed::{FeedBatch, FeedReader};
use goblin_wire::headers::LAST_EVENT_ID;
use http::StatusCode;
use http::header::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::admin::readiness::Readiness;
use crate::admin::{Admin, AdminError};
use crate::front::body::{self, KEEP_ALIVE};

/// The maximum number of concurrent readers.
pub const MAX_READERS: usize = 16;
/// The idle time after which a comment is sent to keep the stream alive.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// One client of the event stream.
struct EventStreamClient {
    reader: FeedReader,
    readiness: watch::Receiver<Readiness>,
    _place: OwnedSemaphorePermit,
}

impl Admin {
    pub(super) fn events(&self, headers: &HeaderMap) -> Result<Response, AdminError> {
        let next = start_from(headers)?;
        let place = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| {
            let message =
                format!("{MAX_READERS} clients already read the events; close one of them or try again later");
            AdminError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let reader = self.observe.feed().reader(next);
        let client = EventStreamClient { reader, readiness: self.readiness.clone(), _place: place };
        let events = unfold(client, async |mut client| Some((client.next().await?, client)));
        Ok(body::events(events).map(Body::new))
    }
}

impl EventStreamClient {
    /// Returns the next chunk of the stream. Returns `None` if the gateway is shutting down.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            biased;
            _ = self.readiness.wait_for(|readiness| *readiness == Readiness::Stopping) => None,
            batch = self.reader.next() => Some(encode(&batch)),
            () = tokio::time::sleep(KEEP_ALIVE_EVERY) => Some(KEEP_ALIVE),
        }
    }
}

/// Returns the sequence number to start from. Starts with the oldest record if the header is absent.
fn start_from(headers: &HeaderMap) -> Result<u64, AdminError> {
    let Some(last) = headers.get(LAST_EVENT_ID) else { return Ok(0) };
    let last = last.to_str().ok().and_then(|last| last.parse::<u64>().ok());
    last.map(|last| last.saturating_add(1))
        .ok_or_else(|| AdminError::new(StatusCode::BAD_REQUEST, "Last-Event-ID must be the seq of an event"))
}

fn encode(batch: &FeedBatch) -> Bytes {
    let mut text = String::new();
    if batch.missed > 0 {
        text.push_str(&format!("event: missed\ndata: {}\n\n", to_json(&Missed { missed: batch.missed })));
    }
    for record in &batch.records {
        text.push_str(&format!("id: {}\ndata: {}\n\n", record.seq, to_json(&**record)));
    }
    text.into()
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("all keys are strings")
}

#[cfg(test)]
mod tests {
    use goblin_admin::api::EventInfo;
    use goblin_telemetry::feed::MAX_RECORDS;
    use goblin_telemetry::{Event, Observe};
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_number_of_missed_events_precedes_the_events() {
        let observe = Observe::default();
        for _ in 0..MAX_RECORDS + 3 {
            observe.emit(&Event::ConnectionsCut);
        }
        let text = encode(&observe.feed().read_from(2));
        let text = std::str::from_utf8(&text).expect("the stream is text");
        assert!(text.starts_with("event: missed\ndata: {\"missed\":2}\n\nid: 4\ndata: {\"seq\":4,"), "{text:.200}");
        assert_eq!(text.matches("\n\n").count(), MAX_RECORDS + 1);
        assert!(!encode(&observe.feed().read_from(4)).starts_with(b"event"));
    }

    #[test]
    fn an_event_has_the_form_that_the_api_documents() {
        let observe = Observe::default();
        observe.emit(&Event::Listening { url: "http://[::1]:1/mcp" });
        observe.emit(&Event::BackendFailed { server: "a", reason: "b", retry_in: Duration::ZERO, repeated: false });
        let records = observe.feed().read_from(0).records;
        assert_eq!(records.len(), 2);
        for record in records {
            let info: EventInfo = serde_json::from_str(&to_json(&*record)).expect("the record parses");
            assert_eq!(to_json(&info), to_json(&*record));
            assert_eq!((info.seq, &info.message, &info.server), (record.seq, &record.message, &record.server));
        }
    }

    #[test]
    fn a_reader_resumes_after_its_last_event_id() {
        for (given, expected) in
            [(None, Some(0)), (Some("0"), Some(1)), (Some("41"), Some(42)), (Some("-1"), None), (Some("x"), None)]
        {
            let value = |given: &str| (LAST_EVENT_ID, HeaderValue::try_from(given).expect("a header value"));
            let headers = given.map(value).into_iter().collect();
            assert_eq!(start_from(&headers).ok(), expected, "{given:?}");
        }
    }
}
