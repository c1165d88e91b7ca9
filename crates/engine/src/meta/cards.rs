//! Cards: short forms of catalog entries, with enough information to choose between them. The list and search tools
//! return cards. Descriptions are cut, so a page costs little of an agent's context.

use goblin_catalog::indexes::VisibleEntry;
use goblin_catalog::listing::List;
use goblin_wire::json::{self, quote};

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
    let definition = shown.text();
    let text = |key| text_of(definition, key);
    let size = size_of(definition);
    let description = text("description").map(|text| cut(&one_line(&text), MAX_DESCRIPTION));
    let description = description.filter(|text| !text.is_empty());
    let name = || text("name").filter(|name| !name.is_empty()).unwrap_or_else(|| shown.exposed.to_owned());
    let mime = || text("mimeType");
    let mut members = ObjectBuilder::default();
    let said = match list {
        List::Tools | List::Prompts => {
            members.string("name", Some(shown.exposed));
            members.string("description", description.as_deref());
            description
        }
        List::Resources => {
            members.string("uri", Some(shown.exposed));
            members.string("id", shown.identifier);
            members.string("name", Some(&name()));
            members.string("mimeType", mime().as_deref());
            members.raw("size", size);
            let size = size.map(|size| format!("{size} bytes"));
            Some([Some(name()), mime(), size].into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
        List::Templates => {
            members.string("uriTemplate", Some(shown.exposed));
            members.string("name", Some(&name()));
            members.string("description", description.as_deref());
            members.string("mimeType", mime().as_deref());
            Some([Some(name()), description].into_iter().flatten().collect::<Vec<_>>().join(": "))
        }
    };
    members.string("serverId", Some(shown.server));
    let said = said.map(|said| format!(" - {}", cut(&one_line(&said), MAX_LINE))).unwrap_or_default();
    EntrySummary { json: members.object(), line: format!("{}{said} ({})", shown.exposed, shown.server) }
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
    pub(crate) fn string(&mut self, key: &str, value: Option<&str>) {
        self.raw(key, value.map(quote).as_deref());
    }

    /// Adds a value that is already JSON.
    pub(crate) fn raw(&mut self, key: &str, value: Option<&str>) {
        self.0.extend(value.map(|value| format!(r#""{key}":{value}"#)));
    }

    pub(crate) fn object(&self) -> String {
        format!("{{{}}}", self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entry<'a>(definition: &'a Bytes, exposed: &'a str) -> VisibleEntry<'a> {
        VisibleEntry { source: 0, server: "s", exposed, native: "x", definition, identifier: None }
    }

    fn check(list: List, definition: &str, json: &str, line: &str) {
        let identifier = (list == List::Resources).then_some("s_x");
        let card = card(list, &VisibleEntry { identifier, ..entry(&definition.to_owned().into(), "s_x") });
        assert_eq!((card.json.as_str(), card.line.as_str()), (json, line));
    }

    #[test]
    fn reg6_cards_have_what_there_is() {
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
            "s_x - n, text/plain, 1.50e3 bytes (s)",
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
        let card = card(List::Tools, &entry(&definition.into(), "x"));
        assert!(card.json.len() < 400 && card.json.contains('…'), "{}", card.json);
        assert!(card.line.len() < 130 && card.line.contains('…'), "{}", card.line);
    }
}
