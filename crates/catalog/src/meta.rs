//! The gateway's own tools, as the catalog lists them. The module `meta` implements them.
//!
//! Their names are reserved. A backend's tool with such a name gets another name and is reported as a conflict.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use goblin_config::exposure::{MetaListing, MetaTools};
use goblin_wire::json;

use crate::listing::List;
use crate::schema::{InputSchema, ValidationSkip};

/// The definitions in the order of [`MetaTool::ALL`]. They are part of the context of every agent, so the texts are
/// short. They have `@` in place of the name prefix, and line breaks only where JSON allows blanks.
const DEFINITIONS: &str = include_str!("meta_tools.json");

goblin_wire::labels! {
    /// One of the gateway's own tools, with its name without the prefix.
    MetaTool {
        SearchTools = "search_tools",
        DescribeTool = "describe_tool",
        CallTool = "call_tool",
        CatalogTools = "catalog_tools",
        SearchResources = "search_resources",
        DescribeResource = "describe_resource",
        CatalogResources = "catalog_resources",
        CatalogTemplates = "catalog_resource_templates",
        SearchPrompts = "search_prompts",
        DescribePrompt = "describe_prompt",
        CatalogPrompts = "catalog_prompts",
        ListServers = "list_servers",
    }
}

impl MetaTool {
    /// Returns the list that the tool searches or describes. Returns `None` if it concerns all lists.
    pub(crate) fn subject(self) -> Option<List> {
        match self {
            MetaTool::SearchTools | MetaTool::DescribeTool | MetaTool::CallTool | MetaTool::CatalogTools => {
                Some(List::Tools)
            }
            MetaTool::SearchResources | MetaTool::DescribeResource | MetaTool::CatalogResources => {
                Some(List::Resources)
            }
            MetaTool::CatalogTemplates => Some(List::Templates),
            MetaTool::SearchPrompts | MetaTool::DescribePrompt | MetaTool::CatalogPrompts => Some(List::Prompts),
            MetaTool::ListServers => None,
        }
    }
}

/// The default and the maximum number of entries that a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimit {
    pub default: usize,
    pub max: usize,
}

impl ResultLimit {
    pub const SEARCH: ResultLimit = ResultLimit { default: 10, max: 100 };
    pub const CATALOG: ResultLimit = ResultLimit { default: 100, max: 1000 };
}

/// The gateway's own tools under the names that clients use.
pub struct MetaSet {
    /// Decides which of them the list of tools has.
    pub listing: MetaListing,
    prefix: String,
    names: HashMap<Box<str>, usize>,
    /// All entries, in the order of [`MetaTool::ALL`].
    pub entries: Vec<MetaEntry>,
}

/// A tool under the name that clients use, with its definition.
pub struct MetaEntry {
    pub tool: MetaTool,
    /// The name that clients use.
    pub name: Box<str>,
    pub definition: Bytes,
    /// The compiled input schema.
    pub schema: OnceLock<Result<InputSchema, ValidationSkip>>,
}

impl MetaSet {
    pub fn new(config: &MetaTools) -> Arc<MetaSet> {
        let prefix = config.prefix.clone();
        let text = DEFINITIONS.lines().map(str::trim).collect::<String>().replace('@', &prefix);
        let definitions = json::elements(&text, json::whole(&text)).map(|definition| definition.get(&text).to_owned());
        let entry = |(tool, definition): (&MetaTool, String)| MetaEntry {
            tool: *tool,
            name: format!("{prefix}{}", tool.as_str()).into(),
            definition: definition.into(),
            schema: OnceLock::new(),
        };
        let entries: Vec<_> = MetaTool::ALL.iter().zip(definitions).map(entry).collect();
        let names = entries.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index)).collect();
        Arc::new(MetaSet { listing: config.enabled, prefix, names, entries })
    }

    pub fn find(&self, name: &str) -> Option<&MetaEntry> {
        self.names.get(name).map(|index| &self.entries[*index])
    }

    /// Reports whether this is the tool that calls other tools. Every call runs this check, so it avoids hashing.
    pub fn is_call(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix.as_str()) == Some(MetaTool::CallTool.as_str())
    }

    /// Returns the common prefix of their names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name that clients use.
    pub fn name(&self, tool: MetaTool) -> String {
        format!("{}{}", self.prefix, tool.as_str())
    }
}

#[cfg(test)]
mod tests;
