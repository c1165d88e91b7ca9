//! The tools that the gateway itself serves, as the catalog lists them. What they do is told by `meta`.
//!
//! Their names belong to them: a backend's tool that would have one gets another, and is told among the conflicts.

pub mod definitions;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::schema::{Schema, Unjudged};
use goblin_config::exposure::MetaTools;

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

    /// Its name without a prefix.
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

/// How many entries a call may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub default: usize,
    pub most: usize,
}

impl Limit {
    pub const SEARCH: Limit = Limit { default: 10, most: 100 };
    pub const CATALOG: Limit = Limit { default: 100, most: 1000 };
}

/// All of them under the names that clients know.
pub struct MetaSet {
    /// Whether they stand in the list of tools.
    pub listed: bool,
    prefix: String,
    names: HashMap<Box<str>, usize>,
    /// In the order of [`MetaTool::ALL`].
    pub entries: Vec<MetaEntry>,
}

/// One of them.
pub struct MetaEntry {
    pub tool: MetaTool,
    /// As clients call it.
    pub name: Box<str>,
    pub definition: Bytes,
    /// The compiled input schema.
    pub schema: OnceLock<Result<Schema, Unjudged>>,
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

    /// Whether this is the tool that calls others. Asked for every call, so it does not hash.
    pub fn is_call(&self, name: &str) -> bool {
        name.strip_prefix(self.prefix.as_str()) == Some(MetaTool::CallTool.name())
    }

    /// What a client must know that sees only some of the tools.
    pub fn guidance(&self) -> String {
        let [search, describe, call] = [MetaTool::SearchTools, MetaTool::DescribeTool, MetaTool::CallTool];
        format!(
            "## Finding tools\n\nMost tools are not listed. Find them with `{}`, see their arguments with `{}`, and call \
             them with `{}` or by their own names.\n\n",
            self.name(search),
            self.name(describe),
            self.name(call),
        )
    }

    /// What stands before all their names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// As clients call it.
    pub fn name(&self, tool: MetaTool) -> String {
        format!("{}{}", self.prefix, tool.name())
    }
}

#[cfg(test)]
mod tests;
