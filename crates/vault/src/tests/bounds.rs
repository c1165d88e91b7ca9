use super::*;
use crate::{MAX_ENTRIES, MAX_NAME_BYTES, MAX_VALUE_BYTES, VaultError};

#[test]
fn oauth7_names_and_values_have_exact_bounds() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    assert_eq!(EntryName::new(""), Err(VaultError::Name));
    assert_eq!(EntryName::new(&"n".repeat(MAX_NAME_BYTES + 1)), Err(VaultError::Name));
    let (longest, largest) = ("n".repeat(MAX_NAME_BYTES), "v".repeat(MAX_VALUE_BYTES));
    write(&vault, &longest, &largest);
    assert_eq!(read(&vault, &longest), Ok(Some(largest.clone())));
    let size = std::fs::metadata(scratch.entry_file(&longest)).unwrap().len();
    assert_eq!(size, crate::entry::MAX_FILE_BYTES as u64, "a larger file is never read");
    let larger = Secret::new(format!("{largest}v"));
    assert_eq!(vault.write(EntryKind::Secret, &name("token"), &larger), Err(VaultError::TooLarge));
    assert_eq!(vault.names(EntryKind::Secret).unwrap(), [name(&longest)]);
    let file = std::fs::File::options().append(true).open(scratch.entry_file(&longest)).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_mentions(&read(&vault, &longest).unwrap_err(), &["damaged"]);
}

#[test]
fn oauth7_a_vault_has_at_most_ten_thousand_entries() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "first", "1");
    let place = |number: usize| scratch.directory().join(format!("login-{number:064x}.entry"));
    (2..MAX_ENTRIES).for_each(|number| drop(std::fs::File::create(place(number)).unwrap()));
    write(&vault, "last", "2");
    assert_eq!(scratch.files().iter().filter(|file| file.ends_with(".entry")).count(), 10_000);
    let error = vault.write(EntryKind::Secret, &name("more"), &Secret::new("3")).unwrap_err();
    assert_mentions(&error.to_string(), &["has 10000 entries", "goblin secret remove NAME"]);
    write(&vault, "last", "an existing entry can change");
    vault.remove(EntryKind::Secret, &name("first")).unwrap();
    write(&vault, "more", "3");
    assert_eq!(vault.names(EntryKind::Secret).unwrap(), [name("last"), name("more")]);
}
