//! Reads filters and naming rules: the names that are offered, and their exposed form.

use std::collections::{BTreeMap, HashMap};

use crate::field::{Field, Section};
use crate::glob::Glob;
use crate::problem::{Fault, quoted};
use crate::schema::ObjectKeys;
use crate::uri_filter::UriFilter;
use crate::{Filter, NamePolicy, Namespacing, ResourceRules, Rules, Timeout, ToolRules, UriPolicy, network};

/// The range of the length of names: the minimum for a cut name with its hash, and the maximum of the protocol.
const NAME_LENGTHS: std::ops::RangeInclusive<u64> = 16..=128;
const MAX_SEPARATOR_LENGTH: usize = 8;
/// The length limit of URIs. Other parts of the gateway reject longer URIs too.
const MAX_URI_LENGTH: usize = 8 << 10;

pub(crate) const NAMES: [(&str, NamePolicy); 2] = [("prefix", NamePolicy::Prefix), ("none", NamePolicy::None)];
pub(crate) const URIS: [(&str, UriPolicy); 3] =
    [("uri", UriPolicy::Uri), ("identifier", UriPolicy::Identifier), ("none", UriPolicy::None)];

/// Reports whether D4 allows the character in exposed names.
pub(crate) fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// Reads one value for all three kinds, or an object with members that override `base`.
pub(crate) fn namespacing(field: &Field<'_>, base: &Namespacing) -> Option<Namespacing> {
    let mut namespacing = base.clone();
    if field.is_string() {
        let all = field.choice(&NAMES)?;
        namespacing.tools = all;
        namespacing.prompts = all;
        namespacing.resources = match all {
            NamePolicy::Prefix => UriPolicy::Uri,
            NamePolicy::None => UriPolicy::None,
        };
        return Some(namespacing);
    }
    let section = field.section(ObjectKeys::Namespacing)?;
    section.set(&mut namespacing.tools, "tools", |field| field.choice(&NAMES));
    section.set(&mut namespacing.prompts, "prompts", |field| field.choice(&NAMES));
    section.set(&mut namespacing.resources, "resources", |field| field.choice(&URIS));
    section.set(&mut namespacing.separator, "separator", |field| field.accept(check_separator(field.text()?)));
    section.set(&mut namespacing.shorten, "shorten", Field::flag);
    section.set(&mut namespacing.max_length, "maxLength", |field| field.whole(NAME_LENGTHS));
    Some(namespacing)
}

fn check_separator(text: &str) -> Result<String, Fault> {
    if (1..=MAX_SEPARATOR_LENGTH).contains(&text.len()) && text.chars().all(is_name_character) {
        return Ok(text.to_owned());
    }
    Err(Fault::new(format!("must be 1 to {MAX_SEPARATOR_LENGTH} letters, digits, \"_\" or \"-\"")))
}

/// Reads `tools`, and the filters that other clients place next to it.
pub(crate) fn tools(server: &Section<'_>, max_length: usize) -> ToolRules {
    let section = server.get("tools").and_then(|field| field.section(ObjectKeys::Tools));
    let section = section.as_ref();
    let mut rules = ToolRules::default();
    if let Some(section) = section {
        rules.filter = filter(section);
        section.set(&mut rules.rename, "rename", |field| rename(field, |name| check_name(name, max_length)));
        section.set(&mut rules.timeouts, "timeouts", timeouts);
    }
    for (slot, foreign, own) in
        [(&mut rules.filter.allow, "includeTools", "allow"), (&mut rules.filter.deny, "excludeTools", "deny")]
    {
        if let (Some(field), Some(_)) = (server.get(foreign), section.and_then(|section| section.get(own))) {
            field.key_problem(Fault::new(format!("\"{foreign}\" and tools.{own} mean the same")).cure("keep one"));
        }
        server.set(slot, foreign, globs);
    }
    rules
}

pub(crate) fn prompts(server: &Section<'_>, max_length: usize) -> Rules {
    rules(server, "prompts", ObjectKeys::Prompts, |name| check_name(name, max_length))
}

pub(crate) fn resources(server: &Section<'_>) -> ResourceRules {
    let Rules { filter, rename } = rules(server, "resources", ObjectKeys::Resources, check_uri);
    ResourceRules { filter: UriFilter::new(filter), rename }
}

fn rules(server: &Section<'_>, key: &str, keys: ObjectKeys, check_target: impl Fn(&str) -> Result<(), Fault>) -> Rules {
    let mut rules = Rules::default();
    if let Some(section) = server.get(key).and_then(|field| field.section(keys)) {
        rules.filter = filter(&section);
        section.set(&mut rules.rename, "rename", |field| rename(field, check_target));
    }
    rules
}

pub(crate) fn filter(section: &Section<'_>) -> Filter {
    let mut filter = Filter::default();
    section.set(&mut filter.allow, "allow", globs);
    section.set(&mut filter.deny, "deny", globs);
    filter
}

pub(crate) fn globs(field: &Field<'_>) -> Option<Vec<Glob>> {
    field.list(glob)
}

pub(crate) fn glob(field: &Field<'_>) -> Option<Glob> {
    field.accept(Glob::new(field.text()?).map_err(|error| Fault::new(error.to_string())))
}

/// Reads a map of names to new names. Reports two names with the same target, because neither could be addressed.
pub(crate) fn rename(
    field: &Field<'_>,
    check_target: impl Fn(&str) -> Result<(), Fault>,
) -> Option<BTreeMap<String, String>> {
    let mut renamed = BTreeMap::new();
    let mut taken: HashMap<&str, &str> = HashMap::new();
    for (name, field) in field.map()?.fields() {
        let target = field.text().filter(|target| field.accept(check_target(target)).is_some());
        let Some(target) = target else { continue };
        // The same name twice is a duplicate key, which has already been reported.
        if let Some(other) = taken.insert(target, name).filter(|other| *other != name) {
            let message = format!("{} and {} are both renamed to {}", quoted(other), quoted(name), quoted(target));
            field.problem(Fault::new(message).cure("use two names"));
        }
        renamed.insert(name.to_owned(), target.to_owned());
    }
    Some(renamed)
}

pub(crate) fn check_name(text: &str, max_length: usize) -> Result<(), Fault> {
    if (1..=max_length).contains(&text.len()) && text.chars().all(is_name_character) {
        return Ok(());
    }
    Err(Fault::new(format!("an exposed name is 1 to {max_length} letters, digits, \"_\" or \"-\"")))
}

fn check_uri(text: &str) -> Result<(), Fault> {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, rest)| network::is_scheme(scheme) && !rest.is_empty());
    let is_clean = !text.chars().any(|character| character.is_control() || character.is_whitespace());
    if has_scheme && is_clean && text.len() <= MAX_URI_LENGTH {
        return Ok(());
    }
    Err(Fault::new("an exposed resource is a URI").cure("write it like \"docs://manual\""))
}

fn timeouts(field: &Field<'_>) -> Option<BTreeMap<String, Timeout>> {
    let read = |(native, field): (&str, Field<'_>)| Some((native.to_owned(), field.timeout()?));
    Some(field.map()?.fields().filter_map(read).collect())
}
