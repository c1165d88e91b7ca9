//! Reads files and converts their content to results.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::path::RelativePath;

/// The size above which a file is neither returned as a whole nor searched.
pub(crate) const MAX_FILE: u64 = 4 << 20;

/// The content of a resource.
#[derive(Serialize)]
pub(crate) struct Contents {
    pub uri: String,
    #[serde(rename = "mimeType")]
    mime: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
}

impl Contents {
    pub(crate) fn new(uri: String, path: &RelativePath, bytes: Vec<u8>) -> Contents {
        match text(bytes) {
            Ok(text) => Contents { uri, mime: mime(path).unwrap_or("text/plain"), text: Some(text), blob: None },
            Err(bytes) => Contents::blob(uri, path, &bytes),
        }
    }

    pub(crate) fn blob(uri: String, path: &RelativePath, bytes: &[u8]) -> Contents {
        Contents { uri, mime: binary_mime(path), text: None, blob: Some(STANDARD.encode(bytes)) }
    }
}

/// A content block of a tool result.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum ResultBlock {
    Text { text: String },
    Resource { resource: Contents },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolResult {
    pub content: Vec<ResultBlock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Box<RawValue>>,
    pub is_error: bool,
}

impl ToolResult {
    pub(crate) fn new(content: Vec<ResultBlock>) -> ToolResult {
        ToolResult { content, structured_content: None, is_error: false }
    }

    pub(crate) fn text(text: String) -> ToolResult {
        ToolResult::new(vec![ResultBlock::Text { text }])
    }

    /// Returns a tool error, which an agent can read to correct its call.
    pub(crate) fn error(text: String) -> ToolResult {
        ToolResult { is_error: true, ..ToolResult::text(text) }
    }

    pub(crate) fn structured(text: String, structure: &impl Serialize) -> ToolResult {
        let structure = serde_json::value::to_raw_value(structure).expect("these structures have string keys only");
        ToolResult { structured_content: Some(structure), ..ToolResult::text(text) }
    }
}

/// Returns the MIME type for the extension of a file. Returns `None` if the extension is unknown.
pub(crate) fn mime(path: &RelativePath) -> Option<&'static str> {
    let extension = path.as_path().extension().and_then(OsStr::to_str)?;
    // The general table maps some of these extensions to video types.
    let typescript = ["ts", "mts", "cts", "tsx"].iter().any(|known| extension.eq_ignore_ascii_case(known));
    if typescript { Some("text/typescript") } else { mime_guess::from_ext(extension).first_raw() }
}

pub(crate) fn binary_mime(path: &RelativePath) -> &'static str {
    mime(path).unwrap_or("application/octet-stream")
}

/// Returns the bytes as text. Returns them unchanged as an error if they are not UTF-8 or contain a NUL.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String, Vec<u8>> {
    if memchr::memchr(0, &bytes).is_some() {
        return Err(bytes);
    }
    String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
}

/// Reads a whole file. Returns `None` if it is larger than [`MAX_FILE`], even if it grows during the read.
pub(crate) fn whole(file: File) -> io::Result<Option<Vec<u8>>> {
    let size = file.metadata()?.len();
    if size > MAX_FILE {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1);
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= MAX_FILE))
}
