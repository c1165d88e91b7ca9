//! The arguments of the gateway's own tools, checked against the schema that clients received. Errors are written for
//! agents: they name the problem and how to correct it.

use goblin_catalog::Cursor;
use goblin_catalog::meta::{MetaTool, ResultLimit};
use goblin_catalog::schema::InputSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::meta::MetaCall;
use crate::meta::words::{MAX_QUOTED_INPUT, cut, did_you_mean};

/// The arguments of a call. Absent ones are empty, `None` or their default.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MetaArguments {
    pub name: String,
    pub uri: String,
    pub query: String,
    pub mime_type: Option<String>,
    /// The server to which the result is restricted.
    pub server_id: Option<String>,
    pub limit: usize,
    /// The cursor of the next page.
    pub cursor: Option<String>,
    /// A note for the caller about arguments that were adjusted.
    #[serde(skip)]
    pub note: Option<String>,
}

impl MetaArguments {
    pub(crate) fn read(call: &MetaCall<'_>) -> Result<MetaArguments, String> {
        let (entry, request) = (call.entry, &call.call.request);
        let text = request.params.arguments.map_or("{}", |at| at.get(request.raw.as_str()));
        let invalid =
            |problem: &str| format!("invalid arguments for {}: {}", entry.name, cut(problem, MAX_QUOTED_INPUT));
        let mut value: Value = serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
        let (limit, note) = take_limit(&mut value, limit_of(entry.tool));
        let schema = entry.schema.get_or_init(|| InputSchema::compile(&entry.definition));
        if let Ok(schema) = schema
            && let Ok(Some(problem)) = schema.problem_of(&value)
        {
            return Err(invalid(&problem));
        }
        let arguments: MetaArguments = serde_json::from_value(value).map_err(|error| invalid(&error.to_string()))?;
        if let Some(id) = &arguments.server_id {
            check_server(call, id)?;
        }
        Ok(MetaArguments { limit, note, ..arguments })
    }
}

fn limit_of(tool: MetaTool) -> ResultLimit {
    match tool {
        MetaTool::SearchTools | MetaTool::SearchPrompts | MetaTool::SearchResources => ResultLimit::SEARCH,
        _ => ResultLimit::CATALOG,
    }
}

/// Reads the limit. An integer out of range is clamped, and the note reports it, so the agent need not repeat the call.
fn take_limit(value: &mut Value, ResultLimit { default, max }: ResultLimit) -> (usize, Option<String>) {
    let Some(limit) = value.get_mut("limit") else { return (default, None) };
    let Some(number) = limit.as_f64().filter(|number| number.fract() == 0.0) else { return (default, None) };
    let used = number.clamp(1.0, max as f64);
    let note = (used != number).then(|| format!("limit must be from 1 to {max}; {used} was used"));
    *limit = Value::from(used as usize);
    (used as usize, note)
}

fn check_server(call: &MetaCall<'_>, id: &str) -> Result<(), String> {
    let ids = || call.catalog.sources.iter().map(|source| source.backend.id.as_str());
    if ids().any(|known| known == id) {
        return Ok(());
    }
    let list = || format!("; `{}` lists all servers", call.catalog.meta.name(MetaTool::ListServers));
    Err(format!("no server `{}`{}", cut(id, MAX_QUOTED_INPUT), did_you_mean(id, ids()).unwrap_or_else(list)))
}

/// Returns the cursor as text. It begins with `p`, unlike the cursors of lists, which begin with a hexadecimal digit.
/// Neither parses as the other.
pub(crate) fn write_cursor(cursor: Cursor) -> String {
    format!("p{cursor}")
}

pub(crate) fn read_cursor(text: &str) -> Option<Cursor> {
    text.strip_prefix('p')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use goblin_catalog::listing::List;

    use super::*;

    #[test]
    fn meta5_a_limit_out_of_range_is_clamped_and_reported() {
        let check = |requested: &str, used: usize, has_note: bool| {
            let mut value: Value = serde_json::from_str(&format!(r#"{{"limit":{requested}}}"#)).expect("JSON");
            let (limit, note) = take_limit(&mut value, ResultLimit::SEARCH);
            assert_eq!((limit, note.is_some()), (used, has_note), "{requested}");
        };
        check("1", 1, false);
        check("100", 100, false);
        check("7.0", 7, false);
        check("0", 1, true);
        check("-3", 1, true);
        check("101", 100, true);
        check("1e300", 100, true);
        // The schema rejects these values.
        check("2.5", 10, false);
        check("\"7\"", 10, false);
        assert_eq!(take_limit(&mut Value::Null, ResultLimit::CATALOG), (100, None));
    }

    #[test]
    fn meta5_cursors_of_catalogs_are_not_those_of_lists() {
        let cursor = Cursor { version: 0xc0ffee, list: List::Prompts, page: 31 };
        assert_eq!(read_cursor(&write_cursor(cursor)), Some(cursor));
        assert_eq!(read_cursor(&cursor.to_string()), None);
        assert!(write_cursor(cursor).parse::<Cursor>().is_err());
        assert_eq!(read_cursor(""), None);
    }
}
