//! Reads the messages of a notification stream (`subscriptions/listen`), independently of the transport. All functions
//! are pure.

use goblin_wire::json::{self, Splice};
use goblin_wire::listen::ListenFilter;
use goblin_wire::modern::SUBSCRIPTION_ID;
use goblin_wire::{Message, Method, Notification, Outcome, Response};

use crate::upstream::link::LinkError;

/// Returns the filter that an acknowledgement accepts.
pub(crate) fn acknowledged_filter(acknowledgement: &Notification) -> ListenFilter {
    let text = acknowledgement.raw.as_str();
    let filter = acknowledgement.params.whole.and_then(|params| json::member(text, params, "notifications"));
    filter.map_or_else(ListenFilter::default, |filter| ListenFilter::read(text, filter))
}

/// Returns the request of the gateway that a notification cancels. Some servers end a stream this way instead of
/// answering its request.
pub(crate) fn cancelled_request(notification: &Notification) -> Option<u64> {
    let id_at = notification.params.request_id.filter(|_| notification.method == Method::Cancelled);
    id_at.and_then(|at| notification.raw.get(at).parse().ok())
}

/// Returns the error for a response that arrived instead of an acknowledgement.
pub(crate) fn rejection_error(answer: &Response) -> LinkError {
    let text = answer.raw.as_str();
    match answer.outcome {
        Outcome::Result(_) => LinkError::Protocol("it ended the stream instead of acknowledging it".to_owned()),
        Outcome::Error(error) => LinkError::Rejected {
            code: json::member(text, error, "code").and_then(|code| code.get(text).parse().ok()),
            error: error.get(text).to_owned(),
        },
    }
}

/// Returns the notification without the id of its stream, which only the gateway knows. Returns `None` if it has no
/// such id.
pub(crate) fn without_subscription_id(notification: &Notification) -> Option<Notification> {
    let text = notification.raw.as_str();
    let (params, meta) = (notification.params.whole?, notification.params.meta?);
    json::member(text, meta, SUBSCRIPTION_ID)?;
    let mut edits = Splice::new();
    if json::cut_members(text, meta, |key| key == SUBSCRIPTION_ID, &mut edits) == 0 {
        edits = Splice::new();
        json::cut_members(text, params, |key| key == "_meta", &mut edits);
    }
    match Message::parse(edits.apply(notification.raw.bytes())) {
        Ok(Message::Notification(notification)) => Some(notification),
        _ => None,
    }
}

/// Returns the id of the stream that a notification belongs to: the id of the gateway's request.
pub(crate) fn subscription_id(notification: &Notification) -> Option<u64> {
    let text = notification.raw.as_str();
    json::member(text, notification.params.meta?, SUBSCRIPTION_ID)?.get(text).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub3_the_subscription_id_is_removed_from_a_notification() {
        let check = |params: &str, expected: &str, id| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{params}}}"#);
            let Ok(Message::Notification(notification)) = Message::parse(text.into()) else { panic!("{params}") };
            assert_eq!(subscription_id(&notification), id);
            let cut = without_subscription_id(&notification).unwrap_or(notification);
            assert_eq!(cut.params.whole.map(|at| cut.raw.get(at)), Some(expected), "{params}");
        };
        check(r#"{"uri":"a:b"}"#, r#"{"uri":"a:b"}"#, None);
        check(&format!(r#"{{"uri":"a:b","_meta":{{"{SUBSCRIPTION_ID}":7}}}}"#), r#"{"uri":"a:b"}"#, Some(7));
        check(&format!(r#"{{"_meta":{{"{SUBSCRIPTION_ID}":"7"}}}}"#), "{}", None);
        check(&format!(r#"{{"_meta":{{"{SUBSCRIPTION_ID}":7,"x":1}}}}"#), r#"{"_meta":{"x":1}}"#, Some(7));
    }

    #[test]
    fn sub3_the_error_of_a_rejected_listen_has_the_code_of_the_backend() {
        let check = |outcome: &str, expected| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{outcome}}}"#);
            let Ok(Message::Response(answer)) = Message::parse(text.into()) else { panic!("{outcome}") };
            let code = match rejection_error(&answer) {
                LinkError::Rejected { code, .. } => code,
                _ => None,
            };
            assert_eq!(code, expected, "{outcome}");
        };
        check(r#""error":{"code":-32601,"message":"no"}"#, Some(-32601));
        check(r#""error":{}"#, None);
        check(r#""result":{}"#, None);
    }
}
