//! Builds a catalog from the listings of the backends. The function is pure. The same listings give the same catalog,
//! and the order in which backends connected does not matter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use goblin_config::exposure::Exposure;
use goblin_config::{Config, Filter, NamePolicy, Server, ServerId, UriPolicy};
use goblin_wire::mirror::Mirrors;
use goblin_wire::template::Template;
use goblin_wire::via::{GatewayId, Via};

use crate::listing::{Definition, List};
use crate::meta::MetaSet;
use crate::name::{self, NameClaim};
use crate::resources::{CatalogResource, ResourceTable, TemplateEntry};
use crate::{Catalog, CatalogEntry, NameTable, Source, Upstream, definition, uri};

/// The settings that a catalog depends on, besides the listings.
pub struct CatalogSettings {
    pub page_size: usize,
    pub exposure: Exposure,
    pub meta: Arc<MetaSet>,
    /// The id of the gateway. `None` for a catalog that is not served.
    pub gateway: Option<GatewayId>,
}

impl CatalogSettings {
    /// Returns the settings for clients without a profile.
    pub fn new(config: &Config) -> CatalogSettings {
        let (page_size, exposure) = (config.policies.page_size, config.exposure.clone());
        CatalogSettings { page_size, exposure, meta: MetaSet::new(&config.meta_tools), gateway: None }
    }
}

/// Builds the catalog of `sources`, which must be in the order of the configuration.
pub fn build<U: Upstream>(version: u64, settings: &CatalogSettings, sources: Vec<Source<U>>) -> Catalog<U> {
    let resources = build_resources(&sources);
    let tools = build_names(&sources, &resources, List::Tools, |name| settings.meta.find(name).is_some());
    let catalog = Catalog {
        version,
        via: via(&sources, settings),
        tools,
        prompts: build_names(&sources, &resources, List::Prompts, |_| false),
        resources: Arc::new(resources),
        meta: Arc::clone(&settings.meta),
        lists: Vec::new(),
        client_rules: Arc::default(),
        page_size: settings.page_size.max(1),
        indexes: Default::default(),
        sources,
    };
    catalog.with_lists(settings)
}

/// Returns the ids of this gateway and of those behind its servers.
fn via<U: Upstream>(sources: &[Source<U>], settings: &CatalogSettings) -> Via {
    let behind = sources.iter().map(|source| &source.listing.via);
    settings.gateway.as_ref().map(|own| Via::joined(own, behind)).unwrap_or_default()
}

/// The configuration of one backend for tools or for prompts.
struct NameRules<'a> {
    filter: &'a Filter,
    rename: &'a BTreeMap<String, String>,
    policy: NamePolicy,
}

fn rules(server: &Server, list: List) -> NameRules<'_> {
    match list {
        List::Tools => {
            NameRules { filter: &server.tools.filter, rename: &server.tools.rename, policy: server.namespacing.tools }
        }
        _ => NameRules {
            filter: &server.prompts.filter,
            rename: &server.prompts.rename,
            policy: server.namespacing.prompts,
        },
    }
}

/// Returns each entry of `list` that the configuration admits. If a backend lists a native name twice, the first entry
/// counts.
fn admitted<U: Upstream>(
    sources: &[Source<U>],
    list: List,
    admits: impl Fn(&Server, &str) -> bool,
) -> Vec<(usize, &Definition)> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        for definition in source.listing.get(list).iter() {
            if admits(source.backend.config(), &definition.native) && seen.insert((index, &definition.native)) {
                entries.push((index, definition));
            }
        }
    }
    entries
}

/// Builds the tools or the prompts and resolves conflicts between their names.
fn build_names<U: Upstream>(
    sources: &[Source<U>],
    resources: &ResourceTable,
    list: List,
    is_reserved: impl Fn(&str) -> bool,
) -> NameTable<U> {
    let admitted = admitted(sources, list, |server, native| rules(server, list).filter.admits(native));
    let claims: Vec<_> = admitted
        .iter()
        .map(|(index, definition)| {
            let backend = &sources[*index].backend;
            let server = backend.config();
            let rules = rules(server, list);
            let (namespacing, prefix) = (&server.namespacing, &server.prefix);
            let names = match rules.rename.get(&*definition.native) {
                Some(name) => vec![name.clone()],
                None => name::claimed_names(rules.policy, namespacing, prefix, backend.id(), &definition.native),
            };
            NameClaim {
                server: backend.id(),
                native: &definition.native,
                names,
                max_length: server.namespacing.max_length,
            }
        })
        .collect();
    let resolved = name::resolve_conflicts(&claims, is_reserved);
    let mut names = NameTable { contested: resolved.contested, ..NameTable::default() };
    for ((source, definition), exposed) in admitted.into_iter().zip(resolved.names) {
        let backend = &sources[source].backend;
        let expose_uri = |native: &str| resources.expose(source, native);
        let server = backend.id().as_str();
        let mut shown = definition::exposed(definition, &exposed.name, server, expose_uri);
        if !exposed.aliases.is_empty() && *exposed.name == *definition.native {
            // The name has the prefix, so the definition also has the origin.
            shown = definition::renamed(&shown, &exposed.name, &definition.native, server);
        }
        names.insert(CatalogEntry {
            source,
            calls: (list == List::Tools).then(|| sources[source].backend.calls_of(&definition.native)),
            native: definition.native.clone(),
            exposed: exposed.name.into(),
            aliases: exposed.aliases.into(),
            lost: exposed.lost.into(),
            definition: shown,
            schema: Arc::default(),
            // An invalid annotation is ignored. Calls of the tool over HTTP then repeat no argument.
            mirrors: Mirrors::read(definition.raw.as_str()).unwrap_or_default(),
        });
    }
    names
}

