//! A form for the arguments of a tool or a prompt, or for the variables of a template. Required fields are first.

use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use goblin_wire::json::quote;
use goblin_wire::template::{Template, TemplateValue};
use serde_json::{Map, Value, json};

use crate::state::message::Effect;

/// The maximum number of suggestions that are kept.
const MAX_SUGGESTIONS: usize = 100;

#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    pub target: FormTarget,
    pub fields: Vec<FormField>,
    /// The index of the field with the focus.
    pub at: usize,
    /// The description of the entry.
    pub about: String,
    /// A warning about the effects of the request.
    pub warning: Option<&'static str>,
    schema: Value,
    suggestions: Suggestions,
}

/// The entry that a form is for, under its exposed name or pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormTarget {
    Tool(String),
    Prompt(String),
    Template(String),
}

/// The suggested values for one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Suggestions {
    /// The request that is or was asked.
    ticket: Option<u64>,
    field: usize,
    values: Vec<String>,
    at: Option<usize>,
    is_answered: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FormField {
    name: String,
    /// The types of the value, and its description.
    pub hint: String,
    pub is_required: bool,
    /// Set if the value is a list with commas between its members.
    is_list: bool,
    pub entry: FieldInput,
    /// The reason why the value is invalid.
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FieldInput {
    /// Text that is converted by the schema: a string, a number, or JSON.
    Written(String),
    /// A choice among JSON values. `None` leaves the argument out.
    Chosen { tokens: Vec<String>, at: Option<usize> },
}

impl FormField {
    fn new(name: &str, property: &Value, schema: ToolSchema<'_>) -> FormField {
        let kind = schema.describe(property);
        let tokens = match (&property["enum"], kind.as_str()) {
            (Value::Array(values), _) => values.iter().map(Value::to_string).collect(),
            (_, "boolean") => vec!["true".to_owned(), "false".to_owned()],
            _ => Vec::new(),
        };
        let default = property.get("default").filter(|value| !value.is_null());
        let entry = if tokens.is_empty() {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            FieldInput::Written(default.map(text).unwrap_or_default())
        } else {
            let default = default.map(Value::to_string);
            let at = default.and_then(|default| tokens.iter().position(|token| *token == default));
            FieldInput::Chosen { tokens, at }
        };
        let description = property["description"].as_str().unwrap_or_default();
        let hint = match description.is_empty() {
            true => kind,
            false => format!("{kind}: {description}"),
        };
        let is_required = schema.is_required(name);
        FormField { name: name.to_owned(), hint: clean(&hint), is_required, is_list: false, entry, error: None }
    }

    pub fn label(&self) -> String {
        clean(&self.name)
    }

    /// Returns the displayed value.
    pub fn shown(&self) -> String {
        match &self.entry {
            FieldInput::Written(text) => clean(text),
            FieldInput::Chosen { tokens, at } => at.map(|at| clean(&tokens[at])).unwrap_or_default(),
        }
    }

    /// Returns the value as JSON, or `None` if the argument is left out. Returns an error if the value is invalid, or
    /// missing although it is required.
    fn token(&self, schema: ToolSchema<'_>) -> Result<Option<String>, String> {
        let token = match &self.entry {
            FieldInput::Written(text) if text.is_empty() => None,
            FieldInput::Written(text) => {
                let property = schema.property(&self.name);
                Some(schema.token(property, text).map_err(|kinds| format!("must be {kinds}"))?)
            }
            FieldInput::Chosen { tokens, at } => at.map(|at| tokens[at].clone()),
        };
        match token {
            None if self.is_required => Err("required".to_owned()),
            token => Ok(token),
        }
    }
}

impl Form {
    pub fn of_tool(tool: &str, definition: &str) -> Form {
        let definition: Value = serde_json::from_str(definition).unwrap_or_default();
        let is_destructive = definition["annotations"]["destructiveHint"] == true;
        let warning = is_destructive.then_some("the server marks this tool as destructive");
        let form = Form::new(FormTarget::Tool(tool.to_owned()), definition["inputSchema"].clone());
        Form { warning, about: about(&definition), ..form }
    }

    pub fn of_prompt(prompt: &str, definition: &str) -> Form {
        let definition: Value = serde_json::from_str(definition).unwrap_or_default();
        let arguments = definition["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for argument in arguments {
            let Some(name) = argument["name"].as_str() else { continue };
            let description = argument["description"].as_str().unwrap_or_default();
            properties.insert(name.to_owned(), json!({ "type": "string", "description": description }));
            required.extend((argument["required"] == true).then_some(name));
        }
        let schema = json!({ "properties": properties, "required": required });
        let mut form = Form::new(FormTarget::Prompt(prompt.to_owned()), schema);
        // All arguments of prompts are strings, so the type is no help.
        for field in &mut form.fields {
            field.hint = field.hint.strip_prefix("string").unwrap_or(&field.hint).trim_start_matches(": ").to_owned();
        }
        form.about = about(&definition);
        form
    }

    /// Creates a form with a field for each variable. Returns an error if the pattern is no valid template.
    pub fn of_template(pattern: &str, description: &str) -> Result<Form, String> {
        let template = Template::parse(pattern).map_err(|error| format!("cannot expand {pattern}: {error}"))?;
        let variables = template.variables();
        let properties: Map<_, _> =
            variables.iter().map(|known| (known.name.to_owned(), json!({ "type": "string" }))).collect();
        let required: Vec<_> = variables.iter().filter(|known| !known.is_optional).map(|known| known.name).collect();
        let schema = json!({ "properties": properties, "required": required });
        let mut form = Form::new(FormTarget::Template(pattern.to_owned()), schema);
        // The order of the pattern is easier to read than the order of the names.
        let place = |name: &str| variables.iter().position(|known| known.name == name);
        form.fields.sort_by_key(|field| (!field.is_required, place(&field.name)));
        for field in &mut form.fields {
            field.is_list = variables.iter().any(|known| known.name == field.name && known.is_list);
            field.hint = if field.is_list { "values with commas between them" } else { "" }.to_owned();
        }
        form.about = clean(description);
        Ok(form)
    }

    fn new(target: FormTarget, root: Value) -> Form {
        let schema = ToolSchema::new(&root);
        let mut fields: Vec<_> =
            schema.properties().map(|(name, property)| FormField::new(name, property, schema)).collect();
        fields.sort_by_key(|field| !field.is_required);
        let (about, suggestions) = (String::new(), Suggestions::default());
        Form { target, fields, at: 0, about, warning: None, schema: root, suggestions }
    }

    /// Reports whether the request needs no input. A call of a tool always waits for the user.
    pub fn is_ready(&self) -> bool {
        self.fields.is_empty() && !matches!(self.target, FormTarget::Tool(_))
    }

    pub fn title(&self) -> String {
        match &self.target {
            FormTarget::Tool(name) => clean(&format!("Call {name}")),
            FormTarget::Prompt(name) => clean(&format!("Get {name}")),
            FormTarget::Template(pattern) => clean(&format!("Read {pattern}")),
        }
    }

    /// Returns the name of the entry, and the effect that sends the request. If a field is invalid, marks it, moves to
    /// the first one, and returns `None`.
    pub fn request(&mut self, ticket: u64) -> Option<(String, Effect)> {
        let arguments = self.arguments()?;
        Some(match self.target.clone() {
            FormTarget::Tool(tool) => (tool.clone(), Effect::Call { ticket, tool, arguments }),
            FormTarget::Prompt(prompt) => (prompt.clone(), Effect::GetPrompt { ticket, prompt, arguments }),
            FormTarget::Template(_) => {
                let uri = self.uri()?;
                (uri.clone(), Effect::Read { ticket, uri })
            }
        })
    }

    /// Returns the URI that the values of a template give. `None` for other forms.
    pub fn uri(&self) -> Option<String> {
        let FormTarget::Template(pattern) = &self.target else { return None };
        let values = self.fields.iter().filter_map(|field| match &field.entry {
            FieldInput::Written(text) if !text.is_empty() => {
                let value = match field.is_list {
                    true => TemplateValue::List(text.split(',').map(|part| part.trim().to_owned()).collect()),
                    false => TemplateValue::String(text.clone()),
                };
                Some((field.name.clone(), value))
            }
            _ => None,
        });
        Some(Template::parse(pattern).ok()?.expand(&values.collect::<Vec<_>>()))
    }

    /// Moves to another field, and wraps around at both ends.
    pub fn go(&mut self, by: isize) {
        let count = self.fields.len().max(1);
        self.at = (self.at + count).saturating_add_signed(by) % count;
    }

    pub fn write(&mut self, character: char) {
        self.suggestions = Suggestions::default();
        let Some(field) = self.fields.get_mut(self.at) else { return };
        field.error = None;
        match &mut field.entry {
            FieldInput::Written(text) => text.push(character),
            FieldInput::Chosen { tokens, at } if character == ' ' => *at = beside(*at, tokens.len(), 1),
            // The first letter of a choice selects it.
            FieldInput::Chosen { tokens, at } => {
                let found = tokens.iter().position(|token| token.trim_start_matches('"').starts_with(character));
                *at = found.or(*at);
            }
        }
    }

    pub fn erase(&mut self) {
        self.suggestions = Suggestions::default();
        let Some(field) = self.fields.get_mut(self.at) else { return };
        field.error = None;
        match &mut field.entry {
            FieldInput::Written(text) => drop(text.pop()),
            FieldInput::Chosen { at, .. } => *at = None,
        }
    }

    /// Selects the next or previous choice or suggestion. If the field has none, returns the parameters of a request
    /// for suggestions under this ticket.
    pub fn choose(&mut self, by: isize, ticket: u64) -> Option<String> {
        let field = self.fields.get_mut(self.at)?;
        match &mut field.entry {
            FieldInput::Chosen { tokens, at } => {
                field.error = None;
                *at = beside(*at, tokens.len(), by);
                None
            }
            FieldInput::Written(text) if self.suggestions.field == self.at && !self.suggestions.values.is_empty() => {
                let suggestions = &mut self.suggestions;
                let count = suggestions.values.len();
                // The first step takes the first suggestion, or the last one if it goes back.
                let from = suggestions.at.unwrap_or(if by > 0 { count - 1 } else { 0 });
                let at = (from + count).saturating_add_signed(by) % count;
                suggestions.at = Some(at);
                *text = suggestions.values[at].clone();
                field.error = None;
                None
            }
            FieldInput::Written(_) => {
                let params = self.completion()?;
                self.fields[self.at].error = None;
                self.suggestions = Suggestions { ticket: Some(ticket), field: self.at, ..Suggestions::default() };
                Some(params)
            }
        }
    }

    /// Returns the parameters of `completion/complete` for the field with the focus. `None` for tools, which the
    /// protocol cannot complete.
    fn completion(&self) -> Option<String> {
        let reference = match &self.target {
            FormTarget::Tool(_) => return None,
            FormTarget::Prompt(name) => json!({ "type": "ref/prompt", "name": name }),
            FormTarget::Template(pattern) => json!({ "type": "ref/resource", "uri": pattern }),
        };
        let text = |field: &FormField| match &field.entry {
            FieldInput::Written(text) => text.clone(),
            FieldInput::Chosen { .. } => String::new(),
        };
        let others = self.fields.iter().enumerate().filter(|(at, field)| *at != self.at && !text(field).is_empty());
        let others: Map<_, _> = others.map(|(_, field)| (field.name.clone(), text(field).into())).collect();
        let field = self.fields.get(self.at)?;
        let argument = json!({ "name": field.name, "value": text(field) });
        Some(json!({ "ref": reference, "argument": argument, "context": { "arguments": others } }).to_string())
    }

    /// Keeps the suggestions of the server, if they are the ones that were asked last.
    pub fn suggested(&mut self, ticket: u64, mut values: Vec<String>) {
        if self.suggestions.ticket == Some(ticket) {
            values.truncate(MAX_SUGGESTIONS);
            self.suggestions.values = values;
            self.suggestions.is_answered = true;
        }
    }

    /// Returns the line about suggestions for the field, if the user asked for some.
    pub fn suggestion_text(&self, field: usize) -> Option<String> {
        let suggestions = &self.suggestions;
        let is_asked = suggestions.ticket.is_some() && suggestions.field == field;
        let mark = |(at, value): (usize, &String)| match suggestions.at == Some(at) {
            true => format!("[{}]", clean(value)),
            false => clean(value),
        };
        // The selected value stays visible in a long list.
        let from = suggestions.at.unwrap_or_default().saturating_sub(2);
        is_asked.then(|| match (suggestions.is_answered, suggestions.values.is_empty()) {
            (false, _) => "asking the server for suggestions".to_owned(),
            (true, true) => "the server has no suggestions".to_owned(),
            (true, false) => {
                let shown = suggestions.values.iter().enumerate().skip(from).map(mark);
                format!("→ {}", shown.collect::<Vec<_>>().join("  "))
            }
        })
    }

    /// Returns the arguments as JSON. If a field is invalid, marks it, moves to the first one, and returns `None`.
    pub fn arguments(&mut self) -> Option<String> {
        let schema = ToolSchema::new(&self.schema);
        let mut members = Vec::new();
        let mut first_error = None;
        for (at, field) in self.fields.iter_mut().enumerate() {
            match field.token(schema) {
                Ok(token) => members.extend(token.map(|token| format!("{}:{token}", quote(&field.name)))),
                Err(error) => {
                    field.error = Some(error);
                    first_error = first_error.or(Some(at));
                }
            }
        }
        match first_error {
            Some(at) => {
                self.at = at;
                None
            }
            None => Some(format!("{{{}}}", members.join(","))),
        }
    }
}

fn about(definition: &Value) -> String {
    clean(definition["description"].as_str().unwrap_or_default())
}

/// Returns the next or previous of `count` choices. The empty choice is between the last and the first.
fn beside(at: Option<usize>, count: usize, by: isize) -> Option<usize> {
    let (places, place) = (count + 1, at.map_or(0, |at| at + 1));
    ((place + places).saturating_add_signed(by) % places).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form() -> Form {
        let schema = json!({"properties": {
            "count": {"type": "integer"}, "deep": {"type": "object"}, "level": {"enum": ["low", "high", 3]},
            "on": {"type": "boolean"}, "text": {"type": "string", "description": "What\nto say"},
            "times": {"type": "number", "default": 1.5},
        }, "required": ["text", "level"]});
        Form::of_tool("tool", &json!({ "inputSchema": schema }).to_string())
    }

    fn fill(form: &mut Form, name: &str, text: &str) {
        form.at = form.fields.iter().position(|field| field.name == name).expect("a field");
        text.chars().for_each(|character| form.write(character));
    }

    #[test]
    fn required_fields_are_first_and_each_field_has_a_hint() {
        let fields: Vec<_> =
            form().fields.iter().map(|field| (field.label(), field.is_required, field.hint.clone())).collect();
        assert_eq!(fields[0], ("level".to_owned(), true, "low|high|3".to_owned()));
        assert_eq!(fields[1], ("text".to_owned(), true, "string: What to say".to_owned()));
        assert_eq!(fields[2], ("count".to_owned(), false, "integer".to_owned()));
    }

    #[test]
    fn field_texts_become_arguments_of_the_schema_types() {
        let mut form = form();
        fill(&mut form, "text", "3");
        fill(&mut form, "count", "3");
        fill(&mut form, "deep", r#"{"a": 1.0}"#);
        fill(&mut form, "on", "f");
        fill(&mut form, "level", "  ");
        let expected = r#"{"level":"high","text":"3","count":3,"deep":{"a": 1.0},"on":false,"times":1.5}"#;
        assert_eq!(form.arguments().as_deref(), Some(expected));
        fill(&mut form, "level", " ");
        assert!(form.arguments().expect("all is right").contains(r#""level":3,"#));
    }

    #[test]
    fn an_invalid_field_shows_its_error() {
        let mut form = form();
        fill(&mut form, "count", "many");
        assert_eq!(form.arguments(), None);
        let errors: Vec<_> = form.fields.iter().filter_map(|field| field.error.clone()).collect();
        assert_eq!(errors, ["required", "required", "must be an integer"]);
        assert_eq!(form.at, 0, "the first of them");
        form.choose(-1, 1);
        assert_eq!((form.fields[0].shown(), form.fields[0].error.clone()), ("3".to_owned(), None));
        form.erase();
        assert_eq!(form.fields[0].shown(), "");
    }

    #[test]
    fn a_tool_without_arguments_has_an_empty_form() {
        let mut form = Form::of_tool("tool", r#"{"inputSchema":{"type":"object"}}"#);
        form.go(1);
        form.write('x');
        assert_eq!(form.arguments().as_deref(), Some("{}"));
    }
}
