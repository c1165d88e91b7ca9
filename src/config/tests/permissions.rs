//! What the permissions of the file mean for its content.

use super::environment;
use crate::config::file::Origin;
use crate::config::{Loaded, load, parse};

const SECRETS: &str = r#"{
  "gateway": { "token": "abc" },
  "mcpServers": { "a": { "url": "http://x", "headers": { "Authorization": "Bearer abc", "X-Other": "abc" } },
                  "b": { "url": "http://x", "headers": { "Authorization": "Bearer ${TOKEN}" } } }
}"#;

fn parse_with_mode(text: &str, mode: u32) -> Result<Loaded, String> {
    let origin = Origin { mode: Some(mode), ..Origin::new("goblin.json", "/etc/goblin") };
    parse(text, &origin, &environment).map_err(|problems| problems.to_string())
}

#[test]
fn a_file_that_others_can_change_is_refused() {
    for mode in [0o100_664, 0o100_602, 0o100_666] {
        let expected = format!(
            "goblin.json:1:1: the file names commands to run and others can change it (mode {:o}), \
             chmod go-w goblin.json",
            mode & 0o777
        );
        assert_eq!(parse_with_mode(r#"{ "mcpServers": {} }"#, mode), Err(expected.clone()));
        // Together with all other problems.
        let both = parse_with_mode("[]", mode).unwrap_err();
        assert_eq!(both, format!("{expected}\ngoblin.json:1:1: must be an object, not an array"));
    }
    for mode in [0o100_600, 0o100_644, 0o100_400] {
        assert!(parse_with_mode(r#"{ "mcpServers": {} }"#, mode).is_ok());
    }
}

#[test]
fn a_written_secret_that_all_can_read_is_warned_of() {
    let loaded = parse_with_mode(SECRETS, 0o100_644).unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let cure = "a secret in a file that everybody can read, write ${VAR} instead, or chmod o-r goblin.json";
    assert_eq!(
        warnings,
        [
            format!("goblin.json:2:25: gateway.token: {cure}"),
            format!("goblin.json:3:75: mcpServers.a.headers.Authorization: {cure}"),
        ]
    );
    assert!(parse_with_mode(SECRETS, 0o100_640).unwrap().warnings.is_empty());
}

#[cfg(unix)]
#[test]
fn load_asks_the_file_itself() {
    use std::os::unix::fs::PermissionsExt;

    let path = std::env::temp_dir().join(format!("goblin-permissions-{}.json", std::process::id()));
    std::fs::write(&path, r#"{ "mcpServers": { "a": { "command": "x", "cwd": "sub" } } }"#).unwrap();
    let with_mode = |mode: u32| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        load(&path, &environment)
    };
    let refused = with_mode(0o620).unwrap_err().to_string();
    assert!(refused.contains("(mode 620), chmod go-w "), "{refused}");
    let loaded = with_mode(0o600).unwrap();
    let crate::config::Transport::Stdio { cwd, .. } = &loaded.config.servers["a"].transport else {
        panic!("not stdio")
    };
    assert_eq!(cwd, &std::env::temp_dir().join("sub"));
    std::fs::remove_file(&path).unwrap();
}
