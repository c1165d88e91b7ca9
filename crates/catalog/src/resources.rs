//! Resources and templates: their exposed URIs, and the lookup of the owner of a URI (D1, D2, D3, D13).
//!
//! The router calls [`ResourceTable::find`] for every read and subscribe. The lookup tries exact names first, then
//! normal forms, then templates, then the URIs that backends returned in results, then servers that receive unlisted
//! URIs. Invariant: no lookup returns a URI that the filter of the server or the profile rejects.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use goblin_config::lists::Unlisted;
use goblin_config::uri_filter::UriFilter;
use goblin_config::{Server, ServerId, UriPolicy};
use goblin_wire::template::index::TemplateIndex;
use goblin_wire::template::{MAX_MATCH_STEPS, MatchBudget, Template};
use goblin_wire::{Error, Limit, Mime, canonical};

use crate::{Source, Upstream, uri};

#[derive(Default)]
pub struct ResourceTable {
    /// All resources, sorted by exposed URI.
    pub entries: Vec<CatalogResource>,
    pub templates: Vec<TemplateEntry>,
    /// The server of each source.
    pub(super) servers: Vec<(ServerId, Arc<Server>)>,
    pub(super) by_exposed: HashMap<Box<str>, usize>,
    pub(super) by_identifier: HashMap<Box<str>, usize>,
    pub(super) by_native: HashMap<Box<str>, Vec<usize>>,
    /// URIs that the definitions of a source mention in `_meta`, by source.
    pub(super) mentioned: HashSet<(usize, Box<str>)>,
    /// The source of each folded server id.
    pub(super) by_folded_id: HashMap<String, usize>,
    /// The filter of a profile, by exposed URI. A URI that it rejects does not exist for the profile's clients.
    pub(super) filter: Option<UriFilter>,
    /// The exposed URIs of listed resources that the filter rejects. A result of a backend may name one of them.
    pub(super) hidden: HashMap<(usize, Box<str>), Box<str>>,
    /// The canonical forms of the native URIs of hidden resources. Another spelling has another exposed URI, which the
    /// filter may admit.
    pub(super) hidden_forms: HashSet<(usize, Box<str>)>,
    /// The entries of normal forms that may differ from the URI itself.
    pub(super) by_normal_form: HashMap<String, Vec<usize>>,
    /// The templates of each source.
    pub(super) by_prefix: Vec<TemplateIndex>,
}

#[derive(Clone)]
pub struct CatalogResource {
    pub source: usize,
    pub native: Box<str>,
    pub exposed: Box<str>,
    pub identifier: Box<str>,
    pub definition: Bytes,
    pub mime: Mime,
}

#[derive(Clone)]
pub struct TemplateEntry {
    pub source: usize,
    pub native: Box<str>,
    pub exposed: Box<str>,
    pub definition: Bytes,
    /// `None` if the backend's template is not a valid RFC 6570 template. The catalog lists the template, but it
    /// matches nothing.
    pub template: Option<Template>,
}

/// The backend that serves a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriOwner {
    pub source: usize,
    /// The URI in the backend's own spelling.
    pub native: String,
    /// The MIME type from the definition, if the resource is listed.
    pub mime: Mime,
    /// Whether no backend offers the URI, and the backend receives it because of its configuration.
    pub is_forwarded: bool,
}

impl UriOwner {
    /// Returns the owner of a URI that is offered but not listed.
    fn unlisted(source: usize, native: String) -> UriOwner {
        UriOwner { source, native, mime: Mime::Unknown, is_forwarded: false }
    }
}

/// The quality of a source's claim to a URI. Better claims compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UriClaim {
    /// A template matches only if its last variable spans `/`. The number is its literal bytes.
    Lenient(usize),
    /// A template matches. The number is its literal bytes, and more are better.
    Strict(usize),
    /// The backend itself named the URI.
    Exact,
}

impl ResourceTable {
    pub(super) fn insert(&mut self, resource: CatalogResource) {
        let index = self.entries.len();
        self.by_exposed.insert(resource.exposed.clone(), index);
        self.by_identifier.insert(resource.identifier.clone(), index);
        self.by_native.entry(resource.native.clone()).or_default().push(index);
        self.entries.push(resource);
    }

