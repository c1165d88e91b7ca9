use std::os::unix::fs::{chown, symlink};

use super::*;

#[test]
fn oauth7_only_the_user_can_access_the_files_of_the_vault() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "token", "s3cret");
    drop(vault.lock(EntryKind::Secret, &name("token")).unwrap());
    assert_eq!(mode(&scratch.directory()), 0o700);
    assert_eq!(mode(scratch.directory().parent().unwrap()), 0o700);
    assert_eq!(scratch.files().len(), 4);
    for file in scratch.files() {
        assert_eq!(mode(&scratch.directory().join(&file)), 0o600, "{file}");
    }
}

#[test]
fn oauth7_a_vault_that_others_can_access_is_rejected_with_the_command_that_cures_it() {
    let scratch = Scratch::new();
    write(&scratch.vault(), "token", "s3cret");
    let directory = scratch.directory();
    let above = directory.parent().unwrap();
    let check = |path: &Path, wrong: u32, right: u32, cure: &str| {
        set_mode(path, wrong);
        let error = scratch.vault().read(EntryKind::Secret, &name("token")).unwrap_err().to_string();
        assert_mentions(&error, &[&format!("mode {wrong:03o}"), &format!("({cure} {})", path.display())]);
        set_mode(path, right);
        assert_eq!(read(&scratch.vault(), "token"), Ok(Some("s3cret".to_owned())), "the cure works");
    };
    check(&directory, 0o750, 0o700, "chmod 700");
    check(&directory, 0o701, 0o700, "chmod 700");
    check(above, 0o777, 0o700, "chmod go-w");
    for file in ["key", "vault.json"] {
        check(&directory.join(file), 0o640, 0o600, "chmod 600");
    }
    check(&scratch.entry_file("token"), 0o604, 0o600, "chmod 600");
    set_mode(&directory, 0o755);
    assert!(scratch.vault().lock(EntryKind::Secret, &name("token")).is_err());
    assert!(scratch.vault().remove(EntryKind::Secret, &name("token")).is_err());
    assert!(scratch.vault().names(EntryKind::Secret).is_err());
    assert!(scratch.vault().write(EntryKind::Secret, &name("token"), &Secret::new("v")).is_err());
}

#[test]
fn oauth7_files_of_another_user_are_rejected() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a file away. Root's tests, in containers and in continuous integration, cover this.
        return;
    }
    let scratch = Scratch::new();
    write(&scratch.vault(), "token", "s3cret");
    for path in [scratch.directory(), scratch.entry_file("token"), scratch.directory().join("key")] {
        chown(&path, Some(4711), None).unwrap();
        let cure = format!("chown 0 {}", path.display());
        assert_mentions(&read(&scratch.vault(), "token").unwrap_err(), &["belongs to another user (4711)", &cure]);
        chown(&path, Some(0), None).unwrap();
        write(&scratch.vault(), "token", "s3cret");
    }
}

#[test]
fn oauth7_links_in_the_place_of_the_vault_and_its_files_are_rejected() {
    let scratch = Scratch::new();
    write(&scratch.vault(), "token", "s3cret");
    drop(scratch.vault().lock(EntryKind::Secret, &name("token")).unwrap());
    let lock = scratch.files().into_iter().find(|file| file.ends_with(".lock")).unwrap();
    let away = scratch.0.join("away");
    let replaced = |path: &Path, check: &dyn Fn()| {
        std::fs::rename(path, &away).unwrap();
        symlink(&away, path).unwrap();
        check();
        std::fs::remove_file(path).unwrap();
        std::fs::rename(&away, path).unwrap();
        assert_eq!(read(&scratch.vault(), "token"), Ok(Some("s3cret".to_owned())));
    };
    let rejected = || assert_mentions(&read(&scratch.vault(), "token").unwrap_err(), &["is a link"]);
    for path in [
        scratch.directory(),
        scratch.directory().join("key"),
        scratch.directory().join("vault.json"),
        scratch.entry_file("token"),
    ] {
        replaced(&path, &rejected);
    }
    replaced(&scratch.directory().join(&lock), &|| {
        let locked = scratch.vault().lock(EntryKind::Secret, &name("token"));
        assert_mentions(&locked.unwrap_err().to_string(), &["is a link"]);
    });
    // A write replaces the link itself, and not the file that the link names.
    std::fs::write(&away, "another file").unwrap();
    std::fs::remove_file(scratch.entry_file("token")).unwrap();
    symlink(&away, scratch.entry_file("token")).unwrap();
    write(&scratch.vault(), "token", "new");
    assert_eq!(std::fs::read_to_string(&away).unwrap(), "another file");
    assert_eq!(read(&scratch.vault(), "token"), Ok(Some("new".to_owned())));
}

#[test]
fn oauth7_debug_output_has_no_secret_and_no_key() {
    let scratch = Scratch::new();
    let vault = scratch.vault();
    write(&vault, "token", "canary");
    let key = std::fs::read_to_string(scratch.directory().join("key")).unwrap();
    let opened = vault.open(crate::open::Missing::Reject).unwrap();
    let shown = format!("{vault:?} {opened:?} {:?}", vault.read(EntryKind::Secret, &name("token")));
    assert!(!shown.contains("canary") && !shown.contains(key.trim()), "{shown}");
}
