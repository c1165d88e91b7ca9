//! Formats updates as text or as JSON.

use goblin_client::update::ResourceUpdate;
use goblin_telemetry::clean;
use goblin_wire::json::quote;

use crate::style::{is_colourful, paint_if};

/// The output format of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStyle {
    Plain,
    Colourful,
    Json,
}

impl OutputStyle {
    pub(crate) fn for_people() -> OutputStyle {
        if is_colourful(&std::io::stdout()) { OutputStyle::Colourful } else { OutputStyle::Plain }
    }
}

/// One line, with its end.
pub(crate) fn line(update: &ResourceUpdate, style: OutputStyle, time: &str, server: Option<&str>) -> String {
    let is_colourful = match style {
        OutputStyle::Json => return json_line(update, time, server),
        OutputStyle::Plain => false,
        OutputStyle::Colourful => true,
    };
    let deleted =
        if update.is_deleted { " ".to_owned() + &paint_if(is_colourful, "deleted", "31") } else { String::new() };
    format!("{} {}{deleted}\n", paint_if(is_colourful, time, "2"), clean(&update.uri))
}

fn json_line(update: &ResourceUpdate, time: &str, server: Option<&str>) -> String {
    let server = server.map_or_else(|| "null".to_owned(), quote);
    let ResourceUpdate { uri, is_deleted, params } = update;
    let uri = quote(uri);
    format!(r#"{{"time":"{time}","uri":{uri},"server":{server},"deleted":{is_deleted},"params":{params}}}"#) + "\n"
}
#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn update(params: &str) -> Option<ResourceUpdate> {
        notified("updated", params)
    }

    fn notified(kind: &str, params: &str) -> Option<ResourceUpdate> {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/{kind}","params":{params}}}"#);
        match Message::parse(text.into()) {
            Ok(Message::Notification(notification)) => ResourceUpdate::read(&notification),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_says_what_has_changed_and_what_is_gone() {
        let check = |params: &str, style: OutputStyle, expected: &str| {
            let line = line(&update(params).expect("an update"), style, "T", Some("files"));
            assert_eq!(line, expected.to_owned() + "\n", "{params}");
        };
        check(r#"{"uri":"a:b"}"#, OutputStyle::Plain, "T a:b");
        check(r#"{"uri":"a:b\u001b[31m\n"}"#, OutputStyle::Plain, "T a:b[31m ");
        let deleted = r#"{"uri":"a:b","_meta":{"dev.goblin/deleted":true}}"#;
        check(deleted, OutputStyle::Plain, "T a:b deleted");
        check(deleted, OutputStyle::Colourful, "\x1b[2mT\x1b[0m a:b \x1b[31mdeleted\x1b[0m");
        check(r#"{"uri":"a:b","_meta":{"dev.goblin/deleted":false}}"#, OutputStyle::Plain, "T a:b");
        let deleted = notified("deleted", r#"{"uri":"a:b"}"#).expect("an update");
        assert_eq!(line(&deleted, OutputStyle::Plain, "T", None), "T a:b deleted\n");
        let expected = r#"{"time":"T","uri":"a:b","server":null,"deleted":true,"params":{"uri":"a:b"}}"#;
        assert_eq!(line(&deleted, OutputStyle::Json, "T", None), expected.to_owned() + "\n");
    }

    #[test]
    fn an_object_has_the_params_token_for_token() {
        let check = |params: &str, server: Option<&str>, expected: &str| {
            let line = line(&update(params).expect("an update"), OutputStyle::Json, "T", server);
            assert_eq!(line, expected.to_owned() + "\n", "{params}");
            assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
        };
        check(
            r#"{"uri":"a\u003ab","x":1.0}"#,
            Some("files"),
            r#"{"time":"T","uri":"a:b","server":"files","deleted":false,"params":{"uri":"a\u003ab","x":1.0}}"#,
        );
        check(
            r#"{"uri":"a:b","_meta":{"dev.goblin/deleted":true}}"#,
            None,
            r#"{"time":"T","uri":"a:b","server":null,"deleted":true,"params":{"uri":"a:b","_meta":{"dev.goblin/deleted":true}}}"#,
        );
    }

    #[test]
    fn an_update_of_nothing_is_none() {
        for params in ["{}", r#"{"uri":1}"#] {
            assert_eq!(update(params), None, "{params}");
        }
    }
}
