use std::os::unix::fs::symlink;
use std::sync::Barrier;

use super::*;
use crate::key::Key;

const HEX: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

fn key_file(scratch: &Scratch, file: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = scratch.0.join(file);
    std::fs::write(&path, content).unwrap();
    set_mode(&path, 0o600);
    path
}

#[test]
fn oauth7_a_key_file_has_32_bytes_or_their_text() {
    let raw: Vec<u8> = (0..64).step_by(2).map(|at| u8::from_str_radix(&HEX[at..at + 2], 16).unwrap()).collect();
    let key = Key::parse(&raw).unwrap();
    let base64 = "ABEiM0RVZneImaq7zN3u/wARIjNEVWZ3iJmqu8zd7v8=";
    let url_safe = base64.replace('/', "_");
    for text in [HEX, &HEX.to_uppercase(), base64, &base64[..43], &url_safe, &format!("{HEX}\n"), &format!("{HEX}\r\n")]
    {
        assert!(Key::parse(text.as_bytes()) == Ok(key.clone()), "{text}");
    }
    assert!(Key::parse(OTHER.as_bytes()).unwrap() != key);
    let printable = "0123456789abcdef0123456789abcdef";
    let (short, long, odd) = (&HEX[..62], format!("{HEX}00"), HEX.replace("ff", "fg"));
    for wrong in ["", "\n", "password", printable, short, &long, &odd, &base64[..40], &"0".repeat(64)] {
        assert!(Key::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
    }
    assert!(Key::parse(&raw[..31]).is_err());
    assert!(Key::parse(&[&raw[..], &[0xff]].concat()).is_err());
    assert!(Key::parse(&[7; 32]).is_err());
    assert_eq!(format!("{key:?}"), "[key]");
}

#[test]
fn oauth7_the_first_key_source_is_used() {
    let scratch = Scratch::new();
    let file = key_file(&scratch, "mounted", HEX);
    let credentials = scratch.0.join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    let environment = |name: &str| match name {
        "CREDENTIALS_DIRECTORY" => Some(credentials.to_str().unwrap().to_owned()),
        "GOBLIN_KEY_FILE" => Some(file.to_str().unwrap().to_owned()),
        _ => None,
    };
    let vault = Vault::new(scratch.directory(), &environment);
    write(&vault, "token", "s3cret");
    let source = vault.key_source().unwrap();
    assert_eq!(source, format!("the key file {} (GOBLIN_KEY_FILE)", file.display()), "there is no credential yet");
    assert!(!scratch.files().contains(&"key".to_owned()), "no key is generated");

    let credential = key_file(&scratch, "credentials/goblin.key", format!("{HEX}\n"));
    let vault = Vault::new(scratch.directory(), &environment);
    assert_eq!(read(&vault, "token"), Ok(Some("s3cret".to_owned())), "the same key from another source");
    assert_eq!(vault.key_source().unwrap(), format!("the systemd credential {}", credential.display()));

    let other = Scratch::new();
    write(&other.vault(), "token", "s3cret");
    let generated = other.directory().join("key");
    assert_eq!(other.vault().key_source().unwrap(), format!("the generated key file {}", generated.display()));
    let moved = key_file(&other, "moved", std::fs::read(&generated).unwrap());
    std::fs::remove_file(&generated).unwrap();
    assert_eq!(read(&other.vault_with_key(&moved), "token"), Ok(Some("s3cret".to_owned())));
}

#[test]
fn oauth7_another_key_is_rejected_with_both_sources_and_the_cure() {
    let scratch = Scratch::new();
    let (file, other) = (key_file(&scratch, "one", HEX), key_file(&scratch, "two", OTHER));
    write(&scratch.vault_with_key(&file), "token", "s3cret");
    let files = scratch.files();
    let wrong = scratch.vault_with_key(&other);
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    let cure = format!("set GOBLIN_KEY_FILE={file}");
    assert_mentions(&read(&wrong, "token").unwrap_err(), &[file, other, "has another key", &cure, "rm -r /"]);
    let error = wrong.write(EntryKind::Secret, &name("new"), &Secret::new("v")).unwrap_err().to_string();
    assert_mentions(&error, &[file, other]);
    assert!(!error.contains(HEX) && !error.contains(OTHER));
    assert_mentions(&read(&scratch.vault(), "token").unwrap_err(), &[file, "no key was found"]);
    assert_eq!(scratch.files(), files, "no key and no entry was written");

    let generated = Scratch::new();
    write(&generated.vault(), "token", "s3cret");
    let vault = generated.vault_with_key(Path::new(other));
    assert_mentions(&read(&vault, "token").unwrap_err(), &["the generated key file", other, "unset GOBLIN_KEY_FILE"]);
    assert!(!read(&vault, "token").unwrap_err().contains("from a backup"), "the key is still there");
    let key = generated.directory().join("key");
    std::fs::write(&key, OTHER).unwrap();
    assert_mentions(&read(&generated.vault(), "token").unwrap_err(), &["has another key", "from a backup"]);
    std::fs::remove_file(key).unwrap();
    assert_mentions(&read(&generated.vault(), "token").unwrap_err(), &["no key was found", "from a backup"]);
    assert!(!generated.directory().join("key").exists(), "a lost key is not replaced");
    std::fs::remove_file(generated.directory().join("vault.json")).unwrap();
    assert_mentions(&read(&generated.vault(), "token").unwrap_err(), &["vault.json is missing", "rm -r /"]);
    let error = generated.vault().write(EntryKind::Secret, &name("b"), &Secret::new("b")).unwrap_err().to_string();
    assert_mentions(&error, &["vault.json is missing"]);
}

#[test]
fn oauth7_a_shell_without_the_credential_of_a_service_gets_the_cure() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("credentials")).unwrap();
    let credential = key_file(&scratch, "credentials/goblin.key", HEX);
    let directory = credential.parent().unwrap().to_str().unwrap().to_owned();
    let in_service = |name: &str| (name == "CREDENTIALS_DIRECTORY").then(|| directory.clone());
    write(&Vault::new(scratch.directory(), &in_service), "token", "s3cret");
    let error = read(&scratch.vault(), "token").unwrap_err();
    assert_mentions(&error, &["the systemd credential /", "no key was found", "run the command with the credential"]);
    let same = key_file(&scratch, "same", HEX);
    assert_eq!(read(&scratch.vault_with_key(&same), "token"), Ok(Some("s3cret".to_owned())));

    let other = Scratch::new();
    write(&other.vault_with_key(&same), "token", "s3cret");
    std::fs::write(&credential, OTHER).unwrap();
    let error = read(&Vault::new(other.directory(), &in_service), "token").unwrap_err();
    let cure = format!("remove the credential goblin.key from the service and set GOBLIN_KEY_FILE={}", same.display());
    assert_mentions(&error, &["has another key", &cure]);
}

