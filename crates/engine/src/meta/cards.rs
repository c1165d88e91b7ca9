//! Cards: short forms of catalog entries, with enough information to choose between them. The list and search tools
//! return cards. Descriptions are cut, so a page costs little of an agent's context.

use std::fmt::Display;

use goblin_catalog::indexes::VisibleEntry;
use goblin_catalog::listing::List;
use goblin_wire::json::{self, quote};
use goblin_wire::units;

use crate::meta::words::{cut, one_line};

/// The maximum length of a description in a card, and in a line of text.
const MAX_DESCRIPTION: usize = 300;
const MAX_LINE: usize = 100;

/// An entry as a JSON object, and as a line of text.
pub(crate) struct EntrySummary {
    pub json: String,
    pub line: String,
}

pub(crate) fn card(list: List, shown: &VisibleEntry<'_>) -> EntrySummary {
    let text = |key| text_of(shown.definition, key);
    let description = text("description").map(|text| cut(&one_line(&text), MAX_DESCRIPTION));
    let description = description.filter(|text| !text.is_empty());
    let name = text("name").filter(|name| !name.is_empty()).unwrap_or_else(|| shown.exposed.to_owned());
    let mime = text("mimeType");
    let members = ObjectBuilder::default().string(list.key(), shown.exposed);
    let (members, summary) = match list {
        List::Tools | List::Prompts => (members.string("description", description.as_deref()), description),
        List::Resources => {
            let size = size_of(shown.definition);
            let members = members.string("id", shown.identifier).string("name", &*name);
            let members = members.string("mimeType", mime.as_deref()).raw("size", size);
            let size = size.and_then(|size| size.parse::<f64>().ok()).map(|size| units::bytes(size as u64));
            (members, Some([Some(name), mime, size].into_iter().flatten().collect::<Vec<_>>().join(", ")))
        }
        List::Templates => {
            let members = members.string("name", &*name).string("description", description.as_deref());
            let members = members.string("mimeType", mime.as_deref());
            (members, Some([Some(name), description].into_iter().flatten().collect::<Vec<_>>().join(": ")))
        }
    };
    let summary = summary.map(|summary| format!(" - {}", cut(&one_line(&summary), MAX_LINE))).unwrap_or_default();
    let line = format!("{}{summary} ({})", shown.exposed, shown.server);
    EntrySummary { json: members.string("serverId", shown.server).object(), line }
}

/// Returns the size of a resource as it is written, if it is a number.
fn size_of(definition: &str) -> Option<&str> {
    let size = json::member(definition, json::whole(definition), "size")?.get(definition);
    size.starts_with(|first: char| first.is_ascii_digit() || first == '-').then_some(size)
}

/// Returns a string member of a definition.
pub(crate) fn text_of(definition: &str, key: &str) -> Option<String> {
    let at = json::member(definition, json::whole(definition), key)?;
    json::string(definition, at).map(String::from)
}

/// The members of an object under construction.
#[derive(Default)]
pub(crate) struct ObjectBuilder(Vec<String>);

impl ObjectBuilder {
    pub(crate) fn string<'a>(self, key: &str, value: impl Into<Option<&'a str>>) -> ObjectBuilder {
        self.raw(key, value.into().map(quote))
    }

    /// Adds a value that is already JSON, such as a number.
    pub(crate) fn raw(mut self, key: &str, value: Option<impl Display>) -> ObjectBuilder {
        self.0.extend(value.map(|value| format!(r#""{key}":{value}"#)));
        self
    }

    /// Adds an array of values that are already JSON.
    pub(crate) fn array(self, key: &str, values: &[String]) -> ObjectBuilder {
        self.raw(key, Some(format!("[{}]", values.join(","))))
    }

    pub(crate) fn object(&self) -> String {
        format!("{{{}}}", self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: List, definition: &str, json: &str, line: &str) {
        let identifier = (list == List::Resources).then_some("s_x");
        let card = card(list, &VisibleEntry { server: "s", exposed: "s_x", native: "x", definition, identifier });
        assert_eq!((card.json.as_str(), card.line.as_str()), (json, line));
    }

    #[test]
    fn reg6_a_card_contains_the_valid_members_of_its_definition() {
        check(
            List::Tools,
            r#"{"name":"s_x","description":"Does\n it. ","inputSchema":{}}"#,
            r#"{"name":"s_x","description":"Does it.","serverId":"s"}"#,
            "s_x - Does it. (s)",
        );
        check(List::Prompts, r#"{"name":"s_x","description":7}"#, r#"{"name":"s_x","serverId":"s"}"#, "s_x (s)");
        check(
            List::Resources,
            r#"{"uri":"u","name":"n","mimeType":"text/plain","size":1.50e3}"#,
            r#"{"uri":"s_x","id":"s_x","name":"n","mimeType":"text/plain","size":1.50e3,"serverId":"s"}"#,
            "s_x - n, text/plain, 1.5 KiB (s)",
        );
        check(
            List::Resources,
            r#"{"uri":"u","mimeType":null,"size":"big"}"#,
            r#"{"uri":"s_x","id":"s_x","name":"s_x","serverId":"s"}"#,
            "s_x - s_x (s)",
        );
        check(
            List::Templates,
            r#"{"uriTemplate":"u","name":"n","description":"d","mimeType":"a/b"}"#,
            r#"{"uriTemplate":"s_x","name":"n","description":"d","mimeType":"a/b","serverId":"s"}"#,
            "s_x - n: d (s)",
        );
    }

    #[test]
    fn reg6_a_long_description_is_cut() {
        let definition = format!(r#"{{"description":"{}"}}"#, "word ".repeat(1000));
        let shown = VisibleEntry { server: "s", exposed: "x", native: "x", definition: &definition, identifier: None };
        let card = card(List::Tools, &shown);
        assert!(card.json.len() < 400 && card.json.contains('…'), "{}", card.json);
        assert!(card.line.len() < 130 && card.line.contains('…'), "{}", card.line);
    }
}
