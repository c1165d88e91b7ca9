//! Examines the machine around a gateway: other gateways, directories, the port, the socket, users and file
//! descriptors.

use std::net::TcpListener;

use goblin_client::environment::environment;
use goblin_client::runtime::GatewayRecord;
use goblin_client::runtime::identity::Identity;
use goblin_client::runtime::inspect::{DirectoryProblem, RuntimeReport};
use goblin_config::visible::shell_word;
use goblin_config::{Config, Gateway};
use goblin_engine::app::socket;
use goblin_engine::upstream::descriptors::raised;
use rustix::process::{Resource, getrlimit};

use crate::doctor::finding::Findings;
use crate::{port, stdio};

/// The file descriptors of one session: one connection for requests and one for notifications.
const DESCRIPTORS_PER_SESSION: u64 = 2;
/// The file descriptors of one server: pipes, watches and connections.
const DESCRIPTORS_PER_SERVER: u64 = 16;
const OTHER_DESCRIPTORS: u64 = 64;

/// The maximum number of users in a warning. The rest is only counted.
const NAMED_USERS: usize = 3;
/// The user ids of people on Linux distributions. Lower ids belong to programs.
const USER_IDS: std::ops::Range<u32> = 1000..65534;
/// The login shells that do not allow a login.
const NO_SHELLS: [&str; 6] = ["nologin", "false", "sync", "shutdown", "halt", "git-shell"];

const DIRECTORY: &str = "runtime directory";
const GATEWAY: &str = "gateway";

pub(crate) fn directories(inspected: &RuntimeReport, findings: &mut Findings) {
    let Some((first, state)) = inspected.directories.first() else {
        let what = "none of XDG_RUNTIME_DIR, XDG_STATE_HOME and HOME is set, so other commands do not find a gateway";
        return findings.problem(DIRECTORY, what, "set XDG_RUNTIME_DIR to your own directory");
    };
    let Err(reason) = state else { return findings.ok(DIRECTORY, first.display().to_string()) };
    let directory = shell_word(&first.display().to_string());
    let cure = match reason {
        DirectoryProblem::Open(_) => format!("chmod 700 {directory}"),
        DirectoryProblem::NoDirectory => format!("move it out of the way: mv {directory} {directory}.old"),
        DirectoryProblem::Foreign | DirectoryProblem::Refused(_) => {
            "set XDG_RUNTIME_DIR to your own directory".to_owned()
        }
    };
    let what = format!("{} cannot be used: {reason}", first.display());
    match inspected.directories.iter().find(|(_, state)| state.is_ok()) {
        Some((second, _)) => {
            findings.warning(DIRECTORY, format!("{what}; {} is used instead", second.display()), cure);
        }
        None => findings.problem(DIRECTORY, format!("{what}, so other commands do not find a gateway"), cure),
    }
}

/// Examines running gateways and records of killed ones.
pub(crate) async fn gateways(inspected: &RuntimeReport, own: &Identity, findings: &mut Findings) {
    for record in &inspected.running {
        let GatewayRecord { url, pid, identity, .. } = record;
        match identity.is_same_place(own) {
            true => of_this_configuration(record, own, findings).await,
            false => {
                findings.ok(GATEWAY, format!("another gateway runs at {url} (pid {pid}), for {}", identity.place()))
            }
        }
    }
    for leftover in &inspected.leftovers {
        let what = format!("{} is left over from a gateway that was killed", leftover.display());
        findings.warning(GATEWAY, what, "nothing to do: the next command that looks for a gateway removes it");
    }
}

async fn of_this_configuration(record: &GatewayRecord, own: &Identity, findings: &mut Findings) {
    let GatewayRecord { url, pid, version, .. } = record;
    let (before, restart) = (findings.len(), format!("stop it (kill {pid}) and start it again: goblin serve"));
    if !record.is_answering().await {
        findings.problem(GATEWAY, format!("the gateway at {url} (pid {pid}) does not answer"), &restart);
    }
    if let Err(error) = record.token() {
        let what =
            format!("the token of the gateway at {url} (pid {pid}) cannot be read, so no client can use it: {error}");
        findings.problem(GATEWAY, what, &restart);
    }
    if let Err(error) = record.admin_token() {
        let what = format!(
            "the admin token of the gateway at {url} (pid {pid}) cannot be read, so goblin status and goblin top cannot use it: \
             {error}"
        );
        findings.problem(GATEWAY, what, &restart);
    }
    if let Some(difference) = stdio::difference(record, own, environment) {
        findings.warning(
            GATEWAY,
            difference,
            format!("goblin status shows whether the file is in force; or {restart}"),
        );
    }
    if version != env!("CARGO_PKG_VERSION") {
        let what =
            format!("the gateway at {url} (pid {pid}) is version {version}, this is {}", env!("CARGO_PKG_VERSION"));
        findings.warning(GATEWAY, what, &restart);
    }
    if findings.len() == before {
        findings.ok(GATEWAY, format!("a gateway of this configuration runs at {url} (pid {pid})"));
    }
}

/// Reports whether a gateway can listen on its port. Skips the check if a gateway of this configuration has the port.
pub(crate) fn port(gateway: &Gateway, running: &[GatewayRecord], own: &Identity, findings: &mut Findings) {
    let Gateway { host, port, .. } = gateway;
    let is_own =
        |record: &&GatewayRecord| record.identity.is_same_place(own) && port::of_url(&record.url) == Some(*port);
    if !gateway.tcp || *port == 0 || running.iter().any(|record| is_own(&record)) {
        return;
    }
    let Err(error) = TcpListener::bind((host.as_str(), *port)) else {
        return findings.ok("port", format!("{host}:{port} is free"));
    };
    let explained = port::explain_among(running, gateway, &error, "");
    let (what, cure) = explained.split_once('\n').or_else(|| explained.split_once("; ")).unwrap_or((&explained, ""));
    findings.problem("port", what, format!("{cure}, or change gateway.host and gateway.port"));
}

