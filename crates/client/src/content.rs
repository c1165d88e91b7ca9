//! The content of results: text, bytes and references, as blocks.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use goblin_telemetry::clean;
use goblin_wire::json;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::units::bytes;

/// One block of content.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentBlock {
    Text(String),
    /// An image, a sound, or the content of a resource.
    Bytes {
        label: String,
        bytes: Vec<u8>,
    },
    /// A reference to a resource, or a block of an unknown kind.
    Other(String),
}

impl ContentBlock {
    /// Reads a block of a tool result or of a prompt message.
    pub fn read(block: &Value) -> ContentBlock {
        let text = |key: &str| clean(block[key].as_str().unwrap_or_default());
        match block["type"].as_str().unwrap_or_default() {
            "text" => ContentBlock::Text(block["text"].as_str().unwrap_or_default().to_owned()),
            kind @ ("image" | "audio") => binary(&format!("{kind} {}", text("mimeType")), &block["data"]),
            "resource" => ContentBlock::of_resource(&block["resource"]),
            "resource_link" => ContentBlock::Other(format!("[resource {}]", text("uri"))),
            other => ContentBlock::Other(format!("[{}]", clean(other))),
        }
    }

    /// Reads the contents of a resource.
    pub fn of_resource(contents: &Value) -> ContentBlock {
        let text = |key: &str| clean(contents[key].as_str().unwrap_or_default());
        match contents["text"].as_str() {
            Some(text) => ContentBlock::Text(text.to_owned()),
            None => binary(&format!("resource {} {}", text("uri"), text("mimeType")), &contents["blob"]),
        }
    }

    /// Returns the printed form of the block.
    pub fn line(&self) -> String {
        match self {
            ContentBlock::Text(text) => text.clone(),
            ContentBlock::Bytes { label, bytes: content } => format!("[{label}, {}]", bytes(content.len() as u64)),
            ContentBlock::Other(text) => text.clone(),
        }
    }
}

fn binary(label: &str, data: &Value) -> ContentBlock {
    let label = label.trim_end();
    match BASE64_STANDARD.decode(data.as_str().unwrap_or_default()) {
        Ok(bytes) => ContentBlock::Bytes { label: label.to_owned(), bytes },
        Err(error) => ContentBlock::Other(format!("[{label}, unreadable: {error}]")),
    }
}

/// The result of a tool. Parts that are nested too deeply to parse are shown unparsed or left out.
pub struct ToolOutput {
    pub raw: Box<RawValue>,
}

impl ToolOutput {
    fn member(&self, key: &str) -> Option<&str> {
        let text = self.raw.get();
        json::member(text, json::whole(text), key).map(|at| at.get(text))
    }

    pub fn is_error(&self) -> bool {
        self.member("isError") == Some("true")
    }

    /// Returns the blocks of `content`.
    pub fn content(&self) -> Vec<Value> {
        let list = self.member("content").unwrap_or_default();
        let blocks = json::elements(list, json::whole(list)).map(|at| at.get(list));
        blocks.map(|block| serde_json::from_str(block).unwrap_or_default()).collect()
    }

    /// Returns `structuredContent` unparsed.
    pub fn structure(&self) -> Option<&str> {
        self.member("structuredContent")
    }

    /// Returns the text blocks, joined by newlines.
    pub fn text(&self) -> String {
        let texts = self.content().into_iter().filter_map(|block| block["text"].as_str().map(str::to_owned));
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// Returns the content of a result, or its structured content if there is no other.
pub fn blocks(outcomes: &ToolOutput) -> Vec<ContentBlock> {
    let content = outcomes.content();
    match outcomes.structure() {
        Some(structure) if content.is_empty() => vec![ContentBlock::Text(structure.to_owned())],
        _ => content.iter().map(ContentBlock::read).collect(),
    }
}
