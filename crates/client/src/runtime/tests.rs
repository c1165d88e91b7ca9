use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::LazyLock;

use super::*;

/// A temporary directory. Dropping it removes it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let directory = std::env::temp_dir().join(format!("goblin-runtime-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Scratch(directory)
    }

    fn places(&self) -> RecordDirectories {
        let session = self.0.display().to_string();
        let state = self.0.join("state").display().to_string();
        RecordDirectories::of(&|name| match name {
            "XDG_RUNTIME_DIR" => Some(session.clone()),
            "XDG_STATE_HOME" => Some(state.clone()),
            _ => None,
        })
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join("goblin")).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

static TOKENS: LazyLock<[Secret; 2]> = LazyLock::new(|| ["s3cret", "s3cret of operators"].map(Secret::new));

fn tokens() -> Tokens<'static> {
    Tokens { gateway: Some(&TOKENS[0]), admin: Some(&TOKENS[1]) }
}

fn record(port: u16, config: &str) -> GatewayRecord {
    let identity = Identity::of_file(Path::new(config), "{}", Path::new("/"));
    GatewayRecord::new(format!("http://127.0.0.1:{port}/mcp"), identity, Fingerprints::new([0; 16], &BTreeMap::new()))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_record_lives_as_long_as_its_gateway_and_is_ours_alone() {
    let scratch = Scratch::new("life");
    let places = scratch.places();
    assert_eq!(places.running(), []);
    let published = places.publish(record(1, "/a.json"), tokens()).unwrap();
    let running = places.running();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].token().unwrap().as_ref(), tokens().gateway);
    assert_eq!(running[0].admin_token().unwrap(), None, "it has no admin API");
    let with_api = GatewayRecord { admin_url: Some("http://127.0.0.1:1".to_owned()), ..running[0].clone() };
    assert_eq!(with_api.admin_token().unwrap().as_ref(), tokens().admin);
    let without = GatewayRecord { admin_token_file: None, ..with_api };
    assert_eq!(without.admin_token().unwrap(), None, "the token of clients opens no admin API");
    assert_eq!(mode(&scratch.0.join("goblin")), 0o700);
    let files = scratch.files();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        let is_record = file.extension().unwrap() == "json";
        assert_eq!(std::fs::read_to_string(&file).unwrap().contains("s3cret"), !is_record, "{}", file.display());
    }
    drop(published);
    assert_eq!(places.running(), []);
    assert_eq!(scratch.files(), [""; 0].map(PathBuf::from));
}

#[test]
fn what_a_killed_gateway_left_is_removed() {
    let scratch = Scratch::new("stale");
    let places = scratch.places();
    let mut published = places.publish(record(1, "/a.json"), tokens()).unwrap();
    // Simulates the end of the process: the lock is released, but the files stay.
    published.file = File::open("/dev/null").unwrap();
    assert_eq!(scratch.files().len(), 3);
    assert_eq!(places.running(), []);
    assert_eq!(scratch.files().len(), 0);
}

#[test]
fn what_others_could_have_written_is_passed_over() {
    let scratch = Scratch::new("loose");
    let places = scratch.places();
    let published = places.publish(record(1, "/a.json"), tokens()).unwrap();
    let change = |path: &Path, mode: u32| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let running = places.running();
    for path in [published.path.clone(), scratch.0.join("goblin")] {
        let before = mode(&path);
        change(&path, before | 0o022);
        assert_eq!(places.running(), [], "{}", path.display());
        change(&path, before);
        assert_eq!(places.running(), running);
    }
    change(running[0].token_file.as_ref().unwrap(), 0o644);
    assert!(running[0].token().is_err());
}

#[test]
fn a_directory_that_cannot_be_used_is_passed_over_for_the_next() {
    let scratch = Scratch::new("next");
    std::fs::write(scratch.0.join("goblin"), "in the way").unwrap();
    let published = scratch.places().publish(record(1, "/a.json"), Tokens::default()).unwrap();
    assert!(published.path.starts_with(scratch.0.join("state/goblin/run")), "{published:?}");
    assert_eq!(scratch.places().running().len(), 1);
}

#[test]
fn the_one_that_is_meant_is_chosen() {
    let (a, b) = (record(1, "/a.json"), record(2, "/b.json"));
    let wanted = |record: &GatewayRecord| Some(record.identity.clone());
    let check = |running: &[&GatewayRecord], wanted: Option<Identity>, expected: Result<u16, &[&str]>| {
        let running = running.iter().copied().cloned().collect();
        match (choose(running, wanted.as_ref()), expected) {
            (Ok(chosen), Ok(port)) => assert_eq!(chosen.url, format!("http://127.0.0.1:{port}/mcp")),
            (Err(error), Err(fragments)) => {
                fragments.iter().for_each(|fragment| assert!(error.to_string().contains(fragment), "{error}"))
            }
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    };
    check(&[], None, Err(&["no gateway", "--url"]));
    check(&[&a], None, Ok(1));
    check(&[&a], wanted(&b), Ok(1));
    check(&[&a, &b], wanted(&b), Ok(2));
    check(&[&a, &b], None, Err(&["2 gateways", "127.0.0.1:1/mcp", "/b.json", "--url"]));
    check(&[&a, &a], wanted(&a), Err(&["2 gateways"]));
}

#[test]
fn a_record_that_cannot_be_finished_leaves_no_token_behind() {
    let scratch = Scratch::new("unfinished");
    let directory = scratch.0.join("goblin");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
    let mut unwritable = record(1, "/a.json");
    // A path that is not valid UTF-8 cannot be part of a JSON document.
    unwritable.identity.config = Some(std::ffi::OsString::from_vec(vec![b'/', 0xff]).into());
    let written = write(&directory, &mut unwritable, tokens());
    assert!(written.is_err(), "{written:?}");
    assert_eq!(scratch.files().len(), 0);
}

#[test]
fn a_token_file_of_the_operators_choice_is_ours_alone_and_goes_with_us() {
    let scratch = Scratch::new("chosen");
    let path = scratch.0.join("admin.token");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let written = TokenFile::write(&path, &TOKENS[1]).unwrap();
    assert_eq!((mode(&path), read_token(&path).unwrap()), (0o600, TOKENS[1].clone()));
    drop(written);
    assert!(!path.exists());
    assert!(TokenFile::write(&scratch.0.join("no/such"), &TOKENS[1]).is_err());
}
