//! Lists ended calls and the logs of servers for the admin API.
//!
//! A reader follows a list with `after` and `wait`: the gateway answers when it has a newer entry, or when the time is
//! over. Each request stands for itself, so a reader needs no stream and survives a restart of the gateway.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use goblin_admin::api::{CallInfo, CallList, EventInfo, LogList};
use goblin_admin::routes::ReadTarget;
use goblin_config::{LogLevel, mask};
use goblin_telemetry::clean;
use goblin_telemetry::feed::{FeedRecord, RecordsAfter};
use goblin_wire::date;
use http::StatusCode;

use crate::admin::events::MAX_READERS;
use crate::admin::query::Query;
use crate::admin::readiness::Readiness;
use crate::admin::{Admin, AdminError};
use crate::client::caller::SessionId;
use crate::client::ledger::{CallsAfter, EndedCall};
use crate::client::outcome::CallResult;

/// The longest wait for a new entry, in seconds.
const MAX_WAIT: u64 = 60;

const LEVELS: [(&str, LogLevel); 4] =
    [("error", LogLevel::Error), ("warn", LogLevel::Warn), ("info", LogLevel::Info), ("debug", LogLevel::Debug)];

/// Selects ended calls.
struct CallFilter<'a> {
    server: Option<&'a str>,
    client: Option<&'a str>,
    tool: Option<&'a str>,
    /// `tool` as the history shows it if it is a URI.
    uri: Option<String>,
    outcome: Option<OutcomeFilter>,
    after: u64,
}

#[derive(Clone, Copy)]
enum OutcomeFilter {
    Failed,
    Is(CallResult),
}

impl<'a> CallFilter<'a> {
    fn read(query: &'a Query) -> Result<CallFilter<'a>, AdminError> {
        let mut outcomes: Vec<_> =
            CallResult::ALL.iter().map(|result| (result.as_str(), OutcomeFilter::Is(*result))).collect();
        outcomes.push(("failed", OutcomeFilter::Failed));
        Ok(CallFilter {
            server: query.get("server"),
            client: query.get("client"),
            tool: query.get("tool"),
            uri: query.get("tool").map(mask::uri),
            outcome: query.word("outcome", &outcomes)?,
            after: query.number("after", u64::MAX)?.unwrap_or_default(),
        })
    }

    fn selects(&self, call: &EndedCall) -> bool {
        let is_outcome = |filter| match filter {
            OutcomeFilter::Failed => call.result.is_failure(),
            OutcomeFilter::Is(result) => call.result == result,
        };
        self.outcome.is_none_or(is_outcome)
            && self.server.is_none_or(|server| call.server.as_ref().is_some_and(|id| id.as_str() == server))
            && self.client.is_none_or(|client| *call.client == *client || clean(&call.client) == client)
            && self.tool.is_none_or(|tool| self.is_named(tool, &clean(&call.name)))
    }

    fn is_named(&self, tool: &str, shown: &str) -> bool {
        shown == tool || clean(tool) == shown || self.uri.as_deref() == Some(shown)
    }
}

impl Admin {
    /// Returns the ended calls that the query selects, newest first.
    pub(super) fn calls(&self, query: &Query) -> Result<CallList, AdminError> {
        let filter = CallFilter::read(query)?;
        let limit = limit(query)?;
        let ledger = &self.dispatcher.router.ledger;
        let CallsAfter { total, missed, calls } = ledger.after(filter.after);
        let selected = calls.iter().rev().filter(|call| filter.selects(call));
        let calls: Vec<_> = selected.take(limit).map(|call| call_info(call)).collect();
        // A removed server may still have calls.
        if calls.is_empty() && !ledger.after(0).calls.iter().any(|call| is_of(call, filter.server)) {
            self.check_server(filter.server)?;
        }
        Ok(CallList { started: iso_millis(self.started), total, missed, calls })
    }

    /// Returns the recent events that the query selects, oldest first.
    pub(super) fn logs(&self, query: &Query) -> Result<LogList, AdminError> {
        let limit = limit(query)?;
        self.check_server(query.get("server"))?;
        let RecordsAfter { last, missed, records } = self.new_records(query)?;
        let events: Vec<_> =
            records.iter().skip(records.len().saturating_sub(limit)).map(|record| event_info(record)).collect();
        Ok(LogList { started: iso_millis(self.started), last, missed, events })
    }

