//! The tools that the gateway itself serves, as the catalog lists them. What they do is told by `meta`.
//!
//! Their names belong to them: a backend's tool that would have one gets another, and is told among the conflicts.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::exposure::MetaTools;

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

/// All of them under the names that clients know.
pub struct MetaSet {
    /// Whether they stand in the list of tools.
    pub listed: bool,
    prefix: String,
    names: HashMap<Box<str>, MetaTool>,
    /// In the order of [`MetaTool::ALL`].
    pub definitions: Vec<Bytes>,
}

impl MetaSet {
    pub fn new(config: &MetaTools) -> Arc<MetaSet> {
        let name = |tool: &MetaTool| format!("{}{}", config.prefix, tool.name());
        Arc::new(MetaSet {
            listed: config.enabled,
            prefix: config.prefix.clone(),
            names: MetaTool::ALL.iter().map(|tool| (name(tool).into(), *tool)).collect(),
            definitions: MetaTool::ALL.iter().map(|tool| definition(*tool, &name(tool))).collect(),
        })
    }

    pub fn find(&self, name: &str) -> Option<MetaTool> {
        self.names.get(name).copied()
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

fn definition(_tool: MetaTool, name: &str) -> Bytes {
    format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#).into()
}
