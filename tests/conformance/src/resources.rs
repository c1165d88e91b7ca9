//! The resources and the resource template that the suite's scenarios name.
//!
//! Only [`WATCHED`] ever changes.

use rmcp::ErrorData;
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::tools::content::PIXEL;
use crate::world::{Subject, World};

/// The only resource that changes. The tool `test_trigger_resource_change` changes it.
pub const WATCHED: &str = "test://watched-resource";
const STATIC_TEXT: &str = "test://static-text";
const STATIC_BINARY: &str = "test://static-binary";

pub fn list() -> Vec<Resource> {
    let resource = |uri, name, description, mime_type| {
        Resource::new(uri, name).with_description(description).with_mime_type(mime_type)
    };
    vec![
        resource(STATIC_TEXT, "static-text", "a text that never changes", "text/plain"),
        resource(STATIC_BINARY, "static-binary", "an image that never changes", "image/png"),
        resource(WATCHED, "watched-resource", "a text that changes on demand", "text/plain"),
    ]
}

pub fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new("test://template/{id}/data", "template-data");
    vec![template.with_description("data by its id").with_mime_type("application/json")]
}

pub fn read(world: &World, uri: &str) -> Result<ResourceContents, ErrorData> {
    let text = |text: String, mime_type| ResourceContents::text(text, uri).with_mime_type(mime_type);
    match uri {
        STATIC_TEXT => Ok(text("the content of the static text resource".to_owned(), "text/plain")),
        STATIC_BINARY => Ok(ResourceContents::blob(PIXEL, uri).with_mime_type("image/png")),
        WATCHED => Ok(text(format!("changed {} times", world.changes(Subject::Watched)), "text/plain")),
        _ => match id_of(uri) {
            Some(id) => Ok(text(json!({"id": id, "data": format!("data of {id}")}).to_string(), "application/json")),
            None => Err(ErrorData::resource_not_found("resource not found", Some(json!({ "uri": uri })))),
        },
    }
}

/// Returns the `{id}` of a URI that matches the template.
fn id_of(uri: &str) -> Option<&str> {
    let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_of_the_template_has_one_id() {
        let check = |uri, expected| assert_eq!(id_of(uri), expected, "{uri}");
        check("test://template/123/data", Some("123"));
        check("test://template//data", None);
        check("test://template/1/2/data", None);
        check("test://template/123", None);
        check("test://static-text", None);
    }
}
