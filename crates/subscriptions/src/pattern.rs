//! A pattern that covers many resources: a glob, or a template that the backend lists. The directory of a pattern makes
//! it possible to find the patterns of a URI without testing all of them.

use goblin_wire::template::Template;

use crate::glob::UriGlob;

pub enum Pattern {
    Glob(UriGlob),
    Template(Template),
}

impl Pattern {
    pub fn kind(&self) -> &'static str {
        match self {
            Pattern::Glob(_) => "glob",
            Pattern::Template(_) => "template",
        }
    }

    pub fn matches(&self, native: &str) -> bool {
        match self {
            Pattern::Glob(glob) => glob.matches(native),
            Pattern::Template(template) => template.matches(native),
        }
    }

    /// Returns the directory that contains everything the pattern covers: its literal beginning up to the last `/`.
    pub fn directory(&self) -> &str {
        let literal = match self {
            Pattern::Glob(glob) => glob.literal(),
            Pattern::Template(template) => template.as_str().split('{').next().unwrap_or_default(),
        };
        literal.rfind('/').map_or("", |at| &literal[..=at])
    }
}
