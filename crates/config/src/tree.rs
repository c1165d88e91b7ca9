//! A configuration value with ordered members.
//!
//! It is the intermediate form between the files of other programs, in JSON or TOML, and the text written into goblin's
//! file.

use jsonc_parser::ast::Value;
use jsonc_parser::cst::CstInputValue;

#[derive(Clone, Debug, PartialEq)]
pub enum JsonTree {
    Null,
    Flag(bool),
    /// The number as written in the file.
    Number(String),
    Text(String),
    List(Vec<JsonTree>),
    Object(Vec<(String, JsonTree)>),
}

impl JsonTree {
    pub fn text(text: impl Into<String>) -> JsonTree {
        JsonTree::Text(text.into())
    }

    pub fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> JsonTree {
        JsonTree::List(texts.into_iter().map(JsonTree::text).collect())
    }

    pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, JsonTree)>) -> JsonTree {
        JsonTree::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            JsonTree::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn members(&self) -> Option<&[(String, JsonTree)]> {
        match self {
            JsonTree::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&JsonTree> {
        self.members()?.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Reports whether both trees are equal, ignoring the order of members.
    pub fn is_same(&self, other: &JsonTree) -> bool {
        match (self, other) {
            (JsonTree::Object(one), JsonTree::Object(two)) => {
                let has =
                    |(name, value): &(String, JsonTree)| other.get(name).is_some_and(|theirs| value.is_same(theirs));
                one.len() == two.len() && one.iter().all(has)
            }
            (JsonTree::List(one), JsonTree::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.is_same(two))
            }
            _ => self == other,
        }
    }

    pub(crate) fn of_json(value: &Value<'_>) -> JsonTree {
        match value {
            Value::NullKeyword(_) => JsonTree::Null,
            Value::BooleanLit(literal) => JsonTree::Flag(literal.value),
            Value::NumberLit(literal) => JsonTree::Number(literal.value.to_owned()),
            Value::StringLit(literal) => JsonTree::Text(literal.value.clone().into_owned()),
            Value::Array(array) => JsonTree::List(array.elements.iter().map(JsonTree::of_json).collect()),
            Value::Object(object) => JsonTree::Object(
                object
                    .properties
                    .iter()
                    .map(|property| (property.name.as_str().to_owned(), JsonTree::of_json(&property.value)))
                    .collect(),
            ),
        }
    }

    #[cfg(feature = "import")]
    pub(crate) fn of_toml(value: &toml::Value) -> JsonTree {
        match value {
            toml::Value::String(text) => JsonTree::text(text),
            toml::Value::Integer(number) => JsonTree::Number(number.to_string()),
            toml::Value::Float(number) => JsonTree::Number(number.to_string()),
            toml::Value::Boolean(flag) => JsonTree::Flag(*flag),
            toml::Value::Datetime(time) => JsonTree::text(time.to_string()),
            toml::Value::Array(elements) => JsonTree::List(elements.iter().map(JsonTree::of_toml).collect()),
            toml::Value::Table(table) => {
                JsonTree::Object(table.iter().map(|(name, value)| (name.clone(), JsonTree::of_toml(value))).collect())
            }
        }
    }

    pub(crate) fn to_input(&self) -> CstInputValue {
        match self {
            JsonTree::Null => CstInputValue::Null,
            JsonTree::Flag(flag) => CstInputValue::Bool(*flag),
            JsonTree::Number(number) => CstInputValue::Number(number.clone()),
            JsonTree::Text(text) => CstInputValue::String(text.clone()),
            JsonTree::List(elements) => CstInputValue::Array(elements.iter().map(JsonTree::to_input).collect()),
            JsonTree::Object(members) => {
                CstInputValue::Object(members.iter().map(|(name, value)| (name.clone(), value.to_input())).collect())
            }
        }
    }
}
