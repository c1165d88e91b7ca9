//! The `admin` section of the configuration: the admin API's address and token.

use std::fmt;
use std::path::PathBuf;

use crate::field::Field;
use crate::problem::Fault;
use crate::schema::ObjectKeys;
use crate::secret::Secret;
use crate::{network, read};

/// The settings of the `admin` key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Whether the gateway serves `/api` and `/metrics`.
    pub enabled: bool,
    /// A separate address for `/api` and `/metrics`. `None` serves them on the address for clients.
    pub listen: Option<ListenAddress>,
    /// The path of the file that receives the admin token. `None` uses the runtime directory.
    pub token_file: Option<PathBuf>,
    /// The admin token. `None` makes the gateway generate a token at each start.
    pub token: Option<Secret>,
}

impl Default for AdminSettings {
    fn default() -> AdminSettings {
        AdminSettings { enabled: true, listen: None, token_file: None, token: None }
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An IP address without brackets, or a host name.
    pub host: String,
    /// The TCP port. 0 takes any free port.
    pub port: u16,
}

impl ListenAddress {
    /// Reports whether only programs on this machine can connect.
    pub fn is_loopback(&self) -> bool {
        network::is_loopback(&self.host)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenAddress { host, port } = self;
        if host.contains(':') { write!(formatter, "[{host}]:{port}") } else { write!(formatter, "{host}:{port}") }
    }
}

pub(crate) fn admin(field: &Field<'_>) -> Option<AdminSettings> {
    let section = field.section(ObjectKeys::Admin)?;
    let mut settings = AdminSettings::default();
    section.set(&mut settings.enabled, "enabled", Field::flag);
    section.set(&mut settings.listen, "listen", |field| field.accept(listen(field.text()?)).map(Some));
    section.set(&mut settings.token_file, "tokenFile", |field| field.path().map(Some));
    section.set(&mut settings.token, "token", |field| read::token(field).map(Some));
    Some(settings)
}

fn listen(text: &str) -> Result<ListenAddress, Fault> {
    let wrong = || Fault::new("must be an address with a port").cure("write it like \"127.0.0.1:3001\"");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // The last colon of an IPv6 address without brackets could belong to the address or to the port.
    if bare.is_none() && host.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let host = network::check_host(bare.unwrap_or(host)).map_err(|_| wrong())?;
    Ok(ListenAddress { host, port: port.parse().map_err(|_| wrong())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_needs_a_host_and_a_port() {
        for (text, host, port, shown) in [
            ("127.0.0.1:3001", "127.0.0.1", 3001, "127.0.0.1:3001"),
            ("localhost:0", "localhost", 0, "localhost:0"),
            ("[::1]:9", "::1", 9, "[::1]:9"),
            ("0.0.0.0:65535", "0.0.0.0", 65535, "0.0.0.0:65535"),
        ] {
            let listen = listen(text).expect("it is one");
            assert_eq!((listen.host.as_str(), listen.port, listen.to_string().as_str()), (host, port, shown));
        }
        for text in ["", ":1", "localhost", "localhost:", "::1:9", "a b:1", "x:65536", "x:+1", "http://x:1"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }
}
