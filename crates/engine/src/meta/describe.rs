//! Describes one entry completely: its definition exactly as in lists, and a text for readers. An unknown name gives an
//! error with similar names.

use goblin_catalog::listing::List;
use goblin_catalog::meta::MetaTool;
use goblin_catalog::resources::UriOwner;
use goblin_catalog::{ListedTools, uri};
use goblin_wire::Error;
use goblin_wire::json;

use crate::meta::cards::{ObjectBuilder, text_of};
use crate::meta::schema_text;
use crate::meta::words::{compact, not_found, one_line};
use crate::meta::{MetaCall, MetaResult};
use crate::router::find_resource;

impl MetaCall<'_> {
    pub(crate) fn describe_tool(&self, name: &str) -> Result<MetaResult, String> {
        let (definition, position, server) = match self.catalog.meta.find(name) {
            Some(own) => (&own.definition, None, None),
            None => {
                let (place, entry) = self.view.tool(name).map_err(|error| self.not_found(List::Tools, name, &error))?;
                self.reveal(place, &entry.exposed);
                (&entry.definition, Some(place), Some(self.server(entry.source)))
            }
        };
        let shown = self.view.shown_tool(definition, position);
        let members = ObjectBuilder::default().string("serverId", server).raw("tool", Some(utf8(&shown)));
        let text = tool_text(utf8(&shown), server.unwrap_or("the gateway itself"));
        Ok(MetaResult { structured: members.object(), text })
    }

    pub(crate) fn describe_prompt(&self, name: &str) -> Result<MetaResult, String> {
        let (_, entry) = self.view.prompt(name).map_err(|error| self.not_found(List::Prompts, name, &error))?;
        let (definition, server) = (utf8(&entry.definition), self.server(entry.source));
        let members = ObjectBuilder::default().string("serverId", server).raw("prompt", Some(definition));
        Ok(MetaResult { structured: members.object(), text: prompt_text(definition, server) })
    }

    pub(crate) fn describe_resource(&self, uri: &str) -> Result<MetaResult, String> {
        // Only its server knows a forwarded URI, so there is nothing to describe.
        let missing = || Error::ResourceNotFound { uri: uri.to_owned(), candidates: Vec::new() };
        let offered = |owner: UriOwner| if owner.is_forwarded { Err(missing()) } else { Ok(owner) };
        let owner = find_resource(self.view, uri).and_then(offered);
        let owner = owner.map_err(|error| self.not_found(List::Resources, uri, &error))?;
        let server = self.server(owner.source);
        let members = ObjectBuilder::default().string("serverId", server);
        let mut listed = self.catalog.resources.entries.iter();
        let Some(entry) = listed.find(|entry| entry.source == owner.source && *entry.native == *owner.native) else {
            return Ok(self.describe_unlisted(&owner, members));
        };
        let definition = utf8(&entry.definition);
        let members = members.string("id", &*entry.identifier).raw("resource", Some(definition));
        let text = resource_text(definition, &entry.exposed, &entry.identifier, server);
        Ok(MetaResult { structured: members.object(), text })
    }

    /// Describes a resource that can be read but is not listed. A template covers it, or its server mentioned it.
    fn describe_unlisted(&self, owner: &UriOwner, members: ObjectBuilder) -> MetaResult {
        let id = &self.catalog.source(owner.source).backend.id;
        let exposed = self.catalog.resources.expose(owner.source, &owner.native);
        let identifier = uri::identifier(id, &owner.native);
        let template = self.catalog.resources.template_of(owner);
        let definition = ObjectBuilder::default().string("uri", &*exposed).string("name", &*owner.native).object();
        let members = members.string("id", &*identifier).raw("resource", Some(&definition));
        let members = members.raw("template", template.map(|entry| utf8(&entry.definition)));
        let mut text = resource_text(&definition, &exposed, &identifier, id.as_str());
        text.push_str("\nnot listed by its server, which may still provide it");
        if let Some(template) = template {
            text.push_str(&format!("\ntemplate: {} - {}", template.exposed, summary(utf8(&template.definition))));
        }
        MetaResult { structured: members.object(), text }
    }

    /// Returns the message for a name that the list does not contain.
    pub(crate) fn not_found(&self, list: List, name: &str, error: &Error) -> String {
        let (search, found) = match list {
            List::Tools => (MetaTool::SearchTools, "tools by what they do"),
            List::Prompts => (MetaTool::SearchPrompts, "prompts"),
            List::Resources | List::Templates => (MetaTool::SearchResources, "resources"),
        };
        let find = format!("; `{}` finds {found}", self.catalog.meta.name(search));
        not_found(list.noun(), name, error, self.catalog.entries(list).map(|entry| entry.exposed), &find)
    }

    /// Adds a tool to the client's own list if the configuration enables this. The client needs a session to receive
    /// the change notification.
    fn reveal(&self, place: usize, exposed: &str) {
        let ListedTools::Pinned { positions, reveal: true } = &self.view.lists.tools else { return };
        let caller = &self.call.caller;
        if caller.session.is_some() && caller.dialect.has_handshake() && !positions.contains(&place) {
            self.call.client.reveal(exposed);
        }
    }

    fn server(&self, source: usize) -> &str {
        self.catalog.source(source).backend.id.as_str()
    }
}

fn utf8(definition: &[u8]) -> &str {
    std::str::from_utf8(definition).unwrap_or("{}")
}

