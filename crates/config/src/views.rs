//! Reads `exposure`, `metaTools` and `profiles`: the settings for the part of the catalog that clients see.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exposure::{
    ClientExposure, Exposure, ExposureMode, MetaListing, MetaTools, Profile, ProfileName, ProfileTools,
};
use crate::field::{Field, MAX_COUNT};
use crate::glob::Glob;
use crate::problem::{Fault, quoted};
use crate::schema::ObjectKeys;
use crate::uri_filter::UriFilter;
use crate::{Filter, rules, server, vocabulary};

pub(crate) const MAX_PROFILES: usize = 100;
/// The limit of rules for client programs. Each may have list pages of its own.
pub(crate) const MAX_CLIENT_RULES: usize = 50;
/// The length limit of a description. A model reads it completely.
const MAX_DESCRIPTION_LENGTH: usize = 16 << 10;
/// The length limit of the prefix. It keeps the longest meta tool name within the limits of clients.
const MAX_PREFIX_LENGTH: usize = 32;

pub(crate) const MODES: [(&str, ExposureMode); 3] =
    [("all", ExposureMode::All), ("search", ExposureMode::Search), ("auto", ExposureMode::Auto)];

/// The parts of the file that a profile depends on.
pub(crate) struct ProfileContext<'a> {
    pub(crate) meta_tools: &'a MetaTools,
    /// The gateway's exposure, which a profile inherits.
    pub(crate) exposure: &'a Exposure,
    /// The ids of all servers in the file, including those with problems. `None` if the servers could not be read.
    pub(crate) server_ids: Option<Vec<&'a str>>,
    /// The length limit of exposed names.
    pub(crate) max_length: usize,
}

/// Reads an object, or a value for `enabled`.
pub(crate) fn meta_tools(field: &Field<'_>) -> Option<MetaTools> {
    let mut meta_tools = MetaTools::default();
    if field.is_flag() || field.is_string() {
        meta_tools.enabled = meta_listing(field)?;
        return Some(meta_tools);
    }
    let section = field.section_or("true, false, \"auto\"", ObjectKeys::MetaTools)?;
    section.set(&mut meta_tools.enabled, "enabled", meta_listing);
    section.set(&mut meta_tools.prefix, "prefix", |field| {
        field.accept(server::check_prefix(field.text()?, MAX_PREFIX_LENGTH))
    });
    Some(meta_tools)
}

/// Reads a boolean or `"auto"`.
fn meta_listing(field: &Field<'_>) -> Option<MetaListing> {
    if field.is_text("auto") {
        return Some(MetaListing::Auto);
    }
    if !field.is_flag() {
        return field.wrong("true, false or \"auto\"");
    }
    field.flag().map(|is_listed| if is_listed { MetaListing::Always } else { MetaListing::Never })
}

/// Reads a mode, or an object. Members that are absent keep the value of `base`.
pub(crate) fn exposure(field: &Field<'_>, base: &Exposure, meta_tools: &MetaTools) -> Option<Exposure> {
    let mut exposure = base.clone();
    if field.is_string() {
        exposure.mode = mode(field, meta_tools)?;
        return Some(exposure);
    }
    let section = field.section_or("a mode", ObjectKeys::Exposure)?;
    section.set(&mut exposure.mode, "mode", |field| mode(field, meta_tools));
    section.set(&mut exposure.pinned, "pinned", rules::globs);
    section.set(&mut exposure.auto_above, "autoAbove", |field| field.whole(0..=MAX_COUNT));
    section.set(&mut exposure.reveal, "reveal", Field::flag);
    section.set(&mut exposure.clients, "clients", |field| clients(field, meta_tools));
    Some(exposure)
}

/// Reads the rules for client programs. Exact names come first, then patterns in the order of the file.
fn clients(field: &Field<'_>, meta_tools: &MetaTools) -> Option<Vec<ClientExposure>> {
    let section = field.map()?;
    let count = section.fields().count();
    if count > MAX_CLIENT_RULES {
        return field.accept(Err(Fault::new(format!("has {count} clients, at most {MAX_CLIENT_RULES} are allowed"))));
    }
    let mut rules: Vec<ClientExposure> = Vec::new();
    for (name, field) in section.fields() {
        let Some(rule) = client(name, &field, meta_tools) else { continue };
        if rules.iter().any(|other| other.client == rule.client) {
            field.key_problem(Fault::new("two keys name the same clients").cure("keep one; case does not matter"));
        }
        rules.push(rule);
    }
    rules.sort_by_key(|rule| rule.client.has_wildcard());
    Some(rules)
}

/// Reads a mode, or an object.
fn client(name: &str, field: &Field<'_>, meta_tools: &MetaTools) -> Option<ClientExposure> {
    let client = match Glob::new(&name.to_lowercase()) {
        Ok(client) => client,
        Err(error) => {
            field.key_problem(Fault::new(error.to_string()));
            return None;
        }
    };
    let mut rule = ClientExposure { client, mode: None, pinned: None, auto_above: None, reveal: None };
    if field.is_string() {
        rule.mode = Some(mode(field, meta_tools)?);
        return Some(rule);
    }
    let section = field.section_or("a mode", ObjectKeys::ClientExposure)?;
    section.set(&mut rule.mode, "mode", |field| mode(field, meta_tools).map(Some));
    section.set(&mut rule.pinned, "pinned", |field| rules::globs(field).map(Some));
    section.set(&mut rule.auto_above, "autoAbove", |field| field.whole(0..=MAX_COUNT).map(Some));
    section.set(&mut rule.reveal, "reveal", |field| field.flag().map(Some));
    Some(rule)
}

