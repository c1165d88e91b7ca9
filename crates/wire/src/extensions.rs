//! The experimental capabilities that the gateway and its clients declare to each other, and the options in `_meta`.

use crate::json::{self, Span};

/// The prefix of the gateway's own capabilities.
pub const OWN_PREFIX: &str = "dev.goblin/";

/// The capability with which clients and the gateway announce the extension of subscriptions.
pub const SUBSCRIPTIONS: &str = "dev.goblin/subscriptions";

/// The capability of the gateway that carries the name prefix of its own tools.
pub const META_TOOLS: &str = "dev.goblin/metaTools";

/// The prefix of the gateway's own members of `_meta`: options in requests, names in results.
pub const META_PREFIX: &str = "dev.goblin/";

/// Reports whether the capabilities of a client declare this extension.
pub fn declares(text: &str, capabilities: Span, extension: &str) -> bool {
    let object = |of: Span, key| json::member(text, of, key).filter(|value| value.get(text).starts_with('{'));
    let declares = |key| object(capabilities, key).and_then(|of| object(of, extension)).is_some();
    declares("experimental") || declares("extensions")
}

/// Reports whether the `_meta` of a request has an option of the gateway.
pub fn has_option(text: &str, meta: Span) -> bool {
    json::members(text, meta).any(|member| member.key(text).starts_with(META_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d22_the_extension_is_declared_by_an_object_in_either_place() {
        for (capabilities, expected) in [
            (r#"{"experimental":{"dev.goblin/subscriptions":{}}}"#, true),
            (r#"{"extensions":{"other":{},"dev.goblin/subscriptions":{"version":1}}}"#, true),
            (r#"{"experimental":{"dev.goblin/subscriptions":null},"dev.goblin/subscriptions":{}}"#, false),
            (r#"{"experimental":[]}"#, false),
            ("{}", false),
            ("7", false),
        ] {
            let is_declared = declares(capabilities, json::whole(capabilities), SUBSCRIPTIONS);
            assert_eq!(is_declared, expected, "{capabilities}");
        }
    }

    #[test]
    fn d22_only_members_with_the_prefix_are_options() {
        for (meta, expected) in [
            (r#"{"progressToken":1,"dev.goblin/priority":0}"#, true),
            (r#"{"dev\u002egoblin/priority":0}"#, true),
            (r#"{"progressToken":1,"other/dev.goblin/":0}"#, false),
            ("{}", false),
            ("7", false),
        ] {
            assert_eq!(has_option(meta, json::whole(meta)), expected, "{meta}");
        }
    }
}
