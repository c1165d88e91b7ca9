use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use super::*;
use crate::{VaultError, Version};

#[test]
fn oauth7_an_entry_is_read_by_another_process_and_replaced_and_removed() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.vault(), scratch.vault());
    assert_eq!(read(&one, "token"), Ok(None));
    assert!(!scratch.directory().exists(), "a read creates nothing");
    assert_eq!(one.names(EntryKind::Secret).unwrap(), []);
    write(&one, "token", "s3cret \u{e9}\n");
    write(&one, "b", "");
    assert_eq!(read(&two, "token"), Ok(Some("s3cret \u{e9}\n".to_owned())));
    assert_eq!(read(&two, "b"), Ok(Some(String::new())));
    write(&two, "token", "other");
    assert_eq!(read(&one, "token"), Ok(Some("other".to_owned())));
    assert_eq!(two.names(EntryKind::Secret).unwrap(), [name("b"), name("token")]);
    assert_eq!(two.names(EntryKind::Login).unwrap(), []);
    assert_eq!(two.read(EntryKind::Login, &name("token")), Ok(None), "kinds have separate names");
    assert_eq!(one.remove(EntryKind::Secret, &name("token")), Ok(true));
    assert_eq!(two.remove(EntryKind::Secret, &name("token")), Ok(false));
    assert_eq!(read(&two, "token"), Ok(None));
}

#[test]
fn oauth7_no_file_of_the_vault_has_a_name_or_a_value_as_text() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "canary-name", "canary-value");
    let first = std::fs::read(scratch.entry_file("canary-name")).unwrap();
    write(&vault, "canary-name", "canary-value");
    assert_ne!(first, std::fs::read(scratch.entry_file("canary-name")).unwrap(), "each write has a new nonce");
    assert_eq!(scratch.files().len(), 3, "{:?}", scratch.files());
    for file in scratch.files() {
        let bytes = std::fs::read(scratch.directory().join(&file)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("canary") && !file.contains("canary"), "{file}");
    }
}

#[test]
fn oauth7_an_entry_in_the_place_of_another_is_rejected() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "one", "1");
    write(&vault, "two", "2");
    vault.write(EntryKind::Login, &name("one"), &Secret::new("login")).unwrap();
    let login = scratch.directory().join(EntryAddress::new(EntryKind::Login, &name("one")).entry_file());
    for other in [scratch.entry_file("two"), login] {
        std::fs::copy(other, scratch.entry_file("one")).unwrap();
        assert_mentions(&read(&vault, "one").unwrap_err(), &["damaged", "rm /"]);
        assert!(vault.names(EntryKind::Secret).is_err());
    }
    assert_eq!(read(&vault, "two"), Ok(Some("2".to_owned())), "the other entries are still usable");
    assert_eq!(vault.remove(EntryKind::Secret, &name("one")), Ok(true), "a damaged entry can be removed");
    assert_eq!(vault.names(EntryKind::Secret).unwrap(), [name("two")]);
}

#[test]
fn oauth7_a_torn_or_changed_entry_is_rejected_at_each_byte() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "token", "s3cret");
    let (path, whole) = (scratch.entry_file("token"), std::fs::read(scratch.entry_file("token")).unwrap());
    assert_eq!(whole.len(), 5 + 12 + 2 + "token".len() + "s3cret".len() + 16);
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_mentions(&read(&vault, "token").unwrap_err(), &["damaged"]);
    }
    for at in 0..whole.len() {
        for bit in [1, 0x80] {
            let mut changed = whole.clone();
            changed[at] ^= bit;
            std::fs::write(&path, changed).unwrap();
            assert!(read(&vault, "token").is_err(), "byte {at}");
        }
    }
    std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    assert!(read(&vault, "token").is_err());
    std::fs::write(&path, whole).unwrap();
    assert_eq!(read(&vault, "token"), Ok(Some("s3cret".to_owned())));
}

#[test]
fn oauth7_a_newer_format_is_reported_and_left_alone() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "token", "s3cret");
    let path = scratch.entry_file("token");
    let mut newer = std::fs::read(&path).unwrap();
    newer[4] = 2;
    std::fs::write(&path, &newer).unwrap();
    assert_mentions(&read(&vault, "token").unwrap_err(), &["has format 2", "a newer goblin", "update this goblin"]);
    let expected = Err(VaultError::NewerFormat { path: path.clone(), format: 2 });
    assert_eq!(vault.write(EntryKind::Secret, &name("token"), &Secret::new("older")), expected);
    assert_eq!(std::fs::read(&path).unwrap(), newer);
    let record = scratch.directory().join("vault.json");
    std::fs::write(&record, r#"{"format":7,"key":"unknown"}"#).unwrap();
    let error = scratch.vault().write(EntryKind::Secret, &name("b"), &Secret::new("b")).unwrap_err();
    assert_eq!(error, VaultError::NewerFormat { path: record, format: 7 });
}

