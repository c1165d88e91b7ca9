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
    /// Rules for client programs. The first rule that matches applies.
    pub clients: Vec<ClientExposure>,
}

impl Default for Exposure {
    fn default() -> Exposure {
        Exposure { mode: ExposureMode::All, pinned: Vec::new(), auto_above: 60, reveal: false, clients: Vec::new() }
    }
}

/// The exposure for the client programs whose names match. Absent members are those of the exposure with the rule.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientExposure {
    /// A pattern in lower case.
    pub client: Glob,
    pub mode: Option<ExposureMode>,
    pub pinned: Option<Vec<Glob>>,
    pub auto_above: Option<usize>,
    pub reveal: Option<bool>,
}

impl Exposure {
    /// Returns the exposure for the client programs of a rule.
    pub fn for_clients(&self, rule: &ClientExposure) -> Exposure {
        Exposure {
            mode: rule.mode.unwrap_or(self.mode),
            pinned: rule.pinned.clone().unwrap_or_else(|| self.pinned.clone()),
            auto_above: rule.auto_above.unwrap_or(self.auto_above),
            reveal: rule.reveal.unwrap_or(self.reveal),
            clients: Vec::new(),
        }
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetaTools {
    pub enabled: MetaListing,
    /// The prefix of their names.
    pub prefix: String,
}

/// Decides whether the list of tools has the gateway's own tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetaListing {
    /// Lists a group of them if a catalog has many entries of its kind.
    #[default]
    Auto,
    Always,
    Never,
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

impl Profile {
    /// Reports whether clients see an exposed URI of a server.
    pub fn shows_resource(&self, server: &str, uri: &str) -> bool {
        self.shows_server(server) && self.resources.admits(uri)
    }

    pub fn shows_server(&self, server: &str) -> bool {
        self.servers.iter().any(|glob| glob.matches(server))
    }

    /// Returns a profile that shows nothing.
    pub fn nothing() -> Profile {
        let nothing = || Filter { allow: Vec::new(), deny: Vec::new() };
        Profile {
            servers: Vec::new(),
            tools: ProfileTools { filter: nothing(), ..ProfileTools::default() },
            prompts: nothing(),
            resources: UriFilter::new(nothing()),
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
