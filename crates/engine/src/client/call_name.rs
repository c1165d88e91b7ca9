//! The name of a call in the history: the exposed name of the tool or prompt, or the exposed URI without its secrets.

use std::borrow::Cow;

use goblin_config::mask;
use goblin_wire::{Request, json};

/// The number of bytes that the history keeps of a name.
const MAX_NAME: usize = 512;

/// Returns the beginning of the name that a request has, or of its masked URI.
pub(crate) fn of(request: &Request) -> Box<str> {
    let name = match uri(request) {
        Some(uri) => Cow::Owned(mask::uri(&uri)),
        None => {
            let referenced = || json::member(request.raw.as_str(), request.params.reference?, "name");
            let at = request.params.name.or_else(referenced);
            at.and_then(|at| json::string(request.raw.as_str(), at)).unwrap_or_default()
        }
    };
    name[..name.floor_char_boundary(MAX_NAME)].into()
}

/// Returns the URI that a request names, as the client sent it.
pub(crate) fn uri(request: &Request) -> Option<Cow<'_, str>> {
    if request.params.name.is_some() {
        return None;
    }
    let text = request.raw.as_str();
    let referenced = || json::member(text, request.params.reference?, "uri");
    json::string(text, request.params.uri.or_else(referenced)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, params: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        match goblin_wire::Message::parse(text.into()) {
            Ok(goblin_wire::Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn use6_only_the_beginning_of_a_long_name_is_kept() {
        let named = |name: &str| of(&request("tools/call", &format!(r#"{{"name":"{name}"}}"#)));
        assert_eq!(&*named("t?a=b"), "t?a=b");
        assert_eq!(named(&"é".repeat(MAX_NAME)).len(), MAX_NAME);
    }

    #[test]
    fn hard8_the_secrets_of_uris_are_masked() {
        let check = |method: &str, params: &str, expected: &str| {
            assert_eq!(&*of(&request(method, params)), expected, "{params}");
        };
        check("resources/read", r#"{"uri":"a+https://u:pw@h/p?token=x#y"}"#, "a+https://***@h/p?***");
        check("resources/subscribe", r#"{"uri":"note:x?token=y"}"#, "note:x?***");
        check("resources/unsubscribe", r#"{"uri":"note:///alpha"}"#, "note:///alpha");
        check("completion/complete", r#"{"ref":{"type":"ref/resource","uri":"h://u@h/{id}"}}"#, "h://***@h/{id}");
        check("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"p?"}}"#, "p?");
        check("resources/read", &format!(r#"{{"uri":"h://{}@h"}}"#, "x".repeat(9000)), "***");
    }
}