/// Builds resources and templates with their exposed URIs and identifiers.
fn build_resources<U: Upstream>(sources: &[Source<U>]) -> ResourceTable {
    let is_admitted = |server: &Server, uri: &str| server.resources.filter.admits(uri);
    let admitted_resources = admitted(sources, List::Resources, is_admitted);
    let admitted_templates = admitted(sources, List::Templates, is_admitted);
    let servers = sources.iter().map(|source| (source.backend.id().clone(), Arc::clone(source.backend.config())));
    let mut resources = ResourceTable { servers: servers.collect(), ..ResourceTable::default() };
    for (index, source) in sources.iter().enumerate() {
        resources.by_folded_id.insert(source.backend.id().folded().to_owned(), index);
        for list in [List::Tools, List::Resources, List::Templates] {
            let named = source.listing.get(list).iter().flat_map(definition::mentioned);
            resources.mentioned.extend(named.map(|uri| (index, uri.into())));
        }
    }
    let identifiers = identifiers(sources, &admitted_resources);
    let exposed = expose_all(sources, &admitted_resources, Some(&identifiers));
    let mut entries: Vec<_> = admitted_resources
        .iter()
        .zip(exposed)
        .zip(identifiers)
        .map(|(((source, definition), exposed), identifier)| (*source, *definition, exposed, identifier))
        .collect();
    entries.sort_by(|one, other| one.2.cmp(&other.2));
    // Insert all URIs first, because definitions may mention each other.
    for (source, definition, exposed, identifier) in &entries {
        resources.insert(CatalogResource {
            source: *source,
            native: definition.native.clone(),
            exposed: exposed.as_str().into(),
            identifier: identifier.as_str().into(),
            definition: definition.raw.bytes().clone(),
            mime: definition::mime(definition),
        });
    }
    for (index, (source, definition, exposed, _)) in entries.iter().enumerate() {
        let server = sources[*source].backend.id().as_str();
        let shown = definition::exposed(definition, exposed, server, |native| resources.expose(*source, native));
        resources.entries[index].definition = shown;
    }
    let exposed = expose_all(sources, &admitted_templates, None);
    for ((source, definition), exposed) in admitted_templates.into_iter().zip(exposed) {
        let server = sources[source].backend.id().as_str();
        let shown = definition::exposed(definition, &exposed, server, |native| resources.expose(source, native));
        resources.templates.push(TemplateEntry {
            source,
            native: definition.native.clone(),
            exposed: exposed.into(),
            definition: shown,
            template: Template::parse(&definition.native).ok(),
        });
    }
    resources.index();
    resources
}

/// Returns the identifier of each entry (D2). Entries that would share an identifier get a hash at its end.
fn identifiers<U: Upstream>(sources: &[Source<U>], entries: &[(usize, &Definition)]) -> Vec<String> {
    let of = |make: fn(&ServerId, &str) -> String, (source, definition): &(usize, &Definition)| {
        make(sources[*source].backend.id(), &definition.native)
    };
    let plain = entries.iter().map(|entry| of(uri::identifier, entry)).collect();
    unique(plain, |index| of(uri::contested_identifier, &entries[index]))
}

/// Returns the claimed name of each entry. Entries that claim the same name get another one.
fn unique(claimed: Vec<String>, fallback: impl Fn(usize) -> String) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in &claimed {
        *counts.entry(name).or_default() += 1;
    }
    let resolve = |(index, name): (usize, &String)| {
        if counts[name.as_str()] == 1 { name.clone() } else { fallback(index) }
    };
    claimed.iter().enumerate().map(resolve).collect()
}

/// Returns the exposed URI of each entry, by alias or by the policy of its backend. If several entries claim the same
/// URI, all of them get a namespaced URI.
fn expose_all<U: Upstream>(
    sources: &[Source<U>],
    entries: &[(usize, &Definition)],
    identifiers: Option<&[String]>,
) -> Vec<String> {
    let namespaced = |(source, definition): &(usize, &Definition)| {
        uri::expose(&sources[*source].backend.id().folded(), &definition.native)
    };
    let claimed = entries.iter().enumerate().map(|(index, entry)| {
        let config = sources[entry.0].backend.config();
        if let Some(alias) = config.resources.rename.get(&*entry.1.native) {
            return alias.clone();
        }
        match (config.namespacing.resources, identifiers) {
            (UriPolicy::None, _) => entry.1.native.to_string(),
            (UriPolicy::Identifier, Some(identifiers)) => identifiers[index].clone(),
            (UriPolicy::Uri | UriPolicy::Identifier, _) => namespaced(entry),
        }
    });
    unique(claimed.collect(), |index| namespaced(&entries[index]))
}

#[cfg(test)]
pub(super) mod tests;