    /// Returns the records that the query selects. Without a level, these are the records that do not depend on the
    /// presence of readers.
    fn new_records(&self, query: &Query) -> Result<RecordsAfter, AdminError> {
        let level = query.word("level", &LEVELS)?;
        let after = query.number("after", u64::MAX)?.unwrap_or_default();
        let mut new = self.observe.feed().read_after(query.get("server"), after);
        new.records.retain(|record| level.map_or(!record.is_detail, |level| record.level <= level));
        Ok(new)
    }

    /// Waits until a request for calls or logs has an entry, as long as its query allows. Returns at once for other
    /// requests.
    pub(super) async fn await_history(&self, target: ReadTarget, query: &Query) -> Result<(), AdminError> {
        let Some(seconds) = query.number("wait", MAX_WAIT)?.filter(|seconds| *seconds > 0) else { return Ok(()) };
        let place = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_READERS} clients already wait; close one of them or try again later");
            AdminError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        let mut readiness = self.readiness.clone();
        let found = async {
            match target {
                ReadTarget::Calls => self.await_call(query).await,
                ReadTarget::Logs => self.await_record(query).await,
                _ => Ok(()),
            }
        };
        let found = tokio::select! {
            found = found => found,
            () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(()),
            _ = readiness.wait_for(|readiness| *readiness == Readiness::Stopping) => Ok(()),
        };
        drop(place);
        found
    }

    async fn await_call(&self, query: &Query) -> Result<(), AdminError> {
        let filter = CallFilter::read(query)?;
        self.dispatcher.router.ledger.wait_after(filter.after, |call| filter.selects(call)).await;
        Ok(())
    }

    async fn await_record(&self, query: &Query) -> Result<(), AdminError> {
        self.check_server(query.get("server"))?;
        let feed = self.observe.feed();
        let mut changes = feed.watch();
        let _detail = (query.word("level", &LEVELS)? == Some(LogLevel::Debug)).then(|| feed.keep_detail());
        while self.new_records(query)?.records.is_empty() {
            // The feed lives as long as the gateway, so its sender is not dropped.
            let _ = changes.changed().await;
        }
        Ok(())
    }
}

fn is_of(call: &EndedCall, server: Option<&str>) -> bool {
    server.is_none_or(|server| call.server.as_ref().is_some_and(|id| id.as_str() == server))
}

fn limit(query: &Query) -> Result<usize, AdminError> {
    let limit = query.number("limit", u64::MAX)?;
    Ok(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX))
}

fn call_info(call: &EndedCall) -> CallInfo {
    let failure = call.failure.as_deref();
    CallInfo {
        seq: call.seq,
        time: iso_millis(call.ended),
        client: clean(&call.client),
        session: call.session.map(SessionId::short),
        method: call.method.as_str().to_owned(),
        name: clean(&call.name),
        server: call.server.as_ref().map(ToString::to_string),
        request_bytes: call.request_bytes as u64,
        response_bytes: call.response_bytes as u64,
        duration_ms: (call.took.as_secs_f64() * 1e6).round() / 1e3,
        outcome: call.result.as_str().to_owned(),
        code: failure.and_then(|failure| failure.code.clone()),
        error: failure.map(|failure| failure.message.clone()).filter(|message| !message.is_empty()),
    }
}

fn event_info(record: &FeedRecord) -> EventInfo {
    EventInfo {
        seq: record.seq,
        time: record.time.clone(),
        level: level_name(record.level).to_owned(),
        kind: record.kind.clone(),
        server: record.server.clone(),
        session: record.session.clone(),
        message: record.message.clone(),
        fields: record.fields.clone(),
    }
}

fn level_name(level: LogLevel) -> &'static str {
    LEVELS.iter().find(|(_, known)| *known == level).map_or("debug", |(name, _)| name)
}

/// Returns a time as ISO 8601 with milliseconds.
pub(super) fn iso_millis(moment: SystemTime) -> String {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    let iso = date::iso(since.as_secs().cast_signed());
    format!("{}.{:03}Z", iso.trim_end_matches('Z'), since.subsec_millis())
}
