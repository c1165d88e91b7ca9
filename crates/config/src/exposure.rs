//! Settings for the part of the catalog that clients see, and named views (profiles) with their own endpoint.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Filter;
use crate::glob::Glob;
use crate::uri_filter::UriFilter;

/// Selects the tools that are listed. Clients can find and call the other tools by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposure {
    pub mode: ExposureMode,
    /// Exposed names that are listed in every mode.
    pub pinned: Vec<Glob>,
    /// The number of tools above which [`ExposureMode::Auto`] stops listing all of them.
    pub auto_above: usize,
    /// Whether a tool is added to the list of a client that requested its description.
    pub reveal: bool,
}

impl Default for Exposure {
    fn default() -> Exposure {
        Exposure { mode: ExposureMode::All, pinned: Vec::new(), auto_above: 60, reveal: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposureMode {
    All,
    /// Lists only the pinned tools. Clients search for the others.
    Search,
    /// Behaves as `All` or `Search`, depending on the number of tools.
    Auto,
}

/// The gateway's own tools. Clients can call them whether they are listed or not.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaTools {
    pub enabled: bool,
    /// The prefix of their names.
    pub prefix: String,
}

impl Default for MetaTools {
    fn default() -> MetaTools {
        MetaTools { enabled: true, prefix: String::new() }
    }
}

/// A named view. Its clients cannot reach anything outside of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Patterns for server ids.
    pub servers: Vec<Glob>,
    pub tools: ProfileTools,
    /// A filter for exposed names.
    pub prompts: Filter,
    /// A filter for exposed URIs and URI templates.
    pub resources: UriFilter,
    pub exposure: Exposure,
}

/// Rules for tools. The keys are exposed names, before the profile renames them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileTools {
    pub filter: Filter,
    /// Maps a name to the complete name that clients of the profile see.
    pub rename: BTreeMap<String, String>,
    /// Maps a name to a different description.
    pub describe: BTreeMap<String, String>,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            servers: vec![Glob::any()],
            tools: ProfileTools::default(),
            prompts: Filter::default(),
            resources: UriFilter::default(),
            exposure: Exposure::default(),
        }
    }
}

/// A profile's key in the file and the last segment of its endpoint: 1 to 64 of `[A-Za-z0-9_-]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName(Arc<str>);

impl ProfileName {
    pub(crate) const MAX_LENGTH: usize = 64;

    pub fn new(text: &str) -> Option<ProfileName> {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        let is_name = (1..=ProfileName::MAX_LENGTH).contains(&text.len()) && text.chars().all(is_plain);
        is_name.then(|| ProfileName(Arc::from(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of the profile's endpoint.
    pub fn path(&self) -> String {
        format!("/mcp/p/{self}")
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Borrow<str> for ProfileName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
