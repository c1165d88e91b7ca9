//! Moves literal secrets of an import into the vault. The vault gets the secrets before the file gets the references.

use std::collections::BTreeSet;

use goblin_config::import::literal::{LiteralSecret, literals, numbered};
use goblin_config::import::merge::ImportCandidate;
use goblin_config::secret::Secret;
use goblin_config::tree::JsonTree;
use goblin_vault::{EntryKind, EntryName, Vault, VaultError};

/// A literal secret of an imported server.
pub(crate) struct FoundSecret {
    pub server: String,
    pub literal: LiteralSecret,
}

/// Secrets that are in the vault now. Dropping the value without [`MovedSecrets::keep`] removes the new ones again.
pub(crate) struct MovedSecrets<'a> {
    vault: &'a Vault,
    created: Vec<EntryName>,
    /// The names in the order of the secrets.
    pub names: Vec<String>,
}

impl FoundSecret {
    pub(crate) fn place(&self) -> String {
        self.literal.place(&self.server)
    }
}

pub(crate) fn find<'a>(servers: impl Iterator<Item = &'a ImportCandidate>) -> Vec<FoundSecret> {
    let of_server = |server: &ImportCandidate| {
        let found = |literal| FoundSecret { server: server.id.clone(), literal };
        literals(&server.entry).into_iter().map(found).collect::<Vec<_>>()
    };
    servers.flat_map(of_server).collect()
}

impl<'a> MovedSecrets<'a> {
    /// Writes the secrets to the vault. Never replaces a different secret: such a name gets a number.
    pub(crate) fn write(vault: &'a Vault, found: &[FoundSecret]) -> Result<MovedSecrets<'a>, VaultError> {
        let mut moved = MovedSecrets { vault, created: Vec::new(), names: Vec::new() };
        let mut taken = BTreeSet::new();
        for secret in found {
            let name = moved.write_one(&secret.literal.name(&secret.server), &secret.literal.value, &taken)?;
            taken.insert(name.clone());
            moved.names.push(name);
        }
        Ok(moved)
    }

    fn write_one(&mut self, wanted: &str, value: &Secret, taken: &BTreeSet<String>) -> Result<String, VaultError> {
        let mut name = wanted.to_owned();
        for number in 2.. {
            let entry = EntryName::new(&name)?;
            // Another import must not choose the same name at the same time.
            let _lock = self.vault.lock(EntryKind::Secret, &entry)?;
            match self.vault.read(EntryKind::Secret, &entry)? {
                None => {
                    self.vault.write(EntryKind::Secret, &entry, value)?;
                    self.created.push(entry);
                    break;
                }
                Some(present) if present == *value && !taken.contains(&name) => break,
                Some(_) => name = numbered(wanted, number),
            }
        }
        Ok(name)
    }

    /// Returns the entry of a server with references in the place of its secrets.
    pub(crate) fn references(&self, server: &ImportCandidate, found: &[FoundSecret]) -> JsonTree {
        let mut entry = server.entry.clone();
        for (secret, name) in found.iter().zip(&self.names).filter(|(secret, _)| secret.server == server.id) {
            secret.literal.replace(&mut entry, name);
        }
        entry
    }

    /// Keeps the secrets, because the file refers to them now.
    pub(crate) fn keep(mut self) -> Vec<String> {
        self.created.clear();
        std::mem::take(&mut self.names)
    }
}

impl Drop for MovedSecrets<'_> {
    fn drop(&mut self) {
        for name in &self.created {
            // An unused secret is harmless.
            let _ = self.vault.remove(EntryKind::Secret, name);
        }
    }
}