    /// Reports whether two tables have the same filter, servers, resources and templates, and hide the same ones. Tables
    /// with equal lists and different filters differ: a filter also decides about URIs that only a template offers.
    pub(super) fn is_same(&self, other: &ResourceTable) -> bool {
        let is_same_server = |index: usize| {
            let ((id, config), (other_id, other_config)) = (&self.servers[index], &other.servers[index]);
            id == other_id && Arc::ptr_eq(config, other_config)
        };
        let is_same_resource = |index: usize| {
            let (one, two) = (&self.entries[index], &other.entries[index]);
            (one.source, &one.native, &one.exposed, &one.definition)
                == (two.source, &two.native, &two.exposed, &two.definition)
        };
        let is_same_template = |index: usize| {
            let (one, two) = (&self.templates[index], &other.templates[index]);
            (one.source, &one.native, &one.exposed, &one.definition)
                == (two.source, &two.native, &two.exposed, &two.definition)
        };
        let counts = |table: &ResourceTable| (table.servers.len(), table.entries.len(), table.templates.len());
        self.filter == other.filter
            && counts(self) == counts(other)
            && (0..self.servers.len()).all(is_same_server)
            && (0..self.entries.len()).all(is_same_resource)
            && (0..self.templates.len()).all(is_same_template)
            && (&self.mentioned, &self.hidden) == (&other.mentioned, &other.hidden)
    }

    /// Builds the indexes for templates and normal forms. Must run after all entries and templates are present.
    pub(super) fn index(&mut self) {
        self.by_normal_form = self.normal_forms();
        let templates = |source| {
            let numbered = self.templates.iter().enumerate().filter(move |(_, entry)| entry.source == source);
            TemplateIndex::new(numbered.filter_map(|(number, entry)| Some((number, entry.template.as_ref()?))))
        };
        self.by_prefix = (0..self.servers.len()).map(templates).collect();
    }

    /// Records a listed resource that the filter of the profile rejects.
    pub(super) fn hide(&mut self, source: usize, native: Box<str>, exposed: Box<str>) {
        let form = canonical::canonical(&native).map_or_else(|_| native.clone(), |form| form.into());
        self.hidden_forms.insert((source, form));
        self.hidden.insert((source, native), exposed);
    }

    /// Reports whether the filters of the server and of the profile admit a URI of `source`.
    pub fn admits(&self, source: usize, native: &str) -> bool {
        if !self.config(source).resources.filter.admits(native) {
            return false;
        }
        let Some(filter) = &self.filter else { return true };
        filter.admits(&self.expose(source, native)) && !self.is_hidden(source, native)
    }

    /// Reports whether a URI is a spelling of a listed resource that the filter rejects. An ambiguous URI counts as
    /// hidden.
    fn is_hidden(&self, source: usize, native: &str) -> bool {
        let is_hidden = |form: &str| self.hidden_forms.contains(&(source, form.into()));
        if self.hidden_forms.is_empty() {
            return false;
        }
        if canonical::is_plain(native) {
            return is_hidden(native);
        }
        canonical::readings(native).map_or(true, |readings| readings.all().any(is_hidden))
    }

    /// Finds the owner of a URI in any spelling that a client may use. A listed resource in another spelling is
    /// preferred over a template, because its server knows the listed spelling.
    pub fn find<U: Upstream>(&self, sources: &[Source<U>], text: &str) -> Result<UriOwner, Error> {
        let missing = |candidates| Error::ResourceNotFound { uri: text.to_owned(), candidates };
        let named = self.by_exposed.get(text);
        if let Some(index) = named.or_else(|| self.by_identifier.get(uri::collapse_identifier(text).as_str())) {
            return Ok(self.owner(*index));
        }
        let is_spent = Cell::new(false);
        let find = || {
            let exactly =
                |source, native: &str| self.offers_exactly(sources, source, native).then_some(UriClaim::Exact);
            if let Some(owner) = self.find_offered(text, exactly)? {
                return Ok(Some(owner));
            }
            let normal = uri::normalise(text);
            if let Some(owner) = self.find_normalised(&normal)? {
                return Ok(Some(owner));
            }
            let by_template = |source, native: &str| self.offer_by_template(source, native, &is_spent);
            let by_template = self.find_offered(text, by_template)?;
            let known_uris = || find_known(sources, &normal).filter(|owner| self.admits(owner.source, &owner.native));
            Ok(by_template.or_else(known_uris))
        };
        match find().map_err(missing)? {
            Some(owner) => Ok(owner),
            None if is_spent.get() => {
                Err(Error::LimitExceeded { limit: Limit::MatchSteps.as_str(), value: MAX_MATCH_STEPS })
            }
            None => self.find_forwarded(text).ok_or_else(|| missing(Vec::new())),
        }
    }

