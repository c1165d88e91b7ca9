//! Counts the tokens of a text in `o200k_base`, which this binary contains.
//!
//! A list of tools is counted twice: as it was sent, and reduced to the members that most clients pass to a model.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tiktoken_rs::o200k_base_singleton;

pub fn count(text: &str) -> usize {
    o200k_base_singleton().encode_ordinary(text).len()
}

/// The size of tool definitions, in tokens.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Size {
    /// The definitions with all their members.
    pub whole: usize,
    /// The definitions with only the members that most clients pass to a model.
    pub bare: usize,
}

/// The members that most clients pass to a model.
#[derive(Serialize, Deserialize)]
struct Bare<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    description: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputSchema")]
    input_schema: &'a RawValue,
}

impl Size {
    /// Returns the size of definitions that are listed together.
    pub fn of_list(definitions: &[Box<RawValue>]) -> serde_json::Result<Self> {
        let bare = definitions.iter().map(|it| serde_json::from_str(it.get())).collect::<Result<Vec<Bare<'_>>, _>>()?;
        Ok(Self { whole: count(&serde_json::to_string(definitions)?), bare: count(&serde_json::to_string(&bare)?) })
    }

    pub fn of_one(definition: &RawValue) -> serde_json::Result<Self> {
        let bare: Bare<'_> = serde_json::from_str(definition.get())?;
        Ok(Self { whole: count(definition.get()), bare: count(&serde_json::to_string(&bare)?) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::{Size, count};

    #[test]
    fn tokens_are_counted_with_o200k() {
        for (text, expected) in [("", 0), ("hello world", 2), (r#"{"query":"create github issue"}"#, 7)] {
            assert_eq!(count(text), expected, "{text}");
        }
    }

    #[test]
    fn a_bare_definition_has_three_members_with_their_original_bytes() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let bare = r#"{"name":"a","description":"says \u00e4","inputSchema":{"type": "object"}}"#;
        let more = bare.replacen('{', r#"{"title":"A","_meta":{"x":1},"#, 1);
        assert_eq!(Size::of_one(&raw(&more)).unwrap().bare, count(bare));
        assert_eq!(Size::of_one(&raw(&more)).unwrap().whole, count(&more));
        let listed = Size::of_list(&[raw(&more), raw(bare)]).unwrap();
        assert_eq!(listed.whole, count(&format!("[{more},{bare}]")));
        assert_eq!(listed.bare, count(&format!("[{bare},{bare}]")));
    }
}
