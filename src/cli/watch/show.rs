//! Reads an update and renders it as text or JSON.

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::cli::style::{is_colourful, paint_if};
use crate::observe::clean;
use crate::protocol::Notification;
use crate::protocol::json::{self, quote};
use crate::protocol::method::Method;

const DELETED: &str = "dev.goblin/deleted";

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Plain,
    Colourful,
    Json,
}

impl Shown {
    pub fn for_people() -> Shown {
        if is_colourful(&std::io::stdout()) { Shown::Colourful } else { Shown::Plain }
    }
}

/// A change of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    pub uri: String,
    pub is_deleted: bool,
    /// The params of the notification, unchanged.
    params: String,
}

impl Update {
    /// Reads a notification. Returns `None` if it names no URI.
    pub fn read(notification: &Notification) -> Option<Update> {
        let text = notification.raw.as_str();
        let uri = json::string(text, notification.params.uri?)?.into_owned();
        let deleted = notification.params.meta.and_then(|meta| json::member(text, meta, DELETED));
        let is_deleted = notification.method == Method::ResourceDeleted
            || deleted.is_some_and(|deleted| deleted.get(text) == "true");
        let params = notification.params.whole.map_or("{}", |whole| whole.get(text)).to_owned();
        Some(Update { uri, is_deleted, params })
    }

    /// Renders the update as one line, including the line end.
    pub fn line(&self, shown: Shown, time: &str, server: Option<&str>) -> String {
        let is_colourful = match shown {
            Shown::Json => return self.json(time, server),
            Shown::Plain => false,
            Shown::Colourful => true,
        };
        let deleted =
            if self.is_deleted { " ".to_owned() + &paint_if(is_colourful, "deleted", "31") } else { String::new() };
        format!("{} {}{deleted}\n", paint_if(is_colourful, time, "2"), clean(&self.uri))
    }

    fn json(&self, time: &str, server: Option<&str>) -> String {
        let server = server.map_or_else(|| "null".to_owned(), quote);
        let Update { uri, is_deleted, params } = self;
        let uri = quote(uri);
        format!(r#"{{"time":"{time}","uri":{uri},"server":{server},"deleted":{is_deleted},"params":{params}}}"#) + "\n"
    }
}

/// Returns the current time as in the log: RFC 3339 in UTC.
pub fn now() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;

    fn update(params: &str) -> Option<Update> {
        told("updated", params)
    }

    fn told(word: &str, params: &str) -> Option<Update> {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/resources/{word}","params":{params}}}"#);
        match Message::parse(text.into()) {
            Ok(Message::Notification(notification)) => Update::read(&notification),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_says_what_has_changed_and_what_is_gone() {
        let check = |params: &str, shown: Shown, expected: &str| {
            let line = update(params).expect("an update").line(shown, "T", Some("files"));
            assert_eq!(line, expected.to_owned() + "\n", "{params}");
        };
        check(r#"{"uri":"a:b"}"#, Shown::Plain, "T a:b");
        check(r#"{"uri":"a:b\u001b[31m\n"}"#, Shown::Plain, "T a:b[31m ");
        let gone = r#"{"uri":"a:b","_meta":{"dev.goblin/deleted":true}}"#;
        check(gone, Shown::Plain, "T a:b deleted");
        check(gone, Shown::Colourful, "\x1b[2mT\x1b[0m a:b \x1b[31mdeleted\x1b[0m");
        check(r#"{"uri":"a:b","_meta":{"dev.goblin/deleted":false}}"#, Shown::Plain, "T a:b");
        let gone = told("deleted", r#"{"uri":"a:b"}"#).expect("an update");
        assert_eq!(gone.line(Shown::Plain, "T", None), "T a:b deleted\n");
        let line = r#"{"time":"T","uri":"a:b","server":null,"deleted":true,"params":{"uri":"a:b"}}"#;
        assert_eq!(gone.line(Shown::Json, "T", None), line.to_owned() + "\n");
    }

    #[test]
    fn an_object_has_the_params_token_for_token() {
        let check = |params: &str, server: Option<&str>, expected: &str| {
            let line = update(params).expect("an update").line(Shown::Json, "T", server);
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

    #[test]
    fn the_time_is_in_utc() {
        let time = now();
        assert!(time.len() > "2025-01-01T00:00:00".len() && time.ends_with('Z') && time.contains('T'), "{time}");
    }
}
