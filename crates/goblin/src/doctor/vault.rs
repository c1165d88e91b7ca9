//! Examines the vault of this user.

use goblin_vault::{EntryKind, Vault, VaultError};

use crate::doctor::finding::Findings;
use crate::style::plural;
use crate::vault;

const VAULT: &str = "vault";

/// Reports the directory, the key and the number of entries. Reports nothing if there is no vault.
pub(crate) fn examine(findings: &mut Findings) {
    let Some(vault) = vault::of_user().filter(|vault| vault.directory().symlink_metadata().is_ok()) else { return };
    match describe(&vault) {
        Ok(text) => findings.ok(VAULT, text),
        Err(error) => {
            let (what, cure) = what_and_cure(&error);
            findings.problem(VAULT, what, cure);
        }
    }
}

fn describe(vault: &Vault) -> Result<String, VaultError> {
    let directory = vault.directory().display();
    let (secrets, logins) = (vault.names(EntryKind::Secret)?.len(), vault.names(EntryKind::Login)?.len());
    let counted = format!("{directory}, {}, {}", plural(secrets, "secret"), plural(logins, "login"));
    let key = match vault.key_source() {
        Err(VaultError::NoRecord(_)) if secrets + logins == 0 => "no key yet".to_owned(),
        source => source?,
    };
    let limit = match vault.has_generated_key()? {
        true => " (protects no more than its mode 0600 does; a systemd credential or GOBLIN_KEY_FILE does)",
        false => "",
    };
    Ok(format!("{counted}, {key}{limit}"))
}

/// Splits the message of an error into its two parts. Each message ends with the cure in parentheses, except for that of
/// a disk.
fn what_and_cure(error: &VaultError) -> (String, String) {
    let text = error.to_string();
    let cure = || "make the directory of the vault writable and free some space on its disk".to_owned();
    let parts = match error {
        VaultError::Disk { .. } => None,
        _ => text.strip_suffix(')').and_then(|text| text.rsplit_once(" (")),
    };
    match parts {
        Some((what, cure)) => (what.to_owned(), cure.to_owned()),
        None => (text.clone(), cure()),
    }
}
