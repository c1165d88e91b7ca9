//! The part of a catalog that clients see in lists, by the exposure of the client: the listed tools, the listed tools of
//! the gateway, and the instructions. Clients can call all tools, listed or not.

use std::sync::OnceLock;

use bytes::Bytes;
use goblin_config::exposure::{Exposure, ExposureMode, MetaListing};
use goblin_config::glob::Glob;

use crate::instructions::instructions;
use crate::listing::List;
use crate::meta::{MetaSet, MetaTool};
use crate::{Catalog, CatalogEntry, NameTable, Upstream};

/// The numbers of entries above which a catalog lists the gateway's own tools for them. Below, the definitions of these
/// tools take more tokens than they save.
const MANY_TOOLS: usize = 20;
const MANY_RESOURCES: usize = 50;
const MANY_PROMPTS: usize = 20;

/// The lists of all clients with the same exposure.
pub struct ExposedLists {
    pub tools: ListedTools,
    /// The indexes of the gateway's own tools that are listed.
    pub(crate) own: Vec<usize>,
    /// The instructions for the model, as a JSON string. `None` if there are none.
    pub instructions: Option<String>,
    /// The pages of each era.
    pub(crate) pages: [Pages; 2],
}

/// Selects the lists of a client by the name of its program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientRules(Vec<(Glob, usize)>);

impl ClientRules {
    /// Returns the distinct exposures, and the rules that select one of them. The first exposure has no rule.
    pub(crate) fn new(exposure: &Exposure) -> (Vec<Exposure>, ClientRules) {
        let mut exposures = vec![Exposure { clients: Vec::new(), ..exposure.clone() }];
        let mut rules = Vec::with_capacity(exposure.clients.len());
        for rule in &exposure.clients {
            let exposed = exposure.for_clients(rule);
            let index = exposures.iter().position(|known| *known == exposed).unwrap_or(exposures.len());
            if index == exposures.len() {
                exposures.push(exposed);
            }
            rules.push((rule.client.clone(), index));
        }
        (exposures, ClientRules(rules))
    }

    /// Returns the index of the exposure for a client program, whose name is in lower case.
    pub(crate) fn find(&self, program: Option<&str>) -> usize {
        let Some(program) = program.filter(|_| !self.0.is_empty()) else { return 0 };
        self.0.iter().find(|(client, _)| client.matches(program)).map_or(0, |(_, index)| *index)
    }
}

/// The pages of each list. A page is built on first use, so no request pays for more than one.
#[derive(Default)]
pub(crate) struct Pages(pub(crate) [OnceLock<Box<[OnceLock<Bytes>]>>; 4]);

impl ExposedLists {
    /// Returns the lists of a catalog for clients with this exposure.
    pub(crate) fn new<U: Upstream>(catalog: &Catalog<U>, exposure: &Exposure) -> ExposedLists {
        let tools = ListedTools::new(&catalog.tools, exposure);
        let counts = List::ALL.map(|list| catalog.count(list));
        let own = listed_own(&catalog.meta, &tools, counts);
        let instructions = instructions(catalog, &tools);
        ExposedLists { tools, own, instructions, pages: Default::default() }
    }
}

/// The tools of servers that are listed.
pub enum ListedTools {
    All,
    /// Only pinned tools are listed. `positions` are their indexes.
    Pinned {
        positions: Vec<usize>,
        /// True if a client's list also has the tools that the client had described.
        reveal: bool,
    },
}

impl ListedTools {
    fn new<U: Upstream>(tools: &NameTable<U>, exposure: &Exposure) -> ListedTools {
        let is_long = tools.entries.len() > exposure.auto_above;
        if exposure.mode == ExposureMode::All || exposure.mode == ExposureMode::Auto && !is_long {
            return ListedTools::All;
        }
        let is_pinned =
            |entry: &CatalogEntry<U>| exposure.pinned.iter().any(|glob| entry.names().any(|name| glob.matches(name)));
        let pinned = tools.entries.iter().enumerate().filter(|(_, entry)| is_pinned(entry));
        ListedTools::Pinned { positions: pinned.map(|(position, _)| position).collect(), reveal: exposure.reveal }
    }
}

