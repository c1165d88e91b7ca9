//! Tools that only return content, one for each kind.
//!
//! They have no inputs and no side effects, so their results are constants.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::json;

/// A PNG of one pixel.
pub const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/// A WAV of four samples.
const TONE: &str = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQgAAAAAAEAfAADA4A==";

pub fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// Returns the result of a tool without inputs. Returns `None` for other tools.
pub fn answer(name: &str) -> Option<CallToolResult> {
    let pixel = || ContentBlock::image(PIXEL, "image/png");
    let resource = |text: &str, uri: &str, mime_type: &str| {
        ContentBlock::resource(ResourceContents::text(text, uri).with_mime_type(mime_type))
    };
    let content = match name {
        "test_simple_text" => vec![ContentBlock::text("a simple text")],
        "test_image_content" => vec![pixel()],
        "test_audio_content" => vec![ContentBlock::audio(TONE, "audio/wav")],
        "test_embedded_resource" => {
            vec![resource("an embedded resource", "test://embedded-resource", "text/plain")]
        }
        "test_multiple_content_types" => {
            let mixed = json!({"test": "data", "value": 123}).to_string();
            let mixed = resource(&mixed, "test://mixed-content-resource", "application/json");
            vec![ContentBlock::text("several types of content"), pixel(), mixed]
        }
        "test_error_handling" => {
            return Some(CallToolResult::error(vec![ContentBlock::text("this tool always fails")]));
        }
        "json_schema_2020_12_tool" | "test_changing_tool" => vec![ContentBlock::text("done")],
        _ => return None,
    };
    Some(CallToolResult::success(content))
}
