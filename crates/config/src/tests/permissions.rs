//! Tests the effect of the file's permissions.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::environment;
use crate::file::ConfigOrigin;
use crate::{LoadedConfig, load, parse};

const SECRETS: &str = r#"{
  "gateway": { "token": "abc-abc-abc-abcd" },
  "mcpServers": { "a": { "url": "http://x", "headers": { "Authorization": "Bearer abc", "X-Other": "abc" } },
                  "b": { "url": "http://x", "headers": { "Authorization": "Bearer ${TOKEN}" } },
                  "c": { "command": "x", "env": { "API_TOKEN": "abc", "OTHER_TOKEN": "${TOKEN}", "LANG": "C" } } }
}"#;

fn parse_with_mode(text: &str, mode: u32) -> Result<LoadedConfig, String> {
    let origin = ConfigOrigin { mode: Some(mode), ..ConfigOrigin::new("goblin.json", "/etc/goblin") };
    parse(text, &origin, &environment).map_err(|problems| problems.to_string())
}

#[test]
fn a_literal_secret_in_a_world_readable_file_gives_a_warning() {
    let loaded = parse_with_mode(SECRETS, 0o100_644).unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let cure = "every user can read this file, and it contains a secret, write ${VAR} or ${secret:NAME} instead, or chmod o-r goblin.json";
    assert_eq!(
        warnings,
        [
            format!("goblin.json:2:25: gateway.token: {cure}"),
            format!("goblin.json:3:75: mcpServers.a.headers.Authorization: {cure}"),
            format!("goblin.json:5:64: mcpServers.c.env.API_TOKEN: {cure}"),
        ]
    );
    assert!(parse_with_mode(SECRETS, 0o100_640).unwrap().warnings.is_empty());
}

#[test]
fn hard9_load_checks_the_file_and_every_directory() {
    let directory = std::env::temp_dir().join(format!("goblin-permissions-{}", std::process::id()));
    let (inner, path) = (directory.join("inner"), directory.join("inner/goblin.json"));
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(&path, r#"{ "mcpServers": { "a": { "command": "x", "cwd": "sub" } } }"#).unwrap();
    let set = |path: &Path, mode: u32| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let load = || load(&path, &environment).map_err(|error| error.to_string());
    set(&path, 0o602);
    let error = load().unwrap_err();
    assert!(error.contains("others can change it (mode 602), chmod go-w "), "{error}");
    set(&path, 0o600);
    set(&directory, 0o777);
    let error = load().unwrap_err();
    let place = directory.display();
    assert!(error.contains(&format!("others can write {place} (mode 777), chmod go-w {place}")), "{error}");
    // Others cannot replace files in a sticky directory.
    set(&directory, 0o1777);
    let loaded = load().unwrap();
    let crate::Transport::Stdio { cwd, .. } = &loaded.config.servers["a"].transport else { panic!("not stdio") };
    assert_eq!(cwd, &inner.join("sub"));
    // The permission problem is reported together with all other problems.
    set(&path, 0o606);
    std::fs::write(&path, "[]").unwrap();
    let both = load().unwrap_err();
    assert!(both.contains("(mode 606)") && both.contains("must be an object, not an array"), "{both}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn hard9_links_are_followed_and_every_directory_on_the_way_is_checked() {
    let directory = std::env::temp_dir().join(format!("goblin-links-{}", std::process::id()));
    let (open, closed) = (directory.join("open"), directory.join("closed"));
    for place in [&open, &closed] {
        std::fs::create_dir_all(place).unwrap();
        std::fs::write(place.join("goblin.json"), r#"{ "mcpServers": {} }"#).unwrap();
        std::os::unix::fs::symlink("../open/goblin.json", place.join("to-open.json")).unwrap();
        std::os::unix::fs::symlink(closed.join("goblin.json"), place.join("to-closed.json")).unwrap();
        std::os::unix::fs::symlink("loop.json", place.join("loop.json")).unwrap();
    }
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let is_trusted = |path: &str| load(&directory.join(path), &environment).is_ok();
    assert!(is_trusted("closed/goblin.json") && is_trusted("closed/to-closed.json"));
    assert!(is_trusted("closed/../closed/./to-closed.json"));
    // The file itself is safe, but the link to it can be replaced.
    assert!(!is_trusted("open/to-closed.json"));
    assert!(!is_trusted("closed/to-open.json") && !is_trusted("open/goblin.json"));
    assert!(!is_trusted("closed/../open/../closed/to-open.json"));
    assert!(!is_trusted("closed/loop.json"));
    std::fs::remove_dir_all(&directory).unwrap();
}
