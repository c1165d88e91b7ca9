//! A configuration value with ordered members.
//!
//! It is the intermediate form between the files of other programs, in JSON or TOML, and the text written into goblin's
//! file.

use jsonc_parser::ast::Value;
use jsonc_parser::cst::CstInputValue;

#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    Null,
    Flag(bool),
    /// The number as written in the file.
    Number(String),
    Text(String),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    pub fn text(text: impl Into<String>) -> Tree {
        Tree::Text(text.into())
    }

    pub fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Tree {
        Tree::List(texts.into_iter().map(Tree::text).collect())
    }

    pub fn object<'a>(members: impl IntoIterator<Item = (&'a str, Tree)>) -> Tree {
        Tree::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Tree::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn members(&self) -> Option<&[(String, Tree)]> {
        match self {
            Tree::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&Tree> {
        self.members()?.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Reports whether both trees are equal, ignoring the order of members.
    pub fn is_same(&self, other: &Tree) -> bool {
        match (self, other) {
            (Tree::Object(one), Tree::Object(two)) => {
                let has = |(name, value): &(String, Tree)| other.get(name).is_some_and(|theirs| value.is_same(theirs));
                one.len() == two.len() && one.iter().all(has)
            }
            (Tree::List(one), Tree::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.is_same(two))
            }
            _ => self == other,
        }
    }

    pub(crate) fn of_json(value: &Value<'_>) -> Tree {
        match value {
            Value::NullKeyword(_) => Tree::Null,
            Value::BooleanLit(literal) => Tree::Flag(literal.value),
            Value::NumberLit(literal) => Tree::Number(literal.value.to_owned()),
            Value::StringLit(literal) => Tree::Text(literal.value.clone().into_owned()),
            Value::Array(array) => Tree::List(array.elements.iter().map(Tree::of_json).collect()),
            Value::Object(object) => Tree::Object(
                object
                    .properties
                    .iter()
                    .map(|property| (property.name.as_str().to_owned(), Tree::of_json(&property.value)))
                    .collect(),
            ),
        }
    }

    #[cfg(feature = "import")]
    pub(crate) fn of_toml(value: &toml::Value) -> Tree {
        match value {
            toml::Value::String(text) => Tree::text(text),
            toml::Value::Integer(number) => Tree::Number(number.to_string()),
            toml::Value::Float(number) => Tree::Number(number.to_string()),
            toml::Value::Boolean(flag) => Tree::Flag(*flag),
            toml::Value::Datetime(time) => Tree::text(time.to_string()),
            toml::Value::Array(elements) => Tree::List(elements.iter().map(Tree::of_toml).collect()),
            toml::Value::Table(table) => {
                Tree::Object(table.iter().map(|(name, value)| (name.clone(), Tree::of_toml(value))).collect())
            }
        }
    }

    pub(crate) fn to_input(&self) -> CstInputValue {
        match self {
            Tree::Null => CstInputValue::Null,
            Tree::Flag(flag) => CstInputValue::Bool(*flag),
            Tree::Number(number) => CstInputValue::Number(number.clone()),
            Tree::Text(text) => CstInputValue::String(text.clone()),
            Tree::List(elements) => CstInputValue::Array(elements.iter().map(Tree::to_input).collect()),
            Tree::Object(members) => {
                CstInputValue::Object(members.iter().map(|(name, value)| (name.clone(), value.to_input())).collect())
            }
        }
    }
}
