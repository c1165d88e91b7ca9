//! The gateway's own tools, as the catalog lists them. The module `meta` implements them.
//!
//! Their names are reserved. A backend's tool with such a name gets another name and is reported as a conflict.

pub(crate) mod definitions;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use goblin_config::exposure::MetaTools;

use crate::schema::{InputSchema, ValidationSkip};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaTool {
    ListServers,
    CatalogTools,
    SearchTools,
    DescribeTool,
    CallTool,
    CatalogPrompts,
    SearchPrompts,
    DescribePrompt,
    CatalogResources,
    SearchResources,
    DescribeResource,
    CatalogTemplates,
}

impl MetaTool {
    pub const ALL: [MetaTool; 12] = [
        MetaTool::SearchTools,
        MetaTool::DescribeTool,
        MetaTool::CallTool,
        MetaTool::CatalogTools,
        MetaTool::SearchResources,
        MetaTool::DescribeResource,
        MetaTool::CatalogResources,
        MetaTool::CatalogTemplates,
        MetaTool::SearchPrompts,
        MetaTool::DescribePrompt,
        MetaTool::CatalogPrompts,
        MetaTool::ListServers,
    ];

    /// Returns the name without the prefix.
    pub fn name(self) -> &'static str {
        match self {
            MetaTool::ListServers => "list_servers",
            MetaTool::CatalogTools => "catalog_tools",
            MetaTool::SearchTools => "search_tools",
            MetaTool::DescribeTool => "describe_tool",
            MetaTool::CallTool => "call_tool",
            MetaTool::CatalogPrompts => "catalog_prompts",
            MetaTool::SearchPrompts => "search_prompts",
            MetaTool::DescribePrompt => "describe_prompt",
            MetaTool::CatalogResources => "catalog_resources",
            MetaTool::SearchResources => "search_resources",
            MetaTool::DescribeResource => "describe_resource",
            MetaTool::CatalogTemplates => "catalog_resource_templates",
        }
    }
}

/// The default and the maximum number of entries that a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultLimit {
    pub default: usize,
    pub most: usize,
}

impl ResultLimit {
    pub const SEARCH: ResultLimit = ResultLimit { default: 10, most: 100 };
    pub const CATALOG: ResultLimit = ResultLimit { default: 100, most: 1000 };
}

/// The gateway's own tools under the names that clients use.
pub struct MetaSet {
    /// True if the list of tools has them.
    pub listed: bool,
    prefix: String,
    names: HashMap<Box<str>, usize>,
    /// All entries, in the order of [`MetaTool::ALL`].
    pub entries: Vec<MetaEntry>,
}

/// One of the gateway's own tools.
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
        let entry = |tool: MetaTool| MetaEntry {
            tool,
            name: format!("{prefix}{}", tool.name()).into(),
            definition: definitions::definition(tool, &prefix),
            schema: OnceLock::new(),
        };
        let entries: Vec<_> = MetaTool::ALL.into_iter().map(entry).collect();
        let names = entries.iter().enumerate().map(|(place, entry)| (entry.name.clone(), place)).collect();
        Arc::new(MetaSet { listed: config.enabled, prefix, names, entries })
    }

    pub fn find(&self, name: &str) -> Option<&MetaEntry> {
        self.names.get(name).map(|place| &self.entries[*place])
    }

    /// Reports whether this is the tool that calls other tools. Every call runs this check, so it avoids hashing.
    pub fn is_call(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix.as_str()) == Some(MetaTool::CallTool.name())
    }

    /// Returns instructions for clients that see only some of the tools.
    pub(crate) fn guidance(&self) -> String {
        let [search, describe, call] = [MetaTool::SearchTools, MetaTool::DescribeTool, MetaTool::CallTool];
        format!(
            "## Finding tools\n\nMost tools are not listed. Find them with `{}`, see their arguments with `{}`, and call \
             them with `{}` or by their own names.\n\n",
            self.name(search),
            self.name(describe),
            self.name(call),
        )
    }

    /// Returns the common prefix of their names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name that clients use.
    pub fn name(&self, tool: MetaTool) -> String {
        format!("{}{}", self.prefix, tool.name())
    }
}

#[cfg(test)]
mod tests;
