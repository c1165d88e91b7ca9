//! What operators are served, and where.

use std::fmt;
use std::path::PathBuf;

use crate::field::Field;
use crate::problem::Fault;
use crate::secret::Secret;
use crate::{network, read, vocabulary};

/// Of the `admin` key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Whether there are `/api` and `/metrics` at all.
    pub enabled: bool,
    /// Where they are, instead of the address for clients.
    pub listen: Option<Listen>,
    /// Where the admin token is written, instead of the runtime directory.
    pub token_file: Option<PathBuf>,
    /// The admin token; the gateway makes one at each start when there is none.
    pub token: Option<Secret>,
}

impl Default for AdminSettings {
    fn default() -> AdminSettings {
        AdminSettings { enabled: true, listen: None, token_file: None, token: None }
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Without brackets.
    pub host: String,
    /// 0 takes any free one.
    pub port: u16,
}

impl Listen {
    /// Whether only programs of this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        network::is_loopback(&self.host)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listen { host, port } = self;
        if host.contains(':') { write!(formatter, "[{host}]:{port}") } else { write!(formatter, "{host}:{port}") }
    }
}

pub(crate) fn admin(field: &Field<'_>) -> Option<AdminSettings> {
    let section = field.section(&vocabulary::ADMIN)?;
    let mut settings = AdminSettings::default();
    section.set(&mut settings.enabled, "enabled", Field::flag);
    section.set(&mut settings.listen, "listen", |field| field.accept(listen(field.text()?)).map(Some));
    section.set(&mut settings.token_file, "tokenFile", |field| field.path().map(Some));
    section.set(&mut settings.token, "token", |field| read::token(field).map(Some));
    Some(settings)
}

fn listen(text: &str) -> Result<Listen, Fault> {
    let wrong = || Fault::new("must be an address with a port").cure("write it like \"127.0.0.1:3001\"");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Without brackets nobody can tell where an address ends and the port begins.
    if bare.is_none() && host.contains(':') || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let host = network::check_host(bare.unwrap_or(host)).map_err(|_| wrong())?;
    Ok(Listen { host, port: port.parse().map_err(|_| wrong())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
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
