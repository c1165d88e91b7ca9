//! What a tool does to the world, as far as the verb in its name tells, and what a question asks for.
//!
//! Who asks for a list is not helped by what deletes it, though all other words fit. So what does something else than was
//! asked for loses a part of its score, and more of it the further it is from that: to change is nearer to reading than
//! to destroy. The first verb of a question that may be an order counts; a question without one asks to read.

use std::collections::HashMap;

use crate::search::postings::Builder;
use crate::search::query::Term;
use crate::search::words;

/// What is left of the score of what is one step from what was asked for.
const UNASKED: f32 = 0.85;

/// In the order of how much they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Reads,
    Changes,
    Destroys,
}

#[rustfmt::skip]
const VERBS: [(Deed, &[&str]); 3] = [
    (Deed::Reads, &[
        "get", "list", "show", "search", "find", "read", "fetch", "view", "describe", "query", "browse", "count",
        "check", "display", "see", "look", "lookup", "retrieve", "inspect", "compare", "analyze", "monitor",
        "watch", "track", "tell", "explain", "summarize", "enumerate", "download", "export",
    ]),
    (Deed::Changes, &[
        "create", "add", "make", "new", "insert", "update", "edit", "modify", "change", "set", "write", "send", "post",
        "publish", "put", "append", "replace", "rename", "move", "copy", "merge", "assign", "upload", "import",
        "install", "enable", "disable", "start", "stop", "restart", "run", "execute", "trigger", "cancel",
        "approve", "reject", "close", "open", "reply", "share", "invite", "attach", "apply", "deploy", "submit",
        "save", "store", "register", "draft", "compose", "schedule", "book", "build", "fork", "restore", "revert",
        "reset", "archive", "lock", "protect", "link", "connect", "associate", "convert", "turn", "give", "rotate",
        "resize", "format", "pause", "resume", "retry", "rerun", "raise", "propose", "grant", "transfer",
        "duplicate", "clone",
    ]),
    (Deed::Destroys, &[
        "delete", "remove", "erase", "destroy", "drop", "discard", "purge", "clear", "wipe", "trash", "uninstall",
        "unlink", "forget", "getrid",
    ]),
];

/// For each deed the part of its score that a document keeps which does that.
pub struct Asked([f32; 3]);

/// The verbs of an index, by their concepts, and what its documents do.
pub struct Deeds {
    verbs: HashMap<u32, Deed>,
    /// Nothing of what no verb tells: it may do anything.
    documents: Vec<Option<Deed>>,
}

impl Deeds {
    pub fn new(builder: &mut Builder) -> Deeds {
        let verbs = VERBS.iter().flat_map(|(deed, words)| words.iter().map(|word| (*word, *deed)));
        Deeds { verbs: verbs.map(|(word, deed)| (builder.concept(word), deed)).collect(), documents: Vec::new() }
    }

    /// The next document has this name. Its first verb counts, but what destroys is known wherever that stands.
    pub fn add(&mut self, name: &str, builder: &mut Builder) {
        let mut found = None;
        words::each_part(name, |word| {
            let deed = self.verbs.get(&builder.concept(word)).copied();
            found = if deed == Some(Deed::Destroys) { deed } else { found.or(deed) };
        });
        self.documents.push(found);
    }

    /// What a question asks for, by its words themselves and not by what else they may mean.
    pub fn asked(&self, terms: &[Term]) -> Asked {
        let orders = terms.iter().filter(|term| term.may_order).filter_map(|term| term.meanings.first());
        let asked = orders.filter_map(|meaning| self.verbs.get(&meaning.concept)).next().copied();
        let asked = asked.unwrap_or(Deed::Reads);
        let fit = |deed: Deed| UNASKED.powi((asked as i32 - deed as i32).abs());
        Asked([fit(Deed::Reads), fit(Deed::Changes), fit(Deed::Destroys)])
    }

    /// The part of its score that a document keeps, at most all of it.
    pub fn fit(&self, asked: &Asked, document: usize) -> f32 {
        self.documents[document].map_or(1.0, |deed| asked.0[deed as usize])
    }

    /// The bytes it holds.
    pub fn size(&self) -> usize {
        self.documents.capacity() * size_of::<Option<Deed>>() + self.verbs.len() * size_of::<(u32, Deed)>()
    }
}