/// Returns the name, the server, the title and the description.
fn head(definition: &str, name: &str, server: &str) -> Vec<String> {
    let mut lines = vec![format!("{name} ({server})")];
    lines.extend(text_of(definition, "title").filter(|title| title != name));
    lines.extend(text_of(definition, "description").map(|description| description.trim().to_owned()));
    lines
}

fn tool_text(definition: &str, server: &str) -> String {
    let whole = json::whole(definition);
    let mut lines = head(definition, &text_of(definition, "name").unwrap_or_default(), server);
    if let Some(schema) = json::member(definition, whole, "inputSchema") {
        match schema_text::argument_lines(definition, schema) {
            Some(arguments) => lines.extend(with_heading(arguments)),
            None => lines.push(format!("inputSchema: {}", compact(schema.get(definition)))),
        }
    }
    lines.join("\n")
}

fn prompt_text(definition: &str, server: &str) -> String {
    let mut lines = head(definition, &text_of(definition, "name").unwrap_or_default(), server);
    let list = json::member(definition, json::whole(definition), "arguments");
    let arguments = list.into_iter().flat_map(|list| json::elements(definition, list)).map(|at| {
        let is_required = json::member(definition, at, "required").is_some_and(|at| at.get(definition) == "true");
        let [name, description] = ["name", "description"].map(|key| string_in(definition, at, key));
        let hints = if is_required { vec!["required".to_owned()] } else { Vec::new() };
        argument(&name, &hints, &description)
    });
    lines.extend(with_heading(arguments.collect()));
    lines.join("\n")
}

fn resource_text(definition: &str, exposed: &str, identifier: &str, server: &str) -> String {
    let mut lines = head(definition, exposed, server);
    lines.push(format!("id: {identifier}"));
    // `head` has already written these members.
    let rest = json::members(definition, json::whole(definition))
        .filter(|member| !matches!(&*member.key(definition), "uri" | "title" | "description"));
    let other_lines = rest.map(|member| {
        let value = json::string(definition, member.value);
        let value = value.map_or_else(|| compact(member.value.get(definition)), |text| one_line(&text));
        format!("{}: {value}", member.key(definition))
    });
    lines.extend(other_lines);
    lines.join("\n")
}

/// Returns the name and description of a template on one line.
fn summary(definition: &str) -> String {
    let parts = ["name", "description"].into_iter().filter_map(|key| text_of(definition, key));
    one_line(&parts.collect::<Vec<_>>().join(": "))
}

/// Returns the lines of arguments under a heading.
fn with_heading(arguments: Vec<String>) -> Vec<String> {
    let heading = if arguments.is_empty() { "no arguments" } else { "arguments:" };
    [heading.to_owned()].into_iter().chain(arguments).collect()
}

pub(crate) fn argument(name: &str, hints: &[String], description: &str) -> String {
    let hints = if hints.is_empty() { String::new() } else { format!(" ({})", hints.join(", ")) };
    let description = one_line(description);
    let description = if description.is_empty() { String::new() } else { format!(" - {description}") };
    format!("  {name}{hints}{description}")
}

pub(crate) fn string_in(text: &str, object: json::Span, key: &str) -> String {
    json::member(text, object, key).and_then(|at| json::string(text, at)).map(String::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reg7_a_tool_is_described_with_its_arguments_once() {
        let definition = |schema: &str| {
            format!(r#"{{"name":"s_t","title":"T","description":"Does it.\nWell.","inputSchema":{schema}}}"#)
        };
        let flat = definition(r#"{ "type":"object", "properties": {"a":{"type":"string"}},"required":["a"] }"#);
        assert_eq!(tool_text(&flat, "s"), "s_t (s)\nT\nDoes it.\nWell.\narguments:\n  a (string, required)");
        assert!(tool_text(&definition(r#"{"type":"object"}"#), "s").ends_with("Well.\nno arguments"));
        let deep = definition(r#"{ "properties": {"a":{"type":"object", "properties":{"b":{}}}} }"#);
        let expected = r#"{"properties":{"a":{"type":"object","properties":{"b":{}}}}}"#;
        assert_eq!(tool_text(&deep, "s"), format!("s_t (s)\nT\nDoes it.\nWell.\ninputSchema: {expected}"));
    }

    #[test]
    fn meta5_a_prompt_is_described_with_its_arguments() {
        let definition = r#"{"name":"s_p","arguments":[{"name":"a","required":true,"description":"d"},{"name":"b"}]}"#;
        assert_eq!(prompt_text(definition, "s"), "s_p (s)\narguments:\n  a (required) - d\n  b");
        assert_eq!(prompt_text(r#"{"name":"s_p"}"#, "s"), "s_p (s)\nno arguments");
    }

    #[test]
    fn meta2_a_resource_is_described_with_all_its_metadata() {
        let definition =
            r#"{"uri":"u","name":"n","title":"T","description":"d","size":1.0,"annotations":{ "priority": 1 }}"#;
        let expected = "s+u (s)\nT\nd\nid: s_u\nname: n\nsize: 1.0\nannotations: {\"priority\":1}";
        assert_eq!(resource_text(definition, "s+u", "s_u", "s"), expected);
    }

    #[test]
    fn definitions_of_any_shape_can_be_described() {
        for definition in ["{}", "[]", "7", r#"{"inputSchema":[],"arguments":7,"size":null,"description":[]}"#] {
            tool_text(definition, "s");
            prompt_text(definition, "s");
            resource_text(definition, "u", "i", "s");
        }
    }
}