    /// Returns the server that receives a URI that no server offers (D13). The URI names the server by its prefix, or
    /// only one server has the setting and its URIs are not namespaced.
    fn find_forwarded(&self, text: &str) -> Option<UriOwner> {
        let is_forwarding = |source: &usize| self.config(*source).unlisted == Unlisted::Forward;
        let named = uri::split(text)
            .and_then(|(folded, native)| Some((*self.by_folded_id.get(&folded.to_ascii_lowercase())?, native)));
        let (source, native) = match named {
            Some((source, native)) => (Some(source).filter(is_forwarding)?, native),
            None => {
                let mut all = (0..self.servers.len()).filter(is_forwarding);
                let only = all.next().filter(|_| all.next().is_none());
                let is_bare = |source: &usize| self.config(*source).namespacing.resources == UriPolicy::None;
                (only.filter(is_bare)?, Cow::Borrowed(text))
            }
        };
        let is_admitted = !native.is_empty() && self.admits(source, &native);
        is_admitted.then(|| UriOwner { is_forwarded: true, ..UriOwner::unlisted(source, native.into_owned()) })
    }

    /// Finds the owner of an unlisted exposed URI, or of a native URI that exactly one backend offers best. Returns the
    /// candidates as an error if several backends offer it equally well.
    fn find_offered(
        &self,
        text: &str,
        offer: impl Fn(usize, &str) -> Option<UriClaim>,
    ) -> Result<Option<UriOwner>, Vec<String>> {
        if let Some((folded, native)) = uri::split(text)
            && let Some(source) = self.by_folded_id.get(&folded.to_ascii_lowercase())
        {
            // Stop here. Otherwise another server with a wide template could claim the exposed URI as its own.
            if !self.admits(*source, &native) {
                return Ok(None);
            }
            if offer(*source, &native).is_some() {
                return Ok(Some(UriOwner::unlisted(*source, native.into_owned())));
            }
        }
        let offers: Vec<_> =
            (0..self.servers.len()).filter_map(|source| Some((offer(source, text)?, source))).collect();
        let Some(best) = offers.iter().map(|(offer, _)| *offer).max() else { return Ok(None) };
        let best: Vec<_> = offers.iter().filter(|(offer, _)| *offer == best).map(|(_, source)| *source).collect();
        match best[..] {
            [source] => Ok(Some(UriOwner::unlisted(source, text.to_owned()))),
            _ => Err(best.iter().map(|source| self.expose_namespaced(*source, text)).collect()),
        }
    }

    /// Finds a listed resource by its normal form (D3). Some clients have a URI type that rewrites URIs. The backend
    /// receives its own spelling.
    fn find_normalised(&self, normal: &str) -> Result<Option<UriOwner>, Vec<String>> {
        let rewritten = self.by_normal_form.get(normal);
        let unchanged = self.by_exposed.get(normal).into_iter().chain(self.by_native.get(normal).into_iter().flatten());
        let mut found: Vec<usize> = unchanged.chain(rewritten.into_iter().flatten()).copied().collect();
        found.sort_unstable();
        found.dedup();
        match found[..] {
            [] => Ok(None),
            [only] => Ok(Some(self.owner(only))),
            _ => Err(found.iter().map(|index| self.entries[*index].exposed.to_string()).collect()),
        }
    }

