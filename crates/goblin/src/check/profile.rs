//! The report about a profile: its settings, and after a connection the number of its entries.

use std::sync::Arc;

use goblin_catalog::ListedTools;
use goblin_catalog::build::CatalogSettings;
use goblin_catalog::profile::narrow;
use goblin_config::exposure::{Exposure, ExposureMode, Profile, ProfileName};
use goblin_config::glob::Glob;
use goblin_config::{Config, Filter};
use goblin_engine::catalog_store::Catalog;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct ProfileReport {
    pub name: String,
    /// The path at which clients of the profile connect.
    pub path: String,
    /// The enabled servers that the profile includes.
    pub servers: Vec<String>,
    pub tools: FilterReport,
    pub prompts: FilterReport,
    pub resources: FilterReport,
    pub exposure: ExposureReport,
    /// The entries of the profile. `None` if the servers were not connected.
    pub seen: Option<EntryCounts>,
}

/// The number of entries in a profile.
#[derive(Debug, Serialize)]
pub(crate) struct EntryCounts {
    pub tools: usize,
    /// The number of tools that clients see in `tools/list`.
    pub listed: usize,
    pub prompts: usize,
    pub resources: usize,
    pub templates: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct FilterReport {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExposureReport {
    pub mode: &'static str,
    pub pinned: Vec<String>,
    pub auto_above: usize,
    pub reveal: bool,
}

impl ProfileReport {
    pub(crate) fn new(name: &ProfileName, profile: &Profile, config: &Config) -> ProfileReport {
        let enabled = config.servers.iter().filter(|(_, server)| server.enabled).map(|(id, _)| id);
        let has = |id: &str| profile.servers.iter().any(|glob| glob.matches(id));
        ProfileReport {
            name: name.to_string(),
            path: name.path(),
            servers: enabled.filter(|id| has(id.as_str())).map(ToString::to_string).collect(),
            tools: FilterReport::new(&profile.tools.filter),
            prompts: FilterReport::new(&profile.prompts),
            resources: FilterReport::new(profile.resources.written()),
            exposure: ExposureReport::new(&profile.exposure),
            seen: None,
        }
    }

    /// Returns the cells of the profile's row. `enabled` is the number of enabled servers.
    pub(crate) fn row(&self, enabled: usize) -> Vec<String> {
        let servers = match self.servers.len() {
            0 => "none".to_owned(),
            count if count == enabled => "all".to_owned(),
            _ => self.servers.join(", "),
        };
        let exposure = match self.exposure.mode {
            "auto" => format!("auto above {}", self.exposure.auto_above),
            mode => mode.to_owned(),
        };
        let counts = match &self.seen {
            Some(EntryCounts { tools, listed, prompts, resources, templates }) => {
                [tools, listed, prompts, resources, templates].map(ToString::to_string).to_vec()
            }
            None => [&self.tools, &self.prompts, &self.resources].map(FilterReport::summary).to_vec(),
        };
        [self.name.clone(), self.path.clone(), servers].into_iter().chain(counts).chain([exposure]).collect()
    }
}

impl EntryCounts {
    pub(crate) fn new(whole: &Catalog, profile: &Profile, settings: &CatalogSettings) -> EntryCounts {
        let (page_size, exposure) = (settings.page_size, profile.exposure.clone());
        let catalog = narrow(
            whole,
            profile,
            &CatalogSettings { page_size, exposure, meta: Arc::clone(&settings.meta), gateway: None },
        );
        let tools = catalog.tools.entries.len();
        EntryCounts {
            tools,
            listed: match &catalog.default_lists().tools {
                ListedTools::All => tools,
                ListedTools::Pinned { positions, .. } => positions.len(),
            },
            prompts: catalog.prompts.entries.len(),
            resources: catalog.resources.entries.len(),
            templates: catalog.resources.templates.len(),
        }
    }
}

impl FilterReport {
    fn new(filter: &Filter) -> FilterReport {
        FilterReport { allow: texts(&filter.allow), deny: texts(&filter.deny) }
    }

    fn summary(&self) -> String {
        let allow = match self.allow.as_slice() {
            [] => return "none".to_owned(),
            allow if allow.iter().any(|glob| glob == "*") => "all".to_owned(),
            allow => allow.join(", "),
        };
        if self.deny.is_empty() { allow } else { format!("{allow} but {}", self.deny.join(", ")) }
    }
}

impl ExposureReport {
    fn new(exposure: &Exposure) -> ExposureReport {
        let mode = match exposure.mode {
            ExposureMode::All => "all",
            ExposureMode::Search => "search",
            ExposureMode::Auto => "auto",
        };
        let Exposure { pinned, auto_above, reveal, .. } = exposure;
        ExposureReport { mode, pinned: texts(pinned), auto_above: *auto_above, reveal: *reveal }
    }
}

fn texts(globs: &[Glob]) -> Vec<String> {
    globs.iter().map(ToString::to_string).collect()
}
