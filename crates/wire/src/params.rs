//! A shallow view of `params`: the spans of the members that a gateway reads. `Message::parse` builds it in one walk,
//! without decoding the values. A duplicate key is an error, because two readers could resolve it differently.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{self, Span};
use crate::modern::{Meta, RELATED_TASK};
use crate::{Error, Id, Keyword, Notification};

/// The spans of the members of `params` that decide the route of a message or that the gateway must map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    pub whole: Option<Span>,
    pub name: Option<Span>,
    pub uri: Option<Span>,
    pub cursor: Option<Span>,
    pub arguments: Option<Span>,
    pub reference: Option<Span>,
    pub level: Option<Span>,
    pub meta: Option<Span>,
    /// The known members of `_meta`, if `_meta` is an object.
    pub known_meta: Meta,
    pub request_id: Option<Span>,
    pub progress_token: Option<Span>,
    pub protocol_version: Option<Span>,
    pub capabilities: Option<Span>,
    pub client_info: Option<Span>,
    pub request_state: Option<Span>,
    pub input_responses: Option<Span>,
    pub task: Option<Span>,
    pub task_id: Option<Span>,
}

/// The number of keys that are compared one by one. Further keys go into a set, so hostile params take linear time.
const COMPARED_ONE_BY_ONE: usize = 32;

impl Params {
    /// Reads `params`. Returns an error if the value is not an object or has a duplicate key.
    pub(super) fn read(text: &str, whole: Option<Span>) -> Result<Params, String> {
        // Some clients write `null` for absent params.
        let Some(span) = whole.filter(|span| span.get(text) != "null") else { return Ok(Params::default()) };
        if !span.get(text).starts_with('{') {
            return Err("params must be an object".to_owned());
        }
        let mut params = Params { whole: Some(span), ..Params::default() };
        let mut others = SeenKeys::default();
        let mut members = json::members(text, span);
        while let Some(key) = members.next_key() {
            let key = json::string(text, key).unwrap_or_default();
            let value = match &*key {
                "_meta" => members.next_object(|member| params.known_meta.record(text, member)),
                _ => members.next_value(),
            };
            let Some(value) = value else { break };
            let slot = match &*key {
                "name" => &mut params.name,
                "uri" => &mut params.uri,
                "cursor" => &mut params.cursor,
                "arguments" => &mut params.arguments,
                "ref" => &mut params.reference,
                "level" => &mut params.level,
                "_meta" => &mut params.meta,
                "requestId" => &mut params.request_id,
                "progressToken" => &mut params.progress_token,
                "protocolVersion" => &mut params.protocol_version,
                "capabilities" => &mut params.capabilities,
                "clientInfo" => &mut params.client_info,
                "requestState" => &mut params.request_state,
                "inputResponses" => &mut params.input_responses,
                "task" => &mut params.task,
                "taskId" => &mut params.task_id,
                _ => {
                    if !others.insert(key.clone()) {
                        return Err(format!("the member {} occurs twice in params", json::quote(&key)));
                    }
                    continue;
                }
            };
            if slot.replace(value).is_some() {
                return Err(format!("the member {} occurs twice in params", json::quote(&key)));
            }
        }
        Ok(params)
    }
}

/// The keys of one object seen so far.
#[derive(Default)]
pub(super) struct SeenKeys<'a> {
    few: Vec<Cow<'a, str>>,
    many: HashSet<Cow<'a, str>>,
}

impl<'a> SeenKeys<'a> {
    /// Adds `key`. Returns false if it was present.
    pub(super) fn insert(&mut self, key: Cow<'a, str>) -> bool {
        if self.few.contains(&key) {
            return false;
        }
        if self.few.len() < COMPARED_ONE_BY_ONE {
            self.few.push(key);
            return true;
        }
        self.many.insert(key)
    }
}

/// Returns the non-empty string at `span`. The error for a missing or invalid value names it `key`.
pub fn required<'a>(text: &'a str, span: Option<Span>, key: &str) -> Result<Cow<'a, str>, Error> {
    let span = span.ok_or_else(|| Error::InvalidParams(format!("{key} is missing")))?;
    let value = json::string(text, span).ok_or_else(|| Error::InvalidParams(format!("{key} must be a string")))?;
    if value.is_empty() {
        return Err(Error::InvalidParams(format!("{key} must not be empty")));
    }
    Ok(value)
}

/// Returns the request that a `notifications/cancelled` names, and the sender's reason or else `default`. Returns
/// `None` if it names no valid id.
pub fn cancelled<'a>(notification: &'a Notification, default: &'static str) -> Option<(Id, Cow<'a, str>)> {
    let (params, text) = (&notification.params, notification.raw.as_str());
    let id = Id::parse(notification.raw.bytes(), params.request_id?)?;
    let reason = params.whole.and_then(|params| json::member(text, params, "reason"));
    let reason = reason.and_then(|at| json::string(text, at));
    Some((id, reason.unwrap_or(Cow::Borrowed(default))))
}

static RELATED: Keyword = Keyword::new(RELATED_TASK);

/// Returns the span of the id of the task that a message belongs to. `holder` is the params or the result of the
/// message. Its `_meta` names the task.
pub fn related_task(text: &str, holder: Span) -> Option<Span> {
    if !RELATED.is_in(holder.get(text)) {
        return None;
    }
    let related = json::member(text, json::member(text, holder, "_meta")?, RELATED_TASK)?;
    json::member(text, related, "taskId")
}