    /// Returns the normal forms that differ from their URI. Most URIs are their own normal form, which keeps this cheap
    /// for 100,000 entries.
    fn normal_forms(&self) -> HashMap<String, Vec<usize>> {
        let mut forms: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            for uri in [&entry.exposed, &entry.native].into_iter().filter(|uri| !uri::is_plainly_normal(uri)) {
                forms.entry(uri::normalise(uri)).or_default().push(index);
            }
        }
        forms
    }

    /// Reports whether `source` itself named `native` (D13).
    fn offers_exactly<U: Upstream>(&self, sources: &[Source<U>], source: usize, native: &str) -> bool {
        let is_listed = || {
            let listed = self.by_native.get(native);
            listed.is_some_and(|indexes| indexes.iter().any(|index| self.entries[*index].source == source))
        };
        let is_named = || {
            is_listed()
                || self.mentioned.contains(&(source, native.into()))
                || sources[source].backend.known_uris().contains(native)
        };
        is_named() && self.admits(source, native)
    }

    /// Returns how well a template of `source` covers `native` (D13). Sets `is_spent` if the step limit ended the
    /// lookup before all templates were tried.
    fn offer_by_template(&self, source: usize, native: &str, is_spent: &Cell<bool>) -> Option<UriClaim> {
        // Most URIs have no candidate, so check the filters afterwards.
        self.by_prefix.get(source)?.candidates(native).next()?;
        if !self.admits(source, native) {
            return None;
        }
        let mut budget = MatchBudget::new(MAX_MATCH_STEPS);
        let best = self.best_template(source, native, &mut budget);
        is_spent.set(is_spent.get() || budget.is_spent());
        best.map(|(offer, _)| offer)
    }

    /// Returns the template that covers a URI of `owner`. If several match, returns the one with the most literal
    /// bytes.
    pub fn template_of(&self, owner: &UriOwner) -> Option<&TemplateEntry> {
        let best = self.best_template(owner.source, &owner.native, &mut MatchBudget::new(MAX_MATCH_STEPS));
        best.map(|(_, entry)| entry)
    }

    fn best_template(
        &self,
        source: usize,
        native: &str,
        budget: &mut MatchBudget,
    ) -> Option<(UriClaim, &TemplateEntry)> {
        let candidates = self.by_prefix.get(source)?.candidates(native);
        let candidates: Vec<_> = candidates
            .filter_map(|number| {
                let entry = &self.templates[number];
                Some((entry, entry.template.as_ref()?))
            })
            .collect();
        let strict = most_literal(&candidates, |template| template.matches_within(native, budget));
        if let Some((bytes, entry)) = strict {
            return Some((UriClaim::Strict(bytes), entry));
        }
        let lenient = most_literal(&candidates, |template| template.matches_widened(native, budget));
        lenient.map(|(bytes, entry)| (UriClaim::Lenient(bytes), entry))
    }

    fn owner(&self, index: usize) -> UriOwner {
        let entry = &self.entries[index];
        UriOwner { source: entry.source, native: entry.native.to_string(), mime: entry.mime, is_forwarded: false }
    }

    /// Returns the exposed URI of a resource that `source` lists. Works even if this catalog does not have the listing
    /// yet.
    pub fn expose_listed(&self, source: usize, native: &str) -> String {
        if let Some(exposed) = self.expose_known(source, native) {
            return exposed.to_owned();
        }
        let (id, config) = &self.servers[source];
        match config.resources.rename.get(native) {
            Some(alias) => alias.clone(),
            None if config.namespacing.resources == UriPolicy::Identifier => uri::identifier(id, native),
            None => self.expose(source, native),
        }
    }

    fn config(&self, source: usize) -> &Server {
        &self.servers[source].1
    }

    fn expose_known(&self, source: usize, native: &str) -> Option<&str> {
        let listed = self.by_native.get(native).into_iter().flatten();
        if let Some(index) = listed.copied().find(|index| self.entries[*index].source == source) {
            return Some(&self.entries[index].exposed);
        }
        if self.hidden.is_empty() {
            return None;
        }
        self.hidden.get(&(source, native.into())).map(|exposed| &**exposed)
    }

    /// Returns the exposed form of a URI that `source` named.
    pub fn expose(&self, source: usize, native: &str) -> String {
        if let Some(exposed) = self.expose_known(source, native) {
            return exposed.to_owned();
        }
        match self.config(source).namespacing.resources {
            UriPolicy::None => native.to_owned(),
            // An identifier can be resolved only by a lookup of listed resources, so an unlisted resource gets a
            // namespaced URI.
            UriPolicy::Uri | UriPolicy::Identifier => self.expose_namespaced(source, native),
        }
    }

    fn expose_namespaced(&self, source: usize, native: &str) -> String {
        uri::expose(&self.servers[source].0.folded(), native)
    }

    /// Returns the source that a URI names by the prefix of exposed URIs.
    pub fn named_server(&self, uri: &str) -> Option<usize> {
        let (folded, _) = uri::split(uri)?;
        self.by_folded_id.get(&folded.to_ascii_lowercase()).copied()
    }

    /// Finds the server of a glob and returns the glob in that server's spelling. The glob names the server as exposed
    /// URIs do. A glob that names no server must match the resources of exactly one server.
    pub fn find_server(&self, glob: &str) -> Result<(usize, String), Error> {
        if let Some((folded, native)) = uri::split(glob)
            && let Some(source) = self.by_folded_id.get(&folded.to_ascii_lowercase())
        {
            return Ok((*source, native.into_owned()));
        }
        // The literal beginning of the glob decides which resources it can match.
        let literal = glob.split(['*', '?', '[']).next().unwrap_or_default();
        let begins = |entry: &&CatalogResource| entry.native.starts_with(literal);
        let mut owners: Vec<usize> = self.entries.iter().filter(begins).map(|entry| entry.source).collect();
        owners.sort_unstable();
        owners.dedup();
        match (&owners[..], self.servers.len()) {
            ([source], _) => Ok((*source, glob.to_owned())),
            // If URIs are namespaced, a glob without a known server is a mistake of the client.
            ([], 1) if self.config(0).namespacing.resources == UriPolicy::None => Ok((0, glob.to_owned())),
            _ => {
                let candidates = owners.iter().map(|source| self.expose_namespaced(*source, glob));
                Err(Error::ResourceNotFound { uri: glob.to_owned(), candidates: candidates.collect() })
            }
        }
    }

    /// Finds the template of a completion request by its exposed form, or by its native form if only one backend has
    /// it.
    pub fn find_template(&self, text: &str) -> Option<&TemplateEntry> {
        let exact = self.templates.iter().find(|entry| &*entry.exposed == text);
        exact.or_else(|| {
            let split = uri::split(text);
            let canonical = split.and_then(|(folded, native)| {
                let source = self.by_folded_id.get(&folded.to_ascii_lowercase())?;
                self.templates.iter().find(|entry| entry.source == *source && *entry.native == *native)
            });
            canonical.or_else(|| {
                let mut same = self.templates.iter().filter(|entry| &*entry.native == text);
                same.next().filter(|_| same.next().is_none())
            })
        })
    }
}

/// Returns the matching template with the most literal bytes.
fn most_literal<'a>(
    templates: &[(&'a TemplateEntry, &Template)],
    mut matches: impl FnMut(&Template) -> bool,
) -> Option<(usize, &'a TemplateEntry)> {
    let mut best = None;
    for (entry, template) in templates {
        let bytes = template.literal_bytes();
        if best.is_none_or(|(best, _)| best < bytes) && matches(template) {
            best = Some((bytes, *entry));
        }
    }
    best
}

/// Finds the owner of a URI among the URIs that backends returned in results, by its normal form.
fn find_known<U: Upstream>(sources: &[Source<U>], normal: &str) -> Option<UriOwner> {
    let exposed = uri::split(normal);
    sources.iter().enumerate().find_map(|(source, Source { backend, .. })| {
        let own = exposed.as_ref().filter(|(folded, _)| *folded == backend.id().folded());
        let known_uris = backend.known_uris();
        let forms = own.map(|(_, native)| &**native).into_iter().chain([normal]);
        let native = forms.filter_map(|form| known_uris.find_normalised(form)).next()?.to_owned();
        Some(UriOwner::unlisted(source, native))
    })
}
