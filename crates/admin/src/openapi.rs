//! The OpenAPI document. Its file is generated: a test compares it with the route table and the response types, and
//! writes it if `GOBLIN_BLESS` is set.

use serde_json::Value;

pub fn document() -> Value {
    serde_json::from_str(include_str!("../openapi.json")).expect("a test compares the file with a JSON value")
}

#[cfg(test)]
mod tests;