#[test]
fn oauth7_the_version_changes_with_each_write_of_any_process() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.vault(), scratch.vault());
    let version = |vault: &Vault| vault.version(EntryKind::Secret, &name("token"));
    assert_eq!(version(&one), Version::default());
    let mut seen = Vec::new();
    for round in 0..100 {
        write(if round % 2 == 0 { &one } else { &two }, "token", "same value");
        assert_eq!(version(&one), version(&two));
        assert_ne!(version(&one), Version::default());
        assert!(!seen.contains(&version(&one)), "round {round}");
        seen.push(version(&one));
    }
    assert_eq!(version(&one), seen[99], "reading does not change a version");
    one.remove(EntryKind::Secret, &name("token")).unwrap();
    assert_eq!(version(&two), Version::default());
}

#[test]
fn oauth7_one_process_at_a_time_holds_the_lock_of_an_entry() {
    let scratch = Scratch::new();
    let entries = name("counter");
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let vault = scratch.vault();
                start.wait();
                for _ in 0..25 {
                    let _lock = vault.lock(EntryKind::Secret, &entries).unwrap();
                    let count: usize = read(&vault, "counter").unwrap().map_or(0, |count| count.parse().unwrap());
                    write(&vault, "counter", &(count + 1).to_string());
                }
            });
        }
    });
    assert_eq!(read(&scratch.vault(), "counter"), Ok(Some("200".to_owned())));
    let vault = scratch.vault();
    let _held = vault.lock(EntryKind::Secret, &entries).unwrap();
    let _other = vault.lock(EntryKind::Login, &entries).unwrap();
    let locks = || scratch.files().iter().filter(|file| file.ends_with(".lock")).count();
    assert_eq!(locks(), 2);
    vault.remove(EntryKind::Secret, &entries).unwrap();
    assert_eq!(locks(), 2, "a lock file is never removed");
}

#[test]
fn oauth7_temporary_files_of_killed_processes_are_removed() {
    let scratch = Scratch::new();
    write(&scratch.vault(), "token", "s3cret");
    let place = |file: &str| scratch.directory().join(file);
    let (old, foreign, recent) = ("0123456789abcdef.new", "notes.new", "fedcba9876543210.new");
    for file in [old, foreign, recent] {
        std::fs::write(place(file), "half").unwrap();
    }
    let hour = Duration::from_secs(3600);
    for file in [old, foreign] {
        let file = std::fs::File::options().write(true).open(place(file)).unwrap();
        file.set_modified(SystemTime::now() - hour).unwrap();
    }
    assert_eq!(read(&scratch.vault(), "token"), Ok(Some("s3cret".to_owned())));
    assert!(!place(old).exists());
    assert!(place(foreign).exists(), "the vault removes only its own files");
    assert!(place(recent).exists(), "another process may be writing this file");
}

#[test]
fn oauth7_a_failed_write_leaves_the_old_entry() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "token", "old");
    let (directory, path) = (scratch.directory(), scratch.entry_file("token"));
    let fail = |value: &str| {
        let error = vault.write(EntryKind::Secret, &name("token"), &Secret::new(value)).unwrap_err().to_string();
        assert!(!error.contains(value), "{error}");
        error
    };
    let files = scratch.files();
    // A directory cannot be replaced by a file. Root may write read-only directories, so this works for every user.
    let entry = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_mentions(&fail("new-value"), &["cannot write", "secret-"]);
    assert_eq!(scratch.files(), files, "no temporary file is left");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, entry).unwrap();
    set_mode(&path, 0o600);
    if !rustix::process::geteuid().is_root() {
        set_mode(&directory, 0o500);
        assert_mentions(&fail("new-value"), &["cannot write", "denied"]);
        set_mode(&directory, 0o700);
    }
    std::fs::rename(&directory, directory.with_extension("away")).unwrap();
    std::fs::write(&directory, "a file").unwrap();
    assert_mentions(&fail("new-value"), &["is no directory", "mv /"]);
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(directory.with_extension("away"), &directory).unwrap();
    assert_eq!(read(&vault, "token"), Ok(Some("old".to_owned())), "an error is not kept");
}