/// Reports whether a gateway can listen on its Unix socket.
pub(crate) fn socket(gateway: &Gateway, running: &[GatewayRecord], own: &Identity, findings: &mut Findings) {
    let Some(path) = &gateway.socket else { return };
    let is_own = |record: &GatewayRecord| record.identity.is_same_place(own) && record.socket.as_ref() == Some(path);
    if running.iter().any(is_own) {
        return;
    }
    match socket::examine(path) {
        Ok(_) => findings.ok("socket", format!("{} is free", path.display())),
        Err(error) => {
            let explained = error.to_string();
            let (what, cure) = explained.split_once("; ").unwrap_or((&explained, "choose another gateway.socket"));
            findings.problem("socket", what, cure);
        }
    }
}

pub(crate) fn descriptors(config: &Config, findings: &mut Findings) {
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = raised(limit) else { return findings.ok("descriptors", "no limit") };
    let (sessions, servers) = (config.gateway.max_sessions as u64, config.servers.len() as u64);
    let needed = sessions * DESCRIPTORS_PER_SESSION + servers * DESCRIPTORS_PER_SERVER + OTHER_DESCRIPTORS;
    if current >= needed {
        return findings.ok("descriptors", format!("{current} may be open"));
    }
    let what = format!("{current} may be open, but gateway.maxSessions is {sessions}, which needs up to {needed}");
    let lower = "or lower gateway.maxSessions";
    findings.warning(
        "descriptors",
        what,
        match limit.maximum {
            Some(hard) if hard < needed => {
                format!("raise the hard limit, {hard} (LimitNOFILE= of a systemd unit, or limits.conf), {lower}")
            }
            _ => format!(
                "ulimit -n {needed} before goblin serve (goblin serve itself cannot raise the limit that far), {lower}"
            ),
        },
    );
}

/// Warns if other people can log in to this machine and reach the gateway without a token. Users of a directory service
/// are not in `/etc/passwd`, so the absence of a warning proves nothing.
pub(crate) fn users(gateway: &Gateway, findings: &mut Findings) {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    warn_about_users(&other_users(&passwd, rustix::process::getuid().as_raw()), gateway, findings);
}

fn warn_about_users(other_users: &[&str], gateway: &Gateway, findings: &mut Findings) {
    // A gateway on another address than loopback has a token, or it does not start.
    if other_users.is_empty() || !gateway.tcp || gateway.token.is_some() || !gateway.is_loopback() {
        return;
    }
    let named = other_users.iter().take(NAMED_USERS).copied().collect::<Vec<_>>().join(", ");
    let more = other_users.len().saturating_sub(NAMED_USERS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = format!(
        "{named}{more} can log in to this machine, and every user of it reaches {}:{} without a token",
        gateway.host, gateway.port
    );
    findings.warning("users", what, "set gateway.token, or gateway.socket together with \"tcp\": false");
}

/// Returns the names of other people with a login shell. Root is left out, because nothing is closed to root.
fn other_users(passwd: &str, own: u32) -> Vec<&str> {
    fn other_user(line: &str, own: u32) -> Option<&str> {
        let fields: Vec<&str> = line.split(':').collect();
        let (uid, shell) = (fields.get(2)?.parse::<u32>().ok()?, fields.get(6)?.trim());
        let can_log_in = !NO_SHELLS.contains(&shell.rsplit('/').next().unwrap_or_default());
        (uid != own && USER_IDS.contains(&uid) && can_log_in).then(|| fields[0])
    }
    passwd.lines().filter_map(|line| other_user(line, own)).collect()
}

#[cfg(test)]
mod tests {
    use goblin_config::secret::Secret;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/usr/sbin/nologin\n\
                          me:x:1000:1000::/:/bin/bash\nada:x:1001:1001::/:/bin/zsh\n\
                          robot:x:1002:1002::/:/bin/false\nbob:x:1003:1003::/:\n\
                          nobody:x:65534:65534::/:/bin/sh\nodd\n";

    #[test]
    fn other_users_with_a_shell_are_listed() {
        assert_eq!(other_users(PASSWD, 1000), ["ada", "bob"]);
        assert_eq!(other_users(PASSWD, 0), ["me", "ada", "bob"]);
        assert_eq!(other_users("", 0), [""; 0]);
    }

    #[test]
    fn other_users_give_a_warning_unless_a_token_is_set() {
        let warnings = |other_users: &[&str], gateway: &Gateway| {
            let mut findings = Findings::default();
            warn_about_users(other_users, gateway, &mut findings);
            findings.text(false)
        };
        let gateway = Gateway { port: 3000, ..Gateway::default() };
        let text = warnings(&["a", "b", "c", "d"], &gateway);
        assert!(text.contains("a, b, c and 1 more can log in to this machine"), "{text}");
        assert!(text.contains("127.0.0.1:3000 without a token") && text.contains("gateway.socket"), "{text}");
        assert!(warnings(&[], &gateway).starts_with("\nno problems"));
        let token = Some(Secret::new("0123456789abcdef"));
        assert!(warnings(&["a"], &Gateway { token, ..gateway }).starts_with("\nno problems"));
    }
}
