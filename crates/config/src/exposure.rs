//! What of the catalog clients see at once, and the named views of it that have an endpoint of their own.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Filter;
use crate::glob::Glob;
use crate::uri_filter::UriFilter;

/// Which tools are listed. All others can be found, and called by name, all the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Exposure {
    pub mode: Mode,
    /// Names, as clients see them, that are listed in any mode.
    pub pinned: Vec<Glob>,
    /// With [`Mode::Auto`]: more tools than this are too many to list.
    pub auto_above: usize,
    /// Whether a tool that a client had described is put on that client's list.
    pub reveal: bool,
}

impl Default for Exposure {
    fn default() -> Exposure {
        Exposure { mode: Mode::All, pinned: Vec::new(), auto_above: 60, reveal: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    All,
    /// Those that are pinned; the rest is searched for.
    Search,
    /// `All` or `Search`, by the number of tools.
    Auto,
}

/// The tools that the gateway itself serves. They can be called whether they are listed or not.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaTools {
    pub enabled: bool,
    /// Stands before their names.
    pub prefix: String,
}

impl Default for MetaTools {
    fn default() -> MetaTools {
        MetaTools { enabled: true, prefix: String::new() }
    }
}

/// A named view: what its clients see is all there is for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Ids of servers.
    pub servers: Vec<Glob>,
    pub tools: ProfileTools,
    /// Exposed names.
    pub prompts: Filter,
    /// Exposed URIs, of templates too.
    pub resources: UriFilter,
    pub exposure: Exposure,
}

/// By exposed names, as they are without the profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileTools {
    pub filter: Filter,
    /// To the whole name that clients of the profile see.
    pub rename: BTreeMap<String, String>,
    /// To another description.
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

/// A profile's key in the file, which its endpoint ends in: 1 to 64 of `[A-Za-z0-9_-]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileName(Arc<str>);

impl ProfileName {
    pub const MAX_LENGTH: usize = 64;

    pub fn new(text: &str) -> Option<ProfileName> {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
        let is_name = (1..=ProfileName::MAX_LENGTH).contains(&text.len()) && text.chars().all(is_plain);
        is_name.then(|| ProfileName(Arc::from(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of its endpoint.
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
