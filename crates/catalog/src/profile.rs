//! Narrows a catalog to the part that a profile shows. The function is pure.
//!
//! The result is a complete catalog of its own. It does not contain the entries that the profile hides, so no request
//! can find them and no response or error can name them. Entries keep their names from the whole catalog unless the
//! profile renames them.
//!
//! Two values do not come from the catalog and need a check of their own: a URI that a backend returned in a result
//! (`ResourceTable::admits`), and an update that a pattern covers (`Mailbox::may_hear_of` in the engine).

use std::collections::HashMap;
use std::sync::Arc;

use goblin_config::Filter;
use goblin_config::exposure::{Profile, ProfileTools};
use goblin_config::glob::Glob;
use goblin_config::uri_filter::UriFilter;

use crate::build::CatalogSettings;
use crate::name::{self, NameClaim};
use crate::resources::{CatalogResource, ResourceTable, TemplateEntry};
use crate::{Catalog, CatalogEntry, NameTable, Source, Upstream, definition};

/// Narrows `whole` to the entries that `profile` admits.
pub fn narrow<U: Upstream>(whole: &Catalog<U>, profile: &Profile, settings: &CatalogSettings) -> Catalog<U> {
    let is_kept = |source: &Source<U>| profile.servers.iter().any(|glob| glob.matches(source.backend.id().as_str()));
    let sources: Vec<Source<U>> = whole.sources.iter().filter(|source| is_kept(source)).cloned().collect();
    let mut next = 0..;
    let source_map = whole.sources.iter().map(|source| is_kept(source).then(|| next.next().expect("an endless range")));
    let source_map = SourceMap(source_map.collect());
    let tools = source_map.names(whole, &whole.tools, &profile.tools, |name| settings.meta.find(name).is_some());
    let prompts = ProfileTools { filter: profile.prompts.clone(), ..ProfileTools::default() };
    let catalog = Catalog {
        version: whole.version,
        // A profile that hides a server does not end a loop through it.
        via: whole.via.clone(),
        tools,
        prompts: source_map.names(whole, &whole.prompts, &prompts, |_| false),
        resources: Arc::new(source_map.resources(whole, &profile.resources)),
        meta: Arc::clone(&settings.meta),
        lists: Vec::new(),
        client_rules: Arc::default(),
        page_size: whole.page_size,
        indexes: Default::default(),
        sources,
    };
    catalog.with_lists(settings)
}

/// Reports whether a filter admits an entry. `allow` needs a name that means the entry. `deny` also matches a name that
/// the entry lost in a conflict, so that a conflict never uncovers a denied entry.
fn admits<U: Upstream>(filter: &Filter, entry: &CatalogEntry<U>) -> bool {
    let lost = entry.lost.iter().map(String::as_str);
    let is_hit = |globs: &[Glob], name: &str| globs.iter().any(|glob| glob.matches(name));
    entry.names().any(|name| is_hit(&filter.allow, name))
        && !entry.names().chain(lost).any(|name| is_hit(&filter.deny, name))
}

/// The index of each source in the narrowed catalog. `None` if the profile hides the source.
struct SourceMap(Vec<Option<usize>>);

impl SourceMap {
    fn index_of(&self, source: usize) -> Option<usize> {
        self.0[source]
    }

    /// Returns the tools or the prompts that `rules` admit, under the names that they give.
    fn names<U: Upstream>(
        &self,
        whole: &Catalog<U>,
        list: &NameTable<U>,
        rules: &ProfileTools,
        is_reserved: impl Fn(&str) -> bool,
    ) -> NameTable<U> {
        let admitted = list.entries.iter().filter(|entry| admits(&rules.filter, entry));
        let kept: Vec<_> = admitted.filter_map(|entry| Some((self.index_of(entry.source)?, entry))).collect();
        let claims: Vec<_> = kept
            .iter()
            .map(|(_, entry)| {
                let backend = &whole.sources[entry.source].backend;
                let names = match entry.names().find_map(|name| rules.rename.get(name)) {
                    Some(name) => vec![name.clone()],
                    None => entry.names().map(str::to_owned).collect(),
                };
                let max_length = backend.config().namespacing.max_length;
                NameClaim { server: backend.id(), native: &entry.native, names, max_length }
            })
            .collect();
        let resolved = name::resolve_conflicts(&claims, is_reserved);
        let renamed: HashMap<&str, &str> =
            kept.iter().zip(&resolved.names).map(|((_, entry), name)| (&*entry.exposed, &*name.name)).collect();
        let mut names = NameTable { contested: resolved.contested.clone(), ..NameTable::default() };
        for (bare, candidates) in &list.contested {
            let visible = candidates.iter().filter_map(|name| renamed.get(name.as_str()));
            let visible: Vec<String> = visible.map(|name| (*name).to_owned()).collect();
            if !visible.is_empty() {
                names.contested.entry(bare.clone()).or_default().extend(visible);
            }
        }
        for ((source, entry), exposed) in kept.iter().zip(&resolved.names) {
            let server = whole.sources[entry.source].backend.id().as_str();
            let description = entry.names().find_map(|name| rules.describe.get(name));
            let mut shown = entry.definition.clone();
            if *exposed.name != *entry.exposed {
                shown = definition::renamed(&shown, &exposed.name, &entry.native, server);
            }
            if let Some(description) = description {
                shown = definition::redescribed(&shown, description);
            }
            names.insert(CatalogEntry {
                source: *source,
                native: entry.native.clone(),
                exposed: exposed.name.as_str().into(),
                aliases: exposed.aliases.as_slice().into(),
                // A name that conflicts in the whole catalog also conflicts here.
                lost: entry.lost.iter().chain(&exposed.lost).cloned().collect(),
                definition: shown,
                schema: Arc::clone(&entry.schema),
                calls: entry.calls.clone(),
                mirrors: entry.mirrors.clone(),
            });
        }
        names
    }

    fn resources<U: Upstream>(&self, whole: &Catalog<U>, filter: &UriFilter) -> ResourceTable {
        let servers = whole.resources.servers.iter().enumerate();
        let servers = servers.filter(|(source, _)| self.index_of(*source).is_some()).map(|(_, server)| server.clone());
        let servers = servers.collect();
        let mut resources = ResourceTable { servers, filter: Some(filter.clone()), ..ResourceTable::default() };
        for entry in &whole.resources.entries {
            let Some(source) = self.index_of(entry.source) else { continue };
            if filter.admits(&entry.exposed) {
                resources.insert(CatalogResource { source, ..entry.clone() });
            } else {
                resources.hide(source, entry.native.clone(), entry.exposed.clone());
            }
        }
        for entry in whole.resources.templates.iter().filter(|entry| filter.admits(&entry.exposed)) {
            let Some(source) = self.index_of(entry.source) else { continue };
            resources.templates.push(TemplateEntry { source, ..entry.clone() });
        }
        let mentioned = whole.resources.mentioned.iter();
        resources.mentioned =
            mentioned.filter_map(|(source, uri)| Some((self.index_of(*source)?, uri.clone()))).collect();
        let ids = whole.resources.by_folded_id.iter();
        resources.by_folded_id = ids.filter_map(|(id, source)| Some((id.clone(), self.index_of(*source)?))).collect();
        resources.index();
        resources
    }
}

#[cfg(test)]
mod tests;
