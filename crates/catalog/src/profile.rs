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
use goblin_config::uri_filter::UriFilter;

use crate::build::{CatalogSettings, instructions};
use crate::name::{self, NameClaim};
use crate::resources::{CatalogResource, ResourceTable, TemplateEntry};
use crate::{Catalog, CatalogEntry, ListedTools, NameTable, Source, Upstream, definition};

/// Narrows `whole` to the entries that `profile` admits.
pub fn narrow<U: Upstream>(whole: &Catalog<U>, profile: &Profile, terms: &CatalogSettings) -> Catalog<U> {
    let is_kept = |source: &Source<U>| profile.servers.iter().any(|glob| glob.matches(source.backend.id().as_str()));
    let sources: Vec<Source<U>> = whole.sources.iter().filter(|source| is_kept(source)).cloned().collect();
    let mut next = 0..;
    let places = whole.sources.iter().map(|source| is_kept(source).then(|| next.next().expect("there is no end")));
    let places = SourceMap(places.collect());
    let tools = places.tools(whole, &profile.tools, terms);
    let listed = ListedTools::new(&tools, terms);
    Catalog {
        version: whole.version,
        instructions: instructions(&sources, &listed, &terms.meta),
        listed,
        tools,
        prompts: places.prompts(&whole.prompts, &profile.prompts),
        resources: Arc::new(places.resources(whole, &profile.resources)),
        meta: Arc::clone(&terms.meta),
        page_size: whole.page_size,
        views: Default::default(),
        indexes: Default::default(),
        sources,
    }
}

/// The index of each source in the narrowed catalog. `None` if the profile hides the source.
struct SourceMap(Vec<Option<usize>>);

impl SourceMap {
    fn of(&self, source: usize) -> Option<usize> {
        self.0[source]
    }

    fn tools<U: Upstream>(&self, whole: &Catalog<U>, rules: &ProfileTools, terms: &CatalogSettings) -> NameTable<U> {
        let kept = self.kept(&whole.tools, &rules.filter);
        let wishes: Vec<_> = kept
            .iter()
            .map(|(_, entry)| {
                let backend = &whole.sources[entry.source].backend;
                let name = rules.rename.get(&*entry.exposed).map_or(&*entry.exposed, String::as_str).to_owned();
                let longest = backend.config().namespacing.max_length;
                NameClaim { server: backend.id(), native: &entry.native, name, longest }
            })
            .collect();
        let minted = name::mint(&wishes, |name| terms.meta.find(name).is_some());
        let renamed: HashMap<&str, &str> =
            kept.iter().zip(&minted.names).map(|((_, entry), name)| (&*entry.exposed, name.as_str())).collect();
        let mut names = NameTable { contested: minted.contested.clone(), ..NameTable::default() };
        for (bare, candidates) in &whole.tools.contested {
            let visible = candidates.iter().filter_map(|name| renamed.get(name.as_str()));
            let visible: Vec<String> = visible.map(|name| (*name).to_owned()).collect();
            if !visible.is_empty() {
                names.contested.entry(bare.clone()).or_default().extend(visible);
            }
        }
        for ((source, entry), exposed) in kept.iter().zip(&minted.names) {
            let server = whole.sources[entry.source].backend.id().as_str();
            let description = rules.describe.get(&*entry.exposed);
            let mut shown = entry.definition.clone();
            if *exposed != *entry.exposed {
                shown = definition::renamed(&shown, exposed, &entry.native, server);
            }
            if let Some(description) = description {
                shown = definition::redescribed(&shown, description);
            }
            names.enter(CatalogEntry {
                source: *source,
                native: entry.native.clone(),
                exposed: exposed.as_str().into(),
                definition: shown,
                schema: Arc::clone(&entry.schema),
                calls: entry.calls.clone(),
                mirrors: entry.mirrors.clone(),
            });
        }
        names
    }

    fn prompts<U: Upstream>(&self, whole: &NameTable<U>, filter: &Filter) -> NameTable<U> {
        let mut names = NameTable::default();
        for (bare, candidates) in &whole.contested {
            let visible: Vec<_> = candidates.iter().filter(|name| self.sees(whole, name, filter)).cloned().collect();
            if !visible.is_empty() {
                names.contested.insert(bare.clone(), visible);
            }
        }
        for (source, entry) in self.kept(whole, filter) {
            names.enter(CatalogEntry {
                source,
                native: entry.native.clone(),
                exposed: entry.exposed.clone(),
                definition: entry.definition.clone(),
                schema: Arc::clone(&entry.schema),
                calls: entry.calls.clone(),
                mirrors: entry.mirrors.clone(),
            });
        }
        names
    }

    fn sees<U: Upstream>(&self, whole: &NameTable<U>, exposed: &str, filter: &Filter) -> bool {
        let source = whole.find(exposed).ok().map(|(_, entry)| entry.source);
        filter.admits(exposed) && source.is_some_and(|source| self.of(source).is_some())
    }

    fn kept<'a, U: Upstream>(&self, whole: &'a NameTable<U>, filter: &Filter) -> Vec<(usize, &'a CatalogEntry<U>)> {
        let admitted = whole.entries.iter().filter(|entry| filter.admits(&entry.exposed));
        admitted.filter_map(|entry| Some((self.of(entry.source)?, entry))).collect()
    }

    fn resources<U: Upstream>(&self, whole: &Catalog<U>, filter: &UriFilter) -> ResourceTable {
        let servers = whole.resources.servers.iter().enumerate();
        let servers = servers.filter(|(source, _)| self.of(*source).is_some()).map(|(_, server)| server.clone());
        let servers = servers.collect();
        let mut resources = ResourceTable { servers, filter: Some(filter.clone()), ..ResourceTable::default() };
        for entry in &whole.resources.entries {
            let Some(source) = self.of(entry.source) else { continue };
            let (native, exposed) = (entry.native.clone(), entry.exposed.clone());
            if !filter.admits(&exposed) {
                resources.hide(source, native, exposed);
                continue;
            }
            let (identifier, definition) = (entry.identifier.clone(), entry.definition.clone());
            resources.enter(CatalogResource { source, native, exposed, identifier, definition, mime: entry.mime });
        }
        for entry in whole.resources.templates.iter().filter(|entry| filter.admits(&entry.exposed)) {
            let Some(source) = self.of(entry.source) else { continue };
            resources.templates.push(TemplateEntry {
                source,
                native: entry.native.clone(),
                exposed: entry.exposed.clone(),
                definition: entry.definition.clone(),
                template: entry.template.clone(),
            });
        }
        let mentioned = whole.resources.mentioned.iter();
        resources.mentioned = mentioned.filter_map(|(source, uri)| Some((self.of(*source)?, uri.clone()))).collect();
        let ids = whole.resources.by_folded_id.iter();
        resources.by_folded_id = ids.filter_map(|(id, source)| Some((id.clone(), self.of(*source)?))).collect();
        resources.index();
        resources
    }
}

#[cfg(test)]
mod tests;
