//! Reads and writes the description of a task in both protocols. Pure.
//!
//! 2025-11-25 has `ttl` and `pollInterval`, and a separate request for the result. The extension of 2026-07-28 has
//! `ttlMs` and `pollIntervalMs`, and includes the result. Within one protocol a task passes unchanged, except for its
//! id and a lifetime that the gateway cannot guarantee.

use std::borrow::Cow;
use std::time::Duration;

use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Era, Keyword};

use crate::upstream::tasks::MAX_LIFETIME;

/// The poll interval if the backend gives none or an unusable one.
const INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// The largest description that is kept for a list.
const MAX_DESCRIPTION: usize = 4096;

/// A task as its backend describes it.
#[derive(Clone, Copy)]
pub(crate) struct TaskDescription<'a> {
    pub text: &'a str,
    pub task: Span,
    pub era: Era,
}

impl<'a> TaskDescription<'a> {
    fn member(&self, key: &str) -> Option<Span> {
        json::member(self.text, self.task, key)
    }

    pub(crate) fn id(&self) -> Option<Cow<'a, str>> {
        self.member("taskId").and_then(|at| json::string(self.text, at)).filter(|id| !id.is_empty())
    }

    pub(crate) fn status(&self) -> Cow<'a, str> {
        self.member("status").and_then(|at| json::string(self.text, at)).unwrap_or_default()
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(&*self.status(), "completed" | "failed" | "cancelled")
    }

    /// Returns the time that the task is kept here. An unlimited lifetime becomes [`MAX_LIFETIME`].
    pub(crate) fn lifetime(&self) -> Duration {
        self.milliseconds(self.lifetime_key()).map_or(MAX_LIFETIME, |lifetime| lifetime.min(MAX_LIFETIME))
    }

    /// Returns the time until the next poll.
    pub(crate) fn interval(&self) -> Duration {
        let key = match self.era {
            Era::Legacy => "pollInterval",
            Era::Modern => "pollIntervalMs",
        };
        self.milliseconds(key).unwrap_or(INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    fn lifetime_key(&self) -> &'static str {
        match self.era {
            Era::Legacy => "ttl",
            Era::Modern => "ttlMs",
        }
    }

    fn milliseconds(&self, key: &str) -> Option<Duration> {
        let number: f64 = self.member(key)?.get(self.text).parse().ok()?;
        Duration::try_from_secs_f64(number / 1000.0).ok()
    }

    /// Returns the member `result` or `error`, if the description includes it.
    pub(crate) fn outcome(&self, key: &str) -> Option<Span> {
        self.member(key)
    }

    /// Returns the changes for a client of the same protocol, which knows the task as `id`.
    pub(crate) fn edits(&self, id: &str) -> Splice {
        let mut edits = Splice::new();
        if let Some(at) = self.member("taskId") {
            edits.replace(at, quote(id));
        }
        if let Some(at) = self.member(self.lifetime_key())
            && self.milliseconds(self.lifetime_key()) != Some(self.lifetime())
        {
            edits.replace(at, self.lifetime().as_millis().to_string());
        }
        edits
    }

    /// Returns the task in the form of 2025-11-25.
    pub(crate) fn legacy_form(&self, id: &str) -> String {
        format!("{{{}}}", self.members(id, ("ttl", "pollInterval")))
    }

    /// Returns the same form, shortened to [`MAX_DESCRIPTION`] bytes for the task list.
    pub(crate) fn summary(&self, id: &str) -> Box<str> {
        let whole = self.legacy_form(id);
        if whole.len() <= MAX_DESCRIPTION {
            return whole.into();
        }
        let lifetime = self.lifetime().as_millis();
        let (status, id) = (quote(&self.legacy_status()), quote(id));
        let timestamp = |key| self.member(key).map(|at| at.get(self.text)).filter(|timestamp| timestamp.len() < 64);
        let (created, updated) = (timestamp("createdAt"), timestamp("lastUpdatedAt"));
        let timestamps = [("createdAt", created), ("lastUpdatedAt", updated)];
        let timestamps =
            timestamps.iter().filter_map(|(key, timestamp)| Some(format!(r#","{key}":{}"#, (*timestamp)?)));
        format!(r#"{{"taskId":{id},"status":{status},"ttl":{lifetime}{}}}"#, timestamps.collect::<String>()).into()
    }

    /// Returns the members of the task in the form of the extension.
    pub(crate) fn modern_members(&self, id: &str) -> String {
        self.members(id, ("ttlMs", "pollIntervalMs"))
    }

    /// Writes the members of a task with the names of one protocol. Adds a lifetime if the task has none.
    fn members(&self, id: &str, (lifetime_key, interval_key): (&str, &str)) -> String {
        let member = |member: json::Member| match &*member.key(self.text) {
            "taskId" => Some(format!(r#""taskId":{}"#, quote(id))),
            "ttl" | "ttlMs" => Some(format!(r#""{lifetime_key}":{}"#, self.lifetime().as_millis())),
            "pollInterval" | "pollIntervalMs" => Some(format!(r#""{interval_key}":{}"#, member.value.get(self.text))),
            "status" if lifetime_key == "ttl" => Some(format!(r#""status":{}"#, quote(&self.legacy_status()))),
            "resultType" | "_meta" | "result" | "error" | "inputRequests" => None,
            _ => Some(member.written(self.text)),
        };
        let mut members: Vec<_> = json::members(self.text, self.task).filter_map(member).collect();
        if self.member(self.lifetime_key()).is_none() {
            members.push(format!(r#""{lifetime_key}":{}"#, self.lifetime().as_millis()));
        }
        members.join(",")
    }

    /// Returns the status in 2025-11-25, which calls a task with a tool error failed. The extension calls it completed.
    fn legacy_status(&self) -> Cow<'a, str> {
        let has_tool_error =
            self.era == Era::Modern && self.outcome("result").is_some_and(|result| is_tool_error(self.text, result));
        if has_tool_error { Cow::Borrowed("failed") } else { self.status() }
    }
}

fn is_tool_error(text: &str, result: Span) -> bool {
    json::member(text, result, "isError").is_some_and(|is_error| is_error.get(text) == "true")
}

/// Returns the task that answers a call instead of a result. Returns `None` if the result is not a task.
pub(crate) fn created_task(text: &str, result: Span, era: Era) -> Option<TaskDescription<'_>> {
    static ID: Keyword = Keyword::new("taskId");
    if !ID.is_in(result.get(text)) {
        return None;
    }
    let task = match era {
        Era::Legacy => json::member(text, result, "task")?,
        Era::Modern => json::member(text, result, "resultType")
            .is_some_and(|kind| kind.get(text) == "\"task\"")
            .then_some(result)?,
    };
    let description = TaskDescription { text, task, era };
    description.id().map(|_| description)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(text: &str, era: Era) -> TaskDescription<'_> {
        TaskDescription { text, task: json::whole(text), era }
    }

    #[test]
    fn task1_a_task_is_translated_to_the_era_of_the_client() {
        let legacy = r#"{"taskId":"n","status":"working","statusMessage":"a b","ttl":60000,"pollInterval":20}"#;
        let modern = r#"{"taskId":"T","status":"working","statusMessage":"a b","ttlMs":60000,"pollIntervalMs":20}"#;
        assert_eq!(format!("{{{}}}", description(legacy, Era::Legacy).modern_members("T")), modern);
        let check = |task: &str, expected: &str| assert_eq!(description(task, Era::Modern).legacy_form("T"), expected);
        check(modern, &legacy.replace("\"n\"", "\"T\""));
        check(
            r#"{"resultType":"complete","taskId":"n","status":"completed","ttlMs":1,"result":{"isError":true},"_meta":{}}"#,
            r#"{"taskId":"T","status":"failed","ttl":1}"#,
        );
        check(
            r#"{"taskId":"n","status":"completed","ttlMs":1,"result":{"content":[]}}"#,
            r#"{"taskId":"T","status":"completed","ttl":1}"#,
        );
        let long =
            format!(r#"{{"taskId":"n","status":"working","statusMessage":"{}","createdAt":"c"}}"#, "x".repeat(9999));
        let summary = r#"{"taskId":"T","status":"working","ttl":86400000,"createdAt":"c"}"#;
        assert_eq!(&*description(&long, Era::Legacy).summary("T"), summary);
    }

    #[test]
    fn task1_within_an_era_only_the_id_and_an_unbounded_ttl_change() {
        let check = |era, task: &str, expected: &str| {
            let changed = description(task, era).edits("T").apply(&task.to_owned().into());
            assert_eq!(String::from_utf8_lossy(&changed), expected);
        };
        check(Era::Legacy, r#"{"taskId": "n","ttl":6e4,"x":1.0}"#, r#"{"taskId": "T","ttl":6e4,"x":1.0}"#);
        check(Era::Legacy, r#"{"taskId":"n","ttl":null}"#, r#"{"taskId":"T","ttl":86400000}"#);
        check(Era::Modern, r#"{"taskId":"n","ttlMs":86400001}"#, r#"{"taskId":"T","ttlMs":86400000}"#);
        check(Era::Modern, r#"{"taskId":"n","ttlMs":-1}"#, r#"{"taskId":"T","ttlMs":86400000}"#);
    }

    #[test]
    fn task1_only_a_valid_task_result_is_read_as_a_task() {
        let check = |era, result: &str, expected: Option<&str>| {
            let id = created_task(result, json::whole(result), era).and_then(|description| description.id());
            assert_eq!(id.as_deref(), expected, "{result}");
        };
        check(Era::Legacy, r#"{"task":{"taskId":"n"}}"#, Some("n"));
        check(Era::Legacy, r#"{"task":{"taskId":7}}"#, None);
        check(Era::Legacy, r#"{"resultType":"task","taskId":"n"}"#, None);
        check(Era::Modern, r#"{"resultType":"task","taskId":"n"}"#, Some("n"));
        check(Era::Modern, r#"{"resultType":"complete","taskId":"n"}"#, None);
    }
}