/// Returns the indexes of the gateway's own tools that are listed. `counts` are the numbers of entries of each list.
fn listed_own(meta: &MetaSet, tools: &ListedTools, counts: [usize; 4]) -> Vec<usize> {
    let count = |list: List| counts[list as usize];
    let is_unlisted = matches!(tools, ListedTools::Pinned { .. });
    let has_many = |list: List| match list {
        List::Tools => is_unlisted || count(List::Tools) > MANY_TOOLS,
        List::Prompts => count(List::Prompts) > MANY_PROMPTS,
        List::Resources | List::Templates => count(List::Resources) + count(List::Templates) > MANY_RESOURCES,
    };
    let is_listed = |tool: MetaTool| match meta.listing {
        MetaListing::Always => true,
        MetaListing::Never => false,
        MetaListing::Auto => match tool.subject() {
            Some(list) => has_many(list),
            None => List::ALL.into_iter().any(has_many),
        },
    };
    let entries = meta.entries.iter().enumerate();
    entries.filter(|(_, entry)| is_listed(entry.tool)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests {
    use goblin_config::exposure::{ClientExposure, MetaTools};

    use super::*;

    fn names(listing: MetaListing, tools: &ListedTools, counts: [usize; 4]) -> Vec<&'static str> {
        let meta = MetaSet::new(&MetaTools { enabled: listing, ..MetaTools::default() });
        listed_own(&meta, tools, counts).into_iter().map(|index| meta.entries[index].tool.as_str()).collect()
    }

    #[test]
    fn use12_the_first_rule_that_matches_selects_the_exposure() {
        let rule = |client: &str, mode| ClientExposure {
            client: Glob::new(client).expect("a pattern"),
            mode: Some(mode),
            pinned: None,
            auto_above: None,
            reveal: None,
        };
        let clients = vec![
            rule("one", ExposureMode::Search),
            rule("on*", ExposureMode::Auto),
            rule("same", ExposureMode::Search),
            rule("default", ExposureMode::All),
        ];
        let (exposures, rules) = ClientRules::new(&Exposure { clients, ..Exposure::default() });
        let modes: Vec<_> = exposures.iter().map(|exposure| exposure.mode).collect();
        assert_eq!(modes, [ExposureMode::All, ExposureMode::Search, ExposureMode::Auto], "equal exposures are one");
        let found = ["one", "only", "same", "default", "other"].map(|program| rules.find(Some(program)));
        assert_eq!((found, rules.find(None)), ([1, 2, 1, 0, 0], 0));
    }

    #[test]
    fn use11_the_gateways_own_tools_are_listed_above_a_number_of_entries() {
        let auto = |counts| names(MetaListing::Auto, &ListedTools::All, counts);
        let tools = ["search_tools", "describe_tool", "call_tool", "catalog_tools", "list_servers"];
        let prompts = ["search_prompts", "describe_prompt", "catalog_prompts", "list_servers"];
        let resources = [
            "search_resources",
            "describe_resource",
            "catalog_resources",
            "catalog_resource_templates",
            "list_servers",
        ];
        assert!(auto([20, 20, 50, 0]).is_empty() && auto([20, 20, 49, 1]).is_empty());
        assert_eq!(auto([21, 20, 50, 0]), tools);
        assert_eq!(auto([20, 21, 50, 0]), prompts);
        assert_eq!(auto([20, 20, 51, 0]), resources);
        assert_eq!(auto([20, 20, 0, 51]), resources);
        assert_eq!(auto([20, 20, 50, 1]), resources);
        assert_eq!(auto([21, 21, 51, 0]).len(), MetaTool::ALL.len());
        let search = ListedTools::Pinned { positions: Vec::new(), reveal: false };
        assert_eq!(names(MetaListing::Auto, &search, [0, 20, 50, 0]), tools, "clients have no other way to find tools");
        assert_eq!(names(MetaListing::Always, &ListedTools::All, [0; 4]).len(), MetaTool::ALL.len());
        assert!(names(MetaListing::Never, &ListedTools::All, [1000; 4]).is_empty());
    }
}
