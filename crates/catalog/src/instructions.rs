//! The instructions for the model: those of the servers under one heading each, and a guide to unlisted tools (SRV-6).

use goblin_config::NamePolicy;
use goblin_wire::json::quote;

use crate::exposed_lists::ListedTools;
use crate::listing::List;
use crate::meta::MetaTool;
use crate::{Catalog, CatalogEntry, Source, Upstream, name};

/// The maximum length of the joined instructions, and of those of one server, in bytes.
pub const MAX_INSTRUCTIONS: usize = 16 * 1024;
/// The maximum number of tools of one server whose names the instructions explain one by one.
const MAX_EXPLAINED: usize = 8;

/// Joins the instructions of the servers, with one heading per server, up to [`MAX_INSTRUCTIONS`]. Leaves out servers
/// whose tools are all unlisted. The text names every server that did not fit. If tools are unlisted, the text begins
/// with a guide to finding them.
pub(crate) fn instructions<U: Upstream>(catalog: &Catalog<U>, listed: &ListedTools) -> Option<String> {
    let (mut sections, mut omitted, mut has_hidden) = (String::new(), Vec::new(), false);
    let guide = |has_hidden: bool| match listed {
        ListedTools::All => String::new(),
        ListedTools::Pinned { .. } => guide(catalog, has_hidden),
    };
    let room = MAX_INSTRUCTIONS - guide(true).len();
    for (index, source) in catalog.sources.iter().enumerate() {
        let Some(text) = text_of(source) else { continue };
        let tools = listed_tools(catalog, listed, index);
        if tools.is_empty() && !source.listing.get(List::Tools).is_empty() {
            has_hidden = true;
            continue;
        }
        let names = name_line(source, &tools).map(|line| format!("{line}\n\n")).unwrap_or_default();
        let section = format!("## {}\n\n{text}\n\n{names}", source.backend.id());
        if sections.len() + section.len() <= room {
            sections.push_str(&section);
        } else {
            omitted.push(source.backend.id().to_string());
        }
    }
    let mut joined = guide(has_hidden) + &sections;
    if !omitted.is_empty() {
        joined.push_str(&format!("(Omitted for length: the instructions of {}.)", omitted.join(", ")));
    }
    let joined = joined.trim_end();
    (!joined.is_empty()).then(|| quote(joined))
}

/// Returns the instructions of one server.
pub fn text_of<U>(source: &Source<U>) -> Option<&str> {
    source.listing.hello.as_ref().and_then(|hello| hello.instructions.as_deref()).map(str::trim)
}

/// Returns the guide for clients that see only some of the tools.
fn guide<U: Upstream>(catalog: &Catalog<U>, has_hidden: bool) -> String {
    let name = |tool| catalog.meta.name(tool);
    let [search, describe, call] = [MetaTool::SearchTools, MetaTool::DescribeTool, MetaTool::CallTool].map(name);
    let hidden = match has_hidden {
        true => format!(" `{}` with a `serverId` returns the instructions of its server.", name(MetaTool::ListServers)),
        false => String::new(),
    };
    format!(
        "## Finding tools\n\nMost tools are not listed. Find them with `{search}`, see their arguments with `{describe}`, \
         and call them with `{call}` or by their own names.{hidden}\n\n"
    )
}

/// Returns the listed tools of a server.
fn listed_tools<'a, U: Upstream>(
    catalog: &'a Catalog<U>,
    listed: &ListedTools,
    source: usize,
) -> Vec<&'a CatalogEntry<U>> {
    let entries = &catalog.tools.entries;
    let is_own = |entry: &&CatalogEntry<U>| entry.source == source;
    match listed {
        ListedTools::All => entries.iter().filter(is_own).collect(),
        ListedTools::Pinned { positions, .. } => positions.iter().map(|at| &entries[*at]).filter(is_own).collect(),
    }
}

/// Returns a line that maps the native names of tools to the listed ones. Instructions of a server mention native
/// names. Returns `None` if all names are native.
fn name_line<U: Upstream>(source: &Source<U>, tools: &[&CatalogEntry<U>]) -> Option<String> {
    let config = source.backend.config();
    let head = match config.namespacing.tools {
        NamePolicy::Prefix if !config.prefix.is_empty() => {
            format!("{}{}", name::safe(&config.prefix), config.namespacing.separator)
        }
        _ => String::new(),
    };
    let is_regular = |tool: &CatalogEntry<U>| tool.exposed.strip_prefix(&*head) == Some(&*tool.native);
    let renamed: Vec<_> = tools.iter().filter(|tool| tool.exposed != tool.native).collect();
    let others: Vec<_> = renamed.iter().filter(|tool| !is_regular(tool)).collect();
    let mut sentences = Vec::new();
    if others.len() < renamed.len() {
        sentences.push(format!("Tools of this server are listed here as `{head}NAME`."));
    }
    if !others.is_empty() {
        let explained = others.iter().take(MAX_EXPLAINED);
        let explained: Vec<_> = explained.map(|tool| format!("`{}` is `{}`", tool.native, tool.exposed)).collect();
        let more = if others.len() > MAX_EXPLAINED { ", and others" } else { "" };
        sentences.push(format!("Other names here: {}{more}.", explained.join(", ")));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}
