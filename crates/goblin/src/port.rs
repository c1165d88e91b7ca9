//! Explains why the gateway cannot listen on an address: which program uses it, and what to do instead.

use std::io;
use std::net::TcpListener;
use std::path::Path;

use goblin_client::environment::environment;
use goblin_client::runtime::{GatewayRecord, RecordDirectories};
use goblin_config::Gateway;

/// The number of following ports that are tried for a suggestion.
const MAX_TRIED_PORTS: u16 = 50;

/// The process that listens on a port.
#[derive(Debug, PartialEq, Eq)]
struct PortOwner {
    pid: u32,
    name: String,
}

/// Explains why `gateway` cannot listen, and suggests a command. `flags` are the flags of the failed command without
/// --port.
pub(crate) fn explain(gateway: &Gateway, error: &io::Error, flags: &str) -> String {
    explain_among(&RecordDirectories::of(&environment).running(), gateway, error, flags)
}

/// Does the same as [`explain`] with a known list of running gateways.
pub(crate) fn explain_among(running: &[GatewayRecord], gateway: &Gateway, error: &io::Error, flags: &str) -> String {
    let Gateway { host, port, .. } = gateway;
    let cause = match error.kind() {
        io::ErrorKind::AddrInUse => format!("cannot listen on {host}:{port}: {}", describe_listener(*port, running)),
        io::ErrorKind::AddrNotAvailable => {
            let cure = "listen on 127.0.0.1, or on 0.0.0.0 with gateway.token set";
            return format!("cannot listen on {host}:{port}: this machine does not have the address {host}; {cure}");
        }
        io::ErrorKind::PermissionDenied => {
            format!("cannot listen on {host}:{port}: ports below 1024 belong to the system")
        }
        _ => return format!("cannot listen on {host}:{port}: {error}; is gateway.host right?"),
    };
    match free_port(host, (*port).max(1023)) {
        Some(free) => format!("{cause}\nport {free} is free: goblin serve{flags} --port {free}"),
        None => format!("{cause}\nlet the system choose a port: goblin serve{flags} --port 0"),
    }
}

/// Returns the port in the URL of a gateway.
pub(crate) fn of_url(url: &str) -> Option<u16> {
    url.parse::<http::Uri>().ok().and_then(|url| url.port_u16())
}

fn describe_listener(port: u16, gateways: &[GatewayRecord]) -> String {
    if let Some(record) = gateways.iter().find(|record| of_url(&record.url) == Some(port)) {
        let place = record.identity.place();
        return format!("a gateway for {place} runs there already, at {} (pid {})", record.url, record.pid);
    }
    if !cfg!(target_os = "linux") {
        return format!("another program listens there; find it with: lsof -nP -iTCP:{port} -sTCP:LISTEN");
    }
    match find_listener(Path::new("/proc"), port) {
        Some(PortOwner { pid, name }) => format!("{name} (pid {pid}) listens there"),
        None => "a program of another user listens there".to_owned(),
    }
}

/// Returns the first port after `port` that can be bound.
fn free_port(host: &str, port: u16) -> Option<u16> {
    let next = port.checked_add(1)?;
    (next..=port.saturating_add(MAX_TRIED_PORTS)).find(|port| TcpListener::bind((host, *port)).is_ok())
}

/// Returns the process that listens on `port`. Returns `None` if there is none, or if it belongs to another user.
fn find_listener(proc: &Path, port: u16) -> Option<PortOwner> {
    let tables = ["net/tcp", "net/tcp6"].map(|table| std::fs::read_to_string(proc.join(table)).unwrap_or_default());
    let inodes: Vec<String> = tables.iter().flat_map(|table| listening(table, port)).collect();
    let sockets: Vec<_> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let has_socket = |pid: u32| {
        let files = std::fs::read_dir(proc.join(pid.to_string()).join("fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        targets.any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
    };
    let processes =
        std::fs::read_dir(proc).ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = processes.into_iter().find(|pid| !sockets.is_empty() && has_socket(*pid))?;
    let name = std::fs::read_to_string(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
    Some(PortOwner { pid, name: goblin_telemetry::clean(name.trim()) })
}

/// Returns the inodes of the sockets that listen on `port`, from a table in `/proc/net`.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let mut inodes = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(local), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else { continue };
        let local = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        if *state == LISTEN && local == Some(port) {
            inodes.push((*inode).to_owned());
        }
    }
    inodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_the_kernel_is_read() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0
   1: 0100007F:0BB8 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4343 1 0 20 4 30 10 -1
   2: 00000000:0BB9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4444 1 0 100 0 0 10 0
   3: cut
";
        assert_eq!(listening(table, 3000), ["4242"]);
        assert_eq!(listening(table, 3001), ["4444"]);
        assert_eq!(listening(table, 3002), [""; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_listener_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(find_listener(Path::new("/proc"), port).map(|owner| owner.pid), Some(std::process::id()));
        drop(listener);
        assert_eq!(find_listener(Path::new("/proc"), port), None);
    }

    #[test]
    fn each_refusal_has_its_cure() {
        let check = |kind: io::ErrorKind, fragments: &[&str]| {
            let gateway = Gateway { host: "192.0.2.1".to_owned(), port: 80, ..Gateway::default() };
            let text = explain(&gateway, &kind.into(), " --config x");
            assert!(text.starts_with("cannot listen on 192.0.2.1:80: "), "{text}");
            for fragment in fragments {
                assert!(text.contains(fragment), "{text}");
            }
        };
        check(io::ErrorKind::AddrNotAvailable, &["does not have the address"]);
        check(io::ErrorKind::PermissionDenied, &["below 1024", "goblin serve --config x --port 0"]);
        check(io::ErrorKind::Other, &["gateway.host"]);
    }
}
