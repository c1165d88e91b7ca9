//! The vault of this user, for `${secret:NAME}` in a configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use goblin_client::environment::environment;
use goblin_config::secret::{Secret, SecretLookup};
use goblin_vault::{EntryKind, EntryName, Vault, Version};
use parking_lot::Mutex;

/// Returns the vault in the user's state directory. Returns `None` if no variable names that directory.
pub(crate) fn of_user() -> Option<Arc<Vault>> {
    Vault::default_directory(&environment).map(|path| Arc::new(Vault::new(path, &environment)))
}

/// The secrets that a configuration looked up. Values are not kept.
#[derive(Clone, Default)]
pub(crate) struct UsedSecrets(Arc<Mutex<LookedUp>>);

#[derive(Default)]
struct LookedUp {
    vault: Option<Arc<Vault>>,
    /// The version of each secret before it was read.
    versions: BTreeMap<EntryName, Version>,
    /// A secret that the vault failed to return. A repair of the vault does not change versions.
    failed: Option<EntryName>,
}

impl UsedSecrets {
    /// Returns a lookup that records each secret. It opens the vault at the first secret.
    pub(crate) fn lookup(&self) -> SecretLookup {
        let used = self.clone();
        SecretLookup::new(move |name| used.find(name))
    }

    fn find(&self, name: &str) -> Result<Option<Secret>, String> {
        let vault = match &mut self.0.lock().vault {
            Some(vault) => Arc::clone(vault),
            missing => Arc::clone(missing.insert(of_user().ok_or("there is no vault (set XDG_STATE_HOME or HOME)")?)),
        };
        let name = EntryName::new(name).map_err(|error| error.to_string())?;
        // The version is older than the value, so that no change is missed.
        let version = vault.version(EntryKind::Secret, &name);
        self.0.lock().versions.entry(name.clone()).or_insert(version);
        vault.read(EntryKind::Secret, &name).map_err(|error| {
            self.0.lock().failed = Some(name);
            error.to_string()
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().versions.is_empty()
    }

    /// Replaces the secrets by those of a newer reading of the configuration.
    pub(crate) fn replace(&self, newer: &UsedSecrets) {
        let newer = std::mem::take(&mut *newer.0.lock());
        *self.0.lock() = newer;
    }

    /// Returns the versions of all secrets now, if one of them has changed since it was read, or if a vault that failed
    /// works again. Accesses the disk.
    pub(crate) fn changed(&self) -> Option<Vec<Version>> {
        let (vault, known, failed) = {
            let used = self.0.lock();
            (used.vault.clone()?, used.versions.clone(), used.failed.clone())
        };
        let now: Vec<_> = known.keys().map(|name| vault.version(EntryKind::Secret, name)).collect();
        let is_repaired = || failed.is_some_and(|name| vault.read(EntryKind::Secret, &name).is_ok());
        (!now.iter().eq(known.values()) || is_repaired()).then_some(now)
    }
}