#[test]
fn oauth7_an_open_vault_notices_that_another_vault_is_in_its_place() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.vault(), scratch.vault());
    write(&first, "token", "old");
    std::fs::remove_dir_all(scratch.directory()).unwrap();
    write(&second, "token", "new");
    assert_eq!(read(&first, "token"), Ok(Some("new".to_owned())));
    write(&first, "token", "newer");
    assert_eq!(read(&second, "token"), Ok(Some("newer".to_owned())));
}

#[test]
fn oauth7_an_unusable_key_file_is_reported_with_the_cure() {
    let scratch = Scratch::new();
    let fail = |path: &Path| {
        let written = scratch.vault_with_key(path).write(EntryKind::Secret, &name("a"), &Secret::new("v"));
        written.unwrap_err().to_string()
    };
    let weak = key_file(&scratch, "weak", "hunter2hunter2");
    let error = fail(&weak);
    assert_mentions(&error, &["weak", "hex or base64", "openssl rand -hex 32"]);
    assert!(!error.contains("hunter2"), "{error}");
    assert_mentions(&fail(&scratch.0.join("absent")), &["absent", "No such file", "openssl rand -hex 32"]);
    assert_mentions(&fail(&key_file(&scratch, "large", vec![b'x'; 2000])), &["larger than"]);
    assert_mentions(&fail(&scratch.0), &["not a regular file"]);

    let open = key_file(&scratch, "open", HEX);
    set_mode(&open, 0o644);
    assert_mentions(&fail(&open), &["others can read it (mode 644)", "chmod 600 /"]);
    set_mode(&open, 0o602);
    assert_mentions(&fail(&open), &["others can change it (mode 602)", "chmod go-w /"]);
    set_mode(&open, 0o640);
    let link = scratch.0.join("link");
    symlink(&open, &link).unwrap();
    let vault = scratch.vault_with_key(&link);
    write(&vault, "token", "a mounted secret is often a link");
    assert!(vault.key_source().unwrap().contains("link"));
}

#[test]
fn oauth7_processes_that_start_at_once_agree_on_one_key() {
    let scratch = Scratch::new();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (scratch, start) = (&scratch, &start);
            scope.spawn(move || {
                let vault = scratch.vault();
                start.wait();
                write(&vault, &format!("secret-{number}"), &number.to_string());
            });
        }
    });
    let vault = scratch.vault();
    assert_eq!(vault.names(EntryKind::Secret).unwrap().len(), 8);
    for number in 0..8 {
        assert_eq!(read(&vault, &format!("secret-{number}")), Ok(Some(number.to_string())));
    }
    let others: Vec<_> = scratch.files().into_iter().filter(|file| !file.ends_with(".entry")).collect();
    assert_eq!(others, ["key", "vault.json"]);
}
