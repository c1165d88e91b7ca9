//! A form for the arguments of a tool. It has one field per property of the schema, required ones first.

use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use goblin_wire::json::quote;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    pub tool: String,
    pub fields: Vec<FormField>,
    /// The index of the field with the focus.
    pub at: usize,
    schema: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FormField {
    name: String,
    /// The types of the value, and its description.
    pub hint: String,
    pub is_required: bool,
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
        FormField { name: name.to_owned(), hint: clean(&hint), is_required, entry, error: None }
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
    pub fn new(tool: &str, definition: &str) -> Form {
        let definition: Value = serde_json::from_str(definition).unwrap_or_default();
        let root = definition["inputSchema"].clone();
        let schema = ToolSchema::new(&root);
        let mut fields: Vec<_> =
            schema.properties().map(|(name, property)| FormField::new(name, property, schema)).collect();
        fields.sort_by_key(|field| !field.is_required);
        Form { tool: tool.to_owned(), fields, at: 0, schema: root }
    }

    /// Moves to another field, and wraps around at both ends.
    pub fn go(&mut self, by: isize) {
        let count = self.fields.len().max(1);
        self.at = (self.at + count).saturating_add_signed(by) % count;
    }

    pub fn write(&mut self, character: char) {
        let Some(field) = self.fields.get_mut(self.at) else { return };
        field.error = None;
        match &mut field.entry {
            FieldInput::Written(text) => text.push(character),
            FieldInput::Chosen { .. } if character == ' ' => self.choose(1),
            // The first letter of a choice selects it.
            FieldInput::Chosen { tokens, at } => {
                let found = tokens.iter().position(|token| token.trim_start_matches('"').starts_with(character));
                *at = found.or(*at);
            }
        }
    }

    pub fn erase(&mut self) {
        let Some(field) = self.fields.get_mut(self.at) else { return };
        field.error = None;
        match &mut field.entry {
            FieldInput::Written(text) => drop(text.pop()),
            FieldInput::Chosen { at, .. } => *at = None,
        }
    }

    /// Selects the next or previous choice. The empty choice is between the last and the first.
    pub fn choose(&mut self, by: isize) {
        let Some(FormField { entry: FieldInput::Chosen { tokens, at }, error, .. }) = self.fields.get_mut(self.at)
        else {
            return;
        };
        *error = None;
        let places = tokens.len() + 1;
        let place = at.map_or(0, |at| at + 1);
        *at = ((place + places).saturating_add_signed(by) % places).checked_sub(1);
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
        Form::new("tool", &json!({ "inputSchema": schema }).to_string())
    }

    fn fill(form: &mut Form, name: &str, text: &str) {
        form.at = form.fields.iter().position(|field| field.name == name).expect("a field");
        text.chars().for_each(|character| form.write(character));
    }

    #[test]
    fn the_needed_come_first_and_each_says_what_it_must_be() {
        let fields: Vec<_> =
            form().fields.iter().map(|field| (field.label(), field.is_required, field.hint.clone())).collect();
        assert_eq!(fields[0], ("level".to_owned(), true, "low|high|3".to_owned()));
        assert_eq!(fields[1], ("text".to_owned(), true, "string: What to say".to_owned()));
        assert_eq!(fields[2], ("count".to_owned(), false, "integer".to_owned()));
    }

    #[test]
    fn what_is_written_becomes_arguments_of_the_right_types() {
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
    fn what_is_wrong_is_told_in_its_field() {
        let mut form = form();
        fill(&mut form, "count", "many");
        assert_eq!(form.arguments(), None);
        let errors: Vec<_> = form.fields.iter().filter_map(|field| field.error.clone()).collect();
        assert_eq!(errors, ["required", "required", "must be an integer"]);
        assert_eq!(form.at, 0, "the first of them");
        form.choose(-1);
        assert_eq!((form.fields[0].shown(), form.fields[0].error.clone()), ("3".to_owned(), None));
        form.erase();
        assert_eq!(form.fields[0].shown(), "");
    }

    #[test]
    fn a_tool_without_arguments_has_an_empty_form() {
        let mut form = Form::new("tool", r#"{"inputSchema":{"type":"object"}}"#);
        form.go(1);
        form.write('x');
        assert_eq!(form.arguments().as_deref(), Some("{}"));
    }
}
