//! The line after `goblin add NAME URL`, if a gateway runs with the file: it connects to the new server by itself, and
//! then knows whether the server needs a login.

use std::path::Path;
use std::time::Duration;

use goblin_admin::api::{ServerList, ServerStatus};
use goblin_config::oauth::login_command;
use goblin_telemetry::clean;
use tokio::time::Instant;

use crate::admin_client::{self, GatewayArgs};
use crate::style::plural;

/// The longest wait until the gateway has read the file and connected to the server.
const TIMEOUT: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Waits for a limited time for the server and returns its line. Returns `None` without a gateway, and if the gateway
/// does not settle in time.
pub(super) async fn of_server(name: &str, file: &Path) -> Option<String> {
    let arguments = GatewayArgs { config: Some(file.to_owned()), ..GatewayArgs::default() };
    let client = admin_client::find(&arguments).await.ok()?;
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        let list: ServerList = serde_json::from_slice(&client.get("/api/servers").await.ok()?).ok()?;
        if let Some(line) = list.servers.iter().find(|server| server.id == name).and_then(line) {
            return Some(line);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    None
}

/// Returns the line about a server. Returns `None` while it starts.
fn line(server: &ServerStatus) -> Option<String> {
    let (id, reason) = (clean(&server.id), server.reason.as_deref().map(clean).unwrap_or_default());
    Some(match server.state.as_str() {
        "ready" => format!("{id} is ready: {}\n", plural(server.entries.tools, "tool")),
        "login_needed" if reason.contains("(run: ") => {
            format!("{id} needs a login: {}\n", clean(&login_command(&server.id)))
        }
        "login_needed" | "failed" | "misconfigured" => format!("{id} is not ready: {reason}\n"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use goblin_admin::api::Entries;

    use super::*;

    #[test]
    fn oauth2_the_line_after_add_has_the_command_of_a_needed_login() {
        let server = |state: &str, reason: Option<&str>| ServerStatus {
            id: "linear".to_owned(),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            entries: Entries { tools: 12, ..Entries::default() },
            ..ServerStatus::default()
        };
        let needed = Some("it needs a login: nobody has logged in (run: goblin login linear)");
        for (state, reason, expected) in [
            ("login_needed", needed, Some("linear needs a login: goblin login linear\n")),
            (
                "login_needed",
                Some("the gateway cannot log in"),
                Some("linear is not ready: the gateway cannot log in\n"),
            ),
            ("ready", None, Some("linear is ready: 12 tools\n")),
            ("failed", Some("gone"), Some("linear is not ready: gone\n")),
            ("starting", None, None),
        ] {
            assert_eq!(line(&server(state, reason)).as_deref(), expected, "{state}");
        }
    }
}