/// Reads a mode. Unlisted tools are only found through the meta tools, so other modes than `all` need them enabled.
fn mode(field: &Field<'_>, meta_tools: &MetaTools) -> Option<ExposureMode> {
    let mode = field.choice(&MODES)?;
    let fault = || Fault::new("clients find unlisted tools with the meta tools, and metaTools is not enabled");
    let is_unreachable = mode != ExposureMode::All && meta_tools.enabled == MetaListing::Never;
    field.accept(if is_unreachable { Err(fault().cure("use \"all\" or enable metaTools")) } else { Ok(mode) })
}

pub(crate) fn profiles(
    field: &Field<'_>,
    profile_context: &ProfileContext<'_>,
) -> Option<BTreeMap<ProfileName, Arc<Profile>>> {
    let mut profiles = BTreeMap::new();
    let section = field.map()?;
    let count = section.fields().count();
    if count > MAX_PROFILES {
        return field.accept(Err(Fault::new(format!("has {count} profiles, at most {MAX_PROFILES} are allowed"))));
    }
    for (name, field) in section.fields() {
        let profile = profile(&field, profile_context);
        match ProfileName::new(name) {
            Some(name) => profiles.extend(profile.map(|profile| (name, Arc::new(profile)))),
            None => field.key_problem(Fault::new(format!(
                "the name of a profile is 1 to {} letters, digits, \"_\" or \"-\"",
                ProfileName::MAX_LENGTH
            ))),
        }
    }
    Some(profiles)
}

fn profile(field: &Field<'_>, profile_context: &ProfileContext<'_>) -> Option<Profile> {
    let section = field.section(ObjectKeys::Profile)?;
    let mut profile = Profile { exposure: profile_context.exposure.clone(), ..Profile::default() };
    section.set(&mut profile.servers, "servers", |field| servers(field, profile_context));
    section.set(&mut profile.tools, "tools", |field| tools(field, profile_context.max_length));
    section.set(&mut profile.prompts, "prompts", filter);
    section.set(&mut profile.resources, "resources", |field| filter(field).map(UriFilter::new));
    section.set(&mut profile.exposure, "exposure", |field| {
        exposure(field, profile_context.exposure, profile_context.meta_tools)
    });
    Some(profile)
}

fn servers(field: &Field<'_>, profile_context: &ProfileContext<'_>) -> Option<Vec<Glob>> {
    field.list(|field| {
        let glob = rules::glob(field)?;
        if let Some(ids) = &profile_context.server_ids {
            check_server(field, &glob, ids);
        }
        Some(glob)
    })
}

/// Checks a server pattern of a profile. A pattern without a match is a warning, because servers may be added later. An
/// unknown id is a problem, because it is most likely misspelled.
fn check_server(field: &Field<'_>, glob: &Glob, ids: &[&str]) {
    if ids.iter().any(|id| glob.matches(id)) {
        return;
    }
    let shown = quoted(glob.as_str());
    if glob.has_wildcard() {
        field.warning(Fault::new(format!("{shown} matches no server of this file")));
        return;
    }
    let fault = Fault::new(format!("there is no server {shown}"));
    field.problem(match vocabulary::nearest(glob.as_str(), ids.iter().copied()) {
        Some(id) => fault.cure(format!("did you mean {}?", quoted(id))),
        None => fault.cure("use an id of mcpServers, or a pattern like \"*\""),
    });
}

fn tools(field: &Field<'_>, max_length: usize) -> Option<ProfileTools> {
    let mut tools = ProfileTools::default();
    if field.is_array() {
        tools.filter.allow = rules::globs(field)?;
        return Some(tools);
    }
    let section = field.section_or("an array", ObjectKeys::ProfileTools)?;
    tools.filter = rules::filter(&section);
    section.set(&mut tools.rename, "rename", |field| rules::rename(field, |name| rules::check_name(name, max_length)));
    section.set(&mut tools.describe, "describe", describe);
    Some(tools)
}

/// Reads an array for `allow`, or an object.
fn filter(field: &Field<'_>) -> Option<Filter> {
    if field.is_array() {
        return Some(Filter { allow: rules::globs(field)?, ..Filter::default() });
    }
    field.section_or("an array", ObjectKeys::ProfileFilter).map(|section| rules::filter(&section))
}

fn describe(field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let read = |(name, field): (&str, Field<'_>)| {
        let text = field.accept(check_description(field.text()?))?;
        Some((name.to_owned(), text.to_owned()))
    };
    Some(field.map()?.fields().filter_map(read).collect())
}

fn check_description(text: &str) -> Result<&str, Fault> {
    match text.len() {
        _ if text.trim().is_empty() => Err(Fault::new("must not be empty")),
        0..=MAX_DESCRIPTION_LENGTH => Ok(text),
        _ => Err(Fault::new(format!("must have at most {MAX_DESCRIPTION_LENGTH} bytes"))),
    }
}
