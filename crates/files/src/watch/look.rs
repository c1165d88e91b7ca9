//! One look: what is there now, and what of it is news.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use crate::path::Relative;
use crate::tree::{Kind, Missing, Stop, Tree};
use crate::watch::Touched;
use crate::watch::system::{Handle, Watched};
use crate::{Served, resources};
use goblin_wire::json::quote;
use goblin_wire::method::Method;
use goblin_wire::Message;

/// The tree as a look saw it.
#[derive(Default)]
pub struct Seen {
    /// Those that are listed.
    files: HashSet<Relative>,
    /// The root and those on the way to them. Where there are too many to be watched, not all.
    directories: HashSet<Relative>,
}

/// What a look gives to the task.
pub struct Looked {
    /// Nothing where there was no reason to walk.
    pub seen: Option<Seen>,
    /// What the system watches now, or why it does not.
    pub watched: Option<io::Result<Watched>>,
}

/// Looks at what was touched, or at everything, and tells what is news. `handle` is there where the system watches.
pub fn look(served: &Served, before: &Seen, mut touched: Touched, handle: Option<&Handle>, stop: &Stop) -> Looked {
    let Served { tree, host, watch, .. } = served;
    let is_other = |path: &Relative| before.differs(tree, path) || watch.subscribed.has_links();
    if touched.named().any(is_other) {
        touched.widen();
    }
    for path in watch.subscribed.look(tree, &touched, stop) {
        tell(served, &path);
    }
    // Where rules cannot be read there is no list either, until they change again.
    let walked = touched.is_all().then(|| Seen::walk(served, stop).ok()).flatten();
    let Some((seen, fingerprint)) = walked.filter(|_| !stop.is_set()) else {
        return Looked { seen: None, watched: None };
    };
    if watch.seen(fingerprint) {
        host.resources_changed();
    }
    let watched = handle.map(|handle| handle.watch(wanted(served, &seen)?));
    Looked { seen: Some(seen), watched }
}

impl Seen {
    /// With the fingerprint of the list.
    fn walk(served: &Served, stop: &Stop) -> Result<(Seen, u64), Missing> {
        let mut seen = Seen::default();
        seen.directories.insert(Relative::default());
        let listing = resources::each(&served.tree, served.most_listed, stop, |item| match item.kind {
            Kind::File => drop(seen.files.insert(item.path.clone())),
            _ if seen.directories.len() <= served.most_listed => drop(seen.directories.insert(item.path.clone())),
            _ => {}
        })?;
        Ok((seen, listing.fingerprint))
    }

    /// Whether this name now means something else than it did.
    fn differs(&self, tree: &Tree, path: &Relative) -> bool {
        let found = tree.find(path).ok().filter(|spot| spot.path == *path);
        match found.map(|spot| spot.facts.kind) {
            Some(Kind::File) => !self.files.contains(path),
            // It may be another one, with other files.
            Some(Kind::Directory) => true,
            Some(Kind::Link | Kind::Other) | None => self.files.contains(path) || self.directories.contains(path),
        }
    }
}

/// The directories to watch: those of the list, those of what is subscribed, and those whose rules hold here.
fn wanted(served: &Served, seen: &Seen) -> io::Result<Vec<PathBuf>> {
    let Served { tree, most_listed, .. } = served;
    let is_directory =
        |path: &Relative| tree.find(path).is_ok_and(|spot| spot.path == *path && spot.facts.kind == Kind::Directory);
    let subscribed = served.watch.subscribed.directories();
    let others = subscribed.iter().filter(|path| !seen.directories.contains(path) && is_directory(path));
    // One more than allowed is enough to know.
    let directories: Vec<_> = seen.directories.iter().chain(others).take(most_listed + 1).collect();
    if directories.len() > *most_listed {
        return Err(io::Error::other("there are more directories than maxFiles"));
    }
    let directories = directories.into_iter().map(|path| tree.root.path().join(path.as_path()));
    Ok(directories.chain(tree.rule.places()).collect())
}

fn tell(served: &Served, path: &Relative) {
    let params = format!(r#"{{"uri":{}}}"#, quote(&served.tree.root.uri(path)));
    let updated = goblin_wire::notification(&Method::ResourceUpdated, Some(&params));
    if let Ok(Message::Notification(updated)) = Message::parse(updated) {
        served.host.updated(&updated);
    }
}
