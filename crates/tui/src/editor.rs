//! Runs the user's editor with the configuration file.

use std::path::Path;

use goblin_client::environment::environment;
use tokio::process::Command;

/// The editor if neither `VISUAL` nor `EDITOR` is set.
const FALLBACK: &str = "vi";

/// Runs the editor until it ends. Returns whether the file changed, or an error for the user.
pub(crate) async fn run(path: &Path) -> Result<bool, String> {
    let named = ["VISUAL", "EDITOR"].iter().find_map(|name| environment(name).filter(|value| !value.trim().is_empty()));
    let editor = named.unwrap_or_else(|| FALLBACK.to_owned());
    let before = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    // The variable may contain arguments (`code --wait`), so a shell splits it. The path is no part of the script.
    let script = format!("{editor} \"$@\"");
    let status = Command::new("sh").arg("-c").arg(script).arg(&editor).arg(path).status().await;
    match status {
        Ok(status) if status.success() => {
            let after = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            Ok(before != after)
        }
        Ok(status) => Err(format!("the editor {editor} failed ({status}); set VISUAL or EDITOR to another one")),
        Err(error) => Err(format!("cannot start the editor {editor}: {error}")),
    }
}
