//! Merges the servers of several files: resolves name conflicts, renames servers and detects servers already present.

use std::path::PathBuf;

use crate::ServerId;
use crate::import::{ClientApp, FileImport, ImportedServer, Note};
use crate::lead::{GatewayLead, UNCLEAR};
use crate::tree::JsonTree;
use crate::visible::is_hidden;

/// The proposed result of an import.
#[derive(Clone, Debug, Default)]
pub struct MergeResult {
    pub servers: Vec<ImportCandidate>,
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug)]
pub struct ImportCandidate {
    pub id: String,
    /// All clients that have this server, in reading order.
    pub clients: Vec<ClientApp>,
    pub file: PathBuf,
    pub entry: JsonTree,
    /// Whether goblin's file already contains this server.
    pub is_present: bool,
}

/// Merges the servers of several files. `existing` are the servers of goblin's file, `lead` returns the gateway that an
/// entry leads to.
pub fn merge(
    found: Vec<FileImport>,
    existing: &[(String, JsonTree)],
    lead: impl Fn(&JsonTree) -> Option<GatewayLead>,
) -> MergeResult {
    let mut merged = MergeResult::default();
    let mut servers = Vec::new();
    for found in found {
        merged.notes.extend(found.notes);
        servers.extend(found.servers);
    }
    // Within a client, the narrower scope comes first. The order of clients is kept.
    let order: Vec<ClientApp> = servers.iter().map(|server: &ImportedServer| server.client).collect();
    let place = |client: ClientApp| order.iter().position(|known| *known == client);
    servers.sort_by_key(|server| (place(server.client), server.scope));
    let mut taken: Vec<(ClientApp, String, PathBuf, JsonTree)> = Vec::new();
    for server in servers {
        match lead(&server.entry) {
            Some(GatewayLead::Own) => {
                merged.note(&server, "left out: the entry is goblin itself", None);
                continue;
            }
            Some(GatewayLead::Other(gateway)) => merged.note(&server, &format!("the entry is {gateway}"), None),
            Some(GatewayLead::Unclear) => merged.note(&server, UNCLEAR, None),
            None => {}
        }
        let hiding = taken.iter().find(|(client, name, ..)| *client == server.client && *name == server.name);
        if let Some((_, _, file, entry)) = hiding {
            if !entry.is_same(&server.entry) {
                let why = format!("left out: {} uses the entry for this project in {}", server.client, file.display());
                merged.note(&server, &why, None);
            }
            continue;
        }
        taken.push((server.client, server.name.clone(), server.file.clone(), server.entry.clone()));
        merged.add(server, existing);
    }
    merged
}

impl MergeResult {
    fn note(&mut self, server: &ImportedServer, why: &str, cure: Option<String>) {
        let (file, name) = (server.file.clone(), server.name.clone());
        self.notes.push(Note { file, server: name, member: String::new(), why: why.to_owned(), cure });
    }

    fn add(&mut self, server: ImportedServer, existing: &[(String, JsonTree)]) {
        let wanted = clean(&server.name);
        let own = with_client(&wanted, server.client, 1);
        for id in [&wanted, &own] {
            if let Some(index) = self.servers.iter().position(|known| is_same_id(&known.id, id)) {
                let known = &mut self.servers[index];
                if known.entry.is_same(&server.entry) {
                    known.clients.push(server.client);
                    return;
                }
            }
            if existing.iter().any(|(known, entry)| is_same_id(known, id) && entry.is_same(&server.entry)) {
                self.push(id.clone(), server, true);
                return;
            }
        }
        if let Some((known, _)) = existing.iter().find(|(known, _)| is_same_id(known, &wanted)) {
            let why = format!("left out: your file has a different server {known}");
            let cure = format!("keep it, or run goblin remove {known} and import again");
            self.note(&server, &why, Some(cure));
            return;
        }
        let is_free = |id: &str| {
            !self.servers.iter().any(|known| is_same_id(&known.id, id))
                && !existing.iter().any(|(known, _)| is_same_id(known, id))
        };
        let mut id = wanted.clone();
        let mut number = 1;
        while !is_free(&id) {
            id = with_client(&wanted, server.client, number);
            number += 1;
        }
        if id != server.name {
            let why = format!("imported as {id}, because the name is taken or not allowed");
            self.note(&server, &why, None);
        }
        self.push(id, server, false);
    }

    fn push(&mut self, id: String, server: ImportedServer, is_present: bool) {
        let ImportedServer { client, file, entry, .. } = server;
        self.servers.push(ImportCandidate { id, clients: vec![client], file, entry, is_present });
    }
}

/// Reports whether goblin's reader would reject these two ids in one file.
fn is_same_id(one: &str, other: &str) -> bool {
    let folded = |id: &str| ServerId::new(id).map(|id| id.folded());
    one == other || matches!((folded(one), folded(other)), (Ok(one), Ok(other)) if one == other)
}

/// Returns the name without invisible characters and cut to the length of an id.
fn clean(name: &str) -> String {
    let name: String = name.chars().filter(|letter| !is_hidden(*letter)).take(ServerId::MAX_LENGTH).collect();
    if name.is_empty() { "server".to_owned() } else { name }
}

/// Returns `NAME-CLIENT`, or `NAME-CLIENT-NUMBER` if the number is above 1.
fn with_client(name: &str, client: ClientApp, number: usize) -> String {
    let suffix = if number == 1 { format!("-{client}") } else { format!("-{client}-{number}") };
    let room = ServerId::MAX_LENGTH - suffix.len();
    name.chars().take(room).chain(suffix.chars()).collect()
}
